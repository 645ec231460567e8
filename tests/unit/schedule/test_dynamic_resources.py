"""Devices that can be counted are, others are left to kube-scheduler, and none is planned twice."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.model.dra import (
    CelSelector,
    ClaimRequest,
    DeviceAttribute,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DevicePool,
    DeviceSelector,
    ExactRequest,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
    SliceDevice,
    SliceSpec,
    _TemplateSpec,
)
from fluence.model.meta import ObjectMeta
from fluence.model.pod import Pod, PodResourceClaim
from fluence.schedule.dynamic_resources import DynamicResources, conditions
from fluence.schedule.events import Changed
from tests.unit.schedule.test_held import NOW, as_bound, binds, driver, gated, node


def selector(text: str) -> DeviceSelector:
    return DeviceSelector(cel=CelSelector(expression=text))


def device_class(name: str, *texts: str) -> DeviceClass:
    spec = DeviceClassSpec(selectors=[selector(text) for text in texts])
    return DeviceClass(metadata=ObjectMeta(name=name), spec=spec)


def slice_of(
    where: str | None, driver_: str, *models: str, generation: int = 1, **more: Any
) -> ResourceSlice:
    devices = [
        SliceDevice(name=f"d{i}", attributes={"model": DeviceAttribute(string=model)}, **more)
        for i, model in enumerate(models)
    ]
    pool = DevicePool(name=f"{where}", generation=generation)
    return ResourceSlice(
        metadata=ObjectMeta(name=f"{where}-{driver_}-{generation}"),
        spec=SliceSpec(driver=driver_, node_name=where, pool=pool, devices=devices),
    )


def claim(name: str, kind: str, count: int = 1, *texts: str, **more: Any) -> ResourceClaimTemplate:
    exact = ExactRequest(
        device_class_name=kind, count=count, selectors=[selector(text) for text in texts], **more
    )
    devices = DeviceClaim(requests=[ClaimRequest(name="r", exactly=exact)])
    return ResourceClaimTemplate(
        metadata=ObjectMeta(name=name, namespace="default"),
        spec=_TemplateSpec(spec=ResourceClaimSpec(devices=devices)),
    )


def wants(name: str, template: str) -> Pod:
    claims = [PodResourceClaim(name="c", resource_claim_template_name=template)]
    return gated(name, scheduler=names.KUBE_SCHEDULER, resource_claims=claims, cpu="100m")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("device.driver == 'a.b'", {("", "driver", "a.b")}),
        ('device.driver=="a.b"', {("", "driver", "a.b")}),
        (
            "device.driver == 'a' && device.attributes['a'].model == 'x'",
            {("", "driver", "a"), ("a", "model", "x")},
        ),
        ("(device.attributes['a'].cores == 4)", {("a", "cores", 4)}),
        ("device.attributes['a'].fast == true", {("a", "fast", True)}),
        ("device.attributes['a'].cores >= 4", None),
        ("device.driver == 'a' || device.driver == 'b'", None),
        ("device.capacity['a'].memory.compareTo(quantity('1Gi')) >= 0", None),
        ("", None),
    ],
)
def test_only_plain_comparisons_can_be_counted(text: str, expected: set[Any] | None) -> None:
    assert conditions([selector(text)]) == (None if expected is None else frozenset(expected))


def counted(*objects: Any) -> DynamicResources:
    found = DynamicResources()
    for each in objects:
        found.change(each, gone=False)
    assert found.take_changed()
    return found


def test_a_node_has_its_devices_and_a_pod_asks_for_them() -> None:
    found = counted(
        device_class("gpu", "device.driver == 'd'"), slice_of("n0", "d", "a", "b"), claim("one", "gpu")
    )
    assert (found.node(node("n0")).status.allocatable or {})["dra/gpu"] == "2"
    assert found.node(node("n1")) == node("n1")
    assert found.needs(wants("p", "one")) == {"dra/gpu": 1}
    assert found.needs(wants("p", "another")) == {}


def test_only_the_newest_generation_of_a_pool_counts_and_no_tainted_device() -> None:
    found = counted(
        device_class("gpu", "device.driver == 'd'"),
        slice_of("n0", "d", "a", "b", "c"),
        slice_of("n0", "d", "a", "b", generation=2),
        slice_of("n1", "d", "a", taints=[{"key": "broken"}]),
        claim("one", "gpu"),
    )
    assert (found.node(node("n0")).status.allocatable or {})["dra/gpu"] == "2"
    assert "dra/gpu" not in (found.node(node("n1")).status.allocatable or {})


@pytest.mark.parametrize(
    "template",
    [
        claim("one", "odd"),
        claim("one", "unknown"),
        claim("one", "gpu", 1, "device.attributes['d'].cores > 3"),
        claim("one", "gpu", allocation_mode="All"),
        claim("one", "gpu", admin_access=True),
        claim("one", "far"),
    ],
)
def test_what_cannot_be_counted_is_left_to_kube_scheduler(template: ResourceClaimTemplate) -> None:
    found = counted(
        device_class("gpu", "device.driver == 'd'"),
        device_class("odd", "device.driver.startsWith('d')"),
        device_class("far", "device.driver == 'remote'"),
        slice_of("n0", "d", "a"),
        slice_of(None, "remote", "a"),  # belongs to no node
        template,
    )
    assert found.needs(wants("p", "one")) == {}


def test_requests_that_want_the_same_devices_take_of_each_other() -> None:
    found = counted(
        device_class("gpu", "device.driver == 'd'"),
        slice_of("n0", "d", "a", "b"),
        claim("any", "gpu"),
        claim("some", "gpu", 1, "device.attributes['d'].model == 'a'"),
    )
    (narrow,) = found.needs(wants("p", "some")).keys() - {"dra/gpu"}
    assert (found.node(node("n0")).status.allocatable or {})[narrow] == "1"
    assert found.needs(wants("p", "some")) == {narrow: 1, "dra/gpu": 1}
    assert found.needs(wants("p", "any")) == {narrow: 1, "dra/gpu": 1}


def test_no_more_pods_are_handed_over_than_there_are_devices() -> None:
    found = driver(node("n0", 8), node("n1", 8))
    for each in (
        device_class("gpu", "device.driver == 'd'"),
        slice_of("n0", "d", "a", "b"),
        claim("one", "gpu"),
    ):
        found.handle(Changed(None, each))
    pods = [wants(f"p{i}", "one") for i in range(3)]
    for pod in pods:
        found.set_pod(pod)
    first = binds(found.cycle(NOW))
    assert list(first.values()) == ["n0", "n0"]
    for name in first:
        pod = next(each for each in pods if each.metadata.name == name)
        found.set_pod(as_bound(pod, "n0", {names.JOBID: "7"}))
    assert found.cycle(NOW + 1).binds == []
    found.handle(Changed(None, slice_of("n1", "d", "a")))  # a driver comes up
    assert list(binds(found.cycle(NOW + 2)).values()) == ["n1"]


def test_devices_that_go_are_not_planned_with_any_more() -> None:
    found = driver(node("n0", 8))
    there = slice_of("n0", "d", "a")
    for each in (device_class("gpu", "device.driver == 'd'"), there, claim("one", "gpu")):
        found.handle(Changed(None, each))
    found.handle(Changed(there, None))
    found.set_pod(wants("p", "one"))
    assert found.cycle(NOW).binds == []
