"""Who preempts whom, when nobody is ended, and for whom the seats are held."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import LabelSelector
from fluence.model.owner import PodTemplate
from fluence.model.pod import (
    Affinity,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
)
from fluence.model.reason import Code
from fluence.queue.policy import QueuePolicy
from fluence.queue.scheduling_pass import SchedulingPass
from fluence.schedule.events import Object
from fluence.schedule.inquiry import Inquiry
from fluence.schedule.preemption.rules import BudgetMode, PreemptionRules
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from fluence.units import rfc3339
from tests.unit.schedule import kit
from tests.unit.schedule.preempting import PreemptionWorld, budget, gang, prioritised
from tests.unit.schedule.test_promised_starts import node

LOW, MEDIUM, HIGH = 1, 100, 1000


def full(nodes: int = 1, cpu: int = 2, *pods: Pod, **config: Any) -> PreemptionWorld:
    world = PreemptionWorld(nodes, cpu, **config)
    for pod in pods:  # one after the other: they start in this order
        world.add(pod)
        world.settle(1)
    assert world.running == {pod.metadata.name for pod in pods}
    return world


class TestVictims:
    def test_only_the_pod_of_the_lowest_priority_ends(self) -> None:
        world = full(1, 2, prioritised("low", LOW), prioritised("medium", MEDIUM))
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["low"] and world.running == {"medium"}
        assert world.nominated("high") == "n0" and world.reasons("high") == ["Preempting"]
        world.settle(30)
        assert world.running == {"medium", "high"} and world.deleted == ["low"]

    def test_a_victim_that_ends_at_once_has_not_exceeded_its_limit(self) -> None:
        world = full(1, 1, prioritised("low", LOW, grace=0))
        world.carries_out = False
        world.add(prioritised("high", HIGH))
        world.settle()
        waiting = world.scheduler.state.reports.said["default/pod:high"]
        assert [reason.code for reason in waiting.report.reasons][:1] == [Code.PREEMPTING]
        assert Code.WAITS_FOR_OVERRUN not in {reason.code for reason in waiting.report.reasons}

    def test_equal_priority_ends_nobody(self) -> None:
        world = full(1, 1, prioritised("first", HIGH))
        world.add(prioritised("second", HIGH))
        world.settle(100)
        assert world.deleted == [] and world.running == {"first"}

    def test_the_newest_of_equal_priority_ends(self) -> None:
        world = full(1, 2, prioritised("older", LOW), prioritised("newer", LOW))
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["newer"]

    def test_no_more_end_than_must(self) -> None:
        world = full(2, 3, *(prioritised(f"low-{i}", LOW) for i in range(6)))
        world.add(prioritised("high", HIGH, cpu="2"))
        world.settle()
        assert len(world.deleted) == 2
        assert len({world.pods[name].spec.node_name for name in world.deleted}) == 1

    def test_a_policy_of_never_ends_nobody(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.add(prioritised("high", HIGH, preemption_policy="Never"))
        world.settle(100)
        assert world.deleted == []

    def test_pods_of_another_scheduler_are_never_victims(self) -> None:
        world = PreemptionWorld(1, 1)
        world.add(prioritised("theirs", LOW, scheduler="default-scheduler", node="n0", phase="Running"))
        world.add(prioritised("high", HIGH))
        world.settle(100)
        assert world.deleted == []

    def test_nobody_ends_for_a_gang_that_would_not_fit_anyway(self) -> None:
        world = full(1, 2, prioritised("low", LOW), prioritised("top", HIGH + 1))
        world.add(prioritised("high", HIGH, cpu="2"))
        world.settle(100)
        assert world.deleted == []

    def test_setting_off(self) -> None:
        world = full(1, 1, prioritised("low", LOW), preemption=PreemptionRules(enabled=False))
        world.add(prioritised("high", HIGH))
        world.settle(100)
        assert world.deleted == []

    def test_off_for_one_queue(self) -> None:
        world = full(
            1, 1, prioritised("low", LOW), preemption=PreemptionRules(non_preempting=frozenset({"slow"}))
        )
        world.add(prioritised("high", HIGH, annotations={names.QUEUE: "slow"}))
        world.settle(100)
        assert world.deleted == []
        world.add(prioritised("higher", HIGH, annotations={names.QUEUE: "fast"}))
        world.settle(100)
        assert world.deleted == ["low"]


class TestLostWork:
    """Of equal priority, those end that lose least: their part of the cluster times how long they ran."""

    def test_those_that_lose_least_end(self) -> None:
        world = full(2, 4, prioritised("old", LOW), prioritised("kept", HIGH, cpu="3"))
        world.settle(600)
        world.add(prioritised("wide", LOW, cpu="4"))
        world.settle(400)
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["old"]  # 1 of 8 for 1000 s, not 4 of 8 for 400 s

    @pytest.mark.parametrize(
        ("checkpoint", "ended"),
        [
            (100, "older"),  # seconds after the start of the older one
            (99_999, "newer"),  # in the future,
            (-5, "newer"),  # before it started,
            (None, "newer"),  # or no time at all: not counted
        ],
    )
    def test_work_counts_from_the_last_checkpoint(self, checkpoint: int | None, ended: str) -> None:
        world = full(1, 2, prioritised("older", LOW), prioritised("newer", LOW))
        started = world.now - 2000
        world.settle(120)
        pod = world.pods["older"]
        at = "soon" if checkpoint is None else rfc3339((started + checkpoint * 1000) * 1000)
        notes = {**pod.annotations, names.CHECKPOINT: at}
        world.add(replace(pod, metadata=replace(pod.metadata, annotations=notes)))
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == [ended]

    def test_a_checkpoint_to_come_counts_when_its_time_is_there(self) -> None:
        world = full(1, 2, prioritised("older", LOW), prioritised("newer", LOW))
        pod = world.pods["older"]
        notes = {**pod.annotations, names.CHECKPOINT: rfc3339((world.now + 60_000) * 1000)}
        world.add(replace(pod, metadata=replace(pod.metadata, annotations=notes)))
        world.settle(70)
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["older"]

    def test_priority_counts_first(self) -> None:
        world = full(1, 2, prioritised("low", LOW))
        world.settle(1000)
        world.add(prioritised("medium", MEDIUM))
        world.settle(1)
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["low"]


class TestGangs:
    def test_a_gang_ends_as_a_whole(self) -> None:
        world = PreemptionWorld(2, 1)
        world.add(*gang("low", 2, LOW))
        world.settle()
        world.add(prioritised("high", HIGH))
        world.settle()
        assert sorted(world.deleted) == ["low-0", "low-1"]

    def test_a_single_pod_ends_before_a_gang_of_equal_priority(self) -> None:
        world = PreemptionWorld(3, 1)
        world.add(prioritised("single", LOW))
        world.settle(1)
        world.add(*gang("low", 2, LOW))
        world.settle(1)
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["single"]

    def test_only_the_surplus_that_is_needed_ends(self) -> None:
        world = PreemptionWorld(4, 1)
        world.add(*gang("low", 4, LOW, minimum=2))
        world.settle(5)
        assert len(world.running) == 4
        world.add(prioritised("high", HIGH))
        world.settle()
        assert len(world.deleted) == 1
        world.settle(30)
        assert "high" in world.running and len(world.running) == 4

    def test_a_gang_is_not_left_below_its_minimum(self) -> None:
        world = PreemptionWorld(4, 1)
        world.add(*gang("low", 4, LOW, minimum=3))
        world.settle(5)
        world.add(*gang("high", 2, HIGH))
        world.settle()
        assert len(world.deleted) == 4
        world.settle(30)
        assert {"high-0", "high-1"} <= world.running

    def test_a_native_group_that_is_disrupted_together_has_no_surplus(self) -> None:
        world = PreemptionWorld(3, 1, native=True)
        world.set_group(kit.group("low", 1, disrupt_together=True, priority=LOW))
        world.add(*(prioritised(f"low-{i}", LOW, field="low") for i in range(3)))
        world.settle(5)
        assert len(world.running) == 3
        world.add(prioritised("high", HIGH))
        world.settle()
        assert len(world.deleted) == 3

    def test_a_group_gives_its_pods_no_right_that_their_own_class_does_not(self) -> None:
        """On 1.36 any user may name any class in a PodGroup: quota by PriorityClass counts pods."""
        world = full(1, 1, prioritised("medium", MEDIUM), native=True)
        world.set_group(kit.group("raised", 1, priority=HIGH))
        world.add(prioritised("raised-0", LOW, field="raised"))
        world.settle(100)
        assert world.deleted == [] and world.running == {"medium"}

    def test_a_group_protects_its_pods_no_more_than_their_own_class_does(self) -> None:
        world = PreemptionWorld(1, 1, native=True)
        world.set_group(kit.group("raised", 1, priority=HIGH))
        world.add(prioritised("raised-0", LOW, field="raised"))
        world.settle(5)
        assert world.running == {"raised-0"}
        world.add(prioritised("medium", MEDIUM))
        world.settle(100)
        assert world.deleted == ["raised-0"] and world.running == {"medium"}

    def test_a_gang_preempts_for_all_of_its_pods_or_not_at_all(self) -> None:
        world = full(2, 1, prioritised("low", LOW), prioritised("top", HIGH + 1))
        world.add(*gang("high", 2, HIGH))
        world.settle(100)
        assert world.deleted == []
        world.delete("top")
        world.settle(100)
        assert world.running == {"high-0", "high-1"} and world.deleted == ["low"]


class TestBudgets:
    def test_a_budget_protects(self) -> None:
        world = full(1, 1, prioritised("low", LOW, labels={"app": "db"}))
        world.protect(budget("db", 0, app="db"))
        world.add(prioritised("high", HIGH))
        world.settle(100)
        assert world.deleted == []

    def test_it_is_counted_over_all_victims_together(self) -> None:
        world = full(1, 3, *(prioritised(f"low-{i}", LOW, labels={"app": "db"}) for i in range(3)))
        world.protect(budget("db", 1, app="db"))
        world.add(prioritised("two", HIGH, cpu="2"))
        world.settle(10)
        assert world.deleted == []
        world.add(prioritised("one", HIGH))
        world.settle(10)
        assert len(world.deleted) == 1

    def test_others_end_where_a_budget_protects_some(self) -> None:
        world = full(2, 1, prioritised("free", LOW), prioritised("kept", LOW, labels={"app": "db"}))
        world.protect(budget("db", 0, app="db"))
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == ["free"]

    def test_a_budget_that_allows_it_is_no_obstacle_wherever_the_pod_is(self) -> None:
        there = {"topology.kubernetes.io/zone": "b"}
        world = PreemptionWorld(1, 1)
        world.nodes.append(node("n1", 1))
        world.nodes[1] = replace(world.nodes[1], metadata=replace(world.nodes[1].metadata, labels=there))
        world.set_node(world.nodes[1])
        world.add(*(prioritised(f"low-{i}", LOW, labels={"app": "db"}) for i in range(2)))
        world.settle()
        world.protect(budget("db", 1, app="db"))
        world.add(prioritised("high", HIGH, node_selector=there))
        world.settle()
        assert [world.pods[name].spec.node_name for name in world.deleted] == ["n1"]

    def test_soft_budgets_are_violated_if_nothing_else_helps(self) -> None:
        rules = PreemptionRules(budgets=BudgetMode.SOFT)
        world = full(
            2, 1, prioritised("kept", LOW, labels={"app": "db"}), prioritised("free", LOW), preemption=rules
        )
        world.protect(budget("db", 0, app="db"))
        world.add(prioritised("high", HIGH))
        world.settle(40)
        assert world.deleted == ["free"]
        world.add(prioritised("another", HIGH))
        world.settle(40)
        assert world.deleted == ["free", "kept"]


class TestFilters:
    """Victims are gone for all filters alike."""

    def test_host_ports(self) -> None:
        port = [ContainerPort(container_port=80, host_port=80)]
        low, high = prioritised("low", LOW), prioritised("high", HIGH)
        low, high = (
            replace(pod, spec=replace(pod.spec, containers=[replace(pod.spec.containers[0], ports=port)]))
            for pod in (low, high)
        )
        world = full(1, 4, low)
        world.add(high)
        world.settle(40)
        assert world.deleted == ["low"] and world.running == {"high"}

    def test_anti_affinity_of_the_victim(self) -> None:
        term = PodAffinityTerm(
            topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "high"})
        )
        affinity = Affinity(pod_anti_affinity=PodAffinity(required=[term]))
        world = full(1, 4, prioritised("low", LOW, affinity=affinity))
        world.add(prioritised("high", HIGH, labels={"app": "high"}))
        world.settle(40)
        assert world.deleted == ["low"] and world.running == {"high"}

    def test_topology_spread_needs_more_than_the_room(self) -> None:
        """As kube-scheduler's spec: one victim would free enough, but the skew needs two."""
        spread = TopologySpreadConstraint(
            topology_key="rack", label_selector=LabelSelector(match_labels={"app": "s"})
        )
        world = PreemptionWorld(0)
        for number in range(2):
            made = node(f"n{number}", 4)
            labels = {**(made.metadata.labels or {}), "rack": f"r{number}"}
            made = replace(made, metadata=replace(made.metadata, labels=labels))
            world.nodes.append(made)
            world.set_node(made)
        on_first = {"node_selector": {"rack": "r0"}, "labels": {"app": "s"}}
        on_second = {"node_selector": {"rack": "r1"}, "labels": {"app": "s"}}
        world.add(prioritised("high", HIGH, cpu="4", **on_first))  # type: ignore[arg-type]
        world.settle(1)
        for name in ("low-1", "low-2", "low-3"):
            world.add(prioritised(name, LOW, **on_second))  # type: ignore[arg-type]
            world.settle(1)
        world.add(
            prioritised("medium", MEDIUM, cpu="2", labels={"app": "s"}, topology_spread_constraints=[spread])
        )
        world.settle(40)
        assert len(world.deleted) == 2 and len(world.running) == 3


