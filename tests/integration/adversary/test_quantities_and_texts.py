"""A tenant with a Role in one namespace does what it may, and pods of another start within two seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fluence import names
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.client import Client
from fluence.kube.resource import CLAIM_TEMPLATES, DEVICE_CLASSES, NAMESPACES, PODS, RESOURCE_SLICES, Json
from fluence.kube.resource import Resource as Kind
from fluence.model.claims import MAX_KINDS
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.adversary.tenants import busy
from tests.integration.controller.doors import doors, held_pod
from tests.integration.rights import until_account, until_allowed
from tests.integration.schedule.field import Field, field

LONG = bool(os.environ.get("FLUENCE_SOAK"))
WITHIN_S = 2.0
RULES = [
    {"apiGroups": [""], "resources": ["pods", "persistentvolumeclaims"], "verbs": ["*"]},
    {"apiGroups": ["batch", "apps"], "resources": ["*"], "verbs": ["*"]},
    {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaimtemplates"], "verbs": ["*"]},
    {"apiGroups": [FLUX_JOBS.group], "resources": ["fluxjobs"], "verbs": ["*"]},
]


_MAKES_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}


def rbac(plural: str, kind: str) -> Kind[Any]:
    return Kind("rbac.authorization.k8s.io", "v1", plural, kind, dict)


class Tenants:
    """The field's own namespace is that of the tenant; ``good`` is the innocent one."""

    def __init__(self, f: Field, evil: Client, good: str) -> None:
        self.f, self.evil, self.good = f, evil, good
        self.made = 0

    async def flood(self, kind: Kind[Any], bodies: Iterable[Json]) -> None:
        gate = asyncio.Semaphore(16)

        async def add(body: Json) -> None:
            async with gate:
                await self.evil.create(kind.raw(), body, namespace=self.f.namespace)

        async with asyncio.TaskGroup() as tasks:
            for body in bodies:
                tasks.create_task(add(body))

    async def innocent(self, **more: Any) -> None:
        """A pod of somebody who only behaves gets a node in time, and goes."""
        self.made += 1
        name = f"good-{self.made}"
        client = self.f.client
        await client.create(PODS, self.f.pod(name, cpu="10m", **more), namespace=self.good)
        await self.in_time(name, lambda: self._is_bound(name))
        await client.delete(PODS, name, namespace=self.good, grace_s=0)

    async def in_time(self, what: str, done: Callable[[], Awaitable[bool]]) -> None:
        began = time.monotonic()
        while not await done():
            waited = time.monotonic() - began
            assert waited < WITHIN_S or waited < WITHIN_S * busy(), f"{what} waits since {waited:.1f} s"
            await asyncio.sleep(0.05)

    async def _is_bound(self, name: str) -> bool:
        found: Pod = await self.f.client.get(PODS, name, namespace=self.good)
        return found.spec.node_name is not None

    @contextlib.asynccontextmanager
    async def meanwhile(self) -> AsyncIterator[None]:
        """Innocent pods come one after the other, from before to a while after."""
        stop = asyncio.Event()

        async def go_on() -> None:
            while not stop.is_set():
                await self.innocent()

        task = asyncio.create_task(go_on())
        try:
            yield
            await asyncio.sleep(3)
        finally:
            stop.set()
            await task


@contextlib.asynccontextmanager
async def tenants(kube: Kube, nodes: int, **options: Any) -> AsyncIterator[Tenants]:
    account = f"system:serviceaccount:{kube.namespace}:tenant"
    async with field(kube, nodes, cpu=64) as f, Client(replace(kube.access(), impersonate=account)) as evil:
        good, meta = f"{f.namespace}-good", {"name": "tenant"}
        await f.client.create(NAMESPACES.raw(), {"metadata": {"name": good}})
        binding: Json = {
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
            "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": f.namespace}],
        }
        await f.client.create(
            rbac("roles", "Role"), {"metadata": meta, "rules": RULES}, namespace=f.namespace
        )
        await f.client.create(rbac("rolebindings", "RoleBinding"), binding, namespace=f.namespace)
        await until_allowed(f.client, account, [_MAKES_PODS], namespace=f.namespace)
        await until_account(f.client, good)
        try:
            async with doors(f, **options):
                yield Tenants(f, evil, good)
        finally:
            await f.client.delete(NAMESPACES.raw(), good)


# -- templates of claims -------------------------------------------------------------------------------------

FLAGS = [f"a{i}" for i in range(10)]


async def offer_devices(f: Field, driver: str) -> None:
    """Devices with many attributes on each node."""
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    await f.client.create(
        DEVICE_CLASSES.raw(), {"metadata": {"name": driver}, "spec": {"selectors": [selector]}}
    )
    devices = [{"name": f"d{i}", "attributes": {each: {"bool": True} for each in FLAGS}} for i in range(8)]
    for node in f.nodes:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
        await f.client.create(RESOURCE_SLICES.raw(), {"metadata": {"name": f"{node}-d"}, "spec": spec})


def template(name: str, driver: str, flags: tuple[str, ...]) -> Json:
    text = " && ".join(f"device.attributes['{driver}'].{each} == true" for each in flags)
    exactly = {"deviceClassName": driver, "selectors": [{"cel": {"expression": text}}]}
    devices = {"requests": [{"name": "r", "exactly": exactly}]}
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


