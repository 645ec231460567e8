"""Audited operators: how many pods of an operator's object start together, counted from the object alone.

The scheduler has a count of its own (`model.operators`). This one shares only the names of labels with it, so
that the audit finds errors of the scheduler.

`part_of` says to which part of its object a pod belongs, and how many pods that part has at least. Pods that
are created only after others run are a part of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from fluence import names
from fluence.model.meta import ObjectMeta, Wire
from fluence.model.owner import Owner
from fluence.model.pod import Pod

NAMED_BY = {"LeaderWorkerSet": names.LWS_NAME, "SparkApplication": names.SPARK_APPLICATION}
"""The label with the name of the object, on pods that other pods own."""

_REPLICA_SPECS = {
    "MPIJob": "mpiReplicaSpecs",
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
}


class WrittenObject(Wire, frozen=True):
    """An object of an operator as the server has it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: Any = None


class OperatorObject(Owner, frozen=True):
    """An object of an operator, with its spec as written."""

    of_kind: str = ""
    body: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.of_kind

    @classmethod
    def read(cls, kind: str, item: WrittenObject) -> OperatorObject:
        return cls(
            metadata=item.metadata, of_kind=kind, body=item.spec if isinstance(item.spec, dict) else {}
        )


def part_of(owner: OperatorObject, pod: Pod) -> tuple[str, int] | None:
    """The part of an object that a pod belongs to, and how many pods of it start together. None: the pod
    starts by itself, or the object cannot be read."""
    kind = owner.of_kind
    try:
        if kind == "JobSet":
            return _job_set(owner, pod)
        if kind == "LeaderWorkerSet":
            return _leader_worker_set(owner, pod)
        if kind == "RayCluster":
            return _ray_cluster(owner.body, pod)
        if kind == "SparkApplication":
            return _spark(owner.body, pod)
        if kind in _REPLICA_SPECS:
            return _replicas(owner.body, _REPLICA_SPECS[kind], pod)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    return None


def _ours(templates: Iterable[tuple[int, Any]], pod: Pod) -> int:
    """The pods of the templates with the same scheduler as this pod."""
    wanted = pod.spec.scheduler_name
    return sum(
        count
        for count, template in templates
        if ((template or {}).get("spec") or {}).get("schedulerName", names.KUBE_SCHEDULER) == wanted
    )


def _job_set(owner: OperatorObject, pod: Pod) -> tuple[str, int] | None:
    jobs = {job["name"]: job for job in owner.body["replicatedJobs"]}
    mine = jobs[pod.labels[names.JOBSET_REPLICATED_JOB]]
    in_order = (owner.body.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    awaited = {each["name"] for each in mine.get("dependsOn") or ()}
    if in_order:
        beside = [mine]
    else:
        beside = [
            job for job in jobs.values() if {each["name"] for each in job.get("dependsOn") or ()} == awaited
        ]

    def near(job: Any) -> bool:
        template = job["template"]
        inner = (template["spec"].get("template") or {}).get("metadata")
        found = (
            owner.annotations,
            *((each or {}).get("annotations") or {} for each in (template.get("metadata"), inner)),
        )
        return any(names.JOBSET_EXCLUSIVE in each for each in found) and not any(
            names.JOBSET_NODE_SELECTOR in each for each in found
        )

    follows = near(mine) and pod.labels.get(names.COMPLETION_INDEX) != "0"

    def pods(job: Any) -> int:
        spec = job["template"]["spec"]
        width = spec.get("parallelism", 1)
        width = min(width, spec.get("completions") or width)
        if near(job):
            width = width - 1 if follows else 1
        elif follows:
            width = 0  # it was created at once
        return int(job.get("replicas", 1)) * int(width)

    count = _ours(((pods(job), job["template"]["spec"].get("template")) for job in beside), pod)
    part = f"{min(job['name'] for job in beside)}{'/followers' if follows else ''}"
    return part, count


def _leader_worker_set(owner: OperatorObject, pod: Pod) -> tuple[str, int] | None:
    template = owner.body["leaderWorkerTemplate"]
    size = int(pod.annotations.get(names.LWS_SIZE) or template.get("size", 1))
    worker = template["workerTemplate"]
    leads = pod.labels.get(names.LWS_WORKER_INDEX) == "0"
    group = pod.labels[names.LWS_GROUP_INDEX]
    if owner.body.get("startupPolicy") == "LeaderReady" or owner.annotations.get(names.LWS_EXCLUSIVE):
        return None if leads else (f"{group}/workers", _ours([(size - 1, worker)], pod))
    return group, _ours([(1, template.get("leaderTemplate") or worker), (size - 1, worker)], pod)


def _replicas(spec: Any, field: str, pod: Pod) -> tuple[str, int] | None:
    role = (pod.labels.get(names.KUBEFLOW_REPLICA_TYPE) or pod.labels[names.KUBEFLOW_JOB_ROLE]).lower()
    fewest = (spec.get("elasticPolicy") or {}).get("minReplicas")
    waits = spec.get("launcherCreationPolicy") == "WaitForWorkersReady"
    if waits and role == "launcher":
        return None
    counted = []
    for name, each in spec[field].items():
        count = int(each.get("replicas", 1))
        if name == "Worker" and fewest is not None:
            count = min(count, int(fewest))
        if not (waits and name == "Launcher"):
            counted.append((count, each.get("template")))
    enough = ((spec.get("runPolicy") or {}).get("schedulingPolicy") or {}).get("minAvailable")
    total = _ours(counted, pod)
    return "", total if enough is None else min(total, max(1, int(enough)))


def _ray_cluster(spec: Any, pod: Pod) -> tuple[str, int] | None:
    if names.RAY_GROUP not in pod.labels:
        return None
    counted = [(1, (spec.get("headGroupSpec") or {}).get("template"))]
    for group in spec.get("workerGroupSpecs") or ():
        fewest = group.get("minReplicas") or 0
        count = fewest if spec.get("enableInTreeAutoscaling") is True else group.get("replicas", fewest)
        count = min(max(count, fewest), group.get("maxReplicas", 1 << 31))
        hosts = max(1, group.get("numOfHosts") or 1)
        counted.append((0 if group.get("suspend") else count * hosts, group.get("template")))
    return "", _ours(counted, pod)


def _spark(spec: Any, pod: Pod) -> tuple[str, int] | None:
    if pod.labels.get(names.SPARK_ROLE) != "executor":
        return None
    count, settings = int(spec["executor"].get("instances", 1)), spec.get("sparkConf") or {}
    most = settings.get("spark.kubernetes.allocation.maxPendingPods")
    batch = settings.get("spark.kubernetes.allocation.batch.size") or 5
    is_old = str(spec.get("sparkVersion", "")).startswith(("2.", "3.0."))
    pending = ([] if most is None else [int(most)]) + ([int(batch)] if is_old else [])
    if (spec.get("dynamicAllocation") or {}).get("enabled") is True or any(each < count for each in pending):
        return None
    return "executors", count
