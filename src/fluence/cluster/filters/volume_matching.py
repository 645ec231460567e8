"""Volumes that are there, each for one claim: an exact matching (VolumeBinding's static volumes).

A claim is given another volume within reach of its node if somebody else can then have the first: so claims
find volumes whenever there is a way. `volumes` keeps a matching of what is decided, `volume_rules` one for
each attempt to place a gang.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from cachetools import LRUCache

from fluence.cluster.claims import Choice
from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.node_affinity import selected
from fluence.graph.graph import Ints, Mask
from fluence.model.pod import NodeSelector

_KEPT_MASKS = 4096  # volumes
_KEPT_TABLES = 64  # distinct lists of volumes


class VolumeReach:
    """The nodes from which volumes can be reached."""

    def __init__(self, columns: NodeColumns) -> None:
        self.columns = columns
        self._masks: LRUCache[str, tuple[NodeSelector, Mask]] = LRUCache(_KEPT_MASKS)
        # By the identity of a list: claims that are alike share theirs. An entry holds its list, so no other
        # list has that identity while the entry is there.
        self._tables: LRUCache[int, tuple[Sequence[Choice], Mask, Ints]] = LRUCache(_KEPT_TABLES)
        self._generation = -1

    def table(self, choices: Sequence[Choice]) -> tuple[Mask, Ints]:
        """The nodes that reach each of some volumes, a row each; and how many of them each node reaches."""
        if self._generation != self.columns.generation:
            self._generation = self.columns.generation
            self._masks.clear()
            self._tables.clear()
        known = self._tables.get(id(choices))
        if known is None:
            table = np.array([self._mask(each) for each in choices], np.bool_)
            known = self._tables[id(choices)] = (choices, table, table.sum(axis=0))
        return known[1:]

    def _mask(self, choice: Choice) -> Mask:
        if choice.nodes is None:
            return np.ones(len(self.columns), np.bool_)
        known = self._masks.get(choice.volume)
        if known is None or known[0] is not choice.nodes:
            known = self._masks[choice.volume] = (choice.nodes, selected(self.columns, choice.nodes))
        return known[1]


class VolumeMatching:
    """Volumes that are there, each for one claim, whose pods are on one node or on several."""

    def __init__(self, reach: VolumeReach) -> None:
        self._reach = reach
        self._holders: dict[str, Hashable] = {}  # volume -> the claim that has it
        # Per claim: the choices within reach of its nodes; its nodes.
        self._claims: dict[Hashable, tuple[list[Choice], tuple[int, ...]]] = {}

    @property
    def volumes(self) -> dict[Hashable, str]:
        """Which volume each claim has."""
        return {claim: volume for volume, claim in self._holders.items()}

    def assign(self, claim: Hashable, choices: Sequence[Choice], *nodes: int) -> bool:
        """Give a claim one of these within reach of its nodes, old and new, if that can be."""
        everywhere = (*self._claims[claim][1], *nodes) if claim in self._claims else nodes
        self.remove(claim)
        self._claims[claim] = (self._within_reach(choices, everywhere), everywhere)
        path = self._augmenting_path(claim, set())
        for volume, holder in path or ():
            self._holders[volume] = holder
        return path is not None

    def remove(self, claim: Hashable) -> None:
        if self._claims.pop(claim, None) is not None:
            self._holders = {volume: holder for volume, holder in self._holders.items() if holder != claim}

    def open_nodes(self, choices: Sequence[Choice], claim: Hashable = None) -> Mask:
        """The nodes on which one more claim could have one of these; or one that has some, as well."""
        if claim in self._claims:
            choices = self._claims[claim][0]
        if not choices:
            return np.zeros(len(self._reach.columns), np.bool_)
        taken = []
        for row, choice in enumerate(choices):
            holder = self._holders.get(choice.volume)
            if holder not in (None, claim) and self._augmenting_path(holder, {choice.volume}) is None:
                taken.append(row)
        table, counts = self._reach.table(choices)
        return np.asarray(counts > table[taken].sum(axis=0))

    def _within_reach(self, choices: Sequence[Choice], nodes: tuple[int, ...]) -> list[Choice]:
        """Those that can be reached from all of some nodes."""
        if not choices:
            return []
        table, _ = self._reach.table(choices)
        rows = np.flatnonzero(table[:, list(nodes)].all(axis=1)).tolist()
        return [choices[row] for row in rows]

    def _augmenting_path(self, claim: Hashable, seen: set[str]) -> list[tuple[str, Hashable]] | None:
        """Which claims take which volumes so that this one has one."""
        for choice in self._claims[claim][0]:
            if choice.volume in seen:
                continue
            seen.add(choice.volume)
            holder = self._holders.get(choice.volume)
            further = [] if holder is None else self._augmenting_path(holder, seen)
            if further is not None:
                return [*further, (choice.volume, claim)]
        return None
