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
