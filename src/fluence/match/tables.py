"""The index: tables of a graph's vertices by type, and the rows that are not free in a window.

::

    parent   node0                node1               …
    cores    c0 c1 c2 … c31       c0 c1 c2 … c31       …      rows, grouped by parent, best first
    fits     1  0  1  … 1         1  1  1  … 1         …      in one window

A `VertexTable` does not change while the graph keeps its shape. A `HeldView` has only the rows that are *not*
completely free, so its cost depends on the allocations, not on the size of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from fluence.graph.columns import NO_ROWS, Ints, Mask, Rows, Tree
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger, LedgerJob
from fluence.match.policy import MatchPolicy, VisitOrder
from fluence.match.request import NONE, Extensions, Window

_STABLE = 16  # std::sort keeps the order of equal elements up to this size
_MANY_JOBS = 64
_SHAPES = 64  # kinds of requests whose columns are kept
_Int = TypeVar("_Int", np.int32, np.int64)
_Effect = TypeVar("_Effect")


class Unsupported(Exception):
    """The request or the graph is not regular enough for the index; the walk decides."""


@dataclass(frozen=True, slots=True)
class VertexTable:
    """The vertices of one type, grouped by parent, best first within a group."""

    type: int
    rows: Rows
    parents: Rows  # one per group, ascending; -1 is the group of the root
    start: Ints  # group g is rows[start[g]:start[g + 1]]
    group: Ints  # of each row
    size: Ints
    score: Ints
    count: Ints  # rows per group
    total: Ints  # size per group
    uniform: Ints  # the size of all rows of a group; 0 if they differ
    is_sorted: bool  # no group has ties that a stable order would not break
    is_unit: bool  # all sizes are 1
    is_aligned: bool  # best first is also newest first, the order of a search that stops early

    def groups_of(self, vertices: Rows) -> tuple[Ints, Mask]:
        """The group below each vertex, and whether there is one."""
        if not len(self.parents):
            return np.zeros(len(vertices), np.int64), np.zeros(len(vertices), np.bool_)
        at = np.minimum(np.searchsorted(self.parents, vertices), len(self.parents) - 1)
        return at, self.parents[at] == vertices


@dataclass(frozen=True, slots=True)
class Frame:
    """The positions of the parts of a slot below the rows of a table."""

    rows: Rows  # rows with a direct child of every type of the slot
    holds: Mask | None  # which rows of the table these are; None: all
    groups: tuple[Ints, ...]  # per part of the slot, the group below each of these rows


class HeldView:
    """The rows that are not completely free during one window, by type."""

    def __init__(self, index: Index, window: Window) -> None:
        self.index = index
        self.window = window
        self._positions: dict[tuple[int, str], Ints] = {}
        self._lost: dict[tuple[int, bool], Ints] = {}
        self._fits: dict[tuple[int, bool], Mask] = {}
        self._counts: dict[tuple[int, bool], tuple[Ints, Ints]] = {}
        self._available: dict[int, Ints] = {}
        self.down, self.shared, self.gone, self.part = NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS
        self.left: Ints = np.empty(0, np.int64)  # of the rows that are partly taken
        self._pieces: tuple[list[Piece], list[Piece]] | None = None
        if not window.healthy:
            self.down = index.down_rows()
        if window.empty:
            return
        self._pieces = _pieces(index, window)
        if self._pieces is not None:
            gone = [piece.blocks for piece in self._pieces[0] if len(piece.blocks)]
            self.gone = np.concatenate(gone) if gone else NO_ROWS
            return
        touched, rows, needs, owned = _held(index.ledger, window)
        total = index.graph.rows
        self.shared = _distinct(np.concatenate((touched, owned)) if len(owned) else touched, total)
        # Most rows are held completely, by one job at a time; for the others the ledger is asked row by row.
        full = needs >= index.graph.size[rows]
        self.gone = _distinct(rows[full], total)
        if not bool(full.all()):
            part = np.setdiff1d(rows[~full], self.gone)
            left = self._left(part, rows, needs)
            self.gone = np.concatenate((self.gone, part[left <= 0]))
            self.part, self.left = part[left > 0], left[left > 0]

    def _left(self, part: Rows, rows: Rows, needs: Ints) -> Ints:
        """The free amount of some rows, for all at once if possible, else row by row."""
        ledger, window = self.index.ledger, self.window
        starts = [
            job.start for job in ledger.jobs.values() if job.start < window.end and job.end > window.start
        ]
        if max(starts, default=0) <= window.start:
            # All spans that overlap the window began by its start, which is when the most is taken.
            taken = np.bincount(rows, weights=needs, minlength=self.index.graph.rows)[part]
            return self.index.graph.size[part] - taken.astype(np.int64)
        return np.array([ledger.available(v, window.start, window.end) for v in part.tolist()], np.int64)

    def lost(self, table: VertexTable, exclusive: bool) -> Ints:
        """The positions in a table that are down, taken or, for exclusive needs, touched by other jobs."""
        exclusive = exclusive and table.type not in self.index.pools
        key = (table.type, exclusive)
        found = self._lost.get(key)
        if found is None:
            whats = ("down", "shared", "gone") if exclusive else ("down", "gone")
            parts = [at for what in whats if len(at := self._at(table, what))]
            if not parts:
                found = np.empty(0, np.int64)
            else:
                found = parts[0] if len(parts) == 1 else _distinct(np.concatenate(parts), len(table.rows))
            self._lost[key] = found
        return found

    def fits(self, table: VertexTable, exclusive: bool) -> Mask:
        """The available rows of a table, as a mask."""
        key = (table.type, exclusive)
        found = self._fits.get(key)
        if found is None:
            found = np.ones(len(table.rows), np.bool_)
            found[self.lost(table, exclusive)] = False
            self._fits[key] = found
        return found

    def counts(self, table: VertexTable, exclusive: bool) -> tuple[Ints, Ints]:
        """Per group of a table: the number of available rows, and their total amount."""
        key = (table.type, exclusive)
        found = self._counts.get(key)
        if found is None:
            lost = self.lost(table, exclusive)
            available = self.available(table)
            count, total = table.count, table.total
            if available is not table.size:
                total = np.add.reduceat(available, table.start[:-1])
            if len(lost):
                groups = table.group[lost]
                off = np.bincount(groups, minlength=len(count))
                count = count - off
                if table.is_unit and available is table.size:
                    total = count
                else:
                    weight = np.bincount(groups, weights=available[lost], minlength=len(count))
                    total = total - weight.astype(np.int64)
            found = self._counts[key] = (count, total)
        return found

    def available(self, table: VertexTable) -> Ints:
        """The free amount of each row of a table."""
        found = self._available.get(table.type)
        if found is None:
            found = table.size
            at = self._at(table, "part")
            if len(at):
                found = table.size.copy()
                mine = self.index.graph.type[self.part] == table.type
                found[at] = self.left[mine & (self.index.place[self.part] >= 0)]
            self._available[table.type] = found
        return found

    def blocks(self) -> Rows:
        """The inner vertices that block everything below them: down, or taken completely."""
        inner = self.index.inner
        parts = [rows[inner[rows]] for rows in (self.down, self.gone) if len(rows)]
        return np.concatenate(parts) if parts else NO_ROWS

    def _at(self, table: VertexTable, what: str) -> Ints:
        found = self._positions.get((table.type, what))
        if found is None and self._pieces is not None and what in ("shared", "gone"):
            met, late = self._pieces
            of = [piece.touched if what == "shared" else piece.gone for piece in met]
            of += [piece.owned for piece in late] if what == "shared" else []
            parts = [positions[table.type] for positions in of if table.type in positions]
            found = np.concatenate(parts) if parts else np.empty(0, np.int64)
            if len(parts) > 1:
                found = _distinct(found, len(table.rows))
            self._positions[table.type, what] = found
        if found is None:
            rows = getattr(self, what)
            rows = rows[self.index.graph.type[rows] == table.type]
            at = self.index.place[rows].astype(np.int64)
            found = self._positions[table.type, what] = at[at >= 0]  # the others were removed
        return found


@dataclass(frozen=True, slots=True)
class Piece:
    """The effect of one job on the tables, computed once: positions by type."""

    touched: dict[int, Ints]
    owned: dict[int, Ints]  # exclusively
    gone: dict[int, Ints]  # exclusively and completely
    blocks: Rows  # the inner vertices among those
    is_whole: bool  # it takes every vertex completely


def _pieces(index: Index, window: Window) -> tuple[list[Piece], list[Piece]] | None:
    """The pieces of the jobs that overlap a window, and of the jobs past their end; None if there are many
    jobs, or some take parts of vertices."""
    ledger = index.ledger
    if len(ledger.jobs) > _MANY_JOBS:
        return None
    met: list[LedgerJob] = []
    late: list[LedgerJob] = []
    for job in ledger.jobs.values():
        if job.start < window.end and job.end > window.start:
            met.append(job)
        elif window.allocate and not job.reserved:
            late.append(job)
    pieces = index.pieces(met)
    return (pieces, index.pieces(late)) if all(piece.is_whole for piece in pieces) else None


def _distinct(rows: npt.NDArray[_Int], total: int) -> npt.NDArray[_Int]:
    """The distinct rows, in no particular order."""
    if len(rows) * 16 < total:
        return np.unique(rows)
    marks = np.zeros(total, np.bool_)
    marks[rows] = True
    return np.flatnonzero(marks).astype(rows.dtype)


def _held(ledger: Ledger, window: Window) -> tuple[Rows, Rows, Ints, Rows]:
    """The rows touched in a window; the rows held exclusively in it, with amounts; and the rows that running
    jobs hold exclusively at any time."""
    start, end = window.start, window.end
    if len(ledger.jobs) > _MANY_JOBS:
        spans, late = ledger.spans_in(start, end, running=window.allocate)
    else:
        met: list[Rows] = []
        rest: list[Rows] = []
        for job in ledger.jobs.values():
            if job.start < end and job.end > start:
                met.append(job.spans)
            elif window.allocate and not job.reserved:
                rest.append(job.spans)  # past its end, a job keeps its resources
        spans = np.concatenate(met) if met else NO_ROWS
        late = np.concatenate(rest) if rest else NO_ROWS
    alone = spans[ledger.exclusive[spans] & (ledger.needs[spans] > 0)]
    owned = ledger.vertex[late[ledger.exclusive[late]]]
    return ledger.vertex[spans], ledger.vertex[alone], ledger.needs[alone], owned


class JobEffects(Generic[_Effect]):
    """The effect of each job of a ledger on some count, computed once while the job keeps its spans."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[int, tuple[Rows, _Effect]] = {}

    def of(self, job: LedgerJob, make: Callable[[LedgerJob], _Effect]) -> _Effect:
        known = self._known.get(job.id)
        if known is None or known[0] is not job.spans:
            known = self._known[job.id] = (job.spans, make(job))
            jobs = self._ledger.jobs
            if len(self._known) > 2 * len(jobs) + 64:
                self._known = {id_: effect for id_, effect in self._known.items() if id_ in jobs}
        return known[1]


