"""Reporter: writes the results of a cycle to pods, PodGroups, events, the log and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from fluence import messages, names
from fluence.act import conditions
from fluence.act.orders import EndResult, GateResult, PreemptResult
from fluence.act.writers import StatusWriter
from fluence.kube.events import Recorder, Ref
from fluence.kube.resource import PODS, Json, Resource
from fluence.live.metrics import Metrics
from fluence.model.job_state import JobState
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.policy import PluginFault
from fluence.schedule import restart
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, BindOutcome, BindResult, PlanEnd, ReleaseResult
from fluence.schedule.external_resources.producer_gates import OpenGate
from fluence.schedule.external_resources.requests import DeviceConfig
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.overruns import WarnOverrun, warned_note
from fluence.schedule.queueing.placeholder import is_placeholder
from fluence.schedule.queueing.unheld import UnheldNamespace
from fluence.schedule.status.reports import Waiting
from fluence.schedule.status.status import StatusReport
from fluence.schedule.step import Fault
from fluence.units import rfc3339

log = structlog.get_logger("fluence.scheduler")

_SCHEDULED = StatusReport(JobState.RUNNING)


class Reporter:
    """``find`` returns the newest version of a pod, and ``refused`` the nodes that the server refused for a
    group."""

    def __init__(
        self,
        writer: StatusWriter,
        recorder: Recorder,
        metrics: Metrics,
        *,
        find: Callable[[Pod], Pod | None],
        refused: Callable[[str], frozenset[str]],
    ) -> None:
        self.group_resource: Resource[Any] | None = None  # the PodGroups that have a status
        self.make_group: Callable[[Gang, StatusReport | None, int], None] = lambda gang, report, now: None
        self._writer = writer
        self._recorder = recorder
        self._metrics = metrics
        self._find = find
        self._refused = refused
        self._device_fault = ""

    def report(self, decisions: Decisions, now: int) -> None:
        """Report the results of a cycle."""
        for waiting in decisions.waiting:
            self._metrics.started(waits=True)
            with self._guard(waiting.gang.key):
                self._tell_waiting(waiting, now)
        for waiting in decisions.reminders:
            with self._guard(waiting.gang.key):
                self._remind(waiting)
        for warning in decisions.warnings:
            with self._guard(warning.pod.key):
                self._record(warning.pod, conditions.warning(warning.reason))
        for unheld in decisions.unheld:
            with self._guard(unheld.namespace.name):
                self._tell_namespace(unheld)
        for gang in decisions.begun:
            self._metrics.started(waits=False)
            with self._guard(gang.key):
                self._tell_group(gang, _SCHEDULED, now)
        for order in decisions.overruns:
            if isinstance(order, WarnOverrun):
                with self._guard(order.pods[0].key):
                    self._warn_overrun(order)
        for plan in decisions.planned_ends:
            with self._guard(plan.pod.key):
                self._tell_end(plan)
        for fault in decisions.faults:
            with self._guard(str(fault.subject)):
                self._tell_fault(fault, now)
        for plugin_fault in decisions.plugin_faults:
            self._tell_plugin_fault(plugin_fault)

    def tell_devices(self, devices: DeviceConfig) -> None:
        """Report that the document of devices cannot be read, once for each fault, or that it can be read
        again."""
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
        """A report that fails must not stop the others."""
        try:
            yield
        except Exception as error:
            self._metrics.faults.labels("report").inc()
            log.error("not told", subject=subject, exc_info=error)

    def bind_finished(self, result: BindResult, *, took: float | None, age: float | None) -> None:
        """Report the result of a bind after ``took`` seconds, for a pod that is ``age`` seconds old."""
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
        """Report the result of a release."""
        release = result.release
        if result.outcome is BindOutcome.BOUND:
            self._record(release.owner, conditions.released(release.note))
        else:
            log.warning(
                "not released", owner=release.owner.key, outcome=result.outcome.value, reason=result.reason
            )

    def ended(self, result: EndResult) -> None:
        """Report that a Job or a pod was ended at its limit, or could not be."""
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
        targets: list[Pod | Owner] = [target]
        if not isinstance(target, Pod):
            targets += order.pods
        for item in targets:
            self._record(item, conditions.limit_note(reason))

    def preempted(self, result: PreemptResult) -> None:
        """Report that a pod ends for other work or because its queue is drained, or could not be ended."""
        order, pod = result.order, result.pod
        self._metrics.preemptions["failed" if result.error else "ended"].inc()
        by = None if order.preemptor is None else order.preemptor.metadata
        if result.error:
            reason = Reason.of(Code.NOT_PREEMPTED, error=result.error)
            log.warning("not preempted", pod=pod.key, reason=result.error)
        elif by is None:
            reason = Reason.of(Code.DRAINED, queue=order.queue) if order.queue else Reason.of(Code.GANG_ENDED)
        elif order.queue:
            reason = Reason.of(Code.RECLAIMED, queue=order.queue, lost=order.lost)
        elif by.namespace == pod.metadata.namespace:
            reason = Reason.of(
                Code.PREEMPTED,
                pod=by.name,
                namespace=by.namespace,
                priority=order.priority,
                own=order.victim_priority,
                lost=order.lost,
            )
        else:  # users must not see names from other namespaces
            reason = Reason.of(
                Code.PREEMPTED_FOR_OTHERS,
                priority=order.priority,
                own=order.victim_priority,
                lost=order.lost,
            )
        self._record(pod, conditions.preemption_note(reason))

    def gate_written(self, result: GateResult) -> None:
        """Report that the gate of a pod was removed, or could not be."""
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

    def _tell_end(self, plan: PlanEnd) -> None:
        """Write on a pod when it will end for other work, or that it will not."""
        meta, at = plan.pod.metadata, plan.at
        note = None if at is None else rfc3339(at * 1000)
        patch: Json = {"metadata": {"uid": meta.uid, "annotations": {names.ENDS_AT: note}}}
        self._writer.write(PODS, meta.namespace, meta.name, patch)
        reason = Reason.of(Code.PREEMPTION_WITHDRAWN)
        if at is not None:
            reason = Reason.of(Code.PREEMPTION_PLANNED, at=at)
        self._record(plan.pod, conditions.preemption_note(reason))

    def _tell_waiting(self, waiting: Waiting, now: int) -> None:
        gang, report = waiting.gang, waiting.report
        log.info("waits", group=gang.key, pods=len(waiting.pods), reason=messages.texts(report.reasons))
        refused = self._refused(gang.key)
        notes = restart.excluded_note(refused | gang.excluded) if refused else {}
        notes |= restart.queued_note(waiting.queued)
        self._tell_pods(waiting.pods, report, notes, now)
        self._tell_group(gang, report, now)

    def _tell_pods(
        self, pods: tuple[Pod, ...], report: StatusReport, notes: dict[str, str], now: int
    ) -> None:
        for member in pods:
            pod = self._find(member)
            if pod is None:
                continue
            patch = conditions.pod_condition(pod, report, now=now, notes=notes)
            if patch is not None:
                self._metrics.attempts["unschedulable"].inc()
                self._writer.write(PODS, pod.metadata.namespace, pod.metadata.name, patch)
                self._record(pod, conditions.note(report, conditions.text_of(patch)))

    def _remind(self, waiting: Waiting) -> None:
        """Repeat the event of pods that still wait, since the server forgets events after an hour."""
        for member in waiting.pods:
            pod = self._find(member)
            note = None if pod is None else conditions.reminder(pod, waiting.report)
            if pod is not None and note is not None:
                self._record(pod, note)

    def _tell_group(self, gang: Gang, report: StatusReport, now: int) -> None:
        group = gang.shown_as
        if self.group_resource is None:
            return
        if group is None:
            self.make_group(gang, report, now)
            return
        if gang.listing is not None:
            self.make_group(gang, None, now)
        patch = conditions.group_condition(group, report, now=now)
        if patch is not None:
            self._writer.write(self.group_resource, group.namespace, group.name, patch)

    def _tell_fault(self, fault: Fault, now: int) -> None:
        """Report an object that cannot be handled: the traceback goes to the log once, and its pods get a
        condition."""
        kind = "cycle" if fault.subject is None else fault.subject.kind
        self._metrics.faults.labels(kind).inc()
        error = f"{type(fault.error).__name__}: {fault.error}"
        if fault.first:
            log.error("quarantined", subject=str(fault.subject or "unknown"), exc_info=fault.error)
        reason = Reason.of(Code.QUARANTINED, kind="pod" if kind == "Pod" else kind, error=error)
        self._tell_pods(fault.pods, StatusReport(JobState.REFUSED, (reason,)), {}, now)

    def _tell_plugin_fault(self, fault: PluginFault) -> None:
        self._metrics.faults.labels("plugin").inc()
        log.error("plug-in failed", plugin=fault.plugin, job=fault.job, exc_info=fault.error)

    def _tell_namespace(self, unheld: UnheldNamespace) -> None:
        """Report it in the namespace itself, where its users see it."""
        meta, note = unheld.namespace, conditions.warning(unheld.reason)
        log.warning("work is not held", namespace=meta.name, reason=note.text)
        about = Ref("Namespace", meta.name, meta.name, meta.uid, "v1")
        self._recorder.record(about, reason=note.reason, action="Holding", note=note.text, kind=note.kind)

    def _record(self, about: Pod | Owner, note: conditions.EventNote) -> None:
        meta = about.metadata
        kind, version = ("Pod", "v1") if isinstance(about, Pod) else (about.kind, "batch/v1")
        regarding = Ref(kind, meta.name, meta.namespace, meta.uid, version, meta.resource_version)
        if isinstance(about, Pod) and is_placeholder(about):
            # A placeholder is not on the server: users see its Job.
            owner = meta.controller_reference
            assert owner is not None
            regarding = Ref(owner.kind, owner.name, meta.namespace, owner.uid, owner.api_version)
        self._recorder.record(
            regarding, reason=note.reason, action=note.action, note=note.text, kind=note.kind
        )


def _of(bind: Bind) -> dict[str, str]:
    return {"pod": bind.pod.key, "node": bind.node, "job": bind.job}
