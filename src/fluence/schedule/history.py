"""History: the jobs that changed in a cycle, the jobs that ended before it, and what the queue learns from
past runs.

`Journal` makes entries and decides nothing. The lifecycle of pod sets notes which jobs changed, and the cycle
takes the entries at its end. Each entry has everything that is known of a job, so a lost entry does no harm.
A resync lists all existing jobs, so that the history can find jobs that ended unseen, before a restart or
while it could not write.

`seed` teaches a new queue from earlier runs. Shapes have other numbers after a restart, so a run only teaches
how long this user's jobs with this limit last, and which share of their limits they use. Run times by shape
are learned again.

Jobs that ended while no scheduler was leading are read from their pods, as long as the pods exist. An ended
pod still has the number of its job and its start. These jobs are reported with the resync after a restart. If
the history has already recorded the end, its record stays.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from fluence.cluster.graph import ClusterGraph, job_number
from fluence.model import job_state
from fluence.model.external_resources import DeviceGrant
from fluence.model.grant import limit_note
from fluence.model.job_state import JobEntry, JobState, PastRun
from fluence.model.owner import identity
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.reason import Reason
from fluence.names import JOBID
from fluence.queue import Queue
from fluence.queue.job import JobRecord, Submission
from fluence.queue.promises import LATE
from fluence.schedule import restart
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import Changes, PodSet, PodSets
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Step
from fluence.units import parse_rfc3339

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


def late_ends(groups: Groups, there: Container[int], now: int) -> Iterator[JobEntry]:
    """An entry for each job whose pods have all ended. ``there`` are the numbers of the jobs that have
    not."""
    for gang in groups.gangs():
        said = [pod for pod in gang.ended if JOBID in pod.annotations]
        for found in restart.running(said, -1, now=now, limit=gang.limit):
            if found.number not in there and _is_own(gang, found):
                yield _entry(gang, found, groups, now)


def _is_own(gang: Gang, found: restart.Running) -> bool:
    """Anybody may write annotations, so only a number that follows from a uid of this group counts."""
    uids = (gang.uid, *(pod.metadata.uid for pod in found.pods))
    return found.number in map(job_number, uids)


def _entry(gang: Gang, found: restart.Running, groups: Groups, now: int) -> JobEntry:
    requests: dict[str, int] = {}
    for pod in found.pods:
        add_into(requests, pod_requests(pod))
    requests.pop("pods", None)
    ended = max(found.start, *(_ended_at(pod) or now for pod in found.pods))
    limit = None if found.end is None else found.end - found.start
    kind, name = workload(found.pods[0], groups)
    return JobEntry(
        job=found.number,
        at=now,
        state=outcome(found.pods, ended - found.start, limit, bounded=gang.bounded),
        key=gang.key,
        namespace=gang.namespace,
        name=name,
        kind=kind,
        user=gang.user,
        queue=gang.queue,
        priority=gang.priority,
        pods=len(found.pods),
        minimum=gang.minimum,
        requests=requests,
        limit=limit,
        submitted=min(gang.submit, found.start),
        started=found.start,
        ended=ended,
        nodes=tuple(sorted({pod.spec.node_name for pod in found.pods if pod.spec.node_name})),
        devices=device_names(found.grants),
    )


def device_names(grants: Iterable[DeviceGrant]) -> tuple[str, ...]:
    """External resources by path: `backend/qpu0`."""
    return tuple(dict.fromkeys("/".join(map(str, grant.device)) for grant in grants))


def outcome(pods: tuple[Pod, ...], lasted: int, limit: int | None, *, bounded: bool) -> JobState:
    """The final state of a job, from its pods. ``bounded``: Kubernetes ends it at its limit."""
    failed = [pod for pod in pods if pod.status.phase != "Succeeded"]
    crashed = any(pod.metadata.deletion_timestamp is None for pod in failed)
    late = limit is not None and lasted >= limit
    notes = [note for pod in pods if (note := limit_note(pod)) is not None]
    enforced = (late and bounded) or any(lasted >= note.end - note.start for note in notes)
    return job_state.ended(failed=bool(failed), crashed=crashed, late=late or enforced, enforced=enforced)


def workload(pod: Pod, groups: Groups) -> tuple[str, str]:
    """The kind and name of the uppermost known owner of a pod."""
    kind, name = "Pod", pod.metadata.name
    controller = pod.metadata.controller_reference
    for _ in range(4):  # a bound, in case owners refer to each other in a loop
        if controller is None:
            break
        kind, name = controller.kind, controller.name
        owner = groups.owner(identity(pod.metadata.namespace, kind, name, controller.uid))
        controller = None if owner is None else owner.metadata.controller_reference
    return kind, name


def _ended_at(pod: Pod) -> int | None:
    """When an ended pod was last ready."""
    ready = pod.condition("Ready")
    if ready is None or ready.status == "True" or not ready.last_transition_time:
        return None
    at = parse_rfc3339(ready.last_transition_time)
    return None if at is None else at // 1000


class Journal(Step):
    """Makes history entries for the jobs of one scheduler. It does nothing unless ``kept``."""

    def __init__(
        self,
        groups: Groups,
        cluster: ClusterGraph,
        pod_sets: PodSets,
        reports: StatusReports,
        *,
        queue: Queue,
        changes: Changes,
        kept: bool = False,
    ) -> None:
        self.kept = kept
        self._groups = groups
        self._cluster = cluster
        self._pod_sets = pod_sets
        self._reports = reports
        self._queue = queue
        self._changes = changes
        self._noted: dict[int, None] = {}  # numbers of jobs that changed
        self._ended: list[JobEntry] = []
        self._withdrawn: dict[int, JobEntry] = {}
        self._last: dict[int, tuple[PodSet, JobEntry]] = {}  # the last entry of each existing job
        self._reserved: frozenset[JobRecord] = frozenset()
        self._roll_is_due = True
        self._say_all = False

    def run(self, now: int, decisions: Decisions) -> None:
        """Add entries for changed jobs and, once all groups are taken in, the result of a resync."""
        for waiting in decisions.waiting:
            self.note_group(waiting.gang.key)
        decisions.jobs = self.take(self._queue.plan.reserved, now)
        if not self._changes.has_touched:
            unseen, decisions.roll = self.take_roll(now)
            decisions.jobs += unseen

    # -- events ----------------------------------------------------------------------------------------------

    def note(self, pod_set: PodSet) -> None:
        """Note that a job may have changed."""
        if self.kept and pod_set.number >= 0:
            self._noted[pod_set.number] = None

    def note_group(self, group: str) -> None:
        """Note that all jobs of a group may have changed."""
        if self.kept:
            for pod_set in self._pod_sets.of_group(group).values():
                self.note(pod_set)

    def ended(self, pod_set: PodSet, outcome: JobState, now: int) -> None:
        """Record the end of a job while it still holds its placements."""
        if not self.kept or pod_set.number < 0:
            return
        entry = self._entry(pod_set, now)
        started = now if pod_set.started is None else pod_set.started
        self._ended.append(replace(entry, state=outcome, started=started, ended=now))
        self._forget(pod_set)

    def withdrawn(self, pod_set: PodSet, now: int, reason: Reason) -> None:
        """Record that a waiting job is withdrawn. It may come back in the same cycle."""
        if not self.kept or pod_set.number < 0:
            return
        entry = self._entry(pod_set, now)
        self._withdrawn[pod_set.number] = replace(
            entry, state=JobState.CANCELLED, started=None, ended=now, nodes=(), devices=(), reasons=(reason,)
        )
        self._forget(pod_set)

    def call_roll(self) -> None:
        """Start a resync: make all entries again, because some may not have been written."""
        self._roll_is_due = self._say_all = True
        self._last.clear()

    # -- entries ---------------------------------------------------------------------------------------------

    def take(self, reserved: Iterable[JobRecord], now: int) -> list[JobEntry]:
        """The entries since the last call, ended jobs first. ``reserved`` are the jobs with a place in the
        plan."""
        if not self.kept:
            return []
        self._note_plan(frozenset(reserved))
        by_number = self._pod_sets.by_number
        if self._say_all:
            self._say_all = False
            self._noted.update(dict.fromkeys(by_number))
        found, self._ended = self._ended, []
        for number in self._noted:
            pod_set = by_number.get(number)
            if pod_set is None or not _is_told(pod_set):
                continue
            entry = self._entry(pod_set, now)
            known, last = self._last.get(number, (None, None))
            if known is pod_set and last is not None:
                is_new = _changing(last) != _changing(entry)
            else:
                is_new = last is None or replace(last, at=now) != entry
            if is_new:
                self._last[number] = (pod_set, entry)
                found.append(entry)
        found += [each for number, each in self._withdrawn.items() if number not in by_number]
        self._noted, self._withdrawn = {}, {}
        return found

    def take_roll(self, now: int) -> tuple[list[JobEntry], frozenset[int] | None]:
        """The jobs that ended unseen, and the numbers of all existing jobs, once per resync. Call it when all
        groups are taken in."""
        if not self.kept or not self._roll_is_due:
            return [], None
        self._roll_is_due = False
        there = self._pod_sets.by_number
        ended = list(late_ends(self._groups, there, now))
        return ended, frozenset(number for number, each in there.items() if _is_told(each))

    # -- internals -------------------------------------------------------------------------------------------

    def _note_plan(self, reserved: frozenset[JobRecord]) -> None:
        for record in reserved ^ self._reserved:
            if isinstance(record, PodSet):
                self.note(record)
        self._reserved = reserved

    def _forget(self, pod_set: PodSet) -> None:
        self._noted.pop(pod_set.number, None)
        self._last.pop(pod_set.number, None)

    def _entry(self, pod_set: PodSet, now: int) -> JobEntry:
        known, last = self._last.get(pod_set.number, (None, None))
        if last is None or known is not pod_set:
            last = _described(pod_set, self._groups, now)
        runs = pod_set.state is JobState.RUNNING
        nodes, devices = _seats(pod_set, self._cluster) if runs or pod_set.finished else ((), ())
        said = self._reports.said.get(pod_set.key)
        return replace(
            last,
            at=now,
            state=pod_set.state,
            no_later_than=pod_set.promised,
            expected=pod_set.first_expected,
            broken=len(pod_set.broken),
            started=pod_set.started if runs else None,
            nodes=nodes or last.nodes,
            devices=devices or last.devices,
            reasons=last.reasons if said is None else said.reasons,
        )


_changing = attrgetter(
    "state", "no_later_than", "expected", "broken", "started", "ended", "nodes", "devices", "reasons"
)
"""The fields of an entry that change; the others are set once."""


def _is_told(pod_set: PodSet) -> bool:
    """Whether the history has an entry for a job: only once all members are there."""
    return pod_set.state is not JobState.GATHERING


def _described(pod_set: PodSet, groups: Groups, now: int) -> JobEntry:
    """The fields of an entry that do not change."""
    job, gang = pod_set.job, groups.gang(pod_set.group)
    kind, name = workload(pod_set.pods[0], groups)
    requests: dict[str, int] = {}
    for pod in pod_set.pods:
        add_into(requests, pod_requests(pod))
    requests.pop("pods", None)
    return JobEntry(
        job=pod_set.number,
        at=now,
        state=JobState.PENDING,
        key=pod_set.key,
        namespace=pod_set.group.partition("/")[0],
        name=name,
        kind=kind,
        user=job.user,
        queue=job.queue,
        priority=job.priority,
        pods=len(pod_set.pods),
        minimum=pod_set.request.minimum,
        requests=requests,
        limit=job.limit,
        submitted=job.submit if gang is None else min(gang.submit, job.submit),
    )


def _seats(pod_set: PodSet, cluster: ClusterGraph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The nodes of a job, and its devices."""
    holding = cluster.fit.jobs.get(pod_set.number)
    if holding is None:
        return (), ()
    nodes = sorted({seat.node for seat in holding.placements.values()})
    vertices = sorted({vertex for seat in holding.placements.values() for vertex in seat.devices})
    paths = (cluster.graph.path(vertex) for vertex in vertices)
    devices = [path for path in paths if path is not None]
    return tuple(nodes), (*devices, *device_names((*holding.grants, *holding.shares)))


_NO_SHAPE = -1


def seed(queue: Queue, runs: Iterable[PastRun]) -> int:
    """Learn from past runs, oldest first. Returns how many were used."""
    count = 0
    promises = queue.promises
    for run in runs:
        if run.ended < run.started:
            continue
        job = Submission(
            key="",
            request=None,
            submit=run.started,
            limit=run.limit or None,
            user=run.user,
            account=run.namespace,
            queue=run.queue,
        )
        promises.learn(job, _NO_SHAPE, run.ended - run.started)
        if run.no_later_than is not None and promises.rests_on_record(queue.planner):
            missed = run.broken > 0 or run.started > run.no_later_than + LATE
            promises.calibration.observe(missed=missed)
        count += 1
    return count