class TestTime:
    def test_nobody_ends_if_the_gang_starts_by_itself_before(self) -> None:
        world = PreemptionWorld(1, 1)
        world.add(prioritised("low", LOW, annotations={names.DURATION: "100s"}))
        world.settle(90)
        world.add(prioritised("high", HIGH))
        world.settle(5)
        assert world.deleted == []
        world.remove("low")
        world.settle(1)
        assert world.running == {"high"}

    def test_one_that_runs_past_its_limit_ends(self) -> None:
        world = PreemptionWorld(1, 1)
        world.add(prioritised("low", LOW, annotations={names.DURATION: "100s"}))
        world.settle(90)
        world.add(prioritised("high", HIGH))
        world.settle(200)
        assert world.deleted == ["low"] and world.running == {"high"}

    def test_pods_that_are_ending_are_counted_on_first(self) -> None:
        world = full(2, 1, prioritised("a", LOW), prioritised("b", LOW))
        world.delete("a")
        world.add(prioritised("high", HIGH))
        world.settle()
        assert world.deleted == [] and world.nominated("high") == world.pods["a"].spec.node_name
        assert world.reasons("high") == ["WaitsForEnding"]
        world.settle(30)
        assert world.running == {"b", "high"}

    def test_the_plan_of_others_is_kept(self) -> None:
        """Who was promised a start keeps it."""
        world = PreemptionWorld(1, 2, queue_policy="conservative")
        world.add(prioritised("low", LOW, cpu="2", annotations={names.DURATION: "1000s"}))
        world.settle(1)
        world.add(prioritised("next", LOW, cpu="2", annotations={names.DURATION: "1000s"}))
        world.settle(1)
        promised = world.pod_sets.by_key["default/pod:next"].no_later_than
        assert promised is not None
        world.add(prioritised("high", HIGH, cpu="1", annotations={names.DURATION: "100s"}))
        world.settle(40)
        assert world.deleted == ["low"] and world.running == {"high"}
        assert world.pod_sets.by_key["default/pod:next"].broken == []


