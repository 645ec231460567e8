"""Objects of operators that admission held: planned as a whole before they have pods, and released once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.grant import release_note
from fluence.model.meta import ObjectMeta
from fluence.model.operators import OPERATORS, CustomOwner, read_owner, with_sizes
from fluence.model.owner import Job, Owner, OwnerSpec
from fluence.model.pod import Pod, SchedulingGate
from fluence.model.reason import Code
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import BindOutcome, Changed, ReleaseFinished, ReleaseResult
from fluence.schedule.queueing.placeholder import reference
from fluence.schedule.queueing.placeholders import MADE_WITHIN, MOST_PODS, PATIENCE
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held import NOW, SEEN, binds, driver, free, node

KINDS = (
    "JobSet",
    "RayCluster",
    "RayJob",
    "MPIJob",
    "PyTorchJob",
    "TFJob",
    "JAXJob",
    "PaddleJob",
    "XGBoostJob",
    "TrainJob",
)
FIELDS = {"PyTorchJob": "pytorchReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs"}


def template(cpu: object = "1", **more: Any) -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {"metadata": more.pop("metadata", {}), "spec": {"containers": [container], **more}}


def spec_of(kind: str, head: dict[str, Any], worker: dict[str, Any], workers: int) -> dict[str, Any]:
    """An object with a head and workers, as its users write it."""
    if kind == "JobSet":
        jobs = (("head", 1, head), ("worker", workers, worker))
        replicated = [
            {"name": name, "template": {"spec": {"parallelism": n, "completions": n, "template": each}}}
            for name, n, each in jobs
        ]
        return {"replicatedJobs": replicated}
    if kind in ("RayCluster", "RayJob"):
        group = {"groupName": "worker", "replicas": workers, "template": worker}
        cluster = {"headGroupSpec": {"template": head}, "workerGroupSpecs": [group]}
        return cluster if kind == "RayCluster" else {"rayClusterSpec": cluster}
    first = "Launcher" if kind == "MPIJob" else "Master"
    field = FIELDS.get(kind, f"{kind.removesuffix('Job').lower()}ReplicaSpecs")
    return {field: {first: {"template": head}, "Worker": {"replicas": workers, "template": worker}}}


def held(
    kind: str = "JobSet", name: str = "x", workers: int = 2, *, cpu: object = "1", **more: Any
) -> CustomOwner:
    """An object as admission leaves it. A TrainJob comes with what its JobSet says of its pods."""
    if kind == "TrainJob":
        top, made = train_job(name, workers, cpu=cpu, **more)
        return with_sizes(top, made)
    operator = next(each for each in OPERATORS if each.kind == kind)
    made = more.pop("template", template(cpu))
    spec = {**spec_of(kind, made, made, workers), **more.pop("spec", {})}
    inner = spec
    for step in operator.suspend[:-1]:
        inner = inner.setdefault(step, {})
    inner[operator.suspend[-1]] = more.pop("suspend", True)
    meta = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{kind}-{name}",
        "labels": more.pop("labels", SEEN),
        "generation": 1,
        "creationTimestamp": kit.T0.isoformat(),
        **more,
    }
    return read_owner(operator, json.dumps({"metadata": meta, "spec": spec}).encode())


def train_job(name: str = "x", workers: int = 2, **more: Any) -> tuple[CustomOwner, CustomOwner]:
    """A held TrainJob, and the JobSet that Kubeflow Trainer makes of it, which is suspended with it."""
    operator = next(each for each in OPERATORS if each.kind == "TrainJob")
    cpu, spec = more.pop("cpu", "1"), more.pop("spec", {})
    suspend, labels = more.pop("suspend", True), more.pop("labels", SEEN)
    meta: Any = {"name": name, "namespace": "default", "uid": f"uid-TrainJob-{name}", "labels": labels}
    meta |= {"generation": 1, "creationTimestamp": kit.T0.isoformat(), **more}
    body = {"metadata": meta, "spec": {"runtimeRef": {"name": "torch"}, "suspend": suspend, **spec}}
    top = read_owner(operator, json.dumps(body).encode())
    ref = {"apiVersion": top.api_version, "kind": "TrainJob", "name": name}
    owners = [{**ref, "uid": top.metadata.uid, "controller": True}]
    made = held("JobSet", name, workers, cpu=cpu, suspend=suspend, labels={}, ownerReferences=owners)
    return top, made


def released(owner: CustomOwner, decisions: Decisions) -> CustomOwner:
    (release,) = decisions.releases
    found = release.carried_out(owner)
    assert isinstance(found, CustomOwner)
    return found


def made_of(owner: CustomOwner, cpu: str = "1") -> Iterator[Owner | Pod]:
    """What the controller of an object makes when it is not suspended: pods that admission gates."""
    assert owner.sizes is not None
    for role in owner.sizes.roles:
        if role.stage:
            continue
        maker: Owner = owner
        if owner.kind in ("JobSet", "TrainJob"):
            if owner.kind == "TrainJob":
                _, maker = train_job(owner.metadata.name, owner.pods - 1, suspend=owner.spec.suspend)
                yield maker
            meta = ObjectMeta(
                name=f"{owner.metadata.name}-{role.name}-0",
                namespace="default",
                uid=f"uid-job-{role.name}",
                owner_references=[reference(maker)],
            )
            maker = Job(metadata=meta, spec=OwnerSpec(parallelism=role.pods, completions=role.pods))
            yield maker
        elif owner.kind == "RayJob":
            cluster = held("RayCluster", "x-cluster", suspend=False)  # with the labels of the RayJob
            meta = replace(cluster.metadata, owner_references=[reference(owner)])
            maker = replace(cluster, metadata=meta)
            yield maker
        for index in range(role.pods):
            labels = {**SEEN, owner.operator.mark: role.name}
            name = f"{owner.metadata.name}-{role.name.lower()}-{index}"
            gates = [SchedulingGate(name=names.GATE_FLUXQUEUE)]
            pod = kit.pod(name, labels=labels, cpu=cpu, scheduling_gates=gates)
            yield replace(pod, metadata=replace(pod.metadata, owner_references=[reference(maker)]))


def following(*nodes: Any) -> Driver:
    found = driver(*nodes)
    found.groups.follow([each.kind for each in OPERATORS])
    return found


def feed(found: Driver, *things: Any) -> None:
    for each in things:
        found.handle(Changed(None, each))


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_object_is_released_with_its_nodes_and_its_pods_take_them(kind: str) -> None:
    found = following()
    top = held(kind)
    found.set_owner(top)
    first = found.cycle(NOW)
    (release,) = first.releases
    assert release.owner == top
    assert [index for index, _ in release.note.nodes] == [0, 1, 2]
    assert free(found) == 1000
    found.set_pod(kit.pod("greedy", cpu="2"))
    assert found.cycle(NOW + 1).binds == []  # what was granted is held
    top = released(top, first)
    found.set_owner(top)
    things = list(made_of(top))
    for each in things[:-1]:
        feed(found, each)
        assert found.cycle(NOW + 2).binds == []  # none before all of them are there
    feed(found, things[-1])
    placed = binds(found.cycle(NOW + 3))
    assert len(placed) == 3
    assert sorted(placed.values()) == sorted(place for _, place in release.note.nodes)
    assert not found.cycle(NOW + 4).releases


def test_the_pods_of_a_role_take_the_seats_of_that_role() -> None:
    found = following(node("small", 1), node("big", 4))
    big = template("3")
    top = held(spec=spec_of("JobSet", template("1"), big, 1))
    found.set_owner(top)
    top = released(top, found.cycle(NOW))
    found.set_owner(top)
    things = list(made_of(top))
    assert isinstance(things[-1], Pod)
    things[-1] = kit_cpu(things[-1], "3")
    feed(found, *reversed(things))
    assert binds(found.cycle(NOW + 1)) == {"x-head-0": "small", "x-worker-0": "big"}


def kit_cpu(pod: Pod, cpu: str) -> Pod:
    containers = kit.pod("other", cpu=cpu).spec.containers
    return replace(pod, spec=replace(pod.spec, containers=containers))


@pytest.mark.parametrize("kind", KINDS)
def test_a_held_object_waits_as_a_whole(kind: str) -> None:
    found = following(node("n0", 3))
    busy = kit.pod("busy", node="n0", phase="Running", scheduler="other")
    found.set_pod(busy)
    found.set_owner(held(kind))
    decisions = found.cycle(NOW)
    assert not decisions.releases and not decisions.binds
    (waiting,) = decisions.waiting
    assert (waiting.gang.key, waiting.gang.minimum, waiting.gang.held) == (
        *(f"default/{kind.lower()}:x", 3, True),
    )
    found.remove_pod(busy)
    assert len(found.cycle(NOW + 1).releases) == 1


def test_two_held_objects_are_released_one_after_the_other() -> None:
    found = following(node("n0", 3))
    first, second = held(name="a"), held(name="b")
    feed(found, first, second)
    decisions = found.cycle(NOW)
    assert [each.owner.metadata.name for each in decisions.releases] == ["a"]
    found.handle(Changed(first, None))
    assert [each.owner.metadata.name for each in found.cycle(NOW + 1).releases] == ["b"]


@pytest.mark.parametrize("kind", ["JobSet", "RayCluster"])
def test_a_fresh_process_finds_the_seats_by_the_status(kind: str) -> None:
    before = following()
    top = held(kind)
    before.set_owner(top)
    decisions = before.cycle(NOW)
    top = released(top, decisions)
    assert release_note(top) == decisions.releases[0].note
    things = list(made_of(top))
    for there in range(len(things) + 1):
        found = following()
        feed(found, kit.pod("greedy", cpu="2"), top, *things[:there])
        taken = binds(found.cycle(NOW))
        assert "greedy" not in taken
        feed(found, *things[there:])
        taken |= binds(found.cycle(NOW + 1))
        placed = {name: place for name, place in taken.items() if name != "greedy"}
        granted = sorted(place for _, place in decisions.releases[0].note.nodes)
        assert sorted(placed.values()) == granted


def test_a_status_that_users_may_write_grants_nothing() -> None:
    """Kubeflow's roles let users write it: after a restart the pods are placed together again."""
    before = following()
    top = held("MPIJob")
    before.set_owner(top)
    top = released(top, before.cycle(NOW))
    body = {
        "metadata": {"name": "x", "namespace": "default", "uid": "u", "generation": 2, "labels": SEEN},
        "status": {"conditions": [{"type": names.GRANTED, "status": "True", "message": "{}"}]},
    }
    assert read_owner(top.operator, json.dumps(body).encode()).status.conditions is None
    found = following(node("n0", 3))
    bare = replace(top, status=type(top.status)())
    feed(found, bare)
    found.cycle(NOW)
    assert free(found) == 3000
    things = list(made_of(bare))
    feed(found, *things[:-1])
    assert not found.cycle(NOW + 1).binds
    feed(found, things[-1])
    assert len(binds(found.cycle(NOW + 2))) == 3


