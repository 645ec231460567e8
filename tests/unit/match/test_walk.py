"""What a request means on a graph: levels, slots, exclusivity, ties and the order of `first`."""

from __future__ import annotations

import pytest

from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.request import Never, Placed, Wait
from tests.builders import Json, Sample, cluster, jobspec, resource


def hybrid() -> Sample:
    """3 nodes of 4 cores and one memory vertex of 16; beside them 2 qpus of 5 qubits."""
    sample = cluster(nodes=3, cores=4, memory=16)
    for i in range(2):
        qpu = sample.add("qpu", sample.nodes[0], id=i)
        for j in range(5):
            sample.add("qubit", qpu, id=j)
    return sample


def slot(*below: Json, count: object = 1) -> Json:
    return resource("slot", count, *below)


def held(matcher: Matcher, outcome: object) -> list[str]:
    """Paths below the root, in the order of the output; `!` marks what the job has for itself."""
    assert isinstance(outcome, Placed), outcome
    chosen = outcome.selection
    return [
        str(matcher.graph.path(v)).removeprefix("/cluster0/") + ("!" if alone else "")
        for v, alone in zip(chosen.vertices.tolist(), chosen.exclusive.tolist(), strict=True)
        if v != matcher.tree.root
    ]


def place(sample: Sample, *wanted: Json, policy: str = "low") -> list[str]:
    matcher = Matcher(sample.load(), policy)
    return held(matcher, matcher.match("allocate", jobspec(*wanted), job=1))


def is_impossible(sample: Sample, *wanted: Json) -> bool:
    matcher = Matcher(sample.load(), "low")
    verdict = matcher.match("satisfiability", jobspec(*wanted))
    assert isinstance(matcher.match("allocate_with_satisfiability", jobspec(*wanted), job=1), type(verdict))
    return isinstance(verdict, Never)


# -- the verified forms --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exclusive", [None, True])
def test_a_slot_beside_another_type_matches_nothing(exclusive: bool | None) -> None:
    assert is_impossible(hybrid(), slot(resource("core", 2)), resource("qpu", 1, exclusive=exclusive))


def test_a_slot_whose_types_no_vertex_has_side_by_side_matches_nothing() -> None:
    assert is_impossible(hybrid(), slot(resource("core", 2), resource("qpu", 1)))


def test_a_slot_of_a_node_and_a_qpu_has_both_for_itself_without_the_qubits() -> None:
    assert place(hybrid(), slot(resource("node", 1, resource("core", 2)), resource("qpu", 1))) == [
        "node0/core0!",
        "node0/core1!",
        "node0!",
        "qpu0!",
    ]


def test_slots_in_a_node_and_in_a_qpu_share_both() -> None:
    wanted = (
        resource("node", 1, slot(resource("core", 2))),
        resource("qpu", 1, slot(resource("qubit", 3))),
    )
    assert place(hybrid(), *wanted) == [
        "node0/core0!",
        "node0/core1!",
        "node0",
        "qpu0/qubit0!",
        "qpu0/qubit1!",
        "qpu0/qubit2!",
        "qpu0",
    ]


def test_a_qpu_asked_for_alone_comes_with_all_its_qubits() -> None:
    wanted = (resource("node", 2, slot(resource("core", 2))), resource("qpu", 1, exclusive=True))
    found = place(hybrid(), *wanted)
    assert [name for name in found if name.startswith("qpu")] == [
        *(f"qpu0/qubit{i}!" for i in range(5)),
        "qpu0!",
    ]
    assert [name for name in found if name.startswith("node1")] == ["node1/core0!", "node1/core1!", "node1"]


def test_a_shared_qpu_beside_a_slot_is_matched_and_then_dropped() -> None:
    matcher = Matcher(hybrid().load(), "low")
    spec = jobspec(resource("node", 1, slot(resource("core", 2))), resource("qpu", 1))
    for job in range(1, 7):  # as often as cores allow, on two qpus
        assert not any("qpu" in name for name in held(matcher, matcher.match("allocate", spec, job=job)))
    assert isinstance(matcher.match("allocate", spec, job=7), Wait)


def test_a_slot_does_not_span_nodes() -> None:
    assert is_impossible(hybrid(), slot(resource("core", 6)))
    assert len(place(hybrid(), slot(resource("core", 4)))) == 5


