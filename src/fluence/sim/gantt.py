"""The schedule as a chart of processors over time: jobs that started in order, were backfilled or preempted.

A record has the number of units of a job, not which ones. The chart gives each job the lowest free units at
its start, next to each other if possible, as a person would draw it. Large schedules become an image with a
pixel
for each row, small ones boxes with names.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fluence.sim import theme as themes
from fluence.sim.measure import Record, Run
from fluence.sim.theme import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_ROWS = 480
_COLUMNS = 1600
_LINE = 0.04  # the height of a name, as a fraction of the chart
_MAX_BOXES = 120  # jobs that can be drawn as boxes, with their names where they fit


@dataclass(frozen=True, slots=True)
class Box:
    """A job on the chart: its rows, as ranges with the end left out, and its time in ms."""

    record: Record
    rows: tuple[tuple[int, int], ...]
    start: int
    end: int


def rows_of(run: Run) -> int:
    """The number of rows of the chart: one per unit, unless there are too many."""
    return max(1, min(run.capacity, _MAX_ROWS))


def boxes(run: Run) -> list[Box]:
    """The place of each started job on the chart, by start time."""
    rows = rows_of(run)
    per_row = run.capacity / rows if run.capacity else 1
    is_free = np.ones(rows, np.bool_)
    running: list[tuple[int, int, npt.NDArray[np.int64]]] = []
    placed: list[Box] = []
    begun = sorted((r.start, i) for i, r in enumerate(run.records) if r.start is not None)
    for start, i in begun:
        while running and running[0][0] <= start:
            is_free[heapq.heappop(running)[2]] = True
        record = run.records[i]
        end = run.last if record.end is None else record.end
        taken = _take(is_free, max(1, round(record.size / per_row)))
        is_free[taken] = False
        heapq.heappush(running, (end, i, taken))
        placed.append(Box(record, _ranges(taken), start, end))
    return placed


def draw(axes: Axes, run: Run, theme: Theme, *, last: int) -> None:
    """The chart of a run, on an axis that ends at *last* ms."""
    placed = boxes(run)
    rows = rows_of(run)
    unit, name = themes.span(last)
    if len(placed) > _MAX_BOXES:
        axes.imshow(
            _image(placed, rows, run.last, theme),
            extent=(0, run.last / unit, 0, rows),
            aspect="auto",
            origin="lower",
            interpolation="nearest",
        )
    else:
        _draw_boxes(axes, placed, rows, unit, last, theme)
    axes.set_xlim(0, max(last / unit, 1e-9))
    axes.set_ylim(0, rows)
    axes.set_xlabel(f"{name} since the first arrival")
    axes.set_ylabel(f"{run.unit}s in use" if rows == run.capacity else f"{run.unit} in use, % of all")
    if rows != run.capacity:
        axes.set_yticks([rows * part / 4 for part in range(5)], ["0", "25", "50", "75", "100"])
    axes.grid(visible=False)
    axes.set_title(_title(run, placed))
    _legend(axes, placed, theme)


def describe(run: Run) -> str:
    """A description of the chart, for readers who cannot see it."""
    measures = run.measures
    return (
        f"Gantt chart of the schedule under {run.policy}: {measures.started:,} jobs on {run.capacity:,} "
        f"{run.unit}s over {themes.words(measures.makespan)}, {measures.backfilled:,} of them backfilled; "
        f"{measures.utilisation:.0%} of the area is in use."
    )


def _title(run: Run, placed: list[Box]) -> str:
    backfilled = sum(box.record.backfilled for box in placed)
    preempted = sum(box.record.preempted for box in placed)
    part = f", {backfilled:,} backfilled" if backfilled else ""
    part += f", {preempted:,} preempted" if preempted else ""
    return f"{run.policy}: {len(placed):,} jobs{part}"


def _take(is_free: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.int64]:
    """The lowest free rows: the tightest gap that holds them all, else from several."""
    free = np.flatnonzero(is_free)
    if len(free) <= count:
        return free  # rounding made the jobs together taller than the chart
    cuts = np.flatnonzero(np.diff(free) > 1) + 1
    edges = [0, *cuts.tolist(), len(free)]
    gaps = [(high - low, low) for low, high in pairwise(edges) if high - low >= count]
    low = min(gaps)[1] if gaps else 0
    return free[low : low + count]


def _ranges(rows: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    if not len(rows):
        return ()
    cuts = np.flatnonzero(np.diff(rows) > 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(rows, cuts))


def _colour(box: Box, number: int, theme: Theme) -> str:
    if box.record.preempted:
        return theme.quiet
    colours = theme.accent if box.record.backfilled else theme.base
    return colours[number % len(colours)]


def _image(placed: list[Box], rows: int, last: int, theme: Theme) -> npt.NDArray[np.uint8]:
    """A pixel for each row and each moment."""
    names = [theme.paper, *theme.base, *theme.accent, theme.quiet]
    codes = {name: code for code, name in enumerate(names)}
    pixels = np.zeros((rows, _COLUMNS), np.uint8)
    scale = _COLUMNS / max(last, 1)
    for number, box in enumerate(placed):
        left = int(box.start * scale)
        right = max(left + 1, int(box.end * scale))  # what ran at all is seen
        for low, high in box.rows:
            pixels[low:high, left:right] = codes[_colour(box, number, theme)]
    palette = np.array([[int(name[i : i + 2], 16) for i in (1, 3, 5)] for name in names], np.uint8)
    return palette[pixels]


def _draw_boxes(axes: Axes, placed: list[Box], rows: int, unit: float, last: int, theme: Theme) -> None:
    from matplotlib.patches import Rectangle

    for number, box in enumerate(placed):
        left, width = box.start / unit, (box.end - box.start) / unit
        for low, high in box.rows:
            axes.add_patch(
                Rectangle(
                    (left, low), width, high - low, facecolor=_colour(box, number, theme),
                    edgecolor=theme.paper, linewidth=0.8,
                )
            )  # fmt: skip
        widest = max(box.rows, key=lambda ends: ends[1] - ends[0], default=None)
        if widest is None or widest[1] - widest[0] < rows * _LINE:
            continue
        if (box.end - box.start) * 90 > last * len(box.record.name):
            axes.text(
                left + width / 2, sum(widest) / 2, box.record.name, ha="center", va="center", fontsize=7.5,
                color=theme.ink, clip_on=True,
            )  # fmt: skip


def _legend(axes: Axes, placed: list[Box], theme: Theme) -> None:
    from matplotlib.patches import Patch

    kinds = (
        (theme.accent[0], "backfilled", any(box.record.backfilled for box in placed)),
        (theme.quiet, "preempted: to run again", any(box.record.preempted for box in placed)),
    )
    others = [Patch(color=colour, label=label) for colour, label, is_there in kinds if is_there]
    if not others:
        return
    axes.legend(
        handles=[Patch(color=theme.base[1], label="started in order"), *others],
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
        borderaxespad=0.2,
    )
