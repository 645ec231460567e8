"""The examples of fluxqueue where containers run: their FluxJobs appear, they are let go, and they print."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence import names
from fluence.controller import FluxJobController
from fluence.controller.flux_job import FLUX_JOBS
from fluence.kube.client import Client
from fluence.kube.resource import JOBS, PODS
from fluence.live.scheduler import LiveScheduler
from fluence.sandbox.realnode import REAL
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import eventually
from tests.integration.controller.doors import GATES, SEEN, serve_flux_jobs
from tests.integration.sandbox.kubectl import Kubectl

EXAMPLES = Path(__file__).parents[3] / "examples" / "fluxqueue"

pytestmark = pytest.mark.realnodes


@pytest.fixture(scope="session", autouse=True)
def flux_jobs_are_served() -> None:
    """Here on the control plane with real nodes, in the test."""


def admitted(name: str, scheduler: str) -> Any:
    """An example as admission leaves it."""
    body: Any = yaml.safe_load((EXAMPLES / name).read_text())
    body["metadata"]["labels"] = dict(SEEN)
    if body["kind"] == "Job":
        body["spec"]["suspend"] = True
        body["spec"]["template"]["metadata"] = {"labels": dict(SEEN)}
        body["spec"]["template"]["spec"] |= {"schedulerName": scheduler, "nodeSelector": {REAL: "true"}}
    else:
        more = {"schedulerName": scheduler, "nodeSelector": {REAL: "true"}, "schedulingGates": GATES}
        body["spec"] |= more
    return body


async def test_the_examples_of_fluxqueue_are_let_go_and_print(real_kube: Kube) -> None:
    kubectl, name = Kubectl(real_kube), f"fluence-{real_kube.namespace}"
    async with real_kube.client() as client:
        await serve_flux_jobs(client)
        live = LiveScheduler(client, SchedulerSettings(lease=False, scheduler_name=name))
        FluxJobController(live)
        stop = asyncio.Event()
        task = asyncio.create_task(live.run(stop))
        try:
            await client.create(JOBS.raw(), admitted("job.yaml", name), namespace=real_kube.namespace)
            await client.create(PODS.raw(), admitted("pod.yaml", name), namespace=real_kube.namespace)
            await completed(client, real_kube, {"job-job", "pod-pod"})
            await asyncio.to_thread(kubectl.logged, "pod", wanted="potato\n")
            pods = (await client.list(PODS, namespace=real_kube.namespace)).items or []
            ranks = {}
            for pod in pods:
                if pod.metadata.name != "pod":
                    index = pod.labels[names.COMPLETION_INDEX]
                    ranks[index] = await asyncio.to_thread(kubectl.logged, pod.metadata.name)
            assert ranks == {str(index): f"I am rank {index}\n" for index in range(3)}
            table = await asyncio.to_thread(kubectl.ok, "get", "fj")
            assert table.split()[:5] == ["NAME", "STATE", "POSITION", "START", "REASON"]
            assert "job-job" in table and "pod-pod" in table
        finally:
            stop.set()
            await task


async def completed(client: Client, kube: Kube, wanted: set[str]) -> None:
    async def phases() -> dict[str, str | None]:
        page = await client.list(FLUX_JOBS, namespace=kube.namespace)
        return {each.metadata.name: each.status.phase for each in page.items or ()}

    await eventually(phases, dict.fromkeys(wanted, "Completed"), pause_s=0.2)
