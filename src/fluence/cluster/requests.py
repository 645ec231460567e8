"""Pods as a gang: one entry per distinct shape, with the nodes open to it; and why it finds no seats.

`ClusterGraph` asks. What a pod asks for is worked out once, as long as neither it nor its claims change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.diagnosis import Diagnosis, domain_seats, too_few_in_one_domain, too_few_seats
from fluence.cluster.filters.gang_rules import InterPodFilters, once_per_node
from fluence.cluster.filters.node_rules import NodeFilters, NodeRules
from fluence.cluster.filters.pod_shape import GangContext, PodShape
from fluence.cluster.filters.ports import HostPorts
from fluence.cluster.filters.volume_rules import ClaimNeeds, VolumeRules
from fluence.cluster.filters.volumes import ClaimIndex, mounts
from fluence.cluster.layout import GraphLayout
from fluence.cluster.pod_index import PodIndex
from fluence.cluster.pod_terms import InterPodRules
from fluence.cluster.pods import PodTable
from fluence.cluster.unsupported import Refused, unchecked
from fluence.graph.graph import Ints
from fluence.match.policy import MatchPolicy, find
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.model.resources import add_into, pod_requests
from fluence.model.volume import Key
from fluence.placer.gang import GangRequest, Members, Seated
from fluence.placer.gang_fit import GangFit

_KEPT = 65_536  # pods whose profile is known; those of a larger gang are worked out each time


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """All pods in one domain: nodes with one value of a label, that of the pods which are there already."""

    key: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class PodGang(GangRequest):
    """A gang that knows its pods, by uid: they count on their nodes as soon as they have seats."""

    objects: Mapping[str, Pod] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PodProfile:
    """What a pod asks for, worked out once."""

    pod: Pod
    needs: dict[str, int]
    shape: PodShape
    key: tuple[object, ...]  # equal for pods that are alike, their own labels aside
    claims: tuple[tuple[Key, Claim], ...] = ()  # that it mounts, as they were

    @property
    def mounts(self) -> tuple[Key, ...]:
        return tuple(key for key, _ in self.claims)


class GangRequests:
    """Makes gangs of pods."""

    def __init__(
        self,
        layout: GraphLayout,
        pods: PodTable,
        columns: NodeColumns,
        leaving_by: Callable[[int], Collection[str]],
    ) -> None:
        self.index = PodIndex(pods, columns)
        self.claims = ClaimIndex(pods, columns)
        self._ports = HostPorts(pods, columns)
        self._layout = layout
        self._columns = columns
        self._node_filters = NodeFilters(columns)
        self._leaving_by = leaving_by  # the pods of jobs that end by a time
        # By uid, the oldest first. A plain dict: it is asked for every pod of every gang.
        self._profiles: dict[str, PodProfile] = {}

    def forget(self, uid: str) -> None:
        """A pod is gone, or over."""
        self._profiles.pop(uid, None)

    def gang(
        self,
        pods: Sequence[Pod],
        *,
        minimum: int | None = None,
        policy: str | MatchPolicy,
        exclude: Collection[str] = (),
        topology: TopologyDomain | None = None,
    ) -> PodGang | Refused:
        """The pods as one request, for the nodes as they are now."""
        kinds = self._kinds(pods)
        if isinstance(kinds, Refused):
            return kinds
        return self._gang(kinds, minimum=minimum, policy=policy, exclude=exclude, topology=topology)

    def equivalence_key(self, pods: Sequence[Pod]) -> frozenset[tuple[Hashable, int]] | None:
        """A key that is equal for gangs that find the same seats; None: only a try can tell."""
        if self.index.has_anti_affinity:
            return None
        counts: dict[Hashable, int] = {}
        for pod in pods:
            profile = self._profile(pod)
            if isinstance(profile, Refused) or profile.shape.others.forbid or profile.claims:
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
    ) -> list[Reason]:
        """What stands in the way of the pods now."""
        kinds = self._kinds(pods)
        if isinstance(kinds, Refused):
            return [kinds.reason]
        gang = self._gang(kinds, minimum=None, policy=policy, exclude=exclude, topology=topology)
        found = self._shortages(gang, kinds, seats, now, duration)
        short = [each for each in found if each.code is not Code.NOT_TOGETHER]
        if topology is not None:
            key, begun = topology.key, bool(topology.nodes)
            domains = domain_seats(gang, key, seats, self._columns, now=now, duration=duration)
            return [too_few_in_one_domain(key, wanted=gang.size, domains=domains, begun=begun), *short]
        # Each kind by itself finds seats: then it is the other kinds, or what is promised to others.
        return short or (found if len(found) > 1 else [])

    # -- inside ----------------------------------------------------------------------------------------------

    def _gang(
        self,
        kinds: Sequence[Sequence[PodProfile]],
        *,
        minimum: int | None,
        policy: str | MatchPolicy,
        exclude: Collection[str],
        topology: TopologyDomain | None,
    ) -> PodGang:
        return PodGang(
            tuple(self._members_of(kind, exclude) for kind in kinds),
            minimum,
            policy,
            self._rules(kinds),
            self._columns.generation,
            None if topology is None else self._domains(topology),
            {profile.pod.metadata.uid: profile.pod for kind in kinds for profile in kind},
        )

    def _shortages(
        self,
        gang: PodGang,
        kinds: Sequence[Sequence[PodProfile]],
        seats: GangFit,
        now: int,
        duration: int | None,
    ) -> list[Reason]:
        """For each kind of pod, what there is for it alone, and which nodes are closed to it and why."""
        rules = gang.rules if isinstance(gang.rules, InterPodFilters | VolumeRules) else None
        diagnosis = Diagnosis(
            seats,
            seats.look(now, duration),
            self._columns,
            self._node_filters,
            self._layout,
            rules.begin(now) if rules is not None else None,
            whole=(find(gang.policy) if isinstance(gang.policy, str) else gang.policy).node_exclusive,
        )
        found: list[Reason] = []
        for number, (members, kind) in enumerate(zip(gang.members, kinds, strict=True)):
            alone = GangRequest((members,), 1, gang.policy, self._rules([kind]))
            fits = seats.try_now(alone, now=now, duration=duration)
            count, wanted = len(fits.seats) if isinstance(fits, Seated) else 0, len(members.pods)
            name = kind[0].pod.key if len(kinds) > 1 else ""
            if count >= wanted:
                found.append(Reason.of(Code.NOT_TOGETHER, pod=name, wanted=wanted))
                continue
            causes = diagnosis.nodes(members, kind[0].shape, number)
            found.append(too_few_seats(name, wanted, count, nodes=len(self._columns), causes=causes))
        return found

    def _domains(self, topology: TopologyDomain) -> Ints:
        """Which domain each node is in; where some pods are already, theirs alone."""
        codes, position = self._columns.label(topology.key).of, self._columns.position
        theirs = {int(codes[position[name]]) for name in topology.nodes if name in position}
        theirs.discard(-1)
        return np.where(np.isin(codes, sorted(theirs)), codes, -1) if theirs else codes.copy()

    def _profile(self, pod: Pod) -> PodProfile | Refused:
        uid = pod.metadata.uid
        found = self._profiles.get(uid)
        known = self.claims.claims
        if (
            found is not None
            and found.pod is pod
            and (not found.claims or all(known.get(key) is claim for key, claim in found.claims))
        ):
            return found
        refused = unchecked(pod)
        if refused is not None:
            return refused
        mounted = mounts(pod)
        volumes = self.claims.nodes_for(pod) if mounted else ()
        if isinstance(volumes, Refused):
            return volumes
        needs = self._layout.types(pod_requests(pod))
        shape = PodShape(pod, InterPodRules.of(pod), NodeRules.of(pod, volumes))
        key: tuple[object, ...] = (tuple(needs.items()), shape.node.key, shape.others.key)
        claims = tuple((each, known[each]) for each in mounted)
        if claims:
            choices = tuple(
                tuple(c.volume for c in claim.choices) for _, claim in claims if claim.may_need_choice
            )
            key = (*key, choices, tuple(sorted(claim.driver for _, claim in claims)))
        self._profiles.pop(uid, None)
        if len(self._profiles) >= _KEPT:
            del self._profiles[next(iter(self._profiles))]
        found = self._profiles[uid] = PodProfile(pod, needs, shape, key, claims)
        return found

    def _kinds(self, pods: Sequence[Pod]) -> list[list[PodProfile]] | Refused:
        """Pods of one shape together; labels count only where a rule looks at them."""
        profiles: list[PodProfile] = []
        for pod in pods:
            profile = self._profile(pod)
            if isinstance(profile, Refused):
                return profile
            profiles.append(profile)
        mounting = [profile.pod for profile in profiles if profile.claims]
        if mounting and (refused := self.claims.used_by_another(mounting)) is not None:
            return refused
        label_keys = self.index.label_keys
        for others in {profile.key: profile.shape.others for profile in profiles}.values():
            label_keys |= others.label_keys
        names = sorted(label_keys)
        kinds: dict[tuple[object, ...], list[PodProfile]] = {}
        shared = self.claims.shared(mounting) if mounting else frozenset()
        for profile in profiles:
            key = profile.key
            if shared and profile.claims:
                key = (*key, frozenset(shared.intersection(profile.mounts)))
            if names:
                labels = profile.pod.labels
                seen = tuple((name, labels.get(name)) for name in names)
                key = (*key, profile.pod.metadata.namespace, seen)
            kinds.setdefault(key, []).append(profile)
        return list(kinds.values())

    def _members_of(self, kind: Sequence[PodProfile], exclude: Collection[str]) -> Members:
        shape = kind[0].shape
        allowed = self._node_filters.allowed(shape.node)
        if exclude:
            allowed = allowed.copy()
            position = self._columns.position
            allowed[[position[name] for name in exclude if name in position]] = False
        others = shape.others
        once = bool(others.ports or others.anti_affinity) and once_per_node(shape, self._context([shape]))
        return Members(
            tuple(each.pod.metadata.uid for each in kind),
            kind[0].needs,
            allowed,
            self._node_filters.score(shape.node),
            1 if once else None,
        )

    def _rules(self, kinds: Sequence[Sequence[PodProfile]]) -> InterPodFilters | VolumeRules | None:
        """The rules about other pods and about volumes, where there are any."""
        others = self._interpod_filters([kind[0].shape for kind in kinds])
        mounting = [profile.pod for kind in kinds for profile in kind if profile.claims]
        if not mounting or not self.claims.needs_rules(mounting):
            return others
        shared = self.claims.shared(mounting)
        together: dict[Key, dict[str, int]] = {key: {} for key in shared}
        for kind in kinds:
            for profile in kind:
                for key in shared.intersection(profile.mounts):
                    add_into(together[key], profile.needs)
        needs = [self._claim_needs(kind[0], shared, together) for kind in kinds]
        return VolumeRules(self.claims, needs, others)

    def _claim_needs(
        self, profile: PodProfile, shared: frozenset[Key], together: Mapping[Key, Mapping[str, int]]
    ) -> ClaimNeeds:
        limited = self.claims.csi_limits.limited
        one_node = tuple(key for key, claim in profile.claims if key in shared and claim.one_node)
        own = [(key if key in shared else None, claim) for key, claim in profile.claims]
        return ClaimNeeds(
            one_node,
            tuple((key, claim) for key, claim in own if claim.may_need_choice),
            max((together[key] for key in one_node), key=lambda each: sum(each.values()), default={}),
            tuple((key, claim.driver) for key, claim in own if claim.driver in limited),
        )

    def _interpod_filters(self, shapes: Sequence[PodShape]) -> InterPodFilters | None:
        if any(
            shape.others.forbid or shape.others.prefer or self.index.is_kept_away(shape.pod)
            for shape in shapes
        ):
            return InterPodFilters(self._context(shapes), self._leaving_by)
        return None

    def _context(self, shapes: Sequence[PodShape]) -> GangContext:
        return GangContext(shapes, self.index, self._ports, self._columns, self._node_filters)
