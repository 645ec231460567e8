"""The lease over random schedules: pauses, hung calls, lost answers, clock jumps; never two holders."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fluence.clock import ManualClock
from fluence.kube.lease import Candidate, LeaseMeta, LeaseObject, LeaseSpec, Terms

TERMS = Terms(duration_s=15, renew_s=10, retry_s=2)


@dataclasses.dataclass
class Call:
    """A write on its way: begun, perhaps carried out, its answer perhaps still to come."""

    began: float
    before: LeaseObject | None
    spec: LeaseSpec
    answer: LeaseObject | None = None
    is_done: bool = False


class Shared:
    """Monotonic time runs alike for all; each has a wall clock of its own."""

    def __init__(self) -> None:
        self.clocks = [ManualClock(now=1e9), ManualClock(now=2e9)]

    def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)


class LeaseMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.time = Shared()
        self.lease: LeaseObject | None = None
        self.version = 0
        self.candidates = [
            Candidate(f"c{index}", terms=TERMS, clock=clock) for index, clock in enumerate(self.time.clocks)
        ]
        self.calls: list[Call | None] = [None] * 2

    who = st.integers(0, 1)

    @rule(who=who)
    def read_and_begin_to_write(self, who: int) -> None:
        """What Elector does, up to the moment that the write leaves; it may stay on its way for any time."""
        if self.calls[who] is not None:
            return
        candidate = self.candidates[who]
        if self.lease is not None:
            candidate.observe(self.lease)
            if not candidate.may_take():
                return
        began = self.time.clocks[who].monotonic()
        self.calls[who] = Call(began, self.lease, candidate.record(self.lease))

    @rule(who=who)
    def the_server_carries_it_out(self, who: int) -> None:
        call = self.calls[who]
        if call is None or call.is_done:
            return
        call.is_done = True
        expected = call.before.metadata.resource_version if call.before else None
        actual = self.lease.metadata.resource_version if self.lease else None
        if expected != actual:
            return  # 409: the answer stays None
        self.version += 1
        self.lease = LeaseObject(LeaseMeta("l", "n", str(self.version)), call.spec)
        call.answer = self.lease

    @rule(who=who, lost=st.booleans())
    def the_answer_comes_or_is_lost(self, who: int, lost: bool) -> None:
        call = self.calls[who]
        if call is None or not call.is_done:
            return
        self.calls[who] = None
        if call.answer is not None and not lost:
            self.candidates[who].wrote(call.answer, began=call.began)

    @rule(who=who)
    def a_whole_attempt(self, who: int) -> None:
        """The usual case: asked, carried out and answered within a moment."""
        self.read_and_begin_to_write(who)
        self.the_server_carries_it_out(who)
        self.the_answer_comes_or_is_lost(who, False)

    @rule(who=who)
    def the_call_is_given_up(self, who: int) -> None:
        """Timed out here; the server may still carry it out, or have done so."""
        call = self.calls[who]
        if call is not None and call.is_done:
            self.calls[who] = None

    @rule(who=who)
    def released(self, who: int) -> None:
        candidate = self.candidates[who]
        if self.calls[who] is not None or not candidate.held or self.lease is None:
            return
        if self.lease.spec.holder_identity != candidate.identity:
            return
        candidate.lost()
        self.version += 1
        self.lease = LeaseObject(LeaseMeta("l", "n", str(self.version)), LeaseSpec("", 1))

    @rule(seconds=st.sampled_from([0.1, 2.0, 4.9, 9.9, 10.0, 14.9, 15.0, 16.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.time.advance(seconds)

    @rule(who=who, seconds=st.sampled_from([-86400.0, -10.0, 10.0, 86400.0]))
    def a_wall_clock_jumps(self, who: int, seconds: float) -> None:
        self.time.clocks[who].jump(seconds)

    @invariant()
    def never_two_holders(self) -> None:
        if hasattr(self, "candidates"):
            assert sum(candidate.held for candidate in self.candidates) <= 1


LeaseMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestLease = LeaseMachine.TestCase


@given(st.floats(0, 14.9), st.floats(0.0, 30.0))
def test_a_dead_holder_is_replaced_after_exactly_the_duration(waited: float, renewed_ago: float) -> None:
    clock = ManualClock()
    candidate = Candidate("b", terms=TERMS, clock=clock)
    held = LeaseObject(LeaseMeta("l", "n", "1"), LeaseSpec("a", 15, None, f"{renewed_ago}"))
    candidate.observe(held)
    clock.advance(waited)
    candidate.observe(held)  # seen again, unchanged: the time does not start anew
    assert not candidate.may_take()
    clock.advance(15 - waited + 1e-6)
    candidate.observe(held)
    assert candidate.may_take()
