"""Owners of pods (Job, Deployment, ReplicaSet, StatefulSet), and groups of pods.

Users may write any uid into an `ownerReferences` entry, so a uid alone proves nothing. An owner is identified
by its uid, namespace, kind and name together (`identity`), and a pod belongs to the owner whose identity it
names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import ClassVar

import msgspec

from fluence import names
from fluence.model.meta import Condition, LabelSelector, ObjectMeta, Wire, selector_matches
from fluence.model.pod import PodSpec


def identity(namespace: str, kind: str, name: str, uid: str) -> str:
    """The identity of an owner."""
    return f"{namespace}/{kind}/{name}/{uid}"


def controller_of(child: ObjectMeta) -> str:
    """The identity of the controller that an object names, or "". Owners are in the namespace of their
    objects, so the controller exists if an owner has this identity."""
    reference = child.controller_reference
    if reference is None:
        return ""
    return identity(child.namespace, reference.kind, reference.name, reference.uid)


class PodTemplate(Wire, frozen=True):
    """The pod template of an owner."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()


class OwnerSpec(Wire, frozen=True):
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


class OwnerStatus(Wire, frozen=True):
    succeeded: int | None = None  # Job
    failed: int | None = None  # Job
    ready: int | None = None  # Job: pods that run and are ready
    completed_indexes: str | None = None  # Job
    failed_indexes: str | None = None  # Job
    conditions: list[Condition] | None = None


class Owner(Wire, frozen=True):
    """An owner of pods. Lists omit the kind of their items, so the class has it."""

    kind: ClassVar[str] = ""

    metadata: ObjectMeta = ObjectMeta()
    spec: OwnerSpec = OwnerSpec()
    status: OwnerStatus = OwnerStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def identity(self) -> str:
        return identity(self.metadata.namespace, self.kind, self.metadata.name, self.metadata.uid)

    def claims(self, child: ObjectMeta) -> bool:
        """Whether an object belongs to this owner by both rules: it names this owner, and the selector of the
        owner matches its labels."""
        selector = self.spec.selector
        is_selected = selector is None or selector_matches(selector, child.labels or {})
        return is_selected and controller_of(child) == self.identity

    @property
    def pods(self) -> int:
        """How many pods it runs at a time; 0 counts as 1, as in flux-k8s."""
        spec = self.spec
        if spec.replicas is not None:
            return max(1, spec.replicas)
        at_once = spec.parallelism if spec.parallelism is not None else spec.completions
        if at_once is None:
            return 1
        # A Job never runs more pods than its completions.
        return max(1, at_once if spec.completions is None else min(at_once, spec.completions))

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def is_finished(self) -> bool:
        """Whether it creates no more pods: a Job that is complete, or has failed."""
        ends = ("Complete", "Failed")
        return any(
            condition.type in ends and condition.status == "True"
            for condition in self.status.conditions or ()
        )

    @property
    def is_ordered(self) -> bool:
        """Whether it creates a pod only when the previous one is ready."""
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
        """It has completed or failed, and creates no more pods."""
        return any(
            condition.type in ("Complete", "Failed") and condition.status == "True"
            for condition in self.status.conditions or ()
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
    """The owners of an object from the bottom up, as long as each claims the one below it."""
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


VOLCANO, KAI = "volcano", "kai"
_SYSTEMS = {"scheduling.volcano.sh": VOLCANO, "scheduling.run.ai": KAI}


def system_of(api: str) -> str:
    """The other system of an API group or version. Its PodGroups count only for pods that name them by a key
    of that system. "": Kubernetes itself, and the coscheduling plugin."""
    return _SYSTEMS.get(api.partition("/")[0], "")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One group of pods. ``min_count`` is None if the group is not a gang: its pods start one by one."""

    namespace: str
    name: str
    uid: str = ""
    min_count: int | None = None
    priority: int | None = None
    priority_class: str | None = None
    preemption_policy: str | None = None
    # True: the group is evicted as one unit; False: its pods may be evicted one by one.
    disrupt_together: bool = False
    topology_key: str | None = None
    workload: str | None = None
    template: str | None = None
    controller: str = ""  # the identity of the controller that made it, such as a Job's
    claims: tuple[str, ...] = ()
    # True once a condition says that the group has been scheduled; None without such a condition.
    is_scheduled: bool | None = None
    is_deleting: bool = False
    created: datetime | None = None
    annotations: dict[str, str] | None = None
    conditions: tuple[Condition, ...] = ()
    source: str = ""  # the API version, or the label, that this was read from

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def is_gang(self) -> bool:
        return self.min_count is not None

    @property
    def is_native(self) -> bool:
        """Whether it is of Kubernetes' own API."""
        return self.source.partition("/")[0] == "scheduling.k8s.io"

    @property
    def is_listing(self) -> bool:
        """Whether the scheduler created it, to list a gang that follows from labels and owners."""
        return self.name.endswith(names.POD_GROUP_SUFFIX) and names.MADE_FOR in (self.annotations or {})
