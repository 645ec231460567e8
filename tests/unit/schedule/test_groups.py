"""Which gangs there are: every door, every label, every order."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.external_resources import DeviceTerm
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.owner import Deployment, Group, Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, PodSpec
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from tests.unit.schedule.kit import GROUP, SIZE, T0, V136, V137, group, owner, pod, ranks, reference


def gangs_of(*things: Pod | Group | Owner, **options: bool) -> dict[str, Gang]:
    groups = Groups(**options)  # type: ignore[arg-type]
    for each in things:
        if isinstance(each, Pod):
            groups.set_pod(each)
        elif isinstance(each, Group):
            groups.set_group(each)
        else:
            groups.set_owner(each)
    return {gang.key: gang for gang in groups.gangs()}


def missing(pods: int, minimum: int, group: str = "g") -> Reason:
    return Reason.of(Code.PODS_MISSING, group=f"default/{group}", pods=pods, minimum=minimum)


def warned(gang: Gang) -> list[Code]:
    return [each.code for each in gang.warnings]


def only(*things: Pod | Group | Owner, **options: bool) -> Gang:
    found = gangs_of(*things, **options)
    assert len(found) == 1, list(found)
    return next(iter(found.values()))


# -- the doors -----------------------------------------------------------------------------------------------


def test_a_pod_without_a_group_is_a_gang_of_one() -> None:
    gang = only(pod("solo"))
    assert (gang.key, gang.uid, gang.name) == ("default/pod:solo", "uid-default-solo", "solo")
    assert gang.is_single and gang.is_ready
    assert (gang.minimum, gang.needed, gang.size) == (1, 1, 1)


def test_a_pod_and_a_group_of_one_name_are_two_gangs() -> None:
    assert set(gangs_of(pod("x"), pod("y", labels={GROUP: "x", SIZE: "1"}))) == {
        "default/pod:x",
        "default/x",
    }


@pytest.mark.parametrize("source", [V136, V137])
def test_a_native_group_is_found_by_the_pods_field(source: str) -> None:
    gang = only(*ranks(3, field="lammps"), group("lammps", 3, source=source))
    assert (gang.key, gang.uid, gang.source) == ("default/lammps", "uid-group-lammps", source)
    assert gang.is_ready and gang.needed == 3


def test_a_workload_of_1_35_has_a_gang_per_replica_each_with_an_id_of_its_own() -> None:
    pods = [pod(f"p{k}{i}", workload=("wl", "ranks", k)) for k in "ab" for i in range(2)]
    found = gangs_of(*pods, group("wl/ranks", 2, uid="W", source="scheduling.k8s.io/v1alpha1"))
    assert set(found) == {"default/wl/ranks/a", "default/wl/ranks/b"}
    assert all(gang.is_ready and gang.minimum == 2 for gang in found.values())
    assert len({gang.uid for gang in found.values()}) == 2


@pytest.mark.parametrize("where", ["labels", "annotations"])
@pytest.mark.parametrize("key_", names.GROUP_NAMES)
def test_every_key_of_the_name_counts_on_pods(key_: str, where: str) -> None:
    gang = only(*ranks(2, **{where: {key_: "g", SIZE: "2"}}))  # type: ignore[arg-type]
    assert (gang.key, gang.minimum) == ("default/g", 2)
    assert key_ in gang.source


@pytest.mark.parametrize("where", ["labels", "annotations"])
@pytest.mark.parametrize("key_", names.GROUP_NAMES)
def test_every_key_of_the_name_counts_on_the_jobs_own_metadata(key_: str, where: str) -> None:
    job = owner("j", parallelism=2, **{where: {key_: "g"}})  # type: ignore[arg-type]
    gang = only(*ranks(2, owner=job), job)
    assert (gang.key, gang.minimum) == ("default/g", 2)


@pytest.mark.parametrize("where", ["labels", "annotations"])
@pytest.mark.parametrize("key_", names.GROUP_SIZES)
def test_every_key_of_the_size_counts(key_: str, where: str) -> None:
    marks = {"labels": {GROUP: "g"}, "annotations": {}}
    marks[where][key_] = "3"
    assert only(*ranks(2, **marks)).minimum == 3  # type: ignore[arg-type]
    job = owner("j", parallelism=2, **{where: {key_: "4"}})  # type: ignore[arg-type]
    assert only(*ranks(2, owner=job, labels={GROUP: "g"}), job).minimum == 4


def test_a_field_beats_a_label() -> None:
    pods = [pod("a", field="real"), pod("b", field="real", labels={GROUP: "other", SIZE: "7"})]
    gang = only(*pods, group("real", 2))
    assert gang.key == "default/real" and len(gang.members) == 2
    assert gang.minimum == 2


def test_groups_of_one_name_in_two_namespaces_are_two() -> None:
    pods = [pod("a", namespace=ns, labels={GROUP: "g", SIZE: "1"}) for ns in ("one", "two")]
    assert set(gangs_of(*pods)) == {"one/g", "two/g"}


def test_a_label_finds_the_native_group_of_that_name() -> None:
    """Fluence's own example: a PodGroup with minCount 2 and a Deployment whose pods carry the label alone."""
    deployment = owner("training", kind=Deployment, replicas=3)
    replicas = owner("training-1", kind=ReplicaSet, replicas=3, parent=deployment)
    pods = ranks(3, owner=replicas, labels={"scheduling.k8s.io/pod-group": "training"})
    gang = only(*pods, deployment, replicas, group("training", 2))
    assert (gang.minimum, gang.size, gang.needed) == (2, 3, 2)
    assert gang.group is not None and gang.uid == "uid-group-training"


