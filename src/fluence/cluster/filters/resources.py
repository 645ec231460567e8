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
from fluence.placer.availability import FreeView
from fluence.placer.gang_fit import GangFit
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
    groups: dict[tuple[Reason, ...], list[int]] = {}
    for index in np.flatnonzero(np.any([short for short, *_ in lacking], axis=0)).tolist():
        resources = tuple(
            too_small if small[index] else insufficient
            for short, small, insufficient, too_small in lacking
            if short[index]
        )
        groups.setdefault(resources, []).append(index)
    for resources, nodes in groups.items():
        mask = np.ones(len(seats.nodes), np.bool_)
        mask[nodes] = False
        yield Reason.of(Code.RESOURCES_LACKING, resources=resources), mask
