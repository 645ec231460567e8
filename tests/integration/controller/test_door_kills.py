"""kill -9 at random points of a run of held workloads, then a restart: none is lost, none starts in part,
nothing is let go twice; also with a server that fails every kind of write.

    FLUENCE_SOAK=200 pytest tests/integration/controller/test_door_kills.py     what `make soak` runs
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence import names
from fluence.kube.reflector import Reflector
from fluence.kube.resource import JOBS, PODS, Json
from fluence.model.pod import Pod
from fluence.sandbox.faults import Rule
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.integration.controller.doors import SEEN, held_job, held_pod, submit, until_phase
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.test_kills import Run, _kubeconfig

KILLS = int(os.environ.get("FLUENCE_SOAK", "0")) or 4
COUNT = max(6, KILLS)
RUNS = 6
AHEAD = 8
SEED = int(os.environ.get("FLUENCE_SOAK_SEED", "11"))
FAULTS = [
    Rule(verb="patch", path="/jobs/", status=503, every=3),
    Rule(verb="patch", path="/jobs/", cut_after=0, every=5),
    Rule(verb="patch", path="/pods/", status=500, every=4),
    Rule(verb="patch", path="/pods/", cut_after=0, every=7),
    Rule(verb="create", path="binding$", status=503, every=5),
    Rule(verb="create", path="binding$", cut_after=0, every=7),
    Rule(verb="patch", path="fluxjobs", status=503, every=3),
]


async def submit_all(f: Field, run: Run, rng: random.Random) -> None:
    """Jobs of two to four pods, single pods, and groups of gated pods by label."""
    for index in range(COUNT):
        size, door = rng.randint(2, 4), rng.choice(["job", "job", "pod", "group"])
        cpu = f"{rng.choice((500, 1000, 1500))}m"
        if door == "job":
            mode = rng.choice(["Indexed", "NonIndexed"])
            await submit(f, held_job(f, f"w{index}", size, cpu=cpu, runs=RUNS, mode=mode))
        elif door == "pod":
            size = 1
            await f.add(held_pod(f, f"w{index}-0", cpu=cpu, runs=RUNS))
        else:
            labels = {**SEEN, names.GROUP_LABEL: f"w{index}"}
            notes = {names.GROUP_SIZE: str(size)}
            bodies: list[Json] = [
                held_pod(f, f"w{index}-{i}", cpu=cpu, runs=RUNS, labels=labels, annotations=notes)
                for i in range(size)
            ]
            await f.add(*bodies)
        run.made += size
        while run.made - run.bound > AHEAD:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("faults", [False, True], ids=["plain", "faults"])
async def test_killed_at_random_points_of_all_doors(
    kube: Kube, audited: None, tmp_path: Path, faults: bool
) -> None:
    rng = random.Random(SEED)
    async with contextlib.AsyncExitStack() as stack:
        f = await stack.enter_async_context(field(kube, 8))
        proxy = await stack.enter_async_context(Proxy(kube.access(), FAULTS if faults else []))
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(proxy.access.server)))
        reflector = Reflector(f.client, PODS, namespace=f.namespace)
        run = Run(f, kubeconfig, tmp_path / "log")
        reflector.store.on_change(run.on_pod)
        watch = asyncio.create_task(reflector.run())
        submits = asyncio.create_task(submit_all(f, run, rng))
        try:
            for _ in range(KILLS):
                await run.start()
                await run.wait_bound(run.bound + rng.randint(0, 3), timeout_s=8)
                await asyncio.sleep(rng.uniform(0, 0.3))
                await run.stop(signal.SIGKILL)
            await run.led()
            await submits
            await f.until(
                lambda pods: len(pods) >= run.made and all(pod.is_terminal for pod in pods.values()),
                f"all end; see {tmp_path / 'log'}",
                timeout_s=90 + COUNT,
            )
            jobs: list[Any] = list((await f.client.list(JOBS.raw(), namespace=f.namespace)).items or ())
            for job in jobs:
                await until_phase(f, f"{job['metadata']['name']}-job", "Completed")
            assert await run.stop(signal.SIGTERM) == 0
        finally:
            submits.cancel()
            with contextlib.suppress(ProcessLookupError, AssertionError):
                await run.stop(signal.SIGKILL)
            watch.cancel()
            await asyncio.wait({watch})
        await check(f, jobs, await f.pods(), run)


async def check(f: Field, jobs: list[Any], pods: dict[str, Pod], run: Run) -> None:
    """Each pod was made and run once, where its Job says; nothing is held any more."""
    assert {pod.status.phase for pod in pods.values()} == {"Succeeded"}
    assert len(pods) == run.made
    for job in jobs:
        wanted = job["spec"]["completions"]
        mine = [pod for pod in pods.values() if pod.metadata.name.startswith(f"{job['metadata']['name']}-")]
        assert len(mine) == wanted
        numbers = {pod.annotations[names.JOBID] for pod in mine}
        assert len(numbers) == 1, "all of it started together"
    async with f.scheduler() as live:
        await f.settled(quiet_s=0.3)
        assert live.scheduler.state.cluster.jobs == {}
        seats = live.scheduler.state.cluster.seats
        ours = [seats.position[name] for name in f.nodes]
        assert (seats.free("cpu")[ours] == seats.size("cpu")[ours]).all()