def test_a_label_that_names_a_pod_group_waits_for_it_where_the_server_has_them() -> None:
    pods = ranks(2, labels={"scheduling.k8s.io/pod-group": "training"})
    waits = Reason.of(Code.POD_GROUP_OR_SIZE_MISSING, group="default/training")
    assert only(*pods, native=True).missing == waits
    assert only(*pods, native=False).is_ready
    assert only(*pods, group("training", 2), native=True).is_ready


def test_the_coscheduling_plugins_groups_count_and_the_native_one_goes_first() -> None:
    pods = ranks(2, labels={"scheduling.x-k8s.io/pod-group": "g"})
    sig = group("g", 3, source="scheduling.x-k8s.io/v1alpha1", uid="S")
    assert only(*pods, sig).minimum == 3
    assert only(*pods, sig, group("g", 2)).minimum == 2


def test_a_size_without_a_name_makes_the_owner_the_group() -> None:
    job = owner("sim", parallelism=2, completions=2)
    gang = only(*ranks(2, owner=job, annotations={SIZE: "2"}), job)
    assert (gang.key, gang.name, gang.uid) == ("default/job:sim", "sim", job.metadata.uid)
    assert gang.needed == 2


def test_a_job_without_any_mark_makes_singles() -> None:
    job = owner("sim", parallelism=3)
    found = gangs_of(*ranks(3, owner=job), job)
    assert set(found) == {f"default/pod:rank-{i}" for i in range(3)}


def test_the_original_fluences_indexed_job_of_ten_with_annotations_on_the_job() -> None:
    marks = {"scheduling.x-k8s.io/pod-group": "job-0", "fluence.group-size": "10"}
    job = owner("job-0", parallelism=10, completions=10, annotations=marks)
    pods = [
        pod(f"job-0-{i}-x", owner=job, annotations={names.COMPLETION_INDEX: str(i)})
        for i in (3, 1, 10, 0, 2, 4, 9, 5, 8, 6)
    ]
    gang = only(*pods, job)
    assert (gang.key, gang.minimum) == ("default/job-0", 10) and gang.is_ready
    indexes = [int(each.annotations[names.COMPLETION_INDEX]) for each in gang.members]
    assert indexes == sorted(indexes)


def test_a_statefulsets_pods_are_in_order_of_their_numbers() -> None:
    web = owner("web", kind=StatefulSet, replicas=11)
    pods = [pod(f"web-{i}", owner=web, labels={GROUP: "web"}) for i in range(11)]
    gang = only(*reversed(pods), web)
    assert [each.metadata.name for each in gang.members] == [f"web-{i}" for i in range(11)]


def test_labels_on_a_deployment_reach_the_pods_of_its_replica_set() -> None:
    deployment = owner("d", kind=Deployment, replicas=2, labels={GROUP: "g", SIZE: "2"})
    replicas = owner("d-1", kind=ReplicaSet, replicas=2, parent=deployment)
    pods = ranks(2, owner=replicas)
    for order in itertools.permutations([*pods, deployment, replicas]):
        gang = only(*order)  # type: ignore[arg-type]
        assert (gang.key, gang.minimum) == ("default/g", 2)


# -- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (Job, {"parallelism": 4}, 4),
        (Job, {"parallelism": 4, "completions": 4}, 4),
        (Job, {"parallelism": 4, "completions": 2}, 2),
        (Job, {"completions": 3}, 3),
        (Job, {"parallelism": 0}, 1),
        (Job, {}, 1),
        (ReplicaSet, {"replicas": 3}, 3),
        (StatefulSet, {"replicas": 5}, 5),
        (StatefulSet, {"replicas": 0}, 1),
    ],
)
def test_the_owner_says_the_size_where_nothing_else_does(
    kind: type[Owner], spec: dict[str, int], size: int
) -> None:
    of = owner("o", kind=kind, **spec)  # type: ignore[arg-type]
    assert only(pod("p", owner=of, labels={GROUP: "g"}), of).minimum == size


def test_a_declared_size_beats_the_owners_even_if_smaller() -> None:
    job = owner("j", parallelism=10)
    gang = only(*ranks(4, owner=job, labels={GROUP: "g"}, annotations={SIZE: "4"}), job)
    assert (gang.minimum, gang.size, gang.needed) == (4, 10, 4) and gang.is_ready


def test_a_declared_size_that_contradicts_the_pod_group_is_not_used() -> None:
    gang = only(*ranks(2, field="g", annotations={SIZE: "5"}), group("g", 2))
    assert gang.minimum == 2
    assert gang.warnings == (Reason.of(Code.SIZE_NOT_USED, size=5, group="default/g", minimum=2),)


def test_pods_that_disagree_on_the_size_wait_for_the_largest() -> None:
    gang = only(pod("a", labels={GROUP: "g", SIZE: "2"}), pod("b", labels={GROUP: "g", SIZE: "3"}))
    assert gang.minimum == 3
    assert gang.missing == missing(2, 3)
    assert gang.warnings == (Reason.of(Code.DIFFERENT_SIZES, level="pods", sizes=(2, 3)),)


