"""The audit finds a split gang of every kind, on the way and at the end, and no gang that is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import ObjectMeta, OwnerReference
from fluence.model.owner import Deployment, Group, Job, Owner, ReplicaSet, StatefulSet
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger
from fluence.sandbox.audited_operators import OperatorObject, WrittenObject
from tests.unit.sandbox.test_audit import ledger, node
from tests.unit.sandbox.test_audit import pod as plain

LABEL = {names.GROUP_LABEL: "g"}
SIG = "scheduling.x-k8s.io/v1alpha1"
NATIVE = "scheduling.k8s.io/v1alpha2"
_POD = OwnerReference(api_version="v1", kind="Pod", name="first", uid="uid-first", controller=True)
_VERSIONS = {Job: "batch/v1", Deployment: "apps/v1", ReplicaSet: "apps/v1", StatefulSet: "apps/v1"}


def owner(
    name: str,
    kind: type[Owner] = Job,
    *,
    above: Owner | None = None,
    succeeded: int = 0,
    finished: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: object,
) -> Owner:
    conditions = [{"type": "Complete", "status": "True"}] if finished else []
    document = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"of-{name}",
            "labels": labels or {},
            "annotations": annotations or {},
            "ownerReferences": [] if above is None else [reference(above)],
        },
        "spec": spec,
        "status": {"succeeded": succeeded, "conditions": conditions},
    }
    return msgspec.convert(document, kind)


def reference(of: Owner) -> dict[str, object]:
    meta = of.metadata
    version = _VERSIONS.get(type(of), "example.com/v1")
    return {"apiVersion": version, "kind": of.kind, "name": meta.name, "uid": meta.uid, "controller": True}


def pod(
    name: str,
    *,
    on: str | None = "n1",
    of: Owner | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    scheduler: str = "fluence",
    phase: str = "Running",
    **meta: object,
) -> Pod:
    found = {
        "labels": labels or {},
        "annotations": annotations or {},
        "ownerReferences": [] if of is None else [reference(of)],
        **meta,
    }
    return plain(name, on=on, phase=phase, cpu="0.1", schedulerName=scheduler, meta=found)


class Log:
    """A history, told to a ledger."""

    def __init__(self) -> None:
        self.books: AuditLedger = ledger(node(pods="100"))
        self._pods: dict[str, Pod] = {}

    def put(self, *things: Pod | Owner | Group, at: float, group: str | None = None) -> None:
        for each in things:
            if isinstance(each, Pod):
                old = self._pods.get(each.metadata.uid)
                self._pods[each.metadata.uid] = each
                self.books.pod(old, each, group=group, now=at)
            elif isinstance(each, Owner):
                self.books.owner(None, each, now=at)
            else:
                self.books.group(None, each, now=at)

    def gone(self, *pods: Pod, at: float) -> None:
        for each in pods:
            self.books.pod(each, None, now=at)

    def found(self, at: float) -> list[str]:
        self.books.tick(at)
        return [str(each) for each in self.books.findings]


# -- a split of each kind: five pods, of which the first gets a node -----------------------------------------


def native(log: Log, bound: int) -> str:
    log.put(Group(namespace="ns", name="g", min_count=5, source="scheduling.k8s.io/v1alpha2"), at=100)
    pods = [pod(f"p{i}", on="n1" if i < bound else None) for i in range(5)]
    log.put(*pods, at=101, group="g")
    return "ns/g"


def replica(log: Log, bound: int) -> str:
    """A gang of 1.35: one of several of a group."""
    log.put(Group(namespace="ns", name="wl/ranks", min_count=5, source="scheduling.k8s.io/v1alpha1"), at=100)
    pods = [pod(f"p{i}", on="n1" if i < bound else None) for i in range(5)]
    log.put(*pods, at=101, group="wl/ranks/0")
    return "ns/wl/ranks/0"


def coscheduling(log: Log, bound: int) -> str:
    labels = {"scheduling.x-k8s.io/pod-group": "g"}
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, labels=labels) for i in range(5)), at=100)
    log.put(Group(namespace="ns", name="g", min_count=5, source=SIG), at=101)
    return "ns/g"


def label_and_size(log: Log, bound: int) -> str:
    more: dict[str, Any] = {"labels": LABEL, "annotations": {names.GROUP_SIZE: "5"}}
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, **more) for i in range(5)), at=100)
    return "ns/g"


def label_alone(log: Log, bound: int) -> str:
    """The first is bound before the others are there."""
    for i in range(5):
        log.put(pod(f"p{i}", on="n1" if i < bound else None, labels=LABEL), at=100 + i / 10)
    return "ns/g"


def two_jobs(log: Log, bound: int) -> str:
    head, work = owner("head", parallelism=1), owner("work", parallelism=4)
    log.put(head, pod("head-0", on=None, of=head, labels=LABEL), at=100)
    log.put(pod("head-0", of=head, labels=LABEL), at=100.1)
    log.put(work, at=100.2)
    pods = [pod(f"work-{i}", on="n1" if i + 1 < bound else None, of=work, labels=LABEL) for i in range(4)]
    log.put(*pods, at=100.3)
    return "ns/g"


def label_on_the_job(log: Log, bound: int) -> str:
    """The pods come before their owner, which names the group."""
    job = owner("sim", parallelism=5, labels=LABEL)
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, of=job) for i in range(5)), at=100)
    log.put(job, at=100.5)
    return "ns/g"


def job_and_size(log: Log, bound: int) -> str:
    job = owner("sim", parallelism=5, annotations={names.GROUP_SIZE: "5"})
    log.put(job, at=100)
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, of=job) for i in range(5)), at=100)
    return "ns/job:sim"


def flux_job(log: Log, bound: int) -> str:
    seen = {names.SEEN: names.SEEN_YES}
    job = owner("sim", parallelism=5, labels=seen)
    more: dict[str, Any] = {"labels": seen, "scheduler": names.KUBE_SCHEDULER}
    log.put(job, *(pod(f"p{i}", on="n1" if i < bound else None, of=job, **more) for i in range(5)), at=100)
    return "ns/job:sim"


def flux_job_of_a_deployment(log: Log, bound: int) -> str:
    seen = {names.SEEN: names.SEEN_YES}
    top = owner("web", Deployment, replicas=5, labels=seen)
    made = owner("web-1", ReplicaSet, replicas=5, above=top)
    pods = [pod(f"p{i}", on="n1" if i < bound else None, of=made, labels=seen) for i in range(5)]
    log.put(top, made, *pods, at=100)
    return "ns/deployment:web"


def kueue(log: Log, bound: int) -> str:
    more: dict[str, Any] = {"labels": {names.KUEUE_GROUP: "g"}, "annotations": {names.KUEUE_SIZE: "5"}}
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, **more) for i in range(5)), at=100)
    return "ns/kueue:g"


def volcano(log: Log, bound: int) -> str:
    notes = {"scheduling.k8s.io/group-name": "g"}
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, annotations=notes) for i in range(5)), at=100)
    log.put(Group(namespace="ns", name="g", min_count=5, source="scheduling.volcano.sh/v1beta1"), at=101)
    return "ns/volcano:g"


def kai(log: Log, bound: int) -> str:
    labels = {names.KAI_GROUP: "g"}
    log.put(Group(namespace="ns", name="g", min_count=5, source="scheduling.run.ai/v2alpha2"), at=100)
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, labels=labels) for i in range(5)), at=101)
    return "ns/kai:g"


def yunikorn(log: Log, bound: int) -> str:
    groups = '[{"name": "head", "minMember": 1}, {"name": "work", "minMember": 4}]'
    notes = {names.YUNIKORN_TASK_GROUP: "work", names.YUNIKORN_TASK_GROUPS: groups}
    more: dict[str, Any] = {"labels": {"applicationId": "g"}, "annotations": notes}
    log.put(*(pod(f"p{i}", on="n1" if i < bound else None, **more) for i in range(5)), at=100)
    return "ns/yunikorn:g"


def custom(kind: str, name: str, spec: dict[str, Any], *, of: Owner | None = None) -> OperatorObject:
    above = None if of is None else [msgspec.convert(reference(of), OwnerReference)]
    meta = ObjectMeta(name=name, namespace="ns", uid=f"uid-{kind}-{name}", owner_references=above)
    return OperatorObject.read(kind, WrittenObject(metadata=meta, spec=spec))


OURS = {"spec": {"schedulerName": "fluence"}}


def ray_cluster(log: Log, bound: int) -> str:
    groups = [{"groupName": "w", "replicas": 4, "template": OURS}]
    top = custom("RayCluster", "r", {"headGroupSpec": {"template": OURS}, "workerGroupSpecs": groups})
    for i in range(5):
        labels = {names.RAY_GROUP: "w" if i else "headgroup"}
        log.put(pod(f"p{i}", on="n1" if i < bound else None, of=top, labels=labels), at=100)
    log.put(top, at=101)
    return "ns/raycluster:r"


def job_set(log: Log, bound: int) -> str:
    """The JobSet is known last: its pods name only their Job."""
    jobs = [
        {"name": "w", "template": {"spec": {"parallelism": 5, "completions": 5, "template": OURS}}},
        {"name": "later", "dependsOn": [{"name": "w"}], "template": {"spec": {"template": OURS}}},
    ]
    top = custom("JobSet", "j", {"replicatedJobs": jobs})
    job = owner("j-w-0", parallelism=5, above=top)
    labels = {names.JOBSET_REPLICATED_JOB: "w", names.JOBSET_RESTART: "0"}
    pods = [pod(f"p{i}", on="n1" if i < bound else None, of=job, labels=labels) for i in range(5)]
    log.put(job, *pods, top, at=100)
    return "ns/jobset:j/w/0"


def below_a_pod(made: Pod) -> Pod:
    return replace(made, metadata=replace(made.metadata, owner_references=[_POD]))


def of_roles(log: Log, bound: int, top: Owner, roles: list[dict[str, str]], of: Any = None) -> None:
    """A pod for each of these sets of labels; the object is known last."""
    for i, labels in enumerate(roles):
        log.put(pod(f"p{i}", on="n1" if i < bound else None, of=of or top, labels=labels), at=100)
    log.put(top, at=101)


def leader_worker_set(log: Log, bound: int) -> str:
    """The workers' StatefulSet is owned by their leader; they name the object by a label."""
    top = custom("LeaderWorkerSet", "l", {"leaderWorkerTemplate": {"size": 5, "workerTemplate": OURS}})
    for i in range(5):
        labels = {names.LWS_NAME: "l", names.LWS_GROUP_INDEX: "0", names.LWS_WORKER_INDEX: str(i)}
        made = pod(f"p{i}", on="n1" if i < bound else None, of=top, labels=labels)
        log.put(below_a_pod(made) if i else made, at=100)
    log.put(top, at=101)
    return "ns/leaderworkerset:l/0"


