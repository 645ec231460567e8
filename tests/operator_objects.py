"""Objects of operators as users write them, and changes that decide whether admission holds them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fluence import names
from fluence.model.operators import OPERATORS

_OPERATORS = {each.kind: each for each in OPERATORS}
_FIELDS = {"PyTorchJob": "pytorchReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs"}


def operator_object(kind: str, name: str = "x") -> dict[str, Any]:
    """An object with two templates; a TrainJob has none."""
    operator = _OPERATORS[kind]
    head, worker = _template(), _template()
    if kind == "JobSet":
        jobs = (("head", head), ("worker", worker))
        spec: dict[str, Any] = {
            "replicatedJobs": [
                {"name": each, "template": {"spec": {"template": made}}} for each, made in jobs
            ]
        }
    elif kind in ("RayCluster", "RayJob"):
        group = {"groupName": "worker", "maxReplicas": 1, "minReplicas": 1, "replicas": 1}
        spec = {
            "headGroupSpec": {"rayStartParams": {}, "template": head},
            "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": worker}],
        }
        if kind == "RayJob":
            spec = {"rayClusterSpec": spec, "shutdownAfterJobFinishes": True}
    elif kind == "TrainJob":
        spec = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 3}}
    else:
        field = _FIELDS.get(kind, f"{kind.removesuffix('Job').lower()}ReplicaSpecs")
        spec = {field: {"Master": {"template": head}, "Worker": {"replicas": 2, "template": worker}}}
    api = f"{operator.group}/{operator.versions[0]}"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _template() -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c", "image": "x"}], "restartPolicy": "Never"}}


def worker_of(found: dict[str, Any]) -> Any:
    """The second template of an object."""
    kind, spec = found["kind"], found["spec"]
    if kind == "JobSet":
        return spec["replicatedJobs"][1]["template"]["spec"]["template"]
    if kind in ("RayCluster", "RayJob"):
        return spec.get("rayClusterSpec", spec)["workerGroupSpecs"][0]["template"]
    field = next(each for each in spec if each.endswith("ReplicaSpecs"))
    return spec[field]["Worker"]["template"]


@dataclass(frozen=True)
class Change:
    """A change of an object, and whether the object is held all the same."""

    name: str
    apply: Callable[[dict[str, Any]], None]
    is_held: bool = False
    of_template: bool = False


def _put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(found: dict[str, Any]) -> None:
        for step in path[:-1]:
            found = found.setdefault(step, {})
        found[path[-1]] = value

    return apply


def _in_spec(field: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """``field`` of the operator is a path in the spec."""
    return lambda found: _put("spec", *getattr(_OPERATORS[found["kind"]], field), value=value)(found)


def _in_template(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda found: _put(*path, value=value)(worker_of(found))


def _own_controller(found: dict[str, Any]) -> None:
    _in_spec("managed_by", _OPERATORS[found["kind"]].controller)(found)


def _owner(controls: bool) -> list[dict[str, Any]]:
    uid = "00000000-0000-0000-0000-000000000001"
    return [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": uid, "controller": controls}]


CHANGES = (
    Change("marked", _put("metadata", "labels", names.SEEN, value="yes")),
    Change("opted out by a label", _put("metadata", "labels", names.QUEUE, value="off")),
    Change("opted out by an annotation", _put("metadata", "annotations", names.QUEUE, value="off")),
    Change("in a queue", _put("metadata", "annotations", names.QUEUE, value="debug"), is_held=True),
    Change("suspended by its user", _in_spec("suspend", True)),
    Change("not suspended", _in_spec("suspend", False), is_held=True),
    Change("managed by MultiKueue", _in_spec("managed_by", "kueue.x-k8s.io/multikueue")),
    Change("managed by its own controller", _own_controller, is_held=True),
    Change("owned by a controller", _put("metadata", "ownerReferences", value=_owner(True))),
    Change("owned", _put("metadata", "ownerReferences", value=_owner(False)), is_held=True),
    *(
        Change(name, _in_template(*path, value=value), is_held=value == "fluence", of_template=True)
        for name, path, value in (
            ("a template of another scheduler", ("spec", "schedulerName"), "other"),
            ("a template of ours", ("spec", "schedulerName"), "fluence"),
            ("a critical template", ("spec", "priorityClassName"), "system-node-critical"),
            ("a template that opted out", ("metadata", "labels", names.QUEUE), "off"),
        )
    ),
)


def random_object(rng: random.Random, kind: str) -> dict[str, Any]:
    """An object with some of the changes, in any order, and with other names on it."""
    found = operator_object(kind, f"w{rng.randrange(10**6)}")
    changes = [each for each in changes_of(kind) if rng.random() < 0.12]
    for change in rng.sample(changes, len(changes)):
        change.apply(found)
    if rng.random() < 0.3:
        notes = found["metadata"].setdefault("annotations", {})
        notes[names.SUBMITTED_BY] = rng.choice(("bob", "kubernetes-admin", ""))
    if rng.random() < 0.1:
        found["metadata"]["labels"] = {}
    return found


def changes_of(kind: str) -> tuple[Change, ...]:
    """Those that an object of this kind can have."""
    return tuple(each for each in CHANGES if kind != "TrainJob" or not each.of_template)
