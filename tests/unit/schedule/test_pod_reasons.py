"""The reason of a pod's condition: `Unschedulable`, on which autoscalers act, only where nodes would help."""

from __future__ import annotations

from typing import Any

import pytest

from fluence import names
from fluence.model.job_state import JobState
from fluence.model.pod import Pod, Toleration
from fluence.model.reason import Code, Reason
from fluence.schedule.cycle import Decisions
from fluence.schedule.status.status import PodReason, StatusReport
from tests.unit.cluster.build import node
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

HOUR = 3_600_000
LIMITED = {names.DURATION: "1h"}


def cluster(cpu: str = "4", **config: Any) -> Driver:
    driver = Driver(**config)
    driver.set_node(node("n", cpu=cpu))
    return driver


def reasons(driver: Driver, *pods: Pod, now: int = 1_000) -> dict[str, PodReason]:
    """The reason that each pod has at the end, as cycles come when they are due."""
    for pod in pods:
        driver.set_pod(pod)
    found: dict[str, PodReason] = {}
    for _ in range(10):
        for waiting in driver.cycle(now).waiting:
            found |= {pod.metadata.name: waiting.report.pod_reason for pod in waiting.pods}
        due = driver.next_due()
        if due is None or due > now + 10_000:
            break
        now = max(due, now + 1)
    return found


def running(name: str, cpu: str, **more: Any) -> Pod:
    return kit.pod(name, node="n", phase="Running", cpu=cpu, **more)


def test_a_pod_that_no_node_could_hold_and_one_behind_unlimited_work_call_for_nodes() -> None:
    found = reasons(cluster(), kit.pod("huge", cpu="8"), running("web", "4"), kit.pod("next", cpu="2"))
    assert found == {"huge": PodReason.UNSCHEDULABLE, "next": PodReason.UNSCHEDULABLE}


def test_a_pod_with_a_promised_start_waits_for_its_turn() -> None:
    driver = cluster()
    reasons(driver, kit.pod("first", cpu="4", annotations=LIMITED))
    assert reasons(driver, kit.pod("second", cpu="4", annotations=LIMITED)) == {"second": PodReason.TURN}