def test_a_pool_is_taken_whole() -> None:
    matcher = Matcher(hybrid().load(), "low")
    spec = jobspec(slot(resource("core", 2), resource("memory", 4), count=2))
    first = held(matcher, matcher.match("allocate", spec, job=1))
    assert first == [
        *("node0/core0!", "node0/core1!", "node0/memory0!", "node0"),
        *("node1/core0!", "node1/core1!", "node1/memory0!", "node1"),
    ]
    assert matcher.ledger.available(matcher.graph.vertices_at("/cluster0/node0/memory0")[0], 0, 1) == 0
    assert isinstance(matcher.match("allocate", spec, job=2), Wait), "one slot per node, one node left"


def test_what_overfills_a_slot_is_not_left_for_the_next() -> None:
    sample = cluster(nodes=1, cores=0)
    for i in range(3):
        sample.add("memory", sample.nodes[1], id=i, rank=0, size=3)
    assert place(sample, slot(resource("memory", 4))) == ["node0/memory0!", "node0/memory1!", "node0"]
    assert is_impossible(sample, slot(resource("memory", 4), count=2))


# -- levels --------------------------------------------------------------------------------------------------


def test_levels_above_may_be_left_out() -> None:
    sample = cluster(racks=2, nodes=1, sockets=1, cores=2)
    whole = resource("socket", 1, slot(resource("core", 1)))
    for wanted in (whole, resource("node", 1, whole), resource("rack", 1, resource("node", 1, whole))):
        assert place(sample, wanted) == [
            "rack0/node0/socket0/core0!",
            "rack0/node0/socket0",
            "rack0/node0",
            "rack0",
        ]
    assert place(sample, resource("cluster", 1, resource("rack", 1, resource("node", 1, whole)))) == place(
        sample, whole
    )


def test_levels_between_may_not() -> None:
    sample = cluster(racks=1, nodes=1, sockets=1, cores=2)
    assert is_impossible(sample, resource("rack", 1, resource("socket", 1, slot(resource("core", 1)))))
    assert is_impossible(sample, resource("node", 1, resource("core", 1, exclusive=True)))


def test_a_slot_binds_where_its_types_are_direct_children() -> None:
    sample = cluster(nodes=2, sockets=2, cores=2)
    assert place(sample, slot(resource("core", 2), count=2)) == [
        *("node0/socket0/core0!", "node0/socket0/core1!", "node0/socket0"),
        *("node0/socket1/core0!", "node0/socket1/core1!", "node0/socket1"),
        "node0",
    ]
    assert is_impossible(sample, slot(resource("core", 3)))


def test_a_slot_below_a_node_skips_no_socket_and_holds_nothing() -> None:
    """The cores are found, but the socket on the way was asked for by nobody."""
    matcher = Matcher(cluster(nodes=1, sockets=1, cores=2).load(), "low")
    with pytest.raises(NothingHeld):
        matcher.match("allocate", jobspec(resource("node", 1, slot(resource("core", 1)))), job=1)
    assert matcher.ledger.jobs == {}


def test_without_a_slot_and_without_exclusive_nothing_is_held() -> None:
    matcher = Matcher(cluster().load(), "low")
    spec = jobspec(resource("node", 1, resource("core", 1)))
    with pytest.raises(NothingHeld, match="nothing of it would be held"):
        matcher.match("allocate", spec, job=1)
    assert isinstance(matcher.match("satisfiability", spec), Placed)


def test_a_type_twice_on_one_level_matches_nothing() -> None:
    assert is_impossible(
        cluster(nodes=3), resource("node", 1, slot(resource("core", 1))), resource("node", 1, exclusive=True)
    )


def test_a_range_is_filled_to_the_most_that_fits() -> None:
    def cores(count: object) -> int:
        found = place(cluster(nodes=1, cores=7), resource("node", 1, slot(resource("core", count))))
        return sum("core" in name for name in found)

    assert cores({"min": 2}) == 7
    assert cores({"min": 2, "max": 5, "operator": "+", "operand": 2}) == 4
    assert cores({"min": 1, "max": 64, "operator": "*", "operand": 2}) == 4
    assert cores({"min": 2, "max": 64, "operator": "^", "operand": 2}) == 4
    assert cores({"min": 7, "max": 9, "operator": "+", "operand": 1}) == 7


def test_a_range_in_a_slot_is_filled_before_slots_are_counted() -> None:
    """As in Fluxion: a graph with more in it can hold less of such a request."""
    wanted = slot(resource("node", {"min": 1, "max": 3, "operator": "+", "operand": 2}), count=2)
    assert place(cluster(nodes=2), wanted) == ["node0!", "node1!"]
    assert is_impossible(cluster(nodes=3), wanted)


# -- exclusivity ---------------------------------------------------------------------------------------------

