"""Gangs, conditions and explanations on a real API server, with its defaults, admission and controllers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fluence import names
from fluence.act.conditions import group_condition, message, pod_condition
from fluence.cli import main
from fluence.kube.client import Client, PatchType
from fluence.kube.gangs import AnyGangs, discover_gangs
from fluence.kube.resource import DEPLOYMENTS, JOBS, PODS, REPLICASETS, STATEFULSETS, Resource
from fluence.model.job_state import JobState
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.sandbox.testing import Kube
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.status.status import StatusReport
from tests.eventually import eventually

NAME = "fluence-groups"  # no other scheduler acts on these
NOW = 1_788_264_000_000


def why(text: str) -> tuple[Reason, ...]:
    return (Reason.of(Code.GIVEN, text=text),)


def pod(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": template(**spec)["spec"],
    }


def template(*, labels: dict[str, str] | None = None, cpu: str = "100m", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    base = {"schedulerName": NAME, "automountServiceAccountToken": False, "containers": [container]}
    return {"metadata": {"labels": labels or {}}, "spec": {**base, **spec}}


async def read(client: Client, namespace: str, gangs: AnyGangs) -> Groups:
    """Everything that there is, as a scheduler would follow it."""
    groups = Groups(scheduler=NAME, native=gangs.resource is not None)
    for item in (await client.list(PODS, namespace=namespace)).items or ():
        groups.set_pod(item)
    owners: tuple[Resource[Any], ...] = (JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)
    for resource in owners:
        for owner in (await client.list(resource, namespace=namespace)).items or ():
            groups.set_owner(owner)
    if gangs.resource is not None:
        where: Resource[Any] = gangs.resource
        for each in (await client.list(where, namespace=namespace)).items or ():
            for group in gangs.groups(each):
                groups.set_group(group)
    return groups


async def until(
    client: Client, namespace: str, gangs: AnyGangs, key: str, done: Callable[[Gang], bool]
) -> Gang:
    async def look() -> Gang | None:
        return (await read(client, namespace, gangs)).gang(f"{namespace}/{key}")

    gang = await eventually(
        look, lambda gang: gang is not None and done(gang), what=f"{key} is as it should be", pause_s=0.1
    )
    assert gang is not None
    return gang


async def native(client: Client) -> AnyGangs:
    gangs = await discover_gangs(client)
    assert gangs.resource is not None, gangs.reason
    if gangs.condition is None:
        pytest.skip("groups of 1.35 are parts of a Workload: no objects that a label names, and no status")
    return gangs


async def test_a_native_gang_pods_first_then_its_group(kube: Kube) -> None:
    async with kube.client() as client:
        gangs = await native(client)
        link = gangs.pod_link("lammps")
        for i in range(2):
            await client.create(PODS.raw(), pod(f"r-{i}", **link), namespace=kube.namespace)  # type: ignore[arg-type]
        gang = (await read(client, kube.namespace, gangs)).gang(f"{kube.namespace}/lammps")
        assert gang is not None and gang.missing is not None
        assert gang.missing.code is Code.POD_GROUP_NOT_SEEN
        group = Group(namespace=kube.namespace, name="lammps", min_count=2)
        where: Resource[Any] = gangs.resource  # type: ignore[assignment]
        await client.create(where.raw(), gangs.manifest(group), namespace=kube.namespace)
        gang = await until(client, kube.namespace, gangs, "lammps", lambda gang: gang.is_ready)
        assert gang.group is not None and gang.group.created is not None
        assert (gang.needed, gang.uid) == (2, gang.group.uid)
        assert gang.submit == int(gang.group.created.timestamp() * 1000)


async def test_fluences_own_deployment_with_the_label_alone(kube: Kube) -> None:
    async with kube.client() as client:
        gangs = await native(client)
        labels = {"app": "training", "scheduling.k8s.io/pod-group": "training"}
        group = Group(namespace=kube.namespace, name="training", min_count=2)
        where: Resource[Any] = gangs.resource  # type: ignore[assignment]
        await client.create(where.raw(), gangs.manifest(group), namespace=kube.namespace)
        body = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "training"},
            "spec": {
                "replicas": 3,
                "selector": {"matchLabels": {"app": "training"}},
                "template": template(labels=labels),
            },
        }
        await client.create(DEPLOYMENTS.raw(), body, namespace=kube.namespace)
        gang = await until(client, kube.namespace, gangs, "training", lambda g: len(g.members) == 3)
        assert gang.is_ready and (gang.minimum, gang.needed, gang.size) == (2, 2, 3)


async def test_the_original_fluences_indexed_job_of_ten_with_its_annotations(kube: Kube) -> None:
    async with kube.client() as client:
        gangs = await native(client)
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": "job-0",
                "annotations": {
                    "fluence.flux-framework.org/pod-group": "job-0",
                    "fluence.flux-framework.org/group-size": "10",
                },
            },
            "spec": {
                "completions": 10,
                "parallelism": 10,
                "completionMode": "Indexed",
                "activeDeadlineSeconds": 3600,
                "template": template(restartPolicy="Never"),
            },
        }
        await client.create(JOBS.raw(), body, namespace=kube.namespace)
        gang = await until(client, kube.namespace, gangs, "job-0", lambda g: len(g.members) == 10)
        assert gang.is_ready and gang.needed == 10
        assert (gang.limit, gang.bounded) == (3_600_000, True)
        indexes = [each.annotations[names.COMPLETION_INDEX] for each in gang.members]
        assert indexes == [str(i) for i in range(10)]


async def test_a_pods_condition_is_written_once_and_replaces_that_of_its_gate(kube: Kube) -> None:
    async with kube.client() as client:
        gated = pod("held", schedulingGates=[{"name": "example.org/hold"}])
        await client.create(PODS.raw(), gated, namespace=kube.namespace)
        await client.patch(
            PODS, "held", {"spec": {"schedulingGates": []}}, namespace=kube.namespace, kind=PatchType.MERGE
        )
        seen = await client.get(PODS, "held", namespace=kube.namespace)
        stale = seen.condition("PodScheduled")
        assert stale is not None and stale.reason == "SchedulingGated", "the server leaves it standing"
        report = StatusReport(JobState.PENDING, why("busy"), no_later_than=NOW + 3_600_000)
        patch = pod_condition(seen, report, now=NOW)
        assert patch is not None
        seen = await write(client, kube.namespace, seen, patch)
        found = seen.condition("PodScheduled")
        assert found is not None and (found.reason, found.message) == (
            "WaitingForTurn",
            "busy. Starts by 13:00 UTC.",
        )
        assert found.last_transition_time == stale.last_transition_time
        assert pod_condition(seen, report, now=NOW + 30_000) is None
        other = pod_condition(seen, StatusReport(JobState.UNSCHEDULABLE, why("too large")), now=NOW)
        assert other is not None
        other["metadata"] = {"uid": "of-another"}
        with pytest.raises(Exception, match=r"(?i)precondition|uid"):
            await write(client, kube.namespace, seen, other)


async def write(client: Client, namespace: str, of: Pod, patch: dict[str, object]) -> Pod:
    return await client.patch(
        PODS,
        of.metadata.name,
        patch,
        namespace=namespace,
        kind=PatchType.STRATEGIC,
        subresource="status",
    )


async def test_a_groups_condition_is_upstreams_and_never_goes_back(kube: Kube) -> None:
    async with kube.client() as client:
        gangs = await native(client)
        where: Resource[Any] = gangs.resource  # type: ignore[assignment]
        group = Group(namespace=kube.namespace, name="g", min_count=2)
        await client.create(where.raw(), gangs.manifest(group), namespace=kube.namespace)

        async def tell(report: StatusReport) -> Group | None:
            (held,) = gangs.groups(await client.get(where, "g", namespace=kube.namespace))
            patch = group_condition(held, report, now=NOW)
            if patch is None:
                return None
            got = await client.patch(
                where, "g", patch, namespace=kube.namespace, kind=PatchType.STRATEGIC, subresource="status"
            )
            return gangs.groups(got)[0]

        waits = await tell(StatusReport(JobState.PENDING, why("busy")))
        assert waits is not None and waits.is_scheduled is False
        assert [(each.type, each.reason) for each in waits.conditions] == [
            (gangs.condition, "Unschedulable"),
            (names.WAIT_REPORTED, "Given"),
        ]
        assert await tell(StatusReport(JobState.PENDING, why("busy"))) is None
        done = await tell(StatusReport(JobState.RUNNING))
        assert done is not None and done.is_scheduled
        assert {each.type: each.status for each in done.conditions} == {
            gangs.condition: "True",
            names.WAIT_REPORTED: "False",
        }
        assert await tell(StatusReport(JobState.PENDING, why("busy again"))) is None


def fluence(kube: Kube, *args: str) -> str:
    config = str(Path(kube.sandbox.at.kubeconfig()))
    words = ["explain", *args, "--kubeconfig", config, "-n", kube.namespace, "--scheduler-name", NAME]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_explain_says_what_the_condition_says_and_what_would_help(kube: Kube) -> None:
    told = "Waiting for the pods of the gang"
    report = StatusReport(JobState.PENDING, why(told), NOW + 3_600_000, NOW + 1_800_000)

    async def make() -> str:
        async with kube.client() as client:
            labels = {names.GROUP_LABEL: "big", names.GROUP_SIZE: "2"}
            for i in range(2):
                body = pod(f"big-{i}", labels=labels, cpu="1k", nodeSelector={"disk": "ssd"})
                await client.create(PODS.raw(), body, namespace=kube.namespace)
            await client.create(
                PODS.raw(),
                pod("small", labels={**labels, names.GROUP_LABEL: "part"}),
                namespace=kube.namespace,
            )
            seen = await client.get(PODS, "big-0", namespace=kube.namespace)
            patch = pod_condition(seen, report, now=NOW)
            assert patch is not None
            found = (await write(client, kube.namespace, seen, patch)).condition("PodScheduled")
            assert found is not None
            return found.message

    written = asyncio.run(make())
    shown = fluence(kube, "pod", "big-0")
    assert shown.startswith(f"pod {kube.namespace}/big-0: Unschedulable")
    assert told in shown and written.startswith(told)
    assert re.search(r"by 2026-09-01 13:00:00 UTC \(.* ago\), expected 2026-09-01 12:30:00", shown)
    assert "didn't match Pod's node affinity/selector (disk=ssd)" in shown
    assert "it does not fit even on an empty cluster" in shown
    group = fluence(kube, "group", "big", "-o", "wide")
    assert told in group and "2 must run together" in group and "big-1" in group
    part = fluence(kube, "group", "part")
    assert "Waiting for 1 of 2 pods" in part and "create 1 more pod of the group" in part
    assert message(report, now=NOW) == written
    missing = CliRunner().invoke(
        main, ["explain", "pod", "none", "--kubeconfig", str(kube.sandbox.at.kubeconfig())]
    )
    assert missing.exit_code != 0
