"""The pictures of one run or of several: the schedule, use, waits, promises, and runs side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fluence.errors import InvalidInput
from fluence.sim import gantt, report
from fluence.sim import gantt as themes
from fluence.sim.gantt import LIGHT, Theme
from fluence.sim.measure import LATE, Record, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
_MAX_POINTS = 600  # of a long curve
_WIDTH = 10.0  # inches
_BINS = 400  # of a curve over time
_DPI = 160
_COLOURS = 96
_BARS = (
    ("wait", "mean"), ("wait", "95th percentile"), ("wait", "longest"), ("wait", "wide jobs, mean"),
    ("bounded slowdown", "mean"), ("cluster", "utilisation"), ("promised start", "late (> 60 s)"),
    ("promised start", "mean error"), ("shares", "error"), ("preemption", "work lost, cluster-s"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture:
    """A kind of picture: its title, how to read it, a description in words, and the function that draws
    it."""

    name: str
    title: str
    caption: str
    describe: Callable[[Sequence[Run]], str]
    draw: Callable[[Sequence[Run], Theme], Figure]
    least: int = 1
    """How many runs it takes."""
    has_many_marks: bool = False
    """Whether the picture has so much detail that an SVG is larger than a PNG."""


def _is_bar(figure: report.Figure) -> bool:
    by_priority = figure.group.startswith("priority ") and figure.name == "wait, mean"
    return (figure.group, figure.name) in _BARS or by_priority


def of(runs: Sequence[Run]) -> list[Picture]:
    """The pictures that these runs can have."""
    chosen = [picture for picture in PICTURES if len(runs) >= picture.least]
    if not any(run.measures.started for run in runs):
        return []
    if not any(run.measures.promise.started for run in runs):
        chosen.remove(PROMISES)
    return chosen


def render(picture: Picture, runs: Sequence[Run], format_: str = "svg", *, theme: Theme = LIGHT) -> bytes:
    """A picture as a file's content; the same runs give the same bytes."""
    if format_ not in FORMATS:
        raise InvalidInput(f"{format_!r} is not a format of pictures: choose one of {', '.join(FORMATS)}")
    with themes.styled(theme):
        out = io.BytesIO()
        figure = picture.draw(runs, theme)
        if format_ == "svg":
            figure.savefig(out, format="svg", dpi=_DPI, metadata={"Date": None})
        else:  # packed below, so not packed hard here
            figure.savefig(out, format="png", dpi=_DPI, pil_kwargs={"compress_level": 1})
    return _packed(out) if format_ == "png" else out.getvalue()


def _packed(png: io.BytesIO) -> bytes:
    """A PNG with as many colours as these pictures have shades, which takes a third of the space."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(png) as image:
        image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return out.getvalue()


def save(runs: Sequence[Run], folder: str | Path) -> list[Path]:
    """Write every picture into a folder, in each of the formats; returns the written files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for picture in of(runs):
        for format_ in FORMATS:
            path = folder / f"{picture.name}.{format_}"
            path.write_bytes(render(picture, runs, format_))
            written.append(path)
    return written


# The schedule.


def _draw_schedule(runs: Sequence[Run], theme: Theme) -> Figure:
    figure, panels = _figure(len(runs), 1, height=3.6)
    last = max(run.last for run in runs)  # one scale for all, so that they can be compared
    for axes, run in zip(panels, runs, strict=True):
        gantt.draw(axes, run, theme, last=last)
    return figure


def _describe_schedule(runs: Sequence[Run]) -> str:
    return " ".join(gantt.describe(run) for run in runs)


# Use over time.


def use(run: Run) -> npt.NDArray[np.float64]:
    """The part of the cluster in use, in equal stretches of the run."""
    return stretches(run.steps, run.last, _BINS) / max(run.capacity, 1)


def waiting(run: Run) -> npt.NDArray[np.float64]:
    """The total request of waiting jobs in each interval, as a fraction of the cluster."""
    changes: dict[int, int] = {}
    for record in run.records:
        changes[record.submit] = changes.get(record.submit, 0) + record.size
        stop = run.last if record.start is None else record.start
        changes[stop] = changes.get(stop, 0) - record.size
    held, steps = 0, []
    for at in sorted(changes):
        held += changes[at]
        steps.append((at, held))
    return stretches(steps, run.last, _BINS) / max(run.capacity, 1)


