"""A cluster that changes under the scheduler: taints, cordons, other schedulers, nodes and pods that go."""

from __future__ import annotations

import asyncio

import pytest

from fluence import names
from fluence.kube.errors import ApiConflict
from fluence.kube.resource import CLAIMS, NODES, PODS, VOLUMES
from fluence.live.scheduler import LiveScheduler
from fluence.model.pod import Pod
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from fluence.schedule.events import Bind, BindOutcome
from tests.eventually import eventually
from tests.integration.schedule.field import LABEL, field


def taints(live: LiveScheduler, node: str) -> set[str]:
    """The keys of a node's taints, as the scheduler knows it."""
    known = live.scheduler.state.cluster.node(node)
    return {each.key for each in (known.spec.taints if known is not None else None) or ()}


def home(live: LiveScheduler, pod: Pod) -> str | None:
    """Where a pod is, as the scheduler knows it."""
    entry = live.scheduler.state.cluster.pods.entries.get(pod.metadata.uid)
    return entry.node if entry is not None and entry.bound else None


async def test_a_pod_goes_where_its_tolerations_let_it(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, f.scheduler() as live:
        taint = [
            {"key": LABEL, "effect": "NoSchedule"},
            {"key": "special", "value": "yes", "effect": "NoSchedule"},
        ]
        await f.patch_node(f.nodes[1], {"spec": {"taints": taint}})
        await eventually(lambda: taints(live, f.nodes[1]), {LABEL, "special"})
        await f.add(*(f.pod(f"p-{i}", cpu="2") for i in range(3)))
        await f.until_bound(2)
        homes = await f.settled(quiet_s=0.5)
        assert sorted(home or "" for home in homes.values()) == ["", f.nodes[0], f.nodes[0]]
        tolerations = [{"key": LABEL, "operator": "Exists"}, {"key": "special", "operator": "Exists"}]
        await f.add(f.pod("t", cpu="2", tolerations=tolerations))
        assert (await f.until_bound(["t"]))["t"].spec.node_name == f.nodes[1]
        await f.patch_node(f.nodes[1], {"spec": {"taints": taint[:1]}})
        await f.until_bound(4)


async def test_a_node_that_is_cordoned_between_match_and_bind_is_not_used(kube: Kube, audited: None) -> None:
    """Checklist 21: the gang is matched anew, all of it."""
    # Binds are slow here, and two at a time, so that the cordon falls between match and bind.
    slow = Rule(verb="create", path="binding$", latency_s=2.0)
    async with field(kube, 4) as f, f.through(slow, in_flight=2) as live:
        await f.add_group("g", 8)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="2") for i in range(8)))
        pods = await f.until_bound(2)
        free = sorted(set(f.nodes) - {pod.spec.node_name for pod in pods.values()})
        assert free, "some nodes have no pod yet"
        await f.patch_node(free[0], {"spec": {"unschedulable": True}})
        await eventually(lambda: live.binder.backlog, 0, what="no bind is under way")
        late = [pod for pod in (await f.pods()).values() if pod.spec.node_name == free[0]]
        assert len(late) <= 2  # those that were on their way
        await f.patch_node(free[0], {"spec": {"unschedulable": False}})
        await f.until_bound(8)
        assert not live.scheduler.state.exclusions._refused


async def test_pods_of_other_schedulers_shrink_the_cluster_and_give_it_back(
    kube: Kube, audited: None
) -> None:
    """Checklist 27."""
    async with field(kube, 2) as f, f.scheduler() as live:
        (foreign,) = await f.add(f.pod("foreign", cpu="3", schedulerName="somebody-else"))
        await f.client.bind(foreign, f.nodes[0])
        await eventually(lambda: home(live, foreign), f.nodes[0])
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="3") for i in range(2)))
        await f.until_told("g-0")
        assert not any(home for name, home in (await f.settled()).items() if name != "foreign")
        await f.client.delete(PODS, "foreign", namespace=f.namespace, grace_s=0)
        await f.until_bound(["g-0", "g-1"])


async def test_a_foreign_scheduler_that_fills_nodes_is_never_outbid(kube: Kube, audited: None) -> None:
    async with field(kube, 4) as f, f.scheduler() as live:
        await f.add_group("big", 4)
        for index in range(12):  # three nodes are full
            (made,) = await f.add(f.pod(f"x-{index}", cpu="1", schedulerName="somebody-else"))
            await f.client.bind(made, f.nodes[index % 3])
        await eventually(lambda: home(live, made), f.nodes[2], what="the last of them is seen")
        await f.add(*(f.pod(f"big-{i}", group="big", cpu="1") for i in range(4)))
        pods = await f.until_bound([f"big-{i}" for i in range(4)])
        assert {pods[f"big-{i}"].spec.node_name for i in range(4)} == {f.nodes[3]}


