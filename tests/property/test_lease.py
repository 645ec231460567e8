"""The lease over random schedules: pauses, hung calls, lost answers, clock jumps; never two holders."""

import heapq
import itertools
import random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluence.clock import ManualClock
from fluence.kube.lease import RENEW, LeaseCandidate, LeaseMeta, LeaseObject, LeaseSpec, LeaseTerms

TERMS = LeaseTerms(duration_s=15, renew_s=10, retry_s=2)

# One attempt: how long the process stands still first, how long the request and the answer travel, whether
# the answer is lost, and how far the wall clock jumps.
ATTEMPT = st.tuples(
    st.sampled_from([0.0, 0.0, 0.0, 3.0, 16.0, 60.0]),
    st.sampled_from([0.0, 0.0, 4.0, 9.5, 12.0]),
    st.sampled_from([0.0, 0.0, 4.0, 9.5, 12.0, 30.0]),
    st.sampled_from([False, False, True]),
    st.sampled_from([0.0, 0.0, -86400.0, 86400.0]),
)
Schedule = list[tuple[float, float, float, bool, float]]


class World:
    """A server with one lease, and candidates whose calls travel; events happen in the order of time."""

    def __init__(self, schedules: list[Schedule]) -> None:
        self.clocks = [ManualClock(monotonic=0.0) for _ in schedules]
        self.candidates = [
            LeaseCandidate(f"c{who}", terms=TERMS, clock=clock) for who, clock in enumerate(self.clocks)
        ]
        self.schedules = [iter(each) for each in schedules]
        self.lease: LeaseObject | None = None
        self.version = 0
        self.claims: list[tuple[float, float, int]] = []
        self._rng = random.Random(0)
        self._serial = itertools.count()
        self._events: list[tuple[float, int, object]] = []
        for who in range(len(schedules)):
            self._at(0.0, lambda who=who: self._stand(who))

    def run(self) -> None:
        while self._events:
            when, _, act = heapq.heappop(self._events)
            for clock in self.clocks:
                clock.advance(when - clock.monotonic())
            act()  # type: ignore[operator]

    def _at(self, when: float, act: object) -> None:
        heapq.heappush(self._events, (when, next(self._serial), act))

    def _stand(self, who: int) -> None:
        step = next(self.schedules[who], None)
        if step is None:
            return
        pause, request_s, answer_s, is_lost, jump = step
        self.clocks[who].jump(jump)
        now = self.clocks[who].monotonic()
        self._at(now + pause, lambda: self._attempt(who, request_s, answer_s, is_lost))

    def _attempt(self, who: int, request_s: float, answer_s: float, is_lost: bool) -> None:
        candidate, now = self.candidates[who], self.clocks[who].monotonic()
        before = self.lease
        if before is not None:
            candidate.observe(before)
            if not candidate.may_take():
                self._at(now + candidate.pause(self._rng), lambda: self._stand(who))
                return
        record = candidate.record(before, before.metadata if before else LeaseMeta("l", "n"))

        def carried_out() -> None:
            if self.lease is not before:
                answer = None  # 409
            else:
                self.version += 1
                meta = msgspec.structs.replace(record.metadata, resource_version=str(self.version))
                answer = self.lease = LeaseObject(meta, record.spec)
            self._at(now + request_s + answer_s, lambda: answered(answer))

        def answered(answer: LeaseObject | None) -> None:
            then = self.clocks[who].monotonic()
            if answer is not None and not is_lost:
                candidate.wrote(answer, began=now)
                if candidate.held and candidate.valid_until is not None:
                    self.claims.append((then, candidate.valid_until, who))
            self._at(then + TERMS.retry_s, lambda: self._stand(who))

        self._at(now + request_s, carried_out)


def assert_never_two(claims: list[tuple[float, float, int]]) -> None:
    for (begin, end, who), (begin2, end2, who2) in itertools.combinations(claims, 2):
        assert who == who2 or end <= begin2 or end2 <= begin, (begin, end, who, begin2, end2, who2)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.lists(ATTEMPT, min_size=1, max_size=12), min_size=2, max_size=3))
