"""The queries of fluxion-quantum, with the answers that it declares: by the matcher, and by the scheduler.

A region picks its machine; a region that nobody has matches nothing; one constraint cannot serve nodes and
machines, which have no property in common; without a constraint anything will do.
"""

from __future__ import annotations

from typing import Any

import pytest

import fluence
from fluence import names
from fluence.match.request import Placed
from fluence.model.reason import Code
from tests.builders import Sample, jobspec, resource
from tests.unit.schedule.test_devices import World, asks, backend

MACHINES = {"ibm_west": "us-west", "rigetti_east": "us-east", "quera_eu": "eu"}
DOCUMENT = "resources:\n" + "\n".join(
    f"- {{type: qpu, name: {name}, attributes: {{region: {region}}}}}" for name, region in MACHINES.items()
)


def graph() -> fluence.ResourceGraph:
    """As fluxion-quantum models it: machines are nodes too, told apart by properties."""
    sample = Sample()
    root = sample.add("cluster", None, id=0)
    for i in range(2):
        node = sample.add("node", root, id=i, rank=i, name=f"node{i}", properties={"virtual=false": ""})
        sample.add("core", node, id=0, rank=i)
    for i, (name, region) in enumerate(MACHINES.items(), start=2):
        said = {"virtual=true": "", "class=qpu": "", f"region={region}": ""}
        sample.add("node", root, id=i, rank=i, name=name, properties=said)
    return sample.load()


def ask(*resources: Any, properties: list[str] | None = None) -> list[str] | None:
    """The names of the nodes that a query gets; None: it has no answer."""
    found = graph()
    constraints = None if properties is None else {"properties": properties}
    placed = fluence.Matcher(found, policy="first").match(
        "allocate_with_satisfiability", jobspec(*resources, constraints=constraints), job=1, now=0
    )
    if not isinstance(placed, Placed):
        return None
    node = found.types.code("node")
    return [found.name[row] for row in placed.selection.vertices.tolist() if found.type[row] == node]


DEVICE = resource("slot", 1, resource("node", 1, exclusive=True))
COMPUTE = resource("slot", 1, resource("node", 1, resource("core", 1)))


def test_the_region_picks_its_machine() -> None:
    assert ask(DEVICE, properties=["virtual=true", "region=us-east"]) == ["rigetti_east"]


def test_a_region_that_nobody_has_matches_nothing() -> None:
    assert ask(DEVICE, properties=["virtual=true", "region=mars"]) is None


def test_one_constraint_cannot_serve_nodes_and_machines() -> None:
    assert ask(COMPUTE, properties=["region=us-east"]) is None
    assert ask(COMPUTE, properties=["virtual=false"]) in (["node0"], ["node1"])


def test_without_a_constraint_anything_will_do() -> None:
    found = ask(DEVICE)
    assert found is not None and len(found) == 1


# -- the same by the scheduler -------------------------------------------------------------------------------


def test_the_scheduler_picks_the_machine_of_a_region_and_any_node() -> None:
    bind = World(DOCUMENT).run(asks("a", qpu=1, region="us-east"))["a"]
    assert backend(bind) == "rigetti_east" and bind.node in ("n1", "n2")


def test_the_scheduler_says_that_nobody_has_a_region() -> None:
    world = World(DOCUMENT)
    assert world.run(asks("a", qpu=1, region="mars")) == {}
    (reason,) = world.why("default/pod:a")
    assert (reason.code, reason["key"], reason["value"]) == (Code.DEVICE_VALUE_UNKNOWN, "region", "mars")


def test_a_constraint_on_nodes_says_nothing_of_machines_and_the_other_way_round() -> None:
    """What one constraint cannot do, two can: each is asked of what it is about."""
    world = World(DOCUMENT)
    constraint = {names.CONSTRAINTS: '{"properties": ["region=us-east"]}'}
    assert world.run(asks("a", qpu=1, annotations=constraint)) == {}  # no node has this property
    bind = world.run(
        asks("b", qpu=1, region="us-east", annotations={names.CONSTRAINTS: '{"hostlist": ["n2"]}'})
    )["b"]
    assert (backend(bind), bind.node) == ("rigetti_east", "n2")


@pytest.mark.parametrize(
    ("policy", "first"), [("first", "ibm_west"), ("low", "ibm_west"), ("high", "quera_eu")]
)
def test_without_a_constraint_the_policy_chooses(policy: str, first: str) -> None:
    assert backend(World(DOCUMENT, match_policy=policy).run(asks("a", qpu=1))["a"]) == first
