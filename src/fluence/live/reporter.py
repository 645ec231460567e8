"""Reporter: writes what a cycle has to say to pods, PodGroups, events, the log and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from fluence import messages
from fluence.act import conditions
from fluence.act.status_writer import StatusWriter
from fluence.kube.events import Recorder, Ref
from fluence.kube.resource import PODS, Resource
from fluence.live.metrics import Metrics
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.guard import PluginFault
from fluence.schedule import recovery
from fluence.schedule.actions import Bind, BindOutcome, BindResult
from fluence.schedule.cycle import Decisions
from fluence.schedule.gang import Gang
from fluence.schedule.quarantine import Fault
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.status_reports import Waiting

log = structlog.get_logger("fluence.scheduler")

_SCHEDULED = StatusReport(SchedulingStatus.SCHEDULED)


class Reporter:
    """``find`` gives a pod as it was seen last; ``refused`` the nodes that the server refused for a group."""

    def __init__(
        self,
        writer: StatusWriter,
        recorder: Recorder,
        metrics: Metrics,
        *,
        find: Callable[[Pod], Pod | None],
        refused: Callable[[str], frozenset[str]],
    ) -> None:
        self.group_resource: Resource[Any] | None = None  # where PodGroups have a status
        self._writer = writer
        self._recorder = recorder
        self._metrics = metrics
        self._find = find
        self._refused = refused
        self._written = conditions.WrittenMessages()

    def report(self, decisions: Decisions, now: int) -> None:
        """All that a cycle has to say."""
        for waiting in decisions.waiting:
            self._metrics.started(waits=True)
            with self._guard(waiting.gang.key):
                self._tell_waiting(waiting, now)
        for gang in decisions.begun:
            self._metrics.started(waits=False)
            with self._guard(gang.key):
                self._tell_group(gang, _SCHEDULED, now)
        for fault in decisions.faults:
            with self._guard(str(fault.subject)):
                self._tell_fault(fault, now)
        for plugin_fault in decisions.plugin_faults:
            self._tell_plugin_fault(plugin_fault)

    @contextmanager
    def _guard(self, subject: str) -> Iterator[None]:
        """What cannot be said to one is said to all others."""
        try:
            yield
        except Exception as error:
            self._metrics.faults.labels("report").inc()
            log.error("not told", subject=subject, exc_info=error)

    def bind_finished(self, result: BindResult, *, took: float | None, age: float | None) -> None:
        """A bind was answered after ``took`` seconds, for a pod that is ``age`` seconds old."""
        bind = result.bind
        if result.outcome is BindOutcome.BOUND:
            self._metrics.attempts["scheduled"].inc()
            if took is not None:
                self._metrics.bind.observe(took)
            if age is not None:
                self._metrics.sli.observe(age)
            self._writer.forget(PODS, bind.pod.metadata.namespace, bind.pod.metadata.name)
            self._record(bind.pod, conditions.note(_SCHEDULED, pod=bind.pod, node=bind.node))
            return
        self._metrics.attempts["error"].inc()
        log.warning("not bound", **_of(bind), outcome=result.outcome.value, reason=result.reason)

    def _tell_waiting(self, waiting: Waiting, now: int) -> None:
        gang, report = waiting.gang, waiting.report
        log.info("waits", group=gang.key, pods=len(waiting.pods), reason=messages.texts(report.reasons))
        refused = self._refused(gang.key)
        notes = recovery.excluded_note(refused | gang.excluded) if refused else {}
        self._tell_pods(waiting.pods, report, notes, now)
        self._tell_group(gang, report, now)

    def _tell_pods(
        self, pods: tuple[Pod, ...], report: StatusReport, notes: dict[str, str], now: int
    ) -> None:
        said = conditions.note(report)
        for each in pods:
            pod = self._find(each)
            if pod is None:
                continue
            patch = conditions.pod_condition(pod, report, now=now, notes=notes, memory=self._written)
            if patch is not None:
                self._metrics.attempts["unschedulable"].inc()
                self._writer.write(PODS, pod.metadata.namespace, pod.metadata.name, patch)
                self._record(pod, said)

    def _tell_group(self, gang: Gang, report: StatusReport, now: int) -> None:
        group = gang.group
        if group is None or self.group_resource is None:
            return
        patch = conditions.group_condition(group, report, now=now, memory=self._written)
        if patch is not None:
            self._writer.write(self.group_resource, group.namespace, group.name, patch)

    def _tell_fault(self, fault: Fault, now: int) -> None:
        """Somebody's object cannot be handled: the log gets the traceback once, its pods a condition."""
        kind = "cycle" if fault.subject is None else fault.subject.kind
        self._metrics.faults.labels(kind).inc()
        error = f"{type(fault.error).__name__}: {fault.error}"
        if fault.first:
            log.error("quarantined", subject=str(fault.subject or "unknown"), exc_info=fault.error)
        reason = Reason.of(Code.QUARANTINED, kind="pod" if kind == "Pod" else kind, error=error)
        self._tell_pods(fault.pods, StatusReport(SchedulingStatus.REFUSED, (reason,)), {}, now)

    def _tell_plugin_fault(self, fault: PluginFault) -> None:
        self._metrics.faults.labels("plugin").inc()
        log.error("plug-in failed", plugin=fault.plugin, job=fault.job, exc_info=fault.error)

    def _record(self, pod: Pod, note: conditions.EventNote) -> None:
        meta = pod.metadata
        regarding = Ref("Pod", meta.name, meta.namespace, meta.uid)
        self._recorder.record(
            regarding, reason=note.reason, action=note.action, note=note.text, kind=note.kind
        )


def _of(bind: Bind) -> dict[str, str]:
    return {"pod": bind.pod.key, "node": bind.node, "job": bind.job}
