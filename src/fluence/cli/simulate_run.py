"""Simulate run: what `fluence simulate` does with its options: the runs, one after the other, and the
report."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fluence.errors import FluenceError, InvalidInput
from fluence.match.policy import MatchPolicy, find
from fluence.messages import text
from fluence.queue.job import SECOND
from fluence.sim import report
from fluence.sim.intake import left_out
from fluence.sim.measure import LIVE_CYCLE, Run

if TYPE_CHECKING:
    from fluence.model.queues import QueueTree
    from fluence.schedule.settings import SchedulerSettings
    from fluence.sim.intake import TraceWorkload
    from fluence.sim.live_cycle import CycleSimulation, ManifestWorkload
    from fluence.sim.simulator import Platform, Simulation

_R = TypeVar("_R")
_OF_TRACES = (
    "cluster", "jobs", "kind", "seed", "no_forecast", "snapshot",
    "queue_field", "half_life", "promises",
)  # fmt: skip
_DEFAULT = "easy"
_OF_MANIFESTS = ("nodes", "every", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The parsed command line."""

    trace: str | None
    cluster: str | None
    manifests: tuple[str, ...]
    nodes: str | None
    every: int | None
    config: str | None
    queue_policy: tuple[str, ...] | None
    compare: tuple[str, ...] | None
    replan: bool
    depth: int | None
    window: int | None
    resolution: int | None
    match_policy: MatchPolicy | None
    queues: str | None
    queue_field: str
    half_life: int
    promises: int
    jobs: int | None
    arrival_scale: tuple[float, ...]
    kind: str | None
    unit: str | None
    seed: int
    strict: bool
    no_forecast: bool
    priority: str | None
    predictor: str | None
    until: int | None
    snapshot: str | None
    view: str | None
    html: str | None
    pictures: str | None
    output: str
    progress: bool | None

    @property
    def chosen(self) -> list[tuple[str | None, float]]:
        """The requested runs: each has a queue policy, if one was named, and a scale of arrivals."""
        policies = self.compare or self.queue_policy or (None,)
        return [(name, scale) for scale in self.arrival_scale for name in policies]

    def label(self, policy: str, scale: float) -> str:
        """The name of a run beside others."""
        return policy if len(self.arrival_scale) == 1 else f"{policy} ×{scale:g}"

    def described(self, about: Mapping[str, object]) -> dict[str, object]:
        """How a run was made, for the report; defaults are left out."""
        beside: dict[str, object] = {
            "replan": self.replan or None,
            "depth": self.depth,
            "window (s)": self.window and self.window / SECOND,
            "resolution (s)": self.resolution / SECOND if self.resolution and self.resolution > 1 else None,
            "seed": self.seed or None,
            "priority": self.priority,
            "predictor": self.predictor,
            "queues": self.queues and Path(self.queues).name,
        }
        return {**about, **{key: value for key, value in beside.items() if value is not None}}


def check(ctx: click.Context, options: SimulateOptions) -> None:
    """Refuse a command line whose parts contradict each other, before anything is read."""
    if (options.trace is None) == (not options.manifests):
        raise click.UsageError("give --trace and --cluster, or --manifests and --nodes")
    by_manifests = bool(options.manifests)
    needed = "nodes" if by_manifests else "cluster"
    if getattr(options, needed) is None:
        raise click.UsageError(f"{'--manifests' if by_manifests else '--trace'} needs --{needed}")
    for name in _OF_TRACES if by_manifests else _OF_MANIFESTS:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            other = "--trace" if by_manifests else "--manifests"
            raise click.UsageError(f"--{name.replace('_', '-')} needs {other}")
    if options.queues is not None and options.snapshot is not None:
        raise click.UsageError("a snapshot has no queues: give --queues or --snapshot, not both")
    if options.snapshot is not None and len(options.chosen) > 1:
        raise click.UsageError("--snapshot needs one policy and one --arrival-scale")
    if options.view is not None and len(options.chosen) > 1:
        raise click.UsageError("--view needs one policy and one --arrival-scale")
    for wanted in filter(None, (options.snapshot, options.view, options.html)):
        _check_writable(wanted)


def carry_out(ctx: click.Context, options: SimulateOptions) -> list[Run]:
    """Make the requested runs, and show and write the results."""
    make = _manifest_runs(options) if options.manifests else _trace_runs(options)
    runs: list[Run] = []
    for policy, scale in options.chosen:
        run = make(policy, scale)
        runs.append(run)
        if run.interrupted:
            break
    _show(ctx, options, runs)
    return runs


