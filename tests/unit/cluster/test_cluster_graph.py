"""The cluster graph by example: nodes and pods come and go, gangs take seats."""

from __future__ import annotations

import json

import pytest

from fluence import render
from fluence.cluster.graph import Claim, ClusterGraph, FreedPlacements, Refused, job_number
from fluence.cluster.layout import BLOCK, RACK, ZONE, GraphLayout
from fluence.cluster.requests import PodGang
from fluence.cluster.vertices import as_fluxion
from fluence.errors import Conflict, InvalidInput, NotFound
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.match.find import find
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Placed, Wait
from fluence.messages import text
from fluence.model.jobspec import Jobspec
from fluence.model.meta import LabelSelector, ObjectMeta, OwnerReference, Requirement
from fluence.model.node import Taint
from fluence.model.pod import (
    Affinity,
    ClaimVolumeSource,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodResourceClaim,
    PodStatus,
    PodVolume,
    PreferredSchedulingTerm,
    Toleration,
    TopologySpreadConstraint,
)
from fluence.model.reason import Code, Reason
from fluence.placer.placer import GangPlacement
from tests.gangs import compiled
from tests.gangs import why as why_not

from .build import HOST, bound, ended, node, pod


def cluster_of(*nodes: object, policy: str = "low", **options: object) -> ClusterGraph:
    cluster = ClusterGraph(policy=policy, **options)  # type: ignore[arg-type]
    cluster.load(nodes)  # type: ignore[arg-type]
    return cluster


def gang(cluster: ClusterGraph, *pods: Pod, **options: object) -> PodGang:
    found = compiled(cluster, pods, **options)
    assert isinstance(found, PodGang), found
    return found


def seat(cluster: ClusterGraph, *pods: Pod, job: int = 1, now: int = 0, **options: object) -> dict[str, str]:
    found = cluster.allocate(gang(cluster, *pods), job=job, now=now, **options)  # type: ignore[arg-type]
    assert isinstance(found, GangPlacement), found
    return {str(uid).removeprefix("uid-"): name for uid, name in found.nodes.items()}


def free(cluster: ClusterGraph, type_: str = "cpu") -> list[int]:
    return [int(amount) for amount in cluster.fit.free(type_)]


# -- nodes ---------------------------------------------------------------------------------------------------


def test_a_node_hangs_below_the_levels_that_its_labels_name() -> None:
    layout = GraphLayout(levels=(("zone", ZONE), ("block", BLOCK), ("rack", RACK)))
    cluster = ClusterGraph(layout)
    cluster.load(
        [node("n1", zone="a", labels={RACK: "r1"}, gpu="2"), node("n2", zone="a"), node("n10", zone="b")]
    )
    graph = cluster.graph
    assert graph.path(int(cluster.fit.nodes[0])) == "/cluster/a/r1/n1"
    assert [graph.name[row] for row in cluster.fit.nodes] == ["n1", "n2", "n10"]
    assert graph.rank[cluster.fit.nodes].tolist() == [0, 1, 2]
    assert len(graph.vertices_at("/cluster/a/r1/n1/gpu1")) == 1
    assert graph.vertices_of_type("cpu").size == 3


def test_two_things_of_one_type_are_refused() -> None:
    with pytest.raises(InvalidInput, match="stands for two things"):
        GraphLayout(devices={"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"})


def test_a_node_that_comes_back_has_its_rank_again() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    cluster.sync()
    cluster.remove_node("n1")
    cluster.set_node(node("n3"))
    cluster.set_node(node("n1"))
    graph = cluster.graph
    ranks = {graph.name[row]: int(graph.rank[row]) for row in cluster.fit.nodes}
    assert ranks == {"n1": 0, "n2": 1, "n3": 2}


