"""A plan by sums: of each type, what all jobs ask for against what the cluster has.

It overlooks how resources lie on nodes, so its starts are early rather than late; it costs a hundredth of a
plan that places every job. Good enough for a bound that is widened by how such bounds held (see `promise`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

from fluence.match.request import Need, Request
from fluence.queue.job import FOREVER
from fluence.queue.timeline import Timeline

Amounts: TypeAlias = Mapping[Hashable, int]  # type -> how much

_NO_TIME = FOREVER // 2  # what begins so long from now waits for work of which nobody knows the end


class Totals:
    """Sums over time, one line per type."""

    def __init__(self, now: int, capacity: Amounts, running: Iterable[tuple[int, Amounts]]) -> None:
        until: dict[Hashable, dict[int, int]] = {kind: {} for kind in capacity}
        for end, amounts in running:
            if end > now:
                for kind, amount in amounts.items():
                    if kind in until:
                        until[kind][end] = until[kind].get(end, 0) + amount
        self._until = now + _NO_TIME
        self._lines = {kind: Timeline.filled(now, capacity[kind], ends) for kind, ends in until.items()}

    def place(self, amounts: Amounts, duration: int, start: int) -> int | None:
        """Put a request at its earliest start and say when that is; None: it never fits, or not at any time
        that is known."""
        if any(kind not in self._lines for kind in amounts):
            return None
        begin = start
        while True:
            before = begin
            for kind, amount in amounts.items():
                at = self._lines[kind].earliest(amount, duration, begin)
                if at is None:
                    return None
                begin = at
            if begin == before:
                break
        if begin >= self._until:
            return None
        self._take(begin, begin + duration, amounts)
        return begin

    def place_all(
        self,
        asks: Iterable[tuple[Amounts, int]],
        start: int,
        *,
        in_order: bool = False,
        beside: Sequence[Amounts] = (),
    ) -> list[int | None]:
        """The same for several, one after the other; ``in_order``: none before the one in front of it.
        ``beside``: what each might take in addition, where that is free."""
        starts: list[int | None] = []
        for place, (amounts, duration) in enumerate(asks):
            at = self.place(amounts, duration, start)
            starts.append(at)
            if at is None:
                continue
            if in_order:
                start = at
            if beside and beside[place]:
                end = at + duration
                free = {
                    kind: min(amount, self._lines[kind].least(at, end))
                    for kind, amount in beside[place].items()
                }
                self._take(at, end, {kind: amount for kind, amount in free.items() if amount > 0})
        return starts

    def _take(self, start: int, end: int, amounts: Amounts) -> None:
        for kind, amount in amounts.items():
            if kind in self._lines:
                self._lines[kind].take(start, end, amount)


def expected(starts: Sequence[int | None], wanted: Collection[int]) -> dict[int, int]:
    """The starts at the places that were asked about, of those that have one."""
    return {place: start for place, start in enumerate(starts) if start is not None and place in wanted}


def asked_for(request: Request) -> Amounts:
    """How much of each type a request takes: of those that it asks for nothing below."""
    found: dict[Hashable, int] = {}

    def add(need: Need, times: int) -> None:
        times *= need.count.min
        for below in need.below:
            add(below, times)
        if not need.below:
            found[need.type] = found.get(need.type, 0) + times

    for need in request.needs:
        add(need, 1)
    return found
