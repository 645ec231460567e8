"""Volumes that are bound when their first pod has a node, on a real control plane."""

from __future__ import annotations

import asyncio
from typing import Any

from click.testing import CliRunner

from fluence.cli import main
from fluence.kube.resource import CSI_NODES, PODS
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.schedule.disks import HOST, PROVISIONER, disks, mounts
from tests.integration.schedule.field import Field, field


def explain(f: Field, *words: str) -> str:
    config = str(f.kube.sandbox.at.kubeconfig())
    where = ["--kubeconfig", config, "-n", f.namespace, "--scheduler-name", f.name]
    done = CliRunner().invoke(main, ["explain", *words, *where])
    assert done.exit_code == 0, done.output
    return done.stdout


async def test_a_pod_is_bound_when_its_volume_was_made_on_the_node_chosen_for_it(
    kube: Kube, audited: None
) -> None:
    async with field(kube, 2) as f, disks(f) as d, f.scheduler() as live:
        d.paused = True
        await d.add("data")
        await f.add(f.pod("p", volumes=mounts("data")))
        await d.until_chosen()
        said = await f.until_told("p", reason="WaitingForVolumes")
        assert (await f.homes())["p"] is None
        node = (await d.claims())["data"].selected_node
        assert said == f"Waiting for persistentvolumeclaim data to be provisioned on node {node}."
        shown = await asyncio.to_thread(explain, f, "pod", "p")
        assert shown.startswith(f"pod {f.namespace}/p: Starting\n") and said.removesuffix(".") in shown
        assert "nothing:" not in shown, "it waits for its claim: to say that nothing is in its way is wrong"
        d.paused = False
        assert (await f.until_bound(["p"]))["p"].spec.node_name == node
        claim = (await d.claims())["data"]
        assert claim.status.phase == "Bound" and claim.selected_node == node
        await eventually(lambda: live.scheduler.state.volumes.active, {})


