"""Hand-off: which variable of a container carries which annotation of its pod, kept where admission reads it.

Admission puts the variables into containers that ask for a device; the table is an object, because the set
of attributes follows `fluence-resources` and because other programs rename their variables. It is a kind of
its own and no ConfigMap: API servers stop to follow ConfigMaps for policies once the last policy that reads
one is deleted, until they are restarted. The leader writes its own part by server-side apply: what a site
adds stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, KubeError, Missing
from fluence.kube.resource import HAND_OFFS
from fluence.model.device import DeviceTree
from fluence.model.hand_off import PART_OF, hand_off_variables

logger = logging.getLogger(__name__)

MANAGER: Final = "fluence-scheduler"


class HandOffWriter:
    """``keep`` from the loop, whenever; ``run`` writes what is new, and all of it now and then."""

    def __init__(self, client: Client, namespace: str, *, again_s: float = 600.0) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._namespace = namespace
        self._again_s = again_s  # somebody may have changed it, or the kind may be there by now
        self._tree: DeviceTree | None = None
        self._told = ""
        self._changed = asyncio.Event()

    def keep(self, tree: DeviceTree) -> None:
        """From now on the table is that of these devices."""
        if tree is not self._tree:
            self._tree = tree
            self._changed.set()

    async def run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._again_s)
            self._changed.clear()
            if self._tree is not None:
                await self.write(self._tree)

    async def write(self, tree: DeviceTree) -> bool:
        """Whether the server took it. What is already so is no write there: nothing changes its version."""
        name = names.ADMISSION_PARAMETERS
        body: dict[str, object] = {
            "apiVersion": HAND_OFFS.api_version,
            "kind": HAND_OFFS.kind,
            "metadata": {"name": name, "namespace": self._namespace, "labels": PART_OF},
            "spec": {"variables": hand_off_variables(tree)},
        }
        try:
            await self._client.apply(HAND_OFFS.raw(), body, namespace=self._namespace, manager=MANAGER)
        except (Missing, Forbidden) as error:
            # The kind and the right to write it come with admission, which a site may leave out.
            lacks = "its kind is not there" if isinstance(error, Missing) else "this account may not write it"
            text = f"admission is not installed: containers are not told their backend (HandOff: {lacks})"
            self._tell(logging.INFO, text)
        except KubeError as error:
            where = f"handoff {self._namespace}/{name}"
            self._tell(logging.WARNING, f"containers are not told of new attributes: {where}: {error}")
        else:
            self._told = ""
            self.written += 1
            return True
        self.failed += 1
        return False

    def _tell(self, level: int, text: str) -> None:
        """Once, not at each try."""
        if text != self._told:
            self._told = text
            logger.log(level, "%s", text)
