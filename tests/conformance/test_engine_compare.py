"""`service run --engine resource-query: --compare` over the graphs and commands of the recorded sessions.

The other program is `fluence resource-query`, so that no answer may differ: what the service makes of a
request, of Fluxion's lines and of its own matcher must agree on each of these graphs. FLUENCE_COMPARED=330
takes all sessions; each starts a program. FLUENCE_AGAINST=/path/to/resource-query is that program instead: a
real Fluxion differs in the sessions of DIFFERENT_IN_FLUXION, each by a row of the table in docs/matcher.md.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fluence.cli.engines import EngineFailed
from fluence.cli.service import AnswersDiffer, OtherEngine
from fluence.errors import FluenceError
from fluence.graph.filters import DEFAULT as DEFAULT_FILTERS
from fluence.match.request import Operation
from fluence.service import journal
from fluence.service.engine import Match
from tests.conformance.test_archives import sessions

COMPARED = int(os.environ.get("FLUENCE_COMPARED", "2"))
_OURS = f"{Path(sys.executable).with_name('fluence')} resource-query"
_PROGRAM = f"resource-query:{os.environ.get('FLUENCE_AGAINST') or _OURS}"
_OWN = Path(__file__).parent / "own"

# What a difference from Fluxion 0.54 says; the last test of this file has the smallest session for each.
_NO_SUCH_RANK = "partial cancel of job"  # an R with a rank on which the job holds nothing
_HALF_CANCELLED = "answered differently"  # what a partial cancel freed that failed
_KEPT_RACK = "find sched-now=allocated"  # an exclusive rack after all its ranks were given back
_NEW_TYPE = "find sched-now=allocated"  # a job that was cancelled after a new type was attached
_HALF_WRITTEN = (
    "which the graph has not"  # without its root: a blade without nodes lies beside one with nodes
)
_NO_START = "it ended early"  # on a recipe without subsystems
DIFFERENT_IN_FLUXION = {
    **dict.fromkeys(
        ("ch2-0004", "ch2-0010", "ch2-0014", "ch2-0018", "ch2-0042", "ch2-0064", "ch2-0076"), _NO_SUCH_RANK
    ),
    **dict.fromkeys(("chg-0030", "chg-0048", "chg-0060"), _NO_SUCH_RANK),
    "update-from-r-and-partial-cancel": _NO_SUCH_RANK,
    **dict.fromkeys(("chg-0000", "chg-0044", "chg-0050", "chg-0054"), _HALF_CANCELLED),
    **dict.fromkeys(("chg-0018", "chg-0078"), _KEPT_RACK),
    "chg-0082": _NEW_TYPE,
    "e1-0048": _HALF_WRITTEN,
    "recipe": _NO_START,
}


def _options(session: dict[str, Any]) -> dict[str, str]:
    words = [str(word) for word in session["args"]]
    return {word: value for word, value in zip(words, [*words[1:], ""], strict=True) if word.startswith("-")}


def _fits(session: dict[str, Any]) -> bool:
    """Whether a service has the same graph, containment alone, and starts Fluxion the same way."""
    options = _options(session)
    plain = options.get("-S", "CA") == "CA" and "=" not in options.get("-P", "")
    return plain and not {"-W", "-T"} & set(options)


@cache
def _own() -> dict[str, dict[str, Any]]:
    found = {}
    for case in sorted((_OWN / "cases").glob("*.json")):
        session = json.loads(case.read_text())
        session["inputs"] = {
            f"inputs/{path.name}": path.read_text() for path in (_OWN / "inputs").iterdir() if path.is_file()
        }
        found[case.stem] = session
    return found


def sampled(archive: dict[str, dict[str, Any]]) -> list[str]:
    """Evenly many of them."""
    names = sorted(name for name, session in archive.items() if _fits(session))
    step = max(1, len(names) // COMPARED)
    return names[::step][:COMPARED]


class Driver:
    """Commands of a resource-query as calls of an engine."""

    def __init__(self, engine: OtherEngine, documents: dict[str, str]) -> None:
        self.engine, self.documents = engine, documents
        self.held: list[int] = []
        self.next_job = 1
        self.placed = self.asked = 0

    def run(self, line: str) -> None:
        words = line.split()
        if not words:
            return
        match words:
            case ["match", operation, file] if file in self.documents:
                self.match(Operation(operation), self.documents[file])
            case ["multi-match", operation, *files]:
                for file in files:
                    self.match(Operation(operation), self.documents[file])
            case ["cancel", number, *_] if self.held:
                job = self.held.pop(int(number) % len(self.held) if number.isdigit() else 0)
                self.engine.cancel(job)
            case ["partial-cancel", number, reader, file, *_] if self.held and file in self.documents:
                job = self.held[int(number) % len(self.held)]
                if self.engine.partial_cancel(job, self.documents[file], reader).whole_job:
                    self.held.remove(job)
            case ["update", _, reader, file, _, at, length] if file in self.documents:
                job, self.next_job = self.next_job, self.next_job + 1
                self.engine.update(
                    job, self.documents[file], reader, at=int(at), duration=int(length), now=0, name="",
                    format_="",
                )  # fmt: skip
                self.held.append(job)
            case ["set-status", path, status]:
                self.engine.set_status(path, up=status == "up")
            case ["attach", file] if file in self.documents:
                self.engine.grow(self.documents[file])
            case ["remove", path, "true"]:
                self.engine.shrink([path])
            case ["find", *criteria] if "jobid" not in line:
                self.engine.find(" ".join(criteria), now=0, format_="jgf")

    def match(self, operation: Operation, text: str) -> None:
        job, self.next_job = self.next_job, self.next_job + 1
        self.asked += 1
        found = self.engine.match(operation, text, job=job, now=0)
        if isinstance(found, Match):
            self.placed += 1
            if found.job == job:
                self.held.append(job)


def drive(graph: str, format_: str, policy: str, lines: list[str], documents: dict[str, str]) -> Driver:
    load = journal.LoadGraph(
        graph="default",
        text=journal.packed(graph),
        format=format_,
        policy=policy,
        source="graph",
        digest=journal.digest(graph),
        filters=DEFAULT_FILTERS,
    )
    engine = OtherEngine(load, _PROGRAM, compare=True, max_vertices=1_000_000)
    try:
        driver = Driver(engine, documents)
        for line in lines:
            try:
                driver.run(line)
            except (AnswersDiffer, EngineFailed):
                raise
            except FluenceError:
                pass  # both refuse it
        return driver
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("archive", "name"),
    [
        *(("extended", name) for name in sampled(sessions("extended"))),
        *(("own", name) for name in sampled(_own())),
    ],
)
def test_no_difference_on_the_graphs_of_the_sessions(archive: str, name: str) -> None:
    session = _own()[name] if archive == "own" else sessions(archive)[name]
    options = _options(session)
    documents = {
        path: document if isinstance(document, str) else json.dumps(document)
        for path, document in session["inputs"].items()
    }
    lines = session["stdin"].splitlines()
    graph, policy = documents[options["-L"]], options.get("-P", "first")
    if os.environ.get("FLUENCE_AGAINST") and name in DIFFERENT_IN_FLUXION:
        with pytest.raises((AnswersDiffer, EngineFailed), match=DIFFERENT_IN_FLUXION[name]):
            drive(graph, options.get("-f", "grug"), policy, lines, documents)
        return
    driver = drive(graph, options.get("-f", "grug"), policy, lines, documents)
    assert driver.asked or not any(line.startswith(("match", "multi-match")) for line in lines)


def _r(ranks: str) -> str:
    lite = [{"rank": ranks, "children": {"core": "0-1"}}]
    times = {"starttime": 0, "expiration": 0}
    return json.dumps({"version": 1, "execution": {"R_lite": lite, "nodelist": ["node[0-1]"], **times}})


def _vertices(*paths: str) -> str:
    graph = json.loads((_OWN / "inputs" / "racks.json").read_text())["graph"]
    nodes = [node for node in graph["nodes"] if node["metadata"]["paths"]["containment"] in paths]
    return json.dumps({"graph": {"nodes": nodes, "edges": []}})


_CANCELS = {
    "core": (_OWN / "inputs" / "core.json").read_text(),  # core0 of node0
    "rack": json.dumps(
        {
            "version": 1,
            "resources": [{"type": "rack", "count": 1, "exclusive": True}],
            "tasks": [],
            "attributes": {"system": {"duration": 100}},
        }
    ),
    "rank-1": _r("1"),
    "ranks-of-the-rack": _r("0-1"),
    "node-with-a-new-type": (_OWN / "inputs" / "third.json").read_text().replace("gpu", "fpga"),
    "two-cores": _vertices("/cluster0/rack0/node0/core0", "/cluster0/rack0/node0/core1"),
}


@pytest.mark.parametrize(
    ("graph", "format_", "lines", "said"),
    [
        ("racks.json", "jgf", ["match allocate core", "partial-cancel 0 rv1exec rank-1"], _NO_SUCH_RANK),
        (
            "racks.json",
            "jgf",
            ["match allocate core", "partial-cancel 0 jgf two-cores", "find sched-now=allocated"],
            _HALF_CANCELLED,
        ),
        (
            "racks.json",
            "jgf",
            ["match allocate rack", "partial-cancel 0 rv1exec ranks-of-the-rack"],
            _KEPT_RACK,
        ),
        (
            "pair.json",
            "jgf",
            ["match allocate core", "attach node-with-a-new-type", "cancel 0", "find sched-now=allocated"],
            _NEW_TYPE,
        ),
        ("recipe.graphml", "grug", [], _NO_START),
    ],
    ids=[
        "a rank of others",
        "a vertex of others",
        "an exclusive rack",
        "a new type",
        "a recipe without subsystems",
    ],
)
def test_the_smallest_sessions_that_differ_in_fluxion(
    graph: str, format_: str, lines: list[str], said: str
) -> None:
    """Each by a row of the table in docs/matcher.md; none beside `fluence resource-query`."""
    text = (_OWN / "inputs" / graph).read_text()
    if os.environ.get("FLUENCE_AGAINST"):
        with pytest.raises((AnswersDiffer, EngineFailed), match=said):
            drive(text, format_, "low", lines, _CANCELS)
    else:
        drive(text, format_, "low", lines, _CANCELS)