def stretches(steps: Sequence[tuple[int, int]], last: int, bins: int) -> npt.NDArray[np.float64]:
    """A function of steps, averaged over equal stretches: its integral at their ends, and the differences."""
    if not steps or last <= 0:
        return np.zeros(bins)
    at = np.array([0, *(step[0] for step in steps), max(last, steps[-1][0]) + 1], np.float64)
    level = np.array([0, *(step[1] for step in steps)], np.float64)
    area = np.concatenate(([0.0], np.cumsum(level * np.diff(at))))
    edges = np.linspace(0, last, bins + 1)
    result: npt.NDArray[np.float64] = np.diff(np.interp(edges, at, area)) / (last / bins)
    return result


def _draw_use(runs: Sequence[Run], theme: Theme) -> Figure:
    figure, panels = _figure(len(runs), 1, height=2.3, sharex=True)
    last = max(run.last for run in runs)
    unit, name = themes.span(last)
    for axes, run in zip(panels, runs, strict=True):
        edges = np.linspace(0, run.last / unit, _BINS + 1)
        held, wanted = use(run) * 100, (use(run) + waiting(run)) * 100
        axes.stairs(
            np.minimum(wanted, 200), edges, fill=True, color=theme.faint, label="asked for and waiting"
        )
        axes.stairs(held, edges, fill=True, color=theme.base[1], label="in use")
        axes.axhline(100, color=theme.quiet, linewidth=0.8)
        mean = run.measures.utilisation
        axes.axhline(mean * 100, color=theme.accent[0], linewidth=1.4, label="mean use")
        axes.set_ylim(0, 200)
        axes.set_yticks([0, 50, 100, 150, 200], ["0", "50", "100", "150", "200+"])
        axes.set_xlim(0, max(last / unit, 1e-9))
        axes.set_ylabel("% of the cluster")
        axes.set_title(f"{run.policy}: {mean:.1%} in use over {themes.words(run.measures.makespan)}")
    panels[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.2)
    panels[-1].set_xlabel(f"{name} since the first arrival")
    return figure


def _describe_use(runs: Sequence[Run]) -> str:
    parts = [f"{run.policy} {run.measures.utilisation:.1%}" for run in runs]
    return f"Part of the cluster in use over time; in the mean: {', '.join(parts)}."


# Waits.


def _draw_waits(runs: Sequence[Run], theme: Theme) -> Figure:
    figure, (axes,) = _figure(1, 1, height=4.0)
    longest = max(run.measures.wait.max for run in runs)
    every = [
        np.sort([record.wait / 1000 for record in run.records if record.wait is not None]) for run in runs
    ]
    least, name = themes.floor(np.concatenate(every).tolist())
    for i, (run, waits) in enumerate(zip(runs, every, strict=True)):
        share = np.arange(1, len(waits) + 1) / max(len(waits), 1) * 100
        keep = _thinned(len(waits))
        at_once = float((waits <= least).mean()) * 100 if len(waits) else 0.0
        axes.step(
            [least, *np.maximum(waits[keep], least), themes.highest(longest)],
            [at_once, *np.maximum(share[keep], at_once), 100], where="post",
            color=_color(i, theme), linestyle=themes.STROKES[i % len(themes.STROKES)],
            linewidth=1.9, label=f"{run.policy}: mean {themes.words(run.measures.wait.mean)}",
        )  # fmt: skip
    themes.log_seconds(axes, "x", least=least, longest=longest)
    axes.set_ylim(0, 101)
    axes.set_yticks([0, 25, 50, 75, 95, 100])
    axes.set_xlabel(f"wait (logarithmic; what started within {name} is at the left edge)")
    axes.set_ylabel("% of jobs that waited no longer")
    axes.set_title("How long jobs waited")
    axes.legend(loc="upper left")
    return figure