def workers_of_a_leader(log: Log, bound: int) -> str:
    """A later stage: the leader runs, and is none of them."""
    template = {"size": 6, "workerTemplate": OURS}
    top = custom("LeaderWorkerSet", "l", {"leaderWorkerTemplate": template, "startupPolicy": "LeaderReady"})
    labels = {names.LWS_NAME: "l", names.LWS_GROUP_INDEX: "0"}
    log.put(pod("leader", of=top, labels={**labels, names.LWS_WORKER_INDEX: "0"}), at=100)
    for i in range(5):
        mine = {**labels, names.LWS_WORKER_INDEX: str(i + 1)}
        log.put(below_a_pod(pod(f"p{i}", on="n1" if i < bound else None, labels=mine)), at=100)
    log.put(top, at=101)
    return "ns/leaderworkerset:l/0/workers"


def mpi_job(log: Log, bound: int) -> str:
    specs = {"Launcher": {"template": OURS}, "Worker": {"replicas": 4, "template": OURS}}
    top = custom("MPIJob", "m", {"mpiReplicaSpecs": specs})
    roles = [{names.KUBEFLOW_JOB_ROLE: "worker" if i else "launcher"} for i in range(5)]
    of_roles(log, bound, top, roles)
    return "ns/mpijob:m"


