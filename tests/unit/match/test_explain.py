"""Why a request does not fit: the causes, the nearest miss, and who is in the way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluence.errors import InvalidJobspec
from fluence.graph.graph import Batch, ResourceGraph
from fluence.match.explain import Explanation, Level, explain
from fluence.match.matcher import Matcher
from fluence.model.constraint import parse
from fluence.model.jobspec import Count, Jobspec, JobspecAttributes, JobspecResource


def cluster(
    *, racks: int = 2, nodes: int = 2, sockets: int = 0, cores: int = 8, gpus: int = 0, memory: int = 0
) -> ResourceGraph:
    """Racks of nodes; the cores are in sockets if there are any, the rest is in the node."""
    batch = Batch()

    def put(type_: str, parent: int | None, number: int, size: int = 1) -> int:
        row = batch.vertex(type_, id=number, uniq_id=len(batch.type), size=size)
        if parent is not None:
            batch.edge(parent, row)
        return row

    root = put("cluster", None, 0)
    batch.roots["containment"] = root
    for i in range(racks):
        rack = put("rack", root, i)
        for j in range(nodes):
            node = put("node", rack, i * nodes + j)
            homes = [put("socket", node, k) for k in range(sockets)] or [node]
            for k in range(cores):
                put("core", homes[k % len(homes)], k)
            for k in range(gpus):
                put("gpu", node, k)
            if memory:
                put("memory", node, 0, memory)
    graph = ResourceGraph()
    graph.extend(batch)
    return graph


def ask(
    type_: str, count: int | Count, *below: JobspecResource, exclusive: bool | None = None
) -> JobspecResource:
    wanted = count if isinstance(count, Count) else Count(count, count)
    return JobspecResource(
        type_, wanted, exclusive=exclusive, label="x" if type_ == "slot" else None, with_=tuple(below)
    )


def nodes(count: int, cores: int) -> JobspecResource:
    return ask("node", count, ask("slot", 1, ask("core", cores)))


def job(*resources: JobspecResource, duration: float = 100, constraint: Any = None) -> Jobspec:
    limit = None if constraint is None else parse(constraint)
    attributes = JobspecAttributes(duration=duration, constraints=limit)
    return Jobspec(version=1, resources=resources, tasks=(), attributes=attributes)


def why(matcher: Matcher, *resources: JobspecResource, now: int = 0, **options: Any) -> Explanation:
    return explain(matcher, job(*resources, **options), now=now)


def level(found: Explanation, path: str) -> Level:
    return next(level for level in found.levels if level.path == path)


@pytest.fixture
def matcher() -> Matcher:
    """Four nodes of eight cores; job 3 has six cores on three of them, job 5 two on node0."""
    matcher = Matcher(cluster(), "lonode")
    assert matcher.match("allocate", job(nodes(3, 6), duration=1000), job=3)
    assert matcher.match("allocate", job(ask("slot", 1, ask("core", 2)), duration=500), job=5)
    return matcher


def test_what_fits_needs_no_excuse(matcher: Matcher) -> None:
    found = why(matcher, nodes(1, 8))
    assert (found.verdict, found.nearest, found.blocking) == ("fits", "", ())
    assert found.summary() == "fits"
    assert found.cause == ""


def test_busy_nodes_are_counted_and_their_jobs_named(matcher: Matcher) -> None:
    found = why(matcher, nodes(3, 8))
    assert found.verdict == "wait"
    assert level(found, "node") == Level("node", "node", "3", 4, 1, busy=3, units=1, is_short=True)
    assert level(found, "node > slot > core").causes == {"busy": 20}
    assert found.nearest == (
        "node: 1 of the 3 needed fit; node1 is the nearest: it has 2 of 8 free core (6 held by job 3)"
    )
    assert (found.blocking, found.earliest_end) == ((3, 5), 500)
    assert found.summary() == "wait: node: 1 of 4 fit (3 wanted): 3 busy; the first ends at 500"
    assert found.cause == "node: 1 of 4 fit (3 wanted): 3 busy"
    assert found.lines()[:3] == [
        f"wait: {found.nearest}",
        "held by jobs 3, 5; the first ends at 500",
        "  node: 1 of 4 fit (3 wanted): 3 busy",
    ]


def test_a_job_that_ended_blocks_later_requests_no_more(matcher: Matcher) -> None:
    assert why(matcher, nodes(4, 2), now=0).blocking == (3, 5)
    overrun = why(matcher, nodes(4, 2), now=600)  # job 5 is past its end and still there
    assert (overrun.verdict, overrun.blocking, overrun.earliest_end) == ("wait", (3, 5), 1000)
    matcher.cancel(5)
    assert why(matcher, nodes(4, 2), now=600).verdict == "fits"


def test_too_small_says_what_is_lacking(matcher: Matcher) -> None:
    found = why(matcher, nodes(1, 9))
    assert found.verdict == "never"
    assert level(found, "node").lacks == (("core", 4),)
    assert found.summary() == "never: node: 0 of 4 fit (1 wanted): 4 lack core"
    assert found.cause == "node: 0 of 4 fit (1 wanted): 4 lack core"
    assert found.nearest.endswith("node0 is the nearest: it has 8 of 9 core")
    assert found.blocking == ()


def test_what_lasts_is_named_before_what_passes(matcher: Matcher) -> None:
    matcher.set_status("/cluster0/rack1", up=False)
    assert level(why(matcher, nodes(1, 9)), "node").causes == {"too_small": 4}
    assert level(why(matcher, nodes(4, 8)), "node").causes == {"down": 2, "busy": 2}


def test_too_few_vertices_in_all(matcher: Matcher) -> None:
    found = why(matcher, nodes(5, 1))
    assert found.verdict == "never"
    assert found.summary() == (
        "never: node: 4 of the 5 needed would fit on an empty graph; there are no more"
    )


def test_down_by_itself_above_or_below() -> None:
    matcher = Matcher(cluster(), "low")
    matcher.set_status("/cluster0/rack0", up=False)
    matcher.set_status("/cluster0/rack1/node2/core0", up=False)
    found = why(matcher, nodes(2, 8))
    assert found.verdict == "wait"
    assert level(found, "node").causes == {"down": 3}
    assert level(found, "node > slot > core").causes == {"down": 17}
    assert found.nearest.endswith("node2 is the nearest: it has 7 of 8 free core (1 down)")
    assert (found.blocking, found.earliest_end) == ((), None)
    assert why(matcher, ask("node", 4)).nearest.endswith("node0 is the nearest: rack0 is down")


def test_outside_the_constraint() -> None:
    graph = cluster()
    graph.set_property(graph.vertices_at("/cluster0/rack0/node1")[0], "fast", "")
    matcher = Matcher(graph, "low")
    found = why(matcher, nodes(2, 8), constraint={"properties": ["fast"]})
    assert (found.verdict, level(found, "node").causes) == ("never", {"constraint": 3})
    assert found.nearest.endswith("node0 is the nearest: it does not meet the constraint (property fast)")
    racks = why(matcher, ask("rack", 1, nodes(2, 8)), constraint={"properties": ["fast"]})
    assert level(racks, "rack").causes == {"constraint": 2}


def test_shared_is_told_apart_from_busy(matcher: Matcher) -> None:
    found = why(matcher, ask("node", 2, exclusive=True))
    assert level(found, "node").causes == {"shared": 3}
    assert found.nearest.endswith("it is used by jobs 3, 5 until 1000, and the request wants it exclusively")
    assert matcher.match("allocate", job(ask("node", 1, exclusive=True), duration=50), job=7)
    found = why(matcher, ask("node", 1, exclusive=True))
    assert level(found, "node").causes == {"busy": 1, "shared": 3}
    assert (found.blocking, found.earliest_end) == ((3, 5, 7), 50)
    assert found.nearest.endswith("node3 is the nearest: it is held by job 7 until 50")


def test_a_missing_level_is_named_with_its_cure() -> None:
    matcher = Matcher(cluster(sockets=2), "low")
    found = why(matcher, ask("node", 1, ask("core", 2, exclusive=True)))
    cores = level(found, "node > core")
    assert (found.verdict, cores.causes) == ("never", {"unreachable": 32})
    cure = "core is below socket, not directly below node: name the level socket, or put the slot on top"
    assert cores.hint == cure
    assert cure in found.nearest
    assert f"    {cure}" in found.lines()


def test_a_slot_two_levels_too_high() -> None:
    found = why(Matcher(cluster(sockets=2), "low"), ask("rack", 1, ask("slot", 1, ask("core", 2))))
    assert level(found, "rack > slot").unreachable == 8
    assert level(found, "rack > slot").hint == (
        "a slot fits below node > socket: name what is between rack and slot, or start there"
    )


def test_a_slot_of_things_that_are_not_side_by_side() -> None:
    found = why(Matcher(cluster(sockets=2, gpus=1), "low"), ask("slot", 1, ask("core", 1), ask("gpu", 1)))
    assert (found.verdict, level(found, "slot").considered) == ("never", 0)
    assert found.nearest.endswith(
        "nothing has all of a slot directly below it: core is below socket; gpu is below node"
    )


def test_a_slot_beside_another_resource_is_a_contradiction(matcher: Matcher) -> None:
    found = why(matcher, ask("slot", 1, ask("core", 1)), ask("node", 1))
    assert level(found, "node").causes == {"contradiction": 4}
    assert "a slot must be alone at its level" in found.nearest


def test_one_type_twice_at_a_level_is_a_contradiction(matcher: Matcher) -> None:
    found = why(matcher, nodes(1, 1), ask("node", 1))
    assert (found.verdict, found.levels[0].causes) == ("never", {"contradiction": 4})
    assert found.levels[0].hint == "one level asks for node twice: make it one, or nest them"


def test_exclusive_false_inside_a_slot_is_a_contradiction(matcher: Matcher) -> None:
    found = why(matcher, ask("slot", 1, ask("core", 1, exclusive=False)))
    assert found.verdict == "never"
    assert level(found, "slot > core").causes == {"contradiction": 32}
    assert "exclusive: false contradicts what it is inside of" in found.nearest


def test_slots_take_whole_vertices() -> None:
    matcher = Matcher(cluster(memory=16), "low")
    slots = ask("slot", 2, ask("core", 1), ask("memory", 4))
    assert why(matcher, ask("node", 1, slots)).verdict == "never"
    places = level(why(matcher, slots), "slot")
    assert (places.fit, places.units) == (4, 4)


def test_the_nearest_slot_is_one_that_waiting_would_give(matcher: Matcher) -> None:
    found = why(matcher, ask("slot", 4, ask("core", 8)))
    assert found.nearest.endswith("node1 is the nearest: it has 2 of 8 free core (6 held by job 3)")


def test_a_deep_miss_is_followed_down(matcher: Matcher) -> None:
    found = why(matcher, ask("rack", 2, nodes(2, 3)))
    assert found.nearest == (
        "rack: 0 of the 2 needed fit; /cluster0/rack1 is the nearest: "
        "it has 1 of 2 free node (node2: it has 2 of 3 free core (6 held by job 3))"
    )


def test_a_match_that_holds_nothing_is_said_to() -> None:
    matcher = Matcher(cluster(sockets=2), "low")
    found = why(matcher, nodes(1, 2))
    assert found.verdict == "fits"
    assert found.summary().startswith("fits, but nothing would be held")
    assert why(matcher, ask("node", 1, ask("socket", 1, ask("slot", 1, ask("core", 2))))).summary() == "fits"


def test_nodes_that_are_not_counted_as_up() -> None:
    """Fluxion's check before the search can refuse what the search would find."""
    matcher = Matcher(cluster(), "low")
    matcher.set_status("/cluster0/rack0/node0", up=False)
    matcher.set_status("/cluster0/rack0", up=False)  # counts node0 a second time
    found = why(matcher, nodes(2, 1))
    assert not matcher.match("without_allocating", job(nodes(2, 1)))
    assert found.verdict == "wait"
    assert found.nearest == "node: 2 needed in all, and fewer count as up and free"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (Count(4, 4), "4"),
        (Count(4), "4+"),
        (Count(2, 8), "2-8"),
        (Count(2, 16, "*", 2), "2-16:2:*"),
        (Count(2, 8, "+", 3), "2-8:3"),
    ],
)
def test_counts_in_words(matcher: Matcher, count: Count, text: str) -> None:
    assert level(why(matcher, ask("node", count, exclusive=True)), "node").wanted == text


