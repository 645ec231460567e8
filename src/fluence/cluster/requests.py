"""Requests: the pods of a group as one request, compiled for the current nodes; and why it does not fit.

The scheduler passes a `PodSetRequest` through the queue to the placer. `GangRequests` compiles it into a
`PodGang`: one entry per distinct shape of pod, with the nodes open to it. The profile of a pod is computed
once, until the pod or its claims change (kube-scheduler's PodInfo). Only `ClusterGraph` uses it.
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
from fluence.cluster.filters.ports import HostPorts
from fluence.cluster.filters.volumes import ClaimIndex, ClaimNeeds, VolumeRules, mounts
from fluence.cluster.layout import GraphLayout
from fluence.cluster.pod_index import GangContext, InterPodRules, PodIndex, PodShape, SiblingCount, Siblings
from fluence.cluster.pods import PodTable
from fluence.cluster.unsupported import Refused, unchecked
from fluence.graph.graph import Ints
from fluence.match.policy import MatchPolicy, find
from fluence.model.claims import Key
from fluence.model.constraint import Constraint
from fluence.model.external_resources import DeviceRequest, requested_devices
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.reason import Code, Reason
from fluence.placer.backends import BackendTable, DeviceNeed
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangRequest, Members, PartialFill
from fluence.placer.profile import FreeView

_MAX_PROFILES = 65_536  # profiles in the cache; those of larger gangs are computed each time


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """All pods must be in one domain: nodes with one value of a label, that of the pods already placed."""

    key: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class PodSetRequest:
    """Pods that start together, and their requirements as a group. Two requests are never equal."""

    pods: tuple[Pod, ...]
    minimum: int = 0  # this many start together or none; 0: all of them
    policy: str | MatchPolicy | None = None  # None: the cluster's
    exclude: frozenset[str] = frozenset()  # nodes that refused this group
    constraint: Constraint | None = None  # on names, ranks and labels of nodes (RFC 31)
    topology: TopologyDomain | None = None
    devices: DeviceRequest | None = None  # external resources
    number: int = -1  # of its job in the ledger, derived from a uid
    # Whether its pods are spread over nodes and zones instead of placed by the match policy alone. None: only
    # the pods of services, if the cluster spreads these.
    spread: bool | None = None

    def __post_init__(self) -> None:
        if not self.minimum:
            object.__setattr__(self, "minimum", len(self.pods))


@dataclass(frozen=True, slots=True, eq=False)
class PodProfile:
    """The requirements of a pod, computed once."""

    pod: Pod
    needs: dict[str, int]
    shape: PodShape
    key: tuple[object, ...]  # equal for equal pods, without their labels
    claims: tuple[tuple[Key, Claim], ...] = ()  # that it mounts, with their state
    devices: Mapping[str, int] = field(default_factory=dict)  # external resources, by type

    @property
    def mounts(self) -> tuple[Key, ...]:
        return tuple(key for key, _ in self.claims)


Kinds = Sequence[Sequence[PodProfile]]  # equal pods grouped together


@dataclass(frozen=True, slots=True, eq=False)
class PodGang(GangRequest):
    """A compiled request. It is valid until a node changes (`stamp`)."""

    kinds: Kinds = ()  # the pods of each of its members
    topology: TopologyDomain | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether its compiled form depends only on the nodes, not on other pods, claims or devices."""
        return self.rules is None and not self.devices and not any(kind[0].claims for kind in self.kinds)


@dataclass(frozen=True, slots=True, eq=False)
class _Question:
    """A query about a gang, and its conditions."""

    gang: PodGang
    fit: GangFit
    view: FreeView  # what is free
    at: int
    empty: bool  # assume an empty cluster

    def progress(self, gang: GangRequest, *, partial: bool = True) -> PartialFill | None:
        return self.fit.progress(gang, self.view, at=self.at, empty=self.empty, partial=partial)