def test_seats_of_pods_that_do_not_come_are_given_up() -> None:
    found = following(node("n0", 3))
    top = held()
    found.set_owner(top)
    found.set_owner(released(top, found.cycle(NOW)))
    found.cycle(NOW + 1)
    assert free(found) == 0
    assert found.next_due() == NOW + 1 + PATIENCE
    found.cycle(NOW + 1 + PATIENCE)
    assert free(found) == 3000


def test_an_object_that_is_unsuspended_by_hand_has_its_pods_in_the_queue() -> None:
    found = following(node("n0", 3))
    busy = kit.pod("busy", node="n0", phase="Running", scheduler="other")
    found.set_pod(busy)
    top = held()
    found.set_owner(top)
    found.cycle(NOW)
    top = replace(top, metadata=replace(top.metadata, generation=2), spec=replace(top.spec, suspend=False))
    found.set_owner(top)
    things = list(made_of(top))
    feed(found, *things)
    assert not found.cycle(NOW + 1).binds
    found.remove_pod(busy)
    assert len(binds(found.cycle(NOW + 2))) == 3


def test_an_object_that_is_suspended_again_waits_for_its_pods_and_is_planned_again() -> None:
    found = following()
    top = held()
    found.set_owner(top)
    top = released(top, found.cycle(NOW))
    things = list(made_of(top))
    feed(found, top, *things)
    found.cycle(NOW + 1)
    meta = replace(top.metadata, generation=3)
    found.set_owner(replace(top, metadata=meta, spec=replace(top.spec, suspend=True)))
    assert not found.cycle(NOW + 2).releases
    for each in things:
        if isinstance(each, Pod):
            found.remove_pod(each)
    (release,) = found.cycle(NOW + 3).releases
    assert release.note.generation == 3


