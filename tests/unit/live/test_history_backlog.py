"""The backlog of the history: bounded, the last word counts, and what is lost is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fluence.live.history_writer import HistoryBacklog
from fluence.model.job_state import JobEntry, JobState
from fluence.model.reason import Code, Reason


def entry(job: int, at: int = 1, state: JobState = JobState.PENDING, **more: Any) -> JobEntry:
    return JobEntry(job=job, at=at, state=state, key=f"ns/{job}", namespace="ns", name=str(job), **more)


def over(job: int, at: int = 1, started: int = 1) -> JobEntry:
    return entry(job, at, JobState.COMPLETED, started=started, ended=at)


def put(backlog: HistoryBacklog, *entries: JobEntry) -> None:
    backlog.put(entries, None, 0)


def test_the_last_word_on_a_run_is_enough() -> None:
    backlog = HistoryBacklog()
    put(backlog, entry(1), entry(2), entry(1, 5, JobState.RUNNING, started=5))
    assert len(backlog) == 2
    assert backlog.take(10) == [entry(1, 5, JobState.RUNNING, started=5), entry(2)]
    assert len(backlog) == 0 and backlog.take(10) == []


def test_a_later_run_does_not_replace_the_end_of_the_one_before() -> None:
    backlog = HistoryBacklog()
    put(backlog, over(1, 9), entry(1, 10))
    assert backlog.take(10) == [over(1, 9), entry(1, 10)]


def test_a_word_without_reasons_keeps_those_of_the_one_before() -> None:
    backlog = HistoryBacklog()
    why = (Reason.of(Code.QUEUED_BEHIND_OTHERS),)
    put(backlog, entry(1, reasons=why), entry(1, 2))
    assert backlog.take(1) == [entry(1, 2, reasons=why)]


def test_what_is_put_back_gives_way_to_what_came_meanwhile() -> None:
    backlog = HistoryBacklog()
    put(backlog, entry(1), entry(2))
    taken = backlog.take(2)
    put(backlog, entry(1, 7, JobState.RUNNING, started=7), entry(3))
    backlog.put_back(taken)
    assert backlog.take(9) == [entry(1, 7, JobState.RUNNING, started=7), entry(2), entry(3)]


def test_without_room_those_go_that_can_be_asked_again() -> None:
    backlog = HistoryBacklog(3)
    put(backlog, entry(1), over(2), entry(3), over(4))
    assert len(backlog) == 2
    assert backlog.take_losses() == (0, True)
    assert backlog.take(9) == [over(2), over(4)]


def test_ends_that_find_no_room_are_lost_and_counted() -> None:
    backlog = HistoryBacklog(2)
    put(backlog, over(1), over(2), over(3), over(4), over(2, 5, 1))
    assert backlog.take_losses() == (2, True)
    assert backlog.take_losses() == (0, False)
    assert backlog.take(9) == [over(1), over(2, 5, 1)]


def test_the_roll_comes_after_all_that_was_said_before_it() -> None:
    backlog = HistoryBacklog()
    backlog.put([entry(1)], frozenset({1}), 8)
    assert backlog.take_roll() is None
    backlog.take(1)
    assert backlog.take_roll() == (frozenset({1}), 8)
    assert backlog.take_roll() is None
    backlog.put_roll_back((frozenset({1}), 8))
    backlog.put([], frozenset({2}), 9)
    assert backlog.take_roll() == (frozenset({2}), 9)
    backlog.put([], frozenset({3}), 10)
    backlog.put_roll_back((frozenset({2}), 9))
    assert backlog.take_roll() == (frozenset({3}), 10)


def test_many_jobs_of_one_namespace_push_out_none_of_another() -> None:
    backlog = HistoryBacklog(100)
    put(backlog, *(replace(over(job), namespace="good") for job in range(10)))
    put(backlog, *(replace(over(job), namespace="evil") for job in range(100, 1100)))
    put(backlog, *(replace(over(job), namespace="good") for job in range(10, 20)))
    assert len(backlog) == 100
    assert backlog.take_losses()[0] == 920
    kept = [entry.namespace for entry in backlog.take(1000)]
    assert (kept.count("good"), kept.count("evil")) == (20, 80)
