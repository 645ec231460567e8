"""Two replicas under a supervisor, stopped, killed and cut off at random: never two writers, never nobody.

    FLUENCE_SOAK=200 pytest tests/integration/live/test_leaders.py     what `make soak` runs

Each replica talks through a proxy of its own, which writes down every write in the order in which it came.
A process leads once and then ends; so the writes of one process are never on both sides of another's. Work
comes as gangs of pods and as Jobs that are held back, let go, and have FluxJobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web
from msgspec.structs import replace

from fluence.kube.errors import KubeError
from fluence.kube.reflector import Reflector, Timing
from fluence.kube.resource import PODS
from fluence.model.pod import Pod
from fluence.names import JOBID
from fluence.sandbox.auditor import Auditor
from fluence.sandbox.proxy import Proxy, Rule, verb_of
from fluence.sandbox.testing import Kube
from tests.integration.controller.doors import held_job, serve_flux_jobs, submit, until_phase
from tests.integration.live.replica import LEASE, SOON_S, TERMS, Replica, lease_of, now
from tests.integration.rights import chart_account
from tests.integration.schedule.field import Field, field

ROUNDS = int(os.environ.get("FLUENCE_SOAK", "0")) or 5
SEED = int(os.environ.get("FLUENCE_SOAK_SEED", "11"))
PATIENCE_S = 120.0  # what is measured is held against what a restart took
RUNS = 3.0  # seconds
CORES = 2  # so few that gangs wait for each other
_WRITES = re.compile(r"/binding$|/status$|/events|/persistentvolume|/jobs/|/fluxjobs/")
# The first rounds, whatever the seed: all that a short run must have had.
FIRST = ("stop the leader", "cut off both", "restart the server while the leader is stopped")

Writer = tuple[str, int]  # a replica and which of its processes


class Write(NamedTuple):
    writer: Writer
    at: float
    what: str


class Journal(Proxy):
    """A proxy that writes down who wrote, in the order of arrival."""

    def __init__(self, kube: Kube, name: str, writes: list[Write]) -> None:
        super().__init__(kube.access())
        self.name = name
        self.generation = 0
        self._writes = writes

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        verb = verb_of(request.method, request.path, request.query)
        if verb in ("create", "patch", "update") and _WRITES.search(request.path):
            self._writes.append(Write((self.name, self.generation), now(), f"{verb} {request.path}"))
        return await super()._handle(request)


class Supervised(Replica):
    """A replica that is started again when it ends, as a kubelet does."""

    def __init__(self, f: Field, folder: Path, proxy: Journal, user: str) -> None:
        super().__init__(f, folder, replace(proxy.access, impersonate=user), lease=TERMS)
        self.proxy = proxy
        self.ended: Counter[int] = Counter()
        self.slowest = 0.0  # seconds from the end of one process until the next one could lead

    async def supervise(self) -> None:
        while True:
            began, before = now(), self.said.count("follows the cluster")
            await asyncio.sleep(0.2)
            self.proxy.generation += 1
            await self.start()
            assert self.process is not None
            ending = asyncio.create_task(self.process.wait())
            while not ending.done() and self.said.count("follows the cluster") == before:
                await asyncio.sleep(0.1)
            self.slowest = max(self.slowest, now() - began)
            self.ended[await ending] += 1

    @contextlib.asynccontextmanager
    async def cut_off(self) -> AsyncIterator[None]:
        """Nothing listens where its server was."""
        await self.proxy.__aexit__()
        try:
            yield
        finally:
            await self.proxy.__aenter__()


class Trouble:
    """What can happen to two replicas and their server; each ends with both running and a server."""

    def __init__(self, f: Field, replicas: list[Supervised], rng: random.Random) -> None:
        self.f = f
        self.replicas = replicas
        self.rng = rng
        self.kinds = {
            "stop the leader": self._stop_leader,
            "stop the other": self._stop_other,
            "stop both": self._stop_both,
            "kill the leader": self._kill_leader,
            "kill both": self._kill_both,
            "cut off the leader": self._cut_leader,
            "cut off both": self._cut_both,
            "refuse the lease": self._refuse_lease,
            "the lease hangs": self._hang_lease,
            "restart the server": self._restart_server,
            "restart the server while the leader is stopped": self._restart_while_stopped,
            "kill the other while the leader is stopped": self._kill_while_stopped,
        }

    async def leader(self) -> tuple[Supervised, Supervised]:
        """Who leads by the lease, and the other."""
        found = await lease_of(self.f)
        holder = found.spec.holder_identity or "" if found is not None else ""
        pids = [str(each.process.pid) if each.process is not None else "" for each in self.replicas]
        first = next((at for at, pid in enumerate(pids) if pid in holder.split("_")), 0)
        return self.replicas[first], self.replicas[1 - first]

    async def pause(self, longest: float = 2 * TERMS.duration_s) -> None:
        await asyncio.sleep(self.rng.uniform(0.2, longest))

    async def _stopped(self, *replicas: Supervised) -> None:
        for each in replicas:
            each.signal(signal.SIGSTOP)
        await self.pause()
        for each in self.rng.sample(replicas, len(replicas)):
            each.signal(signal.SIGCONT)
            await self.pause(0.5)

    async def _stop_leader(self) -> None:
        await self._stopped((await self.leader())[0])

    async def _stop_other(self) -> None:
        await self._stopped((await self.leader())[1])

    async def _stop_both(self) -> None:
        await self._stopped(*self.replicas)

    async def _kill_leader(self) -> None:
        (await self.leader())[0].signal(signal.SIGKILL)

    async def _kill_both(self) -> None:
        for each in self.replicas:
            each.signal(signal.SIGKILL)

    async def _cut_leader(self) -> None:
        async with (await self.leader())[0].cut_off():
            await self.pause()

    async def _cut_both(self) -> None:
        async with self.replicas[0].cut_off(), self.replicas[1].cut_off():
            await self.pause()

    async def _ruled(self, rule: Rule) -> None:
        for each in self.replicas:
            each.proxy.rules.append(rule)
        await self.pause()
        for each in self.replicas:
            each.proxy.rules.remove(rule)

    async def _refuse_lease(self) -> None:
        await self._ruled(Rule(path="/leases/", status=503))

    async def _hang_lease(self) -> None:
        await self._ruled(Rule(path="/leases/", latency_s=self.rng.choice((1.0, 3.0, 60.0))))

    async def _restart_server(self) -> None:
        await asyncio.to_thread(self.f.kube.sandbox.restart, "kube-apiserver")

    async def _restart_while_stopped(self) -> None:
        leader, _ = await self.leader()
        leader.signal(signal.SIGSTOP)
        restart = asyncio.create_task(self._restart_server())
        if self.rng.random() < 0.5:
            await restart
        await self.pause(3.0)
        leader.signal(signal.SIGCONT)
        await restart

    async def _kill_while_stopped(self) -> None:
        leader, other = await self.leader()
        leader.signal(signal.SIGSTOP)
        await self.pause()
        other.signal(signal.SIGKILL)
        await self.pause(1.0)
        leader.signal(signal.SIGCONT)


async def version(f: Field) -> str | None:
    with contextlib.suppress(KubeError):
        found = await lease_of(f)
        if found is not None and found.spec.holder_identity:
            return found.metadata.resource_version
    return None


async def led_again(f: Field) -> float:
    """How long it takes until somebody renews the lease twice: the first may be an echo."""
    began, seen = now(), {await version(f)}
    while len(seen - {None}) < 3:
        assert now() - began < PATIENCE_S, f"nobody led for {PATIENCE_S} s"
        await asyncio.sleep(0.05)
        seen.add(await version(f))
    return now() - began


@contextlib.asynccontextmanager
async def two(f: Field, folder: Path, writes: list[Write]) -> AsyncIterator[list[Supervised]]:
    """Two replicas with the chart's own rights."""
    async with contextlib.AsyncExitStack() as stack:
        account = chart_account(f.client, f"two-{f.namespace}", f.namespace, lease=LEASE)
        user = await stack.enter_async_context(account)
        proxies = [await stack.enter_async_context(Journal(f.kube, name, writes)) for name in "ab"]
        replicas = [Supervised(f, folder / each.name, each, user) for each in proxies]
        tasks = [asyncio.create_task(each.supervise()) for each in replicas]
        try:
            yield replicas
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for each in replicas:
                each.signal(signal.SIGCONT)
                await each.end()


