"""Patches that let held pods and Jobs go: by name, with tests, and a pin in every term."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fluence import names
from fluence.act.binder import hand_over, let_go, ungate
from fluence.model.grant import ReleaseNote, fluxqueue_labels
from fluence.model.meta import Requirement
from fluence.model.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    SchedulingGate,
)
from tests.unit.schedule.test_held import gated, held, template

NOTE = ReleaseNote("7", '{"start":1}', ((0, "n0"), (2, "n1")), 1)
PIN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def added(operations: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["path"]: each["value"] for each in operations if each["op"] == "add"}


def checks(operations: list[dict[str, Any]]) -> dict[str, Any]:
    return {each["path"]: each["value"] for each in operations if each["op"] == "test"}


def test_only_our_gate_is_removed_wherever_it_stands() -> None:
    gates = [SchedulingGate(name="mine"), SchedulingGate(name=names.GATE_FLUXQUEUE)]
    pod = gated("p")
    operations = ungate(replace(pod, spec=replace(pod.spec, scheduling_gates=gates)))
    assert checks(operations) == {
        "/metadata/uid": pod.metadata.uid,
        "/spec/schedulingGates/1/name": names.GATE_FLUXQUEUE,
    }
    assert operations[-1] == {"op": "remove", "path": "/spec/schedulingGates/1"}


def test_a_pod_without_affinity_gets_one_with_the_pin_and_its_job() -> None:
    pod = gated("p")
    found = added(hand_over(pod, "n1", annotations={names.JOBID: "7"}, labels={names.FLUXQUEUE_JOBID: "7"}))
    assert found["/spec/affinity"] == {
        "nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [PIN]}]}}
    }
    assert found["/metadata/annotations"] == {names.JOBID: "7"}
    assert found["/metadata/labels/fluxqueue~1jobid"] == "7"


def test_other_affinity_is_kept() -> None:
    pod = gated("p", affinity=Affinity(pod_affinity=PodAffinity()))
    found = added(hand_over(pod, "n1", annotations={}, labels={}))
    assert found["/spec/affinity/nodeAffinity"] == {REQUIRED: {"nodeSelectorTerms": [{"matchFields": [PIN]}]}}
    pod = gated("p", affinity=Affinity(node_affinity=NodeAffinity()))
    found = added(hand_over(pod, "n1", annotations={}, labels={}))
    assert found[f"/spec/affinity/nodeAffinity/{REQUIRED}"] == {"nodeSelectorTerms": [{"matchFields": [PIN]}]}


def test_the_pin_is_anded_into_every_term_that_could_match() -> None:
    zone = Requirement(key="zone", operator="Exists")
    terms = [
        NodeSelectorTerm(match_expressions=[zone]),
        NodeSelectorTerm(match_fields=[Requirement(key="metadata.name", operator="NotIn", values=["n0"])]),
        NodeSelectorTerm(),  # matches nothing, and must not match because of us
    ]
    required = NodeSelector(node_selector_terms=terms)
    pod = gated("p", affinity=Affinity(node_affinity=NodeAffinity(required=required)))
    found = added(hand_over(pod, "n1", annotations={}, labels={}))
    at = f"/spec/affinity/nodeAffinity/{REQUIRED}/nodeSelectorTerms"
    assert {key: value for key, value in found.items() if key.startswith(at)} == {
        f"{at}/0/matchFields": [PIN],
        f"{at}/1/matchFields/-": PIN,
    }


def test_a_job_is_let_go_only_as_it_was_planned() -> None:
    job = held("j", annotations={"mine": "1"})
    operations = let_go(job, NOTE)
    assert checks(operations) == {
        "/metadata/uid": job.metadata.uid,
        "/metadata/generation": 1,
        "/spec/suspend": True,
    }
    assert {"op": "replace", "path": "/spec/suspend", "value": False} in operations
    found = added(operations)
    assert found["/metadata/annotations/fluxqueue~1fluxion-nodes"] == "n[0-1]"
    assert found["/metadata/annotations/fluxqueue~1indexes"] == "0,2"
    assert found["/metadata/labels/fluxqueue~1jobid"] == "7"


def test_annotations_of_others_are_not_lost_where_there_were_none() -> None:
    operations = let_go(held("j"), NOTE)
    assert "/metadata/resourceVersion" in checks(operations)
    assert set(added(operations)["/metadata/annotations"]) >= {names.JOBID, names.FLUXQUEUE_NODES}


def test_the_pods_of_a_job_for_kube_scheduler_wait_behind_the_gate() -> None:
    theirs = held("j", template=template(scheduler=names.KUBE_SCHEDULER))
    assert added(let_go(theirs, NOTE))["/spec/template/spec/schedulingGates"] == [
        {"name": names.GATE_FLUXQUEUE}
    ]
    there = held("j", template=template(scheduler=names.KUBE_SCHEDULER, gated=True))
    assert not [path for path in added(let_go(there, NOTE)) if "schedulingGates" in path]


def test_released_work_is_labelled_as_fluxqueue_does_it() -> None:
    assert fluxqueue_labels("7", ["kind-worker", "kind-worker2"]) == {
        names.FLUXQUEUE_JOBID: "7",
        names.FLUXQUEUE_NODES: "kind-worker__kind-worker2",
    }
    # No label may be longer; the annotation has all of them.
    assert fluxqueue_labels("7", [f"worker-{number}" for number in range(9)]) == {names.FLUXQUEUE_JOBID: "7"}
