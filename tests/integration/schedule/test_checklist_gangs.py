"""The checklist's gangs (13 to 20) on a real control plane: groups that change, disagree, go and come back.

CI runs these against each release.
"""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.kube.errors import Invalid, Missing
from fluence.kube.gangs import ADAPTERS, NoGangs
from fluence.kube.releases import RELEASES
from fluence.kube.resource import JOBS, PODS, Json, Resource
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import RUN, Field, field

pytestmark = pytest.mark.release

CLASSES: Resource[Json] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict[str, object], namespaced=False
)


async def priority_class(f: Field, name: str, value: int, **more: Any) -> str:
    """A class of this test's own."""
    made = f"{f.namespace}-{name}"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": made}}
    await f.client.create(CLASSES, {**body, "value": value, **more})
    return made


async def patch_group(f: Field, name: str, body: Json) -> None:
    assert f.gangs.resource is not None
    await f.client.patch(f.gangs.resource.raw(), name, body, namespace=f.namespace)


async def test_a_lowered_min_count_starts_the_gang(kube: Kube, audited: None) -> None:
    """Checklist 13: from 1.37 on it may change; before, the server refuses, and the gang waits."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("g", 5)
        await f.add(*(f.pod(f"g-{i}", group="g") for i in range(5)))  # room for four
        await f.until_told("g-0")
        assert not any((await f.homes()).values())
        fewer: Json = {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
        if kube.version == "1.35":
            fewer = {"spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 4}}}]}}
        if kube.version in ("1.35", "1.36"):
            with pytest.raises(Invalid):
                await patch_group(f, "g", fewer)
            await f.end("g-4")  # four of five are no gang yet
            await f.until_told("g-0", "Waiting for 1 of 5", reason="WaitingForGroup")
            assert not any((await f.homes()).values())
        else:
            await patch_group(f, "g", fewer)
            await f.until_bound(4)


async def test_members_of_another_scheduler_are_refused_with_a_condition(kube: Kube, audited: None) -> None:
    """Checklist 14."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("g", 2)
        await f.add(f.pod("g-0", group="g"), f.pod("g-1", group="g", schedulerName="somebody-else"))
        await f.until_told("g-0", "another schedulerName (somebody-else)")
        if f.gangs.condition is not None:
            assert "another scheduler" in await f.until_group("g", "False", "SchedulerError")
        await f.end("g-1")
        await f.add(f.pod("g-2", group="g"))
        await f.until_bound(["g-0", "g-2"])
        if f.gangs.condition is not None:
            await f.until_group("g", "True", "Scheduled")


async def test_members_of_different_priorities_are_refused_with_a_condition(
    kube: Kube, audited: None
) -> None:
    """Checklist 14: and where the priority is one, but its preemption is not."""
    async with field(kube, 1) as f, f.scheduler():
        high = await priority_class(f, "high", 1000)
        never = await priority_class(f, "never", 1000, preemptionPolicy="Never")
        try:
            for group, one, other, why in (
                ("a", None, high, "different priorities (0 and 1000)"),
                ("b", high, never, "different preemption policies"),
            ):
                await f.add_group(group, 2, priority_class=one)
                for index, name in enumerate((one, other)):
                    more = {"priorityClassName": name} if name else {}
                    await f.add(f.pod(f"{group}-{index}", group=group, **more))  # type: ignore[arg-type]
                await f.until_told(f"{group}-0", why)
                await f.until_told(f"{group}-1", why)
                if f.gangs.condition is not None:
                    assert why in await f.until_group(group, "False", "SchedulerError")
            assert not any((await f.homes()).values())
        finally:
            for name in (high, never):
                await f.client.delete(CLASSES, name)


async def test_from_1_37_on_pods_have_the_priority_of_their_group(kube: Kube, audited: None) -> None:
    """Checklist 14: older servers do not tie the two together."""
    async with field(kube, 1) as f, f.scheduler():
        high = await priority_class(f, "high", 1000)
        try:
            await f.add_group("g", 2)  # without a class: 0
            await f.add(*(f.pod(f"g-{i}", group="g", priorityClassName=high) for i in range(2)))
            if kube.version in ("1.35", "1.36"):
                await f.until_bound(2)
            else:
                await f.until_told("g-0", "has priority 0 and its pods have 1000")
                assert "priority" in await f.until_group("g", "False", "SchedulerError")
        finally:
            await f.client.delete(CLASSES, high)


