"""What is written about pods and groups: once per change, in upstream's words, never backwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence import messages, names
from fluence.act.conditions import (
    MAX_BYTES,
    bound,
    fingerprint,
    group_condition,
    message,
    note,
    pod_condition,
    settle,
    wait_condition,
    wait_report,
    warning,
)
from fluence.model.job_state import JobState
from fluence.model.meta import Condition
from fluence.model.owner import Group
from fluence.model.pod import Pod, PodStatus
from fluence.model.reason import Code, Reason
from fluence.schedule import restart
from fluence.schedule.status.status import StatusReport
from tests.unit.schedule.kit import T0, V136, V137, group, pod

NOW = int(T0.timestamp() * 1000)
MINUTE = 60_000


def why(text: str) -> tuple[Reason, ...]:
    return (Reason.of(Code.GIVEN, text=text),)


def short_of(nodes: int, cause: Code = Code.NODE_NOT_READY) -> tuple[Reason, ...]:
    """The number of nodes is a parameter, and no change."""
    ruled_out = Reason.of(Code.NODES, names=tuple(f"n{i}" for i in range(nodes)), cause=Reason.of(cause))
    return (
        Reason.of(
            Code.TOO_FEW_SEATS,
            pod="",
            wanted=4,
            seats=0,
            nodes=nodes,
            sums=(),
            causes=(ruled_out,),
            empty=False,
        ),
    )


BUSY = StatusReport(JobState.PENDING, short_of(8), NOW + 90 * MINUTE)
SIZE_1 = (Reason.of(Code.PODS_MISSING, group="default/g", pods=1, minimum=2),)


def conditions(patch: dict[str, Any] | None) -> list[Condition]:
    assert patch is not None
    return msgspec.convert(patch["status"]["conditions"], list[Condition])


def written(patch: dict[str, Any] | None) -> Condition:
    """What people read."""
    return conditions(patch)[0]


def with_(of: Pod, *present: Condition) -> Pod:
    return replace(of, status=PodStatus(phase="Pending", conditions=list(present)))


def grouped(of: Group, patch: dict[str, Any] | None) -> Group:
    return replace(of, conditions=tuple(conditions(patch)))


def test_a_waiting_pod_is_told_why_and_when_once() -> None:
    one = pod("a")
    patch = pod_condition(one, BUSY, now=NOW)
    found = written(patch)
    assert (found.type, found.status, found.reason) == ("PodScheduled", "False", "Unschedulable")
    assert found.message == f"{messages.texts(BUSY.reasons).removesuffix('.')}. Starts by 13:30 UTC."
    assert found.last_transition_time == "2026-09-01T12:00:00Z"
    assert patch is not None and patch["metadata"] == {"uid": one.metadata.uid}
    assert pod_condition(with_(one, *conditions(patch)), BUSY, now=NOW + 5_000) is None


@pytest.mark.parametrize("firm", [True, False])
@pytest.mark.parametrize("expected", [None, NOW + 60 * MINUTE])
def test_a_start_says_whether_something_enforces_what_it_rests_on(firm: bool, expected: int | None) -> None:
    at = NOW + 90 * MINUTE
    report = StatusReport(JobState.PENDING, why("busy"), at, expected, firm=firm)
    patch = pod_condition(pod("a"), report, now=NOW)
    likely = " (expected 13:00)" if expected else ""
    loose = "" if firm else ", if running jobs keep their limits"
    assert written(patch).message == f"busy. Starts by 13:30 UTC{likely}{loose}."
    told = with_(pod("a"), *conditions(patch))
    reported = wait_report(told.status.conditions)
    assert reported is not None and reported.text == "busy"
    assert (reported.no_later_than, reported.expected, reported.firm) == (at, expected, firm)
    assert pod_condition(told, report, now=NOW + 5_000) is None
    changed = StatusReport(JobState.PENDING, why("busy"), at, expected, firm=not firm)
    assert pod_condition(told, changed, now=NOW) is not None


def _told(of: Pod, report: StatusReport, now: int = NOW) -> Pod:
    """A pod with all that is written on it."""
    patch: Any = pod_condition(of, report, now=now)
    kept = {each.type: each for each in of.status.conditions or ()}
    kept |= {each.type: each for each in msgspec.convert(patch["status"]["conditions"], list[Condition])}
    return replace(of, status=PodStatus(phase="Pending", conditions=list(kept.values())))


@pytest.mark.parametrize("firm", [True, False])
def test_a_start_that_was_told_is_read_again_to_the_millisecond(firm: bool) -> None:
    at = NOW + 90 * MINUTE + 123
    told = _told(pod("a"), StatusReport(JobState.PENDING, why("busy"), at, firm=firm))
    found = told.condition(names.START_PROMISED)
    assert found is not None and (found.status, found.message) == ("True", "2026-09-01T13:30:00.123Z")
    assert restart.promise_of([pod("b"), told]) == (at, None, firm, None)
    later = _told(pod("c"), StatusReport(JobState.PENDING, why("busy"), at + 1, firm=firm))
    assert restart.promise_of([later, told]) == (at + 1, None, firm, None)
    likely = StatusReport(JobState.PENDING, why("busy"), at, at - 7, firm=firm)
    assert restart.promise_of([_told(pod("d"), likely)]) == (at, at - 7, firm, None)


def test_a_start_is_told_for_a_length_of_time() -> None:
    """The same start for another length is written, though people read the same."""
    at = NOW + 90 * MINUTE
    report = StatusReport(JobState.PENDING, why("busy"), at, limit=MINUTE)
    told = _told(pod("a"), report)
    assert restart.promise_of([told]) == (at, None, True, MINUTE)
    assert pod_condition(told, report, now=NOW) is None
    again = _told(told, dataclasses.replace(report, limit=2 * MINUTE))
    assert restart.promise_of([again]) == (at, None, True, 2 * MINUTE)
    endless = _told(told, dataclasses.replace(report, limit=None))
    assert restart.promise_of([endless]) == (at, None, True, None)


def test_a_start_that_is_told_no_more_is_not_read_again() -> None:
    told = _told(pod("a"), BUSY)
    gone = _told(told, StatusReport(JobState.PENDING, why("a node went")))
    assert restart.promise_of([gone]) is None
    assert restart.promise_of([_told(pod("b"), StatusReport(JobState.PENDING, why("busy")))]) is None
    # Whoever has its seats, and waits for its volumes, keeps it: they may not come.
    prepares = StatusReport(JobState.PREPARING, why("waits for its claims"))
    assert restart.promise_of([_told(told, prepares)]) == (BUSY.no_later_than, None, True, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "2026-09-01",
        "2026-09-01T12:00:00",
        "99999-01-01T00:00:00Z",
        "a/b",
        "2026-09-01T12:00:00Z for ever",
    ],
)
def test_a_start_that_cannot_be_read_is_none(text: str) -> None:
    said = Condition(type=names.START_PROMISED, status="True", reason="LimitsEnforced", message=text)
    assert restart.promise_of([with_(pod("a"), said)]) is None


def test_small_moves_of_the_start_and_of_node_counts_are_not_written() -> None:
    one = with_(pod("a"), *conditions(pod_condition(pod("a"), BUSY, now=NOW)))
    for minutes in range(1, 60):
        moved = StatusReport(JobState.PENDING, short_of(minutes), NOW + 90 * MINUTE - minutes * 3_000)
        assert pod_condition(one, moved, now=NOW + minutes * MINUTE // 2) is None
    later = StatusReport(JobState.PENDING, BUSY.reasons, NOW + 120 * MINUTE)
    assert pod_condition(one, later, now=NOW) is not None
    other = StatusReport(JobState.PENDING, short_of(8, Code.NODE_IN_USE), NOW + 90 * MINUTE)
    assert pod_condition(one, other, now=NOW) is not None


def test_a_sentence_of_somebody_else_is_replaced() -> None:
    said, *others = conditions(pod_condition(pod("a"), BUSY, now=NOW))
    assert pod_condition(with_(pod("a"), said, *others), BUSY, now=NOW) is None
    other = replace(said, message="because")
    assert pod_condition(with_(pod("a"), other, *others), BUSY, now=NOW) is not None


def test_a_pod_with_the_sentence_alone_is_told_again_and_keeps_its_promise() -> None:
    """As a version before reports left it."""
    told = _told(pod("a"), BUSY)
    kept = [each for each in told.status.conditions or () if each.type != names.WAIT_REPORTED]
    before = with_(told, *kept)
    assert wait_report(before.status.conditions) is None
    assert restart.promise_of([before]) == restart.promise_of([told])
    assert wait_report(_told(before, BUSY).status.conditions) is not None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "busy", '{"meaning": 1}', "[" * 20_000, '{"meaning":"a","restsOn":"b"}']
)
def test_a_report_that_cannot_be_read_counts_as_missing(text: str) -> None:
    broken = Condition(type=names.WAIT_REPORTED, status="True", message=text)
    assert wait_report([broken]) is None
    assert pod_condition(with_(pod("a"), broken), BUSY, now=NOW) is not None


@pytest.mark.parametrize(
    "reasons",
    [
        '[{"code": "NotOfThisVersion"}]',
        '[{"text": "x"}]',
        '[{"code": "TooFewSeats"}]',
        '[{"code": "Nodes", "names": {"count": 99999999999, "first": []}}]',
        "[" + '{"code": "Nodes", "cause": ' * 3000 + "1" + "}" * 3000 + "]",
    ],
)
def test_reasons_of_another_version_are_left_to_the_sentence(reasons: str) -> None:
    text = f'{{"meaning": "a", "sentence": "b", "restsOn": "limits", "reasons": {reasons}}}'
    found = wait_report([Condition(type=names.WAIT_REPORTED, status="True", message=text)])
    assert found is None or found.text == ""


def test_reasons_come_back_as_they_were_and_say_the_same() -> None:
    for reasons in (short_of(2), short_of(900), SIZE_1):
        report = StatusReport(JobState.PENDING, reasons)
        found = wait_report([msgspec.convert(wait_condition(report, ""), Condition)])
        assert found is not None and found.text == messages.texts(reasons)
        assert found.says(report)


def test_reasons_too_long_to_write_are_left_out_and_still_compared() -> None:
    report = StatusReport(JobState.PENDING, why("x" * MAX_BYTES))
    made = wait_condition(report, "x")
    assert len(made["message"]) < 500
    found = wait_report([msgspec.convert(made, Condition)])
    assert found is not None and found.reasons == () and found.says(report)


def test_a_fingerprint_leaves_out_numbers_of_nodes_and_keeps_numbers_of_pods() -> None:
    assert fingerprint(short_of(1)[0]) == fingerprint(short_of(2)[0])
    assert fingerprint(SIZE_1[0]) != fingerprint(
        Reason.of(Code.PODS_MISSING, group="default/g", pods=2, minimum=2)
    )


def test_several_reasons_are_one_line() -> None:
    report = StatusReport(JobState.PENDING, (*why("one"), *SIZE_1))
    assert message(report, now=NOW) == "one. Waiting for 1 of 2 pods of group default/g to be created."


def test_a_start_that_is_far_away_has_its_date() -> None:
    latest, expected = NOW + 20 * 60 * MINUTE, NOW + 11 * 60 * MINUTE
    report = StatusReport(JobState.PENDING, why("busy"), latest, expected)
    assert message(report, now=NOW) == "busy. Starts by 2026-09-02 08:00 UTC (expected 23:00)."


def test_a_start_is_unknown_or_expected_but_never_both() -> None:
    endless = Reason.of(Code.WAITS_FOR_UNLIMITED, kind="Deployment", namespace="default", name="w", more=0)
    waits = "Waiting for Deployment default/w, which has no time limit."
    report = StatusReport(JobState.PENDING, (endless,))
    assert message(report, now=NOW) == f"{waits} The start is unknown."
    expected = dataclasses.replace(report, expected=NOW + 90 * MINUTE)
    assert message(expected, now=NOW) == f"{waits} Expected to start at 13:30 UTC."
    promised = dataclasses.replace(report, no_later_than=NOW + 90 * MINUTE)
    assert message(promised, now=NOW) == f"{waits} Starts by 13:30 UTC."


def test_the_stale_word_of_a_gate_is_replaced() -> None:
    stale = Condition(type="PodScheduled", status="False", reason="SchedulingGated", message="held")
    found = written(pod_condition(with_(pod("a"), stale), BUSY, now=NOW))
    assert found.reason == "Unschedulable"
    assert found.last_transition_time is None, "it was False before: that moment stays"


def test_a_condition_says_which_generation_it_is_about_and_follows_it() -> None:
    one = pod("a")
    first, second = (replace(one, metadata=replace(one.metadata, generation=number)) for number in (1, 2))
    patch = pod_condition(first, BUSY, now=NOW)
    assert {each.observed_generation for each in conditions(patch)} == {1}
    assert pod_condition(with_(first, *conditions(patch)), BUSY, now=NOW + 5_000) is None
    again = pod_condition(with_(second, *conditions(patch)), BUSY, now=NOW + 5_000)
    assert written(again).observed_generation == 2
    # A server that keeps no generations gets none, and is not written to because of it.
    bare = conditions(pod_condition(one, BUSY, now=NOW))
    assert {each.observed_generation for each in bare} == {None}
    assert pod_condition(with_(second, *bare), BUSY, now=NOW + 5_000) is None


@pytest.mark.parametrize(
    "of", [pod("a", node="n"), pod("a", gated=True), pod("a", deleting=True), pod("a", phase="Failed")]
)
def test_pods_that_wait_for_nothing_of_ours_are_left_alone(of: Pod) -> None:
    assert pod_condition(of, BUSY, now=NOW) is None


def test_a_pod_that_waits_for_siblings_does_not_call_for_more_nodes() -> None:
    found = written(pod_condition(pod("a"), StatusReport(JobState.GATHERING, SIZE_1), now=NOW))
    assert found.reason == "WaitingForGroup" and found.message == (
        "Waiting for 1 of 2 pods of group default/g to be created."
    )


def test_excluded_nodes_are_written_with_the_reason_and_once() -> None:
    notes = restart.excluded_note({"b", "a"})
    patch = pod_condition(pod("a"), BUSY, now=NOW, notes=notes)
    assert patch is not None
    assert patch["metadata"] == {"uid": "uid-default-a", "annotations": {names.EXCLUDED: "a,b"}}
    marked = with_(pod("a", annotations=notes), *conditions(patch))
    assert pod_condition(marked, BUSY, now=NOW, notes=notes) is None
    assert marked.annotations[names.EXCLUDED] == "a,b"


@pytest.mark.parametrize(
    ("source", "name"), [(V136, "PodGroupScheduled"), (V137, "PodGroupInitiallyScheduled")]
)
def test_a_groups_condition_has_the_name_of_its_release(source: str, name: str) -> None:
    of = group("g", 2, source=source)
    found = written(group_condition(of, StatusReport(JobState.RUNNING), now=NOW))
    assert (found.type, found.status, found.reason, found.message) == (name, "True", "Scheduled", "")
    waits = written(group_condition(of, BUSY, now=NOW))
    assert (waits.type, waits.status, waits.reason) == (name, "False", "Unschedulable")
    refused = written(group_condition(of, StatusReport(JobState.REFUSED, why("mixed")), now=NOW))
    assert (refused.status, refused.reason) == ("False", "SchedulerError")


def test_true_is_never_taken_back_nor_said_twice() -> None:
    of = group("g", 2)
    done = grouped(of, group_condition(of, StatusReport(JobState.RUNNING), now=NOW))
    for outcome in JobState:
        assert group_condition(done, StatusReport(outcome, why("anything")), now=NOW) is None


def test_false_turns_into_true_with_a_new_moment() -> None:
    of = group("g", 2)
    waits = grouped(of, group_condition(of, BUSY, now=NOW))
    assert group_condition(waits, BUSY, now=NOW) is None
    patch = group_condition(waits, StatusReport(JobState.RUNNING), now=NOW + MINUTE)
    assert written(patch).last_transition_time == "2026-09-01T12:01:00Z"
    assert wait_report(conditions(patch)) is None, "it waits no more"


def test_a_basic_group_is_told_true_alone() -> None:
    of = group("b", None, source=V137)
    assert group_condition(of, BUSY, now=NOW) is None
    assert group_condition(of, StatusReport(JobState.RUNNING), now=NOW) is not None


@pytest.mark.parametrize("source", ["scheduling.k8s.io/v1alpha1", "scheduling.x-k8s.io/v1alpha1"])
def test_groups_without_a_status_of_ours_get_none(source: str) -> None:
    assert group_condition(group("g", 2, source=source), BUSY, now=NOW) is None


def test_events_have_kube_schedulers_reasons() -> None:
    done = bound(pod("a"), "n1")
    assert (done.kind, done.reason, done.action) == ("Normal", "Scheduled", "Binding")
    assert done.text == "Successfully assigned default/a to n1"
    failed = note(BUSY, "busy")
    assert (failed.kind, failed.reason, failed.action) == ("Warning", "FailedScheduling", "Scheduling")


@given(
    reason=st.text(max_size=9000),
    latest=st.none() | st.integers(0, 10**14),
    expected=st.none() | st.integers(0, 10**14),
    now=st.integers(0, 10**14),
)
def test_whatever_is_told_is_short_and_settles_at_once(
    reason: str, latest: int | None, expected: int | None, now: int
) -> None:
    report = StatusReport(JobState.PENDING, why(reason), latest, expected)
    one = pod("a")
    text = written(pod_condition(one, report, now=now)).message
    assert len(text.encode()) <= 4200 and "\n" not in text
    assert len(note(report, text).text.encode()) <= 1024
    there = with_(one, *conditions(pod_condition(one, report, now=now)))
    assert pod_condition(there, report, now=now) is None


@given(
    latest=st.integers(NOW, NOW + 10**10),
    expected=st.integers(NOW, NOW + 10**10),
)
def test_what_was_told_can_be_read_back(latest: int, expected: int) -> None:
    report = StatusReport(JobState.PENDING, why("it is busy"), latest, expected)
    report = settle(report, latest=None, expected=None, now=NOW)
    found = wait_report([msgspec.convert(wait_condition(report, message(report, now=NOW)), Condition)])
    assert found is not None and found.text == "it is busy"
    assert (found.no_later_than, found.expected) == (report.no_later_than, report.expected)
    assert report.no_later_than is not None and report.no_later_than >= latest


def test_a_warning_is_an_event_whose_reason_is_its_code() -> None:
    told = warning(Reason.of(Code.UNKNOWN_ANNOTATION, kind="annotation", key="k" * 2000, nearest=None))
    assert (told.kind, told.reason, told.action) == ("Warning", "UnknownAnnotation", "Scheduling")
    assert told.text.startswith("Unknown annotation k") and len(told.text.encode()) <= 1024


def test_how_many_of_other_namespaces_are_in_the_way_is_no_change() -> None:
    one, several = (
        Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=holders)
        for holders in ((("Pod", 1),), (("Job", 3), ("Pod", 2)))
    )
    assert fingerprint(one) == fingerprint(several)
