"""Following: yields the resource document, and again after each change, from a file or a ConfigMap.

    async for tree in follow_file(Path("/etc/fluence/resources.yaml")): …
    async for tree in follow_config_map(client): …

A missing document declares nothing. A document that cannot be read is logged once, with its line, and the
last good one stays in force.
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
from fluence.model.external_resources import DeviceTree, document_of, parse
from fluence.model.meta import ConfigMap

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
