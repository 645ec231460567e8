"""The rival's side: the same scenario, typed into a resource-query.

Its `-e` says how long each match took, from the text of the jobspec to the written R. What it does not time,
load and cancel, is timed from here: a question that is answered at once follows the command, and what the
question costs alone is taken off. The question is the status of a path that no graph has: every version of
resource-query answers it on standard output and flushes that, which it does not do for its complaints.

By processor time, a command takes what the process has taken when it waits for the next one. A match takes at
most its own ELAPSE, which leaves out reading the file of the jobspec and printing.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from scenario import ANSWER, API, Answer, digest
from session import Session, SessionFailed

_ELAPSE = re.compile(r"ELAPSE=(\S+)")
_JOB = re.compile(r"JOBID=(\d+)")
_AT = re.compile(r"SCHEDULED AT=(\S+)")
_LEAST_S = 1e-6
_PROBE_S = 10.0  # a program that can answer has answered a question about a small graph by then


def probe(command: Sequence[str], graph: Path, *, limit_s: float, log: Path) -> str | None:
    """What is wrong with a program that should be a resource-query, found on a small graph in seconds."""
    try:
        Rival(command, graph, "first", limit_s=min(limit_s, _PROBE_S), log=log).quit()
    except (SessionFailed, OSError) as error:
        return str(error)
    return None


class Rival:
    """A running resource-query that has loaded the graph."""

    def __init__(
        self,
        command: Sequence[str],
        graph: Path,
        policy: str,
        *,
        limit_s: float,
        log: Path,
        clock: str = "wall",
    ) -> None:
        options = ["-L", str(graph), "-f", "jgf", "-F", "rv1_nosched", "-P", policy, "-e", "-d"]
        self.session = Session([*command, *options], limit_s=limit_s, log=log)
        self._marks = 0
        self._clock = self.session.cpu_s if clock == "cpu" else time.perf_counter
        self._is_cpu = clock == "cpu"
        self._question_s = 0.0
        try:
            self._ask("")
            self.load_s = self._clock() if self._is_cpu else self.session.age()
            self._question_s = statistics.median(self._ask("")[1] for _ in range(20))
        except BaseException:
            self.session.abandon()
            raise

    def match(self, operation: str, jobspec: Path) -> Answer:
        text, taken = self._ask(f"match {operation} {jobspec}\n")
        job, elapse = _JOB.search(text), _ELAPSE.search(text)
        if job is None:
            raise SessionFailed(f"no answer to match {operation} {jobspec.name}")
        seconds = float(elapse.group(1)) if elapse is not None else 0.0
        if seconds <= 0:  # it leaves its clock unread after some failures
            seconds = max(taken, _LEAST_S)
        elif self._is_cpu:  # ELAPSE includes waits for a processor, the command also reading and printing
            seconds = max(min(seconds, taken), _LEAST_S)
        at = _AT.search(text)
        if at is None:
            outcome = "never" if "Unsatisfiable request" in text else "busy"
        else:
            outcome = "allocated " if at.group(1) == "Now" else f"reserved@{at.group(1)} "
            outcome += next((digest(line) for line in text.splitlines() if line.startswith('{"')), "")
        return Answer({ANSWER: seconds}, outcome, int(job.group(1)))

    def cancel(self, job: int) -> dict[str, float]:
        return {API: max(self._ask(f"cancel {job}\n")[1], _LEAST_S)}

    def quit(self) -> float | None:
        """End the session; its peak memory in MB."""
        self.session.send("quit\n")
        self.session.end()
        return self.session.peak_mb

    def _ask(self, command: str) -> tuple[str, float]:
        """What a command answers, and its time without that of the question behind it."""
        self._marks += 1
        path = f"/mark-{self._marks}"
        began = self._clock() if self._marks > 1 else 0.0  # the first is asked while it loads
        self.session.send(f"{command}get-status {path}\n")
        text = self.session.read_until(f"find path {path} in".encode())
        return text, self._clock() - began - (self._question_s if command else 0.0)