@pytest.mark.parametrize("kind", ["JobSet", "MPIJob"])
def test_an_object_that_was_released_and_suspended_again_unseen_is_planned_again(kind: str) -> None:
    found, top = following(), held(kind)
    found.set_owner(top)
    decisions = found.cycle(NOW)
    found.handle(ReleaseFinished(ReleaseResult(decisions.releases[0], BindOutcome.BOUND)), now=NOW)
    top = released(top, decisions)
    meta = replace(top.metadata, generation=3)
    found.set_owner(replace(top, metadata=meta, spec=replace(top.spec, suspend=True)))
    (release,) = found.cycle(NOW + 1000).releases
    assert release.note.generation == 3


def test_an_object_that_changes_while_it_waits_is_planned_again() -> None:
    found = following(node("n0", 4))
    busy = kit.pod("busy", cpu="4", node="n0", phase="Running", scheduler="other")
    feed(found, busy, held())
    assert not found.cycle(NOW).releases
    larger = held(workers=3)
    found.set_owner(replace(larger, metadata=replace(larger.metadata, generation=2)))
    found.remove_pod(busy)
    (release,) = found.cycle(NOW + 1).releases
    assert len(release.note.nodes) == 4
    assert release.note.generation == 2


def test_a_job_set_in_order_is_planned_by_its_first_stage() -> None:
    """The second is created when the first is ready, so nothing may wait for it."""
    found = following(node("n0", 1))
    top = held(spec={"startupPolicy": {"startupPolicyOrder": "InOrder"}})
    found.set_owner(top)
    (release,) = (decisions := found.cycle(NOW)).releases
    assert len(release.note.nodes) == 1
    top = released(top, decisions)
    feed(found, top, *made_of(top))
    assert binds(found.cycle(NOW + 1)) == {"x-head-0": "n0"}


