"""Workloads: what a user submitted and admission held back, one FluxJob each; pure functions of objects.

A workload is the object that nobody else's FluxJob stands for: a Deployment and not its ReplicaSets, a Job
and not its pods, a pod that has no owner which is followed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fluence.controller.flux_job import TYPES, FluxJobSpec
from fluence.model.held import is_cancelled, is_ours, is_seen, places_us
from fluence.model.meta import OwnerReference
from fluence.model.owner import OWNERS, Owner, identity
from fluence.model.pod import Pod
from fluence.model.resources import pod_requests
from fluence.schedule.gang import Gang
from fluence.schedule.stand_in import is_stand_in, stand_in

_VERSIONS = {kind: version for version, kind in OWNERS}
_LONGEST_NAME = 253  # of an object: RFC 1123, a subdomain
_HASH = 10
_MOST_SECONDS = (1 << 31) - 1
_WORDS = ("true", "false", "yes", "no", "on", "off", "y", "n", "null")  # that YAML takes for something else
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
    """The name of the FluxJob of a workload; a long one is cut, and has a hash so that it stays the only
    one."""
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
        return "v1" if isinstance(self.object, Pod) else _VERSIONS[self.kind]

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
        """Whether its owner changed something, and not only its state."""
        now, then = self.object, before.object
        return (now.metadata.labels, now.metadata.annotations, now.spec) != (
            *(then.metadata.labels, then.metadata.annotations, then.spec),
        )

    @property
    def reference(self) -> OwnerReference:
        return OwnerReference(
            api_version=self.api_version, kind=self.kind, name=self.name, uid=self.uid, controller=True
        )

    def member(self) -> Pod:
        """A pod by which its gang can be found."""
        return self.object if isinstance(self.object, Pod) else stand_in(self.object, 0)


def workload_of(found: Pod | Owner, scheduler: str) -> Workload | None:
    """The workload that an object is; None: it is none that was held back, or part of another."""
    followed = any(
        ref.controller and (ref.api_version, ref.kind) in OWNERS
        for ref in found.metadata.owner_references or ()
    )
    if followed or not is_seen(found):
        return None
    if isinstance(found, Pod):
        return Workload(found) if is_ours(found, scheduler) and not is_stand_in(found) else None
    return Workload(found) if places_us(found, scheduler) else None


def spec_of(workload: Workload, gang: Gang | None) -> FluxJobSpec:
    """What its FluxJob says of it."""
    pods = _size(workload)
    limit = gang.limit if gang is not None else None
    seconds = 0 if limit is None else min(-(-limit // 1000), _MOST_SECONDS)
    return FluxJobSpec(
        jobspec=_jobspec(workload, pods, seconds),
        type=TYPES[workload.kind],
        name=workload.name,
        duration=seconds,
        nodes=pods,
    )


def _size(workload: Workload) -> int:
    found = workload.object
    if isinstance(found, Pod):
        return 1
    spec = found.spec
    if spec.replicas is not None:
        return spec.replicas
    return 0 if spec.parallelism == 0 else found.pods


def _jobspec(workload: Workload, pods: int, seconds: int) -> str:
    """The jobspec that fluxqueue writes: so many nodes with a slot of whole cores each. What is planned with
    are the pods themselves, with all that they ask for."""
    cores = -(-pod_requests(workload.member()).get("cpu", 0) // 1000)
    # NB a general YAML writer takes a millisecond, and ten thousand workloads are looked at in one go.
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
