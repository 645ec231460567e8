"""Counts: how many pods of each controller were ended for others, by which their least run time grows.

They are kept in the status of the queues that have a least run time, where no tenant writes, so that a new
process continues with them. There a controller is a digest of its identity: everybody may read queues, and
names of other tenants' work are not for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from cachetools import LRUCache

from fluence.model.queue_object import MAX_PREEMPTED

_MAX_CONTROLLERS: Final = 10_000


class EndedCounts:
    """By controller, with the queue that its pods counted in."""

    def __init__(self) -> None:
        self._ended: LRUCache[str, tuple[str, int]] = LRUCache(_MAX_CONTROLLERS)

    def note(self, controller: str, queue: str) -> None:
        """A pod of a controller ends for others."""
        key = _digest(controller)
        self._ended[key] = queue, self._ended.get(key, (queue, 0))[1] + 1

    def of(self, controller: str) -> int:
        return self._ended.get(_digest(controller), ("", 0))[1] if self._ended else 0

    def forget(self, controller: str) -> None:
        """A controller is gone."""
        if self._ended:
            self._ended.pop(_digest(controller), None)

    def restore(self, queue: str, counts: Mapping[str, int]) -> None:
        """What an earlier process wrote in the status of a queue. Pods that are still ending are in it."""
        for key, count in counts.items():
            self._ended[key] = queue, max(count, self._ended.get(key, (queue, 0))[1])

    def of_queue(self, queue: str) -> dict[str, int]:
        """Those of one queue, for its status: the most often ended, if they are many."""
        found = {key: count for key, (name, count) in self._ended.items() if name == queue}
        most = sorted(found, key=lambda key: (-found[key], key))[:MAX_PREEMPTED]
        return {key: found[key] for key in sorted(most)}


def _digest(controller: str) -> str:
    return blake2b(controller.encode(), digest_size=8).hexdigest()
