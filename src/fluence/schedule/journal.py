"""Journal: which jobs changed in a cycle, as entries for the history; it decides nothing.

The lifecycle of pod sets notes whom something happened to, and the cycle takes the entries at its end. Each
entry is the whole of what is known of a job, so nothing is lost if an earlier one was not written. The roll
call says which jobs there are at all: whoever keeps the history learns from it which ended unseen, before a
restart or while it could not write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fluence.cluster.graph import ClusterGraph
from fluence.model.job_entry import JobEntry, JobState
from fluence.model.reason import Reason
from fluence.model.resources import add_into, pod_requests
from fluence.queue.job import JobRecord, Phase
from fluence.schedule.groups import Groups
from fluence.schedule.late_ends import device_names, late_ends, state_of, workload
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.status_reports import StatusReports

_STATES = {
    Phase.PENDING: JobState.PENDING,
    Phase.RESERVED: JobState.RESERVED,
    Phase.NEVER: JobState.NEVER,
    Phase.PREPARING: JobState.STARTING,
    Phase.BINDING: JobState.STARTING,
    Phase.RUNNING: JobState.RUNNING,
}


class Journal:
    """The jobs of one scheduler's state. While it is not ``kept``, it costs nothing and says nothing."""

    def __init__(
        self,
        groups: Groups,
        cluster: ClusterGraph,
        pod_sets: PodSets,
        reports: StatusReports,
        *,
        kept: bool = False,
    ) -> None:
        self.kept = kept
        self._groups = groups
        self._cluster = cluster
        self._pod_sets = pod_sets
        self._reports = reports
        self._noted: dict[int, None] = {}  # jobs that changed, by number
        self._ended: list[JobEntry] = []
        self._withdrawn: dict[int, JobEntry] = {}
        self._last: dict[int, tuple[PodSet, JobEntry]] = {}  # what was said of those that there are
        self._reserved: frozenset[JobRecord] = frozenset()
        self._roll_is_due = True
        self._say_all = False

    # -- what happened ---------------------------------------------------------------------------------------

    def note(self, pod_set: PodSet) -> None:
        """Something of it may have changed."""
        if self.kept and pod_set.number >= 0:
            self._noted[pod_set.number] = None

    def note_group(self, group: str) -> None:
        """The same of all pod sets of a group."""
        if self.kept:
            for pod_set in self._pod_sets.of_group(group).values():
                self.note(pod_set)

    def ended(self, pod_set: PodSet, now: int) -> None:
        """All its pods are over; said while it still holds its seats."""
        if not self.kept or pod_set.number < 0:
            return
        entry = self._entry(pod_set, now)
        started = now if pod_set.started is None else pod_set.started
        state = _outcome(pod_set, now - started)
        self._ended.append(replace(entry, state=state, started=started, ended=now))
        self._forget(pod_set)

    def withdrawn(self, pod_set: PodSet, now: int, reason: Reason) -> None:
        """It waited and is wanted no more, at least as it is: it may be back in the same cycle."""
        if not self.kept or pod_set.number < 0:
            return
        entry = self._entry(pod_set, now)
        self._withdrawn[pod_set.number] = replace(
            entry, state=JobState.CANCELLED, started=None, ended=now, nodes=(), devices=(), reasons=(reason,)
        )
        self._forget(pod_set)

    def call_roll(self) -> None:
        """Say everything once more: something of it may not have been written."""
        self._roll_is_due = self._say_all = True
        self._last.clear()

    # -- what is said ----------------------------------------------------------------------------------------

    def take(self, reserved: Iterable[JobRecord], now: int) -> list[JobEntry]:
        """What changed since the last call, ends first. ``reserved``: the jobs that have a place in the
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
            if pod_set is None or pod_set.phase not in _STATES:
                continue
            entry = self._entry(pod_set, now)
            _, last = self._last.get(number, (None, None))
            if last is None or replace(last, at=now) != entry:
                self._last[number] = (pod_set, entry)
                found.append(entry)
        found += [each for number, each in self._withdrawn.items() if number not in by_number]
        self._noted, self._withdrawn = {}, {}
        return found

    def take_roll(self, now: int) -> tuple[list[JobEntry], frozenset[int] | None]:
        """The jobs that ended unseen, and the numbers of all that there are; once after each call for it. To
        be asked when all groups were taken in."""
        if not self.kept or not self._roll_is_due:
            return [], None
        self._roll_is_due = False
        there = self._pod_sets.by_number
        ended = list(late_ends(self._groups, there, now))
        return ended, frozenset(number for number, each in there.items() if each.phase in _STATES)

    # -- inside ----------------------------------------------------------------------------------------------

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
        runs = pod_set.phase is Phase.RUNNING
        nodes, devices = _seats(pod_set, self._cluster) if runs or pod_set.finished else ((), ())
        said = self._reports.said.get(pod_set.key)
        return replace(
            last,
            at=now,
            state=_STATES.get(pod_set.phase, JobState.PENDING),
            no_later_than=pod_set.promised,
            expected=pod_set.first_expected,
            broken=len(pod_set.broken),
            started=pod_set.started if runs else None,
            nodes=nodes or last.nodes,
            devices=devices or last.devices,
            reasons=last.reasons if said is None else said.reasons,
        )


def _outcome(pod_set: PodSet, lasted: int) -> JobState:
    limit = pod_set.job.limit
    late = limit is not None and lasted >= limit
    return state_of(failed=pod_set.failed, crashed=pod_set.crashed, late=late)


def _described(pod_set: PodSet, groups: Groups, now: int) -> JobEntry:
    """What of a job does not change while it is there."""
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
    """The nodes of a job, and the devices on them that are its own."""
    seating = cluster.seats.jobs.get(pod_set.number)
    if seating is None:
        return (), ()
    nodes = sorted({seat.node for seat in seating.seats.values()})
    vertices = sorted({vertex for seat in seating.seats.values() for vertex in seat.devices})
    paths = (cluster.graph.path(vertex) for vertex in vertices)
    devices = [path for path in paths if path is not None]
    return tuple(nodes), (*devices, *device_names((*seating.grants, *seating.shares)))