SHARE = jobspec(resource("node", 1, slot(resource("core", 1))))
WHOLE = jobspec(resource("node", 1, exclusive=True))


def test_a_whole_node_comes_with_all_that_is_in_it() -> None:
    matcher = Matcher(cluster(nodes=1, cores=2, gpus=1).load(), "low")
    assert held(matcher, matcher.match("allocate", WHOLE, job=1)) == [
        *("node0/core0!", "node0/core1!", "node0/gpu0!", "node0!"),
    ]
    assert isinstance(matcher.match("allocate", SHARE, job=2), Wait)


def test_a_shared_node_cannot_be_had_alone() -> None:
    matcher = Matcher(cluster(nodes=1).load(), "low")
    matcher.match("allocate", SHARE, job=1)
    assert isinstance(matcher.match("allocate", WHOLE, job=2), Wait)
    assert isinstance(matcher.match("allocate", SHARE, job=2), Placed)


@pytest.mark.parametrize("policy", ["lonodex", "hinodex", "firstnodex"])
def test_node_exclusive_policies_give_every_job_its_own_nodes(policy: str) -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), policy)
    names = [held(matcher, matcher.match("allocate", SHARE, job=job)) for job in (1, 2)]
    assert all(name.endswith("!") for found in names for name in found)
    assert {found[-1] for found in names} == {"node0!", "node1!"}
    assert all(len(found) == 3 for found in names)
    assert isinstance(matcher.match("allocate", SHARE, job=3), Wait)


def test_exclusive_false_inside_a_slot_is_never_placed() -> None:
    matcher = Matcher(cluster().load(), "low")
    spec = jobspec(slot(resource("core", 1, exclusive=False)))
    assert isinstance(matcher.match("satisfiability", spec), Never)
    assert isinstance(matcher.match("allocate", spec, job=1), Wait)


def test_exclusive_false_outside_a_slot_shares() -> None:
    wanted = resource("node", 1, slot(resource("core", 1)), exclusive=False)
    assert place(cluster(nodes=1), wanted) == ["node0/core0!", "node0"]


# -- status and constraints ----------------------------------------------------------------------------------


def test_what_is_below_a_vertex_that_is_down_cannot_be_had() -> None:
    matcher = Matcher(cluster(racks=2, nodes=1).load(), "low")
    matcher.set_status("/cluster0/rack0", up=False)
    assert held(matcher, matcher.match("allocate", SHARE, job=1))[-2:] == ["rack1/node1", "rack1"]
    spec = jobspec(resource("node", 2, slot(resource("core", 1))))
    assert isinstance(matcher.match("satisfiability", spec), Placed), "some day it is up again"
    assert isinstance(matcher.match("allocate", spec, job=2), Wait)


@pytest.mark.parametrize(
    ("constraint", "host"),
    [
        ({"properties": ["fast"]}, "node1"),
        ({"properties": ["^fast"]}, "node0"),
        ({"properties": ["fast", "big"]}, "node2"),
        ({"hostlist": ["node[2-9]"]}, "node2"),
        ({"ranks": ["1-2"]}, "node1"),
        ({"not": [{"hostlist": ["node[0-1]"]}]}, "node2"),
        ({"and": [{"ranks": ["0-2"]}, {"properties": ["big"]}]}, "node2"),
        ({"or": [{"properties": ["slow"]}, {"ranks": ["2"]}]}, "node2"),
        ({}, "node0"),
    ],
)
def test_constraints_choose_among_nodes(constraint: Json, host: str) -> None:
    sample = cluster(nodes=3)
    matcher = Matcher(sample.load(), "low")
    for path, key in (("node1", "fast"), ("node2", "fast"), ("node2", "big")):
        matcher.graph.set_property(matcher.graph.vertices_at(f"/cluster0/{path}")[0], key, "")
    spec = jobspec(resource("node", 1, slot(resource("core", 1))), constraints=constraint)
    assert held(matcher, matcher.match("allocate", spec, job=1))[-1] == host


def test_constraints_do_not_speak_of_other_types() -> None:
    spec = jobspec(resource("qpu", 1, exclusive=True), constraints={"properties": ["none-such"]})
    matcher = Matcher(hybrid().load(), "low")
    assert held(matcher, matcher.match("allocate", spec, job=1))[-1] == "qpu0!"


def test_an_empty_or_matches_nothing() -> None:
    matcher = Matcher(cluster().load(), "low")
    spec = jobspec(resource("node", 1, slot(resource("core", 1))), constraints={"or": []})
    assert isinstance(matcher.match("satisfiability", spec), Never)


