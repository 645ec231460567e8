"""Saved view: one moment of a simulated run, as a file that `fluence web --snapshot` shows.

A run of manifests uses the live cycle and has everything that the view of a scheduler has. A run of a trace
has a queue and a graph; its rows are made here. If the plan uses counts, a reservation is shown on the lowest
free nodes, as in the charts of the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import msgspec
import numpy as np

from fluence import event_loop, messages
from fluence.model.job_state import JobState
from fluence.model.reason import Reason
from fluence.queue.allocations import Allocation
from fluence.queue.job import FOREVER, JobRecord
from fluence.sim.cluster import EmbeddedCluster
from fluence.sim.measure import Record
from fluence.sim.simulator import Platform, Simulation
from fluence.units import natural_key, rfc3339
from fluence.web import resources as wire
from fluence.web.cluster_rows import RESOURCES
from fluence.web.in_process import SnapshotView
from fluence.web.page import save
from fluence.web.view import take

_NAMESPACE = "trace"
_BEGIN = 946_684_800_000  # a trace has no date: it begins on 1 January 2000
_FAR = 1 << 60


def deepest(records: Iterable[Record]) -> int:
    """When most jobs waited, in ms; the first such moment."""
    steps: list[tuple[int, int]] = []
    for record in records:
        steps.append((record.submit, 1))
        steps.append((_FAR if record.start is None else record.start, -1))
    steps.sort()  # NB a job that starts at once never waits: -1 comes before 1 at the same time
    depths = accumulate(step for _, step in steps)
    _, at = max(((depth, -at) for depth, (at, _) in zip(depths, steps, strict=True)), default=(0, 0))
    return -at


def of_cluster(cluster: EmbeddedCluster) -> bytes:
    """The current state of a run of manifests."""
    snapshot = take(cluster.scheduler, cluster.now, number=1)
    return event_loop.run(lambda: save(SnapshotView(lambda: snapshot)))


def of_trace(run: Simulation, platform: Platform) -> bytes:
    """The current state of a run of a trace."""
    return _TraceView(run, platform).document()


class _TraceView:
    def __init__(self, run: Simulation, platform: Platform) -> None:
        self._run = run
        self._graph = run.matcher.graph
        self._unit = platform.unit
        self._now = run.now if run.stopped_at is None else run.stopped_at
        self._pending = list(run.queue.pending.records)
        self._running = [record for record in run.queue.records.values() if record.running]
        self._places = {id(record): place for place, record in enumerate(self._pending)}
        self._node_names: dict[int, str] = {}  # by vertex
        self._sizes = self._node_sizes()
        self._names = sorted(self._sizes, key=natural_key)
        counts = [self._sizes[name] for name in self._names]
        self._first = dict(zip(self._names, accumulate([0, *counts]), strict=False))  # unit of each node
        self._node_of = np.repeat(np.arange(len(counts)), counts)  # by unit
        self._free_from = np.zeros(sum(counts), np.int64)  # by unit, by the plan
        self._taken = dict.fromkeys(self._names, 0)
        self._users: dict[str, dict[str, int]] = {name: {} for name in self._names}  # until when
        self._next: dict[str, int] = {}
        self._nodes_of: dict[int, list[str]] = {}  # by the id of the allocation
        for record in self._running:
            for held in record.running.values():
                self._note_running(record, held)
        for record in sorted(self._pending, key=lambda each: each.reserved_at or 0):
            if record.reservation is not None:
                self._note_reserved(record.reservation)

    # -- which nodes -----------------------------------------------------------------------------------------

    def _node_sizes(self) -> dict[str, int]:
        """Units of each node, by its name."""
        sizes = dict.fromkeys((self._node(int(row)) for row in self._graph.vertices_of_type("node")), 0)
        for row in self._graph.vertices_of_type(self._unit):
            name = self._node(int(row))
            if name in sizes:
                sizes[name] += int(self._graph.size[row])
        return sizes

    def _node(self, vertex: int) -> str:
        """The name of the node that a vertex is, or is part of; empty if it is neither."""
        parent = self._graph.tree().parent
        while vertex >= 0 and self._graph.type_name(vertex) != "node":
            vertex = int(parent[vertex])
        if vertex not in self._node_names:
            path = (self._graph.path(vertex) or "") if vertex >= 0 else ""
            self._node_names[vertex] = path.rpartition("/")[2]
        return self._node_names[vertex]

    def _note_running(self, record: JobRecord, held: Allocation) -> None:
        ledger = self._run.matcher.ledger
        spans = ledger.job(held.number).spans
        on: dict[str, int] = {}
        for vertex, needs, alone in zip(
            ledger.vertex[spans].tolist(),
            ledger.needs[spans].tolist(),
            ledger.exclusive[spans].tolist(),
            strict=True,
        ):
            name = self._node(vertex)
            if name not in self._taken:
                continue
            type_ = self._graph.type_name(vertex)
            if type_ == "node" and alone:
                on[name] = self._sizes[name]
            elif type_ == self._unit:
                on[name] = min(self._sizes[name], on.get(name, 0) + needs)
        for name, units in on.items():
            first = self._first[name] + self._taken[name]
            self._free_from[first : first + units] = held.end
            self._taken[name] += units
            self._users[name][record.key] = held.end
        self._nodes_of[id(held)] = sorted(on, key=natural_key)

    def _note_reserved(self, held: Allocation) -> None:
        if held.number >= 0:
            spans = self._run.matcher.ledger.job(held.number).spans
            vertices = self._run.matcher.ledger.vertex[spans].tolist()
            names = sorted({name for each in vertices if (name := self._node(each))}, key=natural_key)
        else:
            units = np.flatnonzero(self._free_from <= held.start)[: held.units]
            self._free_from[units] = held.end
            names = [self._names[node] for node in np.unique(self._node_of[units]).tolist()]
        for name in names:
            self._next[name] = min(self._next.get(name, held.start), held.start)
        self._nodes_of[id(held)] = names

    # -- rows ------------------------------------------------------------------------------------------------

    def document(self) -> bytes:
        waiting = [self._job(record, place) for place, record in enumerate(self._pending)]
        placed = [record for record in self._running if id(record) not in self._places]
        placed.sort(key=lambda record: -(record.started or 0))
        lists: dict[str, list[msgspec.Struct]] = {name: [] for name in RESOURCES}
        lists |= {
            "nodes": [self._node_row(name) for name in self._names],
            "queue": [*waiting],
            "jobs": [*map(self._job, placed), *waiting],
            "plan": [*self._plan()],
            "promises": [*self._promises()],
        }
        meta = wire.ListMeta(resource_version="1", taken=_stamp(self._now) or "", scheduler="simulation")
        tally = self._run.queue.promises.tally
        broken = {code.value: count for code, count in tally.broken.items()}
        totals = {"promises": wire.PromiseTotals(kept=tally.kept, broken=broken)}
        details = {f"{_NAMESPACE}/{each.key}": each for each in (*self._running, *self._pending)}
        saved = {
            "kind": "SavedView",
            "lists": {
                name: wire.ItemList(
                    kind=RESOURCES[name][0],
                    metadata=meta,
                    items=rows,
                    totals=totals.get(name, msgspec.UNSET),
                )
                for name, rows in lists.items()
            },
            "jobs": {
                key: {"kind": "JobDetail", "metadata": meta, "items": [self._detail(record)]}
                for key, record in details.items()
            },
        }
        return msgspec.json.encode(saved)

    def _allocations(self, record: JobRecord) -> list[Allocation]:
        reserved = () if record.reservation is None else (record.reservation,)
        return [*record.running.values(), *reserved]

    def _job(self, record: JobRecord, place: int | None = None) -> wire.Job:
        job, held = record.job, self._allocations(record)
        names = {name for each in held for name in self._nodes_of.get(id(each), ())}
        reason: tuple[Reason, ...] = (record.story[-1].reason,) if record.story and place is not None else ()
        amounts = self._run.queue.planner.amounts(job.request)
        return wire.Job(
            state=_state(record, place).value,
            position=None if place is None else place + 1,
            namespace=_NAMESPACE,
            name=record.key,
            kind="Job",
            gang=f"{_NAMESPACE}/{record.key}",
            user=job.user,
            queue=job.queue,
            priority=job.priority,
            pods=job.tasks,
            requests={name: str(amount) for name, amount in amounts.items()},
            nodes=sorted(names, key=natural_key),
            submitted=_stamp(job.submit),
            started=_stamp(record.started) if record.running else None,
            limit=None if job.limit is None else job.limit // 1000,
            no_later_than=_stamp(record.latest) if place is not None else None,
            expected=_stamp(record.expected) if place is not None else None,
            firm=place is not None and record.no_later_than is not None and record.firm,
            planned=wire.Window(start=_stamp(held[0].start) or "", end=_stamp(held[0].end)) if held else None,
            reasons=[wire.Why(code=each.code.value, message=messages.text(each)) for each in reason],
        )

    def _detail(self, record: JobRecord) -> wire.JobDetail:
        place = self._places.get(id(record))
        names = [name for each in self._allocations(record) for name in self._nodes_of.get(id(each), ())]
        return wire.JobDetail(
            job=self._job(record, place),
            story=[
                wire.Step(
                    at=_stamp(step.at) or "", state=step.state.value, message=messages.text(step.reason)
                )
                for step in record.story
            ],
            members=[wire.PodPlace(name=record.key, node=name) for name in names],
            broken=_broken(record),
            ahead=place,
            promised=_stamp(record.promised),
        )

    def _node_row(self, name: str) -> wire.Node:
        size, taken = self._sizes[name], self._taken[name]
        amount = wire.Amount(resource=self._unit, size=str(size), taken=str(taken), free=str(size - taken))
        return wire.Node(
            name=name,
            state="Ready",
            amounts=[amount],
            pods=len(self._users[name]),
            by=[
                wire.Use(namespace=_NAMESPACE, name=key, pods=1, until=_stamp(end))
                for key, end in self._users[name].items()
            ],
            next=_stamp(self._next.get(name)),
            labels={},
        )

    def _plan(self) -> Iterable[wire.PlanEntry]:
        entries = [
            (held, record)
            for record in {id(each): each for each in (*self._running, *self._pending)}.values()
            for held in self._allocations(record)
        ]
        for held, record in sorted(entries, key=lambda entry: entry[0].start):
            state = JobState.RESERVED if held.reserved else JobState.RUNNING
            yield wire.PlanEntry(
                state=state.value,
                start=_stamp(held.start) or "",
                end=_stamp(held.end),
                nodes=self._nodes_of.get(id(held), []),
                namespace=_NAMESPACE,
                name=record.key,
                pods=1,
            )

    def _promises(self) -> Iterable[wire.Promise]:
        for record in (*self._pending, *self._running):
            if record.promised is None and record.no_later_than is None and not record.broken:
                continue
            waits = record.started is None
            yield wire.Promise(
                namespace=_NAMESPACE,
                name=record.key,
                state=record.state.value,
                no_later_than=_stamp(record.latest) if waits else None,
                expected=_stamp(record.expected) if waits else None,
                firm=waits and record.firm,
                first=_stamp(record.promised),
                broken=_broken(record),
            )


def _state(record: JobRecord, place: int | None) -> JobState:
    if place is None:
        return JobState.RUNNING
    return JobState.PENDING if record.reservation is None else JobState.RESERVED


def _broken(record: JobRecord) -> list[wire.Broken]:
    return [
        wire.Broken(
            at=_stamp(each.at) or "",
            promised=_stamp(each.promised) or "",
            cause=wire.Why(code=each.cause.code.value, message=messages.text(each.cause)),
        )
        for each in record.broken
    ]


def _stamp(at: int | None) -> str | None:
    """A time of the trace; None where it is not known."""
    return None if at is None or at >= FOREVER // 2 else rfc3339((_BEGIN + at) * 1000)
