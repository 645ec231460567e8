"""Operations and their outcomes: who waits, who never goes, who is told when."""

from __future__ import annotations

import json

import pytest

from fluence.errors import Conflict, InvalidGraph, InvalidInput, InvalidJobspec, NotFound
from fluence.graph.writers import Grant, write
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.request import Never, Operation, Placed, Wait
from fluence.model.jobspec import Jobspec
from tests.builders import Json, cluster, jobspec, resource
from tests.property import model


def nodes(count: int, *, duration: float = 0, constraints: Json | None = None, cores: int = 1) -> Jobspec:
    below = resource("slot", 1, resource("core", cores))
    return jobspec(resource("node", count, below), duration=duration, constraints=constraints)


def whole(count: int, *, duration: float = 0) -> Jobspec:
    return jobspec(resource("node", count, exclusive=True), duration=duration)


def r(*ranks: int) -> str:
    lite = [{"rank": str(rank), "children": {"core": "0"}} for rank in ranks]
    return json.dumps({"version": 1, "execution": {"R_lite": lite}})


@pytest.fixture
def matcher() -> Matcher:
    return Matcher(cluster(nodes=2, cores=2).load(), "low")


def hosts(matcher: Matcher, job: int) -> list[str]:
    rows = matcher.ledger.vertex[matcher.ledger.jobs[job].spans].tolist()
    return sorted(matcher.graph.name[v] for v in rows if matcher.graph.type_name(v) == "node")


# -- outcomes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "busy", "impossible"),
    [
        ("allocate", Wait, Wait),
        ("allocate_with_satisfiability", Wait, Never),
        ("allocate_orelse_reserve", Placed, Wait),  # too few nodes is found before anything is searched
        ("satisfiability", Placed, Never),
        ("without_allocating", Wait, Wait),
        ("without_allocating_future", Placed, Wait),
    ],
)
def test_busy_is_not_impossible(operation: str, busy: type, impossible: type) -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "low")
    matcher.match("allocate", whole(1, duration=10), job=1)
    assert isinstance(matcher.match(operation, whole(2, duration=5), job=2), busy)
    if 2 in matcher.ledger.jobs:
        matcher.cancel(2)
    assert isinstance(matcher.match(operation, whole(3, duration=5), job=2), impossible)


@pytest.mark.parametrize(
    ("operation", "outcome"),
    [
        ("allocate", Wait),
        ("allocate_with_satisfiability", Never),
        ("allocate_orelse_reserve", Never),
        ("satisfiability", Never),
        ("without_allocating_future", Never),
    ],
)
def test_a_node_that_is_too_small_for_ever(operation: str, outcome: type, matcher: Matcher) -> None:
    assert isinstance(matcher.match(operation, nodes(1, cores=3), job=1), outcome)


def test_a_reservation_starts_when_enough_have_left(matcher: Matcher) -> None:
    for job, length in ((1, 10), (2, 30)):
        assert isinstance(matcher.match("allocate", whole(1, duration=length), job=job), Placed)
    soon = matcher.match("allocate_orelse_reserve", whole(1, duration=5), job=3)
    late = matcher.match("allocate_orelse_reserve", whole(2, duration=5), job=4)
    gap = matcher.match("allocate_orelse_reserve", whole(1, duration=15), job=5)
    last = matcher.match("allocate_orelse_reserve", whole(1, duration=16), job=6)
    found = [(o.at, o.end, o.reserved) for o in (soon, late, gap, last) if isinstance(o, Placed)]
    assert found == [(10, 15, True), (30, 35, True), (15, 30, True), (35, 51, True)]
    assert matcher.ledger.times() == [0, 10, 15, 30, 35, 51]


def test_now_moves_the_window(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2, duration=10), job=1, now=100)
    outcome = matcher.match("allocate_orelse_reserve", whole(1, duration=10), job=2, now=105)
    assert isinstance(outcome, Placed)
    assert (outcome.at, outcome.end, outcome.reserved) == (110, 120, True)
    assert isinstance(matcher.match("allocate", whole(1, duration=10), job=3, now=90), Wait), "job 1 runs"


def test_trying_leaves_no_trace(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2, duration=10), job=1)
    before = model.state(matcher)
    assert isinstance(matcher.match(Operation.TRY, whole(1)), Wait)
    outcome = matcher.match(Operation.TRY_FUTURE, whole(1))
    assert isinstance(outcome, Placed)
    assert (outcome.job, outcome.at, outcome.reserved) == (-1, 10, True)
    assert model.state(matcher) == before


