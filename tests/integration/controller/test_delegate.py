"""Pods that kube-scheduler binds where the plan says: the gate goes and the pin comes in one patch."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from fluence import names
from fluence.kube.client import Client
from fluence.kube.releases import DEFAULT, release
from fluence.kube.resource import PODS, Json, Resource
from fluence.sandbox.auditor import ask
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube, namespace_in
from tests.integration.controller.doors import (
    doors,
    held_job,
    held_pod,
    held_set,
    serve_flux_jobs,
    submit,
    until_flux_job,
    until_phase,
)
from tests.integration.schedule.field import Field, field

VERSION = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT)
THEIRS = names.KUBE_SCHEDULER


def dra(plural: str, kind: str, *, namespaced: bool) -> Resource[Json]:
    return Resource("resource.k8s.io", "v1", plural, kind, dict[str, object], namespaced=namespaced)


SLICES = dra("resourceslices", "ResourceSlice", namespaced=False)
CLASSES = dra("deviceclasses", "DeviceClass", namespaced=False)
TEMPLATES = dra("resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True)


@pytest.fixture(scope="module")
def with_kube_scheduler() -> Iterator[Sandbox]:
    """A control plane with kube-scheduler, of this worker's own."""
    box, wanted = Sandbox(f"theirs-{os.getpid()}"), release(VERSION)
    box.up(find_programs(wanted, report=lambda progress: None), wanted, scheduler=True, owned=True)

    async def prepare() -> None:
        async with Client(box.access()) as client:
            await serve_flux_jobs(client)

    try:
        assert not asyncio.run(ask(box.at.folder)).findings  # as soon as it is up
        asyncio.run(prepare())
        yield box
    finally:
        box.down()


@pytest.fixture
def their_kube(with_kube_scheduler: Sandbox) -> Iterator[Kube]:
    with namespace_in(with_kube_scheduler) as found:
        yield found
    report = asyncio.run(ask(with_kube_scheduler.at.folder))
    faults = [str(each) for each in report.findings if found.namespace in str(each)]
    assert not faults, faults


