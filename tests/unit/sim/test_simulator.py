"""The simulator drives the queue as its events say: ends before arrivals, limits enforced, partial runs."""

from __future__ import annotations

import json

import pytest

from fluence.queue import GraphPlanner, PoolPlanner
from fluence.sim import simulator, workload
from fluence.sim.intake import IntakeTerms
from fluence.sim.simulator import Simulation, simulate


def simulated(text: str, cluster: str = "1x4", **settings: object) -> Simulation:
    terms = IntakeTerms(processors=None)
    work = workload.parse(text.encode(), kind="yaml", terms=terms)
    return simulate(work, simulator.read(cluster), **settings)  # type: ignore[arg-type]


def starts(run: Simulation) -> dict[str, int | None]:
    return {record.name: record.start and record.start // 1000 for record in run.records}


def test_what_ends_is_free_for_what_arrives_at_the_same_moment():
    run = simulated("""jobs:
      - {name: a, at: 0, cores: 4, runtime: 60, limit: 60}
      - {name: b, at: 60, cores: 4, runtime: 10, limit: 10}""")
    assert starts(run) == {"a": 0, "b": 60}
    assert run.records[1].no_later_than is None  # it did not have to wait


def test_a_job_is_ended_at_its_limit():
    run = simulated("jobs: [{name: a, cores: 1, runtime: 100, limit: 30}]")
    assert (run.records[0].end, run.records[0].state) == (30_000, "completed")


def test_a_job_without_a_limit_runs_as_long_as_it_does():
    run = simulated("jobs: [{name: a, cores: 1, runtime: 100}]")
    assert run.records[0].end == 100_000


def test_dependencies_and_failures():
    run = simulated("""jobs:
      - {name: good, cores: 1, runtime: 10}
      - {name: bad, cores: 1, runtime: 20, succeeds: false}
      - {name: b, at: 1, cores: 1, runtime: 10, after: "afterok:good"}
      - {name: c, at: 1, cores: 1, runtime: 10, after: "afterok:bad"}
      - {name: d, at: 1, cores: 1, runtime: 10, after: "afterany:bad"}""")
    assert starts(run) == {"good": 0, "bad": 0, "b": 10, "c": None, "d": 20}
    states = "completed failed completed unschedulable completed"
    assert " ".join(r.state for r in run.records) == states


def test_a_singleton_waits_for_the_jobs_of_its_user_before_it():
    """Names are unique in a workload, so that all jobs of a user count as of one name."""
    run = simulated("""jobs:
      - {name: a, cores: 1, runtime: 50, user: ada}
      - {name: b, at: 1, cores: 1, runtime: 10, user: ada, after: singleton}
      - {name: c, at: 1, cores: 1, runtime: 10, user: bob, after: singleton}""")
    assert starts(run) == {"a": 0, "b": 50, "c": 1}


def test_an_array_starts_in_part():
    run = simulated("jobs: [{name: a, cores: 3, runtime: 10, limit: 20, array: 3}]")
    (record,) = run.records
    assert (record.start, record.end, record.state) == (0, 30_000, "completed")


def test_until_leaves_what_has_not_happened():
    text = """jobs:
      - {name: a, cores: 4, runtime: 100, limit: 100}
      - {name: b, at: 10, cores: 4, runtime: 100, limit: 100}
      - {name: c, at: 50, cores: 4, runtime: 100, limit: 100}"""
    run = simulated(text, until=30_000, policy="conservative")
    assert [(r.state, r.start, r.end) for r in run.records] == [
        ("running", 0, None), ("reserved", None, None), ("pending", None, None),
    ]  # fmt: skip
    assert run.records[1].no_later_than == 100_000


def test_the_same_seed_gives_the_same_run():
    text = """generate: {count: 60, arrival: {poisson: 40}, cores: {1: 5, 3: 2}, users: 3,
      runtime: {median: 2m, sigma: 1}, overestimate: {min: 1, max: 4}}"""
    for policy in ("easy", "conservative"):
        first, again = (simulated(text, policy=policy) for _ in range(2))
        assert first.records == again.records
        assert first.decisions == again.decisions


def test_ctrl_c_leaves_what_is_known_by_then():
    done = []

    def progress(count: int) -> None:
        done.append(count)
        if len(done) == 2:
            raise KeyboardInterrupt

    text = json.dumps({"jobs": [{"name": f"j{i}", "cores": 4, "runtime": 10, "limit": 10} for i in range(5)]})
    run = simulated(text, progress=progress)
    assert run.interrupted
    assert [r.state for r in run.records].count("completed") == 2
    assert len(run.records) == 5


def test_jobs_that_ask_for_some_of_many_are_counted_and_others_matched():
    plain = simulated("jobs: [{name: a, cores: 2, runtime: 1}]")
    whole = simulated("jobs: [{name: a, nodes: 1, cores: 2, runtime: 1}]")
    assert isinstance(plain.queue.planner, PoolPlanner)
    assert isinstance(whole.queue.planner, GraphPlanner)


def test_an_empty_workload_is_an_empty_run():
    run = simulated("jobs: []")
    assert run.records == []
    assert run.decisions_per_s == 0


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "hybrid(3)", "conservative"])
@pytest.mark.parametrize("cluster", ["12x1", "3x4"])
def test_nothing_is_ever_held_twice(policy: str, cluster: str):
    text = """generate:
      - {name: s, count: 40, arrival: {poisson: 30}, cores: {1: 5, 4: 2, 9: 1}, users: 3,
         runtime: {median: 2m, sigma: 1}, overestimate: {min: 1, max: 4}}
      - {name: n, count: 8, arrival: {within: 15m}, nodes: [1, 2, 3], runtime: {median: 3m, sigma: 1},
         overestimate: 2, users: 2}"""
    run = simulated(text, cluster, policy=policy)
    assert {r.state for r in run.records} == {"completed"}
    events = sorted(
        [(r.start, r.size) for r in run.records] + [(r.end, -r.size) for r in run.records],
        key=lambda event: (event[0], event[1]),
    )
    held = 0
    for _, size in events:
        held += size
        assert held <= 12
