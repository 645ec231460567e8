"""The one entrance, guarded: what fails is left out, and what was sent is not forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph, PodSetRequest
from fluence.model.meta import ObjectMeta
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.schedule.events import Bind, BindFinished, BindOutcome, BindResult, Changed
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.intake import Intake
from fluence.schedule.scheduler import subject_of
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Subject, working_on
from fluence.schedule.volumes import ClaimChanges
from tests.unit.cluster.build import bound, node
from tests.unit.cluster.test_claims import claim
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)


class Evil(Exception):
    """Made by the test."""


def world(*nodes: str) -> Driver:
    driver = Driver(native=True, strict=False)
    driver.now = NOW
    for name in nodes or ("n1",):
        driver.set_node(node(name))
    return driver


def poison(monkeypatch: pytest.MonkeyPatch, what: str = "evil") -> None:
    """Looking for a place of pods with this name fails."""
    honest = ClusterGraph.gang

    def gang(self: ClusterGraph, request: PodSetRequest) -> Any:
        if any(pod.metadata.name.startswith(what) for pod in request.pods):
            raise Evil(what)
        return honest(self, request)

    monkeypatch.setattr(ClusterGraph, "gang", gang)


def blind(monkeypatch: pytest.MonkeyPatch, *fails: str, times: int = 1 << 30) -> None:
    """Taking these pods in fails, so many times each."""
    honest, left = Intake._pod, dict.fromkeys(fails, times)

    def pod(self: Intake, event: Any, found: Pod) -> None:
        if event.new is not None and left.get(found.metadata.name, 0) > 0:
            left[found.metadata.name] -= 1
            raise Evil(found.metadata.name)
        honest(self, event, found)

    monkeypatch.setattr(Intake, "_pod", pod)


def fail_once(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody fails and the state is built anew."""
    before = driver.scheduler.state
    with monkeypatch.context() as patched:
        poison(patched)
        driver.set_pod(kit.pod("evil"))
        driver.cycle(driver.now)
    assert driver.scheduler.state is not before and not driver.scheduler.broken


def names_of(binds: list[list[Bind]]) -> list[list[str]]:
    return [[bind.pod.metadata.name for bind in some] for some in binds]


# -- events and decisions ------------------------------------------------------------------------------------


def test_a_scheduler_that_does_not_decide_takes_everything_in_and_decides_nothing() -> None:
    driver = world()
    decisions = driver.handle(Changed(None, kit.pod("a")), decide=False, now=NOW)
    assert (decisions.binds, decisions.waiting, decisions.faults) == ([], [], [])
    assert driver.has_more and driver.groups.gang("default/pod:a") is not None
    assert driver.pod_sets.by_key == {}
    assert names_of(driver.cycle(NOW + 1).binds) == [["a"]]
    assert driver.cycle(NOW + 2).binds == []


def test_it_wants_to_be_called_when_somebody_in_quarantine_is_due() -> None:
    driver = world()
    assert driver.scheduler.next_due() is None
    driver.quarantine.add(Subject("Node", "evil"), NOW)
    assert driver.scheduler.next_due() == NOW + 10_000


def test_whether_the_server_has_podgroups_survives_that_the_state_is_built_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = Driver(strict=False)
    driver.set_node(node("n1"))
    assert not driver.groups.native
    driver.scheduler.set_native(True)
    assert driver.groups.native
    fail_once(driver, monkeypatch)
    assert driver.groups.native


def test_objects_are_known_by_kind_and_name() -> None:
    assert subject_of(kit.pod("a")) == Subject("Pod", "default/a")
    assert subject_of(node("n1")) == Subject("Node", "n1")
    assert subject_of(kit.owner("j")) == Subject("Job", "default/j")
    assert subject_of(claim("data")) == Subject("VolumeClaim", "d/data")
    ours, older = kit.group("g", 1), kit.group("g", 1, source="other/v1")
    assert subject_of(ours) != subject_of(older), "one key may be known to two APIs"


def test_room_that_nobody_asked_for_is_not_refused() -> None:
    driver = world()
    bind = Bind(kit.pod("a"), "n1", "default/pod:a", {})
    assert not driver.scheduler.refuses(bind)


# -- faults while events are taken in ------------------------------------------------------------------------


def test_a_pod_that_cannot_be_taken_in_is_quarantined_and_told_and_the_others_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    blind(monkeypatch, "evil")
    driver.set_pod(kit.pod("good"))
    driver.set_pod(kit.pod("evil"))
    (fault,) = driver.faults
    assert (fault.subject, fault.first) == (Subject("Pod", "default/evil"), True)
    assert isinstance(fault.error, Evil) and [pod.metadata.name for pod in fault.pods] == ["evil"]
    assert names_of(driver.cycle(NOW).binds) == [["good"]]


