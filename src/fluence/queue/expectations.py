"""Expected starts of waiting jobs, and the calibration of promised ones.

`Promises` reports expected starts beside its bounds. An expected start follows from the run times of similar
jobs and from limits. A job has no expected start if it waits for work for which neither is known. Each
expected start that passes makes the next one at least a minute further away; otherwise it could slip by a
minute forever.

`Calibration` learns whether earlier bounds were met. Under a policy with backfill, the planned start of a job
is not a bound: jobs that arrive later may be backfilled into the gap before it. The start in a plan in strict
order is nearly a bound, but much later. The bound lies between the two, or beyond, at a place that moves:
outwards when a job starts after its bound, and a little inwards when it does not. So the share of broken
bounds tends to `MISSES` (adaptive conformal inference, Gibbs and Candès 2021).
"""

from __future__ import annotations

from collections.abc import Mapping

from fluence.queue.allocations import Allocation
from fluence.queue.job import SECOND, JobRecord
from fluence.queue.pending import DueTimes, Pending

_CAUTION = 0.15  # the weight of limits in an expected start: history misses long runs
_LATER = 60 * SECOND  # added to the next expected start for each one that has passed
_MAX_RENEWED = 32  # expected starts computed again per round
_RENEW_PAUSE = 30 * SECOND  # between two such rounds, if no promise is due


def expected_end(held: Allocation, lasts: int | None, now: int) -> int:
    """The expected end of a task with a total run time of ``lasts``. If that is unknown or has passed, the
    end in the plan: by its limit, or never."""
    if lasts is None or held.start + lasts <= now:
        return held.end
    return held.start + lasts


class Expectations:
    """The expected starts of one queue. ``renews``: those that have passed are dropped and computed again.
    Users of a live scheduler need that; a simulation evaluates the first expected start of each job."""

    def __init__(self, *, renews: bool) -> None:
        self._renews = renews
        self._passing = DueTimes(_stands)  # when expected starts pass
        self._stale: dict[JobRecord, None] = {}
        self._renewed = -_RENEW_PAUSE

    def next_due(self) -> int | None:
        """When the next expected start passes, or a new one must be computed."""
        times = (self._passing.next(), self._renewed + _RENEW_PAUSE if self._stale else None)
        return min((at for at in times if at is not None), default=None)

    def resume(self, record: JobRecord) -> None:
        """Keep the expected start of a job until it passes."""
        if record.expected is None:
            self._stale[record] = None
        elif self._renews:
            self._passing.add(record.expected + 1, record)

    def is_due(self, now: int) -> bool:
        """Whether some must be computed again even if no promise is due."""
        return bool(self._stale) and now >= self._renewed + _RENEW_PAUSE

    def forget(self, record: JobRecord) -> None:
        """A job no longer waits."""
        self._stale.pop(record, None)

    def withdraw_passed(self, now: int) -> list[JobRecord]:
        """Drop expected starts that have passed; returns their jobs."""
        found = []
        while (record := self._passing.pop(now)) is not None:
            record.expected = None
            record.misjudged += 1
            self._stale[record] = None
            found.append(record)
        return found

    def take_stale(self, pending: Pending, now: int, most: int | None) -> dict[int, JobRecord]:
        """Some jobs whose expected start has passed, by their places among the first ``most`` in the
        queue."""
        some = list(self._stale)[:_MAX_RENEWED]
        self._renewed = now
        for record in some:
            del self._stale[record]
        # A job that has become unschedulable still waits, but has no place in the queue.
        places = {pending.place(record): record for record in some if record in pending}
        return {place: record for place, record in places.items() if most is None or place < most}

    def tell(
        self, now: int, wanted: Mapping[int, JobRecord], starts: Mapping[int, int], planned: list[int | None]
    ) -> list[JobRecord]:
        """Store the expected starts, by places in the queue; returns the jobs whose start has changed."""
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
    """Whether an expected start has not changed since this entry was made."""
    return record.waiting > 0 and record.expected is not None and record.expected + 1 == at


MISSES = 0.007
_PACE = 0.1


class Calibration:
    """The place of the bound: 0 is the plan, 1 the plan in order; beyond 1 the bound grows with the wait."""

    def __init__(self) -> None:
        self.place = 1.0

    def bound(self, now: int, planned: int, in_order: int) -> int:
        """The latest start to promise."""
        in_order = max(in_order, planned)
        if self.place <= 1:
            return planned + round(self.place * (in_order - planned))
        return in_order + round((self.place - 1) * (in_order - now))

    def observe(self, *, missed: bool) -> None:
        """A job with a bound has started."""
        self.place = max(0.0, self.place + _PACE * (1 - MISSES if missed else -MISSES))