async def test_a_gang_starts_when_all_its_volumes_are_made(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, disks(f) as d, f.scheduler():
        slow = asyncio.Event()
        d.refuses = lambda claim, node: False
        make = d.add_volume

        async def add_volume(name: str, node: str, **spec: Any) -> None:
            if spec["claimRef"]["name"] == "data-2":
                await slow.wait()
            await make(name, node, **spec)

        d.add_volume = add_volume  # type: ignore[method-assign]
        await f.add_group("g", 3)
        await d.add("data-0", "data-1", "data-2")
        await f.add(*(f.pod(f"g-{i}", group="g", cpu="3", volumes=mounts(f"data-{i}")) for i in range(3)))
        await d.until_chosen(3)
        homes = await f.settled()
        assert not any(homes.values()), "two of three claims are bound, and nobody may start"
        slow.set()
        pods = await f.until_bound(3)
        assert len({pod.spec.node_name for pod in pods.values()}) == 3


async def test_a_node_that_the_provisioner_turns_down_is_left_out(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, disks(f) as d, f.scheduler():
        refused: list[str] = []

        def refuses(claim: str, node: str) -> bool:
            if not refused or node in refused:
                refused.append(node)
                return True
            return False

        d.refuses = refuses
        await d.add("data")
        await f.add(f.pod("p", volumes=mounts("data")))
        home = (await f.until_bound(["p"]))["p"].spec.node_name
        assert len(refused) == 1 and home not in refused
        assert (await d.claims())["data"].selected_node == home


async def test_a_volume_that_is_not_made_in_time_is_tried_elsewhere(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, disks(f) as d, f.scheduler(volume_timeout=1.0):
        d.paused = True
        await d.add("data")
        await f.add(f.pod("p", volumes=mounts("data")))
        await d.until_chosen()
        first = (await d.claims())["data"].selected_node
        await eventually(
            d.claims,
            lambda claims: claims["data"].selected_node not in (first, None),
            what=f"another node than {first} is chosen",
        )
        d.paused = False
        assert (await f.until_bound(["p"]))["p"].spec.node_name != first


async def test_allowed_topologies_of_a_class_choose_the_node(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f:
        where = [{"matchLabelExpressions": [{"key": HOST, "values": [f.nodes[1]]}]}]
        async with disks(f, allowedTopologies=where) as d, f.scheduler():
            await d.add("data", "more")
            await f.add(f.pod("p", volumes=mounts("data")))
            assert (await f.until_bound(["p"]))["p"].spec.node_name == f.nodes[1]
            await f.add(f.pod("q", cpu="4", volumes=mounts("more")))
            await f.until_told("q", f"persistent volumes to bind (storage class {d.kind})")


async def test_local_volumes_that_are_there_are_given_to_one_claim_each(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, disks(f, provisioner="kubernetes.io/no-provisioner") as d:
        for index, size in enumerate(("2Gi", "9Gi")):
            await d.add_volume(f"a{index}-{f.namespace}", f.nodes[0], size=size)
        await d.add_volume(f"b-{f.namespace}", f.nodes[2], size="5Gi")
        async with f.scheduler():
            await f.add_group("g", 3)
            await d.add("data-0", "data-1", "data-2", "data-3")
            await f.add(*(f.pod(f"g-{i}", group="g", volumes=mounts(f"data-{i}")) for i in range(3)))
            homes = {name: pod.spec.node_name for name, pod in (await f.until_bound(3)).items()}
            assert sorted(map(str, homes.values())) == [f.nodes[0], f.nodes[0], f.nodes[2]]
            given = {claim.spec.volume_name for claim in (await d.claims()).values()} - {None}
            assert given == set(d.made)
            await f.add(f.pod("late", volumes=mounts("data-3")))
            await f.until_told("late", f"persistent volumes to bind (storage class {d.kind})")
            await d.add_volume(f"c-{f.namespace}", f.nodes[1])
            assert (await f.until_bound(["late"]))["late"].spec.node_name == f.nodes[1]


async def test_pods_that_share_a_claim_share_a_node(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, disks(f) as d, f.scheduler():
        await f.add(f.pod("fills", cpu="2", nodeName=f.nodes[2]))
        await f.add_group("g", 3)
        await d.add("data")
        await f.add(*(f.pod(f"g-{i}", group="g", volumes=mounts("data")) for i in range(3)))
        pods = await f.until_bound(4)
        homes = {pod.spec.node_name for name, pod in pods.items() if name != "fills"}
        assert len(homes) == 1 and d.chosen == [("data", homes.pop())]


async def test_a_claim_for_one_pod_makes_the_next_one_wait(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, disks(f) as d, f.scheduler():
        await d.add("data", modes=("ReadWriteOncePod",))
        await f.add(f.pod("p", volumes=mounts("data")))
        await f.until_bound(["p"])
        await f.add(f.pod("q", volumes=mounts("data")))
        await f.until_told("q", "ReadWriteOncePod and in use by pod")
        await f.client.delete(PODS, "p", namespace=f.namespace, grace_s=0)
        await f.until_bound(["q"])


async def test_a_restart_between_the_choice_and_the_bind_finds_it_again(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, disks(f) as d:
        d.paused = True
        await f.add_group("g", 2)
        await d.add("data-0", "data-1")
        async with f.scheduler():
            await f.add(*(f.pod(f"g-{i}", group="g", volumes=mounts(f"data-{i}")) for i in range(2)))
            await d.until_chosen(2)
        d.paused = False
        await eventually(
            d.claims,
            lambda claims: all(claim.status.phase == "Bound" for claim in claims.values()),
            what="the volumes are made while nobody schedules",
        )
        chosen = {name: claim.selected_node for name, claim in (await d.claims()).items()}
        async with f.scheduler():
            pods = await f.until_bound(2)
        assert {f"data-{i}": pods[f"g-{i}"].spec.node_name for i in range(2)} == chosen


async def test_a_restart_before_the_volume_is_made_goes_on(kube: Kube, audited: None) -> None:
    async with field(kube, 3) as f, disks(f) as d:
        d.paused = True
        await d.add("data")
        async with f.scheduler():
            await f.add(f.pod("p", volumes=mounts("data")))
            await d.until_chosen()
        async with f.scheduler():
            assert (await f.settled(quiet_s=0.5))["p"] is None
            d.paused = False
            home = (await f.until_bound(["p"]))["p"].spec.node_name
        assert (await d.claims())["data"].selected_node == home


async def test_volumes_made_for_one_pod_alone(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, disks(f) as d, f.scheduler():
        volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": d.claim_spec()}}}
        await f.add(f.pod("p", volumes=[volume]))
        home = (await f.until_bound(["p"]))["p"].spec.node_name
        assert d.chosen == [("p-scratch", home)]
        await d.add("q-scratch")  # somebody's own, under the name that the pod's would have
        await f.add(f.pod("q", volumes=[volume]))
        await f.until_told("q", '"q-scratch" was not created for this pod')


async def test_a_node_gets_no_more_volumes_than_its_driver_can_attach(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, disks(f) as d, f.scheduler():
        for node in f.nodes:
            drivers = [{"name": PROVISIONER, "nodeID": node, "allocatable": {"count": 1}}]
            body = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}}
            await f.client.create(CSI_NODES.raw(), {**body, "spec": {"drivers": drivers}})
        try:
            await d.add("data-0", "data-1", "data-2")
            await f.add(*(f.pod(f"p-{i}", volumes=mounts(f"data-{i}")) for i in range(2)))
            pods = await f.until_bound(2)
            assert {pod.spec.node_name for pod in pods.values()} == set(f.nodes)
            await f.add(f.pod("p-2", volumes=mounts("data-2")), f.pod("plain"))
            await f.until_bound(["plain"])
            await f.until_told("p-2", f"2 node(s) exceed max volume count ({PROVISIONER})")
            await f.client.delete(PODS, "p-0", namespace=f.namespace, grace_s=0)
            await f.until_bound(["p-2"])
        finally:
            for node in f.nodes:
                await f.client.delete(CSI_NODES, node)


async def test_a_pod_that_goes_away_while_it_waits_takes_its_choice_back(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, disks(f) as d, f.scheduler() as live:
        d.paused = True
        await d.add("data")
        await f.add(f.pod("p", volumes=mounts("data")))
        await d.until_chosen()
        await f.client.delete(PODS, "p", namespace=f.namespace, grace_s=0)
        await eventually(d.claims, lambda claims: claims["data"].selected_node is None, what="not chosen")
        state = live.scheduler.state
        await eventually(lambda: (state.volumes.active, state.cluster.jobs), ({}, {}))