async def add_gang(f: Field, index: int, rng: random.Random) -> list[str]:
    size = rng.randint(2, 3)
    await f.add_group(f"g{index}", size)
    names = [f"g{index}-{i}" for i in range(size)]
    await f.add(*(f.pod(name, group=f"g{index}", runs=RUNS) for name in names))
    return names


async def add_job(f: Field, index: int, rng: random.Random) -> int:
    """A Job as admission leaves it: suspended until it has its seats."""
    size, mode = rng.randint(2, 3), rng.choice(["Indexed", "NonIndexed"])
    await submit(f, held_job(f, f"j{index}", size, runs=RUNS, mode=mode))
    return size


def assert_one_writer_at_a_time(writes: list[Write]) -> None:
    """Each process wrote without another one in between."""
    done: set[Writer] = set()
    for before, after in itertools.pairwise(writes):
        if before.writer != after.writer:
            done.add(before.writer)
            near = [each for each in writes if abs(each.at - after.at) < 2 * TERMS.duration_s]
            assert after.writer not in done, f"{after.writer} wrote before and after another: {near}"


def assert_bound_once(replicas: list[Supervised]) -> None:
    seen = itertools.chain.from_iterable(each.proxy.seen for each in replicas)
    bound = Counter(each.path for each in seen if each.path.endswith("/binding") and each.status == 201)
    assert bound and max(bound.values()) == 1, bound.most_common(3)


