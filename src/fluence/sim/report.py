"""The figures of one run or of several side by side: as a table for people, as JSON or YAML for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fluence.errors import InvalidInput
from fluence.model.document import JsonValue, write_yaml
from fluence.model.job_state import JobState
from fluence.sim.measure import Run
from fluence.units import round_duration

FORMATS = ("table", "json", "yaml")
BEST = "★"
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table: its name, how it is computed and formatted, and which direction is better."""

    group: str
    name: str
    of: Callable[[Run], float | None]
    """None where there is nothing to measure."""
    write: Callable[[float], str]
    better: int = 0
    """-1: the less the better, 1: the more the better, 0: neither."""

    def cell(self, run: Run) -> str:
        value = self.of(run)
        return ABSENT if value is None else self.write(value)


def seconds(value: float) -> str:
    """A time in seconds, and in the unit that people would use."""
    exact = f"{value:,.1f} s"
    return f"{exact} ({round_duration(value)})" if abs(value) >= 60 else exact


def _number(value: float) -> str:
    return f"{value:,.2f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _index(value: float) -> str:
    return f"{value:.3f}"


def _promised(figure: str) -> Callable[[Run], float | None]:
    def of(run: Run) -> float | None:
        promise = run.measures.promise
        jobs = promise.expected if figure.startswith("expected") else promise.started
        return getattr(promise, figure) if jobs else None

    return of


def _wide(run: Run) -> float | None:
    return run.measures.wide_wait.mean if run.measures.wide_wait.count else None


FIGURES = (
    Figure("jobs", "jobs", lambda run: run.measures.jobs, _count),
    Figure("jobs", "finished", lambda run: run.measures.finished, _count),
    Figure("jobs", "backfilled", lambda run: run.measures.backfilled, _count),
    Figure("wait", "mean", lambda run: run.measures.wait.mean, seconds, -1),
    Figure("wait", "median", lambda run: run.measures.wait.p50, seconds, -1),
    Figure("wait", "95th percentile", lambda run: run.measures.wait.p95, seconds, -1),
    Figure("wait", "longest", lambda run: run.measures.wait.max, seconds, -1),
    Figure("wait", "wide jobs, mean", _wide, seconds, -1),
    Figure("wait", "wide jobs", lambda run: run.measures.wide_wait.count, _count),
    Figure("bounded slowdown", "mean", lambda run: run.measures.bounded_slowdown.mean, _number, -1),
    Figure("bounded slowdown", "95th percentile", lambda run: run.measures.bounded_slowdown.p95, _number, -1),
    Figure("bounded slowdown", "fairness over users", lambda run: run.measures.fairness, _index, 1),
    Figure("cluster", "utilisation", lambda run: run.measures.utilisation, _percent, 1),
    Figure("cluster", "while jobs arrive", lambda run: run.measures.utilisation_while_arriving, _percent, 1),
    Figure("cluster", "makespan", lambda run: run.measures.makespan, seconds, -1),
    Figure("promised start", "jobs that waited", lambda run: run.measures.promise.waiting, _count),
    Figure("promised start", "late (> 60 s)", _promised("late_rate"), _percent, -1),
    Figure("promised start", "mean error", _promised("no_later_than_mae"), seconds, -1),
    Figure("promised start", "mean slack", _promised("no_later_than_slack"), seconds, -1),
    Figure("expected start", "mean error", _promised("expected_mae"), seconds, -1),
    Figure("expected start", "median error", _promised("expected_median"), seconds, -1),
    Figure("expected start", "late (> 60 s)", _promised("expected_late_rate"), _percent, -1),
    Figure("simulator", "decisions per second", lambda run: run.decisions_per_s, _count),
    Figure("simulator", "took", lambda run: run.wall_s, seconds),
)


_LAST = 2  # of the simulator itself: they stay at the end


def best(figure: Figure, runs: Sequence[Run]) -> set[int]:
    """The runs with the best value of a figure, as printed; empty if all are equal."""
    values = [value * -figure.better for run in runs if (value := figure.of(run)) is not None]
    cells = [figure.cell(run) for run in runs]
    if not figure.better or len({*cells} - {ABSENT}) < 2:
        return set()
    leading = figure.write(min(values) * -figure.better)
    return {i for i, cell in enumerate(cells) if cell == leading}


