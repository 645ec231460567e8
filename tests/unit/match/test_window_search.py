"""The search of one window: what it keeps, and that this follows the graph."""

from __future__ import annotations

from fluence.graph import jgf
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Placed
from fluence.model.constraint import parse
from tests.builders import Sample, cluster, jobspec, resource


def test_a_constraint_is_read_anew_when_a_property_changes() -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "low")
    fast = parse({"properties": ["fast"]})
    (node,) = matcher.graph.vertices_at("/cluster0/node1")
    before = matcher.search.allowed_by(fast)
    assert before is not None
    assert before is matcher.search.allowed_by(fast)
    assert not before[node]
    matcher.graph.set_property(node, "fast", "")
    matcher.refresh()
    after = matcher.search.allowed_by(fast)
    assert after is not None
    assert after[node]


def test_what_never_fits_is_asked_again_when_the_graph_has_changed() -> None:
    matcher = Matcher(cluster(nodes=1, cores=2).load(), "low")
    wanted = jobspec(resource("node", 2, resource("slot", 1, resource("core", 1))), duration=10)
    for _ in range(2):
        assert isinstance(matcher.match("satisfiability", wanted), Never)
    matcher.grow(cluster(nodes=2, cores=2).text)
    assert isinstance(matcher.match("satisfiability", wanted), Placed)


def test_a_type_becomes_a_pool_although_the_graph_has_just_grown() -> None:
    matcher = Matcher(cluster(nodes=1, cores=2).load(), "low")
    more = Sample()
    node = more.add("node", more.add("cluster", None, id=0), id=1, rank=1, uniq_id=10)
    more.add("memory", node, id=0, rank=1, uniq_id=11, size=8)
    matcher.graph.extend(jgf.read(more.text, into=matcher.graph))
    matcher.add_quantities(["memory"])
    (memory,) = matcher.graph.vertices_at("/cluster0/node1/memory0")
    assert matcher.is_pool(memory)
    half = jobspec(resource("node", 1, resource("slot", 1, resource("memory", 4))), duration=10)
    for job in (1, 2):
        assert isinstance(matcher.match("allocate", half, job=job), Placed)
