"""Services are spread over nodes and zones, as kube-scheduler does by default; gangs and jobs are not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fluence import names
from fluence.model.meta import LabelSelector, ObjectMeta, Service, ServiceSpec
from fluence.model.owner import Job, Owner, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, TopologySpreadConstraint
from fluence.schedule.events import BindFinished, BindOutcome, BindResult, Changed
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

WEB = {"app": "web"}
SPREAD, POLICY = names.SPREAD, names.POLICY


def cluster(nodes: int = 6, zones: str = "", **config: Any) -> Driver:
    driver = Driver(**config)
    for number in range(nodes):
        zone = zones[number % len(zones)] if zones else None
        driver.set_node(node(f"n{number}", zone=zone, cpu="8", pods="110"))
    return driver


def service(name: str, selector: dict[str, str] | None, namespace: str = "default") -> Service:
    return Service(metadata=ObjectMeta(name=name, namespace=namespace), spec=ServiceSpec(selector=selector))


def place(driver: Driver, *pods: Pod) -> dict[str, str]:
    """Where pods that come together are bound; the server agrees at once."""
    for pod in pods:
        driver.set_pod(pod)
    found = {}
    for gang in driver.cycle(driver.now + 1000).binds:
        for bind in gang:
            found[bind.pod.metadata.name] = bind.node
            driver.handle(BindFinished(BindResult(bind, BindOutcome.BOUND)))
            driver.handle(Changed(bind.pod, bind.carried_out(bind.pod)))
    return found


def replicas(owner: Owner, count: int, first: int = 0, **more: Any) -> list[Pod]:
    name = owner.metadata.name
    return [kit.pod(f"{name}-{i}", owner=owner, **more) for i in range(first, first + count)]


def owned(driver: Driver, name: str = "web", kind: type[Owner] = ReplicaSet, **more: Any) -> Owner:
    owner = kit.owner(name, kind=kind, **more)
    driver.set_owner(owner)
    return owner


def per_node(places: dict[str, str]) -> list[int]:
    return sorted(Counter(places.values()).values())


@pytest.mark.parametrize("kind", [ReplicaSet, StatefulSet])
@pytest.mark.parametrize("cpu", ["1", "0"])
def test_six_pods_of_a_service_are_on_six_nodes(kind: type[Owner], cpu: str) -> None:
    driver = cluster(6)
    web = owned(driver, kind=kind, replicas=6)

    assert per_node(place(driver, *replicas(web, 6, cpu=cpu))) == [1] * 6


def test_they_are_spread_too_if_they_come_one_by_one_or_after_a_restart() -> None:
    driver = cluster(4)
    web = owned(driver, replicas=8)
    places: dict[str, str] = {}
    for number in range(4):
        places |= place(driver, *replicas(web, 1, first=number))
    driver.scheduler.start_over(list(driver.scheduler._objects.values()), driver.now)
    driver.cycle(driver.now)
    places |= place(driver, *replicas(web, 4, first=4))

    assert per_node(places) == [2, 2, 2, 2]


def test_zones_are_balanced_too() -> None:
    driver = cluster(8, zones="aaaaaabb")
    web = owned(driver, replicas=4)
    places = place(driver, *replicas(web, 4, cpu="0"))

    assert per_node(places) == [1] * 4
    assert Counter(each in ("n6", "n7") for each in places.values()) == {True: 2, False: 2}


def test_nodes_without_a_zone_take_part() -> None:
    driver = cluster(2, zones="a")
    driver.set_node(node("n2", cpu="8", pods="110"))
    web = owned(driver, replicas=3)

    assert per_node(place(driver, *replicas(web, 3))) == [1, 1, 1]


def test_pods_without_an_owner_are_spread_behind_their_service() -> None:
    driver = cluster(3)
    driver.handle(Changed(None, service("web", WEB)))

    assert per_node(place(driver, *kit.ranks(3, "web", labels=WEB))) == [1, 1, 1]
    # Nobody serves these, so the match policy packs them.
    assert per_node(place(driver, *kit.ranks(3, "lone", labels={"app": "lone"}, cpu="100m"))) == [3]


def test_a_service_of_another_namespace_or_without_a_selector_spreads_nobody() -> None:
    driver = cluster(3)
    for each in (service("there", WEB, "other"), service("external", None), service("empty", {})):
        driver.handle(Changed(None, each))

    assert per_node(place(driver, *kit.ranks(3, "web", labels=WEB))) == [3]


def test_a_service_that_is_gone_spreads_nobody() -> None:
    driver = cluster(3)
    web = service("web", WEB)
    driver.handle(Changed(None, web), Changed(web, None))

    assert per_node(place(driver, *kit.ranks(3, "web", labels=WEB))) == [3]


def test_single_services_go_to_the_nodes_with_the_most_free() -> None:
    driver = cluster(4)
    places: dict[str, str] = {}
    for name in ("a", "b", "c", "d"):
        places |= place(driver, *replicas(owned(driver, name, replicas=1), 1))

    assert per_node(places) == [1] * 4


def test_jobs_and_gangs_keep_the_match_policy() -> None:
    driver = cluster(6)
    driver.handle(Changed(None, service("work", WEB)))
    job = owned(driver, "job", Job, parallelism=3, completions=3)
    assert per_node(place(driver, *replicas(job, 3, labels=WEB))) == [3]

    gang = {kit.SIZE: "3"}
    web = owned(driver, "gang", replicas=3, annotations=gang)
    assert per_node(place(driver, *replicas(web, 3, labels=WEB))) == [3]


def test_work_with_a_limit_keeps_the_match_policy() -> None:
    driver = cluster(6)
    web = owned(driver, replicas=3)
    assert per_node(place(driver, *replicas(web, 3, active_deadline_seconds=60))) == [3]


def test_the_setting_turns_it_off_and_the_annotation_on_again() -> None:
    driver = cluster(6, spread_services=False)
    assert per_node(place(driver, *replicas(owned(driver, replicas=3), 3))) == [3]

    wanted = owned(driver, "wanted", replicas=3, annotations={SPREAD: "true"})
    assert per_node(place(driver, *replicas(wanted, 3))) == [1, 1, 1]


def test_the_annotation_turns_it_off_and_a_policy_does_so_too() -> None:
    driver = cluster(6)
    packed = owned(driver, "packed", replicas=3, annotations={SPREAD: "false"})
    assert per_node(place(driver, *replicas(packed, 3))) == [3]

    own = owned(driver, "own", replicas=3, annotations={POLICY: "low"})
    assert per_node(place(driver, *replicas(own, 3))) == [3]
    both = owned(driver, "both", replicas=3, annotations={POLICY: "low", SPREAD: "true"})
    assert per_node(place(driver, *replicas(both, 3))) == [1, 1, 1]


def test_a_gang_is_spread_if_it_asks_for_it() -> None:
    driver = cluster(6)
    notes = {kit.SIZE: "6", kit.GROUP: "ranks", SPREAD: "true"}
    assert per_node(place(driver, *kit.ranks(6, annotations=notes))) == [1] * 6


def test_a_value_that_is_neither_true_nor_false_is_refused_by_name() -> None:
    driver = cluster(2)
    driver.set_pod(kit.pod("web", annotations={SPREAD: "maybe"}))
    (waiting,) = driver.cycle(1000).waiting

    (reason,) = waiting.reasons
    assert reason.code.value == "InvalidSpread"
    assert reason["value"] == "maybe"


def test_full_nodes_hold_more_than_one_rather_than_nothing() -> None:
    driver = cluster(2)
    web = owned(driver, replicas=5)
    assert per_node(place(driver, *replicas(web, 5))) == [2, 3]


def test_constraints_of_its_own_replace_the_default_ones() -> None:
    driver = cluster(4, zones="ab")
    web = owned(driver, replicas=4)
    own = TopologySpreadConstraint(
        max_skew=1,
        topology_key="topology.kubernetes.io/zone",
        when_unsatisfiable="ScheduleAnyway",
        label_selector=LabelSelector(match_labels=WEB),
    )
    places = place(driver, *replicas(web, 4, labels=WEB, topology_spread_constraints=[own]))
    assert Counter(int(each[1]) % 2 for each in places.values()) == {0: 2, 1: 2}


def test_pods_that_are_being_deleted_do_not_count() -> None:
    driver = cluster(2)
    web = owned(driver, replicas=2)
    driver.set_pod(kit.pod("web-old", owner=web, node="n0", phase="Running", deleting=True, cpu="0"))
    driver.set_pod(kit.pod("web-old2", owner=web, node="n1", phase="Running", cpu="0"))
    driver.cycle(500)

    assert set(place(driver, *replicas(web, 1, cpu="0")).values()) == {"n0"}


def test_a_forged_owner_spreads_the_pods_of_its_own_namespace_only() -> None:
    driver = cluster(2)
    web = owned(driver, replicas=2)
    driver.set_pod(kit.pod("web-0", owner=web, node="n1", phase="Running", cpu="0"))
    # The same kind, name and uid in another namespace: nothing there says that it does not exist.
    for number in range(3):
        forged = kit.pod(f"x-{number}", owner=web, namespace="other", node="n0", phase="Running", cpu="0")
        driver.set_pod(forged)
    driver.cycle(500)

    assert set(place(driver, *replicas(web, 1, first=1, cpu="0")).values()) == {"n0"}
