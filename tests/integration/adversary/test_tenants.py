"""What a tenant with the rights of one namespace can do to another one: forged pins, notes and references,
numbers without end, and devices. The scheduler has the rights of the chart."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from fluence import names
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.errors import Forbidden, Missing
from fluence.kube.resource import CONFIG_MAPS, JOBS, NAMESPACES, PODS, Json
from fluence.model.grant import ReleaseNote, release_note
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.adversary.tenants import Tenancy, tenancy
from tests.integration.controller.doors import SEEN, held_job, held_set, submit, until_phase
from tests.integration.schedule.field import RUN, Field
from tests.integration.schedule.test_devices import ONE, asks

FINALIZER = "example.com/stays"
WIDE = 100_000


def pin(node: str) -> Json:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def note(nodes: list[str]) -> dict[str, str]:
    """What is written for people on a Job that was released; here by somebody else."""
    released = ReleaseNote("7", '{"start":1}', tuple(enumerate(nodes)), 1)
    return released.annotations() | {names.DURATION: "1h"}


def references(victim: Any) -> list[Json]:
    """A reference to a Job that the garbage collector leaves alone: it does not know the group."""
    meta, kind = victim["metadata"], {"apiVersion": "example.com/v1", "kind": "Job"}
    return [{**kind, "name": meta["name"], "uid": meta["uid"], "controller": True}]


def meta_of(body: Json) -> Any:
    return body["metadata"]


def barren(body: Json) -> Json:
    """A workload whose pods are never made: their account does not exist."""
    spec: Any = body["spec"]
    spec["template"]["spec"]["serviceAccountName"] = "nobody"
    return body


async def get_job(t: Tenancy, name: str) -> Any:
    return await t.f.client.get(JOBS.raw(), name, namespace=t.f.namespace)


async def fill(f: Field, prefix: str, cpu: str = "2") -> None:
    """A pod as large as a node for each of them."""
    wanted = [f"{prefix}-{i}" for i in range(len(f.nodes))]
    await f.add(*(f.pod(name, cpu=cpu) for name in wanted))
    pods = await f.until_bound(wanted)
    assert {pods[name].spec.node_name for name in wanted} == set(f.nodes)
    await f.end(*wanted)


# -- capacity that nobody gave ---------------------------------------------------------------------------


async def test_pods_that_pin_themselves_hold_nothing_also_after_a_restart(kube: Kube, audited: None) -> None:
    async with tenancy(kube, 20, cpu="2010m") as t:
        notes = {names.JOBID: "7", names.ALLOCATION: '{"start":1}'}
        async with t.scheduler(), t.served():
            for index, node in enumerate(t.f.nodes):
                await t.create(
                    t.pod(
                        f"pinned-{index}",
                        labels=dict(SEEN),
                        annotations=notes,
                        schedulerName=names.KUBE_SCHEDULER,
                        affinity=pin(node),
                        cpu="2",
                    )
                )
            await fill(t.f, "first")
        async with t.scheduler(), t.served():
            await fill(t.f, "second")


@pytest.mark.parametrize("managed_by", [None, "example.com/nobody"])
async def test_a_note_that_a_tenant_writes_holds_nothing(
    kube: Kube, audited: None, managed_by: str | None
) -> None:
    async with tenancy(kube, 4, cpu="2010m") as t:
        body = barren(held_job(t.f, "forged", 4, cpu="2"))
        spec: Any = body["spec"]
        spec["suspend"] = False
        if managed_by is not None:
            spec["managedBy"] = managed_by
        meta_of(body)["annotations"] = note(t.f.nodes)
        granted = ReleaseNote("7", '{"start":1}', tuple(enumerate(t.f.nodes)), 1).condition()
        status: Json = {"status": {"conditions": [{"type": granted.type, "status": "True"}]}}
        async with t.scheduler(), t.served():
            empty = t.free()
            await t.create(body | status)
            for index in range(20):
                renewed = note(t.f.nodes) | {names.JOBID: str(index)}
                await t.patch("Job", "forged", {"metadata": {"annotations": renewed}})
                # Some innocent pods of 10m; a seat of the Job would be 2000m.
                assert sum(t.free().values()) > sum(empty.values()) - 2000
            await fill(t.f, "good")
            for kind, name in (("Job", "forged"), ("Pod", "none")):
                with pytest.raises(Forbidden):
                    await t.patch(kind, name, status, "status")
            with pytest.raises(Forbidden):
                await t.mallory.patch(JOBS.raw(), "any", {}, namespace=t.f.namespace)
        async with t.scheduler(), t.served():
            await t.patch("Job", "forged", {"metadata": {"annotations": note(t.f.nodes)}})
            await fill(t.f, "again")


# -- numbers ---------------------------------------------------------------------------------------------


def widest(t: Tenancy, index: int) -> Json:
    """A held workload with more pods than any cluster holds."""
    if index % 5 < 3:
        body = held_job(t.f, f"wide-{index}", WIDE, mode=("Indexed", "NonIndexed")[index % 2], cpu="1m")
    else:
        body = held_set(t.f, "StatefulSet", f"wide-{index}", WIDE, cpu="1m")
    return body


async def test_wide_workloads_that_change_all_the_time_hold_nobody_up(kube: Kube, audited: None) -> None:
    async with tenancy(kube, 4) as t, t.scheduler(), t.served():
        before = await t.lease()
        for index in range(5):
            await t.create(barren(widest(t, index)))
        for change in range(20):
            for index in range(5):
                is_job = index < 3
                size = {"parallelism" if is_job else "replicas": WIDE - 1 - change}
                await t.patch("Job" if is_job else "StatefulSet", f"wide-{index}", {"spec": size})
        await asyncio.sleep(1)
        assert t.live.leads and await t.lease() == before


async def test_workloads_as_wide_as_the_cluster_hold_nobody_up(kube: Kube, audited: None) -> None:
    """They are planned, and their pods never come."""
    async with tenancy(kube, 4, cpu=16, pods=4000) as t, t.scheduler(), t.served():
        before = await t.lease()
        for index in range(4):
            body = held_job(t.f, f"wide-{index}", 3000, mode="NonIndexed", cpu="1m")
            await t.create(barren(body))
        for change in range(5):
            for index in range(4):
                await t.patch("Job", f"wide-{index}", {"spec": {"parallelism": 2999 - change}})
        await asyncio.sleep(1)
        assert t.live.leads and await t.lease() == before


# -- the work of others ----------------------------------------------------------------------------------


async def test_a_flux_job_that_names_the_job_of_another_namespace_cancels_nothing(
    kube: Kube, audited: None
) -> None:
    async with tenancy(kube, 2) as t, t.scheduler(), t.served():
        await submit(t.f, held_job(t.f, "victim", 2, runs=3600))
        await t.f.until(
            lambda pods: sum(running(pod) for name, pod in pods.items() if name.startswith("victim")) == 2,
            "the victim runs",
        )
        await until_phase(t.f, "victim-job", "Running")
        before, victim = await t.stable(), await get_job(t, "victim")
        spec = {"jobspec": "", "type": 1, "name": "victim", "nodes": 2}
        for name in ("victim-job", "another"):
            meta = {"name": name, "finalizers": [FINALIZER], "ownerReferences": references(victim)}
            api = FLUX_JOBS.api_version
            await t.create({"apiVersion": api, "kind": "FluxJob", "metadata": meta, "spec": spec})
            await t.delete("FluxJob", name)
            await asyncio.sleep(0.5)
            await t.patch("FluxJob", name, {"metadata": {"finalizers": None}})
        await asyncio.sleep(1)
        assert await t.written() == before


async def test_pods_that_overrun_in_the_name_of_anothers_job_end_it_not(kube: Kube, audited: None) -> None:
    limits: dict[str, Any] = {"enforce_limits": {"-": "end"}, "enforce_grace": 1}
    async with tenancy(kube, 2) as t, t.scheduler(**limits), t.served():
        await make_job(t.f, "victim")
        await t.f.until(lambda pods: any(map(running, pods.values())), "the victim runs")
        before, victim = await t.stable(), await get_job(t, "victim")
        labels = victim["spec"]["template"]["metadata"]["labels"]
        for name in ("born", "later"):
            body = t.f.pod(name, labels=labels, annotations={names.DURATION: "1s"}, cpu="10m")
            meta_of(body)["finalizers"] = [FINALIZER]
            if name == "born":
                meta_of(body)["ownerReferences"] = references(victim)
            await t.create(body)
        await until_evil(t, "later", lambda pod: names.WARNED in pod.annotations)
        await t.patch("Pod", "later", {"metadata": {"ownerReferences": references(victim)}})
        await asyncio.sleep(3)
        assert await t.written() == before


def running(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.name.startswith("victim")


async def make_job(f: Field, name: str) -> None:
    """A Job that nobody holds, and that has no limit."""
    template = {
        "metadata": {"annotations": {RUN: "3600"}},
        "spec": {**f.spec(cpu="1"), "restartPolicy": "Never"},
    }
    spec = {"template": template, "completions": 1}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    await f.client.create(JOBS.raw(), body, namespace=f.namespace)


async def until_evil(t: Tenancy, name: str, done: Any) -> Pod:
    return await eventually(lambda: t.mallory.get(PODS, name, namespace=t.evil), done, what=name)


async def until_granted(t: Tenancy, name: str) -> None:
    """Until a Job has been released by the scheduler."""
    await eventually(
        lambda: t.f.client.get(JOBS, name, namespace=t.f.namespace),
        lambda job: release_note(job) is not None and not job.spec.suspend,
        what=f"{name} is released",
    )


@pytest.mark.parametrize("stays", [True, False])
async def test_a_pod_that_names_anothers_job_does_not_keep_it_from_being_released(
    kube: Kube, audited: None, stays: bool
) -> None:
    """Also not if it stops to name it."""
    async with tenancy(kube, 1) as t, t.scheduler(), t.served():
        await t.f.add(t.f.pod("busy", cpu="3"))
        await t.f.until_bound(["busy"])
        await submit(t.f, held_job(t.f, "victim", 1, cpu="3"))
        await until_phase(t.f, "victim-job", "Pending", "Reserved")
        victim = await get_job(t, "victim")
        body = t.pod("child", labels=dict(SEEN))
        meta_of(body).update(finalizers=[FINALIZER], ownerReferences=references(victim))
        await t.create(body)
        await asyncio.sleep(0.5)
        if not stays:
            await t.patch("Pod", "child", {"metadata": {"ownerReferences": None}})
        await t.f.end("busy")
        await until_granted(t, "victim")
        await t.f.until(lambda pods: any(map(running, pods.values())), "the victim runs")


async def test_a_job_that_lost_a_pod_to_nobody_is_released_again(kube: Kube, audited: None) -> None:
    """Its pod is relabelled, so that the controller gives it up; then it goes, and the Job is suspended."""
    async with tenancy(kube, 1) as t, t.scheduler(), t.served():
        await submit(t.f, held_job(t.f, "victim", 1, cpu="1"))
        pods = await t.f.until(lambda pods: any(map(running, pods.values())), "it runs")
        (name,) = [name for name in pods if name.startswith("victim")]
        uids = ("batch.kubernetes.io/controller-uid", "controller-uid")
        other: Json = {"metadata": {"labels": dict.fromkeys(uids, "nobody")}}
        await t.f.client.patch(PODS, name, other, namespace=t.f.namespace)
        await t.f.until(lambda pods: not pods[name].metadata.owner_references, "it is given up")
        await t.f.client.patch(JOBS, "victim", {"spec": {"suspend": True}}, namespace=t.f.namespace)
        await t.f.end(name)
        await t.f.until(
            lambda pods: any(running(pod) for key, pod in pods.items() if key != name), "it runs again"
        )


# -- devices ---------------------------------------------------------------------------------------------


async def test_a_device_whose_holder_denies_it_is_not_given_twice(kube: Kube, audited: None) -> None:
    async with tenancy(kube, 2) as t:
        body: Json = {
            "metadata": {"name": names.RESOURCES_CONFIGMAP},
            "data": {names.RESOURCES_KEY: ONE},
        }
        await t.f.client.create(CONFIG_MAPS.raw(), body, namespace=t.system)
        async with t.scheduler():
            await t.create(asks(t.f, "holder", qpu=1))
            pod = await until_evil(t, "holder", lambda pod: pod.spec.node_name is not None)
        said = json.loads(pod.annotations[names.ALLOCATION])
        assert said.pop("devices")
        less: dict[str, str | None] = {names.ALLOCATION: json.dumps(said)}
        await t.f.add(asks(t.f, "next", qpu=1))
        for notes in (less, dict.fromkeys((names.ALLOCATION, names.JOBID, names.BACKEND))):
            await t.patch("Pod", "holder", {"metadata": {"annotations": notes}})
            async with t.scheduler(), t.served():
                await t.f.until_told("next", "Waiting for marrakesh")
                assert (await t.f.settled())["next"] is None
        async with t.scheduler():
            await t.delete("Pod", "holder")
            await t.f.until_bound(["next"])


# -- namespaces ------------------------------------------------------------------------------------------


async def test_a_namespace_can_be_deleted_while_no_scheduler_runs(kube: Kube) -> None:
    async with tenancy(kube, 1) as t:
        async with t.scheduler():
            await t.create(held_job(t.f, "waits", 2, cpu="64"))
            shown = await eventually(
                lambda: t.mallory.list(FLUX_JOBS, namespace=t.evil),
                lambda page: page.items,
                what="its FluxJob",
            )
        page = await t.mallory.list(FLUX_JOBS.raw(), namespace=t.evil)
        assert shown.items and not any(meta_of(each).get("finalizers") for each in page.items or ())
        await t.f.client.delete(NAMESPACES, t.evil)

        async def is_there() -> bool:
            try:
                await t.f.client.get(NAMESPACES, t.evil)
            except Missing:
                return False
            return True

        await eventually(is_there, False, what="the namespace is gone", pause_s=0.2)