async def test_a_group_that_is_deleted_keeps_its_room_until_its_pods_end(kube: Kube, audited: None) -> None:
    """Checklist 16: the finalizer keeps the object, and the pods keep what they hold."""
    async with field(kube, 1) as f, f.scheduler() as live:
        assert f.gangs.resource is not None
        where = f.gangs.resource.raw()
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="2") for i in range(2)))
        await f.until_bound(2)
        held = live.scheduler.state.cluster.jobs
        await f.client.delete(where, "g", namespace=f.namespace)
        if kube.version != "1.35":  # there a Workload has no such finalizer
            item: Any = await f.client.get(where, "g", namespace=f.namespace)
            assert item["metadata"]["deletionTimestamp"]
            assert item["metadata"]["finalizers"] == ["scheduling.k8s.io/podgroup-protection"]
        await f.add(f.pod("rival", cpu="2"))
        await f.until_told("rival")
        assert live.scheduler.state.cluster.jobs == held
        first = (await f.pods())["g-0"].metadata.uid
        await f.end("g-0")  # one rank of two: the gang still runs
        entries = live.scheduler.state.cluster.pods.entries
        await eventually(lambda: first in entries, False, what="its end is seen")
        assert (await f.settled(quiet_s=0.3))["rival"] is None
        await f.end("g-1")
        await f.until_bound(["rival"])

        async def is_there() -> bool:
            try:
                await f.client.get(where, "g", namespace=f.namespace)
            except Missing:
                return False
            return True

        # Nobody but the controller takes the finalizer away.
        await eventually(is_there, False, what="the group is gone", pause_s=0.1)


async def test_a_suspended_job_with_a_group_of_its_own(kube: Kube, audited: None) -> None:
    """Checklist 18: nothing while it is suspended; together when it resumes, each time."""
    async with field(kube, 1) as f, f.scheduler() as live:
        await f.add_group("g", 2)
        await f.add(f.pod("first", cpu="2"))
        await f.until_bound(["first"])
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "job"},
            "spec": {
                "suspend": True,
                "completions": 2,
                "parallelism": 2,
                "completionMode": "Indexed",
                "template": {
                    "metadata": {"labels": {"app": "job"}, "annotations": {RUN: "900"}},
                    "spec": {**f.spec(group="g", cpu="2"), "restartPolicy": "Never"},
                },
            },
        }
        await f.client.create(JOBS.raw(), body, namespace=f.namespace)

        async def suspend(on: bool) -> None:
            await f.client.patch(JOBS.raw(), "job", {"spec": {"suspend": on}}, namespace=f.namespace)

        async def ranks(count: int, *, bound: bool) -> None:
            def done(pods: dict[str, Any]) -> bool:
                mine = [pod for pod in pods.values() if pod.labels.get("app") == "job"]
                told = [pod for pod in mine if bound or pod.condition("PodScheduled") is not None]
                return len(told) == count and all(bool(pod.spec.node_name) is bound for pod in mine)

            await f.until(done, f"{count} ranks, bound: {bound}")

        for holder, follower in (("first", "second"), ("second", "third")):
            await suspend(False)
            await ranks(2, bound=False)  # there is room for one of them at most
            await f.end(holder)
            await ranks(2, bound=True)
            assert len(live.scheduler.state.cluster.jobs) == 1
            await suspend(True)
            await ranks(0, bound=False)
            await f.add(f.pod(follower, cpu="4"))
            await f.until_bound([follower])  # all of it is free again


