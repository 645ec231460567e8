"""The text of each reason that the cluster gives, letter by letter: users read it, and scripts do."""

from __future__ import annotations

import pytest

from fluence.messages import text
from fluence.messages.cluster import CLUSTER
from fluence.model.reason import Code, Reason, Value

DELEGATE = "; leave schedulerName out, and kube-scheduler places it"
CPU: dict[str, Value] = {"resource": "cpu", "wanted": 2000, "largest": None}
TAINT = Reason.of(Code.TAINT_NOT_TOLERATED, key="gpu", value="", effect="NoSchedule")
SHORT = Reason.of(Code.RESOURCES_LACKING, resources=(Reason.of(Code.RESOURCE_INSUFFICIENT, **CPU),))
CAUSES = (
    Reason.of(Code.NODES, cause=SHORT, names=("a", "b", "c", "d", "e")),
    Reason.of(Code.NODES, cause=TAINT, names=("f", "g", "h")),
)
ZONES = (("a", 4), ("b", 2))
TWO_SHORT = (Reason.of(Code.RESOURCE_TOO_SMALL, **CPU), Reason.of(Code.RESOURCE_INSUFFICIENT, **CPU))

SUM = Reason.of(Code.RESOURCE_SUM, resource="cpu", wanted=36_000, there=34_500)
HERE: dict[str, Value] = {"empty": False, "sums": ()}
EMPTY: dict[str, Value] = {"empty": True, "sums": ()}

