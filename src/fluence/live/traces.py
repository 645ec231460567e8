"""Traces: one OpenTelemetry trace per job, from its first pod to its running pods, sent by OTLP over HTTP.

    job     ├──────────────────────────────────────────────────────┤
    gather  ├───────┤           until all its pods exist
    queue           ├──────┤    until it has a place in the plan, or starts without one
    plan                   ├─────────┤   until it starts
    bind                             ├──────┤   until the API server has bound all its pods
    watch                                   ├──────┤   until all of them run

A trace is made from the history entries of a cycle, the results of binds, and the watch of pods. It is sent
when it is complete, by a thread of the SDK with a bounded queue, so a slow or missing collector delays
nothing. The id follows from the number of the job, which a restart does not change.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, Status, StatusCode

from fluence.live.scheduler import LiveScheduler
from fluence.model.job_state import JobEntry, JobState
from fluence.model.pod import Pod
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, BindFinished, BindOutcome, Changed, Event

log = structlog.get_logger("fluence.traces")

_MAX_OPEN: Final = 50_000  # incomplete traces
_SHUTDOWN_SECONDS: Final = 2.0  # for the last traces at shutdown
_MS: Final = 1_000_000  # nanoseconds
_BOUND: Final = (BindOutcome.BOUND, BindOutcome.ELSEWHERE, BindOutcome.HANDED_OVER)


def trace_id(job: int) -> int:
    """The trace id of a job, from its number."""
    return int.from_bytes(hashlib.sha256(b"fluence job %d" % job).digest()[:16])


@dataclass(slots=True)
class _OpenTrace:
    """A job that has not started yet. Times are in milliseconds; each phase ends where the next one
    begins."""

    entry: JobEntry
    complete: int
    planned: int | None = None
    started: int | None = None
    bound: int | None = None
    attempts: int = 0
    unbound: set[str] = field(default_factory=set)  # uids of pods
    not_running: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)  # all pods that were to be bound

    def restart(self) -> None:
        """The job is back in the queue."""
        self.started = self.bound = None
        self.unbound.clear()
        self.not_running.clear()

    def phases(self, end: int) -> Iterator[tuple[str, int, int]]:
        """The name, start and end of each phase."""
        submitted = min(self.entry.submitted, self.complete)
        begins = {
            "gather": submitted,
            "queue": self.complete,
            "plan": self.planned if self.planned is not None else self.started,
            "bind": self.started,
            "watch": self.bound,
        }
        known = [(name, at) for name, at in begins.items() if at is not None]
        for (name, begin), (_, until) in zip(known, [*known[1:], ("", end)], strict=True):
            yield name, begin, max(begin, until)


class JobTraces:
    """Works beside a live scheduler. `sending_traces` creates it."""

    def __init__(self, live: LiveScheduler, provider: TracerProvider, ids: _TraceIds) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self._live = live
        self._ids = ids
        self._tracer = provider.get_tracer("fluence")
        self._open: dict[str, _OpenTrace] = {}  # by the key of the job
        self._keys: dict[str, str] = {}  # by the uid of a pod: the key of its job
        self._took_over = False
        live.join(self)

    # -- beside the scheduler --------------------------------------------------------------------------------

    def changed(self, event: Event) -> None:
        """A bind succeeded, or a pod runs."""
        if isinstance(event, BindFinished):
            if event.result.outcome in _BOUND:
                self._bound(event.result.bind.uid)
        elif self._keys and isinstance(event, Changed) and isinstance(event.object, Pod):
            pod = event.object
            if event.new is None or pod.status.phase not in ("", "Pending"):
                self._runs(pod.metadata.uid)

    def decided(self, decisions: Decisions) -> None:
        """A cycle has ended."""
        for entry in decisions.jobs:
            self._note(entry)
        now = self._live.now()
        for binds in decisions.binds:
            self._start(binds[0].job, now, binds)
        for release in decisions.releases:
            self._start(release.job, now, ())
        self._took_over = True

    async def run(self) -> None:
        """Nothing to do: the thread of the SDK sends the traces."""
        await asyncio.Event().wait()

    # -- one job ---------------------------------------------------------------------------------------------

    def _note(self, entry: JobEntry) -> None:
        job = self._open.get(entry.key)
        if job is not None and job.entry.job != entry.job:  # another job with the same name
            self._close(job, job.entry.at, JobState.UNKNOWN)
            job = None
        if job is None:
            if entry.state is JobState.RUNNING or entry.state.is_over or len(self._open) >= _MAX_OPEN:
                return  # it ran before it was seen
            job = self._open[entry.key] = _OpenTrace(entry, self._complete(entry))
        job.entry = entry
        if entry.state.is_over:
            self._close(job, entry.ended or entry.at, entry.state)
        elif not entry.state.has_nodes and job.started is not None:
            job.restart()
        if job.planned is None and (entry.state is JobState.RESERVED or entry.state.has_nodes):
            job.planned = entry.at

    def _complete(self, entry: JobEntry) -> int:
        """When all its pods existed. Pods of the first cycle may have waited for another scheduler."""
        pod_set = self._live.scheduler.state.pod_sets.by_key.get(entry.key)
        if self._took_over or pod_set is None:
            return entry.at
        created = (pod.metadata.creation_timestamp for pod in pod_set.pods)
        return min(entry.at, max((int(at.timestamp() * 1000) for at in created if at), default=entry.at))

    def _start(self, key: str, now: int, binds: Sequence[Bind]) -> None:
        job = self._open.get(key)
        if job is None:
            return
        if job.started is None:
            job.started = now
            job.attempts += 1
        for bind in binds:
            for pods in (job.pods, job.unbound, job.not_running):
                pods.add(bind.uid)
            self._keys[bind.uid] = key

    def _bound(self, uid: str) -> None:
        job = self._open.get(self._keys.get(uid, ""))
        if job is not None:
            job.unbound.discard(uid)
            self._progress(job)

    def _runs(self, uid: str) -> None:
        job = self._open.get(self._keys.get(uid, ""))
        if job is not None:
            job.not_running.discard(uid)
            self._progress(job)

    def _progress(self, job: _OpenTrace) -> None:
        now = self._live.now()
        if job.started is None or job.unbound:
            return
        if job.bound is None:
            job.bound = now
        if not job.not_running:
            self._close(job, now, None)

    def _close(self, job: _OpenTrace, end: int, outcome: JobState | None) -> None:
        """Complete a trace. ``outcome``: how the job ended before it ran."""
        entry = job.entry
        self._open.pop(entry.key, None)
        for uid in job.pods:
            self._keys.pop(uid, None)
        phases = list(job.phases(end))
        begin, end = phases[0][1], phases[-1][2]
        self._ids.trace_id = trace_id(entry.job)
        root = self._span("job", begin, attributes=_attributes(job, outcome))
        if outcome is not None:
            root.set_status(Status(StatusCode.ERROR, outcome.value))
        within = trace.set_span_in_context(root)
        for name, since, until in phases:
            self._span(name, since, within).end(until * _MS)
        root.end(end * _MS)

    def _span(self, name: str, begin: int, within: Context | None = None, **more: Any) -> Span:
        # an empty context, so that the span gets no parent from the current thread
        return self._tracer.start_span(
            name, context=within or Context(), start_time=begin * _MS, record_exception=False, **more
        )


def _attributes(job: _OpenTrace, outcome: JobState | None) -> dict[str, Any]:
    entry = job.entry
    found: dict[str, Any] = {
        "k8s.namespace.name": entry.namespace,
        "fluence.job": entry.key,
        "fluence.job.kind": entry.kind,
        "fluence.job.name": entry.name,
        "fluence.job.state": (outcome or JobState.RUNNING).value,
        "fluence.pods": entry.pods,
        "fluence.priority": entry.priority,
        "fluence.attempts": job.attempts,
        "fluence.promises.broken": entry.broken,
    }
    if entry.user:
        found["fluence.user"] = entry.user
    if entry.queue:
        found["fluence.queue"] = entry.queue
    if entry.reasons:
        found["fluence.reason"] = entry.reasons[0].code.value
    if entry.no_later_than is not None:
        found["fluence.promised"] = entry.no_later_than
    return found


class _TraceIds(RandomIdGenerator):
    """Gives the next trace the id of its job. Spans are only made on the main loop."""

    trace_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id


class LogIds:
    """A structlog processor that adds the trace id to log lines that name a job."""

    live: LiveScheduler | None = None

    def __call__(self, _: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        job = line.get("job") or line.get("group")
        if job is not None and self.live is not None:
            pod_set = self.live.scheduler.state.pod_sets.by_key.get(job)
            if pod_set is not None and pod_set.number >= 0:
                line["trace_id"] = trace.format_trace_id(trace_id(pod_set.number))
        return line


class _Told(SpanExporter):
    """Logs once that the collector does not answer, and once that it does again."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        fails = result is not SpanExportResult.SUCCESS
        if fails and not self._fails:
            log.warning("traces are not sent", collector=self._endpoint, lost=len(spans))
        elif self._fails and not fails:
            log.info("traces are sent again", collector=self._endpoint)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


@contextlib.asynccontextmanager
async def sending_traces(live: LiveScheduler, collector: str) -> AsyncIterator[JobTraces]:
    """Send the traces of a scheduler that does not run yet. ``collector``: `http://HOST:4318`. The variables
    `OTEL_…` of the SDK set headers, certificates, the timeout and the size of the queue."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # one line per try: see _Told
    endpoint = f"{collector.rstrip('/')}/v1/traces"
    ids = _TraceIds()
    names = {"service.name": "fluence", "service.instance.id": live.identity}
    provider = TracerProvider(
        resource=Resource.create({**names, "fluence.scheduler": live.settings.scheduler_name}),
        id_generator=ids,
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(_Told(OTLPSpanExporter(endpoint=endpoint), endpoint)))
    try:
        yield JobTraces(live, provider, ids)
    finally:
        last = threading.Thread(target=provider.shutdown, name="traces", daemon=True)
        last.start()
        await asyncio.to_thread(last.join, _SHUTDOWN_SECONDS)