def workers_of_an_mpi_job(log: Log, bound: int) -> str:
    """The launcher is created when they are ready."""
    specs = {"Launcher": {"template": OURS}, "Worker": {"replicas": 5, "template": OURS}}
    spec = {"mpiReplicaSpecs": specs, "launcherCreationPolicy": "WaitForWorkersReady"}
    of_roles(log, bound, custom("MPIJob", "m", spec), [{names.KUBEFLOW_JOB_ROLE: "worker"}] * 5)
    return "ns/mpijob:m"


def torch_job(log: Log, bound: int) -> str:
    specs = {"Master": {"template": OURS}, "Worker": {"replicas": 4, "template": OURS}}
    top = custom("PyTorchJob", "t", {"pytorchReplicaSpecs": specs})
    of_roles(log, bound, top, [{names.KUBEFLOW_REPLICA_TYPE: "worker" if i else "master"} for i in range(5)])
    return "ns/pytorchjob:t"


def elastic_torch_job(log: Log, bound: int) -> str:
    specs = {"Worker": {"replicas": 9, "template": OURS}}
    top = custom("PyTorchJob", "t", {"pytorchReplicaSpecs": specs, "elasticPolicy": {"minReplicas": 5}})
    of_roles(log, bound, top, [{names.KUBEFLOW_REPLICA_TYPE: "worker"}] * 5)
    return "ns/pytorchjob:t"


