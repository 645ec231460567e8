"""Nodes that come, change and go between two questions."""

from __future__ import annotations

from fluence.cluster.columns import NodeColumns
from fluence.cluster.layout import DEFAULT
from fluence.cluster.vertices import NodeEvents, NodeVertices
from fluence.placer.gang_fit import GangFit
from tests.unit.cluster.build import ZONE, node


class Nodes:
    def __init__(self) -> None:
        self.vertices, self.columns = NodeVertices(DEFAULT), NodeColumns()
        self.fit = GangFit(self.vertices.matcher)
        self.moved: list[str] = []
        self.events = NodeEvents(self.vertices, self.columns, self.fit, before_move=self.moved.append)

    def apply(self) -> tuple[list[str], list[str]]:
        changed, new = self.events.apply()
        self.events.arrange()
        return changed, sorted(new)


def test_events_are_noted_and_applied_at_once() -> None:
    nodes = Nodes()
    for name in ("n1", "n2"):
        nodes.events.set_node(node(name))
    nodes.events.set_node(node("n2", cpu="8"))
    assert nodes.events.is_stale and set(nodes.events.nodes) == {"n1", "n2"} and not nodes.vertices.nodes
    assert nodes.apply() == ([], ["n1", "n2"])
    assert not nodes.events.is_stale and nodes.fit.size("cpu").tolist() == [4000, 8000]
    assert len(nodes.columns) == 2


def test_only_a_node_with_other_vertices_is_recorded_anew() -> None:
    nodes = Nodes()
    nodes.events.set_node(node("n1", zone="a"))
    nodes.apply()
    nodes.events.set_node(node("n1", zone="a"))
    assert nodes.apply() == ([], [])
    nodes.events.set_node(node("n1", zone="a", labels={"disk": "ssd"}))
    assert nodes.apply() == ([], []) and nodes.columns.label("disk").equals("ssd").all()
    nodes.events.set_node(node("n1", zone="a", labels={"disk": "ssd"}, cpu="8"))
    assert nodes.apply() == (["n1"], []) and not nodes.moved
    nodes.events.set_node(node("n1", zone="b", cpu="8"))
    assert nodes.apply() == (["n1"], []) and nodes.moved == ["n1"]
    assert nodes.columns.label(ZONE).equals("b").all()


def test_a_node_that_never_was_applied_is_withdrawn() -> None:
    nodes = Nodes()
    nodes.events.set_node(node("n1"))
    assert nodes.events.node("n1") is not None
    assert nodes.events.withdraw("n1") and not nodes.events.withdraw("n1")
    assert nodes.events.node("n1") is None and nodes.apply() == ([], [])


def test_a_node_that_is_gone_leaves_the_columns() -> None:
    nodes = Nodes()
    for name in ("n1", "n2"):
        nodes.events.set_node(node(name))
    nodes.apply()
    assert nodes.events.remove("n1") == {}
    nodes.events.arrange()
    assert nodes.columns.position == {"n2": 0} == nodes.fit.position
