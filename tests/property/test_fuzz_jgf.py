"""Whatever the JGF reader is given, a graph comes out or one line that says what is wrong; soon."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from fluence.errors import FluenceError, InvalidGraph
from fluence.graph import ResourceGraph, jgf
from fluence.match.matcher import Matcher
from tests.builders import Sample
from tests.property import model
from tests.property.strategies import graphs

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [2**31, 2**63, -(2**63) - 1, 10**30, 1.5, 1e308, "", "0", "/", "//", "core0", "-1", "1_0"]
    ),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just({"containment": "/cluster0"}),
    st.lists(st.just({}), max_size=2),
)


def read(text: str | bytes, *, into: ResourceGraph | None = None) -> ResourceGraph | None:
    began = time.process_time()
    graph = ResourceGraph() if into is None else into
    before = model.graph_state(graph)
    try:
        graph.extend(jgf.read(text, into=into))
    except InvalidGraph as error:
        assert "\n" not in str(error)
        assert model.graph_state(graph) == before
        return None
    finally:
        assert time.process_time() - began < 2
    return graph


def use(graph: ResourceGraph) -> None:
    """A graph that was accepted can be asked anything."""
    for vertex in range(graph.rows):
        graph.paths(vertex)
    for tree in graph.trees.values():
        assert len(tree.shape().order) <= graph.rows
    try:
        Matcher(graph)
    except FluenceError as error:
        assert "\n" not in str(error)


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A good document with a few things in it exchanged, dropped, doubled or spoilt."""
    document: Any = json.loads(draw(graphs()).text)
    for _ in range(draw(st.integers(1, 4))):
        spots: list[tuple[Any, Any]] = []

        def collect(value: Any, spots: list[tuple[Any, Any]]) -> None:
            for key in value if isinstance(value, dict) else range(len(value)):
                spots.append((value, key))
                if isinstance(value[key], dict | list):
                    collect(value[key], spots)

        collect(document, spots)
        if not spots:
            break
        place, key = draw(st.sampled_from(spots))
        what = draw(st.sampled_from(["replace", "drop", "double", "exchange"]))
        if what == "replace":
            place[key] = draw(JUNK)
        elif what == "drop":
            del place[key]
        elif what == "double" and isinstance(place, list):
            place.insert(draw(st.integers(0, len(place))), place[key])
        else:
            other, at = draw(st.sampled_from(spots))
            if type(other[at]) is type(place[key]) and not isinstance(place[key], dict | list):
                place[key], other[at] = other[at], place[key]
    return document


@given(document=mutated())
def test_a_spoilt_document_is_read_or_refused(document: Any) -> None:
    graph = read(json.dumps(document))
    if graph is not None:
        use(graph)


@given(sample=graphs(), document=mutated())
def test_growing_by_a_spoilt_document_works_or_changes_nothing(sample: Sample, document: Any) -> None:
    graph = read(json.dumps(document), into=sample.load())
    if graph is not None:
        use(graph)


TINY = Sample()
TINY.add("core", TINY.add("node", TINY.add("cluster", None, id=0), id=0, name="n0"), id=0)
NODE = '{"id":"0","metadata":{"type":"node","paths":{"containment":"/n"},%s}}'


def one(metadata: str) -> str:
    return '{"graph":{"nodes":[' + NODE % metadata + '],"edges":[]}}'


@given(data=st.data(), text=st.one_of(st.binary(max_size=60), st.text(max_size=60)))
@example(None, "[" * 100_000)
@example(None, '{"graph":' * 50_000)
@example(None, '{"graph":{"nodes":[],"edges":[]},"x":' + "[" * 100_000 + "]" * 100_000 + "}")
@example(None, one('"x":' + "[" * 20_000 + "]" * 20_000))
@example(None, one('"size":NaN'))
@example(None, one('"size":-1'))
@example(None, one('"size":1e400'))
@example(None, one('"id":99999999999999999999'))
@example(None, one('"name":"n' + "9" * 5000 + '"'))
@example(None, one('"name":"n' + "9" * 25 + '"'))
@example(None, one('"name":"n٣"'))
@example(None, one('"properties":{"a":1}'))
@example(
    None, '{"graph":{"nodes":[{"id":"%s","metadata":{"type":"a","paths":{}}}],"edges":[]}}' % ("9" * 5000)
)
@example(None, "\ud800")
@example(None, b"\xff\xfe{}")
def test_any_text_is_read_or_refused(data: st.DataObject | None, text: str | bytes) -> None:
    graph = read(text)
    if graph is not None:
        use(graph)


@given(cut=st.integers(0, len(TINY.text)), put=st.sampled_from(['"', "{", "}", ",", "\\", "9", "\x00", " "]))
def test_truncated_and_damaged_text_is_read_or_refused(cut: int, put: str) -> None:
    assert read(TINY.text[:cut]) is None or cut == len(TINY.text)
    read(TINY.text[:cut] + put + TINY.text[cut:])
    read(TINY.text[:cut] + put + TINY.text[cut + 1 :])
