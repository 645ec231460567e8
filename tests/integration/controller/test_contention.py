"""Many held workloads that contend, in one queue: none starts in part, all start in their order."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from fluence.kube.resource import JOBS
from fluence.model.pod import Pod
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.controller.doors import (
    KINDS,
    doors,
    held_job,
    held_pod,
    held_set,
    submit,
    until_flux_job,
    until_phase,
)
from tests.integration.schedule.field import Field, field

SIZES = {"j0": 4, "j1": 3, "j2": 2, "d0": 3, "d1": 2, "r0": 3, "s0": 3, "p0": 1, "p1": 1, "j3": 4}


def whose(pod: Pod) -> str:
    return pod.metadata.name[:2]


async def watch_for_parts(f: Field, sizes: dict[str, int], begun: set[str], stop: asyncio.Event) -> None:
    """A workload of which a pod is on a node has all of its seats: those that are not bound are being bound,
    and nobody gets in between. A gang that stays in part for long has started in part."""
    since: dict[str, float] = {}
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        pods = (await f.pods()).values()
        bound = Counter(whose(pod) for pod in pods if pod.spec.node_name)
        for name, size in sizes.items():
            if 0 < bound[name] < size and name not in begun:
                assert loop.time() - since.setdefault(name, loop.time()) < 45, f"{name} is there in part"
            elif bound[name]:
                begun.add(name)
        await asyncio.sleep(0.2)


async def test_ten_workloads_of_all_kinds_contend_and_none_starts_in_part(kube: Kube, audited: None) -> None:
    async with field(kube, 2) as f, doors(f):  # 8 cores; they want 26
        stop, begun = asyncio.Event(), set[str]()
        watcher = asyncio.create_task(watch_for_parts(f, SIZES, begun, stop))
        for name, size in SIZES.items():
            if name.startswith("j"):
                await submit(f, held_job(f, name, size, runs=1))
            elif name.startswith("p"):
                await f.add(held_pod(f, name, runs=1))
            else:
                kind = {"d": "Deployment", "r": "ReplicaSet", "s": "StatefulSet"}[name[0]]
                await submit(f, held_set(f, kind, name, size))

        async def all_begun() -> set[str]:
            if watcher.done():
                watcher.result()
            for name in [name for name in begun if name[0] in "drs"]:  # nothing else ends them
                kind = {"d": "Deployment", "r": "ReplicaSet", "s": "StatefulSet"}[name[0]]
                await f.client.delete(KINDS[kind], name, namespace=f.namespace)
            return begun

        await eventually(all_begun, set(SIZES), what="all have started", timeout_s=150, pause_s=0.3)
        stop.set()
        await watcher
        for name in (each for each in SIZES if each.startswith("j")):
            await until_phase(f, f"{name}-job", "Completed")


async def test_a_batch_of_jobs_starts_in_the_order_of_submission(kube: Kube, audited: None) -> None:
    async with field(kube, 1) as f, doors(f, queue_policy="fcfs"):
        await f.add(f.pod("busy", cpu="4"))
        await f.until_bound(["busy"])
        for index in range(5):
            await submit(f, held_job(f, f"batch-{index}", 1, cpu="4", runs=0.2))
            await asyncio.sleep(1.05)  # creation times are whole seconds
        for index in range(5):
            await until_flux_job(
                f,
                f"batch-{index}-job",
                lambda each, place=index + 1: each is not None and each.status.position == place,  # type: ignore[misc]
                f"has place {index + 1}",
            )
        await f.end("busy")
        for index in range(5):
            await until_phase(f, f"batch-{index}-job", "Completed")
        started = []
        for index in range(5):
            job: Any = await f.client.get(JOBS.raw(), f"batch-{index}", namespace=f.namespace)
            started.append(job["status"]["startTime"])
        assert started == sorted(started)


async def test_a_group_of_ten_and_a_job_that_kubernetes_ends_at_its_deadline(
    kube: Kube, audited: None
) -> None:
    async with field(kube, 3) as f, doors(f):
        await submit(f, held_job(f, "ten", 10, runs=1))
        await f.until_bound(10)
        await until_phase(f, "ten-job", "Completed")
        await submit(f, held_job(f, "late", 1, deadline=2))
        found = await until_phase(f, "late-job", "Failed")
        assert found.spec.duration == 2
        live = f.live
        assert live is not None
        await eventually(lambda: live.scheduler.state.cluster.jobs, {}, what="nothing is held")
