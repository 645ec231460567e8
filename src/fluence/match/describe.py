"""Descriptions: of a placement, per node or in the formats of Fluxion; of an explanation, level by level.

`fluence match` and `fluence resource-query` print them, and programs get them as `fluence.shares` and
`fluence.render`.

`explain` makes it; `fluence match --explain`, the queue and the scheduler show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.graph.writers import Grant, write
from fluence.match.request import Placed
from fluence.model.jobspec import MAX_COUNT, Count

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one node that a job has. A resource outside of nodes is a separate share, without a
    rank."""

    name: str
    rank: int | None
    is_node: bool
    is_whole: bool  # no other job can use the node
    amounts: dict[str, int]  # by type, of exclusive resources


def shares(graph: ResourceGraph, found: Placed | Selection) -> list[Share]:
    """The shares of a job: one per node in the order of the graph, then the resources outside of nodes.

    Amounts count the lowest vertices: the cores of a socket, not the socket.
    """
    selection = found.selection if isinstance(found, Placed) else found
    node = graph.types.code("node")
    rows = selection.vertices.tolist()
    parent = dict(zip(rows, selection.parents.tolist(), strict=True))
    holds = {above for above in parent.values() if above >= 0}
    own = dict(zip(rows, selection.exclusive.tolist(), strict=True))
    amounts: dict[int, dict[str, int]] = {}  # per node or outside vertex
    home: dict[int, int] = {}
    for v, needs in reversed(list(zip(rows, selection.needs.tolist(), strict=True))):  # parents first
        above = parent[v]
        is_node = int(graph.type[v]) == node
        home[v] = v if is_node else home.get(above, -1)
        if is_node:
            amounts[v] = {}
        if v in holds or is_node or not own[v]:
            continue
        place = home[v] if home[v] >= 0 else v
        type_ = graph.type_name(v)
        of = amounts.setdefault(place, {})
        of[type_] = of.get(type_, 0) + needs
    found_shares = [_share(graph, v, own[v], amounts[v]) for v in sorted(amounts)]
    return sorted(found_shares, key=lambda share: not share.is_node)


def _share(graph: ResourceGraph, v: int, whole: bool, amounts: dict[str, int]) -> Share:
    rank = int(graph.rank[v])
    is_node = graph.type_name(v) == "node"
    return Share(graph.name[v], rank if rank >= 0 else None, is_node, whole, dict(sorted(amounts.items())))


def render(matcher: Matcher, placed: Placed, format: str = "rv1") -> str:  # noqa: A002 - its usual name
    """The text of a placement: rv1, rv1_nosched, rlite, jgf, simple and the other formats of Fluxion."""
    return write(grant(matcher, placed), format)


def grant(matcher: Matcher, placed: Placed) -> Grant:
    """A placement with everything that a writer needs."""
    return Grant(matcher.graph, placed.selection, placed.at, placed.end, matcher.subsystems[0], placed.queue)


Verdict = Literal["fits", "wait", "never"]
# By code, from DOWN on.
CAUSES = ("down", "constraint", "busy", "too_small", "shared", "unreachable", "contradiction")
WORDS = {
    "down": "down",
    "constraint": "outside the constraint",
    "busy": "busy",
    "too_small": "too small",
    "shared": "shared with other jobs",
    "unreachable": "out of reach",
    "contradiction": "asked for in a way that nothing can meet",
}
_NAMED_JOBS = 5


