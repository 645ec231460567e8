"""Many Jobs that wait on a full cluster, on a real control plane: what it costs to hold them.

Each node has room for one Job. The first Jobs fill the nodes, through the same door as the rest, and run
until they are told to end; all others wait. Writes are counted by the API server (`apiserver_request_total`),
whoever made them; memory and CPU come from /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.reflector import Reflector
from fluence.kube.resource import JOBS, NAMESPACES, PODS, Json, Resource
from fluence.model.owner import Job
from fluence.model.pod import Pod
from kube import each
from schedulers import environment, usage

NAMESPACE = "work"
CPU = 32
LIMIT_S = 7 * 86_400
_RUN = "sandbox.fluence.flux-framework.org/run-seconds"
_REQUESTS = re.compile(rb"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", re.MULTILINE)
_LABEL = re.compile(rb'([a-z_]+)="([^"]*)"')
_WRITES = (b"POST", b"PUT", b"PATCH", b"APPLY", b"DELETE")
_PATIENCE_S = 1800.0
QUIET_S = 60.0


@dataclass(frozen=True)
class Holder:
    """A program that holds Jobs back until there is room, and says of each that it waits."""

    label: str
    command: list[str]
    more: dict[str, str]  # variables
    told: Resource[Any]  # the objects by which it says so
    is_told: Callable[[Any], bool]
    place: Callable[[Any], int | None]  # the place in the queue that an object tells
    places: Callable[[int], Counter[int | None]]  # what so many objects that wait should tell
    manifest: Callable[[Json], Json]  # a Job as a user of this program writes it


@dataclass
class Figures:
    """What was measured of one program."""

    label: str
    jobs: int
    told_s: float = 0.0  # from the first Job created until all are told
    after_s: float = 0.0  # from the last Job created until all are told
    cpu_s: float = 0.0
    server_s: float = 0.0  # CPU of kube-apiserver and etcd meanwhile
    rss_mb: float = 0.0
    peak_mb: float = 0.0
    writes: Counter[str] = field(default_factory=Counter)
    quiet: Counter[str] = field(default_factory=Counter)
    quiet_cpu_s: float = 0.0
    starts_s: list[float] = field(default_factory=list)  # from a pod's end until the next Job goes
    counted_s: list[float] = field(default_factory=list)  # from it until its Job says Complete
    start_writes: Counter[str] = field(default_factory=Counter)
    restart_s: float = 0.0  # from a new process until the next Job goes
    restart_writes: Counter[str] = field(default_factory=Counter)
    load: list[float] = field(default_factory=list)


def job(name: str) -> Json:
    """A Job of one pod that fills a node, runs until it is told to end, and has a limit."""
    container = {
        "name": "main",
        "image": "registry.example.org/team/app:1",
        "resources": {"requests": {"cpu": str(CPU), "memory": "1Gi"}},
    }
    pod = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    template = {"metadata": {"annotations": {_RUN: "10000000"}}, "spec": pod}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"completions": 1, "parallelism": 1, "activeDeadlineSeconds": LIMIT_S, "template": template},
    }


async def writes(client: Client) -> Counter[str]:
    """How often each resource was written since the server started, by its own count."""
    found: Counter[str] = Counter()
    text = await client.request("GET", "/metrics", timeout_s=60)
    for labels, count in _REQUESTS.findall(text):
        of = dict(_LABEL.findall(labels))
        if of[b"verb"] in _WRITES and of.get(b"dry_run") != b"All":
            name = b"/".join(each for each in (of[b"resource"], of[b"subresource"]) if each)
            found[name.decode()] += int(float(count))
    return found


def resident(pid: int) -> float:
    """MB that a process has in memory now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