def train_job(log: Log, bound: int) -> str:
    top = custom("TrainJob", "t", {"runtimeRef": {"name": "torch-distributed"}})
    job = {"name": "node", "template": {"spec": {"parallelism": 5, "completions": 5, "template": OURS}}}
    middle = custom("JobSet", "t", {"replicatedJobs": [job]}, of=top)
    below = owner("t-node-0", parallelism=5, above=middle)
    log.put(top, middle, below, at=100)
    of_roles(log, bound, below, [{names.JOBSET_REPLICATED_JOB: "node"}] * 5)
    return "ns/jobset:t/node"


def spark(log: Log, bound: int) -> str:
    """The driver runs, and is none of them; it owns the executors."""
    parts = {"driver": {"schedulerName": "fluence"}, "executor": {"instances": 5}}
    top = custom("SparkApplication", "s", parts)
    app = {names.SPARK_APPLICATION: "s"}
    log.put(pod("driver", of=top, labels={**app, names.SPARK_ROLE: "driver"}), at=100)
    for i in range(5):
        mine = pod(f"p{i}", on="n1" if i < bound else None, labels={**app, names.SPARK_ROLE: "executor"})
        log.put(below_a_pod(mine), at=100)
    log.put(top, at=101)
    return "ns/sparkapplication:s/executors"


def job_set_in_order(log: Log, bound: int) -> str:
    """Each replicated job is a gang of its own: the first runs."""
    jobs = [
        {"name": name, "template": {"spec": {"parallelism": 5, "completions": 5, "template": OURS}}}
        for name in ("first", "second")
    ]
    top = custom("JobSet", "j", {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}})
    job = owner("j-second-0", parallelism=5, above=top)
    log.put(job, at=100)
    of_roles(log, bound, job, [{names.JOBSET_REPLICATED_JOB: "second"}] * 5)
    log.put(top, at=101)
    return "ns/jobset:j/second"


def label_with_a_listing(log: Log, bound: int) -> str:
    """Admission named a PodGroup that only lists the group, and that nobody has made."""
    labels = {names.GROUP_LABEL: "g"}
    more: dict[str, Any] = {"labels": labels, "annotations": {names.GROUP_SIZE: "5"}}
    pods = [pod(f"p{i}", on="n1" if i < bound else None, **more) for i in range(5)]
    log.put(*pods, at=100, group="g.fluence")
    return "ns/g"


