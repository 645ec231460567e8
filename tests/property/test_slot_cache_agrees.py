"""A walk that knows look-alikes takes the steps and gives the answers of one that looks at every child."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence.errors import FluenceError
from fluence.graph.graph import CONTAINMENT
from fluence.match.matcher import Matcher
from fluence.match.request import EMPTY, Window
from tests.property.strategies import graphs, jobspecs
from tests.property.test_index_agrees import load, same


@pytest.mark.parametrize("name", ["first", "firstnodex", "low", "high", "lonode", "locality", "variation"])
@given(data=st.data())
def test_look_alikes_answer_as_strangers_do(name: str, data: st.DataObject) -> None:
    sample = data.draw(graphs())
    matchers = Matcher(load(sample), name), Matcher(load(sample), name)
    matchers[1].search.slot_cache._shows = False
    for matcher in matchers:
        matcher.indexed = False
    known = [data.draw(jobspecs(sample)) for _ in range(2)]
    for job in range(1, data.draw(st.integers(1, 8)) + 1):
        jobspec = data.draw(st.sampled_from(known))
        vertex = data.draw(st.integers(0, matchers[0].graph.rows - 1))
        window = data.draw(st.sampled_from([EMPTY, Window(0, 60), Window(60, 120, allocate=False)]))
        up, cancels = data.draw(st.integers(0, 3)) > 0, data.draw(st.integers(0, 3)) == 0
        answers = []
        for matcher in matchers:
            matcher.set_status(matcher.graph.paths(vertex)[CONTAINMENT], up=up)
            try:
                request = matcher.compile(jobspec)
                found = matcher.search.walk(request, window)
                answers.append((found, matcher.visited))
                matcher.match("allocate", request, job=job)
                if cancels:
                    matcher.cancel(min(matcher.ledger.jobs))
            except (FluenceError, ValueError):
                continue
        if answers:
            (found, visited), (strange, steps) = answers
            assert same(found, strange)
            assert (found.obstacle, found.conflict, visited) == (strange.obstacle, strange.conflict, steps)