def test_what_is_down_waits_and_is_not_impossible_but_too_few_nodes_are() -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "low")
    matcher.set_status("/cluster0/node0/core0", up=False)
    assert isinstance(matcher.match("allocate_with_satisfiability", nodes(2, cores=2), job=1), Wait)
    matcher.set_status("/cluster0/node0", up=False)
    # NB Fluxion's quirk: a job that needs drained nodes is called unsatisfiable by this operation alone.
    assert isinstance(matcher.match("allocate_with_satisfiability", nodes(2), job=1), Never)
    assert isinstance(matcher.match("allocate", nodes(2), job=1), Wait)
    assert isinstance(matcher.match("satisfiability", nodes(2)), Placed)


def test_without_counting_nodes_there_is_no_check_before_the_search() -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "low", filters="ALL:core")
    matcher.set_status("/cluster0/node0", up=False)
    assert isinstance(matcher.match("allocate_with_satisfiability", nodes(2), job=1), Wait)


def test_the_check_before_the_search_minds_the_constraint(matcher: Matcher) -> None:
    only = {"hostlist": ["node0"]}
    assert isinstance(matcher.match("allocate_with_satisfiability", nodes(2, constraints=only), job=1), Never)
    assert isinstance(
        matcher.match("allocate_with_satisfiability", nodes(1, constraints=only), job=1), Placed
    )
    matcher.set_status("/cluster0/node0", up=False)
    assert isinstance(matcher.match("allocate", nodes(1, constraints=only), job=2), Wait)


def test_with_a_constraint_a_node_promised_to_the_end_counts_as_gone() -> None:
    """Fluxion's quirk: to reserve, it counts the nodes that are free at the end of the graph."""
    matcher = Matcher(cluster(nodes=1, cores=2).load(), "low")
    matcher.match("allocate", nodes(1, duration=1), job=1)
    assert isinstance(matcher.match("allocate_orelse_reserve", whole(1), job=2), Placed)
    for constraint, outcome in ((None, Placed), ({}, Wait)):
        spec = nodes(1, duration=1, constraints=constraint)
        assert isinstance(matcher.match("without_allocating_future", spec), outcome)
        assert isinstance(matcher.match("without_allocating", spec), Placed)
    # NB by the same check a job that only has to wait is called impossible here, and possible there.
    spec = nodes(1, duration=1, cores=2, constraints={})
    assert isinstance(matcher.match("allocate_with_satisfiability", spec, job=3), Never)
    assert isinstance(matcher.match("satisfiability", spec), Placed)


# -- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, HORIZON), (1, 1), (2.01, 3), (0.5, 1), (HORIZON, HORIZON)]
)
def test_durations_are_whole_seconds_and_nothing_means_to_the_end(given: float, seconds: int) -> None:
    matcher = Matcher(cluster().load())
    outcome = matcher.match("allocate", nodes(1, duration=given), job=1)
    assert isinstance(outcome, Placed)
    assert outcome.end - outcome.at == seconds


@pytest.mark.parametrize("given", [-1, HORIZON + 1, float("inf")])
def test_a_duration_that_cannot_be_is_refused(given: float) -> None:
    matcher = Matcher(cluster().load())
    before = model.state(matcher)
    with pytest.raises(InvalidJobspec):
        matcher.match("allocate", nodes(1, duration=given), job=1)
    assert model.state(matcher) == before


def test_a_job_that_overruns_keeps_others_out_now_but_not_out_of_the_future(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2, duration=10), job=1)
    matcher.match("allocate_orelse_reserve", whole(1, duration=10), job=2, now=5)
    assert isinstance(matcher.match("allocate", whole(1, duration=5), job=3, now=50), Wait), "job 1 is there"
    promised = matcher.match("allocate_orelse_reserve", whole(1, duration=5), job=4, now=9)
    assert isinstance(promised, Placed)
    assert promised.at == 10, "by then it should have left"
    matcher.cancel(1)
    assert isinstance(matcher.match("allocate", whole(2, duration=5), job=3, now=50), Placed)


