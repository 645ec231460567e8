"""Fluence: a Kubernetes scheduler that plans like an HPC scheduler.

    graph = fluence.ResourceGraph.load("cluster.json")
    matcher = fluence.Matcher(graph, "lonode")
    outcome = matcher.match("allocate", fluence.Jobspec.parse(text), job=1)

These names are the public API; everything else may change. Each is loaded on first use, so that a program
that needs only some of them, such as a kubectl plugin, does not load numpy.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to load than everything here
if TYPE_CHECKING:
    from fluence.errors import (
        Conflict,
        FluenceError,
        InvalidGraph,
        InvalidInput,
        InvalidJobspec,
        NotFound,
    )
    from fluence.graph.graph import ResourceGraph
    from fluence.graph.selection import Selection
    from fluence.match.describe import Share, render, shares
    from fluence.match.explain import Explanation, explain
    from fluence.match.find import find
    from fluence.match.matcher import Matcher
    from fluence.match.policy import MatchPolicy
    from fluence.match.policy import register as register_policy
    from fluence.match.request import Extensions, Never, Operation, Outcome, Placed, Wait
    from fluence.model.jobspec import Jobspec
    from fluence.sim.runs import simulate

    __version__: str

__all__ = [
    "Conflict",
    "Explanation",
    "Extensions",
    "FluenceError",
    "InvalidGraph",
    "InvalidInput",
    "InvalidJobspec",
    "Jobspec",
    "MatchPolicy",
    "Matcher",
    "Never",
    "NotFound",
    "Operation",
    "Outcome",
    "Placed",
    "ResourceGraph",
    "Selection",
    "Share",
    "Wait",
    "__version__",
    "explain",
    "find",
    "register_policy",
    "render",
    "shares",
    "simulate",
]

_HOME = {
    "Conflict": "fluence.errors",
    "Explanation": "fluence.match.explain",
    "Extensions": "fluence.match.request",
    "FluenceError": "fluence.errors",
    "InvalidGraph": "fluence.errors",
    "InvalidInput": "fluence.errors",
    "InvalidJobspec": "fluence.errors",
    "Jobspec": "fluence.model.jobspec",
    "MatchPolicy": "fluence.match.policy",
    "Matcher": "fluence.match.matcher",
    "Never": "fluence.match.request",
    "NotFound": "fluence.errors",
    "Operation": "fluence.match.request",
    "Outcome": "fluence.match.request",
    "Placed": "fluence.match.request",
    "ResourceGraph": "fluence.graph.graph",
    "Selection": "fluence.graph.selection",
    "Share": "fluence.match.describe",
    "Wait": "fluence.match.request",
    "explain": "fluence.match.explain",
    "find": "fluence.match.find",
    "register_policy": "fluence.match.policy:register",
    "render": "fluence.match.describe",
    "shares": "fluence.match.describe",
    "simulate": "fluence.sim.runs",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("fluence-scheduler")
    elif name in _HOME:
        from importlib import import_module

        module, _, inside = _HOME[name].partition(":")
        value = getattr(import_module(module), inside or name)
    else:
        raise AttributeError(f"module 'fluence' has no attribute {name!r}")
    globals()[name] = value  # the next access skips this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
