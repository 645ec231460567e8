"""Two namespaces: one does all that it may to hold the other up, and the other only behaves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Iterable

import pytest

from fluence import names
from fluence.kube.resource import NAMESPACES, PODS, Json
from fluence.sandbox.testing import Kube
from tests.integration.adversary.tenants import busy
from tests.integration.rights import make_namespace
from tests.integration.schedule.field import Field, field

MANY = 5000 if os.environ.get("FLUENCE_SOAK") else 300
WITHIN_S = 10.0  # what a pod that fits waits for, at most, whatever the neighbour does


class Neighbours:
    """The field's own namespace is the bad one."""

    def __init__(self, f: Field, good: str) -> None:
        self.f, self.good = f, good

    async def add_good(self, *pods: Json) -> None:
        for pod in pods:
            await self.f.client.create(PODS, pod, namespace=self.good)

    async def flood(self, pods: Iterable[Json]) -> None:
        gate = asyncio.Semaphore(32)

        async def add(pod: Json) -> None:
            async with gate:
                await self.f.add(pod)

        async with asyncio.TaskGroup() as tasks:
            for pod in pods:
                tasks.create_task(add(pod))

    async def until_good(self, *wanted: str, within_s: float = WITHIN_S) -> float:
        """Wait until these have a node; how long that took."""
        began, found = time.monotonic(), set[str]()
        while not found.issuperset(wanted):
            waited = time.monotonic() - began
            is_late = waited >= within_s and waited >= within_s * busy()
            assert not is_late, f"{set(wanted) - found} wait since {waited:.1f} s"
            await asyncio.sleep(0.1)
            page = await self.f.client.list(PODS, namespace=self.good)
            found = {pod.metadata.name for pod in page.items or () if pod.spec.node_name}
        return time.monotonic() - began


@contextlib.asynccontextmanager
async def neighbours(kube: Kube, nodes: int, **options: object) -> AsyncIterator[Neighbours]:
    async with field(kube, nodes) as f:
        good = f"{f.namespace}-good"
        await make_namespace(f.client, good)
        try:
            async with f.scheduler(**options):  # type: ignore[arg-type]
                yield Neighbours(f, good)
        finally:
            await f.client.delete(NAMESPACES.raw(), good)


def member(f: Field, group: str, size: int, name: str, duration: str = "1h", **spec: object) -> Json:
    return f.pod(
        name,
        labels={names.GROUP_LABEL: group},
        annotations={names.GROUP_SIZE: str(size), names.DURATION: duration},
        **spec,  # type: ignore[arg-type]
    )


async def test_a_lie_about_the_time_that_it_takes(kube: Kube, audited: None) -> None:
    """A small pod said 5 s and runs on, and a gang that wants all nodes is planned behind it."""
    async with neighbours(kube, 3) as both:
        f = both.f
        await f.add(f.pod("liar", cpu="100m", annotations={names.DURATION: "5s"}))
        await f.until_bound(["liar"])
        await f.add(*(member(f, "wide", 3, f"wide-{i}", cpu="3950m") for i in range(3)))
        await f.until_told("wide-0", "Insufficient cpu")
        await both.add_good(f.pod("small", cpu="1"))
        await both.until_good("small", within_s=60.0)  # 5 s, 30 s to end, and the next cycle
        # It is not believed twice.
        await f.add(f.pod("again", cpu="100m", annotations={names.DURATION: "5s"}))
        await both.add_good(f.pod("next", cpu="1"))
        await both.until_good("next")


async def test_gangs_that_always_lack_a_member(kube: Kube, audited: None) -> None:
    async with neighbours(kube, 2) as both:
        await both.flood(member(both.f, f"g{i}", 2, f"g{i}-0") for i in range(MANY))
        await both.add_good(both.f.pod("single"), *(member(both.f, "g0", 2, f"gang-{i}") for i in range(2)))
        await both.until_good("single", "gang-0", "gang-1")


async def test_pods_behind_gates(kube: Kube, audited: None) -> None:
    gates = [{"name": "example.com/hold"}]
    async with neighbours(kube, 2) as both:
        await both.flood(member(both.f, f"g{i // 2}", 2, f"g{i}", schedulingGates=gates) for i in range(MANY))
        await both.add_good(both.f.pod("single"))
        await both.until_good("single")


@pytest.mark.parametrize("policy", ["easy", "conservative"])
async def test_a_long_queue_of_gangs_that_are_all_different(kube: Kube, audited: None, policy: str) -> None:
    async with neighbours(kube, 4, queue_policy=policy) as both:
        f = both.f
        await f.add(*(member(f, "all", 4, f"all-{i}", cpu="3") for i in range(4)))
        await f.until_bound(4)
        await both.flood(
            member(f, f"g{i // 2}", 2, f"g{i}", f"{3600 + i}s", cpu=f"{2000 + i // 2}m")
            for i in range(min(MANY, 2000))
        )
        await both.add_good(f.pod("small", cpu="100m", annotations={names.DURATION: "10m"}))
        await both.until_good("small")


async def test_equal_names_everywhere(kube: Kube, audited: None) -> None:
    """Groups, pods and jobs of one name in two namespaces have nothing to do with each other."""
    async with neighbours(kube, 2) as both:
        f = both.f
        await f.add(member(f, "g", 3, "g-0"), member(f, "g", 3, "g-1"))
        await both.add_good(member(f, "g", 3, "g-2"))
        await f.until_told("g-0", reason="WaitingForGroup")
        await asyncio.sleep(1)
        assert set((await f.homes()).values()) == {None}  # two here and one there are no three
        await both.add_good(member(f, "g", 3, "g-0"), member(f, "g", 3, "g-1"))
        await both.until_good("g-0", "g-1", "g-2")
        assert set((await f.homes()).values()) == {None}


async def test_annotations_as_large_as_the_server_takes(kube: Kube, audited: None) -> None:
    large = json.dumps({"hostlist": ["x" * 60_000]})
    async with neighbours(kube, 2) as both:
        f = both.f
        await both.flood(f.pod(f"p{i}", annotations={names.CONSTRAINTS: large}) for i in range(50))
        await both.add_good(f.pod("single"))
        await both.until_good("single")
        assert set((await f.homes()).values()) == {None}
        await f.until_told("p49")