@example([[(0.0, 0.0, 9.5, False, 0.0)], [(0.0, 0.0, 0.0, False, 0.0)] * 24])
def test_there_are_never_two_holders(schedules: list[Schedule]) -> None:
    world = World(schedules)
    world.run()
    assert_never_two(world.claims)


def test_the_world_can_tell_two_holders_apart() -> None:
    """The test above can fail: a holder that counts from the answer, not from the call, is caught by its
    example."""
    slow: Schedule = [(0.0, 0.0, 9.5, False, 0.0)]
    world = World([slow, [(0.0, 0.0, 0.0, False, 0.0)] * 24])
    world.candidates[0].wrote = (  # type: ignore[method-assign]
        lambda lease, *, began: LeaseCandidate.wrote(world.candidates[0], lease, began=began + 9.5)
    )
    world.run()
    try:
        assert_never_two(world.claims)
    except AssertionError:
        return
    raise AssertionError("two holders went unnoticed")


def held_by(holder: str, **annotations: str) -> LeaseObject:
    return LeaseObject(LeaseMeta("l", "n", "1", None, annotations), LeaseSpec(holder, 15, None, None))


OURS = {RENEW: "a 10"}
FOREIGN = [{}, {RENEW: "before 10"}, {RENEW: "a soon"}, {RENEW: "10"}, {RENEW: "a 99"}]


@given(st.floats(0, 11.9))
def test_a_dead_holder_is_replaced_when_it_cannot_hold_any_more(waited: float) -> None:
    assert_taken_after(held_by("a", **OURS), TERMS.renew_s + TERMS.retry_s, looked_at=waited)


@pytest.mark.parametrize("annotations", FOREIGN)
@given(waited=st.floats(0, 14.9))
def test_a_holder_that_does_not_say_when_it_stops_has_the_whole_duration(
    annotations: dict[str, str], waited: float
) -> None:
    assert_taken_after(held_by("a", **annotations), TERMS.duration_s, looked_at=waited)


def assert_taken_after(held: LeaseObject, seconds: float, *, looked_at: float) -> None:
    clock = ManualClock()
    candidate = LeaseCandidate("b", terms=TERMS, clock=clock)
    candidate.observe(held)
    clock.advance(looked_at)
    candidate.observe(held)  # seen again, unchanged: the time does not start anew
    assert not candidate.may_take()
    clock.advance(seconds - looked_at - 1e-3)
    assert not candidate.may_take()
    clock.advance(2e-3)
    assert candidate.may_take()


class Steady(random.Random):
    """The same point of every range: 0 is its beginning, 1 its end."""

    def __new__(cls, at: float) -> "Steady":
        return super().__new__(cls)

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.at


SLOWEST_S = 0.44  # a call; duration_s - renew_s - 1.6 retry_s is for four of them


@given(st.lists(st.floats(0, SLOWEST_S), min_size=41, max_size=41), st.floats(0, 1), st.floats(0, 1))
@example([SLOWEST_S] * 41, 0.0, 1.0)
def test_the_takeover_is_complete_within_the_duration_of_the_last_renewal(
    calls_s: list[float], renewed_at: float, jitter: float
) -> None:
    """A look is a read, the taking a read and a write; the last renewal began between two looks."""
    clock, rng = ManualClock(), Steady(jitter)
    candidate = LeaseCandidate("b", terms=TERMS, clock=clock)
    before = held_by("a", **OURS)
    last = msgspec.structs.replace(before, metadata=LeaseMeta("l", "n", "2", None, OURS))
    candidate.observe(before)
    began = clock.monotonic() + candidate.pause(rng) * renewed_at
    lands = began + calls_s.pop()
    for read_s, write_s in zip(calls_s[::2], calls_s[1::2], strict=True):
        clock.advance(candidate.pause(rng))
        answer = last if clock.monotonic() >= lands else before
        clock.advance(read_s)
        candidate.observe(answer)
        if candidate.may_take():
            clock.advance(write_s)
            break
    assert began + TERMS.renew_s < clock.monotonic() < began + TERMS.duration_s
