"""Random objects for admission: pods and workloads with all that a rule reads, in odd combinations."""

from __future__ import annotations

import random
from typing import Any

from fluence import names
from fluence.model.external_resources import BASE
from fluence.model.operators import KUBEFLOW, LISTED

VARIABLES = {
    **BASE,
    "FLUXION_VENDOR": f"{names.ATTRIBUTE}vendor",
    "FLUXION_REGION": f"{names.ATTRIBUTE}region",
}
INDEXES = (names.COMPLETION_INDEX, names.POD_INDEX)
LONG = "a-name-that-is-far-too-long-for-a-label-with-its-kind-and-namespace"


def pod(rng: random.Random) -> dict[str, Any]:
    """A pod as a user, or a controller, sends it."""
    meta: dict[str, Any] = {"name": f"p{rng.randrange(10**6)}"}
    if rng.random() < 0.2:
        meta = {"generateName": "p-"}
    labels, annotations = _said(rng)
    _put(meta, "labels", labels, rng)
    _put(meta, "annotations", annotations, rng)
    owners = _owners(rng)
    if owners:
        meta["ownerReferences"] = owners
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(rng)}


def workload(rng: random.Random) -> dict[str, Any]:
    """A Job, Deployment, ReplicaSet or StatefulSet."""
    kind = rng.choice(("Job", "Deployment", "ReplicaSet", "StatefulSet"))
    name = LONG if rng.random() < 0.1 and kind != "Job" else f"w{rng.randrange(10**6)}"
    meta: dict[str, Any] = {"name": name}
    if rng.random() < 0.15:
        meta = {"generateName": "w-"}
    labels, annotations = _said(rng, rarely=True)
    _put(meta, "labels", labels, rng)
    _put(meta, "annotations", annotations, rng)
    if rng.random() < 0.2:
        meta["ownerReferences"] = [_owner(rng, rng.choice(("CronJob", "Deployment", "JobSet")))]
    inner, outer = _said(rng)
    template: dict[str, Any] = {"metadata": {}, "spec": _spec(rng)}
    template["spec"].pop("nodeName", None)
    _put(template["metadata"], "annotations", outer, rng)
    if kind == "Job":
        _put(template["metadata"], "labels", inner, rng)
        template["spec"]["restartPolicy"] = "Never"
        for each in template["spec"].get("initContainers", ()):
            each.pop("restartPolicy", None)
        spec: dict[str, Any] = {"template": template}
        if rng.random() < 0.7:
            spec["parallelism"] = rng.randrange(1, 5)
        if rng.random() < 0.7:
            spec["completions"] = rng.randrange(1, 5)
            spec["completionMode"] = "Indexed"
        if rng.random() < 0.2:
            spec["suspend"] = rng.random() < 0.5
        if rng.random() < 0.1:
            spec["managedBy"] = rng.choice(("kubernetes.io/job-controller", "example.org/other"))
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": meta, "spec": spec}
    template["metadata"]["labels"] = {**inner, "app": "w"}
    spec = {"selector": {"matchLabels": {"app": "w"}}, "template": template}
    if rng.random() < 0.7:
        spec["replicas"] = rng.randrange(0, 5)
    if kind == "StatefulSet":
        spec["serviceName"] = "w"
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


