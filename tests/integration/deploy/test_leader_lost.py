"""The leader is lost while fifty gangs start: its pod deleted; then its node cordoned, its kubelet killed.

Gangs of three, of which every other one has a pod on a real node. The second loss is of the kind that nobody
cleans up after: kubelet and leader are killed outright, so the container is not started again and its lease
is not given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fluence.kube.client import Client
from fluence.kube.gangs import AnyGangs, discover_gangs
from fluence.kube.resource import LEASES, PODS, Json
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.names import JOBID
from fluence.sandbox.auditor import ask
from fluence.sandbox.nodes import SIMULATED
from fluence.sandbox.realnode import REAL
from fluence.sandbox.sandbox import Sandbox
from tests.integration.deploy.cluster import SOON_S, SPACE, installed, real_cluster, schedulers, until
from tests.integration.deploy.helm import HelmUser
from tests.integration.sandbox.test_real_lifecycle import descendants

pytestmark = pytest.mark.realnodes

GANGS = 50
SIZE = 3
DURATION_S = 15.0  # the lease's, by default


@pytest.fixture(scope="module")
def box(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with real_cluster("leader-lost", image, tmp_path_factory.mktemp("images"), simulated=4) as found:
        yield found


@pytest.fixture(scope="module")
def admin(box: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> HelmUser:
    """Schedulers must not be simulated."""
    return installed(box, tmp_path_factory.mktemp("helm"), values={"nodeSelector": {REAL: "true"}})


class Crowd:
    """Gangs that start while something else happens."""

    def __init__(self, client: Client, gangs: AnyGangs) -> None:
        self._client = client
        self._gangs = gangs

    @contextlib.asynccontextmanager
    async def starting(self, numbers: range) -> AsyncIterator[None]:
        """While these gangs are made one after the other; some have a node when it begins."""
        before = len(bound(await self.pods()))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._make(numbers))
            await self.until(lambda pods: len(bound(pods)) > before, "the first are bound")
            yield

    async def _make(self, numbers: range) -> None:
        for number in numbers:
            name = f"gang-{number:02d}"
            group = Group(namespace="default", name=name, min_count=SIZE)
            assert self._gangs.resource is not None
            manifest = self._gangs.manifest(group)
            await self._client.create(self._gangs.resource.raw(), manifest, namespace="default")
            for rank in range(SIZE):
                label = SIMULATED if rank or number % 2 else REAL
                await self._client.create(PODS, self._pod(name, rank, label), namespace="default")

    def _pod(self, gang: str, rank: int, label: str) -> Json:
        requests = {"cpu": "5m", "memory": "1Mi"}
        container = {"name": "c", "image": "busybox", "command": ["sleep", "infinity"]}
        spec = {
            "schedulerName": "fluence",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {label: "true"},
            "containers": [{**container, "resources": {"requests": requests}}],
            **self._gangs.pod_link(gang),
        }
        meta = {"name": f"{gang}-{rank}", "labels": {"gang": gang}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}

    async def pods(self) -> list[Pod]:
        return (await self._client.list(PODS, namespace="default")).items or []

    async def until(self, done: Any, what: str) -> list[Pod]:
        deadline = asyncio.get_running_loop().time() + SOON_S
        while not done(pods := await self.pods()):
            shown = {pod.metadata.name: (pod.spec.node_name, pod.status.phase) for pod in pods}
            late = asyncio.get_running_loop().time() >= deadline
            assert not late, f"not within {SOON_S:g} s: {what}; there is {shown}"
            await asyncio.sleep(0.3)
        return pods


def bound(pods: list[Pod]) -> list[Pod]:
    return [each for each in pods if each.spec.node_name]


class Terms:
    """Who held the lease, one after the other: when it was taken, and when it was last renewed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.held: dict[str, tuple[datetime, datetime]] = {}
        self.slowest_s = 0.0  # that a look at the lease took: the machine may be starved

    async def follow(self) -> None:
        while True:
            began = asyncio.get_running_loop().time()
            lease: Any = await self._client.get(LEASES, "fluence", namespace=SPACE)
            said = lease["spec"]
            if said.get("holderIdentity"):
                times = [datetime.fromisoformat(said[key]) for key in ("acquireTime", "renewTime")]
                self.held[said["holderIdentity"]] = (times[0], times[1])
            await asyncio.sleep(0.1)
            self.slowest_s = max(self.slowest_s, asyncio.get_running_loop().time() - began)

    def gaps(self) -> list[float]:
        """Seconds from the last renewal of one until the next one has it."""
        terms = list(self.held.values())
        return [(after[0] - before[1]).total_seconds() for before, after in itertools.pairwise(terms)]


