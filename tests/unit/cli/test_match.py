"""`fluence match`: tables, formats, exit codes."""

import json
from pathlib import Path

import pytest
import yaml

from fluence import ResourceGraph
from fluence.match import policy as policies

from .conftest import CLUSTER, Run, job


def test_a_table_row_per_job(run: Run) -> None:
    done = run("match", CLUSTER, job("mpi"), job("training"))
    assert done.code == 0
    title, mpi, training = done.out.splitlines()
    assert title.split() == ["JOB", "STATE", "WHERE", "EACH", "START", "END"]
    assert mpi.split() == ["mpi", "now", "node[4-7]", "8", "core", "0s", "1h"]
    assert "gpunode[0-1]" in training and "2 core, 2 gpu" in training


def test_things_outside_nodes_have_rows_of_their_own(run: Run) -> None:
    lines = run("match", CLUSTER, job("hybrid")).out.splitlines()
    assert len(lines) == 3
    assert lines[2].split() == ["qpu0", "1", "qpu"]


def test_a_job_that_waits_is_exit_code_3(run: Run) -> None:
    done = run("match", CLUSTER, job("mpi"), job("large"))
    assert done.code == 3
    assert "large waits" in done.out


def test_reserve_gives_the_earliest_start(run: Run) -> None:
    done = run("match", CLUSTER, job("mpi"), job("large"), "--reserve", "--at", "100", "-o", "json")
    assert done.code == 0
    mpi, large = json.loads(done.out)
    assert (mpi["state"], mpi["start"], mpi["end"]) == ("now", 100, 3700)
    assert (large["state"], large["start"], large["end"]) == ("later", 3700, 7300)
    assert large["nodes"] == "node[0-7]"


def test_a_job_that_never_fits_is_exit_code_4(run: Run) -> None:
    done = run("match", CLUSTER, job("mpi"), job("large"), job("impossible"))
    assert done.code == 4
    assert "impossible can never start here" in done.out


def test_more_nodes_than_there_are_is_never_even_with_reserve(run: Run) -> None:
    text = Path(job("mpi")).read_text().replace("count: 4", "count: 400")
    assert run("match", CLUSTER, "-", "--reserve", stdin=text).code == 4


def test_a_request_for_nodes_that_are_down_waits(run: Run, tmp_path: Path) -> None:
    graph = ResourceGraph.load(CLUSTER)
    for vertex in graph.vertices_of_type("node").tolist():
        graph.set_status(vertex, up=False)
    path = tmp_path / "down.json"
    path.write_text(graph.render("jgf"))
    assert run("match", str(path), job("mpi")).code == 3


@pytest.mark.parametrize("policy", [*policies.names(), "policy=low node_centric=true"])
def test_every_policy(run: Run, policy: str) -> None:
    assert run("match", CLUSTER, job("mpi"), "--match-policy", policy).code == 0


def test_policy_is_the_former_name_of_match_policy(run: Run) -> None:
    named = [
        run("match", CLUSTER, job("mpi"), name, "hinode") for name in ("--policy", "--match-policy", "-P")
    ]
    assert named[0].code == 0
    assert named[0] == named[1] == named[2]
    assert "--policy" not in run("match", "--help").out


def test_the_policy_decides(run: Run) -> None:
    assert "node[0-3]" in run("match", CLUSTER, job("mpi"), "-P", "lonode").out


@pytest.mark.parametrize("format_", ["jgf", "jgf-shorthand", "rv1", "rv1_nosched", "rlite"])
def test_formats_for_programs_are_a_document_per_job(run: Run, format_: str) -> None:
    done = run("match", CLUSTER, job("mpi"), job("training"), job("impossible"), "-o", format_)
    assert done.code == 4
    assert [bool(json.loads(line)) for line in done.out.splitlines()] == [True, True]
    assert "impossible can never start here" in done.err


def test_rv1_says_when(run: Run) -> None:
    document = json.loads(run("match", CLUSTER, job("mpi"), "-o", "rv1", "--at", "2026-08-14T12:00Z").out)
    assert document["execution"]["starttime"] == 1786708800
    assert document["execution"]["expiration"] == 1786708800 + 3600


def test_yaml_and_json_say_the_same(run: Run) -> None:
    args = ("match", CLUSTER, job("compile"), job("impossible"))
    assert yaml.safe_load(run(*args, "-o", "yaml").out) == json.loads(run(*args, "-o", "json").out)


def test_json_lists_what_each_node_gives(run: Run) -> None:
    (found,) = json.loads(run("match", CLUSTER, job("exclusive"), "-P", "lonode", "-o", "json").out)
    (share,) = found["resources"]
    assert share["exclusive"] is True
    assert share["amounts"]["core"] == 8


def test_wide_adds_ranks_and_totals(run: Run) -> None:
    done = run("match", CLUSTER, job("mpi"), "-P", "lonode", "-o", "wide")
    assert "0-3" in done.out and "32 core" in done.out and "mpi.yaml" in done.out


def test_jobs_with_the_same_name_are_numbered(run: Run) -> None:
    out = run("match", CLUSTER, job("hybrid"), job("hybrid"), "--reserve").out
    assert "hybrid#1" in out and "hybrid#2" in out


def test_standard_input_is_read_once(run: Run) -> None:
    assert run("match", CLUSTER, "-", stdin=Path(job("mpi")).read_text()).code == 0
    assert run("match", "-", job("mpi"), stdin=Path(CLUSTER).read_text()).code == 0
    assert run("match", "-", "-").is_one_line_error("standard input can be read once")


def test_explain_never_fails(run: Run) -> None:
    done = run("match", CLUSTER, job("impossible"), "--explain")
    assert done.code == 4
    assert run("match", CLUSTER, job("impossible"), "--explain", "-o", "json").code == 4


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--match-policy", "best"), ("best", "lonode")),
        (("--at", "soon"), ("soon", "2026-08-14T12:00Z")),
        (("--at", "99999999999"), ("before the graph ends",)),
        (("-o", "png"), ("png", "json")),
        (("--format", "csv"), ("csv", "jgf")),
        (("--nonsense",), ("--nonsense", "--help")),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(run: Run, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = run("match", CLUSTER, job("mpi"), *args)
    assert done.code == 2
    assert done.is_one_line_error(*words)
