"""Writers: one write per object at a time, the latest value wins, and only the leader writes.

A new value replaces an older one that still waits for the same object. While one is being written the next
waits, since the server may carry out two at once in any order. A write that fails unexpectedly is logged, and
the others continue. Namespaces take turns: thousands of writes in one namespace delay each write in another
by only one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, ClassVar, Generic, TypeVar

from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, Forbidden, KubeError, Missing
from fluence.kube.resource import Json, Resource

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

logger = logging.getLogger(__name__)


class CoalescingWriter(Generic[K, V]):
    """Set ``writer[key] = value`` from the event loop. ``run`` writes the values until cancelled, a few at a
    time."""

    def __init__(
        self,
        write: Callable[[K, V], Awaitable[None]],
        *,
        in_flight: int,
        namespace: Callable[[K, V], str] = lambda key, value: "",
    ) -> None:
        self._write = write
        self._in_flight = in_flight
        self._namespace = namespace
        self._waiting: dict[K, V] = {}
        self._turns: dict[str, dict[K, None]] = {}  # keys that wait, by namespace, in order
        self._writing: set[K] = set()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many values are not written yet."""
        return len(self._waiting) + len(self._writing)

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self._waiting:
            self._turns.setdefault(self._namespace(key, value), {})[key] = None
        self._waiting[key] = value
        self._wake.set()

    def get(self, key: K) -> V | None:
        """The value that waits for an object; None if nothing waits."""
        return self._waiting.get(key)

    def drop(self, key: K) -> None:
        if key in self._waiting:
            self._take(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._work())

    def _next(self) -> K | None:
        """The next object that can be written, from the first namespace that has one. That namespace moves to
        the end."""
        for namespace, keys in self._turns.items():
            key = next((each for each in keys if each not in self._writing), None)
            if key is not None:
                self._turns[namespace] = self._turns.pop(namespace)
                return key
        return None

    def _take(self, key: K) -> V:
        value = self._waiting.pop(key)
        namespace = self._namespace(key, value)
        del self._turns[namespace][key]
        if not self._turns[namespace]:
            del self._turns[namespace]
        return value

    async def _work(self) -> None:
        while True:
            key = self._next()
            if key is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            value = self._take(key)
            self._writing.add(key)
            try:
                await self._write(key, value)
            except Exception:
                logger.exception("%s: what was to be written is lost", key)
            finally:
                self._writing.discard(key)
            if key in self._waiting:
                self._wake.set()


class LeaderWriter(Generic[K, V]):
    """Carries out orders with ``_write`` until ``run`` is cancelled. Nothing is sent without the lease, which
    ``held`` checks. A failed order is dropped: the scheduler gives it or a newer one again."""

    IN_FLIGHT: ClassVar[int] = 4  # few: binds come first

    def __init__(self, client: Client, *, held: Callable[[], bool]) -> None:
        self._client = client
        self._held = held
        self._writer: CoalescingWriter[K, V] = CoalescingWriter(
            self._write, in_flight=self.IN_FLIGHT, namespace=self._namespace
        )

    @property
    def backlog(self) -> int:
        """Orders that are not carried out yet."""
        return len(self._writer)

    async def run(self) -> None:
        await self._writer.run()

    async def _write(self, key: K, order: V) -> None:
        raise NotImplementedError

    def _namespace(self, key: K, order: V) -> str:
        """The namespace whose turn the order takes."""
        return ""


_Key = tuple[str, str, str]


class StatusWriter(LeaderWriter[_Key, tuple[Resource[Any], Json]]):
    """Writes the status of objects. A failed write is dropped: the next change brings another."""

    def __init__(self, client: Client, *, held: Callable[[], bool]) -> None:
        super().__init__(client, held=held)
        self.written = 0
        self.failed = 0

    def _namespace(self, key: _Key, order: tuple[Resource[Any], Json]) -> str:
        return key[1]

    def write(self, resource: Resource[Any], namespace: str, name: str, patch: Json) -> None:
        """Patch the status of an object."""
        self._writer[resource.name, namespace, name] = (resource, patch)

    def forget(self, resource: Resource[Any], namespace: str, name: str) -> None:
        """Drop a patch that still waits."""
        self._writer.drop((resource.name, namespace, name))

    async def _write(self, key: _Key, update: tuple[Resource[Any], Json]) -> None:
        if not self._held():
            return
        (_, namespace, name), (resource, patch) = key, update
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
            pass  # it is gone, or another object has its name
        except Forbidden as error:
            self.failed += 1
            logger.error("%s %s/%s: its status cannot be written: %s", resource.name, namespace, name, error)
        except KubeError as error:
            self.failed += 1
            logger.warning("%s %s/%s: its status is not written: %s", resource.name, namespace, name, error)
