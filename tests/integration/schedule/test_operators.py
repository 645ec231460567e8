"""Workloads of operators start whole or not at all, are one to people, and survive a killed scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from fluence import names
from fluence.admission.manifests import policies
from fluence.admission.rule import POD_GROUPS
from fluence.admission.scopes import AdmissionOptions
from fluence.kube.gangs import Volcano
from fluence.kube.resource import NAMESPACES, PODS, Json
from fluence.live.scheduler import LiveScheduler
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger
from fluence.sandbox.auditor import Auditor
from fluence.sandbox.proxy import Rule
from fluence.sandbox.testing import Kube
from fluence.web.rows import Filter, queue
from fluence.web.view import take
from tests.eventually import eventually
from tests.integration.admission.field import created, hand_off
from tests.integration.rights import make_namespace
from tests.integration.schedule.custom_groups import add_group
from tests.integration.schedule.field import LABEL, Field, field
from tests.integration.schedule.killed import killed
from tests.integration.schedule.operated import (
    MAKERS,
    OTHERS,
    SIZE,
    Operated,
    all_kinds,
    bound_of,
    install,
    of,
    resource_of,
    uninstall,
)
from tests.operators.programs import find_operators

PAGE = Path(__file__).parents[3] / "docs" / "workloads.md"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
NAMES = ("one", "two")
KILLED = "three"
KILLED_KINDS = ("JobSet", "LeaderWorkerSet", "MPIJob", "RayCluster")  # all kinds: test_mixed_kills.py
NODES = 4  # of one core: one object starts, and a second does not fit beside it


async def fluence(f: Field, *words: str) -> dict[str, Any]:
    """What a command of the program says."""
    command = [sys.executable, "-m", "fluence.cli", *words, "-n", f.namespace, "-o", "json"]
    command += ["--kubeconfig", str(f.kube.sandbox.at.kubeconfig())]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output)
    return found


class Everybody:
    def sees(self, namespace: str) -> bool:
        return True


async def listed(live: LiveScheduler) -> list[tuple[str, str, int]]:
    """What waits, as the view API lists it."""
    rows = queue(take(live.scheduler, 0), Everybody(), Filter())
    found: list[Any] = [msgspec.to_builtins(row.struct(place)) for row, place in rows]
    return [(row["kind"], row["name"], row["pods"]) for row in found]


def listed_as(kind: str, name: str, pods: dict[str, Pod]) -> tuple[str, str]:
    """The kind and the name of the gang of an object, as people see it."""
    if kind == "RayJob":
        return "RayCluster", next(iter(of(pods, f"{name}-").values())).labels["ray.io/cluster"]
    stage = {"LeaderWorkerSet": "/0", "SparkApplication": "/executors"}.get(kind, "")
    return {"TrainJob": "JobSet"}.get(kind, kind), f"{name}{stage}"


def has_bound(count: int, pods: dict[str, Pod]) -> bool:
    return bound_of(pods, KILLED) == count


@pytest.mark.parametrize("kind", MAKERS)
async def test_an_object_starts_whole_or_not_at_all_and_is_one_to_people(operators: Kube, kind: str) -> None:
    """Two objects, and room for one of them. What starts is whole, and the other has nothing: it is listed
    and explained as one. When the first is cancelled, all of it goes, and the second starts."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler() as live:
        operated = Operated(f)
        async with operated.cleared(kind, *NAMES):
            await asyncio.gather(*(MAKERS[kind](operated, name) for name in NAMES))
            pods = await f.until(
                lambda pods: (
                    len(of(pods)) == 2 * SIZE and {bound_of(pods, name) for name in NAMES} == {0, SIZE}
                ),
                "one has started, and the other has not",
            )
            first, second = sorted(NAMES, key=lambda name: -bound_of(pods, name))
            await f.until_told(next(iter(of(pods, f"{second}-"))))
            shown, group = listed_as(kind, second, pods)
            told = await fluence(f, "explain", "group", group, "--scheduler-name", f.name)
            assert told["state"] == "Pending", told
            assert told["gang"]["waiting"] == told["gang"]["minimum"] == SIZE, told
            assert bound_of(await f.pods(), second) == 0
            assert await listed(live) == [(shown, group, SIZE)]
            done = await fluence(f, "cancel", f"{kind.lower()}/{first}")
            assert [(each["kind"], each["name"]) for each in done["results"]] == [(kind, first)]
            await f.until(
                lambda pods: len(of(pods)) == SIZE and bound_of(pods, second) == SIZE,
                "the second starts whole",
            )


