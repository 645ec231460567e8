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
        ("fluxion.flux-framework.org/qpus: no external resource has this type; known types: licence, qpu"),
    ),
    (
        Code.DEVICE_TYPE_UNKNOWN,
        {"type": "qpu", "types": ()},
        (
            "fluxion.flux-framework.org/qpu: no external resources are configured; ask an "
            "administrator to create the ConfigMap fluence-resources"
        ),
    ),
    (
        Code.DEVICE_NO_ATTRIBUTE,
        {"key": "vendr", "keys": ("region", "vendor")},
        "Unknown attribute 'vendr': the devices of this type have region, vendor",
    ),
    (
        Code.DEVICE_NO_ATTRIBUTE,
        {"key": "vendor", "keys": ()},
        "Unknown attribute 'vendor': the devices of this type have no attributes",
    ),
    (
        Code.DEVICE_VALUE_UNKNOWN,
        {"key": "vendor", "operator": "=", "value": "ibn", "nearest": ("ibm",)},
        "No device has vendor=ibn; did you mean ibm?",
    ),
    (
        Code.DEVICE_VALUE_UNKNOWN,
        {"key": "qubits", "operator": ">=", "value": "200", "nearest": ("156", "84")},
        "No device has qubits>=200; available: 156, 84",
    ),
    (
        Code.DEVICE_NONE_SUITS,
        {"type": "qpu", "terms": ("region=west", "vendor=ibm")},
        "No single qpu has region=west and vendor=ibm",
    ),
    (
        Code.DEVICE_OFFLINE,
        {"type": "qpu", "backends": ("fez", "ankaa")},
        "fez, ankaa are offline, and no other qpu matches",
    ),
    (
        Code.DEVICE_TOO_FEW,
        {"type": "qubit", "wanted": 200, "most": 156},
        "Insufficient qubit (200 requested, at most 156 can be free)",
    ),
    (
        Code.DEVICE_BUSY,
        {"type": "qpu", "wanted": 1, "backends": ("fez",), "until": 1_788_264_000_000},
        "Waiting for fez until 2026-09-01 12:00:00 UTC",
    ),
    (
        Code.DEVICE_BUSY,
        {"type": "qubit", "wanted": 20, "backends": ("fez", "ankaa"), "until": None},
        "Waiting for 20 qubit on one of fez, ankaa",
    ),
    (
        Code.DEVICE_BUSY,
        {"type": "qpu", "wanted": 1, "backends": ("fez",), "until": 90_000},
        "Waiting for fez until 1 min 30 s after the start",
    ),
    (Code.DEVICES_CHANGED, {}, "external resources changed"),
    # -- a pod is not placed as it is --
    (
        Code.RESOURCE_CLAIMS_UNSUPPORTED,
        {"names": ("qpu", "nic"), "scheduler": "default-scheduler"},
        (
            "spec.resourceClaims (qpu, nic): this scheduler does not allocate ResourceClaims; set "
            "schedulerName to a kube-scheduler that runs under another name"
        ),
    ),
    (
        Code.RESOURCE_CLAIMS_UNSUPPORTED,
        {"names": ("qpu", "nic"), "scheduler": "fluence"},
        (
            "spec.resourceClaims (qpu, nic): this scheduler does not allocate ResourceClaims; remove "
            "schedulerName, so that kube-scheduler places it"
        ),
    ),
    (
        Code.TOO_MANY_DEVICE_KINDS,
        {"most": 16},
        (
            "The pods of this namespace already request 16 kinds of devices, the maximum: wait until "
            "some of them end, or use the device class and the selectors of one of their "
            "ResourceClaimTemplates"
        ),
    ),
    (
        Code.TOLERATION_OPERATOR_UNKNOWN,
        {"operator": "Gt", "scheduler": "fluence"},
        ("spec.tolerations: unknown operator 'Gt'; remove schedulerName, so that kube-scheduler places it"),
    ),
    (
        Code.NODE_AFFINITY_OPERATOR_UNKNOWN,
        {"operator": "Like", "scheduler": "fluence"},
        (
            "spec.affinity.nodeAffinity: unknown operator 'Like'; remove schedulerName, so that "
            "kube-scheduler places it"
        ),
    ),
    (
        Code.SPREAD_POLICY_UNKNOWN,
        {"scheduler": "fluence"},
        (
            "spec.topologySpreadConstraints: unknown policy; remove schedulerName, so that "
            "kube-scheduler places it"
        ),
    ),
    (
        Code.CLAIM_MISSING,
        {"claim": "c", "ephemeral": False},
        'persistentvolumeclaim "c" not found: create it',
    ),
    (
        Code.CLAIM_MISSING,
        {"claim": "c", "ephemeral": True},
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "c"',
    ),
    (
        Code.CLAIM_OF_ANOTHER_POD,
        {"claim": "c"},
        ('persistentvolumeclaim "c" was not created for this pod: rename the volume, or delete the claim'),
    ),
    (
        Code.CLAIM_PENDING,
        {"claim": "c", "lacks": Reason.of(Code.CLAIM_TERMINATING)},
        'persistentvolumeclaim "c" is being deleted',
    ),
    (Code.CLAIM_TERMINATING, {}, "is being deleted"),
    (
        Code.CLAIM_PENDING,
        {"claim": "c", "lacks": Reason.of(Code.CLAIM_UNBOUND)},
        'persistentvolumeclaim "c" is unbound: it must be bound to a volume first',
    ),
    (Code.CLAIM_UNBOUND, {}, "is unbound: it must be bound to a volume first"),
    (Code.CLAIM_LOST, {}, "is unbound: its volume is lost"),
    (
        Code.STORAGE_CLASS_MISSING,
        {"storage_class": "fast"},
        "is unbound: its storage class 'fast' does not exist",
    ),
    (
        Code.CLAIM_IN_USE,
        {"claim": "c", "pod": "d/p"},
        'persistentvolumeclaim "c" is ReadWriteOncePod and in use by pod d/p',
    ),
    (
        Code.CLAIM_ASKED_TWICE,
        {"claim": "c", "pod": "d/p"},
        'persistentvolumeclaim "c" is ReadWriteOncePod, and pod d/p requests it too',
    ),
    # -- a gang finds no seats now --
    (
        Code.TOO_FEW_SEATS,
        {"pod": "", "wanted": 8, "seats": 3, "nodes": 8, **HERE, "causes": CAUSES},
        (
            "0/8 nodes are available: 5 Insufficient cpu, 3 node(s) had untolerated taint {gpu: }. 3 "
            "of 8 pods of the group fit"
        ),
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
            "0/9 nodes are available, even if empty: 5 Insufficient cpu. 17 of 18 pods of the group "
            "would fit (cpu: 36 requested, 34500m available)"
        ),
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "d/p", "wanted": 4, "seats": 2, "nodes": 1, **EMPTY, "causes": CAUSES[:1]},
        (
            "0/1 nodes are available for pod d/p (and 3 like it), even if empty: 5 Insufficient cpu. "
            "2 of 4 such pods would fit"
        ),
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "d/p", "wanted": 2, "seats": 0, "nodes": 3, **HERE, "causes": CAUSES[1:]},
        (
            "0/3 nodes are available for pod d/p (and 1 like it): 3 node(s) had untolerated taint "
            "{gpu: }. 0 of 2 such pods fit"
        ),
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "", "wanted": 2, "seats": 0, "nodes": 3, **EMPTY, "causes": CAUSES[1:]},
        (
            "0/3 nodes are available, even if empty: 3 node(s) had untolerated taint {gpu: }. 0 of 2 "
            "pods of the group would fit"
        ),
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "d/p", "wanted": 1, "seats": 0, "nodes": 0, **HERE, "causes": ()},
        "no nodes available to schedule pods",
    ),
    (
        Code.TOO_FEW_SEATS,
        {"pod": "", "wanted": 3, "seats": 2, "nodes": 1, **HERE, "causes": ()},
        (
            "0/1 nodes are available: the pods of the group fill the nodes that match. 2 of 3 pods "
            "of the group fit"
        ),
    ),
    (
        Code.NOT_TOGETHER,
        {"pod": "d/p", "wanted": 1, "seats": 0, "nodes": 8, **HERE, "causes": CAUSES[:1]},
        (
            "0/8 nodes are available for pod d/p: 5 Insufficient cpu. It fits alone, but not "
            "together with the other pods of its group"
        ),
    ),
    (
        Code.NOT_TOGETHER,
        {"pod": "d/p", "wanted": 4, "seats": 0, "nodes": 8, **EMPTY, "causes": CAUSES[1:]},
        (
            "0/8 nodes are available for pod d/p (and 3 like it), even if empty: 3 node(s) had "
            "untolerated taint {gpu: }. It fits alone, but not together with the other pods of its "
            "group"
        ),
    ),
    (
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        {"wanted": 5, "key": "zone", "domains": ZONES, "begun": False, "causes": CAUSES[:1], "empty": False},
        (
            "No single zone fits the group: zone=a fits 4 of 5 pods, and no other value fits more (5 "
            "Insufficient cpu)"
        ),
    ),
    (
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        {"wanted": 4, "key": "zone", "domains": ZONES, "begun": True, "causes": (), "empty": True},
        (
            "No single zone fits the group: zone=a fits each pod, but not all 4 together even if "
            "empty, and other pods of the group run there"
        ),
    ),
    (
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        {"wanted": 4, "key": "zone", "domains": (), "begun": False, "causes": (), "empty": False},
        "No node has the label zone, which the PodGroup requires",
    ),
    # -- why nodes are closed --
    (Code.NODES, {"cause": TAINT, "names": ("a", "b")}, "2 node(s) had untolerated taint {gpu: }"),
    (Code.NODE_UNSCHEDULABLE, {}, "node(s) were unschedulable"),
    (Code.NODE_NOT_READY, {}, "node(s) were not ready"),
    (
        Code.TAINT_NOT_TOLERATED,
        {"key": "k", "value": "v", "effect": "NoExecute"},
        "node(s) had untolerated taint {k: v}",
    ),
    (
        Code.TAINT_NOT_TOLERATED,
        {"key": "k", "value": "", "effect": "NoExecute"},
        "node(s) had untolerated taint {k: }",
    ),
    (
        Code.NODE_SELECTOR_MISMATCH,
        {"labels": (("disk", "ssd"), ("zone", "a"))},
        "node(s) didn't match Pod's node affinity/selector (disk=ssd, zone=a)",
    ),
    (Code.NODE_AFFINITY_MISMATCH, {}, "node(s) didn't match Pod's node affinity/selector"),
    (
        Code.VOLUME_OUT_OF_REACH,
        {"claim": "data"},
        "node(s) didn't match PersistentVolume's node affinity (claim data)",
    ),
    (
        Code.VOLUME_NOT_PROVIDED,
        {"storage_class": "fast"},
        "node(s) didn't find available persistent volumes to bind (storage class fast)",
    ),
    (
        Code.NODE_OFFERS_TOO_LITTLE,
        {"resource": "fluxion.flux-framework.org/qpu", "wanted": 1},
        "Insufficient fluxion.flux-framework.org/qpu (1 requested, its kubelet offers less)",
    ),
    (Code.NODE_EXCLUDED, {}, "node(s) were excluded for this group"),
    (Code.NODE_HELD_WHOLE, {}, "node(s) were allocated exclusively to another job"),
    (Code.NODE_IN_USE, {}, "node(s) were in use, but the job requests whole nodes"),
    (Code.RESOURCE_INSUFFICIENT, CPU, "Insufficient cpu"),
    (
        Code.RESOURCE_TOO_SMALL,
        {"resource": "memory", "wanted": 3 << 30, "largest": None},
        "Insufficient memory (3Gi requested, node too small)",
    ),
    (
        Code.RESOURCE_TOO_SMALL,
        {"resource": "cpu", "wanted": 10**33, "largest": 64_000},
        "Insufficient cpu (1e30 requested, the largest node has 64)",
    ),
    (
        Code.RESOURCES_LACKING,
        {"resources": TWO_SHORT},
        "Insufficient cpu (2 requested, node too small), Insufficient cpu",
    ),
    (Code.RESOURCE_SUM, dict(SUM.params), "cpu: 36 requested, 34500m available"),
    (
        Code.HOST_PORTS_IN_USE,
        {"ports": (80,)},
        "node(s) didn't have free ports for the requested pod ports (80)",
    ),
    (
        Code.HOST_PORTS_IN_USE,
        {"ports": (80, 443)},
        "node(s) didn't have free ports for the requested pod ports (80, 443)",
    ),
    (
        Code.TOPOLOGY_LABEL_MISSING,
        {"key": "zone"},
        "node(s) didn't match pod topology spread constraints (missing required label zone)",
    ),
    (
        Code.TOPOLOGY_SPREAD,
        {"key": "zone", "skew": 2, "most": 1},
        "node(s) didn't match pod topology spread constraints (zone: skew 2, maxSkew 1)",
    ),
    (
        Code.POD_AFFINITY,
        {"key": "zone", "selector": "app=db"},
        "node(s) didn't match pod affinity rules (no pod with app=db in the same zone)",
    ),
    (
        Code.POD_AFFINITY,
        {"key": "zone", "selector": ""},
        "node(s) didn't match pod affinity rules (no matching pod in the same zone)",
    ),
    (
        Code.POD_ANTI_AFFINITY,
        {"key": "zone", "selector": "app in (a,b)"},
        "node(s) didn't match pod anti-affinity rules (a pod with app in (a,b) in the same zone)",
    ),
    (
        Code.EXISTING_ANTI_AFFINITY,
        {"key": "zone"},
        "node(s) didn't satisfy existing pods anti-affinity rules (zone)",
    ),
    (
        Code.CLAIM_ON_ANOTHER_NODE,
        {"claim": "data"},
        'node(s) unavailable due to persistentvolumeclaim "data" in use on another node',
    ),
    (
        Code.VOLUMES_TAKEN,
        {"storage_class": "local"},
        "node(s) didn't find available persistent volumes to bind (storage class local: all in use)",
    ),
    (Code.ATTACH_LIMIT, {"driver": "csi.example"}, "node(s) exceed max volume count (csi.example)"),
    (
        Code.TOO_FEW_VOLUMES,
        {},
        "node(s) didn't find available persistent volumes to bind (too few for all claims)",
    ),
    # -- seats came free --
    (Code.POD_ENDED, {"pod": "d/p", "phase": "succeeded"}, "pod d/p has succeeded"),
    (Code.POD_GONE, {"pod": "d/p"}, "pod d/p was deleted"),
    (Code.POD_NOT_BOUND, {"pod": "d/p"}, "pod d/p was not bound"),
    (
        Code.LAST_POD_OF_JOB,
        {"cause": Reason.of(Code.POD_GONE, pod="d/p")},
        "pod d/p was deleted, the last pod of its job",
    ),
    (Code.JOB_RELEASED, {}, "released"),
    (Code.SEAT_FOR_NEW_MEMBER, {}, "its place is needed for a new pod of the group"),
    (Code.NODE_GONE, {"node": "n1"}, "node n1 was removed"),
]


@pytest.mark.parametrize(("code", "params", "expected"), GOLDEN)
def test_the_text_of_a_reason(code: Code, params: dict[str, Value], expected: str) -> None:
    assert text(Reason.of(code, **params)) == expected


def test_every_reason_of_the_cluster_has_its_text_here() -> None:
    assert set(CLUSTER) <= {code for code, _, _ in GOLDEN}
