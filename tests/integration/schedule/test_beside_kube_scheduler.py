"""The same pods on one control plane, by kube-scheduler and by Fluence: both say and do the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from fluence import names
from fluence.kube.client import Client
from fluence.kube.releases import release
from fluence.kube.resource import DEPLOYMENTS, EVENTS, NAMESPACES, NODES, PODS, SERVICES, Json
from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.nodes import NodeKind
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import eventually
from tests.integration.conftest import VERSION
from tests.integration.rights import make_namespace

SCHEDULERS = ("default-scheduler", "fluence")
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    found = Sandbox(f"beside-{os.getpid()}")
    wanted = release(VERSION)
    programs = find_programs(wanted, report=lambda progress: None)
    found.up(programs, wanted, scheduler=True, audit=False, owned=True)
    try:
        found.add_nodes([NodeKind(name=f"zone-{zone}", count=3, cpu=8, labels={ZONE: zone}) for zone in "ab"])
        yield found
    finally:
        found.down()


class Space:
    """A namespace of one test's own, whose pods go when the test is over."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    async def add(self, name: str, scheduler: str, **more: Any) -> None:
        meta = {"name": name, "labels": more.pop("labels", {}), "annotations": more.pop("notes", {})}
        body = {"metadata": meta, "spec": spec(scheduler, **more)}
        await self.client.create(PODS, body, namespace=self.name)

    async def deploy(self, name: str, scheduler: str, replicas: int, **more: Any) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": spec(scheduler, **more)}
        of = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        body: Json = {"metadata": {"name": name}, "spec": of}
        await self.client.create(DEPLOYMENTS.raw(), body, namespace=self.name)

    async def raw(self, name: str) -> Json:
        found: Json = await self.client.get(PODS.raw(), name, namespace=self.name)
        return found

    async def until_reason(self, name: str, reason: str) -> None:
        async def found() -> str:
            pod = await self.client.get(PODS, name, namespace=self.name)
            condition = pod.condition("PodScheduled")
            if condition is None:
                return ""
            return "Scheduled" if condition.status == "True" else condition.reason

        await eventually(found, reason, what=f"the reason of {name}")

    async def nodes(self) -> dict[str, str]:
        page = await self.client.list(PODS, namespace=self.name)
        return {each.metadata.name: each.spec.node_name for each in page.items or () if each.spec.node_name}

    async def until_bound(self, count: int) -> Counter[str]:
        found = await eventually(self.nodes, lambda nodes: len(nodes) == count)
        return Counter(found.values())


def spec(scheduler: str, cpu: str = "100m", **more: Any) -> Json:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container],
        **more,
    }


@contextlib.asynccontextmanager
async def space(box: Sandbox, name: str) -> AsyncIterator[Space]:
    async with Client(box.access()) as client:
        await make_namespace(client, name)
        live = LiveScheduler(client, SchedulerSettings(lease=False, health_address="", history=False))
        stop = asyncio.Event()
        task = asyncio.create_task(live.run(stop))
        try:
            await asyncio.wait_for(live.synced.wait(), 60)
            yield Space(client, name)
        finally:
            stop.set()
            await task
            for kind in (DEPLOYMENTS, PODS):
                path = kind.path(namespace=name)
                await client.request("DELETE", path, params={"gracePeriodSeconds": "0"})
            await client.delete(NAMESPACES, name)
            assert not live.metrics.fault_count, "something was quarantined: see the log"


async def zones(client: Client) -> dict[str, str]:
    page = await client.list(NODES)
    return {each.name: each.labels[ZONE] for each in page.items or ()}


# -- what both write -----------------------------------------------------------------------------------------


async def events_of(here: Space, pod: str) -> list[Json]:
    page = await here.client.list(EVENTS, namespace=here.name)
    found: list[Any] = [each for each in page.items or () if _about(each)["name"] == pod]
    return found


def _about(event: Any) -> dict[str, str]:
    found: dict[str, str] = event["regarding"]
    return found