async def test_a_lost_node_gives_its_members_a_place_elsewhere(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, f.scheduler() as live:
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="3") for i in range(2)))
        homes = {name: pod.spec.node_name for name, pod in (await f.until_bound(2)).items()}
        gone = homes["g-1"]
        assert gone is not None
        await f.client.delete(NODES, gone)
        await eventually(lambda: gone in live.scheduler.state.cluster.nodes, False)
        await f.client.delete(PODS, "g-1", namespace=f.namespace, grace_s=0)
        await f.add(f.pod("g-1b", group="g", cpu="3"))
        pods = await f.until_bound(["g-0", "g-1b"])
        assert pods["g-1b"].spec.node_name not in (gone, homes["g-0"])


async def test_a_new_node_wakes_what_could_never_have_started(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler() as live:
        await f.patch_node(f.nodes[0], {"metadata": {"labels": {"kind": "small"}}})
        await f.add(f.pod("p", nodeSelector={"kind": "large"}))
        assert "node affinity/selector (kind=large)" in await f.until_told(
            "p", "cannot start on this cluster"
        )
        planner, queue = live.scheduler.state.planner, live.scheduler.state.queue

        async def watched() -> tuple[bool, int]:
            before, tries = (planner.freed, planner.lost), queue.tries
            await asyncio.sleep(0.7)
            return (planner.freed, planner.lost) == before, queue.tries - tries

        # Other tests change the cluster, too.
        _, tries = await eventually(watched, lambda seen: seen[0], what="0.7 s in which nothing changes")
        assert tries == 0, "nothing changed, so nothing was tried"
        await f.patch_node(f.nodes[0], {"metadata": {"labels": {"kind": "large"}}})
        await f.until_bound(["p"])


async def test_a_gated_pod_is_never_bound(kube: Kube, audited: None) -> None:
    """Checklist 4 and 7: and its condition does not stay SchedulingGated when the gate opens."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add(f.pod("g", schedulingGates=[{"name": "example.com/wait"}]))
        assert (await f.settled(quiet_s=0.7))["g"] is None
        await f.client.patch(PODS, "g", {"spec": {"schedulingGates": None}}, namespace=f.namespace)
        pod = (await f.until_bound(["g"]))["g"]
        condition = pod.condition("PodScheduled")
        assert condition is not None and condition.status == "True"


async def test_a_pod_deleted_between_match_and_bind_holds_nothing(kube: Kube, audited: None) -> None:
    """Checklist 3."""
    slow = Rule(verb="create", path="binding$", latency_s=60, times=1)
    async with field(kube, 1) as f, f.through(slow) as live:
        await f.add(f.pod("gone", cpu="4"))
        await eventually(lambda: slow.used, what="the bind is on its way", pause_s=0.02)
        await f.client.delete(PODS, "gone", namespace=f.namespace, grace_s=0)
        slow.latency_s = 0
        await f.add(f.pod("next", cpu="4"))
        await f.until_bound(["next"])
        await eventually(lambda: f.proxy.count("create", "gone/binding"), what="the bind is answered")
        assert [each.status for each in f.proxy.seen if "gone/binding" in each.path] == [404]
        assert (await f.homes())["next"] == f.nodes[0]
        await eventually(lambda: live.scheduler.state.cluster.jobs, lambda jobs: len(jobs) == 1)


async def test_a_bind_with_the_uid_of_an_older_pod_is_refused(kube: Kube, audited: None) -> None:
    """Checklist 1."""
    async with field(kube, 1) as f:
        (old,) = await f.add(f.pod("p"))
        await f.client.delete(PODS, "p", namespace=f.namespace, grace_s=0, uid=old.metadata.uid)
        await f.add(f.pod("p"))
        with pytest.raises(ApiConflict):
            await f.client.bind(old, f.nodes[0])
        async with f.scheduler() as live:
            bind = Bind(old, f.nodes[0], "job", {})
            result = await live.binder._look(bind, "refused")
            assert result.outcome is BindOutcome.GONE
            await f.until_bound(["p"])


async def test_a_node_that_does_not_exist_is_never_bound_to(kube: Kube, audited: None) -> None:
    """Checklist 5: the API server would say 201."""
    async with field(kube, 1) as f, f.scheduler() as live:
        (pod,) = await f.add(f.pod("p", cpu="100"))
        await f.until_told("p")
        result = live._check(Bind(pod, "no-such-node", "job", {}))
        assert result is not None and result.outcome is BindOutcome.STALE


async def test_the_annotations_come_in_the_same_event_as_the_node(kube: Kube, audited: None) -> None:
    """Checklist 6."""
    async with field(kube, 1) as f, f.scheduler() as live:
        seen: list[Pod] = []
        live.watches.pods.store.on_change(
            lambda old, new: seen.append(new) if new is not None and new.spec.node_name else None,
            replay=False,
        )
        await f.add(f.pod("p"))
        await f.until_bound(["p"])
        first, *_ = await eventually(lambda: [pod for pod in seen if pod.metadata.namespace == f.namespace])
        assert first.annotations["fluence.flux-framework.org/jobid"]


async def test_host_ports_and_anti_affinity_hold_between_pods(kube: Kube, audited: None) -> None:
    """Checklist 24 and 25."""
    async with field(kube, 2) as f, f.scheduler():
        port = [{"containerPort": 80, "hostPort": 8080}]
        box = {"name": "c", "image": "none", "ports": port, "resources": {"requests": {"cpu": "1"}}}
        await f.add(*(f.pod(f"port-{i}", containers=[box]) for i in range(3)))
        await f.until_bound(2)
        homes = [home for home in (await f.settled(quiet_s=0.5)).values() if home]
        assert sorted(homes) == f.nodes
        term = {"labelSelector": {"matchLabels": {"app": "shy"}}, "topologyKey": "kubernetes.io/hostname"}
        rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
        await f.add(f.pod("hermit", affinity=rule))
        hermit = (await f.until_bound(["hermit"]))["hermit"].spec.node_name
        await f.add(f.pod("shy", labels={"app": "shy"}))
        assert (await f.until_bound(["shy"]))["shy"].spec.node_name != hermit


async def test_pods_that_would_rather_be_apart_are_while_there_is_room(kube: Kube, audited: None) -> None:
    """What forbids nothing decides where there is a choice, and holds nobody up where there is none."""
    evenly = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "a"}},
    }
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "b"}}}
    apart = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]
        }
    }
    kinds = {"a": {"topologySpreadConstraints": [evenly]}, "b": {"affinity": apart}}
    async with field(kube, 3) as f, f.scheduler():
        for app, rules in kinds.items():
            await f.add_group(app, 3)
            pods = [f.pod(f"{app}-{i}", group=app, labels={"app": app}, **rules) for i in range(3)]  # type: ignore[arg-type]
            await f.add(*pods)
            there = await f.until_bound([f"{app}-{i}" for i in range(3)])
            assert {pod.spec.node_name for name, pod in there.items() if name[0] == app} == set(f.nodes)
        await f.add(*(f.pod(f"b-{i}", group="b", labels={"app": "b"}, **kinds["b"]) for i in range(3, 6)))  # type: ignore[arg-type]
        await f.until_bound([f"b-{i}" for i in range(6)])


async def test_a_pod_goes_where_its_volume_is(kube: Kube, audited: None) -> None:
    """Checklist 26: a claim that is not bound is waited for, one that is ties the pod to its nodes."""
    async with field(kube, 2) as f, f.scheduler():
        term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [f.nodes[0]]}
        shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"pv-{f.namespace}"},
            "spec": {
                **shared,
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/none"},
                "claimRef": {"namespace": f.namespace, "name": "data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
            },
        }
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {
                **shared,
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": f"pv-{f.namespace}",
            },
        }
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await f.add(f.pod("p", volumes=volumes))
        await f.until_told("p", 'persistentvolumeclaim "data" not found')
        await f.client.create(CLAIMS.raw(), claim, namespace=f.namespace)
        await f.client.create(VOLUMES.raw(), volume)
        try:
            assert (await f.until_bound(["p"]))["p"].spec.node_name == f.nodes[0]
        finally:
            await f.client.delete(VOLUMES, f"pv-{f.namespace}")


async def test_a_node_the_server_refuses_is_excluded_for_that_group_only(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f:
        rule = Rule(verb="create", path=f"{kube.namespace}/pods/p/binding$", status=422, times=1)
        async with f.through(rule) as live:
            await f.add(f.pod("p"))
            pod = (await f.until_bound(["p"]))["p"]
            (excluded,) = live.scheduler.state.exclusions._refused[f"{f.namespace}/pod:p"]
            assert pod.spec.node_name != excluded
            await f.add(f.pod("q"))
            assert (await f.until_bound(["q"]))["q"].spec.node_name == excluded


async def test_what_the_server_refused_is_known_after_a_restart(kube: Kube, audited: None) -> None:
    """A gang that waits, and one that was bound elsewhere: the next scheduler reads it from their pods."""
    async with field(kube, 2) as f:
        bad = f.nodes[0]
        rule = Rule(verb="create", path="/pods/g-1/binding$", status=422, times=1)
        async with f.through(rule):
            await f.add(f.pod("fills", nodeName=f.nodes[1], cpu="3"))
            await f.add_group("g", 2)
            await f.add(*(f.pod(f"g-{i}", group="g", cpu="1") for i in range(2)))
            await f.until_told("g-1", "1 node(s) were excluded for this group")
            assert (await f.pods())["g-1"].annotations[names.EXCLUDED] == bad
        async with f.through() as live:
            gangs = live.scheduler.state.groups
            await eventually(
                lambda: gangs.gang(f"{f.namespace}/g"),
                lambda gang: gang is not None and gang.excluded == {bad},
                what=f"{bad} is excluded",
            )
            await f.settled()
            assert not [each for each in f.proxy.seen if each.path.endswith("g-1/binding")]
            await f.end("fills")
            pod = (await f.until_bound(["g-1"]))["g-1"]
            assert pod.spec.node_name == f.nodes[1] and pod.annotations[names.EXCLUDED] == bad
