"""The program `kubectl-fluence`, which kubectl finds as `kubectl fluence`: choose a backend, then submit.

It reads manifests as kubectl does, has fluence.select choose, and hands the result to kubectl itself.
Everything is decided before anything is sent.
"""

from __future__ import annotations


def main() -> None:
    """Run the program."""
    from fluence.entry import kubectl_fluence

    kubectl_fluence()


def complete() -> None:
    """Complete a command line for kubectl (the program `kubectl_complete-fluence`)."""
    from fluence.entry import kubectl_complete

    kubectl_complete()