def test_a_size_that_the_owner_cannot_reach_is_told() -> None:
    job = owner("j", parallelism=2)
    gang = only(*ranks(2, owner=job, labels={GROUP: "g"}, annotations={SIZE: "5"}), job)
    assert gang.missing == Reason.of(
        Code.OWNER_RUNS_TOO_FEW,
        group="default/g",
        pods=2,
        minimum=5,
        kind="Job",
        owner="default/j",
        others=0,
        runs=2,
    )


def test_a_size_that_the_owners_cannot_reach_is_told_whatever_says_the_size() -> None:
    job = owner("j", parallelism=2)
    gang = only(*ranks(2, owner=job, field="g"), job, group("g", 5))
    assert gang.missing == Reason.of(
        Code.OWNER_RUNS_TOO_FEW,
        group="default/g",
        pods=2,
        minimum=5,
        kind="Job",
        owner="default/j",
        others=0,
        runs=2,
    )
    two = owner("k", parallelism=1)
    gang = only(*ranks(2, owner=job, field="g"), pod("k", owner=two, field="g"), job, two, group("g", 5))
    assert gang.missing is not None
    assert (gang.missing["others"], gang.missing["runs"]) == (1, 3)


@pytest.mark.parametrize("policy", [None, "OrderedReady"])
def test_a_stateful_set_that_makes_its_pods_one_by_one_is_told_that_they_never_gather(
    policy: str | None,
) -> None:
    workers = owner("s", kind=StatefulSet, replicas=3, pod_management_policy=policy)

    def ordered(name: str) -> Reason:
        return Reason.of(Code.OWNER_IS_ORDERED, group=f"default/{name}", pods=1, minimum=3, owner="default/s")

    assert only(pod("s-0", owner=workers, annotations={SIZE: "3"}), workers).missing == ordered("s")
    assert only(pod("s-0", owner=workers, labels={GROUP: "g"}), workers).missing == ordered("g")
    assert only(pod("s-0", owner=workers, field="g"), workers, group("g", 3)).missing == ordered("g")


def test_a_stateful_set_whose_pods_can_gather_is_told_what_is_missing() -> None:
    parallel = owner("s", kind=StatefulSet, replicas=3, pod_management_policy="Parallel")
    assert only(pod("s-0", owner=parallel, labels={GROUP: "g"}), parallel).missing == missing(1, 3)
    ordered = owner("s", kind=StatefulSet, replicas=3)
    first = pod("s-0", owner=ordered, annotations={SIZE: "1"}, labels={GROUP: "g"})
    assert only(first, ordered).missing is None, "its first pod is all that is needed"
    job = owner("j", parallelism=2)
    mixed = only(
        pod("s-0", owner=ordered, field="g"), pod("j", owner=job, field="g"), ordered, job, group("g", 3)
    )
    assert mixed.missing == missing(2, 3), "one of the set and two of the Job are enough"


def test_a_gang_of_several_owners_has_the_sum_of_their_sizes() -> None:
    """An MPI launcher is a Job, its workers are a StatefulSet."""
    launcher = owner("launcher", parallelism=1, completions=1)
    workers = owner("workers", kind=StatefulSet, replicas=4)
    pods = [pod("l", owner=launcher, labels={GROUP: "mpi"}), *ranks(4, owner=workers, labels={GROUP: "mpi"})]
    gang = only(*pods, launcher, workers)
    assert (gang.minimum, gang.needed) == (5, 5) and gang.is_ready


def test_no_size_at_all_means_all_that_are_there_with_a_warning() -> None:
    pods = ranks(3, labels={GROUP: "g"})
    gang = only(*pods)
    assert (gang.minimum, gang.size, gang.needed) == (3, 3, 3) and gang.is_ready
    assert gang.warnings == (Reason.of(Code.NO_SIZE, size=3, key=names.GROUP_SIZE),)
    assert gang.parts == {each.metadata.uid for each in pods}
    assert gang.newest == int(T0.timestamp() * 1000)


def test_owners_and_pods_without_one_make_the_size_of_a_group_that_names_none() -> None:
    job = owner("j", parallelism=2, completions=2)
    gang = only(*ranks(2, owner=job, labels={GROUP: "g"}), pod("log", labels={GROUP: "g"}), job)
    assert (gang.minimum, gang.size) == (3, 3)
    assert gang.parts == {job.metadata.uid, "uid-default-log"}


def test_pods_without_an_owner_that_join_a_group_that_runs_start_one_by_one() -> None:
    runs = ranks(2, "old", labels={GROUP: "g"}, node="n", phase="Running")
    gang = only(*runs, *ranks(2, "new", labels={GROUP: "g"}))
    assert (gang.minimum, gang.needed, gang.size) == (2, 0, 4) and gang.is_ready
    assert not gang.warnings


def test_the_pods_of_an_owner_that_joins_a_group_that_runs_start_together() -> None:
    one, two = owner("one", parallelism=2), owner("two", parallelism=3)
    runs = ranks(2, "old", owner=one, labels={GROUP: "g"}, node="n", phase="Running")
    gang = only(*runs, *ranks(2, "new", owner=two, labels={GROUP: "g"}), one, two)
    assert (gang.minimum, gang.needed) == (5, 3)
    assert gang.missing == missing(4, 5)


