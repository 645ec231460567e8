"""FluxJob: the API object that shows a held workload in the queue.

Group, kind, fields, status strings and name suffixes are those of fluxqueue, so that programs which read its
FluxJobs can read these. The rest of the status is new. Users do not create FluxJobs: they submit a workload.
"""

from __future__ import annotations

import msgspec

from fluence import names
from fluence.kube.resource import Json, Resource
from fluence.model.meta import Condition, ObjectMeta, OwnerReference, Wire
from fluence.model.owner import controller_of

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
