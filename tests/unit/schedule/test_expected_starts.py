"""When waiting pods are expected to start: by seats and rules and how long such pods ran, or not at all."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fluence.model.job_state import JobState
from fluence.model.pod import Affinity, ContainerPort
from fluence.model.reason import Code, Reason
from tests.unit.schedule import kit
from tests.unit.schedule.test_promised_starts import (
    NOW,
    POLICIES,
    SECOND,
    limited,
    near,
    settle,
    world,
)


@pytest.mark.parametrize("policy", POLICIES)
class TestUnknown:
    """There is nothing to base a time on, and none is told."""

    def test_behind_work_without_a_limit(self, policy):
        """62 cores are free. No node has 32, and nobody knows when one will."""
        driver = world(policy)
        for number in range(2):
            driver.set_pod(kit.pod(f"web-{number}", node=f"n{number}", scheduler="other", phase="Running"))
        driver.set_pod(kit.pod("large", cpu="32"))
        assert settle(driver, NOW)["large"].expected is None

    def test_behind_a_host_port_that_is_taken(self, policy):
        driver = world(policy, nodes=1)
        for pod in (kit.pod("first", node="n0", scheduler="other", phase="Running"), kit.pod("second")):
            ported = replace(pod.spec.containers[0], ports=[ContainerPort(container_port=80, host_port=80)])
            driver.set_pod(replace(pod, spec=replace(pod.spec, containers=[ported])))
        assert settle(driver, NOW)["second"].expected is None

    def test_for_company_that_nobody_gives(self, policy):
        driver = world(policy)
        driver.set_pod(kit.pod("lonely", affinity=Affinity(pod_affinity=near("nobody"))))
        assert settle(driver, NOW)["lonely"].expected is None

    def test_behind_somebody_in_the_queue_without_a_limit(self, policy):
        """The one in front starts in a minute, and then nobody knows: not in a hundred years either."""
        driver = world(policy, nodes=1)
        driver.set_pod(limited("runs", 60, cpu="32"))
        settle(driver, NOW)
        driver.set_pod(kit.pod("service", cpu="32"))
        settle(driver, NOW + SECOND)
        driver.set_pod(limited("behind", 60, cpu="32", age=-1))
        found = settle(driver, NOW + 2 * SECOND)
        assert found["service"].no_later_than is not None
        assert found["behind"].no_later_than is None
        assert found["behind"].expected is None
        said = driver.reports.said[found["behind"].key].reasons
        holder = {"kind": "Pod", "namespace": "default", "name": "service", "more": 0}
        assert Reason.of(Code.WAITS_FOR_UNLIMITED, **holder) in said  # type: ignore[arg-type]

    def test_behind_an_overrun_of_which_nobody_knows_the_end(self, policy):
        driver = world(policy, nodes=1)
        driver.set_pod(limited("over", 5, cpu="32"))
        settle(driver, NOW)
        for seconds in (6, 36, 46, 60):
            settle(driver, NOW + seconds * SECOND)
        driver.set_pod(limited("next", 60, cpu="32", age=-60))
        found = settle(driver, NOW + 61 * SECOND)["next"]
        assert found.no_later_than is None
        assert found.expected is None
        codes = {each.code for each in driver.reports.said[found.key].reasons}
        assert Code.WAITS_FOR_OVERRUN in codes
        assert Code.WAITS_FOR_UNLIMITED not in codes, "it has a limit, and overran"


@pytest.mark.parametrize("policy", POLICIES)
def test_where_what_is_free_lies_in_pieces_it_is_no_earlier_than_a_node_is_empty(policy):
    driver = world(policy)
    driver.set_pod(limited("a", 600, cpu="17"))
    driver.set_pod(limited("b", 1200, cpu="17"))
    settle(driver, NOW)
    driver.set_pod(limited("large", 60, cpu="32"))
    found = settle(driver, NOW)["large"]
    assert found.no_later_than is not None
    assert found.expected is not None
    assert NOW + 300 * SECOND <= found.expected <= found.no_later_than


@pytest.mark.parametrize("policy", POLICIES)
def test_one_that_has_passed_is_not_told_again_a_minute_at_a_time(policy):
    """Such pods ran a second each; this one runs for its whole hour."""
    driver = world(policy, nodes=1)
    for number in range(5):
        at = NOW + number * 10 * SECOND
        driver.set_pod(limited(f"short-{number}", 3600, cpu="32"))
        pod = settle(driver, at)[f"short-{number}"].pods[0]
        ran = replace(pod, spec=replace(pod.spec, node_name="n0"))
        driver.handle(now=at + SECOND)
        driver.set_pod(replace(ran, status=replace(pod.status, phase="Succeeded")))
        settle(driver, at + SECOND)
    start = NOW + 100 * SECOND
    driver.set_pod(limited("long", 3600, cpu="32"))
    settle(driver, start)
    driver.set_pod(limited("next", 3600, cpu="32", age=-100))
    told: list[int] = []
    now = start
    while now < start + 3500 * SECOND:
        expected = settle(driver, now)["next"].expected
        if expected is not None:
            assert expected >= now - 5 * SECOND, "it has passed"
            told += [expected] if expected not in told else []
        now += 5 * SECOND
    assert told, "it is told something at first"
    assert len(told) < 15  # and not every minute for an hour


@pytest.mark.parametrize("policy", POLICIES)
def test_an_expectation_that_passes_while_the_cluster_cannot_hold_the_job(policy):
    """The job keeps its record, but has no place in the queue in which a new time could be worked out."""
    driver = world(policy, nodes=1)
    driver.set_pod(limited("runs", 60, cpu="32"))
    settle(driver, NOW)
    driver.set_pod(limited("next", 60, cpu="32"))
    assert settle(driver, NOW + SECOND)["next"].expected is not None
    driver.remove_node("n0")
    for seconds in (2, 65, 130, 200):
        found = settle(driver, NOW + seconds * SECOND)["next"]
    assert found.state is JobState.UNSCHEDULABLE and found.expected is None