def to_value(runs: Sequence[Run], *, several: bool | None = None) -> dict[str, Any]:
    """One run as an object; several as the list `runs` of such objects, also if only one was come to."""
    if len(runs) == 1 and not several:
        return _value(runs[0])
    return {"runs": [_value(run) for run in runs]}


def render(
    runs: Sequence[Run],
    format_: str = "table",
    *,
    several: bool | None = None,
    color: bool = False,
    width: int = 100,
) -> str:
    """The report as a text in one of `FORMATS`; ``several``: more than one run was requested."""
    match format_:
        case "json":
            return json.dumps(to_value(runs, several=several), indent=2)
        case "yaml":
            value: JsonValue = msgspec.to_builtins(to_value(runs, several=several))
            return write_yaml(value).rstrip("\n")
        case "table":
            return table(runs, color=color, width=width)
    raise InvalidInput(f"{format_!r} is not a format of reports: choose one of {', '.join(FORMATS)}")


def shown(runs: Sequence[Run]) -> list[Figure]:
    """The figures that at least one of the runs has."""
    figures = [*FIGURES[:-_LAST], *_of_queues(runs), *_of_preemption(runs), *FIGURES[-_LAST:]]
    return [figure for figure in figures if any(figure.of(run) is not None for run in runs)]


def _of_queues(runs: Sequence[Run]) -> list[Figure]:
    """The lines of each queue."""
    names = {name: None for run in runs if run.tenants for name in sorted(run.tenants.queues)}
    if not names:
        return []

    def of(name: str, field: str) -> Callable[[Run], float | None]:
        def value(run: Run) -> float | None:
            figures = run.tenants and run.tenants.queues.get(name)
            return getattr(figures, field) if figures else None

        return value

    def error(run: Run) -> float | None:
        return run.tenants.share_error if run.tenants else None

    figures = [Figure("shares", "error", error, _percent, -1)]
    for name in names:
        group = f"queue {name}"
        figures += [
            Figure(group, "jobs", of(name, "jobs"), _count),
            Figure(group, "share due", of(name, "due"), _percent),
            Figure(group, "share used", of(name, "used"), _percent),
            Figure(group, "wait, mean", of(name, "wait_mean"), seconds, -1),
            Figure(group, "wait, 95th percentile", of(name, "wait_p95"), seconds, -1),
        ]
    return figures


def _of_preemption(runs: Sequence[Run]) -> list[Figure]:
    """What was ended, and the waits of each priority; nothing where nothing was ended."""
    figures = [run.preemption for run in runs if run.preemption is not None]
    if not any(each.pods for each in figures):
        return []

    def of(field: str) -> Callable[[Run], float | None]:
        return lambda run: None if run.preemption is None else getattr(run.preemption, field)

    def wait(priority: str, field: str) -> Callable[[Run], float | None]:
        def value(run: Run) -> float | None:
            found = run.preemption and run.preemption.waits.get(priority)
            return getattr(found, field) if found else None

        return value

    lines = [
        Figure("preemption", "jobs ended", of("jobs"), _count, -1),
        Figure("preemption", "pods ended", of("pods"), _count, -1),
        Figure("preemption", "work lost, cluster-s", of("lost"), _count, -1),
    ]
    for name in sorted({name for each in figures for name in each.waits}, key=int, reverse=True):
        group = f"priority {name}"
        lines += [
            Figure(group, "wait, mean", wait(name, "mean"), seconds, -1),
            Figure(group, "wait, 95th percentile", wait(name, "p95"), seconds, -1),
        ]
    return lines


