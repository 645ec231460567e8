"""What one event costs the live scheduler: a full cluster, a long queue, every policy.

    python benchmarks/events.py [--quick] [--policy easy] [--queues 100]

Nodes are full of gangs with limits, and gangs of two to eight pods of several shapes wait behind them. Then
one thing happens per cycle, in turn: a gang ends before its limit, a gang arrives, a waiting gang is deleted,
a pod of another scheduler leaves or comes. With `--queues`, gangs belong to so many queues with limits and
weights below ten parents. Timed is each cycle that follows: the first takes the event in,
and what there is no time for (a cycle has a budget) is left to the next. CPU time; rows are added to
build/bench.json.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.model.queue_documents import QueueObject
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import BindFinished, BindOutcome, BindResult, Changed, Event
from fluence.schedule.scheduler import Scheduler, SchedulerConfig

Row = dict[str, object]
POLICIES = ("fcfs", "first-fit", "easy", "hybrid", "conservative")
CASES = ((50, 500), (1000, 2000))  # nodes, waiting gangs
MEDIAN_MS, WORST_MS = 50.0, 500.0  # to reach, on two cores
_CORES = 32


def node(number: int, partitions: int = 1) -> Node:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"node-{number:05}",
                "uid": f"node-{number}",
                "labels": {"partition": str(number % partitions)},
            },
            "status": {
                "allocatable": {"cpu": str(_CORES), "memory": "128Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        Node,
    )


def pod(name: str, cpu: int, **more: Any) -> Pod:
    notes, labels = more.get("annotations", {}), more.get("labels", {})
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": more.get("namespace", "default"),
                "uid": f"uid-{name}",
                "annotations": notes,
                "labels": labels,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "schedulerName": more.get("scheduler", "fluence"),
                "nodeName": more.get("node"),
                "nodeSelector": more.get("selector"),
                "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu), "memory": "1Gi"}}}],
            },
            "status": {"phase": "Running" if more.get("node") else "Pending"},
        },
        Pod,
    )


def queue(name: str, **spec: Any) -> QueueObject:
    return msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, QueueObject)


class Cluster:
    """A scheduler, and an API server that carries out everything at once."""

    def __init__(self, nodes: int, policy: str, partitions: int = 1, seed: int = 1, queues: int = 0) -> None:
        self.partitions = partitions
        self.queues = queues
        self.scheduler = Scheduler(SchedulerConfig(queue_policy=policy, timer=time.process_time))
        self.random = random.Random(seed)
        self.now = 1_767_225_600_000
        self.gangs: dict[str, list[Pod]] = {}
        self.running: dict[str, dict[str, Pod]] = {}  # by gang
        self.made = 0
        self.times: list[float] = []
        self.pending: list[Event] = [Changed(None, node(number, partitions)) for number in range(nodes)]
        limit = {"cpu": max(64, 2 * nodes * _CORES // max(1, queues))}
        for number in range(min(queues, 10)):
            self.pending.append(Changed(None, queue(f"top-{number}")))
        for number in range(queues):
            spec = {"parent": f"top-{number % 10}", "weight": 1 + number % 3, "limit": limit}
            self.pending.append(Changed(None, queue(f"q-{number}", **spec)))

    def gang(self, sizes: Iterable[int], cpus: Iterable[int], limit: int) -> list[Pod]:
        self.made += 1
        size, cpu = self.random.choice(list(sizes)), self.random.choice(list(cpus))
        name = f"g{self.made}"
        notes = {
            "fluence.flux-framework.org/group-size": str(size),
            "fluence.flux-framework.org/duration": f"{limit}s",
        }
        if self.queues:
            notes["fluence.flux-framework.org/queue"] = f"q-{self.made % self.queues}"
        labels = {"fluence.flux-framework.org/group": name}
        selector = None
        if self.partitions > 1 and (at := self.random.randrange(self.partitions + 1)) < self.partitions:
            selector = {"partition": str(at)}  # else it may go anywhere
        more: dict[str, Any] = {"annotations": notes, "labels": labels, "selector": selector}
        self.gangs[name] = [pod(f"{name}-{i}", cpu, **more) for i in range(size)]
        return self.gangs[name]

    def put(self, *events: Event) -> None:
        self.pending += events

    def cycle(self, *, timed: bool = False) -> int:
        """Until nothing is left for later; says how many gangs started."""
        started = 0
        while True:
            events, self.pending = self.pending, []
            began = time.process_time()
            decisions = self.scheduler.handle(events, self.now)
            if timed:
                self.times.append(1000 * (time.process_time() - began))
            started += len(decisions.binds)
            self._bind(decisions)
            if not self.scheduler.has_more and not self.pending:
                break
        return started

    def _bind(self, decisions: Decisions) -> None:
        for binds in decisions.binds:
            for bind in binds:
                spec = msgspec.structs.replace(bind.pod.spec, node_name=bind.node)
                notes = {**bind.pod.annotations, **bind.annotations}
                meta = msgspec.structs.replace(bind.pod.metadata, annotations=notes)
                bound = msgspec.structs.replace(bind.pod, spec=spec, metadata=meta)
                gang = bound.metadata.labels["fluence.flux-framework.org/group"]
                self.running.setdefault(gang, {})[bound.metadata.name] = bound
                self.put(BindFinished(BindResult(bind, BindOutcome.BOUND)), Changed(bind.pod, bound))

    def end(self, gang: str) -> None:
        for each in self.running.pop(gang).values():
            self.put(Changed(each, None))
        del self.gangs[gang]

    @property
    def waiting(self) -> list[str]:
        return [name for name in self.gangs if name not in self.running]


def fill(cluster: Cluster, nodes: int, waiting: int) -> None:
    """Nodes full of gangs with limits and of pods of others, and a queue behind them."""
    for number in range(nodes):  # something small of somebody else's on each
        cluster.put(Changed(None, pod(f"other-{number}", 2, node=f"node-{number:05}", scheduler="x")))
    while True:
        for _ in range(max(10, nodes // 4)):
            limit = cluster.random.randrange(600, 36_000)
            for each in cluster.gang((2, 4), (6, 10), limit):
                cluster.put(Changed(None, each))
        cluster.cycle()
        if len(cluster.waiting) > 5:
            break
    while len(cluster.waiting) < waiting:
        limit = cluster.random.choice((300, 1800, 3600, 7200, 14_400))
        for each in cluster.gang((2, 3, 4, 8), (2, 4, 8, 16, 30), limit):
            cluster.put(Changed(None, each))
    cluster.cycle()


def measure(nodes: int, waiting: int, policy: str, events: int, partitions: int = 1, queues: int = 0) -> Row:
    cluster = Cluster(nodes, policy, partitions, queues=queues)
    began = time.process_time()
    fill(cluster, nodes, waiting)
    filled = time.process_time() - began
    others = [f"other-{number}" for number in range(nodes)]
    for number in range(events):
        cluster.now += cluster.random.randrange(1_000, 20_000)
        match number % 5:
            case 0:
                cluster.end(cluster.random.choice(sorted(cluster.running)))
            case 1:
                for each in cluster.gang((2, 3, 4, 8), (2, 4, 8, 16, 30), 3600):
                    cluster.put(Changed(None, each))
            case 2:
                gang = cluster.random.choice(cluster.waiting)
                cluster.put(*(Changed(each, None) for each in cluster.gangs.pop(gang)))
            case 3:
                name = cluster.random.choice(others)
                at = f"node-{int(name.split('-')[1]):05}"
                cluster.put(Changed(pod(name, 2, node=at, scheduler="x"), None))
            case _:
                cluster.put(Changed(None, pod(name, 2, node=at, scheduler="x")))
        cluster.cycle(timed=True)
    times = cluster.times
    return {
        "benchmark": "event",
        "nodes": nodes,
        "waiting": waiting,
        "policy": policy,
        "queues": queues,
        "fill_s": round(filled, 2),
        "median_ms": round(statistics.median(times), 1),
        "p95_ms": round(sorted(times)[int(0.95 * len(times))], 1),
        "worst_ms": round(max(times), 1),
        "reached": statistics.median(times) < MEDIAN_MS and max(times) < WORST_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="the small cluster only")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only these")
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1, help="most gangs can use one of so many only")
    parser.add_argument("--queues", type=int, default=0, help="gangs belong to so many queues with quotas")
    given = parser.parse_args()
    rows = []
    print(
        f"{'nodes':>6} {'waiting':>8} {'policy':13} {'median':>9} {'p95':>9} {'worst':>9}   after one event"
    )
    for nodes, waiting in CASES[:1] if given.quick else CASES:
        for policy in given.policy or POLICIES:
            row = measure(nodes, waiting, policy, given.events, given.partitions, given.queues)
            rows.append(row)
            print(
                f"{nodes:>6} {waiting:>8} {policy:13} {row['median_ms']:>6} ms {row['p95_ms']:>6} ms "
                f"{row['worst_ms']:>6} ms   {'' if row['reached'] else 'above 50 and 500 ms'}",
                flush=True,
            )
    path = Path("build") / "bench.json"
    path.parent.mkdir(exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*known, *rows], indent=1))


if __name__ == "__main__":
    sys.exit(main())
