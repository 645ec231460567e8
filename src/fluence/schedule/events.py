"""Events: all that the scheduler is told, in whatever order it happens.

The edge (`fluence.live`, or the embedded cluster of `fluence.sim`) makes them from watches and from the
answers to binds, and hands them to `Scheduler.handle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fluence.model.config_map import ConfigMap
from fluence.model.dra import DeviceClass, ResourceClaimTemplate, ResourceSlice
from fluence.model.group import Group
from fluence.model.meta import KubeObject
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.priority import PriorityClass
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.schedule.actions import BindResult, ReleaseResult

# A bare KubeObject is a namespace: of those only the labels matter.
Object: TypeAlias = (
    Node
    | Pod
    | Group
    | Owner
    | VolumeClaim
    | PersistentVolume
    | StorageClass
    | CsiNode
    | ResourceSlice
    | DeviceClass
    | ResourceClaimTemplate
    | PriorityClass
    | ConfigMap
    | KubeObject
)


@dataclass(frozen=True, slots=True)
class Changed:
    """An object is new (``old`` is None), changed, or gone (``new`` is None)."""

    old: Object | None
    new: Object | None

    @property
    def object(self) -> Object:
        """As it is now, or as it was last."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class BindFinished:
    """A bind was answered."""

    result: BindResult


@dataclass(frozen=True, slots=True)
class ReleaseFinished:
    """A release was answered."""

    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class NotBound:
    """A pod that counted as bound is not; only the scheduler itself says so, to its state."""

    pod: Pod


Event: TypeAlias = Changed | BindFinished | ReleaseFinished
