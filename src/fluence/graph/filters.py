"""Pruning filters: the types that are counted below each type of vertex, as in Fluxion's option `-p`.

The index counts every type, so a filter never changes whether a request fits. It has two visible effects: the
order of a `first` search follows the *last* type of a vertex's filter, and a request is checked against the
number of nodes that are up only if nodes are counted. `find` shows the counts of a filter.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fluence.errors import InvalidInput
from fluence.graph.columns import Tree
from fluence.graph.graph import ResourceGraph

DEFAULT = "ALL:core,ALL:node"
_ALL = "ALL"


@dataclass(slots=True)
class Filters:
    """The counted types, per type of the vertex that counts."""

    everywhere: set[int] = field(default_factory=set)
    below: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, spec: str, graph: ResourceGraph) -> Filters:
        """Read ``HIGH:LOW[,HIGH:LOW…]``, where HIGH may be ALL."""
        filters = cls()
        for pair in spec.split(",") if spec.strip() else ():
            high, colon, low = ("".join(part.split()) for part in pair.partition(":"))
            if not (high and colon and low):
                raise InvalidInput(
                    f"pruning filter {pair!r}: write HIGH:LOW, such as ALL:core or rack:node", where="filters"
                )
            code = graph.types.code(low)
            if high == _ALL:
                for types in filters.below.values():
                    types.discard(code)
                filters.everywhere.add(code)
            elif code not in filters.everywhere:
                filters.below.setdefault(graph.types.code(high), set()).add(code)
        return filters

    def prime(self, graph: ResourceGraph, tree: Tree) -> None:
        """Count every leaf type of the tree at the cluster, as Fluxion does by default. A leaf has nothing
        below it in any subsystem: a pdu that feeds nodes is not a leaf, although it is one in the
        containment."""
        cluster = graph.types.code("cluster")
        childless = np.ones(graph.rows, np.bool_)
        for each in graph.trees.values():
            childless &= np.diff(each.shape().child_start) == 0
        leaves = tree.order[childless[tree.order]]
        for code in np.flatnonzero(np.bincount(graph.type[leaves])).tolist():
            if not self.counts(code):
                self.below.setdefault(cluster, set()).add(code)

    def counts(self, code: int) -> bool:
        """Whether a type is counted anywhere."""
        return code in self.everywhere or any(code in types for types in self.below.values())

    def types(self, type_: int) -> list[int]:
        """The types that a vertex of this type counts below itself, in the order of Fluxion; never its own
        type."""
        own = sorted(self.below.get(type_, ()))
        return [code for code in (*own, *sorted(self.everywhere)) if code != type_]

    def last(self, type_: int) -> int | None:
        """The last type that a vertex of this type counts, None if it counts none."""
        types = self.types(type_)
        return types[-1] if types else None
