"""Objects that once stopped the scheduler for everybody: somebody else must start all the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fluence import names
from fluence.cluster.graph import ClusterGraph, PodSetRequest, job_number
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeStatus
from fluence.model.pod import Pod
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)


def node(name: str, cpu: str = "8", **more: str) -> Node:
    return Node(
        metadata=ObjectMeta(name=name),
        status=NodeStatus(
            allocatable={"cpu": cpu, "memory": "64Gi", "pods": "110", **more},
            conditions=[Condition(type="Ready", status="True")],
        ),
    )


def starts(driver: Driver, *pods: Pod) -> set[str]:
    """Which of some pods are bound within a few cycles."""
    found: set[str] = set()
    for second in range(5):
        for binds in driver.cycle(NOW + second * 1000).binds:
            found |= {bind.pod.metadata.name for bind in binds}
    return found


def world(*, strict: bool = True, **config: Any) -> Driver:
    driver = Driver(native=True, strict=strict, **config)
    driver.set_node(node("n1"))
    driver.set_node(node("n2"))
    return driver


@pytest.mark.parametrize("policy", ["easy", "conservative", "fcfs", "hybrid", "first-fit"])
@pytest.mark.parametrize(
    ("count", "requests"),
    [(2, {"cpu": "1e17"}), (3, {"memory": "1e30"}), (1, {"cpu": "1e30"}), (2, {"cpu": "9E"})],
)
def test_a_gang_that_asks_for_more_than_can_be_counted(policy: str, count: int, requests: Any) -> None:
    driver = world(queue_policy=policy)
    driver.set_group(kit.group("evil", count))
    for index in range(count):
        driver.set_pod(_asking(kit.pod(f"evil-{index}", field="evil"), requests))
    driver.set_pod(kit.pod("good"))
    assert starts(driver) == {"good"}
    (told,) = {pod_set.state.value for pod_set in driver.pod_sets.by_key.values() if "evil" in pod_set.key}
    assert told == "unschedulable"


@pytest.mark.parametrize("scheduler", ["fluence", "default-scheduler"])
def test_a_pod_that_was_put_on_a_node_with_more_than_can_be_counted(scheduler: str) -> None:
    driver = world()
    driver.set_pod(
        _asking(kit.pod("evil", node="n1", scheduler=scheduler), {"cpu": "1e30", "memory": "1e30"})
    )
    driver.set_pod(kit.pod("good"))
    assert starts(driver) == {"good"}


@pytest.mark.parametrize(
    "has", [{"cpu": "1e30"}, {"cpu": "5e15", "memory": "8e18"}, {"nvidia.com/gpu": "1e30"}]
)
def test_a_node_that_says_it_has_more_than_can_be_counted(has: dict[str, str]) -> None:
    driver = world()
    driver.set_node(node("evil", **has))
    driver.set_pod(kit.pod("good"))
    assert starts(driver) == {"good"}


def test_a_forged_job_id_claims_nothing_of_another_group() -> None:
    """A pod that was placed directly says the number of a job that waits."""
    driver = world()
    waits = kit.pod("good", gated=True)
    driver.set_pod(waits)
    forged = {names.JOBID: str(job_number(waits.metadata.uid))}
    driver.set_pod(kit.pod("evil", node="n1", annotations=forged))
    driver.cycle(NOW)
    driver.set_pod(kit.pod("good"))
    assert starts(driver) == {"good"}
    assert sorted(map(len, driver.cluster.jobs.values())) == [1, 1]


def test_two_pods_of_two_groups_that_say_one_job_id_are_two_jobs() -> None:
    driver = world()
    said = {names.JOBID: "7", names.ALLOCATION: f'{{"start":{NOW}}}'}
    driver.set_pod(kit.pod("a", node="n1", annotations=said))
    driver.set_pod(kit.pod("b", node="n2", annotations=said))
    driver.cycle(NOW)
    assert sorted(map(len, driver.cluster.jobs.values())) == [1, 1]


def test_a_group_that_loses_its_oldest_pod_and_gets_one_that_was_placed_directly() -> None:
    driver = world()
    label = {names.GROUP_LABEL: "g"}
    size = {names.GROUP_SIZE: "2"}
    first, second = (
        kit.pod(f"g-{i}", labels=label, annotations=size, age=9 - i, node="n1") for i in range(2)
    )
    driver.set_pod(first)
    driver.set_pod(second)
    driver.cycle(NOW)
    driver.remove_pod(first)
    driver.set_pod(kit.pod("g-2", labels=label, annotations=size, node="n2"))
    driver.set_pod(kit.pod("good"))
    assert starts(driver) == {"good"}
    assert {pod for seats in driver.cluster.jobs.values() for pod in seats} == {
        first.metadata.uid,  # its seat is held until all of its job have ended
        second.metadata.uid,
        "uid-default-g-2",
        "uid-default-good",
    }


def test_a_pod_with_a_limit_on_a_node_that_is_gone() -> None:
    driver = world()
    driver.set_pod(kit.pod("left", node="gone", annotations={names.DURATION: "1s"}, bound=0))
    driver.set_pod(kit.pod("good"))
    assert starts(driver) == {"good"}


def test_a_place_that_is_kept_is_for_what_fits_into_it() -> None:
    """A new member that asks for 700 times the seat of one that ended waits its turn."""
    driver = Driver(native=True)
    driver.set_node(node("n1", cpu="8"))
    label, size = {names.GROUP_LABEL: "g"}, {names.GROUP_SIZE: "2"}
    for index in range(2):
        driver.set_pod(kit.pod(f"g-{index}", labels=label, annotations=size, cpu="10m", node="n1"))
    driver.cycle(NOW)
    driver.set_pod(kit.pod("g-0", labels=label, annotations=size, cpu="10m", node="n1", phase="Failed"))
    driver.set_pod(kit.pod("g-2", labels=label, annotations=size, cpu="7"))
    driver.set_pod(kit.pod("urgent", cpu="7", priority=1000))
    assert starts(driver) == {"urgent"}


def test_a_retried_bind_is_refused_when_somebody_else_took_the_room() -> None:
    driver = Driver(native=True)
    driver.set_node(node("n1", cpu="2"))
    driver.set_pod(kit.pod("a", cpu="2"))
    ((bind,),) = driver.cycle(NOW).binds
    assert not driver.scheduler.refuses(bind)
    driver.set_pod(kit.pod("foreign", cpu="1", scheduler="other", node="n1"))
    driver.cycle(NOW + 1)
    assert driver.scheduler.refuses(bind)


def test_a_bind_is_not_refused_for_a_reservation_that_waits_for_it() -> None:
    """Its limit has passed before it is bound, and a cycle had no time yet to move those behind it."""
    ticks = itertools.count()
    driver = Driver(
        native=True, queue_policy="conservative", timer=lambda: next(ticks) / 1e6, cycle_budget=1e-6
    )
    driver.set_node(node("n1", cpu="2"))
    driver.set_node(node("n2", cpu="2"))
    driver.set_group(kit.group("g", 1))
    for index in range(6):
        driver.set_pod(kit.pod(f"g-{index}", field="g", cpu="2", annotations={names.DURATION: "1s"}))
    binds = [bind for _ in range(8) for some in driver.cycle(NOW).binds for bind in some]
    assert len(binds) == 2
    for _ in range(8):
        driver.cycle(NOW + 1000)
        assert not any(map(driver.scheduler.refuses, binds))


def _asking(pod: Pod, requests: dict[str, str]) -> Pod:
    from msgspec.structs import replace

    container = (pod.spec.containers or [])[0]
    asked = replace(container, resources=replace(container.resources, requests=requests))
    return replace(pod, spec=replace(pod.spec, containers=[asked]))


def test_hundreds_of_objects_that_cannot_be_handled_stop_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else may be wrong with a pod: here, asking where it fits fails."""
    driver = world(strict=False)
    honest = driver.cluster.gang
    for index in range(200):
        driver.set_pod(kit.pod(f"evil-{index}"))
    driver.set_pod(kit.pod("good"))

    def gang(self: ClusterGraph, request: PodSetRequest) -> Any:
        if any(pod.metadata.name.startswith("evil") for pod in request.pods):
            raise ZeroDivisionError("made by the test")
        return honest.__func__(self, request)

    monkeypatch.setattr(ClusterGraph, "gang", gang)
    assert starts(driver) == {"good"}
    assert len(driver.faults) == 200 and not driver.scheduler.broken
    assert {fault.pods[0].metadata.name for fault in driver.faults} == {f"evil-{i}" for i in range(200)}
    monkeypatch.undo()
    driver.handle(now=NOW + 11_000)
    assert len({bind.uid for some in driver.cycle(NOW + 12_000).binds for bind in some}) == 15


