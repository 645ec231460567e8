"""Request: a jobspec compiled for one graph, and the operations of the matcher with their windows and
results.

`Extensions` lists the features beyond Fluxion. All are off by default; then the results are those of Fluxion.

quantities
    Types whose vertices are pools that can be taken in part: 500 of a memory of 4000. Fluxion gives a vertex
    completely or not at all. Several jobs can share a pool.
constrained
    The types that a jobspec's constraints apply to. In Fluxion: nodes and storage nodes.
siblings
    Several requests for one type at the top of a jobspec, as for the pods of a mixed gang. They are placed
    one after the other, all or none, and may share vertices that none of them needs exclusively.
shared
    Record resources that a job requests as shared (a quantum computer in addition to its own cores). Fluxion
    matches them, but drops them from R, and then other jobs can get them exclusively.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from fluence.errors import InvalidJobspec
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.model.constraint import Constraint
from fluence.model.jobspec import Count, Jobspec, JobspecResource


class Operation(Enum):
    """What to do with a request; the values are Fluxion's names."""

    ALLOCATE = "allocate"
    ALLOCATE_OR_RESERVE = "allocate_orelse_reserve"
    ALLOCATE_OR_JUDGE = "allocate_with_satisfiability"
    JUDGE = "satisfiability"
    TRY = "without_allocating"
    TRY_FUTURE = "without_allocating_future"


@dataclass(frozen=True, slots=True)
class Placed:
    """The request fits on these vertices, from ``at`` until ``end``."""

    job: int
    at: int
    end: int
    reserved: bool  # for later; False: it starts now
    selection: Selection
    queue: str | None = None

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Wait:
    """The request does not fit now: the resources are in use or down."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Never:
    """The request does not fit even on the empty graph."""

    reason: str

    def __bool__(self) -> bool:
        return False


Outcome = Placed | Wait | Never


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a job would run, and what counts as an obstacle."""

    start: int
    end: int
    allocate: bool = True  # it runs now: a vertex of an overrunning job is not free
    empty: bool = False  # ignore all allocations
    healthy: bool = False  # ignore vertices that are down


EMPTY = Window(0, 1, allocate=False, empty=True, healthy=True)  # could it ever fit?
# The same, but with the ledger, for a search that must see its own earlier choices.
FAR = Window(2**61, 2**61 + 1, allocate=False, healthy=True)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: a selection if it matched, and the last obstacle on the way.

    A match can have an empty selection: the chosen vertices are below a vertex that the request does not
    name, or nothing in the request is exclusive. Fluxion then fails with the errno that was set last.
    """

    selection: Selection | None
    obstacle: int = 0  # EBUSY, EINVAL or 0
    conflict: str | None = None


class TooFar(Exception):
    """A walk has visited more vertices than its limit."""


FLUXION_CONSTRAINED = frozenset(("node", "storage_node"))


@dataclass(frozen=True, slots=True)
class Extensions:
    """The extensions that are on."""

    quantities: frozenset[str] = frozenset()
    constrained: frozenset[str] = FLUXION_CONSTRAINED
    siblings: bool = False
    shared: bool = False

    def __bool__(self) -> bool:
        return self != NONE


NONE = Extensions()


SLOTS = ("slot", "xor_slot")


@dataclass(frozen=True, slots=True, eq=False)
class Need:
    """One resource of a request, with what it needs below."""

    type: int
    name: str
    count: Count
    exclusive: bool | None
    label: str
    below: tuple[Need, ...]
    is_slot: bool
    most: int  # the largest possible count
    slot: Need | None  # the slot directly below, if any
    inside: dict[int, int]  # per type, the minimum below one such vertex, or in one slot


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """The compiled request of a job."""

    needs: tuple[Need, ...]
    constraint: Constraint | None
    duration: float
    exclusive_types: frozenset[int]  # with `exclusive: true`: everything below them belongs to the job
    minimum: dict[int, int] = field(default_factory=dict)  # per type, over the whole request
    queue: str | None = None
    shape: tuple[object, ...] = ()  # requests of equal shape get equal results on equal graphs
    is_fixed: bool = False  # no count is a range

    @property
    def is_headless(self) -> bool:
        """Whether its slots may be anywhere, because it names no vertex above them."""
        return any(need.is_slot for need in self.needs)

    @property
    def weight(self) -> int:
        """The approximate minimum number of vertices of the request."""
        return sum(self.minimum.values())


def compile_jobspec(jobspec: Jobspec, graph: ResourceGraph, *, flexible: bool = False) -> Request:
    """The request of a jobspec; the graph must have every type.

    ``flexible``: sibling slots are alternatives, and the smallest one decides the minimum.
    """
    if not jobspec.resources:
        raise InvalidJobspec("must name at least one resource", where="resources")
    exclusive: set[int] = set()
    needs = tuple(
        _need(resource, graph, exclusive, f"resources[{i}]", flexible=flexible)
        for i, resource in enumerate(jobspec.resources)
    )
    attributes = jobspec.attributes
    return Request(
        needs=needs,
        constraint=attributes.constraints,
        duration=attributes.duration or 0,
        exclusive_types=frozenset(exclusive),
        minimum=_minimum(needs, flexible=flexible),
        shape=(_shape(needs), attributes.constraints),
        is_fixed=_is_fixed(needs),
        queue=attributes.queue,
    )


def _need(
    resource: JobspecResource, graph: ResourceGraph, exclusive: set[int], where: str, *, flexible: bool
) -> Need:
    code = graph.types.find(resource.type)
    if code is None:
        kinds = sorted(graph.types.words[c] for c in set(graph.type.tolist()))
        raise InvalidJobspec(
            f'Value of "type" must be a resource type known to fluxion: the graph has no {resource.type!r} '
            f"(it has {', '.join(kinds)})",
            where=f"{where}.type",
        )
    if resource.exclusive:
        exclusive.add(code)
    below = tuple(
        _need(child, graph, exclusive, f"{where}.with[{i}]", flexible=flexible)
        for i, child in enumerate(resource.with_)
    )
    slot = None
    for child in below:
        if child.is_slot:
            slot = child
    return Need(
        type=code,
        name=resource.type,
        count=resource.count,
        exclusive=resource.exclusive,
        label=resource.label or "",
        below=below,
        is_slot=resource.type == "slot",
        most=resource.count.effective(resource.count.max),
        slot=slot,
        inside=_minimum(below, flexible=flexible),
    )


def _minimum(needs: Sequence[Need], *, flexible: bool) -> dict[int, int]:
    """The minimum of each type for a list of needs.

    If sibling slots are alternatives, Fluxion takes the minimum over them, and counts 0 for a type that the
    last of them does not have. The first need in the list decides the rest.
    """
    total: dict[int, int] = {}
    for need in needs:
        total[need.type] = total.get(need.type, 0) + need.count.min
        own = {type_: need.count.min * amount for type_, amount in need.inside.items()}
        if flexible and need.name in SLOTS:
            for type_, amount in own.items():
                total[type_] = min(total.get(type_, amount), amount)
            total.update(dict.fromkeys(total.keys() - own.keys(), 0))
        else:
            for type_, amount in own.items():
                total[type_] = total.get(type_, 0) + amount
    return total


def _shape(needs: Sequence[Need]) -> tuple[object, ...]:
    return tuple((n.type, n.count, n.exclusive, n.label, _shape(n.below)) for n in needs)


def _is_fixed(needs: Sequence[Need]) -> bool:
    return all(need.count.min == need.count.max and _is_fixed(need.below) for need in needs)
