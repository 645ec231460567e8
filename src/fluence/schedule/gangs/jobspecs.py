"""Jobspecs: what the annotation `jobspec` requests for a gang, or why it is refused.

`annotations` calls it for duration, queue and constraints, and `gang.build` to check that it describes the
pods. A jobspec is either used for placement or refused, never silently ignored:

    resources    one slot on top, with a count: a slot is a pod, so the count is the gang's size. In the slot:
                 cores, memory with a unit, and devices that the pods request, side by side, at most as
                 much as each pod requests
    attributes   system.duration, queue and constraints hold for the gang; cwd, environment, shell and user
                 options say nothing of where it runs
    tasks        not read: the pods' containers say what runs

These are refused, with their place in the jobspec and the cure: levels above or inside the slot (node, rack,
socket), since the scheduler does not place by counts per node; exclusive resources; ranges; several slots;
resources that the pods do not request, or request less of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.constraint import Constraint
from fluence.model.jobspec import Jobspec, JobspecResource
from fluence.model.pod import Pod, pod_requests
from fluence.model.reason import Code, Reason

MAX_QUEUE_BYTES = 253
MAX_JOBSPEC_BYTES = 64 * 1024
"""The longest jobspec that is read. The API server accepts 256 KiB of annotations in total."""
MAX_LIMIT = 100 * 365 * 86_400_000
"""The longest time limit, in ms: 100 years."""

_LEVELS = frozenset(("cluster", "zone", "block", "subnet", "rack", "blade", "node", "numanode", "socket"))
_UNITS: dict[str, int] = {
    **{f"{letter}{end}": 1000**power for power, letter in enumerate("kMGT", 1) for end in ("", "B")},
    **{f"{letter}i{end}": 1024**power for power, letter in enumerate("KMGT", 1) for end in ("", "B")},
    "B": 1,
    "K": 1000,
    "KB": 1000,
}
_ON_EVERY_NODE = frozenset(("cpu", "memory", "ephemeral-storage"))
_MOST = 1 << 60  # more than any node has, and small enough not to overflow when nodes are added up


@dataclass(frozen=True, slots=True)
class JobspecRequest:
    """What a jobspec requests for a gang."""

    jobspec: Jobspec
    slots: int
    per_slot: Mapping[str, int] = field(default_factory=dict)  # `cpu` in milli, bytes, or a device type
    limit: int | None = None  # ms
    queue: str = ""
    constraint: Constraint | None = None


class _Refused(Exception):
    """A jobspec is refused. It is caught in this module."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.code)
        self.reason = reason


@lru_cache(maxsize=256)
def read_jobspec(text: str) -> JobspecRequest | Reason:
    """Read the text of the annotation. The result is cached, because every pod of a gang has the same
    text."""
    try:
        jobspec = Jobspec.parse(text, source=names.JOBSPEC)
        return _request(jobspec)
    except InvalidInput as error:
        return Reason.of(Code.INVALID_ANNOTATION, error=str(error))
    except _Refused as refused:
        return refused.reason


def mismatch(request: JobspecRequest, pods: Sequence[Pod], *, minimum: int, size: int) -> Reason | None:
    """Why the slots do not describe these pods. A slot must not ask for more than its pod requests, since the
    kubelet only gives the pod what it requests."""
    if request.slots not in (minimum, size):
        return Reason.of(
            Code.JOBSPEC_SLOTS, key=names.JOBSPEC, slots=request.slots, pods=size, minimum=minimum
        )
    try:
        requested = [pod_requests(pod) for pod in pods]
    except InvalidInput:
        return None  # the pod itself will be refused
    for type_, amount in request.per_slot.items():
        resource = _resource(type_, requested)
        if resource is None:
            return Reason.of(Code.JOBSPEC_RESOURCE, key=names.JOBSPEC, type=type_)
        least = min(each.get(resource, 0) for each in requested)
        if least < amount:
            return Reason.of(
                Code.JOBSPEC_MORE, key=names.JOBSPEC, resource=resource, asked=amount, requested=least
            )
    return None


def _resource(type_: str, requested: Iterable[Mapping[str, int]]) -> str | None:
    """The Kubernetes name of a type in a jobspec: `gpu` is the one `…/gpu` that the pods request."""
    if type_ in _ON_EVERY_NODE:
        return type_
    known = {name for each in requested for name in each if name != "pods"}
    found = {name for name in known if type_ in (name, name.rpartition("/")[2])}
    return found.pop() if len(found) == 1 else None


# -- reading -------------------------------------------------------------------------------------------------


