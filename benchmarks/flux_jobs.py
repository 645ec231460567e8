"""Ten thousand held Jobs in the queue: memory, time of a cycle and of a round of writes, writes per FluxJob.

    python benchmarks/flux_jobs.py [JOBS]

In one process, without a server: what is measured is the scheduler and the controller.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.controller.queue_of_jobs import QueueOfJobs

STARTS = 20


async def main(jobs: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue = QueueOfJobs(nodes=4)
    queue.submit(jobs)
    began = time.perf_counter()
    decisions = queue.settle()
    took = time.perf_counter() - began
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{jobs} Jobs taken in, planned and told: {took:.1f} s, {held / 1024:.0f} MB more")
    submitted = sum(queue.writes.values())
    print(f"  writes per FluxJob until then: {submitted / jobs:.2f}")
    times = []
    for _ in range(STARTS):
        began = time.perf_counter()
        decisions = queue.run_through(decisions)
        times.append(time.perf_counter() - began)
    started = 4 * STARTS
    more = sum(queue.writes.values()) - submitted
    print(f"  {started} started and ended: {1000 * sum(times) / started:.1f} ms each, {more} writes in all")
    began = time.perf_counter()
    queue.cycle()
    print(f"  a cycle and a round in which nothing happens: {1000 * (time.perf_counter() - began):.1f} ms")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
