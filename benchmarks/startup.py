"""Start-up of `kubectl fluence`, beside a bare Python and one that has only imported click."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 15
PROGRAM = str(Path(sys.executable).with_name("kubectl-fluence"))


def milliseconds(*command: str) -> float:
    """The median of a few runs, after one that may write bytecode."""
    subprocess.run(command, capture_output=True, check=True)
    samples = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        samples.append(time.perf_counter() - began)
    return 1000 * statistics.median(samples)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder, "plain.yaml")
        plain.write_text("kind: Pod\nmetadata: {name: plain}\n")
        bare = milliseconds(sys.executable, "-c", "pass")
        print("start-up, median of", REPEATS)
        for name, command in {
            "python -c pass": (sys.executable, "-c", "pass"),
            "python -c 'import click'": (sys.executable, "-c", "import click"),
            "kubectl-fluence version": (PROGRAM, "version"),
            "kubectl-fluence --help": (PROGRAM, "--help"),
            "kubectl-fluence select (pass-through)": (PROGRAM, "select", "-f", str(plain)),
        }.items():
            took = milliseconds(*command)
            print(f"  {name:40} {took:6.0f} ms  {took / bare:4.1f} × a bare Python")


if __name__ == "__main__":
    main()
