"""Needs that this scheduler does not check itself, and what is known of a pod's volumes.

A pod whose needs we do not understand is left to kube-scheduler (the delegating mode) or refused with a
reason; it is never guessed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from fluence.model.pod import NodeSelector, Pod

_CURE = "use the delegating mode, in which kube-scheduler binds it"
_OPERATORS = frozenset(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
_POLICIES = frozenset(("Honor", "Ignore"))


@dataclass(frozen=True, slots=True)
class Claim:
    """What is known of a PersistentVolumeClaim.

    bound: its volume can be reached from ``nodes`` (None: from all). waits: it is bound when its first pod
    has a node (WaitForFirstConsumer), and ``nodes`` are those where a volume can be made. pending: neither.
    """

    state: Literal["bound", "waits", "pending"]
    nodes: NodeSelector | None = None
    one_pod: bool = False  # ReadWriteOncePod


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that is not placed as it is."""

    pod: str  # namespace/name
    reason: str
    delegate: bool  # kube-scheduler could bind it; False: something must happen first

    def __bool__(self) -> bool:
        return False


def unchecked(pod: Pod) -> Refused | None:
    """The first need of a pod that only kube-scheduler checks."""
    spec = pod.spec
    if spec.resource_claims:
        names = ", ".join(each.name for each in spec.resource_claims)
        return _left(pod, f"spec.resourceClaims ({names}): devices of claims (DRA) are not allocated here")
    for toleration in spec.tolerations or ():
        if toleration.operator not in ("", "Equal", "Exists"):
            return _left(pod, f"spec.tolerations: the operator {toleration.operator!r} is not known here")
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = [*((affinity.required.node_selector_terms or ()) if affinity and affinity.required else ())]
    terms += [each.preference for each in (affinity.preferred or ())] if affinity else []
    for term in terms:
        for each in (*(term.match_expressions or ()), *(term.match_fields or ())):
            if each.operator not in _OPERATORS:
                return _left(
                    pod, f"spec.affinity.nodeAffinity: the operator {each.operator!r} is not known here"
                )
    for spread in spec.topology_spread_constraints or ():
        known = spread.when_unsatisfiable in ("DoNotSchedule", "ScheduleAnyway")
        if not known or {spread.node_affinity_policy, spread.node_taints_policy} - _POLICIES:
            return _left(pod, "spec.topologySpreadConstraints: a policy in it is not known here")
    return None


def claims_of(pod: Pod) -> Iterator[str]:
    """The names of the claims that a pod mounts, those made for it alone included."""
    for volume in pod.spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def volumes_of(
    pod: Pod, known: Mapping[tuple[str, str], Claim]
) -> tuple[tuple[str, NodeSelector], ...] | Refused:
    """Where the volumes of a pod can be reached; or what is still missing."""
    found: list[tuple[str, NodeSelector]] = []
    for name in claims_of(pod):
        claim = known.get((pod.metadata.namespace, name))
        if claim is None:
            return Refused(pod.key, f"claim {name!r} is not there: create it", False)
        if claim.state == "pending":
            return Refused(pod.key, f"claim {name!r} has no volume yet: it must be bound first", False)
        if claim.nodes is not None:
            found.append((name, claim.nodes))
    return tuple(found)


def _left(pod: Pod, reason: str) -> Refused:
    return Refused(pod.key, f"{reason}; {_CURE}", True)