def table(runs: Sequence[Run], *, color: bool = False, width: int = 100) -> str:
    """A line for each figure and a column for each run, the best of several marked."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False, header_style="bold")
    grid.add_column("")
    grid.add_column("")
    for run in runs:
        grid.add_column(Text(run.policy), justify="right", no_wrap=True)
    group = ""
    for figure in shown(runs):
        marked = best(figure, runs) if len(runs) > 1 else set()
        cells = [
            Text(f"{figure.cell(run)}{_mark(i, marked, len(runs))}", "bold" if i in marked else "")
            for i, run in enumerate(runs)
        ]
        if figure.group != group and group:
            grid.add_section()
        grid.add_row(Text("" if figure.group == group else figure.group, "dim"), figure.name, *cells)
        group = figure.group
    out = io.StringIO()
    least = 40 + 34 * len(runs)  # NB a figure is never folded: a pipe gets it whole
    console = Console(
        file=out, width=max(width, least), force_terminal=color, no_color=not color, highlight=False
    )
    console.print(grid)
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    return "\n".join([*engines(runs), *partial(runs), *lines, *notes(runs)])


def engines(runs: Sequence[Run]) -> list[str]:
    """The policies that decided the starts and the placements."""
    return [f"engine: {engine}" for engine in dict.fromkeys(run.engine for run in runs)]


def partial(runs: Sequence[Run]) -> list[str]:
    """For each run that was cut short, the part that its figures describe."""
    remarks = []
    for run in runs:
        if run.stopped_at is not None:
            how = "interrupted" if run.interrupted else "stopped"
            waiting = run.measures.jobs - run.measures.started
            running = run.measures.started - run.measures.finished
            remarks.append(
                f"partial: {run.policy} was {how} after {seconds(run.last / 1000)} of simulated time; "
                f"{running:,} jobs ran, {waiting:,} waited, {run.not_arrived:,} had not arrived"
            )
    return remarks


def jobs(runs: Sequence[Run]) -> str:
    """A line per job and run, tab-separated, times in seconds: for spreadsheets and grep."""
    about = ("run", "job", "user", "size", "submit", "start", "end", "wait")
    told_of = ("no_later_than", "expected", "backfilled", "state", "broken")
    lines = ["\t".join((*about, *told_of))]
    for run in runs:
        for record in run.records:
            times = (
                record.submit,
                record.start,
                record.end,
                record.wait,
                record.no_later_than,
                record.expected,
            )
            cells = [ABSENT if time is None else f"{time / 1000:g}" for time in times]
            outcome = (
                "yes" if record.backfilled else "no",
                JobState(record.state).phase,
                record.broken or ABSENT,
            )
            lines.append(
                "\t".join(
                    (run.policy, record.name, record.user or ABSENT, str(record.size), *cells, *outcome)
                )
            )
    return "\n".join(lines)


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know beside the figures."""
    remarks: list[str] = []
    for causes in dict.fromkeys(tuple(sorted(run.skipped.items())) for run in runs if run.skipped):
        listed = ", ".join(f"{count} {cause}" for cause, count in causes)
        remarks.append(f"left out of the workload: {listed}")
    for run in runs:
        for fault, count in run.plugin_faults.items():
            times = "" if count == 1 else f" ({count:,} times)"
            remarks.append(f"{run.policy}: plug-in failed: {fault}{times}")
        for cause, count in run.measures.promise.broken.items():
            remarks.append(f"{run.policy}: {count} promises broken: {cause}")
    if len(runs) > 1:
        remarks.append(f"{BEST} best of the runs")
    return remarks


def _mark(i: int, marked: set[int], runs: int) -> str:
    return "" if runs == 1 else f" {BEST}" if i in marked else "  "


def _value(run: Run) -> dict[str, Any]:
    value: dict[str, Any] = {
        "policy": run.policy,
        "engine": run.engine,
        "settings": {key: _plain(item) for key, item in run.settings.items()},
    }
    value |= msgspec.to_builtins(run.measures)
    if run.tenants is not None:
        value["tenants"] = msgspec.to_builtins(run.tenants)
    if run.preemption is not None:
        value["preemption"] = msgspec.to_builtins(run.preemption)
    return value | {
        "capacity": run.capacity,
        "unit": run.unit,
        "decisions_per_s": round(run.decisions_per_s, 1),
        "wall_s": round(run.wall_s, 3),
        "skipped": dict(run.skipped),
        "plugin_faults": dict(run.plugin_faults),
        "interrupted": run.interrupted,
        "partial": run.stopped_at is not None,
        "simulated_s": run.last / 1000,
        "not_arrived": run.not_arrived,
    }


def _plain(item: object) -> JsonValue:
    return item if isinstance(item, bool | int | float | str | None) else str(item)
