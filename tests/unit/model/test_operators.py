"""What a custom object says of its pods, however it is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence import names
from fluence.model.meta import ObjectMeta
from fluence.model.operators import BY_KEY, OPERATORS, CustomOwner, Role, Sizes, read_owner
from fluence.model.pod import Pod, PodSpec

JOB_SET, LWS = ("jobset.x-k8s.io", "JobSet"), ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")
OURS: dict[str, Any] = {"spec": {"schedulerName": "fluence"}}


def read(key: tuple[str, str], spec: Any, **meta: Any) -> CustomOwner:
    meta = {"name": "x", "namespace": "default", "uid": "u", **meta}
    return read_owner(BY_KEY[key], json.dumps({"metadata": meta, "spec": spec}).encode())


def replicated(name: str, replicas: int | None = None, **job: Any) -> dict[str, Any]:
    depends = [{"name": each, "status": "Ready"} for each in job.pop("after", ())]
    found: dict[str, Any] = {"name": name, "template": {"spec": {**job, "template": OURS}}}
    if replicas is not None:
        found["replicas"] = replicas
    return {**found, "dependsOn": depends} if depends else found


def share(
    owner: CustomOwner, labels: dict[str, str], annotations: dict[str, str] | None = None
) -> tuple[str, int] | None:
    meta = ObjectMeta(labels=labels, annotations=annotations)
    found = owner.share_of(Pod(metadata=meta, spec=PodSpec(scheduler_name="fluence")))
    return None if found is None else (found.role.name, found.size)


def together(owner: CustomOwner, role: str) -> int:
    assert owner.sizes is not None
    return owner.sizes.of(next(each for each in owner.sizes.roles if each.name == role), "fluence")


def test_a_job_set_is_the_sum_over_its_replicated_jobs() -> None:
    owner = read(
        JOB_SET,
        {
            "replicatedJobs": [
                replicated("head"),
                replicated("workers", 2, parallelism=4, completions=3),
                replicated("none", 0, parallelism=9),
            ]
        },
    )
    assert owner.kind == "JobSet" and owner.pods == 1 + 2 * 3
    assert together(owner, "head") == together(owner, "workers") == 7


def test_a_job_set_in_order_waits_for_no_job_that_comes_later() -> None:
    jobs = [replicated("head"), replicated("workers", 2), replicated("last", 3)]
    owner = read(JOB_SET, {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}})
    assert [together(owner, name) for name in ("head", "workers", "last")] == [1, 2, 3]
    plain = read(JOB_SET, {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "AnyOrder"}})
    assert together(plain, "head") == 6


def test_replicated_jobs_that_depend_on_the_same_others_start_together() -> None:
    jobs = [
        replicated("data"),
        replicated("model"),
        replicated("node", 4, after=("data", "model")),
        replicated("log", 1, after=("model", "data")),
        replicated("end", 1, after=("node",)),
    ]
    owner = read(JOB_SET, {"replicatedJobs": jobs})
    assert [together(owner, name) for name in ("data", "node", "log", "end")] == [2, 5, 5, 1]
    assert owner.sizes is not None
    assert [role.stage for role in owner.sizes.roles] == ["", "", "node", "node", "end"]


def test_a_group_of_a_leader_worker_set_is_a_leader_and_its_workers() -> None:
    template = {"size": 4, "workerTemplate": OURS}
    assert together(read(LWS, {"leaderWorkerTemplate": template, "replicas": 7}), "leader") == 4
    ready = read(LWS, {"leaderWorkerTemplate": template, "startupPolicy": "LeaderReady"})
    assert (together(ready, "leader"), together(ready, "worker")) == (1, 3)
    near = read(LWS, {"leaderWorkerTemplate": template}, annotations={names.LWS_EXCLUSIVE: "rack"})
    assert together(near, "leader") == 1, "the workers are made when the leader has its node"
    assert together(read(LWS, {"leaderWorkerTemplate": {"workerTemplate": OURS}}), "leader") == 1
    assert share(near, {names.LWS_WORKER_INDEX: "0"}) == ("leader", 1)


@pytest.mark.parametrize(("text", "size"), [("2", 2), ("1", 1), ("0", 1), ("", 4), ("-3", 4), ("9" * 99, 4)])
def test_a_group_of_an_earlier_revision_has_the_size_that_its_pods_say(text: str, size: int) -> None:
    owner = read(LWS, {"leaderWorkerTemplate": {"size": 4, "workerTemplate": OURS}})
    for index in ("0", "1"):
        found = share(owner, {names.LWS_WORKER_INDEX: index}, {names.LWS_SIZE: text})
        assert found is not None and found[1] == size


@pytest.mark.parametrize("place", ["JobSet", "Job", "pod"])
def test_the_first_pods_of_jobs_with_a_domain_of_their_own_start_first(place: str) -> None:
    note = {"annotations": {names.JOBSET_EXCLUSIVE: "rack"}}
    job = replicated("work", 2, parallelism=4, completions=4)
    if place == "Job":
        job["template"]["metadata"] = note
    if place == "pod":
        job["template"]["spec"]["template"] = {**OURS, "metadata": note}
    meta = note if place == "JobSet" else {}
    spec: dict[str, Any] = {"replicatedJobs": [replicated("head"), job]}

    def shares(owner: CustomOwner, name: str) -> list[tuple[str, int] | None]:
        label = {names.JOBSET_REPLICATED_JOB: name}
        return [share(owner, {**label, names.COMPLETION_INDEX: index}) for index in ("0", "3")]

    owner = read(JOB_SET, spec, **meta)
    assert shares(owner, "work") == [("work", 3), ("work/followers", 6)]
    assert owner.pods == 9
    spec["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    assert shares(read(JOB_SET, spec, **meta), "work") == [("work", 2), ("work/followers", 6)]
    chosen = {"annotations": {**note["annotations"], names.JOBSET_NODE_SELECTOR: "true"}}
    at_once = read(JOB_SET, {"replicatedJobs": [replicated("work", parallelism=4)]}, **chosen)
    assert shares(at_once, "work") == [("work", 4), ("work", 4)]


@pytest.mark.parametrize(
    ("kind", "field"),
    [("MPIJob", "mpiReplicaSpecs"), ("PyTorchJob", "pytorchReplicaSpecs"), ("TFJob", "tfReplicaSpecs")],
)
def test_replica_specs_are_summed(kind: str, field: str) -> None:
    specs = {"Launcher": {"template": OURS}, "Worker": {"replicas": 4, "template": OURS}}
    owner = read(("kubeflow.org", kind), {field: specs, "runPolicy": {"suspend": True}})
    assert together(owner, "Worker") == 5 and owner.spec.suspend
    for labels in ({names.KUBEFLOW_JOB_ROLE: "launcher"}, {names.KUBEFLOW_REPLICA_TYPE: "launcher"}):
        assert share(owner, labels) == ("Launcher", 5)
    fewer = {"schedulingPolicy": {"minAvailable": 3}}
    assert together(read(("kubeflow.org", kind), {field: specs, "runPolicy": fewer}), "Worker") == 3


def test_a_launcher_that_waits_for_its_workers_is_not_waited_for() -> None:
    specs = {"Launcher": {"template": OURS}, "Worker": {"replicas": 4, "template": OURS}}
    spec = {"mpiReplicaSpecs": specs, "launcherCreationPolicy": "WaitForWorkersReady"}
    owner = read(("kubeflow.org", "MPIJob"), spec)
    assert (together(owner, "Worker"), together(owner, "Launcher")) == (4, 1)


def test_an_elastic_job_starts_with_as_few_workers_as_it_allows() -> None:
    specs = {"Worker": {"replicas": 8, "template": OURS}}
    spec = {"pytorchReplicaSpecs": specs, "elasticPolicy": {"minReplicas": 2}}
    assert together(read(("kubeflow.org", "PyTorchJob"), spec), "Worker") == 2


def ray(*groups: dict[str, Any], **spec: Any) -> CustomOwner:
    groups = tuple({"template": OURS, **each} for each in groups)
    return read(
        ("ray.io", "RayCluster"), {"headGroupSpec": {"template": OURS}, "workerGroupSpecs": groups, **spec}
    )


def test_a_ray_cluster_is_a_head_and_its_workers() -> None:
    cpu: dict[str, Any] = {"groupName": "cpu", "replicas": 3, "minReplicas": 1, "maxReplicas": 5}
    gpu: dict[str, Any] = {"groupName": "gpu", "replicas": 2, "numOfHosts": 4}
    assert together(ray(cpu, gpu), "headgroup") == 1 + 3 + 8
    assert together(ray(cpu, gpu, enableInTreeAutoscaling=True), "headgroup") == 1 + 1 + 0
    assert together(ray({**cpu, "replicas": 9}), "cpu") == 1 + 5
    assert together(ray({**cpu, "suspend": True}), "headgroup") == 1
    assert share(ray(cpu), {names.RAY_GROUP: "cpu"}) == ("cpu", 4)
    assert share(ray(cpu), {names.RAY_GROUP: "other"}) is None


def test_the_executors_of_spark_start_together_after_the_driver() -> None:
    spec = {
        "driver": {"schedulerName": "fluence"},
        "executor": {"instances": 3, "schedulerName": "fluence"},
    }
    key = ("sparkoperator.k8s.io", "SparkApplication")
    owner = read(key, spec)
    assert (together(owner, "driver"), together(owner, "executor")) == (1, 3)
    assert together(read(key, {**spec, "dynamicAllocation": {"enabled": True}}), "executor") == 0


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({}, 8),
        ({"sparkVersion": "4.0.0"}, 8),
        ({"sparkVersion": "3.0.3"}, 0),
        ({"sparkVersion": "3.0.3", "sparkConf": {"spark.kubernetes.allocation.batch.size": "8"}}, 8),
        ({"sparkConf": {"spark.kubernetes.allocation.maxPendingPods": "7"}}, 0),
        ({"sparkConf": {"spark.kubernetes.allocation.maxPendingPods": "8"}}, 8),
        ({"sparkConf": {"spark.kubernetes.allocation.maxPendingPods": "many"}}, 8),
        ({"sparkConf": "none"}, 8),
    ],
)
def test_executors_that_are_not_all_created_at_once_are_not_waited_for(more: Any, size: int) -> None:
    spec = {"driver": {}, "executor": {"instances": 8, "schedulerName": "fluence"}, **more}
    assert together(read(("sparkoperator.k8s.io", "SparkApplication"), spec), "executor") == size


def test_roles_that_another_scheduler_places_are_not_counted() -> None:
    roles = (Role("a", 1, "fluence"), Role("b", 2, "default-scheduler"), Role("c", 4, "fluence"))
    sizes = Sizes(roles)
    assert sizes.of(roles[0], "fluence") == 5
    # Admission made it ours: then it did so with all that had the same name.
    assert sizes.of(roles[1], "fluence") == 7


ABSURD: list[Any] = [None, -1, True, 1.5, "2", 1 << 40, {}, [], [[]], "x" * 1000]


@pytest.mark.parametrize("value", ABSURD, ids=repr)
def test_what_cannot_be_read_has_no_size(value: Any) -> None:
    jobs = [{"name": "a", "replicas": value, "template": {"spec": {"template": OURS}}}]
    owner = read(JOB_SET, {"replicatedJobs": jobs})
    assert (owner.sizes is None) == (value is not None)
    assert owner.is_silent == (value is not None)
    for spec in (value, {"replicatedJobs": value}, {"replicatedJobs": [value]}):
        assert read(JOB_SET, spec).sizes is None


def test_an_object_with_too_many_roles_has_no_size() -> None:
    assert read(JOB_SET, {"replicatedJobs": [replicated(f"a{index}") for index in range(300)]}).sizes is None
    specs: dict[str, Any] = {f"R{index}": {} for index in range(300)}
    assert read(("kubeflow.org", "TFJob"), {"tfReplicaSpecs": specs}).sizes is None


FIELDS = [
    *("replicatedJobs", "name", "replicas", "template", "spec", "parallelism", "Worker", "size", "suspend"),
    *("leaderWorkerTemplate", "runPolicy", "tfReplicaSpecs", "workerGroupSpecs", "executor", "instances"),
    *("driver", "groupName", "dependsOn", "startupPolicy"),
]

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(ANY, st.sampled_from(OPERATORS))
def test_nothing_that_is_written_breaks_the_reader(spec: Any, operator: Any) -> None:
    owner = read(operator.key, spec)
    assert owner.sizes is None or all(0 <= role.pods < 1 << 64 for role in owner.sizes.roles)
    assert owner.pods >= 1
    share(owner, {"x": "y"}, {names.LWS_SIZE: "x"})
