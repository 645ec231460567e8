"""How far claims are: ready when all are bound within reach, failed when one cannot be, else they wait."""

from __future__ import annotations

from typing import Any

import pytest

from fluence.cluster.claims import Choice, Claim
from fluence.cluster.filters.volumes import VolumeDecision
from fluence.cluster.graph import ClusterGraph
from fluence.model.meta import Requirement
from fluence.model.pod import ClaimVolumeSource, NodeSelector, NodeSelectorTerm, PodVolume
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Bind, ClaimUpdate
from fluence.schedule.scheduler import cluster_for
from fluence.schedule.volumes import Failed, Ready, VolumeBinding, VolumeBindings, Waits
from tests.gangs import nominated
from tests.unit.cluster.build import HOST, node
from tests.unit.schedule import kit

KEY = ("default", "data")
MADE = VolumeDecision(KEY, "u", "n1", None, ("uid-default-a",))
GIVEN = VolumeDecision(KEY, "u", "n1", "pv", ("uid-default-a",))
POD = kit.pod("a", volumes=[PodVolume(persistent_volume_claim=ClaimVolumeSource(claim_name="data"))])
BIND = Bind(POD, "n1", "default/pod:a", {})
UNBOUND = {"uid-default-a": "n1"}


def on(name: str) -> NodeSelector:
    rule = Requirement(key=HOST, operator="In", values=[name])
    return NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[rule])])


def cluster(claim: Claim | None = None) -> ClusterGraph:
    found = cluster_for()
    for name in ("n1", "n2"):
        found.set_node(node(name))
    found.set_pod(nominated(POD, "n1"))
    found.set_claim(*KEY, claim)
    return found


def binding(*decisions: VolumeDecision, deadline: int = 100) -> VolumeBinding:
    return VolumeBinding(decisions, [BIND], deadline)


def check(of: VolumeBinding, claim: Claim | None, *, now: int = 0, **more: Any) -> Ready | Waits | Failed:
    return of.check(cluster(claim), more.get("unbound", UNBOUND), now)


def code(found: Ready | Waits | Failed) -> tuple[Code, frozenset[str]]:
    assert isinstance(found, Failed), found
    return found.reason.code, found.nodes


def test_it_is_ready_when_every_claim_is_bound() -> None:
    assert check(binding(MADE), Claim("bound", uid="u")) == Ready()
    assert check(binding(MADE), Claim("bound", uid="u", nodes=on("n1")), now=100) == Ready()
    other = VolumeDecision(("default", "log"), "v", "n1", None, MADE.pods)
    world = cluster(Claim("bound", uid="u"))
    world.set_claim("default", "log", Claim("waits", uid="v"))
    assert binding(MADE, other).check(world, UNBOUND, 0) == Waits()


@pytest.mark.parametrize("decision", [MADE, GIVEN])
def test_it_waits_while_a_claim_waits(decision: VolumeDecision) -> None:
    waits = Claim("waits", uid="u", choices=(Choice("pv"),))
    assert check(binding(decision), waits) == Waits()
    assert check(binding(decision), Claim("pending", uid="u")) == Waits(), "its volume was not seen yet"


@pytest.mark.parametrize(
    ("decision", "claim", "why"),
    [
        (MADE, None, Code.CLAIM_GONE),
        (MADE, Claim("waits", uid="another"), Code.CLAIM_GONE),
        (MADE, Claim("bound", uid="another"), Code.CLAIM_GONE),
        (MADE, Claim("bound", uid="u", nodes=on("n2")), Code.BOUND_VOLUME_OUT_OF_REACH),
        (
            MADE,
            Claim("pending", uid="u", reason=Reason.of(Code.CLAIM_TERMINATING, claim="data")),
            Code.CLAIM_DELETING,
        ),
        (GIVEN, Claim("waits", uid="u", choices=(Choice("other"),)), Code.VOLUME_TAKEN),
    ],
    ids=["gone", "anew", "anew and bound", "out of reach", "deleting", "taken"],
)
def test_it_fails_where_a_claim_cannot_be_bound_like_this(
    decision: VolumeDecision, claim: Claim | None, why: Code
) -> None:
    assert code(check(binding(decision), claim)) == (why, frozenset())


def test_a_volume_out_of_reach_of_a_pod_that_does_not_mount_it_matters_to_nobody() -> None:
    sibling = Bind(kit.pod("b"), "n2", "default/g", {})
    world = cluster(Claim("bound", uid="u", nodes=on("n1")))
    world.set_pod(nominated(sibling.pod, "n2"))
    both = VolumeBinding((MADE,), [BIND, sibling], 100)
    assert both.check(world, {**UNBOUND, sibling.uid: "n2"}, 0) == Ready()


def test_a_provisioner_that_takes_the_decision_back_could_not_make_it_there() -> None:
    found = binding(MADE)
    assert check(found, Claim("waits", uid="u")) == Waits(), "it may not be written yet"
    found.observe(KEY, Claim("waits", uid="u", selected="n1"))
    assert check(found, Claim("waits", uid="u", selected="n1")) == Waits()
    assert code(check(found, Claim("waits", uid="u"))) == (Code.VOLUME_NOT_MADE, frozenset({"n1"}))
    assert code(check(found, Claim("waits", uid="u", selected="n2")))[0] is Code.VOLUME_NOT_MADE


