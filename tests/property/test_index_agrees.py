"""The index gives the walk's answers: on random graphs, under every policy, whatever others hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence.errors import FluenceError
from fluence.graph import jgf
from fluence.graph.graph import ResourceGraph
from fluence.match import policy
from fluence.match.filter_usage import counting
from fluence.match.index import search
from fluence.match.matcher import Matcher
from fluence.match.request import EMPTY, Extensions, Found, Window
from tests.property.strategies import Sample, graphs, jobspecs

POLICIES = [name for name in policy.names() if name not in ("locality", "variation")]
BEYOND = Extensions(
    quantities=frozenset(("memory",)), constrained=frozenset(("node", "qpu", "core")), shared=True
)


def load(sample: Sample) -> ResourceGraph:
    graph = ResourceGraph()
    graph.extend(jgf.read(sample.text))
    return graph


def same(one: Found, other: Found) -> bool:
    if one.selection is None or other.selection is None:
        return one.selection is other.selection
    columns = ("vertices", "needs", "exclusive", "parents", "depths")
    return one.selection.labels == other.selection.labels and all(
        np.array_equal(getattr(one.selection, column), getattr(other.selection, column)) for column in columns
    )


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("extensions", [Extensions(), BEYOND], ids=["fluxion", "beyond"])
@given(data=st.data())
def test_index_and_walk_agree(name: str, extensions: Extensions, data: st.DataObject) -> None:
    sample = data.draw(graphs())
    matcher = Matcher(load(sample), name, extensions=extensions)
    for job in range(1, data.draw(st.integers(1, 6)) + 1):
        jobspec = data.draw(jobspecs(sample))
        try:
            request = matcher.compile(jobspec)
        except FluenceError:
            continue
        start = data.draw(st.sampled_from([0, *matcher.ledger.times()]))
        length = data.draw(st.sampled_from([1, 60, 600, 100_000]))
        for window in (EMPTY, Window(0, length), Window(start, start + length, allocate=False)):
            allowed = matcher.search.allowed_by(request.constraint)
            indexed = search(
                matcher.index, request.needs, window, allowed, matcher.search.whole_types(request)
            )
            if indexed is not None:
                walked = matcher.search.walk(request, window)
                assert same(indexed, walked), (window, jobspec.to_json())
        try:
            matcher.match("allocate_orelse_reserve", request, job=job)
        except FluenceError:
            continue
        if data.draw(st.integers(0, 3)) == 0 and matcher.ledger.jobs:
            matcher.cancel(data.draw(st.sampled_from(sorted(matcher.ledger.jobs))))


@pytest.mark.parametrize("name", ["lonode", "first", "high"])
@given(data=st.data())
def test_the_sweep_finds_the_start_that_trying_every_event_finds(name: str, data: st.DataObject) -> None:
    sample = data.draw(graphs())
    swept, tried = Matcher(load(sample), name), Matcher(load(sample), name)
    tried.indexed = False
    for job in range(1, data.draw(st.integers(2, 8)) + 1):
        jobspec = data.draw(jobspecs(sample))
        answers: list[object] = []
        for matcher in (swept, tried):
            try:
                outcome = matcher.match("allocate_orelse_reserve", jobspec, job=job)
                answers.append((type(outcome).__name__, getattr(outcome, "at", None)))
            except FluenceError as error:
                answers.append(str(error))
        assert answers[0] == answers[1], jobspec.to_json()


@pytest.mark.parametrize("name", ["low", "firstnodex"])
@given(data=st.data())
def test_while_a_graph_stays_as_it_is_the_filter_at_its_root_knows_every_start(
    name: str, data: st.DataObject
) -> None:
    sample = data.draw(graphs())
    plain, fluxion = Matcher(load(sample), name), Matcher(load(sample), name, bug_compatible=True)
    fluxion.graph.nodes_up = plain.graph.nodes_up  # Fluxion counts nodes that arrive down in its own way
    for job in range(1, data.draw(st.integers(2, 8)) + 1):
        jobspec = data.draw(jobspecs(sample))
        answers: list[object] = []
        for matcher in (plain, fluxion):
            try:
                outcome = matcher.match("allocate_orelse_reserve", jobspec, job=job)
                answers.append((type(outcome), getattr(outcome, "at", None)))
            except FluenceError as error:
                answers.append(str(error))
        assert answers[0] == answers[1], jobspec.to_json()
        held = plain.ledger.jobs.get(job)
        if held is not None:
            rows = plain.ledger.vertex[held.spans]
            if plain.tree.root not in counting(plain.graph, plain.tree, plain.filters, rows):
                plain.cancel(job)  # it holds nothing that is counted: Fluxion does not see when it ends
                fluxion.cancel(job)
