"""Held workloads as admission leaves them, their FluxJobs, and a scheduler with a controller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml

from fluence import names
from fluence.controller import FluxJobController
from fluence.controller.flux_job import FLUX_JOBS, FluxJob
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.resource import DEPLOYMENTS, JOBS, REPLICASETS, STATEFULSETS, Json, Resource
from fluence.live.scheduler import LiveScheduler
from tests.eventually import SOON_S, eventually
from tests.integration.schedule.field import RUN, Field

CRD = Path(__file__).parents[3] / "deploy" / "crds" / "fluxjobs.yaml"
CRDS: Resource[Json] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    dict[str, object],
    namespaced=False,
)
SEEN = {names.SEEN: names.SEEN_YES}
GATES = [{"name": names.GATE_FLUXQUEUE}]
KINDS: dict[str, Resource[Any]] = {
    "Deployment": DEPLOYMENTS,
    "ReplicaSet": REPLICASETS,
    "StatefulSet": STATEFULSETS,
}


async def serve_flux_jobs(client: Client) -> None:
    """Have the server know FluxJobs."""
    await client.apply(CRDS, yaml.safe_load(CRD.read_text()), manager="test")

    async def served() -> str:
        try:
            await client.list(FLUX_JOBS)
        except KubeError as error:
            return str(error)
        return ""

    await eventually(served, "", what="FluxJobs are served")


def held_pod(f: Field, name: str, **more: Any) -> Json:
    labels = {**SEEN, **more.pop("labels", {})}
    return f.pod(name, labels=labels, schedulingGates=more.pop("gates", GATES), **more)


def held_job(f: Field, name: str, size: int = 3, *, runs: float = 600, **more: Any) -> Json:
    """Its pods run for so many seconds."""
    notes = {RUN: str(runs)}
    deadline = more.pop("deadline", None)
    mode = more.pop("mode", "Indexed")
    spec: Json = {
        "suspend": True,
        "completions": size,
        "parallelism": size,
        "completionMode": mode,
        "backoffLimit": 6,
        "template": {
            "metadata": {"labels": SEEN, "annotations": notes},
            "spec": {**f.spec(**more), "restartPolicy": "Never"},
        },
    }
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": SEEN},
        "spec": spec,
    }


def held_set(f: Field, kind: str, name: str, replicas: int, **more: Any) -> Json:
    labels = {"app": name}
    spec: Json = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": {**labels, **SEEN}},
            "spec": f.spec(schedulingGates=GATES, **more),
        },
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": SEEN},
        "spec": spec,
    }


async def submit(f: Field, body: Json) -> None:
    resource: Resource[Any] = JOBS if body["kind"] == "Job" else KINDS[str(body["kind"])]
    await f.client.create(resource.raw(), body, namespace=f.namespace)


@contextlib.asynccontextmanager
async def doors(f: Field, client: Client | None = None, **options: Any) -> AsyncIterator[FluxJobController]:
    """A scheduler with a controller, in this process."""
    found: list[FluxJobController] = []

    def with_controller(live: LiveScheduler) -> None:
        found.append(FluxJobController(live))

    async with f.scheduler(client, joined=with_controller, **options):
        yield found[0]


async def flux_job(f: Field, name: str) -> FluxJob | None:
    page = await f.client.list(FLUX_JOBS, namespace=f.namespace)
    return next((each for each in page.items or () if each.metadata.name == name), None)


async def until_flux_job(
    f: Field, name: str, done: Callable[[FluxJob | None], bool], what: str, *, timeout_s: float = SOON_S
) -> FluxJob | None:
    return await eventually(
        lambda: flux_job(f, name), done, what=f"{name} {what}", timeout_s=timeout_s, pause_s=0.1
    )


async def until_phase(f: Field, name: str, *phases: str) -> FluxJob:
    found = await until_flux_job(
        f, name, lambda each: each is not None and each.status.phase in phases, f"is {phases}"
    )
    assert found is not None
    return found