@pytest.mark.parametrize("size", ["annotation", "group"])
def test_a_job_of_a_gang_of_several_does_not_start_before_the_others_are_there(size: str) -> None:
    """A Job that counts its completions says how many pods it has left, and not how many the gang has."""
    declared = {SIZE: "5"} if size == "annotation" else {}
    marks: dict[str, Any] = {"annotations": declared}
    marks |= {"labels": {GROUP: "g"}} if size == "annotation" else {"field": "g"}
    head = owner("head", parallelism=1, completions=1)
    more = [group("g", 5)] if size == "group" else []
    gang = only(pod("head-0", owner=head, **marks), head, *more)
    assert (gang.minimum, gang.needed) == (5, 5) and not gang.is_ready
    workers = owner("workers", parallelism=4, completions=4)
    work = ranks(4, owner=workers, **marks)
    for count in range(4):
        gang = only(pod("head-0", owner=head, **marks), *work[:count], head, workers, *more)
        assert gang.needed == 5 and not gang.is_ready
    assert only(pod("head-0", owner=head, **marks), *work, head, workers, *more).is_ready


def made(of: Owner, age: int) -> Owner:
    return replace(of, metadata=replace(of.metadata, creation_timestamp=T0 - timedelta(seconds=age)))


def test_a_gang_does_not_wait_for_a_job_that_has_finished_beside_it() -> None:
    """Head and workers ran; the head succeeded, the workers failed and start again: four of five."""
    marks: dict[str, Any] = {"labels": {GROUP: "g"}, "annotations": {SIZE: "5"}}
    head = made(owner("head", parallelism=1, completions=1, succeeded=1), 60)
    workers = made(owner("workers", parallelism=4, completions=4), 60)
    done = pod("head-0", owner=head, node="n", phase="Succeeded", age=60, bound=50, **marks)
    gang = only(done, *ranks(4, owner=workers, age=5, **marks), head, workers)
    assert (gang.minimum, gang.needed) == (5, 4) and gang.is_ready


def test_an_earlier_run_under_the_same_name_makes_no_gang_smaller() -> None:
    marks: dict[str, Any] = {"labels": {GROUP: "g"}, "annotations": {SIZE: "5"}}
    before = [
        made(owner("head-1", parallelism=1, completions=1, succeeded=1), 600),
        made(owner("workers-1", parallelism=4, completions=4, succeeded=4), 600),
    ]
    ended = [
        pod(f"{of.metadata.name}-{i}", owner=of, node="n", phase="Succeeded", age=600, bound=590, **marks)
        for of in before
        for i in range(of.pods)
    ]
    head = made(owner("head-2", parallelism=1, completions=1), 5)
    gang = only(*ended, *before, pod("head-2-0", owner=head, age=5, **marks), head)
    assert gang.needed == 5 and not gang.is_ready


# -- owners that name a group before they have pods ----------------------------------------------------------


def templated(name: str, kind: type[Owner] = Job, *, scheduler: str = "fluence", **spec: Any) -> Owner:
    template = PodTemplate(metadata=ObjectMeta(labels={GROUP: "g"}), spec=PodSpec(scheduler_name=scheduler))
    return owner(name, kind=kind, template=template, **spec)


def test_a_job_that_names_the_group_counts_before_its_first_pod() -> None:
    head, workers = templated("head", parallelism=1), templated("workers", parallelism=4)
    mine = pod("head-0", owner=head, labels={GROUP: "g"})
    gang = only(mine, head, workers)
    assert gang.missing == missing(1, 5)
    assert gang.parts == {head.metadata.uid, workers.metadata.uid}
    groups = Groups()
    for each in (head, workers):
        groups.set_owner(each)
    groups.set_pod(mine)
    assert groups.remove_owner(workers) == {"default/g"}
    gang_ = groups.gang("default/g")
    assert gang_ is not None and gang_.minimum == 1
    assert groups.set_owner(workers) == {"default/g"}


@pytest.mark.parametrize(
    "idle",
    [
        templated("other", parallelism=4, suspend=True),
        templated("other", parallelism=0),
        templated("other", parallelism=2, completions=2, succeeded=2),
        templated("other", StatefulSet, replicas=0),
        templated("other", Deployment, replicas=2),
        templated("other", parallelism=4, scheduler="default-scheduler"),
    ],
)
def test_an_owner_that_makes_no_pods_for_the_group_does_not_count(idle: Owner) -> None:
    head = templated("head", parallelism=1)
    gang = only(pod("head-0", owner=head, labels={GROUP: "g"}), head, idle)
    assert gang.minimum == 1 and gang.is_ready


def test_an_owner_whose_pods_are_elsewhere_does_not_count() -> None:
    """Admission may put the pods of one Job into two groups: a producer and its consumers."""
    head, shared = templated("head", parallelism=1), templated("shared", parallelism=2)
    found = gangs_of(
        pod("head-0", owner=head, labels={GROUP: "g"}),
        pod("shared-0", owner=shared, labels={GROUP: "g-producer", SIZE: "1"}),
        head,
        shared,
    )
    assert found["default/g"].minimum == 1