def test_a_reservation_whose_time_has_passed_keeps_nobody_out(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2, duration=10), job=1)
    assert isinstance(matcher.match("allocate_orelse_reserve", whole(2, duration=10), job=2), Placed)
    matcher.cancel(1)
    assert isinstance(matcher.match("allocate", whole(2, duration=5), job=3, now=50), Placed)


def test_the_end_of_the_graph_cuts_a_job_short_and_refuses_one_beyond() -> None:
    matcher = Matcher(cluster(nodes=1).load(), horizon=100)
    outcome = matcher.match("allocate", whole(1, duration=50), job=1, now=80)
    assert isinstance(outcome, Placed)
    assert outcome.end == 100
    assert isinstance(matcher.match("allocate_orelse_reserve", whole(1, duration=5), job=2, now=90), Wait)
    assert isinstance(matcher.match("allocate", whole(1, duration=5), job=2, now=100), Wait)


# -- jobs ----------------------------------------------------------------------------------------------------


def test_a_live_job_id_is_refused(matcher: Matcher) -> None:
    matcher.match("allocate", nodes(1), job=1)
    before = model.state(matcher)
    with pytest.raises(Conflict, match="job 1 already holds"):
        matcher.match("allocate", nodes(1), job=1)
    with pytest.raises(Conflict):
        matcher.update(1, "{}", at=0, duration=1)
    assert model.state(matcher) == before


def test_cancelling_frees_at_once_and_only_once(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2), job=1)
    matcher.cancel(1)
    assert isinstance(matcher.match("allocate", whole(2), job=2), Placed)
    with pytest.raises(NotFound, match="no job 1"):
        matcher.cancel(1)


def test_an_unknown_type_is_an_invalid_request(matcher: Matcher) -> None:
    with pytest.raises(InvalidJobspec, match=r"resources\[0\].with\[0\].type.*'warp'.*it has"):
        matcher.match("allocate", jobspec(resource("node", 1, resource("warp", 1))), job=1)


def test_an_unknown_operation_is_refused_with_those_there_are(matcher: Matcher) -> None:
    with pytest.raises(
        InvalidInput, match="operation: 'allocat' is not a valid operation: choose one of allo"
    ):
        matcher.match("allocat", nodes(1), job=1)


@pytest.mark.parametrize(
    ("job", "says"), [(None, "job: none is given: an allocation needs"), (-1, "job: -1 is not a valid id")]
)
def test_an_allocation_needs_the_id_of_its_job(job: int | None, says: str, matcher: Matcher) -> None:
    for operation in ("allocate", "allocate_orelse_reserve", "allocate_with_satisfiability"):
        with pytest.raises(InvalidInput, match=says):
            matcher.match(operation, nodes(1), job=job)
    assert matcher.ledger.jobs == {}
    for operation in ("satisfiability", "without_allocating", "without_allocating_future"):
        placed = matcher.match(operation, nodes(1), job=job)
        assert isinstance(placed, Placed)
        assert placed.job == -1


def test_a_queue_goes_into_r(matcher: Matcher) -> None:
    value = nodes(1).to_value()
    value["attributes"] = {"system": {"queue": "debug"}}
    placed = matcher.match("allocate", Jobspec.from_value(value), job=1)
    assert isinstance(placed, Placed)
    grant = Grant(matcher.graph, placed.selection, placed.at, placed.end, queue=placed.queue)
    assert json.loads(write(grant, "rv1"))["attributes"] == {"system": {"scheduler": {"queue": "debug"}}}


# -- partial cancel ------------------------------------------------------------------------------------------


def test_a_part_is_given_back_by_rank(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2), job=1)
    freed = matcher.partial_cancel(1, r(0))
    assert not freed.whole_job
    assert [matcher.graph.path(v) for v in freed.vertices] == [
        "/cluster0/node0",
        "/cluster0/node0/core0",
        "/cluster0/node0/core1",
    ]
    assert hosts(matcher, 1) == ["node1"]
    assert matcher.partial_cancel(1, r(1)).whole_job
    assert matcher.ledger.jobs == {}


