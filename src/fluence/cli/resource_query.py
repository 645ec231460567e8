"""`fluence resource-query`: Fluxion's command of that name, with its options, commands and output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fluence import plugin_loader
from fluence.cli.query_session import COMMANDS, SHORT, Session
from fluence.errors import InvalidGraph
from fluence.graph import ResourceGraph, files
from fluence.graph import files as graph_files
from fluence.graph.filters import DEFAULT
from fluence.graph.writers import formats
from fluence.match.matcher import Matcher
from fluence.match.request import Operation

# Fluxion's names for sets of subsystems; the first one of a set is walked.
SUBSYSTEMS = {
    "CA": ("containment",),
    "IBA": ("ibnet",),
    "IBBA": ("ibnetbw",),
    "PFS1BA": ("pfs1bw",),
    "PA": ("power",),
    "C+IBA": ("containment", "ibnet"),
    "C+IBBA": ("containment", "ibnetbw"),
    "C+PFS1BA": ("containment", "pfs1bw"),
    "C+PA": ("containment", "power"),
    "IB+IBBA": ("ibnet", "ibnetbw"),
    "C+P+IBA": ("containment", "power", "ibnet"),
    "VA": ("virtual1",),
    "V+PFS1BA": ("virtual1", "pfs1bw"),
    "ALL": ("containment", "ibnet", "ibnetbw", "pfs1bw", "power"),
}


@click.command(
    "resource-query", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.option("-L", "--load-file", required=True, metavar="FILE", help="The resource graph to load.")
@click.option(
    "-f",
    "--load-format",
    type=click.Choice(graph_files.FORMATS),
    default="grug",
    show_default=True,
    help="Format of that file.",
)
@click.option(
    "-W", "--load-allowlist", metavar="TYPES", help="hwloc: only these types, such as node,core,gpu."
)
@click.option(
    "-S",
    "--match-subsystems",
    type=click.Choice(list(SUBSYSTEMS), case_sensitive=False),
    default="CA",
    show_default=True,
    help="Which subsystems to match in; the first is walked down.",
)
@click.option("-P", "--match-policy", default="first", show_default=True, help="A policy or a policy string.")
@click.option(
    "-F",
    "--match-format",
    type=click.Choice(formats()),
    default="simple",
    show_default=True,
    help="How to print what was matched.",
)
@click.option(
    "-T",
    "--traverser-policy",
    type=click.Choice(["simple", "flexible"]),
    default="simple",
    show_default=True,
    help="flexible: sibling slots are alternatives.",
)
@click.option(
    "-p", "--prune-filters", default=DEFAULT, show_default=True, help="Which types are counted below which."
)
@click.option("-t", "--test-output", metavar="FILE", help="Write the answers to a file.")
@click.option(
    "-g",
    "--graph-format",
    type=click.Choice(files.formats()),
    default="dot",
    show_default=True,
    metavar="FORMAT",
    help=f"Format of the graph dump: {', '.join(files.formats())}.",
)
@click.option("-o", "--graph-output", metavar="NAME", help="At the end, dump the graph to NAME.FORMAT.")
@click.option(
    "-r", "--reserve-vtx-vec", metavar="N", help="Accepted for Fluxion's sake; no effect, whatever it says."
)
@click.option("-e", "--elapse-time", is_flag=True, help="Print how long each match took.")
@click.option("-d", "--disable-prompt", is_flag=True, help="No prompt on a terminal.")
def resource_query(
    load_file: str,
    load_format: str,
    load_allowlist: str | None,
    match_subsystems: str,
    match_policy: str,
    match_format: str,
    traverser_policy: str,
    prune_filters: str,
    test_output: str | None,
    graph_format: str,
    graph_output: str | None,
    reserve_vtx_vec: str | None,
    elapse_time: bool,
    disable_prompt: bool,
) -> None:
    """Match jobspecs against a resource graph, interactively or from a script on standard input.

    Same options, commands, output and exit codes as Fluxion's resource-query. Type `help` for the commands.

    \b
    Example:
      echo "match allocate job.yaml" | fluence resource-query -L cluster.json -f jgf -P lonode
    """
    graph = _load(load_file, load_format, load_allowlist)
    for name in SUBSYSTEMS[match_subsystems]:
        graph.tree(name)  # raises an error if it is missing
    plugin_loader.allow(match_policy)
    matcher = Matcher(
        graph,
        match_policy,
        subsystems=SUBSYSTEMS[match_subsystems],
        filters=prune_filters,
        flexible=traverser_policy == "flexible",
        bug_compatible=True,
    )
    out = open(test_output, "w") if test_output is not None else sys.stdout  # noqa: SIM115, PTH123
    session = Session(matcher, match_format, out, timing=elapse_time)
    try:
        for line in _lines(prompt=not disable_prompt):
            if not session.run(line):
                break
            out.flush()
        if graph_output is not None:
            graph_files.dump(graph, f"{graph_output}.{graph_format}", graph_format)
    finally:
        out.flush()
        if test_output is not None:
            out.close()


def _load(file: str, format_: str, allowlist: str | None) -> ResourceGraph:
    graph = ResourceGraph()
    try:
        graph.extend(graph_files.read(file, format_, allow=allowlist.split(",") if allowlist else None))
    except InvalidGraph as error:
        likely = _likely(file) or format_
        # As in Fluxion, a file without -f is a GRUG recipe, regardless of its name.
        hint = "" if likely == format_ else f"; it looks like {likely}: add -f {likely}"
        raise InvalidGraph(f"{error}{hint}") from None
    return graph


def _likely(file: str) -> str | None:
    """The format that a file seems to have, if any."""
    try:
        return graph_files.guess(Path(file).read_bytes(), source=file)
    except InvalidGraph:
        return None


def _lines(*, prompt: bool) -> Iterator[str]:
    if sys.stdin.isatty():
        yield from _typed("resource-query> " if prompt else "")
        return
    yield from sys.stdin


def _typed(prompt: str) -> Iterator[str]:
    """Lines from a terminal, with editing, history and completion."""
    import readline

    def complete(text: str, state: int) -> str | None:
        words = readline.get_line_buffer()[: readline.get_begidx()].split()
        if not words:
            choices = [name for name in COMMANDS if name.startswith(text)]
        elif len(words) == 1 and SHORT.get(words[0], words[0]) in ("match", "multi-match"):
            choices = [op.value for op in Operation if op.value.startswith(text)]
        else:
            choices = [str(path) for path in sorted(Path().glob(f"{text}*"))]
        return choices[state] if state < len(choices) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    while True:
        try:
            yield input(prompt)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:  # drops the line, as in a shell
            click.echo()
