"""What the history is told: each job's story as entries, the same after a restart."""

from __future__ import annotations

from dataclasses import replace as changed
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from fluence.cluster.graph import job_number
from fluence.model.job_state import JobEntry, JobState
from fluence.model.meta import Condition
from fluence.model.owner import Deployment, ReplicaSet
from fluence.model.pod import Pod
from fluence.model.reason import Code
from fluence.queue.rules import QueueRules
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, BindOutcome, BindResult
from fluence.schedule.restart import annotations_for
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_devices import World as DeviceWorld
from tests.unit.schedule.test_devices import asks

NOW = int(kit.T0.timestamp() * 1000)
NUMBER = job_number("uid-group-g")


def world(*, nodes: int = 2, history: bool = True, **config: Any) -> Driver:
    driver = Driver(native=True, history=history, **config)
    driver.now = NOW
    for i in range(nodes):
        driver.set_node(node(f"n{i + 1}", cpu="4"))
    return driver


def gang(driver: Driver, count: int = 2, **more: Any) -> list[Pod]:
    driver.set_group(kit.group("g", count))
    pods = kit.ranks(count, field="g", cpu="3", **more)
    for pod in pods:
        driver.set_pod(pod)
    return pods


def bind_all(driver: Driver, binds: list[Bind], at: int) -> list[Pod]:
    """The server carries binds out; the pods as it shows them then."""
    pods = [bind.carried_out(bound(bind.pod, bind.node)) for bind in binds]
    for bind, pod in zip(binds, pods, strict=True):
        driver.told(BindResult(bind, BindOutcome.BOUND), at)
        driver.set_pod(pod)
    return pods


def states(decisions: Decisions) -> list[JobState]:
    return [entry.state for entry in decisions.jobs]


def one(decisions: Decisions) -> JobEntry:
    (entry,) = decisions.jobs
    return entry


def run_gang(driver: Driver) -> list[Pod]:
    gang(driver)
    (binds,) = driver.cycle(NOW).binds
    pods = bind_all(driver, binds, NOW + 10)
    driver.cycle(NOW + 20)
    return pods


def test_a_job_is_told_of_when_it_comes_starts_runs_and_ends() -> None:
    driver = world()
    gang(driver, annotations={"fluence.flux-framework.org/user": "ada"})
    begun = driver.cycle(NOW)
    entry = one(begun)
    assert (entry.job, entry.state, entry.user) == (NUMBER, JobState.STARTING, "ada")
    assert (entry.namespace, entry.pods, entry.minimum) == ("default", 2, 2)
    assert entry.requests == {"cpu": 6000}
    assert entry.started is None
    pods = bind_all(driver, begun.binds[0], NOW + 10)
    runs = one(driver.cycle(NOW + 20))
    assert (runs.state, runs.started, runs.nodes) == (JobState.RUNNING, NOW, ("n1", "n2"))
    for pod in pods:
        driver.set_pod(ended(pod, "Succeeded"))
    over = one(driver.cycle(NOW + 5000))
    assert (over.state, over.started, over.ended) == (JobState.COMPLETED, NOW, NOW + 5000)
    assert over.nodes == ("n1", "n2")


def test_nothing_is_said_twice() -> None:
    driver = world()
    run_gang(driver)
    assert driver.cycle(NOW + 60_000).jobs == []


def test_without_a_history_nothing_is_said() -> None:
    driver = world(history=False)
    gang(driver)
    decisions = driver.cycle(NOW)
    assert decisions.binds
    assert decisions.jobs == [] and decisions.roll is None


def test_who_waits_is_told_of_with_its_reason_and_its_promise() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("first", cpu="4", annotations={"fluence.flux-framework.org/duration": "1h"}))
    (binds,) = driver.cycle(NOW).binds
    bind_all(driver, binds, NOW)
    driver.set_pod(kit.pod("second", cpu="4", annotations={"fluence.flux-framework.org/duration": "1h"}))
    said = {entry.name: entry for entry in driver.cycle(NOW + 1000).jobs}
    waits = said["second"]
    assert waits.state is JobState.RESERVED
    assert waits.no_later_than == NOW + 3_600_000
    assert waits.reasons and waits.limit == 3_600_000


def test_why_it_waited_is_still_known_when_it_has_ended() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("first", cpu="4"))
    (binds,) = driver.cycle(NOW).binds
    (first,) = bind_all(driver, binds, NOW)
    driver.set_pod(kit.pod("second", cpu="4"))
    waits = next(entry for entry in driver.cycle(NOW + 1000).jobs if entry.name == "second")
    driver.set_pod(ended(first, "Succeeded"))
    (binds,) = driver.cycle(NOW + 2000).binds
    (second,) = bind_all(driver, binds, NOW + 2000)
    driver.set_pod(ended(second, "Succeeded"))
    over = one(driver.cycle(NOW + 3000))
    assert over.name == "second" and over.reasons == waits.reasons


def test_what_can_never_run_is_told_of() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("huge", cpu="400"))
    assert one(driver.cycle(NOW)).state is JobState.UNSCHEDULABLE


