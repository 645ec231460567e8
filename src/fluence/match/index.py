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

from collections.abc import Sequence
from errno import EBUSY

import numpy as np

from fluence.graph.graph import Ints, Mask, Rows
from fluence.graph.selection import Selection
from fluence.match.candidates import MET
from fluence.match.request import Need
from fluence.match.sort import order
from fluence.match.tables import HeldView, Index, Unsupported, VertexTable
from fluence.match.walk import Found, Window
from fluence.model.jobspec import Count

_MANY_WAYS = 2000


def search(
    index: Index, needs: tuple[Need, ...], window: Window, allowed: Mask | None, whole: frozenset[int]
) -> Found | None:
    """The walk's answer, or None where only the walk can tell."""
    if not index.is_regular:
        return None
    try:
        return _IndexSearch(index, needs, index.view(window), allowed, whole).run()
    except Unsupported:
        return None


def reachable(index: Index, need: Need, window: Window, allowed: Mask | None) -> Mask:
    """Which rows of the table of a need's type can be had in a window, whatever is below them."""
    _check((need,), alone=False)
    view, table = HeldView(index, window), index.table(need.type)
    fits = view.fits(table, need.exclusive is True)
    reached = _IndexSearch(index, (need,), view, allowed, frozenset()).reachable(table.rows)
    return fits if reached is None else fits & reached


class _IndexSearch:
    """One request in one window."""

    def __init__(
        self,
        index: Index,
        needs: tuple[Need, ...],
        view: HeldView,
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

    def _serves(self, need: Need, table: VertexTable, alone: bool) -> Mask:
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

    def _holds_slots(self, slot: Need, table: VertexTable) -> Mask:
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

    def _below(self, need: Need, table: VertexTable, alone: bool) -> tuple[Ints, Ints]:
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

    def _take(
        self, need: Need, table: VertexTable, at: Ints, alone: bool, amounts: Ints | None = None
    ) -> None:
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

    def _first_rows(self, need: Need, table: VertexTable, holders: Rows, counts: Ints) -> Ints:
        """The positions of the first free rows below each holder, so many of each."""
        group, _ = table.groups_of(holders)
        if not need.below and not len(self.view.lost(table, True)) and self.allowed is None:
            return _ranges(table.start[group], counts)  # all are free
        positions, owner = self._free_rows(need, table, group, True)
        width = np.bincount(owner, minlength=len(holders))
        heads = np.cumsum(width) - width
        return positions[_ranges(heads, np.minimum(counts, width))]

    def _free_rows(self, need: Need, table: VertexTable, groups: Ints, alone: bool) -> tuple[Ints, Rows]:
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
