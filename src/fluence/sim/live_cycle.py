"""Manifests through the cycle of the live scheduler, in memory: a simulation with a simulated clock, or a
what-if.

The same `Scheduler` as in a cluster decides, with the same settings, the gang placer and the rules of
Kubernetes. `EmbeddedCluster` replaces the API server, the controllers and the nodes. No API server is used.

The files of a workload arrive one after another, each a number of seconds after the last. The annotation
`fluence.flux-framework.org/arrival` on an object sets its time, and that of the objects after it in the file.
Objects that create no pods here (a Service, a ConfigMap, a StatefulSet) are left out and counted. A what-if
names them, and uses an object that already exists in the cluster as it is there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluence import names
from fluence.errors import InvalidInput
from fluence.messages import text, whatif
from fluence.model.job_state import JobState
from fluence.model.node import Node
from fluence.model.pod import Pod, pod_requests
from fluence.model.queues import QueueTree
from fluence.model.reason import Code, Reason
from fluence.names import RESOURCES_CONFIGMAP
from fluence.queue.job import SECOND
from fluence.queue.reasons import BlockedBy, Delay, WaitReason, WhatIfAnswer
from fluence.schedule.settings import SchedulerSettings
from fluence.sim.cluster import (
    KINDS,
    NAMESPACE,
    EmbeddedCluster,
    EmbeddedJob,
    Ended,
    Json,
    check_manifest,
    run_seconds,
)
from fluence.sim.intake import left_out
from fluence.sim.measure import PreemptionFigures, Record, preemption_figures
from fluence.units import parse_duration
from fluence.yaml_loader import read_documents

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Arrival:
    """An object, and when it arrives."""

    at: int
    """ms after the workload's beginning."""
    document: Json
    source: str