@pytest.mark.parametrize(
    "spec",
    [
        {"replicatedJobs": []},
        {"replicatedJobs": [{"name": "a", "template": {"spec": {"parallelism": 0}}}]},
        {"replicatedJobs": [{"name": "a", "replicas": "many"}]},
        spec_of("JobSet", template("much"), template(), 1),
        spec_of("JobSet", template(schedulerName="other"), template(schedulerName="other"), 1),
    ],
    ids=["nothing", "no pods", "no number", "no quantity", "another scheduler"],
)
def test_an_object_that_says_nothing_of_its_first_pods_is_released_at_once(spec: Any) -> None:
    found = following()
    top = held(spec=spec)
    found.set_owner(top)
    (release,) = found.cycle(NOW).releases
    assert release.note.nodes == ()
    assert not found.cycle(NOW + 1).releases  # once
    found.handle(ReleaseFinished(ReleaseResult(release, BindOutcome.AGAIN)), now=NOW + 1)
    assert len(found.cycle(NOW + 1000).releases) == 1


def test_quantities_may_be_numbers() -> None:
    found = following(node("n0", 3))
    found.set_owner(held(cpu=1))
    assert len(found.cycle(NOW).releases) == 1
    assert free(found) == 0


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {}},
        {"spec": {"managedBy": "kueue.x-k8s.io/multikueue"}},
        {"annotations": {names.CANCELLED: "2026-09-01T12:00:00Z"}},
    ],
    ids=["by its user", "managed elsewhere", "cancelled"],
)
def test_an_object_that_we_do_not_hold_stays_suspended(more: Any) -> None:
    found = following()
    found.set_owner(held(**more))
    assert not found.cycle(NOW).releases
    assert free(found) == 4000


