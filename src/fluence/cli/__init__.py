"""The programs for people; `main` is `fluence`.

`main` is loaded on first use: `python -m fluence.cli` imports this module before it can handle Ctrl-C.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fluence.cli.commands import main

__all__ = ["main"]


def __getattr__(name: str) -> object:
    if name != "main":
        raise AttributeError(f"module 'fluence.cli' has no attribute {name!r}")
    from fluence.cli.commands import main

    globals()["main"] = main  # the next access skips this function
    return main
