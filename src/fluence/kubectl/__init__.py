"""The program `kubectl-fluence`, which kubectl finds as `kubectl fluence`: choose a backend, then submit.

It reads manifests as kubectl does, has fluence.select choose, and hands the result to kubectl itself.
Everything is decided before anything is sent.
"""

from __future__ import annotations


def main() -> None:
    """Run the program."""
    from fluence.kubectl.commands import run

    raise SystemExit(run())


def complete() -> None:
    """Complete a command line for kubectl (the program `kubectl_complete-fluence`)."""
    from fluence.kubectl.complete import run

    raise SystemExit(run())
