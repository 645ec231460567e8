"""Which vertices can serve the needs of a request in one window, for all vertices of a type at once.

The index search uses it from the leaves of the request up. The number of candidates below a vertex is a count
per group of a table, minus the few rows that jobs hold. Whether a vertex serves a need is a comparison of two
columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluence.graph.columns import Ints, Mask, Rows
from fluence.match.request import Need
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
