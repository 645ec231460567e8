"""Restarts, several replicas, and servers that fail: everything is found again from the API alone."""

from __future__ import annotations

import asyncio
import re

from fluence import messages, names
from fluence.kube.resource import PODS
from fluence.live.scheduler import LiveScheduler
from fluence.model.pod import Pod
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import Field, field


def holds(live: LiveScheduler) -> dict[int, dict[str, str]]:
    return live.scheduler.state.cluster.jobs


def until(live: LiveScheduler) -> dict[int, int]:
    """When each job ends; what other tests run meanwhile is a record too, and none of ours."""
    return {number: live.scheduler.state.cluster.fit.jobs[number].end for number in holds(live)}


def ours(text: str) -> str:
    """What is told of this test's nodes, without numbers: other tests' nodes come and go, and some are not
    ready, or cordoned, for a moment. Ours are the only ones that match."""
    others = (
        r"\d+ node\(s\) (were not ready|were unschedulable|didn't match Pod's node affinity/selector \(\S+\))"
    )
    return re.sub(r"\d+", "#", re.sub(rf"{others}, |, {others}", "", text))


def reasons(live: LiveScheduler) -> dict[str, str]:
    said = live.scheduler.state.reports.said
    return {key: ours(messages.texts(each.reasons)) for key, each in said.items()}


def places(live: LiveScheduler) -> list[str]:
    """The pods that wait, in the queue's order."""
    return [record.key.rpartition(":")[2] for record in live.scheduler.state.queue.waiting()]


async def begun(f: Field) -> None:
    """A running gang, a running pod, a gang that waits, and one that gates hold."""
    await f.add_group("runs", 3)
    await f.add(*(f.pod(f"runs-{i}", group="runs") for i in range(3)))
    await f.add(f.pod("single", annotations={"fluence.flux-framework.org/duration": "1h"}))
    await f.until_bound(4)
    await f.add_group("waits", 5)
    await f.add(*(f.pod(f"waits-{i}", group="waits") for i in range(5)))
    await f.add_group("gated", 2)
    held = {"schedulingGates": [{"name": "example.com/wait"}]}
    await f.add(f.pod("gated-0", group="gated", **held), f.pod("gated-1", group="gated"))  # type: ignore[arg-type]
    await f.until_told("waits-0")
    await f.until_told("gated-1", "gated (spec.schedulingGates)", reason="WaitingForGroup")


async def test_a_restart_rebuilds_the_same_jobs_and_plan(kube: Kube, audited: None) -> None:
    """Checklist 31."""
    async with field(kube, 2) as f:
        async with f.scheduler() as live:
            await begun(f)
            await eventually(
                lambda: (len(holds(live)), len(reasons(live))), (3, 2), what="two run, one is promised a time"
            )
            before = holds(live), until(live), reasons(live)
        async with f.scheduler() as live:  # what is missing is told after a second
            await eventually(lambda: (holds(live), until(live), reasons(live)), before)
            await f.client.delete(PODS, "single", namespace=f.namespace, grace_s=0)
            await f.until_bound([f"waits-{i}" for i in range(5)])


async def test_a_restart_keeps_places_and_promises(kube: Kube, audited: None) -> None:
    """Pods of one second, in another order than the server lists them: each keeps its place and the start
    that it was told, and nothing is written again but what changed meanwhile."""

    def told(pod: Pod) -> str:
        found = pod.condition("PodScheduled")
        return "" if found is None else re.sub(r"\d+", "#", found.message)

    def promised(pod: Pod) -> bool:
        found = pod.condition(names.START_PROMISED)
        return found is not None and found.status == "True"

    notes = {names.DURATION: "1h"}
    waiting = ["m", "c", "z", "a", "k", "b"]
    async with field(kube, 1, cpu=2) as f:
        async with f.scheduler(queue_policy="conservative") as live:
            await f.add(f.pod("runs", cpu="2", annotations=notes))
            await f.until_bound(["runs"])
            for name in waiting:
                await f.add(f.pod(name, cpu="2", annotations=notes))
            for name in waiting:
                await f.until_told(name, "Starts by")
            await f.until(lambda pods: all(promised(pods[name]) for name in waiting), "all are promised")
            await f.settled(quiet_s=2.0)
            before, order = await f.pods(), places(live)
            assert order == sorted(order, key=lambda name: before[name].annotations[names.QUEUED])
        async with f.scheduler(queue_policy="conservative") as live:
            await eventually(lambda: places(live), order)
            await f.settled(quiet_s=3.0)
            after = await f.pods()
            assert places(live) == order
            for name, pod in before.items():
                assert after[name].annotations == pod.annotations
                assert after[name].condition(names.START_PROMISED) == pod.condition(names.START_PROMISED)
                if told(after[name]) == told(pod):  # else another test's node became ready, or went
                    assert after[name].metadata.resource_version == pod.metadata.resource_version
            await f.end("runs")
            await f.until_bound([order[0]])


