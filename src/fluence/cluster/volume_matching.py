"""A gang's rules about volumes: where its claims can have one, which claims share, which volume goes to whom.

A claim that waits for its first consumer follows its pod: to a node where its class makes volumes, or where
one lies that nobody else is to have. Pods that share a ReadWriteOnce claim sit together, with those that have
it already. Each volume that is there goes to one claim: `VolumeAssignment` keeps a matching, which gives a
claim another volume on its node if somebody else can then have the first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.claims import Choice, Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.csi_limits import CsiLimits
from fluence.cluster.interpod_affinity import AffinityAttempt, InterPodAffinity
from fluence.cluster.pods import PodEntry, PodTable
from fluence.cluster.unsupported import Refused
from fluence.graph.graph import Ints, Mask
from fluence.model.pod import NodeSelector, Pod
from fluence.model.volume import Key

_KEPT = 64  # distinct lists of volumes


@dataclass(frozen=True, slots=True)
class VolumeDecision:
    """A claim that is to have its volume on a node: one that is there, or one that is made."""

    claim: Key
    uid: str
    node: str
    volume: str | None  # None: it is made
    pods: tuple[str, ...]  # uids of those that wait for it


def claims_of(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of the claims that a pod mounts, and whether each is made for this pod alone."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def mounts(pod: Pod) -> tuple[Key, ...]:
    """The claims that a pod mounts; most pods have volumes and no claims."""
    if not pod.spec.volumes:
        return ()
    return tuple(dict.fromkeys((pod.metadata.namespace, name) for name, _ in claims_of(pod)))


class VolumeMatching:
    """What is known of claims, and who mounts them."""

    def __init__(self, pods: PodTable, columns: NodeColumns) -> None:
        self.claims: dict[Key, Claim] = {}
        self.users: dict[Key, dict[str, str]] = {}  # claim -> uid -> node
        self.attachments = CsiLimits()
        self.picked: dict[Key, str] = {}  # claims that were told their volume: nobody else is to have it
        self._pods = pods
        self.columns = columns
        self._waits: set[Key] = set()  # claims that may need one of the volumes that are there
        self._masks: dict[str, tuple[NodeSelector, Mask]] = {}
        self._tables: dict[int, tuple[Sequence[Choice], Mask, Ints]] = {}
        self._generation = -1
        pods.watchers.append(self._told)

    def set_claim(self, key: Key, claim: Claim | None) -> bool:
        """Whether something changed."""
        if self.claims.get(key) == claim:
            return False
        self._waits.discard(key)
        self.attachments.set_driver(key, claim.driver if claim is not None else "")
        if claim is None:
            self.claims.pop(key, None)
        else:
            self.claims[key] = claim
            if claim.state == "waits" and claim.choices:
                self._waits.add(key)
        return True

    def wants(self, pod: Pod) -> tuple[tuple[str, NodeSelector], ...] | Refused:
        """Where the volumes of a pod can be, each with what to say of other nodes; or what is missing."""
        found: list[tuple[str, NodeSelector]] = []
        for name, own in claims_of(pod):
            claim = self.claims.get((pod.metadata.namespace, name))
            if claim is None:
                cure = "it is made soon" if own else "create it"
                return Refused(pod.key, f"claim {name!r} is not there: {cure}", False)
            if own and claim.owner != pod.metadata.uid:
                reason = f"claim {name!r} was not made for this pod: rename the volume, or delete the claim"
                return Refused(pod.key, reason, False)
            if claim.state == "pending":
                why = claim.reason or "has no volume yet: it must be bound first"
                return Refused(pod.key, f"claim {name!r} {why}", False)
            reach = claim.reach
            if reach is None:
                continue
            if claim.state == "bound":
                found.append((f"volume of claim {name}: not reachable", reach))
            else:
                # NB not the claim's name: pods whose claims differ in nothing else are alike.
                found.append((f"no volume of storage class {claim.class_name} there", reach))
        return tuple(found)

    def needs_rules(self, pods: Iterable[Pod]) -> bool:
        """Whether some claim of these pods has rules about others."""
        seen: set[Key] = set()
        for pod in pods:
            for key in mounts(pod):
                claim = self.claims[key]
                if claim.picks or claim.driver in self.attachments.limited:
                    return True
                if claim.one_node and (key in seen or key in self.users):
                    return True
                seen.add(key)
        return False

    def taken(self, pods: Iterable[Pod]) -> Refused | None:
        """A claim that one pod alone may use, and another one uses, or wants too."""
        wanted: dict[Key, Pod] = {}
        for pod in pods:
            for key in mounts(pod):
                if not self.claims[key].one_pod:
                    continue
                users = [uid for uid in self.users.get(key, ()) if uid != pod.metadata.uid]
                if users:
                    other = self._pods.entries[users[0]].pod.key
                    reason = f"claim {key[1]!r} is ReadWriteOncePod, and pod {other} uses it"
                    return Refused(pod.key, reason, False)
                if key in wanted and wanted[key] is not pod:
                    reason = f"claim {key[1]!r} is ReadWriteOncePod, and pod {wanted[key].key} wants it too"
                    return Refused(pod.key, reason, False)
                wanted[key] = pod
        return None

    def shared(self, pods: Sequence[Pod]) -> frozenset[Key]:
        """The claims that tie these pods to each other, or to others."""
        counts: dict[Key, int] = {}
        for pod in pods:
            for key in mounts(pod):
                counts[key] = counts.get(key, 0) + 1
        limited = self.attachments.limited
        return frozenset(
            key
            for key, count in counts.items()
            if (count > 1 or key in self.users)
            and ((claim := self.claims[key]).one_node or claim.picks or claim.driver in limited)
        )

    def stow(self, nodes: Mapping[str, str], pods: Mapping[str, Pod]) -> list[VolumeDecision]:
        """What is to be done for the claims of pods that have seats, by uid."""
        waiting: dict[Key, list[str]] = {}
        for uid in nodes:
            for key in mounts(pods[uid]):
                claim = self.claims.get(key)
                if claim is not None and claim.state == "waits":
                    waiting.setdefault(key, []).append(uid)
        if not waiting:
            return []
        shelf = self.shelf(but=waiting)
        position = self.columns.position
        # Those that can have nothing else choose first.
        order = sorted(
            waiting, key=lambda key: (not self.claims[key].picks, self.claims[key].provisions, key)
        )
        for key in order:
            shelf.put(key, self.claims[key].choices, *{position[nodes[uid]] for uid in waiting[key]})
        given = shelf.given
        return [
            VolumeDecision(key, self.claims[key].uid, nodes[uids[0]], given.get(key), tuple(uids))
            for key, uids in waiting.items()
        ]

    def shelf(self, *, but: Iterable[Key] = ()) -> VolumeAssignment:
        """The volumes that are there, with what those on their way are to have."""
        shelf = VolumeAssignment(self)
        for key in (self._waits & self.users.keys()) - set(but):
            claim, picked = self.claims[key], self.picked.get(key)
            some = claim.choices if picked is None else [c for c in claim.choices if c.volume == picked]
            position = self.columns.position
            at = {position[node] for node in self.users[key].values() if node in position}
            shelf.put(key, some, *at)
        return shelf

    def reached(self, name: str, selector: NodeSelector | None) -> Mask | None:
        """The nodes from which a volume can be reached; None: all."""
        if selector is None:
            return None
        self._refresh()
        known = self._masks.get(name)
        if known is None or known[0] is not selector:
            known = self._masks[name] = (selector, self.columns.selected(selector))
        return known[1]

    def table(self, choices: Sequence[Choice]) -> tuple[Mask, Ints]:
        """The same for several volumes, a row each, and how many each node reaches. Claims that are alike
        share their choices, so it is kept by the list itself."""
        self._refresh()
        known = self._tables.get(id(choices))
        if known is None or known[0] is not choices:
            everywhere = np.ones(len(self.columns), np.bool_)
            rows = [self.reached(each.volume, each.nodes) for each in choices]
            table = np.array([everywhere if row is None else row for row in rows], np.bool_)
            if len(self._tables) >= _KEPT:
                self._tables.clear()
            known = self._tables[id(choices)] = (choices, table, table.sum(axis=0))
        return known[1:]

    def _refresh(self) -> None:
        if self._generation != self.columns.generation:
            self._generation, self._masks, self._tables = self.columns.generation, {}, {}

    def _told(self, entry: PodEntry, sign: int) -> None:
        for key in mounts(entry.pod):
            if sign > 0:
                self.users.setdefault(key, {})[entry.uid] = entry.node
                self.attachments.put(key, entry.node)
            elif key in self.users:
                self.users[key].pop(entry.uid, None)
                if entry.node not in self.users[key].values():
                    self.attachments.take(key, entry.node)
                if not self.users[key]:
                    del self.users[key]


class VolumeAssignment:
    """Volumes that are there, each for one claim, whose pods are on one node or on several."""

    def __init__(self, storage: VolumeMatching) -> None:
        self._storage = storage
        self._of: dict[str, Hashable] = {}  # volume -> who has it
        self._who: dict[Hashable, tuple[list[Choice], tuple[int, ...]]] = {}  # those that would do; nodes

    @property
    def given(self) -> dict[Hashable, str]:
        return {who: volume for volume, who in self._of.items()}

    def put(self, who: Hashable, choices: Sequence[Choice], *nodes: int) -> bool:
        """Give somebody one of these within reach of its nodes, old and new, if that can be."""
        everywhere = (*self._who[who][1], *nodes) if who in self._who else nodes
        self.drop(who)
        self._who[who] = (self._within(choices, everywhere), everywhere)
        path = self._path(who, set())
        for volume, holder in path or ():
            self._of[volume] = holder
        return path is not None

    def drop(self, who: Hashable) -> None:
        if self._who.pop(who, None) is not None:
            self._of = {volume: holder for volume, holder in self._of.items() if holder != who}

    def open(self, choices: Sequence[Choice], size: int, who: Hashable = None) -> Mask:
        """The nodes on which one more could have one of these; or one that is there already, as well."""
        if who in self._who:
            choices = self._who[who][0]
        if not choices:
            return np.zeros(size, np.bool_)
        taken = []
        for row, choice in enumerate(choices):
            holder = self._of.get(choice.volume)
            if holder not in (None, who) and self._path(holder, {choice.volume}) is None:
                taken.append(row)
        table, counts = self._storage.table(choices)
        return np.asarray(counts > table[taken].sum(axis=0))

    def _within(self, choices: Sequence[Choice], nodes: tuple[int, ...]) -> list[Choice]:
        """Those that can be reached from all of some nodes."""
        if not choices:
            return []
        table, _ = self._storage.table(choices)
        rows = np.flatnonzero(table[:, list(nodes)].all(axis=1)).tolist()
        return [choices[row] for row in rows]

    def _path(self, who: Hashable, seen: set[str]) -> list[tuple[str, Hashable]] | None:
        """Who takes which volume so that this one has one: an augmenting path."""
        for choice in self._who[who][0]:
            if choice.volume in seen:
                continue
            seen.add(choice.volume)
            holder = self._of.get(choice.volume)
            further = [] if holder is None else self._path(holder, seen)
            if further is not None:
                return [*further, (choice.volume, who)]
        return None


@dataclass(frozen=True, slots=True, eq=False)
class ClaimNeeds:
    """What the claims of some pods that are alike demand."""

    keys: tuple[Key, ...]  # claims that keep them together
    picks: tuple[tuple[Key | None, Claim], ...]  # that may need a volume that is there; None: each its own
    together: Mapping[str, int]  # what all who share their claims need of a node
    attach: tuple[tuple[Key | None, str], ...] = ()  # the limited drivers of their claims; None: each its own


class VolumeRules:
    """The rules of one gang about volumes, and those about other pods; see `fluence.placer.gang.Rules`."""

    def __init__(
        self, storage: VolumeMatching, wishes: Sequence[ClaimNeeds], company: InterPodAffinity | None
    ) -> None:
        self.storage = storage
        self.wishes = wishes
        self.company = company

    def arrange(self, turns: list[int]) -> list[int]:
        return turns if self.company is None else self.company.arrange(turns)

    def begin(self, at: int) -> VolumeAttempt:
        return VolumeAttempt(self, None if self.company is None else self.company.begin(at))


class VolumeAttempt:
    """One attempt to seat the gang; see `fluence.placer.gang.Sitting`."""

    def __init__(self, housing: VolumeRules, table: AffinityAttempt | None) -> None:
        storage = self._storage = housing.storage
        self._columns = storage.columns
        self._wishes = housing.wishes
        self._table = table
        self._shelf = storage.shelf()
        self._seated = 0
        self._pins: dict[Key, set[int]] = {}
        self._room: dict[str, Ints] = {}  # by driver
        self._attached: dict[Key, set[int]] = {}
        position = self._columns.position
        for shared, driver in {each for wishes in housing.wishes for each in wishes.attach}:
            self._room.setdefault(driver, storage.attachments.room(driver, position))
            if shared is not None:
                on = storage.attachments.nodes(shared)
                self._attached[shared] = {position[node] for node in on if node in position}
        for key in {key for wishes in housing.wishes for key in wishes.keys}:
            for node in storage.users.get(key, {}).values():
                self._pins.setdefault(key, set()).add(position.get(node, -1))

    def alone(self, members: int) -> bool:
        if self._table is not None and self._table.alone(members):
            return True
        wishes = self._wishes[members]
        if wishes.picks or wishes.attach:
            return True
        return any(key not in self._pins for key in wishes.keys)

    def together(self, members: int) -> Mapping[str, int] | None:
        wishes = self._wishes[members]
        return wishes.together if any(key not in self._pins for key in wishes.keys) else None

    def open(self, members: int) -> Mask:
        mask = np.ones(len(self._columns), np.bool_)
        if self._table is not None:
            mask &= self._table.open(members)
        for _, each in self._mine(members):
            mask &= each
        return mask

    def score(self, members: int) -> Ints | None:
        return None if self._table is None else self._table.score(members)

    def causes(self, members: int) -> list[tuple[str, Mask]]:
        """Each rule with the nodes that it leaves open."""
        return [*(self._table.causes(members) if self._table is not None else ()), *self._mine(members)]

    def sit(self, members: int, node: int, count: int) -> None:
        if self._table is not None:
            self._table.sit(members, node, count)
        wishes = self._wishes[members]
        for key in wishes.keys:
            self._pins.setdefault(key, set()).add(node)
        for shared, claim in wishes.picks:
            if not self._makes(claim)[node]:
                self._seated += 1
                self._shelf.put(self._seated if shared is None else shared, claim.choices, node)
        for shared, driver in wishes.attach:
            if shared is None or node not in self._attached[shared]:
                self._room[driver][node] -= 1
                if shared is not None:
                    self._attached[shared].add(node)

    def _mine(self, members: int) -> Iterator[tuple[str, Mask]]:
        wishes, size = self._wishes[members], len(self._columns)
        for key in wishes.keys:
            pins = self._pins.get(key)
            if pins is not None:
                mask = np.zeros(size, np.bool_)
                mask[[pin for pin in pins if pin >= 0]] = True
                yield f"claim {key[1]} is used on another node", mask
        for shared, claim in wishes.picks:
            open_ = self._makes(claim) | self._shelf.open(claim.choices, size, shared)
            yield f"volumes of storage class {claim.class_name} are taken", open_
        for driver in {driver for _, driver in wishes.attach}:
            more = np.zeros(size, np.int64)
            for shared, of in wishes.attach:
                if of == driver:
                    more += 1
                    if shared is not None:
                        more[list(self._attached[shared])] -= 1
            yield f"no more volumes of {driver} can be attached", (more == 0) | (self._room[driver] >= more)
        if len(wishes.picks) > 1:
            picks = [claim for key, claim in wishes.picks if key is None]
            yield "too few volumes for all its claims", self._all_at_once(picks)

    def _makes(self, claim: Claim) -> Mask:
        """The nodes on which a volume can be made for a claim that has choices."""
        if not claim.provisions or claim.nodes is None:
            return np.full(len(self._columns), claim.provisions, np.bool_)
        return self._columns.selected(claim.nodes)

    def _all_at_once(self, picks: Sequence[Claim]) -> Mask:
        """The nodes on which one pod can have a volume for each of its claims."""
        makes = [self._makes(claim) for claim in picks]
        mask = np.ones(len(self._columns), np.bool_)
        for claim, made in zip(picks, makes, strict=True):
            mask &= made | self._shelf.open(claim.choices, len(mask))
        for node in np.flatnonzero(mask).tolist():
            asked = [claim for claim, made in zip(picks, makes, strict=True) if not made[node]]
            done = [self._shelf.put(("try", i), claim.choices, node) for i, claim in enumerate(asked)]
            mask[node] = all(done)
            for i in range(len(asked)):
                self._shelf.drop(("try", i))
        return mask