def test_size_labels_and_state_change_at_once() -> None:
    cluster = cluster_of(node("n1"))
    assert free(cluster) == [4000]
    cluster.set_node(node("n1", cpu="2", gpu="3"))
    assert free(cluster) == [2000] and free(cluster, "gpu") == [3]
    cluster.set_node(node("n1", gpu="1", **{"example.com/nic": "7"}))  # type: ignore[arg-type]
    assert free(cluster, "gpu") == [1] and free(cluster, "example.com/nic") == [7]
    for changed in (node("n1", unschedulable=True), node("n1", ready=False)):
        cluster.set_node(changed)
        assert not cluster.graph.up[cluster.fit.nodes[0]]
        assert isinstance(cluster.try_now(gang(cluster, pod("p")), now=0), Never)
    cluster.set_node(node("n1"))
    assert cluster.try_now(gang(cluster, pod("p")), now=0)


def test_a_node_that_changes_its_zone_keeps_what_is_on_it() -> None:
    cluster = cluster_of(node("n1", zone="a", gpu="2"), node("n2", zone="a"))
    cluster.set_pod(pod("other", on="n1"))
    seat(cluster, pod("p", gpu="1"))
    cluster.set_node(node("n1", zone="b", gpu="2"))
    assert cluster.graph.path(int(cluster.fit.nodes[-1])) == "/cluster/b/n1"
    assert dict(zip(cluster.fit.names, free(cluster), strict=True)) == {"n2": 4000, "n1": 2000}
    assert sorted(free(cluster, "gpu")) == [0, 1]
    cluster.release(1)
    assert sorted(free(cluster, "gpu")) == [0, 2]


def gone(name: str) -> Reason:
    return Reason.of(Code.NODE_GONE, node=name)


def test_what_jobs_held_on_a_vanished_node_is_released_with_a_reason() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    pods = [pod(f"p{i}", cpu="3") for i in range(2)]
    assert seat(cluster, *pods, job=7) == {"p0": "n1", "p1": "n2"}
    assert cluster.remove_node("n1") == (
        FreedPlacements(7, ("uid-p0",), "n1", Reason.of(Code.NODE_GONE, node="n1"), False),
    )
    assert cluster.jobs == {7: {"uid-p1": "n2"}}
    assert cluster.remove_node("n2") == (
        FreedPlacements(7, ("uid-p1",), "n2", Reason.of(Code.NODE_GONE, node="n2"), True),
    )
    assert cluster.jobs == {} and not cluster.matcher.ledger.jobs
    assert cluster.remove_node("n2") == ()


# -- pods ----------------------------------------------------------------------------------------------------


def test_every_pod_counts_until_it_ends_or_is_gone() -> None:
    cluster = cluster_of(node("n1"))
    theirs = pod("theirs", on="n1")
    cluster.set_pod(theirs)
    assert free(cluster) == [3000]
    cluster.set_pod(ended(theirs))
    assert free(cluster) == [4000]
    cluster.set_pod(theirs)
    cluster.remove_pod(theirs)
    assert free(cluster) == [4000]


def test_pods_may_be_known_before_their_node() -> None:
    cluster = ClusterGraph()
    cluster.set_pod(pod("early", on="n1"))
    cluster.set_node(node("n1"))
    assert free(cluster) == [3000]
    cluster.remove_node("n1")
    cluster.set_node(node("n1"))
    assert free(cluster) == [3000]


def test_a_pod_that_another_scheduler_nominated_counts_until_that_is_withdrawn() -> None:
    cluster = cluster_of(node("n1"))
    wanted = Pod(metadata=pod("x").metadata, spec=pod("x").spec)
    cluster.set_pod(
        Pod(metadata=wanted.metadata, spec=wanted.spec, status=PodStatus(nominated_node_name="n1"))
    )
    assert free(cluster) == [3000]
    cluster.set_pod(wanted)
    assert free(cluster) == [4000]


