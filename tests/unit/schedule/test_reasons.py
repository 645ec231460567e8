"""What users are told is true: never is judged on the empty cluster, and what limits a gang is named."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fluence import messages, names
from fluence.act.conditions import fingerprint
from fluence.model.job_state import JobState
from fluence.model.meta import LabelSelector
from fluence.model.node import Taint
from fluence.model.pod import (
    Affinity,
    Container,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from tests.unit.cluster.build import ZONE, node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
WEB = {"app": "web"}
TERM = PodAffinityTerm(topology_key=ZONE, label_selector=LabelSelector(match_labels=WEB))


def world(*nodes: Any, **config: Any) -> Driver:
    driver = Driver(native=True, **config)
    driver.now = NOW
    for each in nodes:
        driver.set_node(each)
    return driver


def busy(driver: Driver, *on: str, cpu: str = "4") -> None:
    """Somebody else's pods, which take all of some nodes."""
    for each in on:
        driver.set_pod(kit.pod(f"other-{each}", scheduler="x", node=each, phase="Running", cpu=cpu))


def put(driver: Driver, count: int, **more: Any) -> list[Pod]:
    driver.set_group(kit.group("g", count))
    ranks = kit.ranks(count, field="g", **more)
    for each in ranks:
        driver.set_pod(each)
    return ranks


def told(driver: Driver, now: int = NOW) -> tuple[JobState, str]:
    """What is said in the next cycle."""
    (waiting,) = driver.cycle(now).waiting
    return waiting.report.state, messages.texts(waiting.reasons)


# -- never ---------------------------------------------------------------------------------------------------


def test_never_is_explained_on_the_empty_cluster_and_not_with_what_is_taken_now() -> None:
    nodes = [*(node(f"n{i}") for i in range(8)), node("small", cpu="2")]
    driver = world(*nodes)
    busy(driver, *(f"n{i}" for i in range(8)))
    put(driver, 18, cpu="2")
    outcome, why = told(driver)
    assert outcome is JobState.UNSCHEDULABLE
    assert why == (
        "0/9 nodes are available, even if empty: 9 Insufficient cpu. 17 of 18 pods of the group would fit "
        "(cpu: 36 requested, 34 available). It cannot start on this cluster as it is"
    )


def test_a_gang_that_an_empty_cluster_holds_waits_however_full_it_is() -> None:
    driver = world(node("n1"), node("n2"))
    busy(driver, "n1", "n2")
    put(driver, 4, cpu="2")
    assert told(driver)[0] is JobState.PENDING


def test_pods_that_keep_each_other_out_of_a_zone_never_fit_if_there_are_too_few_zones() -> None:
    nodes = [node(f"n{i}", zone="ab"[i % 2]) for i in range(6)]
    driver = world(*nodes)
    apart = Affinity(pod_anti_affinity=PodAffinity(required=[TERM]))
    put(driver, 3, labels=WEB, affinity=apart)
    outcome, why = told(driver)
    assert outcome is JobState.UNSCHEDULABLE
    assert "2 of 3 pods of the group would fit" in why
    assert f"6 node(s) didn't match pod anti-affinity rules (a pod with app=web in the same {ZONE})" in why
    driver.set_node(node("n9", zone="c"))
    assert len(driver.cycle(NOW + 1).binds[0]) == 3, "it is judged again"


def test_pods_of_others_that_keep_a_gang_away_are_no_never() -> None:
    driver = world(node("n1", zone="a"), node("n2", zone="b"))
    driver.set_pod(kit.pod("web", scheduler="x", node="n1", phase="Running", labels=WEB))
    apart = Affinity(pod_anti_affinity=PodAffinity(required=[TERM]))
    put(driver, 2, labels=WEB, affinity=apart)
    assert told(driver)[0] is JobState.PENDING


TAINT = [Taint(key="gpu", effect="NoSchedule")]


