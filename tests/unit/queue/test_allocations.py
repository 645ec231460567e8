"""Allocations: what is added and dropped can be undone, and the index of ends says whose end has come."""

from __future__ import annotations

import pytest

from fluence.graph.ledger import LedgerJob
from fluence.queue.allocations import Allocation, Allocations
from fluence.queue.job import FOREVER


def held(task: str, start: int = 0, end: int = 10, *, reserved: bool = False) -> Allocation:
    return Allocation(task, f"request of {task}", LedgerJob(-1, start, end, reserved))


def extend(allocations: Allocations, held: Allocation, end: int) -> None:
    held.job.end = end
    allocations.note_end(held)


def names(found: list[Allocation]) -> list[str]:
    return [each.task for each in found]


class TestAddingAndDropping:
    def test_what_runs_and_what_is_reserved_are_kept_apart(self):
        allocations = Allocations()
        runs, waits = held("a"), held("b", 10, 20, reserved=True)
        allocations.add(runs)
        allocations.add(waits)
        assert allocations.running == {"a": runs}
        assert allocations.reserved == {"b": waits}
        assert "a" in allocations and "b" in allocations and "c" not in allocations

    def test_a_reservation_that_is_dropped_is_gone(self):
        allocations = Allocations()
        waits = held("b", reserved=True)
        allocations.add(waits)
        allocations.drop(waits)
        assert "b" not in allocations
        with pytest.raises(KeyError):
            allocations.drop(waits)

    def test_a_task_that_is_over_is_gone(self):
        allocations = Allocations()
        runs = held("a")
        allocations.add(runs)
        allocations.finish(runs)
        assert "a" not in allocations
        assert allocations.next_end() is None

    def test_two_that_look_the_same_are_not_the_same(self):
        assert held("a") != held("a")


class TestUndo:
    def test_it_goes_back_to_a_mark_the_last_first(self):
        allocations = Allocations()
        kept, dropped = held("kept", reserved=True), held("dropped", reserved=True)
        allocations.add(kept)
        allocations.add(dropped)
        mark = allocations.mark()
        allocations.drop(dropped)
        allocations.add(held("new"))
        allocations.add(held("dropped"))
        allocations.undo(mark)
        assert allocations.running == {}
        assert allocations.reserved == {"kept": kept, "dropped": dropped}
        assert allocations.next_end() is None

    def test_what_came_before_the_mark_stays(self):
        allocations = Allocations()
        first = held("first")
        allocations.add(first)
        mark = allocations.mark()
        allocations.add(held("second"))
        inner = allocations.mark()
        allocations.add(held("third"))
        allocations.undo(inner)
        assert list(allocations.running) == ["first", "second"]
        allocations.undo(mark)
        assert allocations.running == {"first": first}

    def test_what_is_settled_stays(self):
        allocations = Allocations()
        allocations.add(held("a"))
        allocations.settle()
        assert allocations.mark() == 0
        allocations.undo(0)
        assert list(allocations.running) == ["a"]

    def test_a_task_that_starts_again_after_an_undo_has_its_new_end(self):
        allocations = Allocations()
        mark = allocations.mark()
        allocations.add(held("a", end=5))
        allocations.undo(mark)
        allocations.add(held("a", end=8))
        assert allocations.next_end() == 8
        assert allocations.overdue(5) == []


class TestEnds:
    def test_reservations_have_none(self):
        allocations = Allocations()
        allocations.add(held("a", reserved=True))
        assert allocations.next_end() is None
        assert allocations.overdue(100) == []

    def test_those_that_have_come_are_told_in_order_and_once(self):
        allocations = Allocations()
        for task, end in (("c", 30), ("a", 10), ("b", 20), ("a2", 10)):
            allocations.add(held(task, end=end))
        assert allocations.next_end() == 10
        assert allocations.overdue(9) == []
        assert names(allocations.overdue(20)) == ["a", "a2", "b"]
        assert allocations.overdue(20) == []
        assert allocations.next_end() == 30

    def test_one_that_is_extended_is_told_again(self):
        allocations = Allocations()
        runs = held("a", end=10)
        allocations.add(runs)
        assert names(allocations.overdue(10)) == ["a"]
        extend(allocations, runs, 15)
        assert (runs.end, allocations.next_end()) == (15, 15)
        assert allocations.overdue(14) == []
        assert names(allocations.overdue(15)) == ["a"]

    def test_one_that_is_extended_before_its_end_is_told_at_the_new_end_only(self):
        allocations = Allocations()
        runs = held("a", end=10)
        allocations.add(runs)
        extend(allocations, runs, 15)
        assert allocations.overdue(10) == []
        assert names(allocations.overdue(15)) == ["a"]

    def test_an_end_that_is_moved_to_and_fro_is_told_once(self):
        allocations = Allocations()
        runs = held("a", end=10)
        allocations.add(runs)
        for end in (15, 10, 10):
            extend(allocations, runs, end)
        assert names(allocations.overdue(10)) == ["a"]

    def test_of_tasks_that_are_over_nothing_is_told(self):
        allocations = Allocations()
        for task, end in (("a", 10), ("b", 20)):
            allocations.add(held(task, end=end))
        allocations.finish(allocations.running["a"])
        assert allocations.next_end() == 20
        assert allocations.overdue(10) == []

    @pytest.mark.parametrize("end", [FOREVER, 10], ids=["no limit", "a limit"])
    def test_the_index_stays_small_when_many_tasks_come_and_go(self, end):
        """Tasks without a limit never reach the top of the heap, so nothing else would remove them."""
        allocations = Allocations()
        stays = held("stays", end=2 * FOREVER)
        allocations.add(stays)
        for number in range(100_000):
            runs = held(f"t{number}", number, number + end)
            allocations.add(runs)
            allocations.finish(runs)
            allocations.settle()
            assert len(allocations._ends) <= 1010
        assert allocations.next_end() == stays.end

    def test_it_stays_small_when_one_task_is_extended_again_and_again(self):
        allocations = Allocations()
        runs = held("a")
        allocations.add(runs)
        for end in range(20_000, 10_000, -1):  # NB earlier each time: no old end comes to the top
            extend(allocations, runs, end)
        assert len(allocations._ends) <= 1010
        assert allocations.next_end() == 10_001
