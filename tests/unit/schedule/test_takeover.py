"""What those that wait were told before a restart: who is believed, for how long, and what waits for it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import Condition
from fluence.model.pod import Pod, PodStatus
from fluence.model.reason import Code
from fluence.schedule import restart
from fluence.schedule.pod_set import SLICE
from fluence.schedule.restart import PriorPromise, Promise, Takeover
from fluence.units import rfc3339
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_promised_starts import node

NOW = int(kit.T0.timestamp() * 1000)
HOUR = 3_600_000


def waits(
    name: str,
    *,
    told: int | None = None,
    queued: str = "",
    cpu: str = "2",
    age: int = 0,
    group: str | None = None,
) -> Pod:
    """A pod for an hour, which was told a start so many ms from now, or none."""
    notes = {names.DURATION: "1h"} | ({names.QUEUED: queued} if queued else {})
    made = kit.pod(name, annotations=notes, cpu=cpu, age=age, field=group)
    if told is None:
        return made
    said = restart.promise_condition(Promise(NOW + told, limit=HOUR))
    said["lastTransitionTime"] = rfc3339((NOW - 1000 * age) * 1000)
    return replace(made, status=PodStatus(phase="Pending", conditions=[msgspec.convert(said, Condition)]))


def runs(name: str = "runs", *, until: int = HOUR) -> Pod:
    notes = restart.annotations_for(7, NOW - 1, NOW + until)
    return kit.pod(name, annotations=notes, cpu="2", node="n0", bound=0)


def taken_over(*pods: Pod, policy: str = "conservative") -> Driver:
    driver = Driver(queue_policy=policy)
    driver.now = NOW
    driver.set_node(node("n0", 2))
    for pod in pods:
        driver.set_pod(pod)
    driver.cycle(NOW)
    return driver


def starts(driver: Driver) -> dict[str, int]:
    """When each is to start at the latest, from now on, in the queue's order."""
    queue = driver.scheduler.state.queue
    return {each.key.rpartition(":")[2]: (each.no_later_than or 0) - NOW for each in queue.waiting()}


def test_places_in_the_plan_are_given_in_the_order_of_promises() -> None:
    driver = taken_over(runs(), waits("first", age=9), waits("second", told=HOUR, age=5))
    record = driver.scheduler.state.pod_sets.by_key["default/pod:second"]
    assert record.reserved_at == NOW + HOUR and not record.broken
    assert starts(driver) == {"first": 2 * HOUR, "second": HOUR}


def test_a_promise_that_cannot_be_kept_is_broken_and_told_anew() -> None:
    driver = taken_over(runs(), waits("one", told=HOUR), waits("other", told=HOUR))
    late = driver.scheduler.state.pod_sets.by_key["default/pod:other"]
    assert [each.cause.code for each in late.broken] == [Code.RESTARTED]
    assert starts(driver) == {"one": HOUR, "other": 2 * HOUR}
    assert driver.scheduler.state.queue.promises.tally.broken == {Code.RESTARTED: 1}


def test_a_promise_that_passed_while_nobody_was_there_is_broken() -> None:
    driver = taken_over(runs(), waits("one", told=-HOUR))
    (late,) = [each for each in driver.pod_sets.by_key.values() if each.key.endswith("one")]
    assert late.broken and starts(driver) == {"one": HOUR}


def test_a_bound_that_was_told_under_backfill_stands() -> None:
    driver = taken_over(runs(), waits("one", told=5 * HOUR), policy="easy")
    assert starts(driver) == {"one": 5 * HOUR}


@pytest.mark.parametrize("forged", ["1970-01-01T00:00:00Z", "2026-09-01T11:59:51Z"])
def test_a_forged_time_of_arrival_counts_within_one_second_only(forged: str) -> None:
    driver = taken_over(
        runs(),
        waits("forger", queued=forged),
        waits("sibling", queued="2026-09-01T12:00:00.5Z"),
        waits("old", age=1),
    )
    assert list(starts(driver)) == ["old", "forger", "sibling"]


@pytest.mark.parametrize(
    "nonsense", ["soon", "-1", "99999999-01-01T00:00:00Z", "2026-09-01T12:00:00", "x" * 9999]
)
def test_a_time_of_arrival_that_cannot_be_read_is_none(nonsense: str) -> None:
    driver = taken_over(runs(), waits("odd", queued=nonsense), waits("told", queued="2026-09-01T12:00:00.5Z"))
    assert set(starts(driver)) == {"told", "odd"}


