"""Advertising: the numbers of the device plugin on nodes' status, written by one process for all nodes.

A kubelet leaves extended resources that it does not know as they are, so that this is enough for
kube-scheduler to place pods that ask for them. What is gone from the document goes from the nodes; only names
under our prefix are ever touched. Writing what is there already is not done, so that it may run twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

from fluence import names
from fluence.deviceplugin.capacity import offered
from fluence.errors import InvalidInput
from fluence.kube.client import Client
from fluence.kube.errors import KubeError, Missing
from fluence.kube.reflector import Reflector
from fluence.kube.resource import NODES, Json
from fluence.model.device import DeviceTree
from fluence.model.node import Node
from fluence.units import NANO, parse_quantity

logger = logging.getLogger(__name__)

_AT_ONCE: Final = 8
_AGAIN_S: Final = 10.0  # after a write that failed


def status_patch(node: Node, wanted: Mapping[str, int]) -> Json | None:
    """What to write so that a node offers just this; None if it does."""
    changes: Json = {}
    for field, held in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        held = held or {}
        change: Json = {
            name: str(number) for name, number in wanted.items() if _number(held.get(name)) != number
        }
        for name in held:
            # One that stands at 0 is a kubelet's: it keeps what a plugin of its own once had.
            if name.startswith(names.DEVICE_PREFIX) and name not in wanted and _number(held[name]) != 0:
                change[name] = None
        if change:
            changes[field] = change
    return {"status": changes} if changes else None


async def advertise_once(client: Client, wanted: Mapping[str, int]) -> int:
    """See that every node offers just this; answers how many did not."""
    found = await client.list(NODES)
    patches = [(node, status_patch(node, wanted)) for node in found.items or ()]
    todo = [(node.name, patch) for node, patch in patches if patch is not None]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def write(name: str, patch: Json) -> None:
        async with gate:
            with contextlib.suppress(Missing):  # the node went meanwhile
                await client.patch(NODES, name, patch, subresource="status")

    await asyncio.gather(*(write(name, patch) for name, patch in todo))
    return len(todo)


class Advertiser:
    """``await Advertiser(client, capacity=1000).run(trees)`` keeps all nodes so until cancelled."""

    def __init__(self, client: Client, *, capacity: int) -> None:
        self._client = client
        self._capacity = capacity
        self._nodes: Reflector[Node] = Reflector(client, NODES)
        self._wanted: dict[str, int] | None = None  # None: the document was not read yet
        self._due: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._fault = ""

    async def run(self, trees: AsyncIterator[DeviceTree]) -> None:
        self._nodes.store.on_change(self._node_changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._nodes.run())
            tasks.create_task(self._follow(trees))
            for _ in range(_AT_ONCE):
                tasks.create_task(self._work())

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._put(new.name)

    async def _follow(self, trees: AsyncIterator[DeviceTree]) -> None:
        async for tree in trees:
            self._wanted = offered(tree, self._capacity)
            logger.info("nodes offer %s", ", ".join(self._wanted) or "nothing of ours")
            for node in self._nodes.store:
                self._put(node.name)

    def _put(self, name: str) -> None:
        self._due[name] = None
        self._wake.set()

    async def _work(self) -> None:
        while True:
            name = next(iter(self._due), None)
            if name is None or self._wanted is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            del self._due[name]
            await self._advertise(name, self._wanted)

    async def _advertise(self, name: str, wanted: Mapping[str, int]) -> None:
        node = self._nodes.store.get(name)
        patch = None if node is None else status_patch(node, wanted)
        if patch is None:
            return
        try:
            await self._client.patch(NODES, name, patch, subresource="status")
            self._fault = ""
        except Missing:
            pass  # it is gone
        except KubeError as error:
            if str(error) != self._fault:
                logger.error("node %s: not written, and tried again: %s", name, error)
            self._fault = str(error)
            asyncio.get_running_loop().call_later(_AGAIN_S, self._put, name)


def _number(text: str | None) -> int | None:
    """A count as the API writes it: 1k."""
    try:
        return None if text is None else parse_quantity(text) // NANO
    except InvalidInput:
        return None
