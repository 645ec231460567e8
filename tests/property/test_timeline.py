"""The parts that the plan is counted with, each against a model too plain to be wrong."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluence.queue.promises import MISSES, Calibration
from fluence.queue.timeline import Timeline, forward

END = 30  # of the array; beyond it nothing is taken
UNITS = 6

spans = st.tuples(st.integers(0, END - 1), st.integers(1, END), st.integers(1, UNITS)).map(
    lambda s: (s[0], min(s[0] + s[1], END), s[2])
)


def built(taken: list[tuple[int, int, int]], kept: list[bool]) -> tuple[Timeline, list[int]]:
    """A timeline and an array from which the same was taken, and some of it given back."""
    line, array = Timeline(0, UNITS), [UNITS] * (END + 1)
    for start, end, units in taken:
        line.take(start, end, units)
        for time in range(start, end):
            array[time] -= units
    for (start, end, units), keep in zip(taken, kept, strict=False):
        if not keep:
            line.take(start, end, -units)
            for time in range(start, end):
                array[time] += units
    return line, array


def at(array: list[int], time: int) -> int:
    return array[min(time, END)]


timelines = st.builds(built, st.lists(spans, max_size=8), st.lists(st.booleans(), max_size=8))


class TestTimeline:
    @given(timelines)
    def test_it_is_the_array(self, made: tuple[Timeline, list[int]]) -> None:
        line, array = made
        assert [line.at(time) for time in range(END + 5)] == [at(array, time) for time in range(END + 5)]

    @given(timelines)
    def test_its_steps_are_in_order(self, made: tuple[Timeline, list[int]]) -> None:
        line, _ = made
        assert line.times == sorted(set(line.times))
        assert len(line.times) == len(line.free)

    @given(timelines, st.integers(-3, UNITS + 1), st.integers(1, END), st.integers(0, END + 3))
    def test_earliest(self, made: tuple[Timeline, list[int]], units: int, duration: int, start: int) -> None:
        line, array = made
        wanted = next(
            (
                begin
                for begin in range(start, END + start + 2)
                if all(at(array, time) >= units for time in range(begin, begin + duration))
            ),
            None,
        )
        assert line.earliest(units, duration, start) == wanted

    @given(timelines, st.integers(1, UNITS), st.integers(1, END), st.integers(0, END), st.integers(0, END))
    def test_is_free_before(
        self, made: tuple[Timeline, list[int]], units: int, duration: int, start: int, more: int
    ) -> None:
        (line, array), bound = made, start + more
        wanted = any(
            all(at(array, time) >= units for time in range(begin, min(begin + duration, bound)))
            for begin in range(start, bound)
        )
        assert line.is_free_before(units, duration, start, bound) == wanted

    @given(timelines, st.integers(0, END + 3), st.integers(1, END))
    def test_least(self, made: tuple[Timeline, list[int]], start: int, length: int) -> None:
        line, array = made
        assert line.least(start, start + length) == min(
            at(array, time) for time in range(start, start + length)
        )

    @given(timelines, st.integers(-3, UNITS + 1), st.integers(0, END + 3))
    def test_until(self, made: tuple[Timeline, list[int]], units: int, start: int) -> None:
        line, array = made
        wanted = next((time for time in range(start, END + start + 2) if at(array, time) < units), None)
        assert line.until(units, start) == wanted

    @given(timelines, st.integers(0, END + 3))
    def test_forgetting_the_past_changes_nothing_later(
        self, made: tuple[Timeline, list[int]], now: int
    ) -> None:
        line, array = made
        line.forget_before(now)
        assert line.times[0] <= now
        assert len(line.times) == 1 or line.times[1] > now
        later = range(now, END + now + 2)
        assert [line.at(time) for time in later] == [at(array, time) for time in later]
        assert line.earliest(1, 3, now) == next(
            (
                begin
                for begin in range(now, END + now + 2)
                if all(at(array, time) >= 1 for time in range(begin, begin + 3))
            ),
            None,
        )

    @given(timelines, spans)
    def test_a_copy_is_its_own(self, made: tuple[Timeline, list[int]], span: tuple[int, int, int]) -> None:
        line, array = made
        line.copy().take(*span)
        assert [line.at(time) for time in range(END)] == array[:END]

    @given(timelines, spans)
    def test_what_is_given_back_leaves_no_trace(
        self, made: tuple[Timeline, list[int]], span: tuple[int, int, int]
    ) -> None:
        line, _ = made
        twin = line.copy()
        start, end, units = span
        twin.take(start, end, units)
        twin.take(start, end, -units)
        assert [twin.at(time) for time in range(END + 3)] == [line.at(time) for time in range(END + 3)]
        # A search must not grow slower with what came and went.
        assert len(twin.times) <= len(line.times)


# -- the forecast --------------------------------------------------------------------------------------------


def plain_easy(
    free: int, running: list[tuple[int, int, int]], pending: list[tuple[int, int, int]]
) -> dict[int, int]:
    """EASY, tick by tick; running are (end, end by limit, units), pending are (units, length, limit)."""
    alive = list(running)
    queue = list(range(len(pending)))
    starts: dict[int, int] = {}
    for now in range(400):
        if now:  # a forecast decides when something ends, and at once
            ended = [task for task in alive if task[0] <= now]
            if not ended:
                continue
            alive = [task for task in alive if task[0] > now]
            free += sum(task[2] for task in ended)

        while queue and pending[queue[0]][0] <= free:
            units, length, limit = pending[queue[0]]
            free -= units
            starts[queue.pop(0)] = now
            alive.append((now + length, now + limit, units))
        if not queue:
            break
        head = pending[queue[0]][0]
        # The head holds [shadow, ∞); whoever is still there by its limit leaves it less.
        times = sorted({max(task[1], now) for task in alive} | {now})
        fits = [t for t in times if free + sum(k[2] for k in alive if max(k[1], now) <= t) >= head]
        left = []
        for job in queue[1:]:
            units, length, limit = pending[job]
            if units > free:
                left.append(job)
                continue
            if fits:
                shadow = fits[0]
                spare = free + sum(k[2] for k in alive if max(k[1], now) <= shadow) - head
                if now + limit > shadow and units > spare:
                    left.append(job)
                    continue
            free -= units
            starts[job] = now
            alive.append((now + length, now + limit, units))
        queue = [queue[0], *left]
    return starts


tasks = st.tuples(st.integers(1, 20), st.integers(0, 10), st.integers(1, 4)).map(
    lambda t: (t[0], t[0] + t[1], t[2])
)
jobs = st.tuples(st.integers(1, 10), st.integers(1, 12), st.integers(0, 8)).map(
    lambda j: (j[0], j[1], j[1] + j[2])
)


class TestForecast:
    @settings(max_examples=300)
    @given(st.integers(0, 4), st.lists(tasks, max_size=4), st.lists(jobs, min_size=1, max_size=7))
    @example(0, [(1, 1, 1)], [(1, 1, 1)])
    @example(0, [(1, 2, 4)], [(9, 1, 1), (1, 3, 9)])  # the first fits at no time and holds nobody up
    def test_it_is_a_plain_easy_run_ahead(
        self, free: int, running: list[tuple[int, int, int]], pending: list[tuple[int, int, int]]
    ) -> None:
        assert forward(0, free, running, pending, range(len(pending))) == plain_easy(free, running, pending)

    @given(st.lists(tasks, max_size=4), st.lists(jobs, min_size=2, max_size=7), st.data())
    def test_only_what_is_wanted_is_answered_and_the_same(
        self, running: list[tuple[int, int, int]], pending: list[tuple[int, int, int]], data: st.DataObject
    ) -> None:
        wanted = data.draw(st.sets(st.integers(0, len(pending) - 1)))
        whole = forward(0, 2, running, pending, range(len(pending)))
        assert forward(0, 2, running, pending, wanted) == {
            place: start for place, start in whole.items() if place in wanted
        }


# -- the bound -----------------------------------------------------------------------------------------------


class TestCalibration:
    @given(st.lists(st.booleans(), max_size=200), st.integers(0, 10**6), st.integers(0, 10**6))
    def test_the_bound_is_never_before_the_plan(self, missed: list[bool], planned: int, beyond: int) -> None:
        calibration = Calibration()
        for each in missed:
            calibration.observe(missed=each)
            assert calibration.place >= 0
        bound = calibration.bound(0, planned, planned + beyond)
        assert bound >= planned
        if calibration.place >= 1:
            assert bound >= planned + beyond

    @given(st.lists(st.booleans(), max_size=50), st.integers(0, 10**6), st.integers(0, 10**6))
    def test_a_miss_widens_it_and_a_hit_narrows_it(
        self, missed: list[bool], planned: int, beyond: int
    ) -> None:
        calibration = Calibration()
        for each in missed:
            calibration.observe(missed=each)
        before = calibration.bound(0, planned, planned + beyond)
        calibration.observe(missed=True)
        assert calibration.bound(0, planned, planned + beyond) >= before
        before = calibration.bound(0, planned, planned + beyond)
        calibration.observe(missed=False)
        assert calibration.bound(0, planned, planned + beyond) <= before

    @given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
    def test_the_share_of_misses_tends_to_what_is_aimed_at(self, delays: list[int]) -> None:
        """Whatever the starts are: misses - MISSES * observations = (place now - place then) / pace."""
        calibration, missed, count = Calibration(), 0, 2000
        for number in range(count):
            late = delays[number % len(delays)] > calibration.bound(0, 100, 500)
            calibration.observe(missed=late)
            missed += late
        # The place can move by what one miss adds beyond the largest delay, and start at 1.
        assert missed / count <= MISSES + (3 / 0.1) / count

    def test_an_order_before_the_plan_does_not_pull_the_bound_back(self) -> None:
        assert Calibration().bound(0, 100, 50) == 100
