"""Operators: custom objects that define how many pods start together, one row of a table for each kind.

    JobSet                            its replicated jobs
    LeaderWorkerSet                   each of its groups is a gang
    MPIJob, PyTorchJob, TFJob, …      the sum over replica specs, or schedulingPolicy.minAvailable
    RayCluster                        the head and the workers; with the autoscaler, as few as it may have
    SparkApplication                  the driver alone, then the executors
    TrainJob, RayJob, RayService      nothing: the objects that they create define it. A held one has the
                                      sizes of a RayCluster, or of its JobSet, which is suspended with it

A *role* is a set of pods from one template. Roles of one *stage* are created at once and start together. Some
objects create a role only after pods of another role run: it has its own stage, and other roles do not wait
for it.

Users write custom objects, and the definition of the resource may allow anything. So an object is reduced to
a `CustomOwner`, with the fields that matter, when it is read; an object that cannot be parsed has no roles.
The templates of roles are kept only for an object that admission held, or that such an object creates,
because it is planned before it has pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import msgspec

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.meta import Condition, ObjectMeta, OwnerReference, Wire
from fluence.model.owner import Owner, OwnerSpec, OwnerStatus, PodTemplate, controller_of
from fluence.model.pod import Pod
from fluence.units import parse_quantity

MAX_ROLES = 256
_MAX_PODS = 1 << 31  # of one role, the limit of the API


class Role(NamedTuple):
    """Pods from one template."""

    name: str
    pods: int
    scheduler: str = names.KUBE_SCHEDULER
    stage: str = ""  # "": created at once
    template: PodTemplate | None = None  # of an object that admission held


class Sizes(NamedTuple):
    """The numbers of pods in a custom object."""

    roles: tuple[Role, ...]
    minimum: int | None = None  # how many suffice for a start, if the object defines it

    def of(self, role: Role, scheduler: str) -> int:
        """The number of pods that start together with a pod of this role that ``scheduler`` places. Roles of
        other schedulers are not counted. Admission may have changed the scheduler of a template."""
        counted = {scheduler, role.scheduler}
        together = [each for each in self.roles if each.stage == role.stage and each.scheduler in counted]
        total = sum(each.pods for each in together)
        return total if self.minimum is None else min(self.minimum, total)


class Share(NamedTuple):
    """The role of a pod, and how many pods start together with it."""

    role: Role
    size: int


class CustomOwner(Owner, frozen=True):
    """A custom object that makes pods, or makes owners of pods."""

    operator: ClassVar[Operator]

    sizes: Sizes | None = None  # None: not defined
    version: str = ""  # of the API that it was read from

    @property
    def api_version(self) -> str:
        return f"{self.operator.group}/{self.version or self.operator.versions[0]}"

    def planned(self, scheduler: str | None = None) -> tuple[Role, ...]:
        """The roles that are planned before their pods exist, if admission held this object: those of the
        first stage that ``scheduler`` places, or any scheduler."""
        if not self.operator.holds or self.spec.managed_by not in (None, self.operator.controller):
            return ()  # it is unknown whether another controller creates pods
        ours = None if scheduler is None else (names.KUBE_SCHEDULER, scheduler)
        roles = [
            role
            for role in (self.sizes.roles if self.sizes is not None else ())
            if not role.stage and (ours is None or role.scheduler in ours)
        ]
        return () if any(role.template is None for role in roles) else tuple(roles)

    @property
    def pods(self) -> int:
        return max(1, sum(role.pods for role in self.sizes.roles)) if self.sizes is not None else 1

    @property
    def is_silent(self) -> bool:
        """Whether it should define how many of its pods start together, but does not."""
        return self.sizes is None and self.operator.sizes is not None

    def share_of(self, pod: Pod) -> Share | None:
        """The share of a pod in the gangs of this object; None if the pod is not counted."""
        sizes, operator = self.sizes, self.operator
        if sizes is None or operator.role is None:
            return None
        for name in operator.role(pod.labels):
            role = next((role for role in sizes.roles if role.name.lower() == name.lower()), None)
            if role is not None:
                made = operator.resized(sizes, pod.annotations) if operator.resized is not None else sizes
                return Share(role, made.of(role, pod.spec.scheduler_name))
        return None


@dataclass(frozen=True, slots=True)
class Operator:
    """A kind of custom object."""

    group: str
    versions: tuple[str, ...]  # that are supported, the best first
    kind: str
    plural: str
    sizes: Callable[[Any, ObjectMeta], Sizes] | None = None  # of its spec; None: its children have them
    role: Callable[[Mapping[str, str]], Sequence[str]] | None = (
        None  # of a pod, by its labels: the first that exists
    )
    resized: Callable[[Sizes, Mapping[str, str]], Sizes] | None = None  # by annotations of a pod
    run: str = ""  # a label of pods: each value is a separate gang
    attempt: str = ""  # the same for a label that counts restarts
    named: str = ""  # a label of pods with its name, where pods own pods
    suspend: tuple[str, ...] = ("suspend",)
    holds: bool = False  # whether admission can hold it: it makes no pods while it is suspended
    managed_by: tuple[str, ...] = ("managedBy",)
    controller: str = ""  # what this field says if the operator's own controller makes the pods
    # Whether its status has conditions that users cannot write, by the roles which its project publishes.
    grants: bool = False
    mark: str = ""  # the label of a pod that names its role
    held_sizes: Callable[[Any, ObjectMeta], Sizes] | None = None  # while admission holds it, if not ``sizes``
    made: str = (
        ""  # the kind that it makes, under its own name, while it is suspended, and that has the sizes
    )

    @property
    def key(self) -> tuple[str, str]:
        return self.group, self.kind


class _Object(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"null")
    status: msgspec.Raw = msgspec.Raw(b"null")


_decoder = msgspec.json.Decoder(_Object)


def read_owner(operator: Operator, content: bytes | msgspec.Raw, version: str = "") -> CustomOwner:
    """A custom object, from its JSON in a version of its API."""
    found = _decoder.decode(content)
    sizes, suspended, managed_by = None, False, None
    try:
        spec = msgspec.json.decode(found.spec)
        suspended = _get(spec, *operator.suspend) is True
        managed_by = _text(_get(spec, *operator.managed_by))
        is_held = (found.metadata.labels or {}).get(names.SEEN) == names.SEEN_YES
        size = (operator.held_sizes if is_held else None) or operator.sizes
        sizes = size(spec, found.metadata) if size is not None else None
    except (_UnknownSizeError, msgspec.MsgspecError, RecursionError):
        pass
    if sizes is not None and (not sizes.roles or len(sizes.roles) > MAX_ROLES):
        sizes = None
    return CLASSES[operator.key](
        metadata=found.metadata,
        spec=OwnerSpec(suspend=suspended, managed_by=managed_by),
        status=_status(operator, found.status),
        sizes=sizes,
        version=version,
    )


_ENDS = {"Complete": "Complete", "Completed": "Complete", "Succeeded": "Complete", "Failed": "Failed"}


def _status(operator: Operator, content: msgspec.Raw) -> OwnerStatus:
    """Its status: whether it has ended, as a condition of a Job, and its grant."""
    try:
        status = msgspec.json.decode(content)
        conditions = _items(status, "conditions")
    except (_UnknownSizeError, msgspec.MsgspecError, RecursionError):
        return OwnerStatus()
    kept = []
    deployed = _ENDS.get(_text(_get(status, "jobDeploymentStatus")) or "")  # of a RayJob
    if deployed is not None:
        kept.append(Condition(type=deployed, status="True"))
    for each in conditions:
        kind = _text(_get(each, "type")) or ""
        if kind in _ENDS and _get(each, "status") == "True":
            kept.append(Condition(type=_ENDS[kind], status="True"))
        elif kind == names.GRANTED and operator.grants:
            try:
                kept.append(msgspec.convert(each, Condition))
            except msgspec.MsgspecError:
                continue
    return OwnerStatus(conditions=kept or None)


def with_sizes(owner: CustomOwner, made: object) -> CustomOwner:
    """A held object with the sizes of the one that it has made under its own name."""
    if not isinstance(made, CustomOwner) or controller_of(made.metadata) != owner.identity:
        return owner
    return msgspec.structs.replace(owner, sizes=made.sizes)


def borrower_of(made: CustomOwner) -> OwnerReference | None:
    """The held object that takes its sizes from this one, if any."""
    return _borrower(made.metadata)


def _borrower(meta: ObjectMeta) -> OwnerReference | None:
    for ref in meta.owner_references or ():
        operator = BY_KEY.get((ref.api_version.rpartition("/")[0], ref.kind)) if ref.controller else None
        if operator is not None and operator.made and ref.name == meta.name:
            return ref
    return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _template(raw: Any, meta: ObjectMeta) -> PodTemplate | None:
    """The pod template of a held object. A custom resource may have numbers where pods have quantities."""
    if (meta.labels or {}).get(names.SEEN) != names.SEEN_YES and _borrower(meta) is None:
        return None
    found = msgspec.convert(_with_texts(raw), PodTemplate)
    spec = found.spec
    for each in (*(spec.containers or ()), *(spec.init_containers or ())):
        for amounts in (each.resources.requests, each.resources.limits):
            for text in (amounts or {}).values():
                try:
                    parse_quantity(text)
                except InvalidInput:
                    raise _UnknownSizeError from None
    return found


def _with_texts(value: Any) -> Any:
    """A template whose amounts of resources are texts."""
    spec = _get(value, "spec")
    if not isinstance(spec, dict):
        return value if isinstance(value, dict) else {}
    changed = {
        kind: [_with_amounts(each) for each in spec[kind]]
        for kind in ("containers", "initContainers")
        if isinstance(spec.get(kind), list)
    }
    return {**value, "spec": {**spec, **changed}}


def _with_amounts(container: Any) -> Any:
    resources = _get(container, "resources")
    if not isinstance(resources, dict):
        return container
    made = {
        kind: {
            name: str(amount) if isinstance(amount, int | float) and not isinstance(amount, bool) else amount
            for name, amount in amounts.items()
        }
        for kind, amounts in resources.items()
        if kind in ("requests", "limits") and isinstance(amounts, dict)
    }
    return {**container, "resources": made}


def suspended(owner: Owner) -> dict[str, Any]:
    """The spec by which a Job or an operator's object is suspended, as a merge patch."""
    patch: Any = True
    for step in reversed(owner.operator.suspend if isinstance(owner, CustomOwner) else ("suspend",)):
        patch = {step: patch}
    return cast(dict[str, Any], patch)


