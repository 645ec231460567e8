"""HistoryBacklog: entries that were not written yet; bounded, and the last word on each run is enough.

The core puts entries in and goes on; a thread of its own takes them out. When there is no more room, entries
of jobs that are not over are let go first: a roll call says them again. Then the namespace with the most jobs
loses its last one, so that many jobs of one namespace push out nobody else's. What is lost is counted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

from fluence.model.job_entry import JobEntry


class HistoryBacklog:
    """Safe to use from two threads; nobody holds its lock for longer than a copy takes."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: dict[int, list[JobEntry]] = {}  # by job; several if it ran again meanwhile
        self._jobs: dict[str, dict[int, None]] = {}  # by namespace
        self._count = 0
        self._lost = 0
        self._shed = False
        self._roll: tuple[frozenset[int], int] | None = None

    def __len__(self) -> int:
        return self._count

    def put(self, entries: Iterable[JobEntry], roll: frozenset[int] | None, now: int) -> None:
        """What a cycle had to say."""
        with self._lock:
            for entry in entries:
                self._add(entry)
            if roll is not None:
                self._roll = (roll, now)

    def take(self, most: int) -> list[JobEntry]:
        """Some of the entries, those that wait longest first."""
        taken: list[JobEntry] = []
        with self._lock:
            while self._runs and len(taken) < most:
                taken += self._remove(next(iter(self._runs)))
        return taken

    def put_back(self, entries: Iterable[JobEntry]) -> None:
        """What could not be written; later words on the same runs stand."""
        with self._lock:
            newer, self._runs, self._jobs, self._count = self._runs, {}, {}, 0
            for entry in (*entries, *(each for runs in newer.values() for each in runs)):
                self._add(entry)

    def take_roll(self) -> tuple[frozenset[int], int] | None:
        """Who was there, and when; only once all that was said before is taken."""
        with self._lock:
            if self._runs:
                return None
            roll, self._roll = self._roll, None
            return roll

    def put_roll_back(self, roll: tuple[frozenset[int], int]) -> None:
        with self._lock:
            self._roll = self._roll or roll

    def lose(self, count: int) -> None:
        """Entries that the database will never take."""
        with self._lock:
            self._lost += count

    def take_losses(self) -> tuple[int, bool]:
        """How many entries are lost, and whether a roll call would bring others back."""
        with self._lock:
            found = self._lost, self._shed
            self._lost, self._shed = 0, False
            return found

    def _add(self, entry: JobEntry) -> None:
        runs = self._runs.get(entry.job)
        if runs and runs[-1].started in (None, entry.started):
            if not entry.reasons:
                entry = replace(entry, reasons=runs[-1].reasons)
            runs[-1] = entry
            return
        if self._count >= self._most:
            self._shed_open()
        self._runs.setdefault(entry.job, []).append(entry)
        self._jobs.setdefault(entry.namespace, {})[entry.job] = None
        self._count += 1
        if self._count > self._most:
            self._push_out()

    def _remove(self, job: int) -> list[JobEntry]:
        runs = self._runs.pop(job)
        for namespace in {each.namespace for each in runs}:
            self._jobs[namespace].pop(job, None)
            if not self._jobs[namespace]:
                del self._jobs[namespace]
        self._count -= len(runs)
        return runs

    def _push_out(self) -> None:
        """The last job of the namespace that has the most."""
        largest = max(self._jobs.values(), key=len)
        self._lost += len(self._remove(next(reversed(largest))))

    def _shed_open(self) -> None:
        for job, runs in list(self._runs.items()):
            self._remove(job)
            for each in runs:
                if each.state.is_over:
                    self._runs.setdefault(job, []).append(each)
                    self._jobs.setdefault(each.namespace, {})[job] = None
                    self._count += 1
        self._shed = True