def test_overcommit_by_others_breaks_nothing() -> None:
    cluster = cluster_of(node("n1", gpu="1"), node("n2"))
    for number in range(3):
        cluster.set_pod(pod(f"x{number}", on="n1", cpu="3", gpu="1"))
    assert free(cluster) == [-5000, 4000] and free(cluster, "gpu") == [0, 0]
    assert seat(cluster, pod("p")) == {"p": "n2"}
    cluster.remove_pod("uid-x0")
    cluster.remove_pod("uid-x1")
    assert free(cluster, "gpu") == [0, 0]
    cluster.remove_pod("uid-x2")
    assert free(cluster) == [4000, 3000] and free(cluster, "gpu") == [1, 0]


def test_a_device_that_two_believe_to_have_is_free_only_when_both_left() -> None:
    cluster = cluster_of(node("n1", gpu="2"))
    seat(cluster, pod("a", gpu="1"), job=1)
    seat(cluster, pod("b", gpu="1"), job=2)
    cluster.set_pod(pod("late", on="n1", gpu="1"))
    cluster.release(2)
    assert free(cluster, "gpu") == [0]
    cluster.release(1)
    assert free(cluster, "gpu") == [1]


def test_an_assumed_pod_is_counted_once() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    one = pod("p")
    seat(cluster, one)
    cluster.set_pod(one)  # an update of its status, still without a node
    assert free(cluster) == [3000, 4000]
    cluster.set_pod(bound(one, "n1"))
    assert free(cluster) == [3000, 4000]
    cluster.forget("uid-p")  # too late
    assert free(cluster) == [3000, 4000]


def test_forget_undoes_an_assumption() -> None:
    cluster = cluster_of(node("n1"))
    seat(cluster, pod("a"), pod("b"))
    (freed,) = cluster.forget("uid-a")
    assert (freed.job, freed.pods, freed.whole_job) == (1, ("uid-a",), False)
    assert free(cluster) == [3000]


def test_a_member_that_was_bound_elsewhere_is_counted_there() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    one = pod("p")
    seat(cluster, one)
    cluster.set_pod(bound(one, "n2"))
    assert free(cluster) == [4000, 3000] and cluster.jobs == {1: {"uid-p": "n2"}}


def test_a_member_that_was_bound_to_an_unknown_node_counts_when_that_appears() -> None:
    cluster = cluster_of(node("n1"))
    one = pod("p")
    seat(cluster, one)
    cluster.set_pod(bound(one, "n2"))
    assert free(cluster) == [4000]
    cluster.set_node(node("n2"))
    assert free(cluster) == [4000, 3000]


# -- jobs ----------------------------------------------------------------------------------------------------


def test_a_job_keeps_its_seats_until_all_its_pods_have_ended() -> None:
    cluster = cluster_of(node("n1"))
    pods = [pod("a"), pod("b")]
    seat(cluster, *pods)
    assert cluster.set_pod(ended(bound(pods[0], "n1"))) == ()
    assert free(cluster) == [2000]
    (freed,) = cluster.set_pod(ended(bound(pods[1], "n1")))
    assert freed.whole_job and text(freed.reason).startswith("pod d/b has succeeded")
    assert free(cluster) == [4000]


def test_with_release_each_a_seat_is_free_when_its_pod_ends() -> None:
    cluster = cluster_of(node("n1"), release_each=True)
    pods = [pod("a"), pod("b")]
    seat(cluster, *pods)
    (freed,) = cluster.set_pod(ended(bound(pods[0], "n1")))
    assert not freed.whole_job and free(cluster) == [3000]


def test_pods_of_a_released_job_count_as_long_as_they_are_there() -> None:
    cluster = cluster_of(node("n1"))
    one = pod("p")
    seat(cluster, one)
    cluster.set_pod(bound(one, "n1"))
    cluster.release(1)
    assert free(cluster) == [3000]
    cluster.remove_pod(one)
    assert free(cluster) == [4000]


