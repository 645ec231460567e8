"""Pods as a gang: one entry per distinct shape, with the nodes open to it; and why it finds no seat."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.interpod_affinity import InterPodAffinity, InterPodTerms, PodShape
from fluence.cluster.layout import GraphLayout
from fluence.cluster.node_affinity import NodeFilters, NodeRules
from fluence.cluster.pod_index import PodIndex
from fluence.cluster.pods import PodTable
from fluence.cluster.reasons import Scattered, Shortage, causes, sort_out
from fluence.cluster.unsupported import Refused, unchecked
from fluence.cluster.volume_matching import ClaimNeeds, VolumeMatching, VolumeRules, mounts
from fluence.graph.graph import Ints
from fluence.match.policy import MatchPolicy, find
from fluence.model.pod import Pod
from fluence.model.resources import add_into, pod_requests
from fluence.model.volume import Key
from fluence.placer.gang import GangRequest, Members, Seated
from fluence.placer.gang_fit import GangFit


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """All pods in one domain: nodes with one value of a label, that of the pods which are there already."""

    key: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class PodProfile:
    """What a pod asks for, worked out once."""

    pod: Pod
    needs: dict[str, int]
    guest: PodShape
    key: tuple[object, ...]  # equal for pods that are alike, their own labels aside
    mounts: tuple[Key, ...] = ()


class GangRequests:
    """Makes gangs of pods."""

    def __init__(
        self,
        layout: GraphLayout,
        pods: PodTable,
        columns: NodeColumns,
        neighbours: PodIndex,
        gone_by: Callable[[int], Collection[str]],
    ) -> None:
        self.neighbours = neighbours
        self.storage = VolumeMatching(pods, columns)
        self._layout = layout
        self._columns = columns
        self._book = NodeFilters(columns)
        self._gone_by = gone_by
        self._profiles: dict[str, PodProfile] = {}
        self._mounting: dict[Key, set[str]] = {}  # claim -> uids of pods that were asked for with it

    def known(self, uid: str) -> PodProfile | None:
        """What was worked out of a pod."""
        return self._profiles.get(uid)

    def changed(self, pod: Pod) -> None:
        """A pod may ask for something else now: that is worked out when it is asked for again."""
        found = self._profiles.get(pod.metadata.uid)
        if found is not None and found.pod is not pod:
            self.forget(pod.metadata.uid)

    def forget(self, uid: str) -> None:
        found = self._profiles.pop(uid, None)
        for key in found.mounts if found is not None else ():
            self._mounting.get(key, set()).discard(uid)

    def set_claim(self, namespace: str, name: str, claim: Claim | None) -> bool:
        """Whether something changed."""
        key = namespace, name
        if not self.storage.set_claim(key, claim):
            return False
        for uid in self._mounting.pop(key, ()):
            self._profiles.pop(uid, None)
        return True

    def gang(
        self,
        pods: Sequence[Pod],
        *,
        minimum: int | None = None,
        policy: str | MatchPolicy,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
    ) -> GangRequest | Refused:
        """The pods as one request, for the nodes as they are now."""
        profiles: list[PodProfile] = []
        for pod in pods:
            profile = self._profile(pod)
            if isinstance(profile, Refused):
                return profile
            profiles.append(profile)
        mounting = [profile.pod for profile in profiles if profile.mounts]
        if mounting and (refused := self.storage.taken(mounting)) is not None:
            return refused
        groups = self._alike(profiles)
        members = tuple(self._members_of(group, exclude) for group in groups)
        domains = None if topology is None else self._domains(topology)
        return GangRequest(members, minimum, policy, self._rules(groups), self._columns.generation, domains)

    def alike(self, pods: Sequence[Pod]) -> frozenset[tuple[Hashable, int]] | None:
        """A key that is equal for gangs that find the same seats; None: only a try can tell."""
        if self.neighbours.has_against:
            return None
        counts: dict[Hashable, int] = {}
        for pod in pods:
            profile = self._profile(pod)
            if isinstance(profile, Refused) or profile.guest.demands.forbid or profile.mounts:
                return None
            counts[profile.key] = counts.get(profile.key, 0) + 1
        return frozenset(counts.items())

    def why(
        self,
        pods: Sequence[Pod],
        seats: GangFit,
        *,
        now: int,
        duration: int | None = None,
        policy: str | MatchPolicy,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
    ) -> list[Shortage | Scattered | Refused]:
        """What stands in the way of the pods now."""
        gang = self.gang(pods, policy=policy, exclude=exclude, topology=topology)
        if isinstance(gang, Refused):
            return [gang]
        view = seats.look(now, duration)
        groups = self._alike([each for pod in pods if isinstance(each := self._profile(pod), PodProfile)])
        table = gang.rules.begin(now) if isinstance(gang.rules, InterPodAffinity | VolumeRules) else None
        whole = (find(gang.policy) if isinstance(gang.policy, str) else gang.policy).node_exclusive
        found: list[Shortage | Scattered | Refused] = []
        for number, (members, group) in enumerate(zip(gang.members, groups, strict=True)):
            alone = GangRequest((members,), 1, gang.policy, self._rules([group]))
            fits = seats.try_now(alone, now=now, duration=duration)
            steps = causes(
                members,
                group[0].guest,
                seats=seats,
                view=view,
                columns=self._columns,
                book=self._book,
                layout=self._layout,
                table=table,
                number=number,
                whole=whole,
            )
            count = len(fits.seats) if isinstance(fits, Seated) else 0
            told = () if count >= len(members.pods) else sort_out(steps, seats.names)
            name = group[0].pod.key if len(groups) > 1 else ""
            shortage = Shortage(name, len(members.pods), count, len(self._columns), told)
            found.append(shortage)
        short = [each for each in found if isinstance(each, Shortage) and each.seats < each.wanted]
        if topology is not None and gang.domains is not None:
            room = seats.domain_seats(gang, gang.domains, now=now, duration=duration)
            values = {code: value for value, code in self._columns.label(topology.key).codes.items()}
            there = {values[code]: int(room[code]) for code in np.unique(gang.domains).tolist() if code >= 0}
            scattered = Scattered(len(pods), topology.key, tuple(there.items()), bool(topology.nodes))
            return [scattered, *short]
        # Each kind by itself finds seats: then it is the other kinds, or what is promised to others.
        return [*short] or (found if len(found) > 1 else [])

    def _domains(self, topology: TopologyDomain) -> Ints:
        """Which domain each node is in; where some pods are already, theirs alone."""
        codes, position = self._columns.label(topology.key).of, self._columns.position
        theirs = {int(codes[position[name]]) for name in topology.nodes if name in position}
        theirs.discard(-1)
        return np.where(np.isin(codes, sorted(theirs)), codes, -1) if theirs else codes.copy()

    def _profile(self, pod: Pod) -> PodProfile | Refused:
        uid = pod.metadata.uid
        found = self._profiles.get(uid)
        if found is not None and found.pod is pod:
            return found
        refused = unchecked(pod)
        if refused is not None:
            return refused
        mounted = mounts(pod)
        volumes = self.storage.wants(pod) if mounted else ()
        if isinstance(volumes, Refused):
            return volumes
        needs = self._layout.types(pod_requests(pod))
        guest = PodShape(pod, InterPodTerms.of(pod), NodeRules.of(pod, volumes))
        key: tuple[object, ...] = (tuple(needs.items()), guest.rules.key, guest.demands.key)
        if mounted:
            claims = [self.storage.claims[each] for each in mounted]
            key = (*key, tuple(tuple(c.volume for c in claim.choices) for claim in claims if claim.picks))
            key = (*key, tuple(sorted(claim.driver for claim in claims)))
            for each in mounted:
                self._mounting.setdefault(each, set()).add(uid)
        found = self._profiles[uid] = PodProfile(pod, needs, guest, key, mounted)
        return found

    def _alike(self, profiles: Sequence[PodProfile]) -> list[list[PodProfile]]:
        """Pods of one shape together; labels count only where a rule looks at them."""
        keys = self.neighbours.keys
        demands = {profile.key: profile.guest.demands for profile in profiles}
        for each in demands.values():
            keys |= each.label_keys
        groups: dict[tuple[object, ...], list[PodProfile]] = {}
        mounting = [profile.pod for profile in profiles if profile.mounts]
        shared = self.storage.shared(mounting) if mounting else frozenset()
        for profile in profiles:
            key = profile.key
            if shared and profile.mounts:
                key = (*key, frozenset(shared.intersection(profile.mounts)))
            if keys:
                labels = profile.pod.labels
                seen = tuple((name, labels.get(name)) for name in sorted(keys))
                key = (*key, profile.pod.metadata.namespace, seen)
            groups.setdefault(key, []).append(profile)
        return list(groups.values())

    def _members_of(self, group: Sequence[PodProfile], exclude: Collection[str]) -> Members:
        guest = group[0].guest
        allowed = self._book.allowed(guest.rules)
        if exclude:
            allowed = allowed.copy()
            position = self._columns.position
            allowed[[position[name] for name in exclude if name in position]] = False
        demands = guest.demands
        once = bool(demands.ports or demands.anti) and self._company_of([guest]).once_per_node(guest)
        return Members(
            tuple(each.pod.metadata.uid for each in group),
            group[0].needs,
            allowed,
            self._book.score(guest.rules),
            1 if once else None,
        )

    def _rules(self, groups: Sequence[Sequence[PodProfile]]) -> InterPodAffinity | VolumeRules | None:
        """The rules about other pods and about volumes, where there are any."""
        company = self._company([group[0].guest for group in groups])
        mounting = [profile.pod for group in groups for profile in group if profile.mounts]
        if not mounting or not self.storage.needs_rules(mounting):
            return company
        shared = self.storage.shared(mounting)
        needs: dict[Key, dict[str, int]] = {key: {} for key in shared}
        for group in groups:
            for profile in group:
                for key in shared.intersection(profile.mounts):
                    add_into(needs[key], profile.needs)
        wishes = []
        for group in groups:
            claims = [(key, self.storage.claims[key]) for key in group[0].mounts]
            keys = tuple(key for key, claim in claims if key in shared and claim.one_node)
            picks = tuple((key if key in shared else None, claim) for key, claim in claims if claim.picks)
            together = max((needs[key] for key in keys), key=lambda each: sum(each.values()), default={})
            attach = tuple(
                (key if key in shared else None, claim.driver)
                for key, claim in claims
                if claim.driver in self.storage.attachments.limited
            )
            wishes.append(ClaimNeeds(keys, picks, together, attach))
        return VolumeRules(self.storage, wishes, company)

    def _company(self, guests: Sequence[PodShape]) -> InterPodAffinity | None:
        """The rules about other pods, where there are any."""
        if any(
            guest.demands.forbid or guest.demands.prefer or self.neighbours.is_meant(guest.pod)
            for guest in guests
        ):
            return self._company_of(guests)
        return None

    def _company_of(self, guests: Sequence[PodShape]) -> InterPodAffinity:
        return InterPodAffinity(guests, self.neighbours, self._columns, self._book, self._gone_by)
