"""How a concern is added: a step of its own, through the configuration, that nothing else knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.schedule.cycle import Decisions, Rooms
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.step import GroupFault, Step, working_on
from tests.unit.cluster.build import bound, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
ROOT = Path(__file__).parents[3]


class Census(Step):
    """Counts the pods of each group, and looks once a minute which groups it may forget."""

    def __init__(self, *, groups: Groups) -> None:
        self._groups = groups
        self.pods: dict[str, int] = {}
        self.forgotten: list[str] = []
        self.ran: list[int] = []
        self.fails_for = ""

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, Changed) and isinstance(event.object, Pod) and event.old is None:
            group = self._groups.of(event.object)
            self.pods[group] = self.pods.get(group, 0) + 1

    def run(self, now: int, decisions: Decisions) -> None:
        self.ran.append(now)
        for group in self.pods:
            with working_on(group):
                if group == self.fails_for:
                    raise ZeroDivisionError

    def next_due(self) -> int | None:
        return self.ran[-1] + 60_000 if self.ran else None

    def forget(self, group: str) -> None:
        self.pods.pop(group, None)
        self.forgotten.append(group)


@pytest.fixture
def made() -> list[Census]:
    return []


@pytest.fixture
def driver(made: list[Census]) -> Driver:
    def make(rooms: Rooms) -> Step:
        made.append(Census(groups=rooms.groups))
        return made[-1]

    driver = Driver(steps=(make,), strict=False)
    driver.set_node(node("n1", cpu="4"))
    return driver


def test_a_step_sees_events_runs_in_the_cycle_and_says_when_it_is_due(
    driver: Driver, made: list[Census]
) -> None:
    driver.set_pod(kit.pod("a"))
    (census,) = made
    assert census.pods == {"default/pod:a": 1} and census.ran == []
    driver.cycle(NOW)
    assert census.ran == [NOW]
    due = driver.next_due()
    assert due is not None and due <= NOW + 60_000


def test_a_step_that_is_the_only_one_that_is_due_wakes_the_scheduler(
    driver: Driver, made: list[Census]
) -> None:
    driver.cycle(NOW)
    assert driver.next_due() == NOW + 60_000


def test_a_step_forgets_a_group_that_is_gone(driver: Driver, made: list[Census]) -> None:
    pod = kit.pod("a")
    driver.set_pod(pod)
    ((bind,),) = driver.cycle(NOW).binds
    driver.set_pod(bound(bind.pod, bind.node))
    driver.cycle(NOW + 1)
    assert made[0].forgotten == []
    driver.remove_pod(bound(bind.pod, bind.node))
    driver.cycle(NOW + 2)
    driver.cycle(NOW + 3)
    assert "default/pod:a" in made[0].forgotten and made[0].pods == {}


def test_a_step_that_fails_names_the_group_and_only_that_one_is_left_out(
    driver: Driver, made: list[Census]
) -> None:
    driver.set_pod(kit.pod("a"))
    driver.set_pod(kit.pod("b"))
    made[0].fails_for = "default/pod:a"
    decisions = driver.cycle(NOW)
    assert [str(fault.subject) for fault in driver.faults] == ["group default/pod:a"]
    assert isinstance(driver.faults[0].error, ZeroDivisionError)
    assert [bind.pod.metadata.name for binds in decisions.binds for bind in binds] == ["b"]
    assert len(made) == 2, "the rooms are made anew, and the step with them"


def test_blame_stays_with_the_innermost_group() -> None:
    with pytest.raises(GroupFault) as caught, working_on("outer"), working_on("inner"):
        raise KeyError("x")
    assert caught.value.group == "inner" and isinstance(caught.value.__cause__, KeyError)


def test_steps_that_override_nothing_do_nothing() -> None:
    step, decisions = Step(), Decisions()
    step.observe(Changed(None, Node()), 0)
    step.run(0, decisions)
    step.forget("g")
    assert decisions == Decisions() and step.next_due() is None


def test_the_page_lists_the_steps_of_the_cycle_in_their_order() -> None:
    source = (ROOT / "src/fluence/schedule/cycle.py").read_text()
    page = (ROOT / "docs/scheduler-cycle.md").read_text()
    steps = re.findall(r"^        # (\d+\. .*)$", source, re.M)
    assert len(steps) >= 13 and [int(each.partition(".")[0]) for each in steps] == list(
        range(1, len(steps) + 1)
    )
    assert re.findall(r"^(\d+\. .*)$", page.partition("## Steps")[2].partition("\n## ")[0], re.M) == steps


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_tables_of_rooms_have_every_room_and_no_other(page: str) -> None:
    packages = {path.parent.name for path in (ROOT / "src/fluence").glob("*/__init__.py")}
    rows = re.findall(r"^\| ((?:`[\w.]+`(?:, )?)+) \|", (ROOT / page).read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    assert packages <= named
    modules = {name for name in named if name.endswith(".py")}
    assert all((ROOT / "src/fluence" / name).exists() for name in modules)
