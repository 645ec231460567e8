"""`fluence scheduler run` as it runs in a pod, beside kube-scheduler: the deployed account, a real token.

A control plane of its own: the scheduler has its usual name and lease, and Jobs get groups (WorkloadWithJob).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fluence import names
from fluence.kube.access import IN_CLUSTER_DIR
from fluence.kube.client import Client
from fluence.kube.gangs import AnyGangs, discover_gangs
from fluence.kube.releases import release
from fluence.kube.resource import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    REPLICASETS,
    Json,
    Resource,
)
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.sandbox.auditor import ask
from fluence.sandbox.nodes import NodeKind
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from tests.eventually import SOON_S, eventually
from tests.integration.conftest import VERSION
from tests.integration.rights import make_namespace
from tests.integration.schedule.test_groups_deploy import install, manifests

pytestmark = pytest.mark.release

ACCOUNT = "/api/v1/namespaces/fluence-system/serviceaccounts/fluence-scheduler"
LONG = {"sandbox.fluence.flux-framework.org/run-seconds": "900"}
DAEMONS: Resource[Json] = Resource("apps", "v1", "daemonsets", "DaemonSet", dict[str, object])
CLASSES: Resource[Json] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict[str, object], namespaced=False
)


class Inside:
    """A scheduler that knows of its cluster what a pod would."""

    def __init__(self, box: Sandbox, folder: Path) -> None:
        self.box = box
        self._folder = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    async def deploy(self) -> None:
        """What `kubectl apply -k deploy/scheduler` makes, and the files that a kubelet would mount."""
        async with Client(self.box.access()) as client:
            await install(client)
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
            answer = await client.request("POST", f"{ACCOUNT}/token", body=msgspec.json.encode(body))
            token = msgspec.json.decode(answer)["status"]["token"]
        (self._folder / "token").write_text(token)
        (self._folder / "ca.crt").write_bytes(self.box.at.pki("ca.crt").read_bytes())
        (self._folder / "namespace").write_text("fluence-system")
        (config,) = [each for each in manifests() if each["kind"] == "ConfigMap"]
        (self._folder / "fluence.yaml").write_text(config["data"]["fluence.yaml"])

    def start(self) -> None:
        env = {name: text for name, text in os.environ.items() if not name.startswith(("KUBE", "FLUENCE"))}
        env |= {
            "HOME": str(self._folder),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.box.require().ports.api),
            IN_CLUSTER_DIR: str(self._folder),
        }
        config = str(self._folder / "fluence.yaml")
        command = [sys.executable, "-m", "fluence.cli", "scheduler", "run", "--config", config]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--health-address", "", "--metrics-address", ""], env=env, stdout=log, stderr=log
            )
        deadline = time.monotonic() + SOON_S
        while '"leads"' not in self.said:
            assert self._process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.1)

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(SOON_S)

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inside]:
    box = Sandbox(f"inside-{os.getpid()}")
    wanted = release(VERSION)
    gates = {} if VERSION == "1.35" else {"WorkloadWithJob": True}
    programs = find_programs(wanted, report=lambda progress: None)
    box.up(programs, wanted, scheduler=True, gates=gates, owned=True)
    try:
        box.add_nodes([NodeKind(count=3, cpu=4)])
        found = Inside(box, tmp_path_factory.mktemp("inside"))
        asyncio.run(found.deploy())
        found.start()
        yield found
        assert found.stop() == 0, found.said
    finally:
        box.down()


class Space:
    """A namespace of one test's own."""

    def __init__(self, client: Client, name: str, gangs: AnyGangs) -> None:
        self.client = client
        self.name = name
        self.gangs = gangs

    async def until(self, done: Callable[[dict[str, Pod]], bool], what: str) -> dict[str, Pod]:
        return await eventually(self.pods, done, what=what, pause_s=0.1)

    async def pods(self) -> dict[str, Pod]:
        page = await self.client.list(PODS, namespace=self.name)
        return {pod.metadata.name: pod for pod in page.items or ()}

    async def add_group(self, name: str, minimum: int) -> None:
        assert self.gangs.resource is not None
        group = Group(namespace=self.name, name=name, min_count=minimum)
        await self.client.create(self.gangs.resource.raw(), self.gangs.manifest(group), namespace=self.name)

    def spec(self, cpu: str = "4", **more: Any) -> Json:
        box = {"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}
        shared = {"schedulerName": "fluence", "terminationGracePeriodSeconds": 0, "containers": [box]}
        return {**shared, **more}

    async def add(self, name: str, **spec: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": self.spec(**spec)}
        await self.client.create(PODS, body, namespace=self.name)

    async def end(self) -> None:
        """All pods go, and what would make new ones; the namespace goes when it will."""
        async with asyncio.timeout(SOON_S):
            while await self.pods():
                for kind in (DEPLOYMENTS, REPLICASETS, JOBS, PODS):
                    path = kind.path(namespace=self.name)
                    await self.client.request("DELETE", path, params={"gracePeriodSeconds": "0"})
                await asyncio.sleep(0.1)
        await self.client.delete(NAMESPACES, self.name)


@contextlib.asynccontextmanager
async def space(inside: Inside, name: str) -> AsyncIterator[Space]:
    """Ends with the audit, and with a look at the scheduler's log: nothing may have been forbidden to it."""
    async with Client(inside.box.access()) as client:
        await make_namespace(client, name)
        found = Space(client, name, await discover_gangs(client))
        yield found
        await found.end()
    report = await ask(inside.box.at.folder)
    # A gang whose rank kube-scheduler took is in part for as long as that lasts: not our doing.
    assert not [str(each) for each in report.findings if each.kind != "gang" and name in str(each)]
    for word in (": 403 ", "Traceback", '"level": "error"'):
        assert word not in inside.said, inside.said


def bound(pods: dict[str, Pod]) -> int:
    return sum(pod.spec.node_name is not None for pod in pods.values())


EXAMPLE = """
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: training}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: training}
spec:
  replicas: 2
  selector: {matchLabels: {app: training}}
  template:
    metadata: {labels: {app: training}}
    spec:
      schedulerName: fluence
      schedulingGroup: {podGroupName: training}
      containers:
        - name: worker
          image: busybox
          command: [sleep, infinity]
          resources: {requests: {cpu: "1"}}
"""


async def test_it_leads_binds_fluences_own_example_and_writes_events(inside: Inside) -> None:
    async with space(inside, "training") as s:
        lease: Any = await s.client.get(LEASES, "fluence", namespace="fluence-system")
        assert lease["spec"]["holderIdentity"]
        assert s.gangs.resource is not None
        group, deployment = yaml.safe_load_all(EXAMPLE)
        if VERSION == "1.35":
            await s.add_group("training", 2)
            template = deployment["spec"]["template"]["spec"]
            del template["schedulingGroup"]
            template |= s.gangs.pod_link("training")
        else:
            group["apiVersion"] = s.gangs.resource.api_version
            await s.client.create(s.gangs.resource.raw(), group, namespace=s.name)
        await s.client.create(DEPLOYMENTS.raw(), deployment, namespace=s.name)
        pods = await s.until(lambda pods: bound(pods) == 2, "both are bound")
        assert len({pod.annotations[names.JOBID] for pod in pods.values()}) == 1

        async def events() -> list[Any]:
            page = await s.client.list(EVENTS, namespace=s.name)
            return [each for each in page.items or () if each["reportingController"] == "fluence"]

        async def conditions() -> list[tuple[str, str]]:
            item: Any = await s.client.get(s.gangs.resource.raw(), "training", namespace=s.name)
            said = item.get("status", {}).get("conditions", [])
            return [(each["type"], each["status"]) for each in said]

        await eventually(
            events,
            lambda said: sum(each["reason"] == "Scheduled" for each in said) >= 2,
            what="two events that say Scheduled",
            timeout_s=SOON_S,
        )
        if s.gangs.condition is not None:
            await eventually(conditions, [(s.gangs.condition, "True")], timeout_s=SOON_S)


async def test_it_says_on_a_pod_why_it_waits(inside: Inside) -> None:
    """The account may write a pod's status, too."""
    async with space(inside, "too-large") as s:
        await s.add("p", cpu="64")
        await s.until(
            lambda pods: _told(pods, "p", "Insufficient cpu (64 requested, node too small)"), "a reason"
        )


async def test_groups_that_kubernetes_makes_for_jobs(inside: Inside) -> None:
    """Checklist 17: 1.36 makes a gang of an indexed Job; 1.37 a group for every Job that is no gang."""
    if VERSION == "1.35":
        pytest.skip("the Job controller makes no groups before 1.36")
    async with space(inside, "jobs") as s:
        for name, labels in (("plain", {}), ("marked", {names.GROUP_LABEL: "marked"})):
            body = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "labels": labels},
                "spec": {
                    "completions": 4,
                    "parallelism": 4,
                    "completionMode": "Indexed",
                    "template": {
                        "metadata": {"annotations": LONG, "labels": {"job": name}},
                        "spec": s.spec(restartPolicy="Never"),  # a node each, and there are three
                    },
                },
            }
            await s.client.create(JOBS.raw(), body, namespace=s.name)

            def waits(pods: dict[str, Pod], name: str = name) -> list[Pod]:
                mine = [pod for pod in pods.values() if pod.labels.get("job") == name]
                assert all(pod.spec.scheduling_group is not None for pod in mine), "each is in a group"
                told = [pod for pod in mine if pod.condition("PodScheduled") is not None]
                return [pod for pod in told if not pod.spec.node_name] if len(told) == 4 else []

            if VERSION == "1.36" or name == "marked":  # a gang of four on three nodes: none runs
                pods = await s.until(lambda pods: len(waits(pods)) == 4, "a gang waits as one")
            else:  # singles: three run
                pods = await s.until(lambda pods: len(waits(pods)) == 1, "all but one run")
            await s.client.delete(JOBS, name, namespace=s.name)
            for pod in pods:
                await s.client.delete(PODS, pod, namespace=s.name, grace_s=0)
            await s.until(lambda pods: not pods, "all are gone")


