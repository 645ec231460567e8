"""What is written to the server, counted and logged, for what a cycle has to say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from fluence import names
from fluence.act.conditions import wait_report
from fluence.act.writers import StatusWriter
from fluence.clock import ManualClock
from fluence.kube.client import Client
from fluence.kube.events import Recorder
from fluence.kube.gangs import PodGroups136
from fluence.kube.resource import PODS
from fluence.live.metrics import Metrics
from fluence.live.reporter import Reporter
from fluence.model.job_state import JobState
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.owner import OwnerSpec, PodTemplate
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.policy import PluginFault
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, BindOutcome, BindResult
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.queueing.placeholder import placeholder
from fluence.schedule.queueing.unheld import UnheldNamespace
from fluence.schedule.scheduler import Scheduler
from fluence.schedule.status.reports import GangWarning, Waiting
from fluence.schedule.status.status import StatusReport
from fluence.schedule.step import Fault, Subject
from tests.unit.cluster.build import bound
from tests.unit.schedule import kit

NOW = int(kit.T0.timestamp() * 1000)
GROUPS = PodGroups136.resource.name


class Server:
    """Takes what a client would send."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.patches: list[tuple[str, str, dict[str, Any]]] = []  # resource, name, patch
        self.events: list[dict[str, Any]] = []

    async def patch(self, resource: Any, name: str, body: Any, **more: Any) -> None:
        assert more["subresource"] == "status" and more["namespace"] == "default"
        self.patches.append((resource.name, name, body))

    async def create(self, resource: Any, body: Any, **more: Any) -> None:
        self.events.append(body)


