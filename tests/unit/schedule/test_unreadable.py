"""What cannot be read holds a gang back with the cure and never makes single pods of it.

What nobody reads is told.
"""

from __future__ import annotations

import json

import pytest

from fluence import names
from fluence.model.reason import Code, Reason
from fluence.schedule import restart
from fluence.schedule.gangs.annotations import (
    KNOWN,
    MAX_CONSTRAINT_BYTES,
    MAX_TEXT_BYTES,
    read_constraint,
    unread,
)
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.kit import GROUP, SIZE, group, owner, pod, ranks


def fault(gang: Gang) -> Code | None:
    return gang.fault.code if gang.fault is not None else None


BAD_SIZES = ["0", "-3", "three", "2.5", "1e3", "٣", "0x8", "８", "100001", "9" * 40]


@pytest.mark.parametrize("text", BAD_SIZES)
@pytest.mark.parametrize("key", names.GROUP_SIZES)
def test_a_size_that_cannot_be_read_holds_the_gang_of_its_owner(text: str, key: str) -> None:
    groups, job = Groups(), owner("j", parallelism=2)
    groups.set_owner(job)
    for each in ranks(2, owner=job, annotations={key: text}):
        groups.set_pod(each)
    (gang,) = groups.gangs()
    assert not gang.is_single and not gang.is_ready
    assert gang.fault == Reason.of(
        Code.INVALID_SIZE, kind="annotation", key=key, value=text[:40], maximum=100_000
    )


@pytest.mark.parametrize("text", BAD_SIZES)
def test_a_size_that_cannot_be_read_holds_a_pod_without_an_owner(text: str) -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={SIZE: text}))
    (gang,) = groups.gangs()
    assert not gang.is_ready and fault(gang) is Code.INVALID_SIZE


def test_a_size_that_cannot_be_read_on_the_owner_holds_its_pods() -> None:
    groups, job = Groups(), owner("j", parallelism=2, annotations={SIZE: "0x8"})
    groups.set_owner(job)
    for each in ranks(2, owner=job):
        groups.set_pod(each)
    (gang,) = groups.gangs()
    assert gang.key == "default/job:j" and fault(gang) is Code.INVALID_SIZE


def test_a_group_name_that_cannot_be_read_holds_the_pod() -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={GROUP: "../../etc"}))
    (gang,) = groups.gangs()
    assert not gang.is_ready
    assert gang.fault == Reason.of(Code.INVALID_GROUP_NAME, kind="annotation", key=GROUP, value="../../etc")


def test_a_group_name_that_cannot_be_read_holds_the_gang_that_the_owner_names() -> None:
    groups, job = Groups(), owner("j", parallelism=2, labels={GROUP: "g"})
    groups.set_owner(job)
    groups.set_pod(pod("p", owner=job, annotations={GROUP: "../../etc"}))
    (gang,) = groups.gangs()
    assert gang.key == "default/g" and fault(gang) is Code.INVALID_GROUP_NAME


def test_other_schedulers_pods_with_names_that_cannot_be_read_are_none_of_ours() -> None:
    groups = Groups()
    assert not groups.set_pod(pod("p", scheduler="other", annotations={GROUP: "../../etc"}))
    assert len(groups) == 0


def test_a_size_that_cannot_be_read_beside_a_pod_group_that_says_it_is_a_warning() -> None:
    groups = Groups()
    groups.set_group(group("g", 2))
    for each in ranks(2, field="g", annotations={SIZE: "0x8"}):
        groups.set_pod(each)
    (gang,) = groups.gangs()
    assert gang.is_ready and [each.code for each in gang.warnings] == [Code.INVALID_SIZE]


def test_the_largest_size_is_read() -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={GROUP: "g", SIZE: "100000"}))
    (gang,) = groups.gangs()
    assert gang.minimum == 100_000 and gang.fault is None


def test_constraints_that_are_too_long_are_not_read() -> None:
    text = '{"properties": ["gpu"]}' + " " * MAX_CONSTRAINT_BYTES + "{}"
    groups = Groups()
    groups.set_pod(pod("p", annotations={names.CONSTRAINTS: text}))
    (gang,) = groups.gangs()
    assert gang.fault == Reason.of(
        Code.ANNOTATION_TOO_LONG, key=names.CONSTRAINTS, size=len(text), most=MAX_CONSTRAINT_BYTES
    )


@pytest.mark.parametrize("key", [names.USER, names.QUEUE, names.POLICY, names.DURATION, names.DEVICES])
def test_a_text_that_is_too_long_is_not_read(key: str) -> None:
    """Users and queues stand in every row of the history."""
    groups = Groups()
    groups.set_pod(pod("p", annotations={key: "ö" * 60_000}))
    (gang,) = groups.gangs()
    assert gang.fault == Reason.of(Code.ANNOTATION_TOO_LONG, key=key, size=120_000, most=MAX_TEXT_BYTES)
    assert (gang.user, gang.queue) == ("default/default", "")


def test_a_queue_in_a_jobspec_that_is_too_long_is_not_read() -> None:
    groups = Groups()
    slot = {"type": "slot", "count": 1, "label": "l", "with": [{"type": "core", "count": 1}]}
    jobspec = {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": ["c"], "slot": "l", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 60, "queue": "q" * 500}},
    }
    groups.set_pod(pod("p", annotations={names.JOBSPEC: json.dumps(jobspec)}))
    (gang,) = groups.gangs()
    assert gang.fault is not None and gang.fault.code is Code.ANNOTATION_TOO_LONG
    assert gang.queue == ""


