"""`fluence whatif --live` against a real API server: it answers, and changes nothing."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fluence.cli import main
from fluence.kube.resource import JOBS, PODS
from fluence.sandbox.testing import Kube


def gang(name: str, count: int, cpu: str) -> dict[str, Any]:
    prefix = "fluence.flux-framework.org"
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
    spec = {"schedulerName": "fluence", "restartPolicy": "Never", "containers": [container]}
    notes = {f"{prefix}/group": name, f"{prefix}/group-size": str(count), f"{prefix}/duration": "1h"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": notes},
        "spec": {"parallelism": count, "completions": count, "template": {"spec": spec}},
    }


def whatif(kube: Kube, folder: Path, document: dict[str, Any], *more: str) -> Result:
    path = folder / "manifest.yaml"
    path.write_text(yaml.safe_dump(document))
    config = str(kube.sandbox.at.kubeconfig())
    args = ["whatif", str(path), "--live", "--kubeconfig", config, "-n", kube.namespace, *more]
    return CliRunner().invoke(main, args)


def test_it_answers_and_submits_nothing(kube: Kube, tmp_path: Path) -> None:
    done = whatif(kube, tmp_path, gang("never", 2, "64"), "-o", "json")
    assert done.exit_code == 4, done.output
    (job,) = json.loads(done.stdout)["jobs"]
    assert (job["job"], job["never"]) == (f"{kube.namespace}/never", True)
    done = whatif(kube, tmp_path, gang("small", 2, "100m"))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == f"{kube.namespace}/small: it would start now"

    async def there() -> list[str]:
        async with kube.client() as client:
            pods = await client.list(PODS, namespace=kube.namespace)
            jobs = await client.list(JOBS, namespace=kube.namespace)
            return [each.metadata.name for each in (*(pods.items or ()), *(jobs.items or ()))]

    assert asyncio.run(there()) == []


@pytest.mark.parametrize("option", ["--limit", "--user", "--priority"])
def test_what_belongs_to_snapshots_is_refused(kube: Kube, tmp_path: Path, option: str) -> None:
    done = whatif(kube, tmp_path, gang("a", 1, "1"), option, "1")
    assert done.exit_code == 2
    assert f"{option} needs --state" in done.stderr


def test_held_jobs_a_service_and_a_queued_job(kube: Kube, tmp_path: Path) -> None:
    """A Job that admission held waits without pods; the manifest has a Service beside the Job."""
    job = gang("held", 2, "64")
    job["metadata"]["labels"] = {"fluxqueue.seen": "yes"}
    job["spec"]["suspend"] = True

    async def create() -> None:
        async with kube.client() as client:
            await client.create(JOBS.raw(), job, namespace=kube.namespace)

    asyncio.run(create())
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "None"},
    }
    mixed = {"apiVersion": "v1", "kind": "List", "items": [service, job]}
    done = whatif(kube, tmp_path, mixed, "-o", "json")
    assert done.exit_code == 4, done.output
    assert [each["job"] for each in json.loads(done.stdout)["jobs"]] == [f"{kube.namespace}/held"]
    assert "document 1: Service is left out: it makes no pods" in done.stderr
    assert f"Job {kube.namespace}/held is in the cluster already" in done.stderr
