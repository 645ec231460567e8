"""Binds that are sent again: after a pause that doubles up to a bound, counted per pod."""

from __future__ import annotations

import pytest

from fluence.schedule.binding import BindRetries
from fluence.schedule.events import Bind
from tests.unit.schedule import kit

A, B = (Bind(kit.pod(name), "n1", f"default/pod:{name}", {}) for name in "ab")


@pytest.fixture
def retries() -> BindRetries:
    return BindRetries(1000, 10_000)


def test_the_pause_doubles_until_it_is_the_longest(retries: BindRetries) -> None:
    pauses = []
    for _ in range(40):
        retries.add(A, 0)
        pauses.append(retries.next_due())
        assert retries.take(A.uid) is A
    assert pauses[:6] == [1000, 2000, 4000, 8000, 10_000, 10_000] and pauses[-1] == 10_000


def test_without_a_pause_a_bind_is_due_at_once() -> None:
    retries = BindRetries(0, 0)
    retries.add(A, 5)
    assert retries.is_due(A.uid, 5)


def test_a_bind_is_due_when_its_pause_is_over_and_not_before(retries: BindRetries) -> None:
    retries.add(A, 500)
    assert not retries.is_due(A.uid, 1499) and retries.is_due(A.uid, 1500)


def test_the_next_due_is_the_first_of_all(retries: BindRetries) -> None:
    assert retries.next_due() is None
    retries.add(A, 0)
    retries.add(A, 0)
    retries.add(B, 500)
    assert (retries.next_due(), list(retries)) == (1500, [A.uid, B.uid])
    retries.take(B.uid)
    assert (retries.next_due(), list(retries)) == (2000, [A.uid])


def test_a_bind_that_was_taken_waits_no_more_and_was_tried(retries: BindRetries) -> None:
    assert not retries.was_tried(A.uid)
    retries.add(A, 0)
    assert A.uid in retries and retries.was_tried(A.uid)
    retries.take(A.uid)
    assert A.uid not in retries and retries.was_tried(A.uid)


def test_tries_of_a_pod_that_is_placed_anew_still_count(retries: BindRetries) -> None:
    retries.add(A, 0)
    retries.stop(A.uid)
    assert A.uid not in retries and retries.was_tried(A.uid)
    retries.add(A, 0)
    assert retries.next_due() == 2000


def test_tries_of_a_pod_that_was_bound_or_ended_are_forgotten(retries: BindRetries) -> None:
    retries.add(A, 0)
    retries.forget(A.uid)
    retries.forget("unknown")
    assert A.uid not in retries and not retries.was_tried(A.uid)
    retries.add(A, 0)
    assert retries.next_due() == 1000
