"""Who is warned and who is ended at a limit, who is named to those that wait, and what promises rest on."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.owner import Deployment, Job, Owner
from fluence.model.pod import Pod, SchedulingGate
from fluence.model.reason import Code
from fluence.queue.rules import QueueRules
from fluence.schedule.overruns import EndOverrun, LimitMode, WarnOverrun, warned_note
from fluence.schedule.scheduler import SchedulerConfig
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_promised_starts import NOW, SECOND, node

END = {"enforce": {"": LimitMode.END}, "rules": {"": QueueRules(enforced=True, grace=60 * SECOND)}}
WARN = {"enforce": {"": LimitMode.WARN}}


class World(Driver):
    """A driver that carries out binds and keeps what was decided about overruns."""

    def __init__(self, nodes: int = 1, cpu: int = 4, **config: Any) -> None:
        super().__init__(**config)
        self.pods: dict[str, Pod] = {}
        for number in range(nodes):
            self.set_node(node(f"n{number}", cpu))

    def add(self, *pods: Pod) -> None:
        for pod in pods:
            self.pods[pod.metadata.name] = pod
            self.set_pod(pod)

    def change(self, name: str, **meta: Any) -> None:
        pod = self.pods[name]
        self.add(replace(pod, metadata=replace(pod.metadata, **meta)))

    def finish(self, name: str) -> None:
        pod = self.pods[name]
        self.add(replace(pod, status=replace(pod.status, phase="Succeeded")))

    def at(self, seconds: float) -> list[Any]:
        """All that is decided about overruns at this time."""
        found: list[Any] = []
        for _ in range(20):
            decisions = self.cycle(NOW + round(seconds * SECOND))
            found += decisions.overruns
            for bind in (each for binds in decisions.binds for each in binds):
                self.add(bind.carried_out(self.pods[bind.pod.metadata.name]))
            if not decisions.binds and not self.has_more:
                break
        return found

    def told(self, name: str) -> list[Any]:  # type: ignore[override]
        """The reasons that a pod has been given."""
        return [
            reason
            for waiting in self.reports.said.values()
            if any(pod.metadata.name == name for pod in waiting.pods)
            for reason in waiting.reasons
        ]


def limited(name: str, seconds: int = 100, queue: str = "", **more: Any) -> Pod:
    notes = {names.DURATION: f"{seconds}s", **({names.QUEUE: queue} if queue else {})}
    return kit.pod(name, annotations={**notes, **more.pop("annotations", {})}, **more)


def of(found: list[Any]) -> list[str]:
    return [type(each).__name__ for each in found]


class TestWarnThenEnd:
    def test_nothing_is_done_by_default(self) -> None:
        world = World()
        world.add(limited("slow"))
        assert [world.at(second) for second in (0, 100, 161, 1000, 100_000)] == [[]] * 5

    def test_it_is_warned_once_and_ended_after_the_grace(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        world.add(limited("slow"))
        assert world.at(0) == [] and world.at(99.9) == []
        assert world.next_due() == NOW + 100 * SECOND
        (warned,) = world.at(100)
        assert isinstance(warned, WarnOverrun) and [pod.metadata.name for pod in warned.pods] == ["slow"]
        since = NOW + 100 * SECOND
        assert (warned.limit, warned.since, warned.ends) == (100 * SECOND, since, since + 60 * SECOND)
        assert world.at(130) == [] and world.at(159.9) == []
        assert world.next_due() == NOW + 160 * SECOND
        (end,) = world.at(160)
        assert isinstance(end, EndOverrun) and end.owner is None and end.pods == (world.pods["slow"],)

    def test_a_pod_that_kube_scheduler_bound_where_we_said_is_ended_too(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        gates = [SchedulingGate(name=names.GATE_FLUXQUEUE)]
        seen = {names.SEEN: names.SEEN_YES}
        theirs = names.KUBE_SCHEDULER
        world.add(limited("slow", scheduler=theirs, labels=seen, scheduling_gates=gates))
        world.at(0)
        pod = world.pods["slow"]
        assert pod.spec.node_name  # the world binds what it is told to, whoever does it in a cluster
        world.add(replace(pod, spec=replace(pod.spec, scheduling_gates=None)))
        assert of(world.at(100)) == ["WarnOverrun"]
        assert of(world.at(160)) == ["EndOverrun"]

    def test_a_queue_that_only_warns_ends_nothing(self) -> None:
        world = World(**WARN)  # type: ignore[arg-type]
        world.add(limited("slow"))
        world.at(0)
        (warned,) = world.at(100)
        assert isinstance(warned, WarnOverrun) and warned.ends is None
        assert [world.at(second) for second in (160, 1000)] == [[], []]

    def test_a_queue_that_is_not_named_is_left_alone(self) -> None:
        world = World(**{**END, "enforce": {"batch": LimitMode.END}})  # type: ignore[arg-type]
        world.add(limited("free", queue="debug"), limited("none"), limited("strict", queue="batch"))
        world.at(0)
        found = [*world.at(100), *world.at(160)]
        assert of(found) == ["WarnOverrun", "EndOverrun"]
        assert {pod.metadata.name for each in found for pod in each.pods} == {"strict"}

    def test_work_without_a_limit_is_left_alone(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        world.add(kit.pod("service"))
        world.at(0)
        assert world.at(10_000_000) == []

    def test_what_kubernetes_ends_is_left_to_it(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        world.add(kit.pod("bounded", active_deadline_seconds=100))
        world.at(0)
        assert world.at(100) == [] and world.at(1000) == []

    def test_it_is_tried_again_after_pauses_that_double_until_it_is_going(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        world.add(limited("slow"))
        world.at(0), world.at(100)
        tries = [second for second in range(160, 2000) if world.at(second)]
        assert tries == [160, 170, 190, 230, 310, 470, 770, 1070, 1370, 1670, 1970]
        world.change("slow", deletion_timestamp=kit.T0)
        assert world.at(3000) == []

    def test_one_that_ends_in_its_grace_is_forgotten(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        world.add(limited("slow"))
        world.at(0), world.at(100)
        world.finish("slow")
        assert world.at(160) == [] and world.next_due() is None

    def test_pods_that_somebody_else_bound_are_left_alone(self) -> None:
        """The scheduler's name, a duration, a queue that ends: without the allocation it was not our seat."""
        world = World(**END)  # type: ignore[arg-type]
        world.add(limited("by-hand", node="n0", phase="Running", bound=0))
        assert world.at(0) == [] and world.at(100) == [] and world.at(1000) == []
        assert world.queue.overruns.since, "it does overrun"

    def test_other_schedulers_pods_are_left_alone(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        note = {names.ALLOCATION: f'{{"start":{NOW},"end":{NOW + SECOND}}}', names.JOBID: "7"}
        world.add(limited("foreign", scheduler="other", node="n0", phase="Running", annotations=note))
        assert world.at(100) == [] and world.at(1000) == []


class TestRestart:
    def restarted(self, world: World, **config: Any) -> World:
        fresh = World(**(config or END))
        fresh.add(*world.pods.values())
        return fresh

    def overdue(self) -> World:
        world = World(**END)  # type: ignore[arg-type]
        world.add(limited("slow"))
        world.at(0)
        (warned,) = world.at(100)
        world.change("slow", annotations={**world.pods["slow"].annotations, **warned_note(warned.at)})
        return world

    def test_a_fresh_process_does_not_warn_again_and_keeps_the_end(self) -> None:
        fresh = self.restarted(self.overdue())
        assert fresh.at(140) == []
        assert fresh.next_due() == NOW + 160 * SECOND
        assert of(fresh.at(160)) == ["EndOverrun"]

    def test_one_that_comes_late_ends_at_once(self) -> None:
        assert of(self.restarted(self.overdue()).at(500)) == ["EndOverrun"]

    def test_without_a_warning_there_is_one_and_a_grace(self) -> None:
        world = World(**END)  # type: ignore[arg-type]
        world.add(limited("slow"))
        world.at(0)
        fresh = self.restarted(world)
        (warned,) = fresh.at(500)
        assert warned.ends == NOW + 560 * SECOND
        assert fresh.at(559) == [] and of(fresh.at(560)) == ["EndOverrun"]

    @pytest.mark.parametrize(
        "said", ["", "soon", "2026-09-01", "2026-09-01T12:00:00Z", "9999-01-01T00:00:00Z"]
    )
    def test_a_warning_that_cannot_be_is_none(self, said: str) -> None:
        world = self.overdue()
        world.change("slow", annotations={**world.pods["slow"].annotations, names.WARNED: said})
        assert of(self.restarted(world).at(150)) == ["WarnOverrun"]

    def test_a_queue_that_is_taken_out_of_the_setting_is_left_alone(self) -> None:
        assert self.restarted(self.overdue(), enforce={}).at(500) == []


class TestThroughTheJob:
    def ended(self, owner: Owner, count: int, **more: Any) -> list[EndOverrun]:
        world = World(nodes=2, **END)  # type: ignore[arg-type]
        world.set_owner(owner)
        world.add(*(limited(f"p{number}", owner=owner, **more) for number in range(count)))
        world.at(0), world.at(100)
        return [each for each in world.at(160) if isinstance(each, EndOverrun)]

    def test_a_job_that_has_nothing_else_to_run(self) -> None:
        job = kit.owner("train", parallelism=1, completions=1)
        (end,) = self.ended(job, 1)
        assert isinstance(end.owner, Job) and end.owner.key == "default/train"

    def test_a_gang_that_is_its_whole_job(self) -> None:
        job = kit.owner("mpi", annotations={names.GROUP_SIZE: "3"}, parallelism=3, completions=3)
        (end,) = self.ended(job, 3)
        assert end.owner == job and len(end.pods) == 3

    def test_a_job_without_completions_ends_when_all_that_it_runs_overran(self) -> None:
        (end,) = self.ended(kit.owner("workers", parallelism=1), 1)
        assert end.owner is not None

    def test_of_a_job_that_has_more_to_run_only_the_pods_go(self) -> None:
        (end,) = self.ended(kit.owner("sweep", parallelism=1, completions=100), 1)
        assert end.owner is None and len(end.pods) == 1

    def test_of_a_job_that_has_one_left_it_is_all(self) -> None:
        (end,) = self.ended(kit.owner("sweep", parallelism=1, completions=100, succeeded=99), 1)
        assert end.owner is not None

    def test_other_owners_do_not_end_their_pods(self) -> None:
        (end,) = self.ended(kit.owner("web", kind=Deployment, replicas=1), 1)
        assert end.owner is None


class TestWhoWaits:
    def overrun(self, **config: Any) -> World:
        world = World(cpu=4, **config)
        job = kit.owner("train", parallelism=1, completions=1)
        world.set_owner(job)
        world.add(limited("train-x", owner=job, cpu="4"))
        world.at(0)
        world.add(limited("next", cpu="2", age=-10))
        world.at(10)
        return world

    def test_is_told_who_overruns_and_since_when(self) -> None:
        world = self.overrun()
        assert Code.WAITS_FOR_OVERRUN not in {each.code for each in world.told("next")}
        for second in (100, 131, 165, 200):
            world.at(second)
        (told,) = [each for each in world.told("next") if each.code is Code.WAITS_FOR_OVERRUN]
        assert (told["kind"], told["namespace"], told["name"]) == ("Job", "default", "train")
        assert told["limit"] == 100 * SECOND
        assert told["since"] == NOW + 100 * SECOND

    def test_is_not_told_of_those_that_are_not_in_its_way(self) -> None:
        world = self.overrun()
        world.set_node(node("n1", 8))
        world.add(kit.pod("holds", cpu="8", node="n1", scheduler="other", phase="Running"))
        world.add(limited("large", cpu="8"))
        for second in (100, 131, 165, 200):
            world.at(second)
        assert Code.WAITS_FOR_OVERRUN not in {each.code for each in world.told("large")}
        assert Code.WAITS_FOR_OVERRUN in {each.code for each in world.told("next")}

    def test_asking_changes_nothing(self) -> None:
        world = self.overrun()
        world.at(100), world.at(131)
        planner, record = world.planner, world.pod_sets.by_key["default/pod:next"]
        before = {task: held.end for task, held in planner.allocations.running.items()}
        seats = {number: (each.start, each.end) for number, each in world.cluster.fit.jobs.items()}
        assert planner.held_up_by(record.request, world.now, record.limit, list(before))
        assert {task: held.end for task, held in planner.allocations.running.items()} == before
        assert {number: (each.start, each.end) for number, each in world.cluster.fit.jobs.items()} == seats

    def test_is_told_no_more_when_it_has_ended(self) -> None:
        world = self.overrun()
        for second in (100, 131, 165, 200):
            world.at(second)
        world.finish("train-x")
        world.at(201)
        assert world.pods["next"].spec.node_name and not world.queue.overruns.since


class TestPromises:
    def test_broken_ones_are_counted_by_cause(self) -> None:
        world = TestWhoWaits().overrun()
        for second in range(100, 300, 10):
            world.at(second)
        tally = world.queue.promises.tally
        assert (tally.kept, tally.broken) == (0, Counter({Code.RUNS_PAST_LIMIT: 1}))

    def test_kept_ones_are_counted(self) -> None:
        world = TestWhoWaits().overrun()
        world.finish("train-x")
        world.at(90)
        assert (world.queue.promises.tally.kept, world.queue.promises.tally.broken) == (1, Counter())

    @pytest.mark.parametrize(
        ("config", "more", "firm"),
        [
            ({}, {}, False),
            (WARN, {}, False),
            (END, {}, True),
            ({}, {"active_deadline_seconds": 50}, True),
        ],
    )
    def test_they_say_whether_something_enforces_what_they_rest_on(
        self, config: dict[str, Any], more: dict[str, Any], firm: bool
    ) -> None:
        world = World(cpu=4, **config)
        world.add(limited("first", cpu="4", **more))
        world.at(0)
        world.add(limited("next", cpu="4", age=-10))
        world.at(10)
        record = world.pod_sets.by_key["default/pod:next"]
        assert record.no_later_than is not None and record.firm is firm
        assert world.reports.said["default/pod:next"].report.firm is firm

    def test_one_that_goes_before_and_that_nothing_ends_is_in_the_way_of_all_behind(self) -> None:
        world = World(cpu=4)
        world.add(limited("first", cpu="4", active_deadline_seconds=50))
        world.at(0)
        world.add(limited("second", cpu="4", age=-10), limited("third", cpu="4", age=-20))
        world.at(30)
        firm = {key: each.firm for key, each in world.pod_sets.by_key.items() if not each.state.has_nodes}
        assert firm == {"default/pod:second": True, "default/pod:third": False}


def test_the_plan_counts_on_the_end_after_the_grace_where_the_queue_ends_what_overruns() -> None:
    world = World(**END)  # type: ignore[arg-type]
    world.add(limited("slow"))
    world.at(0)
    ends = []
    for second in (100, 130, 190, 250, 310, 370):
        world.at(second)
        ends.append((world.planner.allocations.running["default/pod:slow"].end - NOW) // SECOND)
    assert ends[:-1] == [130, 190, 250, 310, 370] and ends[-1] > 10**9
    assert SchedulerConfig().enforce == {}


def test_a_user_of_such_a_queue_is_trusted_again_at_once() -> None:
    for config, bounded in ((END, True), ({}, False)):
        world = World(cpu=4, **config)  # type: ignore[arg-type]
        world.add(limited("slow"))
        for second in (0, 100, 131, 200, 300, 400):
            world.at(second)
        world.add(limited("other", age=-400))
        world.at(401)
        assert world.pod_sets.by_key["default/pod:other"].bounded is bounded