@pytest.mark.parametrize(("after", "reason"), [(HOUR // 2, "Unschedulable"), (2 * HOUR, "WaitingForTurn")])
def test_a_promise_that_is_too_far_away_calls_for_nodes(after: int, reason: str) -> None:
    driver = cluster(scale_up_after=after)
    reasons(driver, kit.pod("first", cpu="4", annotations=LIMITED))
    assert reasons(driver, kit.pod("second", cpu="4", annotations=LIMITED)) == {"second": reason}


def test_jobs_behind_the_first_wait_for_their_turn_where_nobody_overtakes() -> None:
    driver = cluster(queue_policy="fcfs")
    found = reasons(
        driver,
        running("web", "4"),
        kit.pod("first", cpu="2", age=9),
        kit.pod("second", cpu="2", age=8),
    )
    assert found == {"first": PodReason.UNSCHEDULABLE, "second": PodReason.TURN}


def test_refused_pods_and_those_that_are_not_supported_do_not_call_for_nodes() -> None:
    found = reasons(
        cluster(),
        kit.pod("refused", annotations={names.DURATION: "soon"}),
        kit.pod("tolerates", tolerations=[Toleration(key="k", operator="Gt", value="1")]),
    )
    assert found == {"refused": PodReason.ERROR, "tolerates": PodReason.ERROR}


def test_a_pod_that_lacks_members_waits_for_its_group() -> None:
    lone = kit.pod("lone", annotations={kit.SIZE: "2", kit.GROUP: "g"})
    assert reasons(cluster(), lone) == {"lone": PodReason.GROUP}


SEATS = Reason.of(Code.TOO_FEW_SEATS, pod="", wanted=1, seats=0, nodes=1, sums=(), causes=(), empty=False)
UNLIMITED = Reason.of(Code.WAITS_FOR_UNLIMITED, kind="Pod", namespace="d", name="w", more=0)
LIMIT = Reason.of(Code.USER_LIMIT, user="u", account="a", most=1, queue="q")
CLAIM = Reason.of(Code.CLAIM_MISSING, claim="c", ephemeral=False)
BUSY = Reason.of(Code.DEVICE_BUSY, type="qpu", wanted=1, backends=("fez",), until=None)
UNKNOWN = Reason.of(Code.DEVICE_TYPE_UNKNOWN, type="qpu", types=())


def never(*causes: Reason) -> Reason:
    return Reason.of(Code.CLUSTER_CANNOT_HOLD, causes=causes)


@pytest.mark.parametrize(
    ("state", "given", "in_turn", "reason"),
    [
        ("pending", (SEATS,), False, "Unschedulable"),
        ("pending", (SEATS, UNLIMITED), False, "Unschedulable"),
        ("pending", (SEATS,), True, "WaitingForTurn"),
        ("pending", (Reason.of(Code.QUEUED_BEHIND_OTHERS),), False, "WaitingForTurn"),
        ("pending", (UNLIMITED,), False, "WaitingForTurn"),
        ("pending", (LIMIT, SEATS), False, "WaitingForTurn"),
        ("pending", (BUSY,), False, "WaitingForTurn"),
        ("pending", (BUSY, SEATS), False, "WaitingForTurn"),
        ("pending", (CLAIM,), False, "WaitingForVolumes"),
        ("unschedulable", (CLAIM,), False, "WaitingForVolumes"),
        ("unschedulable", (never(SEATS),), False, "Unschedulable"),
        ("unschedulable", (never(SEATS),), True, "Unschedulable"),
        ("unschedulable", (never(BUSY, SEATS),), False, "SchedulerError"),
        ("unschedulable", (UNKNOWN,), False, "SchedulerError"),
        ("refused", (SEATS,), False, "SchedulerError"),
        ("gathering", (SEATS,), False, "WaitingForGroup"),
        ("preparing", (SEATS,), False, "WaitingForVolumes"),
    ],
)
def test_what_is_missing_decides(state: str, given: tuple[Reason, ...], in_turn: bool, reason: str) -> None:
    assert StatusReport(JobState(state), given, in_turn=in_turn).pod_reason == reason


# -- reminders -----------------------------------------------------------------------------------------------


def told(driver: Driver, now: int) -> Decisions:
    driver.handle(now=now)
    return driver.cycle(now)


def test_who_waits_for_long_is_told_again_before_the_server_forgets_it() -> None:
    driver = cluster()
    driver.set_pod(kit.pod("huge", cpu="8"))
    assert len(told(driver, 1_000).waiting) == 1
    assert told(driver, 30 * 60_000).reminders == []
    due = driver.next_due()
    assert due is not None and due <= 50 * 60_000

    for hour in range(1, 4):
        (again,) = told(driver, hour * HOUR).reminders
        assert [pod.metadata.name for pod in again.pods] == ["huge"]
        assert told(driver, hour * HOUR + 1).reminders == []


def test_who_waits_no_more_is_not_reminded() -> None:
    driver = cluster()
    pod = kit.pod("huge", cpu="8")
    driver.set_pod(pod)
    told(driver, 1_000)
    driver.remove_pod(pod)
    assert told(driver, HOUR).reminders == []
    assert driver.next_due() is None


def test_many_are_reminded_some_at_a_time() -> None:
    driver = cluster()
    for number in range(130):
        driver.set_pod(kit.pod(f"huge-{number}", cpu="8"))
    now = 1_000
    assert sum(len(told(driver, now + tenth * 100).waiting) for tenth in range(10)) == 130
    counts = [len(told(driver, now + HOUR + second * 1_000).reminders) for second in range(16)]
    assert counts[0] == 50 and sum(counts) == 130 and counts.count(0) == 13
