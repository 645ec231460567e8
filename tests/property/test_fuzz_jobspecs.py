"""Whatever a jobspec says, the answer is an outcome or one line: mutated jobspecs, on random graphs."""

from __future__ import annotations

import copy
import json
import os
import random
from typing import Any

import pytest

from fluence.errors import FluenceError
from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import Matcher
from fluence.match.request import Operation
from fluence.model.jobspec import Jobspec
from tests.conformance.generate import random_graph, random_jobspec

_GRAPHS = 10 if os.environ.get("FLUENCE_HYPOTHESIS") == "quick" else 60
_JUNK: tuple[Any, ...] = (
    *(None, 0, -1, 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, 1e300, float("nan"), float("inf"), True, False),
    *("", "x", "slot", "core", "node", "xor_slot", "1-5", "1,2,4", "é" * 50, [], {}, [[]], [{}]),
    *({"min": 0}, {"min": 1}, {"min": 2**32 - 1}, {"a": {"b": {}}}),
    {"min": 1, "max": 2**32 - 1, "operator": "^", "operand": 2},
    {"min": 2, "max": 2**32 - 1, "operator": "*", "operand": 2**31},
)
_KEYS = ("with", "count", "type", "label", "exclusive", "unit", "zzz", "constraints", "min", "max")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every list and object inside a value, with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


def _mutate(dice: random.Random, value: Any) -> None:
    holder, key = dice.choice(_places(value))
    kind = dice.random()
    if kind < 0.6:
        holder[key] = copy.deepcopy(dice.choice(_JUNK))
    elif kind < 0.75:
        del holder[key]
    elif isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[dice.choice(_KEYS)] = copy.deepcopy(dice.choice((*_JUNK, holder[key])))


@pytest.mark.parametrize("seed", range(_GRAPHS))
def test_a_mutated_jobspec_gets_an_outcome_or_one_line(seed: int) -> None:
    dice = random.Random(seed)
    graph = random_graph(dice)
    flexible = dice.random() < 0.3
    matcher = Matcher(
        ResourceGraph.parse(json.dumps(graph.document)),
        dice.choice(("first", "low", "hinode", "locality", "lonodex", "variation")),
        flexible=flexible,
        bug_compatible=dice.random() < 0.5,
        filters=dice.choice(("ALL:core,ALL:node", "ALL:slot", "ALL:core")),
    )
    for job in range(1, 11):
        spec = random_jobspec(dice, graph, flexible=flexible)
        for _ in range(dice.randint(1, 3)):
            _mutate(dice, spec)
        try:
            matcher.match(dice.choice(list(Operation)), Jobspec.parse(json.dumps(spec), source="x"), job=job)
        except FluenceError as error:
            assert "\n" not in str(error)


def test_a_jobspec_without_resources_is_refused() -> None:
    graph = ResourceGraph.parse(json.dumps(random_graph(random.Random(1)).document))
    spec = {"version": 1, "resources": [], "tasks": [], "attributes": {"system": {"duration": 1}}}
    with pytest.raises(FluenceError, match="must name at least one resource"):
        Matcher(graph).match("allocate", Jobspec.from_value(spec), job=1)
