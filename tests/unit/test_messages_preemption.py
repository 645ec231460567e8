"""The text of every reason about preemption, exactly as a user reads it."""

from __future__ import annotations

import pytest

from fluence.messages import text
from fluence.messages.queue import PREEMPTION
from fluence.model.reason import Code, Reason

AT = 1_788_264_180_000  # 2026-09-01 12:03 UTC

EXAMPLES = [
    (Reason.of(Code.PREEMPTING, pods=1, on=("n1",)), "Preempting 1 pod of lower priority on node n1"),
    (
        Reason.of(Code.PREEMPTING, pods=2, on=("n1", "n2")),
        "Preempting 2 pods of lower priority on nodes n1, n2",
    ),
    (
        Reason.of(Code.PREEMPTING, pods=1, on=("n1",), at=AT),
        "Preempting 1 pod of lower priority on node n1 for a start at 2026-09-01 12:03:00 UTC",
    ),
    (Reason.of(Code.PREEMPTING, pods=1, on=("n1",), reclaims=True), "Preempting 1 pod on node n1"),
    (Reason.of(Code.WAITS_FOR_ENDING, on=("n1",)), "Waiting for pods to terminate on node n1"),
    (
        Reason.of(Code.PREEMPTED, pod="solver", namespace="lab", priority=1000, own=0, lost=95_000),
        "Preempted by pod lab/solver of priority 1000; its own priority is 0; 1m35s of its work is lost",
    ),
    (
        Reason.of(Code.PREEMPTED_FOR_OTHERS, priority=1000, own=0, lost=0),
        "Preempted by a pod of another namespace of priority 1000; its own priority is 0",
    ),
    (
        Reason.of(Code.NOT_PREEMPTED, error="403 Forbidden"),
        "It is to end for work of higher priority and could not be ended yet: 403 Forbidden",
    ),
    (Reason.of(Code.PREEMPTION_IS_OFF, queue=""), "Preemption is off"),
    (Reason.of(Code.PREEMPTION_IS_OFF, queue="batch"), "Preemption is off for queue batch"),
    (Reason.of(Code.PREEMPTION_NEVER), "It does not preempt: its preemptionPolicy is Never"),
    (
        Reason.of(Code.PREEMPTION_NOT_NEEDED, at=AT),
        (
            "It does not preempt: by the time limits of running work it starts at 2026-09-01 12:03:00 UTC, "
            "before victims would have ended"
        ),
    ),
    (
        Reason.of(Code.PREEMPTION_NOT_NEEDED, at=AT, earlier=AT - 1_800_000, victims=2, end=AT - 300_000),
        (
            "It does not preempt: by the time limits of running work it starts at 2026-09-01 12:03:00 UTC. "
            "It would start at 2026-09-01 11:33:00 UTC if 2 others were ended, which end by themselves by "
            "2026-09-01 11:58:00 UTC"
        ),
    ),
    (
        Reason.of(Code.PREEMPTION_NOT_NEEDED, at=AT, earlier=AT - 1_800_000, victims=1),
        (
            "It does not preempt: by the time limits of running work it starts at 2026-09-01 12:03:00 UTC. "
            "It would start at 2026-09-01 11:33:00 UTC if 1 other were ended"
        ),
    ),
    (
        Reason.of(Code.NO_VICTIMS, priority=1000),
        "Preemption does not help: it does not fit without the pods below priority 1000 either",
    ),
    (
        Reason.of(Code.QUOTA_NOT_FREED, queue="a"),
        "Preemption does not help: the quota of queue a is in use by work that it may not end",
    ),
    (
        Reason.of(Code.RECLAIMED, queue="a", lost=60_000),
        "Preempted for work within the guarantee of queue a; 1m of its work is lost",
    ),
    (
        Reason.of(Code.PREEMPTION_PLANNED, at=AT),
        "It is to end at 2026-09-01 12:03:00 UTC for other work: save what it has done",
    ),
    (Reason.of(Code.PREEMPTION_WITHDRAWN), "It does not end for other work after all"),
    (Reason.of(Code.DRAINED, queue="a"), "Ended because queue a is drained"),
    (Reason.of(Code.GANG_ENDED), "Ended because the rest of its gang was preempted"),
    (
        Reason.of(Code.VICTIMS_PROTECTED, priority=1000),
        "Preemption does not help: PodDisruptionBudgets protect the pods below priority 1000",
    ),
]


@pytest.mark.parametrize(("reason", "words"), EXAMPLES)
def test_text(reason: Reason, words: str) -> None:
    assert text(reason) == words


def test_every_text_has_an_example() -> None:
    assert {reason.code for reason, _ in EXAMPLES} == set(PREEMPTION)