def two_jobs_with_groups_of_their_own(log: Log, bound: int) -> str:
    """The Job controller made a PodGroup for the workers, and named it in them."""
    work = owner("work", parallelism=4)
    made = Group(namespace="ns", name="work-pg", min_count=4, controller=work.identity, source=NATIVE)
    log.put(work, made, at=100)
    more: dict[str, Any] = {"labels": LABEL, "annotations": {names.GROUP_SIZE: "5"}}
    log.put(pod("p0", **more), at=101)
    workers = [pod(f"p{i}", on="n1" if i < bound else None, of=work, **more) for i in range(1, 5)]
    log.put(*workers, at=101, group="work-pg")
    return "ns/g"


KINDS = [
    kueue,
    volcano,
    kai,
    yunikorn,
    ray_cluster,
    job_set,
    leader_worker_set,
    mpi_job,
    workers_of_an_mpi_job,
    workers_of_a_leader,
    spark,
    torch_job,
    elastic_torch_job,
    train_job,
    job_set_in_order,
    label_with_a_listing,
    two_jobs_with_groups_of_their_own,
    native,
    replica,
    coscheduling,
    label_and_size,
    label_alone,
    two_jobs,
    label_on_the_job,
    job_and_size,
    flux_job,
    flux_job_of_a_deployment,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.__name__)
def test_a_split_of_each_kind_is_found_and_the_whole_is_not(kind: Callable[[Log, int], str]) -> None:
    split = Log()
    key = kind(split, 1)
    assert not split.found(125), "it may still be on its way"
    (found,) = split.found(200)
    assert found.startswith(f"gang: {key}: 1 of at least 5 members were given a node for ")
    assert len(split.found(900)) == 1, "once"
    whole = Log()
    kind(whole, 5)
    assert not whole.found(900)
    assert whole.books.report().gangs_seen == 1


def test_a_native_group_whose_size_comes_late_is_judged_when_it_is_there() -> None:
    log = Log()
    log.put(pod("a"), pod("b", on=None), at=100, group="g")
    assert not log.found(150), "nobody knows its size"
    log.put(Group(namespace="ns", name="g", min_count=2, source=NATIVE), at=151)
    assert not log.found(160)
    assert log.found(900) == ["gang: ns/g: 1 of at least 2 members were given a node for 749 s"]


def test_a_pod_group_of_the_users_counts_whatever_its_name_ends_in() -> None:
    log = Log()
    log.put(Group(namespace="ns", name="g.fluence", min_count=2, source=NATIVE), at=100)
    log.put(pod("a"), pod("b", on=None), at=101, group="g.fluence")
    (found,) = log.found(900)
    assert found.startswith("gang: ns/g.fluence: 1 of at least 2")


@pytest.mark.parametrize("spec", [{}, {"replicatedJobs": 3}, {"replicatedJobs": [{"name": "w"}]}])
def test_an_object_that_cannot_be_read_is_no_finding(spec: dict[str, Any]) -> None:
    log = Log()
    top = custom("JobSet", "j", spec)
    log.put(top, pod("a", of=top, labels={names.JOBSET_REPLICATED_JOB: "w"}), at=100)
    assert not log.found(900)


def test_a_split_that_was_healed_late_is_found_although_nobody_looked_meanwhile() -> None:
    log = Log()
    more: dict[str, Any] = {"labels": LABEL, "annotations": {names.GROUP_SIZE: "2"}}
    log.put(pod("a", **more), pod("b", on=None, **more), at=100)
    log.put(pod("b", **more), at=150)
    assert log.found(151) == ["gang: ns/g: 1 of at least 2 members were given a node for 50 s"]


def test_a_split_that_was_healed_soon_is_none() -> None:
    log = Log()
    more: dict[str, Any] = {"labels": LABEL, "annotations": {names.GROUP_SIZE: "2"}}
    log.put(pod("a", **more), pod("b", on=None, **more), at=100)
    log.put(pod("b", **more), at=120)
    assert not log.found(900)


