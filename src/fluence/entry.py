"""Entry: the programs `fluence`, `kubectl-fluence` and `kubectl_complete-fluence`.

Each loads only its own room, between the first step (`startup.start`) and the work.
"""

from __future__ import annotations

from fluence import startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def fluence() -> NoReturn:
    """The program `fluence`."""
    startup.start()
    from fluence.cli.commands import main

    startup.run(main)


def kubectl_fluence() -> NoReturn:
    """The program `kubectl-fluence`."""
    startup.start()
    from fluence.kubectl.commands import run

    startup.run(run)


def kubectl_complete() -> NoReturn:
    """The program `kubectl_complete-fluence`."""
    startup.start()
    from fluence.kubectl.commands import complete

    startup.run(complete)
