"""PodGroups that ask for one topology domain, on a control plane whose gate for that is on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from fluence.kube.client import Client
from fluence.kube.releases import DEFAULT, release
from fluence.kube.resource import PODS
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.rights import make_namespace
from tests.integration.schedule.field import field

RACK = "topology.example/rack"


@pytest.fixture
def gated() -> Iterator[Kube]:
    """TopologyAwareWorkloadScheduling is alpha and off, so this needs a control plane of its own."""
    version = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT)
    wanted = release(version)
    box = Sandbox(f"topology-{os.getpid()}")
    programs = find_programs(wanted, report=lambda progress: None)
    box.up(programs, wanted, audit=False, gates={"TopologyAwareWorkloadScheduling": True}, owned=True)
    try:
        asyncio.run(_prepare(box, "t-racks"))
        yield Kube(box, "t-racks", version)
    finally:
        box.down()


async def _prepare(box: Sandbox, name: str) -> None:
    async with Client(box.access()) as client:
        await make_namespace(client, name)


@pytest.mark.release
async def test_a_gang_is_in_one_rack_and_so_are_those_who_join_it(gated: Kube) -> None:
    async with field(gated, 5) as f, f.scheduler() as live:
        racks = dict(zip(f.nodes, "abbcc", strict=True))
        for name, rack in racks.items():
            await f.patch_node(name, {"metadata": {"labels": {RACK: rack}}})
        (other,) = await f.add(f.pod("other", nodeName=f.nodes[4]))
        cluster = live.scheduler.state.cluster
        await eventually(
            lambda: {name: cluster.nodes[name].labels.get(RACK) for name in f.nodes},
            racks,
            what="the racks are seen",
        )
        await eventually(lambda: other.metadata.uid in cluster.pods.entries, what="the other pod is seen")
        await f.add_group("g", 4, topology_key=RACK)
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="2") for i in range(4)))
        pods = await f.until_bound([f"g-{i}" for i in range(4)])
        assert {racks[pods[f"g-{i}"].spec.node_name or ""] for i in range(4)} == {"b"}
        await f.add(f.pod("g-4", group="g"))  # there is room in the other racks only
        await f.until_told("g-4", f"No single {RACK} fits the group")
        await f.client.delete(PODS, "g-0", namespace=f.namespace, grace_s=0)
        pods = await f.until_bound(["g-4"])
        assert racks[pods["g-4"].spec.node_name or ""] == "b"
        await f.add_group("big", 6, topology_key=RACK)
        await f.add(*(f.pod(f"big-{i}", group="big", cpu="2") for i in range(6)))
        await f.until_told("big-0", f"No single {RACK} fits the group")
