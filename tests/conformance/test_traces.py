"""Real logs through the queue and the matcher, against published results and against a plain pool.

The traces are no part of this repository; FLUENCE_TRACES names their folder, ../shared/traces by default. The
published figures are of a pool of equal processors with decisions at arrivals and completions. They are exact
for fcfs, first-fit and easy, and for conservative with `replan`, the plan made anew at each event. Our own
workload, in examples/workloads, is held against such a pool here, whatever is at hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fluence.sim import simulator, workload
from fluence.sim.measure import Measures, measure
from fluence.sim.simulator import simulate
from tests.needs import lacks
from tests.unit.sim import pool
from tests.unit.sim.pool import TRACES, Pool

OWN = Path(__file__).resolve().parents[2] / "examples" / "workloads" / "busy.yaml"


@cache
def figures(
    trace: Path,
    processors: int,
    policy: str,
    *,
    scale: float = 1.0,
    jobs: int | None = None,
    replan: bool = False,
    forecasts: bool = False,
) -> Measures:
    if not trace.exists():
        lacks("traces")
    work = workload.read(trace, arrival_scale=scale, jobs=jobs, processors=processors)
    run = simulate(work, simulator.read(f"{processors}x1"), policy=policy, replan=replan, forecasts=forecasts)
    found = measure(run.records, capacity=processors)
    assert found.jobs == found.finished
    return found


@pytest.mark.parametrize(
    ("policy", "mean", "slowdown", "makespan"),
    [
        ("fcfs", 23_052.6, 225.26, 1_142_402),
        ("first-fit", 12_415.9, 78.94, 1_059_540),
        ("easy", 14_208.7, 93.90, 1_078_838),
        ("conservative", 15_491.3, 110.03, 1_121_456),
    ],
)
def test_hpc2n_the_first_500_jobs(policy: str, mean: float, slowdown: float, makespan: float) -> None:
    found = figures(TRACES / "hpc2n.swf", 240, policy, scale=0.5, jobs=500, replan=True)
    assert round(found.wait.mean, 1) == mean
    assert round(found.bounded_slowdown.mean, 2) == slowdown
    assert found.makespan == makespan


@pytest.mark.parametrize(
    ("policy", "mean", "p95", "most", "slowdown", "wide", "use"),
    [
        ("fcfs", 158_271, 491_340, 598_583, 4_159.6, 187_217, 0.538),
        ("first-fit", 8_544, 34_578, 312_487, 93.9, 59_907, 0.725),
        ("easy", 11_045, 53_305, 300_555, 60.8, 60_736, 0.707),
        ("conservative", 15_457, 86_541, 282_994, 143.8, 52_489, 0.718),
    ],
)
def test_lublin_the_first_1000_jobs(
    policy: str, mean: float, p95: float, most: float, slowdown: float, wide: float, use: float
) -> None:
    found = figures(TRACES / "lublin_256.swf", 256, policy, jobs=1000, replan=True)
    assert (round(found.wait.mean), found.wait.p95, found.wait.max) == (mean, p95, most)
    assert round(found.bounded_slowdown.mean, 1) == slowdown
    assert (round(found.wide_wait.mean), found.wide_wait.count) == (wide, 96)
    assert round(found.utilisation, 3) == use


class TestPromises:
    """On the first 1,000 jobs of hpc2n at twice its load."""

    def of(self, policy: str, forecasts: bool = False) -> Measures:
        return figures(TRACES / "hpc2n.swf", 240, policy, scale=0.5, jobs=1000, forecasts=forecasts)

    def test_conservative_keeps_them_all(self) -> None:
        promise = self.of("conservative").promise
        assert promise.started > 500
        assert promise.late == 0
        assert promise.broken == {}

    def test_a_plan_made_anew_each_time_does_not(self) -> None:
        found = figures(TRACES / "hpc2n.swf", 240, "conservative", scale=0.5, jobs=1000, replan=True)
        assert found.promise.late > 0

    @pytest.mark.parametrize("policy", ["easy", "hybrid", "hybrid(8)"])
    def test_one_in_a_hundred_may_be_late_where_others_overtake(self, policy: str) -> None:
        promise = self.of(policy).promise
        assert promise.started > 500
        assert promise.late_rate <= 0.01
        # A bound that nobody could use would be easy to keep.
        in_order = self.of("fcfs").promise
        assert promise.no_later_than_slack < 2 * in_order.no_later_than_slack

    def test_what_is_expected_is_nearer_than_what_is_promised(self) -> None:
        promise = self.of("easy", forecasts=True).promise
        assert promise.expected_mae <= promise.no_later_than_mae / 2


# What busy.yaml gives on 64 processors: mean wait, bounded slowdown, makespan; and the pool's way to decide.
BUSY: list[tuple[str, Callable[[Pool], None], tuple[float, float, float]]] = [
    ("fcfs", pool.fcfs, (24_522.7, 28.56, 163_281.524)),
    ("first-fit", pool.first_fit, (2_923.8, 3.23, 116_684.614)),
    ("easy", pool.easy, (6_723.2, 6.04, 135_221.762)),
    ("conservative", pool.conservative, (6_417.6, 5.44, 129_978.546)),
]


class TestOurOwn:
    @pytest.mark.parametrize(("policy", "decide", "golden"), BUSY, ids=[each[0] for each in BUSY])
    def test_each_job_starts_when_a_plain_pool_starts_it(
        self, policy: str, decide: Callable[[Pool], None], golden: tuple[float, float, float]
    ) -> None:
        work = workload.read(OWN, processors=64)
        run = simulate(work, simulator.read("64x1"), policy=policy, replan=True, forecasts=False)
        plain = pool.run(work.submissions, 64, decide)
        assert [(r.name, r.start, r.end) for r in run.records] == [(r.name, r.start, r.end) for r in plain]

    @pytest.mark.parametrize(("policy", "decide", "golden"), BUSY, ids=[each[0] for each in BUSY])
    def test_the_figures_are_what_they_were(
        self, policy: str, decide: Callable[[Pool], None], golden: tuple[float, float, float]
    ) -> None:
        found = figures(OWN, 64, policy, replan=True)
        assert (
            round(found.wait.mean, 1),
            round(found.bounded_slowdown.mean, 2),
            round(found.makespan, 3),
        ) == golden

    def test_conservative_keeps_its_promises(self) -> None:
        promise = figures(OWN, 64, "conservative").promise
        assert (promise.started, promise.late, promise.broken) == (promise.waiting, 0, {})
        assert promise.waiting > 200

    def test_nodes_of_many_cores_start_the_same_jobs(self) -> None:
        """What asks for cores, wherever they are, does not see the nodes."""
        work = workload.read(OWN, processors=64)
        starts = [
            [r.start for r in simulate(work, simulator.read(each), policy="easy", forecasts=False).records]
            for each in ("64x1", "4x16")
        ]
        assert starts[0] == starts[1]
