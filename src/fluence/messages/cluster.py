"""Messages about nodes, volumes and external resources: why pods are not placed.

If kube-scheduler has a message for a cause, its words are used; what only Fluence knows follows in
parentheses or in a sentence of its own. docs/messages.md has both side by side.

    0/8 nodes are available: 6 Insufficient cpu, 2 node(s) had untolerated taint {gpu: }. 1 of 4 pods of the
    group fit
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluence.messages.rendering import Templates, be, moment, names, text, values
from fluence.model.reason import Code, Reason
from fluence.names import DEVICE_PREFIX, KUBE_SCHEDULER, RESOURCES_CONFIGMAP
from fluence.units import format_amount

# -- how many pods fit ---------------------------------------------------------------------------------------


def _too_few_seats(reason: Reason) -> str:
    """``pod`` is empty if all pods of the group are alike."""
    params = values(reason)
    available = _available(reason)
    if params["wanted"] == 1:
        return available
    pods = "such pods" if params["pod"] else "pods of the group"
    fit = "would fit" if params["empty"] else "fit"
    return f"{available}. {params['seats']} of {params['wanted']} {pods} {fit}{_sums(reason)}"


def _not_together(reason: Reason) -> str:
    others = "the other pods of its group"
    return f"{_available(reason)}. It fits alone, but not together with {others}"


def _available(reason: Reason) -> str:
    """kube-scheduler's first sentence: ``0/8 nodes are available: 6 Insufficient cpu``."""
    params = values(reason)
    if not params["nodes"]:
        return "no nodes available to schedule pods"
    pod = f" for pod {params['pod']}{_and_like(reason)}" if params["pod"] else ""
    empty = ", even if empty" if params["empty"] else ""
    causes = _histogram(params["causes"]) or "the pods of the group fill the nodes that match"
    return f"0/{params['nodes']} nodes are available{pod}{empty}: {causes}"


def _one_domain(reason: Reason) -> str:
    params = values(reason)
    key, wanted = params["key"], params["wanted"]
    if not params["domains"]:
        return f"No node has the label {key}, which the PodGroup requires"
    best, most = max(params["domains"], key=lambda domain: domain[1])
    fit = f"{key}={best} fits {most} of {wanted} pods"
    if most >= wanted:
        fit = f"{key}={best} fits each pod, but not all {wanted} together"
    fit += " even if empty" if params["empty"] else ""
    fit += ", and other pods of the group run there" if params["begun"] else ", and no other value fits more"
    causes = _histogram(params["causes"])
    return f"No single {key} fits the group: {fit}" + (f" ({causes})" if causes else "")


def _and_like(reason: Reason) -> str:
    wanted = values(reason)["wanted"]
    return f" (and {wanted - 1} like it)" if wanted > 1 else ""


def _sums(reason: Reason) -> str:
    sums = ", ".join(map(text, values(reason)["sums"]))
    return f" ({sums})" if sums else ""


def _resource_sum(reason: Reason) -> str:
    params = values(reason)
    wanted, there = (format_amount(params["resource"], params[key]) for key in ("wanted", "there"))
    return f"{params['resource']}: {wanted} requested, {there} available"


# -- how many nodes have which cause -------------------------------------------------------------------------


def _histogram(nodes: tuple[Reason, ...]) -> str:
    """``6 Insufficient cpu, 2 node(s) were unschedulable``; a node may lack two resources."""
    counts: dict[str, int] = {}
    for each in nodes:
        for cause in map(text, _single_causes(each)):
            counts[cause] = counts.get(cause, 0) + len(values(each)["names"])
    return ", ".join(f"{count} {cause}" for cause, count in counts.items())


def _single_causes(nodes: Reason) -> Iterator[Reason]:
    cause = values(nodes)["cause"]
    if cause.code is Code.RESOURCES_LACKING:
        yield from values(cause)["resources"]
    else:
        yield cause


def _insufficient(reason: Reason) -> str:
    resource = reason["resource"]
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


def _too_small(reason: Reason) -> str:
    """``largest`` is given if the request is too large to be counted."""
    params = values(reason)
    resource, largest = params["resource"], params["largest"]
    node = "node too small" if largest is None else f"the largest node has {format_amount(resource, largest)}"
    return f"{_insufficient(reason)} ({format_amount(resource, params['wanted'])} requested, {node})"


def _node_selector(reason: Reason) -> str:
    labels = ", ".join(f"{key}={value}" for key, value in values(reason)["labels"])
    return f"{_NO_AFFINITY} ({labels})"


