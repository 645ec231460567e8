"""What stands in the way, and what would help: found by trying."""

from __future__ import annotations

from fluence import messages, names
from fluence.cluster.graph import ClusterGraph
from fluence.model.group import Group
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus, Taint
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.advice import Advice, advise
from fluence.schedule.groups import Groups
from fluence.schedule.scheduler import cluster_for
from tests.unit.schedule.kit import GROUP, SIZE, group, owner, pod, ranks

NOW = 1_800_000_000_000


def cluster(
    nodes: int = 2, cpu: str = "2", taints: list[Taint] | None = None, policy: str = "first"
) -> ClusterGraph:
    found = cluster_for(policy=policy)
    found.load(
        Node(
            metadata=ObjectMeta(name=f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"}),
            spec=NodeSpec(taints=taints),
            status=NodeStatus(
                allocatable={"cpu": cpu, "memory": "8Gi", "pods": "10"},
                conditions=[Condition(type="Ready", status="True")],
            ),
        )
        for i in range(nodes)
    )
    return found


def advice(*things: object, of: ClusterGraph | None = None) -> Advice:
    groups = Groups()
    for each in things:
        if isinstance(each, Pod):
            groups.set_pod(each)
        elif isinstance(each, Group):
            groups.set_group(each)
        else:
            assert isinstance(each, Owner)
            groups.set_owner(each)
    (gang,) = groups.gangs()
    return advise(gang, of, now=NOW)


def codes(reasons: tuple[Reason, ...]) -> list[Code]:
    return [each.code for each in reasons]


def test_a_gang_that_fits_has_nothing_in_its_way() -> None:
    assert advice(*ranks(2, field="g"), group("g", 2), of=cluster()).fits


def test_a_gang_that_is_too_large_is_told_how_much_of_it_fits() -> None:
    found = advice(*ranks(3, field="g", cpu="2"), group("g", 3), of=cluster())
    assert list(map(messages.text, found.blocks)) == [
        "2 of 3 seats on 2 nodes: the nodes that suit are full with these"
    ]
    assert found.sooner[0] == Reason.of(
        Code.SOME_WOULD_FIT, some=2, needed=3, group="default/g", key=names.GROUP_SIZE, enough=2
    )


def test_a_gang_that_waits_for_others_to_end_is_told_that_a_limit_helps() -> None:
    busy = cluster(nodes=1)
    busy.set_pod(pod("other", scheduler="default-scheduler", node="n0", phase="Running", cpu="2"))
    found = advice(pod("a"), of=busy)
    assert "insufficient cpu" in messages.texts(found.blocks)
    assert found.sooner[-1] == Reason.of(Code.GIVE_DURATION, key=names.DURATION)


def test_a_rule_without_which_it_fits_is_named() -> None:
    found = advice(pod("a", node_selector={"disk": "ssd"}), of=cluster())
    assert Reason.of(Code.FITS_WITHOUT, field="nodeSelector") in found.sooner


def test_taints_that_are_not_tolerated_are_named() -> None:
    found = advice(pod("a"), of=cluster(taints=[Taint(key="gpu", effect="NoSchedule")]))
    assert Code.FITS_WITH_TOLERATIONS in codes(found.sooner)


def test_an_incomplete_gang_is_told_what_it_lacks() -> None:
    found = advice(pod("a", field="g"), group("g", 3))
    assert found.blocks == (Reason.of(Code.PODS_MISSING, pods=1, minimum=3),)
    assert found.sooner == (Reason.of(Code.CREATE_PODS, more=2, group="default/g", key=names.GROUP_SIZE),)
    held = advice(pod("a", labels={GROUP: "g", SIZE: "1"}, gated=True))
    assert held.sooner == (Reason.of(Code.REMOVE_GATES, gates=("hold",)),)


def test_a_job_that_runs_too_few_pods_is_told_to_make_more() -> None:
    job = owner("j", parallelism=2)
    found = advice(*ranks(2, owner=job, annotations={SIZE: "5"}), job)
    assert codes(found.blocks) == [Code.OWNER_RUNS_TOO_FEW]
    assert found.sooner == (Reason.of(Code.CREATE_PODS, more=3, group=None, key=names.GROUP_SIZE),)


def test_a_suspended_job_is_told_so_whatever_its_name_is() -> None:
    job = owner("pods", parallelism=1, suspend=True)
    assert advice(pod("a", owner=job), job).sooner == (Reason.of(Code.UNSUSPEND),)
    waits = advice(pod("a", field="suspended"))
    assert codes(waits.blocks) == [Code.POD_GROUP_NOT_SEEN] and waits.sooner == ()


def test_the_constraint_of_a_gang_counts() -> None:
    wants = {names.CONSTRAINTS: '{"hostlist": ["n1"]}'}
    assert advice(pod("a", annotations=wants), of=cluster()).fits
    found = advice(*ranks(2, field="g", cpu="2", annotations=wants), group("g", 2), of=cluster())
    assert not found.fits
    assert "1 excluded for this group" in messages.texts(found.blocks)


def test_the_match_policy_of_the_scheduler_counts() -> None:
    for policy, fits in (("lonode", True), ("lonodex", False)):
        of = cluster(nodes=1, policy=policy)
        of.set_pod(pod("other", scheduler="default-scheduler", node="n0", phase="Running", cpu="1"))
        found = advice(pod("a"), of=of)
        assert found.fits == fits
        assert ("a whole node is wanted" in messages.texts(found.blocks)) == (not fits)


def test_the_nodes_that_a_gang_excludes_count() -> None:
    wants = {names.EXCLUDED: "n0, n1"}
    found = advice(pod("a", annotations=wants), of=cluster())
    assert "2 excluded for this group" in messages.texts(found.blocks)


def test_nothing_is_changed_by_asking() -> None:
    of = cluster()
    first = advice(*ranks(3, field="g", cpu="2"), group("g", 3), of=of)
    assert first == advice(*ranks(3, field="g", cpu="2"), group("g", 3), of=of)
