"""Kueue's objects on a live cluster: they are read while Kueue itself does not run.

If both programs admitted the same work, Kueue would suspend what Fluence starts. So the Lease of Kueue's
manager is checked regularly. While it is being renewed, or cannot be read, the objects do not count, and the
log says why.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, KubeError, Missing
from fluence.kube.resource import KUEUE, LEASES, Resource, resources_of
from fluence.live.watches import Watches
from fluence.model import kueue

log = structlog.get_logger("fluence.scheduler")

_POLL_SECONDS: Final = 10.0  # shorter than a Lease lasts
_LEASE: Final = "/".join(kueue.LEASE)


class KueueImport:
    """``run`` checks regularly. ``off`` says why the objects do not count now; empty if they do."""

    def __init__(self, client: Client, watches: Watches, *, poll: float | None = None) -> None:
        self.off = "not looked at yet"
        self._client = client
        self._watches = watches
        self._poll = _POLL_SECONDS if poll is None else poll
        self._followed: set[str] = set()  # kinds that are watched
        self._renewed: object = None  # the renew time at the last check
        self._noted: set[str] = set()  # notes that were logged

    async def look(self) -> None:
        """Check now. If the API server does not answer, nothing changes."""
        try:
            await self._follow()
            off = await self._why_off()
        except KubeError as error:
            log.debug("cannot look at Kueue's objects", reason=str(error))
            return
        if off != self.off:
            self.off = off
            if off:
                log.warning("Kueue's queues are not read", reason=off)
            else:
                log.info("reads Kueue's queues")
        self._watches.count_kueue(not off)
        self._tell()

    async def run(self) -> None:
        """Check regularly until cancelled, and watch new kinds."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._poll)
                before = len(self._watches.all)
                await self.look()
                for reflector in self._watches.all[before:]:
                    tasks.create_task(reflector.run())

    async def _follow(self) -> None:
        """Watch the kinds that the server has and that are not watched yet, in their newest version."""
        if len(self._followed) == len(KUEUE):
            return
        for version in kueue.VERSIONS:
            served = await resources_of(self._client, kueue.GROUP, version)
            for known in KUEUE:
                if known.kind not in self._followed and known.plural in served:
                    self._followed.add(known.kind)
                    namespaced = known.namespaced
                    self._watches.follow_kueue(
                        Resource(
                            kueue.GROUP, version, known.plural, known.kind, known.type, namespaced=namespaced
                        )
                    )

    async def _why_off(self) -> str:
        """Why the objects do not count; empty if they do."""
        namespace, name = kueue.LEASE
        try:
            lease = await self._client.get(LEASES, name, namespace=namespace)
        except Missing:
            self._renewed = None
            return ""
        except Forbidden:
            return f"the Lease {_LEASE} cannot be read, so Kueue may run: grant get on it"
        spec = lease.get("spec")
        renewed = spec.get("renewTime") if isinstance(spec, dict) else None
        # With a wrong clock a Lease looks old; if it is being renewed, it is held all the same.
        moved, self._renewed = self._renewed not in (None, renewed), renewed
        held = isinstance(spec, dict) and bool(spec.get("holderIdentity"))
        if (held and moved) or kueue.is_running(lease, self._client.clock.now()):
            return f"Kueue runs: the Lease {_LEASE} is fresh; scale its manager to 0"
        return ""

    def _tell(self) -> None:
        """Log once which parts of the objects have no effect here."""
        if self.off:
            return
        objects = [item for reflector in self._watches.kueue for item in reflector.store]
        for note in kueue.read(objects).notes:
            if str(note) not in self._noted and len(self._noted) < _MAX_NOTES:
                self._noted.add(str(note))
                log.warning("Kueue", object=note.of, note=note.text)


_MAX_NOTES: Final = 1000
