"""Facts: what the doctor read from a cluster and what it could not read, and the findings that it reports."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, TypeVar

import msgspec

from fluence import names
from fluence.admission.certificates import EARLY
from fluence.doctor.rights import Right
from fluence.kube.resource import ServerVersion
from fluence.model.meta import LabelSelector, selector_matches
from fluence.model.node import Node
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The objects of a kind that were read. ``unseen`` is empty if these are all; otherwise it says what
    could not be read and why, and an object that is not among the items may still exist."""

    items: tuple[T, ...] = ()
    unseen: str = ""


EVERYWHERE = LabelSelector()
HELD = "-held"
"""The suffix of the scopes whose rules hold new work."""


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A MutatingAdmissionPolicy of Fluence."""

    name: str
    scope: str = "pods"
    schedulers: frozenset[str] = frozenset()  # the schedulers whose pods it changes
    hands_over: bool = True
    selector: LabelSelector = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding that puts a policy in force. ``parameters``: the HandOff that it reads, as namespace/name,
    or ""."""

    name: str
    policy: str
    parameters: str = ""
    selector: LabelSelector = EVERYWHERE


@dataclass(frozen=True, slots=True)
class Refusal:
    """A ValidatingAdmissionPolicy of Fluence, with its bindings."""

    name: str
    protects: str
    """`USERS_NAMES` or `QUEUES`."""
    flaw: str = ""  # why it does not refuse everything that it should; "": it does
    differs: str = ""  # what is not as in this release
    selector: LabelSelector = EVERYWHERE


USERS_NAMES = "users"
QUEUES = "queues"


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate by which the API server trusts a webhook."""

    begins: datetime
    ends: datetime

    def is_valid(self, now: datetime) -> bool:
        return self.begins <= now < self.ends

    def is_fresh(self, now: datetime) -> bool:
        """Whether it is not due for renewal. A webhook renews after two thirds of the time, so in the last
        quarter it is late."""
        return self.is_valid(now) and (self.ends - now) * 4 >= self.ends - self.begins - EARLY


@dataclass(frozen=True, slots=True)
class Hook:
    """One webhook of a MutatingWebhookConfiguration of Fluence."""

    configuration: str
    scope: str = "pods"
    schedulers: frozenset[str] = frozenset()
    selector: LabelSelector = EVERYWHERE
    service: str = ""  # namespace/name; "": it is called by a url
    authorities: tuple[Authority, ...] = ()
    refuses: bool = False
    """Objects are refused if it does not answer. Ours is configured otherwise."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The progress of the newest template of a Deployment."""

    updated: int | None = None  # updated replicas; None: the Deployment does not say
    stuck: str = ""  # why the Deployment controller has given up; "": it has not


@dataclass(frozen=True, slots=True)
class Backing:
    """The Deployment behind a webhook's Service. A setting is None if it cannot be read."""

    service: str
    exists: bool = True
    ready: int = 0
    deployment: str = ""  # namespace/name; "": none was found
    wanted: int = 1
    rollout: Rollout = Rollout()
    account: str = "default"
    scopes: tuple[str, ...] | None = None  # the scopes that it answers
    hands_over: bool | None = None
    parameters: str | None = None  # the HandOff that it reads

    @property
    def subject(self) -> str:
        """Its account, as the API server names it."""
        return f"system:serviceaccount:{self.service.partition('/')[0]}:{self.account}"


@dataclass(frozen=True, slots=True)
class Table:
    """A HandOff: the annotation that each variable carries, and whether pods get the PodGroup of their
    gang."""

    key: str
    variables: Mapping[str, str] = field(default_factory=dict)
    lists_gangs: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """The devices that the scheduler knows. ``at`` is a ConfigMap, as namespace/name, or "".

    ``variables`` are those that containers must get; None if they cannot be read.
    """

    at: str = ""
    types: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None
    fault: str = ""
    unseen: str = ""

    @property
    def has_devices(self) -> bool:
        return bool(self.types)