def test_a_size_without_a_group_or_an_owner_is_not_used_with_a_warning() -> None:
    gang = only(pod("p", annotations={SIZE: "4"}))
    assert gang.is_single and gang.is_ready
    assert gang.warnings == (Reason.of(Code.SIZE_WITHOUT_GROUP, size=4, key=names.GROUP_LABEL),)
    assert not only(pod("p", annotations={SIZE: "1"})).warnings


# -- what comes when -----------------------------------------------------------------------------------------


def test_pods_before_their_group_wait_for_it() -> None:
    groups = Groups()
    for each in ranks(2, field="g"):
        groups.set_pod(each)
    gang = groups.gang("default/g")
    assert gang is not None and gang.missing == Reason.of(Code.POD_GROUP_NOT_SEEN, group="default/g")
    assert groups.set_group(group("g", 2)) == {"default/g"}
    gang = groups.gang("default/g")
    assert gang is not None and gang.is_ready


def test_a_group_before_its_pods_is_no_gang_yet() -> None:
    groups = Groups()
    assert not groups.set_group(group("g", 2))
    assert groups.gang("default/g") is None
    groups.set_pod(pod("a", field="g"))
    gang = groups.gang("default/g")
    assert gang is not None and gang.missing == missing(1, 2)


def test_pods_before_their_owner_wait_for_it_and_are_not_taken_for_singles() -> None:
    job = owner("j", parallelism=2, labels={GROUP: "g"})
    groups = Groups()
    first, second = ranks(2, owner=job)
    groups.set_pod(first)
    alone = groups.gang(groups.of(first))
    assert alone is not None and alone.missing == Reason.of(Code.OWNER_NOT_SEEN, kind="Job", name="j")
    assert groups.set_owner(job) == {"default/pod:rank-0", "default/g"}
    groups.set_pod(second)
    assert [gang.key for gang in groups.gangs()] == ["default/g"]


def test_an_owner_that_is_not_followed_is_not_waited_for() -> None:
    job = owner("j")
    groups = Groups(follows=())
    groups.set_pod(pod("p", owner=job))
    assert next(groups.gangs()).is_ready
    custom = pod("q")
    ref = reference(job)
    # Another API group's Job is none of ours.
    from msgspec.structs import replace

    refs = [replace(ref, api_version="batch.volcano.sh/v1alpha1")]
    assert only(replace(custom, metadata=replace(custom.metadata, owner_references=refs))).is_ready


def test_late_members_of_a_gang_that_runs_need_no_company() -> None:
    pods = [*ranks(2, field="g", node="n"), pod("late", field="g")]
    gang = only(*pods, group("g", 2))
    assert (gang.needed, len(gang.members), len(gang.placed)) == (0, 1, 2) and gang.is_ready


def test_a_half_bound_gang_needs_the_rest() -> None:
    gang = only(pod("a", field="g", node="n"), *ranks(2, field="g"), group("g", 3))
    assert gang.needed == 2 and gang.is_ready


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_members_that_ended_before_the_rest_was_bound_count(phase: str) -> None:
    """A crash left the gang half bound, and what was bound was over before the rest could be."""
    over = ranks(2, name="over", field="g", node="n", phase=phase, age=9, bound=5)
    gang = only(*over, pod("rest", field="g", age=9), group("g", 3))
    assert gang.needed == 1 and gang.is_ready
    gang = only(
        *over, pod("runs", field="g", node="n", age=9, bound=5), pod("rest", field="g", age=9), group("g", 4)
    )
    assert gang.needed == 1 and gang.is_ready
    gang = only(*over, *ranks(2, name="extra", field="g", age=9), group("g", 2))
    assert gang.needed == 0 and gang.is_ready, "the minimum has run: the rest follow as they fit"


def test_members_of_an_earlier_run_do_not_count() -> None:
    over = ranks(2, name="over", field="g", node="n", phase="Succeeded", age=9, bound=5)
    gang = only(*over, pod("new", field="g", age=1), group("g", 3))
    assert gang.needed == 3 and gang.missing == missing(1, 3)


def test_a_replaced_member_joins_the_others() -> None:
    job = owner("j", parallelism=3, completions=3, labels={GROUP: "g"})
    pods = [
        pod("j-0-a", owner=job, node="n", phase="Running"),
        pod("j-1-a", owner=job, node="n", phase="Failed"),
        pod("j-2-a", owner=job, node="n", phase="Succeeded"),
        pod("j-1-b", owner=job),
    ]
    gang = only(*pods, job)
    assert [each.metadata.name for each in gang.members] == ["j-1-b"]
    assert gang.needed == 1 and gang.is_ready, "one runs, one succeeded: the third is what is needed"


def test_a_gang_whose_members_all_failed_starts_together_again() -> None:
    job = owner("j", parallelism=3, completions=3, labels={GROUP: "g"})
    failed = ranks(3, name="old", owner=job, node="n", phase="Failed")
    assert only(*failed, pod("new-0", owner=job), job).missing == missing(1, 3)
    assert only(*failed, *ranks(3, name="new", owner=job), job).needed == 3


def test_the_last_rank_of_a_job_does_not_wait_for_those_that_succeeded() -> None:
    job = owner("j", parallelism=3, completions=3, labels={GROUP: "g"}, succeeded=2)
    pods = [*ranks(2, owner=job, node="n", phase="Succeeded"), pod("again", owner=job)]
    gang = only(*pods, job)
    assert gang.needed == 1 and gang.is_ready