@pytest.mark.parametrize(
    ("length", "start"), [("30m", 5 * HOUR), ("1h", 5 * HOUR), ("61m", HOUR), ("", HOUR)]
)
def test_who_asks_for_longer_while_nobody_looks_is_told_anew(length: str, start: int) -> None:
    pod = waits("one", told=5 * HOUR)
    changed = replace(pod.metadata, annotations={names.DURATION: length} if length else {})
    driver = taken_over(runs(), replace(pod, metadata=changed))
    assert starts(driver) == {"one": start}
    assert not driver.pod_sets.by_key["default/pod:one"].broken


@pytest.mark.parametrize(("age", "start"), [(8, HOUR), (9, 5 * HOUR), (10, 5 * HOUR)])
def test_a_group_that_grows_while_nobody_looks_is_told_anew(age: int, start: int) -> None:
    """A member that was there and was told nothing is another matter: then a scheduler ended as it wrote."""
    driver = Driver(queue_policy="conservative")
    driver.now = NOW
    driver.set_node(node("n0", 2))
    driver.set_group(kit.group("g", 1))
    members = [waits(f"g{i}", told=5 * HOUR, age=9, group="g", cpu="500m") for i in range(2)]
    for pod in (runs(), *members, waits("new", age=age, group="g", cpu="500m")):
        driver.set_pod(pod)
    driver.cycle(NOW)
    assert [each.no_later_than for each in driver.pod_sets.by_key.values() if not each.state.has_nodes] == [
        NOW + start
    ]


def test_who_changes_what_it_asks_for_is_told_anew() -> None:
    driver = taken_over(runs(), waits("one", told=5 * HOUR))
    assert starts(driver) == {"one": 5 * HOUR}
    notes = {names.DURATION: "2h"}
    changed = waits("one", told=5 * HOUR)
    driver.set_pod(replace(changed, metadata=replace(changed.metadata, annotations=notes)))
    driver.cycle(NOW + 2000)
    assert starts(driver) == {"one": HOUR}


def test_the_first_plan_waits_for_all_that_were_told() -> None:
    """The last of many is the first in the plan, whatever is taken in before."""
    many = [waits(f"p{index:03}", told=(2 + index) * HOUR, age=500 - index) for index in range(2 * SLICE)]
    driver = Driver(queue_policy="conservative")
    driver.now = NOW
    driver.set_node(node("n0", 2))
    for pod in (runs(), *many, waits("last", told=HOUR)):
        driver.set_pod(pod)
    driver.cycle(NOW)
    assert driver.has_more and not driver.scheduler.state.queue.plan.reserved
    while driver.has_more:
        driver.cycle(NOW)
    assert driver.scheduler.state.pod_sets.by_key["default/pod:last"].reserved_at == NOW + HOUR
    assert not any(each.broken for each in driver.pod_sets.by_key.values())


def test_a_cold_start_waits_for_nobody() -> None:
    driver = Driver(queue_policy="conservative")
    driver.now = NOW
    driver.set_node(node("n0", 2))
    for index in range(2 * SLICE):
        driver.set_pod(waits(f"p{index:03}"))
    assert driver.cycle(NOW).binds and driver.has_more


def test_what_was_said_is_for_those_who_were_there() -> None:
    found = Takeover({"ns/a": PriorPromise(Promise(5)), "ns/b": PriorPromise(Promise(6))})
    found.begin(["ns/a", "ns/b"], now=0)
    assert found.holds_back
    found.remember({"ns/late": PriorPromise(Promise(7))})
    assert "ns/late" not in found.said
    assert found.told("ns/a", "ns/a", "", ()) == PriorPromise(Promise(5))  # type: ignore[arg-type]
    found.took("ns/a", 0)
    assert found.told("ns/a", "ns/a", "", ()) is None  # type: ignore[arg-type]  # it changed
    assert found.holds_back
    found.took("ns/other", 11_000)  # others are not held up for ever
    assert not found.holds_back and found.told("ns/b", "ns/b", "", ()) is None


def test_a_state_that_is_built_anew_knows_what_was_told() -> None:
    driver = taken_over(runs(), waits("b"), waits("a"))
    before = starts(driver)
    driver.scheduler.start_over(list(driver.scheduler._objects.values()), NOW)
    driver.cycle(NOW)
    assert starts(driver) == before and list(before) == ["b", "a"]
