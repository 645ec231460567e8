"""The text of each reason of groups and advice, letter by letter: users read it, and scripts do."""

from __future__ import annotations

import pytest

from fluence import names
from fluence.messages import text
from fluence.model.reason import Code, Reason, Value

JOBSPEC, DURATION = names.JOBSPEC, names.DURATION

GOLDEN: list[tuple[Code, dict[str, Value], str]] = [
    (Code.QUEUED_BEHIND_OTHERS, {}, "It fits, but jobs ahead of it must start first"),
    (
        Code.CLUSTER_CANNOT_HOLD,
        {"causes": (Reason.of(Code.GIVEN, text="a"), Reason.of(Code.GIVEN, text="b"))},
        "a. b. It cannot start on this cluster as it is",
    ),
    # -- what a gang waits for --
    (Code.OWNER_NOT_SEEN, {"kind": "Job", "name": "j"}, "Waiting for Job j, which owns the pod"),
    (Code.POD_GROUP_NOT_SEEN, {"group": "ns/g"}, "Waiting for PodGroup ns/g"),
    (
        Code.POD_GROUP_OR_SIZE_MISSING,
        {"group": "ns/g"},
        ("Waiting for PodGroup ns/g: create it, or set the size of the group in the annotation group-size"),
    ),
    (Code.OWNER_SUSPENDED, {"kind": "Job", "owner": "ns/j"}, "Job ns/j is suspended"),
    (Code.PODS_GATED, {"gated": 1, "pods": 3}, "1 of 3 pods is gated (spec.schedulingGates)"),
    (Code.PODS_GATED, {"gated": 2, "pods": 3}, "2 of 3 pods are gated (spec.schedulingGates)"),
    (
        Code.WAITS_FOR_PRODUCER,
        {"gated": 1, "pods": 3, "producer": "p", "kind": "started"},
        "1 of 3 pods waits for producer p to start",
    ),
    (
        Code.WAITS_FOR_PRODUCER,
        {"gated": 2, "pods": 2, "producer": "p", "kind": "finished"},
        "2 of 2 pods wait for producer p to finish",
    ),
    (
        Code.GATE_OF_OTHERS,
        {"key": "k", "gate": "kueue.x-k8s.io/admission"},
        ("Annotation k: gate kueue.x-k8s.io/admission belongs to another controller: use a gate of your own"),
    ),
    (
        Code.FOREIGN_PRODUCER,
        {"key": "k", "value": "other/p", "namespace": "mine"},
        "Annotation k='other/p' names a producer in another namespace: use one in mine",
    ),
    (
        Code.PRODUCER_ANNOUNCED,
        {"gate": "g", "producer": "p", "task": "t"},
        "Gate g was removed: producer p has announced task t",
    ),
    (Code.PRODUCER_STARTED, {"gate": "g", "producer": "p"}, "Gate g was removed: producer p has started"),
    (Code.PRODUCER_FINISHED, {"gate": "g", "producer": "p"}, "Gate g was removed: producer p has finished"),
    (
        Code.PRODUCER_SILENT,
        {"gate": "g", "producer": "p", "limit": 300_000},
        "Gate g was removed without a task: producer p announced no task within 5 min",
    ),
    (
        Code.PRODUCER_ENDED,
        {"gate": "g", "producer": "p"},
        "Gate g was removed without a task: producer p ended and announced no task",
    ),
    (Code.PRODUCER_GONE, {"gate": "g", "producer": "p"}, "Gate g was removed: producer p was deleted"),
    (Code.GATE_NOT_OPENED, {"gate": "g", "error": "e"}, "Gate g could not be removed yet: e"),
    (
        Code.ANNOUNCE_TASK,
        {"producer": "p", "key": "k"},
        (
            "the producer announces its task with `fluence task announce ID` in its container, or "
            "with the annotation k on its pod (p)"
        ),
    ),
    (
        Code.PODS_MISSING,
        {"group": "ns/g", "pods": 1, "minimum": 3},
        "Waiting for 2 of 3 pods of group ns/g to be created",
    ),
    (
        Code.PODS_MISSING,
        {"group": "ns/g", "pods": 2, "minimum": 3},
        "Waiting for 1 of 3 pods of group ns/g to be created",
    ),
    (
        Code.OWNER_RUNS_TOO_FEW,
        {"group": "ns/g", "pods": 2, "minimum": 5, "kind": "Job", "owner": "ns/j", "others": 0, "runs": 2},
        (
            "Waiting for 3 of 5 pods of group ns/g to be created, but Job ns/j runs 2 at a time: "
            "increase that, create the other pods of the group, or lower the size of the group"
        ),
    ),
    (
        Code.OWNER_RUNS_TOO_FEW,
        {"group": "ns/g", "pods": 2, "minimum": 5, "kind": "Job", "owner": "ns/j", "others": 1, "runs": 3},
        (
            "Waiting for 3 of 5 pods of group ns/g to be created, but Job ns/j and 1 more run 3 at a "
            "time: increase that, create the other pods of the group, or lower the size of the group"
        ),
    ),
    (
        Code.OWNER_IS_ORDERED,
        {"group": "ns/g", "pods": 1, "minimum": 3, "owner": "ns/s"},
        (
            "Waiting for 2 of 3 pods of group ns/g to be created, but StatefulSet ns/s creates a pod "
            "only when the one before it is ready (OrderedReady): create the StatefulSet again with "
            "podManagementPolicy: Parallel"
        ),
    ),
    (
        Code.UNKNOWN_ANNOTATION,
        {"kind": "annotation", "key": "f/durration", "nearest": "f/duration"},
        "Unknown annotation f/durration is ignored: did you mean f/duration?",
    ),
    (
        Code.UNKNOWN_ANNOTATION,
        {"kind": "label", "key": "f/zzz", "nearest": None},
        "Unknown label f/zzz is ignored",
    ),
    (Code.LABEL_NOT_READ, {"key": "f/duration"}, "Label f/duration is ignored: make it an annotation"),
    # -- why it is refused --
    (
        Code.OTHER_SCHEDULER,
        {"others": ("a", "b"), "scheduler": "fluence"},
        ("Some of its pods have another schedulerName (a, b): set schedulerName: fluence on all of them"),
    ),
    (
        Code.TOPOLOGY_NEEDS_GANG,
        {"group": "ns/g", "key": "rack"},
        (
            "PodGroup ns/g: spec.schedulingConstraints.topology (rack) requires a gang, because the "
            "pods of a basic group start one by one: set schedulingPolicy.gang"
        ),
    ),
    (
        Code.SHARED_CLAIMS,
        {"group": "ns/g", "claims": ("a", "b")},
        (
            "PodGroup ns/g shares ResourceClaims (a, b), which only kube-scheduler allocates: remove "
            "schedulerName"
        ),
    ),
    (
        Code.DIFFERENT_PRIORITIES,
        {"priorities": (1, 2)},
        "Its pods have different priorities (1 and 2): set one priorityClassName on all of them",
    ),
    (
        Code.DIFFERENT_SUBMITTERS,
        {"users": ("alice", "bob")},
        (
            "Its pods were created by different users (alice, bob), and a group counts for one user: give "
            "the pods of each user a group of their own"
        ),
    ),
    (
        Code.GROUP_PRIORITY_DIFFERS,
        {"group": "ns/g", "wanted": 7, "given": 5},
        "PodGroup ns/g has priority 7 and its pods have 5: set one priorityClassName on both",
    ),
    (
        Code.DIFFERENT_PREEMPTION_POLICIES,
        {"policies": ("Never", "PreemptLowerPriority")},
        (
            "Its pods have different preemption policies (Never and PreemptLowerPriority): set the "
            "same one on all of them"
        ),
    ),
    # -- labels and annotations --
    (
        Code.INVALID_GROUP_NAME,
        {"kind": "annotation", "key": "k", "value": "../x"},
        "Annotation k='../x' is not a valid group name: use letters, digits, '-', '_' and '.'",
    ),
    (
        Code.INVALID_SIZE,
        {"kind": "label", "key": "k", "value": "0x8", "maximum": 100_000},
        "Label k='0x8' is not a valid size: use a whole number from 1 to 100000",
    ),
    (
        Code.NO_APPLICATION,
        {"key": "k", "label": "applicationId"},
        (
            "Annotation k requires an application ID, which all pods of the gang share: add the "
            "label applicationId"
        ),
    ),
    (
        Code.INVALID_TASK_GROUPS,
        {"key": "k", "maximum": 100_000},
        (
            "Annotation k is not a valid list of task groups: use a JSON list in which each task "
            "group has a unique name and a minMember of at least 1, with at most 100000 pods in total"
        ),
    ),
    (
        Code.GROUP_TOO_LARGE,
        {"group": "ns/g", "minimum": 200_000, "maximum": 100_000},
        "PodGroup ns/g requires 200000 pods to start together: the maximum is 100000",
    ),
    (
        Code.DIFFERENT_SIZES,
        {"level": "pods", "sizes": (2, 3)},
        "Its pods have different group sizes (2 and 3), and the largest is used: set one size",
    ),
    (
        Code.SIZE_NOT_USED,
        {"size": 5, "group": "ns/g", "minimum": 2},
        "The annotation group-size 5 is ignored: PodGroup ns/g requires 2 pods; change it there",
    ),
    (
        Code.SIZE_WITHOUT_GROUP,
        {"size": 4, "key": "k"},
        "The annotation group-size 4 is ignored, because the pod names no group: add the label k",
    ),
    (
        Code.NO_SIZE,
        {"size": 5, "key": names.GROUP_SIZE},
        (
            "The group has no size, so it starts with the 5 pods created so far, once no new pod "
            "appears: to start it at once and always as a whole, add the annotation "
            'fluence.flux-framework.org/group-size: "5"'
        ),
    ),
    (
        Code.NO_SIZE,
        {"size": 1, "key": names.GROUP_SIZE},
        (
            "The group has no size, so it starts with the one pod created so far, once no new pod "
            "appears: to start it at once and always as a whole, add the annotation "
            'fluence.flux-framework.org/group-size: "1"'
        ),
    ),
    (
        Code.GROUP_SETTLES,
        {"quiet": 3000},
        "The group has no size, so it starts when no new pod has appeared for 3 s",
    ),
    (
        Code.DIFFERENT_ANNOTATIONS,
        {"level": "owners", "key": "k", "value": "v"},
        "Its owners have different values of k, and 'v' is used: set one value",
    ),
    (Code.INVALID_ANNOTATION, {"error": "k: it is wrong"}, "Annotation k: it is wrong"),
    (
        Code.INVALID_DURATION,
        {"key": "k", "value": "soon"},
        "Annotation k='soon' is not a valid duration: use seconds or 2h30m, at most 100 years",
    ),
    (
        Code.ANNOTATION_TOO_LONG,
        {"key": "k", "size": 20_000, "most": 16_384},
        "Annotation k has 20000 bytes: the maximum is 16384",
    ),
    (
        Code.TOO_MANY_EXCLUDED,
        {"key": "k", "given": 1001, "most": 1000},
        "Annotation k names 1001 nodes, and the maximum is 1000: use a constraint instead",
    ),
    (
        Code.INVALID_DEVICES,
        {"key": "fluence.flux-framework.org/min-qubits", "value": "many"},
        "Annotation fluence.flux-framework.org/min-qubits='many' is not a number",
    ),
    (
        Code.INVALID_DEVICES,
        {"key": "fluence.flux-framework.org/devices", "value": "each"},
        "Annotation fluence.flux-framework.org/devices='each' is invalid: use per-pod or shared",
    ),
    (
        Code.INVALID_DEVICES,
        {"key": "fluence.flux-framework.org/missing-variables", "value": "no"},
        "Annotation fluence.flux-framework.org/missing-variables='no' is invalid: use warn, hold or ignore",
    ),
    (
        Code.VARIABLES_MISSING,
        {"containers": ("sampler",), "held": False},
        (
            "Container sampler: no variable has the name of its backend (QRMI_BACKEND, FLUXION_BACKEND), "
            "because admission did not set it; the pod is not held for it. Ask an administrator to run "
            "`fluence doctor`, then create the pod again"
        ),
    ),
    (
        Code.VARIABLES_MISSING,
        {"containers": ("a", "b"), "held": True},
        (
            "Containers a, b: no variable has the name of its backend (QRMI_BACKEND, FLUXION_BACKEND), "
            "because admission did not set it; held (annotation "
            "fluence.flux-framework.org/missing-variables). Ask an administrator to run `fluence doctor`, "
            "then create the pod again"
        ),
    ),
    (
        Code.INVALID_SPREAD,
        {"key": "fluence.flux-framework.org/spread", "value": "maybe"},
        "Annotation fluence.flux-framework.org/spread='maybe' is invalid: use true or false",
    ),
    (
        Code.TOO_MANY_TERMS,
        {"given": 100, "most": 64},
        "100 annotations require-*, min-* and max-*: the maximum is 64",
    ),
    (
        Code.REQUIRE_WITHOUT_DEVICE,
        {"keys": ("vendor=ibm",)},
        (
            "vendor=ibm applies to external resources, but no pod requests one: request the resource "
            "fluxion.flux-framework.org/<type>"
        ),
    ),
    # -- jobspecs --
    (
        Code.JOBSPEC_SLOTS,
        {"key": "k", "slots": 3, "pods": 2, "minimum": 2},
        (
            "Annotation k requests 3 slots, but the gang has 2 pods (2 start together): request one "
            "slot per pod"
        ),
    ),
    (
        Code.JOBSPEC_LEVEL,
        {"key": "k", "part": "resources[0]", "type": "rack"},
        (
            "Annotation k: resources[0] requests 'rack', which is not supported: put one slot at the "
            "top, with cores, memory and devices in it"
        ),
    ),
    (
        Code.JOBSPEC_NO_SLOT,
        {"key": "k", "part": "resources[0]", "type": "core"},
        "Annotation k: resources[0] is 'core': put it in a slot, with one slot per pod",
    ),
    (
        Code.JOBSPEC_SEVERAL_SLOTS,
        {"key": "k", "part": "resources", "slots": 2},
        ("Annotation k: resources has 2 kinds of slots, but a gang has one: use one, with one slot per pod"),
    ),
    (
        Code.JOBSPEC_NESTED,
        {"key": "k", "part": "resources[0].with[0].with", "type": "core"},
        (
            "Annotation k: resources[0].with[0].with nests resources below 'core': list the "
            "resources of a slot side by side"
        ),
    ),
    (
        Code.JOBSPEC_RANGE,
        {"key": "k", "part": "resources[0].count"},
        "Annotation k: resources[0].count is a range, but a gang has one size: use a number",
    ),
    (
        Code.JOBSPEC_EXCLUSIVE,
        {"key": "k", "part": "resources[0].exclusive"},
        (
            "Annotation k: resources[0].exclusive is not supported: remove it; for whole nodes, set "
            "the annotation policy to one such as lonodex"
        ),
    ),
    (
        Code.JOBSPEC_RESOURCE,
        {"key": "k", "type": "gpu"},
        (
            "Annotation k requests 'gpu', which its pods do not: request it in the pods, or use "
            "core, memory or a resource that the pods request"
        ),
    ),
    (
        Code.JOBSPEC_UNIT,
        {"key": "k", "part": "p.unit", "type": "memory", "unit": "pages"},
        (
            "Annotation k: p.unit='pages' is not a valid unit of memory: use B, kB, MB, GB, TB, KiB, "
            "MiB, GiB or TiB"
        ),
    ),
    (
        Code.JOBSPEC_NO_UNIT,
        {"key": "k", "part": "p.unit", "type": "core"},
        "Annotation k: p.unit: 'core' has no unit: remove it",
    ),
    (
        Code.JOBSPEC_TOO_LARGE,
        {"key": "k", "part": "resources[0].with[0].count", "type": "memory"},
        ("Annotation k: resources[0].with[0].count requests more memory than any node has: request less"),
    ),
    (
        Code.JOBSPEC_MORE,
        {"key": "k", "resource": "cpu", "asked": 4000, "requested": 500},
        ("Annotation k: a slot requests 4 cpu, but a pod requests 500m: increase the requests of the pods"),
    ),
    (
        Code.JOBSPEC_DEPENDENCIES,
        {"key": "k", "part": "attributes.system.dependencies"},
        (
            "Annotation k: attributes.system.dependencies is not supported: remove it, and create "
            "the pods when they may start"
        ),
    ),
    (
        Code.JOBSPEC_TOO_LONG,
        {"key": "k", "part": "attributes.system.duration", "value": "1e+99"},
        ("Annotation k: attributes.system.duration='1e+99' is not a valid duration: use at most 100 years"),
    ),
    (
        Code.JOBSPEC_DURATION,
        {"key": JOBSPEC, "limit": 3_600_000, "other": DURATION, "given": 90_500},
        (
            "Annotation fluence.flux-framework.org/jobspec has a duration of 3600 s and annotation "
            "fluence.flux-framework.org/duration one of 90.5 s: remove one, or set the same duration "
            "in both"
        ),
    ),
    (
        Code.JOBSPEC_QUEUE,
        {"key": "k", "queue": "a", "other": "l", "given": "b"},
        "Annotation k names queue 'a' and annotation l queue 'b': use one queue",
    ),
    # -- advice --
    (
        Code.GIVE_DURATION,
        {"key": "k"},
        (
            "set its time limit in the annotation k: a job with a limit can be backfilled if it "
            "delays no other"
        ),
    ),
    (Code.NEVER_FITS, {}, "it does not fit even on an empty cluster: request less"),
    (
        Code.SOME_WOULD_FIT,
        {"some": 2, "needed": 3, "group": "ns/g", "key": "k", "enough": 2, "empty": False},
        "2 of 3 pods would fit now: if these are enough, set minCount of PodGroup ns/g to 2",
    ),
    (
        Code.SOME_WOULD_FIT,
        {"some": 2, "needed": 3, "group": None, "key": "k", "enough": 4, "empty": True},
        "2 of 3 pods would fit on an empty cluster: if these are enough, set k to 4",
    ),
    (Code.HOLDS_WITHOUT, {"field": "affinity"}, "the cluster could hold it without its affinity"),
    (
        Code.HOLDS_WITH_TOLERATIONS,
        {"taints": ("dedicated: physics",)},
        (
            "the cluster could hold it on nodes with the taint {dedicated: physics}: add a toleration if it "
            "may use them"
        ),
    ),
    (Code.FITS_WITHOUT, {"field": "nodeSelector"}, "it would fit now without its nodeSelector"),
    (
        Code.FITS_WITH_TOLERATIONS,
        {"taints": ("gpu: ", "dedicated: physics")},
        (
            "it would fit now on nodes with the taints {gpu: } and {dedicated: physics}: add tolerations if "
            "it may use them"
        ),
    ),
    (
        Code.REMOVE_GATES,
        {"gates": ("a", "b")},
        "its scheduling gates must be removed by the controllers that set them: a, b",
    ),
    (Code.UNSUSPEND, {}, "set suspend: false on it"),
    (
        Code.WORK_NOT_HELD,
        {"label": "l=enabled", "kind": "Job", "name": "train"},
        (
            "This namespace is labelled l=enabled, but Job train was not held: admission holds no work here. "
            "Have an administrator set admission.doors: namespaces, or remove the label"
        ),
    ),
    (
        Code.CREATE_PODS,
        {"more": 1, "group": "ns/g", "key": "k"},
        "create 1 more pod of the group, or lower minCount of PodGroup ns/g",
    ),
    (Code.CREATE_PODS, {"more": 2, "group": None, "key": "k"}, "create 2 more pods of the group, or lower k"),
    (Code.GIVEN, {"text": "as it is"}, "as it is"),
]


@pytest.mark.parametrize(("code", "params", "wanted"), GOLDEN)
def test_the_text_is(code: Code, params: dict[str, Value], wanted: str) -> None:
    assert text(Reason.of(code, **params)) == wanted