@dataclass(frozen=True, slots=True)
class Level:
    """One resource of the request: the candidate vertices, and why they fit or do not fit.

    ``considered`` is the sum of ``fit`` and the seven causes. For a slot, the vertices are the places where a
    slot can be built.
    """

    path: str  # in the request, such as "rack > node > slot > core"
    type: str
    wanted: str  # the count, per resource of the level above
    considered: int
    fit: int
    down: int = 0  # it is down, or a vertex above it, or too much below it
    constraint: int = 0
    busy: int = 0  # jobs hold it, or too much of what is below it
    too_small: int = 0  # even in an empty graph it is too small, or has too little below it
    shared: int = 0  # other jobs use it, and the request wants it exclusively
    unreachable: int = 0  # not where the request expects it
    contradiction: int = 0  # the request contradicts itself
    units: int = 0  # the total of the vertices that fit: free sizes, or slots
    lacks: tuple[tuple[str, int], ...] = ()  # of vertices that are too small: how many lack which type
    is_short: bool = False  # top levels: less than the request needs
    hint: str | None = None  # a change of the request that would help

    @property
    def causes(self) -> dict[str, int]:
        """The causes that apply to at least one vertex."""
        return {cause: count for cause in CAUSES if (count := getattr(self, cause))}

    def lasts(self, verdict: Verdict) -> bool:
        """Whether the causes explain the verdict: if a request never fits, only permanent causes do."""
        return verdict != "never" or any(cause not in ("down", "busy", "shared") for cause in self.causes)

    def line(self) -> str:
        """In one line, such as ``node: 3 of 40 fit (4 wanted): 31 lack gpu, 6 down``."""
        what = "places fit" if self.type == "slot" else "fit"
        units = f", {self.units} in all" if self.units != self.fit else ""
        text = f"{self.path}: {self.fit} of {self.considered} {what}{units} ({self.wanted} wanted)"
        causes = [f"{count} {WORDS[cause]}" for cause, count in self.causes.items() if cause != "too_small"]
        lacks = [f"{count} lack {what}" for what, count in self.lacks]
        small = self.too_small - sum(count for _, count in self.lacks)
        lacks += [f"{small} {WORDS['too_small']}"] if small else []
        return f"{text}: {', '.join(lacks + causes)}" if lacks or causes else text


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a request fits now, and if not, why, level by level."""

    levels: tuple[Level, ...]
    verdict: Verdict
    nearest: str  # the smallest statement of what is missing, or empty
    blocking: tuple[int, ...] = ()  # the jobs that hold what is missing
    earliest_end: int | None = None  # the first end of these jobs; None: no job blocks, or all overrun
    exact: bool = True  # False: the verdict comes from a search, and the levels are approximate

    @property
    def cause(self) -> str:
        """The cause, without the verdict and without a time; empty if there is no obstacle."""
        if self.verdict == "fits":
            return self.nearest
        lines = [level.line() for level in self.levels if level.is_short and level.lasts(self.verdict)]
        return "; ".join(lines) or self.nearest

    def summary(self) -> str:
        """One line for a person."""
        if self.verdict == "fits":
            return f"fits, but {self.cause}" if self.cause else "fits"
        return f"{self.verdict}: {self.cause}{self._until()}"

    def lines(self) -> list[str]:
        """The whole explanation for a person: the verdict, the levels, the hints."""
        lines = [f"{self.verdict}{': ' if self.nearest else ''}{self.nearest}"]
        if self.blocking:
            lines.append(f"held by {job_names(self.blocking)}{self._until()}")
        for level in self.levels:
            lines.append(f"  {level.line()}")
            if level.hint is not None:
                lines.append(f"    {level.hint}")
        if not self.exact:
            lines.append("  the levels are an approximation; the verdict is exact")
        return lines

    def to_value(self) -> dict[str, Any]:
        """For JSON."""
        value = asdict(self)
        value["levels"] = [
            {**level, "lacks": dict(level["lacks"]), "causes": own.causes}
            for level, own in zip(value["levels"], self.levels, strict=True)
        ]
        for level in value["levels"]:
            for cause in CAUSES:
                del level[cause]
        value["blocking"] = list(self.blocking)
        return value

    def _until(self) -> str:
        return f"; the first ends at {self.earliest_end}" if self.earliest_end is not None else ""


def count_text(count: Count) -> str:
    """A count as RFC 14 writes it in short: 4, 4+, 2-8, 2-16:2:*."""
    if count.is_fixed:
        return str(count.min)
    text = f"{count.min}+" if count.max == MAX_COUNT else f"{count.min}-{count.max}"
    if (count.operator, count.operand) == ("+", 1):
        return text
    return f"{text}:{count.operand}" + ("" if count.operator == "+" else f":{count.operator}")


def job_names(ids: Sequence[int]) -> str:
    named = ", ".join(str(job) for job in sorted(ids)[:_NAMED_JOBS])
    more = f" and {len(ids) - _NAMED_JOBS} more" if len(ids) > _NAMED_JOBS else ""
    return f"job{'' if len(ids) == 1 else 's'} {named}{more}"
