"""Gangs of Kueue, Volcano, KAI and YuniKorn start whole or wait whole, whatever comes first."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluence import names
from fluence.messages import text
from fluence.model.owner import Group, Job, PodTemplate
from fluence.model.pod import Pod, SchedulingGate
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Changed, Object
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.gangs.size import MAX_TASK_GROUPS_BYTES
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.kit import GROUP, SIZE, group, owner, pod, ranks

NOW = int(kit.T0.timestamp() * 1000)
VOLCANO_API, KAI_API = "scheduling.volcano.sh/v1beta1", "scheduling.run.ai/v2alpha2"
SYSTEMS = frozenset(("volcano", "kai"))

TASK_GROUPS = json.dumps(
    [
        {"name": "head", "minMember": 1, "minResource": {"cpu": "1", "memory": "1Gi"}},
        {"name": "work", "minMember": 2, "nodeSelector": {"a": "b"}, "tolerations": []},
    ]
)

Build = Callable[[int, str], list[Any]]


def kueue(count: int, namespace: str) -> list[Any]:
    marks = {"labels": {names.KUEUE_GROUP: "g"}, "annotations": {names.KUEUE_SIZE: "3"}}
    return list(ranks(count, namespace=namespace, **marks))  # type: ignore[arg-type]


def volcano(count: int, namespace: str) -> list[Any]:
    marks = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    made = group("g", 3, source=VOLCANO_API, namespace=namespace)
    return [*ranks(count, namespace=namespace, **marks), made]  # type: ignore[arg-type]


def kai(count: int, namespace: str) -> list[Any]:
    marks = {"labels": {names.KAI_GROUP: "g"}}
    return [*ranks(count, namespace=namespace, **marks), group("g", 3, source=KAI_API, namespace=namespace)]  # type: ignore[arg-type]


def yunikorn(count: int, namespace: str) -> list[Any]:
    """Only the first pod lists the task groups."""
    found = []
    for index in range(count):
        notes = {names.YUNIKORN_TASK_GROUP: "work" if index else "head"}
        if not index:
            notes[names.YUNIKORN_TASK_GROUPS] = TASK_GROUPS
        found.append(
            pod(f"rank-{index}", namespace=namespace, labels={"applicationId": "g"}, annotations=notes)
        )
    return found


ALL = [kueue, volcano, kai, yunikorn]


def feed(things: list[Any], **options: Any) -> Groups:
    groups = Groups(**options)
    for each in things:
        (groups.set_pod if isinstance(each, Pod) else groups.set_group)(each)
    return groups


def only(things: list[Any], **options: Any) -> Gang:
    (gang,) = feed(things, **options).gangs()
    return gang


def started(driver: Driver, now: int) -> list[str]:
    return sorted(bind.pod.metadata.name for binds in driver.cycle(now).binds for bind in binds)


# -- whole, or not at all ------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ALL)
def test_all_pods_of_a_gang_start_together_or_wait_together(system: Build) -> None:
    driver = Driver(systems=SYSTEMS)
    driver.set_node(node("n1", cpu="2"))
    driver.cycle(NOW)
    for each in system(3, "default"):
        driver.handle(Changed(None, each), now=NOW + 1)
        assert not started(driver, NOW + 1)
    assert not started(driver, NOW + 60_000), "there is room for two of three"
    driver.set_node(node("n2", cpu="1"))
    assert started(driver, NOW + 60_001) == ["rank-0", "rank-1", "rank-2"]


@pytest.mark.parametrize("system", ALL)
def test_a_gang_that_lacks_a_pod_waits(system: Build) -> None:
    gang = only(system(2, "default"), systems=SYSTEMS)
    assert gang.missing == Reason.of(Code.PODS_MISSING, group="default/g", pods=2, minimum=3)
    assert gang.key == f"default/{system.__name__}:g" and gang.name == "g"


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
@pytest.mark.parametrize("system", ALL)
def test_any_order_gives_the_same_gang(system: Build, order: tuple[int, ...]) -> None:
    things = system(3, "default")
    mixed = [things[each] for each in order if each < len(things)]
    whole = only(things, systems=SYSTEMS)
    assert whole.is_ready and whole.needed == 3
    assert only(mixed, systems=SYSTEMS) == whole
    driver = Driver(systems=SYSTEMS)
    driver.set_node(node("n1", cpu="8"))
    driver.cycle(NOW)
    for index, each in enumerate(mixed):
        assert not started(driver, NOW + 10_000 * index), "the gang is not whole yet"
        driver.handle(Changed(None, each), now=NOW + 10_000 * index)
    assert len(started(driver, NOW + 60_000)) == 3


@given(st.data())
def test_two_namespaces_never_share_a_gang(data: st.DataObject) -> None:
    system = data.draw(st.sampled_from(ALL))
    here, there = system(2, "here"), system(3, "there")
    groups = feed(data.draw(st.permutations([*here, *there])), systems=SYSTEMS)
    found = {gang.namespace: gang for gang in groups.gangs()}
    assert set(found) == {"here", "there"}
    assert not found["here"].is_ready and len(found["here"]) == 2
    assert found["there"].is_ready and len(found["there"]) == 3


@pytest.mark.parametrize("system", [volcano, kai])
def test_a_pod_group_of_another_namespace_does_not_count(system: Build) -> None:
    pods = [each for each in system(3, "here") if isinstance(each, Pod)]
    elsewhere = [each for each in system(0, "there") if isinstance(each, Group)]
    waits = Reason.of(Code.POD_GROUP_OR_SIZE_MISSING, group="here/g")
    assert only([*pods, *elsewhere], systems=SYSTEMS).missing == waits


# -- sizes that are not there --------------------------------------------------------------------------------


UNSIZED = [
    {"labels": {names.KUEUE_GROUP: "g"}},
    {"annotations": {"scheduling.k8s.io/group-name": "g"}},
    {"annotations": {"scheduling.volcano.sh/group-name": "g"}},
    {"labels": {"scheduling.volcano.sh/group-name": "g"}},
    {"annotations": {names.KAI_GROUP: "g"}},
    {"labels": {"applicationId": "g"}, "annotations": {names.YUNIKORN_TASK_GROUP: "work"}},
]


@pytest.mark.parametrize("marks", UNSIZED, ids=str)
def test_a_gang_whose_size_nothing_says_settles_and_is_warned_with_the_annotation(marks: Any) -> None:
    driver = Driver()
    driver.set_node(node("n1", cpu="8"))
    driver.cycle(NOW)
    for index, each in enumerate(ranks(3, **marks)):
        driver.handle(Changed(None, each), now=NOW + 1_000 * index)
        assert not started(driver, NOW + 1_000 * index)
    decisions = driver.cycle(NOW + 5_000)
    assert sum(len(binds) for binds in decisions.binds) == 3
    (warning,) = decisions.warnings
    assert warning.reason == Reason.of(Code.NO_SIZE, size=3, key=names.GROUP_SIZE)
    assert 'fluence.flux-framework.org/group-size: "3"' in text(warning.reason)


@pytest.mark.parametrize("marks", UNSIZED, ids=str)
def test_our_own_size_counts_where_the_other_system_says_none(marks: Any) -> None:
    marks = {**marks, "annotations": {**marks.get("annotations", {}), SIZE: "4"}}
    gang = only(list(ranks(3, **marks)), systems=SYSTEMS)
    assert (
        gang.missing == Reason.of(Code.PODS_MISSING, group="default/g", pods=3, minimum=4)
        and not gang.warnings
    )


@pytest.mark.parametrize("system", [volcano, kai])
def test_a_gang_waits_for_its_pod_group_only_where_that_kind_is_installed(system: Build) -> None:
    pods = system(2, "default")[:-1]
    waits = Reason.of(Code.POD_GROUP_OR_SIZE_MISSING, group="default/g")
    assert only(pods, systems=SYSTEMS).missing == waits
    assert only(pods, native=True, systems=SYSTEMS - {system.__name__}).missing is None
    groups = feed(pods)
    assert groups.set_native(False, SYSTEMS) == [f"default/{system.__name__}:g"]
    assert next(groups.gangs()).missing == waits


@pytest.mark.parametrize("value", ["0", "-1", "three", "1e3", "100001", "９"])
def test_a_total_count_that_cannot_be_read_is_a_fault(value: str) -> None:
    gang = only(list(ranks(2, labels={names.KUEUE_GROUP: "g"}, annotations={names.KUEUE_SIZE: value})))
    assert gang.fault is not None and names.KUEUE_SIZE in text(gang.fault)
    assert gang.fault.code is Code.INVALID_SIZE


BAD_TASK_GROUPS = [
    "{",
    "[]",
    "{}",
    "null",
    "3",
    "[" * 8_000,
    '[{"name": "a", "x": ' + "[" * 8_000,
    '[{"name": "a"}]',
    '[{"minMember": 2}]',
    '[{"name": "", "minMember": 2}]',
    '[{"name": "a", "minMember": 0}]',
    '[{"name": "a", "minMember": -1}]',
    '[{"name": "a", "minMember": "2"}]',
    '[{"name": "a", "minMember": 1e999}]',
    '[{"name": "a", "minMember": 99999999999999999999999}]',
    '[{"name": "a", "minMember": 60000}, {"name": "b", "minMember": 60000}]',
    '[{"name": "a", "minMember": 1}, {"name": "a", "minMember": 1}]',
]


@pytest.mark.parametrize("value", BAD_TASK_GROUPS, ids=lambda value: ascii(value)[:40])
def test_task_groups_that_cannot_be_read_are_a_fault_that_names_the_key(value: str) -> None:
    notes = {names.YUNIKORN_TASK_GROUP: "a", names.YUNIKORN_TASK_GROUPS: value}
    gang = only(list(ranks(2, labels={"applicationId": "g"}, annotations=notes)))
    key = names.YUNIKORN_TASK_GROUPS
    assert gang.fault == Reason.of(Code.INVALID_TASK_GROUPS, key=key, maximum=100_000)
    assert key in text(gang.fault) and not gang.is_ready


def test_task_groups_that_are_too_long_are_a_fault() -> None:
    value = TASK_GROUPS + " " * MAX_TASK_GROUPS_BYTES
    notes = {names.YUNIKORN_TASK_GROUP: "a", names.YUNIKORN_TASK_GROUPS: value}
    gang = only(list(ranks(1, labels={"applicationId": "g"}, annotations=notes)))
    assert gang.fault is not None and gang.fault.code is Code.ANNOTATION_TOO_LONG
    assert names.YUNIKORN_TASK_GROUPS in text(gang.fault)


# -- what makes a gang, and what does not --------------------------------------------------------------------


def test_an_application_without_a_task_group_is_no_gang() -> None:
    pods = ranks(2, labels={"applicationId": "g"}, annotations={names.YUNIKORN_TASK_GROUPS: TASK_GROUPS})
    assert all(gang.is_single and gang.is_ready for gang in feed(list(pods)).gangs())


def test_a_task_group_without_an_application_is_a_fault_with_the_cure() -> None:
    gang = only([pod("a", annotations={names.YUNIKORN_TASK_GROUP: "work"})])
    assert gang.fault is not None and not gang.is_ready
    assert names.YUNIKORN_TASK_GROUP in text(gang.fault) and "applicationId" in text(gang.fault)


def test_the_applications_own_key_goes_before_the_short_one() -> None:
    notes = {names.YUNIKORN_TASK_GROUP: "work", "yunikorn.apache.org/app-id": "long"}
    assert only([pod("a", labels={"applicationId": "short"}, annotations=notes)]).name == "long"


def test_kueues_gate_is_left_alone_and_its_pods_wait_until_kueue_opens_it() -> None:
    marks = {"labels": {names.KUEUE_GROUP: "g"}, "annotations": {names.KUEUE_SIZE: "2"}}
    gate = [SchedulingGate(name="kueue.x-k8s.io/admission")]
    driver = Driver()
    driver.set_node(node("n1", cpu="8"))
    driver.cycle(NOW)
    gated = ranks(2, **marks, scheduling_gates=gate)  # type: ignore[arg-type]
    for each in gated:
        driver.set_pod(each)
    decisions = driver.cycle(NOW + 60_000)
    assert not decisions.binds and not decisions.releases
    gang = driver.groups.gang("default/kueue:g")
    assert gang.missing == Reason.of(Code.PODS_GATED, gated=2, pods=2)
    first, second = ranks(2, **marks)  # type: ignore[arg-type]
    driver.handle(Changed(gated[0], first))
    assert not started(driver, NOW + 61_000), "the other is gated"
    driver.handle(Changed(gated[1], second))
    assert len(started(driver, NOW + 62_000)) == 2


# -- who goes first ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ALL)
@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_our_own_name_wins_with_its_own_size(system: Build, where: str) -> None:
    things: list[Any] = []
    for each in system(3, "default"):
        if isinstance(each, Pod):
            meta = each.metadata
            marks = {"labels": dict(meta.labels or {}), "annotations": dict(meta.annotations or {})}
            marks[where].update({GROUP: "ours", SIZE: "5"})
            things.append(pod(meta.name, **marks))  # type: ignore[arg-type]
        else:
            things.append(each)
    gang = only(things, systems=SYSTEMS)
    assert (gang.key, gang.minimum, gang.warnings) == ("default/ours", 5, ())


def test_our_own_name_on_the_job_wins_over_another_systems_name_on_its_pods() -> None:
    job = owner("j", parallelism=2, annotations={GROUP: "ours"})
    groups = Groups()
    groups.set_owner(job)
    for each in ranks(2, owner=job, labels={names.KUEUE_GROUP: "g"}):
        groups.set_pod(each)
    assert [gang.key for gang in groups.gangs()] == ["default/ours"]


@pytest.mark.parametrize("system", ALL)
def test_the_native_field_wins(system: Build) -> None:
    things: list[Any] = []
    for each in system(2, "default"):
        marked = isinstance(each, Pod)
        labels, notes = (each.metadata.labels, each.metadata.annotations) if marked else (None, None)
        made = pod(each.metadata.name, field="real", labels=labels, annotations=notes) if marked else each
        things.append(made)
    gang = only([*things, group("real", 2)], systems=SYSTEMS)
    assert (gang.key, gang.minimum) == ("default/real", 2) and gang.is_ready


@pytest.mark.parametrize("api", [VOLCANO_API, KAI_API])
def test_a_pod_group_of_another_system_does_not_size_a_gang_of_our_own(api: str) -> None:
    ours = list(ranks(2, labels={GROUP: "g"}, annotations={SIZE: "2"}))
    gang = only([*ours, group("g", 7, source=api)], systems=SYSTEMS)
    assert (gang.minimum, gang.group, gang.warnings) == (2, None, ())
    native = only([*ranks(2, field="g"), group("g", 7, source=api)], systems=SYSTEMS)
    assert native.missing == Reason.of(Code.POD_GROUP_NOT_SEEN, group="default/g")


def test_a_pod_group_of_ours_does_not_size_a_gang_of_another_system() -> None:
    sized: list[Object] = [group("g", 7), *volcano(3, "default")]
    assert only(sized, systems=SYSTEMS).minimum == 3
    assert only([group("g", 7), *kueue(3, "default")]).minimum == 3


def test_pods_of_volcano_itself_do_not_disturb_a_gang_of_ours_with_that_name() -> None:
    theirs = [pod("v", scheduler="volcano", annotations={"scheduling.k8s.io/group-name": "g"})]
    gang = only([*ranks(2, labels={GROUP: "g"}, annotations={SIZE: "2"}), *theirs])
    assert gang.is_ready


def test_a_gang_that_another_scheduler_has_a_part_of_says_so() -> None:
    theirs = [pod("v", scheduler="volcano", annotations={"scheduling.k8s.io/group-name": "g"})]
    gang = only([*volcano(2, "default"), *theirs], systems=SYSTEMS)
    assert gang.fault is not None and gang.fault.code is Code.OTHER_SCHEDULER


def test_gangs_of_one_name_are_told_apart_by_their_system() -> None:
    ours = ranks(1, "ours", labels={GROUP: "g", SIZE: "1"})
    groups = feed([*kueue(3, "default"), *volcano(3, "there"), *ours, pod("g")])
    keys = {
        ("default", "g"): "default/g",
        ("default", "kueue:g"): "default/kueue:g",
        ("there", "g"): "there/volcano:g",
        ("there", "kueue:g"): None,
        ("default", "pod:g"): None,
        ("elsewhere", "g"): None,
    }
    for (namespace, name), key in keys.items():
        gang = groups.named(namespace, name)
        assert (None if gang is None else gang.key) == key


def test_a_job_that_will_make_pods_of_such_a_gang_is_waited_for() -> None:
    labels = {names.KUEUE_GROUP: "g"}
    template = pod("t", labels=labels)
    late = owner("late", parallelism=2, template=PodTemplate(metadata=template.metadata, spec=template.spec))
    assert isinstance(late, Job)
    groups = Groups()
    groups.set_pod(pod("a", labels=labels))
    assert set(groups.set_owner(late)) == {"default/kueue:g"}
    gang = groups.gang("default/kueue:g")
    assert gang is not None and gang.minimum == 3
