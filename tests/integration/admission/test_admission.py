"""Admission on a real server with its controllers: Jobs that share, held work, faults, certificates."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import yaml
from deploy.helm.manifests import template

from fluence import names
from fluence.act.own_objects import HandOffWriter
from fluence.admission.certificates import WEBHOOK_CONFIGURATIONS, Renewal
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, Missing
from fluence.kube.resource import CONFIG_MAPS, HAND_OFFS, JOBS, NAMESPACES, PODS, Json, Resource
from fluence.live.scheduler import LiveScheduler
from fluence.model.external_resources import BASE, DeviceTree, hand_off_variables, parse
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.admission_objects import VARIABLES
from tests.eventually import eventually
from tests.integration.admission.field import (
    RESOURCES,
    Field,
    attempt,
    field,
    is_effective,
    policies_for,
    webhook_for,
)
from tests.integration.sandbox.kubectl import Kubectl

pytestmark = pytest.mark.release
QPU = f"{names.DEVICE_PREFIX}qpu"

# In the shapes of the manifests that the systems before this one ship.
QUANTUM_POD = f"""
apiVersion: v1
kind: Pod
metadata: {{name: sampler, annotations: {{{names.REQUIRE_BACKEND}: sv1}}}}
spec:
  schedulerName: fluence
  restartPolicy: Never
  containers:
  - name: sampler
    image: busybox
    resources: {{limits: {{{QPU}: 1}}}}
    env: [{{name: FLUXION_BACKEND, value: mine}}]
"""
SHARED_JOB = f"""
apiVersion: batch/v1
kind: Job
metadata: {{name: hybrid}}
spec:
  completionMode: Indexed
  completions: 3
  parallelism: 3
  template:
    metadata:
      labels: {{{names.GROUP_LABEL}: hybrid}}
      annotations: {{{names.COORDINATION}: shared, {names.PREFIX}/require-qrmi_type: braket}}
    spec:
      schedulerName: fluence
      restartPolicy: Never
      containers:
      - {{name: work, image: busybox, resources: {{limits: {{{QPU}: 1, cpu: 100m}}}}}}
