"""Progress: shows long work on stderr: one line that changes on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fluence.kube.releases import Release
    from fluence.sandbox.programs import Progress


class Meter:
    """Shows the current step: a line that changes on a terminal; elsewhere a line per step, and one a
    minute."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""
        self._shown_at = 0.0
        self._builds = False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.clear()
        if self._builds and kind in (KeyboardInterrupt, SystemExit):  # a `kill` ends it by the latter
            click.echo("interrupted; the next build continues from here", err=True)

    def report(self, progress: Progress) -> None:
        """Show a step of a build."""
        self._builds = True
        took, expected = minutes(progress.elapsed_s), minutes(progress.expected_s)
        self._show(progress.step, f"{progress.step} ({took} of about {expected})")

    def say(self, step: str) -> None:
        """Show a step of anything else."""
        self._show(step, f"{step} …")

    def clear(self) -> None:
        """Clear the line."""
        if self._is_terminal and self._shown:
            click.echo("\r\033[K", err=True, nl=False)
        self._shown = ""

    def _show(self, step: str, text: str) -> None:
        if self._is_terminal:
            click.echo(f"\r\033[K{text}", err=True, nl=False)
        elif step != self._shown or time.monotonic() - self._shown_at > 60:
            click.echo(text, err=True)
            self._shown_at = time.monotonic()
        self._shown = step


def announce_build(wanted: Release, missing: Sequence[str]) -> None:
    """Announce what will be built, where it goes and how long it takes."""
    from fluence.sandbox import programs
    from fluence.sandbox.folders import cache_dir

    about = round(programs.expected_s(missing) / 60)
    click.echo(
        f"This machine has no {', '.join(missing)} of Kubernetes {wanted.minor} yet.\n"
        f"They are built now, once, into {cache_dir()}: about {about} minutes on two cores.",
        err=True,
    )


def minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