@pytest.mark.parametrize("kind", KILLED_KINDS)
async def test_an_object_is_completed_after_a_kill_between_two_of_its_pods(
    operators: Kube, tmp_path: Path, kind: str
) -> None:
    """The scheduler is killed when it has bound one pod, and again when it has bound two."""
    async with field(operators, NODES, cpu=1) as f:
        operated = Operated(f)
        async with operated.cleared(kind, KILLED):
            for count in (1, 2):
                one = Rule(verb="create", path="binding$", after=1, latency_s=60)
                async with killed(f, [one], tmp_path) as run:
                    await run.led()
                    if count == 1:
                        await MAKERS[kind](operated, KILLED)
                    await f.until(partial(has_bound, count), f"{count} of its pods are bound")
                    await run.stop(signal.SIGKILL)
            async with f.scheduler():
                await f.until(partial(has_bound, SIZE), "the rest follows")


async def test_a_group_of_another_system_starts_whole_or_not_at_all_and_is_one_to_people(
    operators: Kube,
) -> None:
    """As above, for each system one after the other: Kueue, Volcano, KAI and YuniKorn."""
    async with field(operators, NODES, cpu=1) as f, all_kinds(f), f.scheduler() as live:
        operated = Operated(f)
        for system, make in OTHERS.items():
            both = [
                f"{system}-{name}" for name in NAMES
            ]  # KWOK may delete a pod that has the name of another
            await asyncio.gather(*(make(operated, name) for name in both))
            pods = await f.until(
                lambda pods, both=both: (  # type: ignore[misc]
                    len(pods) == 2 * SIZE and {bound_of(pods, name) for name in both} == {0, SIZE}
                ),
                f"one group of {system} has started, and the other has not",
            )
            first, second = sorted(both, key=lambda name: -bound_of(pods, name))
            await f.until_told(f"{second}-0")
            told = await fluence(f, "explain", "group", f"{system}:{second}", "--scheduler-name", f.name)
            assert told["state"] == "Pending", told
            assert told["gang"]["waiting"] == told["gang"]["minimum"] == SIZE, told
            assert bound_of(await f.pods(), second) == 0
            assert [(name, pods) for _, name, pods in await listed(live)] == [(f"{system}:{second}", SIZE)]
            done = await fluence(f, "cancel", f"group/{system}:{first}")
            assert {each["name"] for each in done["results"]} == {f"{first}-{index}" for index in range(SIZE)}
            await f.until(
                lambda pods, left=second: len(pods) == SIZE and bound_of(pods, left) == SIZE,  # type: ignore[misc]
                "the second starts whole",
            )
            await fluence(f, "cancel", second)
            await f.until(lambda pods: not pods, "the name alone is enough")


# -- what only a real controller shows -----------------------------------------------------------------------


async def test_a_job_set_in_order_starts_one_job_after_the_other(operators: Kube) -> None:
    """The controller makes the workers when the head is ready: a head that waited for them would wait for
    ever."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)
        async with operated.cleared("JobSet", "ordered"):
            await operated.job_set("ordered", startupPolicy={"startupPolicyOrder": "InOrder"})
            await f.until_bound(SIZE)


async def test_a_job_set_with_a_domain_of_its_own_starts_its_leader_first(operators: Kube) -> None:
    """Its webhook refuses the other pods of a Job until the first has a node."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)
        async with operated.cleared("JobSet", "alone"):
            near = {EXCLUSIVE: LABEL}
            await operated.job_set("alone", {"workers": SIZE}, annotations=near)
            await f.until_bound(SIZE)