def test_faults_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    blind(monkeypatch, "evil")
    assert len(driver.handle(Changed(None, kit.pod("evil")), now=NOW).faults) == 1
    assert driver.cycle(NOW).faults == []


def test_a_pod_that_runs_and_cannot_be_taken_in_once_counts_on_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    blind(monkeypatch, "evil", times=2)  # when it comes, and when the state is built anew
    driver.set_pod(kit.pod("evil", node="n1", cpu="3"))
    driver.set_pod(kit.pod("large", cpu="2"))
    driver.set_pod(kit.pod("small", cpu="1"))
    assert [fault.first for fault in driver.faults] == [True, False]
    assert names_of(driver.cycle(NOW).binds) == [["small"]]
    assert driver.groups.gang("default/pod:evil") is None, "nobody's pod"


def test_a_pod_that_runs_and_can_never_be_taken_in_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world("n1", "n2")
    blind(monkeypatch, "evil")
    driver.set_pod(kit.pod("evil", node="n1", cpu="3"))
    driver.set_pod(kit.pod("good"))
    assert [fault.first for fault in driver.faults] == [True, False, False]
    assert all(fault.pods == () for fault in driver.faults), "only those that wait are told"
    assert names_of(driver.cycle(NOW).binds) == [["good"]]


def test_two_objects_that_fail_are_two_faults_though_the_second_fails_while_building_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    driver.set_pod(kit.pod("late"))
    blind(monkeypatch, "late", "evil")
    driver.set_pod(kit.pod("evil"))
    assert {str(fault.subject) for fault in driver.faults} == {"Pod default/evil", "Pod default/late"}


def test_what_changed_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    subject = Subject("Pod", "default/evil")
    blind(monkeypatch, "evil", times=3)
    now = NOW
    for _ in range(3):
        driver.handle(Changed(None, kit.pod("evil")), now=now)
        now = driver.quarantine.next_due() or now
    driver.handle(Changed(None, kit.pod("evil")), now=now - 30_000)  # as it was
    assert driver.quarantine.next_due() == now
    driver.handle(Changed(None, kit.pod("evil", cpu="2")), now=now - 30_000)
    assert driver.quarantine.next_due() == now - 20_000
    assert names_of(driver.cycle(now - 20_000).binds) == [["evil"]]
    assert subject not in driver.quarantine


def test_a_pod_that_changed_lets_its_group_be_tried_again_soon() -> None:
    driver = world()
    driver.set_pod(kit.pod("evil"))
    group = Subject("group", "default/pod:evil")
    for now in (NOW, NOW + 20_000):
        driver.quarantine.add(group, now)
        driver.quarantine.take_due(now + 20_000)
    driver.quarantine.add(group, NOW)
    assert driver.quarantine.next_due() == NOW + 40_000
    driver.handle(Changed(None, kit.pod("evil", cpu="2")), now=NOW)
    assert driver.quarantine.next_due() == NOW + 10_000


def test_an_object_that_went_while_it_was_in_quarantine_does_not_come_back() -> None:
    driver = world()
    driver.quarantine.add(Subject("Node", "n1"), NOW)
    gone = Changed(Node(metadata=ObjectMeta(name="n1")), None)
    driver.handle(gone, now=NOW + 10_000)  # just when it is let out
    driver.set_pod(kit.pod("a"))
    assert driver.cycle(NOW + 10_001).binds == []
    assert driver.cluster.nodes == {}


def test_a_node_that_is_let_out_is_there_as_it_is_now() -> None:
    driver = world("n1", "n2")
    driver.quarantine.add(Subject("Node", "n1"), NOW)
    driver.handle(Changed(None, node("n1", cpu="9")), now=NOW + 10_000)
    assert driver.cluster.node("n1").status.allocatable["cpu"] == "9"


# -- faults while deciding -----------------------------------------------------------------------------------


def test_a_group_that_fails_is_left_out_and_its_pods_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    poison(monkeypatch)
    driver.set_group(kit.group("g", 2))
    for name in ("evil-0", "evil-1"):
        driver.set_pod(kit.pod(name, field="g"))
    driver.set_pod(kit.pod("good"))
    assert names_of(driver.cycle(NOW).binds) == [["good"]]
    (fault,) = driver.faults
    assert fault.subject == Subject("group", "default/g") and isinstance(fault.error, Evil)
    assert [pod.metadata.name for pod in fault.pods] == ["evil-0", "evil-1"]
    assert driver.groups.gang("default/g") is None and not driver.scheduler.broken


