"""The text of every reason about limits, exactly as a user reads it."""

from __future__ import annotations

import pytest

from fluence.messages import text
from fluence.messages.limits import LIMITS
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
        "waits for Job default/train, which runs past its limit of 1 h since 2026-09-01 12:03:00 UTC",
    ),
    (
        Reason.of(Code.LIMIT_PASSED, limit=90_000, since=SINCE, ends=SINCE + 60_000),
        (
            "it runs past its limit of 1 min 30 s since 2026-09-01 12:03:00 UTC: it will be ended at "
            "2026-09-01 12:04:00 UTC"
        ),
    ),
    (
        Reason.of(Code.LIMIT_PASSED, limit=90_000, since=SINCE, ends=None),
        "it runs past its limit of 1 min 30 s since 2026-09-01 12:03:00 UTC: nothing ends it",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED, kind="Deployment", namespace="default", name="web", more=0),
        "start unknown: waits for Deployment default/web, which has no limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED, kind="Pod", namespace="default", name="a-0", more=2),
        "start unknown: waits for pod default/a-0 and 2 more of its group, which has no limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=(("Pod", 1),)),
        "start unknown: waits for 1 pod of another namespace that has no limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=(("Job", 3), ("Pod", 1))),
        "start unknown: waits for 3 Jobs and 1 pod of other namespaces that have no limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_OVERRUN_OF_OTHERS, holders=(("Job", 1),)),
        "waits for 1 Job of another namespace that runs past its limit",
    ),
    (
        Reason.of(Code.WAITS_FOR_OVERRUN_OF_OTHERS, holders=(("workload", 2),)),
        "waits for 2 workloads of other namespaces that run past their limits",
    ),
    (
        Reason.of(Code.ENDED_AT_LIMIT, limit=90_000, since=SINCE),
        "it ran past its limit of 1 min 30 s since 2026-09-01 12:03:00 UTC, and is ended",
    ),
    (
        Reason.of(Code.NOT_ENDED_AT_LIMIT, limit=90_000, since=SINCE, error="no"),
        "it runs past its limit of 1 min 30 s since 2026-09-01 12:03:00 UTC, and could not be ended yet: no",
    ),
]


@pytest.mark.parametrize(("reason", "said"), EXAMPLES)
def test_what_a_user_reads(reason: Reason, said: str) -> None:
    assert text(reason) == said


def test_every_code_has_an_example() -> None:
    assert {reason.code for reason, _ in EXAMPLES} == set(LIMITS)
