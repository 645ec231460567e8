"""What the client relies on, against a real API server."""

import asyncio
import base64

import msgspec
import pytest

from fluence.kube.access import Access
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import (
    ONCE,
    AlreadyExists,
    ApiConflict,
    Forbidden,
    Invalid,
    Missing,
    Unauthorized,
    Unreachable,
)
from fluence.kube.events import Recorder, Ref
from fluence.kube.gangs import ADAPTERS, NoGangs, discover_gangs
from fluence.kube.releases import release
from fluence.kube.resource import EVENTS, NODES, PODS, Page, Resource, dropped_fields, server_version
from fluence.model.owner import Group
from fluence.model.pod import Pod, pod_requests
from fluence.sandbox.certs import Authority
from fluence.sandbox.testing import Kube


def body(name: str, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "fluence-test",
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "c", "image": "none", "resources": {"limits": {"cpu": "1.5", "memory": "1Gi"}}}
            ],
            **spec,
        },
    }


async def test_a_pod_from_creation_to_deletion(kube: Kube, audited: None) -> None:
    ns = kube.namespace
    async with kube.client() as client:
        made = await client.create(PODS, body("a"), namespace=ns)
        assert pod_requests(made) == {"cpu": 1500, "memory": 2**30, "pods": 1}
        with pytest.raises(AlreadyExists) as caught:
            await client.create(PODS, body("a"), namespace=ns)
        assert not caught.value.ambiguous
        merged = await client.patch(PODS, "a", {"metadata": {"labels": {"one": "1"}}}, namespace=ns)
        assert merged.labels == {"one": "1"}
        operations = [{"op": "add", "path": "/metadata/labels/two", "value": "2"}]
        assert (await client.patch(PODS, "a", operations, namespace=ns, kind=PatchType.JSON)).labels == {
            "one": "1",
            "two": "2",
        }
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "busy"}
        told = await client.patch(
            PODS,
            "a",
            {"status": {"conditions": [condition]}},
            namespace=ns,
            kind=PatchType.STRATEGIC,
            subresource="status",
        )
        shown = told.condition("PodScheduled")
        assert shown is not None
        assert shown.reason == "Unschedulable"
        applied = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "annotations": {"x": "y"}}}
        assert (await client.apply(PODS, applied, namespace=ns, manager="fluence")).annotations["x"] == "y"  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="spec"):
            await client.patch(PODS, "a", {"spec": {"containers": []}}, namespace=ns)
        await client.bind(made, "node-000", annotations={"why": "fits"}, labels={"job": "7"})
        found = await client.get(PODS, "a", namespace=ns)
        assert (found.spec.node_name, found.annotations["why"]) == ("node-000", "fits")
        assert found.labels["job"] == "7"
        with pytest.raises(ApiConflict, match="already assigned"):
            await client.bind(made, "node-001")
        with pytest.raises(ApiConflict):
            await client.delete(PODS, "a", namespace=ns, uid="somebody-else")
        await client.delete(PODS, "a", namespace=ns, uid=made.metadata.uid, grace_s=0)
        await client.delete(PODS, "a", namespace=ns)
        with pytest.raises(Missing):
            await client.delete(PODS, "a", namespace=ns, missing_ok=False)


async def test_a_binding_with_a_stale_uid_is_refused(kube: Kube) -> None:
    async with kube.client() as client:
        old = await client.create(PODS, body("a"), namespace=kube.namespace)
        await client.delete(PODS, "a", namespace=kube.namespace, grace_s=0)
        new = await client.create(PODS, body("a"), namespace=kube.namespace)
        with pytest.raises(ApiConflict):
            await client.bind(old, "node-000")
        assert (await client.get(PODS, "a", namespace=kube.namespace)).metadata.uid == new.metadata.uid


async def test_lists_are_read_in_pages(kube: Kube) -> None:
    async with kube.client() as client:
        for index in range(7):
            await client.create(PODS, body(f"p{index}"), namespace=kube.namespace)
        sizes = []

        def decode(content: bytes) -> Page[Pod]:
            page = PODS.page_decoder.decode(content)
            sizes.append(len(page.items or ()))
            return page

        whole = await client.list(PODS, namespace=kube.namespace, limit=3, decode=decode)
        assert sizes == [3, 3, 1]
        assert [each.metadata.name for each in whole.items or ()] == [f"p{index}" for index in range(7)]
        chosen = await client.list(PODS, namespace=kube.namespace, field_selector="metadata.name=p3")
        assert [each.metadata.name for each in chosen.items or ()] == ["p3"]


async def test_nodes_are_ready_and_have_what_was_asked_for(kube: Kube) -> None:
    async with kube.client() as client:
        node = await client.get(NODES, "node-007")
        assert node.is_ready
        assert node.allocatable()["cpu"] == 32_000
        assert node.allocatable()["nvidia.com/gpu"] == 4
        assert node.labels["topology.kubernetes.io/rack"] == "rack-1"


