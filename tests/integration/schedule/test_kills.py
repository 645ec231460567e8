"""kill -9 at random points of a run of gangs, then a restart: nothing leaks, nothing is bound twice, no gang
stays in part.

    FLUENCE_SOAK=200 pytest tests/integration/schedule/test_kills.py     what `make soak` runs
"""

from __future__ import annotations

import itertools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from tests.integration.schedule.disks import Disks, disks, mounts
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.killed import Run, beside, killed, nothing_is_held

KILLS = int(os.environ.get("FLUENCE_SOAK", "0")) or 4
RUNS = 8  # seconds: a gang in part is completed before its first pods end
SEED = int(os.environ.get("FLUENCE_SOAK_SEED", "7"))
FAULTS: dict[str, list[Rule]] = {
    "none": [],
    "writes": [
        Rule(verb="create", path="binding$", status=503, every=5),
        Rule(verb="create", path="binding$", cut_after=0, every=7),
        Rule(verb="create", path="binding$", status=500, every=11),
        Rule(verb="patch", path="status$", status=503, every=3),
        Rule(verb="create", path="events", status=500, every=2),
    ],
    "volumes": [Rule(verb="patch", path="persistentvolumeclaims", status=503, every=5)],
}


async def submit(run: Run, rng: random.Random, disks: Disks | None) -> None:
    """Gangs of two to four pods, as many as keep the scheduler busy until the last kill, so that none is
    killed while it has nothing to do; with disks, half of the pods mount a claim of their own that waits for
    its pod."""
    f = run.f
    for index in itertools.takewhile(lambda _: not run.last, itertools.count()):
        size = rng.randint(2, 4)
        await f.add_group(f"g{index}", size)
        pods = []
        for i in range(size):
            name = f"g{index}-{i}"
            more: dict[str, Any] = {}
            if disks is not None and rng.random() < 0.5:
                await disks.add(name)
                more["volumes"] = mounts(name)
            cpu = f"{rng.choice((500, 1000, 1500))}m"
            pods.append(f.pod(name, group=f"g{index}", cpu=cpu, runs=RUNS, **more))
        await f.add(*pods)
        run.made += size
        await run.until_room()


async def kill_and_end(f: Field, run: Run, disks: Disks | None) -> None:
    rng = random.Random(SEED)
    async with beside(submit(run, rng, disks)):
        await run.kill(KILLS, rng, bound=(1, 4), pause_s=0.05)
    async with run.explained():
        pods = await f.until(
            lambda pods: len(pods) >= run.made and all(pod.is_terminal for pod in pods.values()),
            "all end",
        )
    assert await run.stop(signal.SIGTERM) == 0
    assert {pod.status.phase for pod in pods.values()} == {"Succeeded"}
    assert len(pods) == run.made


@pytest.mark.parametrize("faults", FAULTS)
async def test_killed_at_random_points(kube: Kube, audited: None, tmp_path: Path, faults: str) -> None:
    async with field(kube, 8) as f:
        async with killed(f, FAULTS[faults], tmp_path) as run:
            if faults == "volumes":
                async with disks(f) as d:
                    run.notes["provisioner"] = lambda: d.state
                    await kill_and_end(f, run, d)
            else:
                await kill_and_end(f, run, None)
        await nothing_is_held(f)
