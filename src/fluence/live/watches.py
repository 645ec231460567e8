"""Watches: reflectors for all that the scheduler follows, turned into its events.

Objects of one kind come in the order in which the server tells them; kinds come in any order, and any order
gives the same state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from fluence.kube.client import Client
from fluence.kube.gangs import AnyGangs, CustomGroups, PodGroup, SigPodGroup, Workload
from fluence.kube.reflector import Reflector
from fluence.kube.resource import (
    CLAIMS,
    CONFIG_MAPS,
    CSI_NODES,
    DEVICES,
    NAMESPACES,
    NODES,
    OWNERS,
    PODS,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.model.group import system_of
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.schedule.events import Changed, Event, Object

_PLAIN: tuple[Resource[Any], ...] = (
    *OWNERS,
    CLAIMS,
    VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    PRIORITY_CLASSES,
)


class Watches:
    """``put`` is called with each event. The stores of nodes and pods are for asking what is there now."""

    def __init__(
        self, client: Client, put: Callable[[Event], None], *, devices: tuple[str, str] | None = None
    ) -> None:
        self.nodes: Reflector[Node] = Reflector(client, NODES)
        self.pods: Reflector[Pod] = Reflector(client, PODS)
        self.namespaces: Reflector[Any] = Reflector(client, NAMESPACES)
        self._client = client
        self._put = put
        self._devices = devices  # namespace and name of the ConfigMap that declares them
        self.all: list[Reflector[Any]] = []
        self._handlers: list[tuple[Reflector[Any], Callable[[Any, Any], None]]] = []

    def follow(self, *, devices: bool = False) -> None:
        """What every server has, to be run. ``devices``: it has dynamic resource allocation."""
        for own in (self.nodes, self.pods, self.namespaces):
            self._hear(own, self._changed)
        for each in _PLAIN:
            self._hear(Reflector(self._client, each), self._changed)
        for each in DEVICES if devices else ():
            self._hear(Reflector(self._client, each, optional=True), self._changed)
        if self._devices is not None:
            self._hear(self._device_config(*self._devices), self._changed)

    def follow_native(self, gangs: AnyGangs) -> None:
        """The server's own PodGroups, from now on."""
        assert gangs.resource is not None
        resource: Resource[Any] = gangs.resource
        self._hear(Reflector(self._client, resource, optional=True), self._native(gangs))

    def follow_custom(self, adapter: CustomGroups) -> None:
        """PodGroups that are custom resources, from now on. An account that has no right to those of other
        systems schedules without them."""
        denied = bool(system_of(adapter.resource.group))
        groups = Reflector(self._client, adapter.resource, optional=True, may_be_denied=denied)
        self._hear(groups, self._custom(adapter))

    def _device_config(self, namespace: str, name: str) -> Reflector[Any]:
        return Reflector(
            self._client,
            CONFIG_MAPS,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            may_be_denied=True,
        )

    def _hear(self, reflector: Reflector[Any], changed: Callable[[Any, Any], None]) -> None:
        reflector.store.on_change(changed)
        self.all.append(reflector)
        self._handlers.append((reflector, changed))

    def objects(self) -> list[Object]:
        """All that is there, as events would bring it."""
        found: list[Object] = []
        put, self._put = self._put, lambda event: found.append(cast(Changed, event).object)
        try:
            for reflector, changed in self._handlers:
                for each in list(reflector.store):
                    changed(None, each)
        finally:
            self._put = put
        return found

    async def synced(self) -> None:
        """Until everything was listed once."""
        for reflector in self.all:
            await reflector.synced.wait()

    async def refresh(self) -> None:
        """Until all that is there now is known: a watch may be late, or hang."""
        await asyncio.gather(*(reflector.refresh() for reflector in self.all))

    @property
    def cluster(self) -> str:
        """What tells this cluster from others: the uid of a namespace that stays while it lives."""
        found = self.namespaces.store.get("kube-system")
        return "" if found is None else str(found.metadata.uid)

    def _changed(self, old: Any, new: Any) -> None:
        self._put(Changed(old, new))

    def _native(self, gangs: AnyGangs) -> Callable[[Any, Any], None]:
        def changed(old: PodGroup | Workload | None, new: PodGroup | Workload | None) -> None:
            """A Workload of 1.35 holds several groups: some may go while it stays."""
            before = {group.name: group for group in gangs.groups(old)} if old is not None else {}
            for group in gangs.groups(new) if new is not None else ():
                self._put(Changed(before.pop(group.name, None), group))
            for group in before.values():
                self._put(Changed(group, None))

        return changed

    def _custom(self, adapter: CustomGroups) -> Callable[[Any, Any], None]:
        def changed(old: SigPodGroup | None, new: SigPodGroup | None) -> None:
            before = None if old is None else adapter.group(old)
            self._put(Changed(before, None if new is None else adapter.group(new)))

        return changed
