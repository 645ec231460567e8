"""What is asked about a live cluster is decided by its leader's settings, which it says on its Lease."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluence.sandbox.testing import Kube
from tests.integration.cli.test_explain_rights import V1, account, post
from tests.integration.rights import until_allowed
from tests.integration.schedule.field import Field, field

pytestmark = pytest.mark.release

FLUENCE = [sys.executable, "-m", "fluence.cli"]
GUEST = "guest"
LIMIT = "fluence.flux-framework.org/duration"
UNSEEN = "the scheduler's settings (its Lease) cannot be seen"


@contextlib.asynccontextmanager
async def waiting(kube: Kube) -> AsyncIterator[Field]:
    """Under `fcfs` the last of three waits behind the second; the default would let it go first."""
    async with field(kube, 1, cpu=2) as f:
        lease = {"lease": True, "lease_name": f.name, "lease_namespace": f.namespace}
        async with f.scheduler(queue_policy="fcfs", match_policy="lonode", **lease):  # type: ignore[arg-type]
            await f.add(f.pod("runs", annotations={LIMIT: "1h"}))
            await f.until_bound(["runs"])
            await f.add(f.pod("wide", cpu="2", annotations={LIMIT: "1h"}))
            await f.until_told("wide", "Insufficient cpu")
            await f.add(f.pod("small", annotations={LIMIT: "10m"}))
            await f.until_told("small")
            yield f


async def ask(f: Field, config: Path, *words: str) -> Any:
    where = ["--kubeconfig", str(config), "-n", f.namespace, "-o", "json"]
    done = await asyncio.to_thread(
        subprocess.run, [*FLUENCE, *words, *where], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode in (0, 3), done.stderr
    return {**json.loads(done.stdout), "stderr": done.stderr}


async def explained(f: Field, config: Path, *more: str) -> Any:
    return await ask(f, config, "explain", "pod", "small", "--scheduler-name", f.name, *more)


async def test_explain_and_whatif_decide_as_the_leader_does(kube: Kube, tmp_path: Path) -> None:
    async with waiting(kube) as f:
        admin, settings = kube.sandbox.at.kubeconfig(), tmp_path / "settings.yaml"
        told = await explained(f, admin)
        assert told["blocks"] == [told["reason"]] and "notes" not in told, told
        settings.write_text("queue-policy: easy\n")  # the user's word counts
        other = await explained(f, admin, "--config", str(settings))
        assert other["blocks"] == ["nothing: the next cycle of the scheduler starts it"], other

        manifest = tmp_path / "new.yaml"
        manifest.write_text(yaml.safe_dump(f.pod("new", annotations={LIMIT: "10m"})))
        settings.write_text(f"scheduler-name: {f.name}\n")
        words = ("whatif", str(manifest), "--live", "--config", str(settings))
        answer = await ask(f, admin, *words)
        (job,) = answer["jobs"]
        assert (job["waits_for"][-1], answer["stderr"]) == (f"{f.namespace}/pod:small", ""), answer


async def test_who_may_not_get_the_lease_is_told_that_the_defaults_are_assumed(
    kube: Kube, tmp_path: Path
) -> None:
    async with waiting(kube) as f:
        everything = {"apiGroups": ["", "apps", "batch", "storage.k8s.io", "scheduling.k8s.io"]}
        rule = {**everything, "resources": ["*"], "verbs": ["get", "list"]}
        guest = tmp_path / "guest.yaml"
        async with everywhere(f, rule) as token:
            config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
            config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
            guest.write_text(yaml.safe_dump(config))
            told = await explained(f, guest)
            assert len(told["notes"]) == 1 and UNSEEN in told["notes"][0], told
            lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
            await account(f.client, kube, {**lease, "resourceNames": [f.name]}, name=GUEST)
            settings = tmp_path / "settings.yaml"  # which lease, and no more
            settings.write_text(f"lease-name: {f.name}\nlease-namespace: {f.namespace}\n")
            told = await explained(f, guest, "--config", str(settings))
            assert told["blocks"] == [told["reason"]] and "notes" not in told, told


@contextlib.asynccontextmanager
async def everywhere(f: Field, rule: dict[str, Any]) -> AsyncIterator[str]:
    """A token of an account that may do this in the whole cluster, and no more."""
    token = await account(f.client, f.kube, name=GUEST)
    paths = [f"/apis/{V1}/clusterroles", f"/apis/{V1}/clusterrolebindings"]
    name = {"metadata": {"name": f.name}}
    await post(f.client, paths[0], V1, "ClusterRole", **name, rules=[rule])
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f.name}
    guest = {"kind": "ServiceAccount", "name": GUEST, "namespace": f.namespace}
    await post(f.client, paths[1], V1, "ClusterRoleBinding", **name, roleRef=role, subjects=[guest])
    await until_allowed(f.client, f"system:serviceaccount:{f.namespace}:{GUEST}", [rule])
    try:
        yield token
    finally:
        for path in paths:
            await f.client.request("DELETE", f"{path}/{f.name}")