def leader(admin: HelmUser) -> dict[str, Any]:
    """The pod whose process holds the lease."""

    def look() -> dict[str, Any] | None:
        holder = str(admin.get("lease", "fluence")["spec"].get("holderIdentity"))
        return next((pod for pod in schedulers(admin) if holder.startswith(pod["metadata"]["name"])), None)

    found = until(look, "somebody leads")
    assert found is not None
    return found


def two_ready(admin: HelmUser) -> bool:
    deployment = admin.get("deployment", "fluence")
    return bool(deployment["status"].get("readyReplicas") == 2)


def environment(pid: int) -> list[bytes]:
    """The variables of a process; none if it has just ended."""
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill_node_and_leader(box: Sandbox, pod: dict[str, Any]) -> None:
    """The node's kubelet, then the leader within the container: nobody starts it again."""
    node, name = pod["spec"]["nodeName"], pod["metadata"]["name"]
    parts = box.require().parts
    os.kill(parts[f"kubelet-{node.removeprefix('real-')}"].pid, signal.SIGKILL)
    victims = [pid for pid in descendants(parts[node].pid) if f"HOSTNAME={name}".encode() in environment(pid)]
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)


async def test_the_other_replica_goes_on_and_no_gang_is_started_in_part(
    box: Sandbox, admin: HelmUser
) -> None:
    kubectl = admin.kubectl
    async with Client(box.access()) as client:
        crowd, terms = Crowd(client, await discover_gangs(client)), Terms(client)
        following = asyncio.create_task(terms.follow())

        first = await asyncio.to_thread(leader, admin)
        async with crowd.starting(range(GANGS // 2)):
            await asyncio.to_thread(kubectl, "delete", "pod", first["metadata"]["name"], "--wait=false")
        await crowd.until(lambda pods: len(bound(pods)) == GANGS // 2 * SIZE, "half are bound")
        await asyncio.to_thread(until, lambda: two_ready(admin), "there is another replica again")

        second = await asyncio.to_thread(leader, admin)
        node = second["spec"]["nodeName"]
        async with crowd.starting(range(GANGS // 2, GANGS)):
            await asyncio.to_thread(kubectl, "cordon", node)
            await asyncio.to_thread(kill_node_and_leader, box, second)
            await asyncio.to_thread(
                kubectl, "delete", "pod", second["metadata"]["name"], "--force", "--grace-period=0"
            )
        await crowd.until(lambda pods: len(bound(pods)) == GANGS * SIZE, "all are bound")
        third = await asyncio.to_thread(leader, admin)
        assert len({each["metadata"]["name"] for each in (first, second, third)}) == 3
        assert not following.done(), following.exception()
        following.cancel()
        assert len(terms.held) == 3, terms.held
        assert max(terms.gaps()) <= DURATION_S + terms.slowest_s, (terms.gaps(), terms.slowest_s)

        await asyncio.to_thread(box.restart, f"kubelet-{node.removeprefix('real-')}")
        await asyncio.to_thread(kubectl, "uncordon", node)
        pods = await crowd.until(
            lambda pods: all(each.status.phase == "Running" for each in pods), "all containers run"
        )
    assert len(pods) == GANGS * SIZE
    ids = {
        gang: {each.annotations[JOBID] for each in pods if (each.metadata.labels or {})["gang"] == gang}
        for gang in {(each.metadata.labels or {})["gang"] for each in pods}
    }
    # One allocation each, and another for what was not bound yet of a gang when a leader was killed.
    assert sum(map(len, ids.values())) == len(set.union(*ids.values()))
    assert len(ids) == GANGS
    report = await ask(box.at.folder)
    assert [str(each) for each in report.findings] == []
    assert report.gangs_seen == GANGS
    assert report.gaps == 0
