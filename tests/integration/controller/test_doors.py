"""Each kind of workload that admission held back, on a real control plane: it starts whole and scales."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fluence import names
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.resource import EVENTS, JOBS, NAMESPACES, PODS
from fluence.model import hostlist
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.controller.doors import (
    KINDS,
    doors,
    flux_job,
    held_job,
    held_pod,
    held_set,
    submit,
    until_flux_job,
    until_phase,
)
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.test_preemption import priorities


async def until_free(f: Field) -> None:
    live = f.live
    assert live is not None
    await eventually(lambda: live.scheduler.state.cluster.jobs, {}, what="nothing is held")


async def test_a_gated_pod_is_let_go_to_its_node_and_its_flux_job_says_so(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, doors(f):
        await f.add(held_pod(f, "pod"))
        pod = (await f.until_bound(["pod"]))["pod"]
        assert not pod.spec.scheduling_gates
        found = await until_phase(f, "pod-pod", "Running")
        assert found.spec.type == 0 and found.spec.name == "pod" and found.spec.nodes == 1
        assert found.status.submit_status == "statusSubmit"
        assert found.status.nodes == [pod.spec.node_name]
        assert found.status.allocation == pod.labels[names.FLUXQUEUE_JOBID]
        assert "type: node" in found.spec.jobspec
        await f.end("pod")
        await until_flux_job(f, "pod-pod", lambda each: each is None, "is gone with its pod")
        await until_free(f)


async def test_an_indexed_job_starts_whole_and_each_index_has_its_node(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, doors(f):
        await submit(f, held_job(f, "j", 3, cpu="3", runs=2))
        pods = await f.until_bound(3)
        job: Any = await f.client.get(JOBS.raw(), "j", namespace=f.namespace)
        nodes = job["metadata"]["annotations"][names.FLUXQUEUE_NODES]
        expected = dict(enumerate(hostlist.decode(nodes)))
        got = {int(pod.labels[names.COMPLETION_INDEX]): pod.spec.node_name for pod in pods.values()}
        assert got == expected
        assert job["metadata"]["labels"][names.FLUXQUEUE_JOBID]
        found = await until_phase(f, "j-job", "Completed")
        assert found.status.nodes and len(found.status.nodes) == 3
        await f.client.delete(JOBS, "j", namespace=f.namespace)
        await until_flux_job(f, "j-job", lambda each: each is None, "is gone with its Job")
        await until_free(f)


async def test_a_job_waits_in_the_queue_is_told_why_and_starts_when_there_is_room(
    kube: Kube, audited: None
) -> None:
    async with field(kube, 1) as f, doors(f):
        await f.add(f.pod("busy", cpu="3"))
        await f.until_bound(["busy"])
        await submit(f, held_job(f, "first", 2, cpu="1", deadline=600))
        await submit(f, held_job(f, "second", 2, cpu="1"))
        one = await until_flux_job(
            f,
            "first-job",
            lambda each: each is not None and each.status.position == 1 and bool(each.status.message),
            "is first and knows why it waits",
        )
        assert one is not None and one.spec.duration == 600
        assert one.status.phase in ("Pending", "Reserved") and one.status.submit_status == "statusSubmit"
        conditions = {each.type: each for each in one.status.conditions or ()}
        assert conditions["Scheduled"].status == "False"
        assert conditions["Scheduled"].observed_generation == one.metadata.generation
        two = await until_flux_job(
            f, "second-job", lambda each: each is not None and each.status.position == 2, "is second"
        )
        assert two is not None
        assert await f.homes() == {"busy": f.nodes[0]}
        await f.end("busy")
        await f.until_bound(4)
        for name in ("first-job", "second-job"):
            found = await until_phase(f, name, "Running")
            assert found.status.position is None and found.status.start


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
async def test_sets_start_whole_scale_and_free_everything(kube: Kube, audited: None, kind: str) -> None:
    async with field(kube, 2) as f, doors(f):  # 8 cores
        await f.add(f.pod("busy", cpu="4"))
        await f.until_bound(["busy"])
        await submit(f, held_set(f, kind, "web", 3, cpu="2"))
        name = f"web-{kind.lower()}"
        await until_phase(f, name, "Pending", "Reserved")
        assert [node for node in (await f.homes()).values() if node] == [(await f.homes())["busy"]]
        await f.end("busy")
        await f.until_bound(3)
        await until_phase(f, name, "Running")
        await f.client.patch(KINDS[kind].raw(), "web", {"spec": {"replicas": 4}}, namespace=f.namespace)
        await f.until_bound(4)
        await f.client.patch(KINDS[kind].raw(), "web", {"spec": {"replicas": 1}}, namespace=f.namespace)
        await f.until(lambda pods: len(pods) == 1, "scaled down")
        await f.add(held_pod(f, "wide", cpu="4"), held_pod(f, "more", cpu="2"))
        await f.until_bound(["wide", "more"])  # what it shed is free at once
        await until_flux_job(
            f, name, lambda each: each is not None and each.spec.nodes == 1, "is of one node now"
        )
        await f.client.delete(KINDS[kind], "web", namespace=f.namespace)
        await f.end("wide", "more")
        await until_flux_job(f, name, lambda each: each is None, "is gone with its owner")
        await until_free(f)


async def test_a_replaced_pod_of_a_deployment_is_let_go_again(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, doors(f):
        await submit(f, held_set(f, "Deployment", "web", 2))
        first = await f.until_bound(2)
        gone = next(iter(first))
        await f.end(gone)
        await f.until(
            lambda pods: len(pods) == 2 and gone not in pods and all(p.spec.node_name for p in pods.values()),
            "replaced",
        )


async def test_what_never_fits_is_kept_and_told(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, doors(f):
        await submit(f, held_job(f, "huge", 2, cpu="20"))
        found = await until_phase(f, "huge-job", "Unschedulable")
        assert found.status.submit_status == "statusError" and found.status.message
        conditions = {each.type: each.status for each in found.status.conditions or ()}
        assert conditions["Unschedulable"] == "True"
        job: Any = await eventually(
            lambda: f.client.get(JOBS.raw(), "huge", namespace=f.namespace),
            lambda job: job["metadata"]["labels"].get(names.FLUXQUEUE_UNSCHEDULABLE) == "yes",
            what="the Job is labelled",
        )
        assert job["spec"]["suspend"] is True
        # It is changed while it waits, and fits.
        small = {"spec": {"parallelism": 1, "completions": 1}}
        await f.client.patch(JOBS.raw(), "huge", small, namespace=f.namespace)
        await until_phase(f, "huge-job", "Unschedulable")


async def test_deleting_a_flux_job_cancels_and_the_workload_stays_held_and_says_why(
    kube: Kube, audited: None
) -> None:
    async with field(kube, 1) as f, doors(f):
        await f.add(f.pod("busy", cpu="4"))
        await f.until_bound(["busy"])
        await submit(f, held_job(f, "j", 2))
        await f.add(held_pod(f, "p"))
        for name in ("j-job", "p-pod"):
            await until_phase(f, name, "Pending", "Reserved")
            await f.client.delete(FLUX_JOBS, name, namespace=f.namespace)
            await until_flux_job(f, name, lambda each: each is None, "is gone")
        await f.end("busy")
        await f.until(
            lambda pods: names.CANCELLED in pods["p"].annotations, "the pod says that it is cancelled"
        )
        await eventually(
            lambda: f.client.get(JOBS.raw(), "j", namespace=f.namespace),
            lambda job: names.CANCELLED in job["metadata"].get("annotations", {}),  # type: ignore[attr-defined]
            what="the Job says that it is cancelled",
        )
        await f.settled()
        job: Any = await f.client.get(JOBS.raw(), "j", namespace=f.namespace)
        assert job["spec"]["suspend"] and (await f.pods())["p"].is_gated
        # Whoever removes the annotation queues it again.
        again = {"metadata": {"annotations": {names.CANCELLED: None}}}
        await f.client.patch(JOBS.raw(), "j", again, namespace=f.namespace)
        await f.client.patch(PODS.raw(), "p", again, namespace=f.namespace)
        await f.until_bound(3)
        await until_phase(f, "j-job", "Running")


async def test_a_running_job_whose_flux_job_is_deleted_is_suspended(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, doors(f):
        await submit(f, held_job(f, "j", 2))
        await f.until_bound(2)
        await until_phase(f, "j-job", "Running")
        await f.client.delete(FLUX_JOBS, "j-job", namespace=f.namespace)
        await f.until(lambda pods: not pods, "its pods go")
        await until_free(f)
        await f.settled(quiet_s=0.5)
        assert not await f.pods() and await flux_job(f, "j-job") is None


async def events(f: Field, kind: str, reason: str) -> list[str]:
    """The names of the objects of a kind with such an event in the namespace."""
    page = await f.client.list(EVENTS.raw(), namespace=f.namespace)
    found: list[Any] = [event for event in page.items or () if event.get("reason") == reason]
    return [event["regarding"]["name"] for event in found if event["regarding"]["kind"] == kind]


async def test_a_warning_reaches_a_held_job_before_it_has_pods(kube: Kube) -> None:
    async with field(kube, 1) as f, doors(f):
        job = held_job(f, "train", 1, cpu="3")
        job["metadata"]["annotations"] = {f"{names.PREFIX}/durration": "1h"}
        await f.add(f.pod("busy", cpu="3"))
        await f.until_bound(["busy"])
        await submit(f, job)
        await eventually(
            lambda: events(f, "Job", "UnknownAnnotation"), ["train"], what="the Job has the event"
        )


async def test_a_labelled_namespace_without_admission_gets_an_event(kube: Kube) -> None:
    """Nothing holds work on this server."""
    async with field(kube, 1) as f, doors(f):
        patch: Any = {"metadata": {"labels": {names.NAMESPACE_OPT_IN: names.DOORS_ENABLED}}}
        await f.client.patch(NAMESPACES.raw(), f.namespace, patch)
        numbers = itertools.count()

        async def try_again() -> list[str]:
            """What came before the label, by clocks that may differ, is not meant."""
            await f.add(f.pod(f"p{next(numbers)}", cpu="100m"))
            return await events(f, "Namespace", "WorkNotHeld")

        await eventually(try_again, [f.namespace], what="the namespace has the event")


async def test_a_held_job_that_is_preempted_is_suspended_again_and_keeps_its_place(
    kube: Kube, audited: None
) -> None:
    """Nothing of its backoffLimit is used, and it starts before one that came after it."""
    async with field(kube, 1, cpu=2) as f, doors(f), priorities(f) as classes:
        await submit(f, held_job(f, "first", 2, priorityClassName=classes["low"]))
        await f.until_bound(2)
        await f.settled(quiet_s=1.1)  # the server's times of creation are whole seconds
        await submit(f, held_job(f, "second", 2, priorityClassName=classes["low"]))
        await f.add(f.pod("urgent", cpu="2", priorityClassName=classes["high"]))
        await f.until_bound(["urgent"])
        job: Any = await f.client.get(JOBS.raw(), "first", namespace=f.namespace)
        assert job["spec"]["suspend"] is True and not job["status"].get("failed")
        found = await until_flux_job(
            f,
            "first-job",
            lambda each: each is not None and each.status.position == 1,
            "waits again, in front of the other",
        )
        assert found is not None and found.status.phase in ("Pending", "Reserved")
        await f.end("urgent")
        pods = await f.until_bound(2)
        assert all(name.startswith("first") for name, pod in pods.items() if pod.spec.node_name)