def test_many_jobs_are_not_all_named() -> None:
    matcher = Matcher(cluster(racks=1, nodes=1), "low")
    for number in range(8):
        assert matcher.match("allocate", job(ask("slot", 1, ask("core", 1))), job=number)
    found = why(matcher, nodes(1, 8))
    assert found.nearest.endswith("(8 held by jobs 0, 1, 2, 3, 4 and 3 more)")
    assert found.blocking == tuple(range(8))


def test_reservations_block_too() -> None:
    matcher = Matcher(cluster(racks=1, nodes=1), "low")
    assert matcher.match("allocate", job(nodes(1, 8), duration=10), job=1)
    assert matcher.match("allocate_orelse_reserve", job(nodes(1, 8), duration=10), job=2)
    found = why(matcher, nodes(1, 8), duration=5, now=0)
    assert (found.blocking, found.earliest_end) == ((1,), 10)
    assert why(matcher, nodes(1, 8), duration=50).blocking == (1, 2)


def test_flexible_slots_leave_the_verdict_to_the_search() -> None:
    matcher = Matcher(cluster(gpus=1), "low", flexible=True)
    either = (ask("slot", 1, ask("core", 9)), ask("slot", 1, ask("gpu", 1)))
    found = why(matcher, ask("node", 4, *either))
    assert (found.verdict, found.exact) == ("fits", False)
    assert [own.path for own in found.levels] == ["node"]
    assert found.lines()[-1] == "  the levels are an approximation; the verdict is exact"


def test_it_goes_into_json_and_comes_out_whole(matcher: Matcher) -> None:
    found = why(matcher, nodes(3, 8))
    value = json.loads(json.dumps(found.to_value()))
    assert (value["verdict"], value["blocking"], value["earliest_end"]) == ("wait", [3, 5], 500)
    assert value["levels"][0] == {
        "path": "node",
        "type": "node",
        "wanted": "3",
        "considered": 4,
        "fit": 1,
        "causes": {"busy": 3},
        "units": 1,
        "lacks": {},
        "is_short": True,
        "hint": None,
    }


def test_asking_changes_nothing(matcher: Matcher) -> None:
    before = (matcher.visited, matcher.ledger.generation, matcher.graph.state_generation)
    why(matcher, nodes(3, 8))
    flexible = Matcher(cluster(), "first", flexible=True)
    why(flexible, nodes(3, 8))
    assert (matcher.visited, matcher.ledger.generation, matcher.graph.state_generation) == before
    assert flexible.visited == 0


def test_a_type_that_the_graph_has_not_is_a_fault_of_the_jobspec(matcher: Matcher) -> None:
    with pytest.raises(InvalidJobspec, match="quantum"):
        why(matcher, ask("quantum", 1))
