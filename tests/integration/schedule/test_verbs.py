"""Dependencies, and the verbs that change jobs, on a real server: by users who may and by one who may not,
over `kill -9` of the scheduler."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from fluence import names
from fluence.kube.resource import JOBS, PODS, Json
from fluence.model.owner import Job
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.rights import let_edit
from tests.integration.schedule.field import RUN, Field, field
from tests.integration.schedule.killed import killed


def job(f: Field, name: str, depends_on: str = "", *, runs: float = 1, cpu: str = "1", **more: Any) -> Json:
    notes = {**more.pop("notes", {}), **({names.DEPENDS_ON: depends_on} if depends_on else {})}
    spec = f.spec(cpu=cpu, restartPolicy="Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"annotations": {RUN: str(runs)}}, "spec": spec},
            **more,
        },
    }


async def create(f: Field, *jobs: Json) -> None:
    for body in jobs:
        await f.client.create(JOBS.raw(), body, namespace=f.namespace)


async def outcome(f: Field, name: str) -> str:
    found: Job = await f.client.get(JOBS, name, namespace=f.namespace)
    ends = [each.type for each in found.status.conditions or () if each.status == "True"]
    return next((each for each in ends if each in ("Complete", "Failed")), "")


async def pod_of(f: Field, name: str) -> Pod | None:
    """The pod of a Job, one that lives if there are several."""
    pods = [pod for pod in (await f.pods()).values() if pod.labels.get("job-name") == name]
    return min(pods, key=lambda pod: pod.metadata.deletion_timestamp is not None, default=None)


async def runs(f: Field, name: str) -> bool:
    pod = await pod_of(f, name)
    return pod is not None and pod.spec.node_name is not None


async def said(f: Field, name: str) -> tuple[str, str]:
    pod = await pod_of(f, name)
    found = None if pod is None else pod.condition("PodScheduled")
    return ("", "") if found is None else (found.reason, found.message)


class User:
    """Runs `kubectl fluence` as somebody."""

    def __init__(self, kube: Kube, name: str, folder: Path) -> None:
        config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
        for user in config["users"]:
            user["user"]["as"] = name
        self._path = folder / f"{name}.yaml"
        self._path.write_text(yaml.safe_dump(config))
        self._namespace = kube.namespace

    async def __call__(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from fluence.kubectl import main; main()", verb, *arguments]
        where = ["--kubeconfig", str(self._path), "-n", self._namespace]
        return await asyncio.to_thread(
            subprocess.run, [*command, *where], capture_output=True, text=True, timeout=300, check=False
        )


async def test_a_chain_of_three_and_a_failure_that_never_opens_over_a_kill(
    kube: Kube, audited: None, tmp_path: Path
) -> None:
    async with field(kube, 1) as f, killed(f, [], tmp_path) as run, run.explained():
        await run.led()
        await create(
            f,
            job(f, "c", "afterok:b"),
            job(f, "b", "afterok:job/a", runs=2),
            job(f, "a", runs=600),
            job(f, "bad", runs=600, activeDeadlineSeconds=3),
            job(f, "never", "afterok:bad"),
            job(f, "cleanup", "afternotok:bad"),
            job(f, "lost", "afterany:nothing"),
            job(f, "loop", "afterok:pool"),
            job(f, "pool", "afterok:loop"),
        )
        for name, reason, text in (
            ("b", "WaitingForDependency", "Waiting for job/a to succeed"),
            ("lost", "WaitingForDependency", "there is no Job, group or pod of this name"),
            ("loop", "DependencyNeverSatisfied", "It depends on itself"),
            ("pool", "DependencyNeverSatisfied", "It depends on itself"),
        ):
            await eventually(
                partial(said, f, name),
                lambda told, reason=reason, text=text: told[0] == reason and text in told[1],
                what=f"{name} is told {text}",
            )
        await eventually(partial(runs, f, "a"), what="a runs")
        await run.stop(signal.SIGKILL)
        first = await pod_of(f, "a")
        assert first is not None
        ended = {"status": {"phase": "Succeeded"}}
        name = first.metadata.name
        await f.client.patch(PODS.raw(), name, ended, namespace=f.namespace, subresource="status")
        await eventually(partial(outcome, f, "a"), "Complete", what="a ends while no scheduler runs")
        assert not await runs(f, "b")
        await run.led()
        for name in ("b", "c", "cleanup"):
            await eventually(partial(outcome, f, name), "Complete", what=f"{name} has run")
        pods = {name: pod for name in "abc" if (pod := await pod_of(f, name)) is not None}
        starts = [str(pods[name].status.start_time) for name in "abc"]
        assert starts == sorted(starts)
        await eventually(
            partial(said, f, "never"),
            lambda told: told[0] == "DependencyNeverSatisfied" and "bad failed" in told[1],
            what="never is told why",
        )
        for name in ("never", "lost", "loop", "pool"):
            assert not await runs(f, name)


async def test_verbs_by_who_may_and_by_who_may_not_over_a_kill(
    kube: Kube, audited: None, tmp_path: Path
) -> None:
    async with field(kube, 1, cpu=1) as f, killed(f, [], tmp_path) as run, run.explained():
        await let_edit(f.client, "alice", f.namespace)
        alice, mallory = User(kube, "alice", tmp_path), User(kube, "mallory", tmp_path)
        await run.led()
        await create(f, job(f, "first", runs=600))
        await eventually(partial(runs, f, "first"), what="first runs")
        await create(f, job(f, "second", runs=600), job(f, "third", runs=600))
        await eventually(partial(said, f, "third"), lambda told: bool(told[0]), what="third waits")

        for verb in ("hold", "release", "requeue", "cancel", "priority"):
            refused = await mallory(verb, "second", *(["5"] if verb == "priority" else []))
            assert refused.returncode == 1
            assert f"you may not get jobs in namespace {f.namespace}" in refused.stderr
            assert len(refused.stderr.splitlines()) == 1

        tried = await alice("hold", "second", "--dry-run")
        assert tried.stdout == "job.batch/second held (server dry run)\n"
        held = await alice("hold", "second", "-o", "json")
        assert [each["name"] for each in json.loads(held.stdout)["results"]] == ["second"]
        await eventually(
            partial(said, f, "second"), lambda told: told[0] == "Held", what="second is told that it is held"
        )
        await run.stop(signal.SIGKILL)
        assert (await alice("cancel", "job/first", "-o", "name")).stdout == "job.batch/first\n"
        await run.led()
        await eventually(partial(runs, f, "third"), what="third runs, for second is held")
        assert not await runs(f, "second")

        assert (await alice("release", "second")).stdout == "job.batch/second released\n"
        again = await alice("requeue", "third")
        assert again.stdout == "job.batch/third requeued\n", again.stderr
        await eventually(partial(runs, f, "second"), what="second runs: it came before the new third")
        await eventually(partial(pod_of, f, "third"), what="third is queued again")
        assert not await runs(f, "third")
        await create(f, job(f, "fourth", runs=600))
        await eventually(partial(said, f, "fourth"), lambda told: bool(told[0]), what="fourth waits")
        raised = await alice("priority", "fourth", "7")
        assert raised.stdout == "job.batch/fourth changed: priority 7\n"
        await alice("cancel", "second")
        await eventually(partial(runs, f, "fourth"), what="fourth runs before third")
        assert not await runs(f, "third")
        missing = await alice("cancel", "nothing", "third")
        assert missing.stdout == "job.batch/third cancelled\n"
        assert "there is no Job, group, pod or object of an operator named nothing" in missing.stderr
        assert missing.returncode == 1


async def test_groups_pods_and_arrays(kube: Kube, audited: None, tmp_path: Path) -> None:
    label = {names.GROUP_LABEL: "pair"}
    async with field(kube, 2, cpu=4) as f, f.scheduler():
        await let_edit(f.client, "alice", f.namespace)
        alice = User(kube, "alice", tmp_path)
        # A group of a Job and a pod: it is held, released and cancelled as a whole.
        part = job(f, "part", runs=600, notes={names.HOLD: "true"})
        template: Any = part["spec"]
        template["template"]["metadata"].update(labels=label)
        template["template"]["metadata"]["annotations"][names.GROUP_SIZE] = "2"
        other = f.pod("other", labels=label, annotations={names.GROUP_SIZE: "2"}, runs=600)
        await create(f, part)
        await f.add(other)
        await f.until_told("other", "is held", reason="Held")
        held = await alice("hold", "group/pair", "-o", "name")
        assert sorted(held.stdout.split()) == ["job.batch/part", "pod/other"], held.stderr
        released = await alice("release", "pair")
        assert sorted(released.stdout.splitlines()) == ["job.batch/part released", "pod/other released"]
        await f.until_bound({"other"})
        assert await runs(f, "part")
        alone = await alice("requeue", "pod/other")
        assert (alone.returncode, "has no owner" in alone.stderr) == (1, True)
        late = await alice("hold", "pod/other")
        assert late.stdout == "pod/other held: it runs already, and continues\n"
        await alice("cancel", "group/pair")
        await f.until(lambda pods: not pods, "the group is gone")

        # An array of eight, two at a time, until its user has more of them run.
        more: dict[str, Any] = {"completions": 8, "parallelism": 8, "completionMode": "Indexed"}
        await create(f, job(f, "sweep", runs=600, cpu="100m", notes={names.MAX_RUNNING: "2"}, **more))
        await f.until(lambda pods: len(pods) == 8, "the Job has created its pods")
        pods = await f.until_bound(2)
        waits = sorted(name for name, pod in pods.items() if not pod.spec.node_name)
        await f.until_told(waits[-1], "Waiting for its array job/sweep: 2 of 2", reason="WaitingForArray")
        assert sum(node is not None for node in (await f.settled()).values()) == 2
        patch = {"metadata": {"annotations": {names.MAX_RUNNING: "5"}}}
        await f.client.patch(JOBS.raw(), "sweep", patch, namespace=f.namespace)
        await f.until_bound(5)
        assert sum(node is not None for node in (await f.settled()).values()) == 5
        await alice("cancel", "sweep")