def _thinned(count: int) -> npt.NDArray[np.int64]:
    """Which points of a long curve to draw: evenly spread, and the last few all."""
    if count <= _MAX_POINTS:
        return np.arange(count)
    spread = np.linspace(0, count - 1, _MAX_POINTS).astype(np.int64)
    return np.union1d(spread, np.arange(count - 20, count))


def _describe_waits(runs: Sequence[Run]) -> str:
    parts = [
        f"{run.policy}: half of the jobs waited at most {themes.words(run.measures.wait.p50)}, 95% at most "
        f"{themes.words(run.measures.wait.p95)}, the last {themes.words(run.measures.wait.max)}"
        for run in runs
    ]
    return f"Cumulative distribution of waits. {'; '.join(parts)}."


# Promises.


def pairs(run: Run, which: str) -> Iterator[tuple[float, float]]:
    """The wait that each job was promised first, and its real wait, in seconds."""
    for record in run.records:
        time = _told(record, which)
        if time is not None and record.start is not None and record.no_later_than is not None:
            yield (time - record.submit) / 1000, (record.start - record.submit) / 1000


def _told(record: Record, which: str) -> int | None:
    return record.no_later_than if which == "no_later_than" else record.expected


def _draw_promises(runs: Sequence[Run], theme: Theme) -> Figure:
    promising = [run for run in runs if run.measures.promise.started]
    kinds = ["no_later_than"]
    if any(run.measures.promise.expected for run in promising):
        kinds.append("expected")
    figure, panels = _figure(len(promising), len(kinds), height=4.1, across=True)
    every = [pair for run in promising for kind in kinds for pair in pairs(run, kind)]
    least, _ = themes.floor([wait for pair in every for wait in pair])
    longest = max(max(pair) for pair in every)
    places = iter(panels)
    for run in promising:
        for kind in kinds:
            _draw_calibration(next(places), run, kind, (least, longest), theme)
    return figure


def _draw_calibration(axes: Axes, run: Run, kind: str, ends: tuple[float, float], theme: Theme) -> None:
    least, longest = ends
    points = np.array(list(pairs(run, kind)) or np.empty((0, 2)), np.float64).reshape(-1, 2)
    is_late = points[:, 1] > points[:, 0] + LATE / 1000
    shown = np.maximum(points, least)
    for late, colour, label in (
        (False, theme.series[0], "in time"),
        (True, theme.accent[0], "later than 60 s after"),
    ):
        some = shown[is_late == late]
        axes.scatter(
            some[:, 0], some[:, 1], s=9, color=colour, alpha=max(0.3, min(0.8, 300 / (len(points) + 1))),
            linewidths=0, rasterized=len(points) > 400, label=f"{label}: {len(some):,}",
        )  # fmt: skip
    themes.log_seconds(axes, "x", least=least, longest=longest)
    themes.log_seconds(axes, "y", least=least, longest=longest)
    top = themes.highest(longest)
    axes.plot([least, top], [least, top], color=theme.ink, linewidth=1)
    promise = run.measures.promise
    what, rate, error = (
        ("promised", promise.late_rate, promise.no_later_than_mae)
        if kind == "no_later_than"
        else ("expected", promise.expected_late_rate, promise.expected_mae)
    )
    axes.set_title(f"{run.policy}, {what}: {rate:.1%} late, off by {themes.words(error)}")
    axes.set_xlabel(f"{what} wait")
    axes.set_ylabel("actual wait")
    legend = axes.legend(loc="upper left", markerscale=2.2)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)


def _describe_promises(runs: Sequence[Run]) -> str:
    parts = []
    for run in runs:
        promise = run.measures.promise
        if promise.started:
            error = themes.words(promise.no_later_than_mae)
            parts.append(
                f"{run.policy}: of {promise.started:,} jobs that had to wait, {promise.late_rate:.1%} "
                f"started more than 60 s after the promised start, which was off by {error} in the mean"
            )
            if promise.expected:
                parts[-1] += f"; the expected start was off by {themes.words(promise.expected_mae)}"
    return f"Actual against promised and expected waits. {'; '.join(parts)}."


# Runs side by side.


