"""Pods as a gang: one entry per distinct shape, with the nodes open to it; and why it finds no seats.

`ClusterGraph` asks. What a pod asks for is worked out once, as long as neither it nor its claims change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fluence.cluster.claims import Claim
from fluence.cluster.columns import NodeColumns
from fluence.cluster.diagnosis import Diagnosis, Shortage, domain_seats, too_few_in_one_domain
from fluence.cluster.filters.devices import busy, refusal
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
from fluence.model.device import DeviceRequest, requested_devices
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.model.resources import add_into, pod_requests
from fluence.model.volume import Key
from fluence.placer.backends import BackendTable, DeviceNeed
from fluence.placer.gang import GangRequest, Members
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import PartialFill
from fluence.placer.profile import FreeView

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
    devices: Mapping[str, int] = field(default_factory=dict)  # that belong to no node, by type

    @property
    def mounts(self) -> tuple[Key, ...]:
        return tuple(key for key, _ in self.claims)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A gang that is asked about, and where."""

    gang: PodGang
    kinds: Sequence[Sequence[PodProfile]]
    seats: GangFit
    view: FreeView  # what is free
    at: int
    empty: bool  # as if nobody else were there

    def progress(self, gang: GangRequest, *, partial: bool = True) -> PartialFill | None:
        return self.seats.progress(gang, self.view, at=self.at, empty=self.empty, partial=partial)