async def test_a_job_set_that_restarts_starts_whole_again(operators: Kube) -> None:
    """A pod fails, and the controller makes all Jobs anew."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)
        async with operated.cleared("JobSet", "again"):
            await operated.job_set("again", failurePolicy={"maxRestarts": 1})
            first = await f.until(
                lambda pods: (
                    len(pods) == SIZE and all(pod.status.phase == "Running" for pod in pods.values())
                ),
                "all run",
            )
            failed = {"status": {"phase": "Failed"}}
            await f.client.patch(
                PODS.raw(), next(iter(first)), failed, namespace=f.namespace, subresource="status"
            )

            def is_new(pods: dict[str, Pod]) -> bool:
                living = [pod for pod in pods.values() if not pod.is_terminal]
                return len(living) == SIZE and all(
                    pod.spec.node_name and pod.metadata.name not in first for pod in living
                )

            pods = await f.until(is_new, "all of it runs anew")
            assert {pod.labels[names.JOBSET_RESTART] for pod in pods.values() if not pod.is_terminal} == {"1"}


async def test_parts_that_restart_start_whole_or_beside_those_that_run(operators: Kube) -> None:
    """A group of a LeaderWorkerSet that loses a worker is made again, and starts together. A RayCluster gets
    one worker, which starts beside the others, and so does an MPIJob."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)

        def uids(pods: dict[str, Pod]) -> set[str]:
            return {pod.metadata.uid for pod in pods.values()}

        def runs(pods: dict[str, Pod]) -> bool:
            return len(pods) == SIZE and all(pod.status.phase == "Running" for pod in pods.values())

        async with operated.cleared("LeaderWorkerSet", "again"):
            await operated.leader_worker_set("again")
            first = await f.until(runs, "all run")
            await f.end("again-0-1")
            await f.until(lambda pods: runs(pods) and not uids(pods) & uids(first), "all of it runs anew")
        async with operated.cleared("RayCluster", "more"):
            await operated.ray_cluster("more")
            first = await f.until(runs, "all run")
            await f.end(next(name for name, pod in first.items() if pod.labels[names.RAY_GROUP] == "work"))
            await f.until(
                lambda pods: runs(pods) and len(uids(pods) & uids(first)) == SIZE - 1, "one is replaced"
            )
        async with operated.cleared("MPIJob", "ranks"):
            await operated.mpi_job("ranks")
            first = await f.until(runs, "all run")
            await f.end("ranks-worker-0")
            await f.until(
                lambda pods: runs(pods) and len(uids(pods) & uids(first)) == SIZE - 1, "a rank is replaced"
            )


async def test_what_is_in_another_namespace_never_counts(operators: Kube) -> None:
    """PodGroups, a size and a JobSet of the same name, which would let each of these start."""
    async with field(operators, NODES, cpu=1) as f, all_kinds(f), f.scheduler():
        operated = Operated(f)
        other = f"{f.namespace}-other"
        await make_namespace(f.client, other)
        f.kube = replace(f.kube, namespace=other)
        try:
            await f.add_group("same", 1)
            await add_group(f, Volcano.resource, "same", 1)
            size = {names.GROUP_SIZE: "1"}
            await f.add(f.pod("size", labels={names.GROUP_LABEL: "sized"}, annotations=size))
            await operated.job_set("same", {"head": 1})
            await f.until(lambda pods: len(pods) == 2, "the smaller one has its pod")
        finally:
            f.kube = operators
        await operated.job_set("same", {"head": 1, "workers": NODES})
        await f.until(lambda pods: len(pods) == NODES + 1, "the larger one has its pods")
        await f.add(
            f.pod("native", group="same"),
            f.pod("volcano", annotations={names.VOLCANO_GROUPS[0]: "same"}),
            f.pod("sized", labels={names.GROUP_LABEL: "sized"}, annotations={names.GROUP_SIZE: "2"}),
        )
        for name in ("native", "volcano", "sized"):
            await f.until_told(name, reason="WaitingForGroup")
        assert set((await f.settled(quiet_s=4.0)).values()) == {None}, "settling would be over, too"
        await operated.delete("JobSet", "same")
        await f.add_group("same", 1)
        await add_group(f, Volcano.resource, "same", 1)
        await f.add(f.pod("second", labels={names.GROUP_LABEL: "sized"}))
        await f.until_bound({"native", "volcano", "sized", "second"})
        await f.client.delete(NAMESPACES, other)


