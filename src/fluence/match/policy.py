"""Match policies choose among the vertices that fit, by the lowest or the highest score.

A policy is data. To add one, give `MatchPolicy` a name and, if ids are not enough, a function from the graph
to a column of scores::

    register(MatchPolicy("coolest", best="low", scores=lambda graph: temperatures(graph)))

A site adds its own as a plug-in: `fluence.plugins`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.graph.columns import Ints
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
