"""Measure Fluence on clusters of several sizes, beside a real resource-query if there is one.

    python benchmarks/run.py                                   # everything: 100 to 50,000 nodes
    python benchmarks/run.py --quick                           # 100 and 1,000 nodes
    python benchmarks/run.py --against /usr/bin/resource-query # and the ratios

Prints a table and writes one JSON row per measurement. docs/benchmarks.md explains both.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cluster
import scenario
import table
import targets
from rival import Rival, probe
from scenario import API, PROCESS, Measure, Settings
from session import Session, SessionFailed

ROOT = Path(__file__).resolve().parent.parent
SIZES = (100, 1_000, 10_000, 50_000)
QUICK = (100, 1_000)
POLICIES = ("first", "firstnodex", "low", "high", "lonode", "lonodex", "hinode", "hinodex")
LEAST_NODES = 16  # the half-full cluster must still hold a gang of four

Row = dict[str, Any]


@dataclass(slots=True)
class Results:
    """What one program did in one session."""

    load: dict[str, float] = field(default_factory=dict)  # by mode
    memory_mb: float | None = None
    measures: dict[str, Measure] = field(default_factory=dict)
    failure: str = ""


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    rival = _command(options.against) if options.against else None
    build = Path(options.build)
    if rival is not None:
        small = cluster.graph_file(LEAST_NODES, build / "bench")
        wrong = probe(rival, small, limit_s=options.rival_limit, log=_log(options, "rival"))
        if wrong is not None:
            _progress(f"--against {options.against} does not answer like a resource-query: {wrong}")
            return 1
    rows: list[Row] = []
    is_well = True
    for nodes in options.sizes:
        _progress(f"{nodes:,} nodes: graph")
        graph = cluster.graph_file(nodes, build / "bench")
        jobspecs = scenario.write_jobspecs(nodes, build / "bench" / f"jobspecs-{nodes}")
        settings = Settings(nodes, options.repeat, options.budget, options.only)
        loaded = None
        if rival is not None:
            loaded = _load_rival(rival, graph, options)
        for policy in options.policies:
            _progress(f"{nodes:,} nodes, {policy}: fluence")
            ours = _run_ours(graph, jobspecs, policy, settings, options)
            if ours.failure:
                _progress(f"{nodes:,} nodes, {policy}: fluence failed: {ours.failure}")
                is_well = is_well and ours.failure.startswith("over ")
            theirs = loaded
            if rival is not None and loaded is not None and not loaded.failure:
                _progress(f"{nodes:,} nodes, {policy}: rival")
                theirs = _run_rival(rival, graph, jobspecs, policy, settings, options)
                theirs.memory_mb = loaded.memory_mb
                if theirs.failure:
                    _progress(f"{nodes:,} nodes, {policy}: rival failed: {theirs.failure}")
            rows.extend(_rows(policy, settings, ours, theirs))
            _write(rows, Path(options.json))  # a run that is cut short leaves what it has
    print(table.render(rows, rival=options.against))
    print(f"\n{len(rows)} rows in {options.json}")
    return 0 if is_well else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", metavar="PATH", help="a resource-query to compare with")
    parser.add_argument("--sizes", metavar="N,N", help=f"numbers of nodes (default {_joined(SIZES)})")
    parser.add_argument("--quick", action="store_true", help=f"sizes {_joined(QUICK)}")
    parser.add_argument("--policies", metavar="P,P", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=25, metavar="N", help="samples each (default 25)")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="measurements whose name holds NAME; repeatable"
    )
    parser.add_argument("--json", metavar="PATH", help="where the rows go (default build/bench.json)")
    parser.add_argument("--build", metavar="DIR", default=str(ROOT / "build"), help="where made files go")
    parser.add_argument(
        "--budget", type=float, default=60, metavar="S", help="stop repeating a measurement after (60)"
    )
    parser.add_argument("--limit", type=float, default=600, metavar="S", help="end a session after (600)")
    parser.add_argument(
        "--rival-limit", type=float, default=600, metavar="S", help="end a session of the rival after (600)"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time, for a machine that does other work",
    )
    options = parser.parse_args(arguments)
    try:
        sizes = [int(size) for size in options.sizes.split(",")] if options.sizes else []
    except ValueError:
        parser.error(f"--sizes {options.sizes}: give numbers of nodes, such as 100,1000")
    options.sizes = sizes or (QUICK if options.quick else SIZES)
    if min(options.sizes) < LEAST_NODES:
        parser.error(f"--sizes: at least {LEAST_NODES} nodes")
    if options.repeat < 1:
        parser.error("--repeat: at least 1")
    options.policies = options.policies.split(",")
    options.only = frozenset(
        what for what in scenario.MEASURES if not options.only or any(name in what for name in options.only)
    )
    if not options.only:
        parser.error(f"--only: no such measurement; there are {', '.join(scenario.MEASURES)}")
    if options.against and options.clock == "cpu" and not Path("/proc/self/schedstat").exists():
        parser.error("--clock cpu: this system does not say how much processor time the rival takes")
    if options.against and _command(options.against) is None:
        parser.error(f"--against {options.against}: no such program")
    options.json = options.json or str(Path(options.build) / "bench.json")
    return options


def _command(text: str) -> list[str] | None:
    """A path, or a program with arguments."""
    words = [text] if Path(text).exists() else shlex.split(text)
    program = shutil.which(words[0]) if words else None
    return None if program is None else [str(Path(program).absolute()), *words[1:]]


# -- running -------------------------------------------------------------------------------------------------


def _run_ours(
    graph: Path, jobspecs: Path, policy: str, settings: Settings, options: argparse.Namespace
) -> Results:
    results = Results()
    order = {
        "graph": str(graph),
        "jobspecs": str(jobspecs),
        "policy": policy,
        "nodes": settings.nodes,
        "repeat": settings.repeat,
        "budget_s": settings.budget_s,
        "only": sorted(settings.only),
        "clock": options.clock,
    }
    argv = [sys.executable, str(Path(__file__).with_name("ours.py")), json.dumps(order)]
    session = Session(argv, limit_s=options.limit, log=_log(options, "ours"))
    try:
        ready = json.loads(session.read_until(b'"ready"'))
        age = session.age() if options.clock == "wall" else ready["cpu"]
        results.load = {API: ready["seconds"], PROCESS: age}
        results.memory_mb = ready["memory_mb"]
        for line in session.lines():
            value = json.loads(line)
            results.measures[value["what"]] = Measure(
                value["what"], value["samples"], value["outcomes"], value["note"]
            )
        session.end()
        if session.code:
            results.failure = session.why(f"exit code {session.code}")
    except SessionFailed as error:
        results.failure = str(error)
    finally:
        session.abandon()
    return results


def _run_rival(
    command: list[str],
    graph: Path,
    jobspecs: Path,
    policy: str,
    settings: Settings,
    options: argparse.Namespace,
) -> Results:
    results = Results()

    def emit(measure: Measure) -> None:
        results.measures[measure.what] = measure

    try:
        log = _log(options, "rival")
        engine = Rival(command, graph, policy, limit_s=options.rival_limit, log=log, clock=options.clock)
        try:
            results.load = {PROCESS: engine.load_s}
            scenario.run(engine, jobspecs, settings, emit)
            engine.quit()
        finally:
            engine.session.abandon()
    except (SessionFailed, OSError, ValueError) as error:
        results.failure = str(error)
    return results


def _load_rival(command: list[str], graph: Path, options: argparse.Namespace) -> Results:
    """A session that only loads: its peak memory, the same for every policy, or why no other is worth it."""
    _progress("rival: load")
    results = Results()
    try:
        policy, log = options.policies[0], _log(options, "rival")
        engine = Rival(command, graph, policy, limit_s=options.rival_limit, log=log)
        results.memory_mb = engine.quit()
    except (SessionFailed, OSError) as error:
        results.failure = str(error)
        _progress(f"rival failed: {error}")
    return results


def _log(options: argparse.Namespace, name: str) -> Path:
    return Path(options.build) / "bench" / f"{name}.log"


# -- rows ----------------------------------------------------------------------------------------------------


def _rows(policy: str, settings: Settings, ours: Results, theirs: Results | None) -> list[Row]:
    rows = []
    for what in scenario.MEASURES:
        if what not in settings.only:
            continue
        if what == scenario.LOAD:
            mine = Measure(what, {mode: [ours.load[mode]] for mode in ours.load})
            modes: tuple[str, ...] = (API, PROCESS)
        else:
            mine = ours.measures.get(what, Measure(what, note=ours.failure or "nothing was measured"))
            modes = (API,) if what.startswith("cancel") else (API, scenario.ANSWER)
        if what == scenario.LOAD and not ours.load:
            mine.note = ours.failure
        for mode in modes:
            row = _row(what, policy, settings.nodes, mode, mine)
            row["compared"] = mode == modes[-1]
            if what == scenario.LOAD:
                row["memory_mb"] = ours.memory_mb
            if row["compared"]:
                _compare(row, mine, theirs)
            targets.judge(row)
            rows.append(row)
    return rows


def _row(what: str, policy: str, nodes: int, mode: str, measure: Measure) -> Row:
    samples = measure.samples.get(mode, [])
    outcomes = measure.outcomes
    row: Row = {
        "what": what,
        "policy": policy,
        "nodes": nodes,
        "vertices": cluster.vertices(nodes),
        "mode": mode,
        "status": "failed" if not samples else "partial" if measure.note else "ok",
        "seconds": statistics.median(samples) if samples else None,
        "min": min(samples, default=None),
        "max": max(samples, default=None),
        "cold": samples[0] if samples else None,  # the first one: whatever is built on first use is in it
        "repeats": len(samples),
        "memory_mb": None,
        "rival_seconds": None,
        "rival_min": None,
        "rival_memory_mb": None,
        "rival_status": None,
        "rival_note": "",
        "ratio": None,
        "memory_ratio": None,
        "compared": False,
        "compared_with": None,
        "answer": outcomes[-1] if outcomes else None,
        "rival_answer": None,
        "same_answer": None,
        "note": measure.note,
    }
    if what.startswith("reserve"):
        row.update(_growth(samples))
    return row


def _growth(samples: list[float], prefix: str = "") -> Row:
    first, last = (samples[0], samples[-1]) if samples else (None, None)
    growth = last / first if first and last else None
    return {f"{prefix}first": first, f"{prefix}last": last, f"{prefix}growth": growth}


def _compare(row: Row, mine: Measure, theirs: Results | None) -> None:
    """Put the rival's time beside ours; without a rival, the recorded one if there is one."""
    samples: list[float] = []
    if theirs is not None:
        row["compared_with"] = "measured"
        if row["what"] == scenario.LOAD:
            measure = Measure(row["what"], {PROCESS: list(theirs.load.values())})
            row["rival_memory_mb"] = theirs.memory_mb
        else:
            measure = theirs.measures.get(row["what"], Measure(row["what"]))
        samples = measure.samples.get(row["mode"], [])
        row["rival_status"] = "failed" if not samples else "partial" if measure.note else "ok"
        row["rival_note"] = f"rival: {measure.note or theirs.failure}" if not samples or measure.note else ""
        if samples:
            row["rival_seconds"], row["rival_min"] = statistics.median(samples), min(samples)
        if row["what"].startswith("reserve"):
            row.update(_growth(samples, "rival_"))
        if measure.outcomes and mine.outcomes:
            row["rival_answer"] = measure.outcomes[-1]
            common = list(zip(mine.outcomes, measure.outcomes, strict=False))
            row["same_answer"] = all(ours == rivals for ours, rivals in common)
    elif (found := targets.recorded(row["what"], row["policy"], row["nodes"])) is not None:
        row["compared_with"] = "recorded"
        row["rival_status"] = "recorded"
        row["rival_seconds"] = found["seconds"]
        row["rival_memory_mb"] = found.get("memory_mb")
        if "first" in found:
            row.update(_growth([found["first"], found["last"]], "rival_"))
    row["ratio"] = _ratio(row, mine.samples.get(row["mode"], []), samples)
    if row["memory_mb"] and row["rival_memory_mb"]:
        row["memory_ratio"] = row["rival_memory_mb"] / row["memory_mb"]


def _ratio(row: Row, ours: list[float], theirs: list[float]) -> float | None:
    if row["what"].startswith("reserve") and ours and theirs:
        shorter = min(len(ours), len(theirs))  # a queue that was cut short compares as far as it went
        return statistics.median(theirs[:shorter]) / statistics.median(ours[:shorter])
    if row["seconds"] and row["rival_seconds"]:
        return float(row["rival_seconds"] / row["seconds"])
    return None


def _write(rows: list[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _joined(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


if __name__ == "__main__":
    sys.exit(main())
