"""The program `fluence`."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fluence-scheduler", prog_name="fluence")
def main() -> None:
    """Fluence places jobs on a graph of resources, and plans when they start."""
