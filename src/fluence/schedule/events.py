"""Events: everything that the scheduler observes, in any order.

The edge (`fluence.live`, or the embedded cluster of `fluence.sim`) makes events from watches and from the
results of binds, and passes them to `Scheduler.handle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fluence.model.dra import DeviceClass, ResourceClaimTemplate, ResourceSlice
from fluence.model.kueue import KueueObject
from fluence.model.meta import ConfigMap, KubeObject, PriorityClass, Service
from fluence.model.node import Node
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queue_object import QueueObject
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.schedule.actions import BindResult, ReleaseResult

# A bare KubeObject is a namespace, whose labels are all that matters.
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
    | Service
    | PodDisruptionBudget
    | ConfigMap
    | QueueObject
    | KueueObject
    | KubeObject
)


@dataclass(frozen=True, slots=True)
class Changed:
    """An object is new (``old`` is None), changed, or gone (``new`` is None)."""

    old: Object | None
    new: Object | None

    @property
    def object(self) -> Object:
        """The new object, or the last known one if it is gone."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class BindFinished:
    """The result of a bind has arrived."""

    result: BindResult


@dataclass(frozen=True, slots=True)
class ReleaseFinished:
    """The result of a release has arrived."""

    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class NotBound:
    """A pod that counted as bound is not. Only `Scheduler` makes this event."""

    pod: Pod


Event: TypeAlias = Changed | BindFinished | ReleaseFinished
