"""kill -9 at random points of a run of held workloads, then a restart: none is lost, none starts in part,
nothing is let go twice; also with a server that fails every kind of write.

    FLUENCE_SOAK=200 pytest tests/integration/controller/test_door_kills.py     what `make soak` runs
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from fluence import names
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.resource import JOBS, Json
from fluence.model.pod import Pod
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from tests.integration.controller.doors import SEEN, held_job, held_pod, submit, until_phase
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.killed import Run, beside, killed, nothing_is_held

KILLS = int(os.environ.get("FLUENCE_SOAK", "0")) or 4
LEAST = 6  # workloads, so that there are some of each kind
RUNS = 6
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
    """Jobs of two to four pods, single pods, and groups of gated pods by label, until the last kill."""
    for index in itertools.takewhile(lambda i: i < LEAST or not run.last, itertools.count()):
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
        await run.until_room()


@pytest.mark.parametrize("faults", [False, True], ids=["plain", "faults"])
async def test_killed_at_random_points_of_all_doors(
    kube: Kube, audited: None, tmp_path: Path, faults: bool
) -> None:
    rng = random.Random(SEED)
    async with field(kube, 8) as f:
        async with killed(f, FAULTS if faults else [], tmp_path) as run:
            run.kinds.append(FLUX_JOBS)
            async with beside(submit_all(f, run, rng)):
                await run.kill(KILLS, rng, bound=(0, 3), pause_s=0.3)
            async with run.explained():
                await f.until(
                    lambda pods: len(pods) >= run.made and all(pod.is_terminal for pod in pods.values()),
                    "all end",
                )
                found = await f.client.list(JOBS.raw(), namespace=f.namespace)
                jobs: list[Any] = list(found.items or ())
                for job in jobs:
                    await until_phase(f, f"{job['metadata']['name']}-job", "Completed")
            assert await run.stop(signal.SIGTERM) == 0
        check(jobs, await f.pods(), run)
        await nothing_is_held(f)


def check(jobs: list[Any], pods: dict[str, Pod], run: Run) -> None:
    """Each pod was made and run once, where its Job says; nothing is held any more."""
    assert {pod.status.phase for pod in pods.values()} == {"Succeeded"}
    assert len(pods) == run.made
    for job in jobs:
        wanted = job["spec"]["completions"]
        mine = [pod for pod in pods.values() if pod.metadata.name.startswith(f"{job['metadata']['name']}-")]
        assert len(mine) == wanted
        numbers = {pod.annotations[names.JOBID] for pod in mine}
        assert len(numbers) == 1, "all of it started together"
