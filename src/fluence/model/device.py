"""Devices: resources that belong to no node (a quantum computer, a licence), as `resources.yaml` has them.

A device is a vertex of the graph under the cluster, a rack or a node. With a count it is a pool of which any
part can be taken; without one it is taken as a whole, with all that is below it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from fluence import names

CLUSTER: Final = "cluster"
"""The parent of what belongs to the whole cluster."""


@dataclass(frozen=True, slots=True)
class Device:
    """One entry of the tree: attributes are complete, those of its parents included."""

    type: str
    name: str
    count: int = 1
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    children: tuple[Device, ...] = ()
    online: bool = True
    parent: str = CLUSTER
    """Of a device at the top of its tree, a *backend*: the cluster, or the name of a node or a rack."""

    def walk(self) -> Iterator[Device]:
        """This device and all that are below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class DeviceTree:
    """All that a document declares. Without backends the cluster is classical."""

    backends: tuple[Device, ...] = ()
    """The devices at the top, which a pod may name (`require-backend`)."""

    def walk(self) -> Iterator[Device]:
        """Every device at every level."""
        for backend in self.backends:
            yield from backend.walk()

    @property
    def types(self) -> tuple[str, ...]:
        """Every type at every level, in order of their names: what pods can ask for."""
        return tuple(sorted({device.type for device in self.walk()}))

    @property
    def attribute_keys(self) -> tuple[str, ...]:
        """The keys of all attributes, in order."""
        return tuple(sorted({key for device in self.walk() for key in device.attributes}))


def requested_devices(amounts: Mapping[str, int]) -> dict[str, int]:
    """The devices among the resources that a pod asks for, by type."""
    prefix = names.DEVICE_PREFIX
    return {name.removeprefix(prefix): n for name, n in amounts.items() if n > 0 and name.startswith(prefix)}


def variable(key: str) -> str:
    """The environment variable that carries an attribute: `qrmi_type` is in `FLUXION_QRMI_TYPE`."""
    return "FLUXION_" + re.sub("[^A-Z0-9]", "_", key.upper())


@dataclass(frozen=True, slots=True)
class DeviceTerm:
    """What a device must be: an attribute, or `backend` for its name, that is equal to a value, or a number
    that is at least (``>=``) or at most (``<=``) another."""

    key: str
    value: str
    operator: str = "="

    def __str__(self) -> str:
        return f"{self.key}{self.operator}{self.value}"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What pods that start together ask for beside their nodes: units of types, each type once."""

    needs: tuple[tuple[str, int], ...]
    terms: tuple[DeviceTerm, ...] = ()
    per_pod: bool = False  # each pod has devices of its own; otherwise all share them


DeviceKey: TypeAlias = tuple[str, ...]
"""The name of a backend, and the names on the way down from it."""


class DeviceGrant(NamedTuple):
    """Units of one device that pods have."""

    device: DeviceKey
    type: str
    amount: int
    pods: frozenset[Hashable]  # that asked for it: with the last of them it is free
    shared: bool = True  # False: it is one pod's own, and others of its gang may have the same device

    @property
    def backend(self) -> str:
        return self.device[0]