def test_pods_that_come_to_a_group_in_quarantine_are_left_out_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    driver.quarantine.add(Subject("group", "default/g"), NOW)
    driver.set_group(kit.group("g", 1))
    driver.handle(Changed(None, kit.pod("g-0", field="g")), now=NOW)
    assert driver.cycle(NOW + 9_999).binds == []
    assert names_of(driver.cycle(NOW + 10_000).binds) == [["g-0"]]


def test_a_reason_that_cannot_be_worked_out_is_laid_to_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    honest = StatusReports._of_shape

    def report(self: StatusReports, pod_set: Any, now: int) -> Any:
        if pod_set.group == "default/pod:evil":
            raise Evil
        return honest(self, pod_set, now)

    monkeypatch.setattr(StatusReports, "_of_shape", report)
    driver.set_pod(kit.pod("evil", cpu="99"))
    driver.set_pod(kit.pod("good"))
    assert names_of(driver.cycle(NOW).binds) == [["good"]], "decided anew without it"
    assert [fault.subject for fault in driver.faults] == [Subject("group", "default/pod:evil")]


def test_where_nobody_is_to_blame_it_says_that_it_is_broken_until_a_cycle_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    driver.set_pod(kit.pod("a"))
    with monkeypatch.context() as patched:
        patched.setattr(ClaimChanges, "run", lambda self, now, decisions: 1 / 0)
        decisions = driver.cycle(NOW)
        assert "ZeroDivisionError" in driver.scheduler.broken
        assert decisions.binds == [] and [fault.subject for fault in decisions.faults] == [None, None]
        driver.handle(Changed(None, kit.pod("b")), now=NOW)
        assert driver.scheduler.broken, "taking in events proves nothing"
    assert sorted(names_of(driver.cycle(NOW + 1).binds)) == [["a"], ["b"]]
    assert driver.scheduler.broken == ""


def test_groups_that_fail_even_when_left_out_do_not_go_round_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()

    def gang(self: Groups, key: str) -> Any:
        raise Evil

    driver.set_pod(kit.pod("a"))
    driver.set_pod(kit.pod("b", node="n1"))
    monkeypatch.setattr(Groups, "gang", gang)
    driver.cycle(NOW)
    assert {str(fault.subject) for fault in driver.faults} == {"group default/pod:a", "group default/pod:b"}
    assert len(driver.faults) < 10


def test_a_group_that_is_blamed_though_nothing_of_it_is_looked_at_is_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()

    def fail(self: ClaimChanges, now: int, decisions: Any) -> None:
        with working_on("default/ghost"):
            raise Evil

    monkeypatch.setattr(ClaimChanges, "run", fail)
    driver.cycle(NOW)
    assert [fault.first for fault in driver.faults] == [True, False, False, False, False]
    assert driver.scheduler.broken


def test_what_was_learned_survives_that_the_state_is_built_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    before = driver.queue.promises
    fail_once(driver, monkeypatch)
    assert driver.queue.promises is not before
    assert driver.queue.promises.predictor is before.predictor
    assert driver.queue.promises.calibration is before.calibration


# -- binds that are under way while the state is built anew --------------------------------------------------


def started(driver: Driver, name: str = "a", **more: Any) -> Bind:
    driver.set_pod(kit.pod(name, **more))
    ((bind,),) = driver.cycle(NOW).binds
    return bind


def test_a_pod_whose_bind_is_under_way_counts_as_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    started(driver, cpu="3")
    fail_once(driver, monkeypatch)
    driver.set_pod(kit.pod("large", cpu="2"))
    driver.set_pod(kit.pod("small", cpu="1"))
    assert names_of(driver.cycle(NOW + 1).binds) == [["small"]], "it is not bound twice, and has its room"


def test_it_still_counts_when_the_pod_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    bind = started(driver, cpu="3")
    fail_once(driver, monkeypatch)
    driver.set_pod(replace(bind.pod, metadata=replace(bind.pod.metadata, annotations={"a": "b"})))
    driver.set_pod(kit.pod("large", cpu="2"))
    assert driver.cycle(NOW + 1).binds == []
    gang = driver.groups.gang("default/pod:a")
    assert gang is not None and gang.members == () and len(gang.placed) == 1


