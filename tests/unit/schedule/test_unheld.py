"""Labelled namespaces in which admission holds nothing are reported, once, by the work that was not held."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import KubeObject, ObjectMeta, OwnerReference
from fluence.model.operators import CustomOwner
from fluence.model.owner import Job, OwnerSpec, PodTemplate
from fluence.model.pod import Pod, PodSpec
from fluence.model.reason import Code
from fluence.schedule.events import Changed
from fluence.schedule.queueing.unheld import UnheldNamespace
from fluence.schedule.scheduler import Scheduler
from tests.unit.schedule import kit
from tests.unit.schedule.test_operators import KINDS, WHOLE

NOW = int(kit.T0.timestamp() * 1000)


def namespace(**labels: str) -> KubeObject:
    return KubeObject(metadata=ObjectMeta(name="default", uid="uid-ns", labels=labels or None))


LABELLED = namespace(**{names.NAMESPACE_OPT_IN: names.DOORS_ENABLED})


def new(item: Any, *, after: int = 60, **meta: Any) -> Any:
    created = kit.T0 + timedelta(seconds=after)
    return replace(item, metadata=replace(item.metadata, creation_timestamp=created, **meta))


def job(**spec: Any) -> Job:
    template = PodTemplate(spec=PodSpec(scheduler_name="default-scheduler"))
    meta = ObjectMeta(name="train", namespace="default", uid="uid-train")
    return new(Job(metadata=meta, spec=OwnerSpec(template=template, **spec)))


def pod(**more: Any) -> Pod:
    return new(kit.pod("p", scheduler="default-scheduler", **more))


def reported(*items: Any) -> list[UnheldNamespace]:
    scheduler = Scheduler()
    scheduler.handle([Changed(None, LABELLED)], NOW)
    return scheduler.handle([Changed(None, item) for item in items], NOW + 60_000).unheld


@pytest.mark.parametrize(
    "item", [job(), pod(), new(kit.pod("q")), job(managed_by="kubernetes.io/job-controller")]
)
def test_work_that_starts_unheld_is_reported_with_its_namespace(item: Any) -> None:
    (unheld,) = reported(item, replace(item, metadata=replace(item.metadata, name="second")))
    assert unheld.namespace.name == "default" and unheld.namespace.uid == "uid-ns"
    assert unheld.reason.code is Code.WORK_NOT_HELD and unheld.reason["name"] == item.metadata.name


MAKER = OwnerReference(api_version="batch/v1", kind="Job", name="j", uid="u", controller=True)


@pytest.mark.parametrize(
    "item",
    [
        new(job(), labels={names.SEEN: names.SEEN_YES}),
        new(job(), after=0),
        new(job(), labels={names.QUEUE: "off"}),
        new(job(), annotations={names.QUEUE: "off"}),
        job(suspend=True),
        job(managed_by="kueue.x-k8s.io/multikueue"),
        new(job(), owner_references=[MAKER]),
        new(pod(), owner_references=[MAKER]),
        pod(node="n1"),
        new(kit.pod("p", scheduler="volcano")),
        pod(priority_class_name="system-node-critical"),
    ],
)
def test_work_that_admission_leaves_alone_is_not_missed(item: Any) -> None:
    assert reported(item) == []


def test_namespaces_without_the_label_are_not_reported_and_a_new_label_is_reported_again() -> None:
    scheduler = Scheduler()
    assert scheduler.handle([Changed(None, namespace()), Changed(None, job())], NOW).unheld == []
    for _ in range(2):
        scheduler.handle([Changed(None, LABELLED)], NOW)
        assert len(scheduler.handle([Changed(None, job())], NOW).unheld) == 1
        assert scheduler.handle([Changed(None, job())], NOW).unheld == []
        scheduler.handle([Changed(LABELLED, namespace())], NOW)


# -- objects of operators ------------------------------------------------------------------------------------


def operated(kind: str, things: list[Any], change: Any = lambda each: each) -> list[UnheldNamespace]:
    scheduler = Scheduler()
    scheduler.follow(KINDS)
    scheduler.handle([Changed(None, LABELLED)], NOW)
    events = [Changed(None, change(new(each))) for each in things]
    return scheduler.handle(events, NOW + 60_000).unheld


@pytest.mark.parametrize("kind", WHOLE)
def test_the_object_of_an_operator_is_reported_by_its_first_pod(kind: str) -> None:
    top, parts = WHOLE[kind]
    (unheld,) = operated(kind, [top, *parts])
    assert (unheld.reason["kind"], unheld.reason["name"]) == (kind, top.metadata.name)
    assert not operated(kind, [top, *(each for each in parts if not isinstance(each, Pod))])


def with_label(kind: type[Any], **labels: str) -> Any:
    return lambda each: (
        new(each, labels={**(each.metadata.labels or {}), **labels}) if isinstance(each, kind) else each
    )


@pytest.mark.parametrize(
    "change",
    [
        with_label(Pod, **{names.SEEN: names.SEEN_YES}),
        with_label(CustomOwner, **{names.QUEUE: "off"}),
        with_label(Pod, **{names.QUEUE: "off"}),
        lambda each: new(each, after=0) if isinstance(each, CustomOwner) else each,
        lambda each: new(each, after=0) if isinstance(each, Pod) else each,
        lambda each: (
            replace(each, spec=replace(each.spec, scheduler_name="other")) if isinstance(each, Pod) else each
        ),
    ],
    ids=[
        "held pods",
        "object opted out",
        "pods opted out",
        "older object",
        "older pods",
        "another scheduler",
    ],
)
@pytest.mark.parametrize("kind", WHOLE)
def test_the_object_of_an_operator_whose_pods_are_held_or_not_meant_is_not_reported(
    kind: str, change: Any
) -> None:
    top, parts = WHOLE[kind]
    assert not operated(kind, [top, *parts], change)
