"""A child process that is talked to line by line, never longer than a limit, and weighed when it ends.

NB: on Linux a child's peak memory counts from before its exec, so it is never below that of the process that
started it. The program that uses this must therefore stay small: it imports neither numpy nor fluence.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_CHUNK = 1 << 20


class SessionFailed(Exception):
    """The process ended early, or took longer than it may."""


class Session:
    """One run of a program."""

    def __init__(self, argv: Sequence[str], *, limit_s: float, log: Path) -> None:
        self.limit_s = limit_s
        self.peak_mb: float | None = None
        self.code: int | None = None
        self._log = log
        self._buffer = bytearray()
        with log.open("wb") as errors:
            self.began = time.perf_counter()
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,
            )
        self._deadline = self.began + limit_s
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def age(self) -> float:
        """Seconds since the program was started."""
        return time.perf_counter() - self.began

    def cpu_s(self) -> float:
        """Seconds of processor time that the program has taken, when it waits for its next input. Linux alone
        says so to the microsecond, for the process that was started and not for its children."""
        folder = Path(f"/proc/{self._process.pid}")
        while (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "SZ":
            if time.perf_counter() > self._deadline:
                raise SessionFailed(self.why(f"over {self.limit_s:g} s, waiting for it to wait"))
        return int((folder / "schedstat").read_text().split()[0]) / 1e9

    def send(self, text: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode())
        except BrokenPipeError:
            raise SessionFailed(self.why("it ended early")) from None

    def read_until(self, mark: bytes) -> str:
        """All output up to and with the line that holds the mark."""
        searched = 0
        while True:
            found = self._buffer.find(mark, searched)
            end = self._buffer.find(b"\n", found) if found >= 0 else -1
            if end >= 0:
                text = self._buffer[: end + 1].decode(errors="replace")
                del self._buffer[: end + 1]
                return text
            searched = max(0, len(self._buffer) - len(mark)) if found < 0 else found
            if not self._receive(f"{mark.decode()!r} on its standard output"):
                raise SessionFailed(self.why("it ended early"))

    def lines(self) -> Iterator[str]:
        """Every line until the program ends."""
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = self._buffer[:end].decode()
                del self._buffer[: end + 1]
                yield line
            elif not self._receive("another line"):
                return

    def end(self) -> None:
        """Wait for the program, or kill it at its deadline; remember its exit code and peak memory."""
        if self.code is not None:
            return
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        while True:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() > self._deadline:
                self._kill()
                _, status, usage = os.wait4(self._process.pid, 0)
                break
            time.sleep(0.005)
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.peak_mb = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6

    def abandon(self) -> None:
        """End the program now."""
        if self.code is None:
            self._deadline = 0.0
            self.end()

    def _receive(self, awaited: str) -> bool:
        left = self._deadline - time.perf_counter()
        if left <= 0 or not self._selector.select(left):
            raise SessionFailed(self.why(f"over {self.limit_s:g} s, waiting for {awaited}"))
        assert self._process.stdout is not None
        data = os.read(self._process.stdout.fileno(), _CHUNK)
        self._buffer += data
        return bool(data)

    def _kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # its own group: a wrapper's children end with it
        except ProcessLookupError:
            self._process.kill()

    def why(self, text: str) -> str:
        """A reason, with the last line that the program complained."""
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{text}: {last[0][:200]}" if last else text
