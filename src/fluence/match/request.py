"""A jobspec made ready for one graph: types as codes, counts at hand. Every search works on this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fluence.errors import InvalidJobspec
from fluence.graph.graph import ResourceGraph
from fluence.model.constraint import Constraint
from fluence.model.jobspec import Count, Jobspec, JobspecResource


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
    most: int  # the largest count that can be asked for
    slot: Need | None  # the slot right below, if any


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What a job asks of a graph."""

    needs: tuple[Need, ...]
    constraint: Constraint | None
    duration: float
    exclusive_types: frozenset[int]  # asked for with `exclusive: true`: all below them belongs to the job
    minimum: dict[int, int] = field(default_factory=dict)  # per type, over the whole request
    queue: str | None = None
    shape: tuple[object, ...] = ()  # requests of equal shape get equal answers from equal graphs
    is_fixed: bool = False  # no count is a range

    @property
    def is_headless(self) -> bool:
        """Whether its slots may lie anywhere, below no vertex that it names."""
        return any(need.is_slot for need in self.needs)

    @property
    def weight(self) -> int:
        """How many vertices the request takes at least, about."""
        return sum(self.minimum.values())


def compile_jobspec(jobspec: Jobspec, graph: ResourceGraph, *, flexible: bool = False) -> Request:
    """The request of a jobspec; every type must be one that the graph knows.

    ``flexible``: sibling slots are alternatives, of which the smallest decides what is needed at least.
    """
    exclusive: set[int] = set()
    needs = tuple(
        _need(resource, graph, exclusive, f"resources[{i}]") for i, resource in enumerate(jobspec.resources)
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


def _need(resource: JobspecResource, graph: ResourceGraph, exclusive: set[int], where: str) -> Need:
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
        _need(child, graph, exclusive, f"{where}.with[{i}]") for i, child in enumerate(resource.with_)
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
    )


def _minimum(needs: Sequence[Need], *, flexible: bool) -> dict[int, int]:
    """How much of each type a list of needs takes at least."""
    total: dict[int, int] = {}
    alternatives: list[dict[int, int]] = []
    for need in needs:
        below = _minimum(need.below, flexible=flexible)
        own = {type_: need.count.min * amount for type_, amount in below.items()}
        own[need.type] = own.get(need.type, 0) + need.count.min
        if flexible and need.name in ("slot", "xor_slot"):
            alternatives.append(own)
        else:
            for type_, amount in own.items():
                total[type_] = total.get(type_, 0) + amount
    for type_ in set().union(*alternatives) if alternatives else ():
        total[type_] = total.get(type_, 0) + min(own.get(type_, 0) for own in alternatives)
    return total


def _shape(needs: Sequence[Need]) -> tuple[object, ...]:
    return tuple((n.type, n.count, n.exclusive, n.label, _shape(n.below)) for n in needs)


def _is_fixed(needs: Sequence[Need]) -> bool:
    return all(need.count.min == need.count.max and _is_fixed(need.below) for need in needs)