async def test_templates_that_each_select_other_devices(kube: Kube, audited: None) -> None:
    many = 900 if LONG else 300
    chosen = [some for size in range(1, 11) for some in combinations(FLAGS, size)][:many]
    async with tenants(kube, 4) as both:
        f, driver = both.f, f"{both.f.namespace}.example"
        await offer_devices(f, driver)
        try:
            async with both.meanwhile():
                await both.flood(
                    CLAIM_TEMPLATES,
                    (template(f"t{i}", driver, some) for i, some in enumerate(chosen)),
                )
                await both.flood(PODS, (uses(f, i) for i in range(len(chosen))))
                for i in range(20):
                    body: Json = {"metadata": {"labels": {"patched": str(i)}}}
                    await both.evil.patch(CLAIM_TEMPLATES.raw(), f"t{i}", body, namespace=f.namespace)
            pods = await f.until(
                lambda pods: not all(pod.is_gated for pod in pods.values()), "the first are let go"
            )
            let_go = [pod for pod in pods.values() if not pod.is_gated]
            assert 0 < len(let_go) <= MAX_KINDS
        finally:
            await f.client.delete(DEVICE_CLASSES.raw(), driver)
            for node in f.nodes:
                await f.client.delete(RESOURCE_SLICES.raw(), f"{node}-d")


def uses(f: Field, number: int) -> Json:
    claims = [{"name": "c", "resourceClaimTemplateName": f"t{number}"}]
    return held_pod(f, f"p{number}", cpu="10m", schedulerName=names.KUBE_SCHEDULER, resourceClaims=claims)


# -- limits --------------------------------------------------------------------------------------------------


async def test_users_that_are_made_up_do_not_get_more_devices(
    kube: Kube, audited: None, tmp_path: Path
) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text("resources: [{type: licence, name: solver, count: 4}]")
    licence: Any = {"requests": {"cpu": "10m"}, "limits": {f"{names.DEVICE_PREFIX}licence": "1"}}
    container = [{"name": "c", "image": "none", "resources": licence}]
    limits = {"resources": str(file), "user_device_limits": {"-/licence": 2}}
    async with tenants(kube, 2, **limits) as both:
        f = both.f
        async with both.meanwhile():
            await both.flood(
                PODS,
                (f.pod(f"p{i}", annotations={names.USER: f"u{i}"}, containers=container) for i in range(20)),
            )
            await f.until_bound(2)
            await both.innocent(containers=container)
        assert sum(home is not None for home in (await f.homes()).values()) == 2
        waits = next(name for name, home in (await f.homes()).items() if home is None)
        await f.until_told(waits, f"namespace {f.namespace} has 2 of 2 licence in use or planned")


# -- names and texts -----------------------------------------------------------------------------------------


async def test_names_as_long_as_the_server_takes(kube: Kube, audited: None) -> None:
    many = 600 if LONG else 100
    async with tenants(kube, 2) as both:
        f = both.f

        async def has_flux_job(name: str) -> bool:
            page = await f.client.list(FLUX_JOBS, namespace=both.good)
            return any(each.metadata.name == f"{name}-pod" for each in page.items or ())

        async with both.meanwhile():
            await both.flood(PODS, (held_pod(f, f"{i:04}{'x' * 249}", cpu="10m") for i in range(many)))
            for i in range(5):
                await f.client.create(PODS, held_pod(f, f"held-{i}", cpu="10m"), namespace=both.good)
                name = f"held-{i}"
                await both.in_time(f"the FluxJob of {name}", lambda name=name: has_flux_job(name))  # type: ignore[misc]

        async def names_made() -> list[str]:
            page = await f.client.list(FLUX_JOBS, namespace=f.namespace)
            return [flux_job.metadata.name for flux_job in page.items or ()]

        made = await eventually(
            names_made, lambda made: len(made) >= many, what=f"{many} FluxJobs", pause_s=0.2
        )
        assert all(len(name) <= 253 for name in made)


async def test_texts_as_long_as_the_server_takes(kube: Kube, audited: None) -> None:
    async with tenants(kube, 2) as both:
        f, long = both.f, "u" * 120_000
        async with both.meanwhile():
            notes = {names.USER: long, names.QUEUE: long}
            await both.flood(PODS, (f.pod(f"p{i}", cpu="10m", annotations=notes) for i in range(30)))
            assert "has 120000 bytes: the maximum is 253" in await f.until_told("p29")
        assert set((await f.homes()).values()) == {None}


# -- others' names -------------------------------------------------------------------------------------------


async def test_nobody_is_told_the_names_of_another_namespace(kube: Kube, audited: None) -> None:
    """A pod that takes a whole node waits for pods of the other namespace, which have no limit."""
    async with tenants(kube, 2) as both:
        f = both.f
        for number, node in enumerate(f.nodes):
            body = f.pod(f"ghost-{number}", cpu="1", nodeName=node)
            await f.client.create(PODS, body, namespace=both.good)
        async with both.meanwhile():
            await both.flood(PODS, (f.pod(f"wide-{i}", cpu="64") for i in range(10)))
            said = await f.until_told("wide-0", "of other namespaces that have no time limit")
        assert both.good not in said and "ghost" not in said, said
        everything = [
            each.message for pod in (await f.pods()).values() for each in pod.status.conditions or ()
        ]
        events: Any = await f.client.request("GET", f"/apis/events.k8s.io/v1/namespaces/{f.namespace}/events")
        text = f"{everything} {events}"
        assert both.good not in text and "ghost" not in text