@dataclass(frozen=True, slots=True)
class Trial:
    """A dry run of a pod of a group that requests a device. ``variables``: those that it got; None: not
    tried. ``is_listed``: whether it got the PodGroup of its gang."""

    namespace: str = ""
    variables: tuple[str, ...] | None = None
    unseen: str = ""
    is_listed: bool = False
    submitter: str = ""  # who created it, as admission wrote it on the pod


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Everything about admission of new pods. Fields about what the server serves are None if that cannot be
    read."""

    has_policies: bool | None = None
    has_hand_offs: bool | None = None
    has_flux_jobs: bool | None = None
    dropped: tuple[str, ...] = ()  # fields of a FluxJob's status that the server would drop
    policies: Seen[Policy] = Seen()
    bindings: Seen[Binding] = Seen()
    hooks: Seen[Hook] = Seen()
    backings: Seen[Backing] = Seen()
    tables: Seen[Table] = Seen()
    spaces: Seen[Space] = Seen()
    declared: Declared = Declared()
    trial: Trial = Trial()
    refusals: Seen[Refusal] = Seen()
    queue_roles: Seen[str] = Seen()  # the ClusterRoles that give the right to use queues

    def bound(self, policy: Policy) -> list[Binding]:
        return [each for each in self.bindings.items if each.policy == policy.name]

    def backing(self, hook: Hook) -> Backing | None:
        return next((each for each in self.backings.items if each.service == hook.service), None)

    def policies_for(self, scheduler: str) -> list[Policy]:
        return [each for each in self.policies.items if scheduler in each.schedulers]

    def hooks_for(self, scheduler: str) -> list[Hook]:
        return [each for each in self.hooks.items if scheduler in each.schedulers]

    def applies(self, each: Policy | Hook, space: Space) -> bool:
        """Whether its rules hold for new objects in a namespace. A policy also needs a binding that does."""
        if not selector_matches(each.selector, space.labels):
            return False
        return isinstance(each, Hook) or any(
            selector_matches(one.selector, space.labels) for one in self.bound(each)
        )

    def hand_over(self, scheduler: str) -> list[Policy | Hook]:
        """The policies and webhooks that set the backend variables for this scheduler. A webhook counts
        unless its settings say otherwise."""
        found: list[Policy | Hook] = [
            each for each in self.policies_for(scheduler) if each.hands_over and each.scope.startswith("pods")
        ]
        for hook in self.hooks_for(scheduler):
            backing = self.backing(hook)
            says_no = backing is not None and backing.hands_over is False
            if hook.scope.startswith("pods") and not says_no:
                found.append(hook)
        return found

    def surely(self, each: Policy | Hook) -> bool:
        """Whether it certainly hands over. For a webhook, only its settings tell."""
        backing = None if isinstance(each, Policy) else self.backing(each)
        return isinstance(each, Policy) or (backing is not None and bool(backing.hands_over))

    @property
    def unseen(self) -> str:
        """What keeps the doctor from seeing all policies and webhooks."""
        return self.policies.unseen or self.hooks.unseen or self.bindings.unseen


_JUST_NOW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class GangApiFacts:
    """The native gang API. ``version``: the served version that Fluence knows, or ""."""

    version: str = ""
    served: tuple[str, ...] = ()
    lost: tuple[str, ...] | None = None
    """The fields that pods of a group lose, by a dry run; None if it may not be tried."""
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """A right, and which of its verbs the account lacks."""

    right: Right
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RightFacts:
    """The rights of an account."""

    account: str = ""
    is_own: bool = False
    """They are the rights of the user, because those of the scheduler's account cannot be read; ``unseen``
    says why."""
    answers: tuple[RightAnswer, ...] = ()
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """A Deployment that runs `fluence scheduler run`. A setting is None if it cannot be read."""

    namespace: str
    name: str
    account: str = "default"
    image: str = ""
    wanted: int = 1
    ready: int = 0
    rollout: Rollout = Rollout()
    scheduler_name: str | None = None
    lease: bool | None = None
    lease_key: str | None = None  # namespace/name
    opens_metrics: bool | None = None
    flux_jobs: bool | None = None
    users_policy: str | None = None
    devices_at: str | None = None  # the ConfigMap that declares devices, as namespace/name, or ""
    release: str = ""  # the Helm release; "": not installed by Helm
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def subject(self) -> str:
        """Its account, as the API server names it."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod of a Deployment of ours."""

    key: str
    image: str
    trouble: str = ""  # why a container does not run, such as CrashLoopBackOff; "": it runs or starts


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A Lease that a Fluence scheduler wrote."""

    namespace: str
    name: str
    holder: str = ""
    scheduler_name: str | None = None  # None: written by a version that does not record it
    acquired: datetime | None = None
    renewed: datetime | None = None
    duration_s: int = 15
    aliases: tuple[str, ...] = ()  # other scheduler names that choose this scheduler
    users_policy: str | None = None  # the setting of the scheduler that wrote it; None: it does not say
    changed: bool | None = None
    """Whether it was renewed while the doctor watched it for a whole duration; None: watching was not
    necessary."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def age_s(self, now: datetime) -> float | None:
        return None if self.renewed is None else (now - self.renewed).total_seconds()

    def is_alive(self, now: datetime) -> bool:
        """Whether it is held and renewed."""
        if not self.holder:
            return False
        if self.changed is not None:
            return self.changed
        age = self.age_s(now)
        return age is not None and age <= self.duration_s


