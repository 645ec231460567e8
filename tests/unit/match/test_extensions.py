"""What goes beyond Fluxion is off unless asked for; on, it does what it says."""

from __future__ import annotations

from typing import Any

import pytest

from fluence.graph.graph import CONTAINMENT, Batch, ResourceGraph
from fluence.graph.writers import Grant, write
from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.request import Extensions, Never, Placed, Wait
from fluence.model.jobspec import Jobspec

MIXED = Extensions(siblings=True)
POOLS = Extensions(quantities=frozenset(("memory",)))
SHARED = Extensions(shared=True)


def cluster(nodes: int = 3, cores: int = 4, memory: int = 4000) -> ResourceGraph:
    """Nodes with cores and one pool of memory each, and a quantum computer beside them."""
    batch = Batch()
    uniq = iter(range(1000))
    root = batch.vertex("cluster", id=0, uniq_id=next(uniq))
    batch.roots[CONTAINMENT] = root
    for n in range(nodes):
        node = batch.vertex("node", id=n, uniq_id=next(uniq), rank=n)
        batch.edge(root, node)
        for c in range(cores):
            batch.edge(node, batch.vertex("core", id=c, uniq_id=next(uniq), rank=n))
        batch.edge(node, batch.vertex("memory", id=0, uniq_id=next(uniq), rank=n, size=memory))
    for q in range(2):
        colour = {"trapped-ion": ""} if q else {}
        qpu = batch.vertex("qpu", id=q, uniq_id=next(uniq), properties=colour)
        batch.edge(root, qpu)
        batch.edge(qpu, batch.vertex("qubit", id=0, uniq_id=next(uniq)))
    graph = ResourceGraph()
    graph.extend(batch)
    return graph


def job(*resources: dict[str, Any], duration: int = 60, constraints: Any = None) -> Jobspec:
    system: dict[str, Any] = {"duration": duration}
    if constraints is not None:
        system["constraints"] = constraints
    return Jobspec.from_value(
        {
            "version": 9999,
            "resources": list(resources),
            "tasks": [{"command": ["app"], "slot": "default", "count": {"per_slot": 1}}],
            "attributes": {"system": system},
        }
    )


def slot(*below: dict[str, Any], count: int = 1) -> dict[str, Any]:
    return {"type": "slot", "count": count, "label": "default", "with": list(below)}


