"""Advertising: follows the resource document, and writes its numbers into the status of nodes.

A kubelet leaves unknown extended resources as they are, so this is enough for kube-scheduler to place pods
that request them. Types that are removed from the document are removed from the nodes; only names with our
prefix are ever changed. Values that are already correct are not written, so two processes may run.

async for tree in follow_file(Path("/etc/fluence/resources.yaml")): …
    async for tree in follow_config_map(client): …

A missing document declares nothing. A document that cannot be read is logged once, with its line, and the
last good one stays in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from fluence import names
from fluence.deviceplugin.settings import offered
from fluence.errors import FluenceError, InvalidInput
from fluence.kube.client import Client
from fluence.kube.errors import KubeError, Missing
from fluence.kube.reflector import Reflector
from fluence.kube.resource import CONFIG_MAPS, NODES, Json
from fluence.model.external_resources import DeviceTree, document_of, parse
from fluence.model.meta import ConfigMap
from fluence.model.node import Node
from fluence.units import NANO, parse_quantity

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = (
    1.0  # between two checks of a file: a mounted ConfigMap is replaced within a minute or so
)


async def follow_file(path: Path, *, every_s: float = POLL_SECONDS) -> AsyncIterator[DeviceTree]:
    """The contents of a file, also through the links by which the kubelet replaces a mounted ConfigMap."""
    held: DeviceTree | None = None
    before: object = ()
    while True:
        mark = _mark(path)
        if mark != before:
            before = mark
            tree = _read(path, held)
            if tree is not None and tree != held:
                held = tree
                yield tree
        await asyncio.sleep(every_s)


async def follow_config_map(client: Client) -> AsyncIterator[DeviceTree]:
    """The contents of the ConfigMap, by a watch of that one object."""
    namespace, name = names.RESOURCES_NAMESPACE, names.RESOURCES_CONFIGMAP
    reflector: Reflector[ConfigMap] = Reflector(
        client, CONFIG_MAPS, namespace=namespace, field_selector=f"metadata.name={name}"
    )
    changed = asyncio.Event()
    changed.set()
    reflector.store.on_change(lambda old, new: changed.set())
    watch = asyncio.create_task(reflector.run())
    held: DeviceTree | None = None
    try:
        await reflector.synced.wait()
        while True:
            await changed.wait()
            changed.clear()
            current = reflector.store.get(name, namespace)
            text = "" if current is None else document_of(current.data)
            tree = _parsed(text, f"ConfigMap {namespace}/{name}", held)
            if tree is not None and tree != held:
                held = tree
                yield tree
    finally:
        watch.cancel()
        await asyncio.wait({watch})


def _mark(path: Path) -> object:
    """Identifies the contents of a file without reading it."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(path: Path, held: DeviceTree | None) -> DeviceTree | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return DeviceTree()
    except (OSError, UnicodeDecodeError) as error:
        logger.error("%s cannot be read: %s; %s", path, error, _what_stays(held))
        return None
    return _parsed(text, str(path), held)


def _parsed(text: str, source: str, held: DeviceTree | None) -> DeviceTree | None:
    try:
        return parse(text, source=source)
    except FluenceError as error:
        logger.error("%s; %s", error, _what_stays(held))
        return None


def _what_stays(held: DeviceTree | None) -> str:
    if held is None or not held.types:
        return "nothing is offered until that is cured"
    return f"{', '.join(held.types)} stay as they are until that is cured"


_MAX_CALLS: Final = 8
_RETRY_SECONDS: Final = 10.0  # after a failed write


def status_patch(node: Node, wanted: Mapping[str, int], *, zeros: bool = False) -> Json | None:
    """The patch that makes a node offer exactly this; None if it already does. ``zeros``: also remove entries
    that a kubelet left at 0. A kubelet writes them for five minutes after its plugin is gone, and then never
    again."""
    changes: Json = {}
    for field, held in (("capacity", node.status.capacity), ("allocatable", node.status.allocatable)):
        held = held or {}
        change: Json = {
            name: str(number) for name, number in wanted.items() if _number(held.get(name)) != number
        }
        for name in held:
            ours = name.startswith(names.DEVICE_PREFIX) and name not in wanted
            if ours and (zeros or _number(held[name]) != 0):
                change[name] = None
        if change:
            changes[field] = change
    return {"status": changes} if changes else None


async def advertise_once(client: Client, wanted: Mapping[str, int], *, zeros: bool = False) -> int:
    """Make every node offer exactly this. Returns how many nodes were changed."""
    page = await client.list(NODES)
    patches = [(node, status_patch(node, wanted, zeros=zeros)) for node in page.items or ()]
    todo = [(node.name, patch) for node, patch in patches if patch is not None]
    gate = asyncio.Semaphore(_MAX_CALLS)

    async def write(name: str, patch: Json) -> None:
        async with gate:
            with contextlib.suppress(Missing):  # the node has gone meanwhile
                await client.patch(NODES, name, patch, subresource="status")

    await asyncio.gather(*(write(name, patch) for name, patch in todo))
    return len(todo)


class Advertiser:
    """``await Advertiser(client, capacity=1000).run(trees)`` keeps all nodes up to date until cancelled."""

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
            for _ in range(_MAX_CALLS):
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
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._put, name)


def _number(text: str | None) -> int | None:
    """A count in the notation of the API, such as 1k."""
    try:
        return None if text is None else parse_quantity(text) // NANO
    except InvalidInput:
        return None
