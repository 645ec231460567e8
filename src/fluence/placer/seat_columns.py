"""What seats and devices come to in the ledger: vertices, amounts, and which of them are the job's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fluence.match.matcher import Matcher
from fluence.model.device import DeviceGrant
from fluence.placer.backends import BackendTable
from fluence.placer.gang import Columns, Seat
from fluence.placer.node_table import NodeTable
from fluence.placer.profile import FreeView
from fluence.units import MOST


class SeatColumns:
    """Columns for the ledger of one matcher."""

    def __init__(self, matcher: Matcher, table: NodeTable, backends: BackendTable) -> None:
        self._matcher = matcher
        self._table = table
        self._backends = backends

    def of(
        self,
        seats: Iterable[Seat],
        grants: Sequence[DeviceGrant],
        *,
        whole: bool,
        uses_node: bool,
        view: FreeView,
    ) -> Columns:
        """The vertices, amounts and exclusiveness that seats come to; nodes that are gone do not count."""
        graph = self._matcher.graph
        taken: dict[int, int] = {}
        used: dict[int, None] = {}
        for seat in seats:
            node = self._table.position.get(seat.node)
            if node is None:
                continue
            used[node] = None
            for type_, amount in seat.needs.items():
                pool = self._table.pools.get(type_)
                if pool is not None and amount:
                    row = int(pool[node])
                    taken[row] = taken.get(row, 0) + amount
            for row in seat.devices:
                taken[row] = taken.get(row, 0) + 1
        taken.pop(graph.rows, None)  # of what a node does not have, nothing can be held
        if whole and used:
            for row, amount in self._table.rest(list(used), view):
                taken[row] = max(amount, taken.get(row, 0))
        way: dict[int, bool] = {}  # node and all above it; is it the job's own?
        for node in used if uses_node else ():
            first, *above = self._table.way(node)
            way[first] = whole
            way.update(dict.fromkeys(above, False))
        devices, above_devices = self._backends.held(grants)
        taken.update(devices)
        for row in above_devices:
            way.setdefault(row, False)
        # Pods that run may say that they take anything: it is counted as far as can be.
        amounts = np.array([min(amount, MOST) for amount in taken.values()], np.int64)
        return (
            np.array([*taken, *way], np.int32),
            np.concatenate((amounts, graph.size[[*way]])),
            np.array([*(True for _ in taken), *way.values()], np.bool_),
        )