def _draw_bars(runs: Sequence[Run], theme: Theme) -> Figure:
    wanted = [f for f in report.shown(runs) if _is_bar(f)]
    figure, panels = _figure((len(wanted) + 1) // 2, 2, height=0.75 + 0.3 * len(runs))
    for axes, shown in zip(panels, wanted, strict=False):
        values = [shown.of(run) for run in runs]
        marked = report.best(shown, runs)
        widest = max((value or 0 for value in values), default=0) or 1
        for i, (run, value) in enumerate(zip(runs, values, strict=True)):
            axes.barh(i, value or 0, color=_color(i, theme), height=0.62)
            text = f"{_short(shown, run)}{f' {report.BEST}' if i in marked else ''}"
            weight = "bold" if i in marked else "normal"
            axes.text((value or 0) + widest * 0.02, i, text, va="center", fontsize=9, fontweight=weight)
        axes.set_yticks(range(len(runs)), [run.policy for run in runs])
        axes.set_ylim(len(runs) - 0.45, -0.55)
        axes.set_xlim(0, widest * 1.32)
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        better = "less is better" if shown.better < 0 else "more is better"
        axes.set_title(f"{shown.group}: {shown.name}  ({better})", fontsize=10)
    for axes in panels[len(wanted) :]:
        axes.set_axis_off()
    _draw_legend(figure, runs, theme)
    return figure


def _draw_legend(figure: Figure, runs: Sequence[Run], theme: Theme) -> None:
    """Which policy has which colour, the same as among the waits."""
    from matplotlib.patches import Patch

    marks = [Patch(color=_color(i, theme), label=run.policy) for i, run in enumerate(runs)]
    figure.legend(handles=marks, loc="outside lower center", ncols=4, title=f"{report.BEST} best of the runs")


def _color(i: int, theme: Theme) -> str:
    """The colour of the i-th run, in every picture."""
    return theme.series[i % len(theme.series)]


def _short(figure: report.Figure, run: Run) -> str:
    value = figure.of(run)
    if value is not None and figure.write is report.seconds:
        return themes.words(value)
    return figure.cell(run)


def _describe_bars(runs: Sequence[Run]) -> str:
    parts = []
    for figure in report.shown(runs):
        if _is_bar(figure):
            figures = ", ".join(f"{run.policy} {_short(figure, run)}" for run in runs)
            parts.append(f"{figure.group} {figure.name}: {figures}")
    return f"Policies side by side. {'; '.join(parts)}."


def _figure(
    rows: int, columns: int, *, height: float, sharex: bool = False, across: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure of panels, row by row; ``height`` is in inches."""
    from matplotlib.figure import Figure

    if across and columns == 1:  # square panels beside each other, two in a row
        columns = min(2, rows)
        rows = -(-rows // columns)
    figure = Figure(figsize=(_WIDTH, height * rows + 0.3), layout="constrained")
    panels: Any = figure.subplots(rows, columns, squeeze=False, sharex=sharex)
    return figure, list(panels.flat)


SCHEDULE = Picture(
    "gantt",
    "The schedule",
    "Each box is a job: as high as what it holds, as wide as the time it ran. Records do not say which "
    "processors a job had; here it lies on the lowest free ones.",
    _describe_schedule,
    _draw_schedule,
)
USE = Picture(
    "utilisation",
    "Use of the cluster",
    "In use, and on top of it what the waiting jobs ask for. Below 100%, what waits lies where the cluster "
    "could not or did not serve it.",
    _describe_use,
    _draw_use,
    has_many_marks=True,
)
WAITS = Picture(
    "waits",
    "Waits",
    "The higher a curve, the more jobs had started by then; where it reaches 100% the last one had.",
    _describe_waits,
    _draw_waits,
)
PROMISES = Picture(
    "promises",
    "Promised and actual starts",
    "A dot is a job that had to wait, with the wait that it was promised first and its real wait. On the "
    "line: as told; below it: sooner; orange: more than 60 s later.",
    _describe_promises,
    _draw_promises,
    has_many_marks=True,
)
COMPARISON = Picture(
    "comparison",
    "Policies side by side",
    "The best of each is starred; a policy has one colour.",
    _describe_bars,
    _draw_bars,
    least=2,
)

PICTURES = (COMPARISON, SCHEDULE, USE, WAITS, PROMISES)
