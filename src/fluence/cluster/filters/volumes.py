"""Claims and their volumes (VolumeBinding): the state of claims, their nodes, and the rules of a gang about
them.

A claim that waits for its first consumer follows its pod: to a node where its class can provision a volume,
or where an existing volume is free. `requests` uses it when it compiles a gang, and the scheduler when a gang
is placed and its claims must be decided before it is bound.

Existing volumes are matched exactly, one for each claim (VolumeBinding's static volumes). A claim can switch
to another volume within reach of its node if another claim needs the first one. So all claims get volumes if
that is possible at all. `volumes` keeps a matching of the decisions, `volumes` one for each attempt to
place a gang.

Pods that share a ReadWriteOnce claim are placed on one node, together with the pods that already use it.
`requests` makes `VolumeRules` for a gang whose claims depend on other pods; they wrap its rules about other
pods. The placer begins an attempt and reports each pod that it places (`fluence.placer.placer.GangRules`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from cachetools import LRUCache

from fluence.cluster.claims import Choice, Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.csi_limits import AttachRoom, CsiLimits
from fluence.cluster.filters.gang_rules import InterPodAttempt, InterPodFilters
from fluence.cluster.filters.node_affinity import selected
from fluence.cluster.filters.node_rules import VolumeNodes
from fluence.cluster.pods import PodEntry, PodTable
from fluence.cluster.unsupported import Refused
from fluence.graph.graph import Ints, Mask
from fluence.model.claims import Key
from fluence.model.pod import NodeSelector, Pod
from fluence.model.reason import Code, Reason

_KEPT_MASKS = 4096  # volumes
_KEPT_TABLES = 64  # distinct lists of volumes


class VolumeReach:
    """The nodes from which volumes can be reached."""

    def __init__(self, columns: NodeColumns) -> None:
        self.columns = columns
        self._masks: LRUCache[str, tuple[NodeSelector, Mask]] = LRUCache(_KEPT_MASKS)
        # By the identity of a list, which equal claims share. An entry keeps its list, so that its id is not
        # reused.
        self._tables: LRUCache[int, tuple[Sequence[Choice], Mask, Ints]] = LRUCache(_KEPT_TABLES)
        self._generation = -1

    def table(self, choices: Sequence[Choice]) -> tuple[Mask, Ints]:
        """The nodes that can reach each volume, one row per volume; and the number of volumes that each node
        can reach."""
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
    """A matching of existing volumes to claims, whose pods are on one node or on several."""

    def __init__(self, reach: VolumeReach) -> None:
        self._reach = reach
        self._holders: dict[str, Hashable] = {}  # volume -> the claim that has it
        # Per claim: the choices within reach of its nodes; its nodes.
        self._claims: dict[Hashable, tuple[list[Choice], tuple[int, ...]]] = {}

    @property
    def volumes(self) -> dict[Hashable, str]:
        """The volume of each claim."""
        return {claim: volume for volume, claim in self._holders.items()}

    def assign(self, claim: Hashable, choices: Sequence[Choice], *nodes: int) -> bool:
        """Give a claim one of these volumes within reach of its nodes, old and new, if possible."""
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
        """The nodes on which one more claim could get one of these volumes; or an existing claim, in addition
        to its nodes."""
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
        """The volumes that all these nodes can reach."""
        if not choices:
            return []
        table, _ = self._reach.table(choices)
        rows = np.flatnonzero(table[:, list(nodes)].all(axis=1)).tolist()
        return [choices[row] for row in rows]

    def _augmenting_path(self, claim: Hashable, seen: set[str]) -> list[tuple[str, Hashable]] | None:
        """The changes of volumes that give this claim a volume."""
        for choice in self._claims[claim][0]:
            if choice.volume in seen:
                continue
            seen.add(choice.volume)
            holder = self._holders.get(choice.volume)
            further = [] if holder is None else self._augmenting_path(holder, seen)
            if further is not None:
                return [*further, (choice.volume, claim)]
        return None


_UNBOUND = Reason.of(Code.CLAIM_UNBOUND)


@dataclass(frozen=True, slots=True)
class VolumeDecision:
    """The decision about a claim on a node: an existing volume, or a new one."""

    claim: Key
    uid: str
    node: str
    volume: str | None  # None: it is provisioned
    pods: tuple[str, ...]  # uids of the pods that wait for it


def mounts(pod: Pod) -> tuple[Key, ...]:
    """The claims that a pod mounts. Most pods have volumes, but no claims."""
    if not pod.spec.volumes:
        return ()
    return tuple(dict.fromkeys((pod.metadata.namespace, name) for name, _ in _claims_of(pod)))


def _claims_of(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of the claims that a pod mounts, and whether each is an ephemeral volume of this pod."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


class ClaimIndex:
    """The state of claims, and the pods that mount them."""

    def __init__(self, pods: PodTable, columns: NodeColumns) -> None:
        self.claims: dict[Key, Claim] = {}
        self.users: dict[Key, dict[str, str]] = {}  # claim -> uid -> node
        self.csi_limits = CsiLimits()
        self.held: dict[Key, str] = {}  # volumes that are reserved for a claim
        self.columns = columns
        self.reach = VolumeReach(columns)
        self._pods = pods
        self._waiting: set[Key] = set()  # claims that may need an existing volume
        pods.watchers.append(self._changed)

    def set_claim(self, key: Key, claim: Claim | None) -> bool:
        """Whether something changed."""
        if self.claims.get(key) == claim:
            return False
        self._waiting.discard(key)
        self.csi_limits.set_driver(key, claim.driver if claim is not None else "")
        if claim is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = claim
            if claim.state == "waits" and claim.choices:
                self._waiting.add(key)
        return True

    # -- what pods ask for -----------------------------------------------------------------------------------

    def nodes_for(self, pod: Pod) -> VolumeNodes | Refused:
        """The nodes of each volume of a pod, with the reason for other nodes; or what is missing."""
        found: list[tuple[Reason, NodeSelector]] = []
        for name, ephemeral in _claims_of(pod):
            claim = self.claims.get((pod.metadata.namespace, name))
            if claim is None:
                missing = Reason.of(Code.CLAIM_MISSING, claim=name, ephemeral=ephemeral)
                return Refused(pod.key, missing)
            if ephemeral and claim.owner != pod.metadata.uid:
                return Refused(pod.key, Reason.of(Code.CLAIM_OF_ANOTHER_POD, claim=name))
            if claim.state == "pending":
                pending = Reason.of(Code.CLAIM_PENDING, claim=name, lacks=claim.reason or _UNBOUND)
                return Refused(pod.key, pending)
            reach = claim.reach
            if reach is None:
                continue
            if claim.state == "bound":
                found.append((Reason.of(Code.VOLUME_OUT_OF_REACH, claim=name), reach))
            else:
                # NB without the name of the claim, so that pods whose claims differ only in their names are
                # equal.
                reason = Reason.of(Code.VOLUME_NOT_PROVIDED, storage_class=claim.class_name)
                found.append((reason, reach))
        return tuple(found)

    def needs_rules(self, pods: Iterable[Pod]) -> bool:
        """Whether a claim of these pods has rules about other pods."""
        seen: set[Key] = set()
        for pod in pods:
            for key in mounts(pod):
                claim = self.claims[key]
                if claim.may_need_choice or claim.driver in self.csi_limits.limited:
                    return True
                if claim.one_node and (key in seen or key in self.users):
                    return True
                seen.add(key)
        return False

    def used_by_another(self, pods: Iterable[Pod]) -> Refused | None:
        """A claim for one pod only that another pod uses, or needs too."""
        wanted: dict[Key, Pod] = {}
        for pod in pods:
            for key in mounts(pod):
                if not self.claims[key].one_pod:
                    continue
                users = [uid for uid in self.users.get(key, ()) if uid != pod.metadata.uid]
                if users:
                    other = self._pods.entries[users[0]].pod.key
                    reason = Reason.of(Code.CLAIM_IN_USE, claim=key[1], pod=other)
                    return Refused(pod.key, reason)
                if key in wanted and wanted[key] is not pod:
                    reason = Reason.of(Code.CLAIM_ASKED_TWICE, claim=key[1], pod=wanted[key].key)
                    return Refused(pod.key, reason)
                wanted[key] = pod
        return None

    def shared(self, pods: Sequence[Pod]) -> frozenset[Key]:
        """The claims that keep these pods on one node, with each other or with other pods."""
        counts: dict[Key, int] = {}
        for pod in pods:
            for key in mounts(pod):
                counts[key] = counts.get(key, 0) + 1
        limited = self.csi_limits.limited
        return frozenset(
            key
            for key, count in counts.items()
            if (count > 1 or key in self.users)
            and ((claim := self.claims[key]).one_node or claim.may_need_choice or claim.driver in limited)
        )

    # -- deciding --------------------------------------------------------------------------------------------

    def decisions(self, nodes: Mapping[str, str], pods: Mapping[str, Pod]) -> list[VolumeDecision]:
        """The decisions about the claims of placed pods; both arguments are by uid."""
        waiting: dict[Key, list[str]] = {}
        for uid in nodes:
            for key in mounts(pods[uid]):
                claim = self.claims.get(key)
                if claim is not None and claim.state == "waits":
                    waiting.setdefault(key, []).append(uid)
        if not waiting:
            return []
        matching = self.matching(without=waiting)
        position = self.columns.position
        # Claims without an alternative choose first.
        order = sorted(
            waiting, key=lambda key: (not self.claims[key].may_need_choice, self.claims[key].provisions, key)
        )
        for key in order:
            matching.assign(key, self.claims[key].choices, *{position[nodes[uid]] for uid in waiting[key]})
        volumes = matching.volumes
        return [
            VolumeDecision(key, self.claims[key].uid, nodes[uids[0]], volumes.get(key), tuple(uids))
            for key, uids in waiting.items()
        ]

    def matching(self, *, without: Iterable[Key] = ()) -> VolumeMatching:
        """A matching of the existing volumes, with the volumes that claims of placed pods will get."""
        matching = VolumeMatching(self.reach)
        position = self.columns.position
        for key in (self._waiting & self.users.keys()) - set(without):
            claim, held = self.claims[key], self.held.get(key)
            some = claim.choices if held is None else [c for c in claim.choices if c.volume == held]
            at = {position[node] for node in self.users[key].values() if node in position}
            matching.assign(key, some, *at)
        return matching

    def _changed(self, entry: PodEntry, sign: int) -> None:
        for key in mounts(entry.pod):
            if sign > 0:
                self.users.setdefault(key, {})[entry.uid] = entry.node
                self.csi_limits.attach(key, entry.node)
            elif key in self.users:
                self.users[key].pop(entry.uid, None)
                if entry.node not in self.users[key].values():
                    self.csi_limits.detach(key, entry.node)
                if not self.users[key]:
                    del self.users[key]


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
    """One attempt to place the gang; see `fluence.placer.placer.Attempt`."""

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
