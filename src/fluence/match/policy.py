"""Match policies choose among the vertices that fit, by a score, or by the order in which a search visits
them.

A policy is data. To add one, give `MatchPolicy` a name and, if ids are not enough, a function from the graph
to a column of scores::

    register(MatchPolicy("coolest", best="low", scores=lambda graph: temperatures(graph)))

A site adds its own as a plug-in: `fluence.plugins`.

Children that no job has touched come first, from the newest to the oldest. Then come the others, those with
the most left first. The amount left is that of Fluxion's pruning filter when a job last touched the child:
how much of the last type of the filter was free below it. Cancelling a job does not move a child back to the
front: the search of Fluxion depends on its history, and so does this one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

import numpy as np

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.graph.columns import Ints, Mask, Rows, Tree, scalars
from fluence.graph.filters import Filters
from fluence.graph.graph import ResourceGraph

_NODE_STEP = 10_000  # room for the ids below one node, in the scores of a node-centric policy
_WORST_CLASS = 9_999


def by_id(graph: ResourceGraph) -> Ints:
    """The vertex's own ordinal."""
    return graph.id + 2


def by_performance(graph: ResourceGraph) -> Ints:
    """The property `perf_class`, 0 (best) to 9999; anything else counts as the worst."""
    scores = np.full(graph.rows, 1 + _WORST_CLASS, np.int64)
    for vertex, properties in graph.properties.items():
        scores[vertex] = 1 + _performance_class(properties.get("perf_class", ""))
    return scores


def _performance_class(text: str) -> int:
    digits = text.strip()
    end = 1 if digits[:1] in ("+", "-") else 0
    while end < len(digits) and digits[end].isdigit():
        end += 1
    try:
        found = int(digits[:end])  # std::stoi: a leading number is enough
    except ValueError:
        return _WORST_CLASS
    return found if 0 <= found <= _WORST_CLASS else _WORST_CLASS


@dataclass(frozen=True, slots=True)
class MatchPolicy:
    """How candidates are scored and ordered."""

    name: str
    best: Literal["low", "high"]
    scores: Callable[[ResourceGraph], Ints] = by_id
    node_centric: bool = False  # candidates below one node stay together when nodes compete
    node_exclusive: bool = False  # a node is given to one job, with everything in it
    stop_early: bool = False  # take the first vertices that suffice, in an order that depends on load
    slot_best: Literal["low", "high"] | None = None  # order inside a slot, if it differs
    runs: bool = False  # at the top, prefer the highest run of consecutive scores

    @property
    def ascending(self) -> bool:
        return self.best == "low"

    @property
    def slot_ascending(self) -> bool:
        return (self.slot_best or self.best) == "low"

    def column(self, graph: ResourceGraph) -> Ints:
        """The scores of all vertices as a column, after a check that they are integers."""
        scores = np.asarray(self.scores(graph))
        if scores.shape != (graph.rows,) or scores.dtype.kind not in "iub":
            raise InvalidInput(
                f"the match policy {self.name!r} must score with a column of {graph.rows} integers, one for "
                f"each row of the graph; its scores are {scores.dtype} with the shape {scores.shape}"
            )
        return scores.astype(np.int64, copy=False)

    def node_factor(self, graph: ResourceGraph) -> Ints:
        """What a node adds to the scores of all vertices below it."""
        return (graph.id + 2) * _NODE_STEP + np.abs(graph.uniq_id % _NODE_STEP - 1)


_policies: dict[str, MatchPolicy] = {}
BUILT_IN: frozenset[str] = frozenset()


def register(policy: MatchPolicy) -> MatchPolicy:
    """Register a policy under its name."""
    if policy.name in BUILT_IN:
        raise InvalidInput(f"{policy.name!r} is a built-in match policy: choose another name")
    _policies[policy.name] = policy
    return policy


for _best, _short in (("low", "lo"), ("high", "hi")):
    _plain = register(MatchPolicy(_best, best=_best))  # type: ignore[arg-type]
    _centric = register(replace(_plain, name=f"{_short}node", node_centric=True))
    register(replace(_centric, name=f"{_short}nodex", node_exclusive=True))
