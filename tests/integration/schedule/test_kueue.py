"""Kueue's objects on a real API server: read with the chart's rights, never written, off while Kueue runs.

On a control plane of its own: queues are of the whole cluster. The definitions are the least that the server
needs to keep such objects; their schemas are Kueue's business.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import yaml
from deploy.helm.manifests import template
from msgspec.structs import replace

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.resource import KUEUE, LEASES, NAMESPACES, Json, Resource
from fluence.live import watches as live_kueue
from fluence.model import kueue
from fluence.sandbox.testing import Kube
from fluence.units import rfc3339
from tests.eventually import eventually
from tests.integration.rights import chart_account, make_namespace, resource_of, until_allowed
from tests.integration.schedule.field import field
from tests.integration.schedule.test_queues import asked, replace_namespace

ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def definition(resource: Resource[Any]) -> Json:
    schema = {"type": "object", "properties": {"spec": ANY, "status": ANY, "value": {"type": "integer"}}}
    version = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{resource.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "kind": resource.kind},
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


def of_kind(kind: str) -> Resource[Any]:
    return next(each for each in KUEUE if each.kind == kind).raw()


def body(kind: str, name: str, spec: Json | None = None, **more: Any) -> Json:
    found = {"apiVersion": of_kind(kind).api_version, "kind": kind, "metadata": {"name": name}, **more}
    return found if spec is None else {**found, "spec": spec}


def cluster_queue(name: str, cpu: int, **spec: Any) -> Json:
    flavor = {"name": "plain", "resources": [{"name": "cpu", "nominalQuota": cpu}]}
    groups = [{"coveredResources": ["cpu"], "flavors": [flavor]}]
    return body("ClusterQueue", name, {"namespaceSelector": {}, "resourceGroups": groups, **spec})


@contextlib.asynccontextmanager
async def installed(client: Client) -> AsyncIterator[None]:
    definitions = [definition(each) for each in KUEUE]
    for each in definitions:
        await client.apply(resource_of(each), each, manager="test")

    async def served() -> bool:
        with contextlib.suppress(KubeError):
            for each in KUEUE:
                await client.list(each)
            return True
        return False

    await eventually(served, what="Kueue's kinds are served")
    try:
        yield
    finally:
        for each in definitions:
            await client.delete(resource_of(each), each["metadata"]["name"])


@contextlib.asynccontextmanager
async def allowed(client: Client, user: str) -> AsyncIterator[None]:
    """The rights that the chart adds with the setting."""
    text = template("--set", "settings.kueue-queues=true", "--show-only", "templates/rbac.yaml")
    roles = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "ClusterRole"]
    rules = [rule for role in roles for rule in role["rules"] if kueue.GROUP in str(rule)]
    assert len(rules) == 2
    api, meta = "rbac.authorization.k8s.io/v1", {"name": "reads-kueue"}
    role: Json = {"apiVersion": api, "kind": "ClusterRole", "metadata": meta, "rules": rules}
    binding: Json = {
        "apiVersion": api,
        "kind": "ClusterRoleBinding",
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reads-kueue"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    for each in (role, binding):
        await client.apply(resource_of(each), each, manager="test")
    await until_allowed(client, user, rules[:1], namespace="")
    try:
        yield
    finally:
        for each in (binding, role):
            await client.delete(resource_of(each), "reads-kueue")


async def hold_lease(client: Client) -> None:
    """What Kueue's manager does every few seconds; here once, and for long."""
    namespace, name = kueue.LEASE
    now = rfc3339(int(client.clock.now() * 1_000_000), "microseconds")
    spec = {"holderIdentity": "kueue-1", "leaseDurationSeconds": 600, "renewTime": now}
    lease: Json = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": spec,
    }
    await client.apply(LEASES, lease, namespace=namespace, manager="test")


async def test_a_site_that_comes_from_kueue(own_sandbox: Kube, monkeypatch: Any) -> None:
    monkeypatch.setattr(live_kueue, "_POLL_SECONDS", 0.5)
    async with (
        field(own_sandbox, 2, cpu=4) as f,
        installed(f.client),
        chart_account(f.client, "kueue", f.namespace) as account,
        allowed(f.client, account),
        Client(replace(own_sandbox.access(), impersonate=account)) as ours,
    ):
        for name in ("team-a", "team-b", kueue.LEASE[0]):
            await make_namespace(f.client, name)
        made = (
            body("ResourceFlavor", "plain", {"nodeLabels": {"kind": "plain"}}),
            cluster_queue("cq-a", 2, cohortName="all"),
            cluster_queue("cq-b", 1, cohortName="all"),
            body("WorkloadPriorityClass", "urgent", value=1000),
        )
        for each in made:
            await f.client.apply(of_kind(str(each["kind"])), each, manager="test")
        for letter in "ab":
            queue = body("LocalQueue", "main", {"clusterQueue": f"cq-{letter}"})
            await f.client.apply(of_kind("LocalQueue"), queue, namespace=f"team-{letter}", manager="test")
        before = {each.kind: (await f.client.list(each.raw())).items for each in KUEUE}
        async with f.scheduler(ours, kueue_queues=True) as live:
            assert live.kueue is not None
            team = replace_namespace(f, "team-a")
            label = {names.KUEUE_QUEUE: "main"}
            await team.add(*(f.pod(f"p{n}", labels=label) for n in range(5)))
            # Two are its own, and one is borrowed of the cohort.
            await team.until_bound(3)
            late = [name for name, node in (await team.homes()).items() if node is None]
            await team.until_told(
                late[0], "Waiting for queue all: cpu 3 of 3 in use", reason="WaitingForTurn"
            )
            await team.add(f.pod("urgent", labels={**label, names.KUEUE_PRIORITY: "urgent"}))
            await team.until_told("urgent", "Waiting for queue all")
            await team.end(next(name for name, node in (await team.homes()).items() if node))
            await team.until_bound(["urgent"])
            # A queue of another namespace cannot be named, and work without a label is left alone.
            await team.add(f.pod("stranger", labels={names.KUEUE_QUEUE: "other"}), f.pod("plain"))
            await team.until_told("stranger", "Queue 'other' does not exist", reason="SchedulerError")
            await team.until_bound(["plain"])
            shown = await asked(own_sandbox, "queues", "tree", "--kueue")
            assert "team-a/main" in shown

            # Kueue starts: from then on its objects count for nothing here.
            await hold_lease(f.client)
            await eventually(
                lambda: _soon(live.kueue.off if live.kueue else ""),
                lambda off: "Kueue runs" in off,
                what="off",
            )
            await team.until_bound([*late, "stranger"])
            assert live.scheduler.state.queue.quotas is None
        after = {each.kind: (await f.client.list(each.raw())).items for each in KUEUE}
        assert after == before  # down to their resource versions
        for name in ("team-a", "team-b", kueue.LEASE[0]):
            await f.client.delete(NAMESPACES, name)


async def _soon(text: str) -> str:
    return text
