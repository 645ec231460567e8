"""Whatever is wrong with a graph or a jobspec, the answer is one line that names the place."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import CLUSTER, DEMO, Run, job

TEXT = Path(CLUSTER).read_text()
RECIPE = (DEMO / "cluster.graphml").read_text()
JOB = Path(job("mpi")).read_text()


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    document = copy.deepcopy(json.loads(TEXT))
    change(document["graph"])
    return json.dumps(document)


def field(key: str, value: object) -> str:
    """The graph with one field of its fourth vertex changed."""
    return edited(lambda graph: graph["nodes"][3]["metadata"].__setitem__(key, value))


def vertices(edges: list[tuple[int, int]]) -> str:
    """Four vertices and some edges."""
    nodes = [
        {"id": str(i), "metadata": {"type": "t", "paths": {"containment": f"/a/b{i}" if i else "/a"}}}
        for i in range(4)
    ]
    return json.dumps(
        {"graph": {"nodes": nodes, "edges": [{"source": str(s), "target": str(t)} for s, t in edges]}}
    )


GRAPHS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "does not look like a graph"),
    "one brace": ("{", "ends too early"),
    "truncated": (TEXT[:5000], "byte 5000"),
    "null": ('{"graph": null}', "graph"),
    "no graph": ("{}", "graph"),
    "no vertices": ('{"graph": {"nodes": [], "edges": []}}', "no vertices"),
    "binary": (bytes(range(256)), "does not look like a graph"),
    "UTF-16": (TEXT.encode("utf-16"), "UTF-16"),
    "Latin-1": (TEXT.replace("licence", "lic\u00e9nce").encode("latin-1"), "UTF-8"),
    "duplicated vertex": (edited(lambda g: g["nodes"].append(g["nodes"][3])), "'3'"),
    "duplicated edge": (edited(lambda g: g["edges"].append(g["edges"][3])), "twice"),
    "edge to nowhere": (edited(lambda g: g["edges"].append({"source": "3", "target": "x"})), "edges[126]"),
    "contains itself": (edited(lambda g: g["edges"].append({"source": "3", "target": "3"})), "node0"),
    "cyclic": (vertices([(1, 2), (2, 3), (3, 1)]), "cycle"),
    "NaN": (TEXT.replace('"size":64', '"size":NaN', 1), "byte"),
    "infinite": (TEXT.replace('"size":64', '"size":1e400', 1), "metadata.size"),
    "negative size": (field("size", -1), "graph.nodes[3].metadata.size"),
    "size as text": (field("size", "1"), "graph.nodes[3].metadata.size"),
    "broken size": (field("size", 1.5), "graph.nodes[3].metadata.size"),
    "huge size": (field("size", 10**30), "graph.nodes[3].metadata.size"),
    "huge id": (field("id", 2**63), "graph.nodes[3].metadata.id"),
    "negative rank": (field("rank", -5), "graph.nodes[3].metadata.rank"),
    "huge rank": (field("rank", 2**40), "graph.nodes[3].metadata.rank"),
    "type as number": (field("type", 7), "graph.nodes[3].metadata.type"),
    "paths as list": (field("paths", []), "graph.nodes[3].metadata.paths"),
    "property as number": (field("properties", {"a": 1}), "graph.nodes[3].metadata.properties"),
    "odd status": (field("status", 2), "status"),
    "deep JSON": ('{"graph":' + "[" * 100_000, "graph"),
    "truncated XML": (RECIPE[:2000], "line"),
    "other XML": ("<html></html>", "does not look like a graph"),
    "huge recipe": (RECIPE.replace(">8<", ">999999999<"), "multi_scale"),
    "recipe with NaN": (RECIPE.replace(">8<", ">nan<"), "multi_scale"),
    "recipe with words": (RECIPE.replace(">8<", ">eight<"), "multi_scale"),
    "entities": ('<!DOCTYPE a [<!ENTITY b "c">]><graphml>&b;</graphml>', "entities"),
    "empty topology": ("<topology/>", "line 1"),
    "R without ranks": ('{"version":1,"execution":{}}', "execution.R_lite"),
    "huge R": (
        '{"version":1,"execution":{"R_lite":[{"rank":"0-99999999","children":{"core":"0"}}]}}',
        "execution.R_lite[0].rank",
    ),
    "R with a rank twice": (
        '{"version":1,"execution":{"R_lite":[{"rank":"0,0","children":{}}],"nodelist":["a0"]}}',
        "execution.R_lite[0].rank",
    ),
}

JOBSPECS: dict[str, tuple[str, str]] = {
    "empty": ("", "must be a mapping"),
    "truncated": (JOB[:100], "line"),
    "list": ("[]", "must be a mapping"),
    "tabs": ("\tversion: 1", "line 1"),
    "binary": ("\x00\x01", "neither YAML nor JSON"),
    "negative count": (JOB.replace("count: 4", "count: -4"), "resources[0].count"),
    "NaN count": (JOB.replace("count: 4", "count: .nan"), "resources[0].count"),
    "huge count": (JOB.replace("count: 4", "count: 99999999999999999999"), "resources[0].count"),
    "broken count": (JOB.replace("count: 4", "count: 1.5"), "resources[0].count"),
    "count as list": (JOB.replace("count: 4", "count: [1]"), "resources[0].count"),
    "negative duration": (JOB.replace("3600", "-1"), "attributes.system.duration"),
    "NaN duration": (JOB.replace("3600", ".nan"), "attributes.system.duration"),
    "endless duration": (JOB.replace("3600", ".inf"), "attributes.system.duration"),
    "huge duration": (JOB.replace("3600", "1e300"), "attributes.system.duration"),
    "duration as word": (JOB.replace("3600", "soon"), "attributes.system.duration"),
    "unknown type": (JOB.replace("type: core", "type: banana"), "resources[0].with[0].with[0].type"),
    "type as list": (JOB.replace("type: core", "type: [a]"), "resources[0].with[0].with[0].type"),
    "duplicated key": (JOB.replace("version: 1", "version: 1\nversion: 1"), "version"),
    "version 0": (JOB.replace("version: 1", "version: 0"), "version"),
    "unknown key": (JOB + "colour: red\n", "colour"),
    "nothing held": ("{version: 1, resources: [{type: node, count: 1}], tasks: [], attributes: {}}", "slot"),
    "endless alias": ("a: &a [*a]\n", "refers to itself"),
    "deep": ("[" * 10_000, "nested"),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("command", ["graph", "match"])
def test_a_bad_graph(run: Run, tmp_path: Path, command: str, name: str) -> None:
    text, place = GRAPHS[name]
    path = tmp_path / "bad"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run(command, str(path), *([job("mpi")] if command == "match" else []))
    assert done.code == 1
    assert done.is_one_line_error(str(path), place)


@pytest.mark.parametrize("name", JOBSPECS)
def test_a_bad_jobspec(run: Run, tmp_path: Path, name: str) -> None:
    text, place = JOBSPECS[name]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    done = run("match", CLUSTER, job("mpi"), str(path))
    assert done.code == 1
    assert done.is_one_line_error(str(path), place)


@pytest.mark.parametrize("path", ["/nonexistent/graph.json", "/"])
def test_a_file_that_cannot_be_read(run: Run, path: str) -> None:
    assert run("graph", path).is_one_line_error(path)
    assert run("match", path, job("mpi")).is_one_line_error(path)
    assert run("match", CLUSTER, path).is_one_line_error(path)


def test_a_graph_deeper_than_a_walk_can_follow(run: Run) -> None:
    kinds = ["cluster", *["rack"] * 2997, "node", "core"]
    nodes = [
        {"id": str(i), "metadata": {"type": kind, "paths": {"containment": "/x" * (i + 1)}}}
        for i, kind in enumerate(kinds)
    ]
    edges = [{"source": str(i), "target": str(i + 1)} for i in range(2999)]
    text = json.dumps({"graph": {"nodes": nodes, "edges": edges}})
    for args in (("graph", "-", "--tree"), ("match", "-", job("mpi"))):
        assert run(*args, stdin=text).is_one_line_error("more than 200 levels")


def test_sizes_that_add_up_to_more_than_64_bits(run: Run) -> None:
    text = edited(lambda g: [node["metadata"].__setitem__("size", 2**63 - 1) for node in g["nodes"]])
    assert run("graph", "-", stdin=text).is_one_line_error("2^62", "larger unit")