_OWN = ("name", "uid", "resourceVersion")
"""Of an object: what differs between two that are alike."""


@pytest.mark.parametrize(("kind", "cpu"), [("fits", "100m"), ("huge", "100")])
async def test_events_have_every_field_that_kube_scheduler_sets(box: Sandbox, kind: str, cpu: str) -> None:
    async with space(box, f"events-{kind}") as here:
        found: dict[str, Any] = {}
        for scheduler in SCHEDULERS:
            await here.add(f"{kind}-{scheduler}", scheduler, cpu=cpu)
            events = await eventually(lambda name=f"{kind}-{scheduler}": events_of(here, name))  # type: ignore[misc]
            (found[scheduler],) = events
        theirs, ours = (found[each] for each in SCHEDULERS)
        assert theirs.keys() - ours.keys() == set()
        for key in theirs.keys() - {"metadata", "eventTime", "note", "reportingInstance", "regarding"}:
            expected = "fluence" if key == "reportingController" else theirs[key]
            assert ours[key] == expected, key
        about = _about(ours)
        assert about.keys() == _about(theirs).keys()
        pod: Any = await here.raw(f"{kind}-fluence")
        assert about["uid"] == pod["metadata"]["uid"] and int(about["resourceVersion"])
        same = {key: value for key, value in _about(theirs).items() if key not in _OWN}
        assert {key: about[key] for key in same} == same
        assert set(theirs["metadata"]) == set(ours["metadata"])


@pytest.mark.parametrize(("kind", "cpu"), [("fits", "100m"), ("huge", "100")])
async def test_pods_have_the_conditions_that_kube_scheduler_writes(box: Sandbox, kind: str, cpu: str) -> None:
    async with space(box, f"conditions-{kind}") as here:
        found: dict[str, Any] = {}
        for scheduler in SCHEDULERS:
            name = f"{kind}-{scheduler}"
            await here.add(name, scheduler, cpu=cpu)
            await here.until_reason(name, "Scheduled" if kind == "fits" else "Unschedulable")
            pod: Any = await here.raw(name)
            conditions = pod["status"]["conditions"]
            found[scheduler] = next(each for each in conditions if each["type"] == "PodScheduled")
            assert all("observedGeneration" in each for each in conditions if names.PREFIX in each["type"])
            assert bool(pod["spec"].get("nodeName")) == (kind == "fits")
            assert "nominatedNodeName" not in pod["status"]
        theirs, ours = (found[each] for each in SCHEDULERS)
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() - {"lastTransitionTime", "message"}:
            assert ours[key] == theirs[key], key


async def test_what_a_bind_writes_is_what_kube_scheduler_writes(box: Sandbox) -> None:
    """The pods afterwards are alike, except for our own annotations and labels."""
    async with space(box, "binds") as here:
        found: dict[str, Any] = {}
        for scheduler in SCHEDULERS:
            await here.add(f"bound-{scheduler}", scheduler)

            async def running(name: str = f"bound-{scheduler}") -> Any:
                pod: Any = await here.raw(name)
                return pod if pod["status"]["phase"] == "Running" else None

            found[scheduler] = await eventually(running, what="it runs")
        theirs, ours = (found[scheduler] for scheduler in SCHEDULERS)
        assert ours["spec"].pop("schedulerName") == "fluence" and theirs["spec"].pop("schedulerName")
        assert ours["spec"].pop("nodeName") and theirs["spec"].pop("nodeName")
        assert ours["spec"] == theirs["spec"]
        assert ours["status"].keys() == theirs["status"].keys()
        assert ours["metadata"].keys() - theirs["metadata"].keys() <= {"annotations", "labels"}
        for kind in ("annotations", "labels"):
            added = set(ours["metadata"].get(kind) or ()) - set(theirs["metadata"].get(kind) or ())
            assert all(key.startswith((names.PREFIX, "fluxqueue")) for key in added), added


