"""The indexed search: the results of the tree walk for regular requests, with columns instead of vertices.

The vertices of one type are in one table, sorted by parent and then by the score of the policy::

    parent   node0                node1               …
    cores    c0 c1 c2 … c31       c0 c1 c2 … c31       …      rows, grouped by parent
    free     1  0  1  … 1         1  1  1  … 1         …      in the window asked about

The number of candidates below a vertex is then a count per group, minus the few rows that jobs hold. Whether
a vertex serves a need is a comparison of two columns. The best k rows of a group are its first k free rows. A
need is evaluated for all vertices of its type at once, from the leaves of the request up. On the way back
down, only chosen vertices are examined.

Some cases do not fit into columns: several subsystems, shared vertices with several parents, alternatives,
and ties that only the order of discovery breaks. For these `search` returns `None`, and the walk decides.

The index search uses it from the leaves of the request up. The number of candidates below a vertex is a count
per group of a table, minus the few rows that jobs hold. Whether a vertex serves a need is a comparison of two
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import EBUSY

import numpy as np

from fluence.graph.columns import Ints, Mask, Rows
from fluence.graph.selection import gathered
from fluence.match.candidates import MET, order
from fluence.match.request import Found, Need, Window
from fluence.match.tables import HeldView, Index, Unsupported, VertexTable
from fluence.model.jobspec import Count


class Serving:
    """One window, and the vertices that a constraint allows in it."""

    def __init__(self, index: Index, view: HeldView, allowed: Mask | None) -> None:
        self.index, self.view, self.allowed = index, view, allowed
        self._served: dict[Need, Mask] = {}

    def reachable(self, rows: Rows) -> Mask | None:
        """Which rows are up, allowed and not taken completely, together with all vertices above them; None:
        all rows."""
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

    def serves(self, need: Need, table: VertexTable, alone: bool) -> Mask:
        """For each row of the table of a need's type: whether it can serve the need."""
        found = self._served.get(need)
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
                _, total = self.below(child, below, alone or child.exclusive is True)
                at, there = self.index.groups(table, below)
                amounts = effective(child.count, total)
                served = served & there & (amounts[at] > 0 if len(amounts) else False)
        self._served[need] = served
        return served

    def _holds_slots(self, slot: Need, table: VertexTable) -> Mask:
        if not slot.below:
            return np.zeros(len(table.rows), np.bool_)
        frame = self.index.frame(table, tuple(need.type for need in slot.below))
        fit, _ = self.slots(slot, frame.groups)
        enough = effective(slot.count, fit) > 0
        if frame.holds is None:
            return enough
        result = np.zeros(len(table.rows), np.bool_)
        result[frame.holds] = enough
        return result

    def groups_below(self, slot: Need, holders: Rows) -> tuple[Ints, ...]:
        return tuple(self.index.table(need.type).groups_of(holders)[0] for need in slot.below)

    def below(self, need: Need, table: VertexTable, alone: bool) -> tuple[Ints, Ints]:
        """Per group of a table: the number of rows that can serve a need, and their total amount."""
        if not table.is_sorted:
            raise Unsupported
        if self.index.policy.stop_early and (
            need.below or not table.is_aligned or self.index.load.has_weighed(need.type)
        ):
            raise Unsupported  # the contents would need a different order
        if not need.below and (self.allowed is None or need.name not in self.index.constrained):
            return self.view.counts(table, alone)
        if not len(table.rows):
            return table.count, table.total
        served = self.serves(need, table, alone)
        count = np.add.reduceat(served.astype(np.int64), table.start[:-1])
        if table.is_unit:
            return count, count
        return count, np.add.reduceat(np.where(served, self.view.available(table), 0), table.start[:-1])

    def slots(self, slot: Need, groups: tuple[Ints, ...]) -> tuple[Ints, list[Ints]]:
        """The number of slots that fit at each holder and, per part of the slot, the number of rows of one
        slot."""
        fit: Ints | None = None
        taken: list[Ints] = []
        for need, at in zip(slot.below, groups, strict=True):
            table = self.index.table(need.type)
            count, total = self.below(need, table, True)
            amount = effective(need.count, total)[at]
            if need.type in self.index.pools:
                if int(table.count.max(initial=0)) > 1:
                    raise Unsupported  # the share of each pool depends on earlier slots
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

    def first_rows(self, need: Need, table: VertexTable, holders: Rows, counts: Ints) -> Ints:
        """The positions of the first ``counts`` free rows below each holder."""
        group, _ = table.groups_of(holders)
        if not need.below and not len(self.view.lost(table, True)) and self.allowed is None:
            return _ranges(table.start[group], counts)  # all are free
        positions, owner = self.free_rows(need, table, group, True)
        width = np.bincount(owner, minlength=len(holders))
        heads = np.cumsum(width) - width
        return positions[_ranges(heads, np.minimum(counts, width))]

    def free_rows(self, need: Need, table: VertexTable, groups: Ints, alone: bool) -> tuple[Ints, Rows]:
        """The positions of the rows that can serve in some groups, and the number of the group of each."""
        width = table.count[groups]
        owner = np.repeat(np.arange(len(groups), dtype=np.int32), width)
        positions = _ranges(table.start[groups], width)
        served = self.serves(need, table, alone)
        keep = served[positions]
        if bool(keep.all()):
            return positions, owner
        return positions[keep], owner[keep]


