"""Faults of preemption and quotas that random worlds found (`tests/property/test_tenancy_worlds.py`), each as
the smallest world that shows it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fluence import names
from fluence.model.grant import with_condition
from fluence.model.meta import Condition
from fluence.model.pod import Pod
from fluence.model.reason import Code
from fluence.schedule.events import Changed
from fluence.schedule.preemption.preemption import BY_SCHEDULER, DISRUPTION_TARGET
from tests.unit.schedule import kit
from tests.unit.schedule.preempting import PreemptionWorld, budget, gang, prioritised
from tests.unit.schedule.test_preemption_queues import of, world_of

LOW, MEDIUM, HIGH = 1, 100, 1000


def marked(pod: Pod) -> Pod:
    target = Condition(type=DISRUPTION_TARGET, status="True", reason=BY_SCHEDULER)
    return replace(pod, status=replace(pod.status, conditions=with_condition(pod.status.conditions, target)))


def half_ended(*names_: str) -> PreemptionWorld:
    """A gang of three on three nodes that was to end as a whole; some of it did before a crash."""
    world = PreemptionWorld(3, 1)
    world.add(*gang("work", 3, LOW))
    world.settle(1)
    for pod in [pod for name, pod in world.pods.items() if name.startswith("work")]:
        world.add(marked(pod))
    for name in names_:
        world.remove(name)
    world.restart()
    return world


def test_what_is_left_of_a_gang_whose_end_was_cut_short_ends_too() -> None:
    world = half_ended("work-0")
    world.add(prioritised("high", HIGH))
    world.settle(100)
    assert sorted(world.deleted) == ["work-1", "work-2"]
    assert world.running == {"high"}


def test_a_gang_that_was_to_end_and_is_whole_continues() -> None:
    world = half_ended()
    world.settle(100)
    assert world.deleted == []


def test_a_fault_in_the_middle_of_a_gang_does_not_leave_the_rest() -> None:
    """The order is not needed any more when the first of them is gone: the others end all the same."""
    world = PreemptionWorld(2, 1)
    world.add(*gang("work", 2, LOW, grace=5))
    world.settle(1)
    world.carries_out = False
    world.add(prioritised("high", HIGH))
    world.settle(0)
    for name in ("work-0", "work-1"):
        world.add(marked(world.pods[name]))
    world.delete("work-0")  # and then the server fails
    world.settle(1)
    world.carries_out = True
    world.settle(100)
    assert world.deleted == ["work-1"] and world.running == {"high"}


def test_members_that_wait_do_not_end_their_own_gang() -> None:
    """After a restart, running members seemed newer than one that waits."""
    world = world_of(2, 1, b={"preemption": {"within": "lower-or-newer"}})
    world.settle(1)
    for pod in gang("work", 3, LOW, minimum=2, annotations={names.QUEUE: "b"}):
        world.add(pod)
    world.settle(5)
    assert len(world.running) == 2
    world.restart()
    world.settle(100)
    assert world.deleted == []


def test_work_that_runs_is_as_old_after_a_restart_as_before() -> None:
    """It was taken to be submitted when it started, and ended for work that came in between."""
    world = world_of(1, 1, of("first", "a", MEDIUM), a={"preemption": {"within": "lower-or-newer"}})
    older, newer = of("older", "a", age=100), of("newer", "a", age=50)
    world.add(older)
    world.settle(10)
    world.remove("first")
    world.settle(1)
    assert world.running == {"older"}
    world.restart()
    world.add(newer)
    world.settle(100)
    assert world.deleted == [] and world.running == {"older"}


def test_an_order_is_withdrawn_with_the_earmark_that_it_was_given_for() -> None:
    """Work that is owed a guarantee takes the seats in the same cycle: who ends then ends by its right."""
    owed = {"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}}
    world = world_of(1, 1, of("low", "default"), a=owed)
    world.add(of("medium", "default", MEDIUM), of("owed", "a"))
    orders = [order for order in world.step().preemptions if order.preemptor is not None]
    assert [(order.preemptor.metadata.name, order.queue) for order in orders if order.preemptor] == [
        ("owed", "a")
    ]
    world.settle(200)
    assert world.deleted == ["low"] and world.running == {"owed"}


def test_a_victim_without_a_grace_period_is_not_overdue() -> None:
    """Its planned end was now, so it counted as work beyond its limit, and later a promise fell by resources
    that were lost."""
    world = PreemptionWorld(1, 4)
    for pod in gang("work", 2, LOW, grace=0):
        world.add(pod)
    world.add(prioritised("half", MEDIUM, cpu="2", grace=0))
    world.settle(1)
    losses = world.scheduler.state.planner.lost
    world.carries_out = False
    world.add(prioritised("high", HIGH, cpu="1", grace=0))
    assert world.step().preemptions
    assert world.scheduler.state.planner.lost == losses


def test_what_a_new_process_finds_in_use_was_not_lost() -> None:
    """A promise that falls after a restart says so, and not that resources were lost."""
    world = PreemptionWorld(1, 1)
    world.add(prioritised("runs", MEDIUM, annotations={names.DURATION: "20s"}))
    world.add(prioritised("waits", MEDIUM))
    world.settle(1)
    assert world.queue.records["default/pod:waits"].no_later_than is not None
    world.restart()
    world.settle(1)
    assert world.queue.promises._loss[1].code is Code.RESTARTED


def test_in_a_strict_order_nobody_ends_for_work_behind_them() -> None:
    """The guarantee of the queue says that it may. But who was ended waited ahead of it again, started again,
    and was ended again, without end."""
    world = PreemptionWorld(1, 1, queue_policy="fcfs")
    world.use(default={}, a={"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}})
    world.add(prioritised("first", HIGH))
    world.recreated.add("first")
    world.settle(1)
    world.add(of("behind", "a", LOW))
    world.settle(400)
    assert world.deleted == []


def test_seats_are_for_whom_they_are_held_though_others_ahead_ask_for_the_same() -> None:
    """That another gang did not fit was taken to hold for all that ask for as much. So the one for which
    somebody was ended did not start, the seats went to others, and these were ended next."""
    world = PreemptionWorld(1, 1, queue_policy="first-fit")
    world.use(default={}, a={"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}})
    world.add(prioritised("runs", HIGH, grace=0))
    world.settle(1)
    world.add(prioritised("ahead", HIGH), of("mine", "a", LOW))
    world.settle(100)
    assert world.deleted == ["runs"] and world.running == {"mine"}


def test_an_order_is_not_repeated_against_a_budget_that_came_later() -> None:
    """The server failed, a budget was created, and the same pod was ended all the same."""
    world = PreemptionWorld(1, 1)
    world.add(prioritised("guarded", LOW, labels={"app": "db"}))
    world.settle(1)
    world.carries_out = False
    world.add(prioritised("high", HIGH))
    assert [order.group for order in world.step().preemptions] == ["default/pod:guarded"]
    world.protect(budget("db", 0, app="db"))
    world.carries_out = True
    world.settle(100)
    assert world.deleted == [] and world.running == {"guarded"} and world.nominated("high") is None


def test_budgets_are_counted_over_all_for_whom_pods_end() -> None:
    """Two preemptors in one cycle each counted their own victim alone."""
    world = PreemptionWorld(2, 1)
    world.add(*(prioritised(f"guarded-{i}", LOW, labels={"app": "db"}) for i in range(2)))
    world.settle(1)
    world.protect(budget("db", 1, app="db"))
    world.add(prioritised("high-0", HIGH), prioritised("high-1", HIGH))
    assert len(world.step().preemptions) == 1


def test_budgets_count_the_pods_of_a_drained_queue_too() -> None:
    world = PreemptionWorld(2, 1)
    world.use(default={}, a={})
    owner = kit.owner("job")
    world.set_owner(owner)
    for queue in ("a", "default"):
        world.add(of(f"guarded-{queue}", queue, labels={"app": "db"}, owner=owner))
    world.settle(1)
    world.protect(budget("db", 1, app="db"))
    world.carries_out = False
    world.queues["a"] = replace(world.queues["a"], spec={"stop": "drain"})
    world.handle(Changed(None, world.queues["a"]))
    world.settle(2)
    assert set(world.scheduler.state.preemption._ending_anyway()) == {"uid-default-guarded-a"}
    world.add(*gang("high", 2, HIGH))
    assert world.step().preemptions == []


def test_work_that_is_to_end_for_quota_at_this_moment_counts_until_it_ends() -> None:
    """Its planned end had come, so the quota seemed to be free, and it was spared."""
    patient = {"perUser": {"running": 1}, "preemption": {"within": "lower", "patience": "60s"}}
    world = world_of(1, 3, prioritised("leaving", LOW, grace=20), of("low", "a", grace=0), a=patient)
    world.delete("leaving")
    world.add(of("high", "a", HIGH, cpu="2"))
    world.settle(19)
    assert names.ENDS_AT in world.pods["low"].annotations and world.deleted == []
    world.now += 1000
    world.end_due()
    assert [order.group for order in world.step().preemptions] == ["default/pod:low"]
    world.settle(1)
    assert world.deleted == ["low"] and world.running == {"high"}


def test_the_end_of_a_gang_includes_its_surplus_that_was_to_end_for_others() -> None:
    """An order for one pod above the minimum had no effect, and the others were ended without it."""
    world = PreemptionWorld(1, 3)
    world.add(*gang("work", 3, LOW, minimum=2))
    world.settle(1)
    world.carries_out = False
    world.add(prioritised("first", HIGH))
    (surplus,) = world.step().preemptions
    assert len(surplus.pods) == 1
    world.add(prioritised("second", HIGH, cpu="2"))
    (order,) = world.step().preemptions
    assert {pod.metadata.name for pod in order.pods} == {"work-0", "work-1", "work-2"}
    world.carries_out = True
    world.settle(100)
    assert len(world.deleted) == 3 and world.running == {"first", "second"}


def test_an_order_is_not_repeated_against_the_word_of_a_queue() -> None:
    """The server failed, the queue was told to end no work of others, and that was ended all the same."""
    world = world_of(1, 1, of("low", "default"), a={})
    world.carries_out = False
    world.add(of("high", "a", HIGH))
    assert [order.group for order in world.step().preemptions] == ["default/pod:low"]
    old = world.queues["a"]
    world.queues["a"] = replace(old, spec={"preemption": {"reclaim": "never"}})
    world.handle(Changed(old, world.queues["a"]))
    world.settle(2)
    world.carries_out = True
    world.settle(100)
    assert world.deleted == [] and world.running == {"low"}


def test_an_end_that_is_taken_back_before_the_plan_has_seen_it_is_no_loss() -> None:
    """Promises that others overtook later were said to be broken because resources were lost."""
    owed = {"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}}
    world = world_of(1, 1, of("low", "default"), a=owed)
    losses = world.scheduler.state.planner.lost
    world.add(of("medium", "default", MEDIUM), of("owed", "a"))
    assert [order.queue for order in world.step().preemptions] == ["a"]
    assert world.scheduler.state.planner.lost == losses


def promised_behind_an_end(**owed: str) -> PreemptionWorld:
    """A job that was promised a start in 100 s and then had other work ended, which takes 40 s, and a job
    whose queue reclaims its guarantee."""
    queues: dict[str, Any] = {
        "a": {"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}},
        "b": {"preemption": {"minRuntime": "30s"}},
    }
    limited = {names.QUEUE: "b", names.DURATION: "100s"}
    world = world_of(1, 1, prioritised("runs", LOW, grace=40, annotations=limited), **queues)
    world.add(prioritised("told", MEDIUM, annotations=limited))
    world.settle(1)
    assert world.queue.records["default/pod:told"].reservation is not None
    world.settle(30)
    assert world.deleted == ["runs"] and world.nominated("told") == "n0"
    world.add(prioritised("owed", LOW, annotations={names.QUEUE: "a", **owed}))
    return world


def test_an_earmark_is_not_taken_if_that_breaks_a_promise() -> None:
    """A job gave up its reservation for an earmark, and the work that took the earmark never ends."""
    world = promised_behind_an_end()
    world.settle(45)
    assert world.running == {"told"}
    assert not world.queue.records["default/pod:told"].broken


def test_an_earmark_is_taken_if_its_promise_is_kept() -> None:
    world = promised_behind_an_end(**{names.DURATION: "20s"})
    world.settle(45)
    assert world.running == {"owed"}
    world.remove("owed")
    world.settle(1)
    assert world.running == {"told"}
    assert not world.queue.records["default/pod:told"].broken


def test_what_a_gang_holds_for_members_that_are_gone_comes_free_with_the_rest() -> None:
    """Sums counted the pods of a gang apart, and so more work was ended than was needed."""
    world = PreemptionWorld(2, 2)
    world.add(prioritised("spared", MEDIUM))
    world.settle(1)
    world.add(*gang("work", 3, LOW, minimum=1))
    world.settle(1)
    beside = world.pods["spared"].spec.node_name
    gone, leaving = (name for name, pod in world.pods.items() if pod.spec.node_name != beside)
    world.remove(gone)
    world.delete(leaving)
    world.settle(1)
    world.add(*gang("high", 4, HIGH, minimum=3))
    assert [order.group for order in world.step().preemptions] == ["default/work"]


def test_whoever_takes_an_earmark_repeats_the_orders_that_it_counts_on() -> None:
    """An order had no effect, and then it was nobody's."""
    world = PreemptionWorld(1, 1)
    world.add(prioritised("low", LOW))
    world.settle(1)
    world.carries_out = False
    world.add(prioritised("medium", MEDIUM))
    assert world.step().preemptions
    world.step()
    world.add(prioritised("high", HIGH))
    assert world.step().preemptions == []  # it was given a moment ago
    preemption, pod_sets = world.scheduler.state.preemption, world.scheduler.state.pod_sets
    (order,) = preemption.orders(pod_sets.by_key["default/pod:high"])
    assert order.group == "default/pod:low" and order.preemptor is not None
    assert order.preemptor.metadata.name == "high"
    world.settle(6)
    world.carries_out = True
    world.settle(60)
    assert world.deleted == ["low"] and world.running == {"high"}


def test_a_guarantee_is_not_reclaimed_by_the_end_of_work_that_continues() -> None:
    """The work of its own queue was to end in the same cycle. It continued when its earmark was taken."""
    queues: dict[str, Any] = {
        "top": {"guaranteed": {"cpu": 1}},
        "a": {"parent": "top", "preemption": {"reclaim": "any"}},
        "b": {"parent": "top"},
    }
    world = world_of(1, 2, of("mine", "b"), of("other", "default"), **queues)
    world.add(of("high", "default", HIGH, cpu="2"), of("owed", "a"))
    orders = world.step().preemptions
    assert {order.preemptor.metadata.name for order in orders if order.preemptor} == {"high"}
    assert {order.group for order in orders} == {"default/pod:mine", "default/pod:other"}
