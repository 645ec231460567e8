"""Work that is held or depends on other work starts when it may, and not before."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from fluence import names
from fluence.act.conditions import pod_condition
from fluence.model.job_state import JobState
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.owner import Job, Owner, PodTemplate
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Object
from fluence.schedule.inquiry import Inquiry
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.cluster.build import bound, ended, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
HOUR = 3_600_000


class World:
    """Jobs of one pod on one node, as an API server would show them."""

    def __init__(self, cpu: int = 8) -> None:
        self.objects: dict[str, Object] = {"node": node("n1", cpu=str(cpu), pods="50")}
        self.now = NOW
        self.restart()

    def restart(self) -> None:
        self.driver = Driver()
        self.driver.now = self.now
        self.driver.handle(*(Changed(None, each) for each in self.objects.values()))

    def put(self, *objects: Object) -> None:
        for item in objects:
            kind = getattr(item, "kind", "Pod")
            assert isinstance(item, Owner | Pod)
            old = self.objects.get(f"{kind}/{item.metadata.name}")
            self.objects[f"{kind}/{item.metadata.name}"] = item
            self.driver.handle(Changed(old, item))

    def delete(self, *names_: str) -> None:
        for name in names_:
            self.driver.handle(Changed(self.objects.pop(name), None))

    def job(self, name: str, depends_on: str = "", uid: str = "", **more: Any) -> tuple[Owner, Pod]:
        notes = {**more.pop("annotations", {}), **({names.DEPENDS_ON: depends_on} if depends_on else {})}
        of = kit.owner(name, parallelism=1, completions=1, annotations=notes or None)
        meta = replace(of.metadata, creation_timestamp=kit.T0, uid=uid or of.metadata.uid)
        of = replace(of, metadata=replace(meta, generate_name=more.pop("generate_name", "")))
        pod = kit.pod(f"{name}-0", owner=of, **more)
        self.put(of, pod)
        return of, pod

    def cycle(self, later: int = 0) -> list[str]:
        """Run cycles until nothing more starts; the names of pods that were bound."""
        self.now += later
        names_: list[str] = []
        while True:
            decisions: Decisions = self.driver.cycle(self.now)
            for bind in (bind for binds in decisions.binds for bind in binds):
                names_.append(bind.pod.metadata.name)
                pod = self.objects[f"Pod/{bind.pod.metadata.name}"]
                assert isinstance(pod, Pod)
                self.put(bound(bind.carried_out(pod), bind.node))
            if not decisions.binds and not self.driver.scheduler.has_more:
                return sorted(names_)

    def end(self, name: str, *, ok: bool = True) -> None:
        pod, job = self.objects[f"Pod/{name}-0"], self.objects[f"Job/{name}"]
        assert isinstance(pod, Pod) and isinstance(job, Job)
        self.put(ended(pod) if ok else replace(pod, status=replace(pod.status, phase="Failed")))
        condition = Condition(type="Complete" if ok else "Failed", status="True")
        status = type(job.status)(conditions=[condition], succeeded=int(ok), failed=int(not ok))
        self.put(replace(job, status=status))

    def why(self, name: str) -> Reason | None:
        return self.driver.scheduler.state.eligibility.reason(f"default/pod:{name}-0")


# -- dependencies --------------------------------------------------------------------------------------------


def test_a_chain_of_three_starts_one_after_the_other() -> None:
    world = World()
    world.job("c", "afterok:b")
    world.job("b", "afterok:a")
    world.job("a")
    assert world.cycle() == ["a-0"]
    assert world.why("b") == Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afterok", job="a")
    world.end("a")
    assert world.cycle() == ["b-0"]
    world.end("b")
    assert world.cycle() == ["c-0"]


def test_afterok_does_not_open_after_a_failure_and_those_behind_it_wait() -> None:
    world = World()
    world.job("a")
    world.job("b", "afterok:a")
    world.job("c", "afterany:b")
    world.job("d", "afternotok:a")
    world.cycle()
    world.end("a", ok=False)
    assert world.cycle() == ["d-0"]
    reason = world.why("b")
    assert reason is not None and reason.code is Code.DEPENDENCY_NEVER_SATISFIED
    assert world.cycle(HOUR) == []
    assert world.why("c") == Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afterany", job="b")


def test_a_failed_pod_whose_job_tries_again_is_not_the_outcome() -> None:
    world = World()
    job, pod = world.job("a")
    world.job("b", "afterany:a")
    world.cycle()
    world.put(replace(pod, status=replace(pod.status, phase="Failed")))
    world.put(replace(job, status=type(job.status)(failed=1)))
    assert world.cycle() == []
    world.put(kit.pod("a-1", owner=job))
    assert world.cycle() == ["a-1"]


def test_a_name_that_does_not_exist_is_stated_and_waited_for() -> None:
    world = World()
    world.job("b", "afterok:a")
    assert world.cycle() == []
    assert world.why("b") == Reason.of(Code.DEPENDENCY_UNKNOWN, kind="afterok", job="a", namespace="default")
    world.job("a")
    assert world.cycle() == ["a-0"]
    world.end("a")
    assert world.cycle() == ["b-0"]


def test_names_mean_objects_of_the_same_namespace() -> None:
    world = World()
    other = kit.owner("a", namespace="other", parallelism=1)
    status = type(other.status)(conditions=[Condition(type="Complete", status="True")], succeeded=1)
    world.put(replace(other, status=status))
    world.job("b", "afterok:a")
    assert world.cycle() == []


def test_an_outcome_counts_though_the_producer_is_deleted_in_the_same_moment() -> None:
    world = World()
    world.job("a")
    world.job("b", "afterok:a")
    world.cycle()
    world.end("a")
    world.delete("Job/a", "Pod/a-0")
    assert world.cycle() == ["b-0"]


def test_a_producer_that_vanished_before_its_outcome_was_seen_is_stated() -> None:
    world = World()
    world.job("a")
    world.job("b", "afterok:a")
    world.job("c", "afterany:a")
    world.cycle()
    world.delete("Pod/a-0", "Job/a")
    assert world.cycle() == ["c-0"]
    reason = world.why("b")
    assert reason is not None and reason.code is Code.DEPENDENCY_NEVER_SATISFIED
    assert reason["outcome"] == "gone"


def test_another_job_of_the_same_name_is_another_producer() -> None:
    world = World()
    world.job("a")
    world.job("b", "afterok:a")
    world.cycle()
    world.delete("Pod/a-0", "Job/a")
    world.job("a", uid="second")
    world.cycle()
    world.end("a")
    assert world.cycle() == [], "the first was deleted, and its outcome is not known"


def test_after_opens_when_the_producer_runs() -> None:
    world = World()
    job, _ = world.job("a")
    world.job("b", "after:a")
    assert world.cycle() == ["a-0"]
    world.put(replace(job, status=type(job.status)(ready=1)))
    assert world.cycle() == ["b-0"]


def test_any_opens_with_the_first_that_holds() -> None:
    world = World()
    world.job("a")
    world.job("b")
    world.job("c", "afterok:a?afterok:b")
    world.cycle()
    world.end("a", ok=False)
    assert world.cycle() == []
    world.end("b")
    assert world.cycle() == ["c-0"]


def test_a_cycle_is_refused_and_opens_when_one_of_them_lets_it() -> None:
    world = World()
    world.job("a", "afterok:c")
    world.job("b", "afterok:a")
    world.job("c", "afterok:b")
    world.job("free")
    assert world.cycle() == ["free-0"]
    for name in "abc":
        reason = world.why(name)
        assert reason is not None and reason.code is Code.DEPENDENCY_CYCLE, name
        jobs = reason["jobs"]
        assert isinstance(jobs, tuple) and len(jobs) == 4 and jobs[0] == jobs[-1]
    job = world.objects["Job/a"]
    assert isinstance(job, Job)
    world.put(replace(job, metadata=replace(job.metadata, annotations=None)))
    assert world.cycle() == ["a-0"]
    assert world.why("c") == Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afterok", job="b")


def test_who_depends_on_itself_is_refused() -> None:
    world = World()
    world.job("a", "afterany:a")
    assert world.cycle() == []
    reason = world.why("a")
    assert reason is not None and reason.code is Code.DEPENDENCY_CYCLE


def test_the_dependency_of_a_job_that_has_begun_holds_nothing_back() -> None:
    world = World()
    job, _ = world.job("b", "afterok:a")
    world.cycle()
    world.put(replace(job, status=type(job.status)(ready=1)))
    world.restart()
    assert world.cycle() == ["b-0"], "the producer may be gone by then"


def test_a_restart_gives_the_same_answers() -> None:
    world = World()
    world.job("a")
    world.job("b", "afterok:a")
    world.job("c", "afterok:b")
    assert world.cycle() == ["a-0"]
    world.restart()
    assert world.cycle() == []
    world.end("a")
    world.restart()
    assert world.cycle() == ["b-0"]
    world.end("b", ok=False)
    world.restart()
    assert world.cycle() == []
    reason = world.why("c")
    assert reason is not None and reason.code is Code.DEPENDENCY_NEVER_SATISFIED


def reported(world: World, name: str) -> None:
    """The pod has the status that the scheduler writes while it waits."""
    waiting = world.driver.scheduler.state.reports.said[f"default/pod:{name}"]
    pod = world.objects[f"Pod/{name}"]
    assert isinstance(pod, Pod)
    patch = pod_condition(pod, waiting.report, now=world.now)
    assert patch is not None
    status: Any = patch["status"]
    conditions = msgspec.convert(status["conditions"], list[Condition])
    world.put(replace(pod, status=replace(pod.status, conditions=conditions)))


def test_a_job_whose_dependency_held_before_a_restart_needs_its_producer_no_more() -> None:
    world = World(cpu=1)
    world.job("a")
    world.job("b", "afterok:a")
    assert world.cycle() == ["a-0"]
    world.job("other", age=100)
    world.cycle()
    world.end("a")
    assert world.cycle() == ["other-0"], "it came before b could start"
    assert world.cycle(1) == []
    reported(world, "b-0")
    world.delete("Job/a", "Pod/a-0")
    world.restart()
    assert world.cycle() == []
    assert world.why("b") is None
    world.end("other")
    assert world.cycle() == ["b-0"]


def test_a_mark_counts_for_the_dependencies_that_it_was_written_for() -> None:
    world = World(cpu=1)
    world.job("a")
    job, _ = world.job("b", "afterok:a")
    world.cycle()
    world.job("other", age=100)
    world.end("a")
    world.cycle()
    reported(world, "b-0")
    world.put(replace(job, metadata=replace(job.metadata, annotations={names.DEPENDS_ON: "afterok:c"})))
    world.restart()
    world.end("other")
    assert world.cycle() == []
    reason = world.why("b")
    assert reason is not None and reason.code is Code.DEPENDENCY_UNKNOWN


def test_the_moment_of_a_release_counts_after_a_restart() -> None:
    world = World(cpu=1)
    world.job("running", annotations={names.DURATION: "1h"})
    world.cycle()
    held, _ = world.job("held", annotations={names.HOLD: ""}, age=500)
    world.cycle()
    world.job("other", age=100)
    world.cycle(1000)
    world.put(replace(held, metadata=replace(held.metadata, annotations=None)))
    world.cycle(1000)
    reported(world, "held-0")
    world.restart()
    world.cycle(1)
    assert waiting(world) == ["other-0", "held-0"]


def test_singletons_of_one_series_run_one_after_the_other() -> None:
    world = World()
    for name in ("one", "two", "three"):
        world.job(f"train-{name}", "singleton", generate_name="train-")
    world.job("other", "singleton:train")
    started = world.cycle()
    assert len(started) == 1
    world.restart()
    assert world.cycle() == []
    for _ in range(3):
        world.end(started[0].removesuffix("-0"))
        started = world.cycle()
        assert len(started) == 1


def test_a_group_is_waited_for_as_a_whole() -> None:
    world = World()
    label = {kit.GROUP: "train"}
    size = {kit.SIZE: "2"}
    members = kit.ranks(2, "rank", labels=label, annotations=size)
    world.put(*members)
    world.job("eval", "afterok:group/train")
    assert world.cycle() == ["rank-0", "rank-1"]

    def end(name: str) -> None:
        pod = world.objects[f"Pod/{name}"]
        assert isinstance(pod, Pod)
        world.put(ended(pod))

    end("rank-0")
    assert world.cycle() == []
    end("rank-1")
    assert world.cycle() == ["eval-0"]


def test_dependents_hold_no_place_in_the_plan() -> None:
    world = World(cpu=1)
    world.job("a", annotations={names.DURATION: "1h"})
    world.job("b", "afterok:a", annotations={names.DURATION: "1h"})
    world.cycle()
    assert [record.key for record in world.driver.scheduler.state.queue.waiting()] == []


def test_the_expected_start_follows_from_the_planned_ends_of_the_chain() -> None:
    world = World(cpu=1)
    for name, before in (("a", ""), ("b", "afterok:a"), ("c", "afterok:b")):
        world.job(name, before, annotations={names.DURATION: "1h"})
    assert world.cycle() == ["a-0"]
    expected = world.driver.scheduler.state.eligibility.expected
    assert expected("default/pod:b-0") == NOW + HOUR
    assert expected("default/pod:c-0") == NOW + 2 * HOUR


def test_explain_says_what_is_waited_for() -> None:
    world = World()
    world.job("b", "afterok:a")
    scheduler = Scheduler(SchedulerConfig())
    inquiry = Inquiry(scheduler, world.objects.values(), NOW)
    gang = inquiry.groups.gang("default/pod:b-0")
    assert gang is not None
    (reason,) = inquiry.about(gang).blocks
    assert reason.code is Code.DEPENDENCY_UNKNOWN


def test_what_cannot_be_read_is_refused() -> None:
    world = World()
    world.job("b", "afterokay:a")
    assert world.cycle() == []
    gang = world.driver.scheduler.state.groups.gang("default/pod:b-0")
    assert gang is not None and gang.fault is not None
    assert gang.fault.code is Code.INVALID_DEPENDENCY


# -- hold ----------------------------------------------------------------------------------------------------


def test_what_is_held_starts_when_it_is_released() -> None:
    world = World()
    job, _ = world.job("a", annotations={names.HOLD: "true"})
    assert world.cycle() == []
    assert world.why("a") == Reason.of(Code.HELD_BY_USER, kind="Job", what="default/a", key=names.HOLD)
    world.put(replace(job, metadata=replace(job.metadata, annotations={names.HOLD: "false"})))
    assert world.cycle() == ["a-0"]


def test_one_that_waits_gives_up_its_place_when_it_is_held() -> None:
    world = World(cpu=1)
    world.job("a", annotations={names.DURATION: "1h"})
    world.cycle()
    job, _ = world.job("b", annotations={names.DURATION: "1h"})
    world.job("c", annotations={names.DURATION: "1h"})
    world.cycle()
    world.put(replace(job, metadata=replace(job.metadata, annotations={names.HOLD: ""})))
    world.cycle()
    assert world.driver.scheduler.state.pod_sets.by_key["default/pod:b-0"].state is JobState.GATHERING
    world.end("a")
    assert world.cycle() == ["c-0"]


def test_work_that_was_held_passes_nobody_who_came_meanwhile() -> None:
    world = World(cpu=1)
    world.job("running", annotations={names.DURATION: "1h"})
    world.cycle()
    held, _ = world.job("held", annotations={names.HOLD: ""}, age=500)
    world.cycle()
    world.job("other", age=100)
    world.cycle(1000)
    world.put(replace(held, metadata=replace(held.metadata, annotations=None)))
    world.cycle(1000)
    order = [record.key for record in world.driver.scheduler.state.queue.waiting()]
    assert order == ["default/pod:other-0", "default/pod:held-0"]


def test_what_runs_goes_on_when_it_is_held() -> None:
    world = World()
    job, _ = world.job("a")
    assert world.cycle() == ["a-0"]
    world.put(replace(job, metadata=replace(job.metadata, annotations={names.HOLD: ""})))
    assert world.cycle() == []
    assert world.driver.scheduler.state.pod_sets.by_key["default/pod:a-0"].state is JobState.RUNNING


# -- priority ------------------------------------------------------------------------------------------------


def waiting(world: World) -> list[str]:
    return [
        record.key.removeprefix("default/pod:") for record in world.driver.scheduler.state.queue.waiting()
    ]


def test_a_priority_reorders_the_jobs_of_a_namespace_while_they_wait() -> None:
    world = World(cpu=1)
    world.job("running", annotations={names.DURATION: "1h"})
    world.cycle()
    for name, age in (("a", 9), ("b", 6), ("c", 3)):
        job, _ = world.job(name, age=age)
    assert world.cycle() == []
    assert waiting(world) == ["a-0", "b-0", "c-0"]
    world.put(replace(job, metadata=replace(job.metadata, annotations={names.PRIORITY: "5"})))
    world.cycle()
    assert waiting(world) == ["c-0", "a-0", "b-0"]
    world.restart()
    world.cycle()
    assert waiting(world) == ["c-0", "a-0", "b-0"]
    world.put(replace(job, metadata=replace(job.metadata, annotations={names.PRIORITY: "-5"})))
    world.cycle()
    assert waiting(world) == ["a-0", "b-0", "c-0"]
    world.end("running")
    assert world.cycle() == ["a-0"]


def test_a_priority_that_cannot_be_read_is_refused() -> None:
    world = World()
    for name, text in (("a", "high"), ("b", "1001"), ("c", "9" * 5000), ("d", "1.5")):
        world.job(name, annotations={names.PRIORITY: text})
    assert world.cycle() == []
    gang = world.driver.scheduler.state.groups.gang("default/pod:a-0")
    assert gang is not None and gang.fault is not None
    assert gang.fault.code is Code.INVALID_PRIORITY


# -- arrays --------------------------------------------------------------------------------------------------


def array(world: World, name: str, pods: int, most: str) -> Owner:
    of = kit.owner(name, parallelism=pods, completions=pods, annotations={names.MAX_RUNNING: most})
    world.put(of, *(kit.pod(f"{name}-{index}", owner=of) for index in range(pods)))
    return of


def test_an_array_runs_as_many_pods_at_a_time_as_it_says() -> None:
    world = World(cpu=8)
    of = array(world, "sweep", 6, "2")
    world.job("other")
    started = world.cycle()
    assert "other-0" in started
    assert len(started) == 3
    waits = next(name for name in ("sweep-0", "sweep-5", "sweep-1") if name not in started)
    said = world.driver.scheduler.state.reports.said[f"default/pod:{waits}"]
    assert said.reasons[0] == Reason.of(Code.ARRAY_LIMIT, array="job/sweep", most=2)
    world.restart()
    assert world.cycle() == [], "a restart counts those that run"
    pod = world.objects[f"Pod/{next(name for name in started if name.startswith('sweep'))}"]
    assert isinstance(pod, Pod)
    world.put(ended(pod))
    assert len(world.cycle()) == 1
    world.put(replace(of, metadata=replace(of.metadata, annotations={names.MAX_RUNNING: "4"})))
    assert len(world.cycle()) == 2
    world.put(replace(of, metadata=replace(of.metadata, annotations=None)))
    assert len(world.cycle()) == 1


def test_arrays_of_two_namespaces_count_apart() -> None:
    world = World(cpu=8)
    array(world, "sweep", 2, "1")
    of = kit.owner("sweep", namespace="other", parallelism=2, annotations={names.MAX_RUNNING: "1"})
    world.driver.handle(Changed(None, of))
    pod = kit.pod("elsewhere", namespace="other", owner=of)
    world.put(pod)
    assert world.cycle() == ["elsewhere", "sweep-0"]


def test_a_size_of_an_array_that_cannot_be_read_is_refused() -> None:
    world = World()
    array(world, "sweep", 2, "0")
    assert world.cycle() == []
    gang = world.driver.scheduler.state.groups.gang("default/pod:sweep-0")
    assert gang is not None and gang.fault is not None
    assert gang.fault.code is Code.INVALID_MAX_RUNNING


# -- Jobs that admission holds -------------------------------------------------------------------------------


def test_a_job_that_admission_holds_is_released_when_its_dependency_holds() -> None:
    world = World()
    world.job("a")
    template = PodTemplate(
        metadata=ObjectMeta(labels={names.SEEN: names.SEEN_YES}),
        spec=kit.pod("template").spec,
    )
    of = kit.owner(
        "b",
        labels={names.SEEN: names.SEEN_YES},
        annotations={names.DEPENDS_ON: "afterok:a"},
        suspend=True,
        parallelism=2,
        completions=2,
        completion_mode="Indexed",
        template=template,
    )
    of = replace(of, metadata=replace(of.metadata, creation_timestamp=kit.T0, generation=1))
    world.put(of)
    assert world.cycle() == ["a-0"]
    reason = world.driver.scheduler.state.eligibility.reason("default/job:b")
    assert reason == Reason.of(Code.WAITS_FOR_DEPENDENCY, kind="afterok", job="a")
    world.end("a")
    assert [release.owner.metadata.name for release in world.driver.cycle(world.now).releases] == ["b"]
