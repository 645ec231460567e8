"""Owner: what makes pods, and how many of them: Job, Deployment, ReplicaSet, StatefulSet.

Anybody may write any uid into an `ownerReferences` entry, so a uid alone proves nothing: an owner is known by
its uid, namespace, kind and name together (`identity`), and a child is a child of the owner whose identity it
names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from fluence.model.meta import Condition, LabelSelector, ObjectMeta, Wire, selector_matches
from fluence.model.pod import PodSpec


def identity(namespace: str, kind: str, name: str, uid: str) -> str:
    """What an owner is known by."""
    return f"{namespace}/{kind}/{name}/{uid}"


def controller_of(child: ObjectMeta) -> str:
    """The identity of the controller that an object names; nothing if it names none. It exists if an owner
    has this identity: owners are in the namespace of what they own."""
    for each in child.owner_references or ():
        if each.controller:
            return identity(child.namespace, each.kind, each.name, each.uid)
    return ""


class PodTemplate(Wire, frozen=True):
    """What an owner makes its pods from."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class _Spec(Wire, frozen=True):
    parallelism: int | None = None  # Job
    completions: int | None = None  # Job
    replicas: int | None = None  # the others
    pod_management_policy: str | None = None  # StatefulSet; None: as the server has it, OrderedReady
    suspend: bool = False  # Job
    active_deadline_seconds: int | None = None  # Job
    completion_mode: str | None = None  # Job; Indexed: each pod has an index
    managed_by: str | None = None  # Job; the controller that makes its pods, None: the Job controller
    selector: LabelSelector | None = None
    template: PodTemplate | None = None


class _Status(Wire, frozen=True):
    succeeded: int | None = None  # Job
    failed: int | None = None  # Job
    completed_indexes: str | None = None  # Job
    failed_indexes: str | None = None  # Job
    conditions: list[Condition] | None = None


class Owner(Wire, frozen=True):
    """Lists leave out the kind of their items, so it is the class that knows it."""

    kind: ClassVar[str] = ""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def identity(self) -> str:
        return identity(self.metadata.namespace, self.kind, self.metadata.name, self.metadata.uid)

    def claims(self, child: ObjectMeta) -> bool:
        """Whether an object is this owner's child by both accounts: it names this owner, and has the labels
        by which the owner's controller finds its children."""
        selector = self.spec.selector
        found = selector is None or selector_matches(selector, child.labels or {})
        return found and controller_of(child) == self.identity

    @property
    def pods(self) -> int:
        """How many pods it runs at a time; 0 counts as 1, as in flux-k8s."""
        spec = self.spec
        if spec.replicas is not None:
            return max(1, spec.replicas)
        at_once = spec.parallelism if spec.parallelism is not None else spec.completions
        if at_once is None:
            return 1
        # A Job never runs more pods than it still has to complete.
        return max(1, at_once if spec.completions is None else min(at_once, spec.completions))

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def is_finished(self) -> bool:
        """Whether it makes no pod any more: a Job that is complete, or has failed."""
        ends = ("Complete", "Failed")
        return any(each.type in ends and each.status == "True" for each in self.status.conditions or ())

    @property
    def is_ordered(self) -> bool:
        """Whether it makes a pod only when the one before it is ready."""
        return False

    @property
    def succeeded(self) -> int:
        return self.status.succeeded or 0

    @property
    def remaining(self) -> int | None:
        """How many completions are left; None if it does not count them."""
        if self.spec.completions is None:
            return None
        return max(0, self.spec.completions - self.succeeded)


class Job(Owner, frozen=True):
    kind: ClassVar[str] = "Job"

    @property
    def is_finished(self) -> bool:
        """It has completed or failed, and makes no more pods."""
        return any(
            each.type in ("Complete", "Failed") and each.status == "True"
            for each in self.status.conditions or ()
        )


class Deployment(Owner, frozen=True):
    kind: ClassVar[str] = "Deployment"


class ReplicaSet(Owner, frozen=True):
    kind: ClassVar[str] = "ReplicaSet"


class StatefulSet(Owner, frozen=True):
    kind: ClassVar[str] = "StatefulSet"

    @property
    def is_ordered(self) -> bool:
        return self.pods > 1 and self.spec.pod_management_policy != "Parallel"


def claimed_by(child: ObjectMeta, owners: Iterable[Owner]) -> Iterator[Owner]:
    """Of an object's owner and those above it, as many as claim the one below."""
    for owner in owners:
        if not owner.claims(child):
            return
        yield owner
        child = owner.metadata


# By API version and kind: another group may have a kind of the same name.
OWNERS: dict[tuple[str, str], type[Owner]] = {
    ("batch/v1", "Job"): Job,
    ("apps/v1", "Deployment"): Deployment,
    ("apps/v1", "ReplicaSet"): ReplicaSet,
    ("apps/v1", "StatefulSet"): StatefulSet,
}