def test_pods_that_fail_and_pods_that_are_deleted_end_differently() -> None:
    def outcome(*over: Pod) -> JobState:
        driver = world()
        run_gang(driver)
        for pod in over:
            driver.set_pod(pod)
        return one(driver.cycle(NOW + 5000)).state

    crashed = [ended(bound(pod, "n1"), "Failed") for pod in kit.ranks(2, field="g", cpu="3")]
    leaving = [
        replace(pod, metadata=replace(pod.metadata, deletion_timestamp=kit.T0 + timedelta(seconds=3)))
        for pod in crashed
    ]
    assert outcome(*crashed) is JobState.FAILED
    assert outcome(*leaving) is JobState.CANCELLED
    assert outcome(crashed[0], leaving[1]) is JobState.FAILED  # its controller deletes the rest


def test_a_job_that_fails_at_its_limit_timed_out() -> None:
    driver = world()
    gang(driver, annotations={"fluence.flux-framework.org/duration": "5s"})
    (binds,) = driver.cycle(NOW).binds
    pods = bind_all(driver, binds, NOW + 10)
    driver.cycle(NOW + 20)
    for pod in pods:
        driver.set_pod(ended(pod, "Failed"))
    assert one(driver.cycle(NOW + 5001)).state is JobState.TIMEOUT


def deleted_after(seconds: float, *, deadline: int | None = None, **config: Any) -> tuple[JobState, int]:
    """How a job of 5 s ends whose pods are deleted then, and how many runs the queue has learned from."""
    driver = world(**config)
    gang(
        driver,
        annotations={"fluence.flux-framework.org/duration": "5s"},
        **({} if deadline is None else {"active_deadline_seconds": deadline}),
    )
    (binds,) = driver.cycle(NOW).binds
    pods = bind_all(driver, binds, NOW)
    driver.cycle(NOW)
    for pod in pods:
        leaving = replace(pod.metadata, deletion_timestamp=kit.T0 + timedelta(seconds=seconds))
        driver.set_pod(replace(pod, metadata=leaving))
        driver.remove_pod(replace(pod, metadata=leaving))
    state = one(driver.cycle(NOW + int(seconds * 1000))).state
    return state, len(driver.scheduler.state.queue.runs)


def test_a_job_that_is_deleted_after_a_limit_that_nothing_enforces_was_cancelled() -> None:
    """A user deleted it. How long it would have run is not known: it teaches nothing."""
    assert deleted_after(3) == (JobState.CANCELLED, 0)
    assert deleted_after(60) == (JobState.CANCELLED, 0)


def test_a_job_that_is_deleted_where_its_limit_is_enforced_timed_out() -> None:
    assert deleted_after(5, deadline=5) == (JobState.TIMEOUT, 1)
    rules = {"": QueueRules(enforced=True, grace=2_000)}
    assert deleted_after(8, rules=rules) == (JobState.TIMEOUT, 1)
    assert deleted_after(6, rules=rules) == (JobState.CANCELLED, 0), "the scheduler ends it at 7 s"


def test_pods_that_are_deleted_while_they_wait_were_cancelled() -> None:
    driver = world(nodes=1)
    pods = gang(driver)
    driver.cycle(NOW)
    for pod in pods:
        driver.remove_pod(pod)
    gone = one(driver.cycle(NOW + 1000))
    assert (gone.state, gone.started, gone.ended) == (JobState.CANCELLED, None, NOW + 1000)
    assert [reason.code for reason in gone.reasons] == [Code.GROUP_GONE]


def test_a_job_that_is_submitted_anew_in_a_cycle_was_not_cancelled() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("a", cpu="8"))
    assert states(driver.cycle(NOW)) == [JobState.UNSCHEDULABLE]
    driver.set_node(node("big", cpu="8"))
    assert states(driver.cycle(NOW + 1000)) == [JobState.STARTING]


def test_binds_that_fail_are_no_run() -> None:
    driver = world(nodes=1)
    driver.set_pod(kit.pod("a", cpu="4"))
    (binds,) = driver.cycle(NOW).binds
    driver.told(BindResult(binds[0], BindOutcome.IMPOSSIBLE), NOW + 10)
    again = one(driver.cycle(NOW + 1000))
    assert again.started is None and not again.state.is_over


def test_a_scheduler_that_knows_nothing_says_the_same_of_what_runs() -> None:
    driver = world()
    pods = run_gang(driver)
    fresh = world()
    fresh.set_group(kit.group("g", 2))
    for pod in pods:
        fresh.set_pod(pod)
    found = one(fresh.cycle(NOW + 60_000))
    driver.scheduler.state.journal.call_roll()
    known = one(driver.cycle(NOW + 60_000))
    assert (found.job, found.started, found.nodes, found.state) == (
        NUMBER,
        NOW,
        ("n1", "n2"),
        JobState.RUNNING,
    )
    unknown_after_a_restart = {"limit": None, "priority": 0, "minimum": 0}
    assert changed(found, **unknown_after_a_restart) == changed(known, **unknown_after_a_restart)  # type: ignore[arg-type]


