"""StatusWriter: writes what users are told, the latest per object, a few at once, only with the lease.

`live.Reporter` calls it. What cannot be written is dropped: the next change brings another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fluence.act.coalescing_writer import CoalescingWriter
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, Forbidden, KubeError, Missing
from fluence.kube.resource import Json, Resource

logger = logging.getLogger(__name__)

IN_FLIGHT = 4  # binds come first

_Key = tuple[str, str, str]


class StatusWriter:
    """``write`` from the loop; ``run`` writes until cancelled."""

    def __init__(self, client: Client, *, held: Callable[[], bool], in_flight: int = IN_FLIGHT) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._held = held
        self._writer: CoalescingWriter[_Key, tuple[Resource[Any], Json]] = CoalescingWriter(
            self._write, in_flight=in_flight, namespace=lambda key, _: key[1]
        )

    @property
    def backlog(self) -> int:
        return len(self._writer)

    def write(self, resource: Resource[Any], namespace: str, name: str, patch: Json) -> None:
        """Patch the status of an object with this."""
        self._writer[resource.name, namespace, name] = (resource, patch)

    def forget(self, resource: Resource[Any], namespace: str, name: str) -> None:
        """What was to be said is no longer so."""
        self._writer.drop((resource.name, namespace, name))

    async def run(self) -> None:
        await self._writer.run()

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
            pass  # it is gone, or was made anew under its name
        except Forbidden as error:
            self.failed += 1
            logger.error("%s %s/%s: its status cannot be written: %s", resource.name, namespace, name, error)
        except KubeError as error:
            self.failed += 1
            logger.warning("%s %s/%s: its status is not written: %s", resource.name, namespace, name, error)
