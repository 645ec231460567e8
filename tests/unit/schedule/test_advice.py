"""What stands in the way of a gang, and what would help: asked of a scheduler that sees the cluster once."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fluence import messages, names
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus, Taint
from fluence.model.pod import ClaimVolumeSource, Container, PodVolume, ResourceRequirements
from fluence.model.reason import Code, Reason
from fluence.schedule.inquiry import Inquiry, NextCycle
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.schedule.kit import GROUP, SIZE, group, owner, pod, ranks

NOW = 1_800_000_000_000
GPU = [Taint(key="gpu", effect="NoSchedule")]


def nodes(count: int = 2, cpu: str = "2", taints: list[Taint] | None = None) -> list[Node]:
    return [
        Node(
            metadata=ObjectMeta(name=f"n{i}", labels={"kubernetes.io/hostname": f"n{i}"}),
            spec=NodeSpec(taints=taints),
            status=NodeStatus(
                allocatable={"cpu": cpu, "memory": "8Gi", "pods": "10"},
                conditions=[Condition(type="Ready", status="True")],
            ),
        )
        for i in range(count)
    ]


def ask(*objects: Any, of: str = "", **config: Any) -> NextCycle:
    """About the only gang, or the one with this key."""
    inquiry = Inquiry(Scheduler(SchedulerConfig(native=True, **config)), objects, NOW)
    (gang,) = [each for each in inquiry.groups.gangs() if not of or each.key == of]
    return inquiry.about(gang, with_cluster=any(isinstance(each, Node) for each in objects))


def codes(reasons: tuple[Reason, ...]) -> list[Code]:
    return [each.code for each in reasons]


def other(node: str = "n0", cpu: str = "2", **more: Any) -> Any:
    return pod(f"other-{node}", scheduler="default-scheduler", node=node, phase="Running", cpu=cpu, **more)


def test_a_gang_that_fits_has_nothing_in_its_way() -> None:
    assert ask(*nodes(), *ranks(2, field="g"), group("g", 2)) == NextCycle(starts=True)


def test_a_gang_that_is_too_large_now_is_told_how_much_of_it_fits_now() -> None:
    found = ask(*nodes(), other(cpu="1"), *ranks(4, field="g"), group("g", 4))
    assert list(map(messages.text, found.blocks)) == [
        (
            "0/2 nodes are available: 2 Insufficient cpu. 3 of 4 pods of the group fit "
            "(cpu: 4 requested, 3 available)"
        )
    ]
    assert found.sooner[0] == Reason.of(
        Code.SOME_WOULD_FIT, some=3, needed=4, group="default/g", key=names.GROUP_SIZE, enough=3, empty=False
    )
    assert not found.never


def test_a_gang_that_never_fits_is_told_how_much_of_it_the_empty_cluster_holds() -> None:
    found = ask(*nodes(), other(), *ranks(3, field="g", cpu="2"), group("g", 3))
    assert found.never and codes(found.blocks) == [Code.CLUSTER_CANNOT_HOLD]
    assert found.sooner == (
        Reason.of(
            Code.SOME_WOULD_FIT,
            some=2,
            needed=3,
            group="default/g",
            key=names.GROUP_SIZE,
            enough=2,
            empty=True,
        ),
    )


def test_a_gang_that_waits_for_others_to_end_is_told_that_a_limit_helps() -> None:
    found = ask(*nodes(1), other(), pod("a"))
    assert "Insufficient cpu" in messages.texts(found.blocks)
    assert found.sooner[-1] == Reason.of(Code.GIVE_DURATION, key=names.DURATION)


def test_a_rule_without_which_it_fits_now_is_named() -> None:
    some = nodes()
    some[0] = Node(metadata=ObjectMeta(name="n0", labels={"disk": "ssd"}), status=some[0].status)
    found = ask(*some, other(), pod("a", node_selector={"disk": "ssd"}))
    assert not found.never
    assert Reason.of(Code.FITS_WITHOUT, field="nodeSelector") in found.sooner


def test_what_never_fits_is_not_said_to_fit_now_without_a_rule() -> None:
    found = ask(*nodes(), pod("a", node_selector={"disk": "ssd"}))
    assert found.never and found.sooner == (Reason.of(Code.HOLDS_WITHOUT, field="nodeSelector"),)
    found = ask(*nodes(taints=GPU), pod("a"))
    assert found.never
    assert found.sooner == (Reason.of(Code.HOLDS_WITH_TOLERATIONS, taints=("gpu: ",)),)
    found = ask(*nodes(taints=GPU), pod("a", cpu="9"))
    assert found.never and found.sooner == (Reason.of(Code.NEVER_FITS),), "on no node, tainted or not"
    wants = {names.CONSTRAINTS: '{"hostlist": ["n7"]}', names.EXCLUDED: "n0"}
    found = ask(*nodes(), pod("a", annotations=wants))
    field = f"annotation {names.CONSTRAINTS}"
    assert found.never and found.sooner == (Reason.of(Code.HOLDS_WITHOUT, field=field),)


def test_taints_that_are_not_tolerated_are_named_where_there_is_room() -> None:
    tainted = Node(metadata=ObjectMeta(name="t"), spec=NodeSpec(taints=GPU), status=nodes(1)[0].status)
    found = ask(*nodes(1), tainted, other(), pod("a"))
    assert not found.never and Code.FITS_WITH_TOLERATIONS in codes(found.sooner)


def tainted(key: str, **allocatable: str) -> Node:
    (plain,) = nodes(1)
    amounts = {**(plain.status.allocatable or {}), **allocatable}
    return Node(
        metadata=ObjectMeta(name="t"),
        spec=NodeSpec(taints=[Taint(key=key, effect="NoSchedule")]),
        status=NodeStatus(allocatable=amounts, conditions=plain.status.conditions),
    )


def test_work_without_gpus_is_not_sent_to_nodes_that_are_kept_for_gpus() -> None:
    for key in ("nvidia.com/gpu", "dedicated"):
        kept = tainted(key, **{"nvidia.com/gpu": "8"})
        found = ask(*nodes(1), kept, other(), pod("a"))
        assert Code.FITS_WITH_TOLERATIONS not in codes(found.sooner), key
    found = ask(tainted("nvidia.com/gpu", **{"nvidia.com/gpu": "8"}), pod("a"))
    assert found.never and found.sooner == (), "a smaller request would not help"


def test_work_with_gpus_is_told_of_the_taint_of_their_nodes() -> None:
    kept = tainted("nvidia.com/gpu", **{"nvidia.com/gpu": "8"})
    box = Container(resources=ResourceRequirements(requests={"nvidia.com/gpu": "1"}))
    wants = pod("a")
    wants = replace(wants, spec=replace(wants.spec, containers=[box]))
    found = ask(*nodes(1), kept, wants)
    assert found.sooner == (Reason.of(Code.HOLDS_WITH_TOLERATIONS, taints=("nvidia.com/gpu: ",)),)


def test_a_device_that_every_node_offers_keeps_nobody_away() -> None:
    qpu = {"quantum.example/qpu": "1"}
    plain = tainted("x", **qpu)
    plain = Node(metadata=ObjectMeta(name="n0"), status=plain.status)
    found = ask(plain, tainted("dedicated", **qpu), other(), pod("a"))
    assert Reason.of(Code.FITS_WITH_TOLERATIONS, taints=("dedicated: ",)) in found.sooner


def test_taints_of_kubernetes_are_left_alone() -> None:
    keys = ("node.kubernetes.io/disk-pressure", "node-role.kubernetes.io/control-plane")
    for key in (*keys, "ToBeDeletedByClusterAutoscaler"):
        found = ask(*nodes(1), tainted(key), other(), pod("a"))
        assert Code.FITS_WITH_TOLERATIONS not in codes(found.sooner), key


def test_an_incomplete_gang_is_told_what_it_lacks() -> None:
    found = ask(pod("a", field="g"), group("g", 3))
    assert found.blocks == (Reason.of(Code.PODS_MISSING, group="default/g", pods=1, minimum=3),)
    assert found.sooner == (Reason.of(Code.CREATE_PODS, more=2, group="default/g", key=names.GROUP_SIZE),)
    held = ask(pod("a", labels={GROUP: "g", SIZE: "1"}, gated=True))
    assert held.sooner == (Reason.of(Code.REMOVE_GATES, gates=("hold",)),)


def test_a_job_that_runs_too_few_pods_is_told_to_make_more() -> None:
    job = owner("j", parallelism=2)
    found = ask(*ranks(2, owner=job, annotations={SIZE: "5"}), job)
    assert codes(found.blocks) == [Code.OWNER_RUNS_TOO_FEW] and found.never
    assert found.sooner == (Reason.of(Code.CREATE_PODS, more=3, group=None, key=names.GROUP_SIZE),)


def test_a_suspended_job_is_told_so_whatever_its_name_is() -> None:
    job = owner("pods", parallelism=1, suspend=True)
    assert ask(pod("a", owner=job), job).sooner == (Reason.of(Code.UNSUSPEND),)
    waits = ask(pod("a", field="suspended"))
    assert codes(waits.blocks) == [Code.POD_GROUP_NOT_SEEN] and waits.sooner == ()


def test_the_constraint_of_a_gang_counts() -> None:
    wants = {names.CONSTRAINTS: '{"hostlist": ["n1"]}'}
    assert ask(*nodes(), pod("a", annotations=wants)).starts
    found = ask(*nodes(), *ranks(2, field="g", cpu="2", annotations=wants), group("g", 2))
    assert not found.starts
    assert "1 node(s) were excluded for this group" in messages.texts(found.blocks)


def test_the_match_policy_of_the_scheduler_counts() -> None:
    for policy, fits in (("lonode", True), ("lonodex", False)):
        found = ask(*nodes(1), other(cpu="1"), pod("a"), match_policy=policy)
        assert found.starts == fits
        assert ("requests whole nodes" in messages.texts(found.blocks)) == (not fits)


def test_the_queue_policy_of_the_scheduler_and_who_is_ahead_count() -> None:
    """There is room for the small one; it starts only where the policy lets it go ahead."""
    large = pod("large", cpu="2", age=60)
    small = pod("small", annotations={names.DURATION: "1m"})
    for policy, starts in (("easy", True), ("fcfs", False)):
        found = ask(*nodes(1), other(cpu="1"), large, small, of="default/pod:small", queue_policy=policy)
        assert found.starts == starts, policy
    assert codes(found.blocks) == [Code.QUEUED_BEHIND_OTHERS]


def test_the_nodes_that_a_gang_excludes_count() -> None:
    found = ask(*nodes(), pod("a", annotations={names.EXCLUDED: "n0, n1"}))
    assert "2 node(s) were excluded for this group" in messages.texts(found.blocks)


def test_a_claim_that_is_not_there_is_no_never_and_nothing_is_said_of_room() -> None:
    volume = PodVolume(name="v", persistent_volume_claim=ClaimVolumeSource(claim_name="data"))
    found = ask(*nodes(), pod("a", volumes=[volume]))
    assert codes(found.blocks) == [Code.CLAIM_MISSING] and not found.never
    assert not found.starts and found.sooner == ()


def test_who_has_room_and_waits_for_its_turn_is_told_no_more_than_that() -> None:
    """Tolerations, fewer pods or other nodes would change nothing: it fits as it is."""
    limit = {names.DURATION: "1h"}
    wide = pod("wide", cpu="2", annotations=limit, age=9)
    small = ranks(1, field="g", annotations=limit)
    found = ask(*nodes(1), other(cpu="1"), wide, *small, group("g", 1), of="default/g", queue_policy="fcfs")
    assert not found.starts and codes(found.blocks) == [Code.QUEUED_BEHIND_OTHERS]
    assert found.sooner == ()