# -- reading -------------------------------------------------------------------------------------------------


class _UnknownSizeError(Exception):
    """A field that decides the size is invalid."""


def _get(value: Any, *path: str) -> Any:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _items(value: Any, *path: str) -> list[Any]:
    found = _get(value, *path)
    if found is None:
        return []
    if not isinstance(found, list) or len(found) > MAX_ROLES:
        raise _UnknownSizeError
    return found


def _count(value: Any, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MAX_PODS:
        raise _UnknownSizeError
    return value


def _is_number(text: Any) -> bool:
    return isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) < 10


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _UnknownSizeError
    return value


def _scheduler(template: Any) -> str:
    found = _get(template, "spec", "schedulerName")
    return found if isinstance(found, str) and found else names.KUBE_SCHEDULER


def _label(key: str) -> Callable[[Mapping[str, str]], Sequence[str]]:
    return lambda labels: (labels.get(key, ""),)


# -- JobSet --------------------------------------------------------------------------------------------------


_FOLLOWERS = "followers"


def _job_set(spec: Any, meta: ObjectMeta) -> Sizes:
    """In order, each replicated job waits until the one before it is ready. Those that depend on the same
    others start together. The pods of a Job that must be near its first one are created when that has its
    node."""
    in_order = _get(spec, "startupPolicy", "startupPolicyOrder") == "InOrder"
    roles: list[Role] = []
    stages: dict[frozenset[str], str] = {frozenset(): ""}
    for index, each in enumerate(_items(spec, "replicatedJobs")):
        name, job = _name(_get(each, "name")), _get(each, "template", "spec")
        awaited = frozenset(_name(_get(other, "name")) for other in _items(each, "dependsOn"))
        stage = stages.setdefault(awaited, name)
        if in_order:
            stage = name if index else ""
        at_once = _count(_get(job, "parallelism"), 1)
        at_once = min(at_once, _count(_get(job, "completions"), at_once))
        jobs, scheduler = _count(_get(each, "replicas"), 1), _scheduler(_get(job, "template"))
        if _is_exclusive(meta.annotations, *(_get(each, *path, "annotations") for path in _JOBSET_TEMPLATES)):
            later = f"{stage}/{_FOLLOWERS}" if stage else _FOLLOWERS
            roles.append(Role(f"{name}/{_FOLLOWERS}", jobs * max(0, at_once - 1), scheduler, later))
            at_once = min(1, at_once)
            template = None  # its nodes are chosen when its first pod has a node
        else:
            template = _template(_get(job, "template"), meta)
        roles.append(Role(name, jobs * at_once, scheduler, stage, template))
    return Sizes(tuple(roles))


