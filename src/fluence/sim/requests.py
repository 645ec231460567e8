"""The jobspecs that the simple requests of workloads stand for."""

from __future__ import annotations

from collections.abc import Sequence

from fluence.model.constraint import Constraint
from fluence.model.count import Count
from fluence.model.jobspec import Jobspec, JobspecAttributes, JobspecResource

CPU_PER_CORE = 1000  # a pool of cpu counts in thousandths of a core


def processors(count: int, unit: str) -> Jobspec:
    """So many processors, wherever they are: `slot[n] > core[1]`."""
    each = CPU_PER_CORE if unit == "cpu" else 1
    return _jobspec(_slot(count, (_resource(unit, each),)))


def nodes(count: int, *, cores: int = 0, gpus: int = 0, constraint: Constraint | None = None) -> Jobspec:
    """So many nodes with cores and gpus on each; without those, whole nodes."""
    parts = tuple(_resource(type_, n) for type_, n in (("core", cores), ("gpu", gpus)) if n)
    if not parts:
        return _jobspec(_slot(count, (_resource("node", 1),)), constraint)
    return _jobspec(_resource("node", count, (_slot(1, parts),)), constraint)


def pod(amounts: Sequence[tuple[str, int]], models: Sequence[str] = ()) -> Jobspec:
    """Parts of the pools of one node, whose GPUs are of one of some models."""
    parts = tuple(_resource(type_, amount) for type_, amount in amounts if amount)
    each = tuple(Constraint("properties", (model,)) for model in models)
    constraint = Constraint("or", children=each) if len(each) > 1 else each[0] if each else None
    return _jobspec(_resource("node", 1, (_slot(1, parts),)), constraint)


def _jobspec(top: JobspecResource, constraint: Constraint | None = None) -> Jobspec:
    return Jobspec((top,), attributes=JobspecAttributes(constraints=constraint))


def _slot(count: int, with_: tuple[JobspecResource, ...]) -> JobspecResource:
    return JobspecResource("slot", Count(count, count), label="default", with_=with_)


def _resource(type_: str, count: int, with_: tuple[JobspecResource, ...] = ()) -> JobspecResource:
    return JobspecResource(type_, Count(count, count), with_=with_)
