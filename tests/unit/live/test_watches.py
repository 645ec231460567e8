"""What watches see becomes the scheduler's events; of a Workload, one for each group in it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.gangs import (
    Coscheduling,
    CustomGroups,
    Kai,
    NoGangs,
    PodGroup,
    PodGroups136,
    SigPodGroup,
    Volcano,
    Workload,
    Workloads135,
)
from fluence.live.watches import Watches
from fluence.model.owner import Group
from fluence.schedule.events import Changed, Event
from tests.unit.cluster.build import node
from tests.unit.schedule import kit

NOWHERE = Access(server="http://127.0.0.1:1")


class World:
    """Watches whose stores are filled by hand: nothing is sent."""

    def __init__(self, gangs: Any, coscheduling: CustomGroups | None = None) -> None:
        self.events: list[Event] = []
        self.watches = Watches(Client(NOWHERE), self.events.append)
        self.watches.follow()
        if gangs.resource is not None:
            self.watches.follow_native(gangs)
        if coscheduling is not None:
            self.watches.follow_custom(coscheduling)

    def take(self) -> list[tuple[str | None, str | None]]:
        """What happened since the last call: the names before and after."""
        found, self.events[:] = list(self.events), []
        assert all(isinstance(each, Changed) for each in found)
        return [(_name(each.old), _name(each.new)) for each in found if isinstance(each, Changed)]

    def last(self) -> Any:
        """The store of the last kind that is followed."""
        return self.watches.all[-1].store


def _name(found: Any) -> str | None:
    if found is None:
        return None
    return f"{found.name}:{found.min_count}" if isinstance(found, Group) else str(found.metadata.name)


def workload(version: int, uid: str = "u", **sizes: int) -> Workload:
    groups = [{"name": name, "policy": {"gang": {"minCount": size}}} for name, size in sizes.items()]
    meta = {"name": "w", "namespace": "d", "uid": uid, "resourceVersion": str(version)}
    return msgspec.convert({"metadata": meta, "spec": {"podGroups": groups}}, Workload)


def test_a_workload_is_as_many_groups_as_it_holds() -> None:
    world = World(Workloads135())
    world.last().put(workload(1, a=2, b=3))
    assert world.take() == [(None, "w/a:2"), (None, "w/b:3")]


def test_a_group_that_goes_while_its_workload_stays_is_gone() -> None:
    world = World(Workloads135())
    world.last().put(workload(1, a=2, b=3))
    world.take()
    world.last().put(workload(2, b=4, c=1))
    assert world.take() == [("w/b:3", "w/b:4"), (None, "w/c:1"), ("w/a:2", None)]


def test_with_its_workload_every_group_is_gone() -> None:
    world = World(Workloads135())
    world.last().put(workload(1, a=2, b=3))
    world.take()
    world.last().remove(("d", "w"))
    assert world.take() == [("w/a:2", None), ("w/b:3", None)]


def test_a_workload_that_was_made_anew_is_gone_and_new() -> None:
    world = World(Workloads135())
    world.last().put(workload(1, a=2))
    world.take()
    world.last().put(workload(2, uid="another", a=5))
    assert world.take() == [("w/a:2", None), (None, "w/a:5")]


def test_a_podgroup_is_one_group() -> None:
    world = World(PodGroups136())

    def group(version: int, size: int) -> PodGroup:
        meta = {"name": "g", "namespace": "d", "uid": "u", "resourceVersion": str(version)}
        return msgspec.convert(
            {"metadata": meta, "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}, PodGroup
        )

    world.last().put(group(1, 2))
    world.last().put(group(2, 3))
    world.last().remove(("d", "g"))
    assert world.take() == [(None, "g:2"), ("g:2", "g:3"), ("g:3", None)]


def test_the_podgroups_of_coscheduling_are_followed_beside_the_native_ones() -> None:
    both = World(PodGroups136(), Coscheduling())
    alone = World(NoGangs(), Coscheduling())
    assert len(both.watches.all) == len(alone.watches.all) + 1
    meta = {"name": "g", "namespace": "d", "uid": "u", "resourceVersion": "1"}
    found = msgspec.convert({"metadata": meta, "spec": {"minMember": 4}}, SigPodGroup)
    alone.last().put(found)
    alone.last().remove(("d", "g"))
    assert alone.take() == [(None, "g:4"), ("g:4", None)]


@pytest.mark.parametrize("adapter", [Volcano(), Kai()])
def test_the_podgroups_of_other_systems_are_followed_with_their_source(adapter: CustomGroups) -> None:
    world = World(NoGangs(), adapter)
    meta = {"name": "g", "namespace": "d", "uid": "u", "resourceVersion": "1"}
    for index, spec in enumerate(({"minMember": 4}, {"minMember": None, "queue": "q"}, {"minMember": -2})):
        meta["resourceVersion"] = str(index + 1)
        world.last().put(msgspec.convert({"metadata": meta, "spec": spec}, SigPodGroup))
    found = [each.new for each in world.events if isinstance(each, Changed)]
    assert [(each.source, each.min_count) for each in found if isinstance(each, Group)] == [
        (adapter.resource.api_version, size) for size in (4, 1, 1)
    ]


def test_other_objects_are_passed_on_as_they_are() -> None:
    world = World(NoGangs())
    pod, there = kit.pod("a"), node("n1")
    world.watches.pods.store.put(pod)
    world.watches.nodes.store.put(there)
    world.watches.pods.store.remove(("default", "a"))
    assert world.events == [Changed(None, pod), Changed(None, there), Changed(pod, None)]
    kinds = {each.store for each in world.watches.all}
    assert len(kinds) == len(world.watches.all) == 13


async def test_it_is_in_step_when_every_kind_was_listed_once() -> None:
    world = World(NoGangs())
    waits = asyncio.create_task(world.watches.synced())
    for reflector in world.watches.all[1:]:
        reflector.synced.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waits.done()
    world.watches.all[0].synced.set()
    await asyncio.wait_for(waits, 120)
