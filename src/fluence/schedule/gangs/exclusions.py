"""Exclusions: nodes that a group must not use, because placing its pods there failed.

If the API server refused a pod of the group on a node, the node is excluded as long as the group exists, and
written on its pods, so that a restart knows it (`Gang.excluded`). If no volume could be provisioned on a
node, it is tried again after a while.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_PAUSE = 60_000  # ms until a node without a volume is tried again: storage may be free by then


class Exclusions:
    """Excluded nodes by group."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}
        self._without_volumes: dict[str, dict[str, int]] = {}  # node -> until when

    def of(self, group: str) -> frozenset[str]:
        """The nodes that a group must not use now."""
        return frozenset((*self._refused.get(group, ()), *self._without_volumes.get(group, ())))

    def refused(self, group: str) -> Collection[str]:
        """The nodes that the server refused."""
        return self._refused.get(group, ())

    def refuse(self, group: str, nodes: Iterable[str]) -> None:
        self._refused.setdefault(group, set()).update(nodes)

    def exclude(self, group: str, nodes: Iterable[str], now: int) -> None:
        """Exclude nodes for a while, because no volume could be provisioned there."""
        self._without_volumes.setdefault(group, {}).update(dict.fromkeys(nodes, now + _PAUSE))

    def clear(self, group: str) -> None:
        """The group has its volumes: nodes without one count again."""
        self._without_volumes.pop(group, None)

    def forget(self, group: str) -> None:
        """Drop the exclusions of a group that is gone."""
        self._refused.pop(group, None)

    def expire(self, now: int) -> list[str]:
        """The groups that may use excluded nodes again."""
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
        """When the next exclusion ends."""
        return min(
            (until for nodes in self._without_volumes.values() for until in nodes.values()), default=None
        )
