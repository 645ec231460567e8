"""`fluence simulate`: drive the queue over a workload and report what came of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fluence.cli.choice import PolicyChoice
from fluence.errors import FluenceError, InvalidInput
from fluence.match import policy as match_policies
from fluence.queue import policy as policies
from fluence.queue.job import FOREVER, SECOND
from fluence.units import parse_duration

_INTERRUPTED = 130


class Length(click.ParamType):  # type: ignore[type-arg]
    """A length of time in seconds, or with units: 90, 15m, 2h30m, 1d; in milliseconds inside."""

    name = "time"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        length = parse_duration(value)
        if length is None:
            self.fail(f"{value!r} is no length of time: give seconds, or 90s, 15m, 2h30m, 1d", param, ctx)
        if length > FOREVER:
            self.fail("this length of time is over a hundred years: give less", param, ctx)
        if self.least and length < self.least:
            self.fail(f"{value!r} is too short: give 1ms at least", param, ctx)
        return length


class QueuePolicies(click.ParamType):  # type: ignore[type-arg]
    """One queue policy, or several with commas between them."""

    name = "policies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(filter(None, (name.strip() for name in value.split(","))))
        if not names:
            self.fail(f"no policy is named: choose from {', '.join(policies.names())}", param, ctx)
        try:
            for name in names:
                policies.find(name)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)
        return names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, _, last = incomplete.rpartition(",")
        head = f"{done}," if done else ""
        return [CompletionItem(head + name) for name in policies.names() if name.startswith(last)]


class Scales(click.ParamType):  # type: ignore[type-arg]
    """One factor, or several with commas between them."""

    name = "factors"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is no factor: give a number such as 0.5, or several: 1,0.7,0.5", param, ctx)


@click.command()
@click.option(
    "--trace",
    "--workload",
    "trace",
    metavar="FILE",
    required=True,
    type=click.Path(),
    help="The jobs: an SWF log (also .gz), the pods of openb (CSV), jobspecs with arrival "
    "times, or a list in YAML.",
)
@click.option(
    "--cluster",
    metavar="CLUSTER",
    required=True,
    help="What they run on: nodes×cores such as 240x1, nodes×cores×gpus, a graph file, or the "
    "nodes of openb (CSV).",
)
@click.option(
    "--policy",
    metavar="POLICY",
    type=QueuePolicies(),
    default="easy",
    show_default=True,
    help=f"Who starts when: {', '.join(policies.BUILT_IN)}, hybrid(DEPTH), or one that a site added.",
)
@click.option(
    "--compare",
    metavar="POLICIES",
    type=QueuePolicies(),
    help="Several policies side by side: easy,conservative,fcfs,first-fit.",
)
@click.option(
    "--replan", is_flag=True, help="Make the whole plan anew at every event, and keep no promise by it."
)
@click.option("--jobs", metavar="N", type=click.IntRange(1), help="Only the first N valid jobs.")
@click.option(
    "--arrival-scale",
    metavar="FACTOR",
    type=Scales(),
    default="1",
    show_default=True,
    help="Multiply the offsets of arrivals: 0.5 doubles the load. Several, 1,0.7,0.5, make several runs.",
)
@click.option(
    "--depth",
    metavar="N",
    type=click.IntRange(1),
    help="Look at no more than N waiting jobs in a cycle.  [default: all]",
)
@click.option(
    "--window", metavar="TIME", type=Length(), help="Plan no start further ahead than this.  [default: any]"
)
@click.option(
    "--resolution",
    metavar="TIME",
    type=Length(least=1),
    default="1ms",
    help="Round limits up to a multiple of this.",
)
@click.option(
    "--match-policy",
    metavar="POLICY",
    type=PolicyChoice(),
    default="first",
    show_default=True,
    help=f"Which resources are taken: {', '.join(match_policies.names())}.",
)
@click.option(
    "--kind",
    type=click.Choice(["swf", "openb", "yaml", "jsonl"]),
    help="What the trace is; guessed without it.",
)
@click.option(
    "--unit", metavar="TYPE", help="What sizes are counted in.  [default: core, else cpu, else node]"
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides what a recipe of jobs makes.")
@click.option("--strict", is_flag=True, help="Refuse a bad record, with its line, instead of counting it.")
@click.option("--no-forecast", is_flag=True, help="Leave out expected starts: quicker.")
@click.option(
    "--priority",
    metavar="NAME",
    default="urgency",
    show_default=True,
    help="Who goes first: urgency, or a function that a site added.",
)
@click.option(
    "--predictor",
    metavar="NAME",
    default="history",
    show_default=True,
    help="How long jobs will run: history, or one that a site added.",
)
@click.option("--until", metavar="TIME", type=Length(), help="Stop at this time of the workload.")
@click.option(
    "--snapshot",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the queue as it is at the end (see --until), for fluence whatif.",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the report as a page with pictures.",
)
@click.option(
    "--pictures", metavar="DIR", type=click.Path(file_okay=False), help="Write the pictures as PNG and SVG."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "wide", "json", "yaml"]),
    default="table",
    show_default=True,
    help="How to print the report; wide adds a line per job.",
)
@click.option("--progress/--no-progress", default=None, help="Show how far it is.  [default: on a terminal]")
@click.pass_context
def simulate(
    ctx: click.Context,
    trace: str,
    cluster: str,
    policy: tuple[str, ...],
    compare: tuple[str, ...] | None,
    replan: bool,
    jobs: int | None,
    arrival_scale: tuple[float, ...],
    depth: int | None,
    window: int | None,
    resolution: int,
    match_policy: match_policies.MatchPolicy,
    kind: str | None,
    unit: str | None,
    seed: int,
    strict: bool,
    no_forecast: bool,
    priority: str,
    predictor: str,
    until: int | None,
    snapshot: str | None,
    html: str | None,
    pictures: str | None,
    output: str,
    progress: bool | None,
) -> None:
    """Drive the live scheduler's queue and matcher over a workload, with a clock that jumps.

    Reports how long jobs waited, how well the cluster was used, and how good the two start times were that
    each waiting job was given: the promise (no later than) and the expectation. Ctrl-C ends a run early and
    reports what is known by then.

    Exit code: 0 done, 1 an input is wrong or a file cannot be written, 130 ended by Ctrl-C.

    \b
    Examples:
      fluence simulate --trace log.swf --cluster 240x1
      fluence simulate --trace log.swf --cluster 240x1 --compare easy,conservative,fcfs --html r.html
      fluence simulate --trace log.swf --cluster 240x1 --policy conservative --arrival-scale 1,0.7,0.5
      fluence simulate --trace pods.csv --cluster nodes.csv --jobs 2000 -o json
      fluence simulate --trace log.swf --cluster 240x1 --until 2d --snapshot state.json
    """
    from fluence.sim import platform as platforms
    from fluence.sim import report, workload
    from fluence.sim.run import Run
    from fluence.sim.simulator import simulate as run

    platform = platforms.read(cluster, unit=unit)
    runs: list[Run] = []
    chosen = [(name, scale) for scale in arrival_scale for name in compare or policy]
    if snapshot is not None and len(chosen) > 1:
        raise click.UsageError("--snapshot needs one policy and one --arrival-scale")
    for wanted in filter(None, (snapshot, html)):
        _check(wanted)
    for name, scale in chosen:
        work = workload.read(
            trace,
            kind=kind,
            jobs=jobs,
            arrival_scale=scale,
            strict=strict,
            seed=seed,
            unit=platform.unit,
            node_size=platform.node_size,
            processors=platform.capacity,
        )
        label = name if len(arrival_scale) == 1 else f"{name} ×{scale:g}"
        with _shown(progress, label, sum(each.tasks for each in work.submissions)) as advance:
            result = run(
                work,
                platform,
                policy=name,
                match_policy=match_policy,
                depth=depth,
                window=window,
                resolution=resolution,
                replan=replan,
                forecasts=not no_forecast,
                priority=priority,
                predictor=predictor,
                until=until,
                progress=advance,
            )
        settings: dict[str, object] = {
            "trace": Path(trace).name,
            "cluster": cluster,
            "arrival scale": scale,
            "match policy": match_policy.name,
        }
        chosen_beside: dict[str, object] = {
            "replan": replan or None,
            "depth": depth,
            "window (s)": window and window / SECOND,
            "resolution (s)": resolution / SECOND if resolution > 1 else None,
            "seed": seed or None,
        }
        settings |= {key: value for key, value in chosen_beside.items() if value is not None}
        runs.append(
            Run(
                label,
                result.records,
                platform.capacity,
                platform.unit,
                settings,
                decisions_per_s=result.decisions_per_s,
                wall_s=result.wall_s,
                skipped=work.skipped,
                interrupted=result.interrupted,
            )
        )
        # NB a queue that was stopped halfway through a cycle is no state to go on from.
        if snapshot is not None and not result.interrupted:
            from fluence.queue.snapshot import save

            _write(snapshot, save(result.queue, result.matcher))
        if result.interrupted:
            break
    if html is not None:
        from fluence.sim import page

        _write(html, page.render(runs).encode())
    if pictures is not None:
        from fluence.sim.pictures import save as save_pictures

        for path in save_pictures(runs, pictures):
            click.echo(f"wrote {path}", err=True)
    form = "table" if output == "wide" else output
    click.echo(report.render(runs, form, color=sys.stdout.isatty() and bool(ctx.color is not False)))
    if output == "wide":
        click.echo(report.jobs(runs))
    if any(each.interrupted for each in runs):
        ctx.exit(_INTERRUPTED)


def _check(path: str) -> None:
    """A long run must not end with nothing to show."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise FluenceError(f"{path}: cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise FluenceError(f"{path}: cannot be written: the folder {folder} is read-only")


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise FluenceError(f"{path}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path}", err=True)


@contextmanager
def _shown(wanted: bool | None, label: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error, while a run goes on."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)