def test_after_a_restart_running_pods_are_adopted_by_their_job() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    for number in (1, 2):
        cluster.set_pod(pod(f"p{number}", on=f"n{number}"))
    job = job_number("owner-uid")
    cluster.adopt(job, ["uid-p1", "uid-p2", "uid-unknown"], start=5, end=50)
    cluster.advance(10)
    assert free(cluster) == [3000, 3000]
    assert cluster.jobs == {job: {"uid-p1": "n1", "uid-p2": "n2"}}
    assert cluster.matcher.info(job).end == 50
    with pytest.raises(NotFound, match="none of its pods"):
        cluster.adopt(9, ["uid-nobody"], start=0)


def test_a_job_that_overruns_holds_on_to_its_nodes() -> None:
    cluster = cluster_of(node("n1"))
    seat(cluster, pod("p", cpu="4"), duration=10)
    waits = gang(cluster, pod("q", cpu="4"))
    later = cluster.reserve(waits, job=2, now=0, duration=10)
    assert isinstance(later, GangPlacement) and (later.at, later.reserved) == (10, True)
    cluster.release(2)
    for now in (10, 11, 500):
        waits = gang(cluster, pod("q", cpu="4"))
        assert cluster.try_now(waits, now=now) == cluster.allocate(waits, job=2, now=now) == Wait("busy")
        assert cluster.earliest(waits, now=now) == Wait("busy")  # nobody knows when
        assert free(cluster) == [0]
    cluster.prolong(1, 600)
    later = cluster.earliest(gang(cluster, pod("q", cpu="4")), now=500)
    assert isinstance(later, GangPlacement) and later.at == 600
    cluster.advance(700)
    assert free(cluster) == [0]
    cluster.release(1)
    assert free(cluster) == [4000]


def test_a_job_past_its_end_is_counted_the_same_however_it_is_asked() -> None:
    cluster = cluster_of(node("n1", gpu="1"), node("n2"))
    seat(cluster, pod("p", cpu="4", gpu="1"), duration=10)
    seat(cluster, pod("r", cpu="1"), job=2, duration=100)
    cluster.advance(20)
    cluster.set_node(node("n3"))  # the graph changes: what is free is counted anew
    assert free(cluster) == [0, 3000, 4000] and free(cluster, "gpu")[0] == 0
    assert cluster.fit.look(20, 1000).free[cluster.fit.table.pools["cpu"]].tolist() == [0, 3000, 4000]
    cluster.advance(5)  # a clock that was set back
    assert free(cluster) == [0, 3000, 4000]
    cluster.advance(200)
    found = cluster.allocate(gang(cluster, pod("late")), job=3, now=200)
    assert isinstance(found, GangPlacement) and sum(free(cluster)) == 6000
    for job in (1, 2, 3):
        cluster.release(job)
    assert free(cluster) == [4000, 4000, 4000]


def test_rules_about_other_pods_count_those_of_a_job_past_its_end() -> None:
    cluster = cluster_of(node("n1"))
    seat(cluster, pod("noisy", labels={"app": "noisy"}), duration=30)
    seat(cluster, pod("other", cpu="3"), job=2, duration=90)
    cluster.advance(40)
    shy = gang(cluster, pod("shy", affinity=against(app="noisy")))
    assert cluster.earliest(shy, now=40) == Wait("busy")


def test_job_numbers_are_positive_and_stable() -> None:
    assert job_number("a") == job_number("a") != job_number("b")
    assert 0 < job_number("a") < 2**62


def test_what_is_seated_can_be_written_found_and_explained() -> None:
    cluster = cluster_of(node("n1", zone="a", gpu="1"), node("n2", zone="a"))
    found = cluster.allocate(gang(cluster, pod("p", gpu="1")), job=3, now=0, duration=60)
    assert isinstance(found, GangPlacement)
    chosen = Selection.of(cluster.matcher.tree, *found.columns)
    text = render(cluster.matcher, Placed(3, found.at, found.end, False, chosen), "simple")
    assert "gpu0[1:x]" in text and "cpu0[1000:x]" in text and "n1[1:s]" in text
    names = [
        cluster.graph.name[row] for row in find(cluster.matcher, "sched-now=allocated").selection.vertices
    ]
    assert "gpu0" in names


# -- whole nodes ---------------------------------------------------------------------------------------------