@dataclass(frozen=True, slots=True)
class EventReport:
    """The instance that reported an event in the scheduler's name, and when."""

    instance: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that the findings depend on."""

    now: datetime
    scheduler_name: str = "fluence"
    waits_s: float = 3600.0
    """How long a group may wait before it is reported."""
    server: ServerVersion | None = None
    gang_api: GangApiFacts = GangApiFacts()
    gates: Mapping[str, bool] = field(default_factory=dict)
    gates_unseen: str = ""
    coscheduling: bool | None = None
    rights: RightFacts = RightFacts()
    webhook_rights: tuple[RightFacts, ...] = ()
    admission: AdmissionFacts = AdmissionFacts()
    installations: Seen[Installation] = Seen()
    replicas: Seen[Replica] = Seen()
    leases: Seen[LeaseFacts] = Seen()
    reports: Seen[EventReport] = Seen()
    pods: Seen[Pod] = Seen()
    groups: Seen[Group] = Seen()
    owners: Seen[Owner] = Seen()
    nodes: Seen[Node] = Seen()
    follows: tuple[str, ...] = ("Job", "Deployment", "ReplicaSet", "StatefulSet")
    has_groups: bool = False
    """The server has PodGroups, native ones or those of the coscheduling plugin."""
    systems: frozenset[str] = frozenset()
    """Other systems whose PodGroups the server has."""

    @property
    def own(self) -> list[Installation]:
        """The Deployments with this scheduler name, without those whose name cannot be read."""
        return [each for each in self.installations.items if each.scheduler_name == self.scheduler_name]

    @property
    def own_leases(self) -> list[LeaseFacts]:
        """The leases of this scheduler name: they record it, or a Deployment with that name uses them."""
        used = {each.lease_key for each in self.own if each.lease}
        return [
            each
            for each in self.leases.items
            if each.scheduler_name == self.scheduler_name
            or (each.scheduler_name is None and each.key in used)
        ]

    def runs(self) -> bool | None:
        """Whether a scheduler with this name runs; None if unknown."""
        if any(each.is_alive(self.now) for each in self.own_leases):
            return True
        if any(each.ready > 0 and each.lease is False for each in self.own):
            return True
        silent = any(each.scheduler_name is None and each.is_alive(self.now) for each in self.leases.items)
        unnamed = any(each.scheduler_name is None and each.ready for each in self.installations.items)
        unseen = self.installations.unseen or self.leases.unseen or self.reports.unseen
        return None if silent or unnamed or unseen or self.reported_just_now else False

    @property
    def reported_just_now(self) -> bool:
        """Whether an event was reported in the scheduler's name within a minute, perhaps by one without a
        lease."""
        return any(self.now - each.at < _JUST_NOW for each in self.reports.items)

    @property
    def runs_no_containers(self) -> bool:
        """Whether this is a sandbox whose nodes are all simulated: Deployments there look alive and do
        nothing."""
        return bool(self.nodes.items) and all(names.SIMULATED in node.labels for node in self.nodes.items)

    @property
    def users_policy(self) -> str | None:
        """The setting `users-policy` of the scheduler that leads or, without one, of its Deployment; None if
        it cannot be read."""
        leading = [each for each in self.own_leases if each.is_alive(self.now)]
        if self.leases.unseen or (not leading and self.installations.unseen):
            return None
        said = [each.users_policy for each in leading or self.own]
        return said[0] if said else ""

    @property
    def parameters(self) -> list[str]:
        """The HandOffs that the schedulers with this name keep, if their settings can be read. While one
        holds its lease, those that are installed elsewhere and do not run keep none."""
        spaces = {each.namespace for each in self.own_leases if each.is_alive(self.now)}
        if not spaces:
            spaces = {each.lease_key.partition("/")[0] for each in self.own if each.lease_key}
            spaces |= {each.namespace for each in self.own_leases}
        return sorted(f"{each}/{names.ADMISSION_PARAMETERS}" for each in spaces)


class Health(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, but there is something to know."""
    WRONG = "wrong"
    UNSEEN = "unseen"
    """The user may not read it, so there is no verdict."""


class Check(enum.StrEnum):
    """The codes, in the order in which they are shown. They are API and are never renamed."""

    SERVER_VERSION = "server-version"
    GANG_API = "gang-api"
    FEATURE_GATES = "feature-gates"
    COSCHEDULING = "coscheduling"
    RIGHTS = "rights"
    DEPLOYMENT = "deployment"
    REPLICA_VERSIONS = "replica-versions"
    LEASE = "lease"
    ONE_SCHEDULER = "one-scheduler"
    ADMISSION = "admission"
    WEBHOOK = "webhook"
    HAND_OFF = "hand-off"
    POD_GROUPS = "pod-groups"
    USERS_POLICY = "users-policy"
    QUEUE_ACCESS = "queue-access"
    OFFERED_RESOURCES = "offered-resources"
    UNSET_VARIABLES = "unset-variables"
    DOORS = "doors"
    FLUX_JOBS = "flux-jobs"
    PODS_WITHOUT_SCHEDULER = "pods-without-scheduler"
    WAITING_GROUPS = "waiting-groups"
    ORPHANED_GATES = "orphaned-gates"
    ANNOTATIONS = "annotations"


class DoctorFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """``object`` is the subject of the finding. ``cure`` is a command or, if no command can do it, an
    instruction."""

    check: Check
    verdict: Health
    message: str
    object: str = ""
    cure: str = ""


def exit_code(findings: Iterable[DoctorFinding], *, strict: bool = False) -> int:
    """0: everything was checked and is right; 1: something is wrong; 2: nothing wrong in what could be
    read."""
    verdicts = {each.verdict for each in findings}
    if Health.WRONG in verdicts or (strict and Health.WARN in verdicts):
        return 1
    return 2 if Health.UNSEEN in verdicts else 0
