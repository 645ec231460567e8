"""Inquiry: what the scheduler would do with one gang on a cluster that was listed once, and what would help
it.

`fluence explain` calls it. It does not imitate the scheduler: it creates one with the same settings and the
same objects, and runs the cycle that a restarted scheduler would run. So constraints, excluded nodes, the
match policy, the queue policy and the jobs ahead count in the same way.

`inquiry` calls it with the queued request of the gang, and the same request is tried without one rule at a
time. A waiting gang is tried on the capacity that is free now. A gang that never fits is tried on the empty
cluster, so that the advice does not claim that it fits now. Taints are left out if they reserve nodes for
hardware that the gang does not request, or if Kubernetes keeps pods off a node by them. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from fluence import names
from fluence.cluster.filters.taints import REFUSING
from fluence.cluster.planner import ClusterPlanner, PodSetRequest
from fluence.model.job_state import JobState
from fluence.model.node import Node, Taint
from fluence.model.pod import Pod, PodSpec, Toleration, pod_requests
from fluence.model.reason import Code, Reason
from fluence.queue.job import FOREVER
from fluence.schedule.events import Changed, Object
from fluence.schedule.external_resources.gate_dependency import DependencyKind
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.pod_set import PodSet
from fluence.schedule.scheduler import Scheduler

# Rules of a pod without which it might fit: the field, whether a spec has it, and the spec without it.
_RULES: tuple[tuple[str, Callable[[PodSpec], object], Callable[[PodSpec], PodSpec]], ...] = (
    ("nodeSelector", lambda spec: spec.node_selector, lambda spec: changed(spec, node_selector=None)),
    ("affinity", lambda spec: spec.affinity, lambda spec: changed(spec, affinity=None)),
    (
        "topologySpreadConstraints",
        lambda spec: spec.topology_spread_constraints,
        lambda spec: changed(spec, topology_spread_constraints=None),
    ),
)
_TOO_FEW_PODS = frozenset((Code.PODS_MISSING, Code.OWNER_RUNS_TOO_FEW))  # more pods can be created
_EVERYTHING = [Toleration(operator="Exists")]
_OF_EVERY_NODE = ("cpu", "memory", "ephemeral-storage", "pods")
_KEPT_BY_KUBERNETES = ("kubernetes.io", "k8s.io", "ClusterAutoscaler")  # how the keys of its own taints end
_MAX_TAINTS = 8  # taints that are tried one by one


def when_it_waits(
    gang: Gang, request: PodSetRequest, planner: ClusterPlanner, *, now: int, limit: int = FOREVER
) -> tuple[Reason, ...]:
    """What would let a waiting gang start now. If it already fits and other jobs are ahead of it, nothing
    would."""
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
    """What would let the empty cluster hold a gang. ``why``: the reason that it cannot."""
    found: list[Reason] = []
    some = _seats(why)
    if some:
        found.append(_fewer(gang, request, some, empty=True))

    def fits(other: PodSetRequest) -> bool:
        return planner.feasibility(other) is None

    found += _relaxed(request, planner, fits, Code.HOLDS_WITHOUT, Code.HOLDS_WITH_TOLERATIONS)
    if found:
        return tuple(found)
    # If only taints are in the way, a smaller request would not help either.
    tolerant = _with_specs(request, lambda spec: changed(spec, tolerations=_EVERYTHING))
    is_tainted = fits(tolerant)
    planner.forget(tolerant)
    return () if is_tainted else (Reason.of(Code.NEVER_FITS),)


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


# -- internals -----------------------------------------------------------------------------------------------


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
    """How many of its pods the empty cluster would hold, if they are of one kind."""
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
    """The rules without which the request would fit."""

    def helps(other: PodSetRequest) -> bool:
        answer = fits(other)
        planner.forget(other)
        return answer

    found = [
        Reason.of(without, field=field)
        for field, has, drop in _RULES
        if any(has(pod.spec) for pod in request.pods) and helps(_with_specs(request, drop))
    ]
    if request.constraint is not None and helps(replace(request, constraint=None)):
        found.append(Reason.of(without, field=f"annotation {names.CONSTRAINTS}"))
    if request.exclude and helps(replace(request, exclude=frozenset())):
        found.append(Reason.of(without, field=f"annotation {names.EXCLUDED}"))

    def tolerating(taints: Sequence[Taint]) -> PodSetRequest:
        more = [
            Toleration(key=taint.key, operator="Equal", value=taint.value, effect=taint.effect)
            for taint in taints
        ]
        return _with_specs(
            request, lambda spec: changed(spec, tolerations=[*(spec.tolerations or ()), *more])
        )

    taints = _taints_of_use(request, planner)
    tries = [*([taint] for taint in taints), *([taints] if len(taints) > 1 else [])]
    enough = next((some for some in tries if helps(tolerating(some))), None)
    if enough is not None:
        found.append(Reason.of(tolerant, taints=tuple(f"{taint.key}: {taint.value}" for taint in enough)))
    return found


def _taints_of_use(request: PodSetRequest, planner: ClusterPlanner) -> list[Taint]:
    """Taints that users may tolerate: not those by which Kubernetes keeps pods off a node, and not those of
    nodes with hardware that the pods do not request."""
    nodes = [(node, _hardware(node)) for node in planner.cluster.nodes.values()]
    common = set.intersection(*(hardware for _, hardware in nodes)) if nodes else set()
    asked = {name for pod in request.pods for name in pod_requests(pod)}
    taints: dict[Taint, None] = {}
    for node, hardware in nodes:
        if hardware - common and not hardware & asked:
            continue
        for taint in node.spec.taints or ():
            is_kept = taint.key.partition("/")[0].endswith(_KEPT_BY_KUBERNETES)
            is_for_hardware = taint.key in hardware - asked
            if taint.effect in REFUSING and not is_kept and not is_for_hardware:
                taints[Taint(key=taint.key, value=taint.value, effect=taint.effect)] = None
    return list(taints)[:_MAX_TAINTS]


def _hardware(node: Node) -> set[str]:
    """The devices and huge pages that a node offers."""
    return {name for name, amount in node.allocatable().items() if amount and name not in _OF_EVERY_NODE}


def _with_specs(request: PodSetRequest, change: Callable[[PodSpec], PodSpec]) -> PodSetRequest:
    return replace(request, pods=_anew([changed(pod, spec=change(pod.spec)) for pod in request.pods]))


def _anew(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The same pods with other uids, because the cluster caches results by uid."""
    return tuple(
        changed(pod, metadata=changed(pod.metadata, uid=f"{pod.metadata.uid}/what-if/{number}"))
        for number, pod in enumerate(pods)
    )


