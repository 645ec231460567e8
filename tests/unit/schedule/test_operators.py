"""Gangs of operators' custom objects start whole or wait whole, in whatever order their parts come."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.messages import text
from fluence.model.meta import OwnerReference
from fluence.model.operators import BY_KEY, OPERATORS, CustomOwner, read_owner
from fluence.model.owner import Job, Owner, StatefulSet
from fluence.model.pod import Pod, SchedulingGate, SchedulingGroup
from fluence.model.reason import Code
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from tests.unit.schedule.kit import SIZE, V136, V137, group, owner, pod

KINDS = frozenset(each.kind for each in OPERATORS)
OURS: dict[str, Any] = {"spec": {"schedulerName": "fluence"}}


def custom(kind: str, spec: Any, name: str = "x", *, namespace: str = "default", **meta: Any) -> CustomOwner:
    operator = next(each for each in OPERATORS if each.kind == kind)
    meta = {"name": name, "namespace": namespace, "uid": f"uid-{kind}-{name}", **meta}
    return read_owner(operator, json.dumps({"metadata": meta, "spec": spec}).encode())


def maker(name: str, pods: int, *, kind: type[Owner] = Job, uid: str = "") -> Owner:
    """A Job, or a StatefulSet as LeaderWorkerSet makes it."""
    if kind is Job:
        made = owner(name, parallelism=pods, completions=pods)
    else:
        made = owner(name, kind=kind, replicas=pods, pod_management_policy="Parallel")
    return replace(made, metadata=replace(made.metadata, uid=uid)) if uid else made


def below(child: Any, parent: Owner) -> Any:
    """A child that names its controller."""
    group = next((each[0] for each in BY_KEY if each[1] == parent.kind), "")
    version = f"{group}/v1" if group else {"Job": "batch/v1", "StatefulSet": "apps/v1"}[parent.kind]
    ref = OwnerReference(
        api_version=version,
        kind=parent.kind,
        name=parent.metadata.name,
        uid=parent.metadata.uid,
        controller=True,
    )
    return replace(child, metadata=replace(child.metadata, owner_references=[ref]))


def feed(*things: Any, follows: frozenset[str] = KINDS) -> Groups:
    groups = Groups()
    groups.follow(follows)
    for each in things:
        (groups.set_pod if isinstance(each, Pod) else groups.set_owner)(each)
    return groups


def only(groups: Groups) -> Gang:
    found = list(groups.gangs())
    assert len(found) == 1, [each.key for each in found]
    return found[0]


def sized(groups: Groups) -> dict[str, tuple[int, int]]:
    return {gang.key: (len(gang), gang.minimum) for gang in groups.gangs()}


# -- objects as their operators make them --------------------------------------------------------------------


def job_set(
    *jobs: tuple[str, int], attempt: str = "0", pods: bool = True, **spec: Any
) -> tuple[CustomOwner, list[Any]]:
    """A JobSet with these replicated jobs of one Job each, and what its controller makes."""
    top = custom("JobSet", {**_spec_of(*jobs), **spec})
    found: list[Any] = []
    for name, count in jobs:
        labels = {names.JOBSET_REPLICATED_JOB: name, names.JOBSET_RESTART: attempt}
        made = below(maker(f"x-{name}-0", count, uid=f"job-{name}-{attempt}"), top)
        found.append(made)
        for index in range(count if pods else 0):
            found.append(below(pod(f"x-{name}-0-{index}-{attempt}", labels=labels), made))
    return top, found


def _spec_of(*jobs: tuple[str, int]) -> dict[str, Any]:
    replicated = [
        {"name": name, "template": {"spec": {"parallelism": count, "completions": count, "template": OURS}}}
        for name, count in jobs
    ]
    return {"replicatedJobs": replicated}


def leader_worker_set(size: int, replicas: int, **spec: Any) -> tuple[CustomOwner, list[Any]]:
    template = {"size": size, "workerTemplate": OURS}
    top = custom("LeaderWorkerSet", {"leaderWorkerTemplate": template, "replicas": replicas, **spec})
    leaders = below(maker("x", replicas, kind=StatefulSet), top)
    found: list[Any] = [leaders]
    for replica in range(replicas):
        labels = {names.LWS_NAME: "x", names.LWS_GROUP_INDEX: str(replica)}
        leader = below(pod(f"x-{replica}", labels={**labels, names.LWS_WORKER_INDEX: "0"}), leaders)
        workers = maker(f"x-{replica}", size - 1, kind=StatefulSet)
        ref = OwnerReference(
            api_version="v1", kind="Pod", name=leader.metadata.name, uid=leader.metadata.uid, controller=True
        )
        workers = replace(workers, metadata=replace(workers.metadata, owner_references=[ref]))
        found += [leader, workers]
        for index in range(1, size):
            labelled = {**labels, names.LWS_WORKER_INDEX: str(index)}
            found.append(below(pod(f"x-{replica}-{index}", labels=labelled), workers))
    return top, found


def mpi_job(workers: int, **spec: Any) -> tuple[CustomOwner, list[Any]]:
    specs = {"Launcher": {"template": OURS}, "Worker": {"replicas": workers, "template": OURS}}
    top = custom("MPIJob", {"mpiReplicaSpecs": specs, **spec})
    launcher = below(maker("x-launcher", 1), top)
    role = {names.KUBEFLOW_JOB_ROLE: "launcher"}
    found: list[Any] = [launcher, below(pod("x-launcher-0", labels=role), launcher)]
    for index in range(workers):
        found.append(below(pod(f"x-worker-{index}", labels={names.KUBEFLOW_JOB_ROLE: "worker"}), top))
    return top, found


def ray_cluster(workers: int, **spec: Any) -> tuple[CustomOwner, list[Any]]:
    groups = [{"groupName": "w", "replicas": workers, "template": OURS}]
    top = custom("RayCluster", {"headGroupSpec": {"template": OURS}, "workerGroupSpecs": groups, **spec})
    found: list[Any] = [below(pod("x-head", labels={names.RAY_GROUP: "headgroup"}), top)]
    for index in range(workers):
        found.append(below(pod(f"x-w-{index}", labels={names.RAY_GROUP: "w"}), top))
    return top, found


WHOLE = {
    "JobSet": job_set(("head", 1), ("workers", 2)),
    "LeaderWorkerSet": leader_worker_set(3, 1),
    "MPIJob": mpi_job(2),
    "RayCluster": ray_cluster(2),
}


# -- whole or not at all -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [V136, V137])
def test_groups_that_the_job_controller_makes_do_not_split_a_job_set(source: str) -> None:
    """Its workers name a PodGroup of their own, its head does not."""
    top, parts = WHOLE["JobSet"]
    workers = next(each for each in parts if isinstance(each, Job) and each.pods == 2)
    size = 2 if source == V136 else None
    made = group("made", size, source=source, controller=workers.identity)
    field = SchedulingGroup(pod_group_name="made")
    things = [
        replace(each, spec=replace(each.spec, scheduling_group=field))
        if isinstance(each, Pod) and each.labels[names.JOBSET_REPLICATED_JOB] == "workers"
        else each
        for each in (top, *parts)
    ]
    for order in (things, things[::-1]):
        groups = feed(*order)
        assert not any(gang.is_ready for gang in groups.gangs()), "the PodGroup will come"
        groups.set_group(made)
        assert sized(groups) == {"default/jobset:x": (3, 3)}
    late = feed(*things[1:])
    late.set_group(made)
    assert not any(gang.is_ready for gang in late.gangs()), "the JobSet will come"


@pytest.mark.parametrize("kind", WHOLE)
def test_a_custom_object_is_one_gang_of_all_its_roles(kind: str) -> None:
    top, parts = WHOLE[kind]
    gang = only(feed(top, *parts))
    assert gang.is_ready and gang.minimum == gang.needed == len(gang.members) == 3
    assert gang.source == f"owner {kind}"
    assert gang.parts == frozenset(), "its size is known: it does not settle"


@pytest.mark.parametrize("kind", WHOLE)
def test_whatever_comes_first_nothing_starts_before_all_is_there(kind: str) -> None:
    top, parts = WHOLE[kind]
    things = [top, *parts]
    orders = list(itertools.permutations(things))[:: max(1, len(list(itertools.permutations(things))) // 500)]
    for order in orders:
        groups = feed()
        for count, each in enumerate(order, 1):
            (groups.set_pod if isinstance(each, Pod) else groups.set_owner)(each)
            ready = [gang for gang in groups.gangs() if gang.is_ready]
            assert not ready if count < len(order) else len(ready) == 1


@pytest.mark.parametrize("kind", WHOLE)
def test_a_rank_that_is_replaced_starts_alone_beside_those_that_run(kind: str) -> None:
    top, parts = WHOLE[kind]
    pods = [each for each in parts if isinstance(each, Pod)]
    running = [replace(each, spec=replace(each.spec, node_name="n")) for each in pods[1:]]
    others = [each for each in parts if not isinstance(each, Pod)]
    gang = only(feed(top, *others, pods[0], *running))
    assert gang.is_ready and gang.needed == 1


@pytest.mark.parametrize("kind", WHOLE)
def test_objects_of_another_namespace_never_count(kind: str) -> None:
    top, parts = WHOLE[kind]
    forged = replace(top, metadata=replace(top.metadata, namespace="other"))
    groups = feed(forged, *parts)
    assert not any(gang.is_ready for gang in groups.gangs())


def test_pods_are_their_jobs_while_the_operator_is_not_followed() -> None:
    _, parts = WHOLE["JobSet"]
    groups = feed(*parts, follows=frozenset())
    assert {gang.is_single for gang in groups.gangs()} == {True}
    groups.follow(KINDS)
    assert not any(gang.is_ready for gang in groups.gangs()), "the JobSet will come"


# -- stages, runs and restarts -------------------------------------------------------------------------------


def test_a_job_set_in_order_starts_one_replicated_job_after_the_other() -> None:
    top, parts = job_set(("head", 1), ("workers", 2), startupPolicy={"startupPolicyOrder": "InOrder"})
    head = [each for each in parts if "head" in each.metadata.name]
    groups = feed(top, *head)
    assert only(groups).is_ready, "the workers are made when the head is ready"
    groups = feed(top, *parts)
    workers = groups.gang("default/jobset:x/workers")
    assert workers is not None and workers.needed == 2 and workers.name == "x/workers"


def test_each_group_of_a_leader_worker_set_is_a_gang() -> None:
    top, parts = leader_worker_set(3, 2)
    assert sized(feed(top, *parts)) == {
        "default/leaderworkerset:x/0": (3, 3),
        "default/leaderworkerset:x/1": (3, 3),
    }


def test_a_group_of_an_earlier_revision_does_not_wait_for_workers_that_never_come() -> None:
    """The set was made larger, and a group below the partition of its update is created anew."""
    _, parts = leader_worker_set(3, 1)
    larger, _ = leader_worker_set(5, 1)
    note = {names.LWS_SIZE: "3"}
    made = [
        replace(each, metadata=replace(each.metadata, annotations=note)) if isinstance(each, Pod) else each
        for each in parts
    ]
    gang = only(feed(larger, *made))
    assert gang.is_ready and gang.minimum == 3
    assert only(feed(larger, *parts)).minimum == 5


def test_the_first_pod_of_a_job_with_a_domain_of_its_own_does_not_wait_for_the_others() -> None:
    _, parts = job_set(("workers", 3))
    top = custom(
        "JobSet", _spec_of(("workers", 3)), annotations={names.JOBSET_EXCLUSIVE: "topology.example/rack"}
    )
    pods = [
        replace(each, metadata=replace(each.metadata, labels={**each.labels, names.COMPLETION_INDEX: str(i)}))
        for i, each in enumerate(each for each in parts if isinstance(each, Pod))
    ]
    groups = feed(top, parts[0], *pods)
    assert sized(groups) == {
        "default/pod:x-workers-0-0-0": (1, 1),
        "default/jobset:x/followers": (2, 2),
    }


def test_workers_whose_leader_is_to_be_ready_are_a_gang_of_their_own() -> None:
    top, parts = leader_worker_set(3, 1, startupPolicy="LeaderReady")
    groups = feed(top, *parts)
    assert sized(groups) == {"default/pod:x-0": (1, 1), "default/leaderworkerset:x/0/workers": (2, 2)}


def test_a_launcher_that_waits_for_its_workers_is_no_part_of_their_gang() -> None:
    top, parts = mpi_job(2, launcherCreationPolicy="WaitForWorkersReady")
    workers = [each for each in parts if "worker" in each.metadata.name]
    gang = only(feed(top, *workers))
    assert gang.is_ready and gang.needed == 2


def test_a_restart_of_a_job_set_starts_together_while_some_of_the_last_run_is_left() -> None:
    top, before = job_set(("head", 1), ("workers", 2))
    _, after = job_set(("head", 1), ("workers", 2), attempt="1")
    old = [replace(each, spec=replace(each.spec, node_name="n")) for each in before if isinstance(each, Pod)]
    head = [each for each in after if "head" in each.metadata.name]
    groups = feed(top, *[each for each in before if not isinstance(each, Pod)], *old, *head)
    again = groups.gang("default/jobset:x@1")
    assert again is not None and again.needed == 3 and not again.is_ready
    for each in after:
        (groups.set_pod if isinstance(each, Pod) else groups.set_owner)(each)
    again = groups.gang("default/jobset:x@1")
    assert again is not None and again.is_ready and again.name == "x"


def test_the_jobs_of_a_train_job_are_a_gang_by_its_job_set() -> None:
    top, parts = job_set(("data", 1), ("node", 2))
    train = custom("TrainJob", {"suspend": False})
    gang = only(feed(train, below(top, train), *parts))
    assert gang.is_ready and gang.minimum == 3 and gang.source == "owner JobSet"
    held = custom("TrainJob", {"suspend": True})
    gang = only(feed(held, below(top, held), *parts))
    assert gang.missing is not None and gang.missing.code is Code.OWNER_SUSPENDED


def test_the_submitter_of_a_ray_job_is_no_part_of_its_cluster() -> None:
    top, parts = ray_cluster(1)
    job = custom("RayJob", {})
    submitter = below(maker("x-submit", 1), job)
    groups = feed(job, below(top, job), *parts, submitter, below(pod("submit"), submitter))
    assert sized(groups) == {"default/raycluster:x": (2, 2), "default/pod:submit": (1, 1)}


def test_the_executors_of_spark_are_found_by_the_name_of_their_application() -> None:
    executors = {"instances": 2, "schedulerName": "fluence"}
    top = custom("SparkApplication", {"driver": {"schedulerName": "fluence"}, "executor": executors})
    labels = {names.SPARK_APPLICATION: "x", names.SPARK_ROLE: "executor"}
    driver = below(pod("driver", labels={**labels, names.SPARK_ROLE: "driver"}), top)
    ref = OwnerReference(
        api_version="v1", kind="Pod", name="driver", uid="uid-default-driver", controller=True
    )
    made = [pod(f"exec-{index}", labels=labels) for index in range(2)]
    made = [replace(each, metadata=replace(each.metadata, owner_references=[ref])) for each in made]
    groups = feed(driver, *made, top)
    assert sized(groups) == {
        "default/pod:driver": (1, 1),
        "default/sparkapplication:x/executors": (2, 2),
    }
    groups.remove_owner(top)
    assert not any(gang.is_ready for gang in groups.gangs())


# -- what users and strangers write --------------------------------------------------------------------------


def test_a_declared_size_counts_and_1_says_that_it_is_no_gang() -> None:
    top, parts = WHOLE["RayCluster"]

    def with_size(size: str) -> Groups:
        noted = replace(top, metadata=replace(top.metadata, annotations={SIZE: size}))
        return feed(noted, *parts)

    assert only(with_size("2")).minimum == 2
    assert {gang.is_single for gang in with_size("1").gangs()} == {True}


def test_a_group_label_wins_over_the_custom_object() -> None:
    top, parts = WHOLE["RayCluster"]
    labels = {names.RAY_GROUP: "w", names.GROUP_LABEL: "mine"}
    groups = feed(top, *parts, below(pod("more", labels=labels), top))
    assert set(sized(groups)) == {"default/raycluster:x", "default/mine"}


def test_an_object_that_says_no_size_is_warned_of_with_what_to_add() -> None:
    top = custom("RayCluster", {"workerGroupSpecs": "none"})
    gang = only(feed(top, below(pod("a", labels={names.RAY_GROUP: "w"}), top)))
    assert gang.is_ready and gang.is_single
    (warning,) = gang.warnings
    assert warning.code is Code.OWNER_SIZE_UNKNOWN
    assert names.GROUP_LABEL in text(warning) and names.GROUP_SIZE in text(warning)


def test_an_absurd_size_is_refused_and_holds_nothing() -> None:
    _, parts = ray_cluster(1)
    groups = [{"groupName": "w", "replicas": 1 << 30, "numOfHosts": 1 << 30, "template": OURS}]
    absurd = custom("RayCluster", {"headGroupSpec": {"template": OURS}, "workerGroupSpecs": groups})
    gang = only(feed(absurd, *parts))
    assert gang.fault is not None and gang.fault.code is Code.OWNER_TOO_LARGE
    assert "RayCluster default/x" in text(gang.fault)


def test_a_cycle_of_owners_ends() -> None:
    one = custom("RayCluster", {"headGroupSpec": {}}, "one")
    other = below(custom("JobSet", {}, "other"), one)
    groups = feed(below(one, other), other, below(pod("a"), other))
    assert len(list(groups.gangs())) == 1


def test_a_change_of_the_custom_object_changes_the_gang() -> None:
    top, parts = ray_cluster(2)
    more, _ = ray_cluster(5)
    groups = feed(top, *parts)
    assert groups.set_owner(more) == {"default/raycluster:x"}
    assert only(groups).minimum == 6
    assert groups.set_owner(more) == ()


def test_roles_of_another_scheduler_are_not_waited_for() -> None:
    groups = [{"groupName": "w", "replicas": 2, "template": OURS}]
    top = custom("RayCluster", {"headGroupSpec": {"template": {}}, "workerGroupSpecs": groups})
    _, parts = ray_cluster(2)
    gang = only(feed(top, *parts[1:]))
    assert gang.is_ready and gang.minimum == 2


def test_pods_that_are_held_are_released_together() -> None:
    """Admission gave the pods our name and our gate. The templates of the object name another."""
    groups = [{"groupName": "w", "replicas": 2, "template": {}}]
    top = custom("RayCluster", {"headGroupSpec": {"template": {}}, "workerGroupSpecs": groups})
    gate = [SchedulingGate(name=names.GATE_FLUXQUEUE)]
    held = [
        below(
            pod(name, labels={names.RAY_GROUP: group, names.SEEN: names.SEEN_YES}, scheduling_gates=gate), top
        )
        for name, group in (("head", "headgroup"), ("w-0", "w"), ("w-1", "w"))
    ]
    assert not only(feed(top, *held[:2])).is_ready
    gang = only(feed(top, *held))
    assert gang.is_ready and gang.held and gang.needed == 3


# -- kinds that are not followed yet -------------------------------------------------------------------------


def looking(*things: Any) -> Groups:
    """What a running scheduler knows: a kind that it does not follow may have been installed just now."""
    groups = Groups(looks=True)
    for each in things:
        (groups.set_pod if isinstance(each, Pod) else groups.set_owner)(each)
    return groups


@pytest.mark.parametrize("kind", WHOLE)
def test_pods_of_a_kind_that_is_not_followed_yet_wait_until_it_is(kind: str) -> None:
    top, parts = WHOLE[kind]
    groups = looking(*parts)
    assert not any(gang.is_ready for gang in groups.gangs())
    assert set(groups.unfollowed.values()) == {kind}
    groups.follow(KINDS)
    assert not groups.unfollowed and not any(gang.is_ready for gang in groups.gangs()), "it will come"
    groups.set_owner(top)
    assert all(gang.is_ready and gang.minimum == len(gang) > 1 for gang in groups.gangs())


@pytest.mark.parametrize("kind", WHOLE)
def test_pods_of_an_object_that_cannot_be_read_start_with_a_warning(kind: str) -> None:
    _, parts = WHOLE[kind]
    groups = looking(*parts)
    changed = groups.give_up(groups.unfollowed)
    assert changed and not groups.unfollowed
    for gang in groups.gangs():
        assert gang.is_ready and gang.is_single
        (warning,) = gang.warnings
        assert warning.code is Code.OWNER_NOT_READ
        assert names.GROUP_LABEL in text(warning) and kind in text(warning)
    for each in parts:
        if isinstance(each, Pod):
            groups.remove_pod(each)
    assert not groups.unread, "what is gone is forgotten"


def test_an_object_that_was_given_up_is_read_when_its_kind_is_found_later() -> None:
    top, parts = WHOLE["RayCluster"]
    groups = looking(*parts)
    groups.give_up(groups.unfollowed)
    groups.follow(KINDS)
    groups.set_owner(top)
    assert sized(groups) == {"default/raycluster:x": (3, 3)}
    assert not only(groups).warnings


def test_a_size_on_the_pods_needs_no_object_of_an_operator() -> None:
    _, parts = WHOLE["RayCluster"]
    marks = {names.GROUP_LABEL: "g"}
    marked = [
        replace(
            each,
            metadata=replace(each.metadata, labels={**each.labels, **marks}, annotations={SIZE: "3"}),
        )
        for each in parts
    ]
    gang = only(looking(*marked))
    assert gang.is_ready and gang.minimum == 3 and not gang.warnings


def test_an_object_that_is_no_operators_is_not_waited_for() -> None:
    ref = OwnerReference(api_version="example.com/v1", kind="JobSet", name="x", uid="u", controller=True)
    one = pod("p")
    groups = looking(replace(one, metadata=replace(one.metadata, owner_references=[ref])))
    assert only(groups).is_ready and not groups.unfollowed
