"""Published waits of two logs, reproduced to the digit, and promises kept on one of them.

The reference is a pool of equal processors, decisions at arrivals and ends, and an estimate that is the
larger of requested time and runtime. The logs are no part of this repository; FLUENCE_TRACES names their
folder, ../shared/traces by default.
"""

import os
from pathlib import Path

import pytest

from fluence.sim import platform, workload
from fluence.sim.measure import Measures, measure
from fluence.sim.simulator import simulate

ROOT = Path(__file__).resolve().parents[2]
TRACES = Path(os.environ.get("FLUENCE_TRACES") or ROOT.parent / "shared" / "traces").resolve()

pytestmark = pytest.mark.skipif(
    not (TRACES / "hpc2n.swf").exists(), reason=f"no logs in {TRACES}; set FLUENCE_TRACES to their folder"
)

# policy, replan: mean wait, mean bounded slowdown, makespan
HPC2N = {
    ("fcfs", False): (23_052.6, 225.26, 1_142_402),
    ("first-fit", False): (12_415.9, 78.94, 1_059_540),
    ("easy", False): (14_208.7, 93.90, 1_078_838),
    ("conservative", True): (15_491.3, 110.03, 1_121_456),
}
# policy, replan: mean wait, 95th percentile, longest, mean bounded slowdown, mean wait of wide jobs
LUBLIN = {
    ("fcfs", False): (158_271, 491_340, 598_583, 4159.6, 187_217),
    ("first-fit", False): (8_544, 34_578, 312_487, 93.9, 59_907),
    ("easy", False): (11_045, 53_305, 300_555, 60.8, 60_736),
    ("conservative", True): (15_457, 86_541, 282_994, 143.8, 52_489),
}


def run(log: str, cluster: str, jobs: int, scale: float, policy: str, *, replan: bool = False) -> Measures:
    work = workload.read(TRACES / log, jobs=jobs, arrival_scale=scale)
    machine = platform.read(cluster)
    done = simulate(work, machine, policy=policy, replan=replan, forecasts=False)
    return measure(done.records, capacity=machine.capacity)


@pytest.mark.parametrize(("policy", "replan"), HPC2N, ids=str)
def test_the_first_500_jobs_of_hpc2n_at_double_load(policy: str, replan: bool) -> None:
    found = run("hpc2n.swf", "240x1", 500, 0.5, policy, replan=replan)
    wait, slowdown, makespan = HPC2N[policy, replan]
    assert round(found.wait.mean, 1) == wait
    assert round(found.bounded_slowdown.mean, 2) == slowdown
    assert found.makespan == makespan


@pytest.mark.parametrize(("policy", "replan"), LUBLIN, ids=str)
def test_the_first_1000_jobs_of_the_lublin_model(policy: str, replan: bool) -> None:
    found = run("lublin_256.swf", "256x1", 1000, 1.0, policy, replan=replan)
    assert (
        round(found.wait.mean),
        round(found.wait.p95),
        round(found.wait.max),
        round(found.bounded_slowdown.mean, 1),
        round(found.wide_wait.mean),
    ) == LUBLIN[policy, replan]


@pytest.mark.parametrize(("policy", "most"), [("conservative", 0), ("easy", 0.01), ("hybrid(8)", 0.01)])
def test_promises_hold(policy: str, most: float) -> None:
    found = run("hpc2n.swf", "240x1", 1000, 0.5, policy)
    assert found.promise.waiting > 500
    assert found.promise.late_rate <= most
