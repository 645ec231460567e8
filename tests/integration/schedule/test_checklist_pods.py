"""The checklist's pods (2, 21 to 23, 28, 29, 43) on a real control plane: what counts, who comes first, how
much is written."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from fluence.kube.client import PatchType
from fluence.kube.resource import NODES, PODS, Json, Resource
from fluence.model.pod import Pod, pod_requests
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from fluence.units import amount, parse_quantity
from tests.eventually import eventually
from tests.integration.schedule.field import LABEL, Field, field

QUOTAS: Resource[Json] = Resource("", "v1", "resourcequotas", "ResourceQuota", dict[str, object])
RUNTIMES: Resource[Json] = Resource(
    "node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", dict[str, object], namespaced=False
)
CLASSES: Resource[Json] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict[str, object], namespaced=False
)


async def test_two_that_both_believe_to_lead_bind_each_pod_once(kube: Kube, audited: None) -> None:
    """Checklist 2: the worst case, two schedulers at once; the API server lets one of them win."""
    late = Rule(verb="create", path="binding$", latency_s=1.0)  # both have decided before either binds
    async with field(kube, 4) as f, f.through(late) as first:
        asked = f.proxy
        async with f.through(msgspec.structs.replace(late)) as second:
            await f.add_group("g", 4)
            await f.add(*(f.pod(f"g-{i}", group="g") for i in range(4)), *(f.pod(f"p-{i}") for i in range(4)))
            await f.until_bound(8)
            states = first.scheduler.state, second.scheduler.state
            jobs, _ = await eventually(
                lambda: [each.cluster.jobs for each in states],
                lambda jobs: jobs[0] == jobs[1],
                what="both come to know the same",
            )
            assert len(jobs) == 5
            seen = [each for each in (*asked.seen, *f.proxy.seen) if each.path.endswith("/binding")]
            won = [each.path for each in seen if each.status == 201]
            assert len(won) == len(set(won)) == 8, "each was bound once"
            assert {each.status for each in seen} <= {201, 409}


@pytest.mark.parametrize("change", ["taint", "gone"])
async def test_a_node_that_closes_between_match_and_bind_is_not_used(
    kube: Kube, audited: None, change: str
) -> None:
    """Checklist 21: the second of two binds waits for the first; meanwhile its node closes."""
    slow = Rule(verb="create", path="binding$", latency_s=60, times=1)
    async with field(kube, 3) as f, f.through(slow, in_flight=1) as live:
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="3") for i in range(2)))
        await eventually(lambda: slow.used, what="the first bind is on its way", pause_s=0.02)
        (part,) = live.scheduler.state.pod_sets.by_key.values()
        planned = list(part.unbound.values())
        assert len(set(planned)) == 2 and not any((await f.homes()).values())
        shut = planned[1]
        if change == "taint":
            taints = [{"key": LABEL, "effect": "NoSchedule"}, {"key": "new", "effect": "NoExecute"}]
            await f.patch_node(shut, {"spec": {"taints": taints}})
        else:
            await f.client.delete(NODES, shut)
        await eventually(
            lambda: live.scheduler.state.cluster.node(shut),
            lambda node: node is None or "new" in {each.key for each in node.spec.taints or ()},
            what="it is seen",
        )
        slow.latency_s = 0
        pods = await f.until_bound(2)
        assert shut not in {pod.spec.node_name for pod in pods.values()}
        assert not live.scheduler.state.exclusions._refused  # a closed node is not refused for good


async def test_a_pod_that_is_being_deleted_counts_until_it_is_gone(kube: Kube, audited: None) -> None:
    """Checklist 28."""
    slowly = {"sandbox.fluence.flux-framework.org/stop-seconds": "600"}
    async with field(kube, 1) as f, f.scheduler():
        await f.add(f.pod("leaving", cpu="3", annotations=slowly, terminationGracePeriodSeconds=600))
        await f.until(lambda pods: pods["leaving"].status.phase == "Running", "it runs")
        await f.client.delete(PODS, "leaving", namespace=f.namespace)
        leaving = await f.client.get(PODS, "leaving", namespace=f.namespace)
        assert leaving.metadata.deletion_timestamp is not None
        await f.add(f.pod("next", cpu="3"))
        await f.until_told("next", "Insufficient cpu")
        await f.end("leaving")
        await f.until_bound(["next"])


def container(requests: dict[str, str], name: str = "c", **more: Any) -> Json:
    """The server admits no pod under a quota that leaves cpu or memory out."""
    every = {"cpu": "10m", "memory": "1Mi", **requests}
    return {"name": name, "image": "none", "resources": {"requests": every}, **more}


GPU = {"limits": {"cpu": "500m", "memory": "64Mi", "nvidia.com/gpu": "2"}}
SHAPES: dict[str, Json] = {
    "two containers": {
        "containers": [container({"cpu": "250m", "memory": "1Gi"}), container({"cpu": "1"}, "d")]
    },
    "milli, kilo and exponents": {
        "containers": [
            container({"cpu": "0.1", "memory": "129e6"}),
            container({"cpu": "1500m", "memory": "123Mi"}, "d"),
            container({"cpu": "1e0", "memory": "1k", "ephemeral-storage": "5G"}, "e"),
            container({"cpu": "100u", "memory": "1.5Ki"}, "f"),
        ]
    },
    "limits alone": {"containers": [{"name": "c", "image": "none", "resources": GPU}]},
    "init containers": {
        "initContainers": [
            container({"cpu": "3", "memory": "1Mi"}, "i"),
            container({"memory": "2Gi"}, "j"),
        ],
        "containers": [container({"cpu": "1", "memory": "1Gi"})],
    },
    "sidecars": {
        "initContainers": [
            container({"cpu": "2"}, "i"),
            container({"cpu": "500m", "memory": "1Gi"}, "s", restartPolicy="Always"),
            container({"cpu": "2", "memory": "1Gi"}, "j"),
        ],
        "containers": [container({"cpu": "1", "memory": "512Mi"})],
    },
    "for the whole pod": {
        "resources": {"requests": {"cpu": "2500m", "memory": "3Gi"}},
        "containers": [container({"cpu": "1", "memory": "1Gi"}), container({"cpu": "1"}, "d")],
    },
    "overhead": {"runtimeClassName": "", "containers": [container({"cpu": "1", "memory": "1Gi"})]},
}
HARD = {
    "requests.cpu": "1k",
    "requests.memory": "1Ti",
    "requests.ephemeral-storage": "1Ti",
    "requests.nvidia.com/gpu": "99",
    "pods": "99",
}


class Quota:
    """What the API server itself counts for a pod: it adds that to the quota as it admits the pod."""

    def __init__(self, f: Field) -> None:
        self.f = f

    async def start(self) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "q"},
            "spec": {"hard": HARD},
        }
        await self.f.client.create(QUOTAS, body, namespace=self.f.namespace)
        # No controller of the sandbox does this.
        status = {"status": {"hard": HARD, "used": dict.fromkeys(HARD, "0")}}
        await self.f.client.patch(QUOTAS, "q", status, namespace=self.f.namespace, subresource="status")

        async def counted() -> dict[str, int]:
            """NB admission reads quotas from a cache of its own."""
            held = {"schedulingGates": [{"name": "a.b/c"}], "containers": [container({})]}
            (probe,) = await self.f.add(self.f.pod("probe", **held))  # type: ignore[arg-type]
            await self.f.end(probe.metadata.name)
            return await self.used()

        await eventually(counted, lambda used: any(used.values()), what="the quota counts", pause_s=0.1)

    async def used(self) -> dict[str, int]:
        item: Any = await self.f.client.get(QUOTAS, "q", namespace=self.f.namespace)
        found = {name.removeprefix("requests."): text for name, text in item["status"]["used"].items()}
        return {name: amount(name, parse_quantity(text)) for name, text in found.items()}


def weight(live: Any, pod: Pod) -> dict[str, int]:
    """What Fluence counts for a pod that has a node."""
    entry = live.scheduler.state.cluster.pods.entries.get(pod.metadata.uid)
    names = {"gpu": "nvidia.com/gpu"}  # a device by its type
    return (
        {} if entry is None else {names.get(name, name): each for name, each in entry.needs.items() if each}
    )


def wish(live: Any, pod: Pod) -> str:
    """How many cores a pod asks for, as the scheduler knows it."""
    (box,) = live.scheduler.state.cluster.pods.entries[pod.metadata.uid].pod.spec.containers
    return str(box.resources.requests["cpu"])


async def test_pods_cost_what_the_api_server_itself_counts(kube: Kube, audited: None) -> None:
    """Checklist 22 and 23: every kind of request, in every spelling, against the server's own arithmetic."""
    async with field(kube, 1, cpu=64, gpu=4) as f, f.scheduler() as live:
        runtime = f"heavy-{f.namespace}"
        body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": runtime}}
        heavy = {"podFixed": {"cpu": "250m", "memory": "120Mi"}}
        await f.client.create(RUNTIMES, {**body, "handler": "none", "overhead": heavy})
        try:
            quota = Quota(f)
            await quota.start()
            for index, (what, shape) in enumerate(SHAPES.items()):
                spec = {**shape, **({"runtimeClassName": runtime} if "runtimeClassName" in shape else {})}
                before = await quota.used()
                (pod,) = await f.add(f.pod(f"p-{index}", **spec))  # type: ignore[arg-type]
                after = await quota.used()
                theirs = {name: after[name] - before[name] for name in after if after[name] != before[name]}
                assert pod_requests(pod) == theirs, what
                await f.until_bound([f"p-{index}"])
                await eventually(partial(weight, live, pod), theirs)
        finally:
            await f.client.delete(RUNTIMES, runtime)


