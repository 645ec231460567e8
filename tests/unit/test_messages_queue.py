"""The text of every reason of the queue, exactly as a user reads it."""

from __future__ import annotations

import inspect
import re

import pytest

from fluence.messages import text, texts
from fluence.model.reason import Code, Reason

GROUPS = (
    "What happens to a job in the queue",
    "Why a job waits in the queue",
    "Why a promise was broken",
)

BUSY = Reason.of(Code.UNITS_BUSY, units=8, unit="core", free=6, total=16)
EXPLAINED = Reason.of(Code.MATCHER_EXPLAINS, cause="node: 0 of 2 fit")

EXAMPLES: list[tuple[Reason, str]] = [
    # What happens to a job in the queue.
    (Reason.of(Code.SUBMITTED), "submitted"),
    (Reason.of(Code.FOUND_RUNNING), "found running"),
    (Reason.of(Code.WAS_RUNNING), "was already running"),
    (Reason.of(Code.PLANNED), "got a place in the plan"),
    (Reason.of(Code.UNPLANNED), "lost its place in the plan"),
    (Reason.of(Code.TAKEN_OUT_OF_PLAN), "removed from the plan"),
    (Reason.of(Code.BACKFILLED), "backfilled ahead of jobs that must wait"),
    (Reason.of(Code.ITS_TURN), "first in the queue, and it fits"),
    (Reason.of(Code.RESOURCES_BOUND), "resources were bound"),
    (Reason.of(Code.ENDED), "ended"),
    (Reason.of(Code.FAILED), "failed"),
    (Reason.of(Code.CANCELLED_BY_USER), "cancelled by its user"),
    (Reason.of(Code.GIVEN, text="node {0} is gone"), "node {0} is gone"),
    # Why a job waits in the queue, or never starts.
    (Reason.of(Code.QUEUED_BEHIND_OTHERS), "It fits, but jobs ahead of it must start first"),
    (Reason.of(Code.FIRST_IN_QUEUE), "It fits and is first in the queue: the next cycle starts it"),
    (
        Reason.of(Code.MUST_START_FIRST, fits=True, jobs=("head", "next")),
        "It fits, but head, next must start first",
    ),
    (Reason.of(Code.MUST_START_FIRST, fits=False, jobs=("head",)), "head must start first"),
    (
        Reason.of(Code.MUST_START_FIRST, fits=False, jobs=tuple("abcdefg")),
        "a, b, c, d, e and 2 more must start first",
    ),
    (
        Reason.of(Code.BEYOND_DEPTH, depth=2, ahead=7),
        "7 jobs are ahead of it, and the scheduler considers only the first 2",
    ),
    (Reason.of(Code.DEPENDENCY, jobs=("a", "b")), "Waiting for a, b to end"),
    (
        Reason.of(Code.DEPENDENCY_FAILED, job="a", phase="cancelled"),
        "It needs a to succeed, which is Cancelled",
    ),
    (
        Reason.of(Code.USER_LIMIT, user="ada", account="", most=2, queue="q"),
        "Waiting for queue q: ada has 2 of 2 jobs running or planned",
    ),
    (
        Reason.of(Code.USER_LIMIT, user="", account="", most=2, queue="q"),
        "Waiting for queue q: its user has 2 of 2 jobs running or planned",
    ),
    (
        Reason.of(Code.DEVICE_LIMIT, user="ada", account="lab", type="qpu", most=2, queue="batch"),
        "Waiting for queue batch: namespace lab has 2 of 2 qpu in use or planned",
    ),
    (
        Reason.of(Code.DEVICE_LIMIT, user="ada", account="", type="qpu", most=2, queue="batch"),
        "Waiting for queue batch: ada has 2 of 2 qpu in use or planned",
    ),
    (
        Reason.of(Code.DEVICE_LIMIT, user="", account="", type="qpu", most=2, queue="batch"),
        "Waiting for queue batch: 2 of 2 qpu in use or planned",
    ),
    (
        Reason.of(Code.ARRAY_LIMIT, array="job/sweep", most=50),
        "Waiting for its array job/sweep: 50 of 50 pods are running or planned (annotation max-running)",
    ),
    (
        Reason.of(Code.QUEUE_IS_INNER, queue="science", queues=("chem", "physics")),
        "Queue science takes no jobs: use a queue below it, such as chem, physics",
    ),
    (
        Reason.of(Code.SHARE_USED, queue="physics", ratio="1.4", other="chem", other_ratio="0.6", week=True),
        "physics has used 1.4 times its share this week, chem 0.6 times",
    ),
    (
        Reason.of(Code.SHARE_USED, queue="idle", ratio="", other="chem", other_ratio="0.6", week=True),
        "Queue idle has weight 0, so chem comes first",
    ),
    (
        Reason.of(Code.SHARE_OF_USER_USED, queue="chem", ratio="1.4", other_ratio="0.6", week=False),
        "Its user has used 1.4 times the share of a user of queue chem lately, the next one 0.6 times",
    ),
    (Reason.of(Code.QUEUES_CHANGED), "the queues or their limits were changed"),
    (Reason.of(Code.QUEUE_STOPPED, queue="chem"), "Waiting for queue chem, which is stopped"),
    (
        Reason.of(
            Code.QUOTA_IN_USE, queue="physics", resource="nvidia.com/gpu", used="64", limit="64", wanted="8"
        ),
        "Waiting for queue physics: nvidia.com/gpu 64 of 64 in use",
    ),
    (
        Reason.of(Code.QUOTA_IN_USE, queue="physics", resource="gpu", used="60", limit="64", wanted="8"),
        "Waiting for queue physics: gpu 60 of 64 in use, 8 requested",
    ),
    (
        Reason.of(
            Code.QUOTA_IN_USE,
            queue="physics",
            resource="cpu",
            used="64",
            limit="64",
            wanted="8",
            until=1_788_271_500_000,
            far=False,
        ),
        "Waiting for queue physics: cpu 64 of 64 in use until 14:05 UTC",
    ),
    (
        Reason.of(
            Code.QUOTA_IN_USE,
            queue="physics",
            resource="cpu",
            used="64",
            limit="64",
            wanted="8",
            until=1_788_271_500_000,
            far=True,
        ),
        "Waiting for queue physics: cpu 64 of 64 in use until 2026-09-01 14:05 UTC",
    ),
    (
        Reason.of(
            Code.QUOTA_OF_USER, queue="physics", resource="jobs", used="2", limit="2", wanted="1", user="ada"
        ),
        "Waiting for queue physics: ada has jobs 2 of 2 in use",
    ),
    (
        Reason.of(Code.QUOTA_TOO_SMALL, queue="physics", resource="gpu", limit="64", wanted="65"),
        "It requests gpu 65, and the limit of queue physics is 64: request less",
    ),
    (
        Reason.of(Code.LIMIT_ABOVE_QUEUE, limit_s=3660, max_s=3600, queue="short"),
        "Its time limit of 1 h 1 min exceeds the maximum of queue short, 1 h: request less",
    ),
    (
        Reason.of(Code.LIMIT_ABOVE_QUEUE, limit_s=90, max_s=60, queue=""),
        "Its time limit of 1 min 30 s exceeds the maximum of jobs without a queue, 1 min: request less",
    ),
    (
        Reason.of(Code.UNKNOWN_QUEUE, queue="debgu", nearest="debug", known=("batch", "debug")),
        "Queue 'debgu' does not exist: did you mean debug?",
    ),
    (
        Reason.of(Code.UNKNOWN_QUEUE, queue="x", nearest=None, known=("batch", "debug")),
        "Queue 'x' does not exist: use one of batch, debug",
    ),
    (
        Reason.of(Code.UNKNOWN_QUEUE, queue="x", nearest=None, known=()),
        "Queue 'x' does not exist: no queue is open to its namespace",
    ),
    (
        Reason.of(Code.QUEUE_CLOSED, queue="physics", nearest="physics-test", known=("physics-test",)),
        "Queue 'physics' is closed to its namespace: use physics-test",
    ),
    (
        Reason.of(Code.QUEUE_CLOSED, queue="physics", nearest=None, known=("chem", "ops")),
        "Queue 'physics' is closed to its namespace: use one of chem, ops",
    ),
    (
        Reason.of(Code.CONSTRAINT_TOO_NARROW, causes=(BUSY, EXPLAINED)),
        (
            "Too few resources satisfy its constraint: Insufficient cores: 8 requested, 6 of 16 "
            "free. node: 0 of 2 fit"
        ),
    ),
    (
        Reason.of(Code.IN_PHASE, phase="running", last=Reason.of(Code.RESOURCES_BOUND)),
        "It is Running: resources were bound",
    ),
    (
        Reason.of(Code.TOO_FEW_UNITS, units=17, unit="core", total=16),
        "Insufficient cores: 17 requested, this cluster has 16",
    ),
    (BUSY, "Insufficient cores: 8 requested, 6 of 16 free"),
    (
        Reason.of(Code.UNITS_PROMISED, unit="core", free=8, most=0),
        "8 cores are free, but only 0 of them for as long as it may run",
    ),
    (
        Reason.of(Code.NO_EMPTY_CLUSTER, cause="gpu: there are none"),
        "It would not fit on an empty cluster: gpu: there are none",
    ),
    (Reason.of(Code.INVALID_REQUEST, fault="it asks for nothing"), "it asks for nothing"),
    (EXPLAINED, "node: 0 of 2 fit"),
    # Why a promise was broken.
    (Reason.of(Code.RESOURCES_LOST), "resources were lost"),
    (Reason.of(Code.RUNS_PAST_LIMIT, job="long"), "job long exceeded its time limit"),
    (Reason.of(Code.OVERTAKEN), "later jobs were backfilled ahead of it"),
    (
        Reason.of(Code.RESTARTED),
        "the scheduler was restarted, and it no longer fits by the promised time",
    ),
]


