"""Which gang a pod belongs to, from the pod, its owners and the PodGroups alone."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fluence.model.owner import Deployment, Group, Owner, ReplicaSet
from fluence.model.pod import Pod
from fluence.schedule.gangs.membership import Membership, membership, owner_chain
from tests.unit.schedule.kit import GROUP, SIZE, V137, group, owner, pod, reference

JOBS = frozenset(("Job", "Deployment", "ReplicaSet"))


def found(of: Pod, *owners: Owner, groups: tuple[Group, ...] = ()) -> Membership:
    known = {each.key: each for each in groups}
    return membership(of, owners, None, find_group=lambda namespace, name: known.get(f"{namespace}/{name}"))


@pytest.mark.parametrize(
    ("of", "key"),
    [
        (pod("p"), "default/pod:p"),
        (pod("p", field="f", labels={GROUP: "l"}), "default/f"),
        (pod("p", workload=("w", "ranks", "0")), "default/w/ranks/0"),
        (pod("p", labels={GROUP: "l"}, annotations={GROUP: "a"}), "default/l"),
        (pod("p", annotations={GROUP: " a "}), "default/a"),
        (pod("p", annotations={SIZE: "4"}), "default/pod:p"),
    ],
)
def test_the_first_that_names_a_group_counts(of: Pod, key: str) -> None:
    assert found(of).key == key


def test_a_pods_own_label_goes_before_its_owners() -> None:
    job = owner("j", labels={GROUP: "of-job"})
    assert found(pod("p", owner=job), job).key == "default/of-job"
    assert found(pod("p", owner=job, labels={GROUP: "own"}), job).key == "default/own"


def test_the_groups_that_decide_are_named_so_that_their_change_is_followed() -> None:
    job = owner("j")
    made = group("j-abc", None, source=V137, controller=job.identity)
    here = found(pod("p", field="j-abc", labels={GROUP: "g"}, owner=job), job, groups=(made,))
    assert here.key == "default/g" and here.groups == ("default/j-abc", "default/g")


def test_the_chain_of_owners_ends_where_one_is_not_known_or_not_followed() -> None:
    top = owner("d", kind=Deployment)
    middle = owner("r", kind=ReplicaSet, parent=top)
    of = pod("p", owner=middle)
    known = {each.identity: each for each in (top, middle)}
    assert owner_chain(of, known, JOBS) == ((middle, top), None)
    assert owner_chain(of, known, frozenset(("ReplicaSet",))) == ((middle,), None)
    del known[top.identity]
    assert owner_chain(of, known, JOBS) == ((middle,), reference(top))


def test_owners_that_own_each_other_end_somewhere() -> None:
    job = owner("j")
    loop = replace(job, metadata=replace(job.metadata, owner_references=[reference(job)]))
    owners, unseen = owner_chain(pod("p", owner=job), {loop.identity: loop}, JOBS)
    assert len(owners) == 4 and unseen is None
