"""The text of every reason about limits, exactly as a user reads it."""

from __future__ import annotations

import pytest

from fluence.messages import text
from fluence.messages.queue import LIMITS
from fluence.model.reason import Code, Reason

SINCE = 1_788_264_180_000  # 2026-09-01 12:03 UTC

EXAMPLES = [
    (
        Reason.of(
            Code.WAITS_FOR_OVERRUN,
            kind="Job",
            namespace="default",
            name="train",
            more=0,
            limit=3_600_000,
            since=SINCE,
        ),
        ("Waiting for Job default/train, which exceeded its time limit of 1 h at 2026-09-01 12:03:00 UTC"),
    ),
    (
        Reason.of(Code.LIMIT_PASSED, limit=90_000, since=SINCE, ends=SINCE + 60_000),
        (
            "The job exceeded its time limit of 1 min 30 s at 2026-09-01 12:03:00 UTC: it will be "
            "ended at 2026-09-01 12:04:00 UTC"
        ),
    ),
    (
        Reason.of(Code.LIMIT_PASSED, limit=90_000, since=SINCE, ends=None),
        "The job exceeded its time limit of 1 min 30 s at 2026-09-01 12:03:00 UTC: it keeps running",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED, kind="Deployment", namespace="default", name="web", more=0),
        "Waiting for Deployment default/web, which has no time limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED, kind="Pod", namespace="default", name="a-0", more=2),
        "Waiting for pod default/a-0 and 2 more of its group, which has no time limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=(("Pod", 1),)),
        "Waiting for 1 pod of another namespace that has no time limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=(("Job", 3), ("Pod", 1))),
        "Waiting for 3 Jobs and 1 pod of other namespaces that have no time limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_OVERRUN_OF_OTHERS, holders=(("Job", 1),)),
        "Waiting for 1 Job of another namespace that exceeded its time limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_OVERRUN_OF_OTHERS, holders=(("workload", 2),)),
        "Waiting for 2 workloads of other namespaces that exceeded their time limits",
    ),
    (
        Reason.of(Code.ENDED_AT_LIMIT, limit=90_000, since=SINCE),
        "The job exceeded its time limit of 1 min 30 s at 2026-09-01 12:03:00 UTC and is ended",
    ),
    (
        Reason.of(Code.NOT_ENDED_AT_LIMIT, limit=90_000, since=SINCE, error="no"),
        (
            "The job exceeded its time limit of 1 min 30 s at 2026-09-01 12:03:00 UTC and could not "
            "be ended yet: no"
        ),
    ),
]


@pytest.mark.parametrize(("reason", "said"), EXAMPLES)
def test_what_a_user_reads(reason: Reason, said: str) -> None:
    assert text(reason) == said


def test_every_code_has_an_example() -> None:
    assert {reason.code for reason, _ in EXAMPLES} == set(LIMITS)
