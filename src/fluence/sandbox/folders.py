"""Folders: the directories for the data of sandboxes and for cached programs. They follow XDG, outside of any
repository."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fluence.errors import Conflict, InvalidInput


def cache_dir() -> Path:
    """``~/.cache/fluence/sandbox``: the programs, built once."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "fluence" / "sandbox"


def state_dir() -> Path:
    """``~/.local/state/fluence/sandbox``: one directory per sandbox."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "fluence" / "sandbox"


def sandbox_dir(name: str) -> Path:
    # The name becomes a directory that `down` deletes: it must not lead elsewhere.
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", name):
        raise InvalidInput(f"sandbox name {name!r}: use up to 42 of a-z, 0-9 and - (not first or last)")
    return state_dir() / name


@contextmanager
def locked(
    folder: Path, *, wait: bool = True, what: str = "", waiting: Callable[[], None] | None = None
) -> Iterator[None]:
    """Lock the directory itself: no lock file is left behind, and the lock of a dead process is released
    automatically.

    The previous holder of the lock may delete the directory; then a new one is created and locked.
    ``waiting`` is called every second while another process holds the lock.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            while not _lock(descriptor, wait=wait and waiting is None):
                if waiting is None:
                    raise Conflict(f"{what or folder} is in use by another fluence; wait for it")
                waiting()
                time.sleep(1.0)
            try:
                is_same = os.fstat(descriptor).st_ino == folder.stat().st_ino
            except FileNotFoundError:
                is_same = False
            if is_same:
                yield
                return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