async def test_pods_of_a_kind_that_was_installed_just_now_start_whole_or_not_at_all(operators: Kube) -> None:
    """The scheduler runs when the definition comes, and the objects and their pods come with it. One is
    larger than the cluster, and none of it starts."""
    async with operators.client() as client:
        await uninstall(client, "XGBoostJob")  # of another test on this control plane
    async with field(operators, NODES, cpu=1) as f, f.scheduler() as live:
        operated = Operated(f)
        assert "XGBoostJob" not in live.server_apis.kinds
        await install(f.client, "XGBoostJob")
        await operated.torch_job("large", "XGBoostJob", workers=NODES)
        await operated.torch_job("exact", "XGBoostJob", workers=NODES - 1)
        await f.until(lambda pods: bound_of(pods, "exact") == NODES, "the one that fits starts whole")
        await f.until_told("large-master-0", "5 pods")
        assert bound_of(await f.pods(), "large") == 0
        await f.end(*await f.pods())  # the garbage collector does not know the new kind yet


async def test_a_leader_that_must_be_ready_first_starts_before_its_workers(operators: Kube) -> None:
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)
        async with operated.cleared("LeaderWorkerSet", "led"):
            await operated.leader_worker_set("led", startupPolicy="LeaderReady")
            await f.until_bound(SIZE)


