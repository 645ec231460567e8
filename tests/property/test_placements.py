"""What a placement means, whatever the policy: possible is possible, and earliest is earliest."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence.errors import FluenceError
from fluence.match import policy as policies
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Operation, Placed, Wait
from tests.builders import Sample
from tests.property import model
from tests.property.strategies import POLICIES, graphs, jobspecs

assert settings.default is not None
FEWER = settings(max_examples=settings.default.max_examples // 3)  # there are many policies


@FEWER
@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data(), sample=graphs(down=False))
def test_on_an_empty_graph_possible_and_now_are_one(data: st.DataObject, sample: Sample, policy: str) -> None:
    matcher = Matcher(sample.load(), policy)
    request = matcher.compile(data.draw(jobspecs(sample), label="jobspec"))
    try:
        verdict = matcher.match(Operation.JUDGE, request)
        outcome = matcher.match(Operation.ALLOCATE_OR_JUDGE, request, job=1)
    except FluenceError:
        return
    assert isinstance(outcome, Placed | Never)
    assert isinstance(verdict, Placed) == isinstance(outcome, Placed)
    if isinstance(outcome, Placed):
        model.check_placement(matcher, request, outcome)


@FEWER
@pytest.mark.parametrize("policy", [name for name in POLICIES if not policies.find(name).stop_early])
@given(data=st.data(), sample=graphs())
def test_a_reservation_is_the_earliest_there_is(data: st.DataObject, sample: Sample, policy: str) -> None:
    matcher = Matcher(sample.load(), policy, horizon=1000)
    for job in range(1, 6):
        request = matcher.compile(data.draw(jobspecs(sample), label=f"job {job}"))
        # A match at a time asks at least as much as a promise for that time: it minds jobs that overrun.
        events = [0, *matcher.ledger.times()]
        try:
            outcome = matcher.match(Operation.ALLOCATE_OR_RESERVE, request, job=job)
        except FluenceError:
            continue
        if not isinstance(outcome, Placed) and request.constraint is not None:
            continue  # NB the check before the search asks who has the nodes at the end of the graph
        before = events if not isinstance(outcome, Placed) else [t for t in events if t < outcome.at]
        if isinstance(outcome, Placed):
            assert outcome.at in events
            matcher.cancel(job)
        for time in before:
            if not request.duration and time:
                continue  # without a duration the window ends with the graph, whenever it starts
            assert not isinstance(matcher.match(Operation.TRY, request, now=time), Placed) or (
                time >= matcher.horizon
            )
        if isinstance(outcome, Placed):
            again = matcher.match(Operation.ALLOCATE_OR_RESERVE, request, job=job)
            assert isinstance(again, Placed)
            assert (again.at, again.selection.vertices.tolist()) == (
                outcome.at,
                outcome.selection.vertices.tolist(),
            )


@given(data=st.data(), sample=graphs(down=False), policy=st.sampled_from(POLICIES))
def test_whatever_waits_can_go_once_the_others_have_left(
    data: st.DataObject, sample: Sample, policy: str
) -> None:
    matcher = Matcher(sample.load(), policy)
    for job in range(1, 5):
        with contextlib.suppress(FluenceError):
            matcher.match(Operation.ALLOCATE, data.draw(jobspecs(sample), label=f"job {job}"), job=job)
    request = matcher.compile(data.draw(jobspecs(sample), label="the last"))
    try:
        outcome = matcher.match(Operation.ALLOCATE_OR_JUDGE, request, job=9)
    except FluenceError:
        return
    if isinstance(outcome, Placed):
        matcher.cancel(9)
    for job in list(matcher.ledger.jobs):
        matcher.cancel(job)
    assert matcher.ledger.jobs == {}
    assert (matcher.ledger.head < 0).all()
    again = matcher.match(Operation.ALLOCATE, request, job=9)
    if not model.is_monotone(request):
        return
    if isinstance(outcome, Wait | Placed):
        assert isinstance(again, Placed)
    elif request.constraint is None:  # else the check before the search may have answered: see above
        assert not isinstance(again, Placed)
