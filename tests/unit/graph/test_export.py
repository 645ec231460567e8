"""A graph that is written and read again is the same graph."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fluence import InvalidGraph, InvalidInput, ResourceGraph
from fluence.graph import files

DEMO = Path(__file__).parents[3] / "examples"

SHARED = """<graphml>
<key id="root" for="node" attr.name="root"/><key id="type" for="node" attr.name="type"/>
<key id="basename" for="node" attr.name="basename"/><key id="sub" for="node" attr.name="subsystem"/>
<key id="e_sub" for="edge" attr.name="e_subsystem"/><key id="how" for="edge" attr.name="gen_method"/>
<key id="n" for="edge" attr.name="multi_scale"/>
<graph edgedefault="directed">
<node id="a"><data key="root">1</data><data key="type">cluster</data><data key="basename">c</data></node>
<node id="b"><data key="type">node</data><data key="basename">n</data></node>
<node id="p"><data key="root">1</data><data key="type">p</data><data key="basename">p</data>
  <data key="sub">power</data></node>
<node id="q"><data key="type">node</data><data key="basename">n</data><data key="sub">power</data></node>
<edge source="a" target="b"><data key="n">3</data></edge>
<edge source="p" target="q"><data key="e_sub">power</data><data key="how">ASSOCIATE_IN</data></edge>
</graph></graphml>"""


def same(one: ResourceGraph, other: ResourceGraph) -> None:
    for column in ("id", "uniq_id", "rank", "size", "up"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    assert one.name == other.name
    assert one.properties == other.properties
    assert [one.type_name(v) for v in range(len(one))] == [other.type_name(v) for v in range(len(other))]
    assert list(files.edges(one)) == list(files.edges(other))
    assert [one.paths(v) for v in range(len(one))] == [other.paths(v) for v in range(len(other))]


@pytest.mark.parametrize("format_", ["jgf", "jgf_verbose"])
def test_jgf_round_trip(format_: str) -> None:
    graph = ResourceGraph.load(DEMO / "cluster.json")
    graph.set_status(5, up=False)
    same(graph, ResourceGraph.parse(graph.render(format_)))


@pytest.mark.parametrize("format_", ["jgf", "jgf_verbose"])
def test_jgf_keeps_every_subsystem(format_: str) -> None:
    graph = ResourceGraph.parse(SHARED)
    assert set(graph.trees) == {"containment", "power"}
    same(graph, ResourceGraph.parse(graph.render(format_)))


def test_jgf_of_a_graph_with_equal_uniq_ids_can_be_read() -> None:
    vertex = '{{"id":"{0}","metadata":{{"type":"{1}","uniq_id":{2},"paths":{{"containment":"{3}"}}}}}}'
    nodes = [("a", "cluster", 0, "/c"), ("b", "rack", 1, "/c/r1"), ("d", "node", 1, "/c/r1/n1")]
    text = ",".join(vertex.format(*node) for node in nodes)
    edges = '{"source":"a","target":"b"},{"source":"b","target":"d"}'
    graph = ResourceGraph.parse(f'{{"graph":{{"nodes":[{text}],"edges":[{edges}]}}}}')
    same(graph, ResourceGraph.parse(graph.render("jgf")))


def test_the_recipe_and_the_jgf_of_the_example_are_one_cluster() -> None:
    grown, given = ResourceGraph.load(DEMO / "cluster.graphml"), ResourceGraph.load(DEMO / "cluster.json")
    given.properties.clear()  # a recipe has none
    same(grown, given)


def test_r_of_the_whole_graph_names_every_core() -> None:
    graph = ResourceGraph.load(DEMO / "cluster.json")
    document = json.loads(graph.render("rv1_nosched"))
    assert document["execution"]["nodelist"] == ["node[0-7],gpunode[0-1]"]
    again = ResourceGraph.parse(graph.render("rv1_nosched"))
    assert len(again.vertices_of_type("core")) == len(graph.vertices_of_type("core"))
    assert len(again.vertices_of_type("gpu")) == len(graph.vertices_of_type("gpu"))


def test_r_needs_ranks() -> None:
    graph = ResourceGraph.load(DEMO / "cluster.json")
    graph.rank[:] = -1
    with pytest.raises(InvalidGraph, match="no rank"):
        graph.render("rv1_nosched")


def test_graphml_has_every_vertex_and_edge() -> None:
    graph = ResourceGraph.parse(SHARED)
    root = ElementTree.fromstring(graph.render("graphml"))
    space = "{http://graphml.graphdrawing.org/xmlns}"
    assert len(root.findall(f".//{space}node")) == len(graph)
    assert len(root.findall(f".//{space}edge")) == len(list(files.edges(graph)))


def test_dot_quotes_names() -> None:
    graph = ResourceGraph.parse(SHARED)
    graph.name[0] = 'a "quoted" name'
    assert 'v0 [label="a \\"quoted\\" name"];' in graph.render("dot")


def test_simple_shows_children_first() -> None:
    text = ResourceGraph.parse(SHARED).render("simple")
    assert text.splitlines()[-1] == "      ---c0[1:x]"


@pytest.mark.parametrize("format_", files.formats())
def test_every_format_can_be_dumped(format_: str, tmp_path: Path) -> None:
    files.dump(ResourceGraph.load(DEMO / "cluster.json"), tmp_path / "out", format_)
    assert (tmp_path / "out").stat().st_size > 90


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match="'png' is not a valid format for a graph: choose one of jgf"):
        ResourceGraph.parse(SHARED).render("png")


@pytest.mark.parametrize(
    ("text", "name", "format_"),
    [
        (b"  <?xml version='1.0'?>\n<graphml>", "x", "grug"),
        (b"<topology>", "x", "hwloc"),
        (b'{"graph": {}}', "x", "jgf"),
        (b'{"version": 1, "execution": {}}', "x", "rv1exec"),
        (b'{"version": 1, "execution": {"R_lite": [', "x", "rv1exec"),
        (b'{"version": 1, "execution": {}, "scheduling": {"graph": {}}}', "x", "rv1exec"),
        (b'{"graph": ', "x", "jgf"),
        (b"", "a.graphml", "grug"),
        (b"", "a.xml", "hwloc"),
        (b"", "a.json", "jgf"),
    ],
)
def test_formats_are_guessed(text: bytes, name: str, format_: str) -> None:
    assert files.guess(text, source=name) == format_


def test_a_format_that_cannot_be_guessed_is_asked_for() -> None:
    with pytest.raises(InvalidGraph, match="name its format"):
        ResourceGraph.parse("hello", source="x.txt")


def test_a_byte_order_mark_does_not_matter() -> None:
    text = (DEMO / "cluster.json").read_bytes()
    assert len(ResourceGraph.parse(b"\xef\xbb\xbf" + text)) == len(ResourceGraph.parse(text))