async def test_mistakes_of_the_user_are_said_in_one_line(kube: Kube) -> None:
    access = kube.access()
    replace = msgspec.structs.replace
    expired = replace(access, client_cert=None, client_key=None, token="expired", source="my.kubeconfig")
    strange = replace(access, ca=Authority("another").pem, source="my.kubeconfig")
    nowhere = replace(access, server="https://127.0.0.1:9", source="my.kubeconfig")
    cases = [
        (expired, Unauthorized, "log in again"),
        (strange, Unreachable, "certificate-authority-data in my.kubeconfig"),
        (nowhere, Unreachable, "nothing listens at https://127.0.0.1:9"),
    ]
    for wrong, kind, words in cases:
        async with Client(wrong, retry=ONCE) as client:
            with pytest.raises(kind) as caught:
                await client.list(PODS)
            assert words in str(caught.value)
            assert "\n" not in str(caught.value)


async def test_a_missing_permission_names_user_verb_and_resource(kube: Kube) -> None:
    tokens = Resource("", "v1", "serviceaccounts", "ServiceAccount", dict[str, object])
    path = tokens.path("default", namespace=kube.namespace, subresource="token")
    async with kube.client() as client:
        answer = msgspec.json.decode(await client.request("POST", path, body=b'{"spec": {}}'))
    access = kube.access()
    weak = Access(server=access.server, ca=access.ca, token=answer["status"]["token"], source="pod")
    async with Client(weak, retry=ONCE) as client:
        with pytest.raises(Forbidden) as caught:
            await client.list(PODS)
    said = str(caught.value)
    assert f"system:serviceaccount:{kube.namespace}:default" in said
    assert 'cannot list resource "pods"' in said
    assert "bind a Role or ClusterRole" in said
    claims = answer["status"]["token"].split(".")[1]
    assert base64.urlsafe_b64decode(claims + "==")  # a real, signed token


async def test_events_are_accepted_and_become_a_series(kube: Kube) -> None:
    async with kube.client() as client:
        pod = await client.create(PODS, body("a"), namespace=kube.namespace)
        regarding = Ref("Pod", "a", kube.namespace, pod.metadata.uid, "v1")
        recorder = Recorder(client, controller="fluence", instance="fluence-0")
        task = asyncio.create_task(recorder.run())
        for _ in range(3):
            recorder.record(
                regarding,
                kind="Warning",
                reason="FailedScheduling",
                action="Scheduling",
                note="3 of 40 nodes fit: 31 lack gpu, 6 tainted",
            )
            await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait({task})
        await recorder.flush()
        assert recorder.failed == 0
        events = await client.list(EVENTS, namespace=kube.namespace)
        (found,) = [each for each in events.items or () if each["reason"] == "FailedScheduling"]
        assert found["series"]["count"] == 3
        assert found["reportingController"] == "fluence"
        # `kubectl events --for pod/a` finds only events whose reference has the version, too.
        wanted = {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": kube.namespace}
        assert found["regarding"] == {**wanted, "uid": pod.metadata.uid}


@pytest.mark.release
async def test_native_gangs_are_found_written_and_read(kube: Kube) -> None:
    expected = {"1.35": "v1alpha1", "1.36": "v1alpha2", "1.37": "v1beta1"}[kube.version]
    async with kube.client() as client:
        assert (await server_version(client)).release == tuple(map(int, kube.version.split(".")))
        api = await discover_gangs(client, probe_namespace=kube.namespace)
        assert api.version == expected
        assert api.resource is not None
        inside = expected == "v1alpha1"  # there a Workload holds its groups, and knows no disruption
        name = "w/g" if inside else "g"
        group = Group(namespace=kube.namespace, name=name, min_count=3, disrupt_together=not inside)
        sent = api.manifest(group)
        made = await client.create(api.resource.raw(), sent, namespace=kube.namespace)
        assert not list(dropped_fields(sent, made))
        (found,) = api.groups(msgspec.convert(made, api.resource.type))
        assert (found.min_count, found.disrupt_together, found.key) == (3, not inside, group.key)
        member = await client.create(PODS, body("m", **api.pod_link(name)), namespace=kube.namespace)
        assert api.group_of(member) == name


@pytest.mark.release
async def test_a_field_whose_gate_is_off_is_noticed(kube: Kube) -> None:
    if kube.version == "1.35":
        pytest.skip("a Workload of 1.35 has no field with a gate of its own")
    async with kube.client() as client:
        api = await discover_gangs(client, probe_namespace=kube.namespace)
        assert api.resource is not None
        # TopologyAwareWorkloadScheduling is alpha and off in both releases
        group = Group(namespace=kube.namespace, name="g", min_count=1, topology_key="example.org/rack")
        sent = api.manifest(group)
        made = await client.create(api.resource.raw(), sent, namespace=kube.namespace)
        assert list(dropped_fields(sent, made)) == ["spec.schedulingConstraints"]


@pytest.mark.release
async def test_a_server_whose_gate_is_off_counts_as_one_without_gangs(gateless: Kube) -> None:
    wanted = release(gateless.version)
    native = next(each for each in ADAPTERS if f"{each.version}=true" in str(wanted.runtime_config))
    async with gateless.client() as client:
        api = await discover_gangs(client)
        assert isinstance(api, NoGangs)
        assert "GenericWorkload" in api.reason or "serves no" in api.reason
        link = native.pod_link("g")
        sent = body("m", **link)
        made = await client.create(PODS.raw(), sent, namespace=gateless.namespace)
        assert list(dropped_fields(sent, made)) == [f"spec.{name}" for name in link]
