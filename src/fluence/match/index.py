"""The indexed search: the tree walk's answers for regular requests, by columns instead of vertex by vertex.

The vertices of one type lie in one table, sorted by parent and then by the policy's score::

    parent   node0                node1               …
    cores    c0 c1 c2 … c31       c0 c1 c2 … c31       …      rows, grouped by parent
    free     1  0  1  … 1         1  1  1  … 1         …      in the window asked about

How many candidates a vertex has below it is then a count per group, corrected by the few rows that somebody
holds; whether a vertex serves a need is a comparison of two columns; the best k of a group are its first k
free rows. A need is evaluated for all vertices of its type at once, from the leaves of the request up, and
only the vertices that were chosen are looked into on the way back down.

What cannot be put that way (several subsystems, shared vertices with several parents, alternatives, ties that
only the order of discovery breaks) is left to the walk: `search` says `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from errno import EBUSY
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fluence.graph.graph import NO_ROWS, Ints, Mask, ResourceGraph, Rows, Tree
from fluence.graph.ledger import Job, Ledger
from fluence.graph.selection import Selection
from fluence.match.extensions import NONE, Extensions
from fluence.match.load import LoadOrder
from fluence.match.policy import MatchPolicy
from fluence.match.request import Need
from fluence.match.sort import order
from fluence.match.walk import MET, Found, Window
from fluence.model.jobspec import Count

_STABLE = 16  # std::sort keeps the order of equal elements up to this many
_MANY_JOBS = 64
_MANY_WAYS = 2000
_Int = TypeVar("_Int", np.int32, np.int64)
_Effect = TypeVar("_Effect")


class Unsupported(Exception):
    """The request or the graph is not regular enough; the walk decides."""


@dataclass(frozen=True, slots=True)
class Table:
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
    uniform: Ints  # the size that all rows of a group have, 0 where they differ
    is_sorted: bool  # no group has ties that a stable order would not break
    is_unit: bool  # all sizes are 1
    is_aligned: bool  # best first is also newest first, as a search that stops early goes

    def groups_of(self, vertices: Rows) -> tuple[Ints, Mask]:
        """The group below each vertex, and whether there is one."""
        if not len(self.parents):
            return np.zeros(len(vertices), np.int64), np.zeros(len(vertices), np.bool_)
        at = np.minimum(np.searchsorted(self.parents, vertices), len(self.parents) - 1)
        return at, self.parents[at] == vertices


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the parts of a slot lie below the rows of a table."""

    rows: Rows  # those that have a direct child of every type of the slot
    holds: Mask | None  # which rows of the table these are; None: all
    groups: tuple[Ints, ...]  # per part of the slot, the group below each of these rows


