"""Two tenants and a scheduler with no more rights than the chart gives it.

The namespace of the field is innocent: a pod is submitted there every half second and must soon be bound.
Mallory may do what users may, in a namespace of her own and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import structlog
from msgspec.structs import replace

from fluence import names
from fluence.controller import FluxJobController
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.client import Client
from fluence.kube.errors import KubeError, Missing
from fluence.kube.resource import (
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    STATEFULSETS,
    Json,
    Resource,
)
from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.controller.doors import doors, serve_flux_jobs
from tests.integration.rights import chart_rules, resource_of
from tests.integration.schedule.field import Field, field

log = structlog.get_logger("test.tenants")

RESOURCES: dict[str, Resource[Any]] = {
    each.kind: each for each in (PODS, JOBS, DEPLOYMENTS, STATEFULSETS, CLAIMS, FLUX_JOBS)
}
WITHIN_S = 2.0  # how long an innocent pod waits, at most, on an idle machine
EVERY_S = 0.5
NOWHERE = {"example.com/no-node": "yes"}
PROBE = "probe"

_OBJECTS = {
    "": ["pods", "persistentvolumeclaims"],
    "batch": ["jobs"],
    "apps": ["deployments", "statefulsets"],
    "resource.k8s.io": ["resourceclaims", "resourceclaimtemplates"],
    FLUX_JOBS.group: ["fluxjobs"],
}
_VERBS = ["create", "get", "list", "watch", "patch", "update", "delete"]


def slowdown() -> float:
    """How many times as long as on an idle machine a computation takes at the moment."""
    wall, spent = time.monotonic(), time.thread_time()
    while time.thread_time() - spent < 0.1:
        pass
    return max(1.0, (time.monotonic() - wall) / 0.1)


def busy() -> float:
    """How many programs want each core of this machine: with several, all of them take longer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1), slowdown())