async def test_a_pod_that_is_resized_counts_as_the_larger_of_wish_and_reality(
    kube: Kube, audited: None
) -> None:
    """Checklist 22: by the server's own resize; what a kubelet has not given back yet counts too."""
    async with field(kube, 1) as f, f.scheduler() as live:
        await f.add(f.pod("p", cpu="1"))
        pod = (await f.until(lambda pods: pods["p"].status.phase == "Running", "it runs"))["p"]

        async def resize(cpu: str) -> None:
            body = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
            await f.client.patch(
                PODS, "p", body, namespace=f.namespace, kind=PatchType.STRATEGIC, subresource="resize"
            )

        async def counts(cpu: int) -> None:
            await eventually(lambda: weight(live, pod).get("cpu"), cpu)

        async def has(cpu: str) -> None:
            """The kubelet's word; the simulated one knows nothing of sizes."""
            seen: Any = await f.client.get(PODS.raw(), "p", namespace=f.namespace)
            (status,) = seen["status"]["containerStatuses"]
            status.update(allocatedResources={"cpu": cpu}, resources={"requests": {"cpu": cpu}})
            body = {"status": {"containerStatuses": [status]}}
            await f.client.patch(PODS.raw(), "p", body, namespace=f.namespace, subresource="status")

        await has("1")
        await resize("3")
        await counts(3000)
        await f.add(f.pod("next", cpu="2"))
        await f.until_told("next", "Insufficient cpu")
        await has("3")
        await resize("1")
        await eventually(lambda: wish(live, pod), "1")
        await counts(3000)  # the kubelet has not given it back
        assert (await f.homes())["next"] is None
        await has("1")
        await f.until_bound(["next"])


