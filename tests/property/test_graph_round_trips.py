"""What is written can be read back: whole graphs, and allocations into an empty ledger."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence.errors import FluenceError
from fluence.graph import ResourceGraph, jgf
from fluence.graph.selection import Selection
from fluence.graph.writers import Grant, jgf_value, write
from fluence.match.matcher import Matcher
from fluence.match.request import Placed
from tests.builders import Sample
from tests.property import model
from tests.property.strategies import POLICIES, graphs, jobspecs


def whole(graph: ResourceGraph) -> Grant:
    """All of a graph, as a writer wants it."""
    tree = graph.tree()
    rows = tree.order
    return Grant(graph, Selection.of(tree, rows, graph.size[rows], np.zeros(len(rows), np.bool_)))


def described(graph: ResourceGraph) -> dict[str, Any]:
    """A graph without its row numbers: by path and rank, what each vertex is, and its children in order."""
    tree = graph.tree()
    words = graph.basenames.words
    key = {v: (graph.path(v), int(graph.rank[v])) for v in tree.order.tolist()}
    return {
        "root": key[tree.root],
        "vertices": {
            key[v]: (
                graph.type_name(v),
                words[int(graph.basename[v])],
                graph.name[v],
                int(graph.id[v]),
                int(graph.uniq_id[v]),
                int(graph.size[v]),
                bool(graph.up[v]),
                graph.properties.get(v, {}),
                graph.paths(v),
            )
            for v in tree.order.tolist()
        },
        "children": {key[v]: [key[child] for child in tree.children(v)] for v in tree.order.tolist()},
        "nodes_up": graph.nodes_up,
    }


@given(sample=graphs(down=False), verbose=st.booleans())
def test_a_graph_survives_jgf(sample: Sample, verbose: bool) -> None:
    graph = sample.load()
    document = jgf_value(whole(graph), verbose=verbose)
    again = ResourceGraph()
    again.extend(jgf.read(json.dumps(document)))
    assert described(again) == described(graph)
    assert jgf_value(whole(again), verbose=verbose) == document
    assert (set(document["graph"]["nodes"][0]["metadata"]) >= {"basename", "name", "uniq_id"}) == verbose


@given(sample=graphs(down=False), verbose=st.booleans())
def test_growing_by_what_is_there_already_adds_nothing(sample: Sample, verbose: bool) -> None:
    graph = sample.load()
    before = model.graph_state(graph)
    added = graph.extend(
        jgf.read(json.dumps(jgf_value(whole(graph), verbose=verbose)), into=graph, source="again")
    )
    assert len(added) == 0
    assert model.graph_state(graph) == before


@given(sample=graphs(down=False))
def test_ways_back_up_that_older_writers_add_change_nothing(sample: Sample) -> None:
    document = sample.document
    back = [{"source": edge["target"], "target": edge["source"]} for edge in sample.edges]
    both = {"graph": {"nodes": document["graph"]["nodes"], "edges": [*document["graph"]["edges"], *back]}}
    graph = ResourceGraph()
    graph.extend(jgf.read(json.dumps(both)))
    assert described(graph) == described(sample.load())


def fill(matcher: Matcher, data: st.DataObject, sample: Sample, *, plain: bool) -> list[Placed]:
    placed: list[Placed] = []
    for job in range(1, 4):
        spec = data.draw(jobspecs(sample, plain=plain), label=f"job {job}")
        try:
            outcome = matcher.match("allocate_orelse_reserve", spec, job=job)
        except FluenceError:
            continue
        if isinstance(outcome, Placed):
            placed.append(outcome)
    return placed


def grants(matcher: Matcher) -> dict[str, Any]:
    """Who holds what and when; whether promised or given is not part of what is written."""
    found = model.ledger_state(matcher.ledger)
    return {
        "spans": {vertex: sorted(spans) for vertex, spans in found["spans"].items()},
        "jobs": {job: (start, end, rows) for job, (start, end, _, rows) in found["jobs"].items()},
    }


@pytest.mark.parametrize("format_", ["jgf", "jgf_shorthand", "rv1", "rv1_shorthand"])
@given(data=st.data(), sample=graphs(), policy=st.sampled_from(POLICIES))
def test_allocations_survive_as_graphs(
    format_: str, data: st.DataObject, sample: Sample, policy: str
) -> None:
    matcher = Matcher(sample.load(), policy)
    again = Matcher(sample.load(), policy)
    for placed in fill(matcher, data, sample, plain=False):
        grant = Grant(matcher.graph, placed.selection, placed.at, placed.end)
        try:
            text = write(grant, format_)
        except FluenceError:
            text = ""
        if not text:
            assert format_.startswith("rv1")  # R needs ranks, and cores or gpus
            matcher.cancel(placed.job)
            continue
        if format_.startswith("rv1"):
            text = json.dumps(json.loads(text)["scheduling"])
        reader = "jgf_shorthand" if format_.endswith("shorthand") else "jgf"
        copy = again.update(placed.job, text, reader=reader, at=placed.at, duration=placed.end - placed.at)
        assert copy.reserved == placed.reserved
        if reader == "jgf":
            assert copy.selection.vertices.tolist() == placed.selection.vertices.tolist()
            assert copy.selection.exclusive.tolist() == placed.selection.exclusive.tolist()
    if format_.endswith("shorthand"):
        # A vertex of its own implies all below it, also what the job did not ask for.
        mine, theirs = grants(matcher), grants(again)
        assert mine["spans"].keys() <= theirs["spans"].keys()
    else:
        assert grants(again) == grants(matcher)


@given(
    data=st.data(), sample=graphs(flat=True), policy=st.sampled_from(["low", "lonode", "hinodex", "first"])
)
def test_allocations_survive_as_r(data: st.DataObject, sample: Sample, policy: str) -> None:
    matcher = Matcher(sample.load(), policy)
    again = Matcher(sample.load(), policy)
    for placed in fill(matcher, data, sample, plain=True):
        grant = Grant(matcher.graph, placed.selection, placed.at, placed.end)
        text = write(grant, "rv1_nosched")
        r = json.loads(text)["execution"]
        assert (r["starttime"], r["expiration"]) == (placed.at, placed.end)
        again.update(placed.job, text, reader="rv1exec", at=placed.at, duration=placed.end - placed.at)
    # R says of a node only which cores and gpus are held: one that is held whole is the job's own.
    mine, theirs = grants(matcher), grants(again)
    assert theirs["jobs"] == mine["jobs"]
    node = matcher.graph.types.code("node")
    for vertex, spans in mine["spans"].items():
        if matcher.graph.type[vertex] != node:
            assert theirs["spans"][vertex] == spans
        else:
            assert [(job, needs) for job, needs, _ in theirs["spans"][vertex]] == [s[:2] for s in spans]