def test_whole_nodes_are_given_to_one_job_and_daemons_do_not_matter() -> None:
    cluster = cluster_of(node("n1", gpu="2"), node("n2"), node("n3"))
    daemon = pod("daemon", on="n1")
    owner = [OwnerReference(kind="DaemonSet", name="d", controller=True)]
    cluster.set_pod(
        Pod(metadata=ObjectMeta(name="daemon", uid="uid-daemon", owner_references=owner), spec=daemon.spec)
    )
    cluster.set_pod(pod("other", on="n2"))
    found = cluster.allocate(gang(cluster, pod("a"), pod("b"), policy="lonodex"), job=1, now=0)
    assert isinstance(found, GangPlacement) and set(found.nodes.values()) == {"n1"}
    assert free(cluster) == [0, 3000, 4000] and free(cluster, "gpu") == [0, 0, 0]
    assert seat(cluster, pod("c"), job=2) == {"c": "n2"}
    cluster.release(1, ["uid-a"])
    assert free(cluster) == [0, 2000, 4000]
    cluster.release(1)
    assert free(cluster) == [3000, 2000, 4000] and free(cluster, "gpu") == [2, 0, 0]


# -- rules ---------------------------------------------------------------------------------------------------


def test_preferences_come_before_the_policy() -> None:
    term = NodeSelectorTerm(match_expressions=[Requirement(key="disk", operator="In", values=["ssd"])])
    prefers = Affinity(
        node_affinity=NodeAffinity(preferred=[PreferredSchedulingTerm(weight=5, preference=term)])
    )
    shy = [Taint(key="busy", effect="PreferNoSchedule")]
    cluster = cluster_of(node("n1", taints=shy), node("n2"), node("n3", labels={"disk": "ssd"}))
    assert seat(cluster, pod("a"), job=1) == {"a": "n2"}
    assert seat(cluster, pod("b", affinity=prefers), job=2) == {"b": "n3"}


def against(key: str = HOST, **labels: str) -> Affinity:
    term = PodAffinityTerm(topology_key=key, label_selector=LabelSelector(match_labels=labels))
    return Affinity(pod_anti_affinity=PodAffinity(required=[term]))


def test_anti_affinity_works_in_both_directions() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    cluster.set_pod(pod("shy", on="n1", affinity=against(app="noisy")))
    assert seat(cluster, pod("noisy", labels={"app": "noisy"})) == {"noisy": "n2"}
    waits = gang(cluster, pod("shy2", affinity=against(app="noisy")), pod("noisy2", labels={"app": "noisy"}))
    assert isinstance(cluster.try_now(waits, now=0), GangPlacement)
    cluster.set_node(node("n1", unschedulable=True))
    waits = gang(cluster, pod("shy2", affinity=against(app="noisy")))
    assert cluster.try_now(waits, now=0) == Wait("busy")


def test_members_that_avoid_each_other_get_a_node_each() -> None:
    cluster = cluster_of(node("n1"), node("n2"), node("n3"))
    ranks = [pod(f"r{i}", labels={"app": "mpi"}, affinity=against(app="mpi")) for i in range(3)]
    assert sorted(seat(cluster, *ranks).values()) == ["n1", "n2", "n3"]
    assert cluster.try_now(gang(cluster, pod("r4", labels={"app": "mpi"})), now=0) == Wait("busy")


def test_a_gang_that_wants_to_be_together_starts_where_all_of_it_fits() -> None:
    together = Affinity(
        pod_affinity=PodAffinity(
            required=[
                PodAffinityTerm(topology_key=ZONE, label_selector=LabelSelector(match_labels={"app": "mpi"}))
            ]
        )
    )
    cluster = cluster_of(node("n1", zone="a"), node("n2", zone="b"), node("n3", zone="b"))
    ranks = [pod(f"r{i}", cpu="2", labels={"app": "mpi"}, affinity=together) for i in range(2)]
    assert set(seat(cluster, *ranks).values()) == {"n1"}
    server = pod("server", labels={"app": "mpi"})
    assert set(seat(cluster, pod("client", affinity=together), server, job=2).values()) <= {"n1", "n2", "n3"}