# -- a trace: the queue over the matcher ---------------------------------------------------------------------


def _trace_runs(options: SimulateOptions) -> Callable[[str | None, float], Run]:
    from fluence.sim import simulator as platforms

    assert options.cluster is not None
    platform = platforms.read(options.cluster, unit=options.unit)
    return partial(_trace_run, options, platform, read_queues(options.queues))


def read_queues(file: str | None) -> QueueTree | None:
    """The queues of a file, if one is named."""
    if file is None:
        return None
    from fluence.model.queue_documents import parse_tree

    return parse_tree(Path(file).read_bytes(), source=file)


def _trace_run(
    options: SimulateOptions,
    platform: Platform,
    queues: QueueTree | None,
    named: str | None,
    scale: float,
) -> Run:
    from fluence.sim.simulator import simulate

    work = _trace(options, platform, scale)
    policy, match_policy = named or _DEFAULT, options.match_policy or find("first")
    label = options.label(policy, scale)
    total = sum(each.tasks for each in work.submissions)

    def run_until(until: int | None, advance: Callable[[int], None] | None = None) -> Simulation:
        return simulate(
            work,
            platform,
            policy=policy,
            match_policy=match_policy,
            depth=options.depth,
            window=options.window,
            resolution=options.resolution or 1,
            replan=options.replan,
            forecasts=not options.no_forecast,
            priority=options.priority or "urgency",
            predictor=options.predictor or "history",
            queues=queues,
            half_life=options.half_life,
            promises=None if queues is None else options.promises,
            until=until,
            progress=advance,
        )

    with _shown(options.progress, label, total) as advance:
        done = run_until(options.until, advance)
    about = {"trace": Path(work.source).name, "cluster": options.cluster, "arrival scale": scale}
    run = Run(
        label,
        done.records,
        platform.capacity,
        platform.unit,
        options.described(about | {"match policy": match_policy.name}),
        decisions_per_s=done.decisions_per_s,
        wall_s=done.wall_s,
        skipped=work.skipped,
        plugin_faults=done.plugin_faults,
        interrupted=done.interrupted,
        stopped_at=done.stopped_at,
        queues=queues,
    )
    first = done.queue.records.get(run.records[0].name) if run.records else None
    _check_started(run, platform.source, text(first.story[-1].reason) if first and first.story else "")
    # A queue that was stopped in the middle of a cycle is not a state to continue from.
    if options.snapshot is not None and not done.interrupted:
        from fluence.queue.snapshot import save

        document = save(
            done.queue,
            done.matcher,
            priority=options.priority or "urgency",
            predictor=options.predictor or "history",
        )
        _write(options.snapshot, document)
    if options.view is not None and not done.interrupted:
        from fluence.sim.saved_view import deepest, of_trace

        _write(options.view, of_trace(_at_view(options, done, run_until, deepest(done.records)), platform))
    return run


def _trace(options: SimulateOptions, platform: Platform, scale: float) -> TraceWorkload:
    from fluence.sim import workload

    assert options.trace is not None
    work = workload.read(
        options.trace,
        kind=options.kind,
        jobs=options.jobs,
        arrival_scale=scale,
        strict=options.strict,
        seed=options.seed,
        unit=platform.unit,
        node_size=platform.node_size,
        processors=platform.capacity,
        queue_field=options.queue_field,
    )
    if not work.submissions:
        raise InvalidInput(f"has no job to simulate{left_out(work.skipped)}", where=options.trace)
    return work


# -- manifests: the live scheduler's cycle -------------------------------------------------------------------


def _manifest_runs(options: SimulateOptions) -> Callable[[str | None, float], Run]:
    from fluence.model.queues import not_counted, undefined_classes
    from fluence.sandbox.nodes import manifests, read_nodes
    from fluence.sim.live_cycle import read_manifests

    assert options.nodes is not None
    nodes = [body for kind in read_nodes(Path(options.nodes)) for body in manifests(kind)]
    if not nodes:
        raise InvalidInput("has no nodes: give a count of 1 or more", where=options.nodes)
    work = read_manifests(options.manifests, every=options.every or 0, strict=options.strict)
    queues = read_queues(options.queues)
    bodies: list[Any] = nodes
    offered = {name for body in bodies for name in body["status"]["allocatable"]}
    for name, queue in queues.queues.items() if queues is not None else ():
        classes = queues.classes if queues is not None else ()
        for note in (*not_counted(queue, offered), *undefined_classes(queue, classes)):
            click.echo(f"note: queue {name}: {note}", err=True)
    return partial(_manifest_run, options, nodes, work, queues)


