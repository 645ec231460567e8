"""Device file: a document of devices that is read from a file, again whenever it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from fluence import names
from fluence.model.config_map import ConfigMap
from fluence.model.meta import ObjectMeta
from fluence.schedule.events import Changed, Event

log = structlog.get_logger("fluence.scheduler")

_PAUSE_S = 2.0
_MOST_BYTES = 1 << 20  # as large as a ConfigMap may be


class DeviceFile:
    """``put`` is called with an event when the file is another one than before. A file that is not there
    declares nothing; one that cannot be read for another reason changes nothing."""

    def __init__(self, path: str, put: Callable[[Event], None]) -> None:
        self._path = Path(path)
        self._put = put
        self.seen: ConfigMap | None = None  # as it was told last
        self._fault = ""

    async def run(self) -> None:
        """Look again and again: a mounted ConfigMap is swapped as a link, which no watch of a file sees."""
        while True:
            await asyncio.sleep(_PAUSE_S)
            self.look()

    def look(self) -> None:
        """Read the file, and tell what is new."""
        try:
            found = self._read()
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != self._fault:
                log.warning("devices stay as they were", file=str(self._path), reason=str(error))
            self._fault = str(error)
            return
        self._fault = ""
        old, self.seen = self.seen, found
        if old != found:
            self._put(Changed(old, found))

    def _read(self) -> ConfigMap | None:
        try:
            with self._path.open("rb") as file:
                text = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(text) > _MOST_BYTES:
            raise OSError(f"larger than {_MOST_BYTES} bytes")
        meta = ObjectMeta(name=str(self._path))
        return ConfigMap(metadata=meta, data={names.RESOURCES_KEY: text.decode()})
