"""The view API at 5,000 nodes: what a snapshot costs the scheduler, and a page the thread that makes it.

    python -m benchmarks.view [NODES] [PENDING]

Times are processor time of the thread, so that others on the machine do not count.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable

import msgspec
from tests.unit.schedule.test_promised_starts import node
from tests.unit.web.field import Field, gang

from fluence.schedule.events import Changed
from fluence.web.access import Reader, User
from fluence.web.cluster_rows import RESOURCES
from fluence.web.server import BASE, make_page, parse_query
from fluence.web.snapshot import Snapshot, take

REPEATS = 100
NAMESPACES = 50
EVERYTHING = Reader(User("admin"), everything=True)


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> list[float]:
    samples, kept = [], None
    for _ in range(repeats):
        began = time.thread_time()
        made = work()
        samples.append(1000 * (time.thread_time() - began))
        kept = made  # NB the one before is freed outside of what is measured
    del kept
    return sorted(samples)


def busy(nodes: int, pending: int) -> Field:
    """A gang runs on each node, and gangs of one to eight pods wait."""
    field = Field(nodes=0, policy="easy")
    field.driver.handle(*(Changed(None, node(f"n{number}")) for number in range(nodes)))
    for count, name, size in ((nodes, "r", lambda number: 1), (pending, "w", lambda number: 1 + number % 8)):
        for number in range(count):
            space, limit = f"ns{number % NAMESPACES}", f"{10 + number % 60}m"
            pods = gang(f"{name}{number}", size(number), namespace=space, limit=limit)
            field.driver.handle(*(Changed(None, pod) for pod in pods))
        field.settle()
    while field.driver.has_more:
        field.driver.cycle(field.now)
    return field


def main() -> None:
    nodes, pending = (int(word) for word in (*sys.argv[1:3], "5000", "5000")[:2])
    field = busy(nodes, pending)
    gc.collect()
    gc.freeze()

    def snapshot() -> Snapshot:
        return take(field.driver.scheduler, field.now, decisions=field.log.entries)

    samples = milliseconds(snapshot)
    print(f"{nodes} nodes, {nodes} gangs run, {len(field.driver.queue.pending)} wait")
    print(f"snapshot: {samples[0]:.2f} ms at best, {statistics.median(samples):.2f} in the median")
    for resource in RESOURCES:
        times = []
        for limit in ("50", "1000"):
            query = parse_query(f"{BASE}/{resource}", {"limit": limit}, User("admin"))
            times.append(
                milliseconds(
                    lambda query=query: msgspec.json.encode(make_page(snapshot(), EVERYTHING, query)), 5
                )
            )
        print(f"{resource}: first 50 rows {times[0][2]:.0f} ms, 1000 rows {times[1][2]:.0f} ms")


if __name__ == "__main__":
    main()
