"""DevicePlugins: a plugin for each type of the document, through changes of it and restarts of the kubelet.

A kubelet that starts removes all sockets in its folder and makes its own anew; what was registered is
forgotten. So both are looked at once a second: where ours is gone, or the kubelet's is another, or nobody
listens although we registered, a plugin serves and registers again. A kubelet that is not there is waited
for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fluence.clock import Clock, SystemClock
from fluence.deviceplugin.capacity import offered
from fluence.deviceplugin.type_plugin import KUBELET_SOCKET, TypePlugin
from fluence.model.device import DeviceTree

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
_UNHEARD_S: Final = 10.0  # registered, and the kubelet does not listen: then once more
_PAUSE_S: Final = (1.0, 30.0)  # after a registration that failed: the first, doubled up to the longest


@dataclass(slots=True, eq=False)
class _Entry:
    """A plugin, and how it stands with the kubelet."""

    plugin: TypePlugin
    kubelet: object = None  # the one with which it is registered
    heard_at: float = 0.0  # when the kubelet listened last, or was told of us
    next_try: float = 0.0
    pause: float = _PAUSE_S[0]
    told: str = ""  # the fault that was logged last


class DevicePlugins:
    """``await DevicePlugins(folder, capacity=1000).run(trees)`` runs until cancelled."""

    def __init__(
        self, folder: Path, *, capacity: int, look_s: float = LOOK_S, clock: Clock | None = None
    ) -> None:
        self._folder = folder
        self._capacity = capacity
        self._look_s = look_s
        self._clock = clock or SystemClock()
        self._entries: dict[str, _Entry] = {}
        self._wanted: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._kubelet_missing = False

    @property
    def registered(self) -> list[str]:
        """The resources that the kubelet knows of, and listens to."""
        return sorted(name for name, each in self._entries.items() if each.plugin.is_watched)

    async def run(self, trees: AsyncIterator[DeviceTree]) -> None:
        follows = asyncio.create_task(self._follow(trees))
        try:
            while not follows.done():
                await self._look()
                self._wake.clear()
                try:
                    async with asyncio.timeout(self._look_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            follows.result()
        finally:
            follows.cancel()
            await asyncio.wait({follows})
            for entry in self._entries.values():
                await entry.plugin.close()

    async def _follow(self, trees: AsyncIterator[DeviceTree]) -> None:
        async for tree in trees:
            self._wanted = offered(tree, self._capacity)
            logger.info("offers %s", ", ".join(self._wanted) or "nothing: the document declares no resource")
            self._wake.set()

    async def _look(self) -> None:
        for name in [each for each in self._entries if each not in self._wanted]:
            await self._entries.pop(name).plugin.withdraw()
            logger.info("%s is no longer offered", name)
        for name, capacity in self._wanted.items():
            if name not in self._entries:
                self._entries[name] = _Entry(TypePlugin(name, capacity, self._folder))
        kubelet = _mark(self._folder / KUBELET_SOCKET)
        if not self._entries or self._is_missing(kubelet):
            return
        await asyncio.gather(*(self._keep(each, kubelet) for each in self._entries.values()))

    def _is_missing(self, kubelet: object) -> bool:
        missing = kubelet is None
        if missing and not self._kubelet_missing:
            logger.warning("waits for the kubelet: %s is not there", self._folder / KUBELET_SOCKET)
        self._kubelet_missing = missing
        return missing

    async def _keep(self, entry: _Entry, kubelet: object) -> None:
        """See that one plugin is served and registered."""
        now, plugin = self._clock.monotonic(), entry.plugin
        known = entry.kubelet == kubelet
        if plugin.is_watched and known:
            entry.heard_at = now
        if plugin.is_serving and known and now - entry.heard_at < _UNHEARD_S:
            return
        if known and now < entry.next_try:
            return
        try:
            if not plugin.is_serving or not known:
                await plugin.serve()
            await plugin.register()
        except OSError as error:
            entry.kubelet = kubelet
            entry.heard_at = now - _UNHEARD_S  # not registered: the next try is as soon as its pause is over
            entry.next_try, entry.pause = now + entry.pause, min(2 * entry.pause, _PAUSE_S[1])
            if entry.told != str(error):
                logger.warning("%s is not registered: %s; it is tried again", plugin.resource, error)
            entry.told = str(error)
            return
        entry.kubelet, entry.heard_at = kubelet, now
        entry.pause, entry.told = _PAUSE_S[0], ""
        logger.info("%s is registered", plugin.resource)


def _mark(path: Path) -> object:
    """What tells one kubelet's socket from the next one's; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns
