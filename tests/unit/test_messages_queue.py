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
    (Reason.of(Code.WAS_RUNNING), "it was running already"),
    (Reason.of(Code.PLANNED), "the plan has a place for it"),
    (Reason.of(Code.UNPLANNED), "its place in the plan was given up"),
    (Reason.of(Code.TAKEN_OUT_OF_PLAN), "taken out of the plan"),
    (Reason.of(Code.BACKFILLED), "backfilled ahead of jobs that must wait"),
    (Reason.of(Code.ITS_TURN), "its turn, and it fits"),
    (Reason.of(Code.RESOURCES_BOUND), "its resources were bound"),
    (Reason.of(Code.ENDED), "ended"),
    (Reason.of(Code.FAILED), "failed"),
    (Reason.of(Code.CANCELLED_BY_USER), "cancelled by its user"),
    (Reason.of(Code.GIVEN, text="node {0} is gone"), "node {0} is gone"),
    # Why a job waits in the queue, or never starts.
    (Reason.of(Code.QUEUED_BEHIND_OTHERS), "it would fit, but jobs in front of it must start first"),
    (Reason.of(Code.FIRST_IN_QUEUE), "it fits and is first: the next cycle starts it"),
    (
        Reason.of(Code.MUST_START_FIRST, fits=True, jobs=("head", "next")),
        "it would fit, but head, next must start first",
    ),
    (Reason.of(Code.MUST_START_FIRST, fits=False, jobs=("head",)), "head must start first"),
    (
        Reason.of(Code.MUST_START_FIRST, fits=False, jobs=tuple("abcdefg")),
        "a, b, c, d, e and 2 more must start first",
    ),
    (
        Reason.of(Code.BEYOND_DEPTH, depth=2, ahead=7),
        "only the first 2 jobs are looked at, and 7 are ahead of it",
    ),
    (Reason.of(Code.DEPENDENCY, jobs=("a", "b")), "it waits for a, b to end"),
    (
        Reason.of(Code.DEPENDENCY_FAILED, job="a", phase="cancelled"),
        "it waits for a to succeed, which is Cancelled",
    ),
    (
        Reason.of(Code.USER_LIMIT, user="ada", account="", most=2, queue="q"),
        "ada runs, or is promised, 2 jobs in queue 'q': no more are allowed",
    ),
    (
        Reason.of(Code.USER_LIMIT, user="", account="", most=2, queue="q"),
        "its user runs, or is promised, 2 jobs in queue 'q': no more are allowed",
    ),
    (
        Reason.of(Code.DEVICE_LIMIT, user="ada", account="lab", type="qpu", most=2, queue="batch"),
        "namespace lab has, or is promised, the 2 qpu that are allowed in queue 'batch'",
    ),
    (
        Reason.of(Code.DEVICE_LIMIT, user="ada", account="", type="qpu", most=2, queue="batch"),
        "ada has, or is promised, the 2 qpu that are allowed in queue 'batch'",
    ),
    (
        Reason.of(Code.DEVICE_LIMIT, user="", account="", type="qpu", most=2, queue="batch"),
        "queue 'batch' has, or is promised, the 2 qpu that are allowed",
    ),
    (
        Reason.of(Code.LIMIT_ABOVE_QUEUE, limit_s=3660, max_s=3600, queue="short"),
        "its limit of 3660 s is over the 3600 s that queue 'short' allows: ask for less",
    ),
    (
        Reason.of(Code.CONSTRAINT_TOO_NARROW, causes=(BUSY, EXPLAINED)),
        "its constraint leaves too little: it needs 8 cores and 6 of 16 are free; node: 0 of 2 fit",
    ),
    (
        Reason.of(Code.IN_PHASE, phase="running", last=Reason.of(Code.RESOURCES_BOUND)),
        "it is Running: its resources were bound",
    ),
    (
        Reason.of(Code.TOO_FEW_UNITS, units=17, unit="core", total=16),
        "it asks for 17 cores; this cluster has 16",
    ),
    (BUSY, "it needs 8 cores and 6 of 16 are free"),
    (
        Reason.of(Code.UNITS_PROMISED, unit="core", free=8, most=0),
        "8 cores are free, but only 0 of them for as long as it may run",
    ),
    (
        Reason.of(Code.NO_EMPTY_CLUSTER, cause="gpu: there are none"),
        "no empty cluster could hold it: gpu: there are none",
    ),
    (Reason.of(Code.INVALID_REQUEST, fault="it asks for nothing"), "it asks for nothing"),
    (EXPLAINED, "node: 0 of 2 fit"),
    # Why a promise was broken.
    (Reason.of(Code.RESOURCES_LOST), "resources were lost"),
    (Reason.of(Code.RUNS_PAST_LIMIT, job="long"), "job long runs past its limit"),
    (Reason.of(Code.OVERTAKEN), "jobs that came later were backfilled ahead of it"),
    (
        Reason.of(Code.RESTARTED),
        "the scheduler was restarted, and what it found leaves no room for it by then",
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
        "it needs 8 cores and 6 of 16 are free; it fits and is first: the next cycle starts it"
    )
    assert texts(()) == ""


def test_a_reason_gives_its_parameters_by_name() -> None:
    assert (BUSY["units"], BUSY["unit"]) == (8, "core")
    with pytest.raises(KeyError, match="nodes"):
        BUSY["nodes"]
    assert Reason.of(Code.UNITS_BUSY, units=8, unit="core", free=6, total=16) == BUSY
