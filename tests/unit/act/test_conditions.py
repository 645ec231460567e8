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
    WrittenMessages,
    bound,
    fingerprint,
    group_condition,
    message,
    note,
    pod_condition,
    read_message,
    rests_on_durations,
    same,
    settle,
    warning,
)
from fluence.model.group import Group
from fluence.model.meta import Condition
from fluence.model.pod import Pod, PodStatus
from fluence.model.reason import Code, Reason
from fluence.schedule import recovery
from fluence.schedule.status import SchedulingStatus, StatusReport
from tests.unit.schedule.kit import T0, V136, V137, group, pod

NOW = int(T0.timestamp() * 1000)
MINUTE = 60_000


def why(text: str) -> tuple[Reason, ...]:
    return (Reason.of(Code.GIVEN, text=text),)


BUSY = StatusReport(
    SchedulingStatus.WAITS, why("no seat on 8 nodes: 8 insufficient cpu (2 wanted)"), NOW + 90 * MINUTE
)
SIZE_1 = (Reason.of(Code.PODS_MISSING, pods=1, minimum=2),)


def written(patch: dict[str, Any] | None) -> Condition:
    assert patch is not None
    condition = patch["status"]["conditions"][0]
    return Condition(
        type=condition["type"],
        status=condition["status"],
        reason=condition["reason"],
        message=condition["message"],
        last_transition_time=condition.get("lastTransitionTime"),
    )


def with_(of: Pod, condition: Condition) -> Pod:
    return replace(of, status=PodStatus(phase="Pending", conditions=[condition]))


def grouped(of: Group, condition: Condition) -> Group:
    return replace(of, conditions=(condition,))


def test_a_waiting_pod_is_told_why_and_when_once() -> None:
    one = pod("a")
    patch = pod_condition(one, BUSY, now=NOW)
    found = written(patch)
    assert (found.type, found.status, found.reason) == ("PodScheduled", "False", "Unschedulable")
    assert found.message == (
        "no seat on 8 nodes: 8 insufficient cpu (2 wanted). Starts no later than 2026-09-01T13:30Z."
    )
    assert found.last_transition_time == "2026-09-01T12:00:00Z"
    assert patch is not None and patch["metadata"] == {"uid": one.metadata.uid}
    assert pod_condition(with_(one, found), BUSY, now=NOW + 5_000) is None


@pytest.mark.parametrize("firm", [True, False])
@pytest.mark.parametrize("expected", [None, NOW + 60 * MINUTE])
def test_a_start_says_whether_something_enforces_what_it_rests_on(firm: bool, expected: int | None) -> None:
    at = NOW + 90 * MINUTE
    report = StatusReport(SchedulingStatus.WAITS, why("busy"), at, expected, firm=firm)
    found = written(pod_condition(pod("a"), report, now=NOW))
    assert ("Starts no later than 2026-09-01T13:30Z if durations hold" in found.message) is not firm
    assert rests_on_durations(found.message) is not firm
    assert read_message(found.message) == ("busy", at, expected)
    assert pod_condition(with_(pod("a"), found), report, now=NOW + 5_000) is None
    changed = StatusReport(SchedulingStatus.WAITS, why("busy"), at, expected, firm=not firm)
    assert pod_condition(with_(pod("a"), found), changed, now=NOW) is not None


def _told(of: Pod, report: StatusReport, now: int = NOW) -> Pod:
    """A pod with all that is written on it."""
    patch: Any = pod_condition(of, report, now=now)
    kept = {each.type: each for each in of.status.conditions or ()}
    kept |= {each.type: each for each in msgspec.convert(patch["status"]["conditions"], list[Condition])}
    return replace(of, status=PodStatus(phase="Pending", conditions=list(kept.values())))


@pytest.mark.parametrize("firm", [True, False])
def test_a_start_that_was_told_is_read_again_to_the_millisecond(firm: bool) -> None:
    at = NOW + 90 * MINUTE + 123
    told = _told(pod("a"), StatusReport(SchedulingStatus.WAITS, why("busy"), at, firm=firm))
    found = told.condition(names.START_PROMISED)
    assert found is not None and (found.status, found.message) == ("True", "2026-09-01T13:30:00.123Z")
    assert recovery.promise_of([pod("b"), told]) == (at, None, firm, None)
    later = _told(pod("c"), StatusReport(SchedulingStatus.WAITS, why("busy"), at + 1, firm=firm))
    assert recovery.promise_of([later, told]) == (at + 1, None, firm, None)
    likely = StatusReport(SchedulingStatus.WAITS, why("busy"), at, at - 7, firm=firm)
    assert recovery.promise_of([_told(pod("d"), likely)]) == (at, at - 7, firm, None)