def test_it_keeps_its_number_and_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    bind = started(driver, annotations={names.DURATION: "1h"})
    (number,) = driver.cluster.jobs
    fail_once(driver, monkeypatch)
    driver.cycle(NOW + 1)
    assert list(driver.cluster.jobs) == [number] and bind.annotations[names.JOBID] == str(number)
    (pod_set,) = [each for each in driver.pod_sets.by_key.values() if each.number == number]
    assert pod_set.running[pod_set.key].end == NOW + 3_600_000


@pytest.mark.parametrize("outcome", [BindOutcome.AGAIN, BindOutcome.STALE, BindOutcome.IMPOSSIBLE])
def test_a_bind_that_fails_afterwards_waits_again(
    monkeypatch: pytest.MonkeyPatch, outcome: BindOutcome
) -> None:
    driver = world("n1", "n2")
    bind = started(driver)
    fail_once(driver, monkeypatch)
    driver.cycle(NOW + 1)
    driver.told(BindResult(bind, outcome), NOW + 2)
    assert names_of(driver.cycle(NOW + 3).binds) == [["a"]]


def test_a_bind_that_fails_afterwards_of_a_pod_that_is_gone_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    bind = started(driver, cpu="4")
    fail_once(driver, monkeypatch)
    driver.remove_pod(bind.pod)
    driver.told(BindResult(bind, BindOutcome.GONE), NOW + 2)
    driver.set_pod(kit.pod("next", cpu="4"))
    assert names_of(driver.cycle(NOW + 3).binds) == [["next"]]


@pytest.mark.parametrize("seen_first", [True, False])
def test_a_bind_that_succeeds_afterwards_is_not_sent_again(
    monkeypatch: pytest.MonkeyPatch, seen_first: bool
) -> None:
    driver = world()
    bind = started(driver)
    fail_once(driver, monkeypatch)
    done, seen = BindFinished(BindResult(bind, BindOutcome.BOUND)), Changed(bind.pod, bound(bind.pod, "n1"))
    for event in (seen, done) if seen_first else (done, seen):
        driver.handle(event, now=NOW + 2)
        assert driver.cycle(NOW + 3).binds == []
    assert [list(seats) for seats in driver.cluster.jobs.values()] == [[bind.uid]]


def test_a_bind_that_was_answered_and_not_yet_seen_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    bind = started(driver)
    driver.told(BindResult(bind, BindOutcome.BOUND), NOW)
    fail_once(driver, monkeypatch)
    assert driver.cycle(NOW + 1).binds == []


def test_a_bind_that_waited_to_be_sent_again_is_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world()
    bind = started(driver)
    driver.told(BindResult(bind, BindOutcome.AGAIN), NOW)
    with monkeypatch.context() as patched:
        poison(patched)
        driver.set_pod(kit.pod("evil"))
        assert names_of(driver.cycle(NOW + 1).binds) == [["a"]]


def test_a_gang_in_flight_is_found_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world("n1", "n2")
    driver.set_group(kit.group("g", 2))
    for pod in kit.ranks(2, field="g", cpu="3"):
        driver.set_pod(pod)
    (binds,) = driver.cycle(NOW).binds
    fail_once(driver, monkeypatch)
    assert driver.cycle(NOW + 1).binds == []
    driver.told(BindResult(binds[0], BindOutcome.STALE), NOW + 2)
    ((again,),) = driver.cycle(NOW + 3).binds
    assert again.uid == binds[0].uid, "the other one is still under way"


def test_a_pod_that_was_made_anew_under_its_name_does_not_count_as_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = world()
    bind = started(driver)
    driver.remove_pod(bind.pod)
    driver.set_pod(kit.pod("a", uid="another"))
    with monkeypatch.context() as patched:
        poison(patched)
        driver.set_pod(kit.pod("evil"))
        ((again,),) = driver.cycle(NOW + 1).binds
    assert again.uid == "another"
    driver.told(BindResult(bind, BindOutcome.GONE), NOW + 2)
    assert driver.cycle(NOW + 3).binds == [] and "another" in driver.pod_sets.by_pod


def test_pods_that_name_a_pod_group_wait_for_it_from_when_the_server_has_such() -> None:
    """And start one way or the other when it has none any more."""
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    driver = Driver(settle=0)
    driver.set_node(node("n1"))
    driver.cycle(0)
    driver.scheduler.set_native(True)
    driver.set_pod(kit.pod("a", labels=label))
    assert not driver.cycle(1).binds
    driver.scheduler.set_native(False)
    assert driver.scheduler.has_more
    assert len(driver.cycle(2).binds) == 1