class Index:
    """Tables over one graph, one tree and one policy."""

    def __init__(
        self,
        graph: ResourceGraph,
        tree: Tree,
        ledger: Ledger,
        policy: MatchPolicy,
        scores: Ints,
        factors: Ints | None,
        load: VisitOrder,
        extensions: Extensions = NONE,
    ) -> None:
        self.graph, self.tree, self.ledger, self.policy, self.scores = graph, tree, ledger, policy, scores
        self.factors, self.load = factors, load
        self.keep_shared = extensions.shared
        self.constrained = extensions.constrained
        self.pools = frozenset(graph.types.code(word) for word in extensions.quantities)
        self.place: Rows = np.full(graph.rows, -1, np.int32)  # of each row in the table of its type
        self._tables: dict[int, VertexTable] = {}
        self._groups: dict[tuple[int, int], tuple[Ints, Mask]] = {}
        self._tops: LRUCache[tuple[int, frozenset[int]], Rows] = LRUCache(_SHAPES)
        self._holders: LRUCache[tuple[int, ...], Rows] = LRUCache(_SHAPES)
        self._frames: LRUCache[tuple[int, tuple[int, ...]], Frame] = LRUCache(_SHAPES)
        self._banned: tuple[Mask, Rows] | None = None
        self._effects: LRUCache[tuple[object, ...], JobEffects[Any]] = LRUCache(_SHAPES)
        self._pieces: JobEffects[Piece] = JobEffects(ledger)
        self._down: tuple[int, Rows] | None = None
        self._view: tuple[int, int, Window, HeldView] | None = None
        inside = tree.order
        self.inner: Mask = np.diff(tree.child_start) > 0
        self.is_regular = (
            tree.is_tree
            and not policy.runs
            and policy.slot_best is None
            and int(graph.id[inside].min()) >= -1
            and int(graph.uniq_id[inside].min()) >= 0
        )

    # -- static columns --------------------------------------------------------------------------------------

    def table(self, type_: int) -> VertexTable:
        found = self._tables.get(type_)
        if found is None:
            found = self._tables[type_] = self._make_table(type_)
        return found

    def _make_table(self, type_: int) -> VertexTable:
        graph, tree = self.graph, self.tree
        rows = graph.vertices_of_type(type_)
        rows = rows[tree.pre[rows] >= 0]
        score = self.scores[rows] if self.policy.ascending else -self.scores[rows]
        parent = tree.parent[rows]
        by = np.lexsort((tree.pre[rows], score, parent))
        rows, score, parent = rows[by], score[by], parent[by]
        changes = np.flatnonzero(parent[1:] != parent[:-1]) + 1
        start = np.concatenate(([0], changes, [len(rows)]) if len(rows) else ([0],)).astype(np.int64)
        count = np.diff(start)
        group = np.repeat(np.arange(len(count)), count)
        size = graph.size[rows]
        total = np.add.reduceat(size, start[:-1]) if len(rows) else count
        first = size[start[:-1]]
        same = (np.add.reduceat(size != first[group], start[:-1]) == 0) if len(rows) else count == 0
        ties = (score[1:] == score[:-1]) & (parent[1:] == parent[:-1])
        self.place[rows] = np.arange(len(rows), dtype=np.int32)
        return VertexTable(
            type=type_,
            rows=rows,
            parents=parent[start[:-1]].astype(np.int32),
            start=start,
            group=group,
            size=size,
            score=score,
            count=count,
            total=total,
            uniform=np.where(same, first, 0),
            is_sorted=not bool((count[group[1:][ties]] > _STABLE).any()),
            is_unit=bool((size == 1).all()),
            is_aligned=bool(((np.diff(graph.uniq_id[rows]) < 0) | (parent[1:] != parent[:-1])).all()),
        )

    def groups(self, above: VertexTable, below: VertexTable) -> tuple[Ints, Mask]:
        """For each row of a table, its group in the table of a type below."""
        key = (above.type, below.type)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = below.groups_of(above.rows)
        return found

    def tops(self, type_: int, types: frozenset[int]) -> Rows:
        """The vertices of a type that have no vertex of these types above them, in preorder."""
        key = (type_, types)
        found = self._tops.get(key)
        if found is None:
            rows = self.table(type_).rows
            if len(types) > 1 or self._nests(type_):
                asked = np.isin(self.graph.type, list(types))
                first = np.ones(len(rows), np.bool_)
                above = self.tree.parent[rows]
                while (above >= 0).any():
                    first &= ~(asked[above] & (above >= 0))
                    above = np.where(above >= 0, self.tree.parent[above], -1)
                rows = rows[first]
            found = self._tops[key] = rows[np.argsort(self.tree.pre[rows], kind="stable")]
        return found

    def _nests(self, type_: int) -> bool:
        depth = self.tree.depth[self.table(type_).rows]
        return bool(len(depth)) and int(depth.min()) != int(depth.max())

    def holders(self, types: tuple[int, ...]) -> Rows:
        """The vertices that have a direct child of each of these types, ascending."""
        found = self._holders.get(types)
        if found is None:
            found = self.table(types[0]).parents
            for type_ in types[1:]:
                found = np.intersect1d(found, self.table(type_).parents)
            found = self._holders[types] = found[found >= 0]
        return found

    def frame(self, table: VertexTable, types: tuple[int, ...]) -> Frame:
        """The rows of a table at which slots of these types can be built.

        If a child of a row could hold the slot but the row itself cannot, Fluxion matches and then records
        nothing. The walk handles this case.
        """
        key = (table.type, types)
        found = self._frames.get(key)
        if found is None:
            holders = self.holders(tuple(sorted(set(types))))
            above = self.tree.parent[holders]
            above = above[above >= 0]
            above = above[self.graph.type[above] == table.type]
            if len(above) and not bool(np.isin(above, holders).all()):
                raise Unsupported
            holds = np.isin(table.rows, holders)
            rows = table.rows[holds]
            groups = tuple(self.table(type_).groups_of(rows)[0] for type_ in types)
            found = self._frames[key] = Frame(rows, None if bool(holds.all()) else holds, groups)
        return found

    def banned(self, allowed: Mask) -> Rows:
        """The rows that a constraint excludes."""
        if self._banned is None or self._banned[0] is not allowed:
            self._banned = (allowed, np.flatnonzero(~allowed).astype(np.int32))
        return self._banned[1]

    def down_rows(self) -> Rows:
        generation = self.graph.state_generation
        if self._down is None or self._down[0] != generation:
            self._down = (generation, np.flatnonzero(~self.graph.up).astype(np.int32))
        return self._down[1]

    def view(self, window: Window) -> HeldView:
        """The state in a window, cached until something changes."""
        now = (self.ledger.generation, self.graph.state_generation, window)
        if self._view is None or self._view[:3] != now:
            self._view = (*now, HeldView(self, window))
        return self._view[3]

    def piece(self, job: LedgerJob) -> Piece:
        """The effect of a job on the tables."""
        graph, ledger = self.graph, self.ledger
        rows = ledger.vertex[job.spans]
        alone = ledger.exclusive[job.spans]
        holds = alone & (ledger.needs[job.spans] > 0)
        whole = holds & (ledger.needs[job.spans] >= graph.size[rows])
        touched: dict[int, Ints] = {}
        owned: dict[int, Ints] = {}
        gone: dict[int, Ints] = {}
        for type_ in np.unique(graph.type[rows]).tolist():
            self.table(type_)
            mine = graph.type[rows] == type_
            for mask, into in ((mine, touched), (mine & alone, owned), (mine & whole, gone)):
                at = self.place[rows[mask]].astype(np.int64)
                into[type_] = at[at >= 0]
        return Piece(touched, owned, gone, rows[whole & self.inner[rows]], bool((holds == whole).all()))

    def pieces(self, jobs: Iterable[LedgerJob]) -> list[Piece]:
        """The effects of some jobs on the tables."""
        return [self._pieces.of(job, self.piece) for job in jobs]

    def effects(self, key: tuple[object, ...]) -> JobEffects[Any]:
        """The effects of jobs on a count. Equal keys must mean equal counts."""
        found = self._effects.get(key)
        if found is None:
            found = self._effects[key] = JobEffects(self.ledger)
        return found