def _pods_with(reason: Reason) -> str:
    return f"pod with {reason['selector']}" if reason["selector"] else "matching pod"


# -- external resources --------------------------------------------------------------------------------------


def _device_type_unknown(reason: Reason) -> str:
    params = values(reason)
    resource = f"{DEVICE_PREFIX}{params['type']}"
    if not params["types"]:
        return (
            f"{resource}: no external resources are configured; ask an administrator to create the "
            f"ConfigMap {RESOURCES_CONFIGMAP}"
        )
    return f"{resource}: no external resource has this type; known types: {', '.join(params['types'])}"


def _no_attribute(reason: Reason) -> str:
    params = values(reason)
    known = names(params["keys"]) if params["keys"] else "no attributes"
    return f"Unknown attribute {params['key']!r}: the devices of this type have {known}"


def _value_unknown(reason: Reason) -> str:
    params = values(reason)
    wanted = f"{params['key']}{params['operator']}{params['value']}"
    if params["operator"] == "=" and len(params["nearest"]) == 1:
        return f"No device has {wanted}; did you mean {params['nearest'][0]}?"
    return f"No device has {wanted}; available: {names(params['nearest'])}"


def _device_busy(reason: Reason) -> str:
    """``until`` is None if the time at which enough is free is unknown."""
    params = values(reason)
    backends, wanted = params["backends"], params["wanted"]
    device = backends[0] if len(backends) == 1 else f"one of {names(backends)}"
    units = f"{wanted} {params['type']} on " if wanted > 1 else ""
    until = "" if params["until"] is None else f" until {moment(params['until'])}"
    return f"Waiting for {units}{device}{until}"


def _unsupported(what: str) -> Callable[[Reason], str]:
    """A rule that only kube-scheduler checks. ``what`` names the parameters of its reason."""

    def text_of(reason: Reason) -> str:
        params = values(reason)
        if params.get("scheduler") == KUBE_SCHEDULER:  # Fluence is the default scheduler here
            cure = "set schedulerName to a kube-scheduler that runs under another name"
        else:
            cure = "remove schedulerName, so that kube-scheduler places it"
        return f"{what.format_map(params)}; {cure}"

    return text_of


def _unsupported_claims(reason: Reason) -> str:
    claims = ", ".join(values(reason)["names"])
    return _unsupported(f"spec.resourceClaims ({claims}): this scheduler does not allocate ResourceClaims")(
        reason
    )


_NO_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_NO_VOLUMES = "node(s) didn't find available persistent volumes to bind"
_NO_SPREAD = "node(s) didn't match pod topology spread constraints"