_JOBSET_TEMPLATES = (("template", "metadata"), ("template", "spec", "template", "metadata"))


def _is_exclusive(*annotations: Any) -> bool:
    """Whether the webhook of JobSet chooses the domain of a Job by its first pod."""
    keys = {key for found in annotations if isinstance(found, dict) for key in found}
    return names.JOBSET_EXCLUSIVE in keys and names.JOBSET_NODE_SELECTOR not in keys


def _replicated_job(labels: Mapping[str, str]) -> Sequence[str]:
    name = labels.get(names.JOBSET_REPLICATED_JOB, "")
    is_first = labels.get(names.COMPLETION_INDEX) == "0"
    return (name,) if is_first else (f"{name}/{_FOLLOWERS}", name)


# -- LeaderWorkerSet -----------------------------------------------------------------------------------------


def _leader_worker_set(spec: Any, meta: ObjectMeta) -> Sizes:
    """The workers of a group that must be near their leader are created when it has its node."""
    template = _get(spec, "leaderWorkerTemplate")
    worker = _get(template, "workerTemplate")
    later = _get(spec, "startupPolicy") == "LeaderReady" or bool(
        (meta.annotations or {}).get(names.LWS_EXCLUSIVE)
    )
    workers = _count(_get(template, "size"), 1) - 1
    return Sizes(
        (
            Role("leader", 1, _scheduler(_get(template, "leaderTemplate") or worker)),
            Role("worker", max(0, workers), _scheduler(worker), "workers" if later else ""),
        )
    )


