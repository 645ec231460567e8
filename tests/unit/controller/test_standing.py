"""What a FluxJob says of its workload: phases, places, starts and reasons, and what counts as a change."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from msgspec.structs import replace

from fluence import names
from fluence.controller import standing as standings
from fluence.controller.flux_job import FluxJobSpec, FluxJobStatus, Workload, spec_of, workload_of
from fluence.controller.standing import Standing, rounded, status
from fluence.model.meta import Condition
from fluence.model.owner import Deployment, Owner, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, PodStatus
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_held import NOW, as_bound, driver, gated, held, let_go, node, rank, replicas


def standing(found: Driver, item: Pod | Owner, position: int | None = None) -> Standing:
    workload = Workload(item)
    key = found.groups.of(workload.member())
    said = found.reports.said.get(key)
    pod_sets = found.pod_sets.of_group(key)
    report = None if said is None else said.report
    return Standing(workload, found.groups.gang(key), pod_sets, report, position)


def told(found: Driver, item: Pod | Owner, before: FluxJobStatus | None = None, **more: int) -> FluxJobStatus:
    return status(standing(found, item, **more), before or FluxJobStatus(), generation=1, now=NOW)


def test_the_life_of_a_job() -> None:
    found = driver(node("n0", 2))
    busy = kit.pod("busy", cpu="2", node="n0", phase="Running", scheduler="other")
    found.set_pod(busy)
    job = held("j", 2)
    found.set_owner(job)
    found.cycle(NOW)
    waits = told(found, job, position=1)
    assert (waits.phase, waits.submit_status, waits.position) == ("Pending", "statusSubmit", 1)
    assert waits.reason and waits.message and waits.nodes is None
    assert {each.type: each.status for each in waits.conditions or ()} == {
        "Scheduled": "False",
        "Finished": "False",
        "Unschedulable": "False",
        names.WAIT_REPORTED: "True",
    }
    found.remove_pod(busy)
    job = let_go(job, found.cycle(NOW + 1))
    found.set_owner(job)
    starts = told(found, job, waits)
    assert (starts.phase, starts.position, starts.nodes) == ("Starting", None, ["n0"])
    assert starts.allocation and starts.started
    pods = [rank(job, index) for index in range(2)]
    for pod in pods:
        found.set_pod(pod)
    notes = dict(found.cycle(NOW + 2).binds[0][0].annotations)
    for pod in pods:
        found.set_pod(as_bound(pod, "n0", notes))
    found.cycle(NOW + 3)
    runs = told(found, job, starts)
    assert (runs.phase, runs.nodes, runs.allocation) == ("Running", ["n0"], starts.allocation)
    for pod in pods:
        found.set_pod(replace(as_bound(pod, "n0", notes), status=PodStatus(phase="Succeeded")))
    found.cycle(NOW + 4)
    assert told(found, job, runs).phase == "Running"  # until its owner says that it is complete
    done = replace(job, status=replace(job.status, conditions=[Condition(type="Complete", status="True")]))
    found.set_owner(done)
    ended = told(found, done, runs)
    assert (ended.phase, ended.nodes, ended.start) == ("Completed", ["n0"], runs.start)
    assert {each.type: each.status for each in ended.conditions or ()}["Finished"] == "True"


def test_what_was_written_stays_while_nothing_changes_that_a_user_can_see() -> None:
    found = driver(node("n0", 2))
    found.set_pod(kit.pod("busy", cpu="2", node="n0", phase="Running", scheduler="other"))
    job = held("j", 2)
    found.set_owner(job)
    found.cycle(NOW)
    first = told(found, job, position=12)
    again = status(standing(found, job, 19), first, generation=1, now=NOW + 60_000)
    assert again == first


@pytest.mark.parametrize(("phase", "duration"), [("Pending", 60), ("Reserved", 0), ("Running", 60)])
def test_what_was_told_is_read_again(phase: str, duration: int) -> None:
    came, start = "2026-09-01T12:00:00.000007Z", "2026-09-01T13:00:00Z"
    before = FluxJobStatus(phase=phase, queued=came, no_later_than=start, expected=start)
    found = standings.told(FluxJobSpec(duration=duration), before, "u")
    assert found is not None and found.queued == NOW // 1000 * 1_000_000 + 7
    at, waits = NOW + 3_600_000, phase != "Running"
    assert found.promise == ((at, at, False, 60_000 if duration else None) if waits else None)
    assert standings.told(FluxJobSpec(), FluxJobStatus(phase="Pending", queued="soon"), "u") is None


def test_places_are_exact_at_the_front_and_rounded_up_behind() -> None:
    assert [rounded(place) for place in (1, 10, 11, 20, 21, 51, 101, 9_999)] == [
        *(1, 10, 20, 20, 50, 100, 200, 10_000),
    ]
    assert rounded(None) is None
    steps = {rounded(place) for place in range(1, 10_001)}
    assert len(steps) <= 20  # so often is a job told of its place, from the ten thousandth to the first


def test_what_never_fits_is_an_error_that_says_why() -> None:
    found = driver(node("n0", 1))
    job = held("j", 2)
    found.set_owner(job)
    found.cycle(NOW)
    never = told(found, job)
    assert (never.phase, never.submit_status) == ("Unschedulable", "statusError")
    assert never.message


def test_late_members_that_wait_are_told_beside_those_that_run() -> None:
    found = driver(node("n0", 2))
    web = replicas("web", 2)
    found.set_owner(web)
    pods = [gated(f"web-{i}", owner=web) for i in range(3)]
    for pod in pods[:2]:
        found.set_pod(pod)
    notes = dict(found.cycle(NOW).binds[0][0].annotations)
    for pod in pods[:2]:
        found.set_pod(as_bound(pod, "n0", notes))
    web = replace(web, spec=replace(web.spec, replicas=3))
    found.set_owner(web)
    found.set_pod(pods[2])
    found.cycle(NOW + 1)
    runs = told(found, web)
    assert runs.phase == "Running" and runs.message.startswith("1 more wait")


def test_which_objects_are_workloads() -> None:
    top = replicas("web", 2, Deployment)
    under = replicas("web-1", 2, ReplicaSet, parent=top)
    assert workload_of(top, "fluence") == Workload(top)
    assert workload_of(under, "fluence") is None
    assert workload_of(gated("web-1-0", owner=under), "fluence") is None
    assert workload_of(gated("p"), "fluence") is not None
    assert workload_of(kit.pod("p"), "fluence") is None
    assert workload_of(held("j"), "another") is None


def test_names_types_and_sizes_are_fluxqueues() -> None:
    found = {
        "j-job": (1, held("j", 3)),
        "web-deployment": (2, replicas("web", 4, Deployment)),
        "web-replicaset": (3, replicas("web", 4)),
        "db-statefulset": (4, replicas("db", 2, StatefulSet)),
        "p-pod": (0, gated("p", cpu="1500m")),
    }
    for name, (number, item) in found.items():
        workload = Workload(item)  # type: ignore[arg-type]
        spec = spec_of(workload, None)
        assert (workload.flux_job, spec.type, spec.name) == (name, number, workload.name)
        assert "version: 1" in spec.jobspec
    assert spec_of(Workload(found["j-job"][1]), None).nodes == 3  # type: ignore[arg-type]
    assert "type: core" in spec.jobspec and "count: 2" in spec.jobspec  # of 1500m


def test_the_limit_of_a_job_is_its_duration() -> None:
    found = driver(node("n0", 4))
    job = held("j", 2, active_deadline_seconds=90)
    found.set_owner(job)
    found.cycle(NOW)
    gang = found.groups.gang("default/job:j")
    assert spec_of(Workload(job), gang).duration == 90


def test_a_cancelled_workload_says_so() -> None:
    assert Workload(held("j", annotations={names.CANCELLED: "x"})).is_cancelled


@pytest.mark.parametrize("name", ["j", "null", "on", "y", "0", "1e3", "12-7", "2026-11-17", "0x1f", "a.b-c"])
def test_a_jobspec_reads_back_whatever_the_name(name: str) -> None:
    document = yaml.safe_load(spec_of(Workload(held(name, 3, cpu="1500m")), None).jobspec)
    slot = {"type": "slot", "count": 1, "label": name, "with": [{"type": "core", "count": 2}]}
    assert document == {
        "version": 1,
        "resources": [{"type": "node", "count": 3, "with": [slot]}],
        "tasks": [{"command": ["echo", "default", name], "slot": name, "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 0}},
    }


def test_the_start_is_the_promised_one_and_empty_where_nothing_is_promised() -> None:
    found = driver(node("n0", 2))
    found.set_pod(kit.pod("busy", cpu="2", node="n0", phase="Running", scheduler="other"))
    job = held("j", 2)
    found.set_owner(job)
    found.cycle(NOW)
    at = standing(found, job, 1)
    assert at.report is not None
    likely = dataclasses.replace(at, report=dataclasses.replace(at.report, expected=NOW + 60_000))
    made = status(likely, FluxJobStatus(), generation=1, now=NOW)
    assert made.expected and made.start is None
    promised = dataclasses.replace(at, report=dataclasses.replace(at.report, no_later_than=NOW + 60_000))
    made = status(promised, FluxJobStatus(), generation=1, now=NOW)
    assert made.start and made.start == made.no_later_than
