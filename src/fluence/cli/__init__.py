"""The programs for people; `main` is `fluence`.

It loads when it is asked for: `python -m fluence.cli` comes by here before it can deal with Ctrl-C.
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

    globals()["main"] = main  # from now on without this detour
    return main
