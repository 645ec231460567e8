"""Gates: the JSON patches by which held pods and Jobs are let go, as pure functions of the object.

Each begins with tests of what it was made for, so that it does nothing to an object that is another by now.
The binder sends those of pods, `releaser` those of Jobs.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fluence import names
from fluence.model.grant import ReleaseNote
from fluence.model.held import has_gate
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.units import rfc3339

Operation = dict[str, object]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_TERMS = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"


def granted(uid: str, condition: Condition, now: float) -> Operation:
    """What an object was given, as a strategic merge patch of its status; ``now`` in seconds."""
    at = rfc3339(int(now) * 1_000_000)
    return {
        "metadata": {"uid": uid},
        "status": {"conditions": [{**msgspec.to_builtins(condition), "lastTransitionTime": at}]},
    }


def ungate(pod: Pod) -> list[Operation]:
    """Remove our gate, by its name, and leave those of others alone."""
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
    """Remove our gate and pin the pod to its node, in one write: kube-scheduler binds it there. The version
    goes along, for the pin depends on the terms that are there."""
    return [
        *ungate(pod),
        _test("/metadata/resourceVersion", pod.metadata.resource_version),
        *_pin(pod, node),
        *_set(pod.metadata, "annotations", annotations),
        *_set(pod.metadata, "labels", labels),
    ]


def let_go(owner: Owner, note: ReleaseNote) -> list[Operation]:
    """Have a suspended Job make its pods, unless its spec has changed since it was planned."""
    meta = owner.metadata
    operations = [
        _test("/metadata/uid", meta.uid),
        _test("/metadata/generation", note.generation),
        _test("/spec/suspend", True),
        {"op": "replace", "path": "/spec/suspend", "value": False},
    ]
    if not meta.annotations:  # nobody else's are to be lost
        operations.insert(0, _test("/metadata/resourceVersion", meta.resource_version))
    return [
        *operations,
        *_gated_template(owner),
        *_set(meta, "annotations", note.annotations()),
        *_set(meta, "labels", note.labels()),
    ]


def _gated_template(owner: Owner) -> list[Operation]:
    """The pods of a Job that kube-scheduler binds wait behind our gate until each is pinned to its node."""
    template = owner.spec.template
    if template is None or template.spec.scheduler_name != names.KUBE_SCHEDULER or has_gate(template.spec):
        return []
    gate = {"name": names.GATE_FLUXQUEUE}
    path = "/spec/template/spec/schedulingGates"
    return [_add(f"{path}/-", gate)] if template.spec.scheduling_gates else [_add(path, [gate])]


def _pin(pod: Pod, node: str) -> list[Operation]:
    """And one more requirement into every term; a term without any matches no node, and stays so."""
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
