"""The view API at 5,000 nodes: what a snapshot costs the scheduler, and a page the thread that makes it.

    python -m benchmarks.view [NODES] [PENDING] [jobs]

Before each page a pod is changed and a snapshot is taken, so that each is the page of a first reader; rows
are kept between snapshots as in a scheduler. With `jobs` the gangs that run and wait are Jobs whose pods
start one by one (arrays). Times are processor time of the thread, so that others on the machine do not count.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec.structs import replace
from tests.unit.schedule import kit
from tests.unit.schedule.test_promised_starts import node
from tests.unit.web.field import Field, gang

from fluence import names
from fluence.commands.view_tables import FIELDS
from fluence.model.pod import Pod
from fluence.schedule.events import Changed
from fluence.web.access import Reader, User
from fluence.web.cluster_rows import RESOURCES
from fluence.web.kept import KeptRows
from fluence.web.openapi import MAX_COLUMNS_LIMIT
from fluence.web.server import BASE, make_page, parse_query
from fluence.web.view import Snapshot, take

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


def array(field: Field, name: str, size: int, *, namespace: str, limit: str) -> list[Pod]:
    """The pods of a Job that start one by one."""
    job = kit.owner(name, namespace=namespace, completions=size, parallelism=size, completion_mode="Indexed")
    field.driver.set_owner(job)
    notes = {names.DURATION: limit}
    return [
        kit.pod(f"{name}-{i}", namespace=namespace, owner=job, cpu="32", annotations=notes)
        for i in range(size)
    ]


def busy(nodes: int, pending: int, *, arrays: bool = False) -> Field:
    """A gang runs on each node, and gangs of one to eight pods wait; or arrays."""
    field = Field(nodes=0, policy="easy")
    field.driver.handle(*(Changed(None, node(f"n{number}")) for number in range(nodes)))
    for count, name, size in ((nodes, "r", lambda number: 1), (pending, "w", lambda number: 1 + number % 8)):
        for number in range(count):
            space, limit = f"ns{number % NAMESPACES}", f"{10 + number % 60}m"
            make = partial(array, field) if arrays else gang
            pods = make(f"{name}{number}", size(number), namespace=space, limit=limit)
            field.driver.handle(*(Changed(None, pod) for pod in pods))
        field.settle()
    while field.driver.has_more:
        field.driver.cycle(field.now)
    return field


def main() -> None:
    given = [word for word in sys.argv[1:] if word != "jobs"]
    nodes, pending = (int(word) for word in (*given, "5000", "5000")[:2])
    field = busy(nodes, pending, arrays="jobs" in sys.argv)
    gc.collect()
    gc.freeze()
    kept, driver = KeptRows(), field.driver
    pod = driver.queue.pending.records[-1].pods[0]  # type: ignore[attr-defined]
    changes = iter(range(1_000_000))

    def snapshot() -> Snapshot:
        return take(driver.scheduler, field.now, decisions=field.log.entries, kept=kept)

    def page(resource: str, query: dict[str, str]) -> float:
        """What the thread of the view takes for the first reader of a snapshot."""
        notes = {**pod.annotations, "example.com/number": str(next(changes))}
        driver.set_pod(replace(pod, metadata=replace(pod.metadata, annotations=notes)))
        driver.cycle(field.now)
        taken, asked = snapshot(), parse_query(f"{BASE}/{resource}", query, User("admin"))
        began = time.thread_time()
        msgspec.json.encode(make_page(taken, EVERYTHING, asked))
        return 1000 * (time.thread_time() - began)

    samples = milliseconds(snapshot)
    print(f"{nodes} nodes, {nodes} gangs run, {len(driver.queue.pending)} wait")
    print(f"snapshot: {samples[0]:.2f} ms at best, {statistics.median(samples):.2f} in the median")
    for resource in RESOURCES:
        few, many = (min(page(resource, {"limit": limit}) for _ in range(5)) for limit in ("50", "1000"))
        line = f"{resource}: 50 rows {few:.0f} ms, 1000 rows {many:.0f} ms"
        if resource in FIELDS:
            whole = {"limit": str(MAX_COLUMNS_LIMIT), "columns": ",".join(FIELDS[resource])}
            line += f", the whole table {page(resource, whole):.0f} ms once, then "
            line += f"{min(page(resource, whole) for _ in range(9)):.0f} ms"
        print(line, flush=True)


if __name__ == "__main__":
    main()