async def test_a_rank_that_the_kubelet_refused_is_replaced_in_its_place(kube: Kube, audited: None) -> None:
    """Checklist 20: a rank fails with OutOfcpu; its place waits for its successor, and is free at the end."""
    async with field(kube, 1) as f, f.scheduler(preemption=False) as live:
        high = await priority_class(f, "high", 1000)
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="2", restartPolicy="Never") for i in range(2)))
        await f.until(lambda pods: all(pod.status.phase == "Running" for pod in pods.values()), "all run")
        (job,) = live.scheduler.state.cluster.jobs
        failed = {"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"}}
        await f.client.patch(PODS.raw(), "g-1", failed, namespace=f.namespace, subresource="status")
        await f.add(f.pod("rival", cpu="2", priorityClassName=high))
        await f.until_told("rival")
        assert set(live.scheduler.state.cluster.jobs) == {job}
        await f.add(f.pod("g-2", group="g", cpu="2"))  # needs no company: the other rank runs
        await f.until_bound(["g-2"])
        assert (await f.homes())["rival"] is None
        await f.end("g-0", "g-2")
        await f.until_bound(["rival"])
        assert job not in live.scheduler.state.cluster.jobs
        await f.client.delete(CLASSES, high)


async def test_room_that_was_taken_by_preemption_is_not_taken_back(kube: Kube, audited: None) -> None:
    """Checklist 20: the rank is lost, its nominated successor counts before it is bound, the gang goes on."""
    async with field(kube, 1) as f, f.scheduler() as live:
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="2") for i in range(2)))
        await f.until_bound(2)
        (chief,) = await f.add(f.pod("chief", cpu="2", schedulerName="somebody-else"))
        nominated = {"status": {"nominatedNodeName": f.nodes[0]}}
        await f.client.patch(PODS.raw(), "chief", nominated, namespace=f.namespace, subresource="status")
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        doomed = {"status": {"conditions": [{**target, "lastTransitionTime": "2026-09-01T12:00:00Z"}]}}
        await f.client.patch(PODS, "g-1", doomed, namespace=f.namespace, subresource="status")
        await f.end("g-1")
        await f.add(f.pod("g-2", group="g", cpu="2"))
        await f.until_told("g-2", "Insufficient cpu")
        await f.client.bind(chief, f.nodes[0])
        assert (await f.settled(quiet_s=0.3))["g-2"] is None
        await f.end("chief")
        await f.until_bound(["g-0", "g-2"])
        await f.end("g-0", "g-2")
        await eventually(lambda: live.scheduler.state.cluster.jobs, {})


async def test_without_native_gangs_labels_make_them_and_lost_fields_do_not(gateless: Kube) -> None:
    """Checklist 19: the gate is off, so the group is in no discovery and pods lose the field."""
    native = next(each for each in ADAPTERS if f"{each.version}=true" in str(RELEASES[gateless.version]))
    async with field(gateless, 1) as f, f.scheduler() as live:
        assert isinstance(live.server_apis.gangs, NoGangs)
        labels = {names.GROUP_LABEL: "g", names.GROUP_SIZE: "3"}
        await f.add(*(f.pod(f"g-{i}", labels=labels) for i in range(2)))
        await f.until_told("g-0", "Waiting for 1 of 3 pods", reason="WaitingForGroup")
        (alone,) = await f.add(f.pod("lost", **native.pod_link("g")))  # type: ignore[arg-type]
        assert alone.spec.scheduling_group is None and alone.spec.workload_ref is None
        await f.until_bound(["lost"])  # nothing says any more that it belongs to a gang
        assert sum(map(bool, (await f.homes()).values())) == 1
        await f.add(f.pod("g-2", labels=labels))
        await f.until_bound(4)


@pytest.mark.only("1.35")
async def test_the_replicas_of_a_workload_are_gangs_of_their_own(kube: Kube, audited: None) -> None:
    """Checklist 19: only 1.35 has them."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("w/ranks", 2)

        def rank(replica: int, index: int) -> Json:
            link = {"name": "w", "podGroup": "ranks", "podGroupReplicaKey": f"r{replica}"}
            return f.pod(f"p-{replica}-{index}", workloadRef=link)

        await f.add(rank(0, 0), rank(1, 0))
        await f.until_told("p-0-0", "Waiting for 1 of 2 pods", reason="WaitingForGroup")
        await f.add(rank(1, 1))
        pods = await f.until_bound(["p-1-0", "p-1-1"])
        assert pods["p-0-0"].spec.node_name is None
        await f.add(rank(0, 1))
        pods = await f.until_bound(4)
        jobs = {name: pod.annotations[names.JOBID] for name, pod in pods.items()}
        assert jobs["p-0-0"] == jobs["p-0-1"] != jobs["p-1-0"] == jobs["p-1-1"]
