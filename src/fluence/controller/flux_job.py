"""FluxJob: the API object that shows a held workload in the queue, and the workloads that have one.

Group, kind, fields, status strings and name suffixes are those of fluxqueue, so that programs which read its
FluxJobs can read these. The rest of the status is new. Users do not create FluxJobs: they submit a workload.

A workload is the topmost object: a Deployment and not its ReplicaSets, a JobSet and not its Jobs, a Job and
not its pods, a pod without a known owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from dataclasses import dataclass

import msgspec

from fluence import names
from fluence.kube.resource import Json, Resource
from fluence.model.grant import is_cancelled, is_for_this_scheduler, is_held_by_admission, is_ours
from fluence.model.meta import Condition, ObjectMeta, OwnerReference, Wire
from fluence.model.operators import BY_KEY, CustomOwner
from fluence.model.owner import OWNERS, Job, Owner, controller_of, identity
from fluence.model.pod import Pod, pod_requests
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.queueing.placeholder import is_held_operator, is_placeholder, placeholder, reference

GROUP = "jobs.converged-computing.org"
VERSION = "v1alpha1"
MANAGER = "fluence-controller"

TYPES = {"Pod": 0, "Job": 1, "Deployment": 2, "ReplicaSet": 3, "StatefulSet": 4}
"""The number of each kind of workload in `spec.type`."""
OPERATOR = 5
"""The number for the objects of all operators. The owner reference says which kind it is."""


class FluxJobSpec(Wire, frozen=True):
    jobspec: str = ""
    type: int = 0
    name: str = ""
    duration: int = 0  # seconds; 0: no limit
    reservation: bool = False
    nodes: int = 0  # how many pods it has


class FluxCondition(Condition, frozen=True):
    observed_generation: int = 0


class FluxJobStatus(Wire, frozen=True):
    submit_status: str = ""
    phase: str = ""
    position: int | None = None
    reason: str = ""
    message: str = ""
    queued: str | None = None  # to the microsecond: orders workloads created in the same second
    no_later_than: str | None = None
    expected: str | None = None
    started: str | None = None
    start: str | None = None  # when it started, or its promised start
    nodes: list[str] | None = None
    allocation: str = ""
    conditions: list[FluxCondition] | None = None


class FluxJob(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: FluxJobSpec = FluxJobSpec()
    status: FluxJobStatus = FluxJobStatus()

    @property
    def owner(self) -> OwnerReference | None:
        """The workload of the FluxJob."""
        return self.metadata.controller_reference

    @property
    def workload(self) -> str:
        """The identity of the workload that the FluxJob names as its owner."""
        return controller_of(self.metadata)

    @property
    def is_leaving(self) -> bool:
        return self.metadata.deletion_timestamp is not None


FLUX_JOBS = Resource(GROUP, VERSION, "fluxjobs", "FluxJob", FluxJob)


class SubmitStatus:
    """The values of `status.submitStatus`, from fluxqueue."""

    NEW = "statusNew"
    SUBMIT = "statusSubmit"
    ERROR = "statusError"
    CANCEL = "statusCancel"


def applied(name: str, namespace: str, spec: FluxJobSpec, owner: OwnerReference) -> Json:
    """The object to apply, without the status."""
    reference = {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "FluxJob",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {names.SEEN: names.SEEN_YES},
            "ownerReferences": [reference],
        },
        "spec": {
            "jobspec": spec.jobspec,
            "type": spec.type,
            "name": spec.name,
            "duration": spec.duration,
            "reservation": spec.reservation,
            "nodes": spec.nodes,
        },
    }


def applied_status(name: str, namespace: str, status: FluxJobStatus) -> Json:
    """The status to apply."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "FluxJob",
        "metadata": {"name": name, "namespace": namespace},
        "status": msgspec.to_builtins(status),
    }


_LONGEST_NAME = 253  # of an object: RFC 1123, a subdomain
_HASH = 10
_MOST_SECONDS = (1 << 31) - 1
_WORDS = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")  # that YAML does not read as text
_JOBSPEC = """\
attributes:
  system:
    duration: {seconds}
resources:
- count: {pods}
  type: node
  with:
  - count: 1
    label: {name}
    type: slot
    with:
    - count: {cores}
      type: core
tasks:
- command:
  - echo
  - {namespace}
  - {name}
  count:
    per_slot: 1
  slot: {name}
version: 1
"""


def flux_job_name(kind: str, name: str) -> str:
    """The name of the FluxJob of a workload. A long one is cut, and gets a hash so that it stays unique."""
    suffix = f"-{kind.lower()}"
    if len(name) + len(suffix) > _LONGEST_NAME:
        suffix = f"-{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}{suffix}"
        return name[: _LONGEST_NAME - len(suffix)].rstrip("-.") + suffix
    return name + suffix


