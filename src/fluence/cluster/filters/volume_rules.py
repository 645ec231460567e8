"""The rules of a gang about volumes, while it is placed: claims that share a node, and volumes that are left.

Pods that share a ReadWriteOnce claim are placed on one node, together with the pods that already use it.
`requests` makes `VolumeRules` for a gang whose claims depend on other pods; they wrap its rules about other
pods. The placer begins an attempt and reports each pod that it places (`fluence.placer.gang.GangRules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.claims import Claim
from fluence.cluster.filters.csi_limits import AttachRoom
from fluence.cluster.filters.gang_rules import InterPodAttempt, InterPodFilters
from fluence.cluster.filters.node_affinity import selected
from fluence.cluster.filters.volumes import ClaimIndex
from fluence.graph.graph import Ints, Mask
from fluence.model.reason import Code, Reason
from fluence.model.volume import Key

_TOO_FEW = Reason.of(Code.TOO_FEW_VOLUMES)


@dataclass(frozen=True, slots=True, eq=False)
class ClaimNeeds:
    """The requirements of the claims of one kind of pod."""

    one_node: tuple[Key, ...]  # claims that keep pods on one node
    choices: tuple[tuple[Key | None, Claim], ...]  # that may need an existing volume; None: one per pod
    required_free: Mapping[str, int]  # what all pods that share the claims need of a node
    attach: tuple[tuple[Key | None, str], ...] = ()  # the limited drivers of their claims; None: one per pod


class VolumeRules:
    """The rules of one gang about volumes and about other pods."""

    def __init__(
        self, index: ClaimIndex, needs: Sequence[ClaimNeeds], others: InterPodFilters | None
    ) -> None:
        self.index = index
        self.needs = needs
        self.others = others

    def order(self, turns: list[int]) -> list[int]:
        return turns if self.others is None else self.others.order(turns)

    def begin(self, at: int) -> VolumeAttempt:
        return VolumeAttempt(self.index, self.needs, None if self.others is None else self.others.begin(at))

    def alone(self) -> InterPodFilters | None:
        return None if self.others is None else self.others.alone()


class VolumeAttempt:
    """One attempt to place the gang; see `fluence.placer.gang.Attempt`."""

    def __init__(
        self, index: ClaimIndex, needs: Sequence[ClaimNeeds], others: InterPodAttempt | None
    ) -> None:
        self._columns = index.columns
        self._needs = needs
        self._others = others
        self._matching = index.matching()
        self._placed = 0
        position = self._columns.position
        attach = {each for needed in needs for each in needed.attach}
        self._attach = AttachRoom(index.csi_limits, attach, position)
        self._nodes: dict[Key, set[int]] = {}  # of claims that keep pods on one node; -1: unknown
        for key in {key for needed in needs for key in needed.one_node}:
            for node in index.users.get(key, {}).values():
                self._nodes.setdefault(key, set()).add(position.get(node, -1))

    def one_at_a_time(self, members: int) -> bool:
        if self._others is not None and self._others.one_at_a_time(members):
            return True
        needs = self._needs[members]
        return bool(needs.choices or needs.attach) or self._is_first(needs)

    def required_free(self, members: int) -> Mapping[str, int] | None:
        needs = self._needs[members]
        return needs.required_free if self._is_first(needs) else None

    def open_nodes(self, members: int) -> Mask:
        mask = np.ones(len(self._columns), np.bool_)
        if self._others is not None:
            mask &= self._others.open_nodes(members)
        for _, each in self._own_reasons(members):
            mask &= each
        return mask

    def score(self, members: int) -> Ints | None:
        return None if self._others is None else self._others.score(members)

    def reasons(self, members: int) -> Iterator[tuple[Reason, Mask]]:
        """Each reason with the nodes that it leaves open."""
        if self._others is not None:
            yield from self._others.reasons(members)
        yield from self._own_reasons(members)

    def assign(self, members: int, node: int, count: int) -> None:
        if self._others is not None:
            self._others.assign(members, node, count)
        needs = self._needs[members]
        for key in needs.one_node:
            self._nodes.setdefault(key, set()).add(node)
        for shared, claim in needs.choices:
            if not self._provisions(claim)[node]:
                self._placed += 1
                self._matching.assign(self._placed if shared is None else shared, claim.choices, node)
        self._attach.assign(needs.attach, node)

    def _is_first(self, needs: ClaimNeeds) -> bool:
        """Whether the next pod decides the node of a shared claim."""
        return any(key not in self._nodes for key in needs.one_node)

    def _own_reasons(self, members: int) -> Iterator[tuple[Reason, Mask]]:
        needs = self._needs[members]
        for key in needs.one_node:
            nodes = self._nodes.get(key)
            if nodes is not None:
                mask = np.zeros(len(self._columns), np.bool_)
                mask[[node for node in nodes if node >= 0]] = True
                yield Reason.of(Code.CLAIM_ON_ANOTHER_NODE, claim=key[1]), mask
        for shared, claim in needs.choices:
            mask = self._provisions(claim) | self._matching.open_nodes(claim.choices, shared)
            yield Reason.of(Code.VOLUMES_TAKEN, storage_class=claim.class_name), mask
        yield from self._attach.open_nodes(needs.attach)
        if len(needs.choices) > 1:
            yield _TOO_FEW, self._all_at_once([claim for key, claim in needs.choices if key is None])

    def _provisions(self, claim: Claim) -> Mask:
        """The nodes on which a volume can be provisioned for a claim with choices."""
        if not claim.provisions:
            return np.zeros(len(self._columns), np.bool_)
        return selected(self._columns, claim.nodes)

    def _all_at_once(self, claims: Sequence[Claim]) -> Mask:
        """The nodes on which one pod can get a volume for each of its claims."""
        provisions = [self._provisions(claim) for claim in claims]
        mask = np.ones(len(self._columns), np.bool_)
        for claim, made in zip(claims, provisions, strict=True):
            mask &= made | self._matching.open_nodes(claim.choices)
        for node in np.flatnonzero(mask).tolist():
            asked = [claim for claim, made in zip(claims, provisions, strict=True) if not made[node]]
            done = [self._matching.assign(("try", i), claim.choices, node) for i, claim in enumerate(asked)]
            mask[node] = all(done)
            for i in range(len(asked)):
                self._matching.remove(("try", i))
        return mask
