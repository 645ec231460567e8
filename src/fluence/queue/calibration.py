"""How far a plan can be trusted as a bound, learned from how earlier bounds held.

Under a policy that lets later jobs overtake, the start in a plan is no bound: jobs that come tomorrow may be
backfilled into the gap it counts on. A plan in strict order is nearly one, and much later. The bound lies
between the two, or beyond, at a place that moves: outwards when a job started after its bound, inwards a
little for each that did not, so that the share of broken ones tends to `MISSES` (adaptive conformal
inference, Gibbs and Candès 2021).
"""

from __future__ import annotations

MISSES = 0.007
_PACE = 0.1


class Calibration:
    """0 is the plan, 1 the plan in order; beyond that, the wait grows in proportion."""

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