class World:
    """A reporter and the server that it writes to."""

    def __init__(self, *pods: Pod, refused: frozenset[str] = frozenset()) -> None:
        self.server = Server()
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self.metrics = Metrics(Scheduler(), profile="fluence")
        client = cast(Client, self.server)
        self.writer = StatusWriter(client, held=lambda: True)
        self.recorder = Recorder(client, controller="fluence", instance="f-1")
        self.reporter = Reporter(
            self.writer,
            self.recorder,
            self.metrics,
            find=lambda pod: self.pods.get(pod.metadata.uid),
            refused=lambda group: refused,
        )
        self.reporter.group_resource = PodGroups136.resource

    async def report(self, **said: Any) -> list[dict[str, Any]]:
        """Say it, and write it; answers with the log."""
        with capture_logs() as log:
            self.reporter.report(Decisions(**said), NOW)
        await self.write()
        return [dict(each) for each in log]

    async def write(self) -> None:
        task = asyncio.create_task(self.writer.run())
        while self.writer.backlog:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        await self.recorder.flush()

    def conditions(self, resource: str = PODS.name) -> dict[str, dict[str, Any]]:
        return {
            name: body["status"]["conditions"][0]
            for kind, name, body in self.server.patches
            if kind == resource
        }

    def counted(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0

    def attempts(self, result: str) -> float:
        return self.counted("scheduler_schedule_attempts_total", result=result, profile="fluence")


@pytest.fixture(autouse=True)
def _plain_log() -> Any:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def gang(*pods: Pod, **more: Any) -> Gang:
    return Gang(
        key="default/g",
        uid="u",
        namespace="default",
        name="g",
        members=pods,
        group=kit.group("g", 2),
        **more,
    )


def waiting(*pods: Pod, outcome: JobState = JobState.PENDING, **more: Any) -> Waiting:
    return Waiting(gang(*pods, **more), pods, StatusReport(outcome, (Reason.of(Code.QUEUED_BEHIND_OTHERS),)))


ONE, TWO = kit.ranks(2)
HELD = OwnerSpec(parallelism=1, suspend=True, template=PodTemplate())


# -- who waits -----------------------------------------------------------------------------------------------


async def test_an_event_says_what_the_condition_says() -> None:
    """A start is rounded up, so that what is written holds."""
    world = World(ONE, TWO)
    found = waiting(ONE, TWO)
    at = NOW + 1_799_999
    await world.report(waiting=[replace(found, report=replace(found.report, no_later_than=at, expected=at))])
    said = {each["message"] for each in world.conditions().values()}
    assert {event["note"] for event in world.server.events} == said
    for _, _, body in world.server.patches:
        report = wait_report(msgspec.convert(body["status"]["conditions"], list[Condition]))
        assert report is not None and report.no_later_than is not None and report.expected is not None
        assert report.no_later_than >= at and report.expected >= at


async def test_a_pod_that_still_waits_gets_its_event_again_and_one_that_does_not_gets_none() -> None:
    """The server forgets events after an hour, so the text of the condition is all there is to repeat."""
    told = Condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")
    still = msgspec.structs.replace(ONE, status=msgspec.structs.replace(ONE.status, conditions=[told]))
    world = World(still, bound(TWO, "n1"))
    await world.report(reminders=[waiting(ONE, TWO)])
    assert [(each["reason"], each["note"], each["regarding"].name) for each in world.server.events] == [
        ("FailedScheduling", told.message, "rank-0")
    ]
    assert not world.server.patches, "the condition is there already"


async def test_every_pod_of_a_gang_that_waits_and_its_group_are_told() -> None:
    world = World(ONE, TWO)
    (line,) = await world.report(waiting=[waiting(ONE, TWO)])
    told = world.conditions()
    assert set(told) == {"rank-0", "rank-1"}
    for each in told.values():
        assert (each["type"], each["status"], each["reason"]) == ("PodScheduled", "False", "WaitingForTurn")
    assert {name: each["type"] for name, each in world.conditions(GROUPS).items()} == {
        "g": "PodGroupScheduled"
    }
    assert [(event["regarding"].name, event["reason"], event["type"]) for event in world.server.events] == [
        ("rank-0", "FailedScheduling", "Warning"),
        ("rank-1", "FailedScheduling", "Warning"),
    ]
    assert (line["event"], line["group"], line["pods"], line["log_level"]) == (
        "waits",
        "default/g",
        2,
        "info",
    )
    assert world.attempts("unschedulable") == 2
    assert (
        world.counted("scheduler_podgroup_schedule_attempts_total", result="unschedulable", profile="fluence")
        == 1
    )


@pytest.mark.parametrize(
    ("outcome", "reason", "event"),
    [
        (JobState.GATHERING, "WaitingForGroup", "Warning"),
        (JobState.PREPARING, "WaitingForVolumes", "Normal"),
        (JobState.REFUSED, "SchedulerError", "Warning"),
        (JobState.UNSCHEDULABLE, "SchedulerError", "Warning"),
    ],
)
async def test_the_reason_says_what_kind_of_waiting_it_is(outcome: JobState, reason: str, event: str) -> None:
    world = World(ONE)
    await world.report(waiting=[waiting(ONE, outcome=outcome)])
    assert world.conditions()["rank-0"]["reason"] == reason
    assert world.server.events[0]["type"] == event


async def test_a_pod_that_is_gone_or_has_its_node_is_told_nothing() -> None:
    world = World(bound(TWO, "n1"))
    await world.report(waiting=[waiting(ONE, TWO)])
    assert world.conditions() == {} and world.server.events == [] and world.attempts("unschedulable") == 0


async def test_a_group_is_told_only_where_it_has_a_status() -> None:
    world = World(ONE)
    world.reporter.group_resource = None
    await world.report(waiting=[waiting(ONE)])
    assert world.conditions(GROUPS) == {} and set(world.conditions()) == {"rank-0"}


async def test_nodes_that_the_server_refused_are_written_on_the_pods_with_those_of_the_annotations() -> None:
    world = World(ONE, refused=frozenset({"n2"}))
    await world.report(waiting=[waiting(ONE, excluded=frozenset({"n1"}))])
    ((_, _, body),) = [each for each in world.server.patches if each[0] == PODS.name]
    assert body["metadata"]["annotations"] == {names.EXCLUDED: "n1,n2"}
    unrefused = World(ONE)
    await unrefused.report(waiting=[waiting(ONE, excluded=frozenset({"n1"}))])
    assert all("annotations" not in body["metadata"] for _, _, body in unrefused.server.patches)


async def test_a_gang_that_has_begun_is_scheduled() -> None:
    world = World()
    await world.report(begun=[gang()])
    condition = world.conditions(GROUPS)["g"]
    assert (condition["status"], condition["reason"]) == ("True", "Scheduled")
    assert (
        world.counted("scheduler_podgroup_schedule_attempts_total", result="scheduled", profile="fluence")
        == 1
    )


# -- faults --------------------------------------------------------------------------------------------------


async def test_an_object_that_cannot_be_handled_is_logged_counted_and_told() -> None:
    world = World(ONE)
    fault = Fault(Subject("Pod", "default/rank-0"), ZeroDivisionError("by the test"), (ONE,))
    (line,) = await world.report(faults=[fault])
    assert (line["event"], line["subject"], line["log_level"]) == (
        "quarantined",
        "Pod default/rank-0",
        "error",
    )
    assert line["exc_info"] is fault.error
    assert world.counted("fluence_faults_total", kind="Pod") == 1
    condition = world.conditions()["rank-0"]
    assert condition["reason"] == "SchedulerError" and "ZeroDivisionError" in condition["message"]


async def test_a_fault_that_comes_again_is_counted_and_not_logged() -> None:
    world = World()
    fault = Fault(Subject("group", "default/g"), ZeroDivisionError(), (), first=False)
    assert await world.report(faults=[fault, fault]) == []
    assert world.counted("fluence_faults_total", kind="group") == 2


async def test_a_fault_of_nobody_is_the_cycles() -> None:
    world = World()
    (line,) = await world.report(faults=[Fault(None, ZeroDivisionError())])
    assert line["subject"] == "unknown" and world.counted("fluence_faults_total", kind="cycle") == 1
    assert world.server.patches == []


async def test_a_plug_in_that_fails_is_logged_with_its_name_and_counted() -> None:
    world = World()
    fault = PluginFault("site-policy", ZeroDivisionError(), "default/g")
    (line,) = await world.report(plugin_faults=[fault])
    assert (line["event"], line["plugin"], line["job"]) == ("plug-in failed", "site-policy", "default/g")
    assert line["exc_info"] is fault.error and world.counted("fluence_faults_total", kind="plugin") == 1


# -- binds ---------------------------------------------------------------------------------------------------

BIND = Bind(ONE, "n1", "default/g", {})


async def test_a_pod_that_is_bound_gets_its_event_and_nothing_of_why_it_waited() -> None:
    world = World(ONE)
    world.reporter.report(Decisions(waiting=[waiting(ONE)]), NOW)
    world.reporter.bind_finished(BindResult(BIND, BindOutcome.BOUND), took=0.5, age=3.0)
    await world.write()
    assert world.conditions() == {}
    assert [event["reason"] for event in world.server.events] == ["FailedScheduling", "Scheduled"]
    assert world.attempts("scheduled") == 1
    assert world.counted("scheduler_binding_duration_seconds_sum") == 0.5
    assert world.counted("scheduler_pod_scheduling_sli_duration_seconds_sum") == 3.0


async def test_times_that_nobody_knows_are_not_observed() -> None:
    world = World(ONE)
    world.reporter.bind_finished(BindResult(BIND, BindOutcome.BOUND), took=None, age=None)
    assert world.counted("scheduler_binding_duration_seconds_count") == 0
    assert world.counted("scheduler_pod_scheduling_sli_duration_seconds_count") == 0


FAILED = [each for each in BindOutcome if each not in (BindOutcome.BOUND, BindOutcome.HANDED_OVER)]


@pytest.mark.parametrize("outcome", FAILED)
async def test_a_bind_that_failed_is_an_error_in_the_log_and_no_event(outcome: BindOutcome) -> None:
    world = World(ONE)
    with capture_logs() as log:
        world.reporter.bind_finished(BindResult(BIND, outcome, "why"), took=0.5, age=3.0)
    await world.write()
    assert [(line["event"], line["outcome"], line["pod"], line["node"]) for line in log] == [
        ("not bound", outcome.value, "default/rank-0", "n1")
    ]
    assert world.attempts("error") == 1 and world.server.events == []
    assert world.counted("scheduler_binding_duration_seconds_count") == 0


async def test_a_warning_about_a_held_job_is_an_event_on_the_job() -> None:
    """Its pods do not exist yet: the server refuses the names of their placeholders."""
    job = kit.owner("train", parallelism=1)
    held = placeholder(msgspec.structs.replace(job, spec=HELD), 0)
    world = World()
    reason = Reason.of(Code.UNKNOWN_ANNOTATION, kind="annotation", key="durration", nearest=None)
    await world.report(warnings=[GangWarning(held, reason)])
    (event,) = world.server.events
    about = msgspec.to_builtins(event["regarding"])
    assert (about["kind"], about["name"], about["uid"]) == ("Job", "train", job.metadata.uid)
    assert about["apiVersion"] == "batch/v1"
    assert event["metadata"]["name"].startswith("train.")


async def test_a_namespace_whose_work_is_not_held_gets_an_event_of_its_own() -> None:
    world = World()
    meta = ObjectMeta(name="physics", uid="u-1")
    reason = Reason.of(Code.WORK_NOT_HELD, label="l=enabled", kind="Job", name="train")
    await world.report(unheld=[UnheldNamespace(meta, reason)])
    (event,) = world.server.events
    about = msgspec.to_builtins(event["regarding"])
    assert (about["kind"], about["name"], event["metadata"]["namespace"]) == (
        "Namespace",
        "physics",
        "physics",
    )
    assert event["type"] == "Warning" and event["reason"] == "WorkNotHeld"
