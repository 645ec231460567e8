"""The text of each reason of groups and advice, letter by letter: users read it, and scripts do."""

from __future__ import annotations

import pytest

from fluence import names
from fluence.messages import text
from fluence.model.reason import Code, Reason, Value

JOBSPEC, DURATION = names.JOBSPEC, names.DURATION

GOLDEN: list[tuple[Code, dict[str, Value], str]] = [
    (Code.QUEUED_BEHIND_OTHERS, {}, "it would fit, but jobs in front of it must start first"),
    (
        Code.CLUSTER_CANNOT_HOLD,
        {"causes": (Reason.of(Code.GIVEN, text="a"), Reason.of(Code.GIVEN, text="b"))},
        "the cluster as it is cannot hold it: a; b",
    ),
    # -- what a gang waits for --
    (Code.OWNER_NOT_SEEN, {"kind": "Job", "name": "j"}, "waits for its Job j to be seen"),
    (Code.POD_GROUP_NOT_SEEN, {"group": "ns/g"}, "waits for its PodGroup ns/g"),
    (
        Code.POD_GROUP_OR_SIZE_MISSING,
        {"group": "ns/g"},
        "waits for its PodGroup ns/g: create it, or say its size in group-size",
    ),
    (Code.OWNER_SUSPENDED, {"kind": "Job", "owner": "ns/j"}, "Job ns/j is suspended"),
    (Code.PODS_GATED, {"gated": 1, "pods": 3}, "1 of 3 pods is held by scheduling gates"),
    (Code.PODS_GATED, {"gated": 2, "pods": 3}, "2 of 3 pods are held by scheduling gates"),
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
        "annotation k: gate kueue.x-k8s.io/admission is opened by its own controller; use one of your own",
    ),
    (
        Code.FOREIGN_PRODUCER,
        {"key": "k", "value": "other/p", "namespace": "mine"},
        "annotation k='other/p' names a producer in another namespace: name one in mine",
    ),
    (
        Code.PRODUCER_ANNOUNCED,
        {"gate": "g", "producer": "p", "task": "t"},
        "gate g is opened: producer p has announced task t",
    ),
    (Code.PRODUCER_STARTED, {"gate": "g", "producer": "p"}, "gate g is opened: producer p has started"),
    (Code.PRODUCER_FINISHED, {"gate": "g", "producer": "p"}, "gate g is opened: producer p has finished"),
    (
        Code.PRODUCER_SILENT,
        {"gate": "g", "producer": "p", "limit": 300_000},
        "gate g is opened without a task: producer p has announced none within 5 min",
    ),
    (
        Code.PRODUCER_ENDED,
        {"gate": "g", "producer": "p"},
        "gate g is opened without a task: producer p has ended and announced none",
    ),
    (Code.PRODUCER_GONE, {"gate": "g", "producer": "p"}, "gate g is opened: producer p is gone"),
    (Code.GATE_NOT_OPENED, {"gate": "g", "error": "e"}, "gate g could not be opened yet: e"),
    (
        Code.ANNOUNCE_TASK,
        {"producer": "p", "key": "k"},
        (
            "the producer announces its task by `fluence task announce ID` in its container, or by the "
            "annotation k on its pod (p)"
        ),
    ),
    (Code.PODS_MISSING, {"pods": 1, "minimum": 3}, "1 of 3 pods is there"),
    (Code.PODS_MISSING, {"pods": 2, "minimum": 3}, "2 of 3 pods are there"),
    (
        Code.OWNER_RUNS_TOO_FEW,
        {"pods": 2, "minimum": 5, "kind": "Job", "owner": "ns/j", "others": 0, "runs": 2},
        (
            "2 of 5 pods are there, and Job ns/j runs 2 at a time: raise that, create the others of its "
            "group, or lower the size"
        ),
    ),
    (
        Code.OWNER_RUNS_TOO_FEW,
        {"pods": 2, "minimum": 5, "kind": "Job", "owner": "ns/j", "others": 1, "runs": 3},
        (
            "2 of 5 pods are there, and Job ns/j and 1 more run 3 at a time: raise that, create the others "
            "of its group, or lower the size"
        ),
    ),
    (
        Code.OWNER_IS_ORDERED,
        {"pods": 1, "minimum": 3, "owner": "ns/s"},
        (
            "1 of 3 pods is there, and StatefulSet ns/s makes the next only when the one before it is ready "
            "(OrderedReady), so that they never gather: create it anew with podManagementPolicy: Parallel"
        ),
    ),
    (
        Code.UNKNOWN_ANNOTATION,
        {"kind": "annotation", "key": "f/durration", "nearest": "f/duration"},
        "annotation f/durration is not known and not read: did you mean f/duration?",
    ),
    (
        Code.UNKNOWN_ANNOTATION,
        {"kind": "label", "key": "f/zzz", "nearest": None},
        "label f/zzz is not known and not read",
    ),
    (Code.LABEL_NOT_READ, {"key": "f/duration"}, "label f/duration is not read: write it as an annotation"),
    # -- why it is refused --
    (
        Code.OTHER_SCHEDULER,
        {"others": ("a", "b"), "scheduler": "fluence"},
        "some of its pods name another scheduler (a, b): set schedulerName: fluence on all of them",
    ),
    (
        Code.TOPOLOGY_NEEDS_GANG,
        {"group": "ns/g", "key": "rack"},
        (
            "PodGroup ns/g: spec.schedulingConstraints.topology (rack) needs a gang, since the pods "
            "of a basic group start one by one: set schedulingPolicy.gang"
        ),
    ),
    (
        Code.SHARED_CLAIMS,
        {"group": "ns/g", "claims": ("a", "b")},
        (
            "PodGroup ns/g shares resource claims (a, b), which only kube-scheduler allocates: leave "
            "schedulerName out"
        ),
    ),
    (
        Code.DIFFERENT_PRIORITIES,
        {"priorities": (1, 2)},
        "its pods have different priorities (1 and 2): set one priorityClassName on all of them",
    ),
    (
        Code.GROUP_PRIORITY_DIFFERS,
        {"group": "ns/g", "wanted": 7, "given": 5},
        "PodGroup ns/g has priority 7 and its pods 5: set one priorityClassName on both",
    ),
    (
        Code.DIFFERENT_PREEMPTION_POLICIES,
        {"policies": ("Never", "PreemptLowerPriority")},
        "its pods have different preemption policies (Never and PreemptLowerPriority): set one on all",
    ),
    # -- labels and annotations --
    (
        Code.INVALID_GROUP_NAME,
        {"kind": "annotation", "key": "k", "value": "../x"},
        "annotation k='../x' is not a valid name of a group: use letters, digits, '-', '_' and '.'",
    ),
    (
        Code.INVALID_SIZE,
        {"kind": "label", "key": "k", "value": "0x8", "maximum": 100_000},
        "label k='0x8' is not a valid size: write a whole number from 1 to 100000",
    ),
    (
        Code.NO_APPLICATION,
        {"key": "k", "label": "applicationId"},
        (
            "annotation k needs the name of the application, which all pods of the gang share: add the label "
            "applicationId"
        ),
    ),
    (
        Code.INVALID_TASK_GROUPS,
        {"key": "k", "maximum": 100_000},
        (
            "annotation k is not a valid list of task groups: write a JSON list in which each task group has "
            "a name of its own and a minMember of at least 1, at most 100000 pods in all"
        ),
    ),
    (
        Code.GROUP_TOO_LARGE,
        {"group": "ns/g", "minimum": 200_000, "maximum": 100_000},
        "PodGroup ns/g wants 200000 pods to start together: ask for at most 100000",
    ),
    (
        Code.DIFFERENT_SIZES,
        {"level": "pods", "sizes": (2, 3)},
        "its pods say different sizes, 2 and 3: the largest is used; write one",
    ),
    (
        Code.SIZE_NOT_USED,
        {"size": 5, "group": "ns/g", "minimum": 2},
        "group-size 5 is not used: PodGroup ns/g says 2; change it there",
    ),
    (
        Code.SIZE_WITHOUT_GROUP,
        {"size": 4, "key": "k"},
        "group-size 4 is not used, since nothing says which pods belong together: add the label k",
    ),
    (
        Code.NO_SIZE,
        {"size": 5, "key": names.GROUP_SIZE},
        (
            "the group names no size, so it starts with the 5 pods that are there when nothing new comes: to "
            "start it at once, and always as a whole, add the annotation "
            'fluence.flux-framework.org/group-size: "5"'
        ),
    ),
    (
        Code.NO_SIZE,
        {"size": 1, "key": names.GROUP_SIZE},
        (
            "the group names no size, so it starts with the one pod that is there when nothing new comes: to "
            "start it at once, and always as a whole, add the annotation "
            'fluence.flux-framework.org/group-size: "1"'
        ),
    ),
    (
        Code.GROUP_SETTLES,
        {"quiet": 3000},
        "its group names no size, so it starts when nothing new has come for 3 s",
    ),
    (
        Code.DIFFERENT_ANNOTATIONS,
        {"level": "owners", "key": "k", "value": "v"},
        "its owners say different things in k: 'v' counts; write one",
    ),
    (Code.INVALID_ANNOTATION, {"error": "k: it is wrong"}, "annotation k: it is wrong"),
    (
        Code.INVALID_DURATION,
        {"key": "k", "value": "soon"},
        "annotation k='soon' is not a valid duration: write seconds, or 2h30m; at most 100 years",
    ),
    (
        Code.ANNOTATION_TOO_LONG,
        {"key": "k", "size": 20_000, "most": 16_384},
        "annotation k has 20000 bytes: write at most 16384",
    ),
    (
        Code.TOO_MANY_EXCLUDED,
        {"key": "k", "given": 1001, "most": 1000},
        "annotation k names 1001 nodes: name at most 1000, or say which nodes in constraints",
    ),
    (
        Code.INVALID_DEVICES,
        {"key": "fluence.flux-framework.org/min-qubits", "value": "many"},
        "annotation fluence.flux-framework.org/min-qubits='many' is not a number",
    ),
    (
        Code.INVALID_DEVICES,
        {"key": "fluence.flux-framework.org/devices", "value": "each"},
        "annotation fluence.flux-framework.org/devices='each': write per-pod, or shared",
    ),
    (
        Code.TOO_MANY_TERMS,
        {"given": 100, "most": 64},
        "100 annotations require-, min- and max-: write at most 64",
    ),
    (
        Code.REQUIRE_WITHOUT_DEVICE,
        {"keys": ("vendor=ibm",)},
        (
            "vendor=ibm is said of devices, and no pod asks for one: add a resource "
            "fluxion.flux-framework.org/<type>"
        ),
    ),
    # -- jobspecs --
    (
        Code.JOBSPEC_SLOTS,
        {"key": "k", "slots": 3, "pods": 2, "minimum": 2},
        (
            "annotation k asks for 3 slots and the gang has 2 pods, of which 2 start together: ask "
            "for one slot per pod"
        ),
    ),
    (
        Code.JOBSPEC_LEVEL,
        {"key": "k", "part": "resources[0]", "type": "rack"},
        (
            "annotation k: resources[0] asks for 'rack', and counts per rack are not kept: write one slot on "
            "top, with cores, memory and devices in it"
        ),
    ),
    (
        Code.JOBSPEC_NO_SLOT,
        {"key": "k", "part": "resources[0]", "type": "core"},
        "annotation k: resources[0] is 'core': put it into a slot, one per pod",
    ),
    (
        Code.JOBSPEC_SEVERAL_SLOTS,
        {"key": "k", "part": "resources", "slots": 2},
        "annotation k: resources has 2 slots, and a gang has one kind: write one slot, one per pod",
    ),
    (
        Code.JOBSPEC_NESTED,
        {"key": "k", "part": "resources[0].with[0].with", "type": "core"},
        (
            "annotation k: resources[0].with[0].with puts resources below 'core': write all that a slot has "
            "side by side"
        ),
    ),
    (
        Code.JOBSPEC_RANGE,
        {"key": "k", "part": "resources[0].count"},
        "annotation k: resources[0].count is a range, and a gang has one size: write a number",
    ),
    (
        Code.JOBSPEC_EXCLUSIVE,
        {"key": "k", "part": "resources[0].exclusive"},
        (
            "annotation k: resources[0].exclusive is not supported: remove it, and for whole nodes "
            "name a policy such as lonodex in the annotation policy"
        ),
    ),
    (
        Code.JOBSPEC_RESOURCE,
        {"key": "k", "type": "gpu"},
        (
            "annotation k asks for 'gpu', which is not a resource that its pods request: request it "
            "there, or ask for core, memory or what they request"
        ),
    ),
    (
        Code.JOBSPEC_UNIT,
        {"key": "k", "part": "p.unit", "type": "memory", "unit": "pages"},
        (
            "annotation k: p.unit='pages' is not a valid unit of memory: write B, kB, MB, GB, TB, "
            "KiB, MiB, GiB or TiB"
        ),
    ),
    (
        Code.JOBSPEC_NO_UNIT,
        {"key": "k", "part": "p.unit", "type": "core"},
        "annotation k: p.unit: 'core' is counted and has no unit: remove it",
    ),
    (
        Code.JOBSPEC_TOO_LARGE,
        {"key": "k", "part": "resources[0].with[0].count", "type": "memory"},
        "annotation k: resources[0].with[0].count asks for more memory than any node has: ask for less",
    ),
    (
        Code.JOBSPEC_MORE,
        {"key": "k", "resource": "cpu", "asked": 4000, "requested": 500},
        (
            "annotation k: a slot asks for 4 cpu and a pod requests 500m: raise the pods' requests, "
            "which is what they are given"
        ),
    ),
    (
        Code.JOBSPEC_DEPENDENCIES,
        {"key": "k", "part": "attributes.system.dependencies"},
        (
            "annotation k: attributes.system.dependencies is not supported: remove it, and create "
            "the pods when they may start"
        ),
    ),
    (
        Code.JOBSPEC_TOO_LONG,
        {"key": "k", "part": "attributes.system.duration", "value": "1e+99"},
        "annotation k: attributes.system.duration='1e+99' is not a valid duration: ask for at most 100 years",
    ),
    (
        Code.JOBSPEC_DURATION,
        {"key": JOBSPEC, "limit": 3_600_000, "other": DURATION, "given": 90_500},
        (
            f"annotation {JOBSPEC} takes 3600 s and the annotation {DURATION} says 90.5 s: write "
            "one of them, or the same in both"
        ),
    ),
    (
        Code.JOBSPEC_QUEUE,
        {"key": "k", "queue": "a", "other": "l", "given": "b"},
        "annotation k names the queue 'a' and the annotation l the queue 'b': name one",
    ),
    # -- advice --
    (
        Code.GIVE_DURATION,
        {"key": "k"},
        "say how long it takes in the annotation k: work with a limit may go ahead where it delays nobody",
    ),
    (Code.NEVER_FITS, {}, "as the cluster is, it never fits: ask for less"),
    (
        Code.SOME_WOULD_FIT,
        {"some": 2, "needed": 3, "group": "ns/g", "key": "k", "enough": 2, "empty": False},
        "2 of 3 pods would fit now: if they are enough, set minCount of PodGroup ns/g to 2",
    ),
    (
        Code.SOME_WOULD_FIT,
        {"some": 2, "needed": 3, "group": None, "key": "k", "enough": 4, "empty": True},
        "2 of 3 pods would fit if the cluster were empty: if they are enough, set k to 4",
    ),
    (Code.HOLDS_WITHOUT, {"field": "affinity"}, "without its affinity the cluster could hold it"),
    (
        Code.HOLDS_WITH_TOLERATIONS,
        {},
        ("the cluster could hold it on nodes whose taints it does not tolerate: add tolerations if it may"),
    ),
    (Code.FITS_WITHOUT, {"field": "nodeSelector"}, "without its nodeSelector it would fit now"),
    (
        Code.FITS_WITH_TOLERATIONS,
        {},
        "it would fit now on nodes whose taints it does not tolerate: add tolerations if it may",
    ),
    (Code.REMOVE_GATES, {"gates": ("a", "b")}, "its gates must be removed by whoever set them: a, b"),
    (Code.UNSUSPEND, {}, "set suspend: false on it"),
    (
        Code.CREATE_PODS,
        {"more": 1, "group": "ns/g", "key": "k"},
        "create 1 more pod of it, or lower minCount of PodGroup ns/g",
    ),
    (Code.CREATE_PODS, {"more": 2, "group": None, "key": "k"}, "create 2 more pods of it, or lower k"),
    (Code.GIVEN, {"text": "as it is"}, "as it is"),
]


@pytest.mark.parametrize(("code", "params", "wanted"), GOLDEN)
def test_the_text_is(code: Code, params: dict[str, Value], wanted: str) -> None:
    assert text(Reason.of(code, **params)) == wanted
