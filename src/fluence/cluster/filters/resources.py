"""Which resources a node lacks for a pod (NodeResourcesFit), told apart: busy now, or too small for ever.

The fit itself, for many pods at once, is `fluence.placer.node_table`; `diagnosis` asks here when a gang finds
no seats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fluence.cluster.layout import GraphLayout
from fluence.graph.graph import Mask
from fluence.model.reason import Code, Reason, Value
from fluence.placer.gang_fit import GangFit
from fluence.placer.profile import FreeView
from fluence.units import MOST


def open_nodes(
    needs: Mapping[str, int], seats: GangFit, view: FreeView, layout: GraphLayout
) -> Iterator[tuple[Reason, Mask]]:
    """For each set of resources that some node lacks, the nodes that it leaves open."""
    lacking: list[tuple[Mask, Mask, Reason, Reason]] = []  # short now, too small; and the reasons
    for type_, amount in needs.items():
        asked = min(amount, MOST + 1)  # no node has more than MOST
        short = seats.free(type_, view) < asked
        if short.any():
            size = seats.size(type_)
            largest = int(size.max(initial=0)) if amount > MOST else None
            params: dict[str, Value] = {
                "resource": layout.resource(type_),
                "wanted": amount,
                "largest": largest,
            }
            lacking.append(
                (
                    short,
                    size < asked,
                    Reason.of(Code.RESOURCE_INSUFFICIENT, **params),
                    Reason.of(Code.RESOURCE_TOO_SMALL, **params),
                )
            )
    if not lacking:
        return
    # Of each node, what it is short of, as a number: per resource enough, busy, or too small.
    states = np.zeros(len(seats.nodes), np.int64)
    for short, small, *_ in lacking:
        states = 3 * states + np.where(short, np.where(small, 2, 1), 0)
    found, first = np.unique(states, return_index=True)
    for state in found[np.argsort(first)].tolist():
        if state:
            yield Reason.of(Code.RESOURCES_LACKING, resources=_told(state, lacking)), states != state


def _told(state: int, lacking: list[tuple[Mask, Mask, Reason, Reason]]) -> tuple[Reason, ...]:
    """What a node in this state is short of."""
    told: list[Reason] = []
    for _, _, insufficient, too_small in reversed(lacking):
        state, digit = divmod(state, 3)
        if digit:
            told.append(too_small if digit == 2 else insufficient)
    return tuple(reversed(told))
