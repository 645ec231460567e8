"""Building: programs are built in the background while something else is shown."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from fluence.cli.progress import Meter
from fluence.sandbox.gobuild import Progress
from fluence.sandbox.programs import find_programs
from fluence.sandbox.releases import Release


class _Interrupted(BaseException):
    """The builder is to stop."""


class Building:
    """``with Building(release, names) as building: …; programs = building.wait(meter)``.

    Leaving it early ends the build; the next one goes on from there."""

    def __init__(self, wanted: Release, names: tuple[str, ...]) -> None:
        self._wanted, self._names = wanted, names
        self._progress: Progress | None = None
        self._stop = threading.Event()
        # NB Thread.join takes a thread for ended when Ctrl-C interrupts it (Python before 3.13)
        self._ended = threading.Event()
        self._programs: dict[str, Path] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._build, name="building")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._ended.wait()
        self._thread.join()

    def wait(self, meter: Meter) -> dict[str, Path]:
        """Show how far it is until it is done; its error, if it has one."""
        while not self._ended.wait(0.5):
            if self._progress is not None:
                meter.report(self._progress)
        if self._error is not None:
            raise self._error
        return self._programs

    def _build(self) -> None:
        try:
            self._programs = find_programs(self._wanted, names=self._names, report=self._report)
        except _Interrupted:
            return
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def _report(self, progress: Progress) -> None:
        # NB the builder reports every second, and ends what it has started when that fails.
        if self._stop.is_set():
            raise _Interrupted
        self._progress = progress
