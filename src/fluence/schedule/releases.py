"""Releases: Jobs that have their seats and are to be let go, until they are seen to be.

The lifecycle orders one when a gang with stand-ins starts; the cycle takes those that are due.
"""

from __future__ import annotations

from fluence.schedule.actions import Release


class Releases:
    """By the uid of the Job. ``first`` and ``most``: the shortest and the longest pause, in milliseconds."""

    def __init__(self, first: int, most: int) -> None:
        self._first, self._most = first, most
        self._ordered: dict[str, Release] = {}  # not seen to be carried out
        self._due: dict[str, int] = {}  # when to send it
        self._tries: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._ordered

    def order(self, release: Release, now: int) -> None:
        self._ordered[release.uid] = release
        self._due[release.uid] = now

    def again(self, release: Release, now: int) -> None:
        """It was not carried out; if another one was ordered since, that one counts."""
        uid = release.uid
        ordered = self._ordered.get(uid)
        if ordered is not None and ordered.note == release.note:
            tries = self._tries[uid] = self._tries.get(uid, 0) + 1
            self._due[uid] = now + min(self._first << min(tries - 1, 16), self._most)

    def forget(self, uid: str) -> None:
        """It was carried out, or is not wanted any more."""
        self._ordered.pop(uid, None)
        self._due.pop(uid, None)
        self._tries.pop(uid, None)

    def take_due(self, now: int) -> list[Release]:
        """What is to be sent now; it stays ordered."""
        uids = [uid for uid, at in self._due.items() if at <= now]
        for uid in uids:
            del self._due[uid]
        return [self._ordered[uid] for uid in uids]

    def next_due(self) -> int | None:
        return min(self._due.values(), default=None)
