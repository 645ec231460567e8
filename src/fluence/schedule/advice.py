"""Advice: what stands in the way of a gang now, and what would make it start sooner, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fluence import messages, names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.unsupported import Refused
from fluence.match.placement import Never
from fluence.model.pod import Pod, PodSpec, Toleration
from fluence.placer.gang import Seated
from fluence.schedule.groups import Gang
from fluence.schedule.planner import topology_of

_RELAXED: tuple[tuple[str, Callable[[PodSpec], object], Callable[[PodSpec], PodSpec]], ...] = (
    ("its nodeSelector", lambda spec: spec.node_selector, lambda spec: replace(spec, node_selector=None)),
    ("its affinity", lambda spec: spec.affinity, lambda spec: replace(spec, affinity=None)),
    (
        "its topologySpreadConstraints",
        lambda spec: spec.topology_spread_constraints,
        lambda spec: replace(spec, topology_spread_constraints=None),
    ),
)


@dataclass(frozen=True, slots=True)
class Advice:
    blocks: tuple[str, ...] = ()  # what stands in the way, per kind of pod
    sooner: tuple[str, ...] = ()  # what the user can do
    fits: bool = False  # there is room for it now


def advise(gang: Gang, cluster: ClusterGraph | None, *, now: int) -> Advice:
    """Nothing is changed: the cluster is only asked. Without a cluster, what can be said without it."""
    if gang.fault:
        return Advice((gang.fault,))
    if gang.missing:
        return Advice((gang.missing,), _complete(gang))
    if not gang.members:
        return Advice()
    sooner = []
    if gang.limit is None:
        sooner.append(
            f"say how long it takes in the annotation {names.DURATION}: "
            "work with a limit may go ahead where it delays nobody"
        )
    if cluster is None:
        return Advice((), tuple(sooner))
    return _try(gang, cluster, sooner, now)


def _try(gang: Gang, cluster: ClusterGraph, sooner: list[str], now: int) -> Advice:
    members, needed = gang.members, max(1, gang.needed)
    asked = cluster.gang(members, minimum=needed, policy=gang.policy, topology=topology_of(gang))
    if isinstance(asked, Refused):
        return Advice((f"pod {asked.pod}: {messages.text(asked.reason)}",))
    outcome = cluster.try_now(asked, now=now)
    if isinstance(outcome, Seated):
        return Advice(fits=True)
    if isinstance(outcome, Never):
        sooner = ["as the cluster is, it never fits: ask for less, or for other nodes"]
    topology = topology_of(gang)
    why = cluster.why(members, now=now, policy=gang.policy, topology=topology)
    blocks = [messages.text(each) for each in why]
    found: list[str] = []
    some = _seated(cluster, members, 1, gang, now) if needed > 1 else None
    if some:
        where = f"minCount of PodGroup {gang.group.key}" if gang.group is not None else names.GROUP_SIZE
        enough = some + len(gang.placed)
        found.append(f"{some} of {needed} pods would fit now: if they are enough, set {where} to {enough}")
    for what, has, without in _RELAXED:
        if any(has(pod.spec) for pod in members):
            changed = tuple(replace(pod, spec=without(pod.spec)) for pod in members)
            if _seated(cluster, _anew(changed), needed, gang, now) is not None:
                found.append(f"without {what} it would fit now")
    everything = Toleration(operator="Exists")
    tolerant = tuple(replace(pod, spec=replace(pod.spec, tolerations=[everything])) for pod in members)
    if _seated(cluster, _anew(tolerant), needed, gang, now) is not None:
        found.append("it would fit now on nodes whose taints it does not tolerate: add tolerations if it may")
    return Advice(tuple(blocks), (*found, *sooner))


def _seated(cluster: ClusterGraph, pods: Sequence[Pod], minimum: int, gang: Gang, now: int) -> int | None:
    """How many would have a seat now, if at least ``minimum`` do."""
    asked = cluster.gang(pods, minimum=minimum, policy=gang.policy, topology=topology_of(gang))
    if isinstance(asked, Refused):
        return None
    seated = cluster.try_now(asked, now=now)
    return len(seated.seats) if isinstance(seated, Seated) else None


def _anew(pods: tuple[Pod, ...]) -> tuple[Pod, ...]:
    """The same pods under other uids: the cluster keeps what it worked out by uid."""
    return tuple(
        replace(pod, metadata=replace(pod.metadata, uid=f"{pod.metadata.uid}/what-if/{number}"))
        for number, pod in enumerate(pods)
    )


def _complete(gang: Gang) -> tuple[str, ...]:
    if gang.gated and len(gang.members) + len(gang.gated) >= gang.needed:
        gates = sorted({gate.name for pod in gang.gated for gate in pod.spec.scheduling_gates or ()})
        return (f"its gates must be removed by whoever set them: {', '.join(gates)}",)
    if "suspended" in gang.missing:
        return ("set suspend: false on it",)
    more = gang.needed - len(gang.members) - len(gang.gated)
    if more > 0 and "pods" in gang.missing:
        where = f"minCount of PodGroup {gang.group.key}" if gang.group is not None else names.GROUP_SIZE
        return (f"create {more} more pod{'s' if more > 1 else ''} of it, or lower {where}",)
    return ()