def _group_key(gang: Gang) -> str | None:
    return gang.group.key if gang.group is not None else None


# Claims are not part of the cluster: they may be created or freed later.
_MAY_COME = frozenset((Code.CLAIM_MISSING, Code.CLAIM_PENDING, Code.CLAIM_IN_USE, Code.CLAIM_ASKED_TWICE))
# Only the user can change groups with these reasons; they never become complete.
_NEVER_GATHER = frozenset((Code.OWNER_IS_ORDERED, Code.OWNER_RUNS_TOO_FEW))
_NEVER_STARTS = frozenset((Code.DEPENDENCY_NEVER_SATISFIED, Code.DEPENDENCY_CYCLE))


@dataclass(frozen=True, slots=True)
class NextCycle:
    """What would happen to a gang in the next cycle, and what would help it."""

    blocks: tuple[Reason, ...] = ()  # why it does not start
    sooner: tuple[Reason, ...] = ()  # what the user can do
    starts: bool = False  # all waiting pods get a node
    never: bool = False  # only a change of the gang or of the nodes helps
    ahead: int | None = None  # how many groups wait ahead of it in the queue


class Inquiry:
    """``scheduler`` is new and has observed nothing. It cannot be used for anything else afterwards."""

    def __init__(self, scheduler: Scheduler, objects: Iterable[Object], now: int) -> None:
        self._scheduler = scheduler
        self._now = now
        self._ran = False
        scheduler.handle([Changed(None, each) for each in objects], now, decide=False)
        scheduler.settle_placeholders(now)  # held Jobs have no pods
        self.groups = scheduler.state.groups

    def about(self, gang: Gang, *, with_cluster: bool = True) -> NextCycle:
        """``with_cluster``: all nodes and pods are known. If not, the answer covers only what the gang itself
        lacks."""
        known = finding_without_cluster(gang)
        if known is not None or not with_cluster:
            return known or NextCycle()
        self._run()
        state = self._scheduler.state
        waiting = [each for each in state.pod_sets.of_group(gang.key).values() if not each.state.has_nodes]
        if all(pod.metadata.uid in state.pod_sets.by_pod for pod in gang.members):
            return NextCycle(starts=True)
        settles = state.settling.reason(gang.key)
        if settles is not None:
            return NextCycle((settles,))
        depends = state.eligibility.reason(gang.key)
        if depends is not None:
            return NextCycle((depends,), never=depends.code in _NEVER_STARTS)
        if not waiting:
            return NextCycle()  # quarantined: its condition says so
        return self._waits(gang, min(waiting, key=lambda each: each.key))

    def _run(self) -> None:
        """Run cycles until nothing more starts."""
        while not self._ran:
            decisions = self._scheduler.handle((), self._now)
            self._ran = not (decisions.binds or self._scheduler.has_more)

    def _waits(self, gang: Gang, pod_set: PodSet) -> NextCycle:
        state, request = self._scheduler.state, pod_set.request
        report = state.reports.report(pod_set, self._now)
        if report.state is not JobState.UNSCHEDULABLE:
            helps = when_it_waits(gang, request, state.planner, now=self._now, limit=pod_set.limit)
            place = state.pod_sets.places(state.queue.waiting()).get(gang.key)
            return NextCycle(report.reasons, helps, ahead=None if place is None else place - 1)
        (why,) = report.reasons
        helps = ()
        if why.code is Code.CLUSTER_CANNOT_HOLD:
            helps = when_it_never_fits(gang, request, state.planner, why)
        return NextCycle(report.reasons, helps, never=why.code not in _MAY_COME)


def finding_without_cluster(gang: Gang) -> NextCycle | None:
    """What is known of a gang without nodes; None if the answer depends on them."""
    if gang.fault is not None:
        return NextCycle((gang.fault,), never=True)
    if gang.missing is not None:
        never = gang.missing.code in _NEVER_GATHER
        return NextCycle((gang.missing,), complete(gang, gang.missing), never=never)
    return None if gang.members else NextCycle()
