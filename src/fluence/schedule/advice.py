"""Advice: what would make a gang start, or start sooner, found by trying.

Called by `inquiry`, with the request that the queue has for the gang: the same is asked again without one
rule at a time. A gang that waits is tried with what is free now; one that never fits, on the empty cluster,
so that nothing is said to fit now which never does. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec.structs import replace as changed

from fluence import names
from fluence.model.pod import Pod, PodSpec, Toleration
from fluence.model.reason import Code, Reason
from fluence.queue.job import FOREVER
from fluence.schedule.gang import Gang
from fluence.schedule.gate_dependency import DependencyKind
from fluence.schedule.planner import ClusterPlanner, PodSetRequest

# Rules of a pod without which it might fit: the field, whether a spec has it, the spec without it.
_RULES: tuple[tuple[str, Callable[[PodSpec], object], Callable[[PodSpec], PodSpec]], ...] = (
    ("nodeSelector", lambda spec: spec.node_selector, lambda spec: changed(spec, node_selector=None)),
    ("affinity", lambda spec: spec.affinity, lambda spec: changed(spec, affinity=None)),
    (
        "topologySpreadConstraints",
        lambda spec: spec.topology_spread_constraints,
        lambda spec: changed(spec, topology_spread_constraints=None),
    ),
)
_TOO_FEW_PODS = frozenset((Code.PODS_MISSING, Code.OWNER_RUNS_TOO_FEW))  # more can be made
_EVERYTHING = [Toleration(operator="Exists")]


def when_it_waits(
    gang: Gang, request: PodSetRequest, planner: ClusterPlanner, *, now: int, limit: int = FOREVER
) -> tuple[Reason, ...]:
    """What would give it seats now. Where there are some and others are in front of it, nothing would."""
    found: list[Reason] = []

    def fits(other: PodSetRequest) -> bool:
        return planner.seats_now(other, now, limit) is not None

    if not fits(request):
        if request.minimum > 1:
            some = planner.seats_now(replace(request, minimum=1), now, limit)
            if some:
                found.append(_fewer(gang, request, some, empty=False))
        found += _relaxed(request, planner, fits, Code.FITS_WITHOUT, Code.FITS_WITH_TOLERATIONS)
    if gang.limit is None:
        found.append(Reason.of(Code.GIVE_DURATION, key=names.DURATION))
    return tuple(found)


def when_it_never_fits(
    gang: Gang, request: PodSetRequest, planner: ClusterPlanner, why: Reason
) -> tuple[Reason, ...]:
    """What would let the empty cluster hold it; ``why`` it does not."""
    found: list[Reason] = []
    some = _seats(why)
    if some:
        found.append(_fewer(gang, request, some, empty=True))

    def fits(other: PodSetRequest) -> bool:
        return planner.feasibility(other) is None

    found += _relaxed(request, planner, fits, Code.HOLDS_WITHOUT, Code.HOLDS_WITH_TOLERATIONS)
    return tuple(found) or (Reason.of(Code.NEVER_FITS),)


def complete(gang: Gang, missing: Reason) -> tuple[Reason, ...]:
    """What makes an incomplete gang complete."""
    if missing.code is Code.WAITS_FOR_PRODUCER:
        if missing["kind"] != DependencyKind.QUANTUM_SUBMIT:
            return ()
        return (Reason.of(Code.ANNOUNCE_TASK, producer=missing["producer"], key=names.QUANTUM_JOB_ID),)
    if gang.gated and len(gang.members) + len(gang.gated) >= gang.needed:
        gates = sorted({gate.name for pod in gang.gated for gate in pod.spec.scheduling_gates or ()})
        return (Reason.of(Code.REMOVE_GATES, gates=tuple(gates)),)
    if missing.code is Code.OWNER_SUSPENDED:
        return (Reason.of(Code.UNSUSPEND),)
    more = gang.needed - len(gang.members) - len(gang.gated)
    if more > 0 and missing.code in _TOO_FEW_PODS:
        return (Reason.of(Code.CREATE_PODS, more=more, group=_group_key(gang), key=names.GROUP_SIZE),)
    return ()


# -- inside --------------------------------------------------------------------------------------------------


def _fewer(gang: Gang, request: PodSetRequest, some: int, *, empty: bool) -> Reason:
    return Reason.of(
        Code.SOME_WOULD_FIT,
        some=some,
        needed=request.minimum,
        group=_group_key(gang),
        key=names.GROUP_SIZE,
        enough=some + len(gang.placed),
        empty=empty,
    )


def _seats(why: Reason) -> int:
    """How many of its pods an empty cluster would hold, where they are of one kind."""
    causes = why["causes"] if why.code is Code.CLUSTER_CANNOT_HOLD else ()
    if not isinstance(causes, tuple) or len(causes) != 1 or not isinstance(causes[0], Reason):
        return 0
    seats = causes[0]["seats"] if causes[0].code is Code.TOO_FEW_SEATS else 0
    return seats if isinstance(seats, int) else 0


def _relaxed(
    request: PodSetRequest,
    planner: ClusterPlanner,
    fits: Callable[[PodSetRequest], bool],
    without: Code,
    tolerant: Code,
) -> list[Reason]:
    """The rules without which it would do."""

    def helps(other: PodSetRequest) -> bool:
        answer = fits(other)
        planner.forget(other)
        return answer

    def with_specs(change: Callable[[PodSpec], PodSpec]) -> PodSetRequest:
        return replace(request, pods=_anew([changed(pod, spec=change(pod.spec)) for pod in request.pods]))

    found = [
        Reason.of(without, field=field)
        for field, has, drop in _RULES
        if any(has(pod.spec) for pod in request.pods) and helps(with_specs(drop))
    ]
    if request.constraint is not None and helps(replace(request, constraint=None)):
        found.append(Reason.of(without, field=f"annotation {names.CONSTRAINTS}"))
    if request.exclude and helps(replace(request, exclude=frozenset())):
        found.append(Reason.of(without, field=f"annotation {names.EXCLUDED}"))
    if helps(with_specs(lambda spec: changed(spec, tolerations=_EVERYTHING))):
        found.append(Reason.of(tolerant))
    return found


def _anew(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The same pods under other uids: the cluster keeps what it worked out by uid."""
    return tuple(
        changed(pod, metadata=changed(pod.metadata, uid=f"{pod.metadata.uid}/what-if/{number}"))
        for number, pod in enumerate(pods)
    )


def _group_key(gang: Gang) -> str | None:
    return gang.group.key if gang.group is not None else None
