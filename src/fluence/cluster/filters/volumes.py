"""Claims and their volumes (VolumeBinding): what is known of claims, who mounts them, what they ask of nodes.

A claim that waits for its first consumer follows its pod: to a node where its class makes volumes, or where
one lies that nobody else is to have. `requests` asks when it makes a gang, the scheduler when a gang has its
seats and its claims must be decided before it is bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.csi_limits import CsiLimits
from fluence.cluster.filters.node_rules import VolumeNodes
from fluence.cluster.filters.volume_matching import VolumeMatching, VolumeReach
from fluence.cluster.pods import PodEntry, PodTable
from fluence.cluster.unsupported import Refused
from fluence.model.pod import NodeSelector, Pod
from fluence.model.reason import Code, Reason
from fluence.model.volume import Key

_UNBOUND = Reason.of(Code.CLAIM_UNBOUND)


@dataclass(frozen=True, slots=True)
class VolumeDecision:
    """A claim that is to have its volume on a node: one that is there, or one that is made."""

    claim: Key
    uid: str
    node: str
    volume: str | None  # None: it is made
    pods: tuple[str, ...]  # uids of those that wait for it


def mounts(pod: Pod) -> tuple[Key, ...]:
    """The claims that a pod mounts; most pods have volumes and no claims."""
    if not pod.spec.volumes:
        return ()
    return tuple(dict.fromkeys((pod.metadata.namespace, name) for name, _ in _claims_of(pod)))


def _claims_of(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of the claims that a pod mounts, and whether each is made for this pod alone."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


class ClaimIndex:
    """What is known of claims, and who mounts them."""

    def __init__(self, pods: PodTable, columns: NodeColumns) -> None:
        self.claims: dict[Key, Claim] = {}
        self.users: dict[Key, dict[str, str]] = {}  # claim -> uid -> node
        self.csi_limits = CsiLimits()
        self.held: dict[Key, str] = {}  # claims that were told their volume: nobody else is to have it
        self.columns = columns
        self.reach = VolumeReach(columns)
        self._pods = pods
        self._waiting: set[Key] = set()  # claims that may need one of the volumes that are there
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
        """Where the volumes of a pod can be, each with the reason against other nodes; or what is missing."""
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
                # NB not the claim's name: pods whose claims differ in nothing else are alike.
                reason = Reason.of(Code.VOLUME_NOT_PROVIDED, storage_class=claim.class_name)
                found.append((reason, reach))
        return tuple(found)

    def needs_rules(self, pods: Iterable[Pod]) -> bool:
        """Whether some claim of these pods has rules about others."""
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
        """A claim that one pod alone may use, and another one uses, or wants too."""
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
        """The claims that tie these pods to each other, or to others."""
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
        """What is to be done for the claims of pods that have seats, both by uid."""
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
        # Those that can have nothing else choose first.
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
        """The volumes that are there, with those that claims of placed pods are to have."""
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
