"""Watches: reflectors for all that the scheduler follows, turned into its events.

Objects of one kind come in the order in which the server tells them; kinds come in any order, and any order
gives the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluence.kube.client import Client
from fluence.kube.gangs import AnyGangs, Coscheduling, PodGroup, SigPodGroup, Workload
from fluence.kube.reflector import Reflector
from fluence.kube.resource import (
    CLAIMS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    OWNERS,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.schedule.events import Changed, Event

_PLAIN: tuple[Resource[Any], ...] = (
    *OWNERS,
    CLAIMS,
    VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    NAMESPACES,
)


class Watches:
    """``put`` is called with each event. The stores of nodes and pods are for asking what is there now."""

    def __init__(self, client: Client, put: Callable[[Event], None]) -> None:
        self.nodes: Reflector[Node] = Reflector(client, NODES)
        self.pods: Reflector[Pod] = Reflector(client, PODS)
        self._client = client
        self._put = put
        self.all: list[Reflector[Any]] = []

    def follow(self, gangs: AnyGangs, coscheduling: Coscheduling | None) -> list[Reflector[Any]]:
        """All reflectors, to be run."""
        self.all = [self.nodes, self.pods, *(Reflector(self._client, each) for each in _PLAIN)]
        for reflector in self.all:
            reflector.store.on_change(self._changed)
        if gangs.resource is not None:
            resource: Resource[Any] = gangs.resource
            native: Reflector[Any] = Reflector(self._client, resource, optional=True)
            native.store.on_change(self._native(gangs))
            self.all.append(native)
        if coscheduling is not None:
            older: Reflector[Any] = Reflector(self._client, coscheduling.resource, optional=True)
            older.store.on_change(self._coscheduling(coscheduling))
            self.all.append(older)
        return self.all

    async def synced(self) -> None:
        """Until everything was listed once."""
        for reflector in self.all:
            await reflector.synced.wait()

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

    def _coscheduling(self, adapter: Coscheduling) -> Callable[[Any, Any], None]:
        def changed(old: SigPodGroup | None, new: SigPodGroup | None) -> None:
            before = None if old is None else adapter.group(old)
            self._put(Changed(before, None if new is None else adapter.group(new)))

        return changed