def test_members_that_are_being_deleted_are_placed_but_bring_no_company() -> None:
    """A Job deleted and made anew under its name: its old pods still hold their nodes."""
    old = ranks(3, name="old", labels={GROUP: "g", SIZE: "3"}, node="n", deleting=True)
    new = ranks(2, name="new", labels={GROUP: "g", SIZE: "3"})
    gang = only(*old, *new)
    assert len(gang.placed) == 3 and gang.needed == 3
    assert gang.missing == missing(2, 3)


def test_a_waiting_member_that_is_being_deleted_is_no_member() -> None:
    gang = only(pod("a", field="g"), pod("b", field="g", deleting=True), group("g", 2))
    assert len(gang.members) == 1 and gang.missing


def test_gated_members_are_alive_and_cannot_be_placed() -> None:
    pods = [*ranks(2, field="g"), pod("held", field="g", gated=True)]
    gang = only(*pods, group("g", 3))
    assert gang.missing == Reason.of(Code.PODS_GATED, gated=1, pods=3)
    assert len(gang.gated) == 1
    assert only(*pods, group("g", 2)).is_ready, "two are enough"
    alone = only(pod("held", gated=True))
    assert alone.missing and not alone.is_over


def test_a_gang_is_over_when_every_member_has_ended() -> None:
    done = pod("a", field="g", node="n", phase="Succeeded")
    assert only(done, pod("b", field="g", node="n", phase="Failed"), group("g", 2)).is_over
    assert not only(done, pod("b", field="g", gated=True), group("g", 2)).is_over


def test_pods_of_a_suspended_job_are_not_tried() -> None:
    job = owner("j", parallelism=2, suspend=True)
    gang = only(*ranks(2, owner=job, field="g"), job, group("g", 2))
    assert gang.missing == Reason.of(Code.OWNER_SUSPENDED, kind="Job", owner="default/j")


def test_a_basic_group_is_no_gang() -> None:
    found = gangs_of(*ranks(3, field="b"), group("b", None, source=V137))
    assert set(found) == {f"default/pod:rank-{i}" for i in range(3)}
    assert all(gang.is_ready and gang.group is not None for gang in found.values())


def test_a_basic_group_that_1_37_made_for_a_job_does_not_hide_the_jobs_label() -> None:
    job = owner("j", parallelism=2, labels={GROUP: "g"})
    pods = ranks(2, owner=job, field="j-abc")
    gang = only(*pods, job, group("j-abc", None, source=V137, controller=job.identity))
    assert (gang.key, gang.minimum) == ("default/g", 2)


def test_a_label_that_stood_in_for_a_jobs_basic_group_steps_back_when_that_goes() -> None:
    job = owner("j")
    groups = Groups()
    made = group("j-abc", None, source=V137, controller=job.identity)
    groups.set_owner(job)
    groups.set_group(made)
    groups.set_pod(pod("p", field="j-abc", labels={GROUP: "g"}, owner=job))
    assert groups.remove_group(made) == {"default/g", "default/j-abc"}
    assert [gang.key for gang in groups.gangs()] == ["default/j-abc"]


def made_up(job: Owner, source: str) -> Group:
    """The PodGroup that the Job controller creates (WorkloadWithJob): a gang on 1.36, basic on 1.37."""
    size = job.pods if source == V136 else None
    return group(f"{job.metadata.name}-pg", size, source=source, controller=job.identity)


@pytest.mark.parametrize("source", [V136, V137])
def test_groups_that_the_job_controller_makes_do_not_split_a_group_by_label(source: str) -> None:
    """A head of one pod has no such group on 1.36, its workers have."""
    head = owner("head", parallelism=1, completions=1)
    work = owner("work", parallelism=4, completions=4)
    label = {GROUP: "g"}
    things: list[Pod | Group | Owner] = [
        head,
        work,
        made_up(work, source),
        pod("head-0", owner=head, labels=label),
        *ranks(4, "work", owner=work, labels=label, field="work-pg"),
    ]
    for shuffled in (things, things[::-1], things[3:] + things[:3]):
        gang = only(*shuffled)
        assert (gang.key, gang.minimum, len(gang)) == ("default/g", 5, 5)


@pytest.mark.parametrize("source", [V136, V137])
def test_a_size_on_a_job_holds_beside_the_group_that_the_job_controller_makes(source: str) -> None:
    job = owner("j", parallelism=4, completions=4, annotations={SIZE: "3"})
    gang = only(job, made_up(job, source), *ranks(4, owner=job, field="j-pg"))
    assert (gang.key, gang.minimum) == ("default/job:j", 3)


def test_a_group_that_the_job_controller_makes_is_a_gang_where_nothing_else_is() -> None:
    job = owner("j", parallelism=4, completions=4)
    gang = only(job, made_up(job, V136), *ranks(4, owner=job, field="j-pg"))
    assert (gang.key, gang.minimum) == ("default/j-pg", 4)
    assert len(gangs_of(job, made_up(job, V137), *ranks(4, owner=job, field="j-pg"))) == 4


