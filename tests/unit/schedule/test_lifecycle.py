"""Transitions of pod sets, and the phases that they lead to: groups, cluster and queue stay in step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.cluster.claims import Claim
from fluence.cluster.graph import job_number
from fluence.cluster.planner import HORIZON
from fluence.errors import Conflict
from fluence.model.job_state import JobState
from fluence.model.pod import ClaimVolumeSource, Pod, PodVolume
from fluence.model.reason import Code
from fluence.schedule.events import Bind, BindOutcome, BindResult
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.pod_set import PodSet
from fluence.schedule.reconcile import Submit
from fluence.schedule.restart import annotations_for
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
GROUP_NUMBER = job_number("uid-group-g")


def world(*, nodes: int = 2, **config: Any) -> Driver:
    driver = Driver(native=True, **config)
    driver.now = NOW
    for i in range(nodes):
        driver.set_node(node(f"n{i + 1}", cpu="4"))
    return driver


def gang_of(driver: Driver, count: int, *, needed: int | None = None, **more: Any) -> list[Pod]:
    driver.set_group(kit.group("g", count if needed is None else needed))
    pods = kit.ranks(count, field="g", **more)
    for pod in pods:
        driver.set_pod(pod)
    return pods


def started(driver: Driver, count: int = 2, **more: Any) -> tuple[PodSet, list[Bind]]:
    """A gang whose binds are under way."""
    gang_of(driver, count, **more)
    (binds,) = driver.cycle(NOW).binds
    return the_set(driver), binds


def the_set(driver: Driver, key: str = "default/g") -> PodSet:
    found: PodSet = driver.pod_sets.by_key[key]
    return found


def phases(driver: Driver) -> dict[str, JobState]:
    return {key: each.state for key, each in driver.pod_sets.by_key.items()}


def path(pod_set: PodSet) -> list[JobState]:
    return [step.state for step in pod_set.story]


def free(driver: Driver) -> int:
    return int(driver.cluster.fit.free("cpu").sum())


def lifecycle(driver: Driver) -> Lifecycle:
    return driver.scheduler.state.lifecycle


# -- waiting -------------------------------------------------------------------------------------------------


def test_a_gang_gathers_waits_and_starts_under_one_record() -> None:
    driver = world(nodes=1)
    blocker = kit.pod("blocker", node="n1", cpu="4")
    driver.set_pod(blocker)
    driver.set_group(kit.group("g", 2))
    one, two = kit.ranks(2, field="g")
    driver.set_pod(one)
    driver.cycle(NOW)
    record = the_set(driver)
    assert record.state is JobState.GATHERING and record.key not in driver.queue.records
    driver.set_pod(two)
    assert driver.cycle(NOW + 1).binds == []
    assert the_set(driver) is record and driver.queue.records[record.key] is record
    assert record.state is JobState.PENDING and [pod.key for pod in record.pods] == [one.key, two.key]
    driver.remove_pod(blocker)
    (binds,) = driver.cycle(NOW + 2).binds
    assert path(record) == [JobState.PENDING, JobState.STARTING] and len(binds) == 2


def test_a_submission_has_what_the_gang_says() -> None:
    driver = world(nodes=1)
    notes = {
        names.DURATION: "1m",
        names.SOFT_DURATION: "30s",
        names.QUEUE: "batch",
        names.USER: "ann",
    }
    gang_of(driver, 2, annotations=notes, priority=3, cpu="4")
    driver.cycle(NOW)
    job = the_set(driver).job
    assert (job.limit, job.soft_limit, job.queue, job.user, job.priority) == (
        60_000,
        30_000,
        "batch",
        "ann",
        3,
    )
    assert job.submit == NOW and the_set(driver).number == GROUP_NUMBER


def test_a_gang_from_the_future_was_submitted_now() -> None:
    driver = world()
    driver.set_pod(kit.pod("a", cpu="9", age=-60))
    driver.cycle(NOW)
    assert the_set(driver, "default/pod:a").job.submit == NOW


def test_what_is_withdrawn_leaves_nothing() -> None:
    driver = world()
    pods = gang_of(driver, 2, cpu="9")
    driver.cycle(NOW)
    record = the_set(driver)
    for pod in pods:
        driver.remove_pod(pod)
    driver.cycle(NOW + 1)
    assert record.state is JobState.UNSCHEDULABLE, "it was over before"
    assert (phases(driver), driver.queue.records, driver.reports.said) == ({}, {}, {})


def test_a_withdrawn_job_that_waits_is_cancelled_with_the_reason() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("blocker", node="n1", cpu="4"))
    pods = gang_of(driver, 2)
    driver.cycle(NOW)
    record = the_set(driver)
    for pod in pods:
        driver.remove_pod(pod)
    driver.cycle(NOW + 1)
    assert record.state is JobState.CANCELLED and record.story[-1].reason.code is Code.GROUP_GONE
    assert "default/g" not in driver.queue.records


def test_late_members_that_gather_leave_the_record_of_those_that_began() -> None:
    driver = world()
    record, binds = started(driver, 2)
    for bind in binds:
        driver.set_pod(bound(bind.pod, bind.node))
    driver.set_group(kit.group("g", 4))
    driver.set_pod(kit.pod("late", field="g"))
    driver.cycle(NOW + 1)
    assert the_set(driver) is record and phases(driver) == {"default/g": JobState.RUNNING}


def test_a_job_is_judged_again_when_the_cluster_changes() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("blocker", node="n1", cpu="1"))
    driver.set_pod(kit.pod("a", cpu="6"))
    driver.set_pod(kit.pod("b", cpu="4"))
    driver.cycle(NOW)
    key_a, key_b = "default/pod:a", "default/pod:b"
    assert (phases(driver)[key_a], phases(driver)[key_b]) == (JobState.UNSCHEDULABLE, JobState.PENDING)
    driver.set_node(node("n1", cpu="6"))
    driver.cycle(NOW + 1)
    assert (phases(driver)[key_a], phases(driver)[key_b]) == (JobState.PENDING, JobState.STARTING)
    driver.set_node(node("n1", cpu="5"))
    driver.cycle(NOW + 2)
    assert (phases(driver)[key_a], phases(driver)[key_b]) == (JobState.UNSCHEDULABLE, JobState.STARTING)


# -- starting ------------------------------------------------------------------------------------------------


def test_what_starts_has_seats_at_once_and_says_its_job_with_the_binding() -> None:
    driver = world()
    record, binds = started(driver, 2, annotations={names.DURATION: "1m"})
    assert record.state is JobState.STARTING and free(driver) == 6000
    assert record.unbound == {bind.uid: bind.node for bind in binds} and record.alive == set(record.unbound)
    assert {driver.pod_sets.by_pod[bind.uid] for bind in binds} == {record}
    assert {bind.job for bind in binds} == {"default/g"}
    for bind in binds:
        assert bind.annotations == annotations_for(GROUP_NUMBER, NOW, NOW + 60_000)


def test_a_job_without_a_limit_says_no_end() -> None:
    driver = world()
    _, binds = started(driver, 1)
    assert binds[0].annotations == annotations_for(GROUP_NUMBER, NOW, None)


def test_a_gang_runs_when_the_last_of_its_pods_is_bound() -> None:
    driver = world()
    record, (first, second) = started(driver, 2)
    driver.told(BindResult(first, BindOutcome.BOUND), NOW)
    assert record.state is JobState.STARTING and list(record.unbound) == [second.uid]
    driver.set_pod(bound(second.pod, second.node))
    assert record.state is JobState.RUNNING and not record.unbound


def test_a_bind_that_is_told_twice_counts_once() -> None:
    driver = world()
    record, (first, second) = started(driver, 2)
    for bind in (first, second):
        driver.set_pod(bound(bind.pod, bind.node))
        driver.told(BindResult(bind, BindOutcome.BOUND), NOW)
        driver.set_pod(bound(bind.pod, bind.node))
    assert path(record) == [JobState.PENDING, JobState.STARTING, JobState.RUNNING]


def test_those_beyond_the_minimum_that_find_no_seat_follow_by_themselves() -> None:
    driver = world(nodes=1)
    _, binds = started(driver, 6, needed=2)
    assert len(binds) == 4 and driver.has_more
    driver.cycle(NOW + 1)
    late = {key: phase for key, phase in phases(driver).items() if key != "default/g"}
    assert list(late.values()) == [JobState.PENDING, JobState.PENDING]


# -- losing --------------------------------------------------------------------------------------------------


def test_a_pod_that_lost_its_place_waits_by_itself_and_the_others_run() -> None:
    driver = world()
    record, (first, second) = started(driver, 2)
    driver.set_pod(bound(first.pod, first.node))
    driver.told(BindResult(second, BindOutcome.STALE), NOW)
    assert record.state is JobState.RUNNING and record.alive == {first.uid}
    assert second.uid not in driver.pod_sets.by_pod and free(driver) == 7000
    ((again,),) = driver.cycle(NOW + 1).binds
    assert (again.uid, again.job) == (second.uid, f"default/g+{second.uid}")
    assert the_set(driver, again.job).number == job_number(second.uid)


def test_a_pod_that_lost_its_place_before_the_others_were_bound_does_not_make_them_run() -> None:
    driver = world()
    record, (first, second) = started(driver, 2, needed=1)
    driver.told(BindResult(second, BindOutcome.STALE), NOW)
    assert record.state is JobState.STARTING
    driver.set_pod(bound(first.pod, first.node))
    assert record.state is JobState.RUNNING


def test_a_gang_that_lost_all_of_its_places_is_submitted_anew() -> None:
    driver = world()
    record, binds = started(driver, 2)
    for bind in binds:
        driver.told(BindResult(bind, BindOutcome.STALE), NOW)
    assert free(driver) == 8000 and not driver.pod_sets.by_pod
    (again,) = driver.cycle(NOW + 1).binds
    assert {bind.uid for bind in again} == {bind.uid for bind in binds}
    assert the_set(driver) is record
    assert [step.reason.code for step in record.story] == [
        Code.SUBMITTED,
        Code.ITS_TURN,
        Code.NOT_BOUND,
        Code.ITS_TURN,
    ]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "hybrid", "conservative"])
def test_a_gang_that_lost_its_nodes_before_it_started_keeps_its_story_its_place_and_its_promise(
    policy: str,
) -> None:
    driver = world(nodes=2, queue_policy=policy)
    busy = [kit.pod(f"busy-{n}", cpu="4", annotations={names.DURATION: "1h"}) for n in range(2)]
    for pod in busy:
        driver.set_pod(pod)
    for (bind,) in driver.cycle(NOW).binds:
        driver.set_pod(bound(bind.pod, bind.node))
    gang_of(driver, 2, cpu="4", annotations={names.DURATION: "1h"})
    driver.set_pod(kit.pod("later", cpu="4", age=-10, annotations={names.DURATION: "1h"}))
    driver.cycle(NOW + 1000)
    record = the_set(driver)
    promised, order, story = record.no_later_than, record.order, list(record.story)
    assert promised is not None and promised >= NOW + 3_600_000
    for pod in busy:
        driver.remove_pod(pod)
    (binds,) = driver.cycle(NOW + 2000).binds
    assert {bind.job for bind in binds} == {record.key} and record.started == NOW + 2000

    refused, other = binds
    driver.told(BindResult(refused, BindOutcome.IMPOSSIBLE), NOW + 3000)
    driver.told(BindResult(other, BindOutcome.STALE), NOW + 3000)
    driver.set_node(node("new", cpu="4"))
    again, later = driver.cycle(NOW + 4000).binds  # who came later gets only what it may not have
    assert the_set(driver) is record and {bind.job for bind in again} == {record.key}
    assert [bind.node for bind in later] == [refused.node]
    assert refused.node not in {bind.node for bind in again}
    assert record.order == order
    assert record.no_later_than == promised and record.promised == promised and not record.broken
    assert record.story[: len(story)] == story
    codes = [step.reason.code for step in record.story[len(story) :]]
    assert codes[:2] == [Code.ITS_TURN, Code.NOT_BOUND] and codes[-1] is Code.ITS_TURN
    tally = driver.queue.promises.tally
    assert (tally.kept, sum(tally.broken.values())) == (2, 0), "each start is counted once"


def test_a_gang_that_lost_its_nodes_waits_in_its_old_place() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("first", cpu="4"))
    driver.set_pod(kit.pod("second", cpu="4", age=-10))
    (first,) = driver.cycle(NOW).binds
    driver.told(BindResult(first[0], BindOutcome.STALE), NOW)
    (again,) = driver.cycle(NOW + 1).binds
    assert again[0].uid == first[0].uid
    assert the_set(driver, "default/pod:first").state is JobState.STARTING


def test_a_place_that_is_impossible_is_not_tried_again() -> None:
    driver = world()
    driver.set_pod(kit.pod("a"))
    ((bind,),) = driver.cycle(NOW).binds
    driver.told(BindResult(bind, BindOutcome.IMPOSSIBLE), NOW)
    ((again,),) = driver.cycle(NOW + 1).binds
    assert again.node != bind.node
    assert again.annotations[names.EXCLUDED] == bind.node, "a restart knows it, too"


# -- ending --------------------------------------------------------------------------------------------------


def test_the_seats_of_a_gang_are_held_until_all_have_ended() -> None:
    driver = world()
    record, (first, second) = started(driver, 2)
    for bind in (first, second):
        driver.set_pod(bound(bind.pod, bind.node))
    driver.set_pod(ended(bound(first.pod, first.node)))
    driver.cycle(NOW + 1)
    assert record.state is JobState.RUNNING and free(driver) == 6000
    assert (record.alive, list(record.finished)) == ({second.uid}, [first.uid])
    driver.set_pod(ended(bound(second.pod, second.node)))
    driver.cycle(NOW + 2)
    assert record.state is JobState.COMPLETED and record.succeeded and record.ended == NOW + 2
    assert (phases(driver), free(driver), driver.queue.records) == ({}, 8000, {})


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_gang_of_which_one_failed_has_failed_whoever_ends_last(order: tuple[int, int]) -> None:
    driver = world()
    record, binds = started(driver, 2)
    for bind in binds:
        driver.set_pod(bound(bind.pod, bind.node))
    for index in order:
        bind = binds[index]
        driver.set_pod(ended(bound(bind.pod, bind.node), "Failed" if index == 0 else "Succeeded"))
        driver.cycle(NOW + 1)
    assert record.state is JobState.FAILED and not record.succeeded
    assert record.story[-1].reason.code is Code.FAILED


def test_a_pod_that_is_deleted_while_its_bind_is_under_way_holds_nobody_up() -> None:
    driver = world()
    record, (first, second) = started(driver, 2, needed=1)
    driver.remove_pod(second.pod)
    driver.set_pod(bound(first.pod, first.node))
    assert record.state is JobState.RUNNING
    driver.told(BindResult(second, BindOutcome.GONE), NOW + 1)
    driver.set_pod(ended(bound(first.pod, first.node)))
    driver.cycle(NOW + 2)
    assert record.state is JobState.CANCELLED and free(driver) == 8000


def test_a_pod_that_ended_before_anybody_saw_it_bound_has_run() -> None:
    driver = world()
    driver.set_pod(kit.pod("a"))
    ((bind,),) = driver.cycle(NOW).binds
    record = the_set(driver, bind.job)
    driver.set_pod(ended(bound(bind.pod, bind.node)))
    driver.told(BindResult(bind, BindOutcome.BOUND), NOW)
    driver.cycle(NOW + 1)
    assert record.state is JobState.COMPLETED and record.succeeded and free(driver) == 8000


def test_a_gang_whose_last_bind_is_lost_after_the_others_ended_is_done() -> None:
    driver = world()
    record, (first, second) = started(driver, 2, needed=1)
    driver.set_pod(ended(bound(first.pod, first.node)))
    driver.told(BindResult(second, BindOutcome.STALE), NOW)
    ((again,),) = driver.cycle(NOW + 1).binds
    assert record.state is JobState.COMPLETED and again.uid == second.uid
    assert free(driver) == 7000


def test_with_release_each_a_seat_is_free_when_its_pod_ends() -> None:
    driver = world(release_each=True)
    record, (first, second) = started(driver, 2)
    for bind in (first, second):
        driver.set_pod(bound(bind.pod, bind.node))
    driver.set_pod(ended(bound(first.pod, first.node)))
    driver.cycle(NOW + 1)
    assert record.state is JobState.RUNNING and free(driver) == 7000


def test_a_new_member_takes_the_seat_of_one_that_ended() -> None:
    driver = world(nodes=1)
    record, binds = started(driver, 4)
    for bind in binds:
        driver.set_pod(bound(bind.pod, bind.node))
    driver.set_pod(kit.pod("urgent", priority=1000))
    driver.set_pod(ended(bound(binds[0].pod, "n1"), "Failed"))
    driver.set_pod(kit.pod("new", field="g"))
    ((again,),) = driver.cycle(NOW + 1).binds
    assert again.pod.metadata.name == "new"
    assert not record.finished and binds[0].uid not in driver.pod_sets.by_pod
    assert record.state is JobState.RUNNING and free(driver) == 0


# -- found running -------------------------------------------------------------------------------------------


def adopt(driver: Driver, *pods: Pod) -> None:
    for pod in pods:
        driver.set_pod(pod)
    driver.cycle(driver.now)


def test_pods_that_say_their_groups_number_are_its_job() -> None:
    driver = world()
    driver.set_group(kit.group("g", 2))
    said = annotations_for(GROUP_NUMBER, NOW - 1000, NOW + 9000)
    adopt(driver, *kit.ranks(2, field="g", node="n1", annotations=said))
    record = the_set(driver)
    assert record.state is JobState.RUNNING and record.number == GROUP_NUMBER and free(driver) == 6000
    held = record.running["default/g"]
    assert (held.start, held.end, record.started) == (NOW - 1000, NOW + 9000, NOW - 1000)
    assert record.story[-1].reason.code is Code.FOUND_RUNNING and not record.unbound


def test_pods_without_a_limit_hold_for_ever() -> None:
    driver = world()
    adopt(driver, kit.pod("a", node="n1"))
    record = the_set(driver, "default/pod:a")
    assert record.job.limit is None and record.running[record.key].end == HORIZON


def test_pods_that_say_another_number_are_a_job_whose_number_follows_from_both() -> None:
    driver = world()
    driver.set_group(kit.group("g", 1))
    pods = kit.ranks(2, field="g", node="n1", annotations=annotations_for(7, NOW, None))
    adopt(driver, pods[0])
    key = f"default/g+{pods[0].metadata.uid}"
    assert phases(driver) == {key: JobState.RUNNING}
    number = the_set(driver, key).number
    assert number == job_number("uid-group-g+7")
    adopt(driver, pods[1])
    assert phases(driver) == {key: JobState.RUNNING}, "one that says the same joins it"
    assert the_set(driver, key).alive == {pod.metadata.uid for pod in pods}
    assert set(driver.cluster.jobs[number]) == {pod.metadata.uid for pod in pods}


def test_pods_that_were_started_apart_are_found_apart() -> None:
    driver = world()
    driver.set_group(kit.group("g", 1))
    main, late, later = kit.ranks(3, field="g", node="n1")
    adopt(
        driver,
        _saying(main, GROUP_NUMBER),
        _saying(late, job_number(late.metadata.uid)),
        _saying(later, job_number(later.metadata.uid)),
    )
    assert set(phases(driver)) == {
        "default/g",
        f"default/g+{late.metadata.uid}",
        f"default/g+{later.metadata.uid}",
    }
    assert sorted(map(len, driver.cluster.jobs.values())) == [1, 1, 1]


def _saying(pod: Pod, number: int) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, annotations=annotations_for(number, NOW, None)))


def test_a_gang_that_waits_and_is_found_running_waits_no_more() -> None:
    """Another replica started it."""
    driver = world(nodes=1)
    driver.set_pod(kit.pod("blocker", node="n1", cpu="4", scheduler="other"))
    pods = gang_of(driver, 2)
    driver.cycle(NOW)
    waits = the_set(driver)
    assert waits.state is JobState.PENDING
    adopt(driver, *(bound(pod, "n1") for pod in pods))
    assert waits.state is JobState.CANCELLED and waits.story[-1].reason.code is Code.FOUND_RUNNING
    assert phases(driver) == {"default/g": JobState.RUNNING} and not driver.queue.pending


def test_a_member_that_is_found_joins_its_group_though_its_own_job_waits() -> None:
    driver = world(nodes=1)
    record, binds = started(driver, 2)
    for bind in binds:
        driver.set_pod(bound(_saying(bind.pod, record.number), bind.node))
    late = kit.pod("late", field="g", cpu="4")
    driver.set_pod(late)
    driver.cycle(NOW + 1)
    assert phases(driver)[f"default/g+{late.metadata.uid}"] is JobState.PENDING
    adopt(driver, bound(late, "n1"))
    assert phases(driver) == {"default/g": JobState.RUNNING} and late.metadata.uid in record.alive


def test_what_is_found_running_ends_like_what_was_started_here() -> None:
    driver = world()
    pod = kit.pod("a", node="n1")
    adopt(driver, pod)
    record = the_set(driver, "default/pod:a")
    driver.set_pod(ended(pod))
    driver.cycle(NOW + 1)
    assert record.state is JobState.COMPLETED and free(driver) == 8000 and phases(driver) == {}


def test_where_two_follow_from_one_uid_the_second_gets_the_next_number() -> None:
    driver = world()
    driver.set_pod(kit.pod("a", uid="same"))
    driver.set_group(kit.group("g", 1, uid="same"))
    driver.set_pod(kit.pod("b", field="g"))
    driver.set_pod(kit.pod("c", node="n1", annotations=annotations_for(job_number("same"), NOW, None)))
    driver.cycle(NOW)
    numbers = {each.number for each in driver.pod_sets.by_key.values()}
    assert numbers == {job_number("same"), job_number("same'"), job_number("uid-default-c+" + _n("same"))}
    assert driver.pod_sets.by_number.keys() == numbers == driver.cluster.jobs.keys()


def _n(uid: str) -> str:
    return str(job_number(uid))


# -- volumes -------------------------------------------------------------------------------------------------


def preparing(driver: Driver) -> PodSet:
    driver.set_claim("default", "data", Claim("waits", uid="u"))
    volume = PodVolume(persistent_volume_claim=ClaimVolumeSource(claim_name="data"))
    driver.set_pod(kit.pod("a", volumes=[volume]))
    assert driver.cycle(NOW).binds == []
    return the_set(driver, "default/pod:a")


def test_a_pod_set_prepares_its_volumes_before_it_is_bound() -> None:
    driver = world()
    record = preparing(driver)
    assert record.state is JobState.PREPARING and record.volumes is not None and record.unbound
    driver.set_claim("default", "data", Claim("bound", uid="u"))
    ((bind,),) = driver.cycle(NOW + 1).binds
    assert record.state is JobState.STARTING and record.volumes is None and driver.volumes.active == {}
    driver.set_pod(bound(bind.pod, bind.node))
    assert path(record) == [
        JobState.PENDING,
        JobState.STARTING,
        JobState.PREPARING,
        JobState.STARTING,
        JobState.RUNNING,
    ]


def test_a_pod_set_that_cannot_have_its_volumes_waits_again_elsewhere() -> None:
    driver = world(volume_timeout=1000)
    record = preparing(driver)
    (node_,) = record.unbound.values()
    driver.cycle(NOW + 1000)
    assert not record.alive and driver.exclusions.of("default/pod:a") == {node_} and driver.has_more
    driver.cycle(NOW + 1001)
    assert the_set(driver, "default/pod:a") is record and record.state is JobState.PREPARING
    assert node_ not in record.unbound.values()
    states = "pending starting preparing pending starting preparing"
    assert " ".join(step.state for step in record.story) == states


def test_a_pod_set_that_was_bound_by_somebody_else_while_it_prepared_runs() -> None:
    driver = world()
    record = preparing(driver)
    (node_,) = record.unbound.values()
    driver.set_pod(bound(record.pods[0], node_))
    assert record.state is JobState.RUNNING
    assert driver.cycle(NOW + 1).binds == [] and driver.volumes.active == {}
    assert record.state is JobState.RUNNING and record.volumes is None


# -- what cannot be ------------------------------------------------------------------------------------------


def test_nothing_prepares_that_has_no_seats() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("blocker", node="n1", cpu="4"))
    gang_of(driver, 1)
    driver.cycle(NOW)
    binding = preparing(world()).volumes
    assert binding is not None
    with pytest.raises(Conflict):
        lifecycle(driver).prepare(the_set(driver), binding, NOW)
    assert the_set(driver).state is JobState.PENDING


def test_what_runs_does_not_go_back_to_its_binds() -> None:
    driver = world()
    record, (bind,) = started(driver, 1)
    driver.set_pod(bound(bind.pod, bind.node))
    with pytest.raises(Conflict):
        lifecycle(driver).volumes_ready(record, NOW)


def test_nothing_is_submitted_twice_under_one_key() -> None:
    driver = world()
    record, _ = started(driver, 2)
    again = Submit(record.key, "uid-x", dataclasses.replace(record.request, number=-1), 0)
    gang = driver.groups.gang("default/g")
    assert gang is not None
    with pytest.raises(Conflict):
        lifecycle(driver).submit(gang, again, NOW)