def test_a_start_is_told_for_a_length_of_time() -> None:
    """The same start for another length is written, though people read the same."""
    at = NOW + 90 * MINUTE
    report = StatusReport(SchedulingStatus.WAITS, why("busy"), at, limit=MINUTE)
    told = _told(pod("a"), report)
    assert recovery.promise_of([told]) == (at, None, True, MINUTE)
    assert pod_condition(told, report, now=NOW) is None
    again = _told(told, dataclasses.replace(report, limit=2 * MINUTE))
    assert recovery.promise_of([again]) == (at, None, True, 2 * MINUTE)
    endless = _told(told, dataclasses.replace(report, limit=None))
    assert recovery.promise_of([endless]) == (at, None, True, None)


def test_a_start_that_is_told_no_more_is_not_read_again() -> None:
    told = _told(pod("a"), BUSY)
    gone = _told(told, StatusReport(SchedulingStatus.WAITS, why("a node went")))
    assert recovery.promise_of([gone]) is None
    assert recovery.promise_of([_told(pod("b"), StatusReport(SchedulingStatus.WAITS, why("busy")))]) is None
    # Whoever has its seats, and waits for its volumes, keeps it: they may not come.
    prepares = StatusReport(SchedulingStatus.PREPARES, why("waits for its claims"))
    assert recovery.promise_of([_told(told, prepares)]) == (BUSY.no_later_than, None, True, None)


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
    assert recovery.promise_of([with_(pod("a"), said)]) is None


def test_small_moves_of_the_start_and_of_node_counts_are_not_written() -> None:
    one = with_(pod("a"), written(pod_condition(pod("a"), BUSY, now=NOW)))
    for minutes in range(1, 60):
        reason = f"no seat on {minutes} nodes: {minutes} insufficient cpu (2 wanted)"
        moved = StatusReport(SchedulingStatus.WAITS, why(reason), NOW + 90 * MINUTE - minutes * 3_000)
        assert pod_condition(one, moved, now=NOW + minutes * MINUTE // 2) is None
    later = StatusReport(SchedulingStatus.WAITS, BUSY.reasons, NOW + 120 * MINUTE)
    assert pod_condition(one, later, now=NOW) is not None


def test_what_counts_of_pods_say_is_a_change() -> None:
    assert not same("1 of 3 pods is there", "2 of 3 pods are there")
    assert same("no seat on 8 nodes: 8 x; 3 y", "no seat on 9 nodes: 1 x; 8 y")
    assert not same("no seat on 8 nodes: 8 x", "no seat on 8 nodes: 8 z")


def short_of(nodes: int, cause: str = "insufficient cpu") -> tuple[Reason, ...]:
    """As a room with codes will say it: the number of nodes is a parameter."""
    inner = Reason.of(Code.GIVEN, text=cause)
    return (Reason(Code.CLUSTER_CANNOT_HOLD, (("causes", (inner,)), ("nodes", nodes))),)


def test_what_this_process_wrote_is_compared_by_code_and_parameters() -> None:
    memory = WrittenMessages()
    report = StatusReport(SchedulingStatus.WAITS, short_of(8), NOW + 90 * MINUTE)
    one = with_(pod("a"), written(pod_condition(pod("a"), report, now=NOW, memory=memory)))
    fewer = StatusReport(SchedulingStatus.WAITS, short_of(3), NOW + 90 * MINUTE)
    assert pod_condition(one, fewer, now=NOW, memory=memory) is None
    other = StatusReport(SchedulingStatus.WAITS, short_of(8, "a taint"), NOW + 90 * MINUTE)
    assert pod_condition(one, other, now=NOW, memory=memory) is not None
    later = StatusReport(SchedulingStatus.WAITS, short_of(8), NOW + 240 * MINUTE)
    assert pod_condition(one, later, now=NOW, memory=memory) is not None


def test_times_that_this_process_wrote_stay_while_they_hold() -> None:
    memory = WrittenMessages()
    one = with_(pod("a"), written(pod_condition(pod("a"), BUSY, now=NOW, memory=memory)))
    sooner = StatusReport(SchedulingStatus.WAITS, BUSY.reasons, NOW + 88 * MINUTE)
    assert pod_condition(one, sooner, now=NOW + MINUTE, memory=memory) is None


def test_what_was_written_before_a_restart_is_compared_by_its_text_without_numbers_of_nodes() -> None:
    one = with_(pod("a"), written(pod_condition(pod("a"), BUSY, now=NOW, memory=WrittenMessages())))
    moved = why("no seat on 9 nodes: 9 insufficient cpu (2 wanted)")
    fresh = WrittenMessages()
    report = StatusReport(SchedulingStatus.WAITS, moved, BUSY.no_later_than)
    assert pod_condition(one, report, now=NOW, memory=fresh) is None
    assert len(fresh) == 0, "nothing was written"
    other = StatusReport(SchedulingStatus.WAITS, why("no seat on 9 nodes: 9 taint gpu"), BUSY.no_later_than)
    assert pod_condition(one, other, now=NOW, memory=fresh) is not None


def test_a_word_of_somebody_else_is_replaced_even_where_this_process_said_the_same_before() -> None:
    memory = WrittenMessages()
    assert pod_condition(pod("a"), BUSY, now=NOW, memory=memory) is not None
    other = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="because")
    assert pod_condition(with_(pod("a"), other), BUSY, now=NOW, memory=memory) is not None