async def test_a_condition_is_about_the_generation_that_was_looked_at(box: Sandbox) -> None:
    async with space(box, "generation") as here:
        await here.add("huge", "fluence", cpu="100")
        await here.until_reason("huge", "Unschedulable")
        tolerations = [{"key": "k", "operator": "Exists"}]
        patch: Json = {"spec": {"tolerations": tolerations}}
        await here.client.patch(PODS, "huge", patch, namespace=here.name)

        async def observed() -> object:
            pod: Any = await here.raw("huge")
            of = {each["type"]: each.get("observedGeneration") for each in pod["status"]["conditions"]}
            return pod["metadata"]["generation"], of["PodScheduled"]

        await eventually(observed, (2, 2))


async def test_kubectl_finds_the_events_of_a_pod(box: Sandbox) -> None:
    async with space(box, "kubectl") as here:
        await here.add("huge", "fluence", cpu="100")
        await here.until_reason("huge", "Unschedulable")
        kubectl = find_programs(release(VERSION), report=lambda progress: None)["kubectl"]
        config = f"--kubeconfig={box.at.kubeconfig()}"

        async def shown() -> str:
            command = (str(kubectl), config, "-n", here.name, "events", "--for", "pod/huge")
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            out, _ = await process.communicate()
            return out.decode()

        await eventually(shown, lambda text: "FailedScheduling" in text)


# -- what autoscalers read -----------------------------------------------------------------------------------


async def test_only_pods_for_which_nodes_would_help_are_unschedulable(box: Sandbox) -> None:
    async with space(box, "autoscaled") as here:
        await here.add("huge", "fluence", cpu="100")
        await here.add("refused", "fluence", notes={names.DURATION: "soon"})
        await here.add("alone", "fluence", notes={names.GROUP_SIZE: "2", names.GROUP_LABEL: "g"})
        claim = {"name": "v", "persistentVolumeClaim": {"claimName": "absent"}}
        await here.add("mounts", "fluence", volumes=[claim])
        limited = {names.GROUP_SIZE: "6", names.DURATION: "1h"}
        for group in ("first", "second"):
            for rank in range(6):
                notes = {**limited, names.GROUP_LABEL: group}
                await here.add(f"{group}-{rank}", "fluence", cpu="7", notes=notes)
            await here.until_reason(f"{group}-0", "Scheduled" if group == "first" else "WaitingForTurn")
        for name, reason in {
            "huge": "Unschedulable",
            "refused": "SchedulerError",
            "alone": "WaitingForGroup",
            "mounts": "WaitingForVolumes",
            "second-5": "WaitingForTurn",
        }.items():
            await here.until_reason(name, reason)


# -- services are spread -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_six_pods_of_a_deployment_are_on_six_nodes(box: Sandbox, scheduler: str) -> None:
    async with space(box, f"six-{scheduler}") as here:
        await here.deploy("web", scheduler, 6)
        assert sorted((await here.until_bound(6)).values()) == [1] * 6


@pytest.mark.parametrize("scheduler", SCHEDULERS)
async def test_pods_of_a_service_are_spread_over_zones(box: Sandbox, scheduler: str) -> None:
    """As the Multi-AZ specs of Kubernetes' own suite have it: pods without an owner."""
    async with space(box, f"zones-{scheduler}") as here:
        labels = {"service": "test"}
        service: Json = {
            "metadata": {"name": "test"},
            "spec": {"selector": labels, "ports": [{"port": 80}]},
        }
        await here.client.create(SERVICES.raw(), service, namespace=here.name)
        await asyncio.sleep(1)  # both schedulers see it
        for number in range(7):
            await here.add(f"test-{number}", scheduler, labels=labels)
        found, zone_of = await here.until_bound(7), await zones(here.client)
        by_zone: Counter[str] = Counter()
        for node, count in found.items():
            by_zone[zone_of[node]] += count
        assert sorted(by_zone.values()) == [3, 4]