@pytest.mark.parametrize("source", [V136, V137])
def test_nothing_starts_by_a_made_group_before_its_job_is_known(source: str) -> None:
    """The Job may have the label that decides."""
    job = owner("j", parallelism=4, completions=4, labels={GROUP: "g"})
    pods = ranks(4, owner=job, field="j-pg")
    for gang in gangs_of(made_up(job, source), *pods).values():
        assert gang.missing == Reason.of(Code.OWNER_NOT_SEEN, kind="Job", name="j")
    assert only(made_up(job, source), *pods, job).key == "default/g"


def test_a_pod_group_of_the_users_overrides_a_label_as_ever() -> None:
    """Its controller is another Job, or nobody; what a Job's template names counts as well."""
    job, other = owner("j", parallelism=2, labels={GROUP: "g"}), owner("other")
    for controller in ("", other.identity):
        gang = only(job, group("mine", 2, controller=controller), *ranks(2, owner=job, field="mine"))
        assert gang.key == "default/mine"


def test_a_group_that_turns_from_unknown_to_basic_sets_its_pods_free() -> None:
    groups = Groups()
    for each in ranks(2, field="b"):
        groups.set_pod(each)
    assert len(groups) == 1
    changed = groups.set_group(group("b", None))
    assert changed == {"default/b", "default/pod:rank-0", "default/pod:rank-1"}
    assert groups.gang("default/b") is None


def test_a_lowered_min_count_wakes_the_gang() -> None:
    groups = Groups()
    groups.set_group(group("g", 3, source=V137))
    for each in ranks(2, field="g"):
        groups.set_pod(each)
    before = groups.gang("default/g")
    assert before is not None and not before.is_ready
    assert groups.set_group(group("g", 2, source=V137)) == {"default/g"}
    after = groups.gang("default/g")
    assert after is not None and after.is_ready


def test_a_status_change_changes_no_gang_but_is_seen() -> None:
    groups = Groups()
    groups.set_group(group("g", 1))
    one = pod("a", field="g")
    groups.set_pod(one)
    done = Condition(type="PodGroupScheduled", status="True")
    assert not groups.set_group(group("g", 1, is_scheduled=True, conditions=(done,)))
    gang = groups.gang("default/g")
    assert gang is not None and gang.group is not None and gang.group.is_scheduled


def test_a_pod_made_anew_under_its_name_is_not_removed_with_the_old_one() -> None:
    groups = Groups()
    old, new = pod("web-0", uid="1"), pod("web-0", uid="2")
    groups.set_pod(old)
    groups.set_pod(new)
    assert not groups.remove_pod(old)
    gang = groups.gang("default/pod:web-0")
    assert gang is not None and gang.uid == "2"
    assert groups.remove_pod(new) == {"default/pod:web-0"}
    assert len(groups) == 0


# -- refusals ------------------------------------------------------------------------------------------------


def test_other_schedulers_pods_make_no_gangs() -> None:
    assert not gangs_of(pod("a", scheduler="default-scheduler"))
    assert not gangs_of(*ranks(2, scheduler="default-scheduler", field="g"), group("g", 2))


def test_a_group_with_another_schedulers_pods_is_refused() -> None:
    pods = [pod("a", field="g"), pod("b", field="g", scheduler="default-scheduler")]
    gang = only(*pods, group("g", 2))
    assert gang.fault == Reason.of(Code.OTHER_SCHEDULER, others=("default-scheduler",), scheduler="fluence")
    assert not gang.is_ready


def test_mixed_priorities_are_refused() -> None:
    gang = only(pod("a", field="g", priority=1), pod("b", field="g", priority=2), group("g", 2))
    assert gang.fault == Reason.of(Code.DIFFERENT_PRIORITIES, priorities=(1, 2))


def test_mixed_preemption_policies_are_refused() -> None:
    pods = [pod("a", field="g", preemption_policy="Never"), pod("b", field="g")]
    assert only(*pods, group("g", 2)).fault == Reason.of(
        Code.DIFFERENT_PREEMPTION_POLICIES, policies=("Never", "PreemptLowerPriority")
    )


def test_from_1_37_on_the_groups_priority_is_its_pods() -> None:
    pods = ranks(2, field="g", priority=5)
    assert only(*pods, group("g", 2, source=V137, priority=7)).fault == Reason.of(
        Code.GROUP_PRIORITY_DIFFERS, group="default/g", wanted=7, given=5
    )
    assert only(*pods, group("g", 2, source=V136, priority=7)).priority == 5  # not raised,
    assert only(*pods, group("g", 2, source=V136, priority=3)).priority == 3  # but lowered


def test_one_domain_for_a_group_that_is_no_gang_is_refused() -> None:
    """Its pods start one by one, so nobody keeps them together."""
    fault = only(pod("a", field="g"), group("g", None, topology_key="rack")).fault
    assert fault == Reason.of(Code.TOPOLOGY_NEEDS_GANG, group="default/g", key="rack")
    assert not only(pod("a", field="g"), group("g", 1, topology_key="rack")).fault


def test_shared_claims_of_a_group_are_refused() -> None:
    fault = only(pod("a", field="g"), group("g", 1, claims=("gpus",))).fault
    assert fault == Reason.of(Code.SHARED_CLAIMS, group="default/g", claims=("gpus",))


# -- annotations ---------------------------------------------------------------------------------------------


