"""The flows of the predecessors, by clients that know nothing but their numbers."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from fluence.service import external_pb2, fluxcli_pb2, fluxion_pb2, fluxnetes_pb2
from tests.unit.service import wire
from tests.unit.service.graphs import flat_jgf, jobspec, kubernetes_jgf
from tests.unit.service.running import reason


def nodes_of(allocation: str) -> list[str]:
    """What fluxqueue makes of an allocation: the basenames of its nodes."""
    graph = json.loads(allocation)["graph"]
    return [node["metadata"]["basename"] for node in graph["nodes"] if node["metadata"]["type"] == "node"]


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (fluxion_pb2, wire.FLUXION),
        (fluxnetes_pb2, wire.FLUXNETES),
        (fluxcli_pb2, wire.FLUXCLI),
        (external_pb2, wire.EXTERNAL),
    ],
)
def test_the_definitions_have_the_names_and_numbers(module: object, table: dict[str, wire.Fields]) -> None:
    messages = module.DESCRIPTOR.message_types_by_name  # type: ignore[attr-defined]
    assert set(messages) == set(table)
    for name, fields in table.items():
        assert [(field.number, field.name) for field in messages[name].fields] == [
            (number, field) for number, field, _ in fields
        ]


def test_init_match_cancel_as_fluxqueue_does(channel: grpc.Channel) -> None:
    client = wire.fluxion(channel)
    assert client.Init(policy="lonode", jgf=kubernetes_jgf(2)).status == 0
    first = client.Match(jobspec=jobspec(1, 4), request="allocate", reservation=False)
    assert nodes_of(first.allocation) == ["kind-worker-a0-"]
    assert (first.jobid, first.reserved, first.at, first.status) == (1, False, 0, 0)
    assert 0 < first.overhead < 10
    second = client.Match(jobspec=jobspec(1, 4))
    assert nodes_of(second.allocation) == ["kind-worker-b1-"]
    with pytest.raises(grpc.RpcError) as full:
        client.Match(jobspec=jobspec(1, 4))
    assert (full.value.code(), reason(full.value)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    later = client.Match(jobspec=jobspec(1, 4), reservation=True)
    assert (later.reserved, later.at) == (True, 3600)
    assert nodes_of(later.allocation)
    cancelled = client.Cancel(jobID=first.jobid)
    assert (cancelled.jobID, cancelled.error, cancelled.status) == (first.jobid, 0, 0)
    assert client.Cancel(jobID=first.jobid).status == 0  # as in all of them
    client.Cancel(jobID=later.jobid)
    again = client.Match(jobspec=jobspec(1, 4))
    assert nodes_of(again.allocation) == ["kind-worker-a0-"]
    assert again.jobid not in (first.jobid, second.jobid, later.jobid)


def test_busy_impossible_and_wrong_differ(channel: grpc.Channel) -> None:
    client = wire.fluxion(channel)
    client.Init(jgf=flat_jgf(2))
    client.Match(jobspec=jobspec(2, 4))
    codes = {}
    for name, text in {
        "busy": jobspec(1, 1),
        "impossible": jobspec(3, 1),
        "invalid": "resources: [",
        "empty": "",
        "unknown type": jobspec().replace('"core"', '"flux-capacitor"'),
    }.items():
        with pytest.raises(grpc.RpcError) as error:
            client.Match(jobspec=text)
        codes[name] = error.value.code()
        assert error.value.details()
    assert codes == {
        "busy": grpc.StatusCode.RESOURCE_EXHAUSTED,
        "impossible": grpc.StatusCode.FAILED_PRECONDITION,
        "invalid": grpc.StatusCode.INVALID_ARGUMENT,
        "empty": grpc.StatusCode.INVALID_ARGUMENT,
        "unknown type": grpc.StatusCode.INVALID_ARGUMENT,
    }


@pytest.mark.parametrize("method", ["Match", "Cancel"])
def test_bytes_that_are_no_message_are_refused_by_the_name_of_the_message(
    channel: grpc.Channel, method: str
) -> None:
    call: Any = channel.unary_unary(f"/fluxion.FluxionService/{method}")
    with pytest.raises(grpc.RpcError) as refused:
        call(b"\xff\xff\xff", timeout=30)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert f"fluxion.{method}Request" in str(refused.value.details())


def test_an_older_client_that_sends_a_count_is_not_given_a_reservation(channel: grpc.Channel) -> None:
    client = wire.fluxion(channel, old=True)
    client.Init(jgf=flat_jgf(1))
    assert client.Match(jobspec=jobspec(1, 4), request="allocate", count=4).jobid > 0
    with pytest.raises(grpc.RpcError) as error:
        client.Match(jobspec=jobspec(1, 4), request="allocate", count=4)
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_grow_and_shrink(channel: grpc.Channel) -> None:
    client = wire.fluxion(channel)
    client.Init(jgf=flat_jgf(1), policy="low")
    with pytest.raises(grpc.RpcError):
        client.Match(jobspec=jobspec(2, 4))
    assert client.Grow(jgf=flat_jgf(2, first=1)).status == 0
    assert client.Match(jobspec=jobspec(3, 4)).jobid > 0
    with pytest.raises(grpc.RpcError) as error:
        client.Shrink(nodepaths=["/cluster0/node1", "/cluster0/node9"])
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    assert client.Shrink(nodepaths=["/cluster0/node1", "/cluster0/node2"]).status == 0
    with pytest.raises(grpc.RpcError) as error:
        client.Match(jobspec=jobspec(2, 1))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_an_older_build_has_another_service_name(channel: grpc.Channel) -> None:
    client = wire.OldClient(channel, "fluxion.FluxcliService", "fluxion", wire.FLUXION)
    assert client.Init(jgf=flat_jgf(1)).status == 0
    assert client.Match(jobspec=jobspec()).jobid > 0


def test_pods_as_fluxnetes_sends_them(channel: grpc.Channel) -> None:
    wire.fluxion(channel).Init(jgf=kubernetes_jgf(2, gpus=1), policy="lonode")
    client = wire.fluxnetes(channel)
    pod = client.message("PodSpec", id="default/worker-0", container="app", cpu=2, memory=1 << 30, gpu=1)
    found = client.Match(podspec=pod, count=2, reserve=False, jobName="group")
    assert (found.allocated, found.reserved, found.reserved_at) == (True, False, 0)
    assert {node.nodeID: node.tasks for node in found.nodelist} == {
        "kind-worker-a0-": 1,
        "kind-worker-b1-": 1,
    }
    with pytest.raises(grpc.RpcError) as error:
        client.Match(podspec=pod, count=2)
    assert reason(error.value) == "busy"
    later = client.Match(podspec=pod, count=2, reserve=True)
    assert (later.reserved, later.allocated, later.reserved_at) == (True, False, 3600)
    for job in (later.fluxID, found.fluxID):
        assert client.Cancel(fluxID=job).error == 0
    with pytest.raises(grpc.RpcError) as error:
        client.Cancel(fluxID=found.fluxID)
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    assert client.Cancel(fluxID=found.fluxID, NoExistOK=True).error == 0
    assert client.Match(podspec=pod, count=2).allocated


def test_a_pod_alone_is_told_from_a_jobspec(channel: grpc.Channel) -> None:
    """Without a count, nothing but the bytes of field 1 says whose request it is."""
    wire.fluxion(channel).Init(jgf=kubernetes_jgf(2))
    client = wire.fluxnetes(channel)
    with pytest.raises(grpc.RpcError) as error:
        client.Match(podspec=client.message("PodSpec", id="pod", cpu=1))
    assert "count" in error.value.details()
    for text in (
        "\nversion: 1",
        "  version: 1",
        "version: 9999\nresources: []",
        "# a comment",
        "(",
        ":",
        "0",
    ):
        with pytest.raises(grpc.RpcError) as error:
            wire.fluxion(channel).Match(jobspec=text)
        assert "count" not in error.value.details(), text


def test_pods_as_flux_k8s_sends_them(channel: grpc.Channel) -> None:
    wire.fluxion(channel).Init(jgf=kubernetes_jgf(3), policy="lonode")
    client = wire.fluxcli(channel)
    pod = client.message("PodSpec", id="fluence-scheduled-pod", cpu=1)
    found = client.Match(ps=pod, request="allocate", count=1)
    assert found.podID == "fluence-scheduled-pod"
    assert [(node.nodeID, node.tasks) for node in found.nodelist] == [("kind-worker-a0-", 1)]
    group = client.message("PodSpec", id="group", cpu=2, labels=["zone"])
    zone = client.Match(ps=group, count=2)
    assert [(node.nodeID, node.tasks) for node in zone.nodelist] == [("kind-worker-b1-", 2)]
    assert client.Cancel(jobID=found.jobID).jobID == found.jobID
    for count, cpu, field in ((0, 1, "count"), (-1, 1, "count"), (1, -1, "podspec.cpu")):
        with pytest.raises(grpc.RpcError) as error:
            client.Match(ps=client.message("PodSpec", id="pod", cpu=cpu), count=count)
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert field in error.value.details()


def test_the_external_service_answers_all_three(channel: grpc.Channel) -> None:
    wire.fluxion(channel).Init(jgf=kubernetes_jgf(2), policy="lonode")
    client, pods = wire.external(channel), wire.fluxcli(channel)
    graph = json.loads(client.GetResources().graph)["graph"]
    assert [
        node["metadata"]["basename"] for node in graph["nodes"] if node["metadata"]["type"] == "node"
    ] == [
        "kind-worker-a0-",
        "kind-worker-b1-",
    ]
    assert (client.ListGroups().name, client.ListGroups().size) == ("", 0)
    pods.Match(ps=pods.message("PodSpec", id="default/one", cpu=1), count=1)
    pods.Match(ps=pods.message("PodSpec", id="default/three", cpu=1), count=3)
    groups = client.ListGroups()
    assert (groups.name, groups.size) == ("default/one,default/three", 2)
    assert client.GetGroup(group="default/three").size == 3
    with pytest.raises(grpc.RpcError) as error:
        client.GetGroup(group="default/none")
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_no_graph_yet_is_said() -> None:
    from tests.unit.service.running import serving

    with serving() as (_, channel):
        for call in (
            lambda: wire.fluxion(channel).Match(jobspec=jobspec()),
            lambda: wire.fluxion(channel).Cancel(jobID=1),
            lambda: wire.external(channel).GetResources(),
            lambda: wire.external(channel).ListGroups(),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() == grpc.StatusCode.NOT_FOUND
            assert "Init" in error.value.details()


def test_the_dialect_can_be_fixed() -> None:
    from tests.unit.service.running import serving

    with serving("--dialect", "fluxnetes") as (_, channel):
        wire.fluxion(channel).Init(jgf=kubernetes_jgf(1))
        with pytest.raises(grpc.RpcError) as error:
            wire.fluxion(channel).Match(jobspec=jobspec())
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        client = wire.fluxnetes(channel)
        assert client.Match(podspec=client.message("PodSpec", id="pod", cpu=1), count=1).allocated
