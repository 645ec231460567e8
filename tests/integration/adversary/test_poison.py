"""Objects that anybody may create, and that must stop nobody else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph, PodSetRequest, job_number
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden
from fluence.kube.resource import NODES, PODS
from fluence.model.meta import Condition
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from fluence.schedule.cycle import Decisions, SchedulingCycle
from tests.integration.rights import let_edit
from tests.integration.schedule.field import Field, field


async def behaves(f: Field, name: str) -> None:
    """Somebody who only behaves gets a node."""
    await f.add(f.pod(name))
    await f.until_bound([name])


@pytest.mark.parametrize(("count", "cpu"), [(2, "1e17"), (3, "1e30"), (1, "1e30"), (2, "9E")])
async def test_a_gang_that_asks_for_more_than_can_be_counted(
    kube: Kube, audited: None, count: int, cpu: str
) -> None:
    async with field(kube, 2) as f, f.scheduler():
        await f.add_group("evil", count)
        await f.add(*(f.pod(f"evil-{i}", group="evil", cpu=cpu) for i in range(count)))
        assert ", the largest node has " in await f.until_told("evil-0", "Insufficient cpu (")
        await behaves(f, "good")


async def test_a_pod_that_was_put_on_a_node_with_more_than_can_be_counted(kube: Kube) -> None:
    async with field(kube, 2) as f:
        await f.add(f.pod("evil", nodeName=f.nodes[0], cpu="1e30"))
        async with f.scheduler():
            await behaves(f, "good")
            await f.add(f.pod("more", nodeName=f.nodes[0], cpu="1e30", schedulerName="other"))
            await behaves(f, "better")
            assert set((await f.homes()).values()) == set(f.nodes)


async def test_a_node_that_says_it_has_more_than_can_be_counted(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, f.scheduler():
        large: Any = {"cpu": "5e15", "memory": "8e18", "example.com/things": "1e30"}
        status: Any = {"status": {"allocatable": large, "capacity": large}}
        await f.client.patch(NODES.raw(), f.nodes[0], status, subresource="status")
        await behaves(f, "good")


async def test_users_cannot_promise_themselves_a_start(kube: Kube, audited: None) -> None:
    """Who may do all that the role `edit` allows, makes a pod that says it was promised a start long ago."""
    said = Condition(
        type=names.START_PROMISED, status="True", reason="LimitsEnforced", message="1970-01-01T00:00:00Z"
    )
    status: Any = {"status": {"conditions": [msgspec.to_builtins(said)]}}
    notes = {names.DURATION: "1h"}
    async with field(kube, 1, cpu=2) as f, Client(replace(kube.access(), impersonate="mallory")) as mallory:
        await let_edit(f.client, "mallory", f.namespace)
        await f.add(f.pod("runs", cpu="2", nodeName=f.nodes[0]), f.pod("first", cpu="2", annotations=notes))
        await asyncio.sleep(1.1)  # creation times are whole seconds
        forged = {**notes, names.QUEUED: "1970-01-01T00:00:00Z"}
        await mallory.create(PODS, f.pod("evil", cpu="2", annotations=forged) | status, namespace=f.namespace)
        with pytest.raises(Forbidden):
            await mallory.patch(PODS, "evil", status, namespace=f.namespace, subresource="status")
        async with f.scheduler(queue_policy="conservative") as live:
            await f.until_told("evil")
            waiting = live.scheduler.state.queue.waiting()
            assert [each.key.rpartition(":")[2] for each in waiting] == ["first", "evil"]
            await f.end("runs")
            await f.until_bound(["first"])


async def test_a_forged_job_id_claims_nothing_of_another_group(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f:
        (waits,) = await f.add(f.pod("good", schedulingGates=[{"name": "example.com/hold"}]))
        forged = {names.JOBID: str(job_number(waits.metadata.uid))}
        await f.add(f.pod("evil", nodeName=f.nodes[0], annotations=forged))
        async with f.scheduler():
            await f.client.patch(PODS, "good", {"spec": {"schedulingGates": None}}, namespace=f.namespace)
            await f.until_bound(["good"])


async def test_a_group_that_loses_its_oldest_pod_and_gets_one_that_was_placed_directly(
    kube: Kube, audited: None
) -> None:
    label, size = {names.GROUP_LABEL: "g"}, {names.GROUP_SIZE: "2"}
    async with field(kube, 2) as f, f.scheduler():
        await f.add(*(f.pod(f"g-{i}", labels=label, annotations=size) for i in range(2)))
        await f.until_bound(["g-0", "g-1"])
        await f.end("g-0")
        await f.add(f.pod("g-2", labels=label, annotations=size, nodeName=f.nodes[1]))
        await behaves(f, "good")


async def test_what_cannot_be_handled_is_told_and_the_rest_goes_on(
    kube: Kube, audited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of our own: here, asking where a certain pod fits fails."""
    honest = ClusterGraph.gang

    def gang(self: ClusterGraph, request: PodSetRequest) -> Any:
        if any(pod.metadata.name.startswith("evil") for pod in request.pods):
            raise ZeroDivisionError("made by the test")
        return honest(self, request)

    monkeypatch.setattr(ClusterGraph, "gang", gang)
    async with field(kube, 2) as f, f.scheduler(may_fail=True) as live:
        await f.add_group("evil", 2)
        await f.add(*(f.pod(f"evil-{i}", group="evil") for i in range(2)))
        told = await f.until_told("evil-1", "Fluence cannot handle this group")
        assert told.endswith("ZeroDivisionError: made by the test; please report it.")
        await behaves(f, "good")
        assert live.metrics.fault_count >= 1 and not live.unready()
        assert b'fluence_faults_total{kind="group"}' in live.metrics.text()


async def test_when_no_cycle_can_be_run_it_starts_over_from_the_api(
    kube: Kube, audited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of our own that has lost every node, and that nobody's object is to blame for."""
    async with field(kube, 2) as f, f.scheduler(may_fail=True) as live:
        honest, core = SchedulingCycle.run, live.scheduler
        left = 2  # after these the scheduler says that it is broken

        def run(self: SchedulingCycle, now: int) -> Decisions:
            nonlocal left
            if left:
                left -= 1
                core._objects = {s: each for s, each in core._objects.items() if s.kind != "Node"}
                raise ZeroDivisionError("made by the test")
            return honest(self, now)

        monkeypatch.setattr(SchedulingCycle, "run", run)
        await behaves(f, "good")
        assert not left and not live.unready()


async def test_a_bind_that_is_tried_again_does_not_overbook_its_node(kube: Kube, audited: None) -> None:
    """The server fails for a while, and meanwhile another scheduler takes the room."""
    async with field(kube, 1) as f:
        rule = Rule(verb="create", path="/pods/late/binding$", status=500)
        async with f.through(rule, backoff=1.0):
            await f.add(f.pod("late", cpu="3"))
            await f.until(
                lambda pods: any("/late/binding" in each.path for each in f.proxy.seen),
                "the first bind failed",
            )
            await f.add(f.pod("foreign", cpu="3", nodeName=f.nodes[0], schedulerName="other"))
            await f.until_told("late", "Insufficient cpu")
            f.proxy.rules.clear()
            assert (await f.settled(quiet_s=4))["late"] is None
