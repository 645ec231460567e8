"""Recipes grow into the vertices that Fluxion makes of them."""

from time import process_time

import pytest

from fluence.errors import InvalidGraph
from fluence.graph import Batch, ResourceGraph, grug

KEYS = "".join(
    f'<key id="{name}" for="{part}" attr.name="{name}" attr.type="string"/>'
    for part, names in {
        "node": "root type basename size unit subsystem",
        "edge": "e_subsystem relation rrelation gen_method multi_scale id_scope id_start id_stride "
        "as_tgt_subsystem as_tgt_uplvl as_src_uplvl",
    }.items()
    for name in names.split()
)


def data(values: dict[str, object]) -> str:
    return "".join(f'<data key="{key}">{value}</data>' for key, value in values.items())


def node(name: str, **values: object) -> str:
    return f'<node id="{name}">{data({"type": name, "basename": name} | values)}</node>'


def edge(source: str, target: str, **values: object) -> str:
    return f'<edge id="{source}2{target}" source="{source}" target="{target}">{data(values)}</edge>'


def recipe(*parts: str, keys: str = KEYS) -> str:
    return f'<graphml>{keys}<graph edgedefault="directed">{"".join(parts)}</graph></graphml>'


def grown(*parts: str, **options: bool) -> Batch:
    return grug.read(recipe(*parts), **options)  # type: ignore[arg-type]


def ids(batch: Batch, type_: str) -> list[int]:
    return [i for i, t in zip(batch.id, batch.type, strict=True) if t == type_]


CLUSTER = node("cluster", root=1)


def test_a_recipe_edge_grows_all_of_its_vertices_before_the_next() -> None:
    batch = grown(
        CLUSTER,
        node("node"),
        node("core"),
        node("memory", size=16, unit="GB"),
        edge("cluster", "node", multi_scale=2),
        edge("node", "core", multi_scale=2),
        edge("node", "memory"),
    )
    assert batch.name == [
        "cluster0",
        *("node0", "node1"),
        *("core0", "core1", "core0", "core1"),
        *("memory0", "memory0"),
    ]
    assert batch.uniq_id == list(range(9))
    assert batch.edges["containment"] == ([0, 0, 1, 1, 2, 2, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8])
    assert batch.size[-1] == 16
    assert batch.unit[-1] == "GB"
    graph = ResourceGraph()
    graph.extend(batch)
    assert graph.path(6) == "/cluster0/node1/core1"


def test_nodes_are_ranked_in_order_and_nothing_else_is() -> None:
    batch = grown(
        CLUSTER,
        node("rack"),
        node("node"),
        node("login", type="node"),
        edge("cluster", "rack", multi_scale=2),
        edge("rack", "node", multi_scale=2),
        edge("cluster", "login"),
    )
    assert batch.rank == [-1, -1, -1, 0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (-1, [-1] * 8),
        (0, [5, 6] * 4),  # the stride does not count
        (1, [5, 7, 9, 11] * 2),
        (2, [5, 7, 9, 11, 13, 15, 17, 19]),
        (9, [5, 7, 9, 11, 13, 15, 17, 19]),
    ],
)
def test_ids_count_within_the_ancestor_that_the_scope_names(scope: int, expected: list[int]) -> None:
    batch = grown(
        CLUSTER,
        node("rack"),
        node("node"),
        node("core"),
        edge("cluster", "rack", multi_scale=2),
        edge("rack", "node", multi_scale=2),
        edge("node", "core", multi_scale=2, id_scope=scope, id_start=5, id_stride=2),
    )
    assert ids(batch, "core") == expected
    assert batch.name[-1] == ("core" if scope < 0 else f"core{expected[-1]}")


def test_only_the_first_edge_to_a_recipe_node_counts() -> None:
    batch = grown(
        CLUSTER,
        node("a"),
        node("b"),
        node("core"),
        edge("cluster", "a"),
        edge("a", "core", multi_scale=2),
        edge("cluster", "b"),
        edge("b", "core", multi_scale=5),
        edge("core", "cluster"),
    )
    assert batch.type == ["cluster", "a", "core", "core", "b"]


POWER = (
    CLUSTER,
    node("rack"),
    node("pdu"),
    node("node"),
    edge("cluster", "rack", multi_scale=2),
    edge("rack", "pdu", id_scope=1),
    edge("rack", "node", multi_scale=2, id_scope=1),
    node("panel", root=1, subsystem="power"),
    node("pdu_power", type="pdu", subsystem="power"),
    node("node_power", type="node", subsystem="power"),
    node("watt", subsystem="power", size=10),
    edge("panel", "pdu_power", e_subsystem="power", gen_method="ASSOCIATE_IN"),
    edge("node_power", "watt", e_subsystem="power", multi_scale=2),
)


def test_vertices_join_a_second_subsystem_below_what_shares_their_path() -> None:
    batch = grown(
        *POWER, edge("pdu_power", "node_power", e_subsystem="power", gen_method="ASSOCIATE_BY_PATH_IN")
    )
    graph = ResourceGraph()
    graph.extend(batch)
    paths = {graph.path(v, "power") for v in graph.vertices_of_type("node").tolist()}
    assert paths == {f"/panel0/pdu{n // 2}/node{n}" for n in range(4)}
    assert graph.path(graph.vertices_of_type("node").tolist()[3]) == "/cluster0/rack1/node3"
    assert graph.path(graph.rows - 1, "power") == "/panel0/pdu1/node3/watt1"
    assert graph.path(graph.rows - 1) is None


