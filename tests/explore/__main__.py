"""`make explore`: run all state machines and properties with fresh seeds until the time is over.

Each worker runs pytest on one module after the other, in random order, each time with another seed for
Hypothesis and another one for hashes. A failure is printed once, when it is first seen, and the search goes
on. The report says what was tried. Exit code 1: something failed. Ctrl-C ends the search; what was found
until then is reported.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.explore.findings import Failure, Findings, Ran, Round
from tests.explore.recorder import OUTPUT

ROOT = Path(__file__).resolve().parents[2]
PROPERTIES = ROOT / "tests" / "property"
NOTHING_TO_RUN = 5  # pytest's exit code where all tests of a module are of another kind
PATIENCE_S = 10  # for a round to end once it was told to


class Search:
    """Workers that take modules, and what they have found so far."""

    def __init__(
        self, modules: Sequence[str], *, seconds: float, rounds: int | None, rng: random.Random
    ) -> None:
        self.findings = Findings()
        self.began = time.monotonic()
        self._modules = modules
        self._deadline = self.began + seconds
        self._rng = rng
        self._rounds = rounds  # of all modules that are still to begin; None: no end
        self._order: list[str] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._news: queue.Queue[Failure | None] = queue.Queue()  # None: a worker is done

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def run(self, workers: int) -> None:
        """Search until the time is over, and print what is new as it comes."""
        threads = [threading.Thread(target=self._work) for _ in range(workers)]
        try:
            for thread in threads:
                thread.start()
            left = workers
            while left:
                found = self._news.get()
                if found is None:
                    left -= 1
                else:
                    tell(found)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # we are ending already
            self._stopped.set()
            for thread in threads:
                thread.join()
            while not self._news.empty():  # what the last rounds found
                if (found := self._news.get()) is not None:
                    tell(found)

    def _work(self) -> None:
        try:
            while not self._is_over() and (found := self._next()) is not None:
                self._round(found)
        finally:
            self._news.put(None)

    def _is_over(self) -> bool:
        return self._stopped.is_set() or time.monotonic() >= self._deadline

    def _next(self) -> Round | None:
        with self._lock:
            if not self._order:
                if self._rounds == 0:
                    return None
                self._rounds = None if self._rounds is None else self._rounds - 1
                self._order = self._rng.sample(list(self._modules), len(self._modules))
            return Round(self._order.pop(), self._rng.randrange(1 << 32), self._rng.randrange(1 << 32))

    def _round(self, round_: Round) -> None:
        with tempfile.TemporaryDirectory(prefix="fluence-explore-") as folder:
            output, said = Path(folder, "ran.jsonl"), Path(folder, "said.txt")
            output.touch()
            with said.open("wb") as file:
                code = self._pytest(round_, output, file.fileno())
            results = [msgspec.json.decode(line, type=Ran) for line in output.read_bytes().splitlines()]
            if code not in (None, 0, 1, NOTHING_TO_RUN):  # it broke off: nothing else tells
                told = said.read_text(errors="replace")[-4000:]
                results.append(Ran(round_.module, 0, 0.0, failure=told, where=f"pytest ended with {code}"))
        for ran in results:
            with self._lock:
                found = self.findings.add(round_, ran)
            if found is not None:
                self._news.put(found)

    def _pytest(self, round_: Round, output: Path, said: int) -> int | None:
        """Run pytest on a module; None: the time was over before it was done."""
        command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "tests.explore.recorder"]
        command += ["-p", "no:cacheprovider", "-m", "hypothesis or seeded"]
        command += [f"--hypothesis-seed={round_.seed}", round_.module]
        environment = os.environ | {
            "PYTHONHASHSEED": str(round_.hash_seed),
            "FLUENCE_SEED": str(round_.seed),
            "FLUENCE_HYPOTHESIS": "explore",
            OUTPUT: str(output),
        }
        # In a session of its own: a Ctrl-C is for us, and we end it.
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=said, start_new_session=True
        ) as process:
            while process.poll() is None:
                if self._is_over():
                    _end(process)
                    return None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tell(found: Failure) -> None:
    """Print a failure that is new."""
    print(f"\nFAILED {found.test}\n{found.where}\n\n{found.account}\n", flush=True)
    print(f"once more: {found.command}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make explore", description=__doc__)
    parser.add_argument("tests", nargs="*", help="modules; by default all of tests/property")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, help="run each module so many times instead")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="of the search itself: the same order, the same seeds")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "explore.json")
    given = parser.parse_args()
    modules = given.tests or sorted(str(each.relative_to(ROOT)) for each in PROPERTIES.glob("test_*.py"))
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    many = f"{given.rounds} rounds" if given.rounds else f"{given.minutes:g} minutes"
    seconds = float("inf") if given.rounds else given.minutes * 60
    search = Search(modules, seconds=seconds, rounds=given.rounds, rng=random.Random(seed))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background has it ignored
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(f"{len(modules)} modules, {given.workers} workers, {many}, seed {seed}", flush=True)
        search.run(given.workers)
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_bytes(search.findings.report(search.seconds))
    print(f"\n{search.findings.summary(search.seconds)}; {given.report}")
    return 1 if search.findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
