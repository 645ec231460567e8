"""Work that does not start: cancelled by its FluxJob, too large for every node, or refused by kube-scheduler.

Deleting a FluxJob cancels its workload, which stays held and says why. A running Job is suspended, and so is
a held operator's object. Other running workloads continue, and get a new FluxJob. A deletion only counts
while a scheduler leads: the FluxJob has no finalizer, so that a namespace can be deleted while no scheduler
runs. A FluxJob belongs to a workload only if both sides agree: the FluxJob names its owner, which its user
may write, and it has the name of the workload's own FluxJob.

Workloads that no node could ever hold get a label and an event that say so. The label is removed when the
cluster has grown. Nothing is deleted.

kube-scheduler may refuse a delegated pod, because the capacity of a node may be taken between the plan and
kube-scheduler's turn. A gate cannot be added again, so a refused pod waits on its pinned node, its gang keeps
its placements, and its FluxJob shows kube-scheduler's message. The pod is evicted after a while and queued
again only if it has an owner that replaces it, and if the user allowed it by the annotation
`fluence.flux-framework.org/take-back: delete` on the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from fluence import names
from fluence.act.conditions import NOTE_BYTES, clip
from fluence.act.writers import CoalescingWriter
from fluence.controller.flux_job import FluxJob, FluxJobStatus, Workload
from fluence.kube import gangs
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing
from fluence.kube.events import Recorder, Ref
from fluence.kube.resource import DEPLOYMENTS, JOBS, PODS, REPLICASETS, STATEFULSETS, Json, Resource
from fluence.model.grant import pinned_node
from fluence.model.operators import CustomOwner, suspended
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.units import rfc3339

log = structlog.get_logger("fluence.controller")

_RESOURCES: dict[str, Resource[Any]] = {
    each.kind: each for each in (PODS, JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)
}


def resource_of(workload: Workload) -> Resource[Any]:
    """The resource of a workload."""
    found = workload.object
    return gangs.resource_of(found) if isinstance(found, CustomOwner) else _RESOURCES[workload.kind]


IN_FLIGHT = 4
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 60.0


class Cancellations:
    """``find`` returns a workload by its uid. ``runs`` says whether some of its pods are on nodes."""

    def __init__(
        self,
        client: Client,
        find: Callable[[str], Workload | None],
        runs: Callable[[Workload], bool],
    ) -> None:
        self.told: set[str] = set()  # workloads that were annotated, and are not seen so yet
        self._client = client
        self._find = find
        self._runs = runs
        self._pauses: dict[str, float] = {}  # by uid of a FluxJob whose workload could not be cancelled
        self._writer: CoalescingWriter[str, FluxJob] = CoalescingWriter(
            self._cancel, in_flight=IN_FLIGHT, namespace=lambda _, flux_job: flux_job.metadata.namespace
        )

    def cancel(self, flux_job: FluxJob) -> None:
        """Cancel the workload of a deleted FluxJob."""
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
        if not workload.is_written or (not workload.is_suspendable and self._runs(workload)):
            return
        now = rfc3339(int(self._client.clock.now() * 1e6))
        body: Json = {"metadata": {"uid": workload.uid, "annotations": {names.CANCELLED: now}}}
        if workload.is_suspendable and isinstance(workload.object, Owner):
            body["spec"] = suspended(workload.object)
        self.told.add(workload.uid)  # before its own event can arrive
        try:
            await self._client.patch(
                resource_of(workload).raw(), workload.name, body, namespace=workload.namespace
            )
        except (Missing, ApiConflict):
            self.told.discard(workload.uid)
            return  # it is gone, or was created again under its name
        except KubeError:
            self.told.discard(workload.uid)
            raise
        log.info("cancelled", workload=f"{workload.namespace}/{workload.name}", kind=workload.kind)


def stands_for(flux_job: FluxJob, workload: Workload) -> bool:
    """Whether a FluxJob belongs to a workload: it names the workload by its full identity, and has the name
    of the workload's FluxJob."""
    return flux_job.workload == workload.identity and flux_job.metadata.name == workload.flux_job


