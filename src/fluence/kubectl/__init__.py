"""The program `kubectl-fluence`, which kubectl finds as `kubectl fluence`: choose a backend, then submit.

It reads manifests as kubectl does, has fluence.select choose, and hands the result to kubectl itself.
Everything is decided before anything is sent.
"""

from __future__ import annotations

from fluence import startup


def main() -> None:
    """Run the program."""
    startup.start()
    from fluence.kubectl.commands import run

    startup.run(run)


def complete() -> None:
    """Complete a command line for kubectl (the program `kubectl_complete-fluence`)."""
    startup.start()
    from fluence.kubectl.commands import complete as run

    startup.run(run)