async def test_a_gang_that_was_half_bound_is_completed_after_a_restart(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f:
        # Two of six binds pass; then the server takes none, and the scheduler dies.
        rule = Rule(verb="create", path="binding$", after=2, status=503)
        async with f.through(rule, in_flight=1):
            await f.add_group("g", 6)
            await f.add(*(f.pod(f"g-{i}", group="g") for i in range(6)))
            await f.until_bound(2)
        assert sum(map(bool, (await f.homes()).values())) == 2
        await f.add(f.pod("rival", cpu="4"))  # fits nowhere if the gang is to be completed
        async with f.scheduler():
            await f.until_bound([f"g-{i}" for i in range(6)])
            assert (await f.homes())["rival"] is None


async def test_a_bind_that_fails_is_tried_again_until_the_gang_is_whole(kube: Kube, audited: None) -> None:
    """Checklist 11: 500 and 409 on some members."""
    async with field(kube, 2) as f:
        rules = [
            Rule(verb="create", path="binding$", status=500, every=3, times=4),
            Rule(verb="create", path="binding$", cut_after=0, every=2, times=3),  # done, but no answer
            Rule(verb="create", path="binding$", status=409, times=2),
        ]
        async with f.through(*rules):
            await f.add_group("g", 8)
            await f.add(*(f.pod(f"g-{i}", group="g") for i in range(8)))
            await f.until_bound(8)
        assert all(each.used for each in rules)


async def test_two_replicas_bind_each_pod_once_and_one_takes_over(kube: Kube, audited: None) -> None:
    """Checklist 2 and 32."""
    async with field(kube, 2) as f, kube.client() as other:
        options = {"lease": True, "lease_name": "fluence", "lease_namespace": f.namespace}
        async with f.scheduler(other, identity="second", **options) as second:
            await eventually(lambda: second.leads, what="the second leads")
            async with f.scheduler(identity="first", **options) as first:  # type: ignore[arg-type]
                await f.add(*(f.pod(f"p-{i}") for i in range(4)))
                await f.until_bound(4)
                assert second.leads and not first.leads
                assert first.binder.sent == 0 and second.binder.sent == 4
                await eventually(
                    lambda: (set(holds(first)), set(holds(second))),
                    lambda seen: seen[0] in (set(), seen[1]),
                    what="both hold the same, or the first nothing",
                )
        async with f.scheduler(identity="third", **options) as third:  # type: ignore[arg-type]  # the lease was given back
            await eventually(lambda: third.leads, what="the third leads")
            await f.add(f.pod("p-4"))
            await f.until_bound(["p-4"])


async def test_a_replica_without_the_lease_writes_nothing(kube: Kube, audited: None) -> None:
    """Checklist 32: the lease is lost in the middle of a burst."""
    async with field(kube, 2) as f:
        rule = Rule(verb="create", path="binding$", latency_s=0.5)
        async with f.through(rule, in_flight=1) as live:
            await f.add_group("g", 6)
            await f.add(*(f.pod(f"g-{i}", group="g") for i in range(6)))
            await f.until_bound(1)
            live.binder._held = lambda: False
            await eventually(lambda: live.binder.backlog, 0, what="what was sent is answered")
            sent = live.binder.sent
            await asyncio.sleep(1.0)
            assert live.binder.sent == sent
            live.binder._held = lambda: True
            await f.until_bound(6)


async def test_watches_that_break_lose_nothing(kube: Kube, audited: None) -> None:
    """Checklist 33: dropped streams, 410, doubled and late events, 429."""
    async with field(kube, 2) as f:
        rules = [
            Rule(verb="watch", path="/pods", drop_after=3, times=3),
            Rule(verb="watch", path="/pods", gone_after=2, times=1),
            Rule(verb="watch", path="/pods", duplicate=True, times=2),
            Rule(verb="create", path="binding$", status=429, retry_after=1, times=2),
        ]
        async with f.through(*rules) as live:
            for group in range(3):
                await f.add_group(f"g{group}", 2)
                await f.add(*(f.pod(f"g{group}-{i}", group=f"g{group}") for i in range(2)))
                await asyncio.sleep(0.5)
            await f.until_bound(6)
            await eventually(lambda: holds(live), lambda jobs: len(jobs) == 3)


async def test_members_of_another_scheduler_or_priority_are_refused(kube: Kube, audited: None) -> None:
    """Checklist 14."""
    async with field(kube, 1) as f, f.scheduler() as live:
        await f.add_group("g", 2)
        await f.add(f.pod("g-0", group="g"), f.pod("g-1", group="g", schedulerName="somebody-else"))
        await eventually(
            lambda: reasons(live),
            lambda said: ["another scheduler" in each for each in said.values()] == [True],
        )
        assert not any((await f.settled()).values())


async def test_a_backfilled_job_never_delays_the_one_in_front(kube: Kube, audited: None) -> None:
    """Checklist 29 and 30."""
    limit = "fluence.flux-framework.org/duration"
    async with field(kube, 1) as f, f.scheduler() as live:
        await f.add(f.pod("now", cpu="2", annotations={limit: "600"}))
        await f.until_bound(["now"])
        await f.add(f.pod("front", cpu="4", runs=1, annotations={limit: "60"}))
        records, front = live.scheduler.state.queue.records, f"{f.namespace}/pod:front"
        await eventually(lambda: front in records and records[front].no_later_than, what="front is promised")
        await f.add(f.pod("long", cpu="1", runs=1, annotations={limit: "6000"}))
        await f.add(f.pod("short", cpu="1", runs=1, annotations={limit: "60"}))
        await f.until_bound(["short"])
        assert (await f.homes())["long"] is None
        await f.end("now")
        pods = await f.until_bound(["front"])
        assert pods["long"].spec.node_name is None
        await f.until_bound(["long"])
