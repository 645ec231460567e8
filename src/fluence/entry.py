"""The programs' first steps: Ctrl-C and closed streams are dealt with before anything else is loaded.

Loading takes a good part of a second. Until the program can say what an interrupt means to it, an interrupt
ends the process without a word, as it does any program that has no handler. A stream that is closed
(`fluence … >&-`) is opened on nothing: otherwise the next file would get its number.
"""

from __future__ import annotations

import os
import signal
import sys


def fluence() -> None:
    """The program `fluence`."""
    _start()
    from fluence.cli import main

    _started()
    main()


def kubectl_fluence() -> None:
    """The program `kubectl-fluence`."""
    _start()
    from fluence.kubectl.commands import run

    _started()
    raise SystemExit(run())


def _start() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # how Python finds a stream that is closed
            mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def _started() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
