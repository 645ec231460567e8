"""A healthy cluster as the doctor sees it; tests change one thing of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fluence import names
from fluence.doctor.diagnose import diagnose
from fluence.doctor.facts import (
    QUEUES,
    USERS_NAMES,
    AdmissionFacts,
    Authority,
    Backing,
    Binding,
    Check,
    ClusterFacts,
    Declared,
    DoctorFinding,
    GangApiFacts,
    Health,
    Hook,
    Installation,
    LeaseFacts,
    Policy,
    Refusal,
    Replica,
    RightAnswer,
    RightFacts,
    Seen,
    Space,
    Table,
    Trial,
)
from fluence.doctor.rights import hand_off_rights, needed_rights
from fluence.kube.resource import ServerVersion
from fluence.model.external_resources import BASE
from fluence.model.meta import Condition, LabelSelector, ObjectMeta, Requirement
from fluence.model.pod import Pod, PodSpec, PodStatus, SchedulingGate

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ACCOUNT = "system:serviceaccount:fluence-system:fluence-scheduler"
GATES = {"GenericWorkload": True, "GangScheduling": True, "WorkloadAwarePreemption": True}


def ago(**parts: float) -> datetime:
    return NOW - timedelta(**parts)


INSTALLED = Installation(
    namespace="fluence-system",
    name="fluence",
    account="fluence-scheduler",
    image="fluence:0.1.0",
    wanted=2,
    ready=2,
    scheduler_name="fluence",
    lease=True,
    lease_key="fluence-system/fluence",
    opens_metrics=False,
    flux_jobs=True,
    users_policy="fluence-users",
    devices_at="kube-system/fluence-resources",
    release="fluence",
)
LEASE = LeaseFacts(
    "fluence-system",
    "fluence",
    holder="host_1",
    scheduler_name="fluence",
    acquired=ago(hours=1),
    renewed=ago(seconds=1),
    users_policy="fluence-users",
)
HAND_OFF = "fluence-system/fluence-admission"
OURS = frozenset(("fluence",))
NOT_HELD, HELD = (
    LabelSelector(
        match_expressions=[Requirement(key=names.NAMESPACE_OPT_IN, operator=each, values=["enabled"])]
    )
    for each in ("NotIn", "In")
)
POLICY = Policy("fluence-pods", "pods", OURS, selector=NOT_HELD)
BINDING = Binding("fluence-pods", "fluence-pods", HAND_OFF)
AUTHORITY = Authority(ago(days=5), ago(days=-25))
HOOK = Hook(
    "fluence-webhook",
    "pods",
    OURS,
    NOT_HELD,
    service="fluence-system/fluence-webhook",
    authorities=(AUTHORITY, AUTHORITY),
)
BACKING = Backing(
    HOOK.service,
    ready=2,
    deployment="fluence-system/fluence-webhook",
    wanted=2,
    account="fluence-webhook",
    scopes=("pods", "workloads"),
    hands_over=True,
    parameters=HAND_OFF,
)
NAMES = Refusal("fluence-users", USERS_NAMES)
ACCESS = Refusal("fluence-queue-access", QUEUES)
VARIABLES = {**BASE, "FLUXION_VENDOR": f"{names.ATTRIBUTE}vendor"}
ADMISSION = AdmissionFacts(
    has_policies=True,
    has_hand_offs=True,
    has_flux_jobs=True,
    policies=Seen((POLICY,)),
    bindings=Seen((BINDING,)),
    tables=Seen((Table(HAND_OFF, VARIABLES),)),
    spaces=Seen((Space("default"), Space("team"))),
    declared=Declared("kube-system/fluence-resources", ("qpu", "qubit"), VARIABLES),
    trial=Trial("default", tuple(VARIABLES), submitter="ada"),
    refusals=Seen((NAMES, ACCESS)),
    queue_roles=Seen(("use-queue-physics",)),
)
HEALTHY = ClusterFacts(
    now=NOW,
    server=ServerVersion("v1.36.4", "1", "36"),
    gang_api=GangApiFacts("v1alpha2", ("v1", "v1alpha2"), ()),
    gates=GATES,
    coscheduling=False,
    rights=RightFacts(
        ACCOUNT,
        answers=tuple(
            RightAnswer(each)
            for each in (
                *needed_rights(lease="fluence-system/fluence", metrics=False),
                *hand_off_rights("fluence-system"),
            )
        ),
    ),
    admission=ADMISSION,
    installations=Seen((INSTALLED,)),
    replicas=Seen(
        (Replica("fluence-system/a", "fluence:0.1.0"), Replica("fluence-system/b", "fluence:0.1.0"))
    ),
    leases=Seen((LEASE,)),
    has_groups=True,
)


def having(**changes: Any) -> ClusterFacts:
    return replace(HEALTHY, **changes)


def admitting(**changes: Any) -> ClusterFacts:
    return having(admission=replace(ADMISSION, **changes))


def by_webhook(**changes: Any) -> ClusterFacts:
    """The webhook in place of policies."""
    parts = {"policies": Seen(), "bindings": Seen(), "hooks": Seen((HOOK,)), "backings": Seen((BACKING,))}
    return admitting(**{**parts, **changes})


def found(facts: ClusterFacts, check: Check) -> list[DoctorFinding]:
    """What a check says beside "ok"."""
    return [each for each in diagnose(facts) if each.check is check and each.verdict is not Health.OK]


def the(facts: ClusterFacts, check: Check) -> DoctorFinding:
    (one,) = found(facts, check)
    return one


def pod(
    name: str,
    *,
    scheduler: str = "fluence",
    made: datetime | None = None,
    node: str | None = None,
    gate: str | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    told: str = "",
) -> Pod:
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message=told)
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=name,
            creation_timestamp=made or ago(minutes=1),
            labels=labels,
            annotations=annotations,
        ),
        spec=PodSpec(
            scheduler_name=scheduler,
            node_name=node,
            scheduling_gates=[SchedulingGate(name=gate)] if gate else None,
        ),
        status=PodStatus(phase="Pending", conditions=[condition] if told else None),
    )