async def test_groups_that_kubernetes_makes_for_jobs_do_not_split_a_group_by_label(inside: Inside) -> None:
    """Two Jobs of one group. The workers have a PodGroup of Kubernetes' own; on 1.36 the head has none."""
    if VERSION == "1.35":
        pytest.skip("the Job controller makes no groups before 1.36")
    async with space(inside, "labelled") as s:

        async def add(name: str, pods: int, group: str) -> None:
            body = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name},
                "spec": {
                    "completions": pods,
                    "parallelism": pods,
                    "completionMode": "Indexed",
                    "template": {
                        "metadata": {"annotations": LONG, "labels": {names.GROUP_LABEL: group}},
                        "spec": s.spec(restartPolicy="Never"),  # a node each, and there are three
                    },
                },
            }
            await s.client.create(JOBS.raw(), body, namespace=s.name)

        def of(pods: dict[str, Pod], group: str) -> list[Pod]:
            return [pod for pod in pods.values() if pod.labels.get(names.GROUP_LABEL) == group]

        for group, workers in (("large", 4), ("exact", 2)):
            await add(f"{group}-head", 1, group)
            await add(f"{group}-work", workers, group)
        pods = await s.until(
            lambda pods: all(pod.spec.node_name for pod in of(pods, "exact")) and len(of(pods, "exact")) == 3,
            "the group that fits starts whole",
        )
        made = [pod for name, pod in pods.items() if "-work-" in name]
        assert all(pod.spec.scheduling_group is not None for pod in made), "Kubernetes made groups"
        pods = await s.until(lambda pods: len(of(pods, "large")) == 5, "the other one has its pods")
        assert not any(pod.spec.node_name for pod in of(pods, "large"))
        waiting = [pod.metadata.name for pod in of(pods, "large")]
        pods = await s.until(lambda pods: all(_told(pods, name, "") for name in waiting), "each has a reason")
        assert not any(pod.spec.node_name for pod in of(pods, "large"))


