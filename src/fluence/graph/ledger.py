"""The ledger: the only record of allocations and reservations, by job and vertex, with their times.

A span records that a job uses a vertex during [start, end). An exclusive span takes an amount of the vertex.
A shared span takes nothing, but prevents other jobs from getting the vertex exclusively. Spans are rows of
numbers: a few array operations write or erase a job with fifty thousand vertices. Each vertex has a doubly
linked list of its spans, so the cost of a query about a vertex depends only on its own spans. The matcher and
the gang placer write to the ledger, and every search reads it.

The times of a job are stored only here: allocations of the queue and holdings of gangs are handles to a
`LedgerJob`. All changes since a `mark` can be undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fluence.errors import Conflict, NotFound
from fluence.graph.columns import Ints, Mask, Rows, scalars

_FEW_SPANS = 4096  # dead spans that are always allowed
NO_SPANS: Rows = np.empty(0, np.int32)

Watcher = Callable[["LedgerJob", int], None]  # a job was added (+1), or is about to be removed (-1)


@dataclass(slots=True, eq=False)
class LedgerJob:
    """The spans of a job and its times. Before it is written to a ledger, it has no slot and no spans."""

    id: int
    start: int
    end: int
    reserved: bool  # a reservation; False: an allocation
    slot: int = -1
    spans: Rows = field(default_factory=lambda: NO_SPANS)  # rows of the ledger


@dataclass(frozen=True, slots=True)
class _Change:
    """The state of a job before a change."""

    job: LedgerJob
    end: int
    columns: tuple[Rows, Ints, Mask] | None  # its resources, if it was removed
    was_there: bool


class Ledger:
    """All spans of all jobs over the rows of one graph."""

    def __init__(self, rows: int, size: Ints) -> None:
        self.size = size
        self.jobs: dict[int, LedgerJob] = {}
        self.generation = 0
        self.head: Rows = np.full(rows, -1, np.int32)
        # spans
        self.vertex: Rows = np.empty(0, np.int32)
        self.owner: Rows = np.empty(0, np.int32)  # slot of the job
        self.needs: Ints = np.empty(0, np.int64)
        self.exclusive: Mask = np.empty(0, np.bool_)
        self.next: Rows = np.empty(0, np.int32)
        self.previous: Rows = np.empty(0, np.int32)
        self._used = 0
        self._dead = 0
        # jobs by slot
        self.start: list[int] = []
        self.end: list[int] = []
        self.allocated: list[bool] = []
        self.job_at: list[LedgerJob | None] = []
        self._free_slots: list[int] = []
        self._times: list[int] | None = None
        self.watchers: list[Watcher] = []
        self._changes: list[_Change] | None = None  # None: no mark is set
        self._views()

    # -- writing ---------------------------------------------------------------------------------------------

    def add(
        self,
        job: int,
        *,
        start: int,
        end: int,
        reserved: bool,
        vertices: Rows,
        needs: Ints,
        exclusive: Mask,
    ) -> LedgerJob:
        """Record the resources of a job; each vertex at most once."""
        record = LedgerJob(job, start, end, reserved)
        self.write(record, vertices, needs, exclusive)
        return record

    def write(self, record: LedgerJob, vertices: Rows, needs: Ints, exclusive: Mask) -> None:
        """Record a job that the caller has made; each vertex at most once."""
        if record.id in self.jobs:
            raise Conflict(f"job {record.id} already holds resources: cancel it first or choose another id")
        self._note(record, was_there=False)
        self._insert(record, vertices, needs, exclusive)

    def rewrite(self, record: LedgerJob, vertices: Rows, needs: Ints, exclusive: Mask) -> None:
        """Replace the vertices of a job. This cannot be undone: only events do it, never a search."""
        self._leaving(record)
        self._unlink(record.spans)
        record.spans = NO_SPANS
        self._compact_if_sparse()
        self._link(record, vertices, needs, exclusive)
        self._arrived(record)

    def remove(self, job: int) -> LedgerJob:
        """Remove a job with all its spans."""
        record = self.job(job)
        self._note(record, was_there=True, with_columns=True)
        self._delete(record)
        return record

    def stretch(self, job: int, end: int) -> None:
        """Change the end of a job."""
        record = self.job(job)
        self._note(record, was_there=True)
        self._set_end(record, end)

    def release(self, job: int, spans: Rows) -> None:
        """Remove some spans of a job; the job stays, even without spans."""
        record = self.job(job)
        self._unlink(spans)
        record.spans = np.setdiff1d(record.spans, spans).astype(np.int32)
        self._touched()

    def clear(self, vertices: Rows) -> dict[int, Rows]:
        """Remove every span on some vertices; returns the vertices that each job lost."""
        lost: dict[int, Rows] = {}
        gone = np.zeros(len(self.head), np.bool_)
        gone[vertices] = True
        for record in list(self.jobs.values()):
            hit = record.spans[gone[self.vertex[record.spans]]]
            if len(hit):
                lost[record.id] = self.vertex[hit].copy()
                self.release(record.id, hit)
        return lost

    def grow(self, rows: int, size: Ints) -> None:
        """The graph has more rows now."""
        more = rows - len(self.head)
        self.head = np.concatenate((self.head, np.full(more, -1, np.int32)))
        self.size = size
        self._views()
        self._touched()

    # -- undoing ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """A position to which `undo` can return, until `settle`."""
        if self._changes is None:
            self._changes = []
        return len(self._changes)

    def undo(self, mark: int) -> list[tuple[LedgerJob, bool]]:
        """Undo what was added, removed and stretched since a mark, the last first. Returns the jobs that were
        removed (False) or restored (True)."""
        changes, self._changes = self._changes or [], None
        undone: list[tuple[LedgerJob, bool]] = []
        for change in reversed(changes[mark:]):
            record = change.job
            if not change.was_there:
                self._delete(record)
                undone.append((record, False))
            elif change.columns is not None:
                record.end = change.end
                self._insert(record, *change.columns)
                undone.append((record, True))
            else:
                self._set_end(record, change.end)
        self._changes = changes[:mark]
        return undone

    def settle(self) -> None:
        """Keep all changes: they cannot be undone any more."""
        self._changes = None

    # -- asking one vertex -----------------------------------------------------------------------------------

    def is_shared(self, vertex: int, start: int, end: int) -> bool:
        """Whether any job touches the vertex during a window."""
        span = self.heads[vertex]
        owners, nexts, starts, ends = self.owners, self.nexts, self.start, self.end
        while span >= 0:
            slot = owners[span]
            if starts[slot] < end and ends[slot] > start:
                return True
            span = nexts[span]
        return False

    def is_allocated(self, vertex: int) -> bool:
        """Whether a running job holds the vertex exclusively, even if it is past its end."""
        span = self.heads[vertex]
        while span >= 0:
            if self.exclusives[span] and self.allocated[self.owners[span]]:
                return True
            span = self.nexts[span]
        return False

    def available(self, vertex: int, start: int, end: int) -> int:
        """The amount of the vertex that is free during a whole window."""
        size = self.sizes[vertex]
        span = self.heads[vertex]
        if span < 0:
            return size
        held: list[tuple[int, int]] = []
        while span >= 0:
            needs = self.amounts[span]
            if needs and self.exclusives[span]:
                slot = self.owners[span]
                from_, to = self.start[slot], self.end[slot]
                if from_ < end and to > start:
                    held.append((from_, needs))
                    held.append((to, -needs))
            span = self.nexts[span]
        if not held:
            return size
        held.sort()  # at one instant, ends come before starts
        most = now = 0
        for _, change in held:
            now += change
            most = max(most, now)
        return size - most

    # -- asking many -----------------------------------------------------------------------------------------

    def job(self, job: int) -> LedgerJob:
        try:
            return self.jobs[job]
        except KeyError:
            raise NotFound(f"no job {job} holds or awaits resources") from None

    def columns(self, record: LedgerJob) -> tuple[Rows, Ints, Mask]:
        """The resources of a job: vertices, amounts, and whether each is exclusive."""
        spans = record.spans
        return self.vertex[spans], self.needs[spans], self.exclusive[spans]

    def spans_in(self, start: int, end: int, *, running: bool) -> tuple[Rows, Rows]:
        """The spans that overlap a window; and, with ``running``, the other spans of running jobs."""
        owner = self.owner[: self._used]
        alive = owner >= 0
        slot = np.where(alive, owner, 0)
        from_, to = np.array(self.start, np.int64), np.array(self.end, np.int64)
        meets = alive & ((from_ < end) & (to > start))[slot]
        rest = np.zeros(0, np.int64)
        if running:
            rest = np.flatnonzero(alive & ~meets & np.array(self.allocated, np.bool_)[slot])
        return np.flatnonzero(meets).astype(np.int32), rest.astype(np.int32)

    def times(self) -> list[int]:
        """When any job starts or ends, ascending."""
        if self._times is None:
            jobs = self.jobs.values()
            self._times = sorted({job.start for job in jobs} | {job.end for job in jobs})
        return self._times

    # -- inside ----------------------------------------------------------------------------------------------

    def _note(self, record: LedgerJob, *, was_there: bool, with_columns: bool = False) -> None:
        if self._changes is not None:
            columns = self.columns(record) if with_columns else None
            self._changes.append(_Change(record, record.end, columns, was_there))

    def _insert(self, record: LedgerJob, vertices: Rows, needs: Ints, exclusive: Mask) -> None:
        slot = record.slot = self._take_slot()
        self.start[slot], self.end[slot], self.allocated[slot] = record.start, record.end, not record.reserved
        self.job_at[slot] = record
        self.jobs[record.id] = record
        self._link(record, vertices, needs, exclusive)
        self._arrived(record)

    def _delete(self, record: LedgerJob) -> None:
        self._leaving(record)
        self._unlink(record.spans)
        self._drop(record)

    def _set_end(self, record: LedgerJob, end: int) -> None:
        self._leaving(record)
        record.end = self.end[record.slot] = end
        self._arrived(record)

    def _leaving(self, record: LedgerJob) -> None:
        for watcher in self.watchers:
            watcher(record, -1)
        self._touched()

    def _arrived(self, record: LedgerJob) -> None:
        self._touched()
        for watcher in self.watchers:
            watcher(record, 1)

    def _link(self, record: LedgerJob, vertices: Rows, needs: Ints, exclusive: Mask) -> None:
        """Put new spans of a job at the heads of the lists of their vertices."""
        count = len(vertices)
        self._reserve_spans(count)
        first, last = self._used, self._used + count
        spans = np.arange(first, last, dtype=np.int32)
        self.vertex[first:last] = vertices
        self.owner[first:last] = record.slot
        self.needs[first:last] = needs
        self.exclusive[first:last] = exclusive
        heads = self.head[vertices]
        self.next[first:last] = heads
        self.previous[first:last] = -1
        behind = heads >= 0
        self.previous[heads[behind]] = spans[behind]
        self.head[vertices] = spans
        self._used = last
        record.spans = spans

    def _unlink(self, spans: Rows) -> None:
        """Take spans of one job out of their lists; no two of them are on one vertex."""
        before, after, vertices = self.previous[spans], self.next[spans], self.vertex[spans]
        heads = before < 0
        self.head[vertices[heads]] = after[heads]
        self.next[before[~heads]] = after[~heads]
        tails = after >= 0
        self.previous[after[tails]] = before[tails]
        self.owner[spans] = -1
        self._dead += len(spans)

    def _drop(self, record: LedgerJob) -> None:
        """Forget a job whose spans are unlinked."""
        del self.jobs[record.id]
        self.job_at[record.slot] = None
        self._free_slots.append(record.slot)
        self._compact_if_sparse()

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self.start.append(0)
        self.end.append(0)
        self.allocated.append(False)
        self.job_at.append(None)
        return len(self.start) - 1

    def _reserve_spans(self, count: int) -> None:
        need = self._used + count
        if need <= len(self.vertex):
            return
        size = max(need, 2 * len(self.vertex), 1024)
        for column in ("vertex", "owner", "needs", "exclusive", "next", "previous"):
            old = getattr(self, column)
            new = np.empty(size, old.dtype)
            new[: self._used] = old[: self._used]
            setattr(self, column, new)
        self._views()

    def _compact_if_sparse(self) -> None:
        if self._dead > _FEW_SPANS and self._dead * 2 > self._used:
            self._compact()

    def _compact(self) -> None:
        """Remove dead spans and renumber the links."""
        keep = np.flatnonzero(self.owner[: self._used] >= 0)
        place = np.full(self._used + 1, -1, np.int32)  # the last entry means "none"
        place[keep] = np.arange(len(keep), dtype=np.int32)
        for column in ("vertex", "owner", "needs", "exclusive"):
            values = getattr(self, column)
            values[: len(keep)] = values[keep]
        for column in ("next", "previous"):
            links = getattr(self, column)
            links[: len(keep)] = place[links[keep]]
        touched = self.head >= 0
        self.head[touched] = place[self.head[touched]]
        for job in self.jobs.values():
            job.spans = place[job.spans]
        self._used, self._dead = len(keep), 0

    def _views(self) -> None:
        self.heads = scalars(self.head)
        self.owners = scalars(self.owner)
        self.nexts = scalars(self.next)
        self.exclusives = scalars(self.exclusive)
        self.amounts = scalars(self.needs)
        self.sizes = scalars(self.size)

    def _touched(self) -> None:
        self.generation += 1
        self._times = None
