"""Cancellations: a FluxJob that is deleted cancels its workload, which stays held and says why.

A Job that runs is suspended; other workloads that run go on, and get a FluxJob again. A deletion counts while
a scheduler leads: no finalizer holds the FluxJob, so that a namespace can be deleted while none runs. Which
workload a FluxJob stands for is decided by both sides: the FluxJob names its owner, which its user may write,
and the workload's own FluxJob has this name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from fluence import names
from fluence.act.coalescing_writer import CoalescingWriter
from fluence.controller.flux_job import FluxJob
from fluence.controller.workloads import Workload
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing
from fluence.kube.resource import DEPLOYMENTS, JOBS, PODS, REPLICASETS, STATEFULSETS, Json, Resource
from fluence.units import rfc3339

log = structlog.get_logger("fluence.controller")

RESOURCES: dict[str, Resource[Any]] = {
    each.kind: each for each in (PODS, JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)
}

IN_FLIGHT = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


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
        self._pauses: dict[str, float] = {}  # by uid of a FluxJob that could not be cancelled
        self._writer: CoalescingWriter[str, FluxJob] = CoalescingWriter(
            self._cancel, in_flight=IN_FLIGHT, namespace=lambda _, flux_job: flux_job.metadata.namespace
        )

    def cancel(self, flux_job: FluxJob) -> None:
        """A FluxJob was deleted."""
        self._writer[flux_job.metadata.uid] = flux_job

    async def run(self) -> None:
        await self._writer.run()

    async def _cancel(self, uid: str, flux_job: FluxJob) -> None:
        try:
            await self._tell(flux_job)
            self._pauses.pop(uid, None)
        except KubeError as error:
            name = f"{flux_job.metadata.namespace}/{flux_job.metadata.name}"
            log.warning("FluxJob is not cancelled yet", flux_job=name, reason=str(error))
            pause = self._pauses.get(uid, _FIRST_PAUSE_S)
            self._pauses[uid] = min(2 * pause, _LONGEST_PAUSE_S)
            asyncio.get_running_loop().call_later(pause, self.cancel, flux_job)

    async def _tell(self, flux_job: FluxJob) -> None:
        owner = flux_job.owner
        workload = None if owner is None else self._find(owner.uid)
        if workload is None or not stands_for(flux_job, workload):
            return
        if workload.is_leaving or workload.is_cancelled:
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


def stands_for(flux_job: FluxJob, workload: Workload) -> bool:
    """Whether a FluxJob is the one of a workload: it names it by all that it is known by, and has the name of
    the workload's FluxJob."""
    return flux_job.workload == workload.identity and flux_job.metadata.name == workload.flux_job
