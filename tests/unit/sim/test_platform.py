"""Clusters from shorthand, from graphs and from the CSV of openb."""

from pathlib import Path

import pytest

from fluence.errors import InvalidGraph, InvalidInput
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Placed, Wait
from fluence.sim import simulator
from fluence.sim.intake import pod_jobspec, processors_jobspec
from tests.builders import cluster

NODES = """sn,cpu_milli,memory_mib,gpu,model
big,96000,393216,2,V100M16
small,32000,262144,0,
"""


@pytest.mark.parametrize("text", ["3x2x1", "3×2×1", "3X2*1", " 3 x 2 x 1 "])
def test_shorthand_makes_equal_nodes(text: str) -> None:
    found = simulator.read(text)
    assert (found.nodes, found.unit, found.capacity, found.node_size) == (3, "core", 6, 2)
    assert simulator.capacity(found.graph, "gpu") == 3
    assert found.graph.path(found.graph.rows - 1) == "/cluster0/node2/gpu0"
    assert not found.extensions


def test_a_job_of_processors_can_spread_over_the_nodes_of_shorthand() -> None:
    matcher = Matcher(simulator.read("3x2").graph)
    assert isinstance(matcher.match("allocate", processors_jobspec(5, "core"), job=1), Placed)
    assert isinstance(matcher.match("allocate", processors_jobspec(2, "core"), job=2), Wait)


def test_a_graph_in_a_file_is_counted_in_cores_or_as_asked(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(cluster(racks=2, nodes=2, sockets=2, cores=4, gpus=1).text)
    assert simulator.read(tmp_path / "c.json").capacity == 32
    by_node = simulator.read(tmp_path / "c.json", unit="node")
    assert (by_node.unit, by_node.capacity, by_node.node_size) == ("node", 4, 1)


def test_openb_nodes_are_pools_with_the_model_as_a_property(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    found = simulator.read(tmp_path / "nodes.csv")
    assert (found.nodes, found.unit, found.capacity) == (2, "cpu", 128_000)
    matcher = Matcher(found.graph, extensions=found.extensions)
    half = pod_jobspec((("cpu", 4000), ("memory", 1024), ("gpu", 500)), ("T4", "V100M16"))
    for job in range(4):  # four halves of two GPUs
        assert isinstance(matcher.match("allocate", half, job=job), Placed)
    assert isinstance(matcher.match("allocate", half, job=4), Wait)
    without = pod_jobspec((("cpu", 80_000), ("memory", 1024)))
    assert isinstance(matcher.match("allocate", without, job=5), Placed)  # 96 - 4 × 4 cores are left on `big`
    assert isinstance(matcher.match("satisfiability", pod_jobspec((("cpu", 1),), ("T4",))), Never)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0x4", "a cluster needs a node and a core at least, not 0×4"),
        ("999999999x999999999", "at most 20000000 can be held"),
        ("240y1", r"240y1: cannot be read \(No such file or directory\): give a file, or nodes×cores"),
        ("a\0b", "no name of a file"),
    ],
)
def test_what_is_no_cluster_is_refused_with_the_cure(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        simulator.read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sn,cpu_milli,memory_mib,gpu\n", "lacks the column 'model'"),
        ("sn,cpu_milli,memory_mib,gpu,model\n", "has no nodes"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1\n", "line 2: gpu: is missing"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,-1,\n", "line 2: gpu: must be a whole number, 0 or more"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\na,1,1,0,\n", "line 3: sn: must be a name of its own"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,x^y\n", "line 2: model: must be names"),
        ("sn,cpu_milli,memory_mib,gpu,model\na,0,1,0,\n", "to count: name as unit one of"),
    ],
)
def test_a_bad_table_of_nodes_is_refused_at_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "nodes.csv").write_text(text)
    with pytest.raises(InvalidInput, match=message):
        simulator.read(tmp_path / "nodes.csv", unit="cpu")


def test_a_unit_that_the_cluster_lacks_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(InvalidGraph, match="has no qpu to count: name as unit one of cluster, core, node"):
        simulator.read("2x2", unit="qpu")
