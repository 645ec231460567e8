"""Who holds which vertex, from when to when: spans in columns, linked per vertex.

A span says that a job touches a vertex during [start, end). An exclusive span takes an amount of it; a
shared span takes nothing and only keeps others from having the vertex for themselves. Spans are rows of
numbers: a job over fifty thousand vertices is written and erased by a handful of array operations. Each
vertex heads a doubly linked list of its spans, so that asking one vertex about one window costs only what
that vertex carries. The matcher and the gang placer write to it, every search reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fluence.errors import Conflict, NotFound
from fluence.graph.columns import Ints, Mask, Rows, scalars


@dataclass(slots=True)
class LedgerJob:
    """What a job holds, and when."""

    id: int
    start: int
    end: int
    reserved: bool  # promised for later; False: allocated
    slot: int
    spans: Rows  # rows of the ledger


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
        """Record what a job holds; each vertex at most once."""
        if job in self.jobs:
            raise Conflict(f"job {job} already holds resources: cancel it first or choose another id")
        count = len(vertices)
        self._reserve_spans(count)
        first, last = self._used, self._used + count
        spans = np.arange(first, last, dtype=np.int32)
        slot = self._take_slot()
        self.vertex[first:last] = vertices
        self.owner[first:last] = slot
        self.needs[first:last] = needs
        self.exclusive[first:last] = exclusive
        heads = self.head[vertices]
        self.next[first:last] = heads
        self.previous[first:last] = -1
        behind = heads >= 0
        self.previous[heads[behind]] = spans[behind]
        self.head[vertices] = spans
        self._used = last
        record = LedgerJob(job, start, end, reserved, slot, spans)
        self.start[slot], self.end[slot], self.allocated[slot] = start, end, not reserved
        self.job_at[slot] = record
        self.jobs[job] = record
        self._touched()
        return record

    def remove(self, job: int) -> LedgerJob:
        """Erase all that a job holds."""
        record = self.job(job)
        self._unlink(record.spans)
        self._drop(record)
        return record

    def stretch(self, job: int, end: int) -> None:
        """A job lasts until another time than was thought."""
        record = self.job(job)
        record.end = self.end[record.slot] = end
        self._touched()

    def release(self, job: int, spans: Rows) -> None:
        """Erase some spans of a job; the job stays, even with none."""
        record = self.job(job)
        self._unlink(spans)
        record.spans = np.setdiff1d(record.spans, spans).astype(np.int32)
        self._touched()

    def clear(self, vertices: Rows) -> dict[int, Rows]:
        """Erase every span on some vertices; says which vertices each job lost there."""
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

    # -- asking one vertex -----------------------------------------------------------------------------------

    def is_untouched(self, vertex: int) -> bool:
        return self.heads[vertex] < 0

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
        """Whether a job that runs now has the vertex for itself, be it past its end."""
        span = self.heads[vertex]
        while span >= 0:
            if self.exclusives[span] and self.allocated[self.owners[span]]:
                return True
            span = self.nexts[span]
        return False

    def available(self, vertex: int, start: int, end: int) -> int:
        """How much of the vertex is free throughout a window."""
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
        held.sort()  # at one instant, what ends is given back before what starts is taken
        most = now = 0
        for _, change in held:
            now += change
            most = max(most, now)
        return size - most

    def spans_at(self, vertex: int) -> Iterator[int]:
        """The spans on a vertex, newest first."""
        span = self.heads[vertex]
        while span >= 0:
            yield span
            span = self.nexts[span]

    def jobs_at(self, vertex: int) -> list[LedgerJob]:
        """The jobs that touch a vertex."""
        found = (self.job_at[self.owners[span]] for span in self.spans_at(vertex))
        return [job for job in found if job is not None]

    # -- asking many -----------------------------------------------------------------------------------------

    def job(self, job: int) -> LedgerJob:
        try:
            return self.jobs[job]
        except KeyError:
            raise NotFound(f"no job {job} holds or awaits resources") from None

    def overlapping(self, start: int, end: int) -> list[LedgerJob]:
        """The jobs whose time meets a window."""
        return [job for job in self.jobs.values() if job.start < end and job.end > start]

    def spans_in(self, start: int, end: int, *, running: bool) -> tuple[Rows, Rows]:
        """The spans that meet a window; and, if asked for, the others of jobs that run."""
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
        del self.jobs[record.id]
        self.job_at[record.slot] = None
        self._free_slots.append(record.slot)
        if self._dead > 4096 and self._dead * 2 > self._used:
            self._compact()
        self._touched()

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

    def _compact(self) -> None:
        """Move the living spans together and renumber the links."""
        keep = np.flatnonzero(self.owner[: self._used] >= 0)
        place = np.full(self._used + 1, -1, np.int32)  # the last entry stands for "none"
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
