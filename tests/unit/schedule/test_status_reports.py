"""What a group is told while its members come: how much is said does not grow with their number."""

from __future__ import annotations

from fluence import messages
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeStatus
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)


class World:
    """A scheduler, its clock and all that it said."""

    def __init__(self, needed: int) -> None:
        self.now = NOW
        self.scheduler = Driver(native=True)
        self.scheduler.set_node(
            Node(
                metadata=ObjectMeta(name="n"),
                status=NodeStatus(
                    allocatable={"cpu": "1000", "memory": "1Ti", "pods": "1000"},
                    conditions=[Condition(type="Ready", status="True")],
                ),
            )
        )
        self.scheduler.set_group(kit.group("g", needed))
        self.said: list[tuple[int, int, str]] = []  # when, to how many, what
        self.bound = 0

    def come(self, count: int, *, every: int) -> None:
        for i in range(count):
            self.scheduler.set_pod(kit.pod(f"g-{i}", field="g"))
            self.cycle()
            self.wait(every)

    def wait(self, ms: int) -> None:
        """As the live loop does: a cycle when one is due."""
        end = self.now + ms
        while (due := self.scheduler.next_due()) is not None and due < end:
            self.now = max(due, self.now + 1)
            self.cycle()
        self.now = end

    def cycle(self) -> None:
        decisions = self.scheduler.cycle(self.now)
        self.bound += sum(map(len, decisions.binds))
        self.said += [
            (self.now - NOW, len(each.pods), messages.texts(each.reasons)) for each in decisions.waiting
        ]


def test_a_gang_whose_members_come_one_by_one_is_told_nothing_if_they_all_come() -> None:
    world = World(100)
    world.come(100, every=20)
    assert world.said == [] and world.bound == 100


def test_a_gang_that_stays_incomplete_is_told_once_what_is_missing() -> None:
    world = World(100)
    world.come(50, every=20)
    world.wait(60_000)
    assert (
        world.said == [(49 * 20 + 1000, 50, "Waiting for 50 of 100 pods of group default/g to be created")]
        and world.bound == 0
    )


def test_a_gang_that_gathers_for_long_is_told_now_and_then() -> None:
    world = World(1000)
    world.come(100, every=900)
    assert [at for at, _, _ in world.said] == [10_800 + 11_700 * i for i in range(7)]
    assert world.said[-1][2] == (
        f"Waiting for {1000 - world.said[-1][1]} of 1000 pods of group default/g to be created"
    )


def test_what_is_missing_is_not_told_of_a_gang_that_went() -> None:
    world = World(2)
    world.come(1, every=10)
    world.scheduler.remove_pod(kit.pod("g-0", field="g"))
    world.cycle()
    world.wait(60_000)
    assert world.said == []


def test_a_gang_that_is_refused_meanwhile_is_told_that() -> None:
    world = World(2)
    world.come(1, every=10)
    world.scheduler.set_pod(kit.pod("g-1", field="g", scheduler="another"))
    world.cycle()
    world.wait(60_000)
    assert [(at, "have another schedulerName" in reason) for at, _, reason in world.said] == [(10, True)]