def test_spread_levels_out_the_members_of_a_gang() -> None:
    limit = TopologySpreadConstraint(
        max_skew=1, topology_key=ZONE, label_selector=LabelSelector(match_labels={"app": "web"})
    )
    cluster = cluster_of(node("n1", zone="a"), node("n2", zone="b"), node("n3"))
    pods = [pod(f"w{i}", labels={"app": "web"}, topology_spread_constraints=[limit]) for i in range(4)]
    assert sorted(seat(cluster, *pods).values()) == ["n1", "n1", "n2", "n2"]


def test_host_ports_are_taken_once_per_node() -> None:
    cluster = cluster_of(node("n1"), node("n2"), node("n3"))
    cluster.set_pod(pod("proxy", on="n1", port=80))
    assert seat(cluster, pod("a", port=80), pod("b", port=80)) == {"a": "n2", "b": "n3"}
    assert cluster.try_now(gang(cluster, pod("c", port=80)), now=0) == Wait("busy")
    assert cluster.try_now(gang(cluster, pod("d", port=81)), now=0)


def test_anti_affinity_to_a_job_that_ends_waits_for_its_end() -> None:
    cluster = cluster_of(node("n1"))
    seat(cluster, pod("noisy", labels={"app": "noisy"}), duration=30)
    later = cluster.earliest(gang(cluster, pod("shy", affinity=against(app="noisy"))), now=0)
    assert isinstance(later, GangPlacement) and later.at == 30


def test_a_volume_keeps_its_pod_near() -> None:
    cluster = cluster_of(node("n1", zone="a"), node("n2", zone="b"))
    data = [PodVolume(name="v", persistent_volume_claim=ClaimVolumeSource(claim_name="data"))]
    waits = compiled(cluster, [pod("p", volumes=data)])
    assert isinstance(waits, Refused) and waits.reason.code is Code.CLAIM_MISSING
    cluster.set_claim("d", "data", Claim("pending"))
    waits = compiled(cluster, [pod("p", volumes=data)])
    assert isinstance(waits, Refused) and waits.reason.code is Code.CLAIM_PENDING
    term = NodeSelectorTerm(match_expressions=[Requirement(key=ZONE, operator="In", values=["b"])])
    cluster.set_claim("d", "data", Claim("bound", NodeSelector(node_selector_terms=[term]), one_pod=True))
    assert seat(cluster, pod("p", volumes=data)) == {"p": "n2"}
    taken = compiled(cluster, [pod("q", volumes=data)])
    assert isinstance(taken, Refused) and taken.reason.code is Code.CLAIM_IN_USE


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resource_claims": [PodResourceClaim(name="qpu")]}, "spec.resourceClaims (qpu)"),
        ({"tolerations": [Toleration(key="speed", operator="Gt", value="3")]}, "operator 'Gt'"),
        (
            {"topology_spread_constraints": [TopologySpreadConstraint(when_unsatisfiable="Perhaps")]},
            "spec.topologySpreadConstraints",
        ),
    ],
)
def test_what_only_kube_scheduler_checks_is_refused_by_name(spec: dict[str, object], words: str) -> None:
    refused = compiled(cluster_of(node("n1")), [pod("p", **spec)])  # type: ignore[arg-type]
    assert isinstance(refused, Refused) and not refused
    assert refused.pod == "d/p"
    assert words in text(refused.reason) and "remove schedulerName" in text(refused.reason)


def test_a_gang_is_for_the_nodes_as_they_were() -> None:
    cluster = cluster_of(node("n1"))
    old = gang(cluster, pod("p"))
    cluster.set_node(node("n1", labels={"disk": "ssd"}))
    with pytest.raises(Conflict, match=r"call gang\(\) again"):
        cluster.allocate(old, job=1, now=0)