def test_annotations_are_read_from_pods_then_owners_then_the_group() -> None:
    marks = {names.DURATION: "2h30m", names.QUEUE: "debug", names.POLICY: "lonode", names.USER: "ada"}
    gang = only(pod("a", field="g", annotations=marks), group("g", 1, annotations={names.QUEUE: "batch"}))
    assert (gang.limit, gang.queue, gang.policy, gang.user) == (9_000_000, "debug", "lonode", "ada")
    job = owner("j", annotations={names.QUEUE: "long", names.SOFT_DURATION: "90"})
    gang = only(pod("a", owner=job, field="g"), job, group("g", 1, annotations={names.QUEUE: "batch"}))
    assert (gang.queue, gang.soft_limit) == ("long", 90_000)
    gang = only(pod("a", field="g"), group("g", 1, annotations={names.QUEUE: "batch"}))
    assert gang.queue == "batch"


def test_pods_that_disagree_in_an_annotation_are_warned_and_the_first_counts() -> None:
    pods = [pod(f"p{i}", field="g", annotations={names.QUEUE: queue}) for i, queue in enumerate("abb")]
    gang = only(*pods, group("g", 3))
    assert gang.queue == "a"
    assert gang.warnings == (Reason.of(Code.DIFFERENT_ANNOTATIONS, level="pods", key=names.QUEUE, value="a"),)


def test_the_user_is_the_service_account_unless_declared() -> None:
    assert only(pod("a", namespace="lab", service_account_name="ada")).user == "lab/ada"


def test_deadlines_are_limits_that_kubernetes_keeps() -> None:
    gang = only(pod("a", active_deadline_seconds=60))
    assert (gang.limit, gang.bounded) == (60_000, True)
    job = owner("j", active_deadline_seconds=30)
    gang = only(pod("a", owner=job, active_deadline_seconds=60), job)
    assert (gang.limit, gang.bounded) == (30_000, True)
    gang = only(pod("a", active_deadline_seconds=60, annotations={names.DURATION: "10"}))
    assert (gang.limit, gang.bounded) == (10_000, False)
    gang = only(pod("a", active_deadline_seconds=60, annotations={names.DURATION: "0"}))
    assert gang.limit == 60_000
    two = [pod("a", labels={GROUP: "g", SIZE: "2"}, active_deadline_seconds=60)]
    two.append(pod("b", labels={GROUP: "g", SIZE: "2"}))
    assert only(*two).limit is None, "one of them has no end"


def test_constraints_are_read_and_wrong_ones_refuse_the_gang() -> None:
    gang = only(pod("a", annotations={names.CONSTRAINTS: '{"properties": ["gpu"]}'}))
    assert gang.constraint is not None and gang.constraint.values == ("gpu",)
    for text in ("gpu", '{"near": ["x"]}', "[" * 10_000):
        gang = only(pod("a", annotations={names.CONSTRAINTS: text}))
        assert gang.fault is not None and gang.fault.code is Code.INVALID_ANNOTATION
        assert names.CONSTRAINTS in str(gang.fault["error"]) and not gang.is_ready


def test_an_unknown_policy_refuses_the_gang() -> None:
    fault = only(pod("a", annotations={names.POLICY: "nearest"})).fault
    assert fault is not None and fault.code is Code.INVALID_ANNOTATION and "nearest" in str(fault["error"])


def test_a_gang_was_submitted_with_the_oldest_pod_that_waits_or_with_its_group_if_that_came_later() -> None:
    pods = [pod("a", field="g", age=10), pod("b", field="g", age=60)]
    made = int((T0.timestamp() - 60) * 1000)
    assert only(*pods, group("g", 2)).submit == made
    assert only(*pods, group("g", 2, created=T0 - timedelta(hours=1))).submit == made
    assert only(*pods, group("g", 2, created=T0)).submit == int(T0.timestamp() * 1000)


def test_what_a_device_must_be_is_read_from_all_that_say_it() -> None:
    pods = [
        pod("a", labels={GROUP: "g"}, annotations={SIZE: "2", names.REQUIRE_BACKEND: "sim"}),
        pod("b", labels={GROUP: "g"}, annotations={SIZE: "2", f"{names.AT_LEAST}qubits": " 20 "}),
    ]
    gang = only(*pods)
    assert gang.device_terms == (DeviceTerm("backend", "sim"), DeviceTerm("qubits", "20", ">="))
    assert gang.warnings == () and gang.fault is None


def test_a_term_that_no_device_is_asked_for_with_is_warned_of() -> None:
    gang = only(pod("a", annotations={f"{names.REQUIRE}vendor": "ibm"}))
    assert gang.warnings == (Reason.of(Code.REQUIRE_WITHOUT_DEVICE, keys=("vendor=ibm",)),)


def test_devices_are_shared_or_per_pod() -> None:
    assert only(pod("a", annotations={names.DEVICES: "per-pod"})).per_pod_devices
    fault = only(pod("a", annotations={names.DEVICES: "each"})).fault
    assert fault == Reason.of(Code.INVALID_DEVICES, key=names.DEVICES, value="each")


def test_more_terms_than_anybody_needs_are_refused() -> None:
    many = {f"{names.REQUIRE}a{i}": "x" for i in range(100)}
    assert only(pod("a", annotations=many)).fault == Reason.of(Code.TOO_MANY_TERMS, given=100, most=64)
