"""Devices that can be counted are, others are left to kube-scheduler, and none is planned twice."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.model.claims import (
    MAX_KINDS,
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
from fluence.model.reason import Code
from fluence.schedule import dra as dynamic_resources
from fluence.schedule.dra import DynamicResources, conditions
from fluence.schedule.events import Changed
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held import NOW, as_bound, binds, driver, gated, held, node, template


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
    for each in objects:
        if isinstance(each, ResourceClaimTemplate):
            found.set_pod(wants(f"user-of-{each.metadata.name}", each.metadata.name))
    found.settle()
    return found


def test_a_node_has_its_devices_and_a_pod_asks_for_them() -> None:
    found = counted(
        device_class("gpu", "device.driver == 'd'"), slice_of("n0", "d", "a", "b"), claim("one", "gpu")
    )
    assert (found.set_node(node("n0")).status.allocatable or {})["dra/gpu"] == "2"
    assert found.set_node(node("n1")) == node("n1")
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
    assert (found.set_node(node("n0")).status.allocatable or {})["dra/gpu"] == "2"
    assert "dra/gpu" not in (found.set_node(node("n1")).status.allocatable or {})


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
    assert (found.set_node(node("n0")).status.allocatable or {})[narrow] == "1"
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


# -- many templates ------------------------------------------------------------------------------------------

NODES, DEVICES = 3, 8
FLAGS = [f"a{i}" for i in range(8)]


class Work:
    """How often devices were held against what is asked for, and nodes and pods handed to the cluster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.comparisons = self.nodes = self.pods = 0
        satisfies, set_node, set_pod = (
            dynamic_resources.satisfies,
            ClusterGraph.set_node,
            ClusterGraph.set_pod,
        )

        def count_comparison(*args: Any) -> bool:
            self.comparisons += 1
            return satisfies(*args)

        def count_node(*args: Any) -> None:
            self.nodes += 1
            set_node(*args)

        def count_pod(*args: Any) -> Any:
            self.pods += 1
            return set_pod(*args)

        monkeypatch.setattr(dynamic_resources, "satisfies", count_comparison)
        monkeypatch.setattr(ClusterGraph, "set_node", count_node)
        monkeypatch.setattr(ClusterGraph, "set_pod", count_pod)

    def take(self) -> tuple[int, int, int]:
        """Comparisons, nodes and pods since the last call."""
        found = (self.comparisons, self.nodes, self.pods)
        self.comparisons = self.nodes = self.pods = 0
        return found


def subsets(count: int) -> list[str]:
    """Selectors, each of other attributes than the others."""
    chosen = [some for size in range(1, 9) for some in combinations(FLAGS, size)][:count]
    return [" && ".join(f"device.attributes['d'].{each} == true" for each in some) for some in chosen]


def with_flags() -> Driver:
    """A cluster whose devices have many attributes."""
    found = driver(*(node(f"n{i}", 64) for i in range(NODES)))
    attributes = {each: DeviceAttribute(flag=True) for each in FLAGS}
    devices = [SliceDevice(name=f"d{i}", attributes=attributes) for i in range(DEVICES)]
    for i in range(NODES):
        spec = SliceSpec(driver="d", node_name=f"n{i}", pool=DevicePool(name=f"n{i}"), devices=devices)
        found.handle(Changed(None, ResourceSlice(metadata=ObjectMeta(name=f"s{i}"), spec=spec)))
    found.handle(Changed(None, device_class("gpu", "device.driver == 'd'")))
    found.cycle(NOW)
    return found


def test_templates_that_nobody_uses_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, work = with_flags(), Work(monkeypatch)
    for i, text in enumerate(subsets(200)):
        found.handle(Changed(None, claim(f"t{i}", "gpu", 1, text)))
    found.cycle(NOW + 1)
    assert work.take() == (0, 0, 0)


def test_a_template_that_changes_costs_what_its_own_pods_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = with_flags()
    found.handle(Changed(None, claim("mine", "gpu", 1, "device.attributes['d'].none == true")))
    found.handle(Changed(None, claim("other", "gpu", 1, "device.attributes['d'].a0 == true")))
    found.set_pod(wants("p", "mine"))
    found.set_pod(wants("q", "other"))
    found.cycle(NOW + 1)
    work = Work(monkeypatch)
    found.handle(Changed(None, claim("mine", "gpu", 1, "device.attributes['d'].less == true")))
    found.cycle(NOW + 2)
    assert work.take() == (NODES * DEVICES, 0, 0)  # of neither there is a device, so nothing looks different
    found.handle(Changed(None, claim("mine", "gpu", 2, "device.attributes['d'].less == true")))
    found.cycle(NOW + 3)
    assert work.take() == (0, 0, 1)


def test_many_templates_with_pods_cost_no_more_than_the_kinds_of_a_namespace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, work = with_flags(), Work(monkeypatch)
    for i, text in enumerate(subsets(200)):
        found.handle(Changed(None, claim(f"t{i}", "gpu", 1, text)))
        found.set_pod(wants(f"p{i}", f"t{i}"))
    decisions = found.cycle(NOW + 1)
    comparisons, nodes, _ = work.take()
    assert comparisons == MAX_KINDS * NODES * DEVICES
    assert nodes == NODES
    assert len(binds(decisions)) == MAX_KINDS
    told = {reason.code for each in decisions.waiting for reason in each.report.reasons}
    assert told == {Code.TOO_MANY_DEVICE_KINDS}


def test_who_is_beyond_the_bound_starts_when_another_kind_is_gone() -> None:
    found = with_flags()
    texts = subsets(MAX_KINDS + 1)
    for i, text in enumerate(texts):
        found.handle(Changed(None, claim(f"t{i}", "gpu", 1, text)))
    pods = [wants(f"p{i}", f"t{i}") for i in range(len(texts))]
    for pod in pods:
        found.set_pod(pod)
    assert "p16" not in binds(found.cycle(NOW + 1))
    found.remove_pod(pods[0])
    assert "p16" in binds(found.cycle(NOW + 2))


def test_the_names_of_kinds_are_used_again() -> None:
    """A cluster keeps a place for everything that its nodes ever had."""
    found = with_flags()
    for i, text in enumerate(subsets(100)):
        found.handle(Changed(None, claim("t", "gpu", 1, text)))
        pod = wants(f"p{i}", "t")
        found.set_pod(pod)
        found.cycle(NOW + i)
        found.remove_pod(pod)
    made = {type_ for each in found.cluster._vertices.nodes.values() for type_ in each.pools}
    assert sorted(each for each in made if each.startswith("dra/")) == ["dra/gpu-1"]


def test_pods_that_a_held_job_is_still_to_make_ask_for_their_devices() -> None:
    found = driver(node("n0", 8))
    claims = [PodResourceClaim(name="c", resource_claim_template_name="one")]
    made = template("100m", scheduler=names.KUBE_SCHEDULER, resource_claims=claims)
    found.set_owner(held("j", 2, template=made))
    for each in (device_class("gpu", "device.driver == 'd'"), slice_of("n0", "d", "a"), claim("one", "gpu")):
        found.handle(Changed(None, each))
    assert found.cycle(NOW).releases == []  # two pods, and one device
    found.handle(Changed(None, slice_of("n0", "d", "a", "b")))
    assert len(found.cycle(NOW + 1).releases) == 1
