"""The manifests in deploy/scheduler on a real API server: they are valid, and the account may do what the
scheduler needs and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fluence.config import load
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import Forbidden, Missing
from fluence.kube.gangs import NoGangs, discover_gangs
from fluence.kube.resource import (
    CLAIMS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.model.claims import SELECTED_NODE
from fluence.model.owner import Group
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.integration.rights import resource_of, until_allowed

FOLDER = Path(__file__).parents[3] / "deploy" / "scheduler"
ACCOUNT = "system:serviceaccount:fluence-system:fluence-scheduler"
SECRETS: Resource[dict[str, Any]] = Resource("", "v1", "secrets", "Secret", dict[str, Any])
CONFIGMAPS: Resource[dict[str, Any]] = Resource("", "v1", "configmaps", "ConfigMap", dict[str, Any])


def manifests() -> list[dict[str, Any]]:
    names = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((FOLDER / name).read_text())]


async def install(client: Client) -> None:
    """All of it. As dry runs the Deployment, since nothing here can run its image, and the policies, which
    would change the pods of other tests."""
    for body in manifests():
        resource = resource_of(body)
        if body["kind"] == "APIService":
            # NB nothing answers here, and the server would wait for it with every namespace that is deleted.
            await client.create(resource, body, dry_run=True)
        elif body["kind"] == "Deployment":
            made = await client.create(resource, body, namespace="fluence-system", dry_run=True)
            spec = made["spec"]["template"]["spec"]
            assert made["spec"]["replicas"] == 2
            assert spec["containers"][0]["livenessProbe"]["httpGet"]["port"] == "health"
        elif body["kind"].endswith(("AdmissionPolicy", "AdmissionPolicyBinding")):
            with contextlib.suppress(Missing):  # Kubernetes 1.35
                await client.create(resource, body, dry_run=True)
        else:
            await client.apply(resource, body, namespace=body["metadata"].get("namespace"), manager="test")
    roles = {_place(each): each["rules"] for each in manifests() if each["kind"] in ("ClusterRole", "Role")}
    for body in manifests():
        if body["kind"] in ("ClusterRoleBinding", "RoleBinding") and "fluence-scheduler" in str(
            body["subjects"]
        ):
            _, namespace, _ = _place(body)
            if body["roleRef"]["name"] == "extension-apiserver-authentication-reader":
                continue  # Kubernetes' own
            rules = roles[body["roleRef"]["kind"], namespace, body["roleRef"]["name"]]
            await until_allowed(client, ACCOUNT, rules, namespace=namespace)


_SCHEDULER = ("fluence-system", "fluence-scheduler")


def _place(body: dict[str, Any]) -> tuple[str, str, str]:
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def test_every_file_of_the_folder_is_in_the_kustomization() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(p.name for p in FOLDER.glob("*.yaml") if p.name != "kustomization.yaml")


def test_the_config_in_the_manifest_is_valid_and_agrees_with_the_rest(tmp_path: Path) -> None:
    bodies = {(each["kind"], each["metadata"].get("namespace", "")): each for each in manifests()}
    text = bodies["ConfigMap", "fluence-system"]["data"]["fluence.yaml"]
    (tmp_path / "f.yaml").write_text(text)
    settings = load(SchedulerSettings, file=str(tmp_path / "f.yaml")).settings
    container = bodies["Deployment", "fluence-system"]["spec"]["template"]["spec"]["containers"][0]
    address = settings.address(settings.health_address)
    assert address == ("0.0.0.0", container["ports"][0]["containerPort"])
    (role,) = (each for each in manifests() if each["kind"] == "Role" and _place(each)[1:] == _SCHEDULER)
    leases = role["rules"][1]
    assert settings.lease_namespace == "fluence-system" and leases["resourceNames"] == [settings.lease_name]


def pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "fluence-rbac",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none"}],
        },
    }


def claim(name: str = "data") -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {**spec, "storageClassName": "nobody-makes-these"},
    }


def volume(name: str) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"}}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


async def test_the_account_may_do_what_is_needed_and_nothing_else(kube: Kube) -> None:
    space = kube.namespace
    async with kube.client() as admin:
        await install(admin)
        made = await admin.create(PODS, pod("solver"), namespace=space)
        gangs = await discover_gangs(admin)
        await admin.create(CLAIMS.raw(), claim(), namespace=space)
        await admin.create(VOLUMES.raw(), volume(f"pv-{space}"))
        other = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "another"}}
        await admin.apply(LEASES, other, namespace="fluence-system", manager="test")  # type: ignore[arg-type]
        group = None
        if not isinstance(gangs, NoGangs) and gangs.version != "v1alpha1":
            group = Group(namespace=space, name="g", min_count=1)
            where: Resource[Any] = gangs.resource
            await admin.create(where.raw(), gangs.manifest(group), namespace=space)

    access = msgspec.structs.replace(kube.access(), impersonate=ACCOUNT)
    async with Client(access) as client:
        # Needed: each is the call that the scheduler makes.
        assert (await client.list(NODES)).items
        assert (await client.list(PODS, field_selector="status.phase!=Failed")).items
        for path in (
            "/apis/batch/v1/jobs",
            "/apis/apps/v1/deployments",
            "/apis/apps/v1/replicasets",
            "/apis/apps/v1/statefulsets",
            "/api/v1/namespaces",
            "/api/v1/persistentvolumes",
            "/api/v1/persistentvolumeclaims",
            "/apis/storage.k8s.io/v1/storageclasses",
            "/apis/storage.k8s.io/v1/csinodes",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            "/apis/policy/v1/poddisruptionbudgets",
            "/api/v1/services",
            "/apis/resource.k8s.io/v1/resourceslices",
            "/apis/jobs.converged-computing.org/v1alpha1/fluxjobs",
        ):
            await client.request("GET", path, params={"limit": "1"})
        waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "busy"}
        await client.patch(
            PODS,
            "solver",
            {"metadata": {"uid": made.metadata.uid}, "status": {"conditions": [waits]}},
            namespace=space,
            kind=PatchType.STRATEGIC,
            subresource="status",
        )
        await client.patch(PODS, "solver", {"metadata": {"labels": {"a": "b"}}}, namespace=space)
        chosen = {"metadata": {"annotations": {SELECTED_NODE: "node-000"}}}
        await client.patch(CLAIMS, "data", chosen, namespace=space)
        given = {"spec": {"claimRef": {"namespace": space, "name": "data"}}}
        await client.patch(VOLUMES, f"pv-{space}", given)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "fluence"},
            "spec": {"holderIdentity": "me"},
        }
        held = await client.create(LEASES, lease, namespace="fluence-system")
        await client.replace(LEASES, "fluence", held, namespace="fluence-system")
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "solver.1"},
            "eventTime": "2026-09-01T12:00:00.000000Z",
            "type": "Warning",
            "reason": "FailedScheduling",
            "action": "Scheduling",
            "note": "busy",
            "reportingController": "fluence",
            "reportingInstance": "fluence-0",
            "regarding": {"kind": "Pod", "name": "solver", "namespace": space, "apiVersion": "v1"},
        }
        await client.create(EVENTS, event, namespace=space)
        if group is not None:
            condition = {
                "type": gangs.condition,
                "status": "True",
                "reason": "Scheduled",
                "message": "",
                "lastTransitionTime": "2026-09-01T12:00:00Z",
            }
            await client.patch(
                where.raw(),
                "g",
                {"status": {"conditions": [condition]}},
                namespace=space,
                kind=PatchType.STRATEGIC,
                subresource="status",
            )
        await client.bind(made, "node-000", annotations={"example.org/why": "rbac"})

        # Not needed: each would be a way to harm.
        for call in (
            client.create(PODS, pod("intruder"), namespace=space),
            client.patch(NODES, "node-000", {"metadata": {"labels": {"a": "b"}}}),
            client.create(CLAIMS, claim("more"), namespace=space),
            client.delete(CLAIMS, "data", namespace=space),
            client.patch(CLAIMS, "data", {"status": {}}, namespace=space, subresource="status"),
            client.create(VOLUMES, volume("more")),
            client.delete(VOLUMES, f"pv-{space}"),
            client.patch(VOLUMES, f"pv-{space}", {"status": {}}, subresource="status"),
            client.delete(STORAGE_CLASSES, "none"),
            client.list(SECRETS, namespace="kube-system"),
            client.list(CONFIGMAPS, namespace="kube-system"),
            client.get(CONFIGMAPS, "another", namespace="kube-system"),
            client.get(LEASES, "another", namespace="fluence-system"),
            client.delete(LEASES, "fluence", namespace="fluence-system"),
            client.request("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        ):
            with pytest.raises(Forbidden):
                await call
        if group is not None:
            with pytest.raises(Forbidden):
                await client.delete(where.raw(), "g", namespace=space)
        await client.delete(PODS, "solver", namespace=space)  # as preemption does

    async with kube.client() as admin:
        await admin.delete(LEASES, "fluence", namespace="fluence-system")
        await admin.delete(VOLUMES, f"pv-{space}")
