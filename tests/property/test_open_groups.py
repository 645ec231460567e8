"""A group that names no size starts as a whole, in whatever order, and over whatever restarts, it comes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence.model.meta import ObjectMeta
from fluence.model.owner import Group, Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, PodSpec
from fluence.schedule.events import Bind, BindOutcome, BindResult, Changed
from tests.amounts import amount
from tests.unit.cluster.build import bound, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.kit import GROUP

QUIET = 3_000
START = int(kit.T0.timestamp() * 1000)
RESTART = "restart"
AT_ONCE = 48  # worlds of one scheduler


@dataclass
class World:
    """What the server has; the scheduler is told of it, and killed at will. Times are the scheduler's.
    ``shared``: a scheduler of many worlds, each a namespace of its own."""

    room: int
    skew: int = 0  # how far the server's clock is ahead
    cut: int | None = None  # the scheduler is killed when it has carried out so many of its first binds
    now: int = START
    pods: dict[str, Pod] = field(default_factory=dict)
    owners: dict[str, Owner] = field(default_factory=dict)
    came: dict[str, int] = field(default_factory=dict)  # by uid, owners and pods without one
    started: int | None = None  # how many there were when the first were bound
    shared: Driver | None = None

    def __post_init__(self) -> None:
        self.scheduler = self.shared or self.fresh()

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
        self.put(what)
        self.cycle()

    def put(self, what: Pod | Owner | str) -> None:
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

    def pass_time(self, ms: int) -> None:
        if not ms:
            return
        until = self.now + ms
        while (due := self.scheduler.next_due()) is not None and due < until:
            self.now = max(self.now + 1, due)
            self.cycle()
        self.now = max(self.now, until)
        self.cycle()

    def cycle(self) -> None:
        self.carry_out([bind for some in self.scheduler.cycle(self.now).binds for bind in some])

    def carry_out(self, binds: list[Bind]) -> None:
        if binds and self.started is None:
            self.judge(binds)
            self.started = len(self.pods)
        elif binds:
            self.judge_late(binds)
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

    def judge_late(self, binds: list[Bind]) -> None:
        """Those that join a group which runs start with all that their owner makes."""
        have = {bind.uid for bind in binds} | {uid for uid, pod in self.pods.items() if pod.spec.node_name}
        late = {ref.uid for bind in binds for ref in bind.pod.metadata.owner_references or ()}
        for uid in late & self.owners.keys():
            mine = {
                each.metadata.uid
                for each in self.pods.values()
                if any(ref.uid == uid for ref in each.metadata.owner_references or ())
            }
            assert len(mine & have) >= self.owners[uid].pods, f"a part of {self.owners[uid].key} starts"

    def leave(self, owner: Owner) -> None:
        """An owner is deleted."""
        gone = self.owners.pop(owner.metadata.uid)
        del self.came[owner.metadata.uid]
        self.scheduler.handle(Changed(gone, None))

    def collect(self, owner: Owner) -> None:
        """The garbage collector deletes the pods of an owner that is gone."""
        for uid, pod in list(self.pods.items()):
            if any(ref.uid == owner.metadata.uid for ref in pod.metadata.owner_references or ()):
                del self.pods[uid]
                self.scheduler.remove_pod(pod)


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


class Worlds:
    """Worlds of one group each that one scheduler has at once: much of a cycle costs the same for many.
    ``room`` for all of them."""

    def __init__(self, count: int, room: int) -> None:
        self.scheduler, self.now = Driver(), START
        self.scheduler.set_node(node("n1", cpu=str(room), pods="9999"))
        self.each = {f"w{number}": World(room, shared=self.scheduler) for number in range(count)}

    def cycle(self) -> None:
        binds: dict[str, list[Bind]] = {}
        for bind in (each for some in self.scheduler.cycle(self.now).binds for each in some):
            binds.setdefault(bind.pod.metadata.namespace, []).append(bind)
        for namespace, found in binds.items():
            self.each[namespace].carry_out(found)

    def step(self, events: dict[str, Pod | Owner | Leaves]) -> None:
        """What happens in some of them, at once. An owner's pods are deleted after it."""
        gone = {name: event.owner for name, event in events.items() if isinstance(event, Leaves)}
        for name, event in events.items():
            world = self.each[name]
            if isinstance(event, Leaves):
                world.leave(event.owner)
            else:
                world.put(event)
        self.cycle()
        for name, owner in gone.items():
            self.each[name].collect(owner)
        if gone:
            self.cycle()

    def pass_time(self, ms: int) -> None:
        until = self.now + ms
        while ms and (due := self.scheduler.next_due()) is not None and due < until:
            self._set_time(max(self.now + 1, due))
            self.cycle()
        if until > self.now:
            self._set_time(until)
            self.cycle()

    def _set_time(self, now: int) -> None:
        self.now = now
        for world in self.each.values():
            world.now = now


