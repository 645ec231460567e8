"""Following: the resource document as it is now, and again whenever it changed, from a file or a ConfigMap.

    async for tree in follow_file(Path("/etc/fluence/resources.yaml")): …
    async for tree in follow_config_map(client): …

A document that is not there declares nothing. One that cannot be read is told once, with its line, and leaves
what was there standing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from fluence import names
from fluence.errors import FluenceError
from fluence.kube.client import Client
from fluence.kube.reflector import Reflector
from fluence.kube.resource import CONFIG_MAPS
from fluence.model.config_map import ConfigMap
from fluence.model.device import DeviceTree
from fluence.model.resource_document import parse

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0  # between two looks at a file: a mounted ConfigMap is exchanged within a minute or so


async def follow_file(path: Path, *, every_s: float = LOOK_S) -> AsyncIterator[DeviceTree]:
    """What a file declares, also through the links by which the kubelet exchanges a mounted ConfigMap."""
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


async def follow_config_map(
    client: Client,
    *,
    namespace: str = names.RESOURCES_NAMESPACE,
    name: str = names.RESOURCES_CONFIGMAP,
) -> AsyncIterator[DeviceTree]:
    """What the ConfigMap declares, by a watch of that one object."""
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
            found = reflector.store.get(name, namespace)
            text = "" if found is None else (found.data or {}).get(names.RESOURCES_KEY, "")
            tree = _parsed(text, f"ConfigMap {namespace}/{name}", held)
            if tree is not None and tree != held:
                held = tree
                yield tree
    finally:
        watch.cancel()
        await asyncio.wait({watch})


def _mark(path: Path) -> object:
    """What tells one content of a file from another, without reading it."""
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


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