@pytest.mark.parametrize(
    "workers,code", [(600, Code.CLUSTER_HOLDS_FEWER), (MOST_PODS * 20, Code.OWNER_TOO_LARGE)]
)
def test_a_wide_object_is_judged_by_arithmetic(workers: int, code: Code) -> None:
    found = following()
    found.set_owner(held(workers=workers))
    (waiting,) = found.cycle(NOW).waiting
    assert waiting.gang.fault is not None and waiting.gang.fault.code is code
    assert len(waiting.gang.members) == 1


def test_a_pod_of_another_namespace_takes_no_seat() -> None:
    found = following(node("n0", 3))
    top = held()
    found.set_owner(top)
    top = released(top, found.cycle(NOW))
    found.set_owner(top)
    for each in made_of(top):
        moved = replace(each, metadata=replace(each.metadata, namespace="other"))
        feed(found, moved)
    decisions = found.cycle(NOW + 1)
    assert not decisions.binds
    assert free(found) == 0


def test_an_object_is_gone_with_all_that_stood_for_its_pods() -> None:
    found = following()
    top = held()
    found.set_owner(top)
    found.cycle(NOW)
    found.handle(Changed(top, None))
    found.cycle(NOW + 1)
    assert free(found) == 4000
    assert not list(found.groups.gangs())
    assert found.next_due() is None


def test_a_group_label_joins_objects_that_are_held() -> None:
    labelled = template(metadata={"labels": {names.GROUP_LABEL: "g"}, "annotations": {names.GROUP_SIZE: "6"}})
    found = following(node("n0", 6))
    feed(found, held(name="a", template=labelled))
    assert not found.cycle(NOW).releases
    feed(found, held(name="b", template=labelled))
    assert [each.owner.metadata.name for each in found.cycle(NOW + 1).releases] == ["a", "b"]


# -- a TrainJob, whose pods its JobSet knows -----------------------------------------------------------------


@pytest.mark.parametrize("first", ["TrainJob", "JobSet"])
def test_a_train_job_is_planned_by_the_job_set_that_is_suspended_with_it(first: str) -> None:
    found = following()
    top, made = train_job()
    assert top.sizes is None
    feed(found, *((top, made) if first == "TrainJob" else (made, top)))
    decisions = found.cycle(NOW)
    (release,) = decisions.releases
    assert release.owner.identity == top.identity
    assert len(release.note.nodes) == 3
    assert not found.cycle(NOW + 1).releases
    top = released(top, decisions)
    things = [each for each in made_of(with_sizes(top, made)) if each != made]
    feed(found, top, *things[:-1])
    assert not found.cycle(NOW + 2).binds
    feed(found, things[-1])
    assert len(binds(found.cycle(NOW + 3))) == 3


def test_a_train_job_waits_for_its_job_set_and_not_without_end() -> None:
    found = following()
    top, made = train_job()
    found.set_owner(top)
    assert not found.cycle(NOW).releases
    assert found.next_due() == NOW + MADE_WITHIN
    (release,) = found.cycle(NOW + MADE_WITHIN).releases
    assert release.note.nodes == ()
    found = following(node("n0", 2))
    feed(found, top)
    assert not found.cycle(NOW).releases
    feed(found, made)
    decisions = found.cycle(NOW + MADE_WITHIN)
    assert not decisions.releases  # it is known by now that there is no room
    (waiting,) = decisions.waiting
    assert (waiting.gang.key, waiting.gang.minimum) == ("default/trainjob:x", 3)


