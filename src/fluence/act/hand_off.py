"""Hand-off: the table of container variables and the pod annotations they carry, as an object that admission
reads.

Admission adds the variables to containers that request a device. The table is an object, because the
attributes follow `fluence-resources`, and because other programs rename their variables. It has a kind of its
own and is not a ConfigMap: API servers stop following ConfigMaps for policies when the last policy that reads
one is deleted, until they are restarted. The leader writes its own part by server-side apply, so additions of
a site stay. It watches the object, and restores it after changes and deletions.

The object also says whether pods get the PodGroup of their gang. The leader knows which PodGroups the server
has, and the rules of admission do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, KubeError, Missing
from fluence.kube.reflector import Reflector
from fluence.kube.resource import HAND_OFFS
from fluence.model.external_resources import PART_OF, DeviceTree, HandOff, hand_off_variables

logger = logging.getLogger(__name__)

MANAGER: Final = "fluence-scheduler"
# Until the kind and the right to write it exist: admission may be installed at any time.
_RETRY_SECONDS: Final = 5.0


class HandOffWriter:
    """Call ``keep`` from the event loop at any time. ``run`` writes the object when it is new or differs on
    the server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._namespace = namespace
        self._tree: DeviceTree | None = None
        self._lists_gangs = False
        self._told = ""
        self._changed = asyncio.Event()

    def keep(self, tree: DeviceTree, *, lists_gangs: bool = False) -> None:
        """Use the table of these devices from now on. ``lists_gangs``: pods get the PodGroup of their
        gang."""
        if tree is not self._tree or lists_gangs != self._lists_gangs:
            self._tree, self._lists_gangs = tree, lists_gangs
            self._changed.set()

    def _seen(self, old: HandOff | None, new: HandOff | None) -> None:
        """Observe the object on the server, including our own writes."""
        if self._tree is None:
            return
        wanted = hand_off_variables(self._tree)
        lacks = new is None or any(new.variables.get(name) != key for name, key in wanted.items())
        if lacks or (new is not None and new.lists_gangs != self._lists_gangs):
            self._changed.set()

    async def run(self) -> None:
        # The watch runs only while the object exists, because it would log a missing kind.
        watch: asyncio.Task[None] | None = None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), None if watch else _RETRY_SECONDS)
                self._changed.clear()
                is_written = self._tree is not None and await self.write(self._tree)
                if is_written and watch is None:
                    watch = asyncio.create_task(self._watch())
                elif not is_written and watch is not None:
                    watch.cancel()
                    watch = None
        finally:
            if watch is not None:
                watch.cancel()

    async def _watch(self) -> None:
        reflector: Reflector[HandOff] = Reflector(
            self._client,
            HAND_OFFS,
            namespace=self._namespace,
            field_selector=f"metadata.name={names.ADMISSION_PARAMETERS}",
            optional=True,
            may_be_denied=True,
        )
        reflector.store.on_change(self._seen)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run())
            await reflector.synced.wait()
            # It may have been deleted between the write and the first list.
            self._seen(None, reflector.store.get(names.ADMISSION_PARAMETERS, self._namespace))

    async def write(self, tree: DeviceTree) -> bool:
        """Write the table. Returns whether the server accepted it. Writing an unchanged table does not change
        its version."""
        name = names.ADMISSION_PARAMETERS
        body: dict[str, object] = {
            "apiVersion": HAND_OFFS.api_version,
            "kind": HAND_OFFS.kind,
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": PART_OF,
                "annotations": {names.LISTS_GANGS: str(self._lists_gangs).lower()},
            },
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
        """Log a text once, not at each try."""
        if text != self._told:
            self._told = text
            logger.log(level, "%s", text)