class Run:
    """One program on one sandbox, from the first Job to the last figure."""

    def __init__(self, holder: Holder, client: Client, server: list[int], folder: Path, jobs: int) -> None:
        self.figures = Figures(holder.label, jobs)
        self._holder = holder
        self._client = client
        self._server = server  # pids
        self._log = folder / f"{holder.label.replace(', ', '-').replace(' ', '-')}.log"
        self._log.unlink(missing_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: set[str] = set()  # Jobs that are suspended
        self._going: dict[str, float] = {}  # Jobs that are not, and since when
        self._complete: dict[str, float] = {}
        self._places: dict[str, int | None] = {}  # by object that says so
        self._pods: dict[str, Pod] = {}
        self._changed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        reflectors: list[Reflector[Any]] = []
        seers = ((self._holder.told, self._told), (JOBS, self._job), (PODS, self._pod))
        for resource, see in seers:
            reflector = Reflector(self._client, resource, namespace=NAMESPACE)
            reflector.store.on_change(see)
            reflectors.append(reflector)
        tasks = [asyncio.create_task(reflector.run()) for reflector in reflectors]
        try:
            for reflector in reflectors:
                await reflector.synced.wait()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _told(self, old: Any, new: Any) -> None:
        if new is None:
            self._places.pop(old.metadata.name, None)
        elif self._holder.is_told(new):
            self._places[new.metadata.name] = self._holder.place(new)
        else:
            self._places.pop(new.metadata.name, None)
        self._changed.set()

    def _job(self, old: Job | None, new: Job | None) -> None:
        if new is None:
            return
        name = new.metadata.name
        if new.spec.suspend:
            self._waiting.add(name)
        elif name not in self._going:
            self._waiting.discard(name)
            self._going[name] = time.perf_counter()
        if new.is_finished:
            self._complete.setdefault(name, time.perf_counter())
        self._changed.set()

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self._pods[new.metadata.name] = new
            self._changed.set()

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not done():
                    assert self._process is None or self._process.poll() is None, f"it ended: {self._log}"
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), 2.0)
        except TimeoutError:
            raise SystemExit(
                f"{self._holder.label}: not within {_PATIENCE_S:.0f} s: {what}; {len(self._places)} told, "
                f"{len(self._waiting)} wait, {len(self._going)} go; see {self._log}"
            ) from None

    # -- the program -----------------------------------------------------------------------------------------

    def start(self) -> None:
        with self._log.open("ab") as out:
            variables = {**environment(), **self._holder.more}
            self._process = subprocess.Popen(self._holder.command, stdout=out, stderr=out, env=variables)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    # -- the work --------------------------------------------------------------------------------------------

    async def create(self, prefix: str, count: int) -> float:
        def body(index: int) -> Json:
            return self._holder.manifest(job(f"{prefix}-{index:05d}"))

        return await each(
            count, lambda index: self._client.create(JOBS.raw(), body(index), namespace=NAMESPACE)
        )

    async def fill(self, nodes: int) -> None:
        await self.create("runs", nodes)
        await self._until(lambda: len(self._running()) == nodes, "the cluster is full")

    async def submit(self) -> None:
        """All Jobs, until each is told that it waits, and its place if places are told."""
        figures, count = self.figures, self.figures.jobs
        wanted = self._holder.places(count)
        before, cpu, server = await writes(self._client), usage(self._pid)[0], self._server_cpu()
        began = time.perf_counter()
        await self.create("waits", count)
        created = time.perf_counter()
        await self._until(
            lambda: len(self._places) == count and Counter(self._places.values()) == wanted, "all are told"
        )
        now = time.perf_counter()
        figures.told_s, figures.after_s = now - began, now - created
        await self._calm()
        figures.writes = await writes(self._client) - before
        spent, figures.peak_mb = usage(self._pid)
        figures.cpu_s, figures.server_s = spent - cpu, self._server_cpu() - server
        figures.rss_mb = resident(self._pid)
        figures.load.append(os.getloadavg()[0])

    async def rest(self) -> None:
        """A while in which nothing happens."""
        before, cpu = await writes(self._client), usage(self._pid)[0]
        await asyncio.sleep(QUIET_S)
        self.figures.quiet = await writes(self._client) - before
        self.figures.quiet_cpu_s = usage(self._pid)[0] - cpu

    async def free(self, times: int) -> None:
        """One place after the other is free."""
        before = await writes(self._client)
        for _ in range(times):
            went, ended, owner = len(self._going), time.perf_counter(), await self._end_one()
            await self._until(lambda went=went: len(self._going) > went, "the next Job goes")  # type: ignore[misc]
            self.figures.starts_s.append(max(self._going.values()) - ended)
            await self._until(lambda owner=owner: owner in self._complete, "the Job is complete")  # type: ignore[misc]
            self.figures.counted_s.append(self._complete[owner] - ended)
            await asyncio.sleep(1.0)
        await self._calm()
        self.figures.start_writes = await writes(self._client) - before
        self.figures.load.append(os.getloadavg()[0])

    async def restart(self) -> None:
        """A place is free while the program is away; then it comes back."""
        self.stop()
        went = len(self._going)
        owner = await self._end_one()
        await self._until(lambda: owner in self._complete, "the Job is complete")
        before = await writes(self._client)
        began = time.perf_counter()
        self.start()
        await self._until(lambda: len(self._going) > went, "the next Job goes")
        self.figures.restart_s = max(self._going.values()) - began
        await asyncio.sleep(10)
        await self._calm()
        self.figures.restart_writes = await writes(self._client) - before
        self.figures.peak_mb = max(self.figures.peak_mb, usage(self._pid)[1])

    async def _end_one(self) -> str:
        """A pod that runs has ended by itself; its Job."""
        pod = self._running()[0]
        status = {"status": {"phase": "Succeeded", "conditions": []}}
        await self._client.patch(
            PODS.raw(), pod.metadata.name, status, namespace=NAMESPACE, subresource="status"
        )
        await self._until(lambda: self._pods[pod.metadata.name].is_terminal, "the pod has ended")
        return next(ref.name for ref in pod.metadata.owner_references or ())

    def _running(self) -> list[Pod]:
        return [pod for pod in self._pods.values() if pod.status.phase == "Running"]

    async def _calm(self) -> None:
        """Until nothing of ours is written any more, or for a minute."""
        last, since = Counter[str](), time.perf_counter()
        while time.perf_counter() - since < QUIET_S:
            now = await writes(self._client)
            if sum(_ours(now - last).values()) < 5:
                return
            last = now
            await asyncio.sleep(3.0)

    def _server_cpu(self) -> float:
        return sum(usage(pid)[0] for pid in self._server)


