"""The program `fluence`."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fluence-scheduler", prog_name="fluence")
def main() -> None:
    """Fluence places jobs on a graph of resources, and plans when they start."""


@main.command("resource-query", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def _rq(args: tuple[str, ...]) -> None:
    from fluence.cli.resource_query import resource_query

    resource_query.main(args=list(args), standalone_mode=True, prog_name="fluence resource-query")
