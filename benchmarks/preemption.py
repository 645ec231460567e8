"""What preemption costs, and what it is good for: a log of two teams under several rules, simulated.

    python benchmarks/preemption.py [--trace ../shared/traces/hpc2n.swf] [--jobs 300] [--pictures DIR]

The jobs of a log become gangs of pods with the run times and limits of the log, arriving twice as fast. Two
thirds of them are of a team with weight 2, one third of a team with weight 1; a fifth is urgent, by a
PriorityClass. The scheduler's own cycle decides (`fluence simulate --manifests`), with the policy
`conservative`, so that a promise is broken only if something takes it away. A job that is ended begins from
the start. Without the log, a generated one.

Rows are added to build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fluence import names
from fluence.model.queue_documents import parse_tree
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.schedule.settings import SchedulerSettings
from fluence.sim import live_cycle, pictures, report, workload
from fluence.sim.live_cycle import Arrival, ManifestWorkload
from fluence.sim.measure import LIVE_CYCLE, Run

NODES, CORES = 30, 8  # as many processors as the log's machine
GRACE_S = 30
URGENT = 1000
# The patience of both queues: work ends late, or not at all if its end comes in time. None: nobody is
# preempted.
MODES: dict[str, str | None] = {
    "no preemption": None,
    "kill now": "",
    "patience 10m": "10m",
    "patience 1h": "1h",
    "patience 4h": "4h",
}
GENERATED = b"""
generate:
  - {name: g, count: 600, arrival: {poisson: 6m}, cores: {1: 4, 8: 3, 32: 2, 64: 1},
     runtime: {median: 1h, sigma: 1.2, max: 24h}, overestimate: {min: 1, max: 4}}
"""


def tree(patience: str) -> str:
    rules = f", preemption: {{patience: {patience}}}" if patience else ""
    head = f"apiVersion: {names.PREFIX}/v1alpha1\nkind: Queue\n"
    queues = (f"{head}metadata: {{name: {name}}}\nspec: {{weight: {weight}{rules}}}\n"
              for name, weight in (("physics", 2), ("chem", 1)))  # fmt: skip
    return "---\n".join(queues)


def gangs(work: workload.TraceWorkload) -> Iterator[Arrival]:
    """Each job as a Job whose pods have up to a node's cores."""
    rng = random.Random(0)
    for submission in work.submissions:
        cores = next(size for size in (8, 4, 2, 1) if submission.size % size == 0)
        count = submission.size // cores
        name = f"j{submission.name}"
        notes = {
            f"{names.PREFIX}/group": name,
            f"{names.PREFIX}/group-size": str(count),
            names.QUEUE: "physics" if rng.random() < 2 / 3 else "chem",
            "sandbox.fluence.flux-framework.org/run-seconds": str(submission.runtime / 1000),
        }
        if submission.limit is not None:
            notes[names.DURATION] = f"{submission.limit // 1000}s"
        spec = {
            "schedulerName": "fluence",
            "restartPolicy": "Never",
            "priority": URGENT if rng.random() < 0.2 else 0,
            "terminationGracePeriodSeconds": GRACE_S,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cores)}}}],
        }
        document: dict[str, Any] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "parallelism": count,
                "completions": count,
                "template": {"metadata": {"annotations": notes}, "spec": spec},
            },
        }
        yield Arrival(submission.submit, document, submission.name)


def simulate(mode: str, work: ManifestWorkload) -> Run:
    patience = MODES[mode]
    queues = parse_tree(tree(patience or "").encode(), source="queues")
    settings = SchedulerSettings(queue_policy="conservative", preemption=patience is not None)
    nodes = manifests(NodeKind(count=NODES, cpu=CORES))
    done = live_cycle.simulate(work, nodes, settings=settings, queues=queues)
    preemption = done.preemption or live_cycle.preemption_figures(done.records, pods=0, lost=0)
    return Run(
        mode, done.records, done.capacity, "cpu", engine=LIVE_CYCLE, wall_s=done.wall_s,
        queues=queues, preemption=preemption,
    )  # fmt: skip


def row(run: Run) -> dict[str, object]:
    assert run.preemption is not None and run.tenants is not None
    waits = run.preemption.waits
    return {
        "what": run.policy,
        "jobs ended": run.preemption.jobs,
        "lost cluster-seconds": round(run.preemption.lost),
        "urgent wait, mean s": round(waits[str(URGENT)].mean),
        "urgent wait, 95 % s": round(waits[str(URGENT)].p95),
        "other wait, mean s": round(waits["0"].mean),
        "share error": run.tenants.share_error,
        "promises broken": sum(run.measures.promise.broken.values()),
        "makespan s": round(run.measures.makespan),
        "took s": round(run.wall_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=Path("../shared/traces/hpc2n.swf"))
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--pictures", type=Path, help="a directory for the pictures of the report")
    given = parser.parse_args()
    if given.trace.exists():
        log = workload.read(given.trace, jobs=given.jobs, arrival_scale=0.5, processors=NODES * CORES)
    else:
        log = workload.parse(GENERATED, kind="yaml")
    work = ManifestWorkload(tuple(gangs(log)), log.source)
    runs: list[Run] = []
    rows: list[dict[str, object]] = []
    for mode in MODES:
        runs.append(simulate(mode, work))
        rows.append(row(runs[-1]))
        print(" | ".join(f"{key}: {value}" for key, value in rows[-1].items()), flush=True)
    print(report.table(runs, width=200))
    if given.pictures is not None:
        pictures.save(runs, given.pictures)
    file = Path("build/bench.json")
    file.parent.mkdir(exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else []
    rest = [each for each in known if isinstance(each, dict) and each.get("suite") != "preemption"]
    file.write_text(json.dumps([*rest, *({"suite": "preemption"} | each for each in rows)], indent=1))


if __name__ == "__main__":
    main()
