"""The figures of one run or of several side by side: as a table for people, as JSON or YAML for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from fluence.errors import InvalidInput
from fluence.messages.states import word
from fluence.model.document import JsonValue, write_yaml
from fluence.sim.run import Run
from fluence.units import round_duration

FORMATS = ("table", "json", "yaml")
BEST = "★"
ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Figure:
    """A line of the table: what it is called, how it is found and written, and which way is better."""

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
        told = promise.expected if figure.startswith("expected") else promise.started
        return getattr(promise, figure) if told else None

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


def best(figure: Figure, runs: Sequence[Run]) -> set[int]:
    """Which runs do best in a figure, as far as it is written; none where there is no choice."""
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
    """The report as a text in one of `FORMATS`; ``several``: so many were asked for."""
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
    return [figure for figure in FIGURES if any(figure.of(run) is not None for run in runs)]


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
    least = 40 + 34 * len(runs)  # NB a figure is never folded: who reads a pipe wants it whole
    console = Console(
        file=out, width=max(width, least), force_terminal=color, no_color=not color, highlight=False
    )
    console.print(grid)
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    return "\n".join([*engines(runs), *partial(runs), *lines, *notes(runs)])


def engines(runs: Sequence[Run]) -> list[str]:
    """What decided who starts where and when."""
    return [f"engine: {engine}" for engine in dict.fromkeys(run.engine for run in runs)]


def partial(runs: Sequence[Run]) -> list[str]:
    """For each run that was cut short, of which part its figures are."""
    found = []
    for run in runs:
        if run.stopped_at is not None:
            how = "interrupted" if run.interrupted else "stopped"
            waiting = run.measures.jobs - run.measures.started
            running = run.measures.started - run.measures.finished
            found.append(
                f"partial: {run.policy} was {how} after {seconds(run.last / 1000)} of simulated time; "
                f"{running:,} jobs ran, {waiting:,} waited, {run.not_arrived:,} had not arrived"
            )
    return found


def jobs(runs: Sequence[Run]) -> str:
    """A line per job and run, tab-separated, times in seconds: for spreadsheets and grep."""
    about = ("run", "job", "user", "size", "submit", "start", "end", "wait")
    told_of = ("no_later_than", "expected", "backfilled", "state", "broken")
    lines = ["\t".join((*about, *told_of))]
    for run in runs:
        for each in run.records:
            times = (each.submit, each.start, each.end, each.wait, each.no_later_than, each.expected)
            cells = [ABSENT if time is None else f"{time / 1000:g}" for time in times]
            told = ("yes" if each.backfilled else "no", word(each.state), each.broken or ABSENT)
            lines.append(
                "\t".join((run.policy, each.name, each.user or ABSENT, str(each.size), *cells, *told))
            )
    return "\n".join(lines)


def notes(runs: Sequence[Run]) -> list[str]:
    """What a reader must know beside the figures."""
    found: list[str] = []
    for causes in dict.fromkeys(tuple(sorted(run.skipped.items())) for run in runs if run.skipped):
        each = ", ".join(f"{count} {cause}" for cause, count in causes)
        found.append(f"left out of the workload: {each}")
    for run in runs:
        for cause, count in run.measures.promise.broken.items():
            found.append(f"{run.policy}: {count} promises broken: {cause}")
    if len(runs) > 1:
        found.append(f"{BEST} best of the runs")
    return found


def _mark(i: int, marked: set[int], runs: int) -> str:
    return "" if runs == 1 else f" {BEST}" if i in marked else "  "


def _value(run: Run) -> dict[str, Any]:
    value: dict[str, Any] = {
        "policy": run.policy,
        "engine": run.engine,
        "settings": {key: _plain(item) for key, item in run.settings.items()},
    }
    value |= msgspec.to_builtins(run.measures)
    return value | {
        "capacity": run.capacity,
        "unit": run.unit,
        "decisions_per_s": round(run.decisions_per_s, 1),
        "wall_s": round(run.wall_s, 3),
        "skipped": dict(run.skipped),
        "interrupted": run.interrupted,
        "partial": run.stopped_at is not None,
        "simulated_s": run.last / 1000,
        "not_arrived": run.not_arrived,
    }


def _plain(item: object) -> JsonValue:
    return item if isinstance(item, bool | int | float | str | None) else str(item)
