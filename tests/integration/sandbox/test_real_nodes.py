"""Containers that really run, on the run's sandbox with two real nodes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fluence.errors import InvalidInput
from fluence.kube.gangs import discover_gangs
from fluence.kube.resource import JOBS, NODES
from fluence.names import JOBID
from fluence.sandbox.auditor import ask
from fluence.sandbox.images import ImageFile, find_busybox, write_busybox
from fluence.sandbox.nodes import SIMULATED
from fluence.sandbox.realnode import REAL
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube
from tests.integration.sandbox.kubectl import Kubectl, soon
from tests.integration.schedule.field import Field

pytestmark = pytest.mark.realnodes

Json = dict[str, Any]


def pod(name: str, script: str, *, node: str | None = None, image: str = "busybox", **spec: Any) -> Json:
    container = {"name": "c", "image": image, "command": ["sh", "-c", script], **spec.pop("container", {})}
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    if node is not None:
        body["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}


@pytest.mark.release
async def test_the_containers_of_a_gang_run_and_print_their_allocation(real_kube: Kube) -> None:
    """Each gets the number of the gang's allocation from the annotation that came with the bind."""
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{JOBID}']"}}
    env = [{"name": "JOBID", "valueFrom": source}]
    async with real_kube.client() as client:
        field = Field(real_kube, client, ["real-1", "real-2"], await discover_gangs(client))
        bodies = [
            pod(
                f"rank-{rank}",
                "echo allocation $JOBID on $HOSTNAME",
                schedulerName=field.name,
                nodeSelector={REAL: "true"},
                container={"env": env, "resources": {"requests": {"cpu": "100m"}}},
                **field.gangs.pod_link("gang"),  # type: ignore[arg-type]
            )
            for rank in range(3)
        ]
        async with field.scheduler():
            await field.add_group("gang", 3)
            await field.add(*bodies)
            ended = await field.until(
                lambda pods: all(each.status.phase == "Succeeded" for each in pods.values()),
                "all have ended",
            )
        kubectl = Kubectl(real_kube)
        numbers = {each.annotations[JOBID] for each in ended.values()}
        assert len(numbers) == 1
        for name in ended:
            wanted = f"allocation {min(numbers)} on {name}\n"
            await asyncio.to_thread(kubectl.logged, name, wanted=wanted)
    report = await ask(real_kube.sandbox.at.folder)
    assert not [each for each in report.findings if real_kube.namespace in str(each)]


@pytest.mark.release
def test_logs_follow_and_exec_work(real_kube: Kube) -> None:
    kubectl = Kubectl(real_kube)
    kubectl.apply(pod("lives", "echo one; sleep 1; echo two; sleep 1000", node="real-2"))
    kubectl.ok("wait", "--for=condition=Ready", "--timeout=240s", "pod/lives")
    said = kubectl.ok("exec", "-i", "lives", "--", "sh", "-c", "hostname; cat", stdin="typed")
    assert said == "lives\ntyped"
    assert kubectl.run("exec", "lives", "--", "sh", "-c", "exit 7").returncode == 7
    kubectl.logged("lives", wanted="one\ntwo\n")


def test_a_pod_reads_the_api_with_its_own_account(real_kube: Kube, tmp_path: Path) -> None:
    """kubectl within the pod knows nothing but KUBERNETES_SERVICE_HOST and the account's token, which must
    hold against the certificate in kube-root-ca.crt."""
    kubectl, archive = Kubectl(real_kube), tmp_path / "kubectl.tar"
    image = f"registry.example/kubectl:{real_kube.version}"
    tool = ImageFile(path="bin/kubectl", content=kubectl.program.read_bytes(), mode=0o755)
    write_busybox(find_busybox(), archive, names=[image], more=[tool])
    assert real_kube.sandbox.load_image(archive) == [image]

    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": real_kube.namespace}
    kubectl.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "view"},
            "roleRef": role,
            "subjects": [account],
        }
    )
    who = f"system:serviceaccount:{real_kube.namespace}:default"
    soon(lambda: kubectl.run("auth", "can-i", "list", "pods", "--as", who).stdout, "it may read", "yes\n")
    look = "kubectl get pods -o name; kubectl get secrets 2>&1 || echo $KUBERNETES_SERVICE_HOST"
    kubectl.apply(pod("reader", look, node="real-1", image=image))
    said = kubectl.until_ended("reader")
    assert said.splitlines()[0] == "pod/reader"
    assert f'User "{who}" cannot list resource "secrets"' in said
    assert said.splitlines()[-1] == real_kube.sandbox.require().ports.host


