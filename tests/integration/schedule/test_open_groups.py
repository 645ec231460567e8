"""Two Jobs of one group that names no size, applied at once where GPUs are scarce: all of it, or nothing."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fluence import names
from fluence.kube.reflector import Reflector
from fluence.kube.resource import EVENTS, PODS, Json
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger
from fluence.sandbox.auditor import Auditor
from fluence.sandbox.nodes import GPU
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.sandbox.kubectl import Kubectl
from tests.integration.schedule.field import RUN, Field, field
from tests.integration.schedule.killed import killed

SEED = 11


def job(f: Field, group: str, role: str, pods: int, *, runs: float | None = None) -> Json:
    asks = {"cpu": "100m", GPU: "4"}
    spec = f.spec(
        restartPolicy="Never",
        containers=[{"name": "c", "image": "none", "resources": {"requests": asks, "limits": {GPU: "4"}}}],
    )
    notes = {} if runs is None else {RUN: str(runs)}
    meta = {"labels": {names.GROUP_LABEL: group}, "annotations": notes}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{group}-{role}"},
        "spec": {"parallelism": pods, "completions": pods, "template": {"metadata": meta, "spec": spec}},
    }


async def apply(f: Field, *jobs: Json) -> None:
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": jobs})
    await asyncio.to_thread(Kubectl(f.kube).ok, "apply", "-f", "-", stdin=document)


class Watched:
    """Who had nodes at the same time as whom."""

    def __init__(self) -> None:
        self.on: dict[str, str] = {}  # pod -> group
        self.most: dict[str, int] = {}  # group -> how many pods at a time
        self.together: set[frozenset[str]] = set()
        self.complete: dict[str, int] = {}  # group -> how many pods it had when the first of them was bound
        self._pods: dict[str, set[str]] = {}

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        shown = new if new is not None else old
        assert shown is not None
        group = shown.labels[names.GROUP_LABEL]
        self._pods.setdefault(group, set()).add(shown.metadata.uid)
        if new is not None and new.spec.node_name and not new.is_terminal:
            self.on[shown.metadata.uid] = group
            self.complete.setdefault(group, len(self._pods[group]))
        else:
            self.on.pop(shown.metadata.uid, None)
        self.together.add(frozenset(self.on.values()))
        now = sum(each == group for each in self.on.values())
        if now > self.most.get(group, 0):
            self.most[group] = now


@asynccontextmanager
async def watching(f: Field) -> AsyncIterator[Watched]:
    reflector, watched = Reflector(f.client, PODS, namespace=f.namespace), Watched()
    reflector.store.on_change(watched)
    task = asyncio.create_task(reflector.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.wait({task})


async def warnings(f: Field) -> list[str]:
    found = (await f.client.list(EVENTS, namespace=f.namespace)).items or ()
    return [str(each.get("note")) for each in found if each.get("reason") == "NoSize"]


async def test_nine_groups_of_two_jobs_start_as_a_whole_or_not_at_all(kube: Kube, audited: None) -> None:
    """12 GPUs. Five groups ask for 20 and never start, four ask for 12 and have them one after the other."""
    rng = random.Random(SEED)
    large = [f"large-{i}" for i in range(5)]
    exact = [f"exact-{i}" for i in range(4)]
    async with field(kube, 3, gpu=4) as f, watching(f) as watched, f.scheduler():
        for group in rng.sample([*large, *exact], 9):
            workers = 4 if group in large else 2
            jobs = [job(f, group, "head", 1, runs=1), job(f, group, "work", workers, runs=1)]
            await apply(f, *rng.sample(jobs, 2))

        def done(pods: dict[str, Pod]) -> bool:
            ran = [pod for pod in pods.values() if pod.labels[names.GROUP_LABEL] in exact and pod.is_terminal]
            return len(ran) == 12

        pods = await f.until(done, "the groups that fit run")
        assert len(pods) == 5 * 5 + 4 * 3
        for group in large:
            assert not watched.most.get(group), f"a part of {group} had nodes"
            await f.until_told(next(name for name in pods if name.startswith(group)))
        assert all(watched.most[group] == 3 for group in exact), watched.most
        assert all(len(some) <= 1 for some in watched.together), "two groups had a part of the GPUs each"
        said = await eventually(lambda: warnings(f), lambda said: len(said) >= 9, what="nine are warned")
        assert sum('fluence.flux-framework.org/group-size: "5"' in each for each in said) == 5, said
        assert sum('fluence.flux-framework.org/group-size: "3"' in each for each in said) == 4, said


async def test_pods_that_settle_say_so(kube: Kube, audited: None) -> None:
    label = {names.GROUP_LABEL: "g"}
    async with field(kube, 1) as f, f.scheduler(group_settle=600.0):
        await f.add(f.pod("a", labels=label), f.pod("b", labels=label))
        told = await f.until_told("a", "has no size", reason="WaitingForGroup")
        assert "no new pod has appeared for 10 min" in told
        await f.client.patch(
            PODS.raw(),
            "a",
            {"metadata": {"annotations": {names.GROUP_SIZE: "2"}}},
            namespace=f.namespace,
        )
        await f.until_bound({"a", "b"})


async def test_a_scheduler_that_is_killed_while_a_group_settles_starts_it_as_a_whole(
    kube: Kube, audited: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Job comes when the second scheduler has just begun."""
    monkeypatch.setenv("FLUENCE_GROUP_SETTLE", "20")  # a start may take that long on a machine that is busy
    rng = random.Random(SEED)
    async with field(kube, 3, gpu=4) as f, watching(f) as watched, killed(f, [], tmp_path) as run:
        await run.led()
        first, second = rng.sample([job(f, "g", "head", 1, runs=600), job(f, "g", "work", 2, runs=600)], 2)
        await apply(f, first)
        await asyncio.sleep(rng.uniform(0, 0.5))
        await run.stop(signal.SIGKILL)
        await run.led()
        assert not watched.most, "it has not settled"
        await asyncio.sleep(0.5)
        await apply(f, second)
        async with run.explained():
            await f.until_bound(3)
        await eventually(lambda: watched.most.get("g"), 3, what="all three are seen with nodes")
        assert watched.complete["g"] == 3, "a part of it started"
        assert await run.stop(signal.SIGTERM) == 0


async def test_the_audit_finds_a_head_that_runs_without_its_workers(own_sandbox: Kube) -> None:
    """Bound by hand, as a scheduler would that knows nothing of gangs."""
    async with (
        field(own_sandbox, 3, gpu=4) as f,
        Auditor(f.client, ledger=AuditLedger(grace_s=4.0)) as auditor,
    ):
        for group in ("split", "whole"):
            await apply(f, job(f, group, "head", 1, runs=600), job(f, group, "work", 2, runs=600))
        pods = await f.until(lambda pods: len(pods) == 6, "the Jobs make their pods")
        bound = [name for name in pods if name.startswith("whole")]
        bound += [name for name in pods if name.startswith("split-head")]
        binds = (f.client.bind(pods[name], f.nodes[i % 3]) for i, name in enumerate(sorted(bound)))
        await asyncio.gather(*binds)

        async def split() -> list[Any]:
            return [each for each in (await auditor.report()).findings if each.kind == "gang"]

        found = await eventually(split, what="there is a finding")
        assert [each.what for each in found] == [f"{f.namespace}/split"]
        assert "1 of at least 3 members" in found[0].detail
        await asyncio.to_thread(Kubectl(f.kube).ok, "delete", "jobs", "--all", "--wait=false")
