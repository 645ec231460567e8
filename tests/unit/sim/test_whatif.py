"""What would become of manifests in a running cluster: a copy in memory decides, as its scheduler would."""

from typing import Any

import msgspec
import pytest

from fluence.errors import InvalidInput
from fluence.kube.listing import ClusterListing
from fluence.messages.times import stamp
from fluence.model.node import Node
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.manifests import parse
from fluence.sim.whatif import ask

from .test_cluster import job, template

HOUR = "fluence.flux-framework.org/duration"


def gang(name: str, count: int, cpu: str, duration: str) -> dict[str, Any]:
    found = job(name, count, cpu=cpu, command=("sleep", "60"))
    found["metadata"]["annotations"][HOUR] = duration
    return found


def running(*documents: dict[str, Any]) -> EmbeddedCluster:
    """A cluster of four nodes with four cores each, as it would be listed after these were applied."""
    before = EmbeddedCluster(manifests(NodeKind(count=4, cpu=4)))
    for document in documents:
        before.apply(document)
    before.settle()
    listing = ClusterListing(
        nodes=before.nodes,
        pods=list(before.pods.values()),
        owners=list(before._owners.values()),
        native=True,
    )
    assert all(isinstance(node, Node) for node in listing.nodes)
    found = EmbeddedCluster((), clock=before.clock)
    found.load(listing)
    return found


def test_what_fits_would_start_now() -> None:
    answer = ask(running(gang("solver", 2, "4", "1h")), [gang("new", 2, "4", "1h")])
    assert answer.starts_now and not answer.never
    assert answer.lines() == ["default/new: it would start now", "nobody else would wait longer"]


def test_what_does_not_is_told_when_and_for_whom_it_waits() -> None:
    answer = ask(running(gang("solver", 3, "4", "1h")), [gang("new", 2, "4", "1h")])
    first, *rest = answer.lines()
    at = stamp(answer.now + 3_600_000)
    assert first == f"default/new: it would wait, and start no later than {at} (in 1 h)"
    assert "default/new: sooner: ask for 1 instead: it would start now" in rest
    (value,) = answer.to_value()["jobs"]
    assert (value["job"], value["starts_now"], value["never"]) == ("default/new", False, False)
    assert value["state"] == "Reserved" and value["warnings"] == []
    assert value["start_no_later_than"] == answer.now / 1000 + 3600


def test_what_no_empty_cluster_holds_is_never() -> None:
    answer = ask(running(), [gang("huge", 2, "64", "1h")])
    assert answer.never
    assert answer.lines()[0].startswith("default/huge: Unschedulable: ")


def test_who_would_wait_longer_is_named() -> None:
    """A gang of higher priority goes before one that waits."""
    new = gang("urgent", 4, "4", "2h")
    new["spec"]["template"]["spec"]["priority"] = 1000
    answer = ask(running(gang("first", 3, "4", "1h"), gang("second", 4, "4", "1h")), [new])
    assert [delay.job for delay in answer.delays] == ["default/second"]
    assert answer.lines()[-1] == "job default/second would start 2 h later"
    assert answer.to_value()["delays"][0]["job"] == "default/second"


def test_what_nobody_reads_is_told_before_it_is_submitted() -> None:
    typo = gang("new", 1, "1", "1h")
    typo["metadata"]["annotations"]["fluence.flux-framework.org/durration"] = "1h"
    answer = ask(running(), [typo])
    told = "annotation fluence.flux-framework.org/durration is not known and not read: did you mean "
    assert f"default/new: warning: {told}fluence.flux-framework.org/duration?" in answer.lines()
    (value,) = answer.to_value()["jobs"]
    assert len(value["warnings"]) == 1


def test_half_a_gang_waits_for_the_rest() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **template()}
    pod["metadata"] = {
        "name": "half",
        "labels": {"fluence.flux-framework.org/group": "half"},
        "annotations": {"fluence.flux-framework.org/group-size": "2"},
    }
    answer = ask(running(), [pod])
    assert not answer.starts_now and not answer.never
    assert any("blocked by dependency: 1 of 2 pods" in line for line in answer.lines())


def test_what_names_another_scheduler_is_refused() -> None:
    other = gang("other", 1, "1", "1h")
    other["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    with pytest.raises(InvalidInput, match="makes no pod with schedulerName: fluence"):
        ask(running(), [other])


def test_a_pod_that_is_there_already_is_refused() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **template()}
    with pytest.raises(InvalidInput, match="pod default/a is already there"):
        ask(running(pod), [msgspec.json.decode(msgspec.json.encode(pod))])


def test_numbers_are_quantities_too() -> None:
    """`cpu: 4` and `cpu: 0.5` are what people write; the API server takes both."""
    text = b"""
    {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {schedulerName: fluence, containers:
      [{name: c, resources: {requests: {cpu: 4}}}, {name: d, resources: {requests: {cpu: 0.5}}}]}}
    """
    (pod,) = parse(text, source="stdin")
    first, second = pod["spec"]["containers"]
    assert first["resources"]["requests"] == {"cpu": "4"} and second["resources"]["requests"] == {
        "cpu": "0.5"
    }
    assert not ask(running(), [pod]).starts_now, "a node has 4, and this wants 4.5"
