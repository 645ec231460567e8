"""Gangs of operators and of other systems start whole, in whatever order they come and over restarts."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence import names
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.schedule.events import Bind
from tests.amounts import amount
from tests.property.test_open_groups import RESTART, World
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_operators import KINDS, WHOLE

VOLCANO, KAI = "scheduling.volcano.sh/v1beta1", "scheduling.run.ai/v2alpha2"
SIZE = 3


def named(labels: dict[str, str], annotations: dict[str, str]) -> list[Pod]:
    return [kit.pod(f"p{i}", labels=labels, annotations=annotations) for i in range(SIZE)]


TASKS = json.dumps([{"name": "head", "minMember": 1}, {"name": "work", "minMember": SIZE - 1}])
GANGS: dict[str, list[Any]] = {
    **{kind: [top, *parts] for kind, (top, parts) in WHOLE.items()},
    "kueue": named({names.KUEUE_GROUP: "g"}, {names.KUEUE_SIZE: str(SIZE)}),
    "volcano": [kit.group("g", SIZE, source=VOLCANO), *named({}, {names.VOLCANO_GROUPS[0]: "g"})],
    "kai": [kit.group("g", SIZE, source=KAI), *named({names.KAI_GROUP: "g"}, {})],
    "yunikorn": named(
        {"applicationId": "g"}, {names.YUNIKORN_TASK_GROUP: "work", names.YUNIKORN_TASK_GROUPS: TASKS}
    ),
}


@dataclass
class SizedWorld(World):
    """One whose gang has a size that something says."""

    groups: list[Group] = field(default_factory=list)

    def fresh(self) -> Driver:
        driver = super().fresh()
        driver.scheduler.follow(KINDS)
        driver.scheduler.set_native(False, frozenset(("volcano", "kai")))
        for group in self.groups:
            driver.set_group(group)
        return driver

    def add(self, what: Pod | Owner | Group | str) -> None:
        if not isinstance(what, Group):
            super().add(what)
            return
        self.groups.append(what)
        self.scheduler.set_group(what)
        self.cycle()

    def judge(self, binds: list[Bind]) -> None:
        assert {bind.uid for bind in binds} == set(self.pods), "a part of the gang starts"
        assert len(binds) == SIZE, "it starts before all of it is there"


def end(world: SizedWorld) -> None:
    """Nothing settles: it starts as soon as the last of it is there."""
    runs = sum(pod.spec.node_name is not None for pod in world.pods.values())
    assert runs == (SIZE if world.room >= SIZE else 0)


@pytest.mark.parametrize("kind", GANGS)
def test_every_order_of_owners_groups_and_pods(kind: str) -> None:
    things = GANGS[kind]
    stride = amount(1, quick=11) if math.factorial(len(things)) > 100 else 1
    for order in itertools.islice(itertools.permutations(things), 0, None, stride):
        world = SizedWorld(SIZE)
        for each in order:
            world.add(each)
        end(world)


@given(
    kind=st.sampled_from(sorted(GANGS)),
    data=st.data(),
    room=st.integers(0, 4),
    cut=st.none() | st.integers(0, SIZE),
)
@settings(max_examples=300, deadline=None)
def test_in_any_order_and_over_restarts_a_gang_starts_as_a_whole(
    kind: str, data: st.DataObject, room: int, cut: int | None
) -> None:
    """The scheduler is restarted at any time, and killed when it has carried out some of its binds."""
    restarts = data.draw(st.integers(0, 3))
    world = SizedWorld(room, cut=cut)
    for each in data.draw(st.permutations([*GANGS[kind], *[RESTART] * restarts])):
        world.add(each)
        world.pass_time(data.draw(st.sampled_from([0, 0, 200, 5_000])))
    world.pass_time(1_000)
    end(world)
