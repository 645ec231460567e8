"""kill -9 at random points while gangs of every kind contend, with faults of the API: each starts whole.

    FLUENCE_SOAK=200 FLUENCE_SOAK_SEED=3 pytest tests/integration/schedule/test_mixed_kills.py

`make soak` runs the long form. The audit judges all the time: a gang in part that lasts is a finding.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

from fluence.sandbox.audit import AuditLedger
from fluence.sandbox.auditor import Auditor
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from tests.integration.schedule.field import field
from tests.integration.schedule.killed import Run, beside, killed, nothing_is_held
from tests.integration.schedule.operated import SIZE, Maker, Operated, all_kinds, bound_of

SOAK = int(os.environ.get("FLUENCE_SOAK", "0"))
KILLS = SOAK or 3
NODES = 4 if SOAK else 8  # of two cores: room for two gangs, or for five, so that a round is over sooner
SEED = int(os.environ.get("FLUENCE_SOAK_SEED", "22"))
GRACE_S = 30.0  # longer than a restart takes
FAULTS = [
    Rule(verb="create", path="binding$", status=503, every=5),
    Rule(verb="create", path="binding$", cut_after=0, every=7),
    Rule(verb="create", path="binding$", status=500, every=11),
    Rule(verb="patch", path="status$", status=503, every=3),
    Rule(verb="create", path="events", status=500, every=2),
]


async def make_all(run: Run, makers: dict[str, Maker], rng: random.Random) -> None:
    """Rounds of all kinds, in whatever order; what has started whole is removed. A round follows the other
    until the last kill."""
    f, operated, made = run.f, Operated(run.f), 0
    while made == 0 or not run.last:
        made += 1
        left = {f"{kind.lower()}{made}": kind for kind in rng.sample(list(makers), len(makers))}
        run.notes["left"] = lambda left=left: sorted(left)  # type: ignore[misc]
        await asyncio.gather(*(makers[kind](operated, name) for name, kind in left.items()))
        while left:
            pods = await f.until(
                lambda pods: any(bound_of(pods, name) == SIZE for name in left),  # noqa: B023
                f"one of {sorted(left)} starts whole",
            )
            for name in [name for name in left if bound_of(pods, name) == SIZE]:
                await operated.remove(left.pop(name), name)


async def test_gangs_of_every_kind_start_whole_though_the_scheduler_is_killed(
    operators: Kube, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    async with field(operators, NODES, cpu=2) as f:
        async with (
            all_kinds(f) as makers,
            Auditor(f.client, ledger=AuditLedger(grace_s=GRACE_S)) as auditor,
            killed(f, FAULTS, tmp_path) as run,
        ):
            async with run.explained(), beside(make_all(run, makers, rng)):
                await run.kill(KILLS, rng, bound=(1, 4), pause_s=0.05)
            report = await auditor.report()
            assert not report.findings, await run.account(str(report.findings))
            assert report.gangs_seen >= len(makers)
            await f.until(lambda pods: not pods, "all is gone")
            assert await run.stop(signal.SIGTERM) == 0
        await nothing_is_held(f)
