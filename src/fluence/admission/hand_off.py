"""Hand-off: passes the backend of a pod to the containers that requested it, as variables.

Extended resources need equal requests and limits, so a value on one side only is copied to the other.
"""

from __future__ import annotations

from typing import Any, Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.patch import Incoming, Operation
from fluence.admission.rule import FLUXION, PODS, AdmissionRule, Condition, Edit, Site, concerns_us

_SIDES: Final = (("limits", "requests"), ("requests", "limits"))
_IS_DEVICE: Final = f"r.startsWith({cel.quoted(names.DEVICE_PREFIX)})"
_ASKS: Final = cel.either(
    *(f"{cel.entries('resources', side, of='c')}.exists(r, {_IS_DEVICE})" for side, _ in _SIDES)
)

VARIABLES: Final = {"injected": f"{cel.entries('spec', 'variables', of='params')}.map(k, k).sort()"}


def hand_off_rules(site: Site) -> tuple[AdmissionRule, ...]:
    asks = Condition(cel.exists_container(_ASKS), lambda pod: any(_asks(c) for _, c in pod.containers()))
    entry = cel.variable_from_annotation("n", "params.?spec.?variables[?n].orValue('')")
    copy = Edit(cel.in_containers(_copies, where=_ASKS), _copy_resources)
    inject = Edit(cel.add_variables("variables.injected", entry, where=_ASKS), _inject)
    return (
        AdmissionRule("copy-device-limits", FLUXION, PODS, concerns_us(site), asks, copy),
        AdmissionRule("hand-over-backend", FLUXION, PODS, concerns_us(site), asks, inject),
    )


def _asks(container: Any) -> bool:
    """Whether a container requests a device, in requests or in limits."""
    return any(
        resource.startswith(names.DEVICE_PREFIX)
        for side, _ in _SIDES
        for resource in patch.field(container, "resources", side) or ()
    )


def _copies(at: str) -> str:
    parts = []
    for given, other in _SIDES:
        amounts, present = (cel.entries("resources", side, of="c") for side in (given, other))
        is_missing = f"{_IS_DEVICE} && !(r in {present})"
        base = f"{at} + '/resources/{other}"
        create = cel.if_else(cel.has("resources", other, of="c"), cel.NOTHING, cel.add(f"{base}'", "{}"))
        copied = cel.add(f"{base}/' + jsonpatch.escapeKey(r)", f"{amounts}[?r].orValue('')")
        copies = f"{amounts}.map(r, {is_missing}, {copied}).flatten()"
        parts.append(cel.if_else(f"{amounts}.exists(r, {is_missing})", cel.plus(create, copies)))
    return cel.plus(*parts)


def _copy_resources(pod: Incoming) -> list[Operation]:
    operations = []
    for steps, container in pod.containers():
        for given, other in _SIDES:
            amounts = patch.field(container, "resources", given) or {}
            present = patch.field(container, "resources", other)
            missing = [
                resource
                for resource in amounts
                if resource.startswith(names.DEVICE_PREFIX) and resource not in (present or ())
            ]
            if missing and present is None:
                operations.append(patch.add((*steps, "resources", other), {}))
            for resource in missing:
                value = patch.text(amounts, resource)
                operations.append(patch.add((*steps, "resources", other, resource), value))
    return operations


def _inject(pod: Incoming) -> list[Operation]:
    variables = {
        name: patch.variable_from_annotation(name, pod.variables[name]) for name in sorted(pod.variables)
    }
    return patch.add_variables(pod, variables, where=_asks)
