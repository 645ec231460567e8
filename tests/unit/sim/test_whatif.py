"""What would become of manifests in a running cluster: a copy in memory decides, as its scheduler would."""

from typing import Any

import msgspec
import pytest

from fluence.errors import InvalidInput
from fluence.kube.listing import ClusterListing
from fluence.messages.rendering import stamp
from fluence.model.node import Node
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.live_cycle import ask_what_if, parse_manifests

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
    answer = ask_what_if(running(gang("solver", 2, "4", "1h")), [gang("new", 2, "4", "1h")])
    assert answer.starts_now and not answer.never
    assert answer.lines() == ["default/new: it would start now", "no other job would start later"]


def test_what_does_not_is_told_when_and_for_whom_it_waits() -> None:
    answer = ask_what_if(running(gang("solver", 3, "4", "1h")), [gang("new", 2, "4", "1h")])
    first, *rest = answer.lines()
    at = stamp(answer.now + 3_600_000)
    assert first == f"default/new: it would wait and start {at} (in 1 h) at the latest"
    assert "default/new: sooner: request 1 instead: it would start now" in rest
    (value,) = answer.to_value()["jobs"]
    assert (value["job"], value["starts_now"], value["never"]) == ("default/new", False, False)
    assert value["state"] == "Reserved" and value["warnings"] == []
    assert value["start_no_later_than"] == answer.now / 1000 + 3600


def test_what_no_empty_cluster_holds_is_never() -> None:
    answer = ask_what_if(running(), [gang("huge", 2, "64", "1h")])
    assert answer.never
    assert answer.lines()[0].startswith("default/huge: Unschedulable: ")


def test_who_would_wait_longer_is_named() -> None:
    """A gang of higher priority goes before one that waits."""
    new = gang("urgent", 4, "4", "2h")
    new["spec"]["template"]["spec"]["priority"] = 1000
    answer = ask_what_if(running(gang("first", 3, "4", "1h"), gang("second", 4, "4", "1h")), [new])
    assert [delay.job for delay in answer.delays] == ["default/second"]
    assert answer.lines()[-1] == "job default/second would start 2 h later"
    assert answer.to_value()["delays"][0]["job"] == "default/second"


def test_what_nobody_reads_is_told_before_it_is_submitted() -> None:
    typo = gang("new", 1, "1", "1h")
    typo["metadata"]["annotations"]["fluence.flux-framework.org/durration"] = "1h"
    answer = ask_what_if(running(), [typo])
    told = "Unknown annotation fluence.flux-framework.org/durration is ignored: did you mean "
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
    answer = ask_what_if(running(), [pod])
    assert not answer.starts_now and not answer.never
    assert any("blocked by dependency: Waiting for 1 of 2 pods" in line for line in answer.lines())


