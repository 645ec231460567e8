"""Facts: what the doctor saw of a cluster, and what it could not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from fluence import names
from fluence.doctor.admission_facts import AdmissionFacts
from fluence.doctor.rights import Right
from fluence.doctor.seen import Seen
from fluence.kube.discovery import ServerVersion
from fluence.model.group import Group
from fluence.model.owner import Owner
from fluence.model.pod import Pod

_JUST_NOW = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class GangApiFacts:
    """The native gang API. ``version``: of those that Fluence knows, "" if none is served."""

    version: str = ""
    served: tuple[str, ...] = ()
    lost: tuple[str, ...] | None = None
    """The fields that pods in a group lose, by a dry run; None: it may not be tried."""
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """A right, and which of its verbs the account lacks."""

    right: Right
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RightFacts:
    """Whose rights were asked for."""

    account: str = ""
    is_own: bool = False
    """They are those of whoever asks, in place of a scheduler's account that ``unseen`` tells about."""
    answers: tuple[RightAnswer, ...] = ()
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class Installation:
    """A Deployment that runs `fluence scheduler run`. A setting is None where it cannot be seen."""

    namespace: str
    name: str
    account: str = "default"
    image: str = ""
    wanted: int = 1
    ready: int = 0
    scheduler_name: str | None = None
    lease: bool | None = None
    lease_key: str | None = None  # namespace/name
    opens_metrics: bool | None = None
    flux_jobs: bool | None = None
    devices_at: str | None = None  # the ConfigMap that declares devices, as namespace/name; "": none does
    release: str = ""  # helm's; "": not installed by helm
    selector: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def subject(self) -> str:
        """Its account, as the API server calls it."""
        return f"system:serviceaccount:{self.namespace}:{self.account}"


@dataclass(frozen=True, slots=True)
class Replica:
    """A pod of a Deployment of ours."""

    key: str
    image: str


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """A Lease that a Fluence scheduler wrote."""

    namespace: str
    name: str
    holder: str = ""
    scheduler_name: str | None = None  # None: written by a Fluence that did not say it
    acquired: datetime | None = None
    renewed: datetime | None = None
    duration_s: int = 15
    changed: bool | None = None
    """Whether it was renewed while we watched for a whole duration; None: there was no need to watch."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    def age_s(self, now: datetime) -> float | None:
        return None if self.renewed is None else (now - self.renewed).total_seconds()

    def is_alive(self, now: datetime) -> bool:
        """Somebody holds it and renews it."""
        if not self.holder:
            return False
        if self.changed is not None:
            return self.changed
        age = self.age_s(now)
        return age is not None and age <= self.duration_s


@dataclass(frozen=True, slots=True)
class EventReport:
    """Who reported an event in the scheduler's name, and when."""

    instance: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that the findings follow from."""

    now: datetime
    scheduler_name: str = "fluence"
    waits_s: float = 3600.0
    """How long a group may wait before it is named."""
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
    follows: tuple[str, ...] = ("Job", "Deployment", "ReplicaSet", "StatefulSet")
    has_groups: bool = False
    """The server has PodGroups, Kubernetes' own or the coscheduling plugin's."""
    systems: frozenset[str] = frozenset()
    """The other systems of which it has PodGroups."""

    @property
    def own(self) -> list[Installation]:
        """The Deployments of this scheduler name; those whose name cannot be seen are not among them."""
        return [each for each in self.installations.items if each.scheduler_name == self.scheduler_name]

    @property
    def own_leases(self) -> list[LeaseFacts]:
        """The leases of this scheduler name: they say so, or a Deployment of that name uses them."""
        used = {each.lease_key for each in self.own if each.lease}
        return [
            each
            for each in self.leases.items
            if each.scheduler_name == self.scheduler_name
            or (each.scheduler_name is None and each.key in used)
        ]

    def runs(self) -> bool | None:
        """Whether a scheduler of this name runs; None: it cannot be told."""
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
        """Somebody reported in the scheduler's name within a minute: perhaps one without a lease."""
        return any(self.now - each.at < _JUST_NOW for each in self.reports.items)

    @property
    def parameters(self) -> list[str]:
        """The HandOffs that the schedulers of this name keep, as far as their settings can be seen."""
        spaces = {each.lease_key.partition("/")[0] for each in self.own if each.lease_key}
        spaces |= {each.namespace for each in self.own_leases}
        return sorted(f"{each}/{names.ADMISSION_PARAMETERS}" for each in spaces)
