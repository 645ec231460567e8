"""What a seat stands on is looked at whenever a bind goes out: first, again, after volumes, in the binder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluence.cluster.claims import Claim
from fluence.model.node import Taint
from fluence.model.pod import ClaimVolumeSource, PodVolume
from fluence.model.reason import Code
from fluence.schedule.events import Bind, BindOutcome, BindResult
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_devices import World, as_bound, asks, backend

BOTH = """
resources:
- {type: qpu, name: fez, attributes: {vendor: ibm}, with: [{type: qubit, count: 156}]}
- {type: qpu, name: ankaa, attributes: {vendor: rigetti}, with: [{type: qubit, count: 84}]}
- {type: licence, name: solver, count: 3}
"""
WITHOUT_FEZ = BOTH.replace("name: fez", "name: garnet")
FEZ_OFFLINE = BOTH.replace("name: fez", "name: fez, status: offline")
FEZ_SOLD = BOTH.replace("vendor: ibm", "vendor: acme")
FEWER = BOTH.replace("count: 3", "count: 1")

CHANGES: dict[str, tuple[Callable[[Driver], None], Code]] = {
    "gone": (lambda driver: driver.remove_node("n1"), Code.NODE_GONE),
    "cordoned": (lambda driver: driver.set_node(node("n1", unschedulable=True)), Code.NODE_CLOSED),
    "not ready": (lambda driver: driver.set_node(node("n1", ready=False)), Code.NODE_CLOSED),
    "tainted": (
        lambda driver: driver.set_node(node("n1", taints=[Taint(key="k", effect="NoSchedule")])),
        Code.NODE_CLOSED,
    ),
    "smaller": (lambda driver: driver.set_node(node("n1", cpu="1")), Code.ROOM_TAKEN),
    "filled": (
        lambda driver: driver.set_pod(kit.pod("foreign", scheduler="other", node="n1", cpu="3")),
        Code.ROOM_TAKEN,
    ),
}


def again(driver: Driver, *binds: Bind) -> None:
    for bind in binds:
        driver.told(BindResult(bind, BindOutcome.AGAIN), driver.now)


def sent(driver: Driver, after: int = 1000) -> list[Bind]:
    return [bind for binds in driver.cycle(driver.now + after).binds for bind in binds]


def one(driver: Driver) -> Bind:
    (bind,) = sent(driver, after=0)
    return bind


@pytest.mark.parametrize("change", CHANGES)
def test_a_bind_is_refused_and_not_sent_again_where_its_node_has_become(change: str) -> None:
    happens, code = CHANGES[change]
    driver = World(BOTH, "n1")
    driver.set_pod(kit.pod("a", cpu="2"))
    bind = one(driver)
    assert driver.scheduler.refuses(bind) is None
    happens(driver)
    lost = driver.scheduler.refuses(bind)
    assert lost is not None and lost.code is code
    again(driver, bind)
    assert sent(driver) == [] and driver.cluster.jobs == {}
    driver.set_node(node("n2"))
    (moved,) = sent(driver)
    assert moved.node == "n2", "it waits again, and starts elsewhere"


def test_a_bind_of_a_pod_without_a_seat_needs_a_node_that_is_there_and_open() -> None:
    driver = World(BOTH, "n1")
    pod = kit.pod("a")
    assert driver.scheduler.refuses(Bind(pod, "n1", "job", {})) is None
    lost = driver.scheduler.refuses(Bind(pod, "nowhere", "job", {}))
    assert lost is not None and lost.code is Code.NODE_GONE
    driver.set_node(node("n1", unschedulable=True))
    lost = driver.scheduler.refuses(Bind(pod, "n1", "job", {}))
    assert lost is not None and lost.code is Code.NODE_CLOSED


def test_a_bind_whose_node_came_back_under_its_name_has_no_seat_there() -> None:
    driver = World(BOTH, "n1")
    driver.set_pod(kit.pod("a", cpu="2"))
    bind = one(driver)
    driver.remove_node("n1")
    driver.set_node(node("n1"))
    lost = driver.scheduler.refuses(bind)
    assert lost is not None and lost.code is Code.NODE_GONE


@pytest.mark.parametrize("text", [WITHOUT_FEZ, FEZ_OFFLINE, FEZ_SOLD])
def test_a_bind_is_refused_and_decided_anew_where_its_device_is_not_what_it_was(text: str) -> None:
    world = World(BOTH)
    pod = asks("a", qpu=1, **({"vendor": "ibm"} if text is FEZ_SOLD else {}))  # type: ignore[arg-type]
    world.set_pod(pod)
    bind = one(world)
    assert backend(bind) == "fez" and world.scheduler.refuses(bind) is None
    world.declare(text)
    lost = world.scheduler.refuses(bind)
    assert lost is not None and lost.code is Code.DEVICE_LOST and lost["backend"] == "fez"
    again(world, bind)
    assert [backend(each) for each in sent(world)] == []
    assert [backend(each) for each in sent(world)] == ([] if text is FEZ_SOLD else [backend_of(text)])


def backend_of(text: str) -> str:
    return "garnet" if text is WITHOUT_FEZ else "ankaa"


def test_of_a_device_that_became_less_nobody_is_given_more_than_there_is() -> None:
    world = World(BOTH)
    world.run(asks("runs", licence=1))
    world.set_pod(asks("a", licence=1))
    bind = one(world)
    world.declare(FEWER)
    again(world, bind)
    assert sent(world) == [] and sent(world) == []
    assert world.why("default/pod:a")[0].code is Code.DEVICE_BUSY


def test_what_bound_members_share_is_for_the_rest_of_the_gang_whatever_becomes_of_it() -> None:
    world = World(BOTH)
    world.set_group(kit.group("g", 2))
    for index in range(2):
        world.set_pod(asks(f"g-{index}", qpu=1, field="g"))
    first, second = sent(world, after=0)
    world.told(BindResult(first, BindOutcome.BOUND), world.now)
    world.set_pod(as_bound(first))
    world.declare(WITHOUT_FEZ)
    again(world, second)
    assert [backend(bind) for bind in sent(world)] == ["fez"]


def test_a_late_member_does_not_borrow_a_device_that_is_gone_from_one_that_is_not_bound() -> None:
    world = World(BOTH)
    world.set_group(kit.group("g", 1))
    world.set_pod(asks("g-0", qpu=1, field="g"))
    bind = one(world)
    again(world, bind)
    world.declare(WITHOUT_FEZ)
    world.set_pod(asks("g-1", qpu=1, field="g"))
    assert [backend(each) for each in sent(world, after=1)] == ["garnet"]
    assert sent(world) == []
    assert [(each.pod.metadata.name, backend(each)) for each in sent(world)] == [("g-0", "garnet")]


def test_the_first_binds_of_a_gang_are_sent_again_together_or_not_at_all() -> None:
    world = World(BOTH, "n1", "n2", cpu="1")
    world.set_group(kit.group("g", 2))
    for index in range(2):
        world.set_pod(kit.pod(f"g-{index}", field="g"))
    again(world, *sent(world, after=0))
    world.set_node(node("n2", cpu="1", unschedulable=True))
    assert sent(world) == [] and world.cluster.jobs == {}
    world.set_node(node("n2", cpu="1"))
    assert len(sent(world)) == 2


def test_the_rest_of_a_gang_that_has_begun_is_sent_without_those_that_lost_their_seats() -> None:
    world = World(BOTH, "n1", "n2", "n3", cpu="1")
    world.set_group(kit.group("g", 3))
    for index in range(3):
        world.set_pod(kit.pod(f"g-{index}", field="g"))
    first, second, third = sent(world, after=0)
    world.told(BindResult(first, BindOutcome.BOUND), world.now)
    world.set_pod(as_bound(first))
    again(world, second, third)
    world.set_node(node(second.node, cpu="1", unschedulable=True))
    assert sent(world) == [third]
    world.set_node(node("n4", cpu="1"))
    assert [(bind.pod.metadata.name, bind.node) for bind in sent(world)] == [(second.pod.metadata.name, "n4")]


def test_a_pod_whose_volumes_are_ready_and_whose_device_is_gone_is_decided_anew() -> None:
    world = World(BOTH)
    world.set_claim("default", "data", Claim("waits", uid="u"))
    source = ClaimVolumeSource(claim_name="data")
    world.set_pod(asks("a", qpu=1, volumes=[PodVolume(persistent_volume_claim=source)]))
    assert sent(world, after=0) == []
    world.declare(WITHOUT_FEZ)
    world.set_claim("default", "data", Claim("bound", uid="u"))
    assert sent(world) == []
    assert [backend(bind) for bind in sent(world)] == ["garnet"]
