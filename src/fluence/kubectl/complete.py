"""Completion for kubectl, which asks `kubectl_complete-fluence` in the form of its own library, cobra.

One candidate a line, with a tab and a description; the last line is a colon and a sum of directives.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete

from fluence.kubectl.commands import cli

FILES: Final = 0
"""Complete file names if nothing else fits."""
NO_FILES: Final = 4
DIRECTORIES: Final = 16


def candidates(words: Sequence[str]) -> tuple[list[str], int]:
    """What can stand for the last of *words*, and cobra's directive."""
    before, incomplete = list(words[:-1]), words[-1] if words else ""
    found = ShellComplete(cli, {}, "kubectl-fluence", "").get_completions(before, incomplete)
    kinds = {item.type for item in found}
    lines = [f"{i.value}\t{i.help}" if i.help else str(i.value) for i in found if i.type == "plain"]
    if "file" in kinds:
        return lines, FILES
    if "dir" in kinds:
        return lines, DIRECTORIES
    return lines, NO_FILES


def run() -> int:
    lines, directive = candidates(sys.argv[1:])
    for line in lines:
        click.echo(line)
    click.echo(f":{directive}")
    return 0