def _leader_or_worker(labels: Mapping[str, str]) -> Sequence[str]:
    return ("leader" if labels.get(names.LWS_WORKER_INDEX) == "0" else "worker",)


def _group_size(sizes: Sizes, annotations: Mapping[str, str]) -> Sizes:
    """During an update, a group that is created again may have the size of the previous revision."""
    text = annotations.get(names.LWS_SIZE, "")
    if not _is_number(text):
        return sizes
    workers = max(0, int(text) - 1)
    return sizes._replace(
        roles=tuple(role._replace(pods=workers) if role.name == "worker" else role for role in sizes.roles)
    )


# -- Kubeflow ------------------------------------------------------------------------------------------------


def _replica_specs(field: str) -> Callable[[Any, ObjectMeta], Sizes]:
    def sizes(spec: Any, meta: ObjectMeta) -> Sizes:
        found = _get(spec, field)
        if not isinstance(found, dict) or len(found) > MAX_ROLES:
            raise _UnknownSizeError
        waits = _get(spec, "launcherCreationPolicy") == "WaitForWorkersReady"
        fewest = _get(spec, "elasticPolicy", "minReplicas")
        roles = []
        for name, each in found.items():
            pods = _count(_get(each, "replicas"), 1)
            if name == "Worker" and fewest is not None:
                pods = min(pods, _count(fewest, pods))
            stage = "launcher" if waits and name == "Launcher" else ""
            template = _get(each, "template")
            roles.append(Role(_name(name), pods, _scheduler(template), stage, _template(template, meta)))
        minimum = _get(spec, "runPolicy", "schedulingPolicy", "minAvailable")
        return Sizes(tuple(roles), None if minimum is None else max(1, _count(minimum, 1)))

    return sizes


def _replica_type(labels: Mapping[str, str]) -> Sequence[str]:
    return (labels.get(names.KUBEFLOW_REPLICA_TYPE) or labels.get(names.KUBEFLOW_JOB_ROLE, ""),)


def _kubeflow(
    kind: str, field: str, *versions: str, controller: str = "kubeflow.org/training-operator"
) -> Operator:
    """The published roles of Kubeflow let users write the status of these objects."""
    return Operator(
        "kubeflow.org",
        versions or ("v1",),
        kind,
        f"{kind.lower()}s",
        _replica_specs(field),
        _replica_type,
        suspend=("runPolicy", "suspend"),
        holds=True,
        managed_by=("runPolicy", "managedBy"),
        controller=controller,
        mark=names.KUBEFLOW_REPLICA_TYPE,
    )


