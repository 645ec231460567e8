"""Bind retries: binds that the server did not carry out and that are sent again after a growing pause."""

from __future__ import annotations

from collections.abc import Iterator

from fluence.schedule.actions import Bind


class BindRetries:
    """By the uid of the pod. ``first`` and ``most``: the shortest and the longest pause, in milliseconds."""

    def __init__(self, first: int, most: int) -> None:
        self._first, self._most = first, most
        self._waiting: dict[str, tuple[int, Bind]] = {}  # when to send it
        self._tries: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether a bind of this pod waits to be sent again."""
        return uid in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def was_tried(self, uid: str) -> bool:
        return uid in self._tries

    def add(self, bind: Bind, now: int) -> None:
        tries = self._tries[bind.uid] = self._tries.get(bind.uid, 0) + 1
        pause = min(self._first << min(tries - 1, 16), self._most)
        self._waiting[bind.uid] = (now + pause, bind)

    def forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._tries.pop(uid, None)

    def stop(self, uid: str) -> None:
        """The pod is placed anew; its tries so far still count."""
        self._waiting.pop(uid, None)

    def is_due(self, uid: str, now: int) -> bool:
        return self._waiting[uid][0] <= now

    def take(self, uid: str) -> Bind:
        """The bind, to be sent now."""
        return self._waiting.pop(uid)[1]

    def next_due(self) -> int | None:
        return min((at for at, _ in self._waiting.values()), default=None)
