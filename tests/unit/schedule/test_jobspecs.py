"""A jobspec of the user's own is placed by, or refused with the place in it and the cure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence import names
from fluence.model.constraint import Constraint
from fluence.model.pod import Container, Pod, ResourceRequirements
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.gangs.jobspecs import MAX_JOBSPEC_BYTES, JobspecRequest, read_jobspec
from tests.unit.schedule.kit import GROUP, SIZE, group, owner, pod, ranks

CORE = {"type": "core", "count": 1}
Json = dict[str, Any]


def slot(count: object = 2, *with_: Json, **more: object) -> Json:
    return {"type": "slot", "count": count, "label": "s", "with": list(with_) or [CORE], **more}


def jobspec(*resources: Json, **system: object) -> str:
    return json.dumps(
        {
            "version": 1,
            "resources": list(resources) or [slot()],
            "tasks": [{"command": ["a"], "slot": "s", "count": {"per_slot": 1}}],
            "attributes": {"system": {"duration": 0, **system}},
        }
    )


def gang_of(*pods: Pod) -> Gang:
    groups = Groups()
    for each in pods:
        groups.set_pod(each)
    (gang,) = groups.gangs()
    return gang


def gang(text: str, *, annotations: dict[str, str] | None = None, **more: Any) -> Gang:
    """Two pods of a cpu each, unless said otherwise, with this jobspec."""
    marks = {names.JOBSPEC: text, **(annotations or {})}
    return gang_of(*ranks(2, labels={GROUP: "g", SIZE: "2"}, annotations=marks, **more))


def code(of: Gang) -> Code | None:
    return of.fault.code if of.fault is not None else None


# -- placed by -----------------------------------------------------------------------------------------------


def test_a_slot_per_pod_with_what_the_pods_request_changes_nothing() -> None:
    found = gang(jobspec(slot(2, CORE)))
    assert found.is_ready and found.jobspec is not None


def test_a_slot_that_asks_for_less_than_its_pod_is_fine() -> None:
    assert gang(jobspec(slot(2, CORE)), cpu="2").is_ready


def more(of: Gang) -> tuple[object, ...] | None:
    """What a slot asks for beyond what a pod requests."""
    if of.fault is None or of.fault.code is not Code.JOBSPEC_MORE:
        return None
    return of.fault["resource"], of.fault["asked"], of.fault["requested"]


def test_a_slot_that_asks_for_more_than_its_pod_is_refused() -> None:
    assert more(gang(jobspec(slot(2, {"type": "core", "count": 4})))) == ("cpu", 4000, 1000)


def test_it_is_refused_where_only_some_pods_request_less() -> None:
    text = jobspec(slot(2, {"type": "core", "count": 2}))
    marks = {"labels": {GROUP: "g", SIZE: "2"}, "annotations": {names.JOBSPEC: text}}
    assert more(gang_of(pod("a", cpu="4", **marks), pod("b", cpu="1", **marks))) == ("cpu", 2000, 1000)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("unit", "amount"),
    [
        *(("B", 3), ("kB", 3000), ("K", 3000), ("MB", 3 * 10**6), ("M", 3 * 10**6), ("GB", 3 * 10**9)),
        *(("Ki", 3 << 10), ("KiB", 3 << 10), ("MiB", 3 << 20), ("GiB", 3 << 30), ("TiB", 3 << 40)),
    ],
)
def test_memory_is_read_in_any_unit(unit: str, amount: int) -> None:
    found = gang(jobspec(slot(2, {"type": "memory", "count": 3, "unit": unit})))
    assert more(found) == ("memory", amount, 0)


def test_entries_of_one_type_add_up() -> None:
    assert more(gang(jobspec(slot(2, CORE, CORE)))) == ("cpu", 2000, 1000)
    assert more(gang(jobspec(slot(2, CORE, {"type": "cpu", "count": 1})))) == ("cpu", 2000, 1000)


def test_a_device_is_the_resource_of_that_name_that_the_pods_request() -> None:
    text = jobspec(slot(1, {"type": "gpu", "count": 2}))
    wants = ResourceRequirements(requests={"nvidia.com/gpu": "1"})
    one = pod("a", annotations={names.JOBSPEC: text})
    one = replace(one, spec=replace(one.spec, containers=[Container(name="c", resources=wants)]))
    assert more(gang_of(one)) == ("nvidia.com/gpu", 2, 1)


def test_its_duration_is_the_limit_where_no_annotation_says_one() -> None:
    assert gang(jobspec(duration=90.5)).limit == 90_500
    assert gang(jobspec(duration=0)).limit is None
    assert gang(jobspec(duration=60), annotations={names.DURATION: "1m"}).limit == 60_000
    assert gang(jobspec(duration=0), annotations={names.DURATION: "1m"}).limit == 60_000
    shorter = gang(jobspec(duration=60), active_deadline_seconds=30)
    assert (shorter.limit, shorter.bounded) == (30_000, True)


@pytest.mark.parametrize(("text", "ms"), [("2m", 120_000), ("0", 0)])
def test_a_duration_that_the_annotation_contradicts_is_refused_with_both(text: str, ms: int) -> None:
    found = gang(jobspec(duration=60), annotations={names.DURATION: text})
    assert found.fault == Reason.of(
        Code.JOBSPEC_DURATION, key=names.JOBSPEC, other=names.DURATION, limit=60_000, given=ms
    )


def test_its_queue_counts_and_may_not_contradict_the_annotation() -> None:
    assert gang(jobspec(queue="debug")).queue == "debug"
    assert gang(jobspec(queue="debug"), annotations={names.QUEUE: "debug"}).is_ready
    assert code(gang(jobspec(queue="debug"), annotations={names.QUEUE: "batch"})) is Code.JOBSPEC_QUEUE


def test_its_constraints_and_the_annotations_must_both_hold() -> None:
    gpu, ssd = Constraint("properties", ("gpu",)), Constraint("properties", ("ssd",))
    of_jobspec = jobspec(constraints={"properties": ["gpu"]})
    assert gang(of_jobspec).constraint == gpu
    ssd_too = {names.CONSTRAINTS: '{"properties": ["ssd"]}'}
    assert gang(of_jobspec, annotations=ssd_too).constraint == Constraint("and", children=(ssd, gpu))
    assert gang(jobspec(), annotations=ssd_too).constraint == ssd


# -- slots are pods ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3])
def test_the_slots_must_be_as_many_as_the_gang_has_pods(slots: int) -> None:
    found = gang(jobspec(slot(slots)))
    assert found.fault == Reason.of(Code.JOBSPEC_SLOTS, key=names.JOBSPEC, slots=slots, pods=2, minimum=2)


def test_slots_may_be_the_pods_that_start_together_or_all_that_there_will_be() -> None:
    for slots in (2, 5):
        text = jobspec(slot(slots))
        groups, job = Groups(), owner("j", parallelism=5)
        groups.set_owner(job)
        groups.set_group(group("g", 2))
        groups.set_pod(pod("a", owner=job, field="g", annotations={names.JOBSPEC: text}))
        (found,) = groups.gangs()
        assert found.fault is None and found.missing == Reason.of(
            Code.PODS_MISSING, group="default/g", pods=1, minimum=2
        )


# -- refused -------------------------------------------------------------------------------------------------

NODE = {"type": "node", "count": 2, "with": [slot(1)]}


@pytest.mark.parametrize(
    ("resources", "wanted", "part"),
    [
        ([NODE], Code.JOBSPEC_LEVEL, "resources[0]"),
        ([{"type": "rack", "count": 1, "with": [NODE]}], Code.JOBSPEC_LEVEL, "resources[0]"),
        ([slot(2, {"type": "node", "count": 1})], Code.JOBSPEC_LEVEL, "resources[0].with[0]"),
        ([slot(2, CORE, {"type": "socket", "count": 1})], Code.JOBSPEC_LEVEL, "resources[0].with[1]"),
        ([CORE], Code.JOBSPEC_NO_SLOT, "resources[0]"),
        ([slot(1), slot(1)], Code.JOBSPEC_SEVERAL_SLOTS, "resources"),
        ([slot(2, slot(1))], Code.JOBSPEC_SEVERAL_SLOTS, "resources[0].with[0]"),
        ([slot({"min": 2})], Code.JOBSPEC_RANGE, "resources[0].count"),
        ([slot(2, {"type": "core", "count": {"min": 1}})], Code.JOBSPEC_RANGE, "resources[0].with[0].count"),
        ([slot(2, exclusive=True)], Code.JOBSPEC_EXCLUSIVE, "resources[0].exclusive"),
        ([slot(2, {**CORE, "exclusive": True})], Code.JOBSPEC_EXCLUSIVE, "resources[0].with[0].exclusive"),
        ([slot(2, {**CORE, "with": [CORE]})], Code.JOBSPEC_NESTED, "resources[0].with[0].with"),
        ([slot(2, {"type": "memory", "count": 1})], Code.JOBSPEC_UNIT, "resources[0].with[0].unit"),
        (
            [slot(2, {"type": "memory", "count": 1, "unit": "pages"})],
            Code.JOBSPEC_UNIT,
            "resources[0].with[0].unit",
        ),
        ([slot(2, {**CORE, "unit": "GB"})], Code.JOBSPEC_NO_UNIT, "resources[0].with[0].unit"),
        (
            [slot(2, {"type": "memory", "count": 2**32 - 1, "unit": "TiB"})],
            Code.JOBSPEC_TOO_LARGE,
            "resources[0].with[0].count",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(
    resources: list[Json], wanted: Code, part: str
) -> None:
    found = gang(jobspec(*resources))
    assert found.fault is not None and (found.fault.code, found.fault["part"]) == (wanted, part)
    assert not found.is_ready


def test_exclusive_false_is_fine() -> None:
    assert gang(jobspec(slot(2, exclusive=False))).is_ready


@pytest.mark.parametrize("type_", ["gpu", "qpu", "nvidia.com/gpu"])
def test_a_resource_that_no_pod_requests_is_refused(type_: str) -> None:
    found = gang(jobspec(slot(2, {"type": type_, "count": 1})))
    assert found.fault == Reason.of(Code.JOBSPEC_RESOURCE, key=names.JOBSPEC, type=type_)


def test_dependencies_and_endless_durations_are_refused() -> None:
    assert code(gang(jobspec(dependencies=[]))) is Code.JOBSPEC_DEPENDENCIES
    assert code(gang(jobspec(duration=1e99))) is Code.JOBSPEC_TOO_LONG


def test_a_jobspec_that_cannot_be_read_names_the_annotation() -> None:
    found = gang("version: [1")
    assert found.fault is not None and found.fault.code is Code.INVALID_ANNOTATION
    assert str(found.fault["error"]).startswith(names.JOBSPEC)


def test_a_jobspec_that_is_too_long_is_not_read() -> None:
    text = jobspec() + " " * MAX_JOBSPEC_BYTES + "#"
    assert gang(text).fault == Reason.of(
        Code.ANNOTATION_TOO_LONG, key=names.JOBSPEC, size=len(text), most=MAX_JOBSPEC_BYTES
    )


@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "resources", "tasks", "attributes", "type", "count", "with"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_whatever_is_given_is_a_request_or_a_reason(text: str) -> None:
    assert isinstance(read_jobspec(text), JobspecRequest | Reason)
