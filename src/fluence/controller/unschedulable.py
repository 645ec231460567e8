"""Unschedulable: workloads that no node could ever hold carry a label and an event that say so.

The label goes when the cluster has grown. Nothing is deleted.
"""

from __future__ import annotations

import structlog

from fluence import names
from fluence.act.coalescing_writer import CoalescingWriter
from fluence.act.conditions import NOTE_BYTES, clip
from fluence.controller.cancellation import RESOURCES
from fluence.controller.flux_job import FluxJobStatus
from fluence.controller.workloads import Workload
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing
from fluence.kube.events import Recorder, Ref
from fluence.kube.resource import Json

log = structlog.get_logger("fluence.controller")

IN_FLIGHT = 2


class Unschedulable:
    """``set`` for each workload that was looked at; ``run`` writes until cancelled."""

    def __init__(self, client: Client, recorder: Recorder) -> None:
        self._client = client
        self._recorder = recorder
        self._writer: CoalescingWriter[str, tuple[Workload, bool]] = CoalescingWriter(
            self._write, in_flight=IN_FLIGHT, namespace=lambda _, order: order[0].namespace
        )
        self._wanted: dict[str, bool] = {}  # asked for, and not seen yet

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
        labels = {names.FLUXQUEUE_UNSCHEDULABLE: names.SEEN_YES if never else None}
        body: Json = {"metadata": {"uid": uid, "labels": labels}}
        try:
            await self._client.patch(
                RESOURCES[workload.kind].raw(), workload.name, body, namespace=workload.namespace
            )
        except (Missing, ApiConflict):
            pass  # it is gone, or was made anew under its name
        except KubeError as error:
            self._wanted.pop(uid, None)
            log.warning("not labelled", workload=workload.name, kind=workload.kind, reason=str(error))