_first = register(MatchPolicy("first", best="high", node_centric=True, stop_early=True))
register(replace(_first, name="firstnodex", node_exclusive=True))
register(MatchPolicy("locality", best="high", runs=True))
register(MatchPolicy("variation", best="low", scores=by_performance, slot_best="high"))


BUILT_IN = frozenset(_policies)
_ALIASES = {"hi": "high", "lo": "low"}  # as in the README of the first Fluence


def names() -> list[str]:
    """The names of all policies, those of plug-ins included."""
    return sorted({*_policies, *plugin_loader.names(plugin_loader.MATCH_POLICIES)})


def find(spec: str) -> MatchPolicy:
    """The policy of a name, or of a string such as ``policy=low node_centric=true``."""
    known = _policies.get(_ALIASES.get(spec, spec))
    if known is not None:
        return known
    if plugin_loader.exists(plugin_loader.MATCH_POLICIES, spec):
        return _plugin(spec)
    if "=" not in spec:
        raise InvalidInput(f"{spec!r} is not a valid match policy: choose one of {', '.join(names())}")
    settings: dict[str, str] = {}
    for word in spec.split():
        key, _, value = word.partition("=")
        if key not in ("policy", "node_centric", "node_exclusive", "stop_on_1_matches"):
            raise InvalidInput(
                f"match policy {spec!r}: {key!r} is not a valid setting: choose one of policy, node_centric, "
                "node_exclusive, stop_on_1_matches"
            )
        allowed = ("low", "high") if key == "policy" else ("true", "false")
        if value not in allowed:
            raise InvalidInput(f"match policy {spec!r}: {key} must be {' or '.join(allowed)}")
        settings[key] = value
    if "policy" not in settings:
        raise InvalidInput(f"match policy {spec!r}: say policy=low or policy=high")
    return MatchPolicy(
        spec,
        best="low" if settings["policy"] == "low" else "high",
        node_centric=settings.get("node_centric") == "true",
        node_exclusive=settings.get("node_exclusive") == "true",
        stop_early=settings.get("stop_on_1_matches") == "true",
    )


def _plugin(name: str) -> MatchPolicy:
    plugin = plugin_loader.find(plugin_loader.MATCH_POLICIES, name, "match policy", sorted(_policies))
    if not isinstance(plugin, MatchPolicy):
        raise InvalidInput(f"the match policy {name!r} is not a fluence.plugins.MatchPolicy")
    return register(replace(plugin, name=name))  # under the name that was requested


_UNTOUCHED = 2**64 - 1
_CHILD = itemgetter(2)
_FEW = 256
_MANY = 256  # with more changes below one vertex, sorting again is cheaper than moving one by one


@dataclass(slots=True)
class _Share:
    """The use of one job below the vertices that it touches."""

    start: int
    end: int
    vertices: Rows
    amounts: Ints
    counted: bool  # is part of `VisitOrder.used`


