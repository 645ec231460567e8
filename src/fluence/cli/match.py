"""`fluence match`: places jobspecs on a graph, in order, and shows where, when, or why not.

The answers are printed as data, as a table or in words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fluence.cli import engines
from fluence.cli.choice import (
    STDIN,
    graph_options,
    match_policy_option,
    parse_graph,
    read,
    source_name,
)
from fluence.cli.comparison import Comparison, EnginesDiffer
from fluence.cli.engines import Engine, EngineFailed, EngineJob, GraphFile
from fluence.commands import view
from fluence.commands.options import output_option
from fluence.errors import FluenceError, InvalidJobspec
from fluence.graph import files as graph_files
from fluence.graph import writers
from fluence.match import policy as policies
from fluence.match.describe import Share, render, shares
from fluence.match.matcher import Matcher
from fluence.match.request import (
    FLUXION_CONSTRAINED,
    Extensions,
    Never,
    Operation,
    Outcome,
    Placed,
    Request,
    Wait,
)
from fluence.model import idset
from fluence.model.jobspec import Jobspec

_TITLES = ("JOB", "STATE", "WHERE", "EACH", "START", "END")
_WIDE = (*_TITLES, "RANKS", "TOTAL", "JOBSPEC")
_NONE = "-"


@dataclass(frozen=True, slots=True)
class MatchAnswer:
    """One job and the answer of the matcher."""

    job: int
    name: str
    source: str
    outcome: Outcome
    shares: list[Share] = field(default_factory=list)
    explanation: list[str] = field(default_factory=list)
    explanation_value: Any = None

    @property
    def state(self) -> str:
        match self.outcome:
            case Placed(reserved=True):
                return "later"
            case Placed():
                return "now"
            case Wait():
                return "wait"
            case Never():
                return "never"

    @property
    def reason(self) -> str:
        """Why the job has no place, in a sentence that follows its name."""
        if isinstance(self.outcome, Wait):
            return f"waits: {_words(self.outcome.reason)}"
        if isinstance(self.outcome, Never):
            return f"can never start here: {_words(self.outcome.reason)}"
        return ""

    def to_value(self) -> dict[str, Any]:
        value: dict[str, Any] = {"job": self.job, "name": self.name, "jobspec": self.source}
        value["state"] = self.state
        if isinstance(self.outcome, Placed):
            nodes = [share for share in self.shares if share.is_node]
            value |= {
                "start": self.outcome.at,
                "end": self.outcome.end,
                "nodes": view.hosts([share.name for share in nodes]),
                "resources": [
                    {
                        "name": share.name,
                        "rank": share.rank,
                        "node": share.is_node,
                        "exclusive": share.is_whole,
                        "amounts": share.amounts,
                    }
                    for share in self.shares
                ],
            }
        else:
            value["reason"] = self.outcome.reason
            if self.explanation_value is not None:
                value["explanation"] = self.explanation_value
        return value


def answer(
    matcher: Matcher,
    request: Request,
    *,
    job: int,
    name: str,
    source: str,
    now: int,
    reserve: bool,
    explain: bool,
    ask: Callable[[Operation], Outcome] | None = None,
) -> MatchAnswer:
    """Place one job and return the result. ``ask`` answers instead of the matcher."""
    operation = Operation.ALLOCATE_OR_RESERVE if reserve else Operation.ALLOCATE
    ask = ask or (lambda operation: matcher.match(operation, request, job=job, now=now))
    try:
        outcome = ask(operation)
        if isinstance(outcome, Wait):
            # Fluxion calls a request busy that asks for more nodes than exist; people want to know.
            judged = ask(Operation.JUDGE)
            outcome = judged if isinstance(judged, Never) else outcome
    except EngineFailed:
        raise
    except FluenceError as error:
        raise InvalidJobspec(str(error), where=source) from None
    if isinstance(outcome, Placed):
        return MatchAnswer(job, name, source, outcome, shares(matcher.graph, outcome))
    if not explain:
        return MatchAnswer(job, name, source, outcome)
    from fluence.match.explain import explain as explain_request

    explanation = explain_request(matcher, request, now=now)
    return MatchAnswer(job, name, source, outcome, [], explanation.lines(), explanation.to_value())


def tabulate(answers: Sequence[MatchAnswer], *, horizon: int, wide: bool = False) -> str:
    """A row per job; a job with several kinds of shares has a row for each."""
    titles = _WIDE if wide else _TITLES
    rows = [row[: len(titles)] for answer in answers for row in _rows(answer, horizon)]
    return view.table(titles, rows)


def notes(answers: Sequence[MatchAnswer]) -> Iterator[str]:
    """A line for each job without a place, and the explanation if requested."""
    for found in answers:
        if found.reason:
            yield f"{click.style(found.name, bold=True)} {found.reason}"
            yield from (f"  {line}" for line in found.explanation)


def _rows(found: MatchAnswer, horizon: int) -> Iterator[list[str]]:
    head = [found.name, view.state(found.state)]
    if not isinstance(found.outcome, Placed):
        yield [*head, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, found.source]
        return
    times = [view.moment(found.outcome.at), view.moment(found.outcome.end, horizon=horizon)]
    tail = [view.amounts(_total(found.shares)) or _NONE, found.source]
    for group in _groups(found.shares):
        ranks = [share.rank for share in group if share.rank is not None]
        yield [
            *head,
            view.hosts([share.name for share in group]),
            _each(group[0]),
            *times,
            idset.encode(ranks) or _NONE,
            *tail,
        ]
        head, times, tail = ["", ""], ["", ""], ["", ""]


def _groups(found: Sequence[Share]) -> list[list[Share]]:
    """Equal shares, grouped."""
    groups: dict[object, list[Share]] = {}
    for share in found:
        key = (share.is_node, share.is_whole, tuple(share.amounts.items()))
        groups.setdefault(key, []).append(share)
    return list(groups.values())


def _each(share: Share) -> str:
    amounts = view.amounts(share.amounts) or "itself"
    return f"{amounts} (all of it)" if share.is_node and share.is_whole else amounts


def _total(found: Sequence[Share]) -> dict[str, int]:
    total: dict[str, int] = {}
    for share in found:
        for type_, amount in share.amounts.items():
            total[type_] = total.get(type_, 0) + amount
    return total


def _words(reason: str) -> str:
    return {
        "busy": "what it needs is taken or down",
        "unsatisfiable": "the graph does not have what it needs, even when empty",
    }.get(reason, reason)


WAITS, NEVER, DIFFERS = 3, 4, 5


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
@click.option(
    "--engine",
    metavar="ENGINE",
    help="Who answers: resource-query:/path/to/resource-query of a Fluxion, or grpc://host:4242. "
    "[default: Fluence]",
)
@click.option(
    "--compare", is_flag=True, help="Ask the engine and Fluence, and stop at the first answer that differs."
)
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
    engine: str | None,
    compare: bool,
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
      fluence match cluster.json *.yaml --engine resource-query:/usr/bin/resource-query --compare

    \b
    STATE is one of
      now     it starts now            wait    others hold what it needs, or it is down
      later   it has a reservation     never   this graph cannot hold it, however empty

    \b
    Exit code:
      0  every job has a place      3  some job waits      4  some job can never start
      1  an input is wrong          2  the command line is wrong      5  the engine answers differently
    """
    if compare and engine is None:
        raise click.UsageError("--compare needs an --engine to compare with")
    if engine is not None and (pools or constrained or siblings or shared):
        raise click.UsageError("--engine knows only what Fluxion does: leave out what is beyond it")
    if [graph, *jobspecs].count(STDIN) > 1:
        raise click.UsageError("only one input can be '-': standard input can be read once")
    extensions = Extensions(
        quantities=frozenset(pools),
        constrained=FLUXION_CONSTRAINED | set(constrained),
        siblings=siblings,
        shared=shared,
    )
    text = read(graph)
    matcher = Matcher(
        parse_graph(text, format_, allow, source=graph),
        match_policy,
        extensions=extensions,
        bug_compatible=compare,
    )
    if at >= matcher.horizon:
        raise click.UsageError(f"--at must be before the graph ends, at {matcher.horizon} s")
    texts = [read(source) for source in jobspecs]
    names = _names(jobspecs)
    jobs = [  # a faulty one stops all, before any starts
        EngineJob(number, spec, _request(matcher, spec, source))
        for number, (spec, source) in enumerate(zip(texts, jobspecs, strict=True), start=1)
    ]
    asked = None
    if engine is not None:
        file = GraphFile(text, format_ or graph_files.guess(text, source=source_name(graph)), allow)
        asked = engines.start(engine, matcher, file, now=at)
        if compare:
            named = {job.number: name for job, name in zip(jobs, names, strict=True)}
            asked = Comparison(engine, matcher, file, asked, at, named)
    try:
        answers = [
            answer(
                matcher,
                job.request,
                job=job.number,
                name=name,
                source=source_name(source),
                now=at,
                reserve=reserve,
                explain=explain,
                ask=None if asked is None else _asking(asked, matcher, job, at, records=not compare),
            )
            for job, name, source in zip(jobs, names, jobspecs, strict=True)
        ]
    except EnginesDiffer as difference:
        click.echo("\n".join(difference.lines))
        click.get_current_context().exit(DIFFERS)
    finally:
        if asked is not None:
            asked.close()
    _show(matcher, answers, output)
    states = {found.state for found in answers}
    click.get_current_context().exit(NEVER if "never" in states else WAITS if "wait" in states else 0)


def _asking(
    engine: Engine, matcher: Matcher, job: EngineJob, now: int, *, records: bool
) -> Callable[[Operation], Outcome]:
    """A function that asks an engine about a job. Our own ledger follows, so that explanations include the
    job."""

    def ask(operation: Operation) -> Outcome:
        outcome = engine.match(operation, job)
        if records and isinstance(outcome, Placed):
            matcher.hold(outcome, now=now)
        return outcome

    return ask


def _request(matcher: Matcher, text: bytes, source: str) -> Request:
    name = source_name(source)
    jobspec = Jobspec.parse(text, source=name)
    try:
        return matcher.compile(jobspec)
    except InvalidJobspec as error:
        raise InvalidJobspec(str(error), where=name) from None


def _names(sources: Sequence[str]) -> list[str]:
    """Short names for jobs: the name of the file without its suffix, unless two would be the same."""
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
