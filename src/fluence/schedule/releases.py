"""Releases: Jobs that have their seats and are to be let go, until they are seen to be.

The lifecycle orders one when a gang with stand-ins starts; the cycle takes those that are due.
"""

from __future__ import annotations

from fluence.schedule.actions import Release


class Releases:
    """By the identity of the Job. ``first`` and ``most``: the shortest and the longest pause, in
    milliseconds."""

    def __init__(self, first: int, most: int) -> None:
        self._first, self._most = first, most
        self._ordered: dict[str, Release] = {}  # not seen to be carried out
        self._due: dict[str, int] = {}  # when to send it
        self._tries: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._ordered

    def order(self, release: Release, now: int) -> None:
        self._ordered[release.key] = release
        self._due[release.key] = now

    def again(self, release: Release, now: int) -> None:
        """It was not carried out; if another one was ordered since, that one counts."""
        key = release.key
        ordered = self._ordered.get(key)
        if ordered is not None and ordered.note == release.note:
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            self._due[key] = now + min(self._first << min(tries - 1, 16), self._most)

    def forget(self, key: str) -> None:
        """It was carried out, or is not wanted any more."""
        self._ordered.pop(key, None)
        self._due.pop(key, None)
        self._tries.pop(key, None)

    def take_due(self, now: int) -> list[Release]:
        """What is to be sent now; it stays ordered."""
        keys = [key for key, at in self._due.items() if at <= now]
        for key in keys:
            del self._due[key]
        return [self._ordered[key] for key in keys]

    def next_due(self) -> int | None:
        return min(self._due.values(), default=None)