@dataclass(frozen=True, slots=True)
class ManifestWorkload:
    """The objects of some files, by time of arrival."""

    arrivals: tuple[Arrival, ...]
    source: str
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Objects that were left out: cause -> how many."""

    def scaled(self, factor: float) -> ManifestWorkload:
        """The same with the offsets of arrivals multiplied."""
        arrivals = (
            Arrival(round(arrival.at * factor), arrival.document, arrival.source) for arrival in self.arrivals
        )
        return ManifestWorkload(tuple(arrivals), self.source, self.skipped)


def read_manifests(paths: Sequence[str | Path], *, every: int = 0, strict: bool = False) -> ManifestWorkload:
    """The objects of files and directories; one file ``every`` few ms.

    ``strict`` refuses an object that makes no pods here instead of counting it.
    """
    files = [file for path in paths for file in _files(Path(path))]
    arrivals: list[Arrival] = []
    skipped: Counter[str] = Counter()
    for number, file in enumerate(files):
        at = number * every
        for index, document in enumerate(_documents(_read(file), str(file))):
            where = f"{file}: document {index + 1}"
            kind = _kind(document, where)
            if not _is_read(document, kind):
                if strict:
                    raise InvalidInput(f"{' '.join(kind)} makes no pods here: leave it out", where=where)
                skipped[f"{kind[1]} (makes no pods here)"] += 1
                continue
            at = _arrival(document, at, where)
            check_manifest(document, where=where)
            arrivals.append(Arrival(at, document, where))
    source = ", ".join(str(path) for path in paths)
    if not arrivals:
        raise InvalidInput(
            f"nothing to simulate: no Pod, Job, Deployment or PodGroup{left_out(skipped)}", where=source
        )
    return ManifestWorkload(tuple(sorted(arrivals, key=lambda arrival: arrival.at)), source, dict(skipped))


def _files(path: Path) -> list[Path]:
    """A file itself; of a directory, its manifests in order of their names, as `kubectl apply -f` has it."""
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())
    if not files:
        raise InvalidInput(f"has no manifests: no file ends in {', '.join(_SUFFIXES)}", where=str(path))
    return files


def parse_manifests(text: bytes, *, source: str) -> tuple[list[Json], list[str]]:
    """The objects of a text that make pods or gather them, each of them checked, and notes on the others."""
    return check_manifests(read_documents(text, source), source=source)


def check_manifests(found: Iterable[Any], *, source: str) -> tuple[list[Json], list[str]]:
    """The same of documents that were read already."""
    documents, notes = [], []
    for index, document in enumerate(_objects(found, source)):
        where = f"{source}: document {index + 1}"
        kind = _kind(document, where)
        if _is_read(document, kind) and kind[1] != "Namespace":
            check_manifest(document, where=where)
            documents.append(document)
        else:
            why = "its pods are not simulated" if _may_make_pods(*kind) else "it makes no pods"
            notes.append(f"{where}: {kind[1]} is left out: {why}")
    if not documents:
        left = f" ({'; '.join(notes)})" if notes else ""
        raise InvalidInput(f"has no Pod, Job, Deployment or PodGroup{left}", where=source)
    return documents, notes


def _may_make_pods(version: str, kind: str) -> bool:
    """Whether a controller may create pods for an object: the workloads of Kubernetes, and any custom
    kind."""
    group = version.rpartition("/")[0]
    if group in ("apps", "batch"):
        return kind != "ControllerRevision"
    return kind == "ReplicationController" or ("." in group and not group.endswith(".k8s.io"))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from None


def _documents(text: bytes, source: str) -> Iterator[Json]:
    return _objects(read_documents(text, source), source)


def _objects(documents: Iterable[Any], source: str) -> Iterator[Json]:
    """The objects of some documents; a List is replaced by its items."""
    for number, document in enumerate(documents):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise InvalidInput("must be an object with apiVersion and kind", where=f"{source}: [{number}]")
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            yield from (_with_texts(item) for item in items if isinstance(item, dict))
        else:
            yield _with_texts(document)


def _with_texts(value: Any, *, quantities: bool = False) -> Any:
    """The same with quantities that are texts: `cpu: 4` is a number in YAML, and the API server makes it
    one of its quantities, which it writes as texts."""
    if isinstance(value, dict):
        return {
            key: _with_texts(item, quantities=quantities or key in ("requests", "limits"))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_texts(item) for item in value]
    return str(value) if quantities and type(value) in (int, float) else value


def _is_read(document: Json, kind: tuple[str, str]) -> bool:
    """Whether an object makes pods or gathers them, declares devices, or is a namespace with its labels."""
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return kind in KINDS and (kind[1] != "ConfigMap" or name == RESOURCES_CONFIGMAP)


def _kind(document: Json, where: str) -> tuple[str, str]:
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        raise InvalidInput("must be an object with apiVersion and kind", where=where)
    return version, kind


def _arrival(document: Json, at: int, where: str) -> int:
    meta = document.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    time = notes.get(names.ARRIVAL) if isinstance(notes, dict) else None
    if time is None:
        return at
    length = parse_duration(str(time))
    if length is None:
        raise InvalidInput(
            f"{str(time)[:40]!r} is not a valid time: write seconds, or 90s, 15m, 2h30m",
            where=f"{where}: annotation {names.ARRIVAL}",
        )
    return length


UNIT = "cpu"
"""What sizes are counted in: thousandths of a core."""


@dataclass(slots=True)
class CycleSimulation:
    """The result of a run, complete or cut short."""

    cluster: EmbeddedCluster
    capacity: int
    records: list[Record] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why jobs that have not started wait, as in the conditions of their pods."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    plugin_faults: Mapping[str, int] = field(default_factory=dict)
    now: int = 0
    wall_s: float = 0.0
    interrupted: bool = False
    stopped_at: int | None = None
    """ms at which the run was cut short; None: it came to its end."""
    preemption: PreemptionFigures | None = None
    """None: preemption is off."""

    @property
    def decisions_per_s(self) -> float:
        return self.cluster.placements_tried / self.wall_s if self.wall_s else 0.0


def simulate(
    workload: ManifestWorkload,
    nodes: Iterable[Json],
    *,
    settings: SchedulerSettings | None = None,
    queues: QueueTree | None = None,
    unit: str = UNIT,
    until: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> CycleSimulation:
    """Apply every object at its arrival, and advance the clock until nothing more can happen. Ctrl-C ends a
    run early, with the results so far. A pod that never ends, such as one of a Deployment, keeps its
    resources until the end of the run.
    """
    cluster = EmbeddedCluster(nodes, settings=settings)
    if queues is not None:
        cluster.use_queues(queues)
    run = CycleSimulation(cluster, _capacity(cluster.nodes, unit))
    began, submitted = cluster.now, _Submissions(cluster)
    started = time.perf_counter()
    try:
        _run(run, workload, until, began, progress)
    except KeyboardInterrupt:
        run.interrupted, run.stopped_at = True, run.now
    run.wall_s = time.perf_counter() - started
    run.skipped = {**workload.skipped, **submitted.foreign()}
    run.plugin_faults = cluster.plugin_faults
    for job in cluster.jobs():
        run.records.append(_record(job, submitted.of(job.pods), began, unit))
        if job.started is None and job.reason:
            run.reasons[job.key] = job.reason
    if settings is None or settings.preemption:
        run.preemption = preemption_figures(
            run.records,
            pods=len(cluster.ended),
            lost=sum(_lost(each, unit) for each in cluster.ended) / run.capacity,
        )
    return run


def _lost(ended: Ended, unit: str) -> float:
    """The lost work of a pod, in units times seconds."""
    return pod_requests(ended.pod).get(unit, 0) * (ended.end - ended.saved) / SECOND


class _Submissions:
    """When each pod was created."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._at: dict[str, int] = {}
        cluster.on_pod(self._note)

    def _note(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None:
            self._at[new.key] = self._cluster.now

    def of(self, pods: Iterable[Pod]) -> int:
        return min(self._at[pod.key] for pod in pods)

    def foreign(self) -> dict[str, int]:
        """Pods that name another scheduler."""
        ours = self._cluster.scheduler_name
        others = [pod for pod in self._cluster.pods.values() if pod.spec.scheduler_name != ours]
        return {f"pods without schedulerName: {ours}": len(others)} if others else {}


def _run(
    run: CycleSimulation,
    workload: ManifestWorkload,
    until: int | None,
    began: int,
    progress: Callable[[int], None] | None,
) -> None:
    cluster, coming = run.cluster, list(reversed(workload.arrivals))
    while True:
        following = cluster.next_time()
        times = [] if following is None else [following - began]
        if coming:
            times.append(coming[-1].at)
        if not times:
            return
        at = min(times)
        if until is not None and at > until:
            run.now = run.stopped_at = until
            return
        run.now = at
        cluster.advance(began + at)
        arrived = 0
        while coming and coming[-1].at <= at:
            cluster.apply(coming.pop().document)
            arrived += 1
        cluster.settle()
        if progress is not None:
            progress(arrived)


def _record(job: EmbeddedJob, submit: int, began: int, unit: str) -> Record:
    def after(at: int | None) -> int | None:
        return None if at is None else at - began

    lengths = [length for pod in job.pods if (length := run_seconds(pod)) is not None]
    return Record(
        name=job.key,
        user=job.user,
        queue=job.queue,
        size=sum(pod_requests(pod).get(unit, 0) for pod in job.pods),
        submit=submit - began,
        start=after(job.started),
        end=after(job.ended) if job.started is not None else None,
        runtime=round(max(lengths, default=0.0) * 1000),
        limit=job.limit,
        no_later_than=after(job.promised),
        expected=after(job.expected),
        backfilled=job.backfilled,
        state=job.state,
        broken=job.broken,
        priority=job.priority,
        preempted=job.preempted,
    )


def _capacity(nodes: Iterable[Node], unit: str) -> int:
    sizes = [node.allocatable() for node in nodes]
    total = sum(size.get(unit, 0) for size in sizes)
    if not total:
        kinds = sorted({name for size in sizes for name, amount in size.items() if amount})
        cure = f"name as --unit one of {', '.join(kinds)}" if kinds else "give one at least"
        raise InvalidInput(f"the nodes have no {unit} to count: {cure}", where="--nodes")
    return total


@dataclass(frozen=True, slots=True)
class ManifestAnswer:
    """The result of a what-if for each job of the manifests, and for the other jobs."""

    now: int
    jobs: tuple[tuple[str, WhatIfAnswer], ...]
    delays: tuple[Delay, ...]
    warnings: tuple[tuple[str, Reason], ...] = ()  # by job: declarations that are not used
    notes: tuple[str, ...] = ()  # which objects are in the cluster already

    @property
    def starts_now(self) -> bool:
        return all(answer.starts_now for _, answer in self.jobs)

    @property
    def never(self) -> bool:
        return any(answer.never for _, answer in self.jobs)

    def lines(self, shown: int | None = None) -> list[str]:
        """The answer in words."""
        lines = [f"{key}: {line}" for key, answer in self.jobs for line in whatif.own_lines(answer, shown)]
        lines += [f"{key}: warning: {text(reason)}" for key, reason in self.warnings]
        return lines if self.never and not self.delays else lines + whatif.delay_lines(self.delays, shown)

    def to_value(self) -> dict[str, Any]:
        """The answer for programs, in seconds."""
        jobs = []
        for key, answer in self.jobs:
            fields = whatif.value(answer)
            job = {"job": key} | {name: fields[name] for name in fields if name not in ("now", "delays")}
            jobs.append(job | {"warnings": [text(reason) for of, reason in self.warnings if of == key]})
        return {"now": self.now / SECOND, "jobs": jobs, "delays": whatif.delay_values(self.delays)}


class NotOurs(InvalidInput):
    """All pods of the manifests are for other schedulers."""


def ask_what_if(cluster: EmbeddedCluster, documents: Iterable[Json]) -> ManifestAnswer:
    """Apply the manifests to this copy of a cluster and run it. The copy cannot be used afterwards."""
    cluster.is_asked = True
    cluster.settle()  # start everything that can start without these
    before, known = cluster.plan(), {pod.key for job in cluster.jobs() for pod in job.pods}
    known.update(cluster.pods)
    new: list[Json] = []
    there: list[Json] = []
    for document in documents:
        (there if cluster.has(document) else new).append(document)
    asked = {job.key for document in there for job in cluster.jobs_of(document)}
    for document in new:
        cluster.apply(document)
    cluster.settle()
    after = cluster.plan()
    jobs = [
        job for job in cluster.jobs() if job.key in asked or any(pod.key not in known for pod in job.pods)
    ]
    suspended = next((document for document in (*there, *new) if _is_suspended(document)), None)
    if not jobs and suspended is not None:
        raise InvalidInput(
            f"{_title(suspended)} is suspended and has no pods: ask about it with suspend: false",
            where="spec.suspend",
        )
    if not jobs and there:
        raise InvalidInput(
            f"{_title(there[0])} is in the cluster already, and nothing of it waits or runs for "
            f"{cluster.scheduler_name}: give the new one another name",
            where="manifest",
        )
    if not jobs:
        raise NotOurs(f"makes no pod with schedulerName: {cluster.scheduler_name}", where="manifest")
    delays = [
        Delay(key, before[key], start)
        for key, start in after.items()
        if key in before and start > before[key]
    ]
    answers = tuple((job.key, _answer(cluster, job)) for job in jobs)
    warnings = tuple((job.key, warning) for job in jobs for warning in cluster.warnings(job))
    notes = tuple(
        f"{_title(document)} is in the cluster already: it is asked about as it is there"
        for document in there
    )
    return ManifestAnswer(cluster.now, answers, tuple(delays), warnings, notes)


def _is_suspended(document: Json) -> bool:
    """Whether its user suspended it; what admission suspended waits in the queue."""
    spec, labels = document.get("spec"), document["metadata"].get("labels") or {}
    return isinstance(spec, dict) and spec.get("suspend") is True and names.SEEN not in labels


def _title(document: Json) -> str:
    meta = document["metadata"]
    return f"{document['kind']} {meta.get('namespace') or NAMESPACE}/{meta['name']}"


def _answer(cluster: EmbeddedCluster, job: EmbeddedJob) -> WhatIfAnswer:
    if job.state is JobState.GATHERING:  # it is not in the queue: pods are missing, or it has an error
        reason = WaitReason(BlockedBy.DEPENDENCY, (Reason.of(Code.GIVEN, text=job.reason),))
        return WhatIfAnswer(cluster.now, False, False, None, None, reason, ())
    now, starts = cluster.now, job.state.has_nodes or job.state.is_over
    ends, preemption = cluster.preempts(job)
    return WhatIfAnswer(
        now=now,
        starts_now=starts,
        never=job.state is JobState.UNSCHEDULABLE,
        start=(job.started or now) if starts else job.promised,
        expected=now if starts else job.expected,
        reason=cluster.why(job.key),
        delays=(),
        ends=ends,
        preemption=preemption,
    )