def test_pods_of_two_nodes_reach_each_other_and_the_machine_reaches_them(real_kube: Kube) -> None:
    kubectl = Kubectl(real_kube)
    kubectl.apply(pod("server", "while true; do echo hello | nc -l -p 80; done", node="real-1"))
    kubectl.ok("wait", "--for=condition=Ready", "--timeout=240s", "pod/server")
    address = kubectl.ok("get", "pod", "server", "-o", "jsonpath={.status.podIP}")
    kubectl.apply(pod("client", f"until nc -w 5 {address} 80; do sleep 0.5; done", node="real-2"))
    assert kubectl.until_ended("client") == "hello\n"


async def test_kwok_leaves_real_nodes_alone_and_plays_the_others(real_kube: Kube) -> None:
    kubectl = Kubectl(real_kube)
    kubectl.apply(
        pod("real", "sleep 3; echo really", node="real-1"),
        pod("simulated", "exit 1", node="node-000", image="nowhere.example/none"),
    )
    kubectl.ok("wait", "--for=jsonpath={.status.phase}=Running", "--timeout=240s", "pod/simulated")
    assert kubectl.until_ended("real") == "really\n"
    async with real_kube.client() as client:
        nodes = {each.name: each for each in (await client.list(NODES)).items or ()}
    assert {name for name, each in nodes.items() if REAL in (each.metadata.labels or {})} == {
        "real-1",
        "real-2",
    }
    assert SIMULATED in (nodes["node-000"].metadata.labels or {})


async def test_the_seeds_job_says_potato(real_kube: Kube) -> None:
    """The Job of the predecessor's README, but for the scheduler's name, which is another's here; its image
    has the tag latest, so each node asks for it anew."""
    async with real_kube.client() as client:
        field = Field(real_kube, client, ["real-1", "real-2"], await discover_gangs(client))
        prefix = "fluence.flux-framework.org"
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {
                "name": "fluence-job",
                "annotations": {f"{prefix}/pod-group": "my-pods", f"{prefix}/group-size": "10"},
            },
            "spec": {
                "completions": 10,
                "parallelism": 10,
                "completionMode": "Indexed",
                "backoffLimit": 4,
                "template": {
                    "spec": {
                        "schedulerName": field.name,
                        "nodeSelector": {REAL: "true"},
                        "restartPolicy": "Never",
                        "containers": [
                            {"name": "fluence-job", "image": "busybox", "command": ["echo", "potato"]}
                        ],
                    }
                },
            },
        }
        async with field.scheduler():
            await client.create(JOBS.raw(), body, namespace=real_kube.namespace)
            kubectl = Kubectl(real_kube)
            complete = ("wait", "--for=condition=complete", "--timeout=240s", "job/fluence-job")
            await asyncio.to_thread(kubectl.ok, *complete)
        select = ("-l", "job-name=fluence-job", "--max-log-requests=10")
        await asyncio.to_thread(kubectl.logged, *select, wanted="potato\n" * 10)


def test_an_image_that_was_not_loaded_is_named(real_kube: Kube) -> None:
    kubectl = Kubectl(real_kube)
    kubectl.apply(pod("stranger", "true", node="real-1", image="docker.io/library/stranger:1"))

    def told() -> bool:
        events = kubectl.items("events", "--field-selector=involvedObject.name=stranger")
        return any("stranger:1: not found" in each["message"] for each in events)

    soon(told, "the kubelet says that there is no such image")


def test_what_cannot_be_loaded_is_refused_with_the_cure(real_nodes: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "image.tar"
    with pytest.raises(InvalidInput, match=r"image\.tar: No such file"):
        real_nodes.load_image(file)
    file.write_text("no tar")
    with pytest.raises(InvalidInput, match="not a tar archive"):
        real_nodes.load_image(file)
