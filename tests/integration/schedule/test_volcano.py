"""Volcano's PodGroups size the gangs of pods that name them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fluence.kube.client import Client
from fluence.kube.errors import ApiError
from fluence.kube.gangs import Volcano, discover_custom
from fluence.kube.resource import Json
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.test_coscheduling import CRDS

GROUPS = Volcano.resource.raw()


@contextlib.asynccontextmanager
async def installed(client: Client) -> AsyncIterator[None]:
    """As Volcano installs it, by its names and its one field that counts here."""
    spec = {
        "type": "object",
        "properties": {"minMember": {"type": "integer", "format": "int32"}},
        "x-kubernetes-preserve-unknown-fields": True,
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    name = "podgroups.scheduling.volcano.sh"
    crd: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": "scheduling.volcano.sh",
            "scope": "Namespaced",
            "names": {
                "plural": "podgroups",
                "singular": "podgroup",
                "kind": "PodGroup",
                "shortNames": ["pg", "podgroup-v1beta1"],
            },
            "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": schema}],
        },
    }
    await client.create(CRDS, crd)
    try:
        await eventually(lambda: discover_custom(client), what="the kind is served")
        yield
    finally:
        await client.delete(CRDS, name)


async def add_group(f: Field, name: str, members: int) -> None:
    body: Json = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": members, "queue": "default"},
    }
    async with asyncio.timeout(30):
        while True:
            try:
                await f.client.create(GROUPS, body, namespace=f.namespace)
                return
            except ApiError:  # a fresh custom resource is not served at once by all of the server
                await asyncio.sleep(0.2)


async def test_volcanos_min_member_is_the_size_of_the_gang(own_sandbox: Kube) -> None:
    """On a control plane of its own: a kind that comes and goes disturbs schedulers that start meanwhile."""
    async with field(own_sandbox, 2) as f, installed(f.client), f.scheduler():
        note = {"scheduling.k8s.io/group-name": "train"}
        await f.add(f.pod("a", annotations=note), f.pod("b", annotations=note))
        assert await f.settled() == {"a": None, "b": None}, "a name that may be ahead of its PodGroup waits"
        await add_group(f, "train", 3)
        await f.until_told("a", "2 of 3 pods", reason="WaitingForGroup")
        assert await f.homes() == {"a": None, "b": None}
        await f.add(f.pod("c", annotations=note))
        await f.until_bound({"a", "b", "c"})
        await f.end("a", "b", "c")
