"""Settling: a group that names no size is held until nothing new has come to it for a while.

The size of such a group is what is there: its owners' pods, and pods without an owner. They come one after
the other, so the first of them would start alone and hold what the others need. The cycle asks here for every
group that changed, and comes back when one is due.

What counts as new is an owner, or a pod without one; the pods of an owner were counted with it. Their time is
when this scheduler saw them, so that a server whose clock is wrong makes nobody start early or wait for ever.
What was there when the scheduler began came when the server made it, or now, whichever is earlier: a group
that settled long ago does not settle again after a restart. There clocks may differ by ``_SKEW``.

A group to which something is added again and again waits as long as that goes on. It holds nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, replace

from fluence.model.reason import Code, Reason
from fluence.schedule.gang import Gang

_SKEW = 10_000  # milliseconds


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an open group consists of, and when the last of it came."""

    uids: frozenset[str]
    since: int


class Settling:
    """The groups that name no size and have not begun. ``quiet``: milliseconds without anything new."""

    def __init__(self, quiet: int) -> None:
        self._quiet = quiet
        self._parts: dict[str, _Parts] = {}
        self._held: dict[str, int] = {}  # until when

    def hold(self, gang: Gang, *, has_seat: Container[str], was_there: bool, now: int) -> Gang:
        """A group as it may be tried now: one that has not settled waits. ``has_seat``: uids of pods with a
        seat; ``was_there``: the group was there when the scheduler began."""
        key = gang.key
        if not gang.is_open or has_begun(gang, has_seat):
            self.forget(key)
            return gang
        known = self._parts.get(key)
        if known is None or not gang.parts <= known.uids:
            found = known is None and was_there
            since = min(now, gang.newest + _SKEW) if found else now
            known = _Parts(gang.parts, since)
        elif gang.parts != known.uids:
            known = _Parts(gang.parts, known.since)  # some left
        self._parts[key] = known
        due = known.since + self._quiet
        if due <= now:
            self._held.pop(key, None)
            return gang
        self._held[key] = due
        # What size to write is known when it has settled.
        warnings = tuple(each for each in gang.warnings if each.code is not Code.NO_SIZE)
        missing = gang.missing
        if missing is None and gang.fault is None and gang.members:
            missing = self.reason(key)
        return replace(gang, missing=missing, warnings=warnings)

    def reason(self, group: str) -> Reason | None:
        """Why a group is held, if it is."""
        return Reason.of(Code.GROUP_SETTLES, quiet=self._quiet) if group in self._held else None

    def forget(self, group: str) -> None:
        self._parts.pop(group, None)
        self._held.pop(group, None)

    def take_due(self, now: int) -> Collection[str]:
        """The groups that have settled since the last call."""
        due = [key for key, at in self._held.items() if at <= now]
        for key in due:
            del self._held[key]
        return due

    def next_due(self) -> int | None:
        return min(self._held.values(), default=None)


def has_begun(gang: Gang, has_seat: Container[str]) -> bool:
    """Whether members of a group are on nodes to stay, or have their seats."""
    stays = any(pod.metadata.deletion_timestamp is None for pod in gang.placed)
    return stays or any(pod.metadata.uid in has_seat for pod in gang.members)