CLUSTER: Templates = {
    # -- fluence.cluster: a pod is not placed as it is --
    Code.RESOURCE_CLAIMS_UNSUPPORTED: _unsupported_claims,
    Code.TOO_MANY_DEVICE_KINDS: (
        "The pods of this namespace already request {most} kinds of devices, the maximum: wait until "
        "some of them end, or use the device class and the selectors of one of their ResourceClaimTemplates"
    ),
    Code.TOLERATION_OPERATOR_UNKNOWN: _unsupported("spec.tolerations: unknown operator {operator!r}"),
    Code.NODE_AFFINITY_OPERATOR_UNKNOWN: _unsupported(
        "spec.affinity.nodeAffinity: unknown operator {operator!r}"
    ),
    Code.SPREAD_POLICY_UNKNOWN: _unsupported("spec.topologySpreadConstraints: unknown policy"),
    Code.CLAIM_MISSING: lambda reason: (
        f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{reason["claim"]}"'
        if reason["ephemeral"]
        else f'persistentvolumeclaim "{reason["claim"]}" not found: create it'
    ),
    Code.CLAIM_OF_ANOTHER_POD: (
        'persistentvolumeclaim "{claim}" was not created for this pod: rename the volume, or delete the claim'
    ),
    Code.CLAIM_PENDING: 'persistentvolumeclaim "{claim}" {lacks}',
    Code.CLAIM_IN_USE: 'persistentvolumeclaim "{claim}" is ReadWriteOncePod and in use by pod {pod}',
    Code.CLAIM_ASKED_TWICE: (
        'persistentvolumeclaim "{claim}" is ReadWriteOncePod, and pod {pod} requests it too'
    ),
    Code.CLAIM_TERMINATING: "is being deleted",
    Code.CLAIM_UNBOUND: "is unbound: it must be bound to a volume first",
    Code.CLAIM_LOST: "is unbound: its volume is lost",
    Code.STORAGE_CLASS_MISSING: "is unbound: its storage class {storage_class!r} does not exist",
    # -- fluence.cluster: too few pods of a group fit --
    Code.TOO_FEW_SEATS: _too_few_seats,
    Code.NOT_TOGETHER: _not_together,
    Code.TOO_FEW_SEATS_IN_ONE_DOMAIN: _one_domain,
    Code.NODES: lambda reason: _histogram((reason,)),
    Code.NODE_UNSCHEDULABLE: "node(s) were unschedulable",
    Code.NODE_NOT_READY: "node(s) were not ready",
    Code.TAINT_NOT_TOLERATED: "node(s) had untolerated taint {{{key}: {value}}}",
    Code.NODE_SELECTOR_MISMATCH: _node_selector,
    Code.NODE_AFFINITY_MISMATCH: _NO_AFFINITY,
    Code.VOLUME_OUT_OF_REACH: "node(s) didn't match PersistentVolume's node affinity (claim {claim})",
    Code.VOLUME_NOT_PROVIDED: _NO_VOLUMES + " (storage class {storage_class})",
    Code.NODE_OFFERS_TOO_LITTLE: "Insufficient {resource} ({wanted} requested, its kubelet offers less)",
    Code.NODE_EXCLUDED: "node(s) were excluded for this group",
    Code.NODE_HELD_WHOLE: "node(s) were allocated exclusively to another job",
    Code.NODE_IN_USE: "node(s) were in use, but the job requests whole nodes",
    Code.RESOURCES_LACKING: lambda reason: ", ".join(map(text, values(reason)["resources"])),
    Code.RESOURCE_INSUFFICIENT: _insufficient,
    Code.RESOURCE_TOO_SMALL: _too_small,
    Code.RESOURCE_SUM: _resource_sum,
    Code.HOST_PORTS_IN_USE: "node(s) didn't have free ports for the requested pod ports ({ports})",
    Code.TOPOLOGY_LABEL_MISSING: _NO_SPREAD + " (missing required label {key})",
    Code.TOPOLOGY_SPREAD: _NO_SPREAD + " ({key}: skew {skew}, maxSkew {most})",
    Code.POD_AFFINITY: lambda reason: (
        f"node(s) didn't match pod affinity rules (no {_pods_with(reason)} in the same {reason['key']})"
    ),
    Code.POD_ANTI_AFFINITY: lambda reason: (
        f"node(s) didn't match pod anti-affinity rules (a {_pods_with(reason)} in the same {reason['key']})"
    ),
    Code.EXISTING_ANTI_AFFINITY: "node(s) didn't satisfy existing pods anti-affinity rules ({key})",
    Code.CLAIM_ON_ANOTHER_NODE: (
        'node(s) unavailable due to persistentvolumeclaim "{claim}" in use on another node'
    ),
    Code.VOLUMES_TAKEN: _NO_VOLUMES + " (storage class {storage_class}: all in use)",
    Code.ATTACH_LIMIT: "node(s) exceed max volume count ({driver})",
    Code.TOO_FEW_VOLUMES: _NO_VOLUMES + " (too few for all claims)",
    # -- fluence.cluster: external resources --
    Code.DEVICE_TYPE_UNKNOWN: _device_type_unknown,
    Code.DEVICE_NO_ATTRIBUTE: _no_attribute,
    Code.DEVICE_VALUE_UNKNOWN: _value_unknown,
    Code.DEVICE_NONE_SUITS: lambda reason: (
        f"No single {reason['type']} has {' and '.join(values(reason)['terms'])}"
    ),
    Code.DEVICE_OFFLINE: lambda reason: (
        f"{names(reason['backends'])} {be(len(values(reason)['backends']))} offline, and no other "
        f"{reason['type']} matches"
    ),
    Code.DEVICE_TOO_FEW: "Insufficient {type} ({wanted} requested, at most {most} can be free)",
    Code.DEVICE_BUSY: _device_busy,
    Code.DEVICES_CHANGED: "external resources changed",
    # -- fluence.cluster: resources were freed --
    Code.POD_ENDED: "pod {pod} has {phase}",
    Code.POD_GONE: "pod {pod} was deleted",
    Code.POD_NOT_BOUND: "pod {pod} was not bound",
    Code.LAST_POD_OF_JOB: "{cause}, the last pod of its job",
    Code.JOB_RELEASED: "released",
    Code.SEAT_FOR_NEW_MEMBER: "its place is needed for a new pod of the group",
}