class Tenancy:
    """The innocent namespace is that of the field ``f``; Mallory's is ``evil``."""

    def __init__(self, f: Field, mallory: Client, account: Client) -> None:
        self.f, self.mallory, self.account = f, mallory, account
        self.evil = f"{f.namespace}-evil"
        self.system = f"{f.namespace}-system"
        self.within_s = WITHIN_S
        self._numbers = itertools.count()

    # -- the scheduler ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def scheduler(self, **options: Any) -> AsyncIterator[FluxJobController]:
        """With its controller, as the chart's account, by a lease in its own namespace."""
        chosen: dict[str, Any] = {
            "lease": True,
            "lease_namespace": self.system,
            "resources_configmap": f"{self.system}/{names.RESOURCES_CONFIGMAP}",
            **options,
        }
        async with doors(self.f, self.account, **chosen) as found:
            await eventually(lambda: self.live.leads, what="it leads", pause_s=0.02)
            yield found

    @property
    def live(self) -> LiveScheduler:
        assert self.f.live is not None
        return self.f.live

    def free(self) -> dict[str, int]:
        """Thousandths of cores that the scheduler believes to be free on the nodes of the field."""
        seats = self.live.scheduler.state.cluster.fit
        free = seats.free("cpu")
        return {name: int(free[seats.position[name]]) for name in self.f.nodes}

    async def lease(self) -> tuple[str, int]:
        """Who holds it, and how often it has changed hands."""
        lease: Any = await self.f.client.get(LEASES, "fluence", namespace=self.system)
        spec = lease["spec"]
        return spec["holderIdentity"], spec.get("leaseTransitions", 0)

    # -- the innocent ----------------------------------------------------------------------------------------

    async def probe(self) -> float:
        """One innocent pod comes, is bound and goes. How long it waited."""
        f, name = self.f, f"{PROBE}-{next(self._numbers)}"
        await f.add(f.pod(name, cpu="10m"))
        began = time.monotonic()
        await eventually(
            lambda: f.client.get(PODS, name, namespace=f.namespace),
            lambda pod: pod.spec.node_name is not None,
            what=f"{name} is bound",
        )
        waited = time.monotonic() - began
        await f.end(name)
        return waited

    async def measure(self) -> None:
        """What this machine needs at the moment: four times as much is still in time. A machine that does
        other work, too, gives as much more time as it takes from us."""
        slowest = max([await self.probe() for _ in range(4)])
        self.within_s = max(self.within_s, max(WITHIN_S, 4 * slowest) * slowdown())

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Meanwhile, innocent pods come one after the other, and each is bound in time."""
        self.within_s = 0.0
        await self.measure()
        done = asyncio.Event()
        waited: list[float] = []

        async def one() -> None:
            waited.append(await self.probe())

        async def submit(tasks: asyncio.TaskGroup) -> None:
            while not done.is_set():
                tasks.create_task(one())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), EVERY_S)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(submit(tasks))
                try:
                    yield
                finally:
                    done.set()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        await self.measure()
        log.info("innocent pods", count=len(waited), slowest_s=max(waited), within_s=self.within_s)
        assert waited and max(waited) < self.within_s, f"waited {max(waited):.2f} s, not {self.within_s:.2f}"

    async def written(self) -> dict[str, Any]:
        """Each Job of the innocent namespace and its pods, as far as the scheduler may write them."""
        found = {}
        for resource in (JOBS, PODS):
            page = await self.f.client.list(resource.raw(), namespace=self.f.namespace)
            for each in page.items or ():
                meta: Any = each["metadata"]
                if not meta["name"].startswith(PROBE):
                    status: Any = each.get("status", {})
                    kept = {key: meta[key] for key in meta if key not in ("managedFields", "resourceVersion")}
                    found[f"{resource.kind}/{meta['name']}"] = kept, each["spec"], status.get("conditions")
        return found

    async def stable(self) -> dict[str, Any]:
        """The same, once it stays as it is."""
        before: dict[str, Any] = {}

        def is_as_before(now: dict[str, Any]) -> bool:
            nonlocal before
            before, earlier = now, before
            return now == earlier

        return await eventually(self.written, is_as_before, what="nothing is written", pause_s=0.5)

    # -- Mallory ---------------------------------------------------------------------------------------------

    @property
    def nowhere(self) -> Json:
        """Of pods that no node takes: whatever they hold was not given to them."""
        return {"nodeSelector": NOWHERE}

    def pod(self, name: str, **more: Any) -> Json:
        return self.f.pod(name, **{**self.nowhere, **more})

    async def create(self, body: Json) -> Any:
        resource = RESOURCES[str(body["kind"])]
        return await self.mallory.create(resource.raw(), body, namespace=self.evil)

    async def patch(self, kind: str, name: str, body: Json, subresource: str = "") -> Any:
        resource = RESOURCES[kind].raw()
        return await self.mallory.patch(resource, name, body, namespace=self.evil, subresource=subresource)

    async def delete(self, kind: str, name: str) -> None:
        grace = 0 if kind == "Pod" else None
        await self.mallory.delete(RESOURCES[kind], name, namespace=self.evil, grace_s=grace)

    async def clear(self) -> None:
        """All that Mallory made goes, also what has a finalizer."""
        client = self.f.client
        for resource in RESOURCES.values():
            page = await client.list(resource.raw(), namespace=self.evil)
            for each in page.items or ():
                meta: Any = each["metadata"]
                with contextlib.suppress(Missing):
                    if meta.get("finalizers"):
                        body = {"metadata": {"finalizers": None}}
                        await client.patch(resource.raw(), meta["name"], body, namespace=self.evil)
                    grace = 0 if resource is PODS else None
                    await client.delete(resource, meta["name"], namespace=self.evil, grace_s=grace)


@contextlib.asynccontextmanager
async def tenancy(kube: Kube, nodes: int, **kind: Any) -> AsyncIterator[Tenancy]:
    """``async with tenancy(kube, 4, cpu=4) as t``: four nodes of four cores, two tenants, the roles."""
    name = f"fluence-{kube.namespace}"
    system, user = f"{kube.namespace}-system", f"mallory-{kube.namespace}"
    account = f"system:serviceaccount:{system}:{name}"
    async with (
        field(kube, nodes, **kind) as f,
        Client(replace(kube.access(), impersonate=user)) as mallory,
        Client(replace(kube.access(), impersonate=account)) as ours,
    ):
        found = Tenancy(f, mallory, ours)
        await serve_flux_jobs(f.client)
        for each in (found.evil, found.system):
            await f.client.create(NAMESPACES.raw(), {"metadata": {"name": each}})
        rules = [*chart_rules(name, system), *_tenant_rules(user, found.evil)]
        try:
            for body in rules:
                space: Any = body["metadata"]
                await f.client.apply(
                    resource_of(body), body, namespace=space.get("namespace"), manager="test"
                )
            await _allowed(found)
            yield found
        finally:
            await found.clear()
            for each in (found.evil, found.system):
                await f.client.delete(NAMESPACES, each)
            for body in rules:
                if not (resource := resource_of(body)).namespaced:
                    await f.client.delete(resource, body["metadata"]["name"])


def _tenant_rules(user: str, namespace: str) -> Iterator[dict[str, Any]]:
    api, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    meta = {"name": "tenant", "namespace": namespace}
    rules = [{"apiGroups": [each], "resources": kinds, "verbs": _VERBS} for each, kinds in _OBJECTS.items()]
    yield {"apiVersion": api, "kind": "Role", "metadata": meta, "rules": rules}
    yield {
        "apiVersion": api,
        "kind": "RoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "tenant"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }


async def _allowed(found: Tenancy) -> None:
    """The authorizer follows roles by a watch of its own, and pods are refused until their account is
    there."""

    async def refused() -> str:
        try:
            await found.account.list(FLUX_JOBS)
            with contextlib.suppress(Missing):
                await found.account.get(LEASES, "fluence", namespace=found.system)
            await found.mallory.create(PODS, found.pod("first"), namespace=found.evil)
        except KubeError as error:
            return str(error)
        return ""

    await eventually(refused, "", what="the roles count", pause_s=0.1)
    await found.delete("Pod", "first")
