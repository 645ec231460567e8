"""What waiting pods are promised on a live cluster: only what limits and all rules support."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.model.meta import Condition, LabelSelector, ObjectMeta
from fluence.model.node import Node, NodeStatus
from fluence.model.owner import ReplicaSet
from fluence.model.pod import Affinity, ContainerPort, Pod, PodAffinity, PodAffinityTerm
from fluence.model.reason import Code, Reason
from fluence.schedule.events import BindOutcome, BindResult
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

NOW = int(kit.T0.timestamp() * 1000)
SECOND = 1000
POLICIES = ["fcfs", "first-fit", "easy", "hybrid", "conservative"]


def node(name: str, cpu: int = 32, **labels: str) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name, **labels}),
        status=NodeStatus(
            allocatable={"cpu": str(cpu), "memory": "64Gi", "pods": "110"},
            conditions=[Condition(type="Ready", status="True")],
        ),
    )


def world(policy: str, nodes: int = 2, **more: Any) -> Driver:
    driver = Driver(queue_policy=policy, **more)
    for number in range(nodes):
        driver.set_node(node(f"n{number}", zone=f"z{number}"))
    return driver


def settle(driver: Driver, now: int) -> dict[str, Any]:
    """Cycles at one moment, every bind carried out; by name, the record of each pod set."""
    for _ in range(20):
        decisions = driver.cycle(now)
        for bind in (each for binds in decisions.binds for each in binds):
            bound = replace(
                bind.pod,
                metadata=replace(bind.pod.metadata, annotations={**bind.pod.annotations, **bind.annotations}),
                spec=replace(bind.pod.spec, node_name=bind.node),
            )
            driver.set_pod(bound)
            driver.told(BindResult(bind, BindOutcome.BOUND), now)
        if not decisions.binds and not driver.has_more:
            break
    return {key.split(":")[-1]: found for key, found in driver.pod_sets.by_key.items()}


def near(app: str) -> PodAffinity:
    selector = LabelSelector(match_labels={"app": app})
    return PodAffinity(required=[PodAffinityTerm(topology_key="zone", label_selector=selector)])


def limited(name: str, seconds: int, **more: Any) -> Pod:
    return kit.pod(name, annotations={names.DURATION: f"{seconds}s"}, **more)


@pytest.mark.parametrize("policy", POLICIES)
class TestNoPromise:
    def test_behind_work_without_a_limit(self, policy):
        """Sums suffice: 62 cores are free. No node has 32, and none will."""
        driver = world(policy)
        made = kit.owner("web-5d4f", kind=ReplicaSet)
        for number in range(2):
            driver.set_pod(
                kit.pod(
                    f"web-{number}",
                    node=f"n{number}",
                    scheduler="other",
                    phase="Running",
                    owner=made,
                    labels={"pod-template-hash": "5d4f"},
                )
            )
        driver.set_pod(kit.pod("large", cpu="32"))
        found = settle(driver, NOW)["large"]
        assert found.no_later_than is None and found.reservation is None
        said = driver.reports.said[found.key].reasons
        holder = {"kind": "Deployment", "namespace": "default", "name": "web", "more": 0}
        assert Reason.of(Code.WAITS_FOR_UNLIMITED, **holder) in said  # type: ignore[arg-type]

    def test_behind_a_host_port_that_is_taken(self, policy):
        driver = world(policy, nodes=1)
        first = kit.pod("first", node="n0", scheduler="other", phase="Running")
        second = kit.pod("second")
        for pod in (first, second):
            ported = replace(pod.spec.containers[0], ports=[ContainerPort(container_port=80, host_port=80)])
            driver.set_pod(replace(pod, spec=replace(pod.spec, containers=[ported])))
        assert settle(driver, NOW)["second"].no_later_than is None

    def test_for_company_that_nobody_gives(self, policy):
        driver = world(policy)
        driver.set_pod(kit.pod("lonely", affinity=Affinity(pod_affinity=near("nobody"))))
        assert settle(driver, NOW)["lonely"].no_later_than is None

    def test_where_those_that_are_there_keep_it_away(self, policy):
        driver = world(policy, nodes=1)
        driver.set_pod(
            kit.pod("first", node="n0", scheduler="other", phase="Running", labels={"app": "first"})
        )
        driver.set_pod(kit.pod("second", affinity=Affinity(pod_anti_affinity=near("first"))))
        assert settle(driver, NOW)["second"].no_later_than is None

    def test_because_others_of_a_user_ran_a_minute(self, policy):
        """An estimate is not a limit: it is not written, not adopted and not promised."""
        driver = world(policy, nodes=1)
        for number in range(5):
            driver.set_pod(kit.pod(f"short-{number}", cpu="32"))
            found = settle(driver, NOW + number * 120 * SECOND)
            pod = found[f"short-{number}"].pods[0]
            driver.handle(now=NOW + number * 120 * SECOND + 60 * SECOND)
            driver.set_pod(
                replace(
                    pod,
                    spec=replace(pod.spec, node_name="n0"),
                    status=replace(pod.status, phase="Succeeded"),
                )
            )
            settle(driver, NOW + number * 120 * SECOND + 60 * SECOND)
        now = NOW + 3600 * SECOND
        driver.set_pod(kit.pod("service", cpu="32"))
        decisions = driver.cycle(now)
        [[bind]] = decisions.binds
        assert "end" not in msgspec.json.decode(bind.annotations[names.ALLOCATION])
        driver.set_pod(kit.pod("next", cpu="32"))
        assert settle(driver, now)["next"].no_later_than is None


@pytest.mark.parametrize("policy", ["easy", "hybrid", "conservative", "fcfs"])
class TestPromise:
    def test_behind_a_limit(self, policy):
        driver = world(policy, nodes=1)
        driver.set_pod(limited("first", 60, cpu="32"))
        settle(driver, NOW)
        driver.set_pod(limited("second", 60, cpu="32"))
        found = settle(driver, NOW)["second"]
        assert found.no_later_than is not None
        assert NOW + 60 * SECOND <= found.no_later_than <= NOW + 90 * SECOND

    def test_one_that_has_passed_is_withdrawn_and_the_cause_named(self, policy):
        driver = world(policy, nodes=1)
        driver.set_pod(limited("first", 60, cpu="32"))
        settle(driver, NOW)
        driver.set_pod(limited("second", 60, cpu="32"))
        promised = settle(driver, NOW)["second"].no_later_than
        now = NOW
        while now <= promised + 61 * SECOND:  # as the live loop does: whenever a cycle is due
            due = driver.next_due()
            now = max(now + 1, promised + 62 * SECOND if due is None else due)
            found = settle(driver, now)["second"]
        assert found.no_later_than is None
        assert [each.promised for each in found.broken] == [promised]
        assert found.broken[0].cause["job"].endswith("first")


class TestOverrun:
    def test_one_that_lies_about_its_limit_holds_nobody_back_for_long(self):
        """A pod that said 5 s and runs on, a gang of all nodes behind it: small pods of others start."""
        driver = world("easy", nodes=4)
        driver.set_pod(limited("liar", 5, cpu="100m", namespace="bad"))
        settle(driver, NOW)
        driver.set_group(kit.group("g", 4, namespace="bad"))
        for number in range(4):
            driver.set_pod(limited(f"g-{number}", 60, cpu="32", field="g", namespace="bad"))
        settle(driver, NOW + SECOND)
        driver.set_pod(kit.pod("small", namespace="good"))
        now, started = NOW + 2 * SECOND, None
        while started is None and now < NOW + 600 * SECOND:
            settle(driver, now)
            found = [each for each in driver.pod_sets.by_key.values() if each.key.endswith("pod:small")]
            if found and found[0].state.has_nodes:
                started = now
            now += 5 * SECOND
        assert started is not None and started <= NOW + 60 * SECOND

    def test_its_namespaces_next_limits_are_not_planned_with(self):
        driver = world("easy", nodes=1)
        driver.set_pod(limited("liar", 5, cpu="1", namespace="bad"))
        settle(driver, NOW)
        settle(driver, NOW + 60 * SECOND)
        driver.set_pod(limited("again", 5, cpu="31", namespace="bad"))
        driver.set_pod(limited("honest", 5, cpu="32", namespace="good"))
        found = settle(driver, NOW + 61 * SECOND)
        assert not found["again"].bounded
        assert found["honest"].bounded


class TestPartitions:
    """What is free on nodes that a job cannot use is no help to it."""

    def fill(self, policy: str) -> Driver:
        driver = Driver(queue_policy=policy)
        driver.set_node(node("n0", 2, pool="small"))
        driver.set_node(node("n1", 64, pool="large"))
        driver.set_pod(limited("runs", 3600, cpu="1", node_selector={"pool": "small"}))
        settle(driver, NOW)
        for number in range(4):  # they come one by one, and each is told by itself
            driver.set_pod(limited(f"w{number}", 3600, cpu="2", node_selector={"pool": "small"}))
            settle(driver, NOW + (1 + number) * 2 * SECOND)
        return driver

    @pytest.mark.parametrize("policy", POLICIES)
    def test_each_is_told_a_start_behind_those_in_front_of_it(self, policy):
        found = settle(self.fill(policy), NOW + 20 * SECOND)
        told = [round((found[f"w{number}"].no_later_than - NOW) / 3_600_000) for number in range(4)]
        assert told == [1, 2, 3, 4]

    def test_where_nobody_overtakes_none_is_told_a_start_before_those_in_front_of_it(self):
        """Room for it is free, and it waits all the same."""
        driver = self.fill("fcfs")
        for number, pool in enumerate(("small", "large")):
            driver.set_pod(limited(f"short{number}", 60, cpu="1", node_selector={"pool": pool}))
            found = settle(driver, NOW + (10 + number) * 2 * SECOND)
        front = found["w3"].no_later_than
        assert found["short0"].no_later_than > front and found["short1"].no_later_than >= front

    def test_who_may_go_anywhere_may_go_there(self):
        """Under `easy` only the first has a place; those behind it may be in the way of who comes after."""
        driver = Driver(queue_policy="easy")
        driver.set_node(node("n0", 2, pool="small"))
        driver.set_node(node("n1", 2, pool="large"))
        for name in ("a", "b"):
            driver.set_pod(limited(name, 3600, cpu="2"))
        settle(driver, NOW)
        for name in ("c", "d", "e"):
            driver.set_pod(limited(name, 3600, cpu="2"))
        driver.set_pod(limited("last", 3600, cpu="2", node_selector={"pool": "small"}))
        found = settle(driver, NOW + 2 * SECOND)
        assert found["last"].no_later_than - NOW > 2.9 * 3_600_000