# -- choosing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "host", "core"),
    [
        ("low", "node0", "core0"),
        ("high", "node2", "core2"),
        ("lonode", "node0", "core0"),
        ("hinode", "node2", "core2"),
        ("first", "node2", "core2"),
        ("locality", "node0", "core2"),  # one run of ids: as they were found
    ],
)
def test_the_best_node_and_the_best_core_in_it(policy: str, host: str, core: str) -> None:
    wanted = resource("node", 1, slot(resource("core", 1)))
    assert place(cluster(nodes=3, cores=3), wanted, policy=policy) == [f"{host}/{core}!", host]


def test_headless_slots_compete_across_nodes_unless_nodes_keep_them_together() -> None:
    wanted = slot(resource("core", 1), count=3)
    sample = cluster(nodes=3, cores=3)
    spread = place(sample, wanted, policy="low")
    assert [name for name in spread if "core" in name] == [f"node{i}/core0!" for i in range(3)]
    packed = place(sample, wanted, policy="lonode")
    assert [name for name in packed if "core" in name] == [f"node0/core{i}!" for i in range(3)]
    packed = place(sample, wanted, policy="hinode")
    assert [name for name in packed if "core" in name] == [f"node2/core{i}!" for i in range(3)]


def test_ties_above_sixteen_fall_as_the_standard_library_sorts() -> None:
    found = place(cluster(nodes=32, cores=4), slot(resource("core", 1), count=8), policy="low")
    hosts = [name.split("/")[0] for name in found if name.endswith("core0!")]
    assert hosts == [f"node{i}" for i in (6, 7, 8, 9, 21, 22, 23, 24)]


def test_ties_up_to_sixteen_fall_as_they_were_found() -> None:
    found = place(cluster(nodes=16, cores=1), slot(resource("core", 1), count=3), policy="high")
    assert [name for name in found if "core" in name] == [f"node{i}/core0!" for i in range(3)]


def test_first_starts_with_the_newest_untouched_and_then_with_the_least_loaded() -> None:
    matcher = Matcher(cluster(nodes=3, cores=2).load(), "first")
    hosts = [held(matcher, matcher.match("allocate", SHARE, job=job))[-1] for job in range(1, 6)]
    assert hosts[:3] == ["node2", "node1", "node0"]
    assert sorted(hosts[3:]) == ["node1", "node2"]


def test_first_remembers_a_job_that_was_cancelled() -> None:
    matcher = Matcher(cluster(nodes=3, cores=2).load(), "first")
    assert held(matcher, matcher.match("allocate", SHARE, job=1))[-1] == "node2"
    matcher.cancel(1)
    assert held(matcher, matcher.match("allocate", SHARE, job=2))[-1] == "node1", "node2 was touched"
    assert held(matcher, matcher.match("allocate", SHARE, job=3))[-1] == "node0"
    assert held(matcher, matcher.match("allocate", SHARE, job=4))[-1] == "node2"


def test_first_visits_no_more_than_it_needs() -> None:
    matcher = Matcher(cluster(nodes=50, cores=4).load(), "first")
    matcher.match("allocate", SHARE, job=1)
    seen = matcher.visited
    assert seen <= 4
    matcher = Matcher(cluster(nodes=50, cores=4).load(), "low")
    matcher.indexed = False
    matcher.match("allocate", SHARE, job=1)
    assert matcher.visited > 50


# -- flexible ------------------------------------------------------------------------------------------------


def test_sibling_slots_are_alternatives_where_that_is_asked_for() -> None:
    wanted = (
        resource(
            "node", 1, slot(resource("core", 2), resource("gpu", 1), count=3), slot(resource("core", 3))
        ),
    )
    sample = cluster(nodes=1, cores=5, gpus=1)
    assert is_impossible(sample, *wanted)
    matcher = Matcher(sample.load(), "low", flexible=True)
    outcome = matcher.match("allocate", jobspec(*wanted), job=1)
    assert isinstance(outcome, Placed | Wait)


def test_one_of_the_xor_slots_is_taken_in_their_order() -> None:
    big = {**slot(resource("core", 5)), "type": "xor_slot"}
    small = {**slot(resource("core", 2)), "type": "xor_slot"}
    matcher = Matcher(cluster(nodes=1, cores=4).load(), "low", flexible=True)
    spec = jobspec(resource("node", 1, big, small))
    assert held(matcher, matcher.match("allocate", spec, job=1)) == ["node0/core0!", "node0/core1!", "node0"]
