"""Held work: pods and owners that admission held back until their gang starts, and who binds them.

A pod is held by the gate `fluxqueue`, a Job by being suspended; the label `fluxqueue.seen` says that it was
admission's doing, so that a gate or a suspension of the user's own is left alone. Who is named in
`schedulerName` binds: this scheduler, or kube-scheduler where the plan pins the pods. Pure functions of one
object; `groups`, `gang` and `stand_ins` ask.
"""

from __future__ import annotations

from fluence import names
from fluence.model.grant import pod_grant
from fluence.model.owner import Owner
from fluence.model.pod import Pod, PodSpec

JOB_CONTROLLER = "kubernetes.io/job-controller"
STAND_IN = "#"  # in the uid of a pod that stands for one still to be made: in no name, and in no other uid


def is_seen(of: Pod | Owner) -> bool:
    """Whether admission held this back, or its owner."""
    return (of.metadata.labels or {}).get(names.SEEN) == names.SEEN_YES


def has_gate(spec: PodSpec) -> bool:
    """Whether our gate is on it."""
    return any(each.name == names.GATE_FLUXQUEUE for each in spec.scheduling_gates or ())


def is_held(pod: Pod) -> bool:
    """Whether a pod waits behind our gate, and ours alone: it may be placed, and is let go when it is."""
    gates = pod.spec.scheduling_gates or ()
    return len(gates) == 1 and gates[0].name == names.GATE_FLUXQUEUE and is_seen(pod)


def is_closed(pod: Pod) -> bool:
    """Whether somebody else's gate keeps a pod from being placed."""
    return pod.is_gated and not is_held(pod)


def is_delegated(pod: Pod) -> bool:
    """Whether kube-scheduler binds this pod where the plan says: it names kube-scheduler, and waits behind
    our gate or was handed over."""
    if pod.spec.scheduler_name != names.KUBE_SCHEDULER or not is_seen(pod):
        return False
    return has_gate(pod.spec) or STAND_IN in pod.metadata.uid or _handed_over_to(pod) is not None


def is_ours(pod: Pod, scheduler: str) -> bool:
    """Whether this scheduler decides where a pod goes."""
    return pod.spec.scheduler_name == scheduler or is_delegated(pod)


def pinned_node(pod: Pod) -> str | None:
    """The node that a pod which was handed to kube-scheduler is pinned to."""
    if pod.is_gated or pod.spec.scheduler_name != names.KUBE_SCHEDULER or not is_seen(pod):
        return None
    return _handed_over_to(pod)


def _handed_over_to(pod: Pod) -> str | None:
    """The node that a pod is on, or is pinned to by its spec, if that is the node which it was granted.
    Anybody may pin their own pod anywhere, and nobody but the scheduler may write the grant."""
    granted = pod_grant(pod)
    return granted.node if granted is not None and granted.node == (pod.spec.node_name or _pin(pod)) else None


def _pin(pod: Pod) -> str | None:
    """The one node that a pod's affinity allows by name. It cannot be changed once no gate holds the pod."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    found: set[str] = set()
    for term in terms or ():
        if not term.match_fields and not term.match_expressions:
            continue  # it matches no node
        allowed = [
            set(each.values or ())
            for each in term.match_fields or ()
            if each.key == "metadata.name" and each.operator == "In"
        ]
        if not allowed:
            return None
        found |= set.intersection(*allowed)
    return found.pop() if len(found) == 1 else None


def is_cancelled(of: Pod | Owner) -> bool:
    """Whether its FluxJob was deleted: it stays held until somebody removes the annotation."""
    return names.CANCELLED in (of.metadata.annotations or {})


def places_us(owner: Owner, scheduler: str) -> bool:
    """Whether the pods of an owner will be ours, by its template."""
    template = owner.spec.template
    if template is None or not is_seen(owner) or owner.spec.managed_by not in (None, JOB_CONTROLLER):
        return False  # nobody knows whether another controller makes pods at all
    name = template.spec.scheduler_name or names.KUBE_SCHEDULER
    if name == scheduler:
        return True
    # A suspended Job whose pods kube-scheduler shall bind gets the gate when it is let go.
    return name == names.KUBE_SCHEDULER and (has_gate(template.spec) or owner.spec.suspend)
