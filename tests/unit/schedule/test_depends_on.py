"""What `depends-on` may say, and when it holds."""

from __future__ import annotations

from itertools import product

import pytest

from fluence import messages
from fluence.model.reason import Code, Reason
from fluence.schedule.eligibility.depends_on import (
    Dependency,
    DependencyKind,
    DependsOn,
    Producer,
    ProducerKind,
    Progress,
    Verdict,
    judge,
    read_depends_on,
    reason_of,
    verdict,
)

OK, ANY, NOT_OK = DependencyKind.AFTEROK, DependencyKind.AFTERANY, DependencyKind.AFTERNOTOK
A, B = Producer("a"), Producer("b")


def read(text: str) -> DependsOn:
    wanted = read_depends_on(text)
    assert isinstance(wanted, DependsOn), wanted
    return wanted


def test_several_terms_are_all_or_any() -> None:
    assert read("afterok:a") == DependsOn((Dependency(OK, A),))
    assert read("afterok:a, afterany:b") == DependsOn((Dependency(OK, A), Dependency(ANY, B)))
    assert read("afterok:a?afterok:b") == DependsOn((Dependency(OK, A), Dependency(OK, B)), any=True)


def test_one_type_takes_several_names_and_names_take_a_kind() -> None:
    assert read("afterok:a:job/b") == DependsOn(
        (Dependency(OK, A), Dependency(OK, Producer("b", ProducerKind.JOB)))
    )
    assert str(read("afterok:a:pod/b")) == "afterok:a,afterok:pod/b"


def test_a_singleton_may_name_its_series() -> None:
    single = DependencyKind.SINGLETON
    assert read("singleton") == DependsOn((Dependency(single, None),))
    assert read("singleton:nightly") == DependsOn((Dependency(single, Producer("nightly")),))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("afterok:a,afterok:b?afterok:c", "mixed"),
        ("after-ok:a", "type"),
        ("a", "type"),
        ("", "type"),
        ("afterok", "no-name"),
        ("afterok:", "name"),
        ("afterok:other/a", "name"),
        ("afterok:A", "name"),
        ("afterok:a/../b", "name"),
        ("afterok:" + "x" * 300, "name"),
        ("singleton:job/a", "name"),
        (",".join(f"afterok:a{n}" for n in range(65)), "many"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_cure(text: str, fault: str) -> None:
    reason = read_depends_on(text)
    assert isinstance(reason, Reason)
    assert (reason.code, reason["fault"]) == (Code.INVALID_DEPENDENCY, fault)
    message = messages.text(reason)
    assert "afterok:NAME" in message
    assert len(message) < 500


def test_afterok_does_not_open_after_a_failure_nor_afternotok_after_success() -> None:
    assert verdict(OK, Progress.SUCCEEDED) is Verdict.HOLDS
    assert verdict(OK, Progress.FAILED) is Verdict.NEVER
    assert verdict(OK, Progress.GONE) is Verdict.NEVER
    assert verdict(NOT_OK, Progress.FAILED) is Verdict.HOLDS
    assert verdict(NOT_OK, Progress.SUCCEEDED) is Verdict.NEVER
    assert verdict(NOT_OK, Progress.GONE) is Verdict.NEVER, "nobody knows how it ended"


def test_nothing_holds_of_a_name_that_does_not_exist() -> None:
    for kind in DependencyKind:
        assert verdict(kind, Progress.UNKNOWN) is Verdict.WAITS


def test_after_needs_a_start_and_afterany_an_end() -> None:
    assert verdict(DependencyKind.AFTER, Progress.STARTED) is Verdict.HOLDS
    assert verdict(DependencyKind.AFTER, Progress.WAITING) is Verdict.WAITS
    assert verdict(ANY, Progress.STARTED) is Verdict.WAITS
    for over in (Progress.SUCCEEDED, Progress.FAILED, Progress.GONE):
        assert verdict(ANY, over) is verdict(DependencyKind.AFTER, over) is Verdict.HOLDS


def test_all_and_any_follow_from_the_terms() -> None:
    for separator, (one, other) in product(",?", product(Progress, Progress)):
        wanted = read(f"afterok:a{separator}afterok:b")
        states = dict(zip(wanted.terms, (one, other), strict=True))
        single = [verdict(OK, one), verdict(OK, other)]
        found, _ = judge(wanted, states)
        best, worst = (Verdict.HOLDS, Verdict.NEVER) if separator == "?" else (Verdict.NEVER, Verdict.HOLDS)
        if best in single:
            assert found is best
        elif single == [worst, worst]:
            assert found is worst
        else:
            assert found is Verdict.WAITS
        assert (reason_of(wanted, states, "ns") is None) == (found is Verdict.HOLDS)


def test_the_words() -> None:
    def said(text: str, *states: Progress) -> str:
        wanted = read(text)
        reason = reason_of(wanted, dict(zip(wanted.terms, states, strict=True)), "lab")
        assert reason is not None
        return messages.text(reason)

    assert said("afterok:a", Progress.STARTED) == "Waiting for a to succeed"
    assert said("after:job/a", Progress.WAITING) == "Waiting for job/a to start"
    assert said("afterok:a,afterany:b", Progress.STARTED, Progress.WAITING) == (
        "Waiting for a to succeed. Waiting for b to end"
    )
    assert said("afterok:a?afterok:b", Progress.STARTED, Progress.FAILED) == "Waiting for a to succeed"
    assert said("afterok:a", Progress.UNKNOWN) == (
        "Waiting for a: there is no Job, group or pod of this name in namespace lab"
    )
    assert said("afterok:a", Progress.FAILED) == (
        "a failed, so afterok:a never holds: delete it, or change the annotation "
        "fluence.flux-framework.org/depends-on"
    )
    assert "was deleted before its outcome was seen" in said("afterok:a", Progress.GONE)
    assert said("singleton", Progress.STARTED) == "Waiting for earlier work of its series to end"