async def test_a_launcher_that_waits_for_its_workers_starts_after_them(operators: Kube) -> None:
    """Its Job is made when they are ready: if they waited for it, they would wait for ever."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)
        async with operated.cleared("MPIJob", "later"):
            await operated.mpi_job("later", launcherCreationPolicy="WaitForWorkersReady")
            pods = await f.until_bound(SIZE)
            roles = {pod.labels[names.KUBEFLOW_JOB_ROLE]: pod.metadata for pod in pods.values()}
            made = {role: meta.creation_timestamp for role, meta in roles.items()}
            assert made["launcher"] >= made["worker"]


async def test_verbs_take_the_object_that_its_user_wrote(operators: Kube) -> None:
    """A TrainJob makes a JobSet of its name. What is said of the first holds for all of it."""
    async with field(operators, NODES, cpu=1) as f, f.scheduler():
        operated = Operated(f)
        async with operated.cleared("JobSet", "same"):
            owner = await operated.custom("TrainJob", "same", {})

            async def does(verb: str, name: str) -> list[tuple[str, str]]:
                words = (name, "5") if verb == "priority" else (name,)
                done = await fluence(f, verb, *words)
                return [(each["kind"], each["name"]) for each in done["results"]]

            assert await does("hold", "same") == [("TrainJob", "same")]
            await operated.job_set("same", owners=[owner])
            pods = await f.until(lambda pods: len(pods) == SIZE, "there are pods")
            await f.until_told(next(iter(pods)), f"TrainJob {f.namespace}/same is held")
            assert bound_of(await f.pods(), "same") == 0
            assert await does("priority", "jobset/same") == [("JobSet", "same")]
            assert await does("release", "same") == [("TrainJob", "same")]
            await f.until_bound(SIZE)
            assert await does("cancel", "same") == [("TrainJob", "same")]


# -- PodGroups -----------------------------------------------------------------------------------------------


async def test_gangs_of_every_kind_are_listed_as_pod_groups_which_go_with_them(operators: Kube) -> None:
    """Where admission names them. The one that a user made stays as it was."""
    async with field(operators, NODES, cpu=16) as f, listing(f):
        async with all_kinds(f) as makers, f.scheduler():
            for kind, make in makers.items():
                await make(Operated(f), kind.lower())
            pods = await f.until(
                lambda pods: all(bound_of(pods, kind.lower()) == SIZE for kind in makers), "all start"
            )
            named = {
                kind: {pod.spec.scheduling_group for pod in of(pods, f"{kind.lower()}-").values()}
                for kind in makers
            }
            listed = {link.pod_group_name for links in named.values() for link in links if link is not None}
            assert len(listed) == len(named), named
            await eventually(
                partial(stand, f),
                {name: (SIZE, name != "native", True) for name in listed},
                what="all are listed as scheduled",
            )
        await eventually(partial(stand, f), {"native": (SIZE, False, True)}, what="the others are gone")


@contextlib.asynccontextmanager
async def listing(f: Field) -> AsyncIterator[None]:
    """The rules of `podgroups` hold in the namespace."""
    only = {"key": names.NAMESPACE_NAME, "operator": "In", "values": [f.namespace]}
    options = AdmissionOptions((POD_GROUPS,), scheduler=f.name, selector=(only,))
    await hand_off(f.client, f.namespace, lists_gangs=True)
    async with created(f.client, policies(options, namespace=f.namespace, prefix=f.namespace)):
        probe = f.pod("probe", labels={names.GROUP_LABEL: "probe"})

        async def named() -> bool:
            made = await f.client.create(PODS, probe, namespace=f.namespace, dry_run=True)
            return made.spec.scheduling_group is not None

        await eventually(named, True, what="pods get the field")
        yield


async def stand(f: Field) -> dict[str, tuple[int | None, bool, bool | None]]:
    """The PodGroups of the namespace: their size, whether the scheduler made them, whether all is placed."""
    resource: Any = f.gangs.resource
    found = (await f.client.list(resource, namespace=f.namespace)).items or ()
    groups = [group for item in found for group in f.gangs.groups(item)]
    return {group.name: (group.min_count, group.is_listing, group.is_scheduled) for group in groups}


# -- what the page tells users to write ----------------------------------------------------------------------


def documented(f: Field) -> Iterator[Json]:
    """The manifests of docs/workloads.md whose controllers run here. Their pods go to nodes of this test."""
    kinds = {operator.kind for operator in find_operators()}
    for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        for manifest in yaml.safe_load_all(text):
            if manifest.get("kind") in kinds:
                place(manifest, f.spec())
                yield manifest


_OF_THE_FIELD = ("schedulerName", "nodeSelector", "tolerations", "terminationGracePeriodSeconds")


def place(value: Any, spec: Json) -> None:
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        place(item, spec)
    if isinstance(value, dict) and value.get("schedulerName") == names.SCHEDULER:
        value.update({key: spec[key] for key in _OF_THE_FIELD})


async def test_the_manifests_of_the_page_start_as_it_says(operators: Kube) -> None:
    async with field(operators, NODES, cpu=8) as f, Auditor(f.client) as auditor, f.scheduler():
        operated, sizes = Operated(f), {"JobSet": 5, "LeaderWorkerSet": 8, "MPIJob": 5, "RayCluster": 4}
        manifests: dict[str, Any] = {str(manifest["kind"]): manifest for manifest in documented(f)}
        assert manifests.keys() == sizes.keys()
        try:
            for kind, manifest in manifests.items():
                await f.client.create(resource_of(kind), manifest, namespace=f.namespace)
            await f.until_bound(sum(sizes.values()))
            report = await auditor.report()
            assert not report.findings
            assert report.gangs_seen == 5, "a JobSet, two groups, an MPIJob and a RayCluster"
        finally:
            for kind, manifest in manifests.items():
                await operated.delete(kind, manifest["metadata"]["name"])
            await f.until(lambda pods: not pods, "all is gone")


# -- the audit -----------------------------------------------------------------------------------------------


async def test_the_audit_finds_a_split_of_every_kind(operators: Kube) -> None:
    """Nobody schedules. One pod of each is bound by hand."""
    async with (
        field(operators, NODES, cpu=16) as f,
        all_kinds(f) as makers,
        Auditor(f.client, ledger=AuditLedger(grace_s=0.5)) as auditor,
    ):
        for kind, make in makers.items():
            await make(Operated(f), kind.lower())
        pods = await f.until(lambda pods: len(of(pods)) == SIZE * len(makers), "all have their pods")
        for kind in makers:
            one = min(of(pods, f"{kind.lower()}-"))
            await f.client.bind(pods[one], f.nodes[0])

        async def found() -> set[str]:
            report = await auditor.report()
            assert {each.kind for each in report.findings} <= {"gang"}
            said = [each.what.removeprefix(f"{f.namespace}/").rpartition(":")[2] for each in report.findings]
            return {kind for kind in makers if any(name.startswith(kind.lower()) for name in said)}

        await eventually(found, set(makers), what="each is reported")