def test_excluded_nodes_are_not_given_to_this_group() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    found = cluster.try_now(gang(cluster, pod("p"), exclude={"n1", "n9"}), now=0)
    assert isinstance(found, GangPlacement) and found.nodes == {"uid-p": "n2"}


# -- reasons -------------------------------------------------------------------------------------------------


def test_each_node_falls_to_one_cause_with_counts() -> None:
    gpu = [Taint(key="gpu", effect="NoSchedule")]
    cluster = cluster_of(
        *(node(f"t{i}", taints=gpu) for i in range(3)),
        *(node(f"b{i}") for i in range(2)),
        node("s", cpu="1"),
        node("c", unschedulable=True),
        node("x"),
    )
    for name in ("b0", "b1"):
        cluster.set_pod(pod(f"on-{name}", on=name, cpu="3"))
    (shortage,) = why_not(cluster, [pod("p", cpu="2"), pod("q", cpu="2")], now=0, exclude={"x"})
    assert shortage.code is Code.TOO_FEW_SEATS
    assert text(shortage) == (
        "0/8 nodes are available: 3 node(s) had untolerated taint {gpu: }, 2 Insufficient cpu, "
        "1 node(s) were unschedulable, 1 node(s) were excluded for this group, "
        "1 Insufficient cpu (2 requested, node too small). 0 of 2 pods of the group fit"
    )


def test_rules_about_other_pods_are_told_apart() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    cluster.set_pod(pod("shy", on="n1", affinity=against(app="noisy")))
    cluster.set_pod(pod("proxy", on="n2", port=80))
    (shortage,) = why_not(cluster, [pod("p", port=80, labels={"app": "noisy"})], now=0)
    assert text(shortage) == (
        "0/2 nodes are available: 1 node(s) didn't have free ports for the requested pod ports (80), "
        "1 node(s) didn't satisfy existing pods anti-affinity rules (kubernetes.io/hostname)"
    )


def test_a_part_of_a_gang_that_fits_is_told() -> None:
    cluster = cluster_of(node("n1"))
    pods = [pod(f"p{i}", cpu="2") for i in range(3)]
    (shortage,) = why_not(cluster, pods, now=0)
    assert "2 of 3 pods of the group fit" in text(shortage)
    both = why_not(cluster, [pod("a", cpu="3"), pod("b", cpu="2")], now=0)
    assert [each.code for each in both] == [Code.NOT_TOGETHER]
    found = cluster.allocate(gang(cluster, *pods, minimum=2), job=1, now=0)
    assert isinstance(found, GangPlacement) and found.left == ("uid-p2",)


def test_a_mixed_gang_is_seated_hardest_first() -> None:
    cluster = cluster_of(node("n1", gpu="1"), node("n2"))
    small = [pod(f"s{i}", cpu="1") for i in range(4)]
    assert seat(cluster, *small, pod("big", cpu="4", gpu="1"))["big"] == "n1"


def test_a_converted_graph_has_cores_that_jobspecs_match() -> None:
    cluster = ClusterGraph()
    for name in ("n1", "n2"):
        cluster.set_node(node(name, cpu="4", memory="8Gi", gpu="2", zone="a"))
    cluster.sync()
    found = as_fluxion(cluster.graph)
    again = ResourceGraph.parse(found.render("jgf"))
    assert [len(again.vertices_of_type(again.types.code(each))) for each in ("node", "core", "gpu")] == [
        2,
        8,
        4,
    ]
    memory = again.vertices_of_type(again.types.code("memory"))
    assert again.size[memory].tolist() == [8 * 2**30 // 10**6] * 2
    jobspec = {
        "version": 9999,
        "resources": [{"type": "slot", "count": 2, "label": "s", "with": [{"type": "core", "count": 3}]}],
        "tasks": [],
        "attributes": {"system": {"duration": 60}},
    }
    placed = Matcher(again, "low").match("allocate", Jobspec.parse(json.dumps(jobspec)), job=1)
    assert isinstance(placed, Placed)
