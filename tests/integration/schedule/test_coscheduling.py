"""The coscheduling plugin's PodGroups, which the first Fluence made, size gangs where they are installed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fluence.kube.client import Client
from fluence.kube.errors import ApiError
from fluence.kube.gangs import Coscheduling, discover_coscheduling
from fluence.kube.resource import Json, Resource
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import Field, field

CRDS: Resource[Json] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    dict,
    namespaced=False,
)
GROUPS = Coscheduling.resource.raw()


@contextlib.asynccontextmanager
async def installed(client: Client) -> AsyncIterator[None]:
    """As sigs.k8s.io/scheduler-plugins installs it, by its names and its one field that counts here."""
    spec = {"type": "object", "properties": {"minMember": {"type": "integer", "minimum": 1}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    name = "podgroups.scheduling.x-k8s.io"
    crd: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": name,
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs"},
        },
        "spec": {
            "group": "scheduling.x-k8s.io",
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup"},
            "versions": [{"name": "v1alpha1", "served": True, "storage": True, "schema": schema}],
        },
    }
    await client.create(CRDS, crd)
    try:
        await eventually(lambda: discover_coscheduling(client), what="the kind is served")
        yield
    finally:
        await client.delete(CRDS, name)


async def add_group(f: Field, name: str, members: int) -> None:
    body: Json = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": members},
    }
    async with asyncio.timeout(30):
        while True:
            try:
                await f.client.create(GROUPS, body, namespace=f.namespace)
                return
            except ApiError:  # a fresh custom resource is not served at once by all of the server
                await asyncio.sleep(0.2)


async def test_min_member_is_the_size_of_the_gang(own_sandbox: Kube) -> None:
    """On a control plane of its own: a kind that comes and goes disturbs schedulers that start meanwhile."""
    async with field(own_sandbox, 2) as f, installed(f.client), f.scheduler():
        label = {"scheduling.x-k8s.io/pod-group": "train"}
        await f.add(f.pod("a", labels=label), f.pod("b", labels=label))
        assert await f.settled() == {"a": None, "b": None}, "a label that may be ahead of its PodGroup waits"
        await add_group(f, "train", 3)
        await f.until_told("a", "2 of 3 pods", reason="WaitingForGroup")
        assert await f.homes() == {"a": None, "b": None}
        await f.add(f.pod("c", labels=label))
        await f.until_bound({"a", "b", "c"})
        await f.end("a", "b", "c")


async def test_pod_groups_that_are_installed_later_are_found_without_a_restart(own_sandbox: Kube) -> None:
    label = {"scheduling.x-k8s.io/pod-group": "late"}
    async with field(own_sandbox, 2) as f, f.scheduler():
        await f.add(f.pod("d", labels=label), f.pod("e", labels=label))
        async with installed(f.client):
            await add_group(f, "late", 2)
            await f.until_bound({"d", "e"}, timeout_s=90)
        await f.end("d", "e")
