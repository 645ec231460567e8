"""The text of every reason about held and dependent work, exactly as a user reads it."""

from __future__ import annotations

import pytest

from fluence import names
from fluence.messages import text
from fluence.messages.queue import ELIGIBILITY
from fluence.model.reason import Code, Reason

AFTER_A = Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afterok", job="a")
AFTER_B = Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="after", job="job/b")
KEY = names.DEPENDS_ON

EXAMPLES = [
    (
        Reason.of(Code.HELD_BY_USER, kind="Job", what="lab/train", key=names.HOLD),
        "Job lab/train is held: remove its annotation fluence.flux-framework.org/hold to release it",
    ),
    (AFTER_A, "Waiting for a to succeed"),
    (AFTER_B, "Waiting for job/b to start"),
    (Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afternotok", job="a"), "Waiting for a to fail"),
    (Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afterany", job="a"), "Waiting for a to end"),
    (
        Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="singleton", job="nightly"),
        "Waiting for earlier work of series nightly to end",
    ),
    (
        Reason.of(Code.WAITS_FOR_DEPENDENCIES, causes=(AFTER_A, AFTER_B), any=False),
        "Waiting for a to succeed. Waiting for job/b to start",
    ),
    (
        Reason.of(Code.WAITS_FOR_DEPENDENCIES, causes=(AFTER_A, AFTER_B), any=True),
        "One of: Waiting for a to succeed; Waiting for job/b to start",
    ),
    (
        Reason.of(Code.DEPENDENCY_UNKNOWN, kind="afterok", job="a", namespace="lab"),
        "Waiting for a: there is no Job, group or pod of this name in namespace lab",
    ),
    (
        Reason.of(Code.DEPENDENCY_NEVER_SATISFIED, kind="afterok", job="a", outcome="failed", key=KEY),
        (
            "a failed, so afterok:a never holds: delete it, or change the annotation "
            "fluence.flux-framework.org/depends-on"
        ),
    ),
    (
        Reason.of(Code.DEPENDENCY_NEVER_SATISFIED, kind="afterok", job="a", outcome="gone", key=KEY),
        (
            "a was deleted before its outcome was seen, so afterok:a never holds: delete it, or change the "
            "annotation fluence.flux-framework.org/depends-on"
        ),
    ),
    (
        Reason.of(Code.DEPENDENCY_CYCLE, jobs=("pod:a", "pod:b", "pod:a"), key=KEY),
        (
            "It depends on itself (pod:a -> pod:b -> pod:a): change the annotation "
            "fluence.flux-framework.org/depends-on of one of them"
        ),
    ),
    (
        Reason.of(Code.INVALID_DEPENDENCY, key=KEY, value="ok:a", fault="type", part="ok"),
        (
            "Annotation fluence.flux-framework.org/depends-on='ok:a' has the unknown type 'ok': use after, "
            "afterany, afterok or afternotok with a name, such as afterok:NAME, or singleton; separate terms "
            "with ',' if all must hold, or with '?' if one is enough"
        ),
    ),
    (
        Reason.of(Code.INVALID_PRIORITY, key=names.PRIORITY, value="high", most=1000),
        (
            "Annotation fluence.flux-framework.org/priority='high' is not a valid priority: use a whole "
            "number from -1000 to 1000"
        ),
    ),
    (
        Reason.of(Code.INVALID_MAX_RUNNING, key=names.MAX_RUNNING, value="0", most=100_000),
        (
            "Annotation fluence.flux-framework.org/max-running='0' is not a valid number of pods: use a "
            "whole number from 1 to 100000"
        ),
    ),
]


@pytest.mark.parametrize(("reason", "message"), EXAMPLES)
def test_the_text_of_a_reason(reason: Reason, message: str) -> None:
    assert text(reason) == message


def test_every_code_has_an_example() -> None:
    assert set(ELIGIBILITY) == {reason.code for reason, _ in EXAMPLES}