def test_the_roll_is_called_once_with_all_jobs_there_are() -> None:
    driver = world()
    gang(driver)
    driver.set_pod(kit.pod("huge", cpu="400"))
    first = driver.cycle(NOW)
    assert first.roll == {NUMBER, job_number("uid-default-huge")}
    assert driver.cycle(NOW + 1).roll is None
    driver.scheduler.state.journal.call_roll()
    again = driver.cycle(NOW + 2)
    assert again.roll == first.roll
    assert {entry.job for entry in again.jobs} == first.roll


def test_the_roll_waits_until_all_groups_are_taken_in() -> None:
    driver = world()
    for i in range(200):  # more than a cycle takes in
        driver.set_pod(kit.pod(f"p{i}"))
    assert driver.cycle(NOW).roll is None
    second = driver.cycle(NOW + 1)
    assert second.roll is not None and len(second.roll) == 200


def test_a_group_that_gets_new_pods_runs_again_under_its_id() -> None:
    driver = world()
    pods = run_gang(driver)
    for pod in pods:
        driver.set_pod(ended(pod, "Succeeded"))
    assert one(driver.cycle(NOW + 5000)).ended == NOW + 5000
    for pod in pods:
        driver.remove_pod(pod)
    for pod in kit.ranks(2, name="again", field="g", cpu="3"):
        driver.set_pod(pod)
    again = driver.cycle(NOW + 9000).jobs
    assert [(entry.job, entry.state, entry.started) for entry in again] == [(NUMBER, JobState.STARTING, None)]


def test_the_workload_is_the_uppermost_owner() -> None:
    driver = world()
    above = kit.owner("web", kind=Deployment, replicas=1)
    below = kit.owner("web-5d4f", kind=ReplicaSet, replicas=1, parent=above)
    driver.set_owner(above)
    driver.set_owner(below)
    driver.set_pod(kit.pod("web-5d4f-x", owner=below))
    entry = one(driver.cycle(NOW))
    assert (entry.kind, entry.name) == ("Deployment", "web")


# -- ends that nobody saw ------------------------------------------------------------------------------------


def test_a_scheduler_that_knows_nothing_reads_ends_from_pods() -> None:
    pods = run_gang(world())
    fresh = world()
    fresh.set_group(kit.group("g", 2))
    for pod in pods:
        fresh.set_pod(ended(pod, "Succeeded"))
    decisions = fresh.cycle(NOW + 60_000)
    over = one(decisions)
    assert (over.job, over.state) == (NUMBER, JobState.COMPLETED)
    assert (over.started, over.ended, over.nodes) == (NOW, NOW + 60_000, ("n1", "n2"))
    assert decisions.roll == frozenset()
    assert fresh.cycle(NOW + 61_000).jobs == []


def test_the_time_of_an_end_is_that_of_the_pod_that_was_ready_last() -> None:
    pods = run_gang(world())
    fresh = world()
    fresh.set_group(kit.group("g", 2))
    for seconds, pod in zip((7, 5), pods, strict=True):
        at = (kit.T0 + timedelta(seconds=seconds)).isoformat()
        ready = Condition(type="Ready", status="False", last_transition_time=at)
        done = ended(pod, "Failed")
        fresh.set_pod(replace(done, status=replace(done.status, conditions=[ready])))
    over = one(fresh.cycle(NOW + 60_000))
    assert (over.state, over.ended) == (JobState.FAILED, NOW + 7000)


def test_what_pods_say_of_the_jobs_of_others_is_not_believed() -> None:
    fresh = world()
    liar = kit.pod(
        "liar", node="n1", phase="Succeeded", annotations=annotations_for(NUMBER, NOW - 5000, None)
    )
    fresh.set_pod(liar)
    assert fresh.cycle(NOW).jobs == []


def test_late_members_have_the_same_id_after_a_restart() -> None:
    driver = world(nodes=3)
    pods = run_gang(driver)
    late = kit.pod("late", field="g", cpu="3")
    driver.set_pod(late)
    (binds,) = driver.cycle(NOW + 1000).binds
    pods += bind_all(driver, binds, NOW + 1000)
    before = {entry.job for entry in driver.cycle(NOW + 1100).jobs}
    fresh = world(nodes=3)
    fresh.set_group(kit.group("g", 2))
    for pod in pods:
        fresh.set_pod(pod)
    assert {entry.job for entry in fresh.cycle(NOW + 2000).jobs} == before | {NUMBER}


def test_devices_that_belong_to_no_node_are_told_of() -> None:
    devices = DeviceWorld(history=True)
    bind = devices.run(asks("a", qpu=1))["a"]
    runs = one(devices.cycle(NOW + 10))
    assert (runs.state, runs.devices) == (JobState.RUNNING, ("ibm_fez",))
    fresh = DeviceWorld(history=True)
    fresh.end(bind)
    assert one(fresh.cycle(NOW + 60_000)).devices == ("ibm_fez",)