class VisitOrder:
    """Weights of the children, and the use below each vertex that they follow from."""

    def __init__(self, graph: ResourceGraph, filters: Filters) -> None:
        self._graph = graph
        self._filters = filters
        self._weights: dict[int, int] = {}
        self._weighed: set[int] = set()  # the parents of children with a weight
        self._weighed_types: set[int] = set()
        self._plain: dict[int, list[int]] = {}  # nothing below was touched
        self._orders: dict[int, list[tuple[int, int, int]]] = {}  # (-weight, -uniq_id, child), ascending
        self._counted: Mask | None = None
        self._counts: dict[int, tuple[int | None, bool]] = {}  # the cache of `_last`
        self._shares: dict[int, _Share] = {}
        self._now = 0
        self._used: Ints = np.zeros(graph.rows, np.int64)
        self._spans: Ints = np.zeros(graph.rows, np.int64)
        self._totals: dict[int, Sequence[int]] = {}

    def children(self, tree: Tree, vertex: int) -> Iterable[int]:
        """The children of a vertex, in the order in which to visit them."""
        weighed = self._orders.get(vertex)
        if weighed is not None:
            return map(_CHILD, weighed)
        plain = self._plain.get(vertex)
        if plain is None:
            if self.is_weighed(vertex):
                self._weigh(tree, vertex, [])
                return map(_CHILD, self._orders[vertex])
            uniq = scalars(self._graph.uniq_id)
            plain = sorted(tree.children(vertex), key=uniq.__getitem__, reverse=True)
            self._plain[vertex] = plain
        return plain

    def is_weighed(self, vertex: int) -> bool:
        """Whether a job has ever touched a child of the vertex that has children of its own."""
        return vertex in self._weighed

    def has_weighed(self, type_: int) -> bool:
        """Whether a vertex of a type has ever had a weight."""
        return type_ in self._weighed_types

    def touch(
        self,
        tree: Tree,
        job: int,
        vertices: Rows,
        needs: Ints,
        exclusive: Mask,
        *,
        start: int,
        end: int,
        now: int,
        holds: bool = True,
        left: int | None = None,
    ) -> None:
        """A job was placed: set the weights of the vertices that it touched. ``holds`` is False for a trial.
        ``left`` replaces the counted amount that is left below each vertex."""
        self._advance(now)
        rows, amounts = self._below(tree, vertices, needs, exclusive)
        if holds:
            share = self._shares[job] = _Share(start, end, rows, amounts, start <= now < end)
            self._spans[rows] += 1
            if share.counted:
                self._used[rows] += amounts
        changes: dict[int, list[tuple[int, int]]] = {}
        inner = vertices[tree.child_start[vertices + 1] > tree.child_start[vertices]]
        parents, pre, past = scalars(tree.parent), scalars(tree.pre), scalars(tree.end)
        used, spans, types = scalars(self._used), scalars(self._spans), scalars(self._graph.type)
        for vertex in inner.tolist():
            last, _ = self._last(types[vertex])
            parent = parents[vertex]
            if last is None or parent < 0:
                continue
            weight = left
            if weight is None:
                sums = self._sums(tree, last)
                weight = max(sums[past[vertex]] - sums[pre[vertex] + 1] - used[vertex], 0)
                if not (weight or spans[vertex]):
                    continue
            self._weighed_types.add(types[vertex])
            changes.setdefault(parent, []).append((vertex, weight))
        for parent, children in changes.items():
            self._weigh(tree, parent, children)

    def forget(self, job: int) -> None:
        """A job is gone."""
        share = self._shares.pop(job, None)
        if share is not None:
            self._spans[share.vertices] -= 1
            if share.counted:
                self._used[share.vertices] -= share.amounts

    def recount(self, tree: Tree, job: int, vertices: Rows, needs: Ints, exclusive: Mask) -> None:
        """A job freed a part of its resources."""
        old = self._shares.get(job)
        if old is None:
            return
        self.forget(job)
        rows, amounts = self._below(tree, vertices, needs, exclusive)
        self._shares[job] = _Share(old.start, old.end, rows, amounts, old.counted)
        self._spans[rows] += 1
        if old.counted:
            self._used[rows] += amounts

    def reshaped(self) -> None:
        """Vertices were added or removed."""
        more = self._graph.rows - len(self._used)
        self._used = np.concatenate((self._used, np.zeros(more, np.int64)))
        self._spans = np.concatenate((self._spans, np.zeros(more, np.int64)))
        alive = self._graph.alive
        self._weights = {vertex: weight for vertex, weight in self._weights.items() if alive[vertex]}
        self._weighed = {vertex for vertex in self._weighed if alive[vertex]}
        self._plain = {}
        self._orders = {}
        self._totals = {}
        self._counted = None
        self._counts = {}

    # -- inside ----------------------------------------------------------------------------------------------

    def _below(
        self,
        tree: Tree,
        vertices: Rows,
        needs: Ints,
        exclusive: Mask,
    ) -> tuple[Rows, Ints]:
        """The touched vertices whose filter counts the job, and how much the job takes of the last type that
        the filter counts."""
        if len(vertices) <= _FEW:
            return self._below_few(tree, vertices, needs, exclusive)
        graph, filters = self._graph, self._filters
        pre = tree.pre[vertices]
        by = np.argsort(pre)
        pre, rows = pre[by], vertices[by]
        size = graph.size[rows]
        taken = np.where(exclusive[by], size, size - needs[by])
        types = graph.type[rows]
        if self._counted is None or len(self._counted) != len(graph.types):
            self._counted = np.array([filters.counts(code) for code in range(len(graph.types))], np.bool_)
        counted = self._counted[types]
        touches = np.concatenate(([0], np.cumsum(counted)))
        low = np.arange(len(rows)) + 1
        high = np.searchsorted(pre, tree.end[rows])
        amounts = np.zeros(len(rows), np.int64)
        keep = touches[high] > touches[low]
        for type_ in np.unique(types[keep]).tolist():
            last = filters.last(type_)
            mine = keep & (types == type_)
            if last is None:
                keep &= types != type_
                continue
            sums = np.concatenate(([0], np.cumsum(np.where(types == last, taken, 0))))
            amounts[mine] = sums[high[mine]] - sums[low[mine]]
        return rows[keep], amounts[keep]

    def _below_few(self, tree: Tree, vertices: Rows, needs: Ints, exclusive: Mask) -> tuple[Rows, Ints]:
        """The same for a small job, whose vertices are in post-order: a plain loop is faster."""
        graph = self._graph
        parents = scalars(tree.parent)
        rows: list[int] = []
        amounts: list[int] = []
        below: dict[int, dict[int, int]] = {}
        columns = (vertices, graph.type[vertices], graph.size[vertices], needs, exclusive)
        for vertex, type_, size, need, alone in zip(*[c.tolist() for c in columns], strict=True):
            last, counted = self._last(type_)
            parent = parents[vertex]
            above = below.get(parent)
            if above is None:
                above = below[parent] = {}
            if counted:
                above[type_] = above.get(type_, 0) + (size if alone else size - need)
            own = below.get(vertex)
            if own:
                if last is not None:
                    rows.append(vertex)
                    amounts.append(own.get(last, 0))
                for code, amount in own.items():
                    above[code] = above.get(code, 0) + amount
        return np.array(rows, np.int32), np.array(amounts, np.int64)

    def _last(self, type_: int) -> tuple[int | None, bool]:
        """The last type that a vertex of this type counts, and whether any vertex counts this type."""
        found = self._counts.get(type_)
        if found is None:
            filters = self._filters
            found = self._counts[type_] = (filters.last(type_), filters.counts(type_))
        return found

    def _sums(self, tree: Tree, type_: int) -> Sequence[int]:
        """Prefix sums of a type in preorder: a difference is the amount in between."""
        sums = self._totals.get(type_)
        if sums is None:
            graph = self._graph
            own = np.where(graph.type[tree.order] == type_, graph.size[tree.order], 0)
            sums = self._totals[type_] = scalars(np.concatenate(([0], np.cumsum(own))))
        return sums

    def _weigh(self, tree: Tree, parent: int, changes: list[tuple[int, int]]) -> None:
        self._weighed.add(parent)
        weights, uniq = self._weights, scalars(self._graph.uniq_id)
        entries = self._orders.get(parent)
        if entries is None or len(changes) > _MANY:
            weights.update(changes)
            self._orders[parent] = sorted(
                (-weights.get(child, _UNTOUCHED), -uniq[child], child) for child in tree.children(parent)
            )
            return
        for child, weight in changes:
            old = weights.get(child, _UNTOUCHED)
            weights[child] = weight
            if old != weight:
                key = -uniq[child]
                del entries[bisect_left(entries, (-old, key, child))]
                insort(entries, (-weight, key, child))

    def _advance(self, now: int) -> None:
        """Update the use to a new time, with the jobs that have started or ended since."""
        if now == self._now:
            return
        self._now = now
        for share in self._shares.values():
            counted = share.start <= now < share.end
            if counted != share.counted:
                self._used[share.vertices] += share.amounts if counted else -share.amounts
                share.counted = counted