class TestEarmark:
    def test_lower_and_equal_work_cannot_take_the_seats(self) -> None:
        world = full(2, 1, prioritised("a", LOW, grace=10), prioritised("b", LOW, grace=60))
        world.add(*gang("high", 2, HIGH))
        world.settle(1)
        assert sorted(world.deleted) == ["a", "b"]
        world.add(prioritised("thief", LOW), prioritised("equal", HIGH))
        world.settle(30)
        assert "a" not in world.pods and world.running == set()
        world.settle(40)
        assert world.running == {"high-0", "high-1"}

    def test_strictly_higher_work_takes_them_and_nobody_ends_twice(self) -> None:
        world = full(1, 1, prioritised("low", LOW, grace=80))
        world.add(prioritised("medium", MEDIUM))
        world.settle(1)
        assert world.nominated("medium") == "n0"
        world.add(prioritised("high", HIGH))
        world.settle(10)
        assert world.deleted == ["low"]
        assert world.nominated("high") == "n0" and world.nominated("medium") is None
        world.settle(80)
        assert world.running == {"high"}

    def test_a_victims_replacement_does_not_take_its_seat_back(self) -> None:
        job = kit.owner("low", parallelism=2)
        labels = {kit.GROUP: "low", kit.SIZE: "2"}
        world = PreemptionWorld(2, 1)
        world.set_owner(job)
        world.add(prioritised("low-a", LOW, owner=job, labels=labels, grace=5))
        world.add(prioritised("low-b", LOW, owner=job, labels=labels, grace=60))
        world.settle(5)
        assert world.running == {"low-a", "low-b"}
        world.add(*gang("high", 2, HIGH))
        world.settle(10)
        assert "low-a" not in world.pods
        world.add(prioritised("low-c", LOW, owner=job, labels=labels))
        world.settle(10)
        assert world.running == set()
        world.settle(60)
        assert world.running == {"high-0", "high-1"}

    def test_the_nomination_is_cleared_if_the_gang_starts_elsewhere(self) -> None:
        world = full(2, 1, prioritised("low", LOW, grace=600), prioritised("top", HIGH + 1))
        world.add(prioritised("high", HIGH))
        world.settle(1)
        there = world.pods["top"].spec.node_name
        assert world.nominated("high") == world.pods["low"].spec.node_name != there
        world.remove("top")
        world.settle(1)
        assert world.pods["high"].spec.node_name == there and world.preemption.next_due() is None
        world.add(prioritised("other", LOW))
        world.settle(601)
        assert world.running == {"high", "other"}

    def test_nothing_is_held_for_a_preemptor_that_goes_away(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.carries_out = False
        world.add(prioritised("high", HIGH))
        world.settle(1)
        assert [job for job in world.cluster.fit.jobs.values() if job.reserved]
        world.remove("high")
        assert not [job for job in world.cluster.fit.jobs.values() if job.reserved]

    def test_victims_are_spared_if_the_preemptor_goes_away(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.carries_out = False
        world.add(prioritised("high", HIGH))
        world.settle(1)
        world.remove("high")
        world.carries_out = True
        world.settle(1000)
        assert world.deleted == [] and world.running == {"low"}

    def test_an_order_without_an_effect_is_given_again(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.carries_out = False
        world.add(prioritised("high", HIGH))
        world.settle(1)
        assert world.running == {"low"}
        world.carries_out = True
        world.settle(60)
        assert world.deleted == ["low"] and world.running == {"high"}

    def test_a_node_that_goes_takes_the_earmark_with_it(self) -> None:
        world = full(2, 1, prioritised("a", LOW), prioritised("b", LOW))
        world.add(prioritised("high", HIGH))
        world.settle(1)
        gone = world.nominated("high")
        assert gone is not None
        world.nodes = [each for each in world.nodes if each.name != gone]
        world.remove_node(gone)
        for name in ("a", "b"):
            if world.pods[name].spec.node_name == gone:
                world.remove(name)
        world.settle(40)
        assert world.running == {"high"} and len(world.deleted) == 2

    def test_a_pod_that_never_ends_is_given_up(self) -> None:
        world = full(2, 1, prioritised("stuck", LOW), prioritised("other", MEDIUM))
        stuck = world.pods["stuck"]
        world.add(replace(stuck, metadata=replace(stuck.metadata, finalizers=["example.org/hold"])))
        world.add(prioritised("high", HIGH))
        world.settle(60)
        assert world.deleted == ["stuck"]
        world.settle(600)
        assert "high" in world.running and world.deleted == ["stuck", "other"]

    def test_a_nomination_holds_nothing_by_itself(self) -> None:
        """Our own pods do not count where they are nominated, whoever wrote that."""
        world = PreemptionWorld(1, 1)
        forged = prioritised("forged", LOW, node_selector={"no": "node"})
        world.add(replace(forged, status=replace(forged.status, nominated_node_name="n0")))
        world.add(prioritised("other", LOW))
        world.settle(1)
        assert world.running == {"other"} and world.nominated("forged") == "n0"

    def test_a_held_job_is_suspended_again(self) -> None:
        job = kit.owner(
            "low",
            labels={names.SEEN: names.SEEN_YES},
            parallelism=2,
            completions=2,
            template=PodTemplate(spec=PodSpec(scheduler_name="fluence")),
        )
        labels = {names.SEEN: names.SEEN_YES}
        world = PreemptionWorld(2, 1)
        world.set_owner(job)
        world.add(*(prioritised(f"low-{i}", LOW, owner=job, labels=labels, node=f"n{i}") for i in range(2)))
        world.settle(1)
        world.add(prioritised("high", HIGH))
        (order,) = world.step().preemptions
        assert order.owners == (job,) and len(order.pods) == 2


class TestOneOrder:
    """Who may preempt is decided by the order in which free capacity is given out."""

    def test_a_gang_that_its_user_put_back_ends_nobody_that_would_come_before_it_again(self) -> None:
        here = {"node_selector": {"kubernetes.io/hostname": "n0"}}
        world = PreemptionWorld(2, 1, queue_policy="fcfs")
        world.add(prioritised("kept", 0, labels={"app": "db"}))
        world.settle(1)
        world.protect(budget("db", 0, app="db"))
        world.recreated.add("victim")
        world.add(prioritised("victim", 60))
        world.settle(1)
        there = world.pods["victim"].spec.node_name
        here["node_selector"]["kubernetes.io/hostname"] = str(there)
        world.add(prioritised("put-back", 100, annotations={names.PRIORITY: "-50"}, **here))  # type: ignore[arg-type]
        world.settle(200)
        assert world.deleted == []

    def test_a_gang_that_its_user_put_back_may_end_those_behind_it(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.recreated.add("low")
        world.add(prioritised("put-back", 100, annotations={names.PRIORITY: "-50"}))
        world.settle(200)
        assert world.deleted == ["low"] and world.running == {"put-back"}

    def test_what_a_user_writes_on_a_running_pod_makes_it_no_victim(self) -> None:
        """It would come back without that."""
        world = full(1, 1, prioritised("low", 60, annotations={names.PRIORITY: "-40"}))
        world.add(prioritised("put-back", 100, annotations={names.PRIORITY: "-50"}))
        world.settle(100)
        assert world.deleted == []

    def test_a_priority_of_the_site_decides_both(self) -> None:
        world = full(1, 1, prioritised("low", LOW), priority=lambda job, now: -job.priority)
        world.recreated.add("low")
        world.add(prioritised("high", HIGH))
        world.settle(200)
        assert world.deleted == []

    def test_in_strict_order_nobody_ends_for_one_behind_others_that_wait(self) -> None:
        world = full(2, 1, prioritised("low", LOW), prioritised("other", LOW), queue_policy="fcfs")
        world.add(prioritised("first", HIGH, cpu="2"))  # waits, and cannot be helped
        world.nodes.append(node("n2", 2))
        world.set_node(world.nodes[-1])
        world.add(prioritised("on-n2", HIGH + 1, cpu="2"))
        world.settle(1)
        world.add(prioritised("second", MEDIUM))
        world.settle(100)
        assert world.deleted == []

    def test_a_policy_that_does_not_start_the_preemptor_ends_less_and_less(self) -> None:
        def only_low(jobs: SchedulingPass) -> None:
            for record in jobs:
                if record.job.priority < MEDIUM:
                    jobs.start(record)

        world = full(1, 1, prioritised("low", LOW, grace=0), queue_policy=QueuePolicy("odd", only_low))
        world.recreated.add("low")
        world.add(prioritised("high", HIGH))
        world.settle(600)
        assert 2 <= len(world.deleted) <= 8

    def test_an_earmark_does_not_go_to_one_that_is_behind_in_the_order(self) -> None:
        world = full(1, 1, prioritised("low", LOW, grace=80))
        world.add(prioritised("medium", MEDIUM))
        world.settle(1)
        world.add(prioritised("high", HIGH, annotations={names.PRIORITY: "-1000"}))
        world.settle(10)
        assert world.nominated("medium") == "n0" and world.nominated("high") is None

    def test_a_group_does_not_raise_its_gang_in_the_order(self) -> None:
        """On 1.36 any user may name any class in a PodGroup: quota by PriorityClass counts pods."""
        world = PreemptionWorld(1, 1, native=True, queue_policy="fcfs")
        world.set_group(kit.group("raised", 1, priority=HIGH))
        world.add(prioritised("first", MEDIUM))
        world.settle(1)
        world.add(prioritised("raised-0", LOW, field="raised"), prioritised("next", MEDIUM))
        world.settle(1)
        world.remove("first")
        world.settle(1)
        assert world.running == {"next"}


def of_queue(name: str, queue: str, priority: int, **more: Any) -> Pod:
    return prioritised(name, priority, annotations={names.QUEUE: queue}, **more)


class TestQuota:
    """An earmark counts in the quota of its queue: nobody is ended for work that cannot start then."""

    def world(self, **queues: dict[str, Any]) -> PreemptionWorld:
        world = PreemptionWorld(2, 2)
        world.use(default={}, **(queues or {"a": {"limit": {"cpu": 2}}}))
        world.add(prioritised("low", LOW, cpu="2", node_selector={"kubernetes.io/hostname": "n0"}))
        world.settle(1)
        return world

    def preemptor(self, name: str = "high", priority: int = HIGH) -> Pod:
        return of_queue(name, "a", priority, cpu="2", node_selector={"kubernetes.io/hostname": "n0"})

    def test_lower_work_does_not_use_the_quota_of_an_earmark(self) -> None:
        world = self.world()
        world.add(self.preemptor())
        world.settle(1)
        assert world.deleted == ["low"]
        world.add(of_queue("thief", "a", 0))
        world.settle(60)
        assert world.running == {"high"}

    def test_the_quota_is_free_again_if_the_preemptor_goes_away(self) -> None:
        world = self.world()
        world.add(self.preemptor())
        world.settle(1)
        world.add(of_queue("other", "a", 0))
        world.settle(1)
        world.remove("high")
        world.settle(60)
        assert world.running == {"other"}
        assert world.scheduler.state.queue.quotas.holds == {}

    def test_it_is_free_for_others_when_the_preemptor_has_ended(self) -> None:
        world = self.world()
        world.add(self.preemptor())
        world.settle(60)
        world.add(of_queue("other", "a", 0))
        world.settle(1)
        assert world.running == {"high"}
        world.remove("high")
        world.settle(1)
        assert world.running == {"other"}

    def test_work_of_higher_priority_takes_it_with_the_seats(self) -> None:
        world = self.world()
        world.add(self.preemptor("medium", MEDIUM))
        world.settle(1)
        assert world.deleted == ["low"]
        world.add(self.preemptor("high", HIGH))
        world.settle(60)
        assert world.running == {"high"} and world.deleted == ["low"]

    def test_work_of_higher_priority_takes_it_without_the_seats(self) -> None:
        world = self.world()
        world.add(self.preemptor("medium", MEDIUM))
        world.settle(1)
        world.add(of_queue("high", "a", HIGH, cpu="2", node_selector={"kubernetes.io/hostname": "n1"}))
        world.settle(60)
        assert world.running == {"high"} and world.deleted == ["low"]

    def test_a_lower_limit_spares_those_that_are_not_ending_yet(self) -> None:
        world = self.world()
        world.carries_out = False
        world.add(self.preemptor())
        world.settle(1)
        world.use(a={"limit": {"cpu": 1}})
        world.carries_out = True
        world.settle(60)
        assert world.deleted == [] and world.running == {"low"}

    def test_queues_that_come_later_count_it_too(self) -> None:
        world = PreemptionWorld(2, 2)
        world.add(prioritised("low", LOW, cpu="2", node_selector={"kubernetes.io/hostname": "n0"}))
        world.settle(1)
        world.add(self.preemptor())
        world.settle(1)
        world.use(default={}, a={"limit": {"cpu": 2}})
        world.add(of_queue("thief", "a", 0))
        world.settle(60)
        assert world.deleted == ["low"] and world.running == {"high"}

    def test_a_restart_finds_it_again(self) -> None:
        world = self.world()
        world.add(self.preemptor())
        world.settle(1)
        world.restart()
        world.add(of_queue("thief", "a", 0))
        world.settle(60)
        assert world.deleted == ["low"] and world.running == {"high"}


class TestRestart:
    @pytest.mark.parametrize("seconds", [0, 1, 20])
    def test_the_earmark_is_found_again(self, seconds: float) -> None:
        world = full(2, 1, prioritised("a", LOW, grace=10), prioritised("b", LOW, grace=60))
        world.add(*gang("high", 2, HIGH))
        world.settle(seconds)
        world.restart()
        world.add(prioritised("thief", LOW))
        world.settle(30)
        assert sorted(world.deleted) == ["a", "b"] and world.running == set()
        world.settle(60)
        assert world.running == {"high-0", "high-1"} and sorted(world.deleted) == ["a", "b"]

    def test_a_stale_nomination_is_cleared(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.carries_out = False
        world.add(prioritised("high", HIGH))
        decisions = world.step()
        world.carries_out = True
        (nomination,) = decisions.nominations
        pod = world.pods["high"]
        world.add(replace(pod, status=replace(pod.status, nominated_node_name=nomination.node)))
        assert world.nominated("high") == "n0"
        low = world.pods["low"]
        world.pods["low"] = replace(low, spec=replace(low.spec, priority=HIGH))
        world.restart()
        world.settle(1)
        assert world.deleted == [] and world.nominated("high") is None


class TestExplain:
    """What `fluence explain` is told: a scheduler that sees the same objects once."""

    def blocks(self, world: PreemptionWorld, name: str) -> list[str]:
        objects: list[Object] = [*world.nodes, *world.budgets, *world.pods.values()]
        inquiry = Inquiry(Scheduler(SchedulerConfig(**world.config_of_scheduler)), objects, world.now)
        gang = inquiry.groups.gang(f"default/pod:{name}")
        assert gang is not None
        return [reason.code.value for reason in inquiry.about(gang).blocks]

    def test_what_is_done(self) -> None:
        world = full(1, 1, prioritised("low", LOW))
        world.add(prioritised("high", HIGH))
        assert self.blocks(world, "high")[0] == "Preempting"
        world.settle(1)
        assert self.blocks(world, "high")[0] == "WaitsForEnding"

    def test_why_nothing_is_done(self) -> None:
        world = full(1, 1, prioritised("low", LOW, labels={"app": "db"}))
        world.add(prioritised("never", HIGH, preemption_policy="Never"))
        assert self.blocks(world, "never")[0] == "PreemptionNever"
        world.protect(budget("db", 0, app="db"))
        world.add(prioritised("high", HIGH))
        assert self.blocks(world, "high")[0] == "VictimsProtected"

    def test_where_nobody_could_be_preempted_nothing_is_said_of_it(self) -> None:
        world = full(1, 1, prioritised("high", HIGH))
        world.add(prioritised("low", LOW))
        assert not any("reempt" in code for code in self.blocks(world, "low"))

    def test_who_starts_soon_by_itself(self) -> None:
        world = PreemptionWorld(1, 1)
        world.add(prioritised("low", LOW, annotations={names.DURATION: "100s"}))
        world.settle(90)
        world.add(prioritised("high", HIGH))
        assert self.blocks(world, "high")[0] == "PreemptionNotNeeded"


class TestThePlanIsAskedFirst:
    def test_nobody_ends_for_a_gang_that_the_plan_can_start_by_moving_others(self) -> None:
        """A node is free and planned for a gang that fits elsewhere by the time that it was promised."""
        world = PreemptionWorld(3, 1, queue_policy="conservative")
        for name, limit in (("short", 10), ("one", 100), ("two", 100)):
            world.add(prioritised(name, LOW, annotations={names.DURATION: f"{limit}s"}))
            world.settle()
        labels = {kit.GROUP: "pair", kit.SIZE: "2"}
        notes = {names.DURATION: "50s"}
        world.add(*(prioritised(f"pair-{i}", LOW, labels=labels, annotations=notes) for i in range(2)))
        world.settle(1)
        world.remove("short")
        world.settle(1)
        world.add(prioritised("high", HIGH, annotations={names.DURATION: "200s"}))
        world.settle()
        assert world.deleted == [] and world.running == {"one", "two", "high"}

    def test_ends_that_were_seen_are_not_taken_back(self) -> None:
        """The plan counts on them, though the preemptor went in the same moment."""
        world = full(1, 1, prioritised("low", LOW, annotations={names.DURATION: "1000s"}))
        world.add(prioritised("high", HIGH))
        while not world.deleted:
            world.step()
        pod_set = world.scheduler.state.pod_sets.by_pod[world.pods["low"].metadata.uid]
        (held,) = pod_set.running.values()
        until = held.end
        assert until == world.now + 30_000
        world.remove("high")
        world.settle()
        assert held.end == until
