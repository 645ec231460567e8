"""The schedule as a chart of processors over time, and the style of all pictures: colours and axes of time.

A record has the number of units of a job, not which ones. The chart gives each job the lowest free units at
its start, next to each other if possible, as a person would draw it. Large schedules become an image with a
pixel
for each row, small ones boxes with names.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fluence.errors import FluenceError
from fluence.sim.measure import Record, Run
from fluence.units import round_duration

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_TICKS = (
    (1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (6 * 3600, "6 h"),
    (86_400, "1 d"), (5 * 86_400, "5 d"), (30 * 86_400, "30 d"), (365 * 86_400, "1 y"),
)  # fmt: skip
_SPANS = ((3 * 86_400, 86_400, "days"), (3 * 3600, 3600, "hours"), (180, 60, "minutes"), (0, 1, "seconds"))


class NoPictures(FluenceError):
    """Pictures need matplotlib, which is not installed: pip install 'fluence-scheduler[sim]'"""

    def __init__(self) -> None:
        super().__init__(self.__doc__)


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a picture."""

    paper: str
    ink: str
    faint: str
    """Lines that only guide the eye."""
    quiet: str
    """What is not the point."""
    base: tuple[str, str, str]
    """Neighbours take turns."""
    accent: tuple[str, str]
    """What to look at."""
    series: tuple[str, ...]
    """Runs side by side, after Okabe and Ito."""


LIGHT = Theme(
    paper="#ffffff",
    ink="#1f2933",
    faint="#dde3ea",
    quiet="#a9b4c2",
    base=("#7f9fc4", "#96b2d2", "#aec5df"),
    accent=("#d55e00", "#e8822f"),
    series=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#1f2933"),
)
DARK = Theme(
    paper="#14181d",
    ink="#e6ebf0",
    faint="#2c343d",
    quiet="#657281",
    base=("#41638c", "#4f739d", "#5e84af"),
    accent=("#ff9d4d", "#e2822f"),
    series=("#56b4e9", "#ff9d4d", "#2fc79a", "#e39ac4", "#e6c02e", "#8f9fff", "#e6ebf0"),
)
STROKES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))


@contextmanager
def styled(theme: Theme) -> Iterator[None]:
    """Draw in a theme; matplotlib is loaded here and not before."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise NoPictures from None
    style: Any = {
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "savefig.facecolor": theme.paper,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.titlecolor": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.edgecolor": theme.quiet,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": theme.faint,
        "grid.linewidth": 0.8,
        "font.family": ["DejaVu Sans"],  # the one that matplotlib brings: pictures are the same everywhere
        "font.size": 10,
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlepad": 9,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "figure.constrained_layout.h_pad": 0.09,
        "figure.constrained_layout.w_pad": 0.09,
        "svg.hashsalt": "fluence",  # the same picture has the same ids
        "text.parse_math": False,  # a name may have a dollar in it
        "path.simplify": True,
    }
    with mpl.rc_context(style):
        yield


def span(milliseconds: float) -> tuple[float, str]:
    """The unit to show a time of this length in: how many ms it has, and its name."""
    for least, unit, name in _SPANS:
        if milliseconds / 1000 >= least:
            return unit * 1000.0, name
    raise AssertionError("the last span begins at 0")


def floor(waits: Sequence[float]) -> tuple[float, str]:
    """The tick at which an axis of waits may begin: nearly all waits above 0 are larger."""
    some = sorted(wait for wait in waits if wait >= 1)
    low = some[len(some) // 50] if some else 1
    return max((tick for tick in _TICKS[:-3] if tick[0] <= low), default=_TICKS[0])


def highest(longest: float) -> float:
    """Where an axis of waits ends."""
    return max(longest * 1.3, 60)


def log_seconds(axes: Axes, which: str, *, least: float, longest: float) -> None:
    """An axis of waits, with ticks that people read."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    top = highest(longest)
    (axes.set_xlim if which == "x" else axes.set_ylim)(least, top)
    ticks = [(at, name) for at, name in _TICKS if least <= at <= top]
    axis.set_ticks([at for at, _ in ticks], [name for _, name in ticks])
    axis.set_ticks([], minor=True)


def words(seconds: float) -> str:
    """A time in two words at most, for a caption."""
    return round_duration(seconds) if math.isfinite(seconds) else "–"


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
    unit, name = span(last)
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
        f"{run.unit}s over {words(measures.makespan)}, {measures.backfilled:,} of them backfilled; "
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
