"""When waiting jobs are expected to start: said once, dropped when it has passed, and not said again lightly.

`Promises` tells them beside its bounds. An expectation rests on how long such jobs ran and on limits; where a
start rests on work of which neither is known, there is none. One that has passed was wrong: the next must be
further away the more often that happened, or a time that moves on a minute at a time would be told for ever.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluence.queue.allocations import Allocation
from fluence.queue.due_times import DueTimes
from fluence.queue.job import SECOND, JobRecord
from fluence.queue.pending import Pending

_CAUTION = 0.15  # how much of the expected start is taken from limits: history misses the long runs
_LATER = 60 * SECOND  # how much further away the next must be, for each that has passed
_ROUND = 32  # that are worked out anew at a time,
_RENEW = 30 * SECOND  # and how often, if nothing else is to be told


def expected_end(held: Allocation, lasts: int | None, now: int) -> int:
    """When a task will probably end that ``lasts`` so long in all; where that is unknown, or over, by its
    place in the plan: its limit, or never."""
    if lasts is None or held.start + lasts <= now:
        return held.end
    return held.start + lasts


class Expectations:
    """The expected starts of one queue. ``renews``: those that have passed are dropped and worked out anew,
    which is for users who watch, and not for a simulation that counts what was said first."""

    def __init__(self, *, renews: bool) -> None:
        self._renews = renews
        self._passing = DueTimes(_stands)  # when one will have passed
        self._stale: dict[JobRecord, None] = {}
        self._renewed = -_RENEW

    def next_due(self) -> int | None:
        """When the next will have passed, or is to be worked out anew."""
        times = (self._passing.next(), self._renewed + _RENEW if self._stale else None)
        return min((at for at in times if at is not None), default=None)

    def resume(self, record: JobRecord, expected: int | None) -> None:
        """What a job was told before a restart holds until it has passed."""
        record.expected = record.first_expected = expected
        if expected is None:
            self._stale[record] = None
        elif self._renews:
            self._passing.add(expected + 1, record)

    def is_due(self, now: int) -> bool:
        """Whether some are to be worked out anew although nobody else is told anything."""
        return bool(self._stale) and now >= self._renewed + _RENEW

    def forget(self, record: JobRecord) -> None:
        """A job waits no more."""
        self._stale.pop(record, None)

    def withdraw_passed(self, now: int) -> list[JobRecord]:
        """Drop those that have passed; says whose they were."""
        found = []
        while (record := self._passing.pop(now)) is not None:
            record.expected = None
            record.misjudged += 1
            self._stale[record] = None
            found.append(record)
        return found

    def take_stale(self, pending: Pending, now: int, most: int | None) -> dict[int, JobRecord]:
        """Some whose expectation has passed, by their places among the first so many of the queue."""
        some = list(self._stale)[:_ROUND]
        self._renewed = now
        for record in some:
            del self._stale[record]
        places = {pending.place(record): record for record in some if record.waiting}
        return {place: record for place, record in places.items() if most is None or place < most}

    def tell(
        self, now: int, wanted: Mapping[int, JobRecord], starts: Mapping[int, int], planned: list[int | None]
    ) -> list[JobRecord]:
        """Say what was worked out, by places in the queue; says who is told something else than before."""
        changed = []
        for place, record in wanted.items():
            start, plan, before = starts.get(place), planned[place], record.expected
            if start is not None and plan is not None and plan > start:
                start += round(_CAUTION * (plan - start))
            if start is not None and record.no_later_than is not None:
                start = min(start, record.no_later_than)
            if start is not None and start < now + record.misjudged * _LATER:
                start = None
            record.expected = start
            if start is not None and self._renews:
                self._passing.add(start + 1, record)
            if record.first_expected is None:
                record.first_expected = start
            if start != before:
                changed.append(record)
        self._passing.tidy()
        return changed


def _stands(at: int, record: JobRecord) -> bool:
    """Whether an expectation is still the one that was told."""
    return record.waiting > 0 and record.expected is not None and record.expected + 1 == at