def test_the_memory_of_messages_is_bounded_and_the_oldest_go() -> None:
    memory = WrittenMessages(limit=2)
    for text in ("one", "two", "three"):
        pod_condition(pod("a"), StatusReport(SchedulingStatus.WAITS, why(text)), now=NOW, memory=memory)
    assert len(memory) == 2 and memory.find("one") is None and memory.find("three") is not None


def test_a_fingerprint_leaves_out_numbers_of_nodes_and_keeps_numbers_of_pods() -> None:
    assert fingerprint(short_of(1)[0]) == fingerprint(short_of(2)[0])
    assert fingerprint(SIZE_1[0]) != fingerprint(Reason.of(Code.PODS_MISSING, pods=2, minimum=2))
    assert fingerprint(why("no seat on 8 nodes")[0]) == fingerprint(why("no seat on 9 nodes")[0])


@st.composite
def shortages(draw: st.DrawFn) -> Reason:
    """As a cluster gives them; what is asked for stays the same."""
    causes = draw(st.permutations([Code.NODE_NOT_READY, Code.NODE_EXCLUDED, Code.NODE_IN_USE]))
    some = causes[: draw(st.integers(0, 3))]
    ruled_out = [
        Reason.of(
            Code.NODES,
            names=tuple(f"n{i}" for i in range(draw(st.integers(1, 12)))),
            cause=Reason.of(each),
        )
        for each in some
    ]
    seats = draw(st.integers(0, 3))
    there = draw(st.integers(0, 3)) if seats else 0
    total = Reason.of(Code.RESOURCE_SUM, resource="cpu", wanted=8000, there=there * 1000)
    return Reason.of(
        Code.TOO_FEW_SEATS,
        pod="",
        wanted=4,
        seats=seats,
        nodes=draw(st.integers(1, 30)),
        sums=(total,) if there else (),
        causes=tuple(ruled_out),
        empty=draw(st.booleans()),
    )


@given(one=shortages(), other=shortages())
def test_a_fingerprint_changes_where_the_text_without_numbers_does(one: Reason, other: Reason) -> None:
    assert (fingerprint(one) == fingerprint(other)) == same(messages.text(one), messages.text(other))


def test_several_reasons_are_one_line() -> None:
    report = StatusReport(SchedulingStatus.WAITS, (*why("one"), *SIZE_1))
    assert message(report) == "one; 1 of 2 pods is there"


def test_the_stale_word_of_a_gate_is_replaced() -> None:
    stale = Condition(type="PodScheduled", status="False", reason="SchedulingGated", message="held")
    found = written(pod_condition(with_(pod("a"), stale), BUSY, now=NOW))
    assert found.reason == "Unschedulable"
    assert found.last_transition_time is None, "it was False before: that moment stays"


@pytest.mark.parametrize(
    "of", [pod("a", node="n"), pod("a", gated=True), pod("a", deleting=True), pod("a", phase="Failed")]
)
def test_pods_that_wait_for_nothing_of_ours_are_left_alone(of: Pod) -> None:
    assert pod_condition(of, BUSY, now=NOW) is None


def test_a_pod_that_waits_for_siblings_does_not_call_for_more_nodes() -> None:
    found = written(pod_condition(pod("a"), StatusReport(SchedulingStatus.INCOMPLETE, SIZE_1), now=NOW))
    assert found.reason == "WaitingForGroup" and found.message == "1 of 2 pods is there"


