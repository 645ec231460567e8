"""A gang has a PodGroup where admission names one: made before its first bind, owned, with its status."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from fluence import names
from fluence.kube.client import Client
from fluence.kube.gangs import NoGangs, discover_gangs
from fluence.kube.resource import HAND_OFFS, JOBS, PODS, Json
from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import eventually
from tests.integration.admission.field import Field, field, policies_for, webhook_for
from tests.integration.conftest import VERSION

pytestmark = pytest.mark.release
IS_ALPHA = VERSION == "1.36"  # else gangs have PodGroups by default


def ranked(name: str, group: str, scheduler: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {names.GROUP_LABEL: group},
            "annotations": {names.GROUP_SIZE: "2"},
        },
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "100m"}}}],
        },
    }


async def listed(client: Client, at: Field, name: str, *, held: bool = False) -> Any:
    gangs = await discover_gangs(client)
    assert not isinstance(gangs, NoGangs)
    resource: Any = gangs.resource
    page = await client.list(resource, namespace=at.namespace(held))
    found = [group for item in page.items or () for group in gangs.groups(item) if group.name == name]
    return found[0] if found else None


@contextlib.asynccontextmanager
async def leading(client: Client, at: Field, mode: str) -> AsyncIterator[LiveScheduler]:
    """A scheduler that keeps the HandOff of the field, with this setting of `pod-groups`."""
    settings = SchedulerSettings(
        lease=False, scheduler_name=at.run, lease_namespace=at.plain, pod_groups=mode, resources_configmap=""
    )
    live, stop = LiveScheduler(client, settings), asyncio.Event()
    task = asyncio.create_task(live.run(stop))
    try:
        await live.synced.wait()
        yield live
    finally:
        stop.set()
        await task


async def field_of(client: Client, at: Field) -> str | None:
    """The PodGroup that a new pod with a label would name. It is always stored."""
    pod = ranked("probe", "probe", at.run)
    made = await client.create(PODS, pod, namespace=at.namespace(False), dry_run=True)
    link = made.spec.scheduling_group
    return None if link is None else link.pod_group_name


async def test_a_group_by_a_label_has_a_pod_group_that_says_where_it_stands(sandbox: Sandbox) -> None:
    """By default where the API is beta, and where a setting says so. Without a leader, pods are created and
    name none; a leader that comes later decides for new ones."""
    async with (
        Client(sandbox.access()) as client,
        field(client, own_scheduler=True) as at,
        policies_for(client, at),
        Proxy(sandbox.access()) as proxy,
        Client(proxy.access) as counted,
    ):
        early = await client.create(PODS, ranked("early", "early", at.run), namespace=at.namespace(False))
        assert early.spec.scheduling_group is None
        async with leading(counted, at, "always" if IS_ALPHA else "auto"):
            await eventually(lambda: field_of(client, at), "probe.fluence", what="the leader has said so")
            await client.create(PODS, ranked("late", "early", at.run), namespace=at.namespace(False))
            await _run(client, at)
            await _run_job(client, at, proxy)
            await _run_noted(client, at)
            for name in ("early", "late"):
                await eventually(partial(bound, client, at, name), True, what=f"{name} is bound")
        async with leading(counted, at, "auto" if IS_ALPHA else "never"):
            await eventually(lambda: field_of(client, at), None, what="the next leader has said no")
            lists = {"metadata": {"annotations": {names.LISTS_GANGS: "true"}}}
            await client.patch(HAND_OFFS.raw(), names.ADMISSION_PARAMETERS, lists, namespace=at.plain)

            async def said() -> bool:
                return (
                    await client.get(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
                ).lists_gangs

            await eventually(said, False, what="what another writes is restored")
            for name in ("x", "y"):
                await client.create(PODS, ranked(name, "unlisted", at.run), namespace=at.namespace(False))
            for name in ("x", "y"):
                await eventually(partial(bound, client, at, name), True, what=f"{name} is bound")
            assert await listed(client, at, "unlisted.fluence") is None


async def test_where_the_server_has_no_pod_groups_pods_are_stored_as_ever(gateless: Kube) -> None:
    """Even if the HandOff says that pods are to name them: the server drops the field."""
    async with gateless.client() as client, field(client, own_scheduler=True, lists_gangs=True) as at:
        for admitting in (policies_for, webhook_for):
            async with admitting(client, at):
                assert await field_of(client, at) is None
        async with policies_for(client, at), leading(client, at, "always"):
            for name in ("a", "b"):
                await client.create(PODS, ranked(name, "train", at.run), namespace=at.namespace(False))

            async def said() -> bool:
                return (
                    await client.get(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
                ).lists_gangs

            await eventually(said, False, what="the leader knows that there are none")


async def bound(client: Client, at: Field, name: str) -> bool:
    return (await client.get(PODS, name, namespace=at.namespace(False))).spec.node_name is not None


async def _run_noted(client: Client, at: Field) -> None:
    """Jobs of whose gang their pods know nothing: the size, or the label, is on the Job only. One is held."""
    for name, held, meta in (
        ("sized", False, {"annotations": {names.GROUP_SIZE: "2"}}),
        ("labelled", False, {"labels": {names.GROUP_LABEL: "both"}}),
        ("held", True, {}),
    ):
        spec: Any = ranked("job", "none", at.run)["spec"]
        notes = {"sandbox.fluence.flux-framework.org/run-seconds": "600"}
        template = {"metadata": {"annotations": notes}, "spec": {**spec, "restartPolicy": "Never"}}
        body: Json = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, **meta},
            "spec": {"parallelism": 2, "completions": 2, "template": template},
        }
        made: Any = await client.create(JOBS.raw(), body, namespace=at.namespace(held))
        note = made["spec"]["template"]["metadata"]["annotations"][names.LISTED_AS]
        assert note == ("both" if name == "labelled" else names.LISTED_AS_JOB)
    for group, held in (("job.sized", False), ("both", False), ("job.held", True)):

        async def scheduled(name: str = f"{group}.fluence", held: bool = held) -> object:
            found = await listed(client, at, name, held=held)
            return found is not None and found.is_scheduled and (found.min_count, found.is_listing)

        await eventually(scheduled, (2, True), what=f"{group} is listed as scheduled", timeout_s=45)


async def _run(client: Client, at: Field) -> None:
    namespace = at.namespace(False)
    made = await client.create(PODS, ranked("a", "train", at.run), namespace=namespace)
    assert made.spec.scheduling_group is not None, "the policy names the PodGroup"
    assert made.spec.scheduling_group.pod_group_name == "train.fluence"
    waiting = await eventually(lambda: listed(client, at, "train.fluence"), what="the PodGroup is made")
    assert waiting.min_count == 2 and waiting.is_listing
    await client.create(PODS, ranked("b", "train", at.run), namespace=namespace)

    async def scheduled() -> object:
        group = await listed(client, at, "train.fluence")
        return group is not None and group.is_scheduled

    await eventually(scheduled, True, what="its status says that it is scheduled")
    for name in ("a", "b"):
        pod = await client.get(PODS, name, namespace=namespace)
        assert pod.spec.node_name is not None
        await client.delete(PODS, name, namespace=namespace, grace_s=0)

    async def gone() -> bool:
        return await listed(client, at, "train.fluence") is None

    await eventually(gone, True, what="the PodGroup goes with its pods")


PODS_OF_JOB = 6


async def _run_job(client: Client, at: Field, proxy: Proxy) -> None:
    """A Job with a size in its template: one PodGroup for all its pods, which goes with it."""
    namespace, before = at.namespace(False), len(proxy.seen)
    template = dict(ranked("job", "none", at.run))
    size = {names.GROUP_SIZE: str(PODS_OF_JOB)}
    body: Json = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "ranks"},
        "spec": {
            "parallelism": PODS_OF_JOB,
            "completions": PODS_OF_JOB,
            "template": {
                "metadata": {
                    "annotations": {**size, "sandbox.fluence.flux-framework.org/run-seconds": "600"}
                },
                "spec": {**template["spec"], "restartPolicy": "Never"},  # type: ignore[dict-item]
            },
        },
    }
    made: Any = await client.create(JOBS.raw(), body, namespace=namespace)

    async def scheduled() -> object:
        group = await listed(client, at, "job.ranks.fluence")
        return group is not None and group.is_scheduled

    await eventually(scheduled, True, what="its status says that it is scheduled")
    group = await listed(client, at, "job.ranks.fluence")
    assert group.min_count == PODS_OF_JOB and group.disrupt_together and group.is_listing
    gangs = await discover_gangs(client)
    assert gangs.resource is not None
    item: Any = await client.get(gangs.resource.raw(), group.name, namespace=namespace)
    (reference,) = item["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("Job", made["metadata"]["uid"])
    requests = [
        (each.verb, each.path) for each in proxy.seen[before:] if f"namespaces/{namespace}/" in each.path
    ]
    creates = [
        number for number, each in enumerate(requests) if each[0] == "create" and "podgroups" in each[1]
    ]
    binds = [number for number, each in enumerate(requests) if each[1].endswith("binding")]
    assert len(creates) == 1 and len(binds) == PODS_OF_JOB, requests
    assert creates[0] < binds[0], "the PodGroup is there before the first bind"
    writes = [each for each in requests if "podgroups" in each[1] and each[0] in ("patch", "update")]
    assert len(writes) <= 2, "its status, and no write for each pod"
    await client.delete(JOBS, "ranks", namespace=namespace)

    async def gone() -> bool:
        return await listed(client, at, "job.ranks.fluence") is None

    await eventually(gone, True, what="the PodGroup goes with the Job")
