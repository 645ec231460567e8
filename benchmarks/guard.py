"""Ten small cases, each beside a loop of plain Python in the same process: a cost that doubles is seen soon.

    python benchmarks/guard.py             compare with benchmarks/guard.json
    python benchmarks/guard.py --write     record what this tree needs

A cost is CPU time over that of the loop, measured just before and after it, so that the machine and its load
cancel out; the least of a few rounds counts. The bound is twice what is recorded: it finds a loop over all
pods in the wrong place, not a tenth. It runs in `make test`; the exit code is 1 if a case is above its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

import cluster as graphs
import events
from fluence.database_url import find_url
from fluence.event_loop import run
from fluence.graph import ResourceGraph
from fluence.match.matcher import Matcher
from fluence.model.job_state import JobEntry, JobState
from fluence.model.jobspec import Jobspec
from fluence.model.pod import Pod
from fluence.schedule.events import Changed
from fluence.store import Writer
from fluence.store.history_store import HistoryStore

BOUND = 2.0
ROUNDS = 3
RECORDED = Path(__file__).with_name("guard.json")
Case = Callable[[], object]

_SPEC = """
version: 1
resources: [{type: node, count: 4, with: [{type: slot, count: 1, label: s, with: [{type: core, count: 8}]}]}]
tasks: [{command: [app], slot: s, count: {per_slot: 1}}]
attributes: {system: {duration: 3600}}
"""


def calibration() -> None:
    """What programs of ours do most: dictionaries, attributes, short strings."""
    found: dict[str, int] = {}
    for number in range(40_000):
        key = f"n{number % 997}"
        found[key] = found.get(key, 0) + number


def _decode() -> Case:
    text = msgspec.json.encode(events.pod("p", 2, annotations={"a": "b"}))
    decoder = msgspec.json.Decoder(Pod)
    return lambda: [decoder.decode(text) for _ in range(3000)]


def _nodes() -> Case:
    return lambda: events.Cluster(500, "easy").cycle()


def _single_pods() -> Case:
    def work() -> None:
        filled = events.Cluster(100, "easy")
        filled.cycle()
        for _ in range(60):
            for each in filled.gang((1,), (1,), 3600):
                filled.put(Changed(None, each))
            filled.cycle()

    return work


def _gangs() -> Case:
    def work() -> None:
        filled = events.Cluster(100, "easy")
        for _ in range(20):
            for each in filled.gang((16,), (2,), 3600):
                filled.put(Changed(None, each))
        filled.cycle()

    return work


def _events(policy: str) -> Callable[[], Case]:
    return lambda: lambda: events.measure(20, 100, policy, 15)


def _graph() -> ResourceGraph:
    return ResourceGraph.load(str(graphs.graph_file(100, Path(tempfile.gettempdir()) / "fluence-guard")))


def _load() -> Case:
    _graph()  # the file is made
    return _graph


def _matches(policy: str, operation: str) -> Callable[[], Case]:
    def prepared() -> Case:
        graph, spec = _graph(), Jobspec.parse(_SPEC)

        def work() -> None:
            matcher = Matcher(graph, policy=policy)
            for number in range(60):
                matcher.match(operation, spec, job=number, now=0)

        return work

    return prepared


def _history() -> Case:
    entries = [
        JobEntry(job=n, at=1, state=JobState.PENDING, key=f"n/p{n}", namespace="n", name=f"p{n}")
        for n in range(500)
    ]

    async def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with HistoryStore(find_url(f"{folder}/history.db"), Writer("c", "s")) as store:
                await store.migrate()
                for at in range(4):
                    await store.write([(replace(entry, at=at + 2), "") for entry in entries])

    return lambda: run(write)


CASES: dict[str, Callable[[], Case]] = {
    "decode 3,000 pods": _decode,
    "500 nodes from nothing": _nodes,
    "60 single pods, one by one": _single_pods,
    "20 gangs of 16 in one cycle": _gangs,
    "15 events, easy": _events("easy"),
    "15 events, conservative": _events("conservative"),
    "load a graph of 100 nodes": _load,
    "60 matches, first": _matches("first", "allocate_orelse_reserve"),
    "60 matches, low": _matches("low", "allocate_orelse_reserve"),
    "2,000 entries of the history": _history,
}


def cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def cost(prepare: Callable[[], Case]) -> float:
    """CPU time of a case over that of the loop around it; the least of a few rounds, after one that is not
    counted."""
    work = prepare()
    work()
    costs = []
    for _ in range(ROUNDS):
        before, worked, after = cpu(calibration), cpu(work), cpu(calibration)
        costs.append(2 * worked / (before + after))
    return min(costs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="record what this tree needs")
    given = parser.parse_args()
    recorded: dict[str, float] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    costs = {name: round(cost(prepare), 2) for name, prepare in CASES.items()}
    if given.write:
        RECORDED.write_text(json.dumps(costs, indent=1) + "\n")
    above = [name for name in CASES if not given.write and costs[name] > BOUND * recorded[name]]
    for name in above:
        costs[name] = round(cost(CASES[name]), 2)  # once more: something else may have had the caches
    above = [name for name in above if costs[name] > BOUND * recorded[name]]
    print(f"{'case':30} {'cost':>8} {'recorded':>9}   CPU time over that of a loop of plain Python")
    for name, value in costs.items():
        print(f"{name:30} {value:>8} {recorded.get(name, value):>9}   {'above its bound' * (name in above)}")
    for name in above:
        sys.stderr.write(
            f"guard: {name} costs {costs[name] / recorded[name]:.1f} times what is recorded. If that is "
            "meant: python benchmarks/guard.py --write, and say why in the commit\n"
        )
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
