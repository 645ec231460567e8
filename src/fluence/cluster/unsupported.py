"""Requirements that this scheduler does not check itself.

A pod with such a requirement is refused with a reason; the scheduler never guesses. `requests` checks it
before it compiles a gang.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluence.model.claims import MAX_KINDS, TOO_MANY_KINDS
from fluence.model.grant import is_delegated
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason

_OPERATORS = frozenset(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
_POLICIES = frozenset(("Honor", "Ignore"))


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that cannot be placed as it is."""

    pod: str  # namespace/name
    reason: Reason

    def __bool__(self) -> bool:
        return False


def unchecked(pod: Pod) -> Refused | None:
    """The first requirement of a pod that only kube-scheduler checks."""
    spec, scheduler = pod.spec, pod.spec.scheduler_name
    if spec.overhead and TOO_MANY_KINDS in spec.overhead:
        return Refused(pod.key, Reason.of(Code.TOO_MANY_DEVICE_KINDS, most=MAX_KINDS))
    if is_delegated(pod):
        return None  # kube-scheduler checks it once more
    if spec.resource_claims:
        names = tuple(each.name for each in spec.resource_claims)
        return Refused(pod.key, Reason.of(Code.RESOURCE_CLAIMS_UNSUPPORTED, names=names, scheduler=scheduler))
    for toleration in spec.tolerations or ():
        if toleration.operator not in ("", "Equal", "Exists"):
            reason = Reason.of(
                Code.TOLERATION_OPERATOR_UNKNOWN, operator=toleration.operator, scheduler=scheduler
            )
            return Refused(pod.key, reason)
    affinity = spec.affinity.node_affinity if spec.affinity else None
    terms = [*((affinity.required.node_selector_terms or ()) if affinity and affinity.required else ())]
    terms += [each.preference for each in (affinity.preferred or ())] if affinity else []
    for term in terms:
        for each in (*(term.match_expressions or ()), *(term.match_fields or ())):
            if each.operator not in _OPERATORS:
                reason = Reason.of(
                    Code.NODE_AFFINITY_OPERATOR_UNKNOWN, operator=each.operator, scheduler=scheduler
                )
                return Refused(pod.key, reason)
    for spread in spec.topology_spread_constraints or ():
        known = spread.when_unsatisfiable in ("DoNotSchedule", "ScheduleAnyway")
        if not known or {spread.node_affinity_policy, spread.node_taints_policy} - _POLICIES:
            return Refused(pod.key, Reason.of(Code.SPREAD_POLICY_UNKNOWN, scheduler=scheduler))
    return None
