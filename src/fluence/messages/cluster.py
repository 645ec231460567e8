"""What is said of nodes and seats: why pods are not placed, and which nodes fall to which cause."""

from __future__ import annotations

from fluence.messages.rendering import Templates, text, values
from fluence.model.reason import Code, Reason
from fluence.units import format_amount

_DELEGATE = "leave schedulerName out, and kube-scheduler places it"


def _too_few_seats(reason: Reason) -> str:
    """``pod`` is empty where the gang has no pods of another kind."""
    told = values(reason)
    found = "no seat" if not told["seats"] else f"{told['seats']} of {told['wanted']} seats"
    whose = f" for {told['pod']}{_and_like(reason)}" if told["pod"] else ""
    none = "the nodes that suit are full with these" if told["nodes"] else "there are no nodes"
    causes = "; ".join(map(text, told["causes"])) or none
    return f"{found}{whose} on {told['nodes']} nodes: {causes}"


def _not_together(reason: Reason) -> str:
    return f"{reason['pod']}{_and_like(reason)}: enough seats by itself, but not together with the others"


def _and_like(reason: Reason) -> str:
    wanted = values(reason)["wanted"]
    return f" (and {wanted - 1} like it)" if wanted > 1 else ""


def _one_domain(reason: Reason) -> str:
    told = values(reason)
    key, wanted = told["key"], told["wanted"]
    if not told["domains"]:
        return f"no node has the label {key}, which its PodGroup names"
    best, most = max(told["domains"], key=lambda each: each[1])
    if most >= wanted:
        why = f"{key}={best} has seats for each, but not for all together"
    else:
        why = f"{key}={best} has seats for {most} of {wanted}"
    why += ", and others of the group are there" if told["begun"] else ", and no other value has more"
    return f"no seats in one domain of {key}: {why}"


def _nodes(reason: Reason) -> str:
    told = values(reason)
    return f"{len(told['names'])} {text(told['cause'])}"


def _taint(reason: Reason) -> str:
    told = values(reason)
    shown = f"{told['key']}={told['value']}" if told["value"] else told["key"]
    return f"taint {shown}:{told['effect']}"


def _node_selector(reason: Reason) -> str:
    told = ", ".join(f"{key}={value}" for key, value in values(reason)["labels"])
    return f"nodeSelector {told} does not match"


def _wanted(reason: Reason) -> str:
    """``largest`` is given where more is asked for than can be counted."""
    told = values(reason)
    name = told["resource"]
    wanted = f"{format_amount(name, told['wanted'])} wanted"
    if told["largest"] is not None:
        wanted += f", the largest node has {format_amount(name, told['largest'])}"
    return f"{name} ({wanted})"


CLUSTER: Templates = {
    # -- fluence.cluster: a pod is not placed as it is --
    Code.RESOURCE_CLAIMS_UNSUPPORTED: lambda reason: (
        f"spec.resourceClaims ({', '.join(values(reason)['names'])}): devices of claims (DRA) are not "
        f"allocated here; {_DELEGATE}"
    ),
    Code.TOLERATION_OPERATOR_UNKNOWN: (
        f"spec.tolerations: the operator {{operator!r}} is not known here; {_DELEGATE}"
    ),
    Code.NODE_AFFINITY_OPERATOR_UNKNOWN: (
        f"spec.affinity.nodeAffinity: the operator {{operator!r}} is not known here; {_DELEGATE}"
    ),
    Code.SPREAD_POLICY_UNKNOWN: (
        f"spec.topologySpreadConstraints: a policy in it is not known here; {_DELEGATE}"
    ),
    Code.CLAIM_MISSING: lambda reason: (
        f"claim {reason['claim']!r} is not there: {'it is made soon' if reason['ephemeral'] else 'create it'}"
    ),
    Code.CLAIM_OF_ANOTHER_POD: (
        "claim {claim!r} was not made for this pod: rename the volume, or delete the claim"
    ),
    Code.CLAIM_PENDING: "claim {claim!r} {lacks}",
    Code.CLAIM_IN_USE: "claim {claim!r} is ReadWriteOncePod, and pod {pod} uses it",
    Code.CLAIM_ASKED_TWICE: "claim {claim!r} is ReadWriteOncePod, and pod {pod} wants it too",
    Code.CLAIM_TERMINATING: "is being deleted",
    Code.CLAIM_UNBOUND: "has no volume yet: it must be bound first",
    Code.CLAIM_LOST: "has no volume yet: it must be bound first (its volume is lost)",
    Code.STORAGE_CLASS_MISSING: "names the storage class {storage_class!r}, which is not there",
    # -- fluence.cluster: a gang finds no seats now --
    Code.TOO_FEW_SEATS: _too_few_seats,
    Code.NOT_TOGETHER: _not_together,
    Code.TOO_FEW_SEATS_IN_ONE_DOMAIN: _one_domain,
    Code.NODES: _nodes,
    Code.NODE_UNSCHEDULABLE: "cordoned",
    Code.NODE_NOT_READY: "not ready",
    Code.TAINT_NOT_TOLERATED: _taint,
    Code.NODE_SELECTOR_MISMATCH: _node_selector,
    Code.NODE_AFFINITY_MISMATCH: "required node affinity does not match",
    Code.VOLUME_OUT_OF_REACH: "volume of claim {claim}: not reachable",
    Code.VOLUME_NOT_PROVIDED: "no volume of storage class {storage_class} there",
    Code.NODE_EXCLUDED: "excluded for this group",
    Code.NODE_HELD_WHOLE: "held as a whole by another job",
    Code.NODE_IN_USE: "in use, and a whole node is wanted",
    Code.RESOURCES_LACKING: lambda reason: " and ".join(map(text, values(reason)["resources"])),
    Code.RESOURCE_INSUFFICIENT: lambda reason: f"insufficient {_wanted(reason)}",
    Code.RESOURCE_TOO_SMALL: lambda reason: f"too small: {_wanted(reason)}",
    Code.HOST_PORTS_IN_USE: "host ports are taken",
    Code.TOPOLOGY_SPREAD: "topology spread over {key}",
    Code.POD_AFFINITY: "pod affinity: no such pod in the same {key}",
    Code.POD_ANTI_AFFINITY: "pod anti-affinity: such a pod is in the same {key}",
    Code.EXISTING_ANTI_AFFINITY: "anti-affinity of a pod in the same {key} against this one",
    Code.CLAIM_ON_ANOTHER_NODE: "claim {claim} is used on another node",
    Code.VOLUMES_TAKEN: "volumes of storage class {storage_class} are taken",
    Code.ATTACH_LIMIT: "no more volumes of {driver} can be attached",
    Code.TOO_FEW_VOLUMES: "too few volumes for all its claims",
    # -- fluence.cluster: seats came free --
    Code.POD_ENDED: "pod {pod} has {phase}",
    Code.POD_GONE: "pod {pod} is gone",
    Code.POD_NOT_BOUND: "pod {pod} was not bound",
    Code.LAST_POD_OF_JOB: "{cause}, and it was the last of its job",
    Code.JOB_RELEASED: "released",
    Code.SEAT_FOR_NEW_MEMBER: "its place is needed for a new member",
}
