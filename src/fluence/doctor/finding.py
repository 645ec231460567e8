"""Finding: one line of the doctor's report, with a code that scripts may rely on."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Health(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    """It works, and somebody may want to know."""
    WRONG = "wrong"
    UNSEEN = "unseen"
    """Whoever asks may not look, so nothing is said."""


class Check(enum.StrEnum):
    """The codes, in the order in which they are shown. They are API: never renamed."""

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
    DOORS = "doors"
    FLUX_JOBS = "flux-jobs"
    PODS_WITHOUT_SCHEDULER = "pods-without-scheduler"
    WAITING_GROUPS = "waiting-groups"
    ORPHANED_GATES = "orphaned-gates"
    ANNOTATIONS = "annotations"


class DoctorFinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found: ``object`` is what it is about, ``cure`` a command or, where none can do it, what to
    do."""

    check: Check
    verdict: Health
    message: str
    object: str = ""
    cure: str = ""


def exit_code(findings: Iterable[DoctorFinding], *, strict: bool = False) -> int:
    """0: all was looked at and is right; 1: something is wrong; 2: nothing wrong in what could be seen."""
    verdicts = {each.verdict for each in findings}
    if Health.WRONG in verdicts or (strict and Health.WARN in verdicts):
        return 1
    return 2 if Health.UNSEEN in verdicts else 0