def test_a_part_is_given_back_by_a_graph(matcher: Matcher) -> None:
    placed = matcher.match("allocate", whole(2), job=1)
    assert isinstance(placed, Placed)
    value = json.loads(write(Grant(matcher.graph, placed.selection), "jgf"))
    value["graph"]["nodes"] = [n for n in value["graph"]["nodes"] if n["metadata"]["rank"] == 1]
    value["graph"]["edges"] = []
    assert not matcher.partial_cancel(1, json.dumps(value), reader="jgf").whole_job
    assert hosts(matcher, 1) == ["node0"]
    with pytest.raises(NotFound, match="does not hold"):
        matcher.partial_cancel(1, json.dumps(value), reader="jgf")


def test_vertices_without_a_rank_go_with_the_node_above_them() -> None:
    sample = cluster(nodes=2, cores=2)
    for node in sample.nodes:
        if node["metadata"]["type"] == "core":
            node["metadata"]["rank"] = -1
    matcher = Matcher(sample.load(), "low")
    matcher.match("allocate", whole(2), job=1)
    assert len(matcher.partial_cancel(1, r(0)).vertices) == 3
    assert isinstance(matcher.match("allocate", whole(1), job=2), Placed)
    model.check_nothing_given_twice(matcher.ledger)
    matcher.remove_ranks("1")
    assert len(matcher.graph) == 4
    assert matcher.graph.vertices_at("/cluster0/node1/core0") == []
    more = cluster(nodes=1, cores=1)
    more.nodes[1]["metadata"].update(rank=7, id=7, uniq_id=70, paths={"containment": "/cluster0/node7"})
    more.nodes[2]["metadata"].update(rank=7, uniq_id=71, paths={"containment": "/cluster0/node7/core0"})
    assert len(matcher.grow(more.text)) == 2


def test_a_rack_stays_shared_while_a_type_it_does_not_count_is_held_below() -> None:
    """Racks count cores and nodes; a job of gpus alone still stands in the way of a whole rack."""
    matcher = Matcher(cluster(racks=1, nodes=2, cores=1, gpus=1).load(), "low")
    gpus = jobspec(resource("node", 2, resource("slot", 1, resource("gpu", 1))))
    assert isinstance(matcher.match("allocate", gpus, job=1), Placed)
    assert not matcher.partial_cancel(1, r(0)).whole_job
    assert isinstance(matcher.match("allocate", jobspec(resource("rack", 1, exclusive=True)), job=2), Wait)
    assert matcher.partial_cancel(1, r(1)).whole_job
    assert isinstance(matcher.match("allocate", jobspec(resource("rack", 1, exclusive=True)), job=2), Placed)


def test_first_counts_what_is_left_after_a_part_was_given_back() -> None:
    """A job on both racks gives one back and then ends; the next job finds its way."""
    matcher = Matcher(cluster(racks=2, nodes=2, cores=1).load(), "first")
    placed = matcher.match("allocate", nodes(3), job=1)
    assert isinstance(placed, Placed)
    lone = 1 if hosts(matcher, 1) == ["node1", "node2", "node3"] else 2
    matcher.partial_cancel(1, r(lone))
    matcher.cancel(1)
    assert isinstance(matcher.match("allocate", nodes(4), job=2), Placed)
    assert set(matcher.visit_order._shares) <= {2}


@pytest.mark.parametrize(
    ("text", "reader", "error"),
    [
        (r(9), "rv1exec", NotFound),
        ("{}", "rv1exec", InvalidGraph),
        ("{}", "jgf", InvalidGraph),
        (r(0), "grug", InvalidInput),
    ],
)
def test_a_part_that_is_not_there_changes_nothing(
    text: str, reader: str, error: type[Exception], matcher: Matcher
) -> None:
    matcher.match("allocate", whole(2), job=1)
    before = model.state(matcher)
    with pytest.raises(error):
        matcher.partial_cancel(1, text, reader=reader)
    assert model.state(matcher) == before


def test_a_reservation_is_cancelled_as_a_whole(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2, duration=10), job=1)
    matcher.match("allocate_orelse_reserve", whole(2), job=2)
    with pytest.raises(InvalidInput, match="reservation"):
        matcher.partial_cancel(2, r(0))
    with pytest.raises(NotFound):
        matcher.partial_cancel(3, r(0))


# -- update --------------------------------------------------------------------------------------------------


def text_of(matcher: Matcher, placed: object, format_: str = "jgf") -> str:
    assert isinstance(placed, Placed)
    return write(Grant(matcher.graph, placed.selection, placed.at, placed.end), format_)


