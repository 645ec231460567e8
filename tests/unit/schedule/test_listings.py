"""A PodGroup that the scheduler made lists a gang, and decides nothing about it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.act.own_objects import is_sized, pod_group
from fluence.kube.gangs import Kai, PodGroups136, Volcano
from fluence.model.meta import OwnerReference
from fluence.model.owner import Group
from fluence.model.pod import Pod, SchedulingGroup
from fluence.model.reason import Code
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from tests.unit.schedule.kit import GROUP, SIZE, V136, owner, pod
from tests.unit.schedule.test_held_operators import held, made_of
from tests.unit.schedule.test_operators import WHOLE, below, custom, feed

NAME = "g.fluence"
MARKS: dict[str, Any] = {"labels": {GROUP: "g"}, "annotations": {SIZE: "2"}}


def listing(minimum: int = 2, uid: str = "u") -> Group:
    notes = {names.MADE_FOR: "default/g"}
    return Group(namespace="default", name=NAME, uid=uid, min_count=minimum, annotations=notes, source=V136)


def gang_of(groups: Groups) -> Gang:
    gang = groups.gang("default/g")
    assert gang is not None
    return gang


def test_the_label_decides_and_the_pod_group_is_not_waited_for() -> None:
    groups = Groups(native=True)
    groups.set_pod(pod("a", field=NAME, **MARKS))
    assert gang_of(groups).missing is not None, "one of two"
    groups.set_pod(pod("b", field=NAME, **MARKS))
    gang = gang_of(groups)
    assert gang.is_ready and gang.minimum == 2 and gang.group is None
    assert gang.listed_as == NAME and gang.listing is None and is_sized(gang)


def test_the_pod_group_that_lists_a_gang_does_not_size_it() -> None:
    groups = Groups(native=True)
    for name in ("a", "b"):
        groups.set_pod(pod(name, field=NAME, **MARKS))
    assert groups.set_group(listing(minimum=7)) == ()
    gang = gang_of(groups)
    assert gang.is_ready and gang.minimum == 2 and gang.listing is not None
    assert groups.remove_group(listing(uid="another")) == ()
    assert gang_of(groups).listing is not None
    groups.remove_group(listing())
    assert gang_of(groups).listing is None


def test_a_users_own_pod_group_counts_as_ever() -> None:
    groups = Groups(native=True)
    own = Group(namespace="default", name="g", uid="own", min_count=3, source=V136)
    groups.set_group(own)
    groups.set_pod(pod("a", field=NAME, **MARKS))
    gang = gang_of(groups)
    assert gang.group is own and gang.minimum == 3 and gang.listed_as is None


def test_a_pod_group_of_another_namespace_lists_nothing_here() -> None:
    """Whatever gang it says that it was made for."""
    groups = Groups(native=True)
    for name in ("a", "b"):
        groups.set_pod(pod(name, field=NAME, **MARKS))
    groups.set_group(replace(listing(minimum=7), namespace="other"))
    gang = gang_of(groups)
    assert (gang.listed_as, gang.listing, gang.shown_as, gang.minimum) == (NAME, None, None, 2)


def test_a_field_without_the_label_that_it_was_made_from_is_a_field() -> None:
    groups = Groups(native=True)
    groups.set_pod(pod("a", field=NAME))
    gang = groups.gang(f"default/{NAME}")
    assert gang is not None and gang.missing is not None
    assert gang.missing.code is Code.POD_GROUP_NOT_SEEN and gang.listed_as is None


def test_a_pod_group_is_made_when_the_size_is_known() -> None:
    groups = Groups(native=True)
    job = owner("j", parallelism=2, completions=2)
    groups.set_pod(pod("a", field=NAME, labels={GROUP: "g"}, owner=job))
    assert not is_sized(gang_of(groups)), "its owner has not been seen"


def test_a_pod_group_is_owned_by_the_owners_of_the_pods_or_by_the_pods() -> None:
    job = owner("j", parallelism=2, completions=2)
    groups = Groups(native=True)
    groups.set_owner(job)
    groups.set_pod(pod("a", field=NAME, owner=job, **MARKS))
    groups.set_pod(pod("b", field=NAME, owner=job, **MARKS))
    groups.set_pod(pod("c", field=NAME, **MARKS))
    body = pod_group(PodGroups136(), gang_of(groups), NAME)
    meta = body["metadata"]
    assert isinstance(meta, dict)
    assert meta["name"] == NAME and meta["annotations"] == {names.MADE_FOR: "default/g"}
    assert [(each["kind"], each["name"]) for each in meta["ownerReferences"]] == [("Job", "j"), ("Pod", "c")]
    assert not any(each.get("controller") for each in meta["ownerReferences"])
    assert body["spec"] == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "disruptionMode": "PodGroup",  # kube-scheduler does not preempt one of them alone
    }


# -- gangs of owners -----------------------------------------------------------------------------------------

MARKED = {
    "JobSet": ({names.JOBSET_NAME: "x"}, "jobset.x.fluence"),
    "RayCluster": ({names.RAY_CLUSTER: "x"}, "raycluster.x.fluence"),
    "LeaderWorkerSet": ({}, "leaderworkerset.x.0.fluence"),  # its labels are those that it is known by
    "MPIJob": (
        {names.KUBEFLOW_OPERATOR: "mpi-operator", names.KUBEFLOW_JOB_NAME: "x"},
        "mpijob.x.fluence",
    ),
}


def marked(each: Any, labels: dict[str, str], name: str) -> Any:
    """A pod as admission leaves it."""
    if not isinstance(each, Pod):
        return each
    meta = replace(each.metadata, labels={**each.labels, **labels})
    return replace(each, metadata=meta, spec=replace(each.spec, scheduling_group=SchedulingGroup(name)))


@pytest.mark.parametrize("kind", MARKED)
def test_the_gang_of_an_operator_is_listed_and_goes_with_its_object(kind: str) -> None:
    (top, parts), (labels, name) = WHOLE[kind], MARKED[kind]
    for order in ((top, *parts), (*reversed(parts), top)):
        groups = feed(*(marked(each, labels, name) for each in order))
        (gang,) = groups.gangs()
        assert gang.is_ready and gang.minimum == 3
        assert gang.listed_as == name and [each.uid for each in gang.workloads] == [top.metadata.uid]
        notes = {names.MADE_FOR: gang.key}
        made = Group(namespace="default", name=name, uid="u", min_count=3, annotations=notes, source=V136)
        groups.set_group(made)
        (gang,) = groups.gangs()
        assert gang.listing is made and gang.group is None


def test_the_executors_of_spark_are_listed_and_its_driver_is_not() -> None:
    parts = {"schedulerName": "fluence"}
    top = custom("SparkApplication", {"driver": parts, "executor": {**parts, "instances": 2}})
    labels = {names.SPARK_APPLICATION: "x"}
    driver = below(pod("x-driver", labels={**labels, names.SPARK_ROLE: "driver"}), top)
    ref = OwnerReference(api_version="v1", kind="Pod", name="x-driver", uid="d", controller=True)
    name = "sparkapplication.x.executors.fluence"
    executors = [
        pod(f"x-exec-{i}", field=name, labels={**labels, names.SPARK_ROLE: "executor"}) for i in (0, 1)
    ]
    owned = [replace(each, metadata=replace(each.metadata, owner_references=[ref])) for each in executors]
    found = {gang.key: gang.listed_as for gang in feed(top, driver, *owned).gangs()}
    assert found == {"default/pod:x-driver": None, "default/sparkapplication:x/executors": name}


@pytest.mark.parametrize("kind", ["TrainJob", "RayJob"])
def test_a_held_object_is_listed_by_what_it_makes(kind: str) -> None:
    """Its pods know no more."""
    top = held(kind, suspend=False)
    labels, name = MARKED["JobSet" if kind == "TrainJob" else "RayCluster"]
    groups = feed(top, *(marked(each, labels, name) for each in made_of(top)))
    (gang,) = groups.gangs()
    assert (gang.key, gang.listed_as) == (f"default/{kind.lower()}:x", name)
    assert [each.kind for each in gang.workloads] == [kind]


def test_a_job_with_a_size_is_listed_under_its_name() -> None:
    job = owner("j", parallelism=2, completions=2)
    groups = feed(
        job, *(pod(f"p{i}", owner=job, field="job.j.fluence", annotations={SIZE: "2"}) for i in (0, 1))
    )
    (gang,) = groups.gangs()
    assert (gang.key, gang.listed_as) == ("default/job:j", "job.j.fluence")
    assert [each.kind for each in gang.workloads] == ["Job"]


@pytest.mark.parametrize(("label", "listed"), [("g", NAME), ("h", None), (None, None)])
def test_a_pod_whose_job_names_another_group_now_waits_for_no_pod_group(
    label: str | None, listed: str | None
) -> None:
    """Its template notes the label that the Job had when it was created."""
    job = owner("j", parallelism=2, completions=2)
    labels = {GROUP: label} if label else {}
    job = replace(job, metadata=replace(job.metadata, labels=labels, annotations={SIZE: "2"}))
    notes = {names.LISTED_AS: "g"}
    groups = feed(job, *(pod(f"p{i}", owner=job, field=NAME, annotations=notes) for i in (0, 1)))
    (gang,) = groups.gangs()
    assert gang.key == (f"default/{label}" if label else "default/job:j")
    assert gang.is_ready and gang.listed_as == listed


def test_a_held_job_is_listed_under_its_name() -> None:
    job = owner("j", parallelism=2, completions=2)
    notes = {"labels": {names.SEEN: names.SEEN_YES}, "annotations": {names.LISTED_AS: names.LISTED_AS_JOB}}
    made: dict[str, Any] = {"owner": job, "field": "job.j.fluence", **notes}
    (gang,) = feed(job, *(pod(f"p{i}", **made) for i in (0, 1))).gangs()
    assert (gang.key, gang.listed_as) == ("default/job:j", "job.j.fluence")


def test_a_stage_of_an_operator_is_not_listed_and_does_not_wait() -> None:
    """Its pods name the PodGroup of the first stage: what a pod is a stage of, it does not know."""
    top, parts = WHOLE["JobSet"]
    single = [marked(each, {names.JOBSET_NAME: "x"}, "jobset.x.fluence") for each in parts]
    groups = feed(replace(top, sizes=None), *single)
    assert all(gang.is_ready and gang.listed_as is None for gang in groups.gangs())


def test_a_field_of_another_object_is_a_field() -> None:
    groups = feed(pod("a", field="raycluster.other.fluence", labels={names.RAY_CLUSTER: "x"}))
    (gang,) = groups.gangs()
    assert gang.missing is not None and gang.missing.code is Code.POD_GROUP_NOT_SEEN


def test_the_reference_is_to_the_version_that_the_pods_name() -> None:
    top, parts = WHOLE["RayCluster"]
    groups = feed(top, *(marked(each, *MARKED["RayCluster"]) for each in parts))
    (gang,) = groups.gangs()
    assert gang.workloads == (
        OwnerReference(
            api_version="ray.io/v1", kind="RayCluster", name="x", uid=top.metadata.uid, controller=True
        ),
    )


# -- gangs of other systems ----------------------------------------------------------------------------------

OTHERS: dict[str, dict[str, Any]] = {
    "kueue": {"labels": {names.KUEUE_GROUP: "x"}, "annotations": {names.KUEUE_SIZE: "2"}},
    "volcano": {"annotations": {names.VOLCANO_GROUPS[0]: "x"}},
    "kai": {"labels": {names.KAI_GROUP: "x"}},
    "yunikorn": {
        "labels": {"applicationId": "x"},
        "annotations": {
            names.YUNIKORN_TASK_GROUP: "work",
            names.YUNIKORN_TASK_GROUPS: '[{"name": "work", "minMember": 2}]',
        },
    },
}
SOURCES = {"volcano": Volcano.resource.api_version, "kai": Kai.resource.api_version}


@pytest.mark.parametrize("system", OTHERS)
def test_a_gang_of_another_system_is_listed_beside_its_own_pod_group(system: str) -> None:
    name = f"{system}.x.fluence"
    groups = Groups(native=True)
    if system in SOURCES:
        groups.set_group(Group(namespace="default", name="x", uid="own", min_count=2, source=SOURCES[system]))
    for member in ("a", "b"):
        groups.set_pod(pod(member, field=name, **OTHERS[system]))
    (gang,) = groups.gangs()
    assert (gang.key, gang.minimum, gang.is_ready) == (f"default/{system}:x", 2, True)
    assert (gang.group is not None) == (system in SOURCES)
    assert gang.listed_as == name and gang.shown_as is None and is_sized(gang)
    notes = {names.MADE_FOR: gang.key}
    made = Group(namespace="default", name=name, uid="u", min_count=2, annotations=notes, source=V136)
    groups.set_group(made)
    (gang,) = groups.gangs()
    assert gang.listing is gang.shown_as is made and gang.minimum == 2


def test_a_gang_is_listed_though_some_of_its_pods_are_older_than_the_rule() -> None:
    groups = Groups(native=True)
    for name, field in (("a", None), ("b", NAME), ("c", None)):
        groups.set_pod(pod(name, field=field, **MARKS))
    assert gang_of(groups).listed_as == NAME
