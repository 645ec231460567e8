"""`fluence graph`: summary, tree, search, conversion."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from fluence import ResourceGraph
from fluence.commands import tree
from fluence.graph import Batch

from .conftest import CLUSTER, DEMO, Run


def test_summary_counts_types(run: Run) -> None:
    done = run("graph", CLUSTER)
    assert done.code == 0
    head, title, *rows = done.out.splitlines()
    assert "127 vertices" in head and "ranks 0-9" in head
    assert title.split() == ["TYPE", "COUNT", "SIZE", "DOWN", "NAMES"]
    assert ["node", "10", "10", "-", "gpunode[0-1],node[0-7]"] in [row.split() for row in rows]
    assert rows[-1] == "properties: a100 (2), infiniband (8), qubits (1)"


def test_summary_as_data(run: Run) -> None:
    value = json.loads(run("graph", CLUSTER, "-o", "json").out)
    assert value["vertices"] == 127
    assert value["subsystems"] == [
        {"subsystem": "containment", "root": "cluster0", "vertices": 127, "depth": 3}
    ]
    assert yaml.safe_load(run("graph", CLUSTER, "-o", "yaml").out) == value


def test_the_tree_folds_what_is_alike(run: Run) -> None:
    assert run("graph", CLUSTER, "--tree").out.splitlines() == [
        "cluster0",
        "├── rack[0-1] × 2",
        "│   └── node[0-7] × 4 each {infiniband}: 8 core, 64 memory",
        "├── rack2",
        "│   └── gpunode[0-1] × 2 (node) {a100}: 8 core, 4 gpu, 128 memory",
        "├── qpu0 {qubits=20}",
        "└── licence[0-3] × 4",
    ]


def test_the_tree_stops_at_a_depth_and_counts_the_rest(run: Run) -> None:
    assert run("graph", CLUSTER, "--tree", "--depth", "1").out.splitlines()[1] == (
        "├── rack[0-1] × 2: 32 core, 256 memory, 4 node"
    )
    assert len(run("graph", CLUSTER, "--tree", "--depth", "0").out.splitlines()) == 1


def test_a_sibling_that_differs_is_not_folded() -> None:
    batch = Batch()
    root = batch.vertex("cluster", id=0, uniq_id=0, paths={"containment": "/cluster0"})
    batch.roots["containment"] = root
    for i in range(100):
        batch.edge(root, batch.vertex("node", id=i, uniq_id=1 + i, up=i != 50))
    graph = ResourceGraph()
    graph.extend(batch)
    lines = list(tree.lines(graph, tree.fold(graph)))
    assert [line.split(" ", 1)[1] for line in lines[1:]] == [
        "\x1b[36m\x1b[1mnode[0-49]\x1b[0m × 50",
        "\x1b[36m\x1b[1mnode50\x1b[0m\x1b[31m down\x1b[0m",
        "\x1b[36m\x1b[1mnode[51-99]\x1b[0m × 49",
    ]


def test_the_tree_as_data(run: Run) -> None:
    value = json.loads(run("graph", CLUSTER, "--tree", "-o", "json").out)
    assert value["names"] == "cluster0"
    assert value["below"][0]["count"] == 2


def test_find_shows_hits_and_the_way_to_them(run: Run) -> None:
    lines = run("graph", CLUSTER, "--find", "property=qubits").out.splitlines()
    assert [line.split()[0] for line in lines] == ["PATH", "/cluster0", "/cluster0/qpu0"]
    found = json.loads(run("graph", CLUSTER, "--find", "names=node3", "-o", "json").out)
    assert [vertex["path"] for vertex in found] == ["/cluster0", "/cluster0/rack0", "/cluster0/rack0/node3"]
    assert "node3[1:x]" in run("graph", CLUSTER, "--find", "names=node3", "-o", "simple").out


def test_finding_nothing_is_no_error(run: Run) -> None:
    done = run("graph", CLUSTER, "--find", "status=down")
    assert (done.code, done.out) == (0, "")
    assert "nothing has status=down" in done.err


@pytest.mark.parametrize("name", ["cluster.json", "cluster.graphml"])
def test_conversion_to_jgf_can_be_read_again(run: Run, name: str) -> None:
    text = run("graph", str(DEMO / name), "-o", "jgf-verbose").out
    assert run("graph", "-", "-o", "jgf_verbose", stdin=text).code == 0
    assert len(ResourceGraph.parse(text)) == 127


def test_conversion_to_r(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "R"
    path.write_text(run("graph", CLUSTER, "-o", "rv1_nosched").out)
    assert "10 " in run("graph", str(path)).out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--depth", "1"), ("--depth needs --tree",)),
        (("--tree", "--find", "status=up"), ("exclude",)),
        (("--tree", "-o", "jgf"), ("--tree is shown as",)),
        (("--find", "status=up", "-o", "dot"), ("--find is shown as",)),
        (("--tree", "--depth", "-1"), ("--depth",)),
    ],
)
def test_options_that_contradict_each_other(run: Run, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = run("graph", CLUSTER, *args)
    assert done.code == 2
    assert done.is_one_line_error(*words)


@pytest.mark.parametrize("criteria", ["status=odd", "(", "banana=1", "status", "names=a["])
def test_a_wrong_expression(run: Run, criteria: str) -> None:
    assert run("graph", CLUSTER, "--find", criteria).is_one_line_error()


def test_names_cannot_move_the_cursor(run: Run) -> None:
    text = Path(CLUSTER).read_text().replace('"type":"qpu"', '"type":"qpu","name":"q\\u001b[2J\\npu"')
    for option in ((), ("--tree",), ("--find", "status=up")):
        done = run("graph", "-", *option, stdin=text)
        assert done.code == 0
        assert "\x1b" not in done.out
        assert "--find" in option or "q�[2J�pu" in done.out  # --find shows paths


def test_tree_and_summary_are_outputs_too(run: Run) -> None:
    assert run("graph", CLUSTER, "-o", "tree").out == run("graph", CLUSTER, "--tree").out
    assert run("graph", CLUSTER, "-o", "summary").out == run("graph", CLUSTER).out


def test_a_file_or_the_live_cluster_but_one_of_them(run: Run, tmp_path: Path) -> None:
    assert run("graph").is_one_line_error("give FILE or --live")
    assert run("graph", CLUSTER, "--live").is_one_line_error("give FILE or --live")
    assert run("graph", CLUSTER, "--context", "x").is_one_line_error("need --live")
    assert run("graph", "--live", "--level", "rack").is_one_line_error("write TYPE=LABEL")
    missing = str(tmp_path / "config")
    assert run("graph", "--live", "--kubeconfig", missing).is_one_line_error(missing, "no such kubeconfig")


def test_the_tree_of_a_cluster_has_amounts_as_kubernetes_writes_them() -> None:
    from fluence.cluster.graph import ClusterGraph
    from fluence.commands import cluster as live
    from fluence.commands import tree
    from fluence.model.node import Node
    from fluence.sandbox.nodes import NodeKind, manifests

    cluster = ClusterGraph()
    nodes = manifests(NodeKind(count=2, cpu=4, memory="128Gi"))
    cluster.load([msgspec.convert(each, Node) for each in nodes], ())
    cluster.graph.properties.clear()
    drawn = tree.lines(
        cluster.graph,
        tree.fold(cluster.graph),
        write=lambda type_, size: live.write_amount(cluster, type_, size),
    )
    text = "\n".join(drawn)
    assert "128Gi memory" in text and "137438953472" not in text
