"""Preemption on a real control plane: kube-scheduler's own specs (SchedulerPreemption), and a scheduler that
is killed meanwhile.

The names of the first tests are those of the specs in `test/e2e/scheduling/preemption.go`. There each node
has 5 units of an extended resource; here a node has 5 cores.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fluence.kube.resource import EVENTS, PODS, REPLICASETS, Json, Resource
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.killed import Run, killed

CLASSES: Resource[Json] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict[str, object], namespaced=False
)
BUDGETS: Resource[Json] = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", dict[str, object]
)
DAEMONS: Resource[Json] = Resource("apps", "v1", "daemonsets", "DaemonSet", dict[str, object])
FINALIZER = "example.com/test-finalizer"
VALUES = {"low": 1, "medium": 100, "high": 1000}


@contextlib.asynccontextmanager
async def priorities(f: Field, **values: int) -> AsyncIterator[dict[str, str]]:
    """Names of priority classes of this test alone."""
    classes = {name: f"{f.namespace}-{name}" for name in values or VALUES}
    try:
        for name, value in (values or VALUES).items():
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            await f.client.create(CLASSES, {**body, "metadata": {"name": classes[name]}, "value": value})
        yield classes
    finally:
        for name in classes.values():
            await f.client.delete(CLASSES, name)


def leaves(pod: Pod | None) -> bool:
    return pod is None or pod.metadata.deletion_timestamp is not None


def left(pods: dict[str, Pod]) -> set[str]:
    """Those that run and stay."""
    return {name for name, pod in pods.items() if pod.spec.node_name and not leaves(pod)}


async def test_validates_basic_preemption_works(kube: Kube, audited: None) -> None:
    """Every node has two pods of 2 of its 5 cores; one is low, the others are medium. A high pod of 2 runs,
    and nobody but the low one goes."""
    async with field(kube, 3, cpu=5) as f, f.scheduler(), priorities(f) as classes:
        await f.add(f.pod("low", cpu="2", priorityClassName=classes["low"]))
        mediums = [f"medium-{i}" for i in range(5)]
        await f.add(*(f.pod(name, cpu="2", priorityClassName=classes["medium"]) for name in mediums))
        await f.until_bound(6)
        await f.add(f.pod("high", cpu="2", priorityClassName=classes["high"]))
        pods = await f.until_bound(["high"])
        assert leaves(pods.get("low"))
        assert left(pods) == {"high", *mediums}


async def test_validates_lower_priority_pod_preemption_by_critical_pod(kube: Kube, audited: None) -> None:
    async with field(kube, 2, cpu=5) as f, f.scheduler(), priorities(f) as classes:
        await f.add(f.pod("low", cpu="2", priorityClassName=classes["low"]))
        mediums = [f"medium-{i}" for i in range(3)]
        await f.add(*(f.pod(name, cpu="2", priorityClassName=classes["medium"]) for name in mediums))
        await f.until_bound(4)
        body = f.pod(f"critical-{f.namespace}", cpu="2", priorityClassName="system-cluster-critical")
        try:
            await f.client.create(PODS, body, namespace="kube-system")

            async def node() -> str | None:
                pod = await f.client.get(PODS, f"critical-{f.namespace}", namespace="kube-system")
                return pod.spec.node_name

            await eventually(node, lambda name: name is not None, what="the critical pod is bound")
            pods = await f.pods()
            assert leaves(pods.get("low")) and left(pods) == set(mediums)
        finally:
            await f.client.delete(PODS, f"critical-{f.namespace}", namespace="kube-system", grace_s=0)


async def test_validates_pod_disruption_condition_is_added_to_the_preempted_pod(
    kube: Kube, audited: None
) -> None:
    async with field(kube, 1, cpu=5) as f, f.scheduler(), priorities(f) as classes:
        victim = f.pod("victim", cpu="3", priorityClassName=classes["low"])
        victim["metadata"]["finalizers"] = [FINALIZER]
        await f.add(victim)
        await f.until_bound(["victim"])
        await f.add(f.pod("preemptor", cpu="3", priorityClassName=classes["high"]))
        try:
            pods = await f.until(lambda pods: leaves(pods.get("victim")), "the victim is being deleted")
            condition = pods["victim"].condition("DisruptionTarget")
            assert condition is not None
            assert (condition.status, condition.reason) == ("True", "PreemptionByScheduler")
        finally:
            patch: Json = {"metadata": {"finalizers": None}}
            await f.client.patch(PODS.raw(), "victim", patch, namespace=f.namespace)
        await f.until_bound(["preemptor"])

        async def said() -> list[Any]:
            page = await f.client.list(EVENTS, namespace=f.namespace)
            notes = [str(each["note"]) for each in page.items or () if each["reason"] == "Preempted"]
            return [re.sub(r"; \d+s of its work is lost$", "", note) for note in notes]

        words = f"Preempted by pod {f.namespace}/preemptor of priority 1000; its own priority is 1"
        await eventually(said, [words])


async def test_validates_pod_topology_spread_preemption(kube: Kube, audited: None) -> None:
    """Of two nodes one has a high pod and the other three low ones. A medium pod needs the room of one low
    pod, and may not be more than one more than on the first node: two of the low ones go."""
    async with field(kube, 2, cpu=9) as f, f.scheduler(), priorities(f) as classes:
        key = "field.example/dedicated"
        for name in f.nodes:
            await f.patch_node(name, {"metadata": {"labels": {key: name}}})
        here, there = ({"field.example/of": f.namespace, key: name} for name in f.nodes)
        labels = {"e2e": "spread"}
        high = f.pod("high", cpu="9", labels=labels, priorityClassName=classes["high"], nodeSelector=here)
        await f.add(high)
        lows = [f"low-{i}" for i in range(1, 4)]
        for name in lows:
            low = f.pod(name, cpu="3", labels=labels, priorityClassName=classes["low"], nodeSelector=there)
            await f.add(low)
        await f.until_bound(["high", *lows])
        spread = {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": labels},
        }
        medium = f.pod(
            "medium",
            cpu="3",
            labels=labels,
            priorityClassName=classes["medium"],
            topologySpreadConstraints=[spread],
        )
        await f.add(medium)
        pods = await f.until_bound(["medium"])
        assert len(left(pods)) == 3 and {"high", "medium"} <= left(pods)


async def test_runs_replicasets_to_verify_preemption_running_path(kube: Kube, audited: None) -> None:
    """200, 300 and 450 of 1000: a preemptor of 500 ends the two lowest, each once, and it stays so."""
    values = {"p1": 1, "p2": 2, "p3": 3, "p4": 4}
    async with field(kube, 1, cpu=1) as f, f.scheduler(), priorities(f, **values) as classes:
        for name, replicas, cpu in (("p1", 1, "200m"), ("p2", 1, "300m"), ("p3", 1, "450m")):
            await f.client.create(
                REPLICASETS.raw(),
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "metadata": {"name": name},
                    "spec": {
                        "replicas": replicas,
                        "selector": {"matchLabels": {"name": name}},
                        "template": {
                            "metadata": {"labels": {"name": name}},
                            "spec": f.spec(cpu=cpu, priorityClassName=classes[name]),
                        },
                    },
                },
                namespace=f.namespace,
            )
        await f.until_bound(3)
        seen: dict[str, set[str]] = {}

        def note(pods: dict[str, Pod]) -> bool:
            for pod in pods.values():
                if pod.spec.node_name:
                    seen.setdefault(pod.labels.get("name", "p4"), set()).add(pod.metadata.uid)
            return "p4" in seen

        def each(pods: dict[str, Pod]) -> dict[str, int]:
            kinds = ("p1", "p2", "p3")
            return {kind: sum(pod.labels.get("name") == kind for pod in pods.values()) for kind in kinds}

        first = {name: pod.metadata.uid for name, pod in (await f.pods()).items()}
        await f.add(f.pod("preemptor", cpu="500m", priorityClassName=classes["p4"]))
        await f.until(note, "the preemptor is bound")
        await f.until(lambda pods: set(each(pods).values()) == {1}, "the ReplicaSets have new pods")
        await f.settled(quiet_s=3)
        pods = await f.pods()
        running = {
            pod.labels.get("name", "p4") for pod in pods.values() if pod.spec.node_name and not leaves(pod)
        }
        assert running == {"p4", "p3"}
        assert each(pods) == {"p1": 1, "p2": 1, "p3": 1}, "each has a new pod, which waits"
        still = [pod for pod in pods.values() if pod.metadata.uid in first.values()]
        assert [pod.labels["name"] for pod in still] == ["p3"]


async def test_preempts_lower_priority_pods_of_various_priorities(kube: Kube, audited: None) -> None:
    """Ten low pods a node end slowly for ten medium ones; five high ones take over the seats that are being
    freed. In the end all high ones run, and exactly five medium ones a node."""
    async with field(kube, 1, cpu=10) as f, f.scheduler(), priorities(f) as classes:
        lows = [f.pod(f"low-{i}", priorityClassName=classes["low"]) for i in range(10)]
        for low in lows:
            low["metadata"]["finalizers"] = [FINALIZER]
        await f.add(*lows)
        await f.until_bound(10)
        await f.add(*(f.pod(f"medium-{i}", priorityClassName=classes["medium"]) for i in range(10)))
        await f.until(
            lambda pods: all(leaves(pod) for name, pod in pods.items() if name.startswith("low")),
            "all low pods are being deleted",
        )
        await f.add(*(f.pod(f"high-{i}", priorityClassName=classes["high"]) for i in range(5)))
        await f.until(
            lambda pods: all(
                pod.status.nominated_node_name or pod.spec.node_name
                for name, pod in pods.items()
                if name.startswith("high")
            ),
            "all high pods are nominated",
        )
        for index in range(10):
            patch: Json = {"metadata": {"finalizers": None}}
            with contextlib.suppress(Exception):
                await f.client.patch(PODS.raw(), f"low-{index}", patch, namespace=f.namespace)
        await f.until_bound([f"high-{i}" for i in range(5)])
        pods = await f.until(lambda pods: len(left(pods)) == 10, "ten run")
        assert sum(name.startswith("medium") for name in left(pods)) == 5
        assert not any(name.startswith("low") for name in pods)


async def test_a_critical_daemon_set_gets_its_place_on_full_nodes(kube: Kube, audited: None) -> None:
    """One pod of `system-node-critical` for each node: one pod of lower priority ends there, and no other."""
    async with field(kube, 2, cpu=2) as f, f.scheduler(), priorities(f) as classes:
        await f.add(*(f.pod(f"low-{i}", cpu="1", priorityClassName=classes["low"]) for i in range(4)))
        await f.until_bound(4)
        spec = f.spec(cpu="1", priorityClassName="system-node-critical")
        template = {"metadata": {"labels": {"daemon": "agent"}}, "spec": spec}
        body = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}}
        selector = {"matchLabels": {"daemon": "agent"}}
        body["spec"] = {"selector": selector, "template": template}
        await f.client.create(DAEMONS, body, namespace=f.namespace)

        def homes(pods: dict[str, Pod]) -> list[str]:
            agents = [pod for pod in pods.values() if pod.labels.get("daemon") == "agent"]
            return sorted(pod.spec.node_name for pod in agents if pod.spec.node_name)

        pods = await f.until(lambda pods: len(homes(pods)) == 2, "each node has its agent")
        assert len(set(homes(pods))) == 2
        await f.settled()
        kept = {name for name in left(await f.pods()) if name.startswith("low")}
        assert len(kept) == 2, "one pod ends for each agent, and no other"


async def test_a_gang_ends_a_gang_as_a_whole_and_a_budget_protects_another(kube: Kube, audited: None) -> None:
    async with field(kube, 4, cpu=2) as f, f.scheduler(), priorities(f) as classes:
        await f.add_group("kept", 2, priority_class=classes["low"])
        await f.add_group("ended", 2, priority_class=classes["low"])
        for name in ("kept", "ended"):
            labels = {"app": name}
            some = (
                f.pod(f"{name}-{i}", cpu="2", group=name, labels=labels, priorityClassName=classes["low"])
                for i in range(2)
            )
            await f.add(*some)
        await f.until_bound(4)
        await f.client.create(
            BUDGETS,
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "kept"},
                "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "kept"}}},
            },
            namespace=f.namespace,
        )
        await f.settled()
        await f.add_group("urgent", 2, priority_class=classes["high"])
        await f.add(
            *(
                f.pod(f"urgent-{i}", cpu="2", group="urgent", priorityClassName=classes["high"])
                for i in range(2)
            )
        )
        pods = await f.until_bound(["urgent-0", "urgent-1"])
        assert left(pods) == {"kept-0", "kept-1", "urgent-0", "urgent-1"}


async def test_killed_during_a_preemption(kube: Kube, audited: None, tmp_path: Path) -> None:
    """Killed when the first victim is being deleted: the next process ends no other than these, and nobody
    else gets the seats."""
    async with field(kube, 3, cpu=2) as f, priorities(f) as classes, killed(f, [], tmp_path) as run:
        await run.led()
        lows = [f.pod(f"low-{i}", cpu="2", priorityClassName=classes["low"]) for i in range(3)]
        for low in lows:
            low["metadata"]["finalizers"] = [FINALIZER]
        await f.add(*lows)
        await f.until_bound(3)
        await f.add_group("urgent", 2, priority_class=classes["high"])
        urgent = [
            f.pod(f"urgent-{i}", cpu="2", group="urgent", priorityClassName=classes["high"]) for i in range(2)
        ]
        await f.add(*urgent)
        await f.until(lambda pods: any(map(leaves, pods.values())), "the first is being deleted")
        await _kill_and_go_on(f, run)
        await f.add(f.pod("thief", cpu="1", priorityClassName=classes["low"]))
        await f.until(lambda pods: sum(map(leaves, pods.values())) == 2, "the second is being deleted")
        await f.settled(quiet_s=2)
        ending = [name for name, pod in (await f.pods()).items() if leaves(pod)]
        assert len(ending) == 2, "nobody is ended for nothing, and nobody twice"
        for name in ending:
            patch: Json = {"metadata": {"finalizers": None}}
            await f.client.patch(PODS.raw(), name, patch, namespace=f.namespace)
        pods = await f.until_bound(["urgent-0", "urgent-1"])
        assert pods["thief"].spec.node_name is None
        (stays,) = [name for name in left(pods) if name.startswith("low")]
        patch = {"metadata": {"finalizers": None}}
        await f.client.patch(PODS.raw(), stays, patch, namespace=f.namespace)


async def _kill_and_go_on(f: Field, run: Run) -> None:
    await run.stop(signal.SIGKILL)
    await run.led()
