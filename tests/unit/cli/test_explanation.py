"""What `fluence explain` says, by the objects that it sees: pods, workloads, held Jobs and their FluxJobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from fluence import names
from fluence.commands.explain_live import _subject
from fluence.commands.explanation import Seen, explain
from fluence.controller.flux_job import FluxCondition, FluxJob, FluxJobSpec, FluxJobStatus
from fluence.errors import InvalidInput, NotFound
from fluence.kube.listing import ClusterListing
from fluence.model.meta import Condition, ObjectMeta, OwnerReference
from fluence.model.node import Node
from fluence.model.owner import Deployment, Job, Owner, OwnerSpec, PodTemplate, ReplicaSet
from fluence.model.pod import Pod, PodSpec
from fluence.schedule.inquiry import Inquiry
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.test_operators import job_set

NOW = int(kit.T0.timestamp() * 1000)
SEEN = {names.SEEN: names.SEEN_YES}


def see(*objects: Any, flux_jobs: list[FluxJob] | None = None, **more: Any) -> Seen:
    listing = ClusterListing(
        nodes=[each for each in objects if isinstance(each, Node)],
        pods=[each for each in objects if isinstance(each, Pod)],
        owners=[each for each in objects if isinstance(each, Owner)],
        native=True,
        **{key: more.pop(key) for key in ("unseen", "elsewhere", "gang_api") if key in more},
    )
    inquiry = Inquiry(Scheduler(SchedulerConfig(native=True)), objects, NOW)
    return Seen("default", listing, inquiry, NOW, flux_jobs=flux_jobs or [], **more)


def job(name: str, count: int, *, cpu: str = "1", held: bool = True, **meta: Any) -> Job:
    template = kit.pod("t", cpu=cpu, labels=SEEN if held else None)
    return Job(
        metadata=ObjectMeta(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            labels=SEEN if held else None,
            generation=1,
            **meta,
        ),
        spec=OwnerSpec(
            parallelism=count,
            completions=count,
            suspend=True,
            template=PodTemplate(metadata=template.metadata, spec=template.spec),
        ),
    )


def test_a_held_job_is_explained_before_it_has_pods() -> None:
    seen = see(node("n1", cpu="2"), job("first", 2), job("train", 2, annotations={names.DURATION: "1h"}))
    starts = explain("job", "first", seen)
    assert starts["state"] == "Pending"
    assert starts["blocks"] == ["nothing: the next cycle of the scheduler starts it"]
    waits = explain("job", "train", seen)
    assert (waits["kind"], waits["name"], waits["state"]) == ("job", "train", "Pending")
    assert waits["ahead"] == 0 and "Insufficient cpu" in waits["reason"]
    assert waits["gang"]["waiting"] == 2 and waits["gang"]["members"] == []


def test_a_name_alone_is_enough() -> None:
    seen = see(node("n1", cpu="2"), job("train", 2), kit.pod("alone"))
    assert explain("", "train", seen)["kind"] == "job"
    assert explain("", "alone", seen)["kind"] == "pod"
    with pytest.raises(NotFound, match="no pod, group, Job or other workload has this name"):
        explain("", "nobody", seen)


def test_a_name_that_several_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="pod/train and job/train: say which you mean"):
        explain("", "train", see(node("n1"), job("train", 2), kit.pod("train")))


def test_how_many_are_ahead_is_counted() -> None:
    jobs = [job(f"j{number}", 2) for number in range(5)]
    seen = see(node("n1", cpu="2"), *jobs)
    assert [explain("job", f"j{number}", seen).get("ahead") for number in range(5)] == [None, 0, 1, 2, 3]


def deployment(*pods: Pod) -> tuple[Any, ...]:
    spec = OwnerSpec(replicas=len(pods), template=PodTemplate(spec=PodSpec(scheduler_name="fluence")))
    top = Deployment(metadata=ObjectMeta(name="web", namespace="default", uid="uid-web"), spec=spec)
    refs = [
        OwnerReference(api_version="apps/v1", kind="Deployment", name="web", uid="uid-web", controller=True)
    ]
    below = ReplicaSet(
        metadata=ObjectMeta(name="web-1", namespace="default", uid="uid-web-1", owner_references=refs),
        spec=spec,
    )
    owned = [
        OwnerReference(
            api_version="apps/v1", kind="ReplicaSet", name="web-1", uid="uid-web-1", controller=True
        )
    ]
    made = [changed(pod, metadata=changed(pod.metadata, owner_references=owned)) for pod in pods]
    return (top, below, *made)


def test_a_deployment_is_explained_by_the_first_of_its_pods_that_waits() -> None:
    runs = kit.pod("web-1-a", node="n1", phase="Running", cpu="2")
    seen = see(node("n1", cpu="2"), *deployment(runs, kit.pod("web-1-b"), kit.pod("web-1-c")))
    value = explain("deployment", "web", seen)
    assert value["state"] == "Pending" and "Insufficient cpu" in value["reason"]
    assert value["pods"] == {"waiting": 2, "placed": 1, "gated": 0, "ended": 0}
    assert explain("", "web", seen) == value


def test_what_has_no_pods_says_why() -> None:
    cancelled = job("cancelled", 1, annotations={names.CANCELLED: "x"})
    mine = job("mine", 1, held=False)
    other = job("other", 1, held=False)
    template = changed(other.spec.template or PodTemplate(), spec=PodSpec(scheduler_name="default-scheduler"))
    other = changed(other, spec=changed(other.spec, suspend=False, template=template))
    late = changed(mine, metadata=ObjectMeta(name="late", namespace="default", uid="u"))
    late = changed(late, spec=changed(late.spec, suspend=False))
    done = changed(mine, metadata=ObjectMeta(name="done", namespace="default", uid="d"))
    done = changed(done, status=changed(done.status, conditions=[Condition(type="Complete", status="True")]))
    seen = see(node("n1"), cancelled, mine, other, late, done)
    wanted = {
        "cancelled": ("Cancelled", "its FluxJob was deleted: remove the annotation"),
        "mine": ("Suspended", "spec.suspend is true, and admission did not set it"),
        "other": ("Pending", "its pods name the scheduler 'default-scheduler'"),
        "late": ("Pending", "its controller has created no pods: see `kubectl describe job late -n default`"),
        "done": ("Completed", ""),
    }
    for name, (state, reason) in wanted.items():
        value = explain("job", name, seen)
        assert value["state"] == state, name
        assert value.get("reason", "").startswith(reason), name


def flux_job(name: str, **status: Any) -> FluxJob:
    refs = [OwnerReference(api_version="batch/v1", kind="Job", name=name, uid=f"uid-{name}", controller=True)]
    return FluxJob(
        metadata=ObjectMeta(name=f"{name}-job", namespace="default", owner_references=refs),
        spec=FluxJobSpec(type=1, name=name),
        status=FluxJobStatus(**status),
    )


def test_who_sees_no_nodes_reads_what_the_flux_job_says() -> None:
    told = flux_job(
        "train",
        phase="Reserved",
        position=20,
        reason="ResourcesLacking",
        message="It waits.",
        no_later_than="2026-09-01T13:30:00Z",
        conditions=[FluxCondition(type="Scheduled", status="False")],
    )
    unseen = ["pods of other namespaces", "nodes"]
    seen = see(job("train", 2), flux_jobs=[told], unseen=unseen)
    value = explain("job", "train", seen)
    assert (value["state"], value["reason"]) == ("Reserved", "It waits.")
    assert value["noLaterThan"] == "2026-09-01T13:30:00Z"
    assert value["aheadAtMost"] == 19 and "ahead" not in value
    assert explain("fluxjob", "train-job", seen) == value
    with pytest.raises(NotFound, match="FluxJob default/train"):
        explain("fluxjob", "train", seen)


def test_without_a_scheduler_nothing_is_said_to_start() -> None:
    seen = replace(see(node("n1", cpu="2"), kit.pod("a")), absent="no scheduler runs: nobody holds the Lease")
    value = explain("pod", "a", seen)
    assert value["blocks"] == ["nothing, but no scheduler runs"]
    assert value["notes"] == ["no scheduler runs: nobody holds the Lease"]


def test_a_scheduler_without_a_lease_is_known_by_what_it_wrote() -> None:
    """The one of a sandbox has no Lease."""
    told = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="It waits.")
    waits = kit.pod("b", cpu="9")
    waits = changed(waits, status=changed(waits.status, conditions=[told]))
    seen = replace(see(node("n1", cpu="2"), kit.pod("a"), waits), unleased="no scheduler holds a Lease")
    assert explain("pod", "a", seen)["notes"] == ["no scheduler holds a Lease"]
    assert "notes" not in explain("pod", "b", seen)


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (("train",), ("", "train")),
        (("job/train",), ("job", "train")),
        (("jobs", "train"), ("job", "train")),
        (("job.batch/train",), ("job", "train")),
        (("deploy/web",), ("deployment", "web")),
        (("po", "a"), ("pod", "a")),
        (("podgroups/g",), ("group", "g")),
        (("fj/train-job",), ("fluxjob", "train-job")),
        (("MPIJob/m",), ("mpijob", "m")),
    ],
)
def test_objects_are_named_as_for_kubectl(words: tuple[str, ...], subject: tuple[str, str]) -> None:
    assert _subject(words) == subject


# -- PodGroups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "group", "more", "why"),
    [
        ("", "train", {}, "the server has no PodGroups"),
        ("v1alpha1", "train", {}, "Kubernetes 1.35 has no PodGroups"),
        ("v1alpha2", "train", {}, "only as v1alpha2, which must be deleted before an upgrade"),
        ("v1alpha2", "train", {"mode": "always"}, "its handler podgroups was not in force"),
        ("v1beta1", "train", {}, "its handler podgroups was not in force"),
        ("v1beta1", "train", {"mode": "never"}, "the scheduler's setting is pod-groups: never"),
        ("v1alpha2", "Upper_Case", {}, "must be a DNS label of at most 54 characters"),
        ("v1alpha2", "train", {"field": "train.fluence"}, "has not created train.fluence yet"),
    ],
)
def test_why_a_gang_has_no_pod_group(api: str, group: str, more: dict[str, Any], why: str) -> None:
    marks: dict[str, Any] = {"labels": {kit.GROUP: group}, "annotations": {kit.SIZE: "2"}}
    mode = more.get("mode", "auto")
    link = {"field": more["field"]} if "field" in more else {}
    seen = see(node("n1"), *kit.ranks(2, **marks, **link), gang_api=api, pod_groups=mode)
    gang = explain("group", group, seen)["gang"]
    assert why in gang["noPodGroup"] and "podGroup" not in gang


@pytest.mark.parametrize(
    ("name", "why"), [("train", "podgroups was not in force"), ("Upper_Case", "must be a DNS label")]
)
def test_why_a_gang_of_another_system_has_no_pod_group(name: str, why: str) -> None:
    marks: dict[str, Any] = {"labels": {names.KUEUE_GROUP: name}, "annotations": {names.KUEUE_SIZE: "2"}}
    seen = see(node("n1"), *kit.ranks(2, **marks), gang_api="v1beta1")
    assert why in explain("group", f"kueue:{name}", seen)["gang"]["noPodGroup"]


def test_a_size_on_the_owner_only_is_said() -> None:
    """Of a Job that was there before admission, which notes the size for the pods of new ones."""
    owner = job("train", 2, held=False, annotations={names.GROUP_SIZE: "2"})
    owned: dict[str, Any] = {"owner": owner}
    unknown = see(node("n1"), owner, *kit.ranks(2, **owned), gang_api="v1beta1")
    assert "only on the owner" in explain("job", "train", unknown)["gang"]["noPodGroup"]
    noted = kit.ranks(2, **owned, annotations={names.LISTED_AS: names.LISTED_AS_JOB})
    known = see(node("n1"), owner, *noted, gang_api="v1beta1")
    assert "was not in force" in explain("job", "train", known)["gang"]["noPodGroup"]


def test_a_held_job_has_no_pod_group_before_it_has_pods() -> None:
    seen = see(node("n1"), job("train", 2), gang_api="v1beta1")
    assert explain("job", "train", seen)["gang"]["noPodGroup"] == "its pods do not exist yet"


def test_a_later_stage_cannot_name_its_pod_group() -> None:
    """Its pods have the labels of the first one."""
    top, parts = job_set(("head", 1), ("workers", 2), startupPolicy={"startupPolicyOrder": "InOrder"})
    seen = see(node("n1"), top, *parts, gang_api="v1beta1")
    assert "cannot name their gang" in explain("group", "x/workers", seen)["gang"]["noPodGroup"]


def test_the_pod_group_of_a_gang_is_named() -> None:
    made = kit.group("train.fluence", 2, annotations={names.MADE_FOR: "default/train"})
    marks: dict[str, Any] = {"labels": {kit.GROUP: "train"}, "annotations": {kit.SIZE: "2"}}
    seen = see(node("n1"), made, *kit.ranks(2, field="train.fluence", **marks), gang_api="v1alpha2")
    assert explain("group", "train", seen)["gang"]["podGroup"] == "train.fluence"
    assert "podGroup" not in explain("pod", "alone", see(node("n1"), kit.pod("alone")))["gang"]
