"""Whole histories of a cluster where nothing is lost and nobody overruns: what was promised is kept.

What counts is what a user reads: the condition that is written on the pods. In some histories the scheduler
is killed at random moments, and the next one knows the objects alone, in the order in which a server lists
them. Under `conservative`, which reserves a start for every job, none may start later than it was told. Under
the others a promise is a plan widened by how such plans held: `make soak` prints how many were broken over
10,000 histories, and they must be few.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given
from msgspec.structs import replace

from fluence import names
from fluence.act import conditions
from fluence.act.conditions import wait_report
from fluence.model.job_state import JobState
from fluence.model.meta import Condition
from fluence.model.node import Node
from fluence.model.pod import Container, Pod, ResourceRequirements
from fluence.model.reason import Code
from fluence.queue.promises import LATE, Calibration
from fluence.schedule import restart
from fluence.schedule.events import BindOutcome, BindResult, Changed
from fluence.schedule.status.reports import Waiting
from tests.amounts import amount
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_devices import config
from tests.unit.schedule.test_promised_starts import node

T0 = int(kit.T0.timestamp() * 1000)
SECOND = 1000
HISTORIES = amount(30, quick=4, soak="FLUENCE_HISTORIES")


@dataclass
class History:
    """Gangs that come at random and end by their limits; what is decided is carried out at once."""

    seed: int
    policy: str
    looks: int | None = None
    calibration: Calibration | None = None  # what was learned from other histories
    kills: float = 0.0  # how probable one is before a cycle
    scale: int = 1  # of all times: what is late by minutes is seen only where jobs take hours
    pools: int = 0  # nodes are of so many kinds, and most gangs can use those of one kind only
    qpus: int = 0  # and there are so many quantum computers, of which some gangs need one, or a certain one
    kept: int = 0
    killed: int = 0
    broken: list[str] = field(default_factory=list)

    def run(self) -> None:
        self.rng = rng = random.Random(self.seed)
        self.chooses = random.Random(self.seed + 1)  # devices, so that all else is as without
        self.burst = 5 * SECOND * self.scale
        self.pods: dict[str, Pod] = {}  # by name, as the API server has them
        self.limits: dict[str, int] = {}
        self.told: dict[str, int] = {}  # by gang: the first start that its pods say
        self.ends: list[tuple[int, Pod]] = []
        self.nodes = [node(f"n{number}", rng.randint(2, 4)) for number in range(rng.randint(1, 4))]
        for number in range(len(self.nodes), 2 * self.pools):
            self.nodes.append(node(f"n{number}", rng.randint(2, 4)))
        for number in range(len(self.nodes) if self.pools else 0):
            self.nodes[number] = _labelled(self.nodes[number], f"p{number % self.pools}")
        self.driver = self._fresh()
        # Several may come within one second, of which the API server writes no more than the second.
        within = 100 * SECOND if self.pools else 300 * SECOND if self.qpus else 600 * SECOND
        arrivals = sorted(rng.randint(0, within) * self.scale for _ in range(rng.randint(5, 25)))
        arrivals = sorted(
            at if rng.random() < 0.5 else at // self.burst * self.burst + at % 1000 for at in arrivals
        )
        names_ = rng.sample([f"g{number}" for number in range(len(arrivals))], len(arrivals))
        now = 0
        for _ in range(2000):
            while arrivals and arrivals[0] <= now:
                self._submit(names_.pop(), T0 + arrivals.pop(0))
            for each in [each for each in self.ends if each[0] <= now]:
                self.ends.remove(each)
                self._set(replace(each[1], status=replace(each[1].status, phase="Succeeded")))
                del self.pods[each[1].metadata.name]
            if self.kills and rng.random() < self.kills:
                self.driver = self._fresh()
                self.killed += 1
            self._cycle(now)
            due = self._due()
            times = [*arrivals[:1], *(end for end, _ in self.ends)]
            if due is not None:
                times.append(due - T0 + rng.choice((0, 0, 3)))  # a timer is never exact
            if not times:
                return
            now = max(now + 1, min(times))
        raise AssertionError("it never comes to rest")

    def _fresh(self) -> Driver:
        """A scheduler that knows nothing but the objects there are."""
        ticks = itertools.count()
        more: dict[str, Any] = {}
        if self.looks is not None:
            more = {"timer": lambda: next(ticks) / 1e6, "cycle_budget": self.looks / 1e6}
        driver = Driver(queue_policy=self.policy, **more)
        if self.calibration is not None:
            driver.scheduler.state.queue.promises.calibration = self.calibration
        if self.qpus:
            names_ = ", ".join(f"{{type: qpu, name: q{number}}}" for number in range(self.qpus))
            driver.handle(Changed(None, config(f"resources: [{names_}]")))
        for each in self.nodes:
            driver.set_node(each)
        for _, pod in sorted(self.pods.items()):
            driver.set_pod(pod)
        return driver

    def _set(self, pod: Pod) -> None:
        self.pods[pod.metadata.name] = pod
        self.driver.set_pod(pod)

    def _submit(self, gang: str, now: int) -> None:
        rng = self.rng
        size, cpu, limit = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2)), rng.randint(5, 120) * self.scale
        self.limits[gang] = limit * SECOND
        notes = {names.GROUP_SIZE: str(size), names.DURATION: f"{limit}s"}
        pool = rng.randrange(self.pools + 1) if self.pools else 0
        where: dict[str, Any] = {"node_selector": {"pool": f"p{pool - 1}"}} if pool else {}
        needs = {"cpu": str(cpu)}
        if self.qpus and self.chooses.random() < 0.6:
            needs[f"{names.DEVICE_PREFIX}qpu"] = "1"
            if (at := self.chooses.randrange(self.qpus + 1)) < self.qpus:
                notes[names.REQUIRE_BACKEND] = f"q{at}"
        self.driver.now = now
        for index in range(size):
            made = kit.pod(
                f"{gang}-{index}",
                labels={names.GROUP_LABEL: gang},
                annotations=notes,
                age=-((now - T0) // SECOND),
                **where,
            )
            box = Container(name="c", resources=ResourceRequirements(requests=needs))
            self._set(replace(made, spec=replace(made.spec, containers=[box])))

    def _due(self) -> int | None:
        """When the scheduler is due, reminders aside: what can never start is told so again and again."""
        steps = self.driver.scheduler._cycle._steps
        reminders = self.driver.scheduler.state.reminders
        dues = [step.next_due() for step in steps if step is not reminders]
        return min((due for due in dues if due is not None), default=None)

    def _cycle(self, now: int) -> None:
        for _ in range(100):
            decisions = self.driver.cycle(T0 + now)
            for binds in decisions.binds:
                gang = binds[0].pod.metadata.name.partition("-")[0]
                lasts = (
                    self.limits[gang] if self.rng.random() < 0.5 else self.rng.randint(1, self.limits[gang])
                )
                for bind in binds:
                    there = self.pods[bind.pod.metadata.name]
                    notes = {**there.annotations, **bind.annotations}
                    bound = replace(
                        there,
                        metadata=replace(there.metadata, annotations=notes),
                        spec=replace(there.spec, node_name=bind.node),
                    )
                    self._set(bound)
                    self.driver.told(BindResult(bind, BindOutcome.BOUND), T0 + now)
                    self.ends.append((now + lasts, bound))
                promised = self.told.pop(gang, None)
                if promised is not None:
                    late = T0 + now > promised + LATE
                    self.kept += not late
                    if late:
                        self.broken.append(f"{gang}: told {promised - T0}, started {now}")
            for waiting in decisions.waiting:
                for pod in waiting.pods:
                    self._write(pod.metadata.name, waiting, T0 + now)
            for found in self.driver.pod_sets.by_key.values() if self.policy == "conservative" else ():
                causes = {each.cause.code for each in found.broken}
                assert causes <= ({Code.RESTARTED} if self.kills else set()), found.broken
            if not self.driver.has_more:
                self._compare_with_plan()
                return
        raise AssertionError("cycles without end")

    def _compare_with_plan(self) -> None:
        """No pod says a start that is before its place in the plan."""
        for found in self.driver.pod_sets.by_key.values():
            if found.state is not JobState.RESERVED or found.no_later_than is None:
                continue
            for pod in found.pods:
                told = wait_report(self.pods[pod.metadata.name].status.conditions)
                if told is not None and told.no_later_than is not None:
                    assert found.reserved_at is not None and told.no_later_than >= found.reserved_at

    def _write(self, name: str, waiting: Waiting, now: int) -> None:
        """Write what a gang is told on one of its pods, as the live scheduler does."""
        pod = self.pods[name]
        patch: Any = conditions.pod_condition(
            pod, waiting.report, now=now, notes=restart.queued_note(waiting.queued)
        )
        if patch is None:
            return
        written = msgspec.convert(patch["status"]["conditions"], list[Condition])
        notes = {**pod.annotations, **patch["metadata"].get("annotations", {})}
        self._set(
            replace(
                pod,
                metadata=replace(pod.metadata, annotations=notes),
                status=replace(pod.status, conditions=written),
            )
        )
        report = wait_report(written)
        if report is not None and report.no_later_than is not None:
            self.told.setdefault(waiting.gang.name, report.no_later_than)


def _labelled(one: Node, pool: str) -> Node:
    return replace(one, metadata=replace(one.metadata, labels={**(one.metadata.labels or {}), "pool": pool}))


@given(
    st.integers(0, 1 << 32),
    st.none() | st.integers(2, 60),
    st.sampled_from((1, 60)),
    st.sampled_from(((0, 0), (3, 0), (0, 2), (2, 2))),
)
@example(7, 5, 1, (0, 0))
def test_under_conservative_every_promise_is_kept(
    seed: int, looks: int | None, scale: int, kinds: tuple[int, int]
) -> None:
    history = History(seed, "conservative", looks, scale=scale, pools=kinds[0], qpus=kinds[1])
    history.run()
    assert history.broken == []


@pytest.mark.parametrize("policy", ["easy", "hybrid", "fcfs", "first-fit"])
@pytest.mark.parametrize("scale", [1, 60])
@pytest.mark.parametrize(("pools", "qpus"), [(0, 0), (3, 0), (0, 2)])
def test_under_the_others_few_are_broken(
    policy: str, scale: int, pools: int, qpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, broken, calibration = 0, 0, Calibration()
    for seed in range(HISTORIES):
        history = History(seed, policy, calibration=calibration, scale=scale, pools=pools, qpus=qpus)
        history.run()
        kept, broken = kept + history.kept, broken + len(history.broken)
    with capsys.disabled():
        if HISTORIES > 1000:
            told = kept + broken
            kinds = f"{pools} pools, {qpus} devices"
            print(f"\n{policy}, {kinds}: {told} promises in {HISTORIES} histories, {broken} broken")
    assert broken <= 0.02 * (kept + broken) + (15 if pools else 5)  # calibration has to begin somewhere


@pytest.mark.parametrize(("kills", "looks"), [(0.05, None), (0.05, 10), (0.5, None)])
def test_promises_survive_the_scheduler(
    kills: float, looks: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Places that were moved ahead are written nowhere, and a plan that keeps all promises may not be found
    without them: then somebody is told so. Before promises were read again, four of 700 broke."""
    kept, broken, killed = 0, 0, 0
    for seed in range(HISTORIES):
        history = History(seed, "conservative", looks, kills=kills, scale=60)
        history.run()
        kept, broken, killed = kept + history.kept, broken + len(history.broken), killed + history.killed
    with capsys.disabled():
        if HISTORIES > 1000:
            print(f"\n{kept + broken} promises, {killed} restarts in {HISTORIES} histories, {broken} broken")
    assert kept > HISTORIES and killed > HISTORIES
    assert broken <= 0.001 * kept + (kills > 0.1)


def test_a_job_that_moves_ahead_takes_nobody_elses_nodes() -> None:
    """When somebody's time had come, all others got their places anew, and a gang that could start then went
    to the nodes on which another one was planned."""
    history = History(39, "conservative", scale=60, pools=3)
    history.run()
    assert history.kept and history.broken == []


@pytest.mark.parametrize(("seed", "kills"), [(58, 0.05), (87, 0.05), (327, 0.05), (560, 0.5)])
def test_histories_that_broke_a_promise_by_a_restart(seed: int, kills: float) -> None:
    history = History(seed, "conservative", kills=kills, scale=60)
    history.run()
    assert history.kept and history.broken == []
