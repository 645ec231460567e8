"""Reporter: writes what a cycle has to say to pods, PodGroups, events, the log and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from fluence import messages
from fluence.act import conditions
from fluence.act.gate_opener import GateResult
from fluence.act.limit_enforcer import EndResult
from fluence.act.status_writer import StatusWriter
from fluence.kube.events import Recorder, Ref
from fluence.kube.resource import PODS, Json, Resource
from fluence.live.metrics import Metrics
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.guard import PluginFault
from fluence.schedule import recovery
from fluence.schedule.actions import Bind, BindOutcome, BindResult, ReleaseResult
from fluence.schedule.cycle import Decisions
from fluence.schedule.device_config import DeviceConfig
from fluence.schedule.enforcement import WarnOverrun, warned_note
from fluence.schedule.gang import Gang
from fluence.schedule.producer_gates import OpenGate
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
        self._device_fault = ""

    def report(self, decisions: Decisions, now: int) -> None:
        """All that a cycle has to say."""
        for waiting in decisions.waiting:
            self._metrics.started(waits=True)
            with self._guard(waiting.gang.key):
                self._tell_waiting(waiting, now)
        for warning in decisions.warnings:
            with self._guard(warning.pod.key):
                self._record(warning.pod, conditions.warning(warning.reason))
        for gang in decisions.begun:
            self._metrics.started(waits=False)
            with self._guard(gang.key):
                self._tell_group(gang, _SCHEDULED, now)
        for order in decisions.overruns:
            if isinstance(order, WarnOverrun):
                with self._guard(order.pods[0].key):
                    self._warn_overrun(order)
        for fault in decisions.faults:
            with self._guard(str(fault.subject)):
                self._tell_fault(fault, now)
        for plugin_fault in decisions.plugin_faults:
            self._tell_plugin_fault(plugin_fault)

    def tell_devices(self, devices: DeviceConfig) -> None:
        """That the document of devices cannot be read, once for each fault, or that it can again."""
        if devices.fault == self._device_fault:
            return
        self._device_fault = devices.fault
        self._metrics.device_fault.set(1 if devices.fault else 0)
        if not devices.fault:
            log.info("devices can be read again", backends=len(devices.tree.backends))
            return
        log.warning("devices stay as they were", reason=devices.fault)
        source = devices.source
        if source is not None and source.metadata.uid:
            meta = source.metadata
            about = Ref("ConfigMap", meta.name, meta.namespace, meta.uid, "v1")
            text = f"{devices.fault}; devices stay as they were"
            self._recorder.record(
                about, reason="InvalidResources", action="Reading", note=text, kind="Warning"
            )

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
            self._record(bind.pod, conditions.bound(bind.pod, bind.node))
            return
        if result.outcome is BindOutcome.HANDED_OVER:
            log.info("handed over to kube-scheduler", **_of(bind))
            return
        self._metrics.attempts["error"].inc()
        log.warning("not bound", **_of(bind), outcome=result.outcome.value, reason=result.reason)

    def released(self, result: ReleaseResult) -> None:
        """A Job was let go, or was not."""
        release = result.release
        if result.outcome is BindOutcome.BOUND:
            self._record(release.owner, conditions.released(release.note))
        else:
            log.warning(
                "not let go", owner=release.owner.key, outcome=result.outcome.value, reason=result.reason
            )

    def ended(self, result: EndResult) -> None:
        """A Job or a pod that ran past its limit was ended, or was not."""
        order, target = result.order, result.target
        self._metrics.limits[result.outcome].inc()
        if result.outcome == "ended":
            reason = Reason.of(Code.ENDED_AT_LIMIT, limit=order.limit, since=order.since)
            log.info("ended at its limit", job=order.job, target=target.key)
        else:
            reason = Reason.of(
                Code.NOT_ENDED_AT_LIMIT, limit=order.limit, since=order.since, error=result.error
            )
            log.warning("not ended at its limit", job=order.job, target=target.key, reason=result.error)
        told: list[Pod | Owner] = [target]
        if not isinstance(target, Pod):
            told += order.pods
        for each in told:
            self._record(each, conditions.limit_note(reason))

    def gate_written(self, result: GateResult) -> None:
        """A pod that waits for its producer was let go, or could not be."""
        order = result.order
        if result.error:
            log.warning("gate not opened", pod=order.pod.key, reason=result.error)
        elif isinstance(order, OpenGate):
            self._metrics.gates[order.outcome].inc()
            log.info("gate opened", pod=order.pod.key, gate=order.gate, outcome=order.outcome.value)
        if isinstance(order, OpenGate):
            self._record(order.pod, conditions.gate_note(order, result.error))

    def _warn_overrun(self, order: WarnOverrun) -> None:
        reason = Reason.of(Code.LIMIT_PASSED, limit=order.limit, since=order.since, ends=order.ends)
        for pod in order.pods:
            self._metrics.limits["warned"].inc()
            meta = pod.metadata
            patch: Json = {"metadata": {"uid": meta.uid, "annotations": warned_note(order.at)}}
            self._writer.write(PODS, meta.namespace, meta.name, patch)
            self._record(pod, conditions.limit_note(reason))

    def _tell_waiting(self, waiting: Waiting, now: int) -> None:
        gang, report = waiting.gang, waiting.report
        log.info("waits", group=gang.key, pods=len(waiting.pods), reason=messages.texts(report.reasons))
        refused = self._refused(gang.key)
        notes = recovery.excluded_note(refused | gang.excluded) if refused else {}
        notes |= recovery.queued_note(waiting.queued)
        self._tell_pods(waiting.pods, report, notes, now)
        self._tell_group(gang, report, now)

    def _tell_pods(
        self, pods: tuple[Pod, ...], report: StatusReport, notes: dict[str, str], now: int
    ) -> None:
        for each in pods:
            pod = self._find(each)
            if pod is None:
                continue
            patch = conditions.pod_condition(pod, report, now=now, notes=notes, memory=self._written)
            if patch is not None:
                self._metrics.attempts["unschedulable"].inc()
                self._writer.write(PODS, pod.metadata.namespace, pod.metadata.name, patch)
                self._record(pod, conditions.note(report, conditions.text_of(patch)))

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

    def _record(self, about: Pod | Owner, note: conditions.EventNote) -> None:
        meta = about.metadata
        kind, version = ("Pod", "v1") if isinstance(about, Pod) else (about.kind, "batch/v1")
        regarding = Ref(kind, meta.name, meta.namespace, meta.uid, version)
        self._recorder.record(
            regarding, reason=note.reason, action=note.action, note=note.text, kind=note.kind
        )


def _of(bind: Bind) -> dict[str, str]:
    return {"pod": bind.pod.key, "node": bind.node, "job": bind.job}
