"""Devices as vertices of the live graph: they keep their vertex while they can; the graph can be written."""

from __future__ import annotations

import pytest

from fluence.cluster.graph import ClusterGraph
from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.model.external_resources import parse
from tests.unit.cluster.build import node

TEXT = """
resources:
- {type: qpu, name: fez, attributes: {vendor: ibm}, with: [{type: qubit, count: 156}]}
- {type: licence, name: solver, count: 4}
- {type: cell, name: near, parent: n1}
- {type: cell, name: far, parent: east}
"""


def cluster(text: str = TEXT) -> ClusterGraph:
    found = ClusterGraph()
    found.set_devices(parse(text))
    found.load([node("n1"), node("n2", zone="east")])
    return found


def rows(found: ClusterGraph) -> dict[str, int]:
    found.sync()
    return {"/".join(entry.key): entry.row for entry in found.fit.backends.entries}


def test_devices_are_where_the_document_says() -> None:
    found = cluster()
    paths = {name: found.graph.path(row) for name, row in rows(found).items()}
    assert paths == {
        "fez": "/cluster/fez",
        "fez/qubit0": "/cluster/fez/qubit0",
        "solver": "/cluster/solver",
        "near": "/cluster/n1/near",
        "far": "/cluster/east/far",
    }
    assert found.graph.properties[rows(found)["fez"]] == {"vendor=ibm": ""}


def test_what_stays_keeps_its_vertex() -> None:
    found = cluster()
    before = rows(found)
    found.set_devices(
        parse(TEXT.replace("count: 4", "count: 9").replace("ibm", "other").replace("far", "new"))
    )
    after = rows(found)
    assert {name: row for name, row in after.items() if name != "new"} == {
        name: row for name, row in before.items() if name != "far"
    }
    assert found.graph.size[after["solver"]] == 9
    assert found.graph.properties[after["fez"]] == {"vendor=other": ""}
    assert not found.graph.alive[before["far"]]


def test_a_device_goes_and_comes_with_what_it_is_under() -> None:
    found = cluster()
    rows(found)
    found.remove_node("n2")  # the last of its zone
    assert "far" not in rows(found) and found.absent_backends == ["far"]
    found.remove_node("n1")
    assert "near" not in rows(found)
    found.set_node(node("n3", zone="east"))
    assert found.graph.path(rows(found)["far"]) == "/cluster/east/far"


def test_a_type_of_nodes_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'gpu' is what nodes have"):
        cluster("resources: [{type: gpu}]")


def test_the_graph_with_devices_can_be_written_and_read() -> None:
    found = cluster()
    again = ResourceGraph.parse(found.graph.render("jgf"))
    assert len(again) == len(found.graph)
    (row,) = again.vertices_at("/cluster/fez/qubit0")
    assert again.size[row] == 156 and again.type_name(row) == "qubit"
