"""Limits of people rather than of namespaces, on a real server: policies, roles, controllers and a tenant."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from fluence import names
from fluence.admission.manifests import policies
from fluence.admission.scopes import AdmissionOptions
from fluence.cli import main
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, Forbidden
from fluence.kube.resource import JOBS, PODS, Json
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.rights import chart_account, let_edit, resource_of
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.test_queues import installed, put, queue, replace_namespace, spaces, status

pytestmark = pytest.mark.only("1.36", "1.37")
POLICY = "fluence-users"
KEY = names.SUBMITTED_BY
SETTLED_S = 12  # after which names count


@contextlib.asynccontextmanager
async def policy_in_force(f: Field) -> AsyncIterator[None]:
    """The server applies a policy some time after it was created, and some time after it was deleted."""
    documents = policies(AdmissionOptions(handlers=(), users=True), namespace="")
    for each in documents:
        await f.client.create(resource_of(each), each)
    try:
        await eventually(lambda: stored_name(f), lambda name: name not in ("nobody", None), what="it applies")
        await asyncio.sleep(SETTLED_S)
        yield
    finally:
        for each in documents:
            await f.client.delete(resource_of(each), each["metadata"]["name"])
        await eventually(lambda: stored_name(f), "nobody", what="the server stores any name")


async def stored_name(f: Field) -> str | None:
    """The user whom the server would store for a pod that names `nobody`: one policy overwrites the name. If
    only the policy that refuses names is in force, there is no pod."""
    forged = work(f, "probe", **{KEY: "nobody"})
    try:
        made = await f.client.create(PODS, forged, namespace=f.namespace, dry_run=True)
    except Forbidden:
        return None
    return (made.metadata.annotations or {}).get(KEY)


@contextlib.asynccontextmanager
async def reader(client: Client, user: str) -> AsyncIterator[None]:
    """The right that the chart gives with `admission.users`."""
    group = "rbac.authorization.k8s.io"
    role: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "reads-users-policy"},
        "rules": [
            {
                "apiGroups": ["admissionregistration.k8s.io"],
                "resources": ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
                "resourceNames": [POLICY],
                "verbs": ["get", "list", "watch"],
            }
        ],
    }
    binding: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "reads-users-policy"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "reads-users-policy"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    for each in (role, binding):
        await client.create(resource_of(each), each)
    try:
        yield
    finally:
        for each in (role, binding):
            await client.delete(resource_of(each), each["metadata"]["name"])


def work(f: Field, name: str, **annotations: str) -> Json:
    return f.pod(name, annotations={names.QUEUE: "physics", **annotations})


def job(f: Field, name: str, **annotations: str) -> Json:
    template = work(f, name, **annotations)
    spec: Any = template["spec"]
    notes: Any = template["metadata"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "spec": {
            "template": {
                "metadata": {"annotations": notes["annotations"]},
                "spec": {**spec, "restartPolicy": "Never"},
            }
        },
    }


async def bound(f: Field) -> set[str]:
    return {name for name, node in (await f.homes()).items() if node}


async def test_each_person_of_a_namespace_has_one_limit_whatever_they_write(
    own_sandbox: Kube, tmp_path: Path
) -> None:
    async with (
        field(own_sandbox, 2, cpu=8) as nodes,
        installed(nodes.client),
        spaces(nodes, people="physics"),
        chart_account(nodes.client, "users", nodes.namespace) as account,
        reader(nodes.client, account),
        Client(replace(own_sandbox.access(), impersonate=account)) as ours,
        Client(replace(own_sandbox.access(), impersonate="alice")) as alice,
        Client(replace(own_sandbox.access(), impersonate="mallory")) as mallory,
    ):
        f = replace_namespace(nodes, "people")
        for user in ("alice", "mallory"):
            await let_edit(f.client, user, f.namespace)
        await put(f.client, queue("physics", perUser={"running": 1}))
        # Before there is a policy anybody writes any name: a template that waits for its day.
        early: Any = job(f, "early", **{KEY: "alice"})
        early["spec"]["suspend"] = True
        await mallory.create(JOBS.raw(), early, namespace=f.namespace)
        async with policy_in_force(f), nodes.scheduler(ours, users_policy=POLICY):
            await alice.create(PODS.raw(), work(f, "a0"), namespace=f.namespace)
            await mallory.create(PODS.raw(), work(f, "m0"), namespace=f.namespace)
            await f.until_bound(["a0", "m0"])
            # Another pod of hers, by name, by a Job, by a reference to the Job of another.
            twins: Any = job(f, "aj")
            twins["spec"] |= {"parallelism": 2, "completions": 2}
            made: Any = await alice.create(JOBS.raw(), twins, namespace=f.namespace)
            owner = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": "aj",
                "uid": made["metadata"]["uid"],
                "controller": True,
            }
            forged: Any = work(f, "m1", **{KEY: "alice"})
            forged["metadata"]["ownerReferences"] = [owner]
            forged["metadata"]["labels"] = made["spec"]["template"]["metadata"]["labels"]
            await mallory.create(PODS.raw(), forged, namespace=f.namespace)
            await mallory.create(PODS.raw(), work(f, "m2", **{KEY: "nobody"}), namespace=f.namespace)
            await mallory.create(JOBS.raw(), job(f, "mj", **{KEY: "carol"}), namespace=f.namespace)
            for value in ("carol", None):
                for name in ("m1", "m2"):
                    with contextlib.suppress(Forbidden, ApiConflict):
                        body = {"metadata": {"annotations": {KEY: value}}}
                        await mallory.patch(PODS.raw(), name, body, namespace=f.namespace)
            for name in ("m1", "m2"):
                told = await f.until_told(name, "Waiting for queue physics", reason="WaitingForTurn")
                assert "mallory has jobs 1 of 1 in use" in told
            assert await bound(f) == {"a0", "m0"}
            # The template of before counts for the namespace, not for alice whom it names.
            await mallory.patch(JOBS.raw(), "early", {"spec": {"suspend": False}}, namespace=f.namespace)
            await eventually(
                lambda: bound(f), lambda found: any(name.startswith("early-") for name in found), what="early"
            )
            users = await eventually(
                lambda: _users(f.client), lambda found: len(found) == 3, what="usage by user"
            )
            assert users == {"alice", "mallory", f.namespace}
            # The commands count as the scheduler does: the person who asks has no job yet.
            new: Any = work(f, "new")
            (tmp_path / "pod.json").write_text(json.dumps(new))
            own = {"users-policy": POLICY, "scheduler-name": new["spec"]["schedulerName"]}
            (tmp_path / "settings.yaml").write_text(json.dumps(own))
            answer = await _run(own_sandbox, tmp_path, "explain", "pod", "m2")
            assert "mallory has jobs 1 of 1 in use" in answer
            answer = await _run(own_sandbox, tmp_path, "whatif", str(tmp_path / "pod.json"), "--live")
            assert "it would start now" in answer
            # Hers starts when hers has ended.
            await f.end("a0")
            await eventually(
                lambda: bound(f), lambda found: any(name.startswith("aj-") for name in found), what="her Job"
            )


async def _run(kube: Kube, folder: Path, *args: str) -> str:
    access = ["--kubeconfig", str(kube.sandbox.at.kubeconfig()), "-n", "people"]
    more = [*access, "--config", str(folder / "settings.yaml")]
    return (await asyncio.to_thread(CliRunner().invoke, main, [*args, *more])).output


async def _users(client: Client) -> set[str]:
    return set((await status(client, "physics")).get("usage", {}).get("users", {}))


async def test_without_the_policy_the_namespace_is_the_user(own_sandbox: Kube) -> None:
    async with (
        field(own_sandbox, 1, cpu=8) as nodes,
        installed(nodes.client),
        spaces(nodes, alone="physics"),
    ):
        f = replace_namespace(nodes, "alone")
        await put(f.client, queue("physics", perUser={"running": 1}))
        async with nodes.scheduler(users_policy=POLICY):
            await f.add(*(work(f, f"p{number}", **{KEY: f"user-{number}"}) for number in range(3)))
            await f.until_bound(1)
            (told,) = {await f.until_told(name) for name, node in (await f.homes()).items() if node is None}
            assert f"{f.namespace} has jobs 1 of 1 in use" in told
            # Somebody installs admission while the scheduler runs: what is there is older, and says nothing.
            async with policy_in_force(f):
                assert len(await bound(f)) == 1
                await f.add(work(f, "young"))
                await f.until_bound(2)
                assert "young" in await bound(f)