"""


def workload(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "c", "image": "busybox"}]}
    if kind == "Job":
        body = {"template": {"spec": {**pod, "restartPolicy": "Never"}}, **spec}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": {"name": name}, "spec": body}
    labels = {"app": name}
    body = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
        **spec,
    }
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": body}


@contextlib.asynccontextmanager
async def ground(sandbox: Sandbox) -> AsyncIterator[tuple[Client, Field]]:
    async with Client(sandbox.access()) as client, field(client) as at:
        yield client, at


async def pods(client: Client, namespace: str, count: int, kind: str = "Job") -> list[Any]:
    """The pods that something of a kind makes, once there are so many."""

    async def made() -> list[Any]:
        everything: list[Any] = (await client.list(PODS.raw(), namespace=namespace)).items or []
        return [each for each in everything if each["metadata"]["ownerReferences"][0]["kind"] == kind]

    return await eventually(made, lambda found: len(found) >= count, what=f"{count} pods of a {kind}")


def is_changed(attempted: tuple[str, Any]) -> bool:
    return len(variables(attempted[1])) > 1


def variables(pod: Any) -> dict[str, Any]:
    return {each["name"]: each for each in pod["spec"]["containers"][0].get("env", ())}


@pytest.mark.only("1.36", "1.37")
async def test_a_job_that_shares_is_split_by_its_indexes(sandbox: Sandbox) -> None:
    async with ground(sandbox) as (client, at), policies_for(client, at):
        namespace = at.namespace(False)
        await client.create(JOBS.raw(), yaml.safe_load(SHARED_JOB), namespace=namespace)
        found = await pods(client, namespace, 3)
        key = names.COMPLETION_INDEX
        first, *others = sorted(found, key=lambda each: each["metadata"]["annotations"][key])
        assert first["metadata"]["labels"][names.GROUP_LABEL] == "hybrid-producer"
        assert first["metadata"]["annotations"][names.GROUP_SIZE] == "1"
        assert "schedulingGates" not in first["spec"]
        assert first["spec"]["containers"][0]["resources"]["requests"][QPU] == "1"
        for each in others:
            assert each["metadata"]["labels"][names.GROUP_LABEL] == "hybrid"
            assert each["metadata"]["annotations"][names.GROUP_SIZE] == "2"
            assert each["spec"]["schedulingGates"] == [{"name": "quantum.braket/ready"}]
            assert each["spec"]["priority"] == 1_000_000
            assert QPU not in each["spec"]["containers"][0]["resources"]["requests"]
            assert variables(each)["FLUENCE_COORDINATION_ROLE"]["value"] == "consumer"


@pytest.mark.only("1.36", "1.37")
async def test_work_in_a_namespace_that_asks_is_held_through_its_controllers(sandbox: Sandbox) -> None:
    async with ground(sandbox) as (client, at), policies_for(client, at):
        space = at.namespace(True)
        for found in (
            workload("Deployment", "d", replicas=2),
            workload("ReplicaSet", "r", replicas=1),
            workload("StatefulSet", "s", replicas=1),
            workload("Job", "j", parallelism=2),
            workload("DaemonSet", "every"),
        ):
            resource = RESOURCES.get(found["kind"]) or _DAEMONSETS
            await client.create(resource, found, namespace=space)
        held = [
            *await pods(client, space, 3, "ReplicaSet"),
            *await pods(client, space, 1, "StatefulSet"),
        ]
        assert len(held) == 4
        assert all(each["spec"]["schedulingGates"] == [{"name": "fluxqueue"}] for each in held)
        assert all(each["spec"]["schedulerName"] == "fluence" for each in held)
        assert {each["metadata"]["labels"][names.SELECTOR] for each in held} == {
            *(f"{kind}-{space}" for kind in ("deployment-d", "replicaset-r", "statefulset-s")),
        }
        everywhere = await pods(client, space, 1, "DaemonSet")
        assert all("schedulingGates" not in each["spec"] for each in everywhere)
        job: Any = await client.get(JOBS.raw(), "j", namespace=space)
        assert job["spec"]["suspend"] is True
        assert not await pods(client, space, 0)
        # A Deployment whose template became another would make ReplicaSets without end.
        sets = (await client.list(RESOURCES["ReplicaSet"], namespace=space)).items or []
        assert len(sets) == 2

        await client.patch(JOBS.raw(), "j", {"spec": {"suspend": False}}, namespace=space)
        let_go = await pods(client, space, 2)
        assert all("schedulingGates" not in each["spec"] for each in let_go), (
            "a Job's pods are not held again"
        )


_DAEMONSETS: Resource[Json] = Resource("apps", "v1", "daemonsets", "DaemonSet", dict[str, object])


@pytest.mark.only("1.36", "1.37")
async def test_variables_follow_the_devices_and_a_sites_own_stay(sandbox: Sandbox) -> None:
    async with ground(sandbox) as (client, at), policies_for(client, at):
        pod, space = yaml.safe_load(QUANTUM_POD), at.namespace(False)
        parameters = names.ADMISSION_PARAMETERS
        await client.delete(HAND_OFFS, parameters, namespace=at.plain)
        writer = HandOffWriter(client, at.plain)
        tree = parse("resources: [{type: qpu, name: sv1, attributes: {vendor: aws, qrmi_type: braket}}]")
        assert await writer.write(tree)
        before = await client.get(HAND_OFFS, parameters, namespace=at.plain)
        assert await writer.write(tree)
        again = await client.get(HAND_OFFS, parameters, namespace=at.plain)
        assert again.metadata.resource_version == before.metadata.resource_version, "the same is no write"
        await client.patch(
            HAND_OFFS.raw(), parameters, {"spec": {"variables": {"OURS": names.BACKEND}}}, namespace=at.plain
        )

        async def becomes(expected: set[str]) -> None:
            _, made = await eventually(
                lambda: attempt(client, space, pod),
                lambda attempted: set(variables(attempted[1])) == expected,
                what=f"variables {sorted(expected)}",
            )
            assert variables(made)["FLUXION_BACKEND"] == {"name": "FLUXION_BACKEND", "value": "mine"}

        await becomes({*BASE, "OURS", "FLUXION_VENDOR", "FLUXION_QRMI_TYPE"})
        assert await writer.write(parse("resources: [{type: qpu, name: q, attributes: {region: eu}}]"))
        await becomes({*BASE, "OURS", "FLUXION_REGION"})


@pytest.mark.only("1.36", "1.37")
async def test_kube_system_is_never_touched_and_others_are_warned(sandbox: Sandbox, kube: Kube) -> None:
    async with ground(sandbox) as (client, at), policies_for(client, at):
        label = {"metadata": {"labels": {"admission-test": at.run, names.NAMESPACE_OPT_IN: "enabled"}}}
        await client.patch(NAMESPACES.raw(), "kube-system", label)
        await client.patch(NAMESPACES.raw(), at.plain, label)
        try:
            # The server learns of labels later, and in order: now it knows those of kube-system, too.
            await eventually(lambda: attempt(client, at.plain, yaml.safe_load(QUANTUM_POD)), is_changed)
            _, made = await attempt(client, "kube-system", yaml.safe_load(QUANTUM_POD))
            assert set(variables(made)) == {"FLUXION_BACKEND"}
            assert "schedulingGates" not in made["spec"]
        finally:
            undone = {"metadata": {"labels": {"admission-test": None, names.NAMESPACE_OPT_IN: None}}}
            await client.patch(NAMESPACES.raw(), "kube-system", undone)
        pod = yaml.safe_load(QUANTUM_POD)
        pod["metadata"]["annotations"][names.COORDINATION] = "shared"
        pod["metadata"]["namespace"] = at.namespace(False)
        kubectl = Kubectl(msgspec.structs.replace(kube, namespace=at.namespace(False)))
        # Policies that warn come into force by themselves, later than those that change.
        command = ("create", "--dry-run=server", "-f", "-")
        told = await eventually(
            lambda: asyncio.to_thread(kubectl.run, *command, stdin=yaml.safe_dump(pod)),
            lambda told: told.returncode or "needs an index" in told.stderr,
            what="a warning that it needs an index",
        )
        assert told.returncode == 0, told


async def test_the_server_goes_on_when_the_webhook_is_gone(sandbox: Sandbox) -> None:
    async with ground(sandbox) as (client, at):
        pod = yaml.safe_load(QUANTUM_POD)
        async with webhook_for(client, at) as hook:
            kind, made = await attempt(client, at.namespace(False), pod)
            assert set(variables(made)) == set(VARIABLES)
            body: Any = await client.get(WEBHOOK_CONFIGURATIONS, at.run)
            await eventually(hook.unready, "")
        for key in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
            body["metadata"].pop(key, None)
        await client.create(WEBHOOK_CONFIGURATIONS, body)  # it names a port where nobody listens now
        try:
            for _ in range(5):
                kind, made = await attempt(client, at.namespace(False), pod)
                assert kind == "made"
                assert set(variables(made)) == {"FLUXION_BACKEND"}
        finally:
            await client.delete(WEBHOOK_CONFIGURATIONS, at.run)


async def test_certificates_are_renewed_and_no_call_fails_meanwhile(sandbox: Sandbox) -> None:
    quick = Renewal(life=timedelta(seconds=12), check_s=0.1, settle_s=3.0)
    async with ground(sandbox) as (client, at), webhook_for(client, at, renewal=quick) as hook:
        async with asyncio.timeout(120):
            while hook.keeper.rotations < 2:
                # A new connection for each: the server keeps those that it has.
                assert await is_effective(client, at), f"after {hook.keeper.rotations} renewals"
                await asyncio.sleep(0.05)
        assert await is_effective(client, at)


async def test_the_webhooks_account_may_do_what_it_does_and_nothing_else(sandbox: Sandbox) -> None:
    async with ground(sandbox) as (client, at):
        arguments = (
            "--set",
            f"admission.mode=webhook,fullnameOverride={at.run},settings.lease-namespace={at.plain}",
        )
        text = template("--show-only", "templates/webhook.yaml", "--kube-version", "1.36", *arguments)
        made = await _rights(client, text, at)
        account = f"system:serviceaccount:{at.plain}:{at.run}-webhook"
        acting = Client(msgspec.structs.replace(sandbox.access(), impersonate=account))
        try:
            async with acting, webhook_for(client, at, acting=acting) as hook:
                assert hook.variables == VARIABLES
                await eventually(hook.unready, "")
                for method, path in (
                    ("GET", f"/api/v1/namespaces/{at.plain}/secrets"),
                    ("GET", f"/apis/{HAND_OFFS.api_version}/namespaces/{at.plain}/handoffs"),
                    ("GET", "/api/v1/pods"),
                    ("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"),
                    (
                        "DELETE",
                        f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{at.run}",
                    ),
                    ("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/other"),
                    (
                        "DELETE",
                        f"/apis/{HAND_OFFS.api_version}/namespaces/{at.plain}/handoffs/{names.ADMISSION_PARAMETERS}",
                    ),
                ):
                    with pytest.raises(Forbidden):
                        await acting.request(method, path)
        finally:
            for path in made:
                await client.request("DELETE", path)


async def test_the_schedulers_account_may_keep_the_table_and_nothing_else_of_it(sandbox: Sandbox) -> None:
    async with ground(sandbox) as (client, at):
        await client.delete(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
        text = template("--show-only", "templates/admission.yaml", "--kube-version", "1.36", *_named(at))
        made = await _rights(client, text, at)
        account = f"system:serviceaccount:{at.plain}:{at.run}-scheduler"
        try:
            async with Client(msgspec.structs.replace(sandbox.access(), impersonate=account)) as acting:
                writer = HandOffWriter(acting, at.plain)
                await eventually(lambda: writer.write(DeviceTree()), what="new roles count")
                assert await writer.write(parse("resources: [{type: qpu, name: q}]"))
                base = f"/apis/{HAND_OFFS.api_version}/namespaces/{at.plain}/handoffs"
                for method, path in (
                    ("GET", base),
                    ("DELETE", f"{base}/{names.ADMISSION_PARAMETERS}"),
                    ("GET", f"/api/v1/namespaces/{at.plain}/configmaps"),
                ):
                    with pytest.raises(Forbidden):
                        await acting.request(method, path)
                with pytest.raises(Forbidden):
                    await acting.patch(HAND_OFFS.raw(), "another", {}, namespace=at.plain)
                assert not await HandOffWriter(acting, at.namespace(False)).write(DeviceTree())
        finally:
            for path in made:
                await client.request("DELETE", path)


async def table(client: Client, at: Field) -> Any:
    """The variables that are in force; None: there is no table."""
    with contextlib.suppress(Missing):
        return (await client.get(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)).variables
    return None


def _named(at: Field) -> tuple[str, str]:
    return "--set", f"fullnameOverride={at.run},settings.lease-namespace={at.plain}"


async def _rights(client: Client, text: str, at: Field) -> list[str]:
    """The roles of the chart, for a webhook configuration that is called as the test's; their paths."""
    made = []
    for each in yaml.safe_load_all(text):
        kind = each["kind"]
        if kind not in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"):
            continue
        for rule in each.get("rules", ()):
            rule["resourceNames"] = [
                name.replace(f"{at.run}-webhook", at.run) for name in rule.get("resourceNames", ())
            ]
        for subject in each.get("subjects", ()):
            subject["namespace"] = at.plain
        base = "/apis/rbac.authorization.k8s.io/v1/"
        base += "" if kind.startswith("Cluster") else f"namespaces/{at.plain}/"
        path = f"{base}{kind.lower()}s"
        await client.request("POST", path, body=msgspec.json.encode(each))
        made.append(f"{path}/{each['metadata']['name']}")
    return made


