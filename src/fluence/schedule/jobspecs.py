"""A jobspec of the user's own, checked against what the pods request: it may ask for more, never for less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.jobspec import Jobspec, JobspecResource
from fluence.model.pod import Pod
from fluence.model.resources import pod_requests
from fluence.units import format_amount

_BYTES = {"b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def fault(jobspec: Jobspec | None, pods: Sequence[Pod], *, minimum: int) -> str:
    """Why this jobspec does not cover these pods, one slot each; "" if it does."""
    if jobspec is None or not pods:
        return ""
    slots = list(_slots(jobspec.resources, 1))
    count = sum(number for number, _ in slots)
    if not minimum <= count <= max(minimum, len(pods)):
        return (
            f"annotation {names.JOBSPEC} asks for {count} slots and the gang has {len(pods)} pods, of which "
            f"{minimum} start together: ask for one slot per pod"
        )
    for _, slot in slots:
        has = dict(_contents(slot.with_, 1))
        for pod in pods:
            try:
                wants = pod_requests(pod)
            except InvalidInput:
                return ""  # the pod itself will be refused
            for resource, amount in wants.items():
                type_ = _type(resource)
                if type_ in has and has[type_] < amount:
                    given, asked = format_amount(resource, has[type_]), format_amount(resource, amount)
                    return (
                        f"annotation {names.JOBSPEC} gives a slot {given} {resource} and pod {pod.key} "
                        f"requests {asked}: ask for as much"
                    )
    return ""


def _type(resource: str) -> str:
    if resource == "cpu":
        return "core"
    return resource.rpartition("/")[2]


def _slots(resources: tuple[JobspecResource, ...], times: int) -> Iterator[tuple[int, JobspecResource]]:
    for each in resources:
        number = times * max(1, each.count.min)
        if each.is_slot:
            yield number, each
        else:
            yield from _slots(each.with_, number)


def _contents(resources: tuple[JobspecResource, ...], times: int) -> Iterator[tuple[str, int]]:
    """What one slot holds at least, in Kubernetes' units; a size without a unit is not compared."""
    for each in resources:
        number = times * each.count.min
        if each.type == "core":
            yield "core", number * 1000
        elif each.type == "memory":
            unit = (each.unit or "").lower()
            if unit[:1] in _BYTES and unit:
                scale = _BYTES[unit[0]] if "i" not in unit else 1024 ** "bkmgt".index(unit[0])
                yield "memory", number * scale
        else:
            yield each.type, number
        yield from _contents(each.with_, number)