async def test_a_rank_that_kube_scheduler_preempts(inside: Inside) -> None:
    """Checklist 20: its place is the preemptor's; the others run on, and its successor follows later."""
    async with space(inside, "preempted") as s:
        await s.client.create(
            CLASSES,
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "urgent"},
                "value": 1000,
            },
        )
        await s.add_group("g", 3)
        for index in range(3):
            await s.add(f"g-{index}", **s.gangs.pod_link("g"))
        before = await s.until(lambda pods: bound(pods) == 3, "the gang has all nodes")
        await s.add("urgent", schedulerName="default-scheduler", priorityClassName="urgent")
        pods = await s.until(
            lambda pods: "urgent" in pods and pods["urgent"].spec.node_name is not None, "it preempts"
        )
        (lost,) = set(before) - set(pods)
        await s.add("successor", **s.gangs.pod_link("g"))
        await s.until(lambda pods: _told(pods, "successor", "Insufficient cpu"), "it waits")
        await s.client.delete(PODS, "urgent", namespace=s.name, grace_s=0)
        after = await s.until(lambda pods: bound(pods) == 3, "the gang is whole again")
        assert after["successor"].spec.node_name == before[lost].spec.node_name
        await s.client.delete(CLASSES, "urgent")


async def test_a_daemon_set_takes_its_part_of_every_node_and_gives_it_back(inside: Inside) -> None:
    """Checklist 27: its pods are kube-scheduler's."""
    async with space(inside, "daemons") as s:
        body = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "agent"},
            "spec": {
                "selector": {"matchLabels": {"app": "agent"}},
                "template": {
                    "metadata": {"labels": {"app": "agent"}},
                    "spec": s.spec(cpu="1", schedulerName="default-scheduler"),
                },
            },
        }
        await s.client.create(DAEMONS, body, namespace=s.name)
        await s.until(lambda pods: bound(pods) == 3, "an agent on every node")
        await s.add_group("g", 3)
        for index in range(3):
            await s.add(f"g-{index}", **s.gangs.pod_link("g"))
        await s.until(lambda pods: _told(pods, "g-0", "Insufficient cpu"), "the gang waits")
        await s.client.delete(DAEMONS, "agent", namespace=s.name)
        pods = await s.until(lambda pods: bound(pods) == 3 and len(pods) == 3, "the gang has all nodes")
        assert set(pods) == {"g-0", "g-1", "g-2"}


def _told(pods: dict[str, Pod], name: str, text: str) -> bool:
    condition = pods[name].condition("PodScheduled") if name in pods else None
    return condition is not None and text in condition.message