@pytest.mark.parametrize(
    ("before", "after", "spec"),
    [
        ([node("n1", taints=TAINT)], node("n1"), {}),
        ([node("n1", unschedulable=True)], node("n1"), {}),
        ([node("n1")], node("n1", labels={"disk": "ssd"}), {"node_selector": {"disk": "ssd"}}),
        ([node("n1", cpu="1")], node("n1", cpu="4"), {"cpu": "2"}),
        ([node("n1", ready=False)], node("n1"), {}),
        ([], node("n1"), {}),
    ],
    ids=["taint", "cordon", "label", "size", "ready", "new"],
)
def test_never_is_judged_again_when_a_node_changes(before: list[Any], after: Any, spec: Any) -> None:
    driver = world(*before)
    driver.set_pod(kit.pod("p", **spec))
    assert told(driver)[0] is JobState.UNSCHEDULABLE
    driver.set_node(after)
    assert [bind.node for bind in driver.cycle(NOW + 1).binds[0]] == ["n1"]


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        (names.CONSTRAINTS, '{"hostlist": ["n7"]}', '{"hostlist": ["n1"]}'),
        (names.EXCLUDED, "n1", "n7"),
    ],
)
def test_never_is_judged_again_when_its_rules_change(key: str, bad: str, good: str) -> None:
    driver = world(node("n1"))
    driver.set_pod(kit.pod("p", annotations={key: bad}))
    outcome, why = told(driver)
    assert outcome is JobState.UNSCHEDULABLE and "1 node(s) were excluded for this group" in why
    driver.set_pod(kit.pod("p", annotations={key: good}))
    assert len(driver.cycle(NOW + 1).binds) == 1


def test_what_could_be_held_and_can_no_more_is_told_never() -> None:
    driver = world(node("n1"))
    busy(driver, "n1")
    driver.set_pod(kit.pod("p"))
    assert told(driver)[0] is JobState.PENDING
    driver.set_node(node("n1", taints=TAINT))
    assert told(driver, NOW + 1) == (
        JobState.UNSCHEDULABLE,
        (
            "0/1 nodes are available, even if empty: 1 node(s) had untolerated taint {gpu: }. "
            "It cannot start on this cluster as it is"
        ),
    )


def test_what_never_fits_is_told_when_it_is_for_another_reason() -> None:
    driver = world(node("n1", cpu="1"))
    driver.set_pod(kit.pod("p", cpu="2"))
    assert "Insufficient cpu (2 requested, node too small)" in told(driver)[1]
    driver.set_node(node("n1", taints=TAINT))
    assert driver.cycle(NOW + 1).waiting == [], "nodes come and go: not each of them is told to everybody"
    due = driver.next_due()
    assert due is not None and due <= NOW + 30_000
    outcome, why = told(driver, NOW + 30_000)
    assert outcome is JobState.UNSCHEDULABLE and "taint {gpu: }" in why
    assert driver.cycle(NOW + 60_000).waiting == [], "and once"


# -- what limits a gang --------------------------------------------------------------------------------------


def port(pod: Pod, number: int) -> Pod:
    (box,) = pod.spec.containers or [Container()]
    box = replace(box, ports=[ContainerPort(host_port=number)])
    return replace(pod, spec=replace(pod.spec, containers=[box]))


def why(driver: Driver, count: int, **more: Any) -> str:
    put(driver, count, **more)
    return told(driver)[1]


def test_the_host_port_is_named_though_every_node_has_some_room() -> None:
    driver = world(node("n1"), node("n2"))
    driver.set_group(kit.group("g", 3))
    for each in kit.ranks(3, field="g"):
        driver.set_pod(port(each, 8080))
    assert told(driver)[1] == (
        "0/2 nodes are available, even if empty: 2 node(s) didn't have free ports for the requested pod "
        "ports (8080). 2 of 3 pods of the group would fit. It cannot start on this cluster as it is"
    )
    busy_port = port(kit.pod("other", scheduler="x", node="n1", phase="Running"), 8080)
    driver = world(node("n1"), node("n2"))
    driver.set_pod(busy_port)
    driver.set_group(kit.group("g", 2))
    for each in kit.ranks(2, field="g"):
        driver.set_pod(port(each, 8080))
    assert told(driver)[1] == (
        "0/2 nodes are available: 2 node(s) didn't have free ports for the requested pod ports (8080). "
        "1 of 2 pods of the group fit"
    )


