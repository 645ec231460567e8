"""Needs that this scheduler does not check itself.

A pod whose needs we do not understand is left to kube-scheduler (the delegating mode) or refused with a
reason; it is never guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluence.model.pod import Pod

_CURE = "use the delegating mode, in which kube-scheduler binds it"
_OPERATORS = frozenset(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
_POLICIES = frozenset(("Honor", "Ignore"))


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


def _left(pod: Pod, reason: str) -> Refused:
    return Refused(pod.key, f"{reason}; {_CURE}", True)
