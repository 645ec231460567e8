"""Gangs on a real control plane: all or nothing, mixed, contending, late and half."""

from __future__ import annotations

from fluence.kube.resource import DEPLOYMENTS, JOBS, PODS
from fluence.model.pod import Pod
from fluence.names import PREFIX
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import RUN, field


async def test_a_single_pod_is_bound_with_its_job_in_the_same_write(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler():
        await f.add(f.pod("one"))
        pod = (await f.until_bound(["one"]))["one"]
        assert pod.spec.node_name == f.nodes[0]
        assert int(pod.annotations[f"{PREFIX}/jobid"]) > 0
        assert "start" in pod.annotations[f"{PREFIX}/allocation"]


async def test_fluences_own_pod_group_and_deployment_start_together(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, f.scheduler():
        await f.add_group("training", 2)
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "training"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "training"}},
                "template": {"metadata": {"labels": {"app": "training"}}, "spec": f.spec(group="training")},
            },
        }
        await f.client.create(DEPLOYMENTS.raw(), body, namespace=f.namespace)
        pods = await f.until_bound(2)
        assert len({pod.annotations[f"{PREFIX}/jobid"] for pod in pods.values()}) == 1


async def test_the_original_fluences_indexed_job_of_ten_with_annotations(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, f.scheduler() as live:
        notes = {f"{PREFIX}/group": "fluence-sample", f"{PREFIX}/group-size": "10"}
        template = {
            "metadata": {"annotations": {**notes, RUN: "1"}},
            "spec": {**f.spec(), "restartPolicy": "Never"},
        }
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "fluence-job", "annotations": notes},
            "spec": {
                "completions": 10,
                "parallelism": 10,
                "completionMode": "Indexed",
                "template": template,
            },
        }
        await f.client.create(JOBS.raw(), body, namespace=f.namespace)
        await f.until_bound(10)
        await f.until(lambda pods: all(pod.is_terminal for pod in pods.values()), "all end")
        state = live.scheduler.state
        await eventually(
            lambda: ([part for part in state.pod_sets.by_key.values() if part.alive], state.cluster.jobs),
            ([], {}),
            what="nothing is held any more",
        )


async def test_two_gangs_that_contend_never_start_in_part_and_both_finish(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f:  # 8 cores; each gang wants 6
        for name in ("a", "b"):
            await f.add_group(name, 6)
        for index in range(6):
            await f.add(*(f.pod(f"{name}-{index}", group=name, runs=1) for name in ("a", "b")))
        async with f.scheduler():

            def both_finish(pods: dict[str, Pod]) -> bool:
                # Room for one of them and some: if both had pods on nodes, one would be there in part.
                alive = {p.metadata.name[0] for p in pods.values() if p.spec.node_name and not p.is_terminal}
                assert len(alive) < 2
                return all(pod.status.phase == "Succeeded" for pod in pods.values())

            await f.until(both_finish, "both finish")


async def test_nothing_is_bound_when_one_member_cannot_fit(kube: Kube, audited: None) -> None:
    """Checklist 10."""
    async with field(kube, 2) as f, f.scheduler():
        await f.add_group("g", 3)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="3") for i in range(3)))  # two nodes of four
        assert not any((await f.settled()).values())
        await f.client.delete(PODS, "g-2", namespace=f.namespace)
        await f.add(f.pod("g-3", group="g", cpu="1"))
        await f.until_bound(["g-0", "g-1", "g-3"])


