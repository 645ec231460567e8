"""Exclusions: nodes that the pods of a group must not have, by experience.

The API server refused a pod of the group on a node: that holds as long as the group does, and is written on
its pods, so that a restart knows it (`Gang.excluded`). Or no volume could be made there: that is tried
again after a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_PAUSE = 60_000  # how long a node on which a group got no volume is left out: there may be room again


class Exclusions:
    """Per group."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}
        self._without_volumes: dict[str, dict[str, int]] = {}  # node -> until when

    def of(self, group: str) -> frozenset[str]:
        """The nodes that a group must not have now."""
        return frozenset((*self._refused.get(group, ()), *self._without_volumes.get(group, ())))

    def refused(self, group: str) -> Collection[str]:
        """Those that the server refused."""
        return self._refused.get(group, ())

    def refuse(self, group: str, nodes: Iterable[str]) -> None:
        self._refused.setdefault(group, set()).update(nodes)

    def exclude(self, group: str, nodes: Iterable[str], now: int) -> None:
        """No volume could be made on these nodes."""
        self._without_volumes.setdefault(group, {}).update(dict.fromkeys(nodes, now + _PAUSE))

    def clear(self, group: str) -> None:
        """The group got its volumes."""
        self._without_volumes.pop(group, None)

    def forget(self, group: str) -> None:
        """The group is gone."""
        self._refused.pop(group, None)

    def expire(self, now: int) -> list[str]:
        """The groups to which nodes without a volume are open again."""
        found = []
        for group, nodes in list(self._without_volumes.items()):
            kept = {node: until for node, until in nodes.items() if until > now}
            if len(kept) < len(nodes):
                found.append(group)
                self._without_volumes[group] = kept
            if not kept:
                del self._without_volumes[group]
        return found

    def next_due(self) -> int | None:
        """When the next of them ends."""
        return min(
            (until for nodes in self._without_volumes.values() for until in nodes.values()), default=None
        )
