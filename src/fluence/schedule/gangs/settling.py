"""Settling: a group without a declared size waits until nothing new has joined it for a while.

The size of such a group is the sum of what exists: the pods of its owners, and pods without an owner. They
appear one after the other, so the first would start alone and use what the others need. The cycle asks here
for every group that changed, and runs again when a group is due.

An owner is new, and so is a pod without one; the pods of an owner were counted with it. The time of an
arrival is when this scheduler saw it, so that a wrong clock of the server makes no group start early or wait
forever. For objects that existed when the scheduler started, it is their creation time or now, whichever is
earlier: a group that settled long ago does not settle again after a restart. There the clocks may differ by
``_SKEW``.

A group that keeps growing waits until it stops. It holds no resources meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from dataclasses import dataclass, replace

from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang

_SKEW = 10_000  # milliseconds


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of an open group, and when the last one arrived."""

    uids: frozenset[str]
    since: int


class Settling:
    """The groups without a declared size that have not started. ``quiet``: milliseconds without a new
    part."""

    def __init__(self, quiet: int) -> None:
        self._quiet = quiet
        self._parts: dict[str, _Parts] = {}
        self._held: dict[str, int] = {}  # when the group is due

    def hold(self, gang: Gang, *, has_seat: Container[str], was_there: bool, now: int) -> Gang:
        """A group as it may be planned now: one that has not settled waits. ``has_seat`` are the uids of
        placed pods. ``was_there``: the group existed when the scheduler started."""
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
            known = _Parts(gang.parts, known.since)  # some parts left
        self._parts[key] = known
        due = known.since + self._quiet
        if due <= now:
            self._held.pop(key, None)
            return gang
        self._held[key] = due
        # The size to recommend is known only once the group has settled.
        warnings = tuple(each for each in gang.warnings if each.code is not Code.NO_SIZE)
        missing = gang.missing
        if missing is None and gang.fault is None and gang.members:
            missing = self.reason(key)
        return replace(gang, missing=missing, warnings=warnings)

    def reason(self, group: str) -> Reason | None:
        """Why a group waits here, if it does."""
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
    """Whether members of a group run and are not terminating, or have placements."""
    stays = any(pod.metadata.deletion_timestamp is None for pod in gang.placed)
    return stays or any(pod.metadata.uid in has_seat for pod in gang.members)