async def test_a_mixed_gang_is_one_request(kube: Kube, audited: None) -> None:
    async with field(kube, 2, gpu=1) as f, f.scheduler():
        await f.add_group("mixed", 4)
        gpu = {"requests": {"cpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
        container = {"name": "c", "image": "none", "resources": gpu}
        await f.add(f.pod("lead", group="mixed", cpu="3"))
        await f.add(*(f.pod(f"gpu-{i}", group="mixed", containers=[container]) for i in range(2)))
        assert not any((await f.settled(quiet_s=0.5)).values())
        await f.add(f.pod("last", group="mixed", cpu="2"))
        pods = await f.until_bound(4)
        assert {pods["gpu-0"].spec.node_name, pods["gpu-1"].spec.node_name} == set(f.nodes)
        assert pods["lead"].spec.node_name != pods["last"].spec.node_name


async def test_pods_before_their_group_and_the_group_before_its_pods(kube: Kube, audited: None) -> None:
    """Checklist 9: and one member short waits."""
    async with field(kube, 2) as f, f.scheduler():
        await f.add_group("early", 2)
        await f.add(f.pod("early-0", group="early"))
        await f.add(*(f.pod(f"late-{i}", group="late") for i in range(2)))
        assert not any((await f.settled()).values())
        await f.add_group("late", 2)
        await f.until_bound(["late-0", "late-1"])
        await f.add(f.pod("early-1", group="early"))
        await f.until_bound(["early-0", "early-1"])


async def test_a_gang_starts_with_its_minimum_and_the_rest_follow(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("g", 2)
        await f.add(f.pod("filler", cpu="1"))
        await f.until_bound(["filler"])
        await f.add(*(f.pod(f"g-{i}", group="g") for i in range(5)))  # room for three
        await f.until_bound(4)
        assert sum(map(bool, (await f.settled(quiet_s=0.5)).values())) == 4
        await f.client.delete(PODS, "filler", namespace=f.namespace, grace_s=0)
        await f.until(lambda pods: sum(bool(p.spec.node_name) for p in pods.values()) == 4, "one follows")


async def test_late_extra_pods_start_one_by_one(kube: Kube, audited: None) -> None:
    """Checklist 12."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g") for i in range(2)))
        await f.until_bound(2)
        await f.add(f.pod("g-2", group="g"))
        await f.until_bound(["g-2"])
        await f.add(f.pod("g-3", group="g", cpu="2"), f.pod("g-4", group="g", cpu="1"))
        await f.until_bound(["g-4"])
        assert (await f.homes())["g-3"] is None


async def test_a_basic_group_is_no_gang(kube: Kube, audited: None) -> None:
    """Checklist 17."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("basic", None)
        await f.add(f.pod("b-0", group="basic"), f.pod("b-1", group="basic", cpu="32"))
        await f.until_bound(["b-0"])
        assert (await f.homes())["b-1"] is None


async def test_a_replaced_member_takes_the_place_of_the_one_that_ended(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("g", 2)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="2") for i in range(2)))
        await f.until_bound(2)
        await f.client.delete(PODS, "g-1", namespace=f.namespace, grace_s=0)
        await f.add(f.pod("g-1b", group="g", cpu="2"))
        await f.until_bound(["g-0", "g-1b"])


async def test_what_a_gang_holds_is_given_back_when_its_last_pod_ends(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler():
        await f.add_group("g", 2)
        await f.add(f.pod("g-0", group="g", cpu="2", runs=0.2), f.pod("g-1", group="g", cpu="2", runs=600))
        await f.until(lambda pods: pods["g-0"].is_terminal, "the first ends")
        await f.add(f.pod("next", cpu="2"))
        await f.until_told("next")
        assert (await f.settled(quiet_s=0.5))["next"] is None
        done = {"status": {"phase": "Succeeded"}}
        await f.client.patch(PODS.raw(), "g-1", done, namespace=f.namespace, subresource="status")
        await f.until_bound(["next"])


async def test_release_each_frees_a_place_when_its_pod_ends(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler(release_each=True):
        await f.add_group("g", 2)
        await f.add(f.pod("g-0", group="g", cpu="2", runs=0.2), f.pod("g-1", group="g", cpu="2", runs=600))
        await f.add(f.pod("next", cpu="2"))
        await f.until_bound(["next"])
        assert not (await f.pods())["g-1"].is_terminal


async def test_a_gang_whose_pods_name_the_scheduler_differently_starts_together(kube: Kube) -> None:
    """Seed 003's pods say `schedulerName: fluxnetes`."""
    async with field(kube, 2) as f, f.scheduler(scheduler_aliases=(f"fluxnetes-{f.name}",)):
        await f.add_group("mixed", 3)
        own, other = f.pod("own", group="mixed"), f.pod("other", group="mixed")
        other["spec"]["schedulerName"] = f"fluxnetes-{f.name}"
        alone = f.pod("alone")
        alone["spec"]["schedulerName"] = f"fluxnetes-{f.name}"
        await f.add(own, other, alone)
        await f.until_bound(["alone"])
        await f.until_told("other", reason="WaitingForGroup")
        template = {"metadata": {}, "spec": {**f.spec(group="mixed"), "restartPolicy": "Never"}}
        template["spec"]["schedulerName"] = f"fluxnetes-{f.name}"
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "rest"}}
        await f.client.create(JOBS.raw(), {**body, "spec": {"template": template}}, namespace=f.namespace)
        pods = await f.until_bound(4)
        numbers = {pod.annotations[f"{PREFIX}/jobid"] for name, pod in pods.items() if name != "alone"}
        assert len(numbers) == 1