LABELS_IN_FLIGHT = 2


class Unschedulable:
    """Call ``set`` for each compared workload. ``run`` writes until cancelled."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self._writer: CoalescingWriter[str, tuple[Workload, bool]] = CoalescingWriter(
            self._write, in_flight=LABELS_IN_FLIGHT, namespace=lambda _, order: order[0].namespace
        )
        self._wanted: dict[str, bool] = {}  # ordered, and not seen yet

    def set(self, workload: Workload, status: FluxJobStatus, never: bool) -> None:
        labels = workload.object.metadata.labels or {}
        if (names.FLUXQUEUE_UNSCHEDULABLE in labels) == never:
            self._wanted.pop(workload.uid, None)
            return
        if self._wanted.get(workload.uid) == never:
            return
        self._wanted[workload.uid] = never
        self._writer[workload.uid] = (workload, never)
        if never:
            ref = Ref(workload.kind, workload.name, workload.namespace, workload.uid, workload.api_version)
            note = clip(status.message or "no node of this cluster could hold it", NOTE_BYTES)
            self._recorder.record(ref, reason="Unschedulable", action="Scheduling", note=note, kind="Warning")

    async def run(self) -> None:
        await self._writer.run()

    async def _write(self, uid: str, order: tuple[Workload, bool]) -> None:
        workload, never = order
        if not workload.is_written:
            return
        labels = {names.FLUXQUEUE_UNSCHEDULABLE: names.SEEN_YES if never else None}
        body: Json = {"metadata": {"uid": uid, "labels": labels}}
        try:
            await self._client.patch(
                resource_of(workload).raw(), workload.name, body, namespace=workload.namespace
            )
        except (Missing, ApiConflict):
            pass  # it is gone, or was created again under its name
        except KubeError as error:
            self._wanted.pop(uid, None)
            log.warning("not labelled", workload=workload.name, kind=workload.kind, reason=str(error))


AFTER_S = 30.0
EVICTIONS_IN_FLIGHT = 2


def refusal(pod: Pod) -> str | None:
    """The message of kube-scheduler about a delegated pod; None if it has not refused the pod."""
    if pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None:
        return None
    said = pod.condition("PodScheduled")
    if pinned_node(pod) is None or said is None or said.status != "False" or said.reason != "Unschedulable":
        return None
    return said.message


def may_take_back(pod: Pod) -> bool:
    """Whether a pod may be deleted: its owner replaces it, and its user allowed it."""
    return pod.metadata.controller_reference is not None and pod.annotations.get(names.TAKE_BACK) == "delete"


class Refusals:
    """Call ``look`` for each changed pod. ``run`` evicts refused pods that may be deleted, until
    cancelled."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._refused: dict[str, Pod] = {}
        self._writer: CoalescingWriter[str, Pod] = CoalescingWriter(
            self._evict, in_flight=EVICTIONS_IN_FLIGHT, namespace=lambda _, pod: pod.metadata.namespace
        )

    def look(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if refusal(pod) is None or not may_take_back(pod):
            self._refused.pop(uid, None)
            return
        if uid not in self._refused:
            asyncio.get_running_loop().call_later(AFTER_S, self._due, uid)
        self._refused[uid] = pod

    def forget(self, pod: Pod) -> None:
        self._refused.pop(pod.metadata.uid, None)

    async def run(self) -> None:
        await self._writer.run()

    def _due(self, uid: str) -> None:
        pod = self._refused.pop(uid, None)
        if pod is not None:
            self._writer[uid] = pod

    async def _evict(self, _: str, pod: Pod) -> None:
        try:
            await self._client.evict(pod)
            log.info("taken back from kube-scheduler", pod=pod.key, reason=refusal(pod))
        except Missing:
            return
        except KubeError as error:  # a budget may forbid it: it is tried again
            log.warning("not taken back", pod=pod.key, reason=str(error))
            self.look(pod)
