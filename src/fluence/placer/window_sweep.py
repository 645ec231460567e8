"""Window sweep: what is free throughout windows of a profile that begin later and later.

A search for the earliest start looks at many windows. To ask the profile about each is to go through all of
it each time; here it is put into the order of time once, and each window takes what lies in it.
"""

from __future__ import annotations

import numpy as np

from fluence.placer.profile import FreeView, Profile


class WindowSweep:
    """``view``: what is free now. Windows are asked for in the order of their starts."""

    def __init__(self, profile: Profile, view: FreeView) -> None:
        order = np.argsort(profile.times, kind="stable")
        self._times, self._rows = profile.times[order], profile.rows[order]
        self._freed, self._users = profile.freed[order], profile.users[order]
        self._view = FreeView(view.free.copy(), view.users.copy())
        self._passed = 0
        # What is free, and who is there, when something has just started: in between there is no less.
        starts = order[self._users > 0]
        self._start_times, self._start_rows = profile.times[starts], profile.rows[starts]
        free, users = profile.heights()
        self._left = free[starts] + view.free[self._start_rows]
        self._there = users[starts] + view.users[self._start_rows]

    def throughout(self, time: int, end: int) -> FreeView:
        """What is free from a time until another; the caller may change the answer."""
        upto = int(np.searchsorted(self._times, time, "right"))
        some = slice(self._passed, upto)
        np.add.at(self._view.free, self._rows[some], self._freed[some])
        np.add.at(self._view.users, self._rows[some], self._users[some])
        self._passed = upto
        first = int(np.searchsorted(self._start_times, time, "right"))
        last = int(np.searchsorted(self._start_times, end, "left"))
        found = FreeView(self._view.free.copy(), self._view.users.copy())
        np.minimum.at(found.free, self._start_rows[first:last], self._left[first:last])
        np.maximum.at(found.users, self._start_rows[first:last], self._there[first:last])
        return found
