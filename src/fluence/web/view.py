"""View: joins a live scheduler, and takes snapshots of it between two cycles, which other threads read.

Nothing is copied without a request. A snapshot is taken on the event loop of the scheduler, while no cycle
runs, and serves all requests within a quarter of a second, or some seconds longer if no object has changed
and no cycle has decided anything since. During a long cycle, the last snapshot is served.

Taking a snapshot copies lists, dictionaries and columns, but not their contents: at 5,000 pending gangs that
takes less than a millisecond. Shared objects either never change (pods, nodes, submissions, reports) or are
replaced as a whole by the planner (allocations, holdings). The fields of a waiting gang change in place with
every plan, so the ones that are shown are copied as columns.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Final, cast

import structlog

from fluence.cluster.layout import GraphLayout
from fluence.cluster.planner import PodSetRequest
from fluence.cluster.pods import PodEntry
from fluence.errors import FluenceError
from fluence.live.scheduler import LiveScheduler
from fluence.model.job_state import JobState
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.placer.backends import DeviceEntry
from fluence.queue.allocations import Allocation
from fluence.queue.job import Submission
from fluence.queue.promises import PromiseTally
from fluence.schedule.build import DECIDING
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Event
from fluence.schedule.overruns import EndOverrun
from fluence.schedule.pod_set import PodSet
from fluence.schedule.scheduler import Scheduler
from fluence.schedule.status.reports import Waiting
from fluence.web.access import Reader
from fluence.web.kept import KeptRows, Parts, Shown, span_of
from fluence.web.resources import Array
from fluence.web.whatif import Forked, abandon, fork, work_out

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


log = structlog.get_logger("fluence.view")

FRESH_SECONDS: Final = 0.25
_UNCHANGED_SECONDS: Final = 5.0  # how long a snapshot is used while nothing happens
_KEPT_SECONDS: Final = 60.0  # without a request
_BUSY_SECONDS: Final = 1.0  # how long to wait for the scheduler's event loop


_SHOWN: Final = tuple(each.name for each in fields(Decisions) if each.name not in ("reminders", "roll"))


def _is_heartbeat(event: Event) -> bool:
    """Whether a node only reports that it is still alive."""
    if not isinstance(event, Changed) or not isinstance(event.old, Node) or not isinstance(event.new, Node):
        return False
    old, new = event.old, event.new
    return (
        old.is_ready == new.is_ready
        and old.labels == new.labels
        and old.spec == new.spec
        and old.status.allocatable == new.status.allocatable
        and old.status.capacity == new.status.capacity
    )


class Busy(FluenceError):
    """There is no snapshot yet."""


def _abandon(begun: concurrent.futures.Future[Forked]) -> None:
    if begun.exception() is None:
        abandon(*begun.result())


class View:
    """Create ``View(live)`` before the scheduler runs. Call ``await view.snapshot()`` on any one event
    loop."""

    def __init__(self, live: LiveScheduler) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.took = 0.0  # seconds that the last snapshot cost the scheduler
        self._live = live
        self._log = DecisionLog()
        self._number = 0
        self._last: Snapshot | None = None
        self._last_at = 0.0
        self._kept = KeptRows()
        self._happened = 0  # events and cycles, counted on the scheduler's event loop
        self._undecided = False  # something has changed since the last cycle
        self._last_happened = -1
        self._asked: concurrent.futures.Future[Snapshot] | None = None
        settings = live.settings
        self._settings = {name.replace("_", "-"): getattr(settings, name) for name in DECIDING}
        live.join(self)

    # -- beside the scheduler --------------------------------------------------------------------------------

    def changed(self, event: Event) -> None:
        """An object changed: the next snapshot shows it."""
        if not _is_heartbeat(event):
            self._happened += 1
            self._undecided = True

    def decided(self, decisions: Decisions) -> None:
        """A cycle has ended."""
        if self._undecided or any(getattr(decisions, name) for name in _SHOWN):
            self._happened += 1
            self._undecided = False
        self._log.note(decisions, self._live.now())
        if self._last is not None and time.monotonic() - self._last_at > _KEPT_SECONDS:
            self._last, self._kept = None, KeptRows()  # they hold pods and nodes that may be gone

    async def run(self) -> None:
        """Nothing to do without a request."""
        await asyncio.Event().wait()

    # -- for other threads -----------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._live.leads

    @property
    def scheduler(self) -> str:
        return self._live.settings.scheduler_name

    async def snapshot(self) -> Snapshot | None:
        """The current state, or the one before a long cycle; None if this replica does not lead and so has no
        plan."""
        if not self._live.leads:
            return None
        last = self._last
        if last is not None:
            quiet = self._happened == self._last_happened
            serves = _UNCHANGED_SECONDS if quiet else FRESH_SECONDS
            if time.monotonic() - self._last_at < serves:
                return last
        if self._asked is None or self._asked.done():
            self._asked = self._live.between_cycles(self._take)
        asked = self._asked
        await asyncio.wait({asyncio.wrap_future(asked)}, timeout=_BUSY_SECONDS)
        if asked.done() and not asked.cancelled():
            fault = asked.exception()
            if fault is None:
                last = self._last = asked.result()
            else:
                log.error("no snapshot for the view", exc_info=fault)
        if last is None:
            raise Busy("the scheduler is in a long cycle, and nothing was asked before: try again")
        return last

    async def ask(self, reader: Reader, namespace: str, body: bytes) -> Forked:
        """Have a copy of the scheduler, as it is between two cycles, answer a question about manifests."""
        live = self._live

        def begin() -> Forked:
            if not live.leads or live.scheduler.broken:
                raise Busy("the scheduler cannot be asked now: try again")
            now = live.now()
            return fork(
                lambda: work_out(
                    live.scheduler, live.untold, now, reader=reader, namespace=namespace, body=body
                )
            )

        begun = live.between_cycles(begin)
        try:
            async with asyncio.timeout(_BUSY_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(begun))
        except BaseException as error:
            begun.add_done_callback(_abandon)
            if isinstance(error, TimeoutError):
                raise Busy("the scheduler is in a long cycle: try again") from None
            raise

    def _take(self) -> Snapshot:
        began = time.perf_counter()
        self._number += 1
        self._last_happened = self._happened
        live = self._live
        snapshot = take(
            live.scheduler,
            live.now(),
            number=self._number,
            decisions=self._log.entries,
            settings=self._settings,
            kept=self._kept,
        )
        self.took = time.perf_counter() - began
        self._last_at = time.monotonic()
        return snapshot
