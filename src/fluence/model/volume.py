"""Volumes: the fields of claims, volumes and storage classes that decide where a pod can run."""

from __future__ import annotations

from fluence.model.meta import ObjectMeta, Wire
from fluence.model.pod import NodeSelector


class _ClaimSpec(Wire, frozen=True):
    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None


class _ClaimStatus(Wire, frozen=True):
    phase: str = ""


class VolumeClaim(Wire, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()


class _Affinity(Wire, frozen=True):
    required: NodeSelector | None = None


class _VolumeSpec(Wire, frozen=True):
    node_affinity: _Affinity | None = None


class Volume(Wire, frozen=True):
    """A PersistentVolume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _VolumeSpec = _VolumeSpec()