# -- Ray -----------------------------------------------------------------------------------------------------

_HEAD = "headgroup"


def _ray_cluster(spec: Any, meta: ObjectMeta) -> Sizes:
    """A cluster with an autoscaler starts with as few workers as it may have, and grows as they fit."""
    scales = _get(spec, "enableInTreeAutoscaling") is True
    head = _get(spec, "headGroupSpec", "template")
    if scales:  # KubeRay adds containers; without them, the planned requests would be too small
        amounts = _get(spec, "autoscalerOptions", "resources")
        head = _with(head, "containers", amounts if isinstance(amounts, dict) else _AUTOSCALER)
    roles = [Role(_HEAD, 1, _scheduler(head), template=_template(head, meta))]
    for each in _items(spec, "workerGroupSpecs"):
        fewest, most = (_count(_get(each, key), default) for key, default in _RAY_BOUNDS)
        wanted = fewest if scales else _count(_get(each, "replicas"), fewest)
        replicas = 0 if _get(each, "suspend") is True else min(max(wanted, fewest), most)
        pods = replicas * max(1, _count(_get(each, "numOfHosts"), 1))
        template = _get(each, "template")
        role = Role(_name(_get(each, "groupName")), pods, _scheduler(template))
        waiting = _with(template, "initContainers", _WAIT_FOR_HEAD)
        roles.append(role._replace(template=_template(waiting, meta)))
    return Sizes(tuple(roles))


def _ray_job(spec: Any, meta: ObjectMeta) -> Sizes:
    """A job that names a cluster by its labels makes none."""
    return _ray_cluster(_get(spec, "rayClusterSpec"), meta)


def _with(template: Any, kind: str, resources: Any) -> Any:
    """A template with one more container."""
    spec = _get(template, "spec")
    there = _get(spec, kind)
    if not isinstance(spec, dict) or not isinstance(there or [], list):
        return template
    return {**template, "spec": {**spec, kind: [*(there or ()), {"resources": resources}]}}


_WAIT_FOR_HEAD = {"requests": {"cpu": "200m", "memory": "256Mi"}}
_AUTOSCALER = {"requests": {"cpu": "500m", "memory": "512Mi"}}
_RAY_BOUNDS = (("minReplicas", 0), ("maxReplicas", _MAX_PODS))


# -- Spark ---------------------------------------------------------------------------------------------------


def _spark(spec: Any, _: ObjectMeta) -> Sizes:
    """The driver creates the executors. With dynamic allocation their number changes, so each starts as it
    fits. The same applies if the driver creates more of them only after the first ones run."""
    pods = _count(_get(spec, "executor", "instances"), 1)
    if _get(spec, "dynamicAllocation", "enabled") is True or _most_pending(spec) < pods:
        pods = 0
    driver, executor = (_get(spec, each, "schedulerName") for each in ("driver", "executor"))
    return Sizes(
        (
            Role("driver", 1, driver if isinstance(driver, str) and driver else names.KUBE_SCHEDULER),
            Role(
                "executor",
                pods,
                executor if isinstance(executor, str) and executor else names.KUBE_SCHEDULER,
                EXECUTORS,
            ),
        )
    )


def _most_pending(spec: Any) -> int:
    """How many executors may be pending at a time. Before 3.1 it is one batch of them."""
    limits = [("maxPendingPods", _MAX_PODS)]
    version = _get(spec, "sparkVersion")
    if isinstance(version, str) and version.startswith(("2.", "3.0.")):
        limits.append(("batch.size", 5))
    found = ((_get(spec, "sparkConf", f"spark.kubernetes.allocation.{key}"), most) for key, most in limits)
    return min(int(text) if _is_number(text) else most for text, most in found)


