"""The columns derived from a parent column, against a plain recursion over the edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence.errors import InvalidGraph
from fluence.graph import Batch, ResourceGraph

Edges = list[tuple[int, int]]


class Model:
    """A tree as lists of children, walked by recursion; ``links`` are edges beside the tree."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.edges: list[tuple[int, int, bool]] = []  # in the order of their coming; True: of the tree

    def children(self, vertex: int, *, links: bool) -> list[int]:
        return [t for s, t, own in self.edges if s == vertex and (own or links)]

    def preorder(self, vertex: int) -> list[int]:
        return [vertex, *(v for child in self.children(vertex, links=False) for v in self.preorder(child))]

    def postorder(self, vertex: int) -> list[int]:
        return [*(v for child in self.children(vertex, links=False) for v in self.postorder(child)), vertex]

    def ancestors(self, vertex: int) -> list[int]:
        for s, t, own in self.edges:
            if t == vertex and own:
                return [s, *self.ancestors(s)]
        return []

    def remove(self, gone: set[int]) -> None:
        self.edges = [edge for edge in self.edges if edge[0] not in gone and edge[1] not in gone]


def agree(graph: ResourceGraph, model: Model) -> None:
    tree = graph.tree()
    order = model.preorder(model.root)
    assert tree.order.tolist() == order
    after = model.postorder(model.root)
    for vertex in range(graph.rows):
        inside = vertex in order
        assert (vertex in tree) == inside
        assert bool(graph.alive[vertex]) == inside
        if not inside:
            assert tree.pre[vertex] == tree.post[vertex] == tree.end[vertex] == tree.depth[vertex] == -1
            continue
        below = model.preorder(vertex)
        assert tree.pre[vertex] == order.index(vertex)
        assert tree.end[vertex] == order.index(vertex) + len(below)
        assert tree.post[vertex] == after.index(vertex)
        assert tree.depth[vertex] == len(model.ancestors(vertex))
        assert list(tree.ancestors(vertex)) == model.ancestors(vertex)
        assert tree.subtree(vertex).tolist() == below
        assert tree.children(vertex) == model.children(vertex, links=True)
    assert tree.is_tree == all(own for *_, own in model.edges)


def vertices(batch: Batch, first: int, count: int) -> None:
    for number in range(first, first + count):
        batch.vertex("box", id=number, uniq_id=number)


@given(data=st.data(), count=st.integers(2, 20))
def test_shape_follows_the_edges_through_growth_and_removal(data: st.DataObject, count: int) -> None:
    numbers = data.draw(st.permutations(range(count)))  # the root need not be row 0, nor parents come first
    batch = Batch()
    vertices(batch, 0, count)
    model = Model(numbers[0])
    tree_edges = [(numbers[data.draw(st.integers(0, i - 1))], numbers[i]) for i in range(1, count)]
    tree_edges = data.draw(st.permutations(tree_edges))
    place = {vertex: i for i, vertex in enumerate(numbers)}
    extra: Edges = []
    if data.draw(st.booleans()):  # edges from earlier to later vertices close no cycle
        pairs = data.draw(
            st.lists(st.tuples(st.integers(0, count - 1), st.integers(1, count - 1)), max_size=4)
        )
        extra = [(numbers[a], numbers[b]) for a, b in pairs if a < b]
        extra = [edge for edge in dict.fromkeys(extra) if edge not in tree_edges]
    for own, edges in ((True, tree_edges), (False, extra)):
        for source, target in edges:
            batch.edge(source, target)
            model.edges.append((source, target, own))
    assert all(place[s] < place[t] for s, t in tree_edges)
    graph = ResourceGraph()
    graph.extend(batch)
    agree(graph, model)

    for _ in range(data.draw(st.integers(0, 4))):
        living = graph.tree().order.tolist()
        if data.draw(st.booleans()):
            more = Batch()
            base, added = graph.rows, data.draw(st.integers(1, 4))
            vertices(more, base, added)
            for i in range(added):
                above = data.draw(st.sampled_from([*living, *range(base, base + i)]))
                more.edge(~above if above < base else above - base, i)
                model.edges.append((above, base + i, True))
            assert graph.extend(more).tolist() == list(range(base, base + added))
        elif len(living) > 1:
            top = data.draw(st.sampled_from([v for v in living if v != model.root]))
            gone = graph.tree().subtree(top)
            model.remove(set(gone.tolist()))
            graph.remove(gone)
        agree(graph, model)


@given(data=st.data(), count=st.integers(2, 12))
def test_a_cycle_or_a_second_tree_is_refused_and_changes_nothing(data: st.DataObject, count: int) -> None:
    batch = Batch()
    vertices(batch, 0, count)
    for i in range(1, count):
        batch.edge(data.draw(st.integers(0, i - 1)), i)
    graph = ResourceGraph()
    graph.extend(batch)
    before = graph.tree().order.tolist()
    wrong = Batch()
    vertices(wrong, count, 3)
    match data.draw(st.sampled_from(["loop", "ring", "over the root", "self"])):
        case "loop":
            wrong.edge(0, 1)
            wrong.edge(1, 0)
        case "ring":
            for one, other in ((0, 1), (1, 2), (2, 0)):
                wrong.edge(one, other)
        case "over the root":
            wrong.edge(0, ~0)
        case _:
            wrong.edge(~0, 0)
            wrong.edge(1, 1)
    with pytest.raises(InvalidGraph):
        graph.extend(wrong)
    assert graph.rows == count
    assert graph.tree().order.tolist() == before


def test_two_hundred_levels_are_fine_and_more_are_refused() -> None:
    for depth in (201, 202):  # the root is level 0
        batch = Batch()
        vertices(batch, 0, depth)
        for i in range(1, depth):
            batch.edge(i - 1, i)
        graph = ResourceGraph()
        if depth > 201:
            with pytest.raises(InvalidGraph, match="more than 200 levels"):
                graph.extend(batch)
            assert graph.rows == 0
            continue
        graph.extend(batch)
        tree = graph.tree()
        assert tree.depth.tolist() == list(range(depth))
        assert tree.post.tolist() == list(range(depth - 1, -1, -1))
        assert np.array_equal(tree.subtree(depth - 2), [depth - 2, depth - 1])
