"""A group that names no size is held until nothing new comes; whatever says its size starts at once."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.job_state import JobState
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Object
from fluence.schedule.inquiry import Inquiry
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.kit import GROUP, SIZE

NOW = int(kit.T0.timestamp() * 1000)
LABEL = {GROUP: "g"}
SETTLES = Reason.of(Code.GROUP_SETTLES, quiet=3_000)


def world(*objects: Object, cpu: int = 12, now: int = NOW, **config: Any) -> Driver:
    driver = Driver(**config)
    driver.now = now
    driver.set_node(node("n1", cpu=str(cpu), pods="50"))
    for each in objects:
        driver.handle(Changed(None, each))
    return driver


def job(name: str, pods: int, **more: Any) -> tuple[Owner, list[Pod]]:
    of = kit.owner(name, parallelism=pods, completions=pods)
    of = replace(of, metadata=replace(of.metadata, creation_timestamp=kit.T0))
    return of, kit.ranks(pods, name, owner=of, **{"labels": LABEL, **more})


def started(decisions: Decisions) -> list[str]:
    return sorted(bind.pod.metadata.name for binds in decisions.binds for bind in binds)


def put(driver: Driver, *objects: Object, now: int) -> None:
    driver.handle(*(Changed(None, each) for each in objects), now=now)


# -- who is held ---------------------------------------------------------------------------------------------


def test_a_head_does_not_start_before_its_workers_come() -> None:
    head, head_pods = job("head", 1, cpu="4")
    workers, worker_pods = job("work", 4, cpu="4")
    driver = world(cpu=12)
    driver.cycle(NOW)
    put(driver, head, *head_pods, now=NOW + 10)
    assert not started(driver.cycle(NOW + 10))
    put(driver, workers, *worker_pods, now=NOW + 2_000)
    for at in range(NOW + 2_000, NOW + 20_000, 500):
        assert not started(driver.cycle(at)), "there is room for three of five"
    driver.set_node(node("n2", cpu="8"))
    assert len(started(driver.cycle(NOW + 20_000))) == 5


def test_it_starts_when_nothing_new_has_come_and_the_cycle_is_due_then() -> None:
    one, first = job("one", 1)
    two, second = job("two", 2)
    driver = world()
    driver.cycle(NOW)
    put(driver, one, *first, now=NOW + 1_000)
    driver.cycle(NOW + 1_000)
    put(driver, two, *second, now=NOW + 3_900)
    driver.cycle(NOW + 3_900)
    assert not started(driver.cycle(NOW + 6_899))
    assert driver.next_due() == NOW + 6_900
    assert started(driver.cycle(NOW + 6_900)) == ["one-0", "two-0", "two-1"]


def test_the_pods_of_an_owner_that_is_known_do_not_make_it_wait_longer() -> None:
    one, pods = job("one", 3)
    driver = world()
    driver.cycle(NOW)
    put(driver, one, pods[0], now=NOW + 1)
    driver.cycle(NOW + 1)
    put(driver, pods[1], now=NOW + 2_500)
    driver.cycle(NOW + 2_500)
    put(driver, pods[2], now=NOW + 9_000)
    assert len(started(driver.cycle(NOW + 9_000))) == 3


@pytest.mark.parametrize(
    "things",
    [
        [kit.pod("solo")],
        kit.ranks(2, labels=LABEL, annotations={SIZE: "2"}),
        [kit.group("g", 2), *kit.ranks(2, field="g")],
        [kit.group("g", 2, source="scheduling.x-k8s.io/v1alpha1"), *kit.ranks(2, labels=LABEL)],
        [kit.group("g", None), *kit.ranks(2, labels=LABEL)],
    ],
    ids=["a single pod", "a size", "a native group", "a coscheduling group", "a basic group"],
)
def test_what_says_its_size_starts_at_once(things: list[Object]) -> None:
    driver = world()
    driver.cycle(NOW)
    put(driver, *things, now=NOW + 1)
    decisions = driver.cycle(NOW + 1)
    assert len(started(decisions)) == sum(isinstance(each, Pod) for each in things)
    assert not decisions.warnings


def test_a_job_that_is_a_gang_by_itself_starts_at_once() -> None:
    of, _ = job("one", 2)
    driver = world()
    driver.cycle(NOW)
    put(driver, of, *kit.ranks(2, owner=of, annotations={SIZE: "2"}), now=NOW + 1)
    assert len(started(driver.cycle(NOW + 1))) == 2


def test_a_pod_group_that_comes_late_says_the_size_and_ends_the_wait() -> None:
    of, pods = job("one", 2)
    driver = world()
    driver.cycle(NOW)
    put(driver, of, *pods, now=NOW + 1)
    assert not started(driver.cycle(NOW + 1))
    put(driver, kit.group("g", 2), now=NOW + 500)
    assert len(started(driver.cycle(NOW + 500))) == 2


def test_without_a_settling_time_a_group_starts_at_once() -> None:
    driver = world(settle=0)
    driver.cycle(NOW)
    put(driver, *kit.ranks(2, labels=LABEL), now=NOW + 1)
    assert len(started(driver.cycle(NOW + 1))) == 2


# -- what is told --------------------------------------------------------------------------------------------


def test_its_pods_are_told_why_and_warned_with_the_size_when_it_is_known() -> None:
    head, first = job("head", 1)
    workers, rest = job("work", 4)
    driver = world()
    driver.cycle(NOW)
    put(driver, head, *first, now=NOW + 1)
    assert not driver.cycle(NOW + 1).warnings, "the advice would be a size of 1"
    put(driver, workers, *rest, now=NOW + 100)
    driver.cycle(NOW + 100)
    decisions = driver.cycle(NOW + 1_200)
    (told,) = decisions.waiting
    assert (told.report.state, told.reasons) == (JobState.GATHERING, (SETTLES,))
    assert len(told.pods) == 5 and not decisions.warnings
    decisions = driver.cycle(NOW + 3_100)
    assert [each.reason for each in decisions.warnings] == [
        Reason.of(Code.NO_SIZE, size=5, key=names.GROUP_SIZE)
    ]
    assert len(started(decisions)) == 5
    put(driver, *(bound(each, "n1") for each in (*first, *rest)), now=NOW + 3_200)
    assert not driver.cycle(NOW + 3_200).warnings


def test_explain_says_why_a_group_is_held() -> None:
    pods = kit.ranks(2, labels=LABEL)
    for age, reasons, starts in ((500, (SETTLES,), False), (60_000, (), True)):
        inquiry = Inquiry(Scheduler(SchedulerConfig()), [node("n1"), *pods], NOW + age)
        gang = inquiry.groups.gang("default/g")
        assert gang is not None
        found = inquiry.about(gang)
        assert (found.blocks, found.starts, found.never) == (reasons, starts, False)


# -- restarts and clocks -------------------------------------------------------------------------------------


def test_what_settled_before_a_restart_starts_in_its_first_cycle() -> None:
    driver = world(*kit.ranks(2, labels=LABEL), now=NOW + 60_000)
    assert len(started(driver.cycle(NOW + 60_000))) == 2


def test_what_came_just_before_a_restart_waits_for_the_rest_of_it() -> None:
    driver = world(*kit.ranks(2, labels=LABEL), now=NOW + 1_000)
    assert not started(driver.cycle(NOW + 1_000))
    assert not started(driver.cycle(NOW + 3_999))
    assert len(started(driver.cycle(NOW + 4_000))) == 2


@pytest.mark.parametrize("skew", [3_600_000, 40_000, -40_000, -3_600_000])
def test_a_server_with_a_wrong_clock_makes_nobody_start_early_or_wait_for_ever(skew: int) -> None:
    """``skew``: how far our clock is ahead of the server's, by which the pods were made at ``NOW``."""
    here = NOW + skew
    driver = world(now=here)
    driver.cycle(here)
    pods = kit.ranks(2, labels=LABEL)
    put(driver, pods[0], now=here + 1)
    assert not started(driver.cycle(here + 1))
    put(driver, pods[1], now=here + 2_000)
    assert not started(driver.cycle(here + 2_000))
    assert not started(driver.cycle(here + 4_999))
    assert len(started(driver.cycle(here + 5_000))) == 2