def test_the_spread_is_named_with_the_skew_that_there_would_be() -> None:
    driver = world(node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b", cpu="1"))
    limit = TopologySpreadConstraint(
        topology_key=ZONE, max_skew=1, label_selector=LabelSelector(match_labels=WEB)
    )
    assert why(driver, 4, labels=WEB, topology_spread_constraints=[limit]) == (
        "0/3 nodes are available: 2 node(s) didn't match pod topology spread constraints "
        f"({ZONE}: skew 2, maxSkew 1), 1 Insufficient cpu. 3 of 4 pods of the group fit"
    )


def test_the_pod_affinity_is_named_with_what_it_looks_for() -> None:
    driver = world(node("n1", zone="a"))
    near = Affinity(pod_affinity=PodAffinity(required=[TERM]))
    assert why(driver, 2, affinity=near) == (
        "0/1 nodes are available: 1 node(s) didn't match pod affinity rules "
        f"(no pod with app=web in the same {ZONE}). 0 of 2 pods of the group fit"
    )


def test_pods_that_want_to_be_together_are_told_what_ends_where_the_first_are() -> None:
    driver = world(node("n1", zone="a"), node("n2", zone="b"))
    near = Affinity(pod_affinity=PodAffinity(required=[TERM]))
    found = why(driver, 3, cpu="2", labels=WEB, affinity=near)
    assert found.startswith("0/2 nodes are available: ") and "2 of 3 pods of the group fit" in found
    assert f"didn't match pod affinity rules (no pod with app=web in the same {ZONE})" in found
    assert "1 Insufficient cpu" in found


def test_the_sum_of_cpu_is_named() -> None:
    driver = world(node("n1"), node("n2"))
    busy(driver, "n1", cpu="1")
    assert why(driver, 4, cpu="2") == (
        "0/2 nodes are available: 2 Insufficient cpu. 3 of 4 pods of the group fit "
        "(cpu: 8 requested, 7 available)"
    )


def test_kinds_that_fit_each_by_itself_are_told_what_stops_the_next_beside_the_others() -> None:
    driver = world(node("n1"), node("n2"))
    busy(driver, "n2")
    driver.set_group(kit.group("g", 2))
    driver.set_pod(kit.pod("a", field="g", cpu="3"))
    driver.set_pod(kit.pod("b", field="g", cpu="2"))
    outcome, found = told(driver)
    assert outcome is JobState.PENDING
    assert "It fits alone, but not together with the other pods of its group" in found
    assert "2 Insufficient cpu" in found


def test_one_domain_is_told_what_the_next_finds_there() -> None:
    driver = world(node("n1", zone="a"), node("n2", zone="b", cpu="2"))
    busy(driver, "n1", cpu="1")
    driver.set_group(kit.group("g", 2, topology_key=ZONE))
    for each in kit.ranks(2, field="g", cpu="2"):
        driver.set_pod(each)
    _, found = told(driver)
    assert found == (
        f"No single {ZONE} fits the group: {ZONE}=a fits 1 of 2 pods, and no other value fits more "
        "(1 Insufficient cpu)"
    )


def test_numbers_that_move_with_every_pod_are_no_change() -> None:
    """A condition is not written again because the skew or the sum is another."""
    driver = world(node("n1"), node("n2"))
    busy(driver, "n1", cpu="1")
    first = (put(driver, 4, cpu="2"), driver.cycle(NOW).waiting[0].reasons)[1]
    driver = world(node("n1"), node("n2"))
    busy(driver, "n1", "n2", cpu="2")
    second = (put(driver, 4, cpu="2"), driver.cycle(NOW).waiting[0].reasons)[1]
    assert messages.texts(first) != messages.texts(second)
    assert list(map(fingerprint, first)) == list(map(fingerprint, second))
