"""JGF, both dialects: every default that is filled in, and every document that is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluence.errors import InvalidGraph
from fluence.graph import ResourceGraph, jgf
from tests.builders import cluster

Json = dict[str, Any]
ROOT = {"id": "0", "metadata": {"type": "cluster", "paths": {"containment": "/cluster0"}}}


def node(id_: str = "1", **metadata: Any) -> Json:
    return {"id": id_, "metadata": {"type": "node", "paths": {"containment": "/cluster0/node1"}, **metadata}}


def edge(source: str = "0", target: str = "1", **more: Any) -> Json:
    return {"source": source, "target": target, **more}


def document(*nodes: Any, edges: Any = (), **top: Any) -> str:
    return json.dumps({"graph": {"nodes": list(nodes), "edges": list(edges)}, **top})


def load(text: str | bytes) -> ResourceGraph:
    graph = ResourceGraph()
    graph.extend(jgf.read(text))
    return graph


LONG: Json = {**ROOT, "note": "x" * 5_000_000}  # the rest of the document is decoded in another piece


# -- in pieces -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"note": "}, {"}, {"notes": [{"a": 1}, {"b": [{}, {}]}]}])
def test_a_cut_inside_an_element_does_no_harm(more: Json) -> None:
    first = {**node("1", **more), "note": "x" * 5_000_000}
    second = node("2", paths={"containment": "/cluster0/node2"}, **more)
    graph = load(document(LONG, {**first, **more}, second, edges=[edge(), edge(target="2")]))
    assert graph.name == ["cluster0", "node1", "node2"]
    assert graph.tree().children(0) == [1, 2]


def test_a_second_path_in_a_later_piece_starts_the_reading_anew() -> None:
    power = {"id": "2", "metadata": {"type": "pdu", "paths": {"power": "/pdu2"}}}
    both = node(paths={"containment": "/cluster0/node1", "power": "/pdu2/node1"})
    graph = load(document(LONG, power, both, edges=[edge(), edge("2", "1", metadata={"subsystem": "power"})]))
    assert graph.name == ["cluster0", "pdu2", "node1"]


def test_an_error_in_a_later_piece_is_counted_from_the_start() -> None:
    with pytest.raises(InvalidGraph) as caught:
        jgf.read(document(LONG, node(), node("2", size=-1)), source="c.json")
    assert caught.value.where == "c.json: graph.nodes[2].metadata.size"


# -- defaults ------------------------------------------------------------------------------------------------


def test_a_vertex_needs_only_id_type_and_paths() -> None:
    graph = load(document(ROOT, node("17"), edges=[edge(target="17")]))
    assert graph.type_name(1) == "node"
    assert graph.uniq_id[1] == 17, "the outer id"
    assert graph.id[1] == 17, "the uniq_id"
    assert graph.basenames.words[graph.basename[1]] == "node"
    assert graph.name[1] == "node17", "basename and id"
    assert graph.size[1] == 1
    assert graph.rank[1] == -1
    assert graph.up[1]
    assert graph.properties == {}
    assert graph.units.words[graph.unit[1]] == ""


@pytest.mark.parametrize(
    ("metadata", "ordinal", "name"),
    [
        ({"name": "host007"}, 7, "host007"),
        ({"name": "host"}, 17, "host"),
        ({"name": "host٣"}, 17, "host٣"),  # digits are those of ASCII
        ({"name": "host3x"}, 17, "host3x"),
        ({"name": "host3", "id": 5}, 5, "host3"),
        ({"type": "core", "name": "core3"}, 17, "core3"),  # only a node's name is taken apart
        ({"uniq_id": 4}, 4, "node4"),
        ({"uniq_id": 4, "id": -1}, -1, "node"),
        ({"basename": "n", "id": 2}, 2, "n2"),
        ({"basename": "n", "id": -1}, -1, "n"),
        ({"name": "n00000000000000000000000000007"}, 7, "n00000000000000000000000000007"),
    ],
)
def test_ids_and_names_follow_from_each_other(metadata: Json, ordinal: int, name: str) -> None:
    graph = load(document(ROOT, node("17", **metadata), edges=[edge(target="17")]))
    assert (graph.id[1], graph.name[1]) == (ordinal, name)


def test_given_fields_are_kept_and_the_unit_is_dropped() -> None:
    given = {
        "size": 8,
        "rank": 3,
        "status": 1,
        "properties": {"fast": "yes"},
        "unit": "GB",
        "exclusive": True,
    }
    graph = load(document(ROOT, node(**given), edges=[edge()]))  # type: ignore[arg-type]
    assert (graph.size[1], graph.rank[1], bool(graph.up[1])) == (8, 3, False)
    assert graph.properties == {1: {"fast": "yes"}}
    assert graph.units.words[graph.unit[1]] == ""


def test_nodes_that_arrive_down_are_not_counted_as_up() -> None:
    assert load(document(ROOT, node(status=1), edges=[edge()])).nodes_up == 0
    assert load(document(ROOT, node(status=0), edges=[edge()])).nodes_up == 1


def test_null_properties_are_none() -> None:
    assert load(document(ROOT, node(properties=None), edges=[edge()])).properties == {}


def test_unknown_keys_are_ignored_wherever_they_stand() -> None:
    extra = {"id": "0", "label": "x", "metadata": {**ROOT["metadata"], "colour": [1]}}  # type: ignore[dict-item]
    text = document(extra, node(), edges=[edge(relation="contains", metadata={"weight": 1})], version=7)
    assert len(load(text)) == 2


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"metadata": {}},
        {"metadata": {"subsystem": "containment"}},
        {"metadata": {"name": {"containment": "contains"}}},  # what flux-k8s writes
        {"metadata": None},
    ],
)
def test_an_edge_is_of_containment_unless_it_says_otherwise(metadata: Json) -> None:
    graph = load(document(ROOT, node(), edges=[edge(**metadata)]))
    assert graph.tree().children(0) == [1]


def test_other_subsystems_have_their_own_tree_and_paths() -> None:
    power = {"id": "2", "metadata": {"type": "pdu", "paths": {"power": "/pdu2"}}}
    both = node(paths={"containment": "/cluster0/node1", "power": "/pdu2/node1"})
    graph = load(document(ROOT, power, both, edges=[edge(), edge("2", "1", metadata={"subsystem": "power"})]))
    assert graph.tree("power").children(1) == [2]
    assert graph.paths(2) == {"containment": "/cluster0/node1", "power": "/pdu2/node1"}
    assert graph.vertices_at("/pdu2/node1") == graph.vertices_at("/cluster0/node1") == [2]


def test_edges_back_up_from_older_writers_are_left_out() -> None:
    graph = load(document(ROOT, node(), edges=[edge(), edge("1", "0")]))
    assert graph.tree().is_tree
    assert graph.tree().order.tolist() == [0, 1]


def test_a_vertex_may_hang_below_several() -> None:
    paths = {"containment": "/cluster0/rack0/ssd9"}
    racks = [
        {"id": str(i), "metadata": {"type": "rack", "paths": {"containment": f"/cluster0/rack{i}"}}}
        for i in (1, 2)
    ]
    ssd = {"id": "9", "metadata": {"type": "ssd", "paths": paths}}
    edges = [edge("0", "1"), edge("0", "2"), edge("1", "9"), edge("2", "9")]
    tree = load(document(ROOT, *racks, ssd, edges=edges)).tree()
    assert not tree.is_tree
    assert tree.children(1) == tree.children(2) == [3]
    assert tree.parent[3] == 1


# -- merging and growing -------------------------------------------------------------------------------------


def test_the_same_path_and_rank_is_the_same_vertex() -> None:
    text = document(ROOT, node("1", rank=0), node("2", rank=0), edges=[edge()])
    assert len(load(text)) == 2


def test_the_same_path_with_another_rank_is_another_vertex() -> None:
    graph = load(document(ROOT, node("1", rank=0), node("2", rank=1), edges=[edge(), edge(target="2")]))
    assert graph.vertices_at("/cluster0/node1") == [1, 2]


def test_growing_adds_what_is_new_and_edges_that_touch_it() -> None:
    graph = cluster(nodes=1, cores=1).load()
    more = {
        "id": "77",
        "metadata": {"type": "core", "paths": {"containment": "/cluster0/node0/core77"}, "rank": 0},
    }
    there = {"id": "5", "metadata": {"type": "node", "rank": 0, "paths": {"containment": "/cluster0/node0"}}}
    batch = jgf.read(document(ROOT, there, more, edges=[edge(target="5"), edge("5", "77")]), into=graph)
    (row,) = graph.extend(batch).tolist()
    assert graph.path(row) == "/cluster0/node0/core77"
    assert graph.tree().parent[row] == 1


def test_growing_refuses_a_sibling_with_a_known_uniq_id() -> None:
    graph = cluster(nodes=1, cores=1).load()  # node0 has the uniq_id 1
    with pytest.raises(InvalidGraph, match="share a uniq_id"):
        jgf.read(document(ROOT, node("1", rank=5), edges=[edge()]), into=graph)


def test_growing_refuses_a_second_root() -> None:
    graph = cluster().load()
    other = {"id": "5", "metadata": {"type": "cluster", "paths": {"containment": "/cluster5"}}}
    with pytest.raises(InvalidGraph, match="root"):
        graph.extend(jgf.read(document(other, node(), edges=[edge("5")]), into=graph))
    assert graph.rows == 7


# -- errors --------------------------------------------------------------------------------------------------

BAD = {
    "not JSON": "{",
    "empty": "",
    "a list": "[]",
    "no graph": "{}",
    "graph of another type": '{"graph": []}',
    "no nodes": '{"graph": {"edges": []}}',
    "no edges": '{"graph": {"nodes": []}}',
    "nodes of another type": '{"graph": {"nodes": {}, "edges": []}}',
    "a vertex without id": document({"metadata": ROOT["metadata"]}),
    "an id that is a number": document({"id": 0, "metadata": ROOT["metadata"]}),
    "a vertex without metadata": document({"id": "0"}),
    "metadata of another type": document({"id": "0", "metadata": []}),
    "no type": document({"id": "0", "metadata": {"paths": {"containment": "/c"}}}),
    "a type that is a number": document(node(type=4)),
    "no paths": document({"id": "0", "metadata": {"type": "cluster"}}),
    "paths of another type": document(node(paths="/cluster0")),
    "a path that is a number": document(node(paths={"containment": 1})),
    "properties that are a list": document(ROOT, node(properties=["fast"]), edges=[edge()]),
    "a property that is a number": document(ROOT, node(properties={"fast": 1}), edges=[edge()]),
    "a property that is null": document(ROOT, node(properties={"fast": None}), edges=[edge()]),
    "an id that is no number, and no uniq_id": document(ROOT, node("one"), edges=[edge(target="one")]),
    "a uniq_id that is text": document(node(uniq_id="1")),
    "a uniq_id beyond 64 bits": document(node(uniq_id=2**63)),
    "an outer id beyond 64 bits": document(node(str(2**63))),
    "a number in a name beyond 64 bits": document(node(name="n" + "9" * 30)),
    "a number in a name beyond all bits": document(node(name="n" + "9" * 5000)),
    "an id that is a fraction": document(node(id=1.5)),
    "a negative size": document(node(size=-1)),
    "a size that is text": document(node(size="1")),
    "a rank below -1": document(node(rank=-2)),
    "a rank beyond 32 bits": document(node(rank=2**31)),
    "a status that is no status": document(ROOT, node(status=2), edges=[edge()]),
    "a status that is text": document(node(status="up")),
    "exclusive that is a number": document(node(exclusive=1)),
    "NaN": '{"graph": {"nodes": [{"id": "0", "metadata": {"size": NaN}}], "edges": []}}',
    "an id twice": document(ROOT, {"id": "0", "metadata": node()["metadata"]}),
    "two roots": document(ROOT, {"id": "1", "metadata": {"type": "x", "paths": {"containment": "/x"}}}),
    "an edge without source": document(ROOT, node(), edges=[{"target": "1"}]),
    "an edge without target": document(ROOT, node(), edges=[{"source": "0"}]),
    "an edge whose end is a number": document(ROOT, node(), edges=[edge(source=0)]),  # type: ignore[arg-type]
    "an edge that is text": document(ROOT, node(), edges=["0-1"]),
    "a subsystem that is a number": document(ROOT, node(), edges=[edge(metadata={"subsystem": 1})]),
    "an unknown source": document(ROOT, node(), edges=[edge("9")]),
    "an unknown target": document(ROOT, node(), edges=[edge(target="9")]),
    "an edge twice": document(ROOT, node(), edges=[edge(), edge()]),
    "siblings with one uniq_id": document(
        ROOT,
        node(uniq_id=5),
        {"id": "2", "metadata": {"type": "node", "uniq_id": 5, "paths": {"containment": "/cluster0/b"}}},
        edges=[edge(), edge(target="2")],
    ),
    "a vertex in itself": document(ROOT, node(), edges=[edge(), edge("1", "1")]),
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_refused_in_one_line_that_names_the_document(text: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        graph = ResourceGraph()
        graph.extend(jgf.read(text, source="c.json"))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("c.json") or "vertex" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (BAD["no nodes"], "c.json: graph"),
        (BAD["a negative size"], "c.json: graph.nodes[0].metadata.size"),
        (BAD["no type"], "c.json: graph.nodes[0].metadata"),
        (BAD["a property that is a number"], "c.json: graph.nodes[1].metadata.properties[...]"),
        (BAD["an edge without target"], "c.json: graph.edges[0]"),
        (BAD["an unknown target"], "c.json: graph.edges[0]"),
        ('{"graph": {"nodes": {}, "edges": []}}', "c.json: graph.nodes"),
        ('{"graph": {"nodes": [], "edges": 1}}', "c.json: graph.edges"),
    ],
)
def test_the_error_names_the_place(text: str, where: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        jgf.read(text, source="c.json")
    assert caught.value.where == where


def test_a_cycle_through_a_second_parent_is_refused() -> None:
    names = {"1": "/cluster0/a", "2": "/cluster0/a/b", "3": "/cluster0/a/b/c"}
    boxes = [
        {"id": i, "metadata": {"type": "box", "paths": {"containment": path}}} for i, path in names.items()
    ]
    edges = [edge("0", "1"), edge("1", "2"), edge("2", "3")]
    assert len(load(document(ROOT, *boxes, edges=edges))) == 4
    with pytest.raises(InvalidGraph, match="cycle"):
        load(document(ROOT, *boxes, edges=[*edges, edge("3", "1")]))


def test_a_tree_apart_is_refused() -> None:
    apart = [
        {"id": str(i), "metadata": {"type": "box", "paths": {"containment": f"/cluster0/x/box{i}"}}}
        for i in (5, 6)
    ]
    with pytest.raises(InvalidGraph, match="second tree"):
        load(document(ROOT, node(), *apart, edges=[edge(), edge("5", "6")]))


def test_bytes_that_are_no_utf_8_and_text_that_cannot_be_are_refused() -> None:
    for text in (b"\xff\xfe", '{"graph": "\ud800"}'):
        with pytest.raises(InvalidGraph):
            jgf.read(text)