def _ours(found: Counter[str]) -> Counter[str]:
    """Without the heartbeats of the cluster itself."""
    own = ("leases", "nodes/status", "endpointslices", "subjectaccessreviews", "tokenreviews")
    return Counter({name: count for name, count in found.items() if name not in own and count})


async def run(
    holder: Holder,
    access: Access,
    server: list[int],
    folder: Path,
    *,
    jobs: int,
    nodes: int,
    starts: int,
) -> Figures:
    async with Client(access, qps=0) as client:
        one = Run(holder, client, server, folder, jobs)
        one.figures.load.append(os.getloadavg()[0])
        try:
            async with one.watching():
                one.start()
                await one.fill(nodes)
                await one.submit()
                await one.rest()
                await one.free(starts)
                await one.restart()
        finally:
            one.stop()
        return one.figures


async def make_namespace(client: Client, labels: dict[str, str], name: str = NAMESPACE) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    await client.create(NAMESPACES, body)
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Exception):
                await client.request("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default")
                return
            await asyncio.sleep(0.1)


def show(found: Figures) -> None:
    def told(counts: Counter[str]) -> str:
        return ", ".join(f"{name} {count}" for name, count in _ours(counts).most_common(8)) or "none"

    def spread(values: list[float]) -> str:
        return f"{median(values) * 1000:.0f} ms median, {max(values) * 1000:.0f} worst"

    print(f"{found.label}: {found.jobs} Jobs wait (load {', '.join(f'{x:.1f}' for x in found.load)})")
    print(f"  all told         {found.told_s:.1f} s from the first Job, {found.after_s:.1f} s from the last")
    print(f"  memory           {found.rss_mb:.0f} MB now, {found.peak_mb:.0f} MB at most")
    print(f"  CPU              {found.cpu_s:.1f} s, and {found.server_s:.1f} s of the server")
    print(f"  writes per Job   {_per_job(found):.2f} of its own objects; {told(found.writes)}")
    print(f"  a quiet minute   {found.quiet_cpu_s:.2f} s of CPU; writes: {told(found.quiet)}")
    print(f"  a place is free  {spread(found.starts_s)}; its Job counted it after {spread(found.counted_s)}")
    print(f"    writes for {len(found.starts_s)}: {told(found.start_writes)}")
    print(f"  restart          {found.restart_s:.1f} s to the next start")
    print(f"    writes: {told(found.restart_writes)}")


def _per_job(found: Figures) -> float:
    return sum(count for name, count in found.writes.items() if name.split("/")[0] in OWN) / found.jobs


def compare(ours: Figures, theirs: Figures) -> None:
    """How many times as much, of each figure, the second needs."""
    figures: dict[str, Callable[[Figures], float]] = {
        "until all are told": lambda each: each.told_s,
        "CPU until then": lambda each: each.cpu_s,
        "CPU of the server": lambda each: each.server_s,
        "memory": lambda each: each.peak_mb,
        "writes per Job": _per_job,
        "CPU of a quiet minute": lambda each: each.quiet_cpu_s,
        "from a free place to the next start": lambda each: median(each.starts_s),
        "from a restart to the next start": lambda each: each.restart_s,
    }
    print(f"{theirs.label} / {ours.label}")
    for name, figure in figures.items():
        print(f"  {name:<36}{figure(theirs) / max(figure(ours), 0.001):>8.2f}")


OWN = ("fluxjobs", "workloads", "localqueues", "clusterqueues", "cohorts")
