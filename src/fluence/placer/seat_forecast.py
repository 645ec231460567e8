"""Seat forecast: when gangs would find seats if what runs ended when it is expected to, and nothing began.

`ClusterPlanner.expect` asks it: sums overlook how room lies on nodes, and rules about other pods.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fluence.placer.gang import GangRequest
from fluence.placer.gang_fit import GangFit
from fluence.placer.profile import JobChange, Profile


class SeatForecast:
    """``ends``: by job, when it will probably end; those that are not there do not."""

    def __init__(self, seats: GangFit, ends: Mapping[int, int], now: int) -> None:
        self._seats = seats
        seats.look(now)  # the tables are as the nodes are
        self._free = seats.availability.view
        effect, horizon = seats.availability.effect, seats.matcher.horizon
        self._profile = Profile(
            [
                JobChange(job, end, -1, *effect(job))
                for job, end in ends.items()
                if job in seats.jobs and now < end < horizon
            ]
        )
        self._starts: dict[int, int | None] = {}  # by shape: the first that is known

    def start(self, gang: GangRequest, shape: int, since: int) -> int | None:
        """The first time from another on at which a gang finds its seats; None: at no time that is known."""
        known = self._starts.get(shape, since + 1)
        if known is not None and since < known:
            known = self._starts[shape] = self._first(gang, since)
        return None if known is None else max(known, since)

    def _first(self, gang: GangRequest, since: int) -> int | None:
        if self._fits(gang, since):
            return since
        times = np.unique(self._profile.times[self._profile.times > since])
        times = times[self._seats.could_suffice(self._profile, times, times + 1, gang.devices, gang)]
        # There is more at each time than before. If it does not fit at the end, it does not before.
        if not len(times) or not self._fits(gang, int(times[-1])):
            return None
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if self._fits(gang, int(times[middle])):
                high = middle
            else:
                low = middle + 1
        return int(times[high])

    def _fits(self, gang: GangRequest, at: int) -> bool:
        return self._seats.fits(gang, self._profile.at(self._free, at), at)
