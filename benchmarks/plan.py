"""Speed of the plan: whole traces, deep queues, and reasons.

    python benchmarks/plan.py [--trace ../shared/traces/hpc2n.swf] [--quick]

1. A whole trace under each policy, beside a bare pool of processors in plain Python (`plainpool.py`) on the
   same trace in the same run. Without the trace, a generated one.
2. A queue of 100, 1,000 and 10,000 jobs on 10,000 nodes, one arrival and one completion per cycle: the time
   of a cycle, and how it grows with the queue. Counted (whole nodes) and matched (cores and a GPU per node).
3. Why a job waits, and what would start it sooner, with 5,000 jobs pending.

Times are CPU time. Rows are added to build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.model.jobspec import Jobspec
from fluence.queue import GraphPlanner, Queue, Submission, planner_for
from fluence.queue.job import SECOND
from fluence.queue.reasons import why
from fluence.sim import simulator, workload
from fluence.sim.simulator import simulate

sys.path.insert(0, str(Path(__file__).parent))
import plainpool

HOUR = 3600 * SECOND
DEPTH = 100  # Slurm's bf_max_job_test
Row = dict[str, object]


def traces(path: Path, quick: bool) -> list[Row]:
    """Whole traces, beside the plain pool."""
    jobs = 500 if quick else None
    if path.exists():
        work, name, scale = workload.read(path, jobs=jobs, arrival_scale=0.5), path.name, 0.5
    else:
        text = b"generate: [{count: 3000, name: g, cores: [1, 64], runtime: 3600, users: 17}]"
        work, name, scale = workload.parse(text, kind="yaml"), "generated", 1.0
    plain = [
        (s.submit / SECOND, s.runtime / SECOND, s.size, (s.limit or s.runtime) / SECOND)
        for s in work.submissions
    ]
    rows: list[Row] = []
    for policy, replan in (
        ("fcfs", 0),
        ("first-fit", 0),
        ("easy", 0),
        ("conservative", 1),
        ("conservative", 0),
    ):
        began = time.process_time()
        starts = plainpool.simulate(plain, 240, policy)
        rival = time.process_time() - began
        for forecasts in (False, True):
            began = time.process_time()
            run = simulate(
                work, simulator.read("240x1"), policy=policy, replan=bool(replan), forecasts=forecasts
            )
            took = time.process_time() - began
            same = all(r.start == round(starts[i] * SECOND) for i, r in enumerate(run.records))
            how = (" --replan" if replan else "") + ("" if forecasts else " --no-forecast")
            what = f"{name} ×{scale:g} {policy}{how}"
            rows.append(
                {
                    "what": what,
                    "seconds": took,
                    "plain_pool_s": rival,
                    "ratio": took / rival,
                    "same_starts": same,
                }
            )
    return rows


def spec(count: int, kind: str) -> Jobspec:
    inner = "[{type: node, count: 1}]"
    resources = f"[{{type: slot, count: {count}, label: a, with: {inner}}}]"
    if kind == "matched":
        slot = "[{type: slot, count: 1, label: a, with: [{type: core, count: 8}, {type: gpu, count: 1}]}]"
        resources = f"[{{type: node, count: {count}, with: {slot}}}]"
    tasks = "[{command: [a], slot: a, count: {per_slot: 1}}]"
    rest = f"tasks: {tasks}, attributes: {{system: {{duration: 0}}}}"
    return Jobspec.parse(f"{{version: 9999, resources: {resources}, {rest}}}")


def deep(kind: str, policy: str, pending: int, nodes: int, cycles: int) -> Row:
    """One arrival and one completion per cycle, on a full cluster."""
    rnd = random.Random(1)
    specs = [spec(n, kind) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    graph = ResourceGraph()
    graph.extend(simulator.regular(nodes, 8 if kind == "matched" else 1, 1 if kind == "matched" else 0))
    matcher = Matcher(graph, "first", horizon=HORIZON * SECOND)
    planner = planner_for(matcher, specs[0]) if kind == "counted" else GraphPlanner(matcher)
    queue = Queue(planner, policy, depth=DEPTH, forecasts=kind == "counted")
    number = 0

    def arrive(now: int, size: Jobspec) -> None:
        nonlocal number
        number += 1
        queue.submit(
            Submission(f"j{number}", size, now, limit=rnd.randrange(1, 24) * HOUR, user=f"u{number % 17}")
        )

    now = 0
    running: list[str] = []

    def cycle() -> None:
        for start in queue.cycle(now):
            queue.running(start.task, now)
            running.append(start.task)

    while len(queue.pending) < pending:
        for _ in range(100):
            arrive(now, rnd.choice(specs))
        cycle()
    times = []
    for _ in range(cycles):
        now += 10 * SECOND
        ended = running.pop(rnd.randrange(len(running)))
        size = queue.records[ended].job.request
        queue.finish(ended, now)
        arrive(now, size)  # as large as what ended, so that the queue stays as long as it is
        began = time.process_time()
        cycle()
        times.append(time.process_time() - began)
    return {
        "what": f"{kind} {policy}, {len(queue.pending):,} pending on {nodes:,} nodes, cycle",
        "pending": pending,
        "milliseconds": 1000 * statistics.median(times),
        "p95": 1000 * sorted(times)[int(0.95 * len(times))],
    }


def reasons(pending: int) -> list[Row]:
    rows: list[Row] = []
    for kind in ("counted", "matched"):
        graph = ResourceGraph()
        graph.extend(simulator.regular(1000, 8, 1))
        matcher = Matcher(graph, "first", horizon=HORIZON * SECOND)
        specs = [spec(n, kind) for n in (8, 16, 64, 128)]
        queue = Queue(planner_for(matcher, specs[0]), "easy", depth=DEPTH, forecasts=False)
        for number in range(pending + 100):
            queue.submit(Submission(f"j{number}", specs[number % 4], number, limit=(1 + number % 9) * HOUR))
        for start in queue.cycle(pending + 100):
            queue.running(start.task, queue.now)
        times = []
        for record in queue.pending.records[:: max(1, pending // 50)]:
            began = time.process_time()
            why(queue, record.key)
            times.append(1000 * (time.process_time() - began))
        what = f"{kind}: why a job waits, {len(queue.pending):,} pending"
        rows.append({"what": what, "milliseconds": statistics.median(times), "p95": max(times)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, default=Path(__file__).parents[2] / "shared/traces/hpc2n.swf")
    parser.add_argument("--quick", action="store_true", help="less of everything, to see that it works")
    parser.add_argument("--build", type=Path, default=Path("build"))
    options = parser.parse_args()
    rows = traces(options.trace, options.quick)
    for row in rows:
        note = "same starts" if row["same_starts"] else "other starts"
        print(
            f"{row['what']:58} {row['seconds']:8.2f} s   {row['ratio']:8.1f} × a plain pool   {note}",
            flush=True,
        )
    sizes = (100, 1000) if options.quick else (100, 1000, 10_000)
    nodes, cycles = (1000, 20) if options.quick else (10_000, 200)
    for kind, policy in (("counted", "easy"), ("counted", "conservative"), ("matched", "easy")):
        first = None
        for pending in sizes:
            row = deep(kind, policy, pending, nodes, cycles if kind == "counted" else cycles // 4)
            first = first or row
            row["growth"] = row["milliseconds"] / first["milliseconds"]
            rows.append(row)
            growth = f"{row['growth']:8.1f} × that of {sizes[0]} pending"
            print(f"{row['what']:58} {row['milliseconds']:8.2f} ms  {growth}", flush=True)
    for row in reasons(500 if options.quick else 5000):
        rows.append(row)
        print(f"{row['what']:58} {row['milliseconds']:8.2f} ms  {row['p95']:8.1f} ms at most", flush=True)
    path = options.build / "bench.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else []
    rest = [row for row in known if isinstance(row, dict) and row.get("suite") != "plan"]
    path.write_text(json.dumps([*rest, *({"suite": "plan"} | row for row in rows)], indent=1))


if __name__ == "__main__":
    main()
