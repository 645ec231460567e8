"""What stands in the way, and what would help: found by trying."""

from __future__ import annotations

from fluence.cluster.graph import ClusterGraph
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus, Taint
from fluence.schedule.advice import Advice, advise
from fluence.schedule.groups import Groups
from tests.unit.schedule.kit import GROUP, SIZE, group, pod, ranks

NOW = 1_800_000_000


def cluster(nodes: int = 2, cpu: str = "2", taints: list[Taint] | None = None) -> ClusterGraph:
    found = ClusterGraph()
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
        groups.set_pod(each) if hasattr(each, "spec") else groups.set_group(each)  # type: ignore[arg-type]
    (gang,) = groups.gangs()
    return advise(gang, of, now=NOW)


def test_a_gang_that_fits_has_nothing_in_its_way() -> None:
    assert advice(*ranks(2, field="g"), group("g", 2), of=cluster()).fits


def test_a_gang_that_is_too_large_is_told_how_much_of_it_fits() -> None:
    found = advice(*ranks(3, field="g", cpu="2"), group("g", 3), of=cluster())
    assert found.blocks == ("2 of 3 seats on 2 nodes: the nodes that suit are full with these",)
    assert found.sooner[0] == (
        "2 of 3 pods would fit now: if they are enough, set minCount of PodGroup default/g to 2"
    )


def test_a_gang_that_waits_for_others_to_end_is_told_that_a_limit_helps() -> None:
    busy = cluster(nodes=1)
    busy.set_pod(pod("other", scheduler="default-scheduler", node="n0", phase="Running", cpu="2"))
    found = advice(pod("a"), of=busy)
    assert any("insufficient cpu" in each for each in found.blocks)
    assert "fluence.flux-framework.org/duration" in found.sooner[-1]


def test_a_rule_without_which_it_fits_is_named() -> None:
    found = advice(pod("a", node_selector={"disk": "ssd"}), of=cluster())
    assert "without its nodeSelector it would fit now" in found.sooner


def test_taints_that_are_not_tolerated_are_named() -> None:
    found = advice(pod("a"), of=cluster(taints=[Taint(key="gpu", effect="NoSchedule")]))
    assert any("tolerations" in each for each in found.sooner)


def test_an_incomplete_gang_is_told_what_it_lacks() -> None:
    found = advice(pod("a", field="g"), group("g", 3))
    assert found.blocks == ("1 of 3 pods is there",)
    assert found.sooner == ("create 2 more pods of it, or lower minCount of PodGroup default/g",)
    held = advice(pod("a", labels={GROUP: "g", SIZE: "1"}, gated=True))
    assert held.sooner == ("its gates must be removed by whoever set them: hold",)


def test_nothing_is_changed_by_asking() -> None:
    of = cluster()
    first = advice(*ranks(3, field="g", cpu="2"), group("g", 3), of=of)
    assert first == advice(*ranks(3, field="g", cpu="2"), group("g", 3), of=of)