# NB a proxy that is taken away leaves the sockets of requests that were under way to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(60 + 60 * ROUNDS)
async def test_never_two_writers_and_never_nobody(own_sandbox: Kube, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    writes: list[Write] = []
    waited: dict[str, float] = {}
    async with (
        field(own_sandbox, 4, cpu=CORES) as f,
        Auditor(f.client) as auditor,
        ends(f) as ended_at,
        two(f, tmp_path, writes) as replicas,
    ):
        await serve_flux_jobs(f.client)
        trouble = Trouble(f, replicas, rng)
        await led_again(f)
        names: list[str] = []
        jobs: dict[str, int] = {}
        for index in range(ROUNDS):
            names += await add_gang(f, 2 * index, rng)
            jobs[f"j{index}"] = await add_job(f, index, rng)
            await asyncio.sleep(rng.uniform(0, 0.3))
            kind = FIRST[index] if index < len(FIRST) else rng.choice(list(trouble.kinds))
            arriving = asyncio.create_task(_arrive(f, 2 * index + 1, rng.randrange(1 << 30)))
            await trouble.kinds[kind]()
            took = await led_again(f)
            waited[kind] = max(took, waited.get(kind, 0.0))
            names += await arriving
        wanted = len(names) + sum(jobs.values())
        pods: dict[str, Pod] = {}

        def have_ended(found: dict[str, Pod]) -> bool:
            """NB of a gang that the server took in part, pods are left."""
            pods.update((name, pod) for name, pod in found.items() if name in names or name.startswith("j"))
            return len(pods) >= wanted and all(pod.is_terminal for pod in pods.values())

        await f.until(have_ended, f"all end; see {tmp_path}", timeout_s=SOON_S + PATIENCE_S)
        assert len(pods) == wanted
        assert {pod.status.phase for pod in pods.values()} == {"Succeeded"}
        for job, size in jobs.items():
            mine = [pod for name, pod in pods.items() if name.startswith(f"{job}-")]
            assert len(mine) == size
            assert len({pod.annotations[JOBID] for pod in mine}) == 1, "all of a Job started together"
            await until_phase(f, f"{job}-job", "Completed")
        report = await auditor.report()
        # NB a watch that begins anew with a list tells of ends and beginnings in the order of names.
        unseen, ours = ({"overcommit", "port"} if report.gaps else set()), f"{f.namespace}/"
        assert not [str(each) for each in report.findings if each.kind not in unseen and ours in str(each)]
        restart = max(each.slowest for each in replicas)
        assert max(waited.values()) <= TERMS.duration_s + restart, (waited, restart)
        assert_one_writer_at_a_time(writes)
        assert_bound_once(replicas)
        await assert_never_overbooked(f, ended_at)
        said = "".join(each.said for each in replicas)
        assert "Traceback" not in said, tmp_path
        ended = sum((each.ended for each in replicas), Counter[int]())
        assert set(ended) <= {1, -signal.SIGKILL}, ended
        assert ended[1] == 0 or "the lease" in said
        await f.end(*await f.pods())
    worst = ", ".join(f"{kind} {took:.1f} s" for kind, took in sorted(waited.items()))
    processes = sum(each.proxy.generation for each in replicas)
    print(f"{ROUNDS} rounds, {processes} processes, {len(writes)} writes, {wanted} pods; led again: {worst}")


@contextlib.asynccontextmanager
async def ends(f: Field) -> AsyncIterator[dict[str, datetime]]:
    """When each pod was first seen to have ended: KWOK, which got no answer when the server died, writes the
    end of a pod again, with a later time."""
    found: dict[str, datetime] = {}

    def on_pod(old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.is_terminal:
            found.setdefault(new.metadata.name, datetime.now(UTC))

    timing = Timing(base_s=0.1, cap_s=0.3)
    reflector = Reflector(f.client, PODS, namespace=f.namespace, timing=timing)
    reflector.store.on_change(on_pod)
    watch = asyncio.create_task(reflector.run())
    try:
        yield found
    finally:
        watch.cancel()
        await asyncio.wait({watch})


async def assert_never_overbooked(f: Field, seen: dict[str, datetime]) -> None:
    """By what the pods say of themselves, in whole seconds: two writers would overlap by seconds."""
    page = await f.client.list(PODS.raw(), namespace=f.namespace)
    spans: dict[str, list[tuple[datetime, datetime, str]]] = {}
    for pod in page.items or ():
        raw: Any = pod
        if "nodeName" not in raw["spec"]:
            continue
        (bound,) = [each for each in raw["status"]["conditions"] if each["type"] == "PodScheduled"]
        (container,) = raw["status"]["containerStatuses"]
        began = datetime.fromisoformat(bound["lastTransitionTime"]) + timedelta(seconds=1)
        name = raw["metadata"]["name"]
        said = datetime.fromisoformat(container["state"]["terminated"]["finishedAt"])
        ended = min(said, seen.get(name, said))
        spans.setdefault(raw["spec"]["nodeName"], []).append((began, ended, name))
    assert spans
    for node, pods in spans.items():
        for at, _, _ in pods:
            here = [each for each in pods if each[0] <= at < each[1]]
            assert len(here) <= CORES, f"pods of one core each at a time on {node}: {here}"


async def _arrive(f: Field, index: int, seed: int) -> list[str]:
    """A gang that comes in the middle of it, as soon as there is a server that takes it."""
    rng = random.Random(seed)
    await asyncio.sleep(rng.uniform(0, TERMS.duration_s))
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                return await add_gang(f, index, rng)
            except KubeError:  # in part, perhaps: then under another name
                index += 100_000
                await asyncio.sleep(0.5)