def test_a_replica_that_takes_over_does_not_start_what_has_just_come() -> None:
    driver = world(now=NOW)
    put(driver, kit.pod("a", labels=LABEL), now=NOW + 1)  # it follows, and decides nothing
    assert not started(driver.cycle(NOW + 500))
    assert len(started(driver.cycle(NOW + 3_500))) == 1


# -- who comes and goes --------------------------------------------------------------------------------------


def test_when_an_owner_leaves_the_rest_starts_without_settling_again() -> None:
    one, first = job("one", 1)
    two, second = job("two", 20)
    driver = world(cpu=4)
    driver.cycle(NOW)
    put(driver, one, *first, two, *second[:3], now=NOW + 1)
    driver.cycle(NOW + 1)
    assert not started(driver.cycle(NOW + 9_000))
    driver.handle(*(Changed(each, None) for each in (*second[:3], two)), now=NOW + 9_001)  # type: ignore[arg-type]
    assert started(driver.cycle(NOW + 9_001)) == ["one-0"]


def test_a_group_that_waits_for_room_settles_again_when_it_grows() -> None:
    driver = world(cpu=2)
    driver.cycle(NOW)
    put(driver, *kit.ranks(3, labels=LABEL), now=NOW + 1)
    driver.cycle(NOW + 1)
    assert not started(driver.cycle(NOW + 3_001))
    put(driver, kit.pod("late", labels=LABEL), now=NOW + 5_000)
    driver.set_node(node("n2", cpu="9"))
    assert not started(driver.cycle(NOW + 5_000))
    assert len(started(driver.cycle(NOW + 8_000))) == 4


