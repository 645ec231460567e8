"""The commands on a terminal: colours and width only there, and `top`, which draws what streams send."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.unit.web.test_client import ROW, Server, forbidden, page, server

assert server  # a fixture
CODE = "import sys; from fluence.kubectl.commands import run; sys.exit(run())"
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program on a terminal of its own, and all that it has written there."""

    def __init__(self, server: Server, *arguments: str, columns: int, lines: int = 24) -> None:
        self._main, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE, *arguments, "--kubeconfig", str(server.kubeconfig)],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(inner)
        self.written = ""

    def read(self, seconds: float) -> bool:
        """Read what is there; whether there may be more."""
        if not select.select([self._main], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._main, 65536)
        except OSError:  # the program has ended
            return False
        self.written += data.decode()
        return bool(data)

    def until(self, text: str) -> None:
        end = time.monotonic() + 120
        while text not in ESCAPE.sub("", self.written):
            assert time.monotonic() < end and self.read(1.0), f"no {text!r} in {self.written!r}"

    def end(self) -> int:
        end = time.monotonic() + 120
        while self.read(0.5):
            assert time.monotonic() < end, self.written
            if self.process.poll() is not None and not select.select([self._main], [], [], 0)[0]:
                break
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._main)


@contextlib.contextmanager
def terminal(server: Server, *arguments: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    made = Terminal(server, *arguments, columns=columns, lines=lines)
    try:
        yield made
    finally:
        made.close()


LONG = {
    **ROW,
    "reasons": [{"code": "X", "message": "0/8 nodes are available: " + "8 Insufficient cpu " * 20}],
}


def test_colours_and_cut_lines_are_for_terminals_only(server: Server) -> None:
    server.answer = lambda path, query: (200, page([LONG]))
    code, piped, _ = server.run("queue")
    assert code == 0 and "\x1b" not in piped and len(piped.splitlines()[1]) > 300
    with terminal(server, "queue", columns=90) as shown:
        assert shown.end() == 0
        assert "\x1b[1m" in shown.written, "titles are bold"
        rows = ESCAPE.sub("", shown.written).splitlines()
    assert rows[0].split()[:2] == ["POS", "STATE"] and max(map(len, rows)) <= 90


def test_top_draws_again_when_a_stream_has_changed_and_leaves_the_screen_as_it_was(server: Server) -> None:
    more = threading.Event()

    def pages(first: list[dict[str, Any]], then: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield page(first)
        more.wait(60)
        yield page(then)
        threading.Event().wait(5)

    entry = {"state": "running", "from": "2026-09-01T11:00:00Z", "nodes": ["n0"], "namespace": "physics"}

    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        assert query["watch"] == "true", "nothing is polled"
        if path.endswith("/queue"):
            return 200, pages([ROW], [{**ROW, "name": "solver"}])
        return 200, pages([{**entry, "name": "runs"}], [{**entry, "name": "runs"}])

    server.answer = answer
    with terminal(server, "top", "--interval", "3600", columns=100, lines=30) as shown:
        shown.until("train")
        shown.until("physics/runs")
        assert "1 wait" in shown.written
        assert shown.written.startswith("\x1b[?1049h\x1b[?25l")
        assert "solver" not in shown.written
        more.set()
        shown.until("solver")
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() in (0, 130)
        assert shown.written.rstrip().endswith("\x1b[?25h\x1b[?1049l")
        assert "Traceback" not in shown.written
    assert [path for path, _, _ in server.asked].count(server.asked[0][0]) == 1, "one stream each"


def test_top_without_rights_is_one_line_on_the_screen_as_it_was(server: Server) -> None:
    server.answer = forbidden
    with terminal(server, "top") as shown:
        assert shown.end() == 1
    text = ESCAPE.sub("", shown.written).strip()
    assert "\n" not in text and "fluence-view-reader" in text
    assert shown.written.index("\x1b[?1049l") < shown.written.index("error:")


def test_top_says_why_there_is_no_picture_and_tries_again(server: Server) -> None:
    def answer(path: str, query: dict[str, str]) -> tuple[int, Any]:
        if len(server.asked) <= 2:
            return 503, {"kind": "Status", "message": "this replica does not lead"}
        return 200, [page([ROW] if path.endswith("/queue") else [])]

    server.answer = answer
    with terminal(server, "top", "--interval", "1") as shown:
        shown.until("this replica does not lead")
        shown.until("trying again")
        shown.until("train")