def check_regular(needs: Sequence[Need], *, alone: bool) -> None:
    """Raise Unsupported for needs that only the walk can decide."""
    types = [need.type for need in needs]
    if len(set(types)) != len(types):
        raise Unsupported
    for need in needs:
        if need.is_slot and len(needs) > 1:
            raise Unsupported
        if alone and need.exclusive is False:
            raise Unsupported
        check_regular(need.below, alone=alone or need.is_slot or need.exclusive is True)


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """``counts[0]`` numbers from ``starts[0]`` on, then ``counts[1]`` numbers from ``starts[1]`` on, and so
    on."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def effective(count: Count, available: Ints) -> Ints:
    """`Count.effective`, for a column."""
    if count.min == count.max:
        return np.where(available >= count.min, count.min, 0)
    values, inverse = np.unique(available, return_inverse=True)
    return np.array([count.effective(value) for value in values.tolist()], np.int64)[inverse]


_MANY_WAYS = 2000


def search(
    index: Index, needs: tuple[Need, ...], window: Window, allowed: Mask | None, whole: frozenset[int]
) -> Found | None:
    """The result of the walk, or None if only the walk can decide."""
    if not index.is_regular:
        return None
    try:
        return _IndexSearch(index, needs, index.view(window), allowed, whole).run()
    except Unsupported:
        return None


def reachable(index: Index, need: Need, window: Window, allowed: Mask | None) -> Mask:
    """Which rows of the table of a need's type are available in a window, regardless of what is below
    them."""
    check_regular((need,), alone=False)
    view, table = HeldView(index, window), index.table(need.type)
    fits = view.fits(table, need.exclusive is True)
    reached = Serving(index, view, allowed).reachable(table.rows)
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
        self.index, self.needs, self.view, self.whole = index, needs, view, whole
        self.serving = Serving(index, view, allowed)
        self._rows: list[Rows] = []
        self._amounts: list[Ints] = []
        self._alone: list[Mask] = []
        self._labels: dict[int, str] = {}

    def run(self) -> Found | None:
        needs = self.needs
        check_regular(needs, alone=False)
        if any(need.is_slot for need in needs):
            if len(needs) != 1:
                raise Unsupported
            found = self._place_slots(needs[0])
        else:
            found = all(self._place(need) for need in needs)
        if not found:
            return Found(None, EBUSY)
        taken = (np.concatenate(self._rows), np.concatenate(self._amounts), np.concatenate(self._alone))
        index = self.index
        selection = gathered(
            index.graph, index.tree, taken, self._labels, whole=self.whole, keep_shared=index.keep_shared
        )
        if not len(selection):
            raise Unsupported  # nothing would be held: the walk reproduces Fluxion's error
        return Found(selection)

    # -- the top of the request ------------------------------------------------------------------------------

    def _place(self, need: Need) -> bool:
        """Choose the vertices for one need of the top level."""
        index, table = self.index, self.index.table(need.type)
        served = self.serving.serves(need, table, need.exclusive is True)
        tops = index.tops(need.type, frozenset(n.type for n in self.needs))
        at = index.place[tops]
        keep = served[at]
        reached = self.serving.reachable(tops)
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
            # If there are nodes above, candidates below one node stay together.
            sign = 1 if index.policy.ascending else -1
            score = score + sign * self._factor(index.factors, index.tree.parent[table.rows[at]])
        chosen = self._best(score, available, amount)
        self._take(need, table, at[chosen].astype(np.int64), need.exclusive is True)
        return True

    def _first(self, rows: Rows, most: int, worth: Ints) -> Rows:
        """The rows that a search that stops early would find, in the order in which it finds them.

        At each vertex the search takes the children in the order of their load, and stops when the rows found
        below that vertex amount to ``most``. ``worth`` is the amount of each row.
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
        reached = self.serving.reachable(holders)
        holders = holders if reached is None else holders[reached]
        if not len(holders):
            return False
        if any(need.type in index.pools for need in slot.below):
            raise Unsupported  # a slot may use several pools, and so may its score
        fit, counts = self.serving.slots(slot, self.serving.groups_below(slot, holders))
        keep = np.flatnonzero(fit > 0)
        if index.policy.stop_early:
            found = self._first(holders[keep], slot.most, fit[keep])
            # Back to positions: `found` is a subset of `holders`, in another order.
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
            # The first slot of a holder is its best. If enough other holders have a better first slot, it
            # gives none.
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
        # A holder with several of the best slots gives its first ones, which are its best.
        taken = np.bincount(owner[best], minlength=len(holders))
        turn = best - (np.cumsum(fit) - fit)[owner[best]]
        if int(turn.sum()) != int((taken * (taken - 1) // 2).sum()):
            raise Unsupported
        self._take_slots(slot, holders, taken, counts)
        return True

    def _highest(self, holders: Rows) -> Rows:
        """The holders that are not below another holder, in preorder."""
        tree = self.index.tree
        holders = holders[np.argsort(tree.pre[holders], kind="stable")]
        ends = np.maximum.accumulate(np.concatenate(([0], tree.end[holders][:-1])))
        return holders[tree.pre[holders] >= ends]

    def _best(self, score: Ints, available: Ints, amount: int) -> Ints:
        """The positions of the best candidates whose total reaches the amount."""
        if int(available.max(initial=1)) == 1:
            return _smallest(score, amount)
        full = order(score, len(score))
        reached = np.cumsum(available[full])
        return full[: int(np.searchsorted(reached, amount)) + 1]

    def _slot_scores(self, slot: Need, holders: Rows, fit: Ints, counts: list[Ints]) -> Ints:
        """The score of every slot of every holder; smaller is better."""
        index = self.index
        sign = 1 if index.policy.ascending else -1
        score = np.full(int(fit.sum()), sign * MET, np.int64)
        for need, count in zip(slot.below, counts, strict=True):
            table = index.table(need.type)
            at = self.serving.first_rows(need, table, holders, fit * count)
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
        """Take rows for a need, and the contents of the need below each of them."""
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
            fit, counts = self.serving.slots(need.slot, self.serving.groups_below(need.slot, rows))
            self._take_slots(need.slot, rows, effective(need.slot.count, fit), counts)
            return
        for child in need.below:
            below = self.index.table(child.type)
            inner = alone or child.exclusive is True
            _, total = self.serving.below(child, below, inner)
            group, _ = below.groups_of(rows)
            wanted = effective(child.count, total)[group]
            if child.type in self.index.pools and int(below.count.max(initial=0)) == 1:
                self._take(child, below, below.start[group], inner, amounts=wanted)
                continue
            positions, owner = self.serving.free_rows(child, below, group, inner)
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
                self._take(need, table, self.serving.first_rows(need, table, holders, slots * count), True)


def _smallest(score: Ints, amount: int) -> Ints:
    """The positions of the smallest scores, as std::sort would put them first."""
    found = _clearly_smallest(score, amount)
    return order(score, amount) if found is None else found


def _clearly_smallest(score: Ints, amount: int) -> Ints | None:
    """The positions of the smallest scores, in no particular order; None if a tie leaves a choice."""
    if amount >= len(score):
        return np.arange(len(score))
    part = np.argpartition(score, amount - 1)[:amount]
    limit = int(score[part].max())
    return part if int((score <= limit).sum()) == amount else None
