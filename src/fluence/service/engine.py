"""Engine: the interface between the service and a matcher: one graph, its jobs, and the operations on both.

`matcher_engine` uses Fluence's matcher, and `live_engine` what the scheduler of a running cluster would do.
Any other program that matches jobspecs can be used by implementing `Engine`. All methods are called by one
thread. A request that does not fit is a value (`Refusal`); an invalid request raises a `FluenceError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fluence.errors import FluenceError
from fluence.match.describe import Explanation
from fluence.match.request import Operation

NO_JOB = -1  # the id in an answer that allocates nothing


class ReadOnly(FluenceError):
    """The graph cannot be changed by this call."""


@dataclass(frozen=True, slots=True)
class ShareOf:
    """What a job has of one node, or of a resource outside of any node."""

    name: str
    node_id: str  # the name of the node in Kubernetes
    rank: int | None
    is_node: bool
    is_whole: bool
    amounts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Match:
    """The request fits: where, and when."""

    job: int
    at: int
    end: int
    reserved: bool
    allocation: str  # in the requested format
    shares: Sequence[ShareOf]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The request does not fit now (busy), or would not fit on the empty graph (impossible)."""

    verdict: Literal["busy", "impossible"]
    words: str


@dataclass(frozen=True, slots=True)
class PartReleased:
    """The result of a partial cancel."""

    paths: Sequence[str]
    whole_job: bool


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The result of a shrink."""

    vertices: int
    jobs: Sequence[int]  # jobs that lost something


@dataclass(frozen=True, slots=True)
class JobEntry:
    """A job in a list."""

    job: int
    name: str
    state: str
    at: int
    end: int
    size: int = 1
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The vertices that an expression selects."""

    text: str
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class TypeCount:
    """The number of vertices of a type, their total size, and how many are down."""

    type: str
    count: int
    size: int
    down: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """The contents of a graph, and the times of matches on it."""

    vertices: int
    edges: int
    jobs: int
    matches: int = 0
    failures: int = 0
    load_seconds: float = 0.0
    min_seconds: float = 0.0
    max_seconds: float = 0.0
    avg_seconds: float = 0.0
    types: Sequence[TypeCount] = field(default_factory=tuple)


class Engine(Protocol):
    """A graph that requests are placed on."""

    @property
    def policy(self) -> str:
        """The name of the policy that chooses among the vertices that fit."""

    @property
    def vertices(self) -> int:
        """How many vertices the graph has."""

    @property
    def read_only(self) -> bool:
        """Whether nothing can be allocated, so that a match only says what would happen."""

    def match(
        self,
        operation: Operation,
        jobspec: str,
        *,
        job: int,
        now: int,
        name: str = "",
        size: int = 1,
        format_: str = "",
        explain: bool = False,
    ) -> Match | Refusal:
        """Carry out one operation. ``format_`` is that of the allocation; empty leaves it out."""

    def explain(self, jobspec: str, *, now: int) -> Explanation:
        """Why a request fits or does not."""

    def cancel(self, job: int) -> None:
        """Free everything that a job holds or was promised. Raises `NotFound` if there is no such job."""

    def partial_cancel(self, job: int, text: str, reader: str) -> PartReleased:
        """Free the ranks or vertices that a text names."""

    def update(
        self, job: int, text: str, reader: str, *, at: int, duration: int, now: int, name: str, format_: str
    ) -> Match:
        """Re-create the allocation that a text describes."""

    def has_job(self, job: int) -> bool:
        """Whether a job with that id exists."""

    def job(self, job: int, format_: str) -> tuple[JobEntry, str, Sequence[ShareOf]]:
        """A job, its allocation in a format (empty: none), and its shares."""

    def jobs(self) -> Iterable[JobEntry]:
        """All jobs with an allocation or a reservation."""

    def find(self, criteria: str, *, now: int, format_: str) -> Found:
        """The vertices that an expression selects."""

    def grow(self, jgf: str) -> int:
        """Add the vertices of a JGF. Returns how many there are."""

    def shrink(self, paths: Sequence[str]) -> Shrunk:
        """Remove vertices and everything below them: all of them or none."""

    def set_status(self, path: str, *, up: bool) -> None:
        """Mark a vertex up or down."""

    def render(self, format_: str) -> str:
        """The whole graph in a format."""

    def statistics(self) -> Statistics:
        """The contents of the graph, and the times of matches."""

    def close(self) -> None:
        """Stop what the engine started, at the end of the service."""