class View:
    """Who stands in the way during one window: the rows that are not whole, by type."""

    def __init__(self, index: Index, window: Window) -> None:
        self.index = index
        self.window = window
        self._positions: dict[tuple[int, str], Ints] = {}
        self._lost: dict[tuple[int, bool], Ints] = {}
        self._fits: dict[tuple[int, bool], Mask] = {}
        self._counts: dict[tuple[int, bool], tuple[Ints, Ints]] = {}
        self._available: dict[int, Ints] = {}
        self.down, self.shared, self.gone, self.part = NO_ROWS, NO_ROWS, NO_ROWS, NO_ROWS
        self.left: Ints = np.empty(0, np.int64)  # of the rows of which a part is taken
        if not window.healthy:
            self.down = index.down_rows()
        if window.empty:
            return
        touched, rows, needs, owned = _held(index.ledger, window)
        total = index.graph.rows
        self.shared = _distinct(np.concatenate((touched, owned)) if len(owned) else touched, total)
        # Most of what is held is held whole, by one job at a time; the rest asks the ledger one by one.
        full = needs >= index.graph.size[rows]
        self.gone = _distinct(rows[full], total)
        if not bool(full.all()):
            part = np.setdiff1d(rows[~full], self.gone)
            left = self._left(part, rows, needs)
            self.gone = np.concatenate((self.gone, part[left <= 0]))
            self.part, self.left = part[left > 0], left[left > 0]

    def _left(self, part: Rows, rows: Rows, needs: Ints) -> Ints:
        """How much of some rows is left: what is taken in the window all at once, or asked one by one."""
        ledger, window = self.index.ledger, self.window
        starts = [
            job.start for job in ledger.jobs.values() if job.start < window.end and job.end > window.start
        ]
        if max(starts, default=0) <= window.start:
            # All that meets the window is there at its start, when the most is taken.
            taken = np.bincount(rows, weights=needs, minlength=self.index.graph.rows)[part]
            return self.index.graph.size[part] - taken.astype(np.int64)
        return np.array([ledger.available(v, window.start, window.end) for v in part.tolist()], np.int64)

    def lost(self, table: Table, exclusive: bool) -> Ints:
        """The positions in a table that are down, taken, or touched by others where that matters."""
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

    def fits(self, table: Table, exclusive: bool) -> Mask:
        """The same as a mask: which rows of a table can be had."""
        key = (table.type, exclusive)
        found = self._fits.get(key)
        if found is None:
            found = np.ones(len(table.rows), np.bool_)
            found[self.lost(table, exclusive)] = False
            self._fits[key] = found
        return found

    def counts(self, table: Table, exclusive: bool) -> tuple[Ints, Ints]:
        """Per group of a table: how many rows can be had, and how much that is."""
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

    def available(self, table: Table) -> Ints:
        """How much of each row of a table is left, where any is."""
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
        """The vertices with something below them that nobody gets past: down, or taken whole."""
        inner = self.index.inner
        parts = [rows[inner[rows]] for rows in (self.down, self.gone) if len(rows)]
        return np.concatenate(parts) if parts else NO_ROWS

    def _at(self, table: Table, what: str) -> Ints:
        found = self._positions.get((table.type, what))
        if found is None:
            rows = getattr(self, what)
            rows = rows[self.index.graph.type[rows] == table.type]
            at = self.index.place[rows].astype(np.int64)
            found = self._positions[table.type, what] = at[at >= 0]  # the others were removed
        return found


def _distinct(rows: npt.NDArray[_Int], total: int) -> npt.NDArray[_Int]:
    """Each row once, in no order that matters."""
    if len(rows) * 16 < total:
        return np.unique(rows)
    marks = np.zeros(total, np.bool_)
    marks[rows] = True
    return np.flatnonzero(marks).astype(rows.dtype)


