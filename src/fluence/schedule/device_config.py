"""Device config: the devices that the ConfigMap `fluence-resources` declares, as it was last readable.

A text that cannot be read changes nothing: what was there stands, and the fault is kept to be told.
"""

from __future__ import annotations

from collections.abc import Collection

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.config_map import ConfigMap
from fluence.model.device import DeviceTree
from fluence.model.resource_document import parse


class DeviceConfig:
    """What is declared; it outlives a state that is built anew."""

    def __init__(self) -> None:
        self.tree = DeviceTree()
        self.fault = ""  # why the newest text cannot be read
        self.source: ConfigMap | None = None  # the newest

    def read(self, found: ConfigMap | None, own_types: Collection[str]) -> bool:
        """The ConfigMap as it is now; None: it is gone, and with it all devices. Says whether there are other
        devices than before. ``own_types`` are those of nodes."""
        self.source = found
        text = _text(found)
        try:
            tree = parse(text, source=names.RESOURCES_KEY)
            taken = next((each for each in tree.types if each in own_types), None)
            if taken is not None:
                raise InvalidInput(f"type {taken!r} is what nodes have; choose another name for the device")
        except InvalidInput as error:
            self.fault = str(error)
            return False
        self.fault = ""
        changed = tree != self.tree
        self.tree = tree if changed else self.tree
        return changed


def _text(found: ConfigMap | None) -> str:
    """The document; under another key if there is only one, as it may be made with `--from-file`."""
    data = (found.data if found is not None else None) or {}
    if names.RESOURCES_KEY not in data and len(data) == 1:
        return next(iter(data.values()))
    return data.get(names.RESOURCES_KEY, "")