GOLDEN: list[tuple[Code, dict[str, Value], str]] = [
    # -- devices that belong to no node --
    (
        Code.DEVICE_TYPE_UNKNOWN,
        {"type": "qpus", "types": ("licence", "qpu")},
        "fluxion.flux-framework.org/qpus: no device is of this type; there are licence, qpu",
    ),
    (
        Code.DEVICE_TYPE_UNKNOWN,
        {"type": "qpu", "types": ()},
        (
            "fluxion.flux-framework.org/qpu: no devices are configured: ask for the ConfigMap "
            "fluence-resources to be made"
        ),
    ),
    (
        Code.DEVICE_NO_ATTRIBUTE,
        {"key": "vendr", "keys": ("region", "vendor")},
        "'vendr' is an attribute that no such device has; they have region, vendor",
    ),
    (
        Code.DEVICE_NO_ATTRIBUTE,
        {"key": "vendor", "keys": ()},
        "'vendor' is an attribute that no such device has; they have none",
    ),
    (
        Code.DEVICE_VALUE_UNKNOWN,
        {"key": "vendor", "operator": "=", "value": "ibn", "nearest": ("ibm",)},
        "no device has vendor=ibn; did you mean ibm?",
    ),
    (
        Code.DEVICE_VALUE_UNKNOWN,
        {"key": "qubits", "operator": ">=", "value": "200", "nearest": ("156", "84")},
        "no device has qubits>=200; there are 156, 84",
    ),
    (
        Code.DEVICE_NONE_SUITS,
        {"type": "qpu", "terms": ("region=west", "vendor=ibm")},
        "no qpu has region=west and vendor=ibm together",
    ),
    (
        Code.DEVICE_OFFLINE,
        {"type": "qpu", "backends": ("fez", "ankaa")},
        "fez, ankaa are offline, and no other qpu suits",
    ),
    (
        Code.DEVICE_TOO_FEW,
        {"type": "qubit", "wanted": 200, "most": 156},
        "200 qubit wanted, and there are 156 at most",
    ),
    (
        Code.DEVICE_BUSY,
        {"type": "qpu", "wanted": 1, "backends": ("fez",), "until": 1_788_264_000_000},
        "waits for fez until 2026-09-01 12:00:00 UTC",
    ),
    (
        Code.DEVICE_BUSY,
        {"type": "qubit", "wanted": 20, "backends": ("fez", "ankaa"), "until": None},
        "waits for 20 qubit of one of fez, ankaa",
    ),
    (
        Code.DEVICE_BUSY,
        {"type": "qpu", "wanted": 1, "backends": ("fez",), "until": 90_000},
        "waits for fez until 1 min 30 s after the beginning",
    ),
    (Code.DEVICES_CHANGED, {}, "devices have changed"),
    # -- a pod is not placed as it is --
    (
        Code.RESOURCE_CLAIMS_UNSUPPORTED,
        {"names": ("qpu", "nic")},
        f"spec.resourceClaims (qpu, nic): devices of claims (DRA) are not allocated here{DELEGATE}",
    ),
    (
        Code.TOO_MANY_DEVICE_KINDS,
        {"most": 16},
        (
            "pods of this namespace already ask for 16 kinds of devices, and no more are counted: wait until "
            "some of them end, or use the device class and the selectors of one of their "
            "ResourceClaimTemplates"
        ),
    ),
    (
        Code.TOLERATION_OPERATOR_UNKNOWN,
        {"operator": "Gt"},
        f"spec.tolerations: the operator 'Gt' is not known here{DELEGATE}",
    ),
    (
        Code.NODE_AFFINITY_OPERATOR_UNKNOWN,
        {"operator": "Like"},
        f"spec.affinity.nodeAffinity: the operator 'Like' is not known here{DELEGATE}",
    ),
    (
        Code.SPREAD_POLICY_UNKNOWN,
        {},
        f"spec.topologySpreadConstraints: a policy in it is not known here{DELEGATE}",
    ),
    (Code.CLAIM_MISSING, {"claim": "c", "ephemeral": False}, "claim 'c' is not there: create it"),
    (Code.CLAIM_MISSING, {"claim": "c", "ephemeral": True}, "claim 'c' is not there: it is made soon"),
    (
        Code.CLAIM_OF_ANOTHER_POD,
        {"claim": "c"},
        "claim 'c' was not made for this pod: rename the volume, or delete the claim",
    ),
    (
        Code.CLAIM_PENDING,
        {"claim": "c", "lacks": Reason.of(Code.CLAIM_TERMINATING)},
        "claim 'c' is being deleted",
    ),
    (Code.CLAIM_TERMINATING, {}, "is being deleted"),
    (
        Code.CLAIM_PENDING,
        {"claim": "c", "lacks": Reason.of(Code.CLAIM_UNBOUND)},
        "claim 'c' has no volume yet: it must be bound first",
    ),
    (Code.CLAIM_UNBOUND, {}, "has no volume yet: it must be bound first"),
    (Code.CLAIM_LOST, {}, "has no volume yet: it must be bound first (its volume is lost)"),
    (
        Code.STORAGE_CLASS_MISSING,
        {"storage_class": "fast"},
        "names the storage class 'fast', which is not there",
    ),
    (
        Code.CLAIM_IN_USE,
        {"claim": "c", "pod": "d/p"},
        "claim 'c' is ReadWriteOncePod, and pod d/p uses it",
    ),
    (
        Code.CLAIM_ASKED_TWICE,
        {"claim": "c", "pod": "d/p"},
        "claim 'c' is ReadWriteOncePod, and pod d/p wants it too",
    ),
    # -- a gang finds no seats now --
    (
        Code.TOO_FEW_SEATS,
        {"pod": "", "wanted": 8, "seats": 3, "nodes": 8, **HERE, "causes": CAUSES},
        "3 of 8 seats on 8 nodes, none for the next: 5 insufficient cpu (2 wanted); 3 taint gpu:NoSchedule",
    ),
    (
        Code.TOO_FEW_SEATS,
        {
            "pod": "",
            "wanted": 18,
            "seats": 17,
            "nodes": 9,
            "empty": True,
            "sums": (SUM,),
            "causes": CAUSES[:1],
        },
        (
            "17 of 18 would fit if it were empty (cpu: 36 wanted in all, 34500m there), "
            "and the next finds no seat on 9 nodes: 5 insufficient cpu (2 wanted)"
        ),
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "d/p", "wanted": 4, "seats": 2, "nodes": 1, **EMPTY, "causes": CAUSES[:1]},
        (
            "2 of 4 like d/p would fit if it were empty, and the next finds no seat on 1 node: "
            "5 insufficient cpu (2 wanted)"
        ),
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "d/p", "wanted": 2, "seats": 0, "nodes": 3, **HERE, "causes": CAUSES[1:]},
        "no seat for d/p (and 1 like it) on 3 nodes: 3 taint gpu:NoSchedule",
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "", "wanted": 2, "seats": 0, "nodes": 3, **EMPTY, "causes": CAUSES[1:]},
        "no seat on 3 nodes, even if it were empty: 3 taint gpu:NoSchedule",
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "d/p", "wanted": 1, "seats": 0, "nodes": 0, **HERE, "causes": ()},
        "no seat for d/p on 0 nodes: there are no nodes",
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "", "wanted": 3, "seats": 2, "nodes": 1, **HERE, "causes": ()},
        "2 of 3 seats on 1 node, none for the next: the nodes that suit are full with these",
    ),
    (
        Code.NOT_TOGETHER,
        {"pod": "d/p", "wanted": 1, "seats": 0, "nodes": 8, **HERE, "causes": CAUSES[:1]},
        ("d/p: enough seats by itself, but not beside the others on 8 nodes: 5 insufficient cpu (2 wanted)"),
    ),
    (
        Code.NOT_TOGETHER,
        {"pod": "d/p", "wanted": 4, "seats": 0, "nodes": 8, **EMPTY, "causes": CAUSES[1:]},
        (
            "d/p (and 3 like it): enough seats by itself, but not beside the others on 8 nodes, "
            "even if it were empty: 3 taint gpu:NoSchedule"
        ),
    ),
    (
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        {"wanted": 5, "key": "zone", "domains": ZONES, "begun": False, "causes": CAUSES[:1], "empty": False},
        (
            "no seats in one domain of zone: zone=a has seats for 4 of 5, and no other value has more; "
            "the next finds there: 5 insufficient cpu (2 wanted)"
        ),
    ),
    (
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        {"wanted": 4, "key": "zone", "domains": ZONES, "begun": True, "causes": (), "empty": True},
        (
            "no seats in one domain of zone: zone=a has seats for each, but not for all together "
            "even if it were empty, "
            "and others of the group are there"
        ),
    ),
    (
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        {"wanted": 4, "key": "zone", "domains": (), "begun": False, "causes": (), "empty": False},
        "no node has the label zone, which its PodGroup names",
    ),
    # -- why nodes are closed --
    (Code.NODES, {"cause": TAINT, "names": ("a", "b")}, "2 taint gpu:NoSchedule"),
    (Code.NODE_UNSCHEDULABLE, {}, "cordoned"),
    (Code.NODE_NOT_READY, {}, "not ready"),
    (Code.TAINT_NOT_TOLERATED, {"key": "k", "value": "v", "effect": "NoExecute"}, "taint k=v:NoExecute"),
    (Code.TAINT_NOT_TOLERATED, {"key": "k", "value": "", "effect": "NoExecute"}, "taint k:NoExecute"),
    (
        Code.NODE_SELECTOR_MISMATCH,
        {"labels": (("disk", "ssd"), ("zone", "a"))},
        "nodeSelector disk=ssd, zone=a does not match",
    ),
    (Code.NODE_AFFINITY_MISMATCH, {}, "required node affinity does not match"),
    (Code.VOLUME_OUT_OF_REACH, {"claim": "data"}, "volume of claim data: not reachable"),
    (Code.VOLUME_NOT_PROVIDED, {"storage_class": "fast"}, "no volume of storage class fast there"),
    (Code.NODE_EXCLUDED, {}, "excluded for this group"),
    (Code.NODE_HELD_WHOLE, {}, "held as a whole by another job"),
    (Code.NODE_IN_USE, {}, "in use, and a whole node is wanted"),
    (Code.RESOURCE_INSUFFICIENT, CPU, "insufficient cpu (2 wanted)"),
    (
        Code.RESOURCE_TOO_SMALL,
        {"resource": "memory", "wanted": 3 << 30, "largest": None},
        "too small: memory (3Gi wanted)",
    ),
    (
        Code.RESOURCE_TOO_SMALL,
        {"resource": "cpu", "wanted": 10**33, "largest": 64_000},
        "too small: cpu (1e30 wanted, the largest node has 64)",
    ),
    (
        Code.RESOURCES_LACKING,
        {"resources": TWO_SHORT},
        "too small: cpu (2 wanted) and insufficient cpu (2 wanted)",
    ),
    (Code.RESOURCE_SUM, dict(SUM.params), "cpu: 36 wanted in all, 34500m there"),
    (Code.HOST_PORTS_IN_USE, {"ports": (80,)}, "host port 80 is taken"),
    (Code.HOST_PORTS_IN_USE, {"ports": (80, 443)}, "one of the host ports 80, 443 is taken"),
    (Code.TOPOLOGY_LABEL_MISSING, {"key": "zone"}, "no label zone, over which it is to be spread"),
    (
        Code.TOPOLOGY_SPREAD,
        {"key": "zone", "skew": 2, "most": 1},
        "topology spread over zone (the skew would be 2, at most 1 is allowed)",
    ),
    (
        Code.POD_AFFINITY,
        {"key": "zone", "selector": "app=db"},
        "pod affinity: no pod with app=db in the same zone",
    ),
    (Code.POD_AFFINITY, {"key": "zone", "selector": ""}, "pod affinity: no such pod in the same zone"),
    (
        Code.POD_ANTI_AFFINITY,
        {"key": "zone", "selector": "app in (a,b)"},
        "pod anti-affinity: a pod with app in (a,b) is in the same zone",
    ),
    (
        Code.EXISTING_ANTI_AFFINITY,
        {"key": "zone"},
        "anti-affinity of a pod in the same zone against this one",
    ),
    (Code.CLAIM_ON_ANOTHER_NODE, {"claim": "data"}, "claim data is used on another node"),
    (Code.VOLUMES_TAKEN, {"storage_class": "local"}, "volumes of storage class local are taken"),
    (Code.ATTACH_LIMIT, {"driver": "csi.example"}, "no more volumes of csi.example can be attached"),
    (Code.TOO_FEW_VOLUMES, {}, "too few volumes for all its claims"),
    # -- seats came free --
    (Code.POD_ENDED, {"pod": "d/p", "phase": "succeeded"}, "pod d/p has succeeded"),
    (Code.POD_GONE, {"pod": "d/p"}, "pod d/p is gone"),
    (Code.POD_NOT_BOUND, {"pod": "d/p"}, "pod d/p was not bound"),
    (
        Code.LAST_POD_OF_JOB,
        {"cause": Reason.of(Code.POD_GONE, pod="d/p")},
        "pod d/p is gone, and it was the last of its job",
    ),
    (Code.JOB_RELEASED, {}, "released"),
    (Code.SEAT_FOR_NEW_MEMBER, {}, "its place is needed for a new member"),
    (Code.NODE_GONE, {"node": "n1"}, "node n1 is gone"),
]


@pytest.mark.parametrize(("code", "params", "expected"), GOLDEN)
def test_the_text_of_a_reason(code: Code, params: dict[str, Value], expected: str) -> None:
    assert text(Reason.of(code, **params)) == expected


def test_every_reason_of_the_cluster_has_its_text_here() -> None:
    assert set(CLUSTER) <= {code for code, _, _ in GOLDEN}
