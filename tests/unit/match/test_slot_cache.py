"""Which vertices count as look-alikes, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from fluence.graph import ResourceGraph
from fluence.match.matcher import Matcher
from tests.builders import Sample, jobspec, resource

PLAIN: list[dict[str, Any]] = [{}, {}, {}, {}]


def two_nodes(*cores: dict[str, Any]) -> ResourceGraph:
    """A node with four plain cores, and one with these."""
    sample = Sample()
    root = sample.add("cluster", None, id=0)
    for number, own in enumerate((PLAIN, cores)):
        node = sample.add("node", root, id=number, rank=number)
        for id_, metadata in enumerate(own):
            sample.add(**{"type_": "core", "above": node, "id": id_, **metadata})
    return sample.load()


def looks(matcher: Matcher) -> list[object]:
    nodes = matcher.graph.vertices_of_type("node").tolist()
    return [found and found[1] for found in map(matcher.search.slot_cache.looks, nodes)]


def test_copies_look_alike() -> None:
    one, other = looks(Matcher(two_nodes(*PLAIN), "first"))
    assert one is not None
    assert one == other


@pytest.mark.parametrize(
    "cores",
    [
        [{}, {}, {}],
        [{}, {}, {}, {"size": 2}],
        [{}, {}, {}, {"id": 9}],
        [{}, {}, {}, {"type_": "gpu"}],
        [{"uniq_id": 22}, {"uniq_id": 21}, {"uniq_id": 23}, {"uniq_id": 24}],
    ],
    ids=["fewer", "size", "score", "type", "order"],
)
def test_what_decides_a_choice_shows(cores: list[dict[str, Any]]) -> None:
    one, other = looks(Matcher(two_nodes(*cores), "first"))
    assert other is not None
    assert one != other


def test_a_child_that_is_down_or_held_hides_the_looks() -> None:
    matcher = Matcher(two_nodes(*PLAIN), "first")
    matcher.set_status("/cluster0/node0/core3", up=False)
    assert matcher.match("allocate", jobspec(resource("slot", 1, resource("core"))), job=1)
    assert looks(matcher) == [None, None]
    matcher.set_status("/cluster0/node0/core3", up=True)
    matcher.cancel(1)
    one, other = looks(matcher)
    assert one is not None
    assert one == other