def test_a_split_that_ended_by_the_end_of_its_pods_is_found() -> None:
    log = Log()
    more: dict[str, Any] = {"labels": LABEL, "annotations": {names.GROUP_SIZE: "2"}}
    log.put(pod("a", **more), pod("b", on=None, **more), at=100)
    log.put(pod("a", phase="Succeeded", **more), at=190)
    assert len(log.found(191)) == 1


def test_a_whole_gang_that_loses_members_or_is_joined_by_others_is_not_split() -> None:
    log = Log()
    head, work = owner("head", parallelism=1), owner("work", parallelism=2)
    log.put(head, work, pod("h", of=head, labels=LABEL), at=100)
    log.put(*(pod(f"w{i}", of=work, labels=LABEL) for i in range(2)), at=100)
    log.books.tick(110)
    log.gone(pod("w0", of=work, labels=LABEL), at=120)  # its node went: the next one finds no room
    log.put(pod("w2", on=None, of=work, labels=LABEL), at=121)
    late = owner("late", parallelism=8)
    log.put(late, pod("l0", on=None, of=late, labels=LABEL), at=130)
    assert not log.found(900)


def test_members_that_come_when_the_group_was_quiet_are_late_members() -> None:
    log = Log()
    log.put(pod("a", labels=LABEL), at=100)
    log.put(*(pod(f"late-{i}", on=None, labels=LABEL) for i in range(3)), at=103)
    assert not log.found(900)


def test_a_gang_whose_members_end_one_by_one_is_whole() -> None:
    log = Log()
    job = owner("sim", parallelism=2, annotations={names.GROUP_SIZE: "2"})
    log.put(job, pod("a", of=job), pod("b", of=job), at=100)
    log.put(pod("a", of=job, phase="Succeeded"), at=110)
    assert not log.found(400)
    # The other one failed, and is run again by itself.
    log.put(pod("b", of=job, phase="Failed"), at=410)
    log.put(pod("b-again", of=job), at=420)
    assert not log.found(900)


def test_a_second_run_that_is_split_is_found() -> None:
    log = Log()
    first = owner("one", parallelism=2, labels=LABEL)
    log.put(first, pod("a", of=first), pod("b", of=first), at=100)
    log.books.tick(110)
    log.put(pod("a", of=first, phase="Succeeded"), pod("b", of=first, phase="Succeeded"), at=120)
    log.put(owner("one", parallelism=2, labels=LABEL, finished=True), at=121)
    second = owner("two", parallelism=2, labels=LABEL)
    log.put(second, pod("c", of=second), pod("d", of=second, on=None), at=200)
    assert log.found(300) == ["gang: ns/g: 1 of at least 2 members were given a node for 100 s"]


def test_what_starts_one_by_one_is_no_gang() -> None:
    log = Log()
    job = owner("plain", parallelism=3)
    log.put(job, pod("a", of=job), pod("b", of=job, on=None), at=100)
    log.put(pod("x", labels=LABEL, scheduler="default-scheduler"), at=100)
    log.put(pod("y", labels=LABEL, scheduler="default-scheduler", on=None), at=100)
    ordered = owner("set", StatefulSet, replicas=3, labels={names.SEEN: names.SEEN_YES})
    log.put(ordered, pod("set-0", of=ordered, labels={names.SEEN: names.SEEN_YES}), at=100)
    log.put(Group(namespace="ns", name="basic", source="scheduling.k8s.io/v1beta1"), at=100)
    log.put(pod("basic-0"), pod("basic-1", on=None), at=100, group="basic")
    assert not log.found(900)
    assert not log.books.report().gangs_seen - 1, "the StatefulSet is one, and whole with its first pod"


def test_a_gang_that_is_deleted_while_it_is_in_part_is_no_more() -> None:
    log = Log()
    more: dict[str, Any] = {"labels": LABEL, "annotations": {names.GROUP_SIZE: "2"}}
    log.put(pod("a", **more), pod("b", on=None, **more), at=100)
    log.put(pod("a", **more, deletionTimestamp="2026-09-01T12:00:00Z"), at=110)
    log.gone(pod("b", **more), at=111)
    assert not log.found(900)
