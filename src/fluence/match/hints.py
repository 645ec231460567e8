"""What to change in a request that does not fit: the hints of an explanation.

A level that is missing, a slot in the wrong place, a request that contradicts itself: `explain` asks for a
hint at each level.
"""

from __future__ import annotations

import numpy as np

from fluence.graph.columns import NO_ROWS, Rows
from fluence.match.level_evaluation import LevelNeed
from fluence.match.request import Need
from fluence.match.suppositions import Suppositions


class Hints:
    """The hints on one request."""

    def __init__(self, supposed: Suppositions) -> None:
        self.graph, self.tree, self.shape = supposed.graph, supposed.tree, supposed.shape

    def hint(self, level: LevelNeed, astray: Rows) -> str | None:
        """What to change in the request."""
        need, above, over = level.need, level.above, _resource_above(level)
        if (wrong := self._contradiction(level)) is not None:
            return wrong
        if need.is_slot and need.below and not len(level.vertices) and not len(astray):
            homes = "; ".join(self._home(own) for own in need.below)
            return f"nothing has all of a slot directly below it: {homes}"
        if not len(astray) or (above is not None and above.need.is_slot and not len(above.vertices)):
            return None  # nothing to say, or the slot has said it
        gap = self._gap(level, int(astray[0]))
        if not gap:
            return None
        if over is None:
            return f"{need.name} is below {gap[0]}, which is asked for beside it: ask for it inside"
        levels = " > ".join(gap)
        if need.is_slot:
            return (
                f"a slot fits below {levels}: name what is between {over.need.name} and slot, or start there"
            )
        cure = f"name the level{'s'[: len(gap) > 1]} {levels}, or put the slot on top"
        return f"{need.name} is below {levels}, not directly below {over.need.name}: {cure}"

    def _contradiction(self, level: LevelNeed) -> str | None:
        """In what the request contradicts itself at a level."""
        need = level.need
        peers = self.shape.tops if level.above is None else level.above.below
        if level.alone and need.exclusive is False and not need.is_slot:
            return "exclusive: false contradicts what it is inside of: leave it out, or move it outside"
        if sum(peer.need.type == need.type for peer in peers) > 1:
            return f"one level asks for {need.name} twice: make it one, or nest them"
        if len(peers) > 1 and any(peer.need.is_slot for peer in peers):
            return (
                "a slot must be alone at its level: put the others into it, or give each a level of its own"
            )
        return None

    def _home(self, need: Need) -> str:
        parents = self.tree.parent[self.graph.vertices_of_type(need.type)]
        codes = np.unique(self.graph.type[parents[parents >= 0]]).tolist()
        homes = " or ".join(self.graph.types.words[code] for code in codes)
        return f"{need.name} is below {homes}" if homes else f"there is no {need.name}"

    def _gap(self, level: LevelNeed, vertex: int) -> list[str]:
        """The types of vertices between a vertex that is out of reach and the level above it."""
        over = _resource_above(level)
        stops = np.zeros(self.graph.rows, np.bool_)
        for own in self.shape.tops if over is None else (over,):
            stops[own.vertices] = True
        if over is None:
            found = next((above for above in self.tree.ancestors(vertex) if stops[above]), None)
            return [] if found is None else [self.graph.type_name(found)]
        names = [self.graph.type_name(vertex)] if level.need.is_slot else []
        for above in self.tree.ancestors(vertex):
            if stops[above]:
                break
            names.append(self.graph.type_name(above))
        return list(dict.fromkeys(reversed(names)))

    def astray(self, level: LevelNeed) -> Rows:
        """Vertices of the right type below the level above, but not where the walk looks for them."""
        graph, tree = self.graph, self.tree
        if level.need.is_slot:
            if not level.need.below:
                return NO_ROWS
            rows = np.flatnonzero(self.shape.holds(level.need)).astype(np.int32)
        else:
            rows = graph.vertices_of_type(level.need.type)
        astray = np.zeros(graph.rows, np.bool_)
        astray[rows[tree.pre[rows] >= 0]] = True
        astray[level.vertices] = False
        above = _resource_above(level)
        if above is not None and astray.any():
            edges = np.zeros(len(tree.order) + 1, np.int64)
            np.add.at(edges, tree.pre[above.vertices] + 1, 1)
            np.add.at(edges, tree.end[above.vertices], -1)
            astray[tree.order[np.cumsum(edges[:-1]) == 0]] = False
        return np.flatnonzero(astray).astype(np.int32)


def _resource_above(level: LevelNeed) -> LevelNeed | None:
    """The level for vertices, not for a slot, that a level is inside of."""
    above = level.above
    while above is not None and above.need.is_slot:
        above = above.above
    return above
