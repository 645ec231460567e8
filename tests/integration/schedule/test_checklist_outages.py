"""The checklist's outages (21, 32, 33): a lease lost in the middle, a server and a node that go away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from fluence.kube.client import PatchType
from fluence.kube.resource import NAMESPACES, NODES
from fluence.live.threads import LeaseLost
from fluence.model.node import Node
from fluence.model.pod import pod_requests
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.rights import make_namespace
from tests.integration.schedule.field import Field, field


async def nothing_overbooked(f: Field, cpu: int) -> None:
    """What the audit would say: it is off where the API server itself is killed."""
    used = dict.fromkeys(f.nodes, 0)
    for pod in (await f.pods()).values():
        if pod.spec.node_name and not pod.is_terminal:
            used[pod.spec.node_name] += pod_requests(pod)["cpu"]
    assert max(used.values()) <= cpu * 1000, used


async def test_a_leader_that_loses_its_lease_in_a_burst_sends_nothing_more(kube: Kube, audited: None) -> None:
    """Checklist 32: with a real lease and a real successor, who completes what was begun."""
    slow = Rule(verb="create", path="binding$", latency_s=1.0)
    lease = {"lease": True, "lease_name": "fluence", "lease_namespace": kube.namespace}
    terms = {"lease_duration": 8.0, "lease_renew": 6.0, "lease_retry": 0.5}
    names = [f"g-{index}" for index in range(12)]
    with pytest.RaisesGroup(LeaseLost):  # the first: its process would end
        async with (
            field(kube, 3) as f,
            kube.client() as other,
            f.through(slow, in_flight=1, identity="first", **lease, **terms) as first,
        ):
            await eventually(lambda: first.leads, what="the first leads")
            await f.add_group("g", len(names))
            await f.add(*(f.pod(name, group="g") for name in names))
            await f.until_bound(1)
            assert first.leadership is not None and first.leadership.held
            f.proxy.rules.insert(0, Rule(path="/leases/", status=503))  # it cannot renew any more
            leadership = first.leadership
            await eventually(lambda: leadership.held, False, what="it has lost its lease", pause_s=0.01)
            sent = first.binder.sent
            bound = sum(map(bool, (await f.homes()).values()))
            assert 0 < bound <= sent < len(names), "the lease was lost in the middle"
            async with f.scheduler(other, identity="second", **lease, **terms) as second:
                await f.until_bound(names)
                assert second.leads and not first.leads
            assert first.binder.sent == sent and slow.seen <= sent, "something was sent without the lease"


async def test_the_api_server_restarts_while_a_gang_is_bound(own_sandbox: Kube) -> None:
    """Checklist 33: the gang is completed, nothing is bound twice, and what waited before still goes on."""
    slow = Rule(verb="create", path="binding$", latency_s=0.2)
    async with field(own_sandbox, 2) as f, f.through(slow, in_flight=1) as live:
        names = [f"g-{index}" for index in range(8)]
        await f.add_group("g", 8)
        await f.add(*(f.pod(name, group="g") for name in names))
        await f.until_bound(2)
        await asyncio.to_thread(own_sandbox.sandbox.restart, "kube-apiserver")
        await f.until_bound(names)
        await nothing_overbooked(f, 4)
        await f.add(f.pod("next", cpu="4"))
        await f.until_told("next")
        assert len(live.scheduler.state.cluster.jobs) == 1
        await f.end(*names)
        await f.until_bound(["next"])
        await f.end("next")


@contextlib.contextmanager
def stopped(kube: Kube, part: str) -> Iterator[None]:
    """A part of the control plane that does nothing for a while."""
    pid = kube.sandbox.require().parts[part].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_node_that_is_not_ready_gets_no_pods_until_it_is(own_sandbox: Kube) -> None:
    """Checklist 21: its kubelet says nothing, and comes back."""
    async with field(own_sandbox, 2) as f, f.scheduler() as live:
        with stopped(own_sandbox, "kwok"):
            lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
            body = {"status": {"conditions": [lost]}}

            async def node_after_patch() -> Node | None:
                await f.client.patch(
                    NODES.raw(), f.nodes[1], body, kind=PatchType.STRATEGIC, subresource="status"
                )
                return live.scheduler.state.cluster.node(f.nodes[1])

            # Again and again: a request that kwok sent before it stopped may be written after ours.
            await eventually(
                node_after_patch,
                lambda node: node is not None and not node.is_ready,
                what="it is seen that the node is not ready",
                pause_s=0.2,
            )
            await f.add_group("r", 3)
            await f.add(*(f.pod(f"r-{i}", group="r", cpu="2") for i in range(3)))
            await f.until_told("r-0")
            assert not any((await f.homes()).values())
            await f.add(f.pod("small", cpu="2"))
            assert (await f.until_bound(["small"]))["small"].spec.node_name == f.nodes[0]
        pods = await f.until_bound(4)
        assert {pods[f"r-{i}"].spec.node_name for i in range(3)} == set(f.nodes)
        await f.end(*pods)


async def test_a_namespace_that_ends_excludes_no_node(
    own_sandbox: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pods are still there when the server already refuses binds and events: that is nobody's fault."""
    ending = Kube(own_sandbox.sandbox, "ending", own_sandbox.version)
    async with ending.client() as client:
        await make_namespace(client, "ending")
    async with field(ending, 2) as f:
        await f.add(f.pod("p"), f.pod("q", cpu="64"))
        with stopped(own_sandbox, "kube-controller-manager"):
            await f.client.delete(NAMESPACES, "ending")
            async with f.through() as live:
                await eventually(
                    lambda: (f.proxy.count("create", "p/binding"), f.proxy.count("create", "/events")),
                    lambda seen: seen[0] >= 2 and seen[1],
                    what="two tries to bind it, and an event",
                )
                assert {each.status for each in f.proxy.seen if "p/binding" in each.path} == {403}
                assert not live.scheduler.state.exclusions._refused
                assert not [each for each in caplog.records if each.levelname == "ERROR"]
