"""Queues with quotas on a real API server: the CRD, the chart's own rights, a tenant, and a killed scheduler.

On a control plane of its own: queues are of the whole cluster, and every scheduler on it reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, Invalid, KubeError, Missing
from fluence.kube.resource import NAMESPACES, NODES, QUEUES, Json
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.rights import chart_account, let_edit, make_namespace, resource_of
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.killed import killed

CRD = yaml.safe_load((Path(__file__).parents[3] / "deploy" / "crds" / "queues.yaml").read_text())


def queue(name: str, **spec: Any) -> Json:
    return {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def installed(client: Client) -> AsyncIterator[None]:
    """The CRD as it is shipped, and no queue that a test leaves behind."""
    crds = resource_of(CRD)
    await client.apply(crds, CRD, manager="test")

    async def served() -> bool:
        with contextlib.suppress(KubeError):
            await client.list(QUEUES)
            return True
        return False

    async def gone() -> bool:
        try:
            await client.list(QUEUES)
        except Missing:
            return True
        return False

    await eventually(served, what="queues are served")
    try:
        yield
    finally:
        await client.request("DELETE", QUEUES.path())
        await client.delete(crds, CRD["metadata"]["name"])
        # A definition that is being deleted still serves: the next test would take it for its own.
        await eventually(gone, what="queues are no longer served")


async def put(client: Client, *queues: Json) -> None:
    for body in queues:
        await client.apply(QUEUES.raw(), body, manager="test")


async def status(client: Client, name: str) -> dict[str, Any]:
    return (await client.get(QUEUES, name)).status or {}


async def until_condition(client: Client, name: str, type_: str, reason: str) -> str:
    async def said() -> tuple[str, str]:
        for each in (await status(client, name)).get("conditions", ()):
            if each["type"] == type_:
                return each["reason"], each["message"]
        return "", ""

    found = await eventually(said, lambda said: said[0] == reason, what=f"{name} is {type_}: {reason}")
    return found[1]


@contextlib.asynccontextmanager
async def spaces(f: Field, **teams: str) -> AsyncIterator[None]:
    """Namespaces with the label of their team."""
    for name, team in teams.items():
        await make_namespace(f.client, name)
        await f.client.patch(NAMESPACES.raw(), name, {"metadata": {"labels": {"team": team}}})
    try:
        yield
    finally:
        for name in teams:
            await f.client.delete(NAMESPACES, name)


async def asked(kube: Kube, *words: str) -> str:
    """What the program prints about this cluster."""
    command = [sys.executable, "-m", "fluence.cli", *words, "--kubeconfig", str(kube.sandbox.at.kubeconfig())]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    return printed.decode()


def pods(f: Field, of: str, *names_: str, cpu: str = "1") -> list[Json]:
    return [f.pod(name, annotations={names.QUEUE: of}, cpu=cpu) for name in names_]


async def test_three_queues_and_two_teams(own_sandbox: Kube) -> None:
    async with (
        field(own_sandbox, 2, cpu=4) as f,
        installed(f.client),
        spaces(f, phys="physics", chem="chem"),
        chart_account(f.client, "queues", f.namespace) as account,
        Client(replace(own_sandbox.access(), impersonate=account)) as ours,
    ):
        science = queue("science", limit={"cpu": 4})
        physics = queue(
            "physics", parent="science", limit={"cpu": 2}, namespaces={"matchLabels": {"team": "physics"}}
        )
        chem = queue("chem", parent="science", namespaces={"matchLabels": {"team": "chem"}})
        await put(f.client, science, physics, chem)
        async with f.scheduler(ours):
            phys, chemists = replace_namespace(f, "phys"), replace_namespace(f, "chem")
            await phys.add(*pods(f, "physics", "p0", "p1", "p2"))
            await phys.until_bound(2)
            # Jobs beyond the quota wait with the reason, which no autoscaler takes for a lack of nodes.
            (late,) = [name for name, node in (await phys.homes()).items() if node is None]
            await phys.until_told(
                late, "Waiting for queue physics: cpu 2 of 2 in use.", reason="WaitingForTurn"
            )
            await chemists.add(*pods(f, "chem", "c0", "c1", "c2"))
            await chemists.until_bound(2)
            (other,) = [name for name, node in (await chemists.homes()).items() if node is None]
            await chemists.until_told(other, "queue science: cpu 4 of 4 in use", reason="WaitingForTurn")
            # A namespace that is not selected is refused, with a queue that is open to it.
            await chemists.add(*pods(f, "physics", "stranger"))
            told = await chemists.until_told("stranger", reason="SchedulerError")
            assert told.startswith("Queue 'physics' is closed to its namespace: use one of chem")
            # What frees quota starts the next.
            for team in (phys, chemists):
                await team.end(next(name for name, node in (await team.homes()).items() if node))
            for team, next_ in ((phys, late), (chemists, other)):
                await team.until_bound([next_])
            # The status says it, by the scheduler's own rights.
            seen = await eventually(
                lambda: status(f.client, "physics"),
                lambda found: found.get("running") == 2 and found.get("used", {}).get("cpu") == "2",
                what="physics says what it uses",
            )
            assert seen["limit"] == "cpu 2"
            shown = await asked(own_sandbox, "queues", "usage")
            assert [line.split()[0] for line in shown.splitlines()] == ["QUEUE", "science", "├─", "└─"]
            assert "cpu 2" in next(line for line in shown.splitlines() if "physics" in line)
            assert await asked(own_sandbox, "queues", "check", "--live") == (
                "3 queues are valid, 2 of them take jobs\n"
            )

            # A tree that is not valid changes nothing, and each object involved says why.
            await put(f.client, {**science, "spec": {"parent": "chem", "limit": {"cpu": 100}}})
            for name in ("science", "chem"):
                assert "is its own ancestor" in await until_condition(f.client, name, "Valid", "Invalid")
            assert "chem, science" in await until_condition(f.client, "physics", "Valid", "OthersInvalid")
            await phys.add(*pods(f, "physics", "p3"))
            await phys.until_told("p3", "queue physics: cpu 2 of 2 in use")
            explained = await asked(
                own_sandbox, "explain", "pod/p3", "-n", "phys", "--scheduler-name", f.name
            )
            assert "Waiting for queue physics: cpu 2 of 2 in use" in explained
            await put(f.client, science)
            await until_condition(f.client, "chem", "Valid", "Valid")

            # A queue is deleted while its jobs run: these go on, and what waits is refused.
            running = {name for name, node in (await phys.homes()).items() if node}
            await f.client.delete(QUEUES, "physics")
            await phys.until_told("p3", "Queue 'physics' does not exist", reason="SchedulerError")
            assert {name for name, node in (await phys.homes()).items() if node} == running
            # The last queues go, and with them all quotas.
            for name in ("chem", "science"):
                await f.client.delete(QUEUES, name)
            await phys.until_bound(["p3"])
            await chemists.until_bound([other, "stranger"])


async def test_a_tenant_cannot_write_queues_and_the_schema_refuses_nonsense(own_sandbox: Kube) -> None:
    async with field(own_sandbox, 1) as f, installed(f.client), spaces(f, tenant="physics"):
        await let_edit(f.client, "mallory", "tenant")
        await put(f.client, queue("physics", limit={"cpu": 1}))
        async with Client(replace(own_sandbox.access(), impersonate="mallory")) as mallory:
            with pytest.raises(Forbidden):
                await mallory.create(QUEUES.raw(), queue("mine"))
            with pytest.raises(Forbidden):
                await mallory.patch(QUEUES.raw(), "physics", {"spec": {"limit": {"cpu": 100}}})
            with pytest.raises(Forbidden):
                usage = {"status": {"usage": {"users": {"tenant": "-1"}}}}
                await mallory.patch(QUEUES.raw(), "physics", usage, subresource="status")
        for spec in (
            {"limit": {"cpu": -1}},
            {"limit": {"cpu": "-1"}},
            {"limit": {"cpu": 2**60}},
            {"weight": -1},
            {"weight": 1e9},
            {"stop": "now"},
            {"parent": "wrong"},
            {"perUser": {"running": "many"}},
        ):
            with pytest.raises(Invalid):
                await f.client.create(QUEUES.raw(), queue("wrong", **spec))


async def test_a_killed_scheduler_loses_neither_quota_nor_usage(own_sandbox: Kube, tmp_path: Path) -> None:
    async with field(own_sandbox, 2, cpu=4) as f, installed(f.client):
        await put(f.client, queue("default", limit={"cpu": 3}))
        async with killed(f, [], tmp_path) as run:
            await run.led()
            await f.add(*(f.pod(f"k{number}") for number in range(5)))
            await f.until_bound(3)

            async def used() -> float:
                users = (await status(f.client, "default")).get("usage", {}).get("users", {})
                return float(users.get(f.namespace, "0"))

            before = await eventually(used, lambda value: value > 0, what="usage is written")
            await run.stop(signal.SIGKILL)
            await run.led()
            waiting = [name for name, node in (await f.homes()).items() if node is None]
            assert len(waiting) == 2
            await f.end(*waiting)
            await f.add(f.pod("after"))
            await f.until_told("after", "Waiting for queue default: cpu 3 of 3 in use")
            after = await eventually(used, lambda value: value != before, what="usage is written again")
            assert after > before
            await f.end(next(name for name, node in (await f.homes()).items() if node))
            await f.until_bound(["after"])
            await f.end(*(await f.homes()))


def replace_namespace(f: Field, namespace: str) -> Field:
    """The same nodes and scheduler, for pods of another namespace."""
    twin = Field(Kube(f.kube.sandbox, namespace, f.kube.version), f.client, f.nodes, f.gangs)
    twin.name = f.name
    twin.spec = f.spec  # type: ignore[method-assign]  # its nodes are those of the first
    return twin


async def test_classes_of_nodes(own_sandbox: Kube) -> None:
    """Work that names no class goes where its queue has room, and the status says what is used of each."""
    async with field(own_sandbox, 2, cpu=4) as f, installed(f.client):
        for name, model in zip(f.nodes, ("old", "new"), strict=True):
            await f.client.patch(NODES.raw(), name, {"metadata": {"labels": {"model": model}}})
        classes = {model: {"matchLabels": {"model": model}} for model in ("old", "new")}
        limit = {"cpu@old": 1, "cpu@new": 2}
        await put(f.client, queue("physics", nodeClasses=classes, limit=limit))
        async with f.scheduler():
            await f.add(*pods(f, "physics", "p0", "p1", "p2", "p3"))
            await f.until_bound(3)
            homes = await f.homes()
            assert Counter(node for node in homes.values() if node) == dict(zip(f.nodes, (1, 2), strict=True))
            (late,) = [name for name, node in homes.items() if node is None]
            await f.until_told(late, "Waiting for queue physics: cpu@", reason="WaitingForTurn")
            seen = await eventually(
                lambda: status(f.client, "physics"),
                lambda found: found.get("used", {}).get("cpu@new") == "2",
                what="physics says what it uses",
            )
            assert seen["used"]["cpu@old"] == "1"
            await f.end(next(name for name, node in homes.items() if node == f.nodes[0]))
            await f.until_bound([late])


MANY = int(os.environ.get("FLUENCE_QUEUES", "0")) or 200


async def test_many_queues_and_an_innocent_pod(own_sandbox: Kube) -> None:
    """Queues come by the thousand: they are in force at last, and work of others is bound meanwhile."""
    async with field(own_sandbox, 2, cpu=4) as f, installed(f.client):
        await put(f.client, queue("default"), queue("top", limit={"cpu": 1000}))
        gate = asyncio.Semaphore(16)

        async def make(number: int) -> None:
            async with gate:
                body = queue(f"q{number}", parent="top", limit={"cpu": 2}, guaranteed={"cpu": "10m"})
                await f.client.create(QUEUES.raw(), body)

        async with f.scheduler(qps=200.0):
            assert f.live is not None
            state, waited = f.live.scheduler.state, list[float]()

            def in_force() -> int:
                quotas = state.queue.quotas
                return 0 if quotas is None else len(quotas.tree.queues)

            await eventually(in_force, 2, what="the first queues are in force")
            began, cpu = time.monotonic(), time.process_time()
            async with asyncio.TaskGroup() as tasks:
                for number in range(MANY - 2):
                    tasks.create_task(make(number))
            created = time.monotonic() - began
            innocent = 0
            while in_force() < MANY:
                name, at = f"innocent-{innocent}", time.monotonic()
                await f.add(f.pod(name, cpu="10m"))
                await f.until_bound([name])
                waited.append(time.monotonic() - at)
                await f.end(name)
                innocent += 1
            spent, took = time.process_time() - cpu, time.monotonic() - began
            await eventually(lambda: status(f.client, f"q{MANY - 3}"), what="the last queue has a status")
            told, rss = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            await f.add(*pods(f, f"q{MANY // 2}", "p0", "p1", "p2"))
            await f.until_bound(2)
            print(
                f"{MANY} queues: created {created:.1f} s, in force {took:.1f} s, one status {told:.1f} s, "
                f"{spent:.1f} s of CPU with the client, {rss} MB, slowest innocent pod "
                f"{max(waited, default=0.0):.1f} s of {len(waited)}, load {os.getloadavg()[0]:.0f}"
            )
