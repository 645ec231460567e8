"""A moment of a simulated run, as `fluence web --snapshot` shows it, beside what the run itself says."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from fluence.cli import main
from fluence.sim import simulator, workload
from fluence.sim.measure import Record
from fluence.sim.saved_view import deepest
from fluence.sim.simulator import simulate
from fluence.web.page import RESOURCES, SavedView

ROOT = Path(__file__).parents[3]
NODES, CORES = 8, 2


def trace(folder: Path) -> Path:
    """Jobs of 1 to 8 cores, faster than they fit; each needs half of its limit."""
    lines = []
    for number in range(1, 61):
        size, seconds = 1 + number * 7 % 8, 300 + 60 * (number % 5)
        asked = 2 * seconds
        lines.append(
            f"{number} {20 * number} -1 {seconds} {size} -1 -1 {size} {asked} -1 1 {number % 3} 1" + " -1" * 5
        )
    path = folder / "log.swf"
    path.write_text("\n".join(lines) + "\n")
    return path


def saved(folder: Path, *args: str) -> dict[str, Any]:
    path = folder / "view.json"
    done = CliRunner().invoke(main, ["simulate", *args, "--view", str(path)])
    assert done.exit_code == 0, done.output
    SavedView(path.read_bytes(), source="test")
    document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
    assert set(document["lists"]) == set(RESOURCES)
    return document


def items(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["lists"][name]["items"]
    return found


def taken(document: dict[str, Any]) -> float:
    return datetime.fromisoformat(document["lists"]["queue"]["metadata"]["taken"]).timestamp()


def record(submit: int, start: int | None) -> Record:
    unknown: dict[str, Any] = {"user": "", "queue": "", "size": 1, "end": None, "runtime": 1, "limit": None}
    told: dict[str, Any] = {"no_later_than": None, "expected": None, "backfilled": False, "state": "pending"}
    return Record(name="", submit=submit, start=start, **unknown, **told, broken="")


def test_the_deepest_moment_is_the_first_at_which_most_wait() -> None:
    assert deepest([]) == 0
    assert deepest([record(5, 5), record(7, 7)]) in (5, 7)  # nobody waits
    assert deepest([record(0, 30), record(10, 20), record(20, 40), record(25, None)]) == 25


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("cluster", [f"{NODES}x{CORES}", "graph"])
def test_a_trace_is_shown_as_it_is_at_its_busiest(tmp_path: Path, policy: str, cluster: str) -> None:
    path = trace(tmp_path)
    on = simulator.read(f"{NODES}x{CORES}")
    if cluster == "graph":
        cluster = str(tmp_path / "graph.json")
        Path(cluster).write_text(on.graph.render())
    document = saved(tmp_path, "--trace", str(path), "--cluster", cluster, "--queue-policy", policy)
    work = workload.read(str(path), unit="core", node_size=CORES, processors=NODES * CORES)
    records = simulate(work, on, policy=policy).records
    at = deepest(records)
    waiting = [each.name for each in records if each.submit <= at and (each.start is None or each.start > at)]
    runs = {
        each.name: each for each in records if each.start is not None and each.start <= at < (each.end or 0)
    }
    queue, jobs, nodes = (items(document, name) for name in ("queue", "jobs", "nodes"))
    assert [each["name"] for each in queue] == waiting and len(waiting) > 10
    assert [each["position"] for each in queue] == [1 + place for place in range(len(waiting))]
    assert {each["name"] for each in jobs if each["state"] == "running"} == set(runs)
    used = sum(int(each["amounts"][0]["taken"]) for each in nodes)
    assert used == sum(each.size for each in runs.values())
    assert len(nodes) == NODES and sum(int(each["amounts"][0]["size"]) for each in nodes) == NODES * CORES

    plan = items(document, "plan")
    assert {each["name"] for each in plan if each["state"] == "running"} == set(runs)
    reserved = [each for each in plan if each["state"] == "reserved"]
    assert [each["name"] for each in reserved] if policy == "easy" else len(reserved) == len(waiting)
    assert all(each["nodes"] and each["from"] < each["until"] for each in plan)
    told = {each["name"]: each for each in items(document, "promises")}
    assert told.keys() >= {each["name"] for each in queue if "noLaterThan" in each}
    assert any("noLaterThan" in each for each in queue)
    story = document["jobs"][f"trace/{waiting[0]}"]["items"][0]
    assert story["story"] and story["job"]["reasons"][0]["message"]


def test_manifests_and_until_choose_the_moment(tmp_path: Path) -> None:
    examples = ROOT / "examples"
    given = ("--manifests", str(examples / "cluster"), "--nodes", str(examples / "nodes.yaml"))
    busiest = saved(tmp_path, *given)
    assert [each["name"] for each in items(busiest, "queue")]
    assert any(each["state"] == "running" for each in items(busiest, "jobs"))
    later = saved(tmp_path, *given, "--until", "1h")
    assert taken(later) > taken(busiest)
    assert len(items(later, "queue")) < len(items(busiest, "queue"))


def test_a_view_is_of_one_run(tmp_path: Path) -> None:
    command = ["simulate", "--trace", str(trace(tmp_path)), "--cluster", "8x2", "--compare", "easy,fcfs"]
    done = CliRunner().invoke(main, [*command, "--view", str(tmp_path / "v.json")])
    assert done.exit_code == 2 and "--view needs one policy" in done.output
