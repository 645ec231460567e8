"""`fluence explain` with fewer rights: what the scheduler wrote, what cannot be seen, and nothing wrong.

Each account has a Role in its own namespace and no more; the server decides what it may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fluence.cli import main
from fluence.kube.client import Client
from fluence.kube.errors import AlreadyExists
from fluence.kube.gangs import discover_gangs
from fluence.kube.resource import JOBS, PODS
from fluence.model.owner import Group
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.rights import until_allowed

NAME = "fluence-rights"  # no scheduler acts on these
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
V1 = "rbac.authorization.k8s.io/v1"
PODS_RULE = {"apiGroups": [""], "resources": ["pods"]}
OWNERS_RULE = {
    "apiGroups": ["apps", "batch"],
    "resources": ["jobs", "deployments", "replicasets", "statefulsets"],
    "verbs": ["list"],
}
GROUPS_RULE = {
    "apiGroups": ["scheduling.k8s.io", "scheduling.x-k8s.io"],
    "resources": ["podgroups", "workloads"],
    "verbs": ["list"],
}


async def post(client: Client, path: str, version: str, kind: str, **body: Any) -> bytes:
    return await client.request(
        "POST", path, body=json.dumps({"apiVersion": version, "kind": kind, **body}).encode()
    )


async def account(client: Client, kube: Kube, *rules: dict[str, Any], name: str = "") -> str:
    """A token of an account that may do this and no more; of one that is there, the same and this."""
    at, name = kube.namespace, name or f"guest-{len(rules)}-{len(json.dumps(rules))}"
    where = f"/api/v1/namespaces/{at}/serviceaccounts"
    rbac = RBAC.format(namespace=at)
    with contextlib.suppress(AlreadyExists):
        await post(client, where, "v1", "ServiceAccount", metadata={"name": name})
    role = f"{name}-{len(rules)}"
    await post(client, f"{rbac}/roles", V1, "Role", metadata={"name": role}, rules=list(rules))
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": at}],
    }
    await post(client, f"{rbac}/rolebindings", V1, "RoleBinding", **binding)
    await until_allowed(client, f"system:serviceaccount:{at}:{name}", rules, namespace=at)
    spec = {"expirationSeconds": 600}
    answer = await post(
        client, f"{where}/{name}/token", "authentication.k8s.io/v1", "TokenRequest", spec=spec
    )
    token: str = json.loads(answer)["status"]["token"]
    return token


def explain(kube: Kube, folder: Path, token: str, *words: str) -> Result:
    config = yaml.safe_load(kube.sandbox.at.kubeconfig().read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = folder / "guest.yaml"
    path.write_text(yaml.safe_dump(config))
    where = ["--kubeconfig", str(path), "-n", kube.namespace, "--scheduler-name", NAME]
    return CliRunner().invoke(main, ["explain", *words, *where])


def template(**meta: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": NAME, "automountServiceAccountToken": False, "containers": [container]}
    return {"metadata": meta, "spec": {**spec, "restartPolicy": "Never"}}


def prepare(kube: Kube, *rules: dict[str, Any]) -> str:
    """A pod by itself, one of a Job of two that must start together, one that names a PodGroup."""

    async def create() -> str:
        async with kube.client() as client:
            at = kube.namespace
            for pod in (template(name="alone"), template(name="member", labels={"fluence.pod-group": "g"})):
                await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **pod}, namespace=at)
            gangs = await discover_gangs(client)
            assert gangs.resource is not None
            group = gangs.manifest(Group(namespace=at, name="g", min_count=3))
            await client.create(gangs.resource.raw(), group, namespace=at)
            notes = {"fluence.flux-framework.org/group-size": "2"}
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": "j", "annotations": notes},
                "spec": {"parallelism": 2, "completions": 2, "template": template()},
            }
            await client.create(JOBS.raw(), job, namespace=at)
            await eventually(
                lambda: client.list(PODS, namespace=at),
                lambda page: len(page.items or ()) == 4,
                what="the Job's pods are there",
            )
            return await account(client, kube, *rules)

    return asyncio.run(create())


def rank(kube: Kube) -> str:
    async def find() -> str:
        async with kube.client() as client:
            pods = (await client.list(PODS, namespace=kube.namespace)).items or ()
            return next(each.metadata.name for each in pods if each.metadata.owner_references)

    return asyncio.run(find())


def rows(done: Result) -> dict[str, str]:
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()[1:]
    return {line[:12].strip(): line[12:] for line in lines}


def test_who_may_only_get_pods_is_told_what_cannot_be_seen(kube: Kube, tmp_path: Path) -> None:
    token = prepare(kube, {**PODS_RULE, "verbs": ["get"]})
    # A pod that names no group and has no owner is by itself for sure; whether there is room is not known.
    alone = rows(explain(kube, tmp_path, token, "pod", "alone"))
    assert alone["gang"].endswith("it starts alone")
    assert set(alone) == {"gang", "sooner", "notes"} - {"sooner"}, alone
    assert alone["notes"].startswith("with these rights ")
    assert alone["notes"].endswith(
        "cannot be seen, so it is not said what is in its way now and what would help it"
    )
    for pod in ("member", rank(kube)):
        told = rows(explain(kube, tmp_path, token, "pod", pod))
        assert set(told) == {"notes"}, "nothing is said of its company"
        assert "which pods it starts together with" in told["notes"]
        assert "PodGroups" in told["notes"] and "owners of pods" in told["notes"]
    value = json.loads(explain(kube, tmp_path, token, "pod", "member", "-o", "json").stdout)
    assert value["state"] == "Pending" and "gang" not in value and len(value["notes"]) == 1
    done = explain(kube, tmp_path, token, "group", "g")
    refused = f"you may not list pods in namespace {kube.namespace}; you need the role `view` there"
    assert (done.exit_code, done.stderr) == (1, f"fluence: g: {refused}\n")
    done = explain(kube, tmp_path, token, "pod", "none")
    assert done.exit_code == 1 and "no such pod" in done.stderr


def test_who_may_list_pods_is_not_told_that_no_pod_group_has_this_name(kube: Kube, tmp_path: Path) -> None:
    token = prepare(kube, {**PODS_RULE, "verbs": ["get", "list"]})
    done = explain(kube, tmp_path, token, "group", "nobody")
    assert done.exit_code == 1
    assert "no PodGroup has this name" not in done.stderr
    assert "no pod with schedulerName" in done.stderr and "PodGroups cannot be seen" in done.stderr
    told = rows(explain(kube, tmp_path, token, "group", "g"))
    assert "gang" not in told and "which pods it starts together with" in told["notes"]


@pytest.mark.parametrize("name", ["g", "j"])
def test_who_may_read_a_namespace_is_told_all_but_what_is_in_the_way(
    kube: Kube, tmp_path: Path, name: str
) -> None:
    token = prepare(kube, {**PODS_RULE, "verbs": ["get", "list"]}, OWNERS_RULE, GROUPS_RULE)
    told = rows(explain(kube, tmp_path, token, "group", name))
    if name == "g":
        assert told["reason"].startswith("Waiting for 2 of 3 pods of group ") and told["gang"].endswith(
            "3 must run together"
        )
        assert "notes" not in told, "what it lacks is known without nodes"
    else:
        assert told["gang"].endswith("2 waiting; 2 must run together")
        assert "nodes" in told["notes"] and "owners of pods" not in told["notes"]
    done = explain(kube, tmp_path, token, "group", "nobody")
    assert done.exit_code == 1 and "no PodGroup has this name" in done.stderr