# -- the table -----------------------------------------------------------------------------------------------

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "jobset.x-k8s.io",
        ("v1alpha2",),
        "JobSet",
        "jobsets",
        _job_set,
        _replicated_job,
        attempt=names.JOBSET_RESTART,
        holds=True,
        controller="jobset.sigs.k8s.io/jobset-controller",
        grants=True,
        mark=names.JOBSET_REPLICATED_JOB,
    ),
    Operator(
        "leaderworkerset.x-k8s.io",
        ("v1",),
        "LeaderWorkerSet",
        "leaderworkersets",
        _leader_worker_set,
        _leader_or_worker,
        _group_size,
        run=names.LWS_GROUP_INDEX,
        named=names.LWS_NAME,
    ),
    _kubeflow("MPIJob", "mpiReplicaSpecs", "v2beta1", "v1", controller="kubeflow.org/mpi-operator"),
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs"),
    _kubeflow("TFJob", "tfReplicaSpecs"),
    _kubeflow("JAXJob", "jaxReplicaSpecs"),
    _kubeflow("PaddleJob", "paddleReplicaSpecs"),
    _kubeflow("XGBoostJob", "xgbReplicaSpecs"),
    Operator(
        "trainer.kubeflow.org",
        ("v1alpha1",),
        "TrainJob",
        "trainjobs",
        None,
        _replicated_job,
        attempt=names.JOBSET_RESTART,
        holds=True,
        controller="trainer.kubeflow.org/trainjob-controller",
        mark=names.JOBSET_REPLICATED_JOB,
        made="JobSet",
    ),
    Operator(
        "ray.io",
        ("v1",),
        "RayCluster",
        "rayclusters",
        _ray_cluster,
        _label(names.RAY_GROUP),
        holds=True,
        controller="ray.io/kuberay-operator",
        grants=True,
        mark=names.RAY_GROUP,
    ),
    Operator(
        "ray.io",
        ("v1",),
        "RayJob",
        "rayjobs",
        None,
        _label(names.RAY_GROUP),
        holds=True,
        controller="ray.io/kuberay-operator",
        mark=names.RAY_GROUP,
        held_sizes=_ray_job,
    ),
    Operator("ray.io", ("v1",), "RayService", "rayservices"),
    Operator(
        "sparkoperator.k8s.io",
        ("v1beta2",),
        "SparkApplication",
        "sparkapplications",
        _spark,
        _label(names.SPARK_ROLE),
        named=names.SPARK_APPLICATION,
    ),
)

LISTED: dict[str, tuple[str, ...]] = {
    "jobset": (names.JOBSET_NAME,),
    "leaderworkerset": (names.LWS_NAME, names.LWS_GROUP_INDEX),
    "raycluster": (names.RAY_CLUSTER,),
}
"""The labels of pods that name their gang, for kinds whose pods have such a label."""

KUBEFLOW: dict[str, str] = {
    "mpi-operator": "mpijob",
    **{
        f"{kind}-controller": kind
        for kind in ("mpijob", "pytorchjob", "tfjob", "jaxjob", "paddlejob", "xgboostjob")
    },
}
"""The name of a Kubeflow operator on pods, and the kind of the object that creates them."""

EXECUTORS = "executors"  # the later stage of a SparkApplication
LISTED_KINDS = frozenset((*LISTED, *KUBEFLOW.values(), "sparkapplication", "trainjob", "rayjob"))


def listing_names(labels: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The names that admission may give to the gang of a pod, from its labels, as parts: see
    `fluence.admission.pod_groups`."""
    for kind, keys in LISTED.items():
        yield kind, *(labels.get(key, "") for key in keys)
    of_kubeflow = KUBEFLOW.get(labels.get(names.KUBEFLOW_OPERATOR, ""))
    if of_kubeflow is not None:
        yield of_kubeflow, labels.get(names.KUBEFLOW_JOB_NAME, "")
    if labels.get(names.SPARK_ROLE) == "executor":
        yield "sparkapplication", labels.get(names.SPARK_APPLICATION, ""), EXECUTORS


BY_KEY: dict[tuple[str, str], Operator] = {each.key: each for each in OPERATORS}
NAMED: tuple[Operator, ...] = tuple(each for each in OPERATORS if each.named)


def _classes() -> Iterator[tuple[tuple[str, str], type[CustomOwner]]]:
    for each in OPERATORS:
        fields = {"kind": each.kind, "operator": each}
        made = msgspec.defstruct(each.kind, [], bases=(CustomOwner,), frozen=True, namespace=fields)
        yield each.key, cast(type[CustomOwner], made)


CLASSES: dict[tuple[str, str], type[CustomOwner]] = dict(_classes())