async def test_a_pod_is_pinned_and_let_go_in_one_patch_and_kube_scheduler_binds_it(
    their_kube: Kube,
) -> None:
    async with field(their_kube, 3) as f, doors(f):
        terms = [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [f.nodes[0]]}]},
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        affinity = {"nodeAffinity": required}
        await f.add(
            held_pod(f, "plain", schedulerName=THEIRS),
            held_pod(f, "choosy", schedulerName=THEIRS, affinity=affinity),
        )
        pods = await f.until_bound(["plain", "choosy"])
        for name in ("plain", "choosy"):
            raw: Any = await f.client.get(PODS.raw(), name, namespace=f.namespace)
            found = raw["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
            for term in found["nodeSelectorTerms"]:
                pins = [each["values"] for each in term["matchFields"] if each["operator"] == "In"]
                assert pins == [[pods[name].spec.node_name]]
            assert pods[name].annotations[names.JOBID] == pods[name].labels[names.FLUXQUEUE_JOBID]
            told = await until_phase(f, f"{name}-pod", "Running")
            assert told.status.nodes == [pods[name].spec.node_name]


async def test_a_delegated_job_and_deployment_start_whole_on_the_nodes_of_the_plan(
    their_kube: Kube,
) -> None:
    async with field(their_kube, 2) as f, doors(f):
        await submit(f, held_job(f, "dj", 3, cpu="2", schedulerName=THEIRS))
        pods = await f.until_bound(3)
        for pod in pods.values():
            assert pod.spec.scheduler_name == THEIRS and not pod.is_gated
        await submit(f, held_set(f, "Deployment", "dd", 2, schedulerName=THEIRS, cpu="1"))
        await f.until_bound(5)
        await until_phase(f, "dj-job", "Running")
        await until_phase(f, "dd-deployment", "Running")


async def test_what_kube_scheduler_refuses_waits_pinned_is_told_and_keeps_its_seat_over_a_restart(
    their_kube: Kube,
) -> None:
    """A class whose devices cannot be counted: the plan does not guess, and kube-scheduler finds none."""
    async with field(their_kube, 1) as f:
        await devices(f, count=0, expression="device.driver.startsWith('none')")
        async with doors(f):
            await f.add(held_pod(f, "wants", schedulerName=THEIRS, **claims("one", cpu="3")))
            found = await until_flux_job(
                f,
                "wants-pod",
                lambda each: each is not None and each.status.reason == "RefusedByKubeScheduler",
                "is told what kube-scheduler says",
            )
            assert found is not None and f.nodes[0] in found.status.message
            assert found.status.phase == "Starting"
        async with doors(f):
            await f.add(held_pod(f, "other", cpu="3"))
            await until_phase(f, "other-pod", "Pending", "Reserved")
            await f.settled(quiet_s=1.0)
            assert await f.homes() == {"wants": None, "other": None}  # the seat is held
            await f.end("wants")
            await f.until_bound(["other"])


async def test_a_refused_pod_is_taken_back_only_where_its_owner_makes_it_anew_and_its_user_allows_it(
    their_kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fluence.controller.unstarted.AFTER_S", 1.0)
    async with field(their_kube, 1) as f:
        await devices(f, count=0, expression="device.driver.startsWith('none')")
        body: Any = held_set(f, "ReplicaSet", "rs", 1, schedulerName=THEIRS, **claims("one"))
        body["spec"]["template"]["metadata"]["annotations"] = {names.TAKE_BACK: "delete"}
        async with doors(f):
            await submit(f, body)
            pods = await f.until(lambda pods: any(not pod.is_gated for pod in pods.values()), "handed over")
            first = set(pods)
            await f.until(lambda pods: bool(pods) and not first & set(pods), "made anew")


async def test_a_claim_for_devices_that_no_node_has_is_never_handed_over(their_kube: Kube) -> None:
    async with field(their_kube, 1) as f, doors(f):
        await devices(f, count=0)
        await f.add(held_pod(f, "wants", schedulerName=THEIRS, **claims("one")))
        await until_phase(f, "wants-pod", "Unschedulable")
        assert (await f.pods())["wants"].is_gated


async def test_a_pod_with_a_claim_is_bound_by_kube_scheduler_where_the_plan_said(
    their_kube: Kube,
) -> None:
    async with field(their_kube, 2) as f, doors(f):
        await devices(f, count=2, node=1)
        for index in range(3):
            await f.add(held_pod(f, f"c{index}", schedulerName=THEIRS, **claims("one")))
        pods = await f.until_bound(2)
        assert {pod.spec.node_name for pod in pods.values()} <= {f.nodes[1], None}
        homes = await f.settled(quiet_s=1.5)
        assert sorted(filter(None, homes.values())) == [f.nodes[1]] * 2
        waits = next(name for name, node in homes.items() if node is None)
        assert (await f.pods())[waits].is_gated, "a device that is not there was planned"
        await f.end(next(name for name, node in homes.items() if node))
        await f.until_bound([waits])


def claims(name: str, cpu: str = "100m") -> dict[str, Any]:
    return {
        "resourceClaims": [{"name": name, "resourceClaimTemplateName": name}],
        "containers": [
            {
                "name": "c",
                "image": "none",
                "resources": {"requests": {"cpu": cpu}, "claims": [{"name": name}]},
            }
        ],
    }


async def devices(f: Field, *, count: int, node: int = 0, expression: str = "") -> None:
    """A fake driver's devices on a node, its class, and a template for a claim of one; real objects."""
    driver = f"dev-{f.nodes[0]}.example.org"
    where = f.nodes[node]
    kind: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": driver},
        "spec": {"selectors": [{"cel": {"expression": expression or f"device.driver == '{driver}'"}}]},
    }
    await f.client.create(CLASSES, kind)
    found: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{where}-devices"},
        "spec": {
            "driver": driver,
            "nodeName": where,
            "pool": {"name": where, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": f"d{index}", "attributes": {"model": {"string": "a"}}} for index in range(count)
            ],
        },
    }
    await f.client.create(SLICES, found)
    template: Json = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one"},
        "spec": {
            "spec": {
                "devices": {"requests": [{"name": "dev", "exactly": {"deviceClassName": driver, "count": 1}}]}
            }
        },
    }
    await f.client.delete(TEMPLATES, "one", namespace=f.namespace)
    await f.client.create(TEMPLATES, template, namespace=f.namespace)
