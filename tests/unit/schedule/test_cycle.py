"""The steps of a cycle: in which order things happen, and what is decided about binds that failed."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.cluster.claims import Claim
from fluence.cluster.planner import HORIZON
from fluence.model.job_state import JobState
from fluence.model.pod import ClaimVolumeSource, Pod, PodVolume
from fluence.model.reason import Code
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, BindOutcome, BindResult, ClaimUpdate
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)


def world(*, nodes: int = 1, **config: Any) -> Driver:
    driver = Driver(native=True, backoff=(1000, 8000), **config)
    driver.now = NOW
    for i in range(nodes):
        driver.set_node(node(f"n{i + 1}"))
    return driver


def put(driver: Driver, *pods: Pod) -> None:
    for pod in pods:
        driver.set_pod(pod)


def names_of(decisions: Decisions) -> list[list[str]]:
    return [[bind.pod.metadata.name for bind in binds] for binds in decisions.binds]


def gang(driver: Driver, count: int, *, needed: int | None = None, **more: Any) -> list[Bind]:
    """The binds of a gang that was started."""
    driver.set_group(kit.group("g", needed or count))
    put(driver, *kit.ranks(count, field="g", **more))
    (binds,) = driver.cycle(NOW).binds
    return binds


def again(driver: Driver, *binds: Bind, at: int = NOW) -> None:
    for bind in binds:
        driver.told(BindResult(bind, BindOutcome.AGAIN), at)


def told(decisions: Decisions) -> list[tuple[str, JobState, Code]]:
    return [(each.gang.key, each.report.state, each.reasons[0].code) for each in decisions.waiting]


# -- the order of the steps ----------------------------------------------------------------------------------


def test_what_ended_makes_room_in_the_same_cycle() -> None:
    driver = world()
    put(driver, kit.pod("a", cpu="4"))
    ((bind,),) = driver.cycle(NOW).binds
    put(driver, bound(bind.pod, "n1"), kit.pod("b", cpu="4"))
    assert names_of(driver.cycle(NOW + 1)) == []
    put(driver, ended(bound(bind.pod, "n1")))
    assert names_of(driver.cycle(NOW + 2)) == [["b"]]


def test_a_node_makes_room_in_the_same_cycle_for_what_could_never_start() -> None:
    driver = world()
    put(driver, kit.pod("a", cpu="9"))
    driver.cycle(NOW)
    driver.set_node(node("n2", cpu="9"))
    assert names_of(driver.cycle(NOW + 1)) == [["a"]]


def test_the_first_members_and_those_that_follow_start_in_one_cycle_after_the_other() -> None:
    driver = world()
    driver.set_group(kit.group("g", 1))
    put(driver, *kit.ranks(3, field="g"))
    assert names_of(driver.cycle(NOW)) == [["rank-0", "rank-1", "rank-2"]]
    put(driver, kit.pod("late", field="g"))
    assert names_of(driver.cycle(NOW + 1)) == [["late"]]


def test_the_plan_is_asked_only_when_something_happened() -> None:
    driver = world()
    put(driver, kit.pod("a", cpu="4"), kit.pod("b", cpu="4"))
    driver.cycle(NOW)
    asked = driver.queue.cycles
    for second in range(5):
        driver.cycle(NOW + second)
    assert driver.queue.cycles == asked
    driver.set_node(node("n2"))
    assert names_of(driver.cycle(NOW + 6)) == [["b"]]
    assert driver.queue.cycles == asked + 1


def test_a_group_of_which_nothing_is_left_is_forgotten_with_the_nodes_that_were_refused() -> None:
    driver = world()
    put(driver, kit.pod("a"))
    ((bind,),) = driver.cycle(NOW).binds
    driver.told(BindResult(bind, BindOutcome.IMPOSSIBLE), NOW)
    driver.cycle(NOW + 1)
    assert driver.exclusions.of("default/pod:a") == {"n1"}
    driver.remove_pod(bind.pod)
    driver.cycle(NOW + 2)
    assert driver.exclusions.of("default/pod:a") == frozenset()


def test_a_group_that_goes_while_it_is_refused_is_forgotten_too() -> None:
    driver = world()
    put(driver, kit.pod("a"))
    ((bind,),) = driver.cycle(NOW).binds
    driver.told(BindResult(bind, BindOutcome.IMPOSSIBLE), NOW)
    nonsense = kit.pod("a", annotations={names.DURATION: "soon"})
    put(driver, nonsense)
    assert told(driver.cycle(NOW + 1))[0][1] is JobState.REFUSED and not driver.pod_sets.by_key
    driver.remove_pod(nonsense)
    driver.cycle(NOW + 2)
    assert driver.exclusions.of("default/pod:a") == frozenset()


def test_a_node_without_a_volume_is_tried_again_after_a_minute() -> None:
    driver = world()
    driver.exclusions.exclude("default/pod:a", ["n1"], NOW)
    put(driver, kit.pod("a"))
    assert names_of(driver.cycle(NOW)) == [] and driver.scheduler.next_due() == NOW + 60_000
    assert names_of(driver.cycle(NOW + 60_000)) == [["a"]]


# -- binds that failed for a while ---------------------------------------------------------------------------


def test_the_first_binds_of_a_gang_are_sent_again_together() -> None:
    driver = world()
    first, second = gang(driver, 2)
    again(driver, first)
    again(driver, second, at=NOW + 400)
    assert names_of(driver.cycle(NOW + 999)) == []
    assert driver.cycle(NOW + 1000).binds == [[first, second]], "though the second is not due by itself"
    assert driver.cycle(NOW + 5000).binds == [], "they are under way"


def test_once_a_gang_has_begun_each_bind_is_sent_again_when_it_is_due() -> None:
    driver = world()
    first, second, third = gang(driver, 3)
    put(driver, bound(third.pod, third.node))
    again(driver, first)
    again(driver, second, at=NOW + 400)
    assert driver.cycle(NOW + 1000).binds == [[first]]
    assert driver.cycle(NOW + 1400).binds == [[second]]


def test_binds_of_two_groups_are_sent_again_apart() -> None:
    driver = world()
    put(driver, kit.pod("a"), kit.pod("b"))
    (one,), (two,) = driver.cycle(NOW).binds
    again(driver, one, two)
    assert driver.cycle(NOW + 1000).binds == [[one], [two]]


def test_a_gang_that_lost_a_member_before_its_first_bind_starts_over_as_a_whole() -> None:
    driver = world()
    first, second = gang(driver, 2)
    again(driver, first, second)
    driver.remove_pod(second.pod)
    assert driver.cycle(NOW + 1000).binds == [], "one of two is not sent"
    assert first.uid not in driver.pod_sets.by_pod and driver.cluster.jobs == {}
    assert driver.pod_sets.by_key["default/g"].state is JobState.GATHERING
    put(driver, kit.pod("rank-9", field="g"))
    assert names_of(driver.cycle(NOW + 1001)) == [["rank-0", "rank-9"]]


def test_a_gang_that_lost_the_place_of_a_member_before_its_first_bind_starts_over() -> None:
    driver = world(nodes=2)
    first, second = gang(driver, 2, cpu="3")
    again(driver, first, second)
    driver.remove_node(second.node)
    assert driver.cycle(NOW + 1000).binds == []
    driver.set_node(node("n3"))
    (binds,) = driver.cycle(NOW + 1001).binds
    assert {bind.uid for bind in binds} == {first.uid, second.uid}


def test_what_is_under_way_is_not_taken_back_when_a_gang_starts_over() -> None:
    driver = world()
    first, second, third = gang(driver, 3)
    again(driver, second)
    driver.remove_pod(third.pod)
    driver.cycle(NOW + 1)
    assert first.uid in driver.pod_sets.by_pod and second.uid not in driver.pod_sets.by_pod


def test_a_gang_that_is_still_large_enough_does_not_start_over() -> None:
    driver = world()
    first, second, third = gang(driver, 3, needed=2)
    again(driver, first, second)
    driver.remove_pod(third.pod)
    assert driver.cycle(NOW + 1000).binds == [[first, second]]


def test_a_gang_that_has_begun_is_driven_to_its_end() -> None:
    driver = world()
    first, second, third = gang(driver, 3)
    put(driver, bound(first.pod, first.node))
    again(driver, second)
    driver.remove_pod(third.pod)
    assert driver.cycle(NOW + 1000).binds == [[second]]


# -- volumes -------------------------------------------------------------------------------------------------


def mounting(name: str, claim: str, **more: Any) -> Pod:
    source = ClaimVolumeSource(claim_name=claim)
    return kit.pod(name, volumes=[PodVolume(persistent_volume_claim=source)], **more)


def prepared(driver: Driver) -> Decisions:
    driver.set_group(kit.group("g", 2))
    for name in ("one", "two"):
        driver.set_claim("default", name, Claim("waits", uid=f"u-{name}"))
    put(driver, mounting("g-0", "one", field="g"), mounting("g-1", "two", field="g"))
    return driver.cycle(NOW)


def test_no_pod_of_a_gang_is_bound_before_all_claims_are() -> None:
    driver = world()
    decisions = prepared(driver)
    assert decisions.binds == [] and decisions.claim_updates == [
        ClaimUpdate(("default", "one"), "u-one", "n1"),
        ClaimUpdate(("default", "two"), "u-two", "n1"),
    ]
    driver.set_claim("default", "one", Claim("bound", uid="u-one"))
    assert driver.cycle(NOW + 1).binds == []
    driver.set_claim("default", "two", Claim("bound", uid="u-two"))
    assert names_of(driver.cycle(NOW + 2)) == [["g-0", "g-1"]]


def test_each_pod_is_told_of_its_own_claims_and_the_group_of_all() -> None:
    decisions = prepared(world())
    assert [(each.report.state, len(each.pods)) for each in decisions.waiting] == [
        (JobState.PREPARING, 1),
        (JobState.PREPARING, 1),
        (JobState.PREPARING, 0),
    ]
    codes = [each.reasons[0].code for each in decisions.waiting]
    assert codes == [
        Code.WAITS_FOR_ITS_CLAIMS,
        Code.WAITS_FOR_ITS_CLAIMS,
        Code.WAITS_FOR_CLAIMS_OF_PODS,
    ]


def test_a_gang_that_cannot_have_its_volumes_is_told_and_gives_everything_back() -> None:
    driver = world(volume_timeout=5000)
    prepared(driver)
    decisions = driver.cycle(NOW + 5000)
    assert told(decisions) == [("default/g", JobState.PENDING, Code.CLAIM_TIMED_OUT)]
    assert {update.node for update in decisions.claim_updates} == {None} and driver.cluster.jobs == {}


# -- what is said --------------------------------------------------------------------------------------------


def test_whoever_waits_is_told_why_and_told_once() -> None:
    driver = world()
    put(driver, kit.pod("fits", cpu="4"), kit.pod("waits", cpu="4"), kit.pod("never", cpu="9"))
    decisions = driver.cycle(NOW)
    assert {(key, outcome) for key, outcome, _ in told(decisions)} == {
        ("default/pod:waits", JobState.PENDING),
        ("default/pod:never", JobState.UNSCHEDULABLE),
    }
    for later in (1, 1000, 60_000):
        assert driver.cycle(NOW + later).waiting == []


def test_a_gang_that_is_refused_is_told_at_once_and_never_started() -> None:
    driver = world()
    driver.set_group(kit.group("g", 2))
    put(driver, kit.pod("a", field="g", priority=1), kit.pod("b", field="g", priority=2))
    decisions = driver.cycle(NOW)
    assert told(decisions) == [("default/g", JobState.REFUSED, Code.DIFFERENT_PRIORITIES)]
    assert decisions.binds == [] and [pod.metadata.name for pod in decisions.waiting[0].pods] == ["a", "b"]


def test_a_gang_that_gathers_is_told_what_is_missing_when_its_members_stopped_coming() -> None:
    driver = world()
    driver.set_group(kit.group("g", 2))
    put(driver, kit.pod("a", field="g"))
    assert driver.cycle(NOW).waiting == []
    due = driver.scheduler.next_due()
    assert due == NOW + 1000
    assert told(driver.cycle(due)) == [("default/g", JobState.GATHERING, Code.PODS_MISSING)]


def test_a_gang_that_has_on_nodes_all_that_it_needs_has_begun() -> None:
    driver = world()
    first, second = gang(driver, 2)
    put(driver, bound(first.pod, first.node))
    assert driver.cycle(NOW + 1).begun == []
    put(driver, bound(second.pod, second.node))
    assert [each.key for each in driver.cycle(NOW + 2).begun] == ["default/g"]
    assert driver.cycle(NOW + 3).begun == []


def test_what_plug_ins_did_wrong_is_handed_out_once() -> None:
    driver = world()
    driver.queue._guard.note("site", ZeroDivisionError(), "default/g")
    assert [fault.plugin for fault in driver.cycle(NOW).plugin_faults] == ["site"]
    assert driver.cycle(NOW).plugin_faults == []


@pytest.mark.parametrize("outcome", [BindOutcome.STALE, BindOutcome.GONE])
def test_nothing_that_happened_is_left_over_for_the_next_cycle(outcome: BindOutcome) -> None:
    driver = world()
    (bind,) = gang(driver, 1)
    driver.told(BindResult(bind, outcome), NOW)
    assert driver.has_more
    driver.cycle(NOW + 1)
    assert not driver.has_more and driver.scheduler.next_due() == HORIZON, "the end of what has none"
