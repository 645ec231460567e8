"""kill -9 at random points of a run of gangs, then a restart: nothing leaks, nothing is bound twice, no gang
stays in part.

    FLUENCE_SOAK=200 pytest tests/integration/schedule/test_kills.py     what `make soak` runs
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from fluence.kube.reflector import Reflector
from fluence.kube.resource import PODS
from fluence.model.pod import Pod
from fluence.sandbox.faults import Rule
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.integration.schedule.disks import Disks, disks, mounts
from tests.integration.schedule.field import Field, field

KILLS = int(os.environ.get("FLUENCE_SOAK", "0")) or 4
GANGS = max(8, KILLS + KILLS // 2)
RUNS = 8  # seconds: a gang in part is completed before its first pods end
AHEAD = 8  # pods that wait at a time
SEED = int(os.environ.get("FLUENCE_SOAK_SEED", "7"))


class Run:
    """A scheduler in a process of its own, and what is bound meanwhile."""

    def __init__(self, f: Field, kubeconfig: Path, log: Path) -> None:
        self.f = f
        self.made = self.bound = 0
        self.ended: set[str] = set()
        self._command = [
            *(sys.executable, "-m", "fluence.cli", "scheduler", "run", "--no-lease", "--health-address", ""),
            *("--kubeconfig", str(kubeconfig), "--scheduler-name", f.name, "--log-format", "text"),
        ]
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._more = asyncio.Event()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name and (old is None or not old.spec.node_name):
            self.bound += 1
            self._more.set()
        if new is not None and new.is_terminal:
            self.ended.add(new.metadata.name)
            self._more.set()

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)

    async def led(self) -> None:
        """Wait until the last one has come so far that it hears a signal."""
        before = self._log.read_bytes().count(b"leads") if self._log.exists() else 0
        await self.start()
        async with asyncio.timeout(30):
            while self._log.read_bytes().count(b"leads") <= before:
                await asyncio.sleep(0.1)

    async def wait_bound(self, count: int, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.bound < count:
                    self._more.clear()
                    await self._more.wait()

    async def stop(self, number: int) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()


@contextlib.asynccontextmanager
async def gangs_running(run: Run, count: int, rng: random.Random, disks: Disks | None) -> AsyncIterator[None]:
    """Gangs of two to four pods, as many as keep the scheduler busy until the last kill; with disks, half of
    the pods mount a claim of their own that waits for its pod."""
    f = run.f

    async def submit() -> None:
        for index in range(count):
            size = rng.randint(2, 4)
            await f.add_group(f"g{index}", size)
            pods = []
            for i in range(size):
                name, more = f"g{index}-{i}", {}
                if disks is not None and rng.random() < 0.5:
                    await disks.add(name)
                    more["volumes"] = mounts(name)
                cpu = f"{rng.choice((500, 1000, 1500))}m"
                pods.append(f.pod(name, group=f"g{index}", cpu=cpu, runs=RUNS, **more))
            await f.add(*pods)
            run.made += size
            while run.made - run.bound > AHEAD:
                await asyncio.sleep(0.05)

    task = asyncio.create_task(submit())
    try:
        yield
        await task
    finally:
        task.cancel()


async def run(kube: Kube, rules: list[Rule], tmp_path: Path, *, volumes: bool) -> None:
    rng = random.Random(SEED)
    async with contextlib.AsyncExitStack() as stack:
        f = await stack.enter_async_context(field(kube, 8))
        proxy = await stack.enter_async_context(Proxy(kube.access(), rules))
        made = await stack.enter_async_context(disks(f)) if volumes else None
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(proxy.access.server)))
        reflector = Reflector(f.client, PODS, namespace=f.namespace)
        scheduler = Run(f, kubeconfig, tmp_path / "log")
        reflector.store.on_change(scheduler.on_pod)
        watch = asyncio.create_task(reflector.run())
        try:
            async with gangs_running(scheduler, GANGS, rng, made):
                for _ in range(KILLS):
                    await scheduler.start()
                    await scheduler.wait_bound(scheduler.bound + rng.randint(1, 4), timeout_s=8)
                    await asyncio.sleep(rng.uniform(0, 0.05))
                    await scheduler.stop(signal.SIGKILL)
            await scheduler.led()
            pods = await f.until(
                lambda pods: all(pod.is_terminal for pod in pods.values()),
                f"all end; see {tmp_path / 'log'}",
                timeout_s=60 + GANGS,
            )
            assert await scheduler.stop(signal.SIGTERM) == 0
        finally:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                await scheduler.stop(signal.SIGKILL)
            watch.cancel()
            await asyncio.wait({watch})
        assert {pod.status.phase for pod in pods.values()} == {"Succeeded"}
        groups: dict[str, set[str]] = {}
        for pod in pods.values():
            groups.setdefault(pod.metadata.name.partition("-")[0], set()).add(pod.metadata.uid)
        assert len(groups) == GANGS
        async with f.scheduler() as live:  # no capacity has leaked
            await f.settled(quiet_s=0.3)
            assert live.scheduler.state.cluster.jobs == {}
            seats = live.scheduler.state.cluster.seats
            ours = [seats.position[name] for name in f.nodes]
            assert (seats.free("cpu")[ours] == seats.size("cpu")[ours]).all()


@pytest.mark.parametrize("faults", ["none", "writes", "volumes"])
async def test_killed_at_random_points(kube: Kube, audited: None, tmp_path: Path, faults: str) -> None:
    rules = []
    if faults == "writes":
        rules = [
            Rule(verb="create", path="binding$", status=503, every=5),
            Rule(verb="create", path="binding$", cut_after=0, every=7),
            Rule(verb="create", path="binding$", status=500, every=11),
            Rule(verb="patch", path="status$", status=503, every=3),
            Rule(verb="create", path="events", status=500, every=2),
        ]
    if faults == "volumes":
        rules = [Rule(verb="patch", path="persistentvolumeclaims", status=503, every=5)]
    await run(kube, rules, tmp_path, volumes=faults == "volumes")


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