@pytest.mark.only("1.36", "1.37")
async def test_the_leader_keeps_the_variables_of_the_devices(sandbox: Sandbox) -> None:
    """A scheduler with a document of its own; its table follows each edit."""
    async with ground(sandbox) as (client, at):
        document = {
            "data": {names.RESOURCES_KEY: "resources: [{type: qpu, name: q, attributes: {vendor: a}}]"}
        }
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "devices"}, **document}
        await client.create(CONFIG_MAPS.raw(), body, namespace=at.plain)
        await client.delete(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
        settings = SchedulerSettings(
            scheduler_name=at.run,
            lease=False,
            lease_namespace=at.plain,
            resources_configmap=f"{at.plain}/devices",
        )
        live, stop = LiveScheduler(client, settings), asyncio.Event()
        running = asyncio.create_task(live.run(stop))
        try:
            for attribute in ("vendor", "region"):
                text = f"resources: [{{type: qpu, name: q, attributes: {{{attribute}: a}}}}]"
                change = {"data": {names.RESOURCES_KEY: text}}
                await client.patch(CONFIG_MAPS.raw(), "devices", change, namespace=at.plain)
                wanted = hand_off_variables(parse(text))
                await eventually(lambda: table(client, at), wanted)
            # Somebody changes or deletes the table: it is as it was before a pod can miss it.
            wrong = {"spec": {"variables": {"QRMI_BACKEND": names.JOBID}}}
            await client.patch(HAND_OFFS.raw(), names.ADMISSION_PARAMETERS, wrong, namespace=at.plain)
            await eventually(lambda: table(client, at), wanted)
            await client.delete(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
            await eventually(lambda: table(client, at), wanted)
        finally:
            stop.set()
            await running


async def test_admission_that_comes_after_the_scheduler_has_its_table_soon(sandbox: Sandbox) -> None:
    """The right to write the table comes with admission, as its kind does."""
    async with ground(sandbox) as (client, at):
        await client.delete(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
        account = f"system:serviceaccount:{at.plain}:{at.run}-scheduler"
        tree = parse("resources: [{type: qpu, name: q, attributes: {vendor: a}}]")
        async with Client(msgspec.structs.replace(sandbox.access(), impersonate=account)) as acting:
            writer = HandOffWriter(acting, at.plain)
            writer.keep(tree)
            running = asyncio.create_task(writer.run())
            made: list[str] = []
            try:
                await eventually(
                    lambda: writer.failed, lambda failed: failed > 0, what="it may not write yet"
                )
                text = template(
                    "--show-only", "templates/admission.yaml", "--kube-version", "1.36", *_named(at)
                )
                made = await _rights(client, text, at)
                await eventually(lambda: table(client, at), hand_off_variables(tree))
                await client.delete(HAND_OFFS, names.ADMISSION_PARAMETERS, namespace=at.plain)
                await eventually(lambda: table(client, at), hand_off_variables(tree))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                for path in made:
                    await client.request("DELETE", path)
