"""`fluence service run --live` on a real API server: old and new clients ask what the scheduler would do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from fluence.kube.resource import PODS
from fluence.sandbox.testing import Kube
from fluence.service import match_v1_pb2 as v1
from tests.unit.service import wire
from tests.unit.service.graphs import slots_only
from tests.unit.service.running import Client, reason, serving


@pytest.fixture
def channel(kube: Kube) -> Iterator[grpc.Channel]:
    with serving("--live", "--kubeconfig", str(kube.sandbox.at.kubeconfig())) as (_, found):
        yield found


def pods(kube: Kube) -> list[str]:
    async def listed() -> list[str]:
        async with kube.client() as client:
            return [pod.metadata.name for pod in (await client.list(PODS)).items or ()]

    return asyncio.run(listed())


def test_it_answers_what_the_scheduler_would_do_and_takes_nothing(kube: Kube, channel: grpc.Channel) -> None:
    client, old = Client(channel), wire.fluxcli(channel)
    (info,) = client.ListGraphs().graphs
    assert (info.graph, info.read_only) == ("default", True)
    nodes = {each.type: each.count for each in client.Stat().types}["node"]
    assert nodes > 0
    found = [client.Match(jobspec=slots_only(1, 1), operation=v1.ALLOCATE) for _ in range(2)]
    assert [answer.job for answer in found] == [-1, -1]
    assert len(found[0].shares) == 1
    group = old.Match(ps=old.message("PodSpec", id="group", cpu=1, memory=1 << 20), count=2)
    assert sum(node.tasks for node in group.nodelist) == 2
    assert group.jobID == 0
    with pytest.raises(grpc.RpcError) as error:
        old.Match(ps=old.message("PodSpec", id="group", cpu=100_000), count=2)
    assert (error.value.code(), reason(error.value)) == (grpc.StatusCode.FAILED_PRECONDITION, "impossible")
    for call in (lambda: wire.fluxion(channel).Init(jgf="{}"), lambda: client.SetStatus(path="/x")):
        with pytest.raises(grpc.RpcError) as error:
            call()
        assert error.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert "fluence-service-request" not in " ".join(pods(kube))
    assert wire.external(channel).GetResources().graph.startswith('{"graph"')
    assert wire.external(channel).ListGroups().size >= 0
