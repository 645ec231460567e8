"""Advice: what stands in the way of a gang now, and what would make it start sooner, found by trying.

Called by `fluence explain`. It asks a cluster what the scheduler asks (`gang.request_arguments`), and then
the same again without one rule at a time. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.unsupported import Refused
from fluence.match.placement import Never
from fluence.model.pod import Pod, PodSpec, Toleration
from fluence.model.reason import Code, Reason
from fluence.placer.gang import GangRequest, Seated
from fluence.schedule.gang import Gang, RequestArguments, request_arguments

# Rules of a pod without which it might fit: the field, whether a spec has it, the spec without it.
_RULES: tuple[tuple[str, Callable[[PodSpec], object], Callable[[PodSpec], PodSpec]], ...] = (
    ("nodeSelector", lambda spec: spec.node_selector, lambda spec: replace(spec, node_selector=None)),
    ("affinity", lambda spec: spec.affinity, lambda spec: replace(spec, affinity=None)),
    (
        "topologySpreadConstraints",
        lambda spec: spec.topology_spread_constraints,
        lambda spec: replace(spec, topology_spread_constraints=None),
    ),
)
_TOO_FEW_PODS = frozenset((Code.PODS_MISSING, Code.OWNER_RUNS_TOO_FEW))


@dataclass(frozen=True, slots=True)
class Advice:
    blocks: tuple[Reason, ...] = ()  # what stands in the way, per kind of pod
    sooner: tuple[Reason, ...] = ()  # what the user can do
    fits: bool = False  # there is room for it now


def advise(gang: Gang, cluster: ClusterGraph | None, *, now: int, excluded: Collection[str] = ()) -> Advice:
    """Nothing is changed: the cluster is only asked. Without a cluster, what is known without it.
    ``excluded``: nodes that the gang must not have, beside those of its annotations."""
    if gang.fault is not None:
        return Advice((gang.fault,))
    if gang.missing is not None:
        return Advice((gang.missing,), _complete(gang, gang.missing))
    if not gang.members:
        return Advice()
    sooner = [] if gang.limit is not None else [Reason.of(Code.GIVE_DURATION, key=names.DURATION)]
    if cluster is None:
        return Advice((), tuple(sooner))
    return _Trial(gang, cluster, request_arguments(gang, excluded), now).advice(sooner)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One gang asked of one cluster, in several ways."""

    gang: Gang
    cluster: ClusterGraph
    arguments: RequestArguments
    now: int

    def advice(self, sooner: list[Reason]) -> Advice:
        members, needed = self.arguments["pods"], self.arguments["minimum"]
        asked = self._ask(members, needed)
        if isinstance(asked, Refused):
            return Advice((Reason.of(Code.POD_REFUSED, pod=asked.pod, why=asked.reason),))
        outcome = self.cluster.try_now(asked, now=self.now)
        if isinstance(outcome, Seated):
            return Advice(fits=True)
        if isinstance(outcome, Never):
            sooner = [Reason.of(Code.NEVER_FITS)]
        return Advice(
            self._blocks(), (*self._fewer(members, needed), *self._relaxed(members, needed), *sooner)
        )

    def _ask(self, pods: Sequence[Pod], minimum: int) -> GangRequest | Refused:
        return self.cluster.gang(
            pods,
            minimum=minimum,
            policy=self.arguments["policy"],
            exclude=self._excluded(),
            topology=self.arguments["topology"],
        )

    def _excluded(self) -> frozenset[str]:
        """As the scheduler has it: by name, and by the constraint on names and labels."""
        exclude, constraint = self.arguments["exclude"], self.arguments["constraint"]
        return exclude if constraint is None else exclude | self.cluster.ruled_out(constraint)

    def _blocks(self) -> tuple[Reason, ...]:
        found = self.cluster.why(
            self.arguments["pods"],
            now=self.now,
            policy=self.arguments["policy"],
            exclude=self._excluded(),
            topology=self.arguments["topology"],
        )
        return tuple(found)

    def _fewer(self, members: Sequence[Pod], needed: int) -> list[Reason]:
        some = self._seats(members, 1) if needed > 1 else None
        if not some:
            return []
        return [
            Reason.of(
                Code.SOME_WOULD_FIT,
                some=some,
                needed=needed,
                group=_group_key(self.gang),
                key=names.GROUP_SIZE,
                enough=some + len(self.gang.placed),
            )
        ]

    def _relaxed(self, members: Sequence[Pod], needed: int) -> list[Reason]:
        found = []
        for field, has, without in _RULES:
            if any(has(pod.spec) for pod in members):
                changed = [replace(pod, spec=without(pod.spec)) for pod in members]
                if self._seats(_anew(changed), needed) is not None:
                    found.append(Reason.of(Code.FITS_WITHOUT, field=field))
        everything = Toleration(operator="Exists")
        tolerant = [replace(pod, spec=replace(pod.spec, tolerations=[everything])) for pod in members]
        if self._seats(_anew(tolerant), needed) is not None:
            found.append(Reason.of(Code.FITS_WITH_TOLERATIONS))
        return found

    def _seats(self, pods: Sequence[Pod], minimum: int) -> int | None:
        """How many would have a seat now, if at least ``minimum`` do."""
        asked = self._ask(pods, minimum)
        if isinstance(asked, Refused):
            return None
        seated = self.cluster.try_now(asked, now=self.now)
        return len(seated.seats) if isinstance(seated, Seated) else None


def _anew(pods: Sequence[Pod]) -> list[Pod]:
    """The same pods under other uids: the cluster keeps what it worked out by uid."""
    return [
        replace(pod, metadata=replace(pod.metadata, uid=f"{pod.metadata.uid}/what-if/{number}"))
        for number, pod in enumerate(pods)
    ]


def _complete(gang: Gang, missing: Reason) -> tuple[Reason, ...]:
    """What makes an incomplete gang complete."""
    if gang.gated and len(gang.members) + len(gang.gated) >= gang.needed:
        gates = sorted({gate.name for pod in gang.gated for gate in pod.spec.scheduling_gates or ()})
        return (Reason.of(Code.REMOVE_GATES, gates=tuple(gates)),)
    if missing.code is Code.OWNER_SUSPENDED:
        return (Reason.of(Code.UNSUSPEND),)
    more = gang.needed - len(gang.members) - len(gang.gated)
    if more > 0 and missing.code in _TOO_FEW_PODS:
        return (Reason.of(Code.CREATE_PODS, more=more, group=_group_key(gang), key=names.GROUP_SIZE),)
    return ()


def _group_key(gang: Gang) -> str | None:
    return gang.group.key if gang.group is not None else None
