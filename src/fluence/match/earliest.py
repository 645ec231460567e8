"""The first time at which a request fits, for operations that reserve.

A reservation starts when some job starts or ends, as in Fluxion. Times at which a search cannot succeed are
left out (`start_times.py`), and so are those that Fluxion does not try (`root_filter.py`), where the matcher
follows it that far.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from errno import EBUSY, ENOENT
from itertools import chain

from fluence.match.request import Request
from fluence.match.root_filter import RootFilter
from fluence.match.start_times import possible_starts
from fluence.match.window import Found, Window
from fluence.match.window_search import WindowSearch

_FEW_JOBS = 64


def earliest(
    search: WindowSearch, root_filter: RootFilter | None, request: Request, *, now: int, duration: int
) -> tuple[int, Found]:
    """The first time, from now on, at which a search succeeds, and what it found."""
    later = [time for time in search.ledger.times() if time > now]
    if root_filter is not None:
        return _earliest_in_fluxion(search, root_filter, request, now=now, later=later, duration=duration)
    # With many jobs, one search now is cheaper than to sweep over all of them.
    first = [now] if len(search.ledger.jobs) > _FEW_JOBS else []
    rest = later if first else [now, *later]
    for time in chain(first, _possible(search, request, rest, duration)):
        found = search.find(request, Window(time, time + duration, allocate=time == now))
        if found.selection is not None:
            if time == now:
                return now, found
            # Fluxion looks one event further before it stops, and that sets its errno.
            return time, replace(found, obstacle=ENOENT if time == later[-1] else EBUSY)
    return now, Found(None)


def _earliest_in_fluxion(
    search: WindowSearch,
    root_filter: RootFilter,
    request: Request,
    *,
    now: int,
    later: list[int],
    duration: int,
) -> tuple[int, Found]:
    """The same among the times that Fluxion tries; it takes note of each time that it looks at."""
    found = search.find(request, Window(now, now + duration))
    if found.selection is not None:
        return now, found
    tried = root_filter.starts(now + 1, duration, request.minimum)
    for time in _common(tried, _possible(search, request, later, duration)):
        found = search.find(request, Window(time, time + duration, allocate=False))
        if found.selection is not None:
            return time, replace(found, obstacle=ENOENT if next(tried, None) is None else EBUSY)
    return now, Found(None)


def _possible(search: WindowSearch, request: Request, times: list[int], duration: int) -> Iterable[int]:
    """Of some times, those at which a search may succeed."""
    if len(times) < 2 or not search.uses_index or search.has_siblings(request):
        return times
    allowed = search.allowed_by(request.constraint)
    return possible_starts(search.index, request.needs, times, duration=duration, allowed=allowed)


def _common(tried: Iterator[int], possible: Iterable[int]) -> Iterator[int]:
    """The times that are in both; all of ``tried`` are looked at. Both ascend."""
    others = iter(possible)
    other = next(others, None)
    for time in tried:
        while other is not None and other < time:
            other = next(others, None)
        if time == other:
            yield time