def _held(ledger: Ledger, window: Window) -> tuple[Rows, Rows, Ints, Rows]:
    """The rows touched in a window; those of them held exclusively, with amounts; those that running jobs
    have for themselves at any time."""
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
                rest.append(job.spans)  # past its end, a job still has what it has
        spans = np.concatenate(met) if met else NO_ROWS
        late = np.concatenate(rest) if rest else NO_ROWS
    alone = spans[ledger.exclusive[spans] & (ledger.needs[spans] > 0)]
    owned = ledger.vertex[late[ledger.exclusive[late]]]
    return ledger.vertex[spans], ledger.vertex[alone], ledger.needs[alone], owned


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
        load: LoadOrder,
        extensions: Extensions = NONE,
    ) -> None:
        self.graph, self.tree, self.ledger, self.policy, self.scores = graph, tree, ledger, policy, scores
        self.factors, self.load = factors, load
        self.keep_shared = extensions.shared
        self.constrained = extensions.constrained
        self.pools = frozenset(graph.types.code(word) for word in extensions.quantities)
        self.place: Rows = np.full(graph.rows, -1, np.int32)  # of each row in the table of its type
        self._tables: dict[int, Table] = {}
        self._tops: dict[tuple[int, frozenset[int]], Rows] = {}
        self._groups: dict[tuple[int, int], tuple[Ints, Mask]] = {}
        self._holders: dict[tuple[int, ...], Rows] = {}
        self._frames: dict[tuple[int, tuple[int, ...]], Frame] = {}
        self._bans: tuple[int, Rows] | None = None
        self._effects: dict[int, tuple[Rows, dict[tuple[object, ...], Any]]] = {}
        self._down: tuple[int, Rows] | None = None
        self._view: tuple[int, int, Window, View] | None = None
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

    def table(self, type_: int) -> Table:
        found = self._tables.get(type_)
        if found is None:
            found = self._tables[type_] = self._make_table(type_)
        return found

    def _make_table(self, type_: int) -> Table:
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
        return Table(
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

    def groups(self, above: Table, below: Table) -> tuple[Ints, Mask]:
        """For each row of a table, its group in the table of a type below."""
        key = (above.type, below.type)
        found = self._groups.get(key)
        if found is None:
            found = self._groups[key] = below.groups_of(above.rows)
        return found

    def tops(self, type_: int, types: frozenset[int]) -> Rows:
        """The vertices of a type that a list of types meets first on the way down, in preorder."""
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

    def frame(self, table: Table, types: tuple[int, ...]) -> Frame:
        """Where slots of these types can be held among the rows of a table.

        Where a child of a row could hold the slot and the row itself cannot, Fluxion matches and then
        records nothing; that is left to the walk.
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
        if self._bans is None or self._bans[0] != id(allowed):
            self._bans = (id(allowed), np.flatnonzero(~allowed).astype(np.int32))
        return self._bans[1]

    def down_rows(self) -> Rows:
        generation = self.graph.state_generation
        if self._down is None or self._down[0] != generation:
            self._down = (generation, np.flatnonzero(~self.graph.up).astype(np.int32))
        return self._down[1]

    def view(self, window: Window) -> View:
        """The state in a window, kept while nothing changes."""
        now = (self.ledger.generation, self.graph.state_generation, window)
        if self._view is None or self._view[:3] != now:
            self._view = (*now, View(self, window))
        return self._view[3]

    def reachable(self, need: Need, window: Window, allowed: Mask | None) -> Mask:
        """Which vertices of a need's type can be had in a window, whatever is below them."""
        _check((need,), alone=False)
        view, table = View(self, window), self.table(need.type)
        fits = view.fits(table, need.exclusive is True)
        reached = _Search(self, (need,), view, allowed, frozenset()).reachable(table.rows)
        return fits if reached is None else fits & reached

    def effect(self, job: Job, key: tuple[object, ...], make: Callable[[Job], _Effect]) -> _Effect:
        """What a job does to something that is counted, worked out once per job."""
        known = self._effects.get(job.id)
        if known is None or known[0] is not job.spans:
            known = self._effects[job.id] = (job.spans, {})
            if len(self._effects) > 2 * len(self.ledger.jobs) + 64:
                self._effects = {id_: e for id_, e in self._effects.items() if id_ in self.ledger.jobs}
        if key not in known[1]:
            known[1][key] = make(job)
        found: _Effect = known[1][key]
        return found

    # -- searching -------------------------------------------------------------------------------------------

    def search(
        self, needs: tuple[Need, ...], window: Window, allowed: Mask | None, whole: frozenset[int]
    ) -> Found | None:
        """The walk's answer, or None where only the walk can tell."""
        if not self.is_regular:
            return None
        try:
            return _Search(self, needs, self.view(window), allowed, whole).run()
        except Unsupported:
            return None


class _Search:
    """One request in one window."""

    def __init__(
        self,
        index: Index,
        needs: tuple[Need, ...],
        view: View,
        allowed: Mask | None,
        whole: frozenset[int],
    ) -> None:
        self.index, self.needs, self.view, self.allowed, self.whole = index, needs, view, allowed, whole
        self._served: dict[int, Mask] = {}
        self._rows: list[Rows] = []
        self._amounts: list[Ints] = []
        self._alone: list[Mask] = []
        self._labels: dict[int, str] = {}

    def run(self) -> Found | None:
        needs = self.needs
        _check(needs, alone=False)
        if any(need.is_slot for need in needs):
            if len(needs) != 1:
                raise Unsupported
            found = self._place_slots(needs[0])
        else:
            found = all(self._place(need) for need in needs)
        if not found:
            return Found(None, EBUSY)
        selection = self._selection()
        if not len(selection):
            raise Unsupported  # nothing to hold: the walk knows what Fluxion says then
        return Found(selection)

    # -- the top of the request ------------------------------------------------------------------------------

    def _place(self, need: Need) -> bool:
        """Choose the vertices for one need of the top level."""
        index, table = self.index, self.index.table(need.type)
        served = self._serves(need, table, need.exclusive is True)
        tops = index.tops(need.type, frozenset(n.type for n in self.needs))
        at = index.place[tops]
        keep = served[at]
        reached = self.reachable(tops)
        keep = keep if reached is None else keep & reached
        if index.policy.stop_early:
            tops = self._first(tops[keep], need.most, self.view.available(table)[at[keep]])
            at = index.place[tops]
        else:
            at = at[keep]
        available = self.view.available(table)[at]
        amount = need.count.effective(int(available.sum()))
        if amount == 0:
            return False
        score = table.score[at]
        if index.factors is not None:
            # Where nodes lie above, what is below one node stays together.
            sign = 1 if index.policy.ascending else -1
            score = score + sign * self._factor(index.factors, index.tree.parent[table.rows[at]])
        chosen = self._best(score, available, amount)
        self._take(need, table, at[chosen].astype(np.int64), need.exclusive is True)
        return True

    def _first(self, rows: Rows, most: int, worth: Ints) -> Rows:
        """Of the rows that serve, those that a search finds before it has enough, in the order it finds them.

        At each vertex the search takes the children in the order of their load and stops when what it found
        below that vertex reaches ``most``. ``worth`` says what each row counts.
        """
        graph, tree, load = self.index.graph, self.index.tree, self.index.load
        if not len(rows):
            return rows
        value = np.zeros(graph.rows, np.int64)
        value[rows] = np.minimum(worth, most)
        over = np.unique(tree.parent[rows])
        ways = set(over.tolist())
        for vertex in over.tolist():
            ways.update(tree.ancestors(vertex))
        ways.discard(-1)
        if len(ways) > _MANY_WAYS or (len(self.needs) > 1 and ways != {tree.root}):
            raise Unsupported
        if -1 in over:
            return rows

        def collect(vertex: int) -> list[Rows]:
            children = np.fromiter(load.children(tree, vertex), np.int32)
            onward = (
                [i for i, child in enumerate(children.tolist()) if child in ways] if len(ways) > 1 else []
            )
            found: list[Rows] = []
            total = begin = 0
            for stop in (*onward, len(children)):
                run = children[begin:stop]
                run = run[value[run] > 0]
                reached = total + np.cumsum(value[run])
                enough = int(np.searchsorted(reached, most)) + 1
                found.append(run[:enough])
                if len(run):
                    total = int(reached[min(enough, len(run)) - 1])
                if total >= most or stop == len(children):
                    break
                inner = collect(int(children[stop]))
                found.extend(inner)
                total += sum(int(value[part].sum()) for part in inner)
                if total >= most:
                    break
                begin = stop + 1
            return found

        return np.concatenate(collect(tree.root)).astype(np.int32)

    def _place_slots(self, slot: Need) -> bool:
        """Choose slots among all vertices that can hold one and have no such vertex above them."""
        index = self.index
        if not slot.below:
            return False
        holders = index.holders(tuple(sorted({need.type for need in slot.below})))
        holders = self._highest(holders)
        reached = self.reachable(holders)
        holders = holders if reached is None else holders[reached]
        if not len(holders):
            return False
        if any(need.type in index.pools for need in slot.below):
            raise Unsupported  # a slot may straddle pools, and its score with it
        fit, counts = self._slots(slot, self._groups_below(slot, holders))
        keep = np.flatnonzero(fit > 0)
        if index.policy.stop_early:
            found = self._first(holders[keep], slot.most, fit[keep])
            # Back to positions: `found` is a part of `holders`, in another order.
            by = np.argsort(holders)
            keep = by[np.searchsorted(holders, found, sorter=by)]
            fit = np.minimum(fit, slot.most)
        holders, fit = holders[keep], fit[keep]
        counts = [count[keep] for count in counts]
        amount = slot.count.effective(int(fit.sum()))
        if amount == 0:
            return False
        best: Ints | None = None
        if amount < len(holders):
            # A holder's first slot is its best: one whose first is worse than so many others' gives none.
            firsts = self._slot_scores(slot, holders, np.ones_like(fit), counts)
            close = np.flatnonzero(firsts <= np.partition(firsts, amount - 1)[amount - 1])
            if len(close) < len(holders):
                few = (holders[close], fit[close], [count[close] for count in counts])
                best = _clearly_smallest(self._slot_scores(slot, *few), amount)
                if best is not None:
                    holders, fit, counts = few
        if best is None:
            best = _smallest(self._slot_scores(slot, holders, fit, counts), amount)
        owner = np.repeat(np.arange(len(holders), dtype=np.int32), fit)
        # Whoever holds several of the best slots gives its first ones: they are its best.
        taken = np.bincount(owner[best], minlength=len(holders))
        turn = best - (np.cumsum(fit) - fit)[owner[best]]
        if int(turn.sum()) != int((taken * (taken - 1) // 2).sum()):
            raise Unsupported
        self._take_slots(slot, holders, taken, counts)
        return True

    def _highest(self, holders: Rows) -> Rows:
        """Those with no other of them above, in preorder."""
        tree = self.index.tree
        holders = holders[np.argsort(tree.pre[holders], kind="stable")]
        ends = np.maximum.accumulate(np.concatenate(([0], tree.end[holders][:-1])))
        return holders[tree.pre[holders] >= ends]

    def reachable(self, rows: Rows) -> Mask | None:
        """Which rows, and all above them, are up, allowed and not taken whole; None: all."""
        blocks = self.view.blocks()
        if self.allowed is not None:
            banned = self.index.banned(self.allowed)
            blocks = np.concatenate((blocks, banned)) if len(blocks) else banned
        if not len(blocks):
            return None
        good = np.ones(self.index.graph.rows, np.bool_)
        good[blocks] = False
        reached = good[rows]
        parent = self.index.tree.parent
        above = parent[rows]
        while len(above) and int(above.max()) >= 0:
            reached &= good[above] | (above < 0)
            above = np.where(above >= 0, parent[above], -1)
        return reached

    def _best(self, score: Ints, available: Ints, amount: int) -> Ints:
        """The positions of the best candidates that together reach the amount."""
        if int(available.max(initial=1)) == 1:
            return _smallest(score, amount)
        full = order(score, len(score))
        reached = np.cumsum(available[full])
        return full[: int(np.searchsorted(reached, amount)) + 1]

    # -- which vertices serve --------------------------------------------------------------------------------

    def _serves(self, need: Need, table: Table, alone: bool) -> Mask:
        """For each row of the table of a need's type: whether it can serve the need."""
        found = self._served.get(id(need))
        if found is not None:
            return found
        served = self.view.fits(table, alone)
        if self.allowed is not None:
            served = served & self.allowed[table.rows]
        if need.slot is not None:
            served = served & self._holds_slots(need.slot, table)
        else:
            for child in need.below:
                below = self.index.table(child.type)
                _, total = self._below(child, below, alone or child.exclusive is True)
                at, there = self.index.groups(table, below)
                amounts = _effective(child.count, total)
                served = served & there & (amounts[at] > 0 if len(amounts) else False)
        self._served[id(need)] = served
        return served

    def _holds_slots(self, slot: Need, table: Table) -> Mask:
        if not slot.below:
            return np.zeros(len(table.rows), np.bool_)
        frame = self.index.frame(table, tuple(need.type for need in slot.below))
        fit, _ = self._slots(slot, frame.groups)
        enough = _effective(slot.count, fit) > 0
        if frame.holds is None:
            return enough
        result = np.zeros(len(table.rows), np.bool_)
        result[frame.holds] = enough
        return result

    def _groups_below(self, slot: Need, holders: Rows) -> tuple[Ints, ...]:
        return tuple(self.index.table(need.type).groups_of(holders)[0] for need in slot.below)

    def _below(self, need: Need, table: Table, alone: bool) -> tuple[Ints, Ints]:
        """Per group of a table: how many rows can serve a need, and how much that is."""
        if not table.is_sorted:
            raise Unsupported
        if self.index.policy.stop_early and (need.below or not table.is_aligned):
            raise Unsupported  # what is inside would have an order of its own
        if not need.below and (self.allowed is None or need.name not in self.index.constrained):
            return self.view.counts(table, alone)
        if not len(table.rows):
            return table.count, table.total
        served = self._serves(need, table, alone)
        count = np.add.reduceat(served.astype(np.int64), table.start[:-1])
        if table.is_unit:
            return count, count
        return count, np.add.reduceat(np.where(served, self.view.available(table), 0), table.start[:-1])

    def _slots(self, slot: Need, groups: tuple[Ints, ...]) -> tuple[Ints, list[Ints]]:
        """How many slots fit at each holder; and per part of the slot, how many rows one slot takes."""
        fit: Ints | None = None
        taken: list[Ints] = []
        for need, at in zip(slot.below, groups, strict=True):
            table = self.index.table(need.type)
            count, total = self._below(need, table, True)
            amount = _effective(need.count, total)[at]
            if need.type in self.index.pools:
                if int(table.count.max(initial=0)) > 1:
                    raise Unsupported  # which pool gives how much depends on the slots before
                own = np.where(amount > 0, total[at] // np.maximum(amount, 1), 0)
                fit = own if fit is None else np.minimum(fit, own)
                taken.append(amount)
                continue
            if table.is_unit:
                rows = amount
            else:
                size = table.uniform[at]
                if (size == 0).any():
                    raise Unsupported
                rows = -(-amount // size)
            own = np.where(rows > 0, count[at] // np.maximum(rows, 1), 0)
            fit = own if fit is None else np.minimum(fit, own)
            taken.append(rows)
        assert fit is not None
        return fit, taken

    def _slot_scores(self, slot: Need, holders: Rows, fit: Ints, counts: list[Ints]) -> Ints:
        """The score of every slot of every holder: the better the smaller."""
        index = self.index
        sign = 1 if index.policy.ascending else -1
        score = np.full(int(fit.sum()), sign * MET, np.int64)
        for need, count in zip(slot.below, counts, strict=True):
            table = index.table(need.type)
            at = self._first_rows(need, table, holders, fit * count)
            own = table.score[at]
            if index.factors is not None:
                own = own + sign * np.repeat(self._factor(index.factors, holders), fit * count)
            if bool((count == 1).all()):
                score += own
            else:
                steps = np.repeat(count, fit)
                score += np.add.reduceat(own, np.cumsum(steps) - steps)
        return score

    def _factor(self, factors: Ints, holders: Rows) -> Ints:
        """What the nodes above add to the scores of the rows below each holder."""
        graph, parent = self.index.graph, self.index.tree.parent
        node = graph.types.code("node")
        total = np.zeros(len(holders), np.int64)
        above = holders
        while len(above) and int(above.max()) >= 0:
            here = (above >= 0) & (graph.type[above] == node)
            total += np.where(here, factors[above], 0)
            above = np.where(above >= 0, parent[above], -1)
        return total

    # -- taking them -----------------------------------------------------------------------------------------

    def _take(self, need: Need, table: Table, at: Ints, alone: bool, amounts: Ints | None = None) -> None:
        """Take rows for a need, and below each of them what the need contains."""
        if amounts is None and need.type in self.index.pools:
            raise Unsupported
        rows = table.rows[at]
        self._rows.append(rows)
        self._amounts.append(self.view.available(table)[at] if amounts is None else amounts)
        self._alone.append(np.full(len(rows), alone))
        if need.label:
            if self.whole:
                raise Unsupported
            self._labels.update(dict.fromkeys(rows.tolist(), need.label))
        if need.slot is not None:
            fit, counts = self._slots(need.slot, self._groups_below(need.slot, rows))
            self._take_slots(need.slot, rows, _effective(need.slot.count, fit), counts)
            return
        for child in need.below:
            below = self.index.table(child.type)
            inner = alone or child.exclusive is True
            _, total = self._below(child, below, inner)
            group, _ = below.groups_of(rows)
            wanted = _effective(child.count, total)[group]
            if child.type in self.index.pools and int(below.count.max(initial=0)) == 1:
                self._take(child, below, below.start[group], inner, amounts=wanted)
                continue
            positions, owner = self._free_rows(child, below, group, inner)
            available = self.view.available(below)[positions]
            before = np.cumsum(available) - available
            heads = np.searchsorted(owner, np.arange(len(rows)))
            base = before[np.minimum(heads, max(len(before) - 1, 0))]
            self._take(child, below, positions[before - base[owner] < wanted[owner]], inner)

    def _take_slots(self, slot: Need, holders: Rows, slots: Ints, counts: list[Ints]) -> None:
        for need, count in zip(slot.below, counts, strict=True):
            table = self.index.table(need.type)
            if need.type in self.index.pools:
                some = slots * count > 0
                at = table.start[table.groups_of(holders[some])[0]]
                self._take(need, table, at, True, amounts=(slots * count)[some])
            else:
                self._take(need, table, self._first_rows(need, table, holders, slots * count), True)

    def _first_rows(self, need: Need, table: Table, holders: Rows, counts: Ints) -> Ints:
        """The positions of the first free rows below each holder, so many of each."""
        group, _ = table.groups_of(holders)
        if not need.below and not len(self.view.lost(table, True)) and self.allowed is None:
            return _ranges(table.start[group], counts)  # all are free
        positions, owner = self._free_rows(need, table, group, True)
        width = np.bincount(owner, minlength=len(holders))
        heads = np.cumsum(width) - width
        return positions[_ranges(heads, np.minimum(counts, width))]

    def _free_rows(self, need: Need, table: Table, groups: Ints, alone: bool) -> tuple[Ints, Rows]:
        """The positions of the rows that can serve in some groups, and the number of the group of each."""
        width = table.count[groups]
        owner = np.repeat(np.arange(len(groups), dtype=np.int32), width)
        positions = _ranges(table.start[groups], width)
        served = self._serves(need, table, alone)
        keep = served[positions]
        if bool(keep.all()):
            return positions, owner
        return positions[keep], owner[keep]

    # -- the answer ------------------------------------------------------------------------------------------

    def _selection(self) -> Selection:
        """What was taken, with the way to it and all that belongs to it, where anything of it is held."""
        tree = self.index.tree
        rows = np.concatenate(self._rows)
        amounts = np.concatenate(self._amounts)
        alone = np.concatenate(self._alone)
        rows, amounts, alone = self._with_ways(rows, amounts, alone)
        if self.whole:
            rows, amounts, alone = self._with_all_below(rows, amounts, alone)
        if self.index.keep_shared:
            return Selection.of(tree, rows, amounts, alone, self._labels)
        # A vertex is recorded if it, or something below it, is exclusive.
        pre, end = tree.pre[rows], tree.end[rows]
        held = np.sort(pre[alone])
        keep = np.searchsorted(held, end) > np.searchsorted(held, pre)
        if not bool(keep.all()):
            rows, amounts, alone = rows[keep], amounts[keep], alone[keep]
        return Selection.of(tree, rows, amounts, alone, self._labels)

    def _with_ways(self, rows: Rows, amounts: Ints, alone: Mask) -> tuple[Rows, Ints, Mask]:
        graph, tree = self.index.graph, self.index.tree
        seen = np.zeros(graph.rows, np.bool_)
        seen[rows] = True
        ways: list[Rows] = []
        above = tree.parent[rows]
        while True:
            above = above[above >= 0]
            above = np.unique(above[~seen[above]])
            if not len(above):
                break
            seen[above] = True
            ways.append(above)
            above = tree.parent[above]
        if not ways:
            return rows, amounts, alone
        way = np.concatenate(ways).astype(np.int32)
        needs = graph.size[way].copy()
        needs[way == tree.root] = 1  # nobody asked for the root by name
        return (
            np.concatenate((rows, way)),
            np.concatenate((amounts, needs)),
            np.concatenate((alone, np.zeros(len(way), np.bool_))),
        )

    def _with_all_below(self, rows: Rows, amounts: Ints, alone: Mask) -> tuple[Rows, Ints, Mask]:
        """Vertices of some types come with everything below them, and for the job alone."""
        graph, tree = self.index.graph, self.index.tree
        heads = np.isin(graph.type[rows], list(self.whole))
        if not heads.any():
            return rows, amounts, alone
        steps = np.zeros(len(tree.order) + 1, np.int32)
        np.add.at(steps, tree.pre[rows[heads]] + 1, 1)
        np.add.at(steps, tree.end[rows[heads]], -1)
        below = tree.order[np.cumsum(steps)[:-1] > 0]
        amount = np.zeros(graph.rows, np.int64)
        own = np.zeros(graph.rows, np.bool_)
        amount[rows], own[rows] = amounts, alone | heads
        amount[below], own[below] = graph.size[below], True
        both = np.zeros(graph.rows, np.bool_)
        both[rows] = True
        both[below] = True
        rows = np.flatnonzero(both).astype(np.int32)
        return rows, amount[rows], own[rows]


def _check(needs: Sequence[Need], *, alone: bool) -> None:
    """Leave to the walk what only the walk can judge."""
    types = [need.type for need in needs]
    if len(set(types)) != len(types):
        raise Unsupported
    for need in needs:
        if need.is_slot and len(needs) > 1:
            raise Unsupported
        if alone and need.exclusive is False:
            raise Unsupported
        _check(need.below, alone=alone or need.is_slot or need.exclusive is True)


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """starts[0], starts[0] + 1, … so many, then the same from starts[1] on, and so forth."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def _effective(count: Count, available: Ints) -> Ints:
    """`Count.effective`, for a column."""
    if count.min == count.max:
        return np.where(available >= count.min, count.min, 0)
    values, inverse = np.unique(available, return_inverse=True)
    return np.array([count.effective(value) for value in values.tolist()], np.int64)[inverse]


def _smallest(score: Ints, amount: int) -> Ints:
    """The positions of the smallest scores, as std::sort would put them first."""
    found = _clearly_smallest(score, amount)
    return order(score, amount) if found is None else found


def _clearly_smallest(score: Ints, amount: int) -> Ints | None:
    """The positions of the smallest scores, in no order; None where a tie leaves a choice."""
    if amount >= len(score):
        return np.arange(len(score))
    part = np.argpartition(score, amount - 1)[:amount]
    limit = int(score[part].max())
    return part if int((score <= limit).sum()) == amount else None
