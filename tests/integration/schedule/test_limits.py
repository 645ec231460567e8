"""Limits that a queue enforces, on a real control plane: warned, then ended; and never unless asked for."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from fluence import names
from fluence.kube.errors import ApiError
from fluence.kube.resource import EVENTS, JOBS, Json, Resource
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from fluence.schedule.status import reports as status_reports
from tests.eventually import eventually
from tests.integration.schedule.field import RUN, Field, field

BUDGETS: Resource[Json] = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", dict[str, object]
)
LIMIT = {names.DURATION: "2s"}
BATCH = {**LIMIT, names.QUEUE: "batch"}
SETTINGS: dict[str, Any] = {"enforce_limits": {"batch": "end", "debug": "warn"}, "enforce_grace": 2}


async def make_job(f: Field, name: str, notes: dict[str, str], cpu: str = "1", **spec: Any) -> None:
    pod = {**f.spec(cpu=cpu), "restartPolicy": "Never"}
    template = {"metadata": {"annotations": {**notes, RUN: "600"}}, "spec": pod}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"template": template, "completions": 1, **spec},
    }
    await f.client.create(JOBS.raw(), body, namespace=f.namespace)


async def until_job(f: Field, name: str, reason: str) -> Any:
    """Wait until a Job has failed for this reason."""

    def failed(job: Any) -> bool:
        found = job.get("status", {}).get("conditions", [])
        return any((each["type"], each["reason"]) == ("Failed", reason) for each in found)

    return await eventually(
        lambda: f.client.get(JOBS.raw(), name, namespace=f.namespace), failed, what=f"it fails by {reason}"
    )


async def events(f: Field, *reasons: str) -> dict[str, list[str]]:
    """What was said for these reasons, by the name of whom; once all are there."""
    found: dict[str, list[str]] = {}

    async def said() -> list[Any]:
        page = await f.client.list(EVENTS, namespace=f.namespace)
        return [each for each in page.items or () if each["reason"] in reasons]

    for each in await eventually(said, lambda said: {each["reason"] for each in said} == set(reasons)):
        found.setdefault(each["regarding"]["name"], []).append(each["note"])
    return found


def gone(name: str) -> Any:
    def is_gone(pods: dict[str, Pod]) -> bool:
        return name not in pods or pods[name].metadata.deletion_timestamp is not None

    return is_gone


async def test_a_job_is_warned_and_then_ended_by_its_own_deadline(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler(**SETTINGS) as live:
        await make_job(f, "train", BATCH)
        job = await until_job(f, "train", "DeadlineExceeded")
        assert 4 <= job["spec"]["activeDeadlineSeconds"] < 100
        said = await events(f, "LimitPassed", "EndedAtLimit")
        (warned,) = [note for notes in said.values() for note in notes if "it will be ended at" in note]
        assert warned.startswith("The job exceeded its time limit of 2 s at ")
        assert any("and is ended" in note for note in said["train"]), "the Job itself is told, too"
        for action in ("warned", "ended"):
            line = f'fluence_limits_enforced_total{{action="{action}"}} 1.0'
            await eventually(lambda: live.metrics.text().decode(), lambda text, line=line: line in text)


async def test_a_deadline_that_is_further_away_is_brought_forward(kube: Kube, audited: None) -> None:
    """Its `duration` is shorter: that is what it is held to."""
    async with field(kube, 1) as f, f.scheduler(**SETTINGS):
        await make_job(f, "train", BATCH, activeDeadlineSeconds=1000)
        job = await until_job(f, "train", "DeadlineExceeded")
        assert job["spec"]["activeDeadlineSeconds"] < 1000


async def test_of_a_job_with_more_to_run_only_the_pod_goes(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler(**SETTINGS):
        await make_job(f, "sweep", BATCH, completions=5, parallelism=1)
        (first,) = await f.until_bound(1)
        await f.until(gone(first), "the first is evicted")
        pods = await f.until_bound(1)
        await f.until(lambda pods: any(name != first for name in pods), "the next one")
        job: Any = await f.client.get(JOBS.raw(), "sweep", namespace=f.namespace)
        assert "activeDeadlineSeconds" not in job["spec"], pods


async def test_a_bare_pod_is_warned_and_then_evicted(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler(**SETTINGS):
        await f.add(f.pod("slow", annotations=BATCH))
        pods = await f.until(
            lambda pods: names.WARNED in pods["slow"].annotations, "the warning is on the pod"
        )
        ends = pods["slow"].metadata.deletion_timestamp
        warned = datetime.fromisoformat(pods["slow"].annotations[names.WARNED])
        assert ends is None or ends > warned, "it is warned first"
        await f.until(gone("slow"), "evicted")
        said = (await events(f, "LimitPassed", "EndedAtLimit"))["slow"]
        assert len(said) == 2


async def test_a_budget_is_respected_until_it_allows_it(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.through(**SETTINGS) as live:
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "keep"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
        }
        await f.client.create(BUDGETS, budget, namespace=f.namespace)
        await f.add(f.pod("kept", labels={"app": "kept"}, annotations=BATCH))
        (note,) = (await events(f, "NotEndedAtLimit"))["kept"]
        assert "disruption budget" in note, note
        assert f.proxy.count("create", "kept/eviction") == 1, "no try is repeated at once"
        assert (await f.pods())["kept"].metadata.deletion_timestamp is None
        assert 'action="refused"' in live.metrics.text().decode()
        await f.client.patch(BUDGETS, "keep", {"spec": {"minAvailable": 0}}, namespace=f.namespace)
        await f.until(gone("kept"), "evicted once the budget allows it")
        await events(f, "EndedAtLimit")  # then the answer was seen
        # A second try, or another one where the budget's controller was late; no hot loop.
        assert 2 <= f.proxy.count("create", "kept/eviction") <= 4


async def test_nothing_is_ended_by_default(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.through():
        await f.add(f.pod("slow", annotations=BATCH))
        await make_job(f, "train", BATCH)
        await f.until_bound(2)
        await asyncio.sleep(6)
        await f.add(f.pod("later"))  # it is at work
        pods = await f.until_bound(3)
        assert not any(pod.metadata.deletion_timestamp or pod.is_terminal for pod in pods.values())
        assert not any(names.WARNED in pod.annotations for pod in pods.values())
        assert not f.proxy.count("create", "eviction") and not f.proxy.count("patch", "/jobs/")


async def test_other_queues_are_left_alone_and_one_that_warns_only_warns(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, f.scheduler(**SETTINGS, queues=("other",)):
        await f.add(
            f.pod("other", annotations={**LIMIT, names.QUEUE: "other"}),
            f.pod("none", annotations=LIMIT),
            f.pod("debug", annotations={**LIMIT, names.QUEUE: "debug"}),
            f.pod("batch", annotations=BATCH),
        )
        await f.until_bound(4)
        await f.until(gone("batch"), "evicted")
        await f.until(lambda pods: names.WARNED in pods["debug"].annotations, "the warning is on the pod")
        await f.settled()
        pods = await f.pods()
        left = {name: pod for name, pod in pods.items() if name != "batch"}
        assert left.keys() == {"other", "none", "debug"}
        assert not any(pod.metadata.deletion_timestamp for pod in left.values())
        assert [name for name, pod in left.items() if names.WARNED in pod.annotations] == ["debug"]
        assert "it keeps running" in (await events(f, "LimitPassed"))["debug"][0]


async def test_a_fresh_process_goes_on_where_the_last_one_was(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f:
        settings = {**SETTINGS, "enforce_grace": 6}
        async with f.scheduler(**settings):
            await f.add(f.pod("slow", annotations=BATCH))
            pods = await f.until(lambda pods: names.WARNED in pods["slow"].annotations, "warned")
        warned = pods["slow"].annotations[names.WARNED]
        assert pods["slow"].metadata.deletion_timestamp is None
        async with f.scheduler(**settings):
            await asyncio.sleep(1)
            pods = await f.pods()
            assert pods["slow"].annotations[names.WARNED] == warned, "it is not warned again"
            await f.until(gone("slow"), "evicted")


async def test_a_pod_that_somebody_else_bound_is_not_ended(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f:
        (made,) = await f.add(f.pod("by-hand", annotations=BATCH))
        await f.client.bind(made, f.nodes[0])
        async with f.scheduler(**SETTINGS) as live:
            await f.add(f.pod("ours", annotations=BATCH))
            await f.until(gone("ours"), "evicted")
            assert "by-hand" in (await f.pods())
            assert not gone("by-hand")(await f.pods())
            overruns = live.scheduler.state.queue.overruns
            await eventually(lambda: " ".join(overruns.since), lambda keys: "pod:by-hand" in keys)


async def test_those_that_wait_are_told_who_overruns(
    kube: Kube, audited: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_reports, "_AGAIN", 1000)  # else it takes up to half a minute
    async with field(kube, 1) as f, f.scheduler():
        await make_job(f, "train", {names.DURATION: "3s"}, cpu="3")
        await f.until_bound(1)
        await f.add(f.pod("next", cpu="3", annotations=LIMIT))
        await f.until_told("next", "if running jobs keep their limits")
        await f.until_told(
            "next", f"Waiting for Job {f.namespace}/train, which exceeded its time limit of 3 s"
        )


async def test_an_eviction_is_for_that_very_pod(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, f.scheduler():
        (made,) = await f.add(f.pod("p"))
        await f.until_bound(["p"])
        await f.end("p")
        await f.add(f.pod("p"))
        await f.until_bound(["p"])
        with pytest.raises(ApiError):
            await f.client.evict(made)
        assert not gone("p")(await f.pods())