@dataclass(frozen=True, slots=True)
class Workload:
    """An object that has a FluxJob."""

    object: Pod | Owner

    @property
    def kind(self) -> str:
        return "Pod" if isinstance(self.object, Pod) else self.object.kind

    @property
    def api_version(self) -> str:
        return "v1" if isinstance(self.object, Pod) else self.reference.api_version

    @property
    def is_written(self) -> bool:
        """Whether we may write to it. Operators' objects that admission cannot hold are only read."""
        return not isinstance(self.object, CustomOwner) or is_held_operator(self.object)

    @property
    def is_suspendable(self) -> bool:
        """Whether it can be suspended: its pods end and the object stays."""
        found = self.object
        return is_held_operator(found) if isinstance(found, CustomOwner) else isinstance(found, Job)

    @property
    def name(self) -> str:
        return self.object.metadata.name

    @property
    def namespace(self) -> str:
        return self.object.metadata.namespace

    @property
    def uid(self) -> str:
        return self.object.metadata.uid

    @property
    def flux_job(self) -> str:
        """The name of its FluxJob."""
        return flux_job_name(self.kind, self.name)

    @property
    def identity(self) -> str:
        return identity(self.namespace, self.kind, self.name, self.uid)

    @property
    def is_cancelled(self) -> bool:
        return is_cancelled(self.object)

    @property
    def is_leaving(self) -> bool:
        return self.object.metadata.deletion_timestamp is not None

    def differs(self, before: Workload) -> bool:
        """Whether its user changed something, and not only its state."""
        now, then = self.object, before.object
        return (now.metadata.labels, now.metadata.annotations, now.spec) != (
            *(then.metadata.labels, then.metadata.annotations, then.spec),
        )

    @property
    def reference(self) -> OwnerReference:
        found = self.object
        if isinstance(found, Pod):
            return OwnerReference(api_version="v1", kind="Pod", name=self.name, uid=self.uid, controller=True)
        return reference(found)

    def member(self) -> Pod | None:
        """A pod that belongs to its gang, if that is known before it has pods."""
        found = self.object
        if isinstance(found, CustomOwner):
            return placeholder(found, 0) if is_held_operator(found) and found.planned() else None
        return found if isinstance(found, Pod) else placeholder(found, 0)


def workload_of(found: Pod | Owner, scheduler: str, follows: Container[str] = ()) -> Workload | None:
    """The workload of an object; None if it was not held, or is part of another workload. ``follows``: the
    kinds of operators' objects that are watched."""
    controller = found.metadata.controller_reference
    if (controller is not None and _is_followed(controller, follows)) or not is_held_by_admission(found):
        return None
    if isinstance(found, CustomOwner):
        return Workload(found)
    if isinstance(found, Pod):
        return Workload(found) if is_ours(found, scheduler) and not is_placeholder(found) else None
    return Workload(found) if is_for_this_scheduler(found, scheduler) else None


def _is_followed(ref: OwnerReference, follows: Container[str]) -> bool:
    group = ref.api_version.rpartition("/")[0]
    return (ref.api_version, ref.kind) in OWNERS or ((group, ref.kind) in BY_KEY and ref.kind in follows)


def spec_of(workload: Workload, gang: Gang | None) -> FluxJobSpec:
    """The spec of its FluxJob."""
    pods = _size(workload)
    limit = gang.limit if gang is not None else None
    seconds = 0 if limit is None else min(-(-limit // 1000), _MOST_SECONDS)
    return FluxJobSpec(
        jobspec=_jobspec(workload, pods, seconds),
        type=TYPES.get(workload.kind, OPERATOR),
        name=workload.name,
        duration=seconds,
        nodes=pods,
    )


def _size(workload: Workload) -> int:
    found = workload.object
    if isinstance(found, Pod):
        return 1
    if isinstance(found, CustomOwner):
        return found.pods
    spec = found.spec
    if spec.replicas is not None:
        return spec.replicas
    return 0 if spec.parallelism == 0 else found.pods


def _jobspec(workload: Workload, pods: int, seconds: int) -> str:
    """The jobspec that fluxqueue writes: a number of nodes, each with a slot of whole cores. The plan does
    not use it: it uses the pods with all their requests."""
    member = workload.member()
    cores = 0 if member is None else -(-pod_requests(member).get("cpu", 0) // 1000)
    # A general YAML writer takes a millisecond, and ten thousand workloads are compared in one go.
    return _JOBSPEC.format(
        seconds=seconds,
        pods=max(1, pods),
        cores=max(1, cores),
        namespace=_scalar(workload.namespace),
        name=_scalar(workload.name),
    )


def _scalar(name: str) -> str:
    """A name of Kubernetes as YAML that is read as text."""
    return name if name[:1].isalpha() and name not in _WORDS else f"'{name}'"
