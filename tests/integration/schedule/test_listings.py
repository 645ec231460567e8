"""A gang has a PodGroup where admission names one: made before its first bind, owned, with its status."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fluence import names
from fluence.admission.rule import HANDLERS
from fluence.kube.client import Client
from fluence.kube.gangs import NoGangs, discover_gangs
from fluence.kube.resource import JOBS, PODS, Json
from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.sandbox import Sandbox
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import eventually
from tests.integration.admission.field import Field, field, policies_for

pytestmark = pytest.mark.release


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


async def listed(client: Client, at: Field, name: str) -> Any:
    gangs = await discover_gangs(client)
    assert not isinstance(gangs, NoGangs)
    resource: Any = gangs.resource
    page = await client.list(resource, namespace=at.namespace(False))
    found = [group for item in page.items or () for group in gangs.groups(item) if group.name == name]
    return found[0] if found else None


async def test_a_group_by_a_label_has_a_pod_group_that_says_where_it_stands(sandbox: Sandbox) -> None:
    async with Client(sandbox.access()) as client, field(client, own_scheduler=True) as at:
        at = replace(at, options=replace(at.options, handlers=HANDLERS))
        async with policies_for(client, at):
            settings = SchedulerSettings(lease=False, scheduler_name=at.run)
            async with Proxy(sandbox.access()) as proxy, Client(proxy.access) as counted:
                live, stop = LiveScheduler(counted, settings), asyncio.Event()
                task = asyncio.create_task(live.run(stop))
                try:
                    await live.synced.wait()
                    await _run(client, at)
                    await _run_job(client, at, proxy)
                finally:
                    stop.set()
                    await task


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
