"""Device requests: what the pods of a gang ask for beside their nodes, from their resources and annotations.

A gang needs of each type what the pod that asks for most of it needs, and its pods share that; with the
annotation `devices: per-pod` each has its own. `require-<attribute>`, `min-` and `max-` of any pod, owner or
PodGroup must all hold. A pod that names a backend and asks for no device asks for one unit of that backend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluence import names
from fluence.model.device import DeviceRequest, DeviceTerm, requested_devices
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.model.resources import pod_requests

MAX_TERMS = 64
PER_POD = "per-pod"
SHARED = "shared"
_OPERATORS = ((names.REQUIRE, "="), (names.AT_LEAST, ">="), (names.AT_MOST, "<="))


def device_terms(objects: Iterable[Mapping[str, str]]) -> tuple[tuple[DeviceTerm, ...], list[Reason]]:
    """What devices must be, by the annotations of some objects, and what of it cannot be read."""
    found: dict[DeviceTerm, None] = {}
    faults: list[Reason] = []
    for each in objects:
        for key, text in each.items():
            for prefix, operator in _OPERATORS:
                if key.startswith(prefix):
                    value = text.strip()
                    if operator != "=" and not _is_number(value):
                        faults.append(Reason.of(Code.INVALID_DEVICES, key=key[:120], value=value[:60]))
                    elif value:
                        found[DeviceTerm(key.removeprefix(prefix)[:120], value[:1024], operator)] = None
    if len(found) > MAX_TERMS:
        many = Reason.of(Code.TOO_MANY_TERMS, given=len(found), most=MAX_TERMS)
        return (), [*faults, many]
    return tuple(sorted(found, key=str)), faults


def device_request(
    pods: Sequence[Pod], terms: tuple[DeviceTerm, ...], *, per_pod: bool, held: Mapping[str, int]
) -> DeviceRequest | None:
    """What some pods of a gang ask for; ``held``: what others of it have, which these share."""
    needs: dict[str, int] = {}
    for pod in pods:
        for type_, count in asked_by(pod).items():
            needs[type_] = needs.get(type_, 0) + count if per_pod else max(needs.get(type_, 0), count)
    if not per_pod:
        needs = {type_: count - held.get(type_, 0) for type_, count in needs.items()}
    wanted = tuple(sorted((type_, count) for type_, count in needs.items() if count > 0))
    pinned = not needs and not held and any(term.key == "backend" for term in terms)
    return DeviceRequest(wanted, terms, per_pod) if wanted or pinned else None


def asked_by(pod: Pod) -> dict[str, int]:
    """The devices that a pod asks for, by type."""
    return requested_devices(pod_requests(pod)) if _may_ask(pod) else {}


def _may_ask(pod: Pod) -> bool:
    """Almost no pod asks for a device: looked at before its quantities are parsed."""
    prefix = names.DEVICE_PREFIX
    for container in (*(pod.spec.containers or ()), *(pod.spec.init_containers or ())):
        asked = container.resources
        if any(name.startswith(prefix) for name in (*(asked.requests or ()), *(asked.limits or ()))):
            return True
    return False


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)  # NaN is none
    except ValueError:
        return False
