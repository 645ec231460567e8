"""`fluence match --engine`: another program answers, and `--compare` finds where it answers differently."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from fluence.cli import grpc_engine
from tests.conformance.generate import random_graph, random_jobspec
from tests.eventually import wait_until
from tests.unit.service.running import Service

from .conftest import CLUSTER, Run, job

_FLUENCE = Path(sys.executable).with_name("fluence")
_JOBS = ("mpi", "training", "large")


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return f"resource-query:{path}"


@pytest.fixture
def query(tmp_path: Path) -> str:
    """A resource-query of its own, as far as `fluence match` can tell."""
    return program(tmp_path / "rq", f'exec "{_FLUENCE}" resource-query "$@"')


@pytest.mark.parametrize("output", ["table", "json", "rv1", "jgf"])
def test_answers_of_another_program_come_back_in_our_formats(run: Run, query: str, output: str) -> None:
    arguments = ("match", CLUSTER, *map(job, _JOBS), "--reserve", "-P", "lonode", "-o", output)
    ours, theirs = run(*arguments), run(*arguments, "--engine", query)
    assert (theirs.code, theirs.out) == (ours.code, ours.out)
    assert theirs.code == 0


def test_time_and_explanations_go_with_another_engine(run: Run, query: str) -> None:
    arguments = ("match", CLUSTER, job("mpi"), job("large"), "--at", "100", "--explain", "-o", "json")
    ours, theirs = run(*arguments), run(*arguments, "--engine", query)
    assert json.loads(theirs.out) == json.loads(ours.out)
    assert theirs.code == 3


def test_a_match_service_is_an_engine(run: Run) -> None:
    service = Service()
    try:
        arguments = ("match", CLUSTER, *map(job, _JOBS), "--reserve", "-P", "low", "-o", "json")
        engine = ("--engine", f"grpc://{service.address}")
        ours, theirs = run(*arguments), run(*arguments, *engine)
        assert json.loads(theirs.out) == json.loads(ours.out)
        assert run(*arguments, *engine, "--compare").out == ours.out
    finally:
        service.stop()


@pytest.mark.parametrize("seed", range(4))
def test_no_difference_where_there_is_none(run: Run, query: str, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    graph = random_graph(dice)
    (tmp_path / "graph.json").write_text(json.dumps(graph.document))
    files = [tmp_path / f"job{number}.json" for number in range(6)]
    for file in files:
        spec = random_jobspec(dice, graph, flexible=False)
        spec["attributes"]["system"]["duration"] = 60
        spec["resources"] = spec["resources"] or [{"type": "node", "count": 1, "exclusive": True}]
        file.write_text(json.dumps(spec))
    arguments = ("match", str(tmp_path / "graph.json"), *map(str, files), "--reserve", "--engine", query)
    assert run(*arguments, "--compare").code in (0, 3, 4)


def test_a_planted_difference_is_found_with_the_commands_that_show_it(run: Run, tmp_path: Path) -> None:
    # Says that the second job has other cores than it has.
    script = tmp_path / "liar.py"
    script.write_text(
        "import sys\n"
        "jobs = 0\n"
        "for line in sys.stdin:\n"
        "    jobs += 'JOBID=' in line\n"
        "    print(line.replace('core0[', 'core3[') if jobs == 1 else line, end='', flush=True)\n"
    )
    liar = program(tmp_path / "liar", f'"{_FLUENCE}" resource-query "$@" | "{sys.executable}" "{script}"')
    arguments = ("match", CLUSTER, job("mpi"), job("training"), "-P", "low", "--engine", liar)
    assert run(*arguments).code == 0  # alone it is believed
    done = run(*arguments, "--compare")
    assert done.code == 5
    first, *lines = done.out.splitlines()
    assert first == "training (allocate) is answered differently:"
    assert f"  {liar}: /cluster0/rack2/gpunode0/core3[1:x]" in lines
    assert "  fluence: /cluster0/rack2/gpunode0/core0[1:x]" in lines
    at = lines.index("To see it again:")
    folder = lines[at + 1].removeprefix("  cd ")
    shown = subprocess.run(
        f"{_FLUENCE.parent}/{lines[at + 3].strip()}", cwd=folder, shell=True, capture_output=True, text=True
    )
    assert shown.stdout.count("RESOURCES=ALLOCATED") == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [("echo no such graph >&2; exit 1", "ended early: no such graph"), ("exit 0", "ended early")],
)
def test_a_program_that_is_no_resource_query_is_an_error(
    run: Run, tmp_path: Path, body: str, why: str
) -> None:
    done = run("match", CLUSTER, job("mpi"), "--engine", program(tmp_path / "rq", body))
    assert done.is_one_line_error("--engine", why)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--compare",), "--compare needs an --engine"),
        (("--engine", "flux"), "is not a valid engine"),
        (("--engine", "resource-query:/no/such/program"), "there is no program"),
        (("--engine", "resource-query:/bin/cat", "--shared"), "leave out what is beyond it"),
        (("--engine", "grpc://127.0.0.1:1"), "UNAVAILABLE"),
    ],
)
def test_wrong_engines_are_one_line(
    run: Run, options: tuple[str, ...], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_engine, "_START_S", 0.2)
    assert run("match", CLUSTER, job("mpi"), *options).is_one_line_error(why)


@pytest.mark.parametrize(
    ("command", "body"),
    [
        # Its answer to the match never arrives, and the filter is a child of the program.
        (
            ("match", CLUSTER, job("mpi")),
            f'"{_FLUENCE}" resource-query "$@" | grep --line-buffered -v mark-2',
        ),
        # It reads on at the end of its input, as Fluxion's does.
        (
            ("service", "run", "--service-address", "127.0.0.1:0", "--graph", CLUSTER),
            "while :; do read -r word path && echo Could not find path $path in resource graph.; done",
        ),
        (
            ("service", "run", "--service-address", "127.0.0.1:0", "--graph", CLUSTER),
            f'exec "{_FLUENCE}" resource-query "$@"',
        ),
    ],
    ids=["match, a program with a child", "a program that ignores the end of its input", "our own"],
)
def test_a_killed_fluence_leaves_no_program_behind(
    tmp_path: Path, command: tuple[str, ...], body: str
) -> None:
    groups = tmp_path / "groups"
    engine = program(tmp_path / "rq", f"trap '' HUP TERM PIPE\necho $$ >> {groups}\n{body}")
    (tmp_path / "folders").mkdir()
    fluence = subprocess.Popen(
        [_FLUENCE, *command, "--engine", engine],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path / "folders")},
    )
    try:
        # The first is asked whether it answers at all, the second is the engine.
        started = wait_until(
            lambda: groups.exists() and groups.read_text().split(), lambda seen: len(seen or ()) == 2
        )
        assert started
        assert wait_until(lambda: running(int(started[1])))
    finally:
        fluence.kill()
    assert fluence.wait() == -signal.SIGKILL, "it ended before it was killed"
    try:
        for group in started:
            wait_until(partial(running, int(group)), [], what=f"nothing is left of {group}")
        wait_until(lambda: list((tmp_path / "folders").iterdir()), [], what="no folder is left")
    finally:
        for group in started:
            with suppress(ProcessLookupError):
                os.killpg(int(group), signal.SIGKILL)


def running(group: int) -> list[str]:
    """The commands of the processes in a group that have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            state, _, of, *_ = (process / "stat").read_text().rpartition(")")[2].split()
            if int(of) == group and state not in "ZX":
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found
