"""How costs grow with the cluster and the queue: CPU per event, memory, and CPU to build from nothing.

    python benchmarks/growth.py [--nodes 1000 10000 50000] [--waiting 1000] [--policy easy] [--events 50]

The cluster and the events are those of `events.py`, in one process per case, so that memory is that of the
case. `build` is the CPU time to take in all nodes and pods, place those that fit and plan the rest; `MB` is
the peak of the process, and beside it what a node with its share of the pods takes beyond a bare process.
Growth is the median over that of the case before. Rows are added to build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
from pathlib import Path

import events

SIZES = (1_000, 10_000, 50_000)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def case(nodes: int, waiting: int, policy: str, count: int) -> events.Row:
    """One size under one policy; to be run in a process of its own."""
    bare = _peak_mb()
    row = events.measure(nodes, waiting, policy, count)
    peak = _peak_mb()
    return row | {
        "benchmark": "growth",
        "peak_mb": round(peak),
        "kb_per_node": round(1024 * (peak - bare) / nodes, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--waiting", type=int, nargs="+", default=(1_000,), help="gangs that wait")
    parser.add_argument("--policy", action="append", choices=events.POLICIES, help="only these")
    parser.add_argument("--events", type=int, default=50)
    given = parser.parse_args()
    path = Path("build") / "bench.json"
    path.parent.mkdir(exist_ok=True)
    print(
        f"{'policy':13} {'nodes':>7} {'waiting':>8} {'build':>9} {'median':>9} {'worst':>9} {'growth':>7} "
        f"{'peak':>8} {'a node':>8}"
    )
    for policy in given.policy or events.POLICIES:
        before: float | None = None
        for nodes in given.nodes:
            for waiting in given.waiting:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    row = pool.apply(case, (nodes, waiting, policy, given.events))
                median = float(str(row["median_ms"]))
                growth = "" if not before else f"{median / before:.1f}"
                before = median
                print(
                    f"{policy:13} {nodes:>7} {waiting:>8} {row['fill_s']:>7} s {median:>6} ms "
                    f"{row['worst_ms']:>6} ms {growth:>7} {row['peak_mb']:>5} MB {row['kb_per_node']:>5} kB",
                    flush=True,
                )
                known = json.loads(path.read_text()) if path.exists() else []
                path.write_text(json.dumps([*known, row], indent=1))


if __name__ == "__main__":
    sys.exit(main())
