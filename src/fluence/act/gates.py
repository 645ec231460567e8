"""Gates: the JSON patches that release held pods and Jobs, as pure functions of the object.

Each patch begins with tests of the version it was made for, so that it does nothing to an object that has
changed. `Binder` sends those of pods, and `Releaser` those of Jobs and of operators' objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fluence import names
from fluence.model.grant import ReleaseNote, has_gate
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.operators import CustomOwner
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.units import rfc3339

Operation = dict[str, object]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"


def granted(uid: str, condition: Condition, now: float) -> Operation:
    """The grant of an object, as a strategic merge patch of its status. ``now`` is in seconds."""
    at = rfc3339(int(now) * 1_000_000)
    return {
        "metadata": {"uid": uid},
        "status": {"conditions": [{**msgspec.to_builtins(condition), "lastTransitionTime": at}]},
    }


def granted_to(
    found: Mapping[str, Any], generation: int, condition: Condition, now: float
) -> list[Operation]:
    """The same for a custom object, whose lists the server does not merge: a JSON patch of the object
    ``found``."""
    status = found.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each.get("type") != condition.type]
    at = rfc3339(int(now) * 1_000_000)
    conditions.append({**msgspec.to_builtins(condition), "lastTransitionTime": at})
    whole = {**status, "conditions": conditions}
    return [
        _test("/metadata/uid", found["metadata"]["uid"]),
        _test("/metadata/generation", generation),
        _test("/metadata/resourceVersion", found["metadata"]["resourceVersion"]),
        _add("/status/conditions", conditions) if "status" in found else _add("/status", whole),
    ]


def ungate(pod: Pod) -> list[Operation]:
    """Remove our gate by its name, and leave the others alone."""
    gates = [each.name for each in pod.spec.scheduling_gates or ()]
    at = f"/spec/schedulingGates/{gates.index(names.GATE_FLUXQUEUE)}"
    return [
        _test("/metadata/uid", pod.metadata.uid),
        _test(f"{at}/name", names.GATE_FLUXQUEUE),
        {"op": "remove", "path": at},
    ]


def hand_over(
    pod: Pod, node: str, *, annotations: Mapping[str, str], labels: Mapping[str, str]
) -> list[Operation]:
    """Remove our gate and pin the pod to its node in one write, so that kube-scheduler binds it there. The
    patch tests the resource version, because the pin depends on the current terms."""
    return [
        *ungate(pod),
        _test("/metadata/resourceVersion", pod.metadata.resource_version),
        *_pin(pod, node),
        *_set(pod.metadata, "annotations", annotations),
        *_set(pod.metadata, "labels", labels),
    ]


def let_go(owner: Owner, note: ReleaseNote) -> list[Operation]:
    """Unsuspend a Job or an object of an operator, unless its spec has changed since it was planned."""
    meta = owner.metadata
    steps = owner.operator.suspend if isinstance(owner, CustomOwner) else ("suspend",)
    path = f"/spec/{'/'.join(steps)}"
    operations = [
        _test("/metadata/uid", meta.uid),
        _test("/metadata/generation", note.generation),
        _test(path, True),
        {"op": "replace", "path": path, "value": False},
    ]
    if not note.nodes:
        return operations
    if not meta.annotations:  # do not overwrite annotations that were added meanwhile
        operations.insert(0, _test("/metadata/resourceVersion", meta.resource_version))
    return [
        *operations,
        *_gated_template(owner),
        *_set(meta, "annotations", note.annotations()),
        *_set(meta, "labels", note.labels()),
    ]


def _gated_template(owner: Owner) -> list[Operation]:
    """Add our gate to the template of a Job whose pods kube-scheduler binds: they wait until each is
    pinned."""
    template = owner.spec.template
    if template is None or template.spec.scheduler_name != names.KUBE_SCHEDULER or has_gate(template.spec):
        return []
    gate = {"name": names.GATE_FLUXQUEUE}
    path = "/spec/template/spec/schedulingGates"
    return [_add(f"{path}/-", gate)] if template.spec.scheduling_gates else [_add(path, [gate])]


def _pin(pod: Pod, node: str) -> list[Operation]:
    """Add the node as one more requirement to every term. A term without requirements matches no node, and
    stays so."""
    pin = {"key": "metadata.name", "operator": "In", "values": [node]}
    fresh: object = {"nodeSelectorTerms": [{"matchFields": [pin]}]}
    affinity = pod.spec.affinity
    if affinity is None:
        return [_add("/spec/affinity", {"nodeAffinity": {_REQUIRED: fresh}})]
    if affinity.node_affinity is None:
        return [_add("/spec/affinity/nodeAffinity", {_REQUIRED: fresh})]
    if affinity.node_affinity.required is None:
        return [_add(f"/spec/affinity/nodeAffinity/{_REQUIRED}", fresh)]
    found = []
    for index, term in enumerate(affinity.node_affinity.required.node_selector_terms or ()):
        if term.match_fields:
            found.append(_add(f"{_TERMS}/{index}/matchFields/-", pin))
        elif term.match_expressions:
            found.append(_add(f"{_TERMS}/{index}/matchFields", [pin]))
    return found


def _set(meta: ObjectMeta, what: str, values: Mapping[str, str]) -> list[Operation]:
    if not getattr(meta, what):
        return [_add(f"/metadata/{what}", dict(values))]
    return [_add(f"/metadata/{what}/{_escaped(key)}", value) for key, value in values.items()]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _test(path: str, value: object) -> Operation:
    return {"op": "test", "path": path, "value": value}


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}
