"""The style of pictures: colours that colour-blind people can distinguish, light and dark, and axes of
time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluence.errors import FluenceError
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
