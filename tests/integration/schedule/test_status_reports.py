"""What users are told: conditions and events on real objects, once per change."""

from __future__ import annotations

import asyncio

import pytest

from fluence.kube.resource import EVENTS, PODS
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.field import Field, field


async def failures(f: Field) -> list[object]:
    events = await f.client.list(EVENTS, namespace=f.namespace)
    return [each for each in events.items or () if each["reason"] == "FailedScheduling"]


async def test_a_waiting_pod_is_told_why_once_per_change(kube: Kube, audited: None) -> None:
    """Checklist 8 and 43."""
    async with field(kube, 1) as f, f.through():
        await f.add(f.pod("p", cpu="32"))

        def told(pods: dict[str, object]) -> bool:
            condition = pods["p"].condition("PodScheduled")  # type: ignore[attr-defined]
            return condition is not None and "cannot start on this cluster" in condition.message

        pod = (await f.until(told, "a reason"))["p"]  # type: ignore[arg-type]
        condition = pod.condition("PodScheduled")
        assert condition is not None
        assert (condition.status, condition.reason) == ("False", "Unschedulable")
        assert "Insufficient cpu (32 requested, node too small)" in condition.message
        for index in range(4):  # others come and go
            await f.add(f.pod(f"other-{index}"))
            await asyncio.sleep(0.2)
        assert f.proxy.count("patch", "pods/p/status") == 1
        found = await eventually(lambda: failures(f))
        assert len(found) == 1, found


async def test_the_condition_of_a_gate_that_opened_is_replaced(kube: Kube, audited: None) -> None:
    """Checklist 7."""
    async with field(kube, 1) as f, f.scheduler():
        await f.add(f.pod("p", cpu="32", schedulingGates=[{"name": "example.com/wait"}]))
        await f.client.patch(PODS, "p", {"spec": {"schedulingGates": None}}, namespace=f.namespace)
        await f.until(
            lambda pods: (
                (c := pods["p"].condition("PodScheduled")) is not None and c.reason == "Unschedulable"
            ),
            "the condition is replaced",
        )


async def test_a_groups_condition_goes_from_false_to_true_and_stays(kube: Kube, audited: None) -> None:
    """Checklist 15."""
    async with field(kube, 1) as f, f.scheduler():
        resource = f.gangs.resource
        assert resource is not None
        if f.gangs.condition is None:
            pytest.skip("a Workload of 1.35 has no status")

        async def condition() -> tuple[str, str] | None:
            item = await f.client.get(resource.raw(), "g", namespace=f.namespace)
            found = item.get("status", {}).get("conditions", [])  # type: ignore[attr-defined]
            return next(((c["status"], c["reason"]) for c in found if c["type"] == f.gangs.condition), None)

        await f.add_group("g", 2)
        await f.add(f.pod("g-0", group="g", cpu="3"), f.pod("g-1", group="g", cpu="3"))
        await eventually(condition, ("False", "Unschedulable"))
        await f.client.delete(PODS, "g-1", namespace=f.namespace, grace_s=0)
        await f.add(f.pod("g-2", group="g", cpu="1"))
        await eventually(condition, ("True", "Scheduled"))
        await f.client.delete(PODS, "g-2", namespace=f.namespace, grace_s=0)
        await f.add(f.pod("g-3", group="g", cpu="4"))
        await f.until_told("g-3")
        await asyncio.sleep(0.5)
        assert await condition() == ("True", "Scheduled")