def test_what_failed_is_tried_again_after_a_pause_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = world(strict=False)

    def gang(self: ClusterGraph, request: PodSetRequest) -> Any:
        raise ZeroDivisionError("made by the test")

    monkeypatch.setattr(ClusterGraph, "gang", gang)
    driver.set_pod(kit.pod("evil"))
    tried = []
    now = NOW
    while now < NOW + 100_000:
        driver.cycle(now)
        if driver.faults:
            tried.append((now - NOW) // 1000)
            driver.faults.clear()
        now += 1000
    assert tried == [0, 10, 30, 70]


def test_many_faults_are_dealt_with_over_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a rebuild, and whoever calls has a lease to renew."""
    seconds = iter(range(10_000))
    driver = world(strict=False, timer=lambda: float(next(seconds)))
    honest = ClusterGraph.gang

    def gang(self: ClusterGraph, request: PodSetRequest) -> Any:
        if any(pod.metadata.name.startswith("evil") for pod in request.pods):
            raise ZeroDivisionError("made by the test")
        return honest(self, request)

    monkeypatch.setattr(ClusterGraph, "gang", gang)
    for index in range(20):
        driver.set_pod(kit.pod(f"evil-{index}"))
    driver.set_pod(kit.pod("good"))
    calls, bound = 0, set[str]()
    while not bound:
        before = len(driver.faults)
        bound = {bind.pod.metadata.name for some in driver.cycle(NOW).binds for bind in some}
        calls += 1
        assert len(driver.faults) - before <= 3
        assert bound or driver.scheduler.has_more, "the next call would not come"
    assert bound == {"good"} and len(driver.faults) == 20 and calls > 5


def test_a_node_with_a_pod_that_cannot_even_be_counted_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what is free there. When the pod has gone, all of it is."""
    driver = world(strict=False)
    honest = ClusterGraph.set_pod

    def set_pod(self: ClusterGraph, pod: Pod, *rest: Any, **more: Any) -> Any:
        if pod.metadata.name == "evil":
            raise ZeroDivisionError("made by the test")
        return honest(self, pod, *rest, **more)

    monkeypatch.setattr(ClusterGraph, "set_pod", set_pod)
    evil = kit.pod("evil", node="n1", cpu="8")
    driver.set_pod(evil)
    for index in range(2):
        driver.set_pod(kit.pod(f"good-{index}", cpu="8"))
    assert len(starts(driver)) == 1
    driver.set_node(node("n1"))  # as its kubelet reports it
    assert starts(driver) == set()
    driver.remove_pod(evil)
    assert len(starts(driver)) == 1