def need(type_: str, count: int, *below: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": type_, "count": count, **({"with": list(below)} if below else {}), **more}


def text(matcher: Matcher, placed: object) -> str:
    assert isinstance(placed, Placed)
    return write(Grant(matcher.graph, placed.selection, placed.at, placed.end), "simple")


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("policy", ["low", "lonode", "hinode", "first"])
def test_part_of_a_pool_is_taken_and_the_rest_is_left_to_others(policy: str, indexed: bool) -> None:
    matcher = Matcher(cluster(nodes=1), policy, extensions=POOLS)
    matcher.indexed = indexed
    request = job(need("node", 1, slot(need("core", 1), need("memory", 1500))))
    assert "memory0[1500:x]" in text(matcher, matcher.match("allocate", request, job=1))
    assert "memory0[1500:x]" in text(matcher, matcher.match("allocate", request, job=2))
    assert isinstance(matcher.match("allocate", request, job=3), Wait)  # 1000 are left
    small = job(need("node", 1, slot(need("core", 1), need("memory", 1000))))
    assert matcher.match("allocate", small, job=4)
    matcher.cancel(1)
    assert matcher.match("allocate", request, job=5)
    assert matcher.ledger.available(matcher.graph.vertices_at("/cluster0/node0/memory0")[0], 0, 60) == 0


@pytest.mark.parametrize("indexed", [True, False])
def test_several_slots_share_one_pool(indexed: bool) -> None:
    matcher = Matcher(cluster(nodes=1), "low", extensions=POOLS)
    matcher.indexed = indexed
    request = job(need("node", 1, slot(need("core", 1), need("memory", 900), count=3)))
    assert "memory0[2700:x]" in text(matcher, matcher.match("allocate", request, job=1))


def test_a_pool_is_given_whole_without_the_extension() -> None:
    matcher = Matcher(cluster(nodes=1), "low")
    request = job(need("node", 1, slot(need("core", 1), need("memory", 1500))))
    assert "memory0[4000:x]" in text(matcher, matcher.match("allocate", request, job=1))
    assert isinstance(matcher.match("allocate", request, job=2), Wait)


def test_a_reservation_waits_for_the_part_that_it_needs() -> None:
    matcher = Matcher(cluster(nodes=1), "lonode", extensions=POOLS)
    half = job(need("node", 1, slot(need("core", 1), need("memory", 2000))))
    assert matcher.match("allocate", half, job=1)
    more = job(need("node", 1, slot(need("core", 1), need("memory", 2500))), duration=10)
    placed = matcher.match("allocate_orelse_reserve", more, job=2)
    assert isinstance(placed, Placed)
    assert placed.at == 60


def test_a_part_of_a_pool_comes_back_from_what_was_written() -> None:
    matcher = Matcher(cluster(nodes=1), "low", extensions=POOLS)
    placed = matcher.match("allocate", job(need("node", 1, slot(need("memory", 1500)))), job=1)
    assert isinstance(placed, Placed)
    written = write(Grant(matcher.graph, placed.selection, placed.at, placed.end), "jgf")
    fresh = Matcher(cluster(nodes=1), "low", extensions=POOLS)
    fresh.update(1, written, reader="jgf", at=0, duration=60)
    pool = fresh.graph.vertices_at("/cluster0/node0/memory0")[0]
    assert fresh.ledger.available(pool, 0, 60) == 2500


@pytest.mark.parametrize("indexed", [True, False])
def test_constraints_apply_to_the_types_that_are_named(indexed: bool) -> None:
    request = job(need("qpu", 1, slot(need("qubit", 1))), constraints={"properties": ["trapped-ion"]})
    plain = Matcher(cluster(), "low")
    plain.indexed = indexed
    assert "qpu0" in text(plain, plain.match("allocate", request, job=1))
    choosy = Matcher(cluster(), "low", extensions=Extensions(constrained=frozenset(("qpu",))))
    choosy.indexed = indexed
    assert "qpu1" in text(choosy, choosy.match("allocate", request, job=1))
    assert isinstance(choosy.match("allocate", request, job=2), Wait)


def test_a_mixed_gang_is_placed_in_one_match() -> None:
    matcher = Matcher(cluster(), "lonode", extensions=MIXED)
    gang = job(need("node", 1, slot(need("core", 4))), need("node", 2, slot(need("core", 2))))
    placed = matcher.match("allocate", gang, job=1)
    lines = text(matcher, placed)
    assert lines.count("core") == 8
    assert [line.strip(" -\n") for line in lines.splitlines() if "node" in line] == [
        "node0[1:s]",
        "node1[1:s]",
        "node2[1:s]",
    ]
    r = write(Grant(matcher.graph, placed.selection), "rv1_nosched")
    assert '"R_lite":[{"rank":"1-2","children":{"core":"0-1"}},{"rank":"0","children":{"core":"0-3"}}]' in r


def test_pods_of_a_mixed_gang_share_a_node() -> None:
    matcher = Matcher(cluster(nodes=1), "low", extensions=MIXED)
    gang = job(need("node", 1, slot(need("core", 1))), need("node", 1, slot(need("core", 3))))
    assert text(matcher, matcher.match("allocate", gang, job=1)).count("core") == 4


def test_a_mixed_gang_is_all_or_nothing() -> None:
    matcher = Matcher(cluster(nodes=2), "low", extensions=MIXED)
    too_much = job(need("node", 2, slot(need("core", 4))), need("node", 1, slot(need("core", 1))))
    before = matcher.ledger.generation
    assert isinstance(matcher.match("allocate_with_satisfiability", too_much, job=1), Never)
    assert isinstance(matcher.match("satisfiability", too_much), Never)
    assert not matcher.ledger.jobs
    assert matcher.ledger.generation >= before
    assert matcher.match("allocate", job(need("node", 2, slot(need("core", 4)))), job=2)


def test_siblings_are_no_match_without_the_extension() -> None:
    gang = job(need("node", 1, slot(need("core", 1))), need("node", 1, slot(need("core", 1))))
    assert isinstance(Matcher(cluster(), "low").match("allocate", gang, job=1), Wait)


@pytest.mark.parametrize("indexed", [True, False])
def test_what_a_job_asks_to_share_is_recorded(indexed: bool) -> None:
    request = job(need("node", 1, slot(need("core", 2))), need("qpu", 1))
    fluxion = Matcher(cluster(), "low")
    fluxion.indexed = indexed
    assert "qpu" not in text(fluxion, fluxion.match("allocate", request, job=1))
    ours = Matcher(cluster(), "low", extensions=SHARED)
    ours.indexed = indexed
    assert "qpu0[1:s]" in text(ours, ours.match("allocate", request, job=1))
    assert "qpu0[1:s]" in text(ours, ours.match("allocate", request, job=2))  # shared by both
    alone = job(need("qpu", 2, exclusive=True))
    assert isinstance(ours.match("allocate", alone, job=3), Wait)  # and nobody's own meanwhile


def test_a_request_that_holds_nothing_is_refused_unless_sharing_is_recorded() -> None:
    request = job(need("qpu", 1))
    with pytest.raises(NothingHeld, match="exclusive"):
        Matcher(cluster(), "low").match("allocate", request, job=1)
    assert Matcher(cluster(), "low", extensions=SHARED).match("allocate", request, job=1)
