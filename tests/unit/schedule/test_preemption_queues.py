"""What queues say of preemption: within a queue, between queues, for quota alone, and drain."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.owner import PodTemplate
from fluence.model.pod import Pod, PodSpec
from fluence.model.queue_documents import QueueObject
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Changed, Object
from fluence.schedule.inquiry import Inquiry
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from fluence.units import rfc3339
from tests.unit.schedule import kit
from tests.unit.schedule.preempting import PreemptionWorld, budget, gang, prioritised
from tests.unit.schedule.test_promised_starts import node

LOW, MEDIUM, HIGH = 1, 100, 1000


def of(name: str, queue: str, priority: int = LOW, **more: Any) -> Pod:
    return prioritised(name, priority, annotations={names.QUEUE: queue}, **more)


def world_of(nodes: int, cpu: int, *pods: Pod, **queues: dict[str, Any]) -> PreemptionWorld:
    world = PreemptionWorld(nodes, cpu)
    world.use(default={}, **queues)
    for pod in pods:
        world.add(pod)
        world.settle(1)
    assert world.running == {pod.metadata.name for pod in pods}
    return world


class TestWithin:
    def test_a_queue_can_protect_its_own_work(self) -> None:
        never = {"preemption": {"within": "never"}}
        world = world_of(1, 1, of("low", "a"), a=never, b={})
        world.add(of("high", "a", HIGH))
        world.settle(60)
        assert world.deleted == []
        world.add(of("higher", "b", HIGH))  # plain Kubernetes semantics
        world.settle(60)
        assert world.deleted == ["low"] and world.running == {"higher"}

    def test_it_is_that_of_the_queue_above_if_it_says_nothing(self) -> None:
        never = {"preemption": {"within": "never"}}
        world = world_of(1, 1, of("low", "a"), top=never, a={"parent": "top"})
        world.add(of("high", "a", HIGH))
        world.settle(60)
        assert world.deleted == []

    def test_newer_work_of_equal_priority_ends_if_the_queue_says_so(self) -> None:
        newer = {"preemption": {"within": "lower-or-newer"}}
        world = world_of(1, 1, a=newer)
        world.add(of("newer", "a"))
        world.settle(1)
        world.recreated.add("newer")
        world.add(of("older", "a", age=3600))
        world.settle(200)
        assert world.deleted == ["newer"] and world.running == {"older"}

    def test_older_work_does_not_end_for_newer(self) -> None:
        newer = {"preemption": {"within": "lower-or-newer"}}
        world = world_of(1, 1, of("older", "a", age=3600), a=newer)
        world.add(of("newer", "a"))
        world.settle(100)
        assert world.deleted == []

    def test_work_has_its_least_time(self) -> None:
        world = world_of(1, 1, of("low", "a"), a={"preemption": {"minRuntime": "100s"}})
        world.add(prioritised("high", HIGH))
        world.settle(90)
        assert world.deleted == []
        world.settle(60)
        assert world.deleted == ["low"] and world.running == {"high"}

    def test_it_doubles_each_time_that_work_is_ended(self) -> None:
        owner = kit.owner("job", parallelism=1)
        world = PreemptionWorld(1, 1)
        world.use(default={}, a={"preemption": {"minRuntime": "100s"}})
        world.set_owner(owner)
        world.add(of("low", "a", owner=owner, grace=0))
        world.recreated.add("low")
        waits = []
        for number in range(3):
            world.settle(1)
            assert any(name.startswith("low") for name in world.running)
            start = world.now
            world.add(prioritised(f"high-{number}", HIGH, grace=0))
            while len(world.deleted) <= number and world.now < start + 10_000_000:
                world.settle(10)
            waits.append((world.now - start) // 1000)
            world.settle(5)
            world.remove(f"high-{number}")
        assert [100 <= waits[0] <= 110, 200 <= waits[1] <= 210, 400 <= waits[2] <= 410] == [True] * 3, waits

    def test_a_restart_does_not_forget_how_often_work_was_ended(self) -> None:
        owner = kit.owner("job", parallelism=1)
        world = PreemptionWorld(1, 1)
        world.use(default={}, a={"preemption": {"minRuntime": "100s"}})
        world.set_owner(owner)
        world.add(of("low", "a", owner=owner, grace=0))
        world.recreated.add("low")
        world.settle(101)
        world.add(prioritised("high", HIGH, grace=0))
        world.settle(20)
        assert world.deleted == ["low"]
        (written,) = world.queues["a"].status["preempted"].items()
        assert written[1] == 1 and "job" not in written[0], "names of work are not for everybody"
        world.restart()
        world.set_owner(owner)
        world.remove("high")
        world.settle(101)
        world.add(prioritised("other", HIGH, grace=0))
        world.settle(90)
        assert world.deleted == ["low"]
        world.settle(20)
        assert len(world.deleted) == 2

    @pytest.mark.parametrize("forged", [{"x": -1}, {"x": 10**9}, {"x": True}, {"x": "1"}, [], "x"])
    def test_counts_that_cannot_be_are_not_believed(self, forged: Any) -> None:
        assert QueueObject(status={"preempted": forged}).preempted() == {}

    def test_it_does_not_double_for_each_pod_of_many(self) -> None:
        owner = kit.owner("job", parallelism=4)
        world = PreemptionWorld(4, 1)
        world.use(default={}, a={"preemption": {"minRuntime": "100s"}})
        world.set_owner(owner)
        for i in range(4):
            world.add(of(f"low{i}", "a", owner=owner, grace=0))
            world.recreated.add(f"low{i}")
        world.settle(101)
        world.add(prioritised("high", HIGH, grace=0))
        world.settle(5)
        world.remove("high")
        world.settle(105)
        world.add(prioritised("next", HIGH, grace=0))
        world.settle(5)
        assert len(world.deleted) == 2


class TestQuotaAlone:
    """A job that waits for quota, not for nodes."""

    def full_queue(self, **preemption: str) -> PreemptionWorld:
        queue = {"limit": {"cpu": 2}, "preemption": preemption}
        return world_of(4, 1, of("low-0", "a"), of("low-1", "a", MEDIUM), a=queue, b={"limit": {"cpu": 4}})

    def test_nobody_ends_for_it_if_the_queue_says_nothing(self) -> None:
        world = self.full_queue()
        world.add(of("high", "a", HIGH))
        world.settle(100)
        assert world.deleted == []

    def test_lower_work_of_the_queue_ends_if_the_queue_says_so(self) -> None:
        world = self.full_queue(within="lower")
        world.add(of("other", "b"))
        world.settle(1)
        world.add(of("high", "a", HIGH))
        world.settle(1)
        assert world.deleted == ["low-0"] and world.reasons("high") == ["Preempting"]
        world.settle(10)
        assert world.deleted == ["low-0"] and "high" not in world.running
        world.settle(60)
        assert world.running == {"low-1", "other", "high"} and world.deleted == ["low-0"]

    def test_nobody_ends_if_that_would_not_free_enough(self) -> None:
        world = self.full_queue(within="lower")
        world.nodes.append(node("n4", 2))
        world.set_node(world.nodes[-1])
        world.add(of("wide", "a", MEDIUM, cpu="2"))  # the quota of low-1 would be needed, too
        world.settle(200)
        assert world.deleted == []

    def test_quota_and_nodes_together(self) -> None:
        """Seats of another queue, and quota of its own: both are freed."""
        rules = {"within": "lower"}
        world = world_of(
            2,
            2,
            of("own", "a", cpu="1"),
            of("other", "b", cpu="2"),
            a={"limit": {"cpu": 2}, "preemption": rules},
            b={},
        )
        world.add(of("high", "a", HIGH, cpu="2"))
        world.settle(100)
        assert world.deleted == ["own"] and world.running == {"other", "high"}

    def test_equal_work_waits(self) -> None:
        world = self.full_queue(within="lower")
        world.add(of("equal", "a", LOW))
        world.settle(100)
        assert world.deleted == []


class TestReclaim:
    def test_a_guarantee_is_reclaimed_from_work_beyond_another(self) -> None:
        a = {"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "any"}}
        world = world_of(4, 1, *(of(f"b-{i}", "b") for i in range(4)), a=a, b={})
        world.add(*(of(f"a-{i}", "a") for i in range(3)))
        world.settle(100)
        assert len(world.deleted) == 2
        assert {"a-0", "a-1"} <= world.running and "a-2" not in world.running

    def test_no_queue_is_left_below_its_own(self) -> None:
        a = {"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "any"}}
        world = world_of(4, 1, *(of(f"b-{i}", "b") for i in range(4)), a=a, b={"guaranteed": {"cpu": 3}})
        world.add(*(of(f"a-{i}", "a") for i in range(2)))
        world.settle(100)
        assert len(world.deleted) == 1 and "a-0" in world.running

    def test_no_queue_is_left_below_its_own_by_a_gang(self) -> None:
        """Counted together over all victims of one search."""
        a = {"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "any"}}
        world = world_of(4, 1, *(of(f"b-{i}", "b") for i in range(4)), a=a, b={"guaranteed": {"cpu": 3}})
        world.add(*gang("a", 2, LOW, annotations={names.QUEUE: "a"}))
        world.settle(100)
        assert world.deleted == []

    def test_others_end_where_one_queue_is_at_its_guarantee(self) -> None:
        a = {"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "any"}}
        world = world_of(
            4,
            1,
            of("c-0", "c"),
            *(of(f"b-{i}", "b") for i in range(3)),
            a=a,
            b={"guaranteed": {"cpu": 2}},
            c={},
        )
        world.add(*gang("a", 2, LOW, annotations={names.QUEUE: "a"}))
        world.settle(100)
        assert len(world.deleted) == 2 and "c-0" in world.deleted

    def test_only_lower_work_ends(self) -> None:
        a = {"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "lower"}}
        world = world_of(2, 1, of("equal", "b", MEDIUM), of("low", "b"), a=a, b={})
        world.add(*(of(f"a-{i}", "a", MEDIUM) for i in range(2)))
        world.settle(100)
        assert world.deleted == ["low"]

    def test_beyond_its_guarantee_a_queue_that_reclaims_ends_nobody_elsewhere(self) -> None:
        a = {"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "lower"}}
        world = world_of(2, 1, *(of(f"b-{i}", "b") for i in range(2)), a=a, b={})
        world.add(*(of(f"a-{i}", "a", MEDIUM) for i in range(2)))
        world.settle(100)
        assert len(world.deleted) == 1

    def test_a_queue_can_leave_others_alone(self) -> None:
        world = world_of(1, 1, of("low", "b"), a={"preemption": {"reclaim": "never"}}, b={})
        world.add(of("high", "a", HIGH))
        world.settle(100)
        assert world.deleted == []

    def test_what_was_reclaimed_is_not_ended_by_priority_again(self) -> None:
        a = {"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}}
        world = world_of(1, 1, of("b", "b", HIGH), a=a, b={})
        world.recreated.add("b")
        world.add(of("a", "a", LOW))
        (order,) = world.step().preemptions
        assert order.queue == "a"
        world.settle(600)
        assert world.deleted == ["b"] and world.running == {"a"}

    def test_siblings_compare_below_the_queue_that_both_are_in(self) -> None:
        """Science as a whole is within its guarantee; of its own, chem has more than its part."""
        reclaim = {"preemption": {"reclaim": "any"}}
        world = world_of(
            4,
            1,
            *(of(f"chem-{i}", "chem") for i in range(4)),
            science={"guaranteed": {"cpu": 2}},
            chem={"parent": "science", "guaranteed": {"cpu": 1}},
            physics={"parent": "science", "guaranteed": {"cpu": 1}, **reclaim},
        )
        world.add(of("physics-0", "physics"), of("physics-1", "physics"))
        world.settle(100)
        assert len(world.deleted) == 1 and "physics-0" in world.running

    def test_a_pool_of_an_inner_queue_is_for_all_below_it(self) -> None:
        world = world_of(
            4,
            1,
            *(of(f"b-{i}", "b") for i in range(4)),
            science={"guaranteed": {"cpu": 2}, "preemption": {"reclaim": "any"}},
            chem={"parent": "science"},
            physics={"parent": "science"},
            b={},
        )
        world.add(of("chem-0", "chem"), of("physics-0", "physics"), of("physics-1", "physics"))
        world.settle(100)
        assert len(world.deleted) == 2

    def test_work_that_is_ending_counts_as_gone(self) -> None:
        """A queue is not left below its guarantee by two that reclaim at once."""
        reclaim = {"guaranteed": {"cpu": 1}, "preemption": {"reclaim": "any"}}
        queues: dict[str, dict[str, Any]] = {"a": reclaim, "c": reclaim, "b": {"guaranteed": {"cpu": 1}}}
        world = world_of(2, 1, of("b-0", "b", grace=100), of("b-1", "b", grace=100), **queues)
        world.add(of("a-0", "a"))
        world.settle(1)
        world.add(of("c-0", "c"))
        world.settle(20)
        assert len(world.deleted) == 1


class TestDrain:
    def test_work_with_a_controller_ends(self) -> None:
        owner = kit.owner("job", parallelism=1)
        world = PreemptionWorld(3, 1)
        world.use(default={}, a={}, b={})
        world.set_owner(owner)
        world.add(of("made", "a", owner=owner), of("bare", "a"), of("other", "b", owner=owner))
        world.settle(5)
        assert len(world.running) == 3
        world.use(a={"stop": "drain"})
        assert world.deleted == ["made"]
        world.settle(100)
        assert world.running == {"bare", "other"} and world.deleted == ["made"]

    def test_that_of_all_queues_below_ends_too(self) -> None:
        owner = kit.owner("job", parallelism=1)
        world = PreemptionWorld(1, 1)
        world.use(default={}, top={}, a={"parent": "top"})
        world.set_owner(owner)
        world.add(of("made", "a", owner=owner))
        world.settle(5)
        world.use(top={"stop": "drain"})
        world.settle(5)
        assert world.deleted == ["made"]

    def test_a_held_job_is_suspended_again(self) -> None:
        labels = {names.SEEN: names.SEEN_YES}
        template = PodTemplate(spec=PodSpec(scheduler_name="fluence"))
        job = kit.owner("held", labels=labels, parallelism=1, completions=1, template=template)
        world = PreemptionWorld(1, 1)
        world.use(default={}, a={})
        world.set_owner(job)
        world.add(of("held-0", "a", owner=job, labels=labels, node="n0"))
        world.settle(1)
        drained = QueueObject(metadata=world.queues["a"].metadata, spec={"stop": "drain"})
        world.handle(Changed(None, drained))
        world.now += 2000
        decisions = world.step().preemptions
        assert [(order.owners, order.queue) for order in decisions] == [((job,), "a")]

    @pytest.mark.parametrize("allowed", [0, 1])
    def test_budgets_are_kept(self, allowed: int) -> None:
        owner = kit.owner("job", parallelism=2)
        world = PreemptionWorld(2, 1)
        world.use(default={}, a={})
        world.set_owner(owner)
        for i in range(2):
            world.add(of(f"db-{i}", "a", owner=owner, labels={"app": "db"}))
        world.settle(5)
        world.protect(budget("db", allowed, app="db"))
        world.use(a={"stop": "drain"})
        world.settle(1)
        assert len(world.deleted) == allowed

    def test_nothing_ends_any_more_when_it_is_over(self) -> None:
        owner = kit.owner("job", parallelism=1)
        world = PreemptionWorld(1, 1)
        world.use(default={}, a={})
        world.set_owner(owner)
        world.add(of("made", "a", owner=owner))
        world.settle(5)
        world.carries_out = False
        world.use(a={"stop": "drain"})
        world.use(a={})
        world.carries_out = True
        world.settle(1000)
        assert world.deleted == [] and world.running == {"made"}


class TestPatience:
    """A queue with patience has others ended as late as its start allows, or not at all."""

    def world(self, *pods: Pod, nodes: int = 2, patience: str | None = "100s") -> PreemptionWorld:
        preemption = {} if patience is None else {"patience": patience}
        return world_of(nodes, 1, *pods, a={"preemption": preemption})

    def limited(self, name: str, seconds: int, **more: Any) -> Pod:
        return prioritised(name, LOW, annotations={names.DURATION: f"{seconds}s"}, **more)

    def ends_at(self, world: PreemptionWorld, name: str) -> str | None:
        return world.pods[name].annotations.get(names.ENDS_AT)

    def test_nobody_ends_if_the_gang_starts_by_itself_within_it(self) -> None:
        world = self.world(self.limited("low", 100), nodes=1)
        world.settle(20)
        world.add(of("high", "a", HIGH))
        world.settle(60)
        assert world.deleted == []
        world.remove("low")
        world.settle(1)
        assert world.running == {"high"}

    def test_explain_says_the_start_that_it_would_have(self) -> None:
        world = self.world(self.limited("low", 100), nodes=1)
        world.settle(20)
        world.add(of("high", "a", HIGH))
        objects: list[Object] = [*world.nodes, *world.queues.values(), *world.pods.values()]
        inquiry = Inquiry(Scheduler(SchedulerConfig()), objects, world.now)
        gang = inquiry.groups.gang("default/pod:high")
        assert gang is not None
        told = inquiry.about(gang).blocks[0]
        started = world.now - 21_000
        values = {
            "at": started + 100_000,
            "earlier": world.now + 30_000,
            "victims": 1,
            "end": started + 100_000,
        }
        assert told == Reason.of(Code.PREEMPTION_NOT_NEEDED, **values)

    def test_without_patience_it_ends_at_once(self) -> None:
        world = self.world(self.limited("low", 100), nodes=1, patience=None)
        world.settle(20)
        world.add(of("high", "a", HIGH))
        world.settle(1)
        assert world.deleted == ["low"]

    def test_a_victim_ends_when_the_last_of_those_that_end_anyway_is_gone(self) -> None:
        world = self.world(prioritised("ending", LOW, grace=100), prioritised("low", LOW, grace=10))
        world.delete("ending")
        world.add(*gang("high", 2, HIGH, annotations={names.QUEUE: "a"}))
        world.settle(80)
        assert world.deleted == []
        assert self.ends_at(world, "low") == rfc3339((world.now + 10_000) * 1000)
        world.settle(12)
        assert world.deleted == ["low"]
        world.settle(12)
        assert world.running == {"high-0", "high-1"}

    def lasting(self) -> PreemptionWorld:
        """One ends by itself in 50 s, the other has no limit."""
        world = self.world(self.limited("short", 1000), prioritised("long", LOW, grace=10))
        world.settle(948)
        world.add(*gang("high", 2, HIGH, annotations={names.QUEUE: "a"}))
        world.settle(1)
        return world

    def test_those_that_end_by_themselves_before_the_start_are_spared(self) -> None:
        world = self.lasting()
        assert world.deleted == [] and self.ends_at(world, "long") is not None
        assert self.ends_at(world, "short") is None
        world.settle(45)
        assert world.deleted == ["long"] and "short" in world.running
        world.remove("short")
        world.settle(20)
        assert world.running == {"high-0", "high-1"} and world.deleted == ["long"]

    def test_if_one_does_not_end_when_it_should_it_is_ended(self) -> None:
        world = self.lasting()
        world.settle(400)
        assert sorted(world.deleted) == ["long", "short"] and world.running == {"high-0", "high-1"}

    def test_a_victim_that_ends_before_its_time_is_not_ended(self) -> None:
        world = self.lasting()
        world.remove("long")
        world.remove("short")
        world.settle(20)
        assert world.deleted == [] and world.running == {"high-0", "high-1"}

    def test_nobody_ends_if_the_preemptor_goes_away_and_victims_are_told(self) -> None:
        world = self.lasting()
        world.remove("high-0")
        world.remove("high-1")
        world.settle(100)
        assert world.deleted == [] and self.ends_at(world, "long") is None

    def test_a_restart_plans_the_same_end(self) -> None:
        world = self.lasting()
        planned = self.ends_at(world, "long")
        world.restart()
        world.add(prioritised("thief", LOW))
        world.settle(20)
        assert world.deleted == [] and self.ends_at(world, "long") == planned
        world.settle(25)
        assert world.deleted == ["long"]
        world.remove("short")
        world.settle(20)
        assert world.running == {"high-0", "high-1"}

    def test_an_end_that_nobody_plans_is_withdrawn(self) -> None:
        """By an earlier process, or made up by a user."""
        world = self.world(prioritised("low", LOW))
        pod = world.pods["low"]
        notes = {**pod.annotations, names.ENDS_AT: rfc3339(world.now * 1000)}
        world.add(replace(pod, metadata=replace(pod.metadata, annotations=notes)))
        world.settle(5)
        assert self.ends_at(world, "low") is None and world.deleted == []