class GangRequests:
    """Makes gangs of pods."""

    def __init__(
        self,
        layout: GraphLayout,
        pods: PodTable,
        columns: NodeColumns,
        leaving_by: Callable[[int], Collection[str]],
        backends: BackendTable,
    ) -> None:
        self.index = PodIndex(pods, columns)
        self.claims = ClaimIndex(pods, columns)
        self._ports = HostPorts(pods, columns)
        self._layout = layout
        self._columns = columns
        self._node_filters = NodeFilters(columns)
        self._backends = backends
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
        devices: DeviceRequest | None = None,
    ) -> PodGang | Refused:
        """The pods as one request, for the nodes and devices as they are now."""
        kinds = self._kinds(pods)
        if isinstance(kinds, Refused):
            return kinds
        gang = self._gang(
            kinds, minimum=minimum, policy=policy, exclude=exclude, topology=topology, devices=devices
        )
        if devices is not None and (reason := refusal(self._backends, devices, gang.devices)) is not None:
            return Refused(pods[0].key, reason)
        return gang

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
        devices: DeviceRequest | None = None,
        empty: bool = False,
    ) -> list[Reason]:
        """What stands in the way of the pods now, or would if the cluster were ``empty``: devices first."""
        gang = self.gang(pods, policy=policy, exclude=exclude, topology=topology, devices=devices)
        if isinstance(gang, Refused):
            return [gang.reason]
        kinds = self._kinds(pods)
        assert not isinstance(kinds, Refused)
        view = seats.empty() if empty else seats.look(now, duration)
        found = busy(seats, gang, view, now=now, duration=duration) if gang.devices else []
        asked = _Asked(gang, kinds, seats, view, now, empty)
        nodes = len(self._columns)
        short = [each.reason(Code.TOO_FEW_SEATS, nodes=nodes, empty=empty) for each in self._shortages(asked)]
        if topology is not None:
            # With devices, it may be these alone that are in the way.
            fits = bool(found) and asked.progress(gang) is None
            return [*found, *(() if fits else (self._in_one_domain(asked, topology),)), *short]
        if short or len(kinds) == 1:
            return [*found, *short]
        # Each kind by itself finds seats: then it is the other kinds, or what is promised to others.
        stuck = self._beside_the_others(asked)
        return (
            [*found] if stuck is None else [*found, stuck.reason(Code.NOT_TOGETHER, nodes=nodes, empty=empty)]
        )

    def closed(self, pod: Pod, node: int) -> Reason | None:
        """Why a node takes no such pod, whatever is free there and wherever its volumes are."""
        rules = NodeRules.of(pod)
        if self._node_filters.allowed(rules)[node]:
            return None
        return next(why for why, open_ in self._node_filters.open_nodes(rules) if not open_[node])

    # -- inside ----------------------------------------------------------------------------------------------

    def _gang(
        self,
        kinds: Sequence[Sequence[PodProfile]],
        *,
        minimum: int | None,
        policy: str | MatchPolicy,
        exclude: Collection[str],
        topology: TopologyDomain | None,
        devices: DeviceRequest | None,
    ) -> PodGang:
        return PodGang(
            tuple(self._members_of(kind, exclude) for kind in kinds),
            minimum,
            policy,
            self._rules(kinds),
            self._columns.generation,
            None if topology is None else self._domains(topology),
            self._needed_devices(kinds, devices),
            {profile.pod.metadata.uid: profile.pod for kind in kinds for profile in kind},
        )

    def _needed_devices(
        self, kinds: Sequence[Sequence[PodProfile]], asked: DeviceRequest | None
    ) -> tuple[DeviceNeed, ...]:
        if asked is None:
            return ()
        pods: dict[Hashable, Mapping[str, int]]
        pods = {each.pod.metadata.uid: each.devices for kind in kinds for each in kind}
        return tuple(self._backends.needs(asked, pods))

    def _shortages(self, asked: _Asked) -> Iterator[Shortage]:
        """The kinds of pods that find too few seats though they be alone."""
        for members, kind in zip(asked.gang.members, asked.kinds, strict=True):
            alone = GangRequest((members,), None, asked.gang.policy, self._rules([kind]))
            found = asked.progress(alone)
            if found is not None:
                yield self._shortage(asked, found, members, kind, 0, found.seated)

    def _beside_the_others(self, asked: _Asked) -> Shortage | None:
        """The kind of pods that finds no seat beside the others."""
        found = asked.progress(asked.gang, partial=False)
        if found is None or found.stuck is None:
            return None
        number = found.stuck
        members, kind = asked.gang.members[number], asked.kinds[number]
        return self._shortage(asked, found, members, kind, number, 0)

    def _shortage(
        self,
        asked: _Asked,
        found: PartialFill,
        members: Members,
        kind: Sequence[PodProfile],
        number: int,
        seats: int,
    ) -> Shortage:
        diagnosis = self._diagnosis(asked, found)
        return Shortage(
            kind[0].pod.key if len(asked.kinds) > 1 else "",
            len(members.pods),
            seats,
            diagnosis.sums(members, asked.view),
            diagnosis.nodes(members, kind[0].shape, number),
        )

    def _in_one_domain(self, asked: _Asked, topology: TopologyDomain) -> Reason:
        """What the domain with the most seats lacks."""
        gang, key = asked.gang, topology.key
        domains = domain_seats(gang, key, asked.seats, self._columns, asked.view)
        causes: tuple[Reason, ...] = ()
        if domains and gang.domains is not None:
            best = max(domains, key=lambda each: each[1])[0]
            inside = gang.domains == self._columns.label(key).codes[best]
            there = [
                replace(each, allowed=inside if each.allowed is None else each.allowed & inside)
                for each in gang.members
            ]
            found = asked.progress(replace(gang, members=tuple(there), domains=None), partial=False)
            if found is not None and found.stuck is not None:
                number = found.stuck
                shape = asked.kinds[number][0].shape
                causes = self._diagnosis(asked, found).nodes(gang.members[number], shape, number, inside)
        begun = bool(topology.nodes)
        return too_few_in_one_domain(
            key, wanted=gang.size, domains=domains, begun=begun, causes=causes, empty=asked.empty
        )

    def _diagnosis(self, asked: _Asked, found: PartialFill) -> Diagnosis:
        policy = asked.gang.policy
        whole = (find(policy) if isinstance(policy, str) else policy).node_exclusive
        return Diagnosis(asked.seats, found.view, self._node_filters, self._layout, found.attempt, whole)

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
        asked = pod_requests(pod)
        needs, devices = self._layout.types(asked), requested_devices(asked)
        shape = PodShape(pod, InterPodRules.of(pod), NodeRules.of(pod, volumes))
        key: tuple[object, ...] = (tuple(needs.items()), shape.node.key, shape.others.key)
        claims = tuple((each, known[each]) for each in mounted)
        if claims:
            choices = tuple(
                tuple(c.volume for c in claim.choices) for _, claim in claims if claim.may_need_choice
            )
            key = (*key, choices, tuple(sorted(claim.driver for _, claim in claims)))
        if devices:
            key = (*key, tuple(sorted(devices.items())))
        self._profiles.pop(uid, None)
        if len(self._profiles) >= _KEPT:
            del self._profiles[next(iter(self._profiles))]
        found = self._profiles[uid] = PodProfile(pod, needs, shape, key, claims, devices)
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
