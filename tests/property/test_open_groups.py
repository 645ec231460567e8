"""A group that names no size starts as a whole, in whatever order, and over whatever restarts, it comes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence.model.meta import ObjectMeta
from fluence.model.owner import Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, PodSpec
from fluence.schedule.actions import Bind, BindOutcome, BindResult
from tests.unit.cluster.build import bound, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.kit import GROUP

QUIET = 3_000
START = int(kit.T0.timestamp() * 1000)
RESTART = "restart"


@dataclass
class World:
    """What the server has; the scheduler is told of it, and killed at will. Times are the scheduler's."""

    room: int
    skew: int = 0  # how far the server's clock is ahead
    cut: int | None = None  # the scheduler is killed when it has carried out so many of its first binds
    now: int = START
    pods: dict[str, Pod] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)  # by uid, owners and pods without one
    started: int | None = None  # how many there were when the first were bound

    def __post_init__(self) -> None:
        self.scheduler = self.fresh()

    def fresh(self) -> Driver:
        driver = Driver()
        driver.now = self.now
        if self.room:
            driver.set_node(node("n1", cpu=str(self.room), pods="200"))
        for owner in self.owners.values():
            driver.set_owner(owner)
        for pod in self.pods.values():
            driver.set_pod(pod)
        return driver

    def stamp(self) -> datetime:
        """As an API server stamps: whole seconds."""
        return datetime.fromtimestamp((self.now + self.skew) // 1000, UTC)

    def add(self, what: Pod | Owner | str) -> None:
        if isinstance(what, str):
            self.scheduler = self.fresh()
        else:
            what = replace(what, metadata=replace(what.metadata, creation_timestamp=self.stamp()))
            if isinstance(what, Pod):
                self.pods[what.metadata.uid] = what
                self.scheduler.set_pod(what)
                if not what.metadata.owner_references:
                    self.came[what.metadata.uid] = self.now
            else:
                self.owners[what.metadata.uid] = what
                self.came[what.metadata.uid] = self.now
                self.scheduler.set_owner(what)
        self.cycle()

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while (due := self.scheduler.next_due()) is not None and due < until:
            self.now = max(self.now + 1, due)
            self.cycle()
        self.now = max(self.now, until)
        self.cycle()

    def cycle(self) -> None:
        binds = [bind for some in self.scheduler.cycle(self.now).binds for bind in some]
        if binds and self.started is None:
            self.judge(binds)
            self.started = len(self.pods)
        if binds and self.cut is not None:
            for bind in binds[: self.cut]:
                self.pods[bind.uid] = bound(self.pods[bind.uid], bind.node)
            self.started = self.started if self.cut else None
            self.cut = None
            self.scheduler = self.fresh()
            self.cycle()
            return
        for bind in binds:
            self.pods[bind.uid] = bound(self.pods[bind.uid], bind.node)
            self.scheduler.set_pod(self.pods[bind.uid])
            self.scheduler.told(BindResult(bind, BindOutcome.BOUND), self.now)

    def judge(self, binds: list[Bind]) -> None:
        """All that is there starts, and nothing of it is on its way or has just come."""
        assert {bind.uid for bind in binds} == set(self.pods), "a part of the group starts"
        of = {ref.uid for pod in self.pods.values() for ref in pod.metadata.owner_references or ()}
        for uid, owner in self.owners.items():
            if uid in of or owner.spec.template is not None:
                made = sum(
                    any(ref.uid == uid for ref in pod.metadata.owner_references or ())
                    for pod in self.pods.values()
                )
                assert made == owner.pods, f"{owner.key} has made {made} of {owner.pods}"
                of.add(uid)
        for uid, at in self.came.items():
            if uid in of or uid in self.pods:
                assert self.now - at >= QUIET, f"{uid} came {self.now - at} ms ago"


def part(name: str, kind: type[Owner] | None, pods: int, *, template: bool) -> list[Pod | Owner]:
    """An owner and its pods, or pods without one."""
    labels = {GROUP: "g"}
    if kind is None:
        return [kit.pod(f"{name}-{i}", labels=labels) for i in range(pods)]
    spec: dict[str, Any] = {"parallelism": pods, "completions": pods} if kind is Job else {"replicas": pods}
    if kind is StatefulSet:
        spec["pod_management_policy"] = "Parallel"
    if template:
        spec["template"] = PodTemplate(
            metadata=ObjectMeta(labels=labels), spec=PodSpec(scheduler_name="fluence")
        )
    owner = kit.owner(name, kind=kind, **spec)
    return [owner, *(kit.pod(f"{name}-{i}", owner=owner, labels=labels) for i in range(pods))]


def play(world: World, events: list[tuple[Pod | Owner | str, int]]) -> None:
    for what, gap in events:
        world.add(what)
        world.pass_time(gap)
    world.pass_time(4 * QUIET)


def end(world: World) -> None:
    runs = sum(pod.spec.node_name is not None for pod in world.pods.values())
    if world.started is None:
        assert len(world.pods) > world.room, "there is room, and it does not start"
    elif len(world.pods) <= world.room:
        assert runs == len(world.pods), "there is room, and some never start"
    assert world.started is not None or not runs


kinds = st.sampled_from([Job, Job, StatefulSet, ReplicaSet, None])
parts = st.lists(
    st.tuples(kinds, st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=3,
)


@given(
    parts=parts,
    data=st.data(),
    room=st.integers(0, 10),
    skew=st.sampled_from([0, 0, -9_000, 7_000, 3_600_000]),
    cut=st.none() | st.integers(0, 3),
)
@settings(max_examples=300, deadline=None)
def test_in_any_order_and_over_restarts_a_group_without_a_size_starts_as_a_whole(
    parts: list[tuple[type[Owner] | None, int, bool]],
    data: st.DataObject,
    room: int,
    skew: int,
    cut: int | None,
) -> None:
    things: list[Pod | Owner | str] = [
        each
        for i, (kind, pods, template) in enumerate(parts)
        for each in part(f"p{i}", kind, pods, template=template)
    ]
    things += [RESTART] * data.draw(st.integers(0, 3))
    order = data.draw(st.permutations(things))
    gap = st.one_of(st.just(0), st.integers(1, 900), st.integers(1, 8_000))
    world = World(room, skew, cut)
    play(world, [(each, data.draw(gap)) for each in order])
    end(world)


@pytest.mark.parametrize("room", [3, 4])
def test_every_order_of_a_head_and_its_workers(room: int) -> None:
    """The two Jobs of an application, and a pod beside them: whatever comes first, no part starts alone."""
    things: list[Pod | Owner] = [
        *part("head", Job, 1, template=False),
        *part("work", Job, 2, template=False),
        *part("log", None, 1, template=False),
    ]
    for order in itertools.permutations(things):
        world = World(room)
        play(world, [(each, 700) for each in order])
        end(world)
        if room < 4:
            assert world.started is None
        else:
            assert world.started == 4


@given(gaps=st.lists(st.integers(1, QUIET - 1), min_size=1, max_size=30), restart=st.booleans())
@example(gaps=[2_000] * 30, restart=False)
@settings(max_examples=50, deadline=None)
def test_a_group_that_grows_without_end_never_starts_in_part(gaps: list[int], restart: bool) -> None:
    """It holds nothing meanwhile, and starts when nothing more comes."""
    world = World(100)
    for i, gap in enumerate(gaps):
        world.add(kit.pod(f"p{i}", labels={GROUP: "g"}))
        world.pass_time(gap)
        if restart and i % 3 == 1:
            world.add(RESTART)
        assert world.started is None
        assert not world.scheduler.cluster.jobs
    world.pass_time(2 * QUIET)
    assert world.started == len(gaps)