class GangRequests:
    """Compiles requests into gangs."""

    def __init__(
        self,
        layout: GraphLayout,
        pods: PodTable,
        columns: NodeColumns,
        leaving_by: Callable[[int], Collection[str]],
        backends: BackendTable,
    ) -> None:
        self.index = PodIndex(pods, columns)
        self.siblings = Siblings(pods, self.index, columns)
        self.claims = ClaimIndex(pods, columns)
        self._ports = HostPorts(pods, columns)
        self._layout = layout
        self._columns = columns
        self._node_filters = NodeFilters(columns)
        self._backends = backends
        self._leaving_by = leaving_by  # the pods of jobs that end by a time
        # By uid, the oldest first. A plain dict, because it is read for every pod of every gang.
        self._profiles: dict[str, PodProfile] = {}

    def forget(self, uid: str) -> None:
        """A pod is gone, or over."""
        self._profiles.pop(uid, None)

    def compile(
        self,
        request: PodSetRequest,
        *,
        policy: str | MatchPolicy,
        exclude: Collection[str],
        spread_services: bool,
    ) -> PodGang | Refused:
        """Compile a request for the current nodes and devices. ``policy`` and ``spread_services`` are the
        defaults of the cluster. ``exclude``: the nodes that it must not use."""
        kinds = self._kinds(request.pods)
        if isinstance(kinds, Refused):
            return kinds
        topology, devices = request.topology, request.devices
        spread = spread_services if request.spread is None else request.spread
        siblings = self._siblings(kinds, always=bool(request.spread)) if spread else ()
        gang = PodGang(
            tuple(self._members_of(kind, exclude, least_allocated=bool(siblings)) for kind in kinds),
            request.minimum if request.minimum < len(request.pods) else None,
            policy if request.policy is None else request.policy,
            self._rules(kinds, siblings),
            self._columns.generation,
            None if topology is None else self._domains(topology),
            self._needed_devices(kinds, devices),
            kinds,
            topology,
        )
        if devices is not None and (reason := refusal(self._backends, devices, gang.devices)) is not None:
            return Refused(request.pods[0].key, reason)
        return gang

    def equivalence_key(self, pods: Sequence[Pod]) -> frozenset[tuple[Hashable, int]] | None:
        """A key that is equal for gangs that get the same placements; None: there is no such key."""
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
        self, gang: PodGang, fit: GangFit, *, now: int, duration: int | None = None, empty: bool = False
    ) -> list[Reason]:
        """Why a gang does not fit now or, with ``empty``, on the empty cluster: devices first."""
        view = fit.empty() if empty else fit.look(now, duration)
        reasons = busy(fit, gang, view, now=now, duration=duration) if gang.devices else []
        asked = _Question(gang, fit, view, now, empty)
        nodes = len(self._columns)
        short = [each.reason(Code.TOO_FEW_SEATS, nodes=nodes, empty=empty) for each in self._shortages(asked)]
        if gang.topology is not None:
            # The devices may be the only obstacle.
            if not reasons or asked.progress(gang) is not None:
                reasons.append(self._in_one_domain(asked, gang.topology))
            return [*reasons, *short]
        if not short and len(gang.kinds) > 1:
            # Each kind fits by itself, so the obstacle is the other kinds, or reservations of other jobs.
            stuck = self._beside_the_others(asked)
            if stuck is not None:
                short = [stuck.reason(Code.NOT_TOGETHER, nodes=nodes, empty=empty)]
        return [*reasons, *short]

    def closed(self, pod: Pod, node: int) -> Reason | None:
        """Why a node is closed to a pod, regardless of free resources and volumes."""
        rules = NodeRules.of(pod)
        if self._node_filters.allowed(rules)[node]:
            return None
        return next(why for why, open_ in self._node_filters.open_nodes(rules) if not open_[node])

    # -- inside ----------------------------------------------------------------------------------------------

    def _needed_devices(self, kinds: Kinds, asked: DeviceRequest | None) -> tuple[DeviceNeed, ...]:
        if asked is None:
            return ()
        pods: dict[Hashable, Mapping[str, int]]
        pods = {each.pod.metadata.uid: each.devices for kind in kinds for each in kind}
        return tuple(self._backends.needs(asked, pods))

    def _shortages(self, asked: _Question) -> Iterator[Shortage]:
        """The kinds of pods that do not fit even by themselves."""
        for members, kind in zip(asked.gang.members, asked.gang.kinds, strict=True):
            alone = GangRequest((members,), None, asked.gang.policy, self._rules([kind]))
            found = asked.progress(alone)
            if found is not None:
                yield self._shortage(asked, found, members, kind, 0, found.seated)

    def _beside_the_others(self, asked: _Question) -> Shortage | None:
        """The kind of pods that does not fit together with the others."""
        found = asked.progress(asked.gang, partial=False)
        if found is None or found.stuck is None:
            return None
        number = found.stuck
        members, kind = asked.gang.members[number], asked.gang.kinds[number]
        return self._shortage(asked, found, members, kind, number, 0)

    def _shortage(
        self,
        asked: _Question,
        found: PartialFill,
        members: Members,
        kind: Sequence[PodProfile],
        number: int,
        seats: int,
    ) -> Shortage:
        diagnosis = self._diagnosis(asked, found)
        return Shortage(
            kind[0].pod.key if len(asked.gang.kinds) > 1 else "",
            len(members.pods),
            seats,
            diagnosis.sums(members, asked.view),
            diagnosis.nodes(members, kind[0].shape, number),
        )

    def _in_one_domain(self, asked: _Question, topology: TopologyDomain) -> Reason:
        """What the domain lacks in which the most pods fit."""
        gang, key = asked.gang, topology.key
        domains = domain_seats(gang, key, asked.fit, self._columns, asked.view)
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
                shape = asked.gang.kinds[number][0].shape
                causes = self._diagnosis(asked, found).nodes(gang.members[number], shape, number, inside)
        begun = bool(topology.nodes)
        return too_few_in_one_domain(
            key, wanted=gang.size, domains=domains, begun=begun, causes=causes, empty=asked.empty
        )

    def _diagnosis(self, asked: _Question, found: PartialFill) -> Diagnosis:
        policy = asked.gang.policy
        whole = (find(policy) if isinstance(policy, str) else policy).node_exclusive
        return Diagnosis(asked.fit, found.view, self._node_filters, self._layout, found.attempt, whole)

    def _domains(self, topology: TopologyDomain) -> Ints:
        """The domain of each node. If some pods are already placed, only their domains."""
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
        if len(self._profiles) >= _MAX_PROFILES:
            del self._profiles[next(iter(self._profiles))]
        found = self._profiles[uid] = PodProfile(pod, needs, shape, key, claims, devices)
        return found

    def _kinds(self, pods: Sequence[Pod]) -> list[list[PodProfile]] | Refused:
        """Group pods by shape. Labels count only if a rule depends on them."""
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

    def _siblings(self, kinds: Kinds, *, always: bool) -> Sequence[SiblingCount | None]:
        """The siblings from which the pods of each kind are spread; empty: they are not spread. ``always``:
        pods without siblings are spread from each other. Kinds with their own spread constraints are left
        out."""
        counts = [self.siblings.of(kind[0].pod) or (self._nobody if always else None) for kind in kinds]
        if all(count is None for count in counts):
            return ()
        own = [bool(kind[0].pod.spec.topology_spread_constraints) for kind in kinds]
        return [None if has_own else count for has_own, count in zip(own, counts, strict=True)]

    def _nobody(self, leaving: Collection[str]) -> Ints:
        return np.zeros(len(self._columns), np.int64)

    def _members_of(
        self, kind: Sequence[PodProfile], exclude: Collection[str], *, least_allocated: bool
    ) -> Members:
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
            least_allocated,
        )

    def _rules(
        self, kinds: Kinds, siblings: Sequence[SiblingCount | None] = ()
    ) -> InterPodFilters | VolumeRules | None:
        """The rules about other pods and about volumes, if there are any."""
        others = self._interpod_filters([kind[0].shape for kind in kinds], siblings)
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

    def _interpod_filters(
        self, shapes: Sequence[PodShape], siblings: Sequence[SiblingCount | None]
    ) -> InterPodFilters | None:
        if siblings or any(
            shape.others.forbid or shape.others.prefer or self.index.is_kept_away(shape.pod)
            for shape in shapes
        ):
            return InterPodFilters(replace(self._context(shapes), siblings=siblings), self._leaving_by)
        return None

    def _context(self, shapes: Sequence[PodShape]) -> GangContext:
        return GangContext(shapes, self.index, self._ports, self._columns, self._node_filters)
