"""`fluence match`: place jobspecs on a graph, in order, and show where, when, or why not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fluence.cli import view
from fluence.cli.answers import MatchAnswer, answer, notes, tabulate
from fluence.cli.choice import (
    STDIN,
    graph_options,
    load_graph,
    match_policy_option,
    output_option,
    read,
    source_name,
)
from fluence.errors import InvalidJobspec
from fluence.graph import writers
from fluence.match import policy as policies
from fluence.match.describe import render
from fluence.match.extensions import FLUXION_CONSTRAINED, Extensions
from fluence.match.matcher import Matcher
from fluence.match.placement import Placed
from fluence.match.request import Request
from fluence.model.jobspec import Jobspec

WAITS, NEVER = 3, 4


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """Seconds, or a date and time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if re.fullmatch(r"[0-9]{1,18}", value):
            return int(value)
        try:
            found = datetime.fromisoformat(value)
            return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
        except ValueError:
            self.fail(
                f"{value!r} is not a valid time: give seconds, or a date such as 2026-08-14T12:00Z",
                param,
                ctx,
            )


@click.command()
@click.argument("graph", metavar="GRAPH", type=click.Path(allow_dash=True))
@click.argument("jobspecs", metavar="JOBSPEC...", type=click.Path(allow_dash=True), nargs=-1, required=True)
@match_policy_option("-P", former=("--policy",))
@graph_options
@click.option(
    "--at",
    type=_Moment(),
    default="0",
    metavar="TIME",
    help="When this happens: seconds, or a date such as 2026-08-14T12:00Z.  [default: 0]",
)
@click.option("--reserve", is_flag=True, help="Give a job that must wait its earliest start.")
@click.option("--explain", is_flag=True, help="Say why a job waits or can never start.")
@click.option(
    "--pool", "pools", metavar="TYPE", multiple=True, help="Beyond Fluxion: any part of a TYPE can be taken."
)
@click.option(
    "--constrain",
    "constrained",
    metavar="TYPE",
    multiple=True,
    help="Beyond Fluxion: constraints apply to TYPE too, not only to nodes.",
)
@click.option("--siblings", is_flag=True, help="Beyond Fluxion: several requests for one type at the top.")
@click.option("--shared", is_flag=True, help="Beyond Fluxion: record what a job asks to share.")
@output_option(
    writers.formats(),
    note="table, wide, json, yaml; or what programs read, a document per placed job: "
    f"{', '.join(writers.formats())}.",
)
def match(
    graph: str,
    jobspecs: tuple[str, ...],
    match_policy: policies.MatchPolicy,
    format_: str | None,
    allow: str | None,
    at: int,
    reserve: bool,
    explain: bool,
    pools: tuple[str, ...],
    constrained: tuple[str, ...],
    siblings: bool,
    shared: bool,
    output: str,
) -> None:
    """Place jobs on a graph, one JOBSPEC after the other, and show who got what.

    GRAPH is JGF, a GRUG recipe, an hwloc topology or R. Each job holds what it got while the next ones are
    placed; nothing is written back. `-` reads the graph or one jobspec from standard input.

    \b
    Examples:
      fluence match cluster.json mpi.yaml gpu.yaml
      fluence match cluster.json *.yaml --reserve --match-policy lonode
      fluence match cluster.json big.yaml --explain
      fluence match cluster.json mpi.yaml -o rv1 > R

    \b
    STATE is one of
      now     it starts now            wait    others hold what it needs, or it is down
      later   it has a reservation     never   this graph cannot hold it, however empty

    \b
    Exit code:
      0  every job has a place      3  some job waits      4  some job can never start
      1  an input is wrong          2  the command line is wrong
    """
    if [graph, *jobspecs].count(STDIN) > 1:
        raise click.UsageError("only one input can be '-': standard input can be read once")
    extensions = Extensions(
        quantities=frozenset(pools),
        constrained=FLUXION_CONSTRAINED | set(constrained),
        siblings=siblings,
        shared=shared,
    )
    matcher = Matcher(load_graph(graph, format_, allow), match_policy, extensions=extensions)
    if at >= matcher.horizon:
        raise click.UsageError(f"--at must be before the graph ends, at {matcher.horizon} s")
    requests = [_request(matcher, source) for source in jobspecs]  # a faulty one stops all, before any starts
    named = zip(jobspecs, _names(jobspecs), requests, strict=True)
    answers = [
        answer(
            matcher, request, job=job, name=name, source=source_name(source),
            now=at, reserve=reserve, explain=explain,
        )
        for job, (source, name, request) in enumerate(named, start=1)
    ]  # fmt: skip
    _show(matcher, answers, output)
    states = {found.state for found in answers}
    click.get_current_context().exit(NEVER if "never" in states else WAITS if "wait" in states else 0)


def _request(matcher: Matcher, source: str) -> Request:
    name = source_name(source)
    jobspec = Jobspec.parse(read(source), source=name)
    try:
        return matcher.compile(jobspec)
    except InvalidJobspec as error:
        raise InvalidJobspec(str(error), where=name) from None


def _names(sources: Sequence[str]) -> list[str]:
    """Short names for jobs: the file's, without its ending, unless two would be the same."""
    stems = ["stdin" if source == STDIN else Path(source).stem for source in sources]
    often = Counter(stems)
    return [stem if often[stem] == 1 else f"{stem}#{i}" for i, stem in enumerate(stems, start=1)]


def _show(matcher: Matcher, answers: Sequence[MatchAnswer], output: str) -> None:
    if output in ("table", "wide"):
        click.echo(tabulate(answers, horizon=matcher.horizon, wide=output == "wide"))
        lines = list(notes(answers))
        if lines:
            click.echo()
            click.echo("\n".join(lines))
    elif output in ("json", "yaml"):
        values = [found.to_value() for found in answers]
        click.echo(view.data(values, output))
    else:
        for found in answers:
            if isinstance(found.outcome, Placed):
                click.echo(render(matcher, found.outcome, output), nl=False)
        for line in notes(answers):
            click.echo(line, err=True)
