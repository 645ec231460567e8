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

    @rule(who=who, answer=st.sampled_from(["now", "late", "lost"]), is_late=st.booleans())
    def attempt(self, who: int, answer: str, is_late: bool) -> None:
        """What Elector does: read, and write if it may. The request, or its answer, may be on its way for
        any time."""
        if self.calls[who] is not None:
            return
        candidate = self.candidates[who]
        if self.lease is not None:
            candidate.observe(self.lease)
            if not candidate.may_take():
                return
        began = self.time.clocks[who].monotonic()
        self.calls[who] = Call(began, self.lease, candidate.record(self.lease))
        if is_late:
            return
        self.arrives(who)
        if answer != "late":
            self.answered(who, answer == "lost")

    @rule(who=who)
    def arrives(self, who: int) -> None:
        """The server carries the write out, or refuses it because the version has moved on."""
        call = self.calls[who]
        if call is None or call.is_done:
            return
        call.is_done = True
        expected = call.before.metadata.resource_version if call.before else None
        actual = self.lease.metadata.resource_version if self.lease else None
        if expected == actual:
            self.version += 1
            call.answer = self.lease = LeaseObject(LeaseMeta("l", "n", str(self.version)), call.spec)

    @rule(who=who, lost=st.booleans())
    def answered(self, who: int, lost: bool) -> None:
        call = self.calls[who]
        if call is None or not call.is_done:
            return
        self.calls[who] = None
        if call.answer is not None and not lost:
            self.candidates[who].wrote(call.answer, began=call.began)

    @rule(who=who)
    def released(self, who: int) -> None:
        candidate = self.candidates[who]
        if self.calls[who] is not None or not candidate.held or self.lease is None:
            return
        if self.lease.spec.holder_identity == candidate.identity:
            candidate.lost()
            self.version += 1
            self.lease = LeaseObject(LeaseMeta("l", "n", str(self.version)), LeaseSpec("", 1))

    @rule(
        seconds=st.sampled_from([0.1, 2.0, 4.9, 9.9, 10.0, 14.9, 15.0, 16.0, 60.0]),
        jump=st.sampled_from([0.0, 0.0, -86400.0, 86400.0]),
        who=who,
    )
    def time_passes(self, seconds: float, jump: float, who: int) -> None:
        """For all alike, while every one of them may stand still; and somebody's wall clock may jump."""
        self.time.advance(seconds)
        self.time.clocks[who].jump(jump)

    @invariant()
    def never_two_holders(self) -> None:
        if hasattr(self, "candidates"):
            assert sum(candidate.held for candidate in self.candidates) <= 1


LeaseMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
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
