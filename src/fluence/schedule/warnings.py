"""Warnings: what groups declare and nobody uses, told once for each object that declares it.

The cycle asks when something happened to a group; the edge makes events of it. `fluence explain` shows the
same at any time, from the group itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachetools import LRUCache

from fluence.model.owner import controller_of
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.gang import Gang

_KEPT = 16_384  # warnings that were told


@dataclass(frozen=True, slots=True)
class GangWarning:
    """What is to be told, and to which pod."""

    pod: Pod
    reason: Reason


class Warnings:
    """What was told; a bounded number of it, so that the oldest may be told again."""

    def __init__(self) -> None:
        self._told: LRUCache[tuple[str, Reason], bool] = LRUCache(_KEPT)

    def new(self, gang: Gang) -> list[GangWarning]:
        """What is to be told about a group that has warnings."""
        pod = next(iter((*gang.members, *gang.gated, *gang.placed)), None)
        if pod is None:
            return []
        # The pods of one Job have what its template says: one of them is told.
        owner = controller_of(pod.metadata) or gang.uid
        new = [each for each in gang.warnings if (owner, each) not in self._told]
        self._told.update(dict.fromkeys(((owner, each) for each in new), True))
        return [GangWarning(pod, each) for each in new]