def test_constraints_are_parsed_once_and_a_bounded_number_is_kept() -> None:
    assert read_constraint('{"properties": ["x"]}') is read_constraint('{"properties": ["x"]}')
    assert read_constraint("no") is read_constraint("no")
    assert read_constraint.cache_info().maxsize == 1024


def test_the_scheduler_writes_no_more_excluded_nodes_than_it_reads() -> None:
    groups = Groups()
    note = restart.excluded_note({f"n{i}" for i in range(5000)})
    groups.set_pod(pod("p", annotations=note))
    (gang,) = groups.gangs()
    assert gang.fault is None and len(gang.excluded) == 1000


@pytest.mark.parametrize("text", ["soon", "-1", "٣", "0x8", "８", "9" * 30, "999999999999d"])
@pytest.mark.parametrize("key", [names.DURATION, names.SOFT_DURATION])
def test_a_duration_that_cannot_be_read_holds_the_gang(key: str, text: str) -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={key: text}))
    (gang,) = groups.gangs()
    assert not gang.is_ready
    assert gang.fault == Reason.of(Code.INVALID_DURATION, key=key, value=text)


# -- names that nobody reads ---------------------------------------------------------------------------------

PREFIX = names.PREFIX


def unknown(key: str, nearest: str | None, kind: str = "annotation") -> Reason:
    suggested = nearest and f"{PREFIX}/{nearest}"
    return Reason.of(Code.UNKNOWN_ANNOTATION, kind=kind, key=f"{PREFIX}/{key}", nearest=suggested)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("durration", "duration"),
        ("Duration", "duration"),
        ("group_size", "group-size"),
        ("groupsize", "group-size"),
        ("constraint", "constraints"),
        ("exclude-nodes", "excluded-nodes"),
        ("select-backend", "select-candidates"),
        ("zzzz", None),
    ],
)
def test_a_misspelt_annotation_is_a_warning_with_the_nearest_name(key: str, nearest: str | None) -> None:
    groups = Groups()
    groups.set_pod(pod("p", annotations={f"{PREFIX}/{key}": "1h"}))
    (gang,) = groups.gangs()
    assert gang.is_ready, "it can be placed"
    (told,) = gang.warnings
    if key == "select-backend":
        assert told.code is Code.UNKNOWN_ANNOTATION
    else:
        assert told == unknown(key, nearest)


def test_a_misspelt_annotation_of_an_owner_or_a_group_is_told_too() -> None:
    groups, job = Groups(), owner("j", parallelism=1, annotations={f"{PREFIX}/quue": "short"})
    groups.set_owner(job)
    groups.set_group(group("g", 1, annotations={f"{PREFIX}/polcy": "first"}))
    groups.set_pod(pod("p", owner=job, field="g", labels={f"{PREFIX}/grup": "g"}))
    (gang,) = groups.gangs()
    assert gang.warnings == (
        unknown("polcy", "policy"),
        unknown("quue", "queue"),
        unknown("grup", "group", kind="label"),
    )


def test_an_annotation_that_was_written_as_a_label_is_told_so() -> None:
    groups = Groups()
    groups.set_pod(pod("p", labels={names.DURATION: "60", GROUP: "g", SIZE: "1"}))
    (gang,) = groups.gangs()
    assert gang.warnings == (Reason.of(Code.LABEL_NOT_READ, key=names.DURATION),)


@pytest.mark.parametrize("key", sorted(KNOWN))
def test_no_name_that_is_known_is_warned_of(key: str) -> None:
    assert unread([{key: "x"}], []) == ()


def test_names_of_others_and_all_that_is_too_much_are_passed_over() -> None:
    assert unread([{"example.com/durration": "1h", "sandbox.fluence.flux-framework.org/x": "1"}], []) == ()
    many = {f"{PREFIX}/x{i}": "" for i in range(1000)}
    assert len(unread([many], [many])) == 8


def test_a_warning_is_told_once_to_one_pod_of_an_owner() -> None:
    driver, job = Driver(), owner("j", parallelism=3)
    driver.set_owner(job)
    bad = {f"{PREFIX}/durration": "1h"}
    for each in ranks(3, owner=job, annotations=bad):
        driver.set_pod(each)
    (told,) = driver.cycle(0).warnings
    assert (told.pod.metadata.name, told.reason) == ("rank-0", unknown("durration", "duration"))
    for each in ranks(3, owner=job, annotations={**bad, "other": "x"}):
        driver.set_pod(each)
    assert driver.cycle(1).warnings == []
    driver.set_pod(pod("alone", annotations={**bad, f"{PREFIX}/polcy": "x"}))
    assert [each.pod.metadata.name for each in driver.cycle(2).warnings] == ["alone", "alone"]


def test_what_is_declared_and_not_used_is_told() -> None:
    driver = Driver(native=True)
    driver.set_group(group("g", 2))
    for each in ranks(2, field="g", annotations={SIZE: "5"}):
        driver.set_pod(each)
    assert [each.reason.code for each in driver.cycle(0).warnings] == [Code.SIZE_NOT_USED]
