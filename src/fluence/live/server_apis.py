"""Server APIs: which PodGroups and devices the server has; PodGroups are looked for as long as it runs.

A custom resource may be installed, and a server upgraded, at any time. The server is asked after a pause that
grows up to a minute, so PodGroups that are new are found without a restart, and followed from then on.
Discovery is open to every account, and the rights to read every kind of PodGroup are given anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from fluence.kube.client import Client
from fluence.kube.discovery import versions_of
from fluence.kube.errors import KubeError, ServerFault, TooManyRequests, Unreachable
from fluence.kube.gangs import GROUP, AnyGangs, NoGangs, discover_custom, discover_gangs
from fluence.live.watches import Watches
from fluence.model.group import system_of

log = structlog.get_logger("fluence.scheduler")

_AGAIN_S = 2.0  # between two looks for an API server that is not there
_FIRST_S, _LAST_S = 5.0, 60.0  # between two looks for another API


class ServerApis:
    """``changed`` is called with whether the server has PodGroups, when that is known and when it changes."""

    def __init__(
        self,
        client: Client,
        watches: Watches,
        changed: Callable[[bool], None],
        *,
        pauses: tuple[float, float] = (_FIRST_S, _LAST_S),
    ) -> None:
        self.gangs: AnyGangs = NoGangs("not asked yet")
        self.systems: frozenset[str] = frozenset()  # other systems of which the server has PodGroups
        self.has_devices = False  # dynamic resource allocation
        self._client = client
        self._watches = watches
        self._changed = changed
        self._pauses = pauses
        self._served: list[str] = []
        self._followed: set[str] = set()  # API versions

    async def discover(self) -> None:
        """What there is now. A server that is not there is waited for: a process that ended instead would be
        started again after ever longer pauses, and lead late."""
        while True:
            try:
                await self._look()
                self.has_devices = "v1" in await versions_of(self._client, "resource.k8s.io")
                break
            except (Unreachable, ServerFault, TooManyRequests) as error:
                log.warning("waits for the API server", reason=str(error))
                await asyncio.sleep(_AGAIN_S)
        if isinstance(self.gangs, NoGangs):
            log.info("no native gangs", reason=self.gangs.reason)

    async def run(self) -> None:
        """Look again and again, until cancelled; what is found new is followed."""
        pause, longest = self._pauses
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
                before = len(self._watches.all)
                try:
                    await self._look()
                except KubeError as error:
                    log.debug("cannot ask which gangs there are", reason=str(error))
                for reflector in self._watches.all[before:]:
                    tasks.create_task(reflector.run())
                    pause = self._pauses[0]

    async def _look(self) -> None:
        served = await versions_of(self._client, GROUP)
        if served != self._served or isinstance(self.gangs, NoGangs):
            self.gangs = await discover_gangs(self._client)
            self._served = served
        custom = await discover_custom(self._client)
        resource = self.gangs.resource
        if resource is not None and resource.api_version not in self._followed:
            self._followed.add(resource.api_version)
            self._watches.follow_native(self.gangs)
            log.info("follows PodGroups", api=resource.api_version)
        for each in custom:
            api = each.resource.api_version
            if api not in self._followed:
                self._followed.add(api)
                self._watches.follow_custom(each)
                log.info("follows PodGroups", api=api)
        systems = {system_of(each.resource.group) for each in custom}
        self.systems = frozenset(systems - {""})
        self._changed(resource is not None or "" in systems)
