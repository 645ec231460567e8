"""A gang as a pure function of pods, memberships, owners and a PodGroup."""

from __future__ import annotations

from collections.abc import Iterable

from fluence import names
from fluence.cluster.graph import TopologyDomain
from fluence.model.constraint import Constraint
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang, build, request_arguments
from fluence.schedule.gangs.membership import membership, owner_chain
from tests.unit.schedule.kit import GROUP, SIZE, group, owner, pod, ranks

FOLLOWED = frozenset(("Job", "Deployment", "ReplicaSet", "StatefulSet"))


def built(
    pods: Iterable[Pod], *owners: Owner, group: Group | None = None, strangers: Iterable[Pod] = ()
) -> Gang:
    pods, known = list(pods), {each.identity: each for each in owners}
    members = {
        each.key: membership(each, *owner_chain(each, known, FOLLOWED), find_group=lambda *_: group)
        for each in pods
    }
    (key,) = {each.key for each in members.values()}
    return build(key, pods, members, owners=known, find_group=lambda *_: group, strangers=list(strangers))


def test_the_order_of_the_pods_does_not_matter() -> None:
    job = owner("j", parallelism=12, labels={GROUP: "g"})
    pods = [pod(f"j-{i}", owner=job) for i in range(12)]
    found = built(reversed(pods), job)
    assert found == built(pods, job)
    assert [each.metadata.name for each in found.members] == [f"j-{i}" for i in range(12)]


def test_pods_are_sorted_by_what_they_do() -> None:
    pods = [
        pod("waits", field="g"),
        pod("held", field="g", gated=True),
        pod("runs", field="g", node="n"),
        pod("leaves", field="g", node="n", deleting=True),
        pod("gone", field="g", deleting=True),
        pod("done", field="g", node="n", phase="Succeeded"),
    ]
    found = built(pods, group=group("g", 3))

    def names_of(some: tuple[Pod, ...]) -> list[str]:
        return [each.metadata.name for each in some]

    assert names_of(found.members) == ["waits"] and names_of(found.gated) == ["held"]
    assert names_of(found.placed) == ["leaves", "runs"] and names_of(found.ended) == ["done"]
    assert len(found) == 4 and not found.is_over


def test_a_fault_goes_before_what_is_missing() -> None:
    found = built(ranks(1, field="g"), group=group("g", 2), strangers=[pod("x", scheduler="other")])
    assert found.fault == Reason.of(Code.OTHER_SCHEDULER, others=("other",), scheduler=names.SCHEDULER)
    assert found.missing is None


def test_excluded_nodes_are_gathered_from_pods_owners_and_the_group() -> None:
    job = owner("j", parallelism=2, annotations={names.EXCLUDED: "c"})
    pods = [
        pod("a", owner=job, field="g", annotations={names.EXCLUDED: "a, b"}),
        pod("b", owner=job, field="g"),
    ]
    found = built(pods, job, group=group("g", 2, annotations={names.EXCLUDED: "d"}))
    assert found.excluded == {"a", "b", "c", "d"}


def test_more_excluded_nodes_than_are_read_are_a_fault() -> None:
    for count, wanted in ((1000, None), (1001, Code.TOO_MANY_EXCLUDED)):
        text = ",".join(f"n{i}" for i in range(count))
        found = built([pod("a", annotations={names.EXCLUDED: text})])
        assert (found.fault.code if found.fault is not None else None) is wanted


def test_the_request_of_a_gang_has_all_that_it_asks_for() -> None:
    marks = {
        names.CONSTRAINTS: '{"properties": ["gpu"]}',
        names.EXCLUDED: "n1",
        names.POLICY: "lonode",
        SIZE: "3",
    }
    pods = [*ranks(2, field="g", annotations=marks), pod("on", field="g", node="n7", annotations=marks)]
    found = built(pods, group=group("g", 3, topology_key="rack"))
    assert request_arguments(found, {"n2"}) == {
        "pods": found.members,
        "minimum": 2,
        "policy": "lonode",
        "spread": False,
        "exclude": {"n1", "n2"},
        "constraint": Constraint("properties", ("gpu",)),
        "topology": TopologyDomain("rack", frozenset({"n7"})),
    }


def test_pods_that_follow_as_they_fit_are_asked_for_one_at_least() -> None:
    found = built([*ranks(2, field="g", node="n"), pod("late", field="g")], group=group("g", 2))
    assert found.needed == 0 and request_arguments(found)["minimum"] == 1


def test_what_a_group_of_pods_may_want_has_a_limit() -> None:
    found = built(ranks(1, field="g"), group=group("g", 100_001))
    assert found.fault == Reason.of(Code.GROUP_TOO_LARGE, group="default/g", minimum=100_001, maximum=100_000)
