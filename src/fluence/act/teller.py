"""Teller: writes what users are told, the last word per object, a few at once, and never without the lease.

What it is given while an older word about the same object waits replaces that word; while one is being
written it waits, since the server may carry out two at once in any order. A word that cannot be written is
dropped: the next change brings another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, Forbidden, KubeError, Missing
from fluence.kube.resource import Json, Resource

logger = logging.getLogger(__name__)

IN_FLIGHT = 4  # binds come first

_Key = tuple[str, str, str]


class Teller:
    """``tell`` from the loop; ``run`` writes until cancelled."""

    def __init__(self, client: Client, *, held: Callable[[], bool], in_flight: int = IN_FLIGHT) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._held = held
        self._in_flight = in_flight
        self._waiting: dict[_Key, tuple[Resource[Any], Json]] = {}
        self._writing: set[_Key] = set()
        self._wake = asyncio.Event()

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    def tell(self, resource: Resource[Any], namespace: str, name: str, patch: Json) -> None:
        """Patch the status of an object with this."""
        self._waiting[resource.name, namespace, name] = (resource, patch)
        self._wake.set()

    def forget(self, resource: Resource[Any], namespace: str, name: str) -> None:
        """What was to be said is no longer so."""
        self._waiting.pop((resource.name, namespace, name), None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = next((each for each in self._waiting if each not in self._writing), None)
            if key is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            resource, patch = self._waiting.pop(key)
            if not self._held():
                continue
            self._writing.add(key)
            try:
                await self._write(resource, key, patch)
            finally:
                self._writing.discard(key)
            if key in self._waiting:
                self._wake.set()

    async def _write(self, resource: Resource[Any], key: _Key, patch: Json) -> None:
        _, namespace, name = key
        try:
            await self._client.patch(
                resource.raw(),
                name,
                patch,
                namespace=namespace,
                kind=PatchType.STRATEGIC,
                subresource="status",
            )
            self.written += 1
        except (Missing, ApiConflict):
            pass  # it is gone, or was made anew under its name
        except Forbidden as error:
            self.failed += 1
            logger.error("%s %s/%s: its status cannot be written: %s", resource.name, namespace, name, error)
        except KubeError as error:
            self.failed += 1
            logger.warning("%s %s/%s: its status is not written: %s", resource.name, namespace, name, error)