def play_all(orders: Iterator[Any], room: int, gap: int, *, each_has_room: bool = True) -> Iterator[World]:
    """Every order in a world of its own; the worlds at the end."""
    while some := list(itertools.islice(orders, AT_ONCE)):
        worlds = Worlds(len(some), room * len(some) if each_has_room else room)
        lanes = {
            name: [moved(each, name) for each in order] for name, order in zip(worlds.each, some, strict=True)
        }
        for at in range(max(map(len, some))):
            worlds.step({name: lane[at] for name, lane in lanes.items() if at < len(lane)})
            worlds.pass_time(gap)
        worlds.pass_time(4 * QUIET)
        yield from worlds.each.values()


def moved(thing: Any, namespace: str) -> Any:
    """The same in another namespace: other objects, of the same names."""
    if isinstance(thing, Leaves):
        return Leaves(moved(thing.owner, namespace))
    if isinstance(thing, Group):
        return replace(thing, namespace=namespace, uid=f"{namespace}-{thing.uid}")
    meta = thing.metadata
    refs = [replace(each, uid=f"{namespace}-{each.uid}") for each in meta.owner_references or ()]
    uid = f"{namespace}-{meta.uid}"
    return replace(thing, metadata=replace(meta, namespace=namespace, uid=uid, owner_references=refs or None))


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
    """The two Jobs of an application, and a pod beside them: whatever comes first, no part starts alone. Of
    orders that differ in the names of two workers, one."""
    things: list[Pod | Owner] = [
        *part("head", Job, 1, template=False),
        *part("work", Job, 2, template=False),
        *part("log", None, 1, template=False),
    ]
    orders = (
        each for each in itertools.permutations(things) if each.index(things[3]) < each.index(things[4])
    )
    some = itertools.islice(orders, 0, None, amount(1, quick=7))
    for world in play_all(some, room, 700, each_has_room=room >= 4):
        assert world.started == (4 if room >= 4 else None)
        assert sum(pod.spec.node_name is not None for pod in world.pods.values()) == (world.started or 0)


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


@dataclass(frozen=True)
class Leaves:
    """An owner is deleted."""

    owner: Owner


def interleavings(owners: int) -> Iterator[list[Pod | Owner | Leaves]]:
    """Every order in which so many owners of one pod each, and their pods, are seen. Then the same with a
    first owner that leaves, at every moment after it and its pod. Of orders that differ in the names of
    owners, one."""
    things = [each for i in range(owners) for each in part(f"p{i}", Job, 1, template=False)]
    first = things[0]
    assert isinstance(first, Job)
    for order in itertools.permutations(things):
        at = [order.index(each) for each in things[::2]]  # the owners
        if at == sorted(at):
            yield list(order)
        if at[1:] != sorted(at[1:]):
            continue
        for last in range(max(order.index(first), order.index(things[1])) + 1, len(order) + 1):
            yield [*order[:last], Leaves(first), *order[last:]]


@pytest.mark.parametrize("gap", [0, 700])
@pytest.mark.parametrize("owners", [1, 2, 3])
def test_every_interleaving_of_owners_and_pods_also_with_an_owner_that_leaves(owners: int, gap: int) -> None:
    """On each bind: no pod of the group is bound before it has settled."""
    orders = itertools.islice(interleavings(owners), 0, None, amount(1, quick=5))
    for world in play_all(orders, owners, gap):
        runs = sum(pod.spec.node_name is not None for pod in world.pods.values())
        assert runs == len(world.pods), f"what is left starts: {world}"


def test_a_pod_without_an_owner_does_not_stand_in_for_one_that_an_owner_has_yet_to_make() -> None:
    """A group runs, and one pod of two of a Job joins it, then a pod without an owner."""
    head, late = part("head", None, 2, template=False)
    job, first, second = part("job", Job, 2, template=False)
    world = World(room=10, skew=0, cut=None)
    world.add(head)
    world.pass_time(QUIET + 1_000)
    assert world.started == 1
    for joins in (first, job, late):
        world.add(joins)
    assert sum(pod.spec.node_name is not None for pod in world.pods.values()) == 1
    world.add(second)
    world.pass_time(QUIET)
    assert all(pod.spec.node_name for pod in world.pods.values())