def test_a_job_is_re_created_all_or_nothing(matcher: Matcher) -> None:
    text = text_of(matcher, matcher.match("allocate", whole(2), job=1))
    state = model.ledger_state(matcher.ledger)
    matcher.cancel(1)
    matcher.match("allocate", nodes(1), job=2)
    before = model.state(matcher)
    with pytest.raises(Conflict, match="is unavailable"):
        matcher.update(1, text, at=0, duration=HORIZON)
    assert model.state(matcher) == before
    matcher.cancel(2)
    placed = matcher.update(1, text, at=0, duration=HORIZON)
    assert not placed.reserved
    assert model.ledger_state(matcher.ledger)["jobs"] == state["jobs"]


def test_a_node_that_a_policy_gives_whole_is_held_whole_when_it_is_re_created() -> None:
    matcher = Matcher(cluster(nodes=2, cores=2).load(), "lonodex")
    held = {"R_lite": [{"rank": "0", "children": {"core": "0"}}], "nodelist": ["node0"]}
    document = json.dumps({"version": 1, "execution": {**held, "starttime": 0, "expiration": 0}})
    matcher.update(1, document, reader="rv1exec", at=0, duration=60)
    shared = jobspec(resource("node", 2, resource("core", 1)), duration=60)
    assert isinstance(matcher.match("allocate", shared, job=2), Wait)
    matcher.cancel(1)
    assert isinstance(matcher.match("allocate", shared, job=2), Placed)


def test_ranks_that_were_given_back_since_are_left_out(matcher: Matcher) -> None:
    for reader in ("jgf", "jgf_shorthand"):
        value = json.loads(text_of(matcher, matcher.match("allocate", whole(2), job=1), reader))
        matcher.cancel(1)
        matcher.update(1, json.dumps({**value, "free_ranks": "0"}), reader=reader, at=0, duration=5)
        assert hosts(matcher, 1) == ["node1"]
        matcher.cancel(1)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"size": 2}, InvalidGraph, "inconsistent input vertex"),
        ({"id": 9, "name": "node0"}, InvalidGraph, "its id is 9"),
        ({"name": "host"}, InvalidGraph, "its name"),
        ({"basename": "n", "name": "node0"}, InvalidGraph, "its basename"),
        ({"type": "core", "basename": "node"}, InvalidGraph, "its type"),
        ({"rank": 5}, InvalidGraph, "its rank is 5"),
        ({"paths": {"containment": "/cluster0/node7"}}, NotFound, "no vertex /cluster0/node7"),
        ({"paths": {}}, InvalidGraph, "has no path"),
    ],
)
def test_a_document_that_does_not_agree_with_the_graph_is_refused(
    change: Json, error: type[Exception], says: str, matcher: Matcher
) -> None:
    value = json.loads(text_of(matcher, matcher.match("allocate", whole(1), job=1)))
    matcher.cancel(1)
    (node,) = (n for n in value["graph"]["nodes"] if n["metadata"]["type"] == "node")
    node["metadata"].update(change)
    before = model.state(matcher)
    with pytest.raises(error, match=says):
        matcher.update(1, json.dumps(value), at=0, duration=5)
    assert model.state(matcher) == before


def test_edges_of_a_document_must_be_those_of_the_graph(matcher: Matcher) -> None:
    value = json.loads(text_of(matcher, matcher.match("allocate", whole(2), job=1)))
    matcher.cancel(1)
    ids = {n["metadata"]["paths"]["containment"]: n["id"] for n in value["graph"]["nodes"]}
    wrong = {"source": ids["/cluster0/node0"], "target": ids["/cluster0/node1/core0"]}
    for edges, says in (([wrong], "no edge from"), ([{**wrong, "source": "x"}], "no node has the id")):
        with pytest.raises(InvalidGraph, match=says):
            matcher.update(1, json.dumps({"graph": {**value["graph"], "edges": edges}}), at=0, duration=5)
    assert matcher.ledger.jobs == {}


@pytest.mark.parametrize(("at", "duration"), [(-1, 5), (0, 0), (0, -5)])
def test_a_time_that_cannot_be_is_refused(at: int, duration: int, matcher: Matcher) -> None:
    with pytest.raises(InvalidInput, match="invalid time"):
        matcher.update(1, "{}", at=at, duration=duration)