def test_what_joins_a_group_that_has_begun_does_not_wait() -> None:
    driver = world()
    driver.cycle(NOW)
    first = kit.ranks(2, labels=LABEL)
    put(driver, *first, now=NOW + 1)
    driver.cycle(NOW + 1)
    assert len(started(driver.cycle(NOW + 3_001))) == 2
    put(driver, kit.pod("x", labels=LABEL), now=NOW + 3_002)
    assert started(driver.cycle(NOW + 3_002)) == ["x"], "their binds are under way"
    put(driver, *(bound(each, "n1") for each in first), kit.pod("y", labels=LABEL), now=NOW + 3_100)
    assert started(driver.cycle(NOW + 3_100)) == ["y"]


def test_a_group_made_anew_beside_the_last_of_the_old_one_settles() -> None:
    """Pods that are being deleted hold their nodes, and are no beginning of the new group."""
    old = kit.pod("old", labels=LABEL, node="n1", phase="Running", age=600, deleting=True)
    driver = world(old)
    driver.cycle(NOW)
    put(driver, kit.pod("new-0", labels=LABEL), now=NOW + 1)
    assert not started(driver.cycle(NOW + 1))
    put(driver, kit.pod("new-1", labels=LABEL), now=NOW + 500)
    assert not started(driver.cycle(NOW + 500))
    driver.handle(Changed(old, None), now=NOW + 600)
    driver.cycle(NOW + 600)
    assert len(started(driver.cycle(NOW + 3_600))) == 2


def test_a_group_that_is_over_starts_as_a_whole_again() -> None:
    driver = world()
    first = kit.ranks(2, labels=LABEL, age=60)
    put(driver, *first, now=NOW)
    assert len(started(driver.cycle(NOW))) == 2
    put(driver, *(ended(bound(each, "n1")) for each in first), now=NOW + 100)
    driver.cycle(NOW + 100)
    put(driver, kit.pod("again", labels=LABEL), now=NOW + 200)
    assert not started(driver.cycle(NOW + 200))
    assert started(driver.cycle(NOW + 3_200)) == ["again"]


def test_nobody_else_waits_for_a_group_that_settles() -> None:
    driver = world(cpu=1)
    driver.cycle(NOW)
    put(driver, *kit.ranks(1, labels=LABEL), now=NOW + 1)
    driver.cycle(NOW + 1)
    put(driver, kit.pod("other"), now=NOW + 2)
    assert started(driver.cycle(NOW + 2)) == ["other"]


def test_nothing_is_kept_of_groups_that_are_gone() -> None:
    driver = world()
    driver.cycle(NOW)
    for i in range(20):
        each = kit.pod(f"p{i}", labels={GROUP: f"g{i}"})
        put(driver, each, now=NOW + i)
        driver.cycle(NOW + i)
        driver.handle(Changed(each, None))
        driver.cycle(NOW + i)
    assert not driver.settling._parts and not driver.settling._held
