"""Process: a part of a sandbox, identified by pid and start time, so that a reused pid is never mistaken for
it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec


class Process(msgspec.Struct, frozen=True):
    """What the sandbox remembers of a part: enough to start it again."""

    name: str
    pid: int
    started: str  # ticks since boot, from /proc; with the boot id it identifies a process for ever
    command: list[str]
    boot: str = ""
    wrapper: int = 0  # nsenter or unshare, the parent of this process, which ends with it

    @property
    def is_alive(self) -> bool:
        return self.boot == boot_id() and start_time(self.pid) == self.started

    def stop(self, *, grace_s: float = 0.0) -> None:
        """Ask the process to end, wait, then kill it. Returns when it is gone."""
        if grace_s and self.is_alive:
            self._signal(signal.SIGTERM)
            self._wait(grace_s)
        while self.is_alive:
            self._signal(signal.SIGKILL)
            self._wait(1.0)
        _reap(self.pid)
        while self.wrapper and _is_child(self.wrapper):  # otherwise its zombie would remain
            time.sleep(0.02)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.is_alive and time.monotonic() < deadline:
            time.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


def spawn(name: str, command: list[str], log: Path, *, cwd: Path, wrapped: bool = False) -> Process:
    """Start a part in its own session, so that Ctrl-C in the terminal does not reach it. It logs to a file.
    ``wrapped``: the command forks into other namespaces, and the part is its child."""
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    # The sandbox outlives this program, which never waits for the child, and Python must not complain about
    # it.
    child.returncode = 0
    pid = _only_child(child.pid) if wrapped else child.pid
    started = start_time(pid) or ""
    return Process(name, pid, started, command, boot_id(), child.pid if wrapped else 0)


def _only_child(pid: int) -> int:
    """The only child of a process, or the process itself if it ended before it had one."""
    while start_time(pid) is not None:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if children:
                return int(children[0])
        time.sleep(0.005)
    return pid


def _is_child(pid: int) -> bool:
    """Whether it is our child and was not waited for yet."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == 0
    except ChildProcessError:
        return False


def start_time(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat; None if the process does not exist or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may contain anything
    state, threads, started = fields[0], int(fields[17]), fields[19]
    # A killed program is a zombie as soon as its first thread is gone; its ports are free with the last.
    if state in ("Z", "X") and threads <= 1:
        _reap(pid)
        return None
    return started


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
