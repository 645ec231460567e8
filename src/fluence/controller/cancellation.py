"""Cancellations: a FluxJob that is deleted cancels its workload, which stays held and says why.

A finalizer holds the FluxJob until that is written, so a deletion counts even if nobody looked. A Job that
runs is suspended; other workloads that run go on, and get a FluxJob again. Where the workload is gone, or
going, the FluxJob goes with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from fluence import names
from fluence.act.coalescing_writer import CoalescingWriter
from fluence.controller.flux_job import FINALIZER, FLUX_JOBS, FluxJob
from fluence.controller.workloads import Workload
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, Invalid, KubeError, Missing
from fluence.kube.resource import DEPLOYMENTS, JOBS, PODS, REPLICASETS, STATEFULSETS, Json, Resource
from fluence.units import rfc3339

log = structlog.get_logger("fluence.controller")

RESOURCES: dict[str, Resource[Any]] = {
    each.kind: each for each in (PODS, JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)
}

IN_FLIGHT = 4
_AGAIN_S = 2.0


class Cancellations:
    """``find`` gives a workload by its uid; ``runs`` says whether some of its pods are on nodes."""

    def __init__(
        self,
        client: Client,
        find: Callable[[str], Workload | None],
        runs: Callable[[Workload], bool],
    ) -> None:
        self.told: set[str] = set()  # workloads that were annotated, and were not seen so yet
        self._client = client
        self._find = find
        self._runs = runs
        self._writer: CoalescingWriter[tuple[str, str], FluxJob] = CoalescingWriter(
            self._cancel, in_flight=IN_FLIGHT
        )

    def cancel(self, flux_job: FluxJob) -> None:
        """A FluxJob is being deleted."""
        if FINALIZER in (flux_job.metadata.finalizers or ()):
            self._writer[flux_job.metadata.namespace, flux_job.metadata.name] = flux_job

    async def run(self) -> None:
        await self._writer.run()

    async def _cancel(self, _: tuple[str, str], flux_job: FluxJob) -> None:
        try:
            await self._tell(flux_job)
            await self._let_go(flux_job)
        except KubeError as error:
            log.warning("FluxJob is not cancelled yet", flux_job=flux_job.metadata.name, reason=str(error))
            asyncio.get_running_loop().call_later(_AGAIN_S, self.cancel, flux_job)

    async def _tell(self, flux_job: FluxJob) -> None:
        owner = flux_job.owner
        workload = None if owner is None else self._find(owner.uid)
        if workload is None or workload.is_leaving or workload.is_cancelled:
            return
        is_job = workload.kind == "Job"
        if not is_job and self._runs(workload):
            return
        now = rfc3339(int(self._client.clock.now() * 1e6))
        body: Json = {"metadata": {"uid": workload.uid, "annotations": {names.CANCELLED: now}}}
        if is_job:
            body["spec"] = {"suspend": True}
        self.told.add(workload.uid)  # before its own event can come
        try:
            await self._client.patch(
                RESOURCES[workload.kind].raw(), workload.name, body, namespace=workload.namespace
            )
        except (Missing, ApiConflict):
            self.told.discard(workload.uid)
            return  # it is gone, or was made anew under its name
        except KubeError:
            self.told.discard(workload.uid)
            raise
        log.info("cancelled", workload=f"{workload.namespace}/{workload.name}", kind=workload.kind)

    async def _let_go(self, flux_job: FluxJob) -> None:
        meta = flux_job.metadata
        at = (meta.finalizers or []).index(FINALIZER)
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": meta.uid},
            {"op": "test", "path": f"/metadata/finalizers/{at}", "value": FINALIZER},
            {"op": "remove", "path": f"/metadata/finalizers/{at}"},
        ]
        try:
            await self._client.patch(
                FLUX_JOBS.raw(), meta.name, patch, namespace=meta.namespace, kind=PatchType.JSON
            )
        except Missing:
            return
        except Invalid:
            found = await self._find_again(flux_job)
            if found is not None:
                await self._let_go(found)

    async def _find_again(self, flux_job: FluxJob) -> FluxJob | None:
        """As it is now, if our finalizer still holds it."""
        meta = flux_job.metadata
        try:
            found = await self._client.get(FLUX_JOBS, meta.name, namespace=meta.namespace)
        except Missing:
            return None
        same = found.metadata.uid == meta.uid and FINALIZER in (found.metadata.finalizers or ())
        return found if same else None
