"""The ledger against a plain one: a dict of jobs, each a dict of vertices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluence.errors import Conflict, NotFound
from fluence.graph.ledger import Ledger
from tests.property.model import check_links, jobs_at

TIMES = st.integers(0, 20)


class LedgerMachine(RuleBasedStateMachine):
    """Spans overlap freely here: who may have what is the matcher's business."""

    @initialize(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6))
    def start(self, sizes: list[int]) -> None:
        self.sizes = list(sizes)
        self.ledger = Ledger(len(sizes), np.array(sizes, np.int64))
        # job -> (start, end, reserved, {vertex: (needs, exclusive)}), the newest last
        self.jobs: dict[int, tuple[int, int, bool, dict[int, tuple[int, bool]]]] = {}
        self.order: dict[int, list[int]] = {}  # vertex -> jobs, newest first

    @rule(
        data=st.data(), job=st.integers(0, 8), begin=TIMES, length=st.integers(1, 9), reserved=st.booleans()
    )
    def add(self, data: st.DataObject, job: int, begin: int, length: int, reserved: bool) -> None:
        vertices = data.draw(st.lists(st.integers(0, len(self.sizes) - 1), unique=True))
        spans = {v: (data.draw(st.integers(0, 3)), data.draw(st.booleans())) for v in vertices}

        def attempt() -> None:
            self.ledger.add(
                job,
                start=begin,
                end=begin + length,
                reserved=reserved,
                vertices=np.array(vertices, np.int32),
                needs=np.array([n for n, _ in spans.values()], np.int64),
                exclusive=np.array([x for _, x in spans.values()], np.bool_),
            )

        if job in self.jobs:
            with pytest.raises(Conflict):
                attempt()
            return
        attempt()
        self.jobs[job] = (begin, begin + length, reserved, spans)
        for vertex in vertices:
            self.order.setdefault(vertex, []).insert(0, job)

    @rule(job=st.integers(0, 8))
    def remove(self, job: int) -> None:
        if job not in self.jobs:
            with pytest.raises(NotFound):
                self.ledger.remove(job)
            return
        assert self.ledger.remove(job).id == job
        self._leave(job, set(self.jobs.pop(job)[3]))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        spans = self.ledger.jobs[job].spans
        keep = np.array(
            data.draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans))), np.bool_
        )
        gone = set(self.ledger.vertex[spans[~keep]].tolist())
        self.ledger.release(job, spans[~keep])
        self._leave(job, gone)

    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        vertices = data.draw(st.lists(st.integers(0, len(self.sizes) - 1), unique=True))
        lost = self.ledger.clear(np.array(vertices, np.int32))
        expected = {job: set(of[3]) & set(vertices) for job, of in self.jobs.items()}
        assert {job: set(rows.tolist()) for job, rows in lost.items()} == {
            job: rows for job, rows in expected.items() if rows
        }
        for job, rows in expected.items():
            self._leave(job, rows)

    @rule(size=st.integers(0, 9))
    def grow(self, size: int) -> None:
        self.sizes.append(size)
        self.ledger.grow(len(self.sizes), np.array(self.sizes, np.int64))

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """Whatever is written after a mark, the book is as before when that is undone."""
        ledger, before = self.ledger, self._picture()
        mark = ledger.mark()
        for number in range(data.draw(st.integers(1, 6))):
            job = data.draw(st.sampled_from([*sorted(ledger.jobs), 100 + number]))
            if job not in ledger.jobs:
                vertices = np.arange(len(self.sizes), dtype=np.int32)
                ledger.add(
                    job,
                    start=1,
                    end=5,
                    reserved=data.draw(st.booleans()),
                    vertices=vertices,
                    needs=np.ones(len(vertices), np.int64),
                    exclusive=np.ones(len(vertices), np.bool_),
                )
            elif data.draw(st.booleans()):
                ledger.remove(job)
            else:
                ledger.stretch(job, ledger.jobs[job].end + 1)
            if data.draw(st.booleans()):
                inner, middle = ledger.mark(), self._picture()
                for other in sorted(ledger.jobs):
                    ledger.remove(other)
                ledger.undo(inner)
                assert self._picture() == middle
        ledger.undo(mark)
        assert self._picture() == before
        ledger.settle()
        for vertex in range(len(self.sizes)):  # NB those that came back are the newest
            there = [job.id for job in jobs_at(ledger, vertex)]
            assert sorted(there) == sorted(self.order.get(vertex, []))
            self.order[vertex] = there

    def _picture(self) -> dict[int, object]:
        return {
            job.id: (
                job.start,
                job.end,
                job.reserved,
                [column.tolist() for column in self.ledger.columns(job)],
            )
            for job in self.ledger.jobs.values()
        }

    @rule()
    def compact(self) -> None:
        self.ledger._compact()

    def _leave(self, job: int, vertices: set[int]) -> None:
        for vertex in vertices:
            self.order[vertex].remove(job)
            if job in self.jobs:
                del self.jobs[job][3][vertex]

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger = self.ledger
        check_links(ledger)
        assert {j.id: (j.start, j.end, j.reserved) for j in ledger.jobs.values()} == {
            job: of[:3] for job, of in self.jobs.items()
        }
        assert ledger.times() == sorted({time for of in self.jobs.values() for time in of[:2]})
        for vertex in range(len(self.sizes)):
            assert [job.id for job in jobs_at(ledger, vertex)] == self.order.get(vertex, [])

    @rule(begin=TIMES, length=st.integers(1, 9))
    def ask(self, begin: int, length: int) -> None:
        ledger, end = self.ledger, begin + length
        for vertex, size in enumerate(self.sizes):
            mine = [(s, e, r, held[vertex]) for s, e, r, held in self.jobs.values() if vertex in held]
            assert ledger.is_shared(vertex, begin, end) == any(s < end and e > begin for s, e, *_ in mine)
            assert ledger.is_allocated(vertex) == any(x and not r for _, _, r, (_, x) in mine)
            used = [sum(n for s, e, _, (n, x) in mine if x and s <= t < e) for t in range(begin, end)]
            assert ledger.available(vertex, begin, end) == size - max(used)


TestLedger = LedgerMachine.TestCase


def test_thousands_of_spans_are_compacted_and_nothing_is_lost() -> None:
    rows = 500
    ledger = Ledger(rows, np.ones(rows, np.int64))

    def add(job: int) -> None:
        ledger.add(
            job,
            start=job,
            end=job + 1,
            reserved=False,
            vertices=np.arange(rows, dtype=np.int32),
            needs=np.ones(rows, np.int64),
            exclusive=np.ones(rows, np.bool_),
        )

    for job in range(40):
        add(job)
        if job >= 3:
            ledger.remove(job - 3)
    check_links(ledger)
    assert sorted(ledger.jobs) == [37, 38, 39]
    assert [job.id for job in jobs_at(ledger, rows - 1)] == [39, 38, 37]
    assert len(ledger.vertex) < 40 * rows, "the spans of removed jobs were reused"
    assert all(ledger.available(v, 38, 39) == 0 and ledger.available(v, 40, 50) == 1 for v in (0, rows - 1))