def _manifest_run(
    options: SimulateOptions,
    nodes: Sequence[dict[str, Any]],
    work: ManifestWorkload,
    queues: QueueTree | None,
    named: str | None,
    scale: float,
) -> Run:
    from fluence.sim import live_cycle

    assert options.nodes is not None
    settings = _settings(options, named)
    label, unit = options.label(settings.queue_policy, scale), options.unit or live_cycle.UNIT

    def run_until(until: int | None, advance: Callable[[int], None] | None = None) -> CycleSimulation:
        return live_cycle.simulate(
            work.scaled(scale),
            nodes,
            settings=settings,
            queues=queues,
            unit=unit,
            until=until,
            progress=advance,
        )

    with _shown(options.progress, label, len(work.arrivals)) as advance:
        done = run_until(options.until, advance)
    about = {"manifests": work.source, "nodes": Path(options.nodes).name, "arrival scale": scale}
    about |= {"every (s)": (options.every or 0) / SECOND, "match policy": settings.match_policy}
    run = Run(
        label,
        done.records,
        done.capacity,
        unit,
        options.described(about),
        decisions_per_s=done.decisions_per_s,
        wall_s=done.wall_s,
        skipped=done.skipped,
        plugin_faults=done.plugin_faults,
        interrupted=done.interrupted,
        engine=LIVE_CYCLE,
        stopped_at=done.stopped_at,
        queues=queues,
        preemption=done.preemption,
    )
    if not run.records and run.stopped_at is None:
        raise InvalidInput(f"has no pod for this scheduler{left_out(done.skipped)}", where=work.source)
    _check_started(run, options.nodes, next(iter(done.reasons.values()), ""))
    if options.view is not None and not done.interrupted:
        from fluence.sim.saved_view import deepest, of_cluster

        _write(options.view, of_cluster(_at_view(options, done, run_until, deepest(done.records)).cluster))
    return run


def _at_view(options: SimulateOptions, done: _R, run_until: Callable[[int], _R], busiest: int) -> _R:
    """The run at the moment that `--view` shows. A run cannot go back, so it is repeated."""
    return done if options.until is not None else run_until(busiest)


def _settings(options: SimulateOptions, policy: str | None) -> SchedulerSettings:
    """The live scheduler's settings: those of the file, overridden by the command line."""
    from fluence.config import load
    from fluence.schedule.settings import SchedulerSettings

    flags: dict[str, object] = {
        "queue_policy": policy,
        "queue_replan": options.replan or None,
        "queue_depth": options.depth,
        "queue_window": None if options.window is None else -(-options.window // SECOND),
        "queue_resolution": options.resolution,
        "match_policy": options.match_policy and options.match_policy.name,
        "queue_priority": options.priority,
        "queue_predictor": options.predictor,
    }
    given = {key: value for key, value in flags.items() if value is not None}
    return load(SchedulerSettings, file=options.config, environ={}, flags=given).settings


def _check_started(run: Run, cluster: str, reason: str) -> None:
    """If nothing ever started in a complete run, raise an error with the reason."""
    if run.records and run.stopped_at is None and not run.measures.started:
        jobs = len(run.records)
        none = "the only job cannot" if jobs == 1 else f"none of the {jobs:,} jobs can"
        why = f": {run.records[0].name}: {reason}" if reason else ""
        raise FluenceError(f"{none} run on {cluster}{why}")


# -- the report ----------------------------------------------------------------------------------------------


def _show(ctx: click.Context, options: SimulateOptions, runs: Sequence[Run]) -> None:
    if options.html is not None:
        from fluence.sim import page

        _write(options.html, page.render(runs).encode())
    if options.pictures is not None:
        from fluence.sim.pictures import save as save_pictures

        for path in save_pictures(runs, options.pictures):
            click.echo(f"wrote {path}", err=True)
    form = "table" if options.output == "wide" else options.output
    color = sys.stdout.isatty() and bool(ctx.color is not False)
    click.echo(report.render(runs, form, several=len(options.chosen) > 1, color=color))
    if options.output == "wide":
        click.echo(report.jobs(runs))


def _check_writable(path: str) -> None:
    """Check before a long run that its result can be written."""
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
    """A progress bar on standard error during a run."""
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