def test_an_unknown_reader_is_refused(matcher: Matcher) -> None:
    with pytest.raises(InvalidInput, match="'hwloc' is not a valid reader"):
        matcher.update(1, "{}", reader="hwloc", at=0, duration=1)


def test_r_names_hosts_ranks_and_children_that_must_be_there(matcher: Matcher) -> None:
    def document(rank: str, core: str, host: str) -> str:
        lite = [{"rank": rank, "children": {"core": core}}]
        return json.dumps({"version": 1, "execution": {"R_lite": lite, "nodelist": [host]}})

    for text, says in (
        (document("5", "0", "node0"), "no node 'node0' of rank 5"),
        (document("0", "0", "node1"), "no node 'node1' of rank 0"),
        (document("0", "7", "node0"), "has no core7"),
    ):
        with pytest.raises(NotFound, match=says):
            matcher.update(1, text, reader="rv1exec", at=0, duration=5)
    matcher.update(1, document("0", "0", "node0"), reader="rv1exec", at=0, duration=5)
    assert isinstance(matcher.match("allocate", whole(2), job=2), Wait), "node0 is shared"
    matcher.update(3, document("1", "0-1", "node1"), reader="rv1exec", at=0, duration=5)
    assert isinstance(matcher.match("allocate", nodes(2), job=2), Wait), "node1 is held whole"


# -- the graph changes ---------------------------------------------------------------------------------------


def test_a_graph_grows_and_shrinks_under_its_jobs(matcher: Matcher) -> None:
    matcher.match("allocate", whole(2), job=1)
    more = cluster(nodes=3, cores=2)
    assert next(matcher.graph.path(v) for v in matcher.grow(more.text)) == "/cluster0/node2"
    assert isinstance(matcher.match("allocate", whole(1), job=2), Placed)
    assert hosts(matcher, 2) == ["node2"]
    matcher.remove_path("/cluster0/node0")
    assert hosts(matcher, 1) == ["node1"]
    assert matcher.graph.nodes_up == 2
    matcher.grow(cluster(nodes=1, cores=2).text)
    assert isinstance(matcher.match("allocate", whole(1), job=3), Placed)
    assert hosts(matcher, 3) == ["node0"]
    assert set(matcher.remove_ranks("0-1")) == {1, 3}
    assert matcher.graph.nodes_up == 1
    model.check_links(matcher.ledger)


def test_what_is_not_there_cannot_be_removed_nor_set(matcher: Matcher) -> None:
    before = model.state(matcher)
    for action in (
        lambda: matcher.remove_path("/cluster0/node9"),
        lambda: matcher.remove_ranks("0,9"),
        lambda: matcher.set_status("/cluster0/node9", up=False),
    ):
        with pytest.raises(NotFound):
            action()
    with pytest.raises(Conflict, match="root"):
        matcher.remove_path("/cluster0")
    with pytest.raises(InvalidInput):
        matcher.remove_ranks("1-0")
    assert model.state(matcher) == before


def test_status_counts_the_nodes_below(matcher: Matcher) -> None:
    matcher.set_status("/cluster0/node0", up=False)
    matcher.set_status("/cluster0/node0", up=False)
    assert matcher.graph.nodes_up == 1
    matcher.set_status("/cluster0/node0/core0", up=False)
    assert matcher.graph.nodes_up == 1
    matcher.set_status("/cluster0/node0", up=True)
    assert matcher.graph.nodes_up == 2
    assert matcher.graph.remove_property(1, "none") is False


def test_a_shape_that_can_never_fit_is_judged_anew_when_the_graph_grows() -> None:
    small = cluster(nodes=2, cores=2)
    matcher = Matcher(small.load(), "lonode")
    for job in (1, 2):
        assert isinstance(matcher.match("allocate_with_satisfiability", nodes(1, cores=3), job=job), Never)
    matcher.grow(cluster(nodes=3, cores=4).text)
    assert isinstance(matcher.match("allocate_with_satisfiability", nodes(1, cores=3), job=3), Placed)


def test_info_says_what_a_job_holds_and_when() -> None:
    matcher = Matcher(cluster(nodes=1, cores=2).load(), "low")
    matcher.match("allocate", nodes(1, cores=2, duration=60), job=7)
    found = matcher.info(7)
    assert (found.id, found.start, found.end, found.reserved) == (7, 0, 60, False)
    with pytest.raises(NotFound, match="no job 8"):
        matcher.info(8)
