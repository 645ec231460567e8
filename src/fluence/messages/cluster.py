"""What is said of nodes and seats: why pods are not placed, and which nodes fall to which cause."""

from __future__ import annotations

from fluence.messages.rendering import Templates, be, count, names, text, values
from fluence.messages.times import moment
from fluence.model.reason import Code, Reason
from fluence.names import DEVICE_PREFIX, RESOURCES_CONFIGMAP
from fluence.units import format_amount

_DELEGATE = "leave schedulerName out, and kube-scheduler places it"


def _too_few_seats(reason: Reason) -> str:
    """``pod`` is empty where the gang has no pods of another kind."""
    told = values(reason)
    whose = f" for {told['pod']}{_and_like(reason)}" if told["pod"] else ""
    nodes = count(told["nodes"], "node")
    if not told["seats"]:
        even = ", even if it were empty" if told["empty"] else ""
        return f"no seat{whose} on {nodes}{even}: {_causes(reason)}"
    some = f"{told['seats']} of {told['wanted']}"
    if told["empty"]:
        like = f" like {told['pod']}" if told["pod"] else ""
        fit = f"{some}{like} would fit if it were empty{_sums(reason)}"
        return f"{fit}, and the next finds no seat on {nodes}: {_causes(reason)}"
    return f"{some} seats{whose} on {nodes}{_sums(reason)}, none for the next: {_causes(reason)}"


def _not_together(reason: Reason) -> str:
    told = values(reason)
    empty = ", even if it were empty" if told["empty"] else ""
    return (
        f"{told['pod']}{_and_like(reason)}: enough seats by itself, but not beside the others on "
        f"{count(told['nodes'], 'node')}{empty}: {_causes(reason)}"
    )


def _causes(reason: Reason) -> str:
    told = values(reason)
    none = "the nodes that suit are full with these" if told["nodes"] else "there are no nodes"
    return "; ".join(map(text, told["causes"])) or none


def _sums(reason: Reason) -> str:
    found = ", ".join(map(text, values(reason)["sums"]))
    return f" ({found})" if found else ""


def _resource_sum(reason: Reason) -> str:
    told = values(reason)
    wanted, there = (format_amount(told["resource"], told[each]) for each in ("wanted", "there"))
    return f"{told['resource']}: {wanted} wanted in all, {there} there"


def _host_ports(reason: Reason) -> str:
    ports = values(reason)["ports"]
    if len(ports) == 1:
        return f"host port {ports[0]} is taken"
    return f"one of the host ports {', '.join(map(str, ports))} is taken"


def _pods_with(reason: Reason) -> str:
    return f"pod with {reason['selector']}" if reason["selector"] else "such pod"


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
    why += " even if it were empty" if told["empty"] else ""
    why += ", and others of the group are there" if told["begun"] else ", and no other value has more"
    causes = "; ".join(map(text, told["causes"]))
    return f"no seats in one domain of {key}: {why}" + (f"; the next finds there: {causes}" if causes else "")


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


def _device_type_unknown(reason: Reason) -> str:
    told = values(reason)
    asked = f"{DEVICE_PREFIX}{told['type']}"
    if not told["types"]:
        return f"{asked}: no devices are configured: ask for the ConfigMap {RESOURCES_CONFIGMAP} to be made"
    return f"{asked}: no device is of this type; there are {', '.join(told['types'])}"


def _no_attribute(reason: Reason) -> str:
    told = values(reason)
    known = f"they have {names(told['keys'])}" if told["keys"] else "they have none"
    return f"{told['key']!r} is an attribute that no such device has; {known}"


def _value_unknown(reason: Reason) -> str:
    told = values(reason)
    if told["operator"] == "=" and len(told["nearest"]) == 1:
        return f"no device has {told['key']}={told['value']}; did you mean {told['nearest'][0]}?"
    known = f"there {be(len(told['nearest']))} {names(told['nearest'])}"
    return f"no device has {told['key']}{told['operator']}{told['value']}; {known}"


def _device_too_few(reason: Reason) -> str:
    told = values(reason)
    return f"{told['wanted']} {told['type']} wanted, and there {be(told['most'])} {told['most']} at most"


def _device_busy(reason: Reason) -> str:
    """``until`` is None where nobody knows when enough is free."""
    told = values(reason)
    backends, wanted = told["backends"], told["wanted"]
    what = backends[0] if len(backends) == 1 else f"one of {names(backends)}"
    units = f"{wanted} {told['type']} of " if wanted > 1 else ""
    when = "" if told["until"] is None else f" until {moment(told['until'])}"
    return f"waits for {units}{what}{when}"


CLUSTER: Templates = {
    # -- fluence.cluster: a pod is not placed as it is --
    Code.RESOURCE_CLAIMS_UNSUPPORTED: lambda reason: (
        f"spec.resourceClaims ({', '.join(values(reason)['names'])}): devices of claims (DRA) are not "
        f"allocated here; {_DELEGATE}"
    ),
    Code.TOO_MANY_DEVICE_KINDS: (
        "pods of this namespace already ask for {most} kinds of devices, and no more are counted: wait until "
        "some of them end, or use the device class and the selectors of one of their ResourceClaimTemplates"
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
    Code.RESOURCE_SUM: _resource_sum,
    Code.HOST_PORTS_IN_USE: _host_ports,
    Code.TOPOLOGY_LABEL_MISSING: "no label {key}, over which it is to be spread",
    Code.TOPOLOGY_SPREAD: "topology spread over {key} (the skew would be {skew}, at most {most} is allowed)",
    Code.POD_AFFINITY: lambda reason: f"pod affinity: no {_pods_with(reason)} in the same {reason['key']}",
    Code.POD_ANTI_AFFINITY: lambda reason: (
        f"pod anti-affinity: a {_pods_with(reason)} is in the same {reason['key']}"
    ),
    Code.EXISTING_ANTI_AFFINITY: "anti-affinity of a pod in the same {key} against this one",
    Code.CLAIM_ON_ANOTHER_NODE: "claim {claim} is used on another node",
    Code.VOLUMES_TAKEN: "volumes of storage class {storage_class} are taken",
    Code.ATTACH_LIMIT: "no more volumes of {driver} can be attached",
    Code.TOO_FEW_VOLUMES: "too few volumes for all its claims",
    # -- fluence.cluster: devices that belong to no node --
    Code.DEVICE_TYPE_UNKNOWN: _device_type_unknown,
    Code.DEVICE_NO_ATTRIBUTE: _no_attribute,
    Code.DEVICE_VALUE_UNKNOWN: _value_unknown,
    Code.DEVICE_NONE_SUITS: lambda reason: (
        f"no {reason['type']} has {' and '.join(values(reason)['terms'])} together"
    ),
    Code.DEVICE_OFFLINE: lambda reason: (
        f"{names(reason['backends'])} {be(len(values(reason)['backends']))} offline, and no other "
        f"{reason['type']} suits"
    ),
    Code.DEVICE_TOO_FEW: _device_too_few,
    Code.DEVICE_BUSY: _device_busy,
    Code.DEVICES_CHANGED: "devices have changed",
    # -- fluence.cluster: seats came free --
    Code.POD_ENDED: "pod {pod} has {phase}",
    Code.POD_GONE: "pod {pod} is gone",
    Code.POD_NOT_BOUND: "pod {pod} was not bound",
    Code.LAST_POD_OF_JOB: "{cause}, and it was the last of its job",
    Code.JOB_RELEASED: "released",
    Code.SEAT_FOR_NEW_MEMBER: "its place is needed for a new member",
}