def _said(rng: random.Random, *, rarely: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations."""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    often = 0.1 if rarely else 0.7

    def may(chance: float, key: str, *values: str) -> None:
        if rng.random() < chance:
            rng.choice((labels, annotations))[key] = rng.choice(values)

    if rng.random() < often:
        annotations[names.COORDINATION] = rng.choice(("shared", "shared", "shared", "independent"))
    may(often, rng.choice(names.GROUP_NAMES), "g", "group-1", "a.b_c", "x" * 60, "x" * 54)
    may(often, rng.choice(names.GROUP_SIZES), "3", "2", "1", "100", "0", "many")
    may(often, rng.choice(INDEXES), "0", "0", "1", "2", "00", "one")
    may(0.1, names.QUEUE, "off", "debug")
    may(0.1, names.SEEN, "yes")
    if not rarely and rng.random() < 0.3:  # a pod of an operator
        keys = (*LISTED.values(), (names.KUBEFLOW_JOB_NAME,), (names.SPARK_APPLICATION,))
        for key in rng.choice(keys):
            labels[key] = rng.choice(("x", "0", "a-b", "a.b", "A", "x" * 60))
        if rng.random() < 0.7:
            labels[names.KUBEFLOW_OPERATOR] = rng.choice((*KUBEFLOW, "tf-operator"))
            labels[names.SPARK_ROLE] = rng.choice(("driver", "executor", "executor"))
    if not rarely and rng.random() < 0.3:  # a pod of a gang of another system
        others = (names.KUEUE_GROUP, *names.VOLCANO_GROUPS, names.KAI_GROUP, *names.YUNIKORN_APPLICATIONS)
        may(1.0, rng.choice(others), "g", "a-b", "a.b", "A", "x" * 60, "x" * 54)
        if rng.random() < 0.5:
            annotations[names.YUNIKORN_TASK_GROUP] = rng.choice(("workers", " ", ""))
    if rng.random() < 0.05:
        annotations[names.COORDINATION_ROLE] = "producer"
    if rng.random() < 0.1:
        annotations[names.BIND] = rng.choice(("kube-scheduler", "direct"))
    if rng.random() < 0.2:
        annotations["example.org/it's"] = 'any "thing" \\ ~1/~0 ü'
    if rng.random() < 0.2:
        annotations[names.SUBMITTED_BY] = rng.choice(("bob", "kubernetes-admin", ""))
    if rng.random() < 0.2:
        annotations[names.LISTED_AS] = rng.choice((names.LISTED_AS_JOB, "g", "a.b", "A", ""))
    labels = {key: value for key, value in labels.items() if len(value) <= 63}
    return labels, annotations


def _owners(rng: random.Random) -> list[dict[str, Any]]:
    kinds = ("Job", "StatefulSet", "DaemonSet", "ReplicaSet", "Node")
    found = [_owner(rng, rng.choice(kinds)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    for other in found[1:]:
        other["controller"] = False  # there is one at most
    return found


def _owner(rng: random.Random, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "apiVersion": "v1" if kind == "Node" else "apps/v1",
        "kind": kind,
        "name": f"owner-{rng.randrange(100)}",
        "uid": f"00000000-0000-0000-0000-{rng.randrange(10**12):012d}",
    }
    if rng.random() < 0.8:
        found["controller"] = True
    return found


def _spec(rng: random.Random) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,  # or the server makes up the name of a volume
        "containers": [_container(rng, f"c{number}") for number in range(rng.choice((1, 1, 2, 3)))],
    }
    scheduler = rng.choice(("fluence", "fluence", "fluence", "default-scheduler", "other", ""))
    if scheduler:
        spec["schedulerName"] = scheduler
    if rng.random() < 0.3:
        spec["initContainers"] = [_container(rng, f"i{number}") for number in range(rng.choice((1, 2)))]
        if rng.random() < 0.3:
            spec["initContainers"][0]["restartPolicy"] = "Always"
    if rng.random() < 0.2:
        spec["priorityClassName"] = rng.choice((names.QUANTUM_CLASS, "system-node-critical"))
    if rng.random() < 0.2:
        gates = rng.sample((*names.GATES, names.GATE_FLUXQUEUE, "example.org/mine"), k=rng.choice((1, 2)))
        spec["schedulingGates"] = [{"name": each} for each in gates]
    elif rng.random() < 0.1:
        spec["nodeName"] = "node-1"
    if rng.random() < 0.1:
        spec["resourceClaims"] = [{"name": "c", "resourceClaimName": "claim"}]
    return spec


def _container(rng: random.Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "image": "busybox"}
    resources: dict[str, dict[str, str]] = {}
    for type_ in ("qpu", "qubit", "licence"):
        if rng.random() < 0.4:
            amount = str(rng.randrange(1, 4))
            sides = rng.choice((("limits",), ("requests",), ("limits", "requests")))
            for side in sides:
                resources.setdefault(side, {})[f"{names.DEVICE_PREFIX}{type_}"] = amount
    if rng.random() < 0.4:
        resources.setdefault("requests", {})["cpu"] = "100m"
    if rng.random() < 0.1:
        resources.setdefault("limits", {})["nvidia.com/gpu"] = "1"
    if resources:
        found["resources"] = resources
    if rng.random() < 0.4:
        own = rng.sample((*VARIABLES, "FLUENCE_COORDINATION_ROLE", "FLUENCE_QUANTUM_JOB_ID", "MINE"), k=3)
        found["env"] = [{"name": each, "value": "mine"} for each in own]
        if rng.random() < 0.3:
            found["env"].append({"name": "REFERS", "value": "$(QRMI_BACKEND)"})
    return found


def _put(meta: dict[str, Any], key: str, values: dict[str, str], rng: random.Random) -> None:
    """An empty map and none are the same to the server, and must be to us."""
    if values or rng.random() < 0.3:
        meta[key] = values
