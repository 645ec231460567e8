"""`fluence explain` of workloads on a real API server: held Jobs, and clusters in which no scheduler runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from click.testing import CliRunner

from fluence import names
from fluence.cli import main
from fluence.kube.lease import LEASE_OBJECTS
from fluence.kube.resource import JOBS
from fluence.sandbox.testing import Kube

NAME = "fluence-absent"  # no scheduler of this name runs
HELD = {names.SEEN: names.SEEN_YES}


def job(name: str, *, held: bool) -> dict[str, Any]:
    """As admission leaves it in a namespace whose work is held, or as a user suspends it."""
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": NAME, "restartPolicy": "Never", "containers": [container]}
    labels = HELD if held else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "suspend": True,
            "parallelism": 2,
            "completions": 2,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def explain(kube: Kube, *words: str) -> dict[str, Any]:
    where = ["--kubeconfig", str(kube.sandbox.at.kubeconfig()), "-n", kube.namespace, "-o", "json"]
    done = CliRunner().invoke(main, ["explain", *words, "--scheduler-name", NAME, *where])
    assert done.exit_code == 0, done.output
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def test_held_and_suspended_jobs_where_no_scheduler_runs(kube: Kube) -> None:
    async def create() -> None:
        async with kube.client() as client:
            for document in (job("held", held=True), job("mine", held=False)):
                await client.create(JOBS.raw(), document, namespace=kube.namespace)

    asyncio.run(create())
    for words in (("job/held",), ("held",), ("jobs", "held")):
        value = explain(kube, *words)
        assert (value["kind"], value["state"]) == ("job", "Pending")
        assert value["gang"]["waiting"] == 2
        assert value["blocks"] == ["nothing, but no scheduler runs"]
        assert value["notes"][0].startswith(f"no scheduler {NAME} holds a Lease")
    assert explain(kube, "job/mine")["state"] == "Suspended"


def test_a_lease_that_nobody_renews_means_that_no_scheduler_runs(kube: Kube) -> None:
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "gone", "annotations": {names.SCHEDULER_NAME: NAME, names.SETTINGS: "{}"}},
        "spec": {
            "holderIdentity": "pod-1",
            "leaseDurationSeconds": 2,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        },
    }

    async def create() -> None:
        async with kube.client() as client:
            await client.create(JOBS.raw(), job("held", held=True), namespace=kube.namespace)
            await client.create(LEASE_OBJECTS.raw(), lease, namespace=kube.namespace)

    asyncio.run(create())
    (note,) = explain(kube, "job/held")["notes"]
    assert note.startswith(f"no scheduler runs: pod-1 holds the Lease {kube.namespace}/gone")
