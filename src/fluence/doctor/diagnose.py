"""Diagnose: what follows from the facts, in the order in which it is best cured. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fluence.doctor.admission_checks import check_admission
from fluence.doctor.door_checks import check_doors
from fluence.doctor.facts import ClusterFacts
from fluence.doctor.finding import Check, DoctorFinding, Health
from fluence.doctor.pod_checks import check_pods
from fluence.doctor.scheduler_checks import check_scheduler
from fluence.doctor.server_checks import check_server

_ORDER: dict[Check | Health, int] = {check: place for place, check in enumerate(Check)}
_ORDER |= {each: i for i, each in enumerate((Health.WRONG, Health.WARN, Health.UNSEEN, Health.OK))}


def diagnose(facts: ClusterFacts) -> Sequence[DoctorFinding]:
    """All findings; each check has at least one, so that its absence is never taken for health."""
    found = [
        *check_server(facts),
        *check_scheduler(facts),
        *check_admission(facts),
        *check_doors(facts),
        *check_pods(facts),
    ]
    return sorted(found, key=lambda each: (_ORDER[each.check], _ORDER[each.verdict]))
