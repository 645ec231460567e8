"""External resources: the devices that the ConfigMap `fluence-resources` declares, in its last readable
version.

A document that cannot be read changes nothing: the last devices stay, and the fault is kept for reports.
"""

from __future__ import annotations

from collections.abc import Collection

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.planner import ClusterPlanner
from fluence.errors import InvalidInput
from fluence.model.external_resources import DeviceTree, document_of, parse
from fluence.model.meta import ConfigMap
from fluence.model.reason import Code, Reason
from fluence.queue import Queue
from fluence.schedule.changes import Changes
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.step import Step


class DeviceConfig:
    """The declared devices. They survive a rebuild."""

    def __init__(self) -> None:
        self.tree = DeviceTree()
        self.fault = ""  # why the newest document cannot be read
        self.source: ConfigMap | None = None  # the newest version

    def read(self, found: ConfigMap | None, own_types: Collection[str]) -> bool:
        """Read the current ConfigMap; None if it is gone, and with it all devices. Returns whether the
        devices changed. ``own_types`` are the types of devices on nodes."""
        self.source = found
        try:
            text = document_of(found.data if found is not None else None)
            tree = parse(text, source=names.RESOURCES_KEY, own_types=own_types)
        except InvalidInput as error:
            self.fault = str(error)
            return False
        self.fault = ""
        changed = tree != self.tree
        self.tree = tree if changed else self.tree
        return changed


class ExternalResources(Step):
    """Follows the ConfigMap, and passes changed devices to the cluster, the plan and the queue."""

    def __init__(
        self,
        *,
        config: DeviceConfig,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        changes: Changes,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._planner = planner
        self._queue = queue
        self._changes = changes
        cluster.set_devices(config.tree)

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, Changed) and isinstance(event.object, ConfigMap):
            self._read(event.object if event.new is not None else None)

    def _read(self, found: ConfigMap | None) -> None:
        """Use the changed devices: running work continues, and waiting work is checked again."""
        before = self._config.tree
        if self._config.read(found, self._cluster.layout.own_types):
            self._cluster.set_devices(self._config.tree)
            self._changes.cluster_changed = True
            self._planner.note_freed()
            if before.backends:  # at the start of a scheduler, no device can have been lost
                self._planner.note_taken()
                self._queue.note_loss(Reason.of(Code.DEVICES_CHANGED))