def test_decisions_of_others_and_for_other_claims_are_not_ours() -> None:
    found = binding(MADE)
    found.observe(KEY, None)
    found.observe(KEY, Claim("waits", uid="u", selected="n2"))
    found.observe(("default", "log"), Claim("waits", uid="u", selected="n1"))
    assert found.seen == set()


def test_when_its_time_is_up_other_nodes_are_tried() -> None:
    found = binding(MADE, deadline=100)
    assert check(found, Claim("waits", uid="u"), now=99) == Waits()
    assert code(check(found, Claim("waits", uid="u"), now=100)) == (Code.CLAIM_TIMED_OUT, frozenset({"n1"}))


@pytest.mark.parametrize("unbound", [{}, {"uid-default-a": "n2"}])
def test_a_pod_that_is_bound_or_over_meanwhile_ends_it(unbound: dict[str, str]) -> None:
    found = check(binding(MADE), Claim("bound", uid="u"), unbound=unbound)
    assert code(found) == (Code.POD_OVER_OR_BOUND, frozenset())


def test_a_node_that_goes_or_closes_meanwhile_ends_it() -> None:
    world = cluster(Claim("bound", uid="u"))
    world.set_node(node("n1", unschedulable=True))
    assert code(binding(MADE).check(world, UNBOUND, 0))[0] is Code.NODE_CLOSED
    world.remove_node("n1")
    assert code(binding(MADE).check(world, UNBOUND, 0))[0] is Code.NODE_GONE


def test_what_is_written_already_is_not_written_again() -> None:
    found = binding(MADE)
    assert found.begin(cluster(Claim("waits", uid="u"))) == [ClaimUpdate(KEY, "u", "n1")]
    again = binding(MADE)
    assert again.begin(cluster(Claim("waits", uid="u", selected="n1"))) == [] and again.seen == {KEY}
    assert binding(GIVEN).begin(cluster(Claim("waits", uid="u"))) == [ClaimUpdate(KEY, "u", "n1", "pv")]


@pytest.mark.parametrize(
    ("decision", "claim", "back"),
    [
        (MADE, Claim("waits", uid="u"), True),
        (MADE, Claim("bound", uid="u"), False),
        (MADE, Claim("waits", uid="another"), False),
        (MADE, None, False),
        (GIVEN, Claim("waits", uid="u"), False),
    ],
)
def test_only_a_decision_that_led_to_nothing_is_taken_back(
    decision: VolumeDecision, claim: Claim | None, back: bool
) -> None:
    wanted = [ClaimUpdate(KEY, "u", None, was="n1")] if back else []
    assert binding(decision).end(cluster(claim)) == wanted


def test_what_they_wait_for_is_said_once_and_named_in_part() -> None:
    many = [VolumeDecision(("default", f"c{i}"), "u", "n1", None, (f"p{i}",)) for i in range(5)]
    binds = [Bind(kit.pod(f"{i}", uid=f"p{i}"), "n1", "default/g", {}) for i in range(6)]
    found = VolumeBinding(many, binds, 0)
    assert found.reason.code is Code.WAITS_FOR_CLAIMS_OF_PODS
    assert (len(found.reason["claims"]), found.reason["more"]) == (3, 2)  # type: ignore[arg-type]
    assert found.reason_of("p1").code is Code.WAITS_FOR_ITS_CLAIMS
    assert found.reason_of("p5").code is Code.WAITS_FOR_CLAIMS_OF_GROUP
    assert binding(GIVEN).reason["claims"] == (Reason.of(Code.CLAIM_TO_BE_BOUND, claim="data", volume="pv"),)
    assert binding(MADE).reason["claims"] == (
        Reason.of(Code.CLAIM_TO_BE_PROVISIONED, claim="data", node="n1"),
    )


# -- all of them ---------------------------------------------------------------------------------------------


def test_pods_without_claims_that_wait_prepare_nothing() -> None:
    world = VolumeBindings(cluster(Claim("bound", uid="u")), timeout=100)
    assert world.begin("k", [Bind(kit.pod("b"), "n1", "k", {})], 0) is None
    assert world.begin("k", [BIND], 0) is None
    assert world.active == {} and world.next_due() is None and world.take_updates() == []


def test_updates_are_taken_once_and_the_deadline_is_due() -> None:
    world = VolumeBindings(cluster(Claim("waits", uid="u")), timeout=100)
    assert world.begin("k", [BIND], 5) is world.active["k"] and world.next_due() == 105
    assert world.take_updates() == [ClaimUpdate(KEY, "u", "n1")] and world.take_updates() == []
    world.observe(KEY, Claim("waits", uid="u", selected="n1"))
    assert world.active["k"].seen == {KEY}
    world.end("k")
    world.end("k")
    assert world.take_updates() == [ClaimUpdate(KEY, "u", None, was="n1")] and world.next_due() is None


def test_a_decision_that_others_count_on_is_not_taken_back() -> None:
    graph = cluster(Claim("waits", uid="u"))
    world = VolumeBindings(graph, timeout=100)
    world.begin("one", [BIND], 0)
    world.begin("two", [BIND], 0)
    world.take_updates()
    world.end("one")
    assert world.take_updates() == []
    world.end("two")
    assert world.take_updates() == [ClaimUpdate(KEY, "u", None, was="n1")]
