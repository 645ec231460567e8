"""What Fluxion's search for start times gets wrong, and that only `bug_compatible` does so too."""

from __future__ import annotations

import pytest

from fluence.graph.filters import Filters
from fluence.match.filter_usage import _Plan
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Placed, Wait
from fluence.model.jobspec import Jobspec
from tests.builders import Sample, cluster, jobspec, resource


def cores(nodes: int = 1, count: int = 2, duration: int = 50) -> Jobspec:
    slot = resource("slot", 1, resource("core", count))
    return jobspec(resource("node", nodes, slot), duration=duration)


def one_node_full_twice(*, bug_compatible: bool, filters: str = "ALL:core,ALL:node") -> Matcher:
    """One node of two cores, which job 1 has until 50 and job 2 from then until 100; node1 is new."""
    matcher = Matcher(cluster(nodes=1, cores=2).load(), "low", filters=filters, bug_compatible=bug_compatible)
    matcher.match("allocate", cores(), job=1)
    assert start(matcher, 2) == 50
    matcher.grow(cluster(nodes=2, cores=2).text)
    assert start(matcher, 3) == 0
    return matcher


def start(matcher: Matcher, job: int, wanted: Jobspec | None = None) -> int:
    placed = matcher.match("allocate_orelse_reserve", wanted or cores(), job=job)
    assert isinstance(placed, Placed)
    return placed.at


@pytest.mark.parametrize(("bug_compatible", "at"), [(False, 50), (True, 100)])
def test_an_event_is_found_by_what_was_left_before_the_graph_grew(bug_compatible: bool, at: int) -> None:
    assert start(one_node_full_twice(bug_compatible=bug_compatible), 4) == at


def test_a_job_that_goes_corrects_the_events_that_it_spans() -> None:
    matcher = one_node_full_twice(bug_compatible=True)
    matcher.cancel(2)
    assert start(matcher, 4) == 50


def test_a_search_corrects_the_events_that_it_meets() -> None:
    matcher = one_node_full_twice(bug_compatible=True)
    nothing = jobspec(resource("node", 1, exclusive=True), duration=50)
    assert start(matcher, 4, nothing) == 50, "it asks for no core, so that each event is met"
    matcher.cancel(4)
    assert start(matcher, 5) == 50


@pytest.mark.parametrize("bug_compatible", [False, True])
def test_attached_nodes_count_as_up_unless_fluxion_is_followed(bug_compatible: bool) -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "low", bug_compatible=bug_compatible)
    matcher.grow(cluster(nodes=3, cores=2).text)
    for operation, wrong in (("allocate", Wait), ("allocate_with_satisfiability", Never)):
        outcome = matcher.match(operation, cores(3), job=1)
        assert isinstance(outcome, wrong if bug_compatible else Placed)
        if not bug_compatible:
            matcher.cancel(1)
    assert isinstance(matcher.match("satisfiability", cores(3)), Placed)


def test_the_events_of_a_job_that_no_filter_counts_are_not_there() -> None:
    """As in Fluxion; a leaf type is always counted at a cluster, so it takes a job without any."""
    whole = jobspec(resource("slot", 1, resource("node")), duration=50)
    for bug_compatible, outcome in ((False, Placed), (True, Wait)):
        matcher = Matcher(
            cluster(nodes=1, cores=2).load(), "low", filters="ALL:core", bug_compatible=bug_compatible
        )
        matcher.match("allocate", whole, job=1)
        assert isinstance(matcher.match("allocate_orelse_reserve", whole, job=2), outcome)


def test_a_first_type_that_is_attached_knows_no_event_from_before() -> None:
    matcher = Matcher(cluster(nodes=1, cores=2).load(), "low", bug_compatible=True)
    matcher.match("allocate", cores(), job=1)
    more = Sample()
    node = more.add("node", more.add("cluster", None, id=0), id=1, rank=1, uniq_id=10)
    more.add("core", node, id=0, rank=1, uniq_id=11)
    more.add("gpu", node, id=0, rank=1, uniq_id=12)
    matcher.grow(more.text)
    assert isinstance(matcher.match("allocate_orelse_reserve", cores(), job=2), Wait)
    assert start(matcher, 3, cores(count=1, duration=70)) == 0, "on node1"
    assert start(matcher, 4) == 70


def test_a_plan_gives_back_what_it_was_given() -> None:
    plan = _Plan(4)
    plan.add(1, 0, 50, 3)
    plan.add(2, 50, 90, 4)
    plan.reduce(1, 2)
    assert list(plan.candidates(1, 10, 4)) == [90]
    assert list(plan.candidates(0, 50, 3)) == [0, 90]
    assert 1 in plan
    plan.reduce(1, 1)
    assert 1 not in plan
    plan.reduce(1, 1)
    plan.remove(2)
    assert list(plan.candidates(0, 10, 4)) == [0]
    assert list(plan.candidates(0, 10, 5)) == []


def test_a_vertex_with_something_below_it_in_another_subsystem_is_not_a_leaf() -> None:
    sample = cluster(racks=1, nodes=1, cores=1)
    rack = sample.nodes[1]
    pdu = sample.add("pdu", rack, id=0)
    node = next(each for each in sample.nodes if each["metadata"]["type"] == "node")
    panel = sample.add("panel", None, id=0)
    panel["metadata"]["paths"] = {"power": "/panel0"}
    pdu["metadata"]["paths"]["power"] = "/panel0/pdu0"
    node["metadata"]["paths"]["power"] = "/panel0/pdu0/node0"
    for source, target in ((panel, pdu), (pdu, node)):
        sample.edges.append(
            {"source": source["id"], "target": target["id"], "metadata": {"subsystem": "power"}}
        )
    graph = sample.load()
    filters = Filters.parse("ALL:node", graph)
    filters.prime(graph, graph.tree())
    assert filters.counts(graph.types.code("core"))
    assert not filters.counts(graph.types.code("pdu"))