def codes_by_group() -> dict[str, list[Code]]:
    """The codes under each heading of the enum: a line of comment, up to the next empty line."""
    found: dict[str, list[Code]] = {}
    heading = ""
    for line in inspect.getsource(Code).splitlines():
        if not line.strip():
            heading = ""
        elif line.startswith("    # "):
            heading = line.removeprefix("    # ")
        elif name := re.match(r"    ([A-Z_]+) = ", line):
            found.setdefault(heading, []).append(Code[name[1]])
    return found


@pytest.mark.parametrize(("reason", "shown"), EXAMPLES, ids=[str(reason.code) for reason, _ in EXAMPLES])
def test_each_code_has_its_text(reason: Reason, shown: str) -> None:
    assert text(reason) == shown


@pytest.mark.parametrize("group", GROUPS)
def test_every_code_of_a_group_has_an_example(group: str) -> None:
    (codes,) = [codes for heading, codes in codes_by_group().items() if heading.startswith(group)]
    missing = set(codes) - {reason.code for reason, _ in EXAMPLES}
    assert codes and not missing


def test_several_reasons_are_one_line() -> None:
    assert texts((BUSY, Reason.of(Code.FIRST_IN_QUEUE))) == (
        "Insufficient cores: 8 requested, 6 of 16 free. It fits and is first in the queue: the next cycle "
        "starts it"
    )
    assert texts(()) == ""


def test_a_reason_gives_its_parameters_by_name() -> None:
    assert (BUSY["units"], BUSY["unit"]) == (8, "core")
    with pytest.raises(KeyError, match="nodes"):
        BUSY["nodes"]
    assert Reason.of(Code.UNITS_BUSY, units=8, unit="core", free=6, total=16) == BUSY
