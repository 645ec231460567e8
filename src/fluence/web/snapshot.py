"""Snapshot: the state of a scheduler at one moment, taken between two cycles and read by another thread.

Taking a snapshot copies lists, dictionaries and columns, but not their contents: at 5,000 pending gangs that
takes less than a millisecond. Shared objects either never change (pods, nodes, submissions, reports) or are
replaced as a whole by the planner (allocations, holdings). The fields of a waiting gang change in place with
every plan, so the ones that are shown are copied as columns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import cast

from fluence.cluster.layout import GraphLayout
from fluence.cluster.planner import PodSetRequest
from fluence.cluster.pods import PodEntry
from fluence.model.job_state import JobState
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.placer.backends import DeviceEntry
from fluence.queue.allocations import Allocation
from fluence.queue.job import Submission
from fluence.queue.promises import PromiseTally
from fluence.schedule.cycle import Decisions
from fluence.schedule.enforcement import EndOverrun
from fluence.schedule.pod_set import PodSet
from fluence.schedule.scheduler import Scheduler
from fluence.schedule.status.reports import Waiting
from fluence.web.kept import KeptRows, Parts, Shown, span_of
from fluence.web.resources import Array

MAX_DECISIONS = 1000  # that are remembered


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of a cycle about one gang."""

    number: int  # increases by one with each
    at: int  # ms
    kind: str  # started, released, ended, warned, quarantined
    namespace: str
    gang: str
    pods: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The fields after ``pending`` are columns over it, in the order of the queue. Times are in
    milliseconds."""

    number: int
    at: int
    scheduler: str
    layout: GraphLayout
    sets: Mapping[str, PodSet]  # by key
    pending: Sequence[PodSet]
    reservations: Sequence[Allocation | None]
    bounds: Sequence[int | None]  # the latest promised start
    firm: Sequence[bool]
    expected: Sequence[int | None]
    running: Mapping[str, Allocation]  # by key
    reports: Mapping[str, Waiting]  # by key; by group if it is incomplete or refused
    owners: Mapping[str, Owner]  # by identity
    nodes: Sequence[Node]
    pods: Mapping[str, PodEntry]  # on nodes, by uid
    devices: Sequence[DeviceEntry]
    tally: PromiseTally
    decisions: Sequence[Decision] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    kept: KeptRows = field(default_factory=KeptRows)  # what was made from earlier snapshots

    # -- gangs, as they are shown ----------------------------------------------------------------------------

    @cached_property
    def queued(self) -> list[Shown]:
        """Those in the queue, in its order."""
        return self._in_queue(slice(None))

    def _in_queue(self, some: slice) -> list[Shown]:
        # One comprehension per column costs less than one that makes a tuple per row.
        sets, reservations = self.pending[some], self.reservations[some]
        jobs = [pod_set.job for pod_set in sets]
        said = self.reports.get
        told = [said(job.key) or said(pod_set.group) for job, pod_set in zip(jobs, sets, strict=True)]
        waits, planned = JobState.PENDING, JobState.RESERVED
        return self.kept.shown(
            zip(
                sets,
                jobs,
                [waits if held is None else planned for held in reservations],
                [None] * len(sets),
                reservations,
                [None if held is None else span_of(held) for held in reservations],
                [() if report is None else report.reasons for report in told],
                self.bounds[some],
                self.firm[some],
                self.expected[some],
                strict=True,
            )
        )

    @cached_property
    def placed(self) -> list[Shown]:
        """Those with nodes, the latest first."""
        sets = [pod_set for key, pod_set in self.sets.items() if key in self.running]
        sets.sort(key=lambda pod_set: -(pod_set.started or 0))
        return self.kept.shown(map(self._outside, sets))

    @cached_property
    def others(self) -> list[Shown]:
        """Those that wait and are not in the queue, because they are incomplete, held or refused."""
        places, running = self._places, self.running
        sets = [pod_set for key, pod_set in self.sets.items() if key not in running and pod_set not in places]
        return self.kept.shown(map(self._outside, (*sets, *self.refused)))

    def shown(self, pod_set: PodSet) -> Shown:
        """One of them."""
        place = self.place(pod_set)
        if place is None:
            return self.kept.shown((self._outside(pod_set),))[0]
        return self._in_queue(slice(place, place + 1))[0]

    def _outside(self, pod_set: PodSet) -> Parts:
        """What a gang shows that is not in the queue."""
        held = self.running.get(pod_set.key)
        state = self._state(pod_set, held)
        if state.has_nodes:
            return pod_set, pod_set.job, state, pod_set.started, held, span_of(held), (), None, False, None
        report = self.reports.get(pod_set.key) or self.reports.get(pod_set.group)
        reasons = () if report is None else report.reasons
        # It may wait for other jobs, whose planned ends are known.
        expected = None if report is None else report.report.expected
        return pod_set, pod_set.job, state, None, held, span_of(held), reasons, None, False, expected

    def _state(self, pod_set: PodSet, held: Allocation | None) -> JobState:
        """The state at the time of the snapshot of a gang that is not in the queue. A later state, such as
        running, would not fit the rest of its row."""
        current = pod_set.state
        if held is not None:
            return current if current.has_nodes else JobState.RUNNING
        if current is JobState.REFUSED:
            return current
        return JobState.PENDING if current.has_nodes or current.is_over else current

    def place(self, pod_set: PodSet) -> int | None:
        """Its place in the queue, from 0."""
        return self._places.get(pod_set)

    def tidy(self) -> None:
        """Drop rows of gangs and nodes that are gone, if there are many."""
        self.kept.limit(len(self.sets) + len(self.reports), len(self.nodes))

    # -- derived on demand -----------------------------------------------------------------------------------

    @cached_property
    def all_shown(self) -> list[Shown]:
        """All of them, in the order in which the scheduler got to know them."""
        known = {shown.pod_set: shown for shown in (*self.placed, *self.queued, *self.others)}
        return [known[pod_set] for pod_set in (*self.sets.values(), *self.refused)]

    @cached_property
    def arrays(self) -> dict[str, list[Shown]]:
        """The tasks of each array that wait or run."""
        found: dict[str, list[Shown]] = {}
        for shown in self.all_shown:
            if shown.array:
                found.setdefault(shown.array, []).append(shown)
        return found

    @cached_property
    def counts(self) -> dict[str, Array]:
        """The progress of arrays, as far as it was asked for."""
        return {}

    @cached_property
    def refused(self) -> list[PodSet]:
        """Gangs that can never be placed as they are written. The scheduler keeps only their reports."""
        known = {pod_set.group for pod_set in self.sets.values()}
        return [
            self.kept.get("refused", key, (waiting,), partial(_refused, waiting))
            for key, waiting in self.reports.items()
            if waiting.gang.key == key and key not in known
        ]

    @cached_property
    def _places(self) -> dict[PodSet, int]:
        return {pod_set: place for place, pod_set in enumerate(self.pending)}

    @cached_property
    def set_of_number(self) -> dict[int, PodSet]:
        """By the number in the ledger."""
        return {pod_set.number: pod_set for pod_set in self.sets.values()}

    @cached_property
    def namespaces(self) -> frozenset[str]:
        """The namespaces with something that a user might see."""
        spaces = {pod_set.group.partition("/")[0] for pod_set in self.sets.values()}
        spaces.update(waiting.gang.namespace for waiting in self.reports.values())
        spaces.update(decision.namespace for decision in self.decisions)
        spaces.update(entry.pod.metadata.namespace for entry in self.pods.values())
        return frozenset(spaces)


def _refused(waiting: Waiting) -> PodSet:
    gang = waiting.gang
    request = PodSetRequest(waiting.pods, gang.minimum, gang.policy)
    submitted = Submission(gang.key, request, gang.submit, user=gang.user, queue=gang.queue, array=gang.array)
    return PodSet(submitted, waiting.report.state, group=gang.key)


def take(
    scheduler: Scheduler,
    now: int,
    *,
    number: int = 0,
    decisions: Iterable[Decision] = (),
    settings: Mapping[str, object] | None = None,
    kept: KeptRows | None = None,
) -> Snapshot:
    """Take a snapshot. Call it on the event loop of the scheduler, where no cycle runs meanwhile."""
    state = scheduler.state
    sets = dict(state.pod_sets.by_key)
    pending = cast(
        list[PodSet], list(state.queue.pending.records)
    )  # the scheduler's records are all pod sets
    # One comprehension per column costs half as much as one that makes a tuple per row.
    return Snapshot(
        number=number,
        at=now,
        scheduler=scheduler.config.scheduler_name,
        layout=state.cluster.layout,
        sets=sets,
        pending=pending,
        reservations=[pod_set.reservation for pod_set in pending],
        bounds=[pod_set.latest for pod_set in pending],
        firm=[pod_set.firm for pod_set in pending],
        expected=[pod_set.expected for pod_set in pending],
        running=dict(state.planner.allocations.running),
        reports=dict(state.reports.said),
        owners=state.groups.all_owners(),
        nodes=list(state.cluster.columns.nodes),
        pods=dict(state.cluster.pods.entries),
        devices=list(state.cluster.fit.backends.entries),
        tally=state.queue.promises.tally.copy(),
        decisions=tuple(decisions),
        settings=settings or {},
        kept=kept or KeptRows(),
    )


class DecisionLog:
    """The last decisions of a scheduler, written on its event loop."""

    def __init__(self) -> None:
        self.entries: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self._number = 0

    def note(self, decisions: Decisions, now: int) -> None:
        """Record the decisions of a cycle."""
        for binds in decisions.binds:
            nodes = tuple(sorted({bind.node for bind in binds}))
            first = binds[0]
            self._add(now, "started", first.pod.metadata.namespace, first.job, len(binds), nodes)
        for release in decisions.releases:
            nodes = tuple(sorted({node for _, node in release.note.nodes}))
            space = release.owner.metadata.namespace
            self._add(now, "released", space, release.job, len(release.note.nodes), nodes)
        for order in decisions.overruns:
            kind = "ended" if isinstance(order, EndOverrun) else "warned"
            job = order.job if isinstance(order, EndOverrun) else f"/pod:{order.pods[0].metadata.name}"
            self._add(now, kind, order.pods[0].metadata.namespace, job, len(order.pods))
        for fault in decisions.faults:
            if fault.first and fault.pods:
                pod = fault.pods[0]
                self._add(now, "quarantined", pod.metadata.namespace, str(fault.subject), len(fault.pods))

    def _add(
        self, at: int, kind: str, namespace: str, gang: str, pods: int, nodes: tuple[str, ...] = ()
    ) -> None:
        self._number += 1
        self.entries.append(Decision(self._number, at, kind, namespace, gang, pods, nodes))
