"""A group that shares a quantum computer: who produces, who waits, and what each is told."""

from typing import Any

import msgspec
import pytest

from fluence import names
from fluence.model.pod import Pod
from fluence.schedule.gangs.size import declared_size
from tests.unit.admission.objects import QPU, admitted, container, pod, variables_of

READY = "quantum.braket/ready"


def shared(
    index: str | None, *, size: str | None = "4", group: str | None = "g", **more: Any
) -> dict[str, Any]:
    annotations = {names.COORDINATION: "shared"}
    if index is not None:
        annotations[names.COMPLETION_INDEX] = index
    if size is not None:
        annotations[names.GROUP_SIZE] = size
    labels = {} if group is None else {names.GROUP_LABEL: group}
    asks = container(limits={QPU: "1", "cpu": "1"}, requests={QPU: "1", "cpu": "1"})
    return pod(asks, container("other"), annotations=annotations, labels=labels, **more)


def test_index_zero_produces_in_a_group_of_its_own() -> None:
    made = admitted(shared("0")).object
    meta, spec = made["metadata"], made["spec"]
    assert meta["labels"][names.GROUP_LABEL] == "g-producer"
    assert meta["annotations"][names.GROUP_SIZE] == "1"
    assert meta["annotations"][names.COORDINATION_ROLE] == "producer"
    assert "schedulingGates" not in spec
    assert "priorityClassName" not in spec
    assert spec["containers"][0]["resources"]["limits"][QPU] == "1"
    for number in (0, 1):
        assert variables_of(made, number)["FLUENCE_COORDINATION_ROLE"] == "producer"
        assert "FLUENCE_QUANTUM_JOB_ID" not in variables_of(made, number)


def test_the_others_wait_behind_a_gate_without_the_device() -> None:
    made = admitted(shared("2")).object
    meta, spec = made["metadata"], made["spec"]
    assert meta["labels"][names.GROUP_LABEL] == "g"
    assert meta["annotations"] == {
        names.COORDINATION: "shared",
        names.COMPLETION_INDEX: "2",
        names.GROUP_SIZE: "3",
        names.COORDINATION_ROLE: "consumer",
        names.DEPENDS_ON_KIND: "quantum-submit",
        names.DEPENDS_ON_PRODUCER: "g-producer",
        names.DEPENDS_ON_GATE: READY,
    }
    assert spec["schedulingGates"] == [{"name": READY}]
    assert spec["priorityClassName"] == names.QUANTUM_CLASS
    assert spec["containers"][0]["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    told = variables_of(made, 1)
    assert told["FLUENCE_COORDINATION_ROLE"] == "consumer"
    assert told["FLUENCE_QUANTUM_JOB_ID"] == f"metadata.annotations['{names.QUANTUM_JOB_ID}']"


def test_the_scheduler_reads_the_sizes_that_are_written() -> None:
    sizes = [
        declared_size(msgspec.convert(admitted(shared(index)).object, Pod)) for index in ("0", "1", "2", "3")
    ]
    assert sizes == [1, 3, 3, 3]


def test_a_class_of_the_users_own_stays_and_so_does_its_priority() -> None:
    found = shared("1")
    found["spec"] |= {"priorityClassName": "mine", "priority": 7}
    made = admitted(found).object["spec"]
    assert (made["priorityClassName"], made["priority"]) == ("mine", 7)


def test_a_priority_of_no_class_is_computed_anew() -> None:
    found = shared("1")
    found["spec"]["priority"] = 0
    assert "priority" not in admitted(found).object["spec"]


def test_gates_of_the_users_own_stay() -> None:
    found = shared("1")
    found["spec"]["schedulingGates"] = [{"name": "mine"}]
    assert admitted(found).object["spec"]["schedulingGates"] == [{"name": "mine"}, {"name": READY}]


def test_a_second_time_changes_nothing() -> None:
    for index in ("0", "1"):
        once = admitted(shared(index)).object
        assert not admitted(once).patch


def test_the_group_is_the_jobs_name_where_no_label_names_one() -> None:
    owners = [
        {"kind": "Workload", "name": "other"},
        {"kind": "Job", "name": "train", "controller": True},
    ]
    made = admitted(shared("1", group=None, ownerReferences=owners)).object
    assert made["metadata"]["labels"] == {names.GROUP_LABEL: "train"}


@pytest.mark.parametrize("key", names.GROUP_NAMES)
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_every_spelling_of_a_group_counts(key: str, where: str) -> None:
    found = shared("0", group=None)
    found["metadata"][where][key] = "lammps"
    assert admitted(found).object["metadata"]["labels"][names.GROUP_LABEL] == "lammps-producer"


@pytest.mark.parametrize(
    "found",
    [
        shared(None),
        shared("0", size=None),
        shared("0", size="1"),
        shared("0", size="many"),
        shared("first"),
        shared("0", group=None),
        shared("0", group="x" * 55),
    ],
    ids=["no index", "no size", "size 1", "no number", "no index number", "no group", "long group"],
)
def test_what_cannot_be_split_starts_by_itself_and_is_told_so(found: dict[str, Any]) -> None:
    made = admitted(found)
    assert made.rules == ("hand-over-backend",)
    assert len(made.warnings) == 1
    assert "needs an index" in made.warnings[0]


@pytest.mark.parametrize("index", ["0", "1"])
def test_what_was_split_is_not_warned_of(index: str) -> None:
    assert not admitted(shared(index)).warnings


def test_a_pod_that_has_a_node_or_a_native_group_is_left_alone() -> None:
    for field, value in (
        ("nodeName", "n"),
        ("schedulingGroup", {"podGroupName": "g"}),
        ("workloadRef", {"name": "g"}),
    ):
        found = shared("1")
        found["spec"][field] = value
        assert "split-consumer" not in admitted(found).rules


def test_a_group_without_a_quantum_device_is_not_split() -> None:
    found = shared("1")
    del found["spec"]["containers"][0]["resources"]
    assert not admitted(found).patch


def job(**spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"annotations": {names.COORDINATION: "shared"}},
        "spec": {"schedulerName": "fluence"},
    }
    return {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template, **spec}}


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"parallelism": 4}, "4"),
        ({"parallelism": 4, "completions": 3}, "3"),
        ({"parallelism": 2, "completions": 3}, "2"),
        ({"completions": 3}, "1"),
        ({}, "1"),
    ],
)
def test_a_job_tells_its_pods_how_many_they_are(spec: dict[str, Any], size: str) -> None:
    made = admitted(job(**spec)).object
    assert made["spec"]["template"]["metadata"]["annotations"][names.GROUP_SIZE] == size


def test_a_size_that_is_declared_goes_before_what_is_counted() -> None:
    found = job(parallelism=4)
    found["metadata"]["annotations"] = {names.GROUP_SIZE: "3"}
    assert admitted(found).object["spec"]["template"]["metadata"]["annotations"][names.GROUP_SIZE] == "3"
    found["spec"]["template"]["metadata"]["labels"] = {"fluence.group-size": "2"}
    assert not admitted(found).patch


def test_a_job_that_shares_nothing_is_as_it_was() -> None:
    found = job(parallelism=4)
    found["spec"]["template"]["metadata"] = {}
    assert not admitted(found).patch