def _request(jobspec: Jobspec) -> JobspecRequest:
    slot = _slot(jobspec.resources)
    attributes = jobspec.attributes
    if "dependencies" in attributes.other:
        part = "attributes.system.dependencies"
        raise _Refused(Reason.of(Code.JOBSPEC_DEPENDENCIES, key=names.JOBSPEC, part=part))
    size = len((attributes.queue or "").encode())
    if size > MAX_QUEUE_BYTES:
        part = f"{names.JOBSPEC}: attributes.system.queue"
        raise _Refused(Reason.of(Code.ANNOTATION_TOO_LONG, key=part, size=size, most=MAX_QUEUE_BYTES))
    limit = None
    if attributes.duration:
        if attributes.duration * 1000 > MAX_LIMIT:
            part, value = "attributes.system.duration", f"{attributes.duration:g}"
            raise _Refused(Reason.of(Code.JOBSPEC_TOO_LONG, key=names.JOBSPEC, part=part, value=value))
        limit = math.ceil(attributes.duration * 1000)
    return JobspecRequest(
        jobspec=jobspec,
        slots=slot.count.min,
        per_slot=_contents(slot.with_),
        limit=limit,
        queue=attributes.queue or "",
        constraint=attributes.constraints,
    )


def _slot(resources: tuple[JobspecResource, ...]) -> JobspecResource:
    """The only slot at the top of a jobspec."""
    for i, each in enumerate(resources):
        if not each.is_slot:
            part = f"resources[{i}]"
            if _holds_slot(each):
                raise _Refused(Reason.of(Code.JOBSPEC_LEVEL, key=names.JOBSPEC, part=part, type=each.type))
            raise _Refused(Reason.of(Code.JOBSPEC_NO_SLOT, key=names.JOBSPEC, part=part, type=each.type))
    if len(resources) != 1:
        slots = len(resources)
        raise _Refused(
            Reason.of(Code.JOBSPEC_SEVERAL_SLOTS, key=names.JOBSPEC, part="resources", slots=slots)
        )
    _check(resources[0], "resources[0]")
    return resources[0]


def _contents(resources: tuple[JobspecResource, ...]) -> dict[str, int]:
    """The contents of one slot, in Kubernetes' units."""
    found: dict[str, int] = {}
    for i, each in enumerate(resources):
        part = f"resources[0].with[{i}]"
        if each.is_slot:
            raise _Refused(Reason.of(Code.JOBSPEC_SEVERAL_SLOTS, key=names.JOBSPEC, part=part, slots=2))
        if each.type in _LEVELS:
            raise _Refused(Reason.of(Code.JOBSPEC_LEVEL, key=names.JOBSPEC, part=part, type=each.type))
        if each.with_:
            raise _Refused(
                Reason.of(Code.JOBSPEC_NESTED, key=names.JOBSPEC, part=f"{part}.with", type=each.type)
            )
        _check(each, part)
        type_ = "cpu" if each.type == "core" else each.type
        amount = each.count.min * _scale(each, part)
        found[type_] = found.get(type_, 0) + amount
        if found[type_] > _MOST:
            raise _Refused(
                Reason.of(Code.JOBSPEC_TOO_LARGE, key=names.JOBSPEC, part=f"{part}.count", type=each.type)
            )
    return found


def _scale(resource: JobspecResource, part: str) -> int:
    """How much one unit of a resource is in Kubernetes' units."""
    if resource.type in ("memory", "ephemeral-storage") or resource.type.startswith("hugepages-"):
        scale = _UNITS.get(resource.unit or "")
        if scale is None:
            unit = (resource.unit or "")[:40]
            raise _Refused(
                Reason.of(
                    Code.JOBSPEC_UNIT,
                    key=names.JOBSPEC,
                    part=f"{part}.unit",
                    type=resource.type,
                    unit=unit,
                )
            )
        return scale
    if resource.unit:
        raise _Refused(
            Reason.of(Code.JOBSPEC_NO_UNIT, key=names.JOBSPEC, part=f"{part}.unit", type=resource.type)
        )
    return 1000 if resource.type in ("core", "cpu") else 1


def _check(resource: JobspecResource, part: str) -> None:
    if not resource.count.is_fixed:
        raise _Refused(Reason.of(Code.JOBSPEC_RANGE, key=names.JOBSPEC, part=f"{part}.count"))
    if resource.exclusive:
        raise _Refused(Reason.of(Code.JOBSPEC_EXCLUSIVE, key=names.JOBSPEC, part=f"{part}.exclusive"))


def _holds_slot(resource: JobspecResource) -> bool:
    return any(each.is_slot or _holds_slot(each) for each in resource.with_)