def test_what_names_another_scheduler_is_refused() -> None:
    other = gang("other", 1, "1", "1h")
    other["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    with pytest.raises(InvalidInput, match="makes no pod with schedulerName: fluence"):
        ask_what_if(running(), [other])


def copy(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return found


def test_a_pod_that_is_there_already_is_asked_about_as_it_is() -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **template()}
    cluster = running(pod)
    cluster.clock.advance(60)
    answer = ask_what_if(cluster, [copy(pod)])
    assert [key for key, _ in answer.jobs] == ["default/pod:a"]
    assert answer.lines()[0] == "default/pod:a: it has started already"
    assert answer.notes == ("Pod default/a is in the cluster already: it is asked about as it is there",)


def test_a_job_that_is_queued_already_is_not_counted_twice() -> None:
    first, second = gang("first", 3, "4", "1h"), gang("second", 4, "4", "1h")
    cluster = running(first, second)
    answer = ask_what_if(cluster, [copy(second)])
    assert [key for key, _ in answer.jobs] == ["default/second"]
    assert answer.jobs[0][1].start == answer.now + 3_600_000, "not behind a copy of itself"
    assert answer.delays == ()
    assert len(cluster.pods) == 7


def held(name: str, count: int, cpu: str, **spec: Any) -> dict[str, Any]:
    """A Job as admission leaves it in a namespace whose work is held."""
    document = job(name, count, cpu=cpu, command=("sleep", "60"))
    document["metadata"] = {
        "name": name,
        "labels": {"fluxqueue.seen": "yes"},
        "annotations": {HOUR: "1h"},
        "generation": 1,
    }
    document["spec"]["suspend"] = True
    document["spec"]["template"]["metadata"] = {"labels": {"fluxqueue.seen": "yes"}}
    document["spec"]["template"]["spec"].update(spec)
    return document


def listed(*documents: dict[str, Any]) -> EmbeddedCluster:
    """The same four nodes, with Jobs that no scheduler has seen yet."""
    before = EmbeddedCluster(manifests(NodeKind(count=4, cpu=4)))
    for document in documents:
        before.apply(document)
    found = EmbeddedCluster((), clock=before.clock)
    found.load(
        ClusterListing(
            nodes=before.nodes,
            pods=list(before.pods.values()),
            owners=list(before._owners.values()),
            native=True,
        )
    )
    return found


@pytest.mark.parametrize("scheduler", ["fluence", "default-scheduler"])
def test_held_jobs_count_with_the_work_that_they_wait_for(scheduler: str) -> None:
    """One is released and holds its nodes, one waits; the new one comes behind both."""
    cluster = listed(
        held("first", 3, "4", schedulerName=scheduler), held("second", 4, "4", schedulerName=scheduler)
    )
    answer = ask_what_if(cluster, [gang("new", 2, "4", "1h")])
    (new,) = answer.jobs
    assert new[0] == "default/new" and not new[1].starts_now
    assert new[1].start == answer.now + 2 * 3_600_000
    bound = [pod for pod in cluster.pods.values() if pod.spec.node_name]
    assert len(bound) == 3 and not any(pod.is_gated for pod in bound)


def test_a_held_job_that_is_queued_is_asked_about() -> None:
    second = held("second", 4, "4")
    answer = ask_what_if(listed(held("first", 3, "4"), second), [copy(second)])
    assert [key for key, _ in answer.jobs] == ["default/job:second"]
    assert answer.jobs[0][1].start == answer.now + 3_600_000


def test_a_job_that_is_over_cannot_be_created_again() -> None:
    done = held("done", 1, "1")
    done["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    with pytest.raises(InvalidInput, match="Job default/done is in the cluster already, and nothing of it"):
        ask_what_if(listed(done), [copy(done)])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_job_that_its_user_suspended_has_no_pods_to_ask_about(is_there: bool) -> None:
    job = gang("paused", 2, "1", "1h")
    job["spec"]["suspend"] = True
    with pytest.raises(
        InvalidInput, match=r"Job default/paused is suspended and has no pods: .* suspend: false"
    ):
        ask_what_if(listed(job) if is_there else running(), [copy(job)])


def test_kinds_that_make_no_pods_are_left_out_with_a_note() -> None:
    """A Service is in every manifest of an MPI job."""
    text = b"""
apiVersion: v1
kind: Service
metadata: {name: s}
---
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {schedulerName: fluence, containers: [{name: c}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
---
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: m}
"""
    documents, notes = parse_manifests(text, source="m.yaml")
    assert [document["kind"] for document in documents] == ["Pod"]
    assert notes == [
        "m.yaml: document 1: Service is left out: it makes no pods",
        "m.yaml: document 3: StatefulSet is left out: its pods are not simulated",
        "m.yaml: document 4: MPIJob is left out: its pods are not simulated",
    ]
    with pytest.raises(InvalidInput, match=r"no Pod, Job, Deployment or PodGroup .*Service is left out"):
        parse_manifests(b"{apiVersion: v1, kind: Service, metadata: {name: s}}", source="m.yaml")


def test_numbers_are_quantities_too() -> None:
    """`cpu: 4` and `cpu: 0.5` are what people write; the API server takes both."""
    text = b"""
    {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {schedulerName: fluence, containers:
      [{name: c, resources: {requests: {cpu: 4}}}, {name: d, resources: {requests: {cpu: 0.5}}}]}}
    """
    ((pod,), _) = parse_manifests(text, source="stdin")
    first, second = pod["spec"]["containers"]
    assert first["resources"]["requests"] == {"cpu": "4"} and second["resources"]["requests"] == {
        "cpu": "0.5"
    }
    assert not ask_what_if(running(), [pod]).starts_now, "a node has 4, and this wants 4.5"