def test_excluded_nodes_are_written_with_the_reason_and_once() -> None:
    notes = recovery.excluded_note({"b", "a"})
    patch = pod_condition(pod("a"), BUSY, now=NOW, notes=notes)
    assert patch is not None
    assert patch["metadata"] == {"uid": "uid-default-a", "annotations": {names.EXCLUDED: "a,b"}}
    marked = with_(pod("a", annotations=notes), written(patch))
    assert pod_condition(marked, BUSY, now=NOW, notes=notes) is None
    assert marked.annotations[names.EXCLUDED] == "a,b"


@pytest.mark.parametrize(
    ("source", "name"), [(V136, "PodGroupScheduled"), (V137, "PodGroupInitiallyScheduled")]
)
def test_a_groups_condition_has_the_name_of_its_release(source: str, name: str) -> None:
    of = group("g", 2, source=source)
    found = written(group_condition(of, StatusReport(SchedulingStatus.SCHEDULED), now=NOW))
    assert (found.type, found.status, found.reason, found.message) == (name, "True", "Scheduled", "")
    waits = written(group_condition(of, BUSY, now=NOW))
    assert (waits.type, waits.status, waits.reason) == (name, "False", "Unschedulable")
    refused = written(group_condition(of, StatusReport(SchedulingStatus.REFUSED, why("mixed")), now=NOW))
    assert (refused.status, refused.reason) == ("False", "SchedulerError")


def test_true_is_never_taken_back_nor_said_twice() -> None:
    of = group("g", 2)
    done = grouped(of, written(group_condition(of, StatusReport(SchedulingStatus.SCHEDULED), now=NOW)))
    for outcome in SchedulingStatus:
        assert group_condition(done, StatusReport(outcome, why("anything")), now=NOW) is None


def test_false_turns_into_true_with_a_new_moment() -> None:
    of = group("g", 2)
    waits = grouped(of, written(group_condition(of, BUSY, now=NOW)))
    assert group_condition(waits, BUSY, now=NOW) is None
    found = written(group_condition(waits, StatusReport(SchedulingStatus.SCHEDULED), now=NOW + MINUTE))
    assert found.last_transition_time == "2026-09-01T12:01:00Z"


def test_a_basic_group_is_told_true_alone() -> None:
    of = group("b", None, source=V137)
    assert group_condition(of, BUSY, now=NOW) is None
    assert group_condition(of, StatusReport(SchedulingStatus.SCHEDULED), now=NOW) is not None


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
    report = StatusReport(SchedulingStatus.WAITS, why(reason), latest, expected)
    one = pod("a")
    text = written(pod_condition(one, report, now=now)).message
    assert len(text.encode()) <= 4200 and "\n" not in text
    assert len(note(report, text).text.encode()) <= 1024
    there = with_(one, Condition(type="PodScheduled", status="False", reason="Unschedulable", message=text))
    assert pod_condition(there, report, now=now) is None
    memory = WrittenMessages()
    assert written(pod_condition(one, report, now=now, memory=memory)).message == text
    assert pod_condition(there, report, now=now, memory=memory) is None


@given(
    latest=st.integers(NOW, NOW + 10**10),
    expected=st.integers(NOW, NOW + 10**10),
)
def test_what_was_told_can_be_read_back(latest: int, expected: int) -> None:
    report = StatusReport(SchedulingStatus.WAITS, why("it is busy"), latest, expected)
    report = settle(report, latest=None, expected=None, now=NOW)
    assert read_message(message(report)) == ("it is busy", report.no_later_than, report.expected)
    assert report.no_later_than is not None and report.no_later_than >= latest


def test_a_warning_is_an_event_whose_reason_is_its_code() -> None:
    told = warning(Reason.of(Code.UNKNOWN_ANNOTATION, kind="annotation", key="k" * 2000, nearest=None))
    assert (told.kind, told.reason, told.action) == ("Warning", "UnknownAnnotation", "Scheduling")
    assert told.text.startswith("annotation k") and len(told.text.encode()) <= 1024


def test_how_many_of_other_namespaces_are_in_the_way_is_no_change() -> None:
    one, several = (
        Reason.of(Code.WAITS_FOR_UNLIMITED_OF_OTHERS, holders=holders)
        for holders in ((("Pod", 1),), (("Job", 3), ("Pod", 2)))
    )
    assert fingerprint(one) == fingerprint(several)
    assert same(messages.text(one), messages.text(several))