async def test_the_higher_priority_goes_first_and_nobody_is_preempted(kube: Kube, audited: None) -> None:
    """Checklist 29: with preemption off, priorities order the queue and nobody is ended."""
    made = []
    async with field(kube, 1) as f, f.through(preemption=False):
        try:
            for name, value, policy in (("high", 1000, "PreemptLowerPriority"), ("higher", 2000, "Never")):
                body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
                made.append(f"{f.namespace}-{name}")
                meta = {"metadata": {"name": made[-1]}, "value": value, "preemptionPolicy": policy}
                await f.client.create(CLASSES, {**body, **meta})
            await f.add(f.pod("runs", cpu="4"))
            await f.until_bound(["runs"])
            await f.add(f.pod("low", cpu="4"))
            await f.until_told("low")
            for name in made:
                await f.add(f.pod(name.removeprefix(f"{f.namespace}-"), cpu="4", priorityClassName=name))
            for name in ("high", "higher"):
                await f.until_told(name)
            for running, following in (("runs", "higher"), ("higher", "high"), ("high", "low")):
                homes = await f.homes()
                assert [name for name, home in homes.items() if home] == [running]
                await f.end(running)
                await f.until_bound([following])
            assert f.proxy.count("delete") == 0
        finally:
            for name in made:
                await f.client.delete(CLASSES, name)


async def test_writes_per_pod_are_bounded(kube: Kube, audited: None) -> None:
    """Checklist 43: gangs that wait for each other; each pod costs one bind, few words and few events."""
    async with field(kube, 1) as f, f.through():
        count, size = 4, 3
        for group in range(count):
            await f.add_group(f"g{group}", size)
            await f.add(*(f.pod(f"g{group}-{i}", group=f"g{group}", runs=0.5) for i in range(size)))
        await f.until(
            lambda pods: all(pod.status.phase == "Succeeded" for pod in pods.values()), "all gangs end"
        )
        space, pods = f"/namespaces/{f.namespace}/", count * size
        events = f"{space}events"
        await eventually(
            lambda: sum(events in each.path for each in f.proxy.seen),
            lambda seen: seen >= pods,
            what=f"{pods} events: they are written a little later",
        )
        await f.settled(quiet_s=1.0)  # and more than that would follow
        seen = [each for each in f.proxy.seen if space in each.path and each.verb in ("create", "patch")]
        binds = [each for each in seen if each.path.endswith("/binding")]
        words = [each for each in seen if "/pods/" in each.path and each.path.endswith("/status")]
        told = [each for each in seen if "/podgroups/" in each.path and each.path.endswith("/status")]
        said = [each for each in seen if "/events" in each.path]
        assert len(binds) == pods
        assert len(words) <= 3 * pods, words  # members are missing; no room; its turn comes later
        assert len(told) <= 4 * count, told
        assert pods <= len(said) <= 4 * pods, said
        assert len(seen) == len(binds) + len(words) + len(told) + len(said), "nothing else is written"