def test_more_levels_up_pick_from_a_wider_circle() -> None:
    everywhere = edge(
        "pdu_power",
        "node_power",
        e_subsystem="power",
        gen_method="ASSOCIATE_BY_PATH_IN",
        as_tgt_uplvl=2,
        as_src_uplvl=2,
    )
    with pytest.raises(
        InvalidGraph, match="line 1, edge 'pdu_power2node_power': 'node0' would get a second parent"
    ):
        grown(*POWER, everywhere)


def test_links_keep_second_parents_and_the_paths_that_follow() -> None:
    parts = (
        CLUSTER,
        node("rack"),
        node("pool"),
        node("box"),
        node("ssd"),
        node("box_link", type="box"),
        edge("cluster", "rack"),
        edge("cluster", "pool"),
        edge("rack", "box"),
        edge("box", "ssd"),
        edge("pool", "box_link", gen_method="ASSOCIATE_IN"),
    )
    batch = grown(*parts, links=True)
    assert batch.name == ["cluster0", "rack0", "box0", "ssd0", "pool0"]
    assert list(zip(*batch.edges["containment"], strict=True)) == [(0, 1), (1, 2), (2, 3), (0, 4), (4, 2)]
    paths = batch.paths["containment"]
    assert paths[2] == "/cluster0/pool0/box0"
    assert paths[3] == "/cluster0/rack0/box0/ssd0"
    with pytest.raises(InvalidGraph, match="second parent"):
        grown(*parts)
    with pytest.raises(InvalidGraph, match="would contain itself"):
        grown(*parts, node("top", type="rack"), edge("ssd", "top", gen_method="ASSOCIATE_IN"), links=True)


def test_defaults_come_from_the_keys_and_stray_text_is_passed_over() -> None:
    keys = """ xmlns:xsi="stray" > <key id="t" for="node" attr.name="type"/>
        <key id="root" for="node" attr.name="root"><default> 1 </default></key>
        <key id="basename" for="all" attr.name="basename"/>
        <key id="n" for="edge" attr.name="multi_scale"><default>3</default></key>"""
    text = recipe(
        '<node id="x"><data key="t">x</data></node><node id="y"><data key="t">y</data></node>',
        '<edge source="x" target="y"/>',
        keys=keys,
    )
    batch = grug.read(text.encode())
    assert batch.type == ["x", "y", "y", "y"]
    assert batch.name == ["0", "0", "1", "2"]  # no basename, as in Fluxion


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "grug: line 1: this is not well-formed XML"),
        ("<graphml>", "line 1: this is not well-formed XML"),
        ("<html/>", "begins with <graphml>"),
        ("<graphml/>", "the recipe has no nodes"),
        (recipe(CLUSTER), "grows no vertices"),
        (recipe(node("a"), CLUSTER, edge("cluster", "a")), "grows no vertices"),
        (recipe(CLUSTER, CLUSTER), "another node has this id"),
        (recipe("<node/>"), "needs an id"),
        (recipe(node("a", type="")), "node 'a': the node has no type"),
        (recipe(node("a", size="x")), "node 'a': size is 'x'"),
        (recipe(node("a", size=-1)), "size is -1; it must lie between"),
        (recipe(CLUSTER, edge("cluster", "a")), "edge 'cluster2a': its target 'a' is not the id of a node"),
        (recipe(CLUSTER, node("a"), edge("cluster", "a", gen_method="GROW")), "unknown gen_method 'GROW'"),
        (recipe(CLUSTER, node("a"), edge("cluster", "a", multi_scale=2**31)), "multi_scale is 2147483648"),
        (
            recipe(CLUSTER, node("a"), edge("cluster", "a", multi_scale=2**30)),
            "more than 10,000,000 vertices",
        ),
        (recipe(CLUSTER, node("a"), edge("cluster", "a", e_subsystem="x")), "is not part of the edge's"),
        (recipe(CLUSTER, node("a"), edge("cluster", "a", id_scope=-1), keys=""), "no <key> for a node has"),
        (recipe(keys='<key id="x" for="node" attr.name="colour"/>'), "has no 'colour'"),
        (recipe().replace('"directed"', '"undirected"'), 'write edgedefault="directed"'),
        ('<!DOCTYPE g [<!ENTITY a "b">]><graphml>&a;</graphml>', "entities are not supported"),
        ("<a>" * 600 + "</a>" * 600, "nested more than 500 deep"),
        (b"\xff\xfe\x00", "grug"),
        (b'<?xml version="1.0" encoding="utf-99"?><graphml/>', "grug"),
        ("\ud800", "cannot be decoded"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidGraph) as caught:
        grug.read(text)
    assert message in str(caught.value)
    assert caught.value.where.startswith("grug")
    assert "\n" not in str(caught.value)


def test_four_hundred_thousand_vertices_take_about_a_second() -> None:
    text = recipe(
        CLUSTER,
        node("node"),
        node("core"),
        edge("cluster", "node", multi_scale=10_000),
        edge("node", "core", multi_scale=40, id_scope=1),
    )
    start = process_time()
    assert len(grug.read(text).type) == 410_001
    assert process_time() - start < 1.8