def test_a_train_job_is_planned_again_when_its_job_set_changes_or_is_deleted() -> None:
    found = following(node("n0", 3))
    top, made = train_job(workers=5)
    feed(found, top, made)
    assert not found.cycle(NOW).releases
    found.handle(Changed(made, None))
    assert not found.cycle(NOW + 1).releases
    assert not list(found.groups.gangs())
    _, smaller = train_job(workers=2)
    feed(found, smaller)
    (release,) = found.cycle(NOW + 2).releases
    assert len(release.note.nodes) == 3


@pytest.mark.parametrize("change", ["name", "owner", "namespace", "label"])
def test_a_job_set_that_is_not_its_own_says_nothing_of_a_train_job(change: str) -> None:
    """Nor is a JobSet held by itself that a TrainJob controls, whatever its labels say."""
    found = following()
    top, made = train_job()
    if change == "name":
        made = replace(made, metadata=replace(made.metadata, name="y"))
    elif change == "owner":
        made = replace(made, metadata=replace(made.metadata, owner_references=[reference(held("JobSet"))]))
    elif change == "namespace":
        made = replace(made, metadata=replace(made.metadata, namespace="other"))
    else:
        made = held("JobSet", labels=SEEN, ownerReferences=[owned_by(top)])
    feed(found, top, made)
    releases = found.cycle(NOW).releases
    assert [each.owner.kind for each in releases] == (["TrainJob"] if change == "label" else [])


def owned_by(owner: CustomOwner) -> dict[str, Any]:
    ref = reference(owner)
    return {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "name": ref.name,
        "uid": ref.uid,
        "controller": True,
    }


def test_a_train_job_whose_runtime_names_another_scheduler_is_released_at_once() -> None:
    found = following()
    top, _ = train_job()
    theirs = template(schedulerName="other")
    made = held("JobSet", template=theirs, labels={}, ownerReferences=[owned_by(top)])
    feed(found, top, made)
    (release,) = found.cycle(NOW).releases
    assert release.note.nodes == ()


def test_a_fault_elsewhere_leaves_a_train_job_with_its_size() -> None:
    """The state is built again from the objects, in whatever order they came."""
    found = following(node("n0", 2))
    top, made = train_job()
    feed(found, top, made)
    found.cycle(NOW)
    found.scheduler.start_over([top, made, node("n0", 3)], NOW + 1)
    found.scheduler.follow(frozenset(each.kind for each in OPERATORS))
    (release,) = found.cycle(NOW + 2).releases
    assert len(release.note.nodes) == 3


# -- preemption ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_is_preempted_is_suspended_again_and_keeps_its_place(kind: str) -> None:
    """It goes before one that was submitted after it, and is released once more as a whole."""
    found = following(node("n0", 3))
    low, later = held(kind), held(kind, "y", creationTimestamp=(kit.T0 + timedelta(seconds=1)).isoformat())
    found.set_owner(low)
    low = released(low, found.cycle(NOW))
    pods = [each for each in made_of(low) if isinstance(each, Pod)]
    feed(found, low, *(each for each in made_of(low) if not isinstance(each, Pod)), *pods)
    for bind in (each for some in found.cycle(NOW + 1).binds for each in some):
        found.set_pod(bind.carried_out(next(each for each in pods if each.metadata.uid == bind.uid)))
    feed(found, later)
    assert not found.cycle(NOW + 2).releases

    high = kit.pod("high", cpu="3", priority=1000)
    found.set_pod(high)
    (order,) = found.cycle(NOW + 3).preemptions
    assert [each.identity for each in order.owners] == [low.identity]
    assert {pod.metadata.uid for pod in order.pods} == {pod.metadata.uid for pod in pods}

    meta = replace(low.metadata, generation=3)
    low = replace(low, metadata=meta, spec=replace(low.spec, suspend=True))
    found.set_owner(low)
    for pod in pods:
        found.remove_pod(pod)
    assert binds(found.cycle(NOW + 4)) == {"high": "n0"}
    found.remove_pod(high)
    (release,) = found.cycle(NOW + 5).releases
    assert (release.owner.identity, release.note.generation) == (low.identity, 3)
    assert len(release.note.nodes) == 3
