"""Producers and those who wait for them, on a real API server: gates, tasks, silence, and crashes."""

import asyncio
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fluence import names
from fluence.kube.gangs import discover_gangs
from fluence.kube.resource import EVENTS, JOBS, PODS, Json
from fluence.model.pod import Pod
from fluence.sandbox.images import ImageFile, find_busybox, write_busybox
from fluence.sandbox.proxy import Rule
from fluence.sandbox.realnode import REAL
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.sandbox.kubectl import Kubectl
from tests.integration.schedule.field import Field, field
from tests.integration.schedule.vendor import vendor

GATE, OTHER = "quantum.braket/ready", "example.org/mine"
TASK = names.QUANTUM_JOB_ID


def waits(*gates: str, producer: str = "vqe-producer", kind: str = "quantum-submit") -> dict[str, Any]:
    """What admission would have made of a consumer."""
    return {
        "annotations": {
            names.DEPENDS_ON_PRODUCER: producer,
            names.DEPENDS_ON_KIND: kind,
            names.DEPENDS_ON_GATE: (gates or (GATE,))[-1],
            names.GROUP_SIZE: "3",
        },
        "schedulingGates": [{"name": each} for each in gates or (GATE,)],
    }


def consumers(of: Field, count: int = 3, **more: Any) -> list[Json]:
    labels = {names.GROUP_LABEL: "vqe"}
    return [of.pod(f"worker-{each}", labels=labels, **waits(), **more) for each in range(count)]


def producer(of: Field, **more: Any) -> Json:
    return of.pod("leader", labels={names.GROUP_LABEL: "vqe-producer"}, **more)


def running(*wanted: str) -> Any:
    return lambda pods: all(each in pods and pods[each].status.phase == "Running" for each in wanted)


def let_go(pods: dict[str, Pod]) -> bool:
    return all(pod.spec.node_name for name, pod in pods.items() if name.startswith("worker"))


async def events(of: Field, reason: str) -> list[Any]:
    found: Any = await of.client.list(EVENTS, namespace=of.namespace)
    return [each for each in found.items or () if each["reason"] == reason]


def fluence(kube: Kube, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fluence.cli", *arguments, "-n", kube.namespace]
    env = {**os.environ, "KUBECONFIG": str(kube.sandbox.at.kubeconfig())}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.release
async def test_consumers_start_together_with_the_task_that_the_producer_announces(
    kube: Kube, audited: None
) -> None:
    with vendor() as quantum:
        async with field(kube, 2, cpu=4) as f, f.scheduler():
            await f.add(*consumers(f), producer(f))
            pods = await f.until(running("leader"), "the producer runs")
            pods = await f.until(
                lambda pods: all(names.PRODUCER_STARTED in pods[f"worker-{n}"].annotations for n in range(3)),
                "it is noted that it runs",
            )
            assert not any(pods[f"worker-{each}"].spec.node_name for each in range(3))
            task = await asyncio.to_thread(lambda: urllib.request.urlopen(quantum.url).read().decode())
            why = ("explain", "group", "vqe", "--scheduler-name", f.name)
            told = (await asyncio.to_thread(fluence, kube, *why)).stdout
            assert "3 of 3 pods wait for producer vqe-producer to announce its task" in told
            assert "fluence task announce" in told
            done = await asyncio.to_thread(fluence, kube, "task", "announce", task, "--pod", "leader")
            assert done.returncode == 0 and done.stdout.endswith(f"/leader announces {task}\n"), done.stderr
            pods = await f.until(let_go, "all consumers are bound")
            tasks = {pods[f"worker-{each}"].annotations.get(TASK) for each in range(3)}
            assert tasks == {task} == set(quantum.tasks)
            assert {pods[f"worker-{n}"].annotations[names.GATE_OPENED] for n in range(3)} == {"announced"}
            await eventually(lambda: events(f, "ProducerAnnounced"), lambda found: len(found) >= 3)
        wrong = await asyncio.to_thread(fluence, kube, "task", "announce", "t", "--pod", "nobody")
        assert wrong.returncode == 1 and wrong.stderr.count("\n") == 1 and "no such pod" in wrong.stderr


async def test_only_the_gate_that_is_named_is_opened(kube: Kube) -> None:
    async with field(kube, 1, cpu=4) as f, f.scheduler():
        notes = {TASK: "t-1"}
        await f.add(f.pod("leader", annotations=notes), f.pod("c", **waits(OTHER, GATE, producer="leader")))
        pods = await f.until(lambda pods: TASK in pods["c"].annotations, "its gate is open")
        assert [each.name for each in pods["c"].spec.scheduling_gates or ()] == [OTHER]
        assert (await f.settled())["c"] is None
        # Somebody else's gate first in the list, by hand: what is left is opened by whoever set it.
        await f.client.patch(PODS.raw(), "c", {"spec": {"schedulingGates": None}}, namespace=f.namespace)
        await f.until_bound(["c"])


async def test_a_silent_producer_is_waited_for_so_long_and_no_longer(kube: Kube) -> None:
    async with field(kube, 2, cpu=4) as f, f.scheduler(task_discovery_timeout=2.0) as live:
        await f.add(*consumers(f), producer(f))
        pods = await f.until(let_go, "let go after the timeout")
        assert {pods[f"worker-{n}"].annotations[names.GATE_OPENED] for n in range(3)} == {"timed-out"}
        assert not any(TASK in pods[f"worker-{each}"].annotations for each in range(3))
        found = await eventually(lambda: events(f, "ProducerSilent"), lambda found: len(found) >= 3)
        counted = b'fluence_gates_opened_total{outcome="timed-out"} 3.0'
        await eventually(live.scrape, lambda text: counted in text)
        assert found[0]["type"] == "Warning" and "announced no task within 2 s" in found[0]["note"]


async def test_a_producer_that_ends_or_vanishes_lets_its_consumers_go_at_once(kube: Kube) -> None:
    async with field(kube, 2, cpu=8) as f, f.scheduler():
        await f.add(f.pod("short", runs=1), f.pod("a", **waits(producer="short")))
        await f.add(f.pod("gone"), f.pod("b", **waits(producer="gone")))
        pods = await f.until_bound(["a"])
        assert pods["a"].annotations[names.GATE_OPENED] == "producer-ended"
        await f.until(lambda pods: names.PRODUCER_STARTED in pods["b"].annotations, "seen running")
        await f.end("gone")
        pods = await f.until_bound(["b"])
        assert pods["b"].annotations[names.GATE_OPENED] == "producer-gone"


async def test_two_classical_groups_run_one_after_the_other(kube: Kube) -> None:
    """The producer is a Job of two steps; between them all its pods have ended, and it has not."""
    async with field(kube, 2, cpu=4) as f, f.scheduler():
        template = f.pod("none", runs=600)
        template["metadata"] = {"annotations": template["metadata"]["annotations"]}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "prepare"},
            "spec": {"completions": 2, "parallelism": 1, "template": template},
        }
        await f.client.create(JOBS, job, namespace=f.namespace)

        def steps(pods: dict[str, Pod]) -> list[str]:
            mine = [pod for name, pod in pods.items() if name.startswith("prepare-")]
            return [pod.metadata.name for pod in mine if pod.status.phase == "Running"]

        later = waits("example.org/prepared", producer="prepare", kind="finished")
        soon = waits("example.org/begun", producer="prepare", kind="started")
        await f.add(f.pod("later", **later), f.pod("soon", **soon))
        pods = await f.until_bound(["soon"])
        for _ in range(2):
            pods = await f.until(lambda pods: bool(steps(pods)), "a step of the Job runs")
            assert pods["later"].spec.node_name is None
            (step,) = steps(pods)
            ended = {"status": {"phase": "Succeeded"}}
            await f.client.patch(PODS.raw(), step, ended, namespace=f.namespace, subresource="status")
        pods = await f.until_bound(["later"])
        done = await f.client.get(JOBS, "prepare", namespace=f.namespace)
        assert done.succeeded == 2
        assert pods["later"].annotations[names.GATE_OPENED] == "finished"


async def test_whoever_leads_next_goes_on_from_what_stands_on_the_pods(kube: Kube) -> None:
    """The first process notes the producer and is gone; the time has run when the second one comes. Its
    first answers are lost on the way."""
    async with field(kube, 2, cpu=4) as f:
        async with f.scheduler(task_discovery_timeout=300.0):
            await f.add(*consumers(f), producer(f))
            await f.until(
                lambda pods: all(names.PRODUCER_STARTED in pods[f"worker-{n}"].annotations for n in range(3)),
                "noted",
            )
        before = {name: pod.annotations.get(names.PRODUCER_STARTED) for name, pod in (await f.pods()).items()}
        await asyncio.sleep(1)
        lost = Rule(verb="patch", path=r"/pods/worker-[0-9]+$", times=3, cut_after=0)
        async with f.through(lost, task_discovery_timeout=1.0):
            pods = await f.until(let_go, "let go at once")
        assert {name: pod.annotations.get(names.PRODUCER_STARTED) for name, pod in pods.items()} == before
        assert pods["worker-0"].annotations[names.GATE_OPENED] == "timed-out"


async def test_nothing_is_opened_where_that_is_turned_off(kube: Kube) -> None:
    async with field(kube, 1, cpu=4) as f, f.scheduler(open_gates=False):
        notes = {TASK: "t-1"}
        await f.add(f.pod("leader", annotations=notes), f.pod("c", **waits(producer="leader")))
        await f.until_bound(["leader"])
        assert (await f.settled())["c"] is None


# -- containers that really run ------------------------------------------------------------------------------

ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: announces-tasks}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [get, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: announces-tasks}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: announces-tasks}
subjects: [{kind: ServiceAccount, name: default}]
"""


@pytest.mark.realnodes
async def test_a_container_submits_and_announces_and_another_prints_the_task(
    real_kube: Kube, tmp_path: Path
) -> None:
    """The producer's container asks the vendor, and announces with its own account; the consumer's has the
    task in its environment."""
    kubectl, archive = Kubectl(real_kube), tmp_path / "kubectl.tar"
    image = f"registry.example/announcer:{real_kube.version}"
    tool = ImageFile(path="bin/kubectl", content=kubectl.program.read_bytes(), mode=0o755)
    write_busybox(find_busybox(), archive, names=[image], more=[tool])
    assert real_kube.sandbox.load_image(archive) == [image]
    kubectl.ok("apply", "-f", "-", stdin=ROLE)
    who = f"system:serviceaccount:{real_kube.namespace}:default"
    may = ("auth", "can-i", "patch", "pods", "--as", who)
    await eventually(lambda: asyncio.to_thread(kubectl.run, *may), lambda said: said.stdout == "yes\n")
    state = real_kube.sandbox.require()
    assert state.real is not None
    with vendor(state.real.network.machine) as quantum:
        async with real_kube.client() as client:
            f = Field(real_kube, client, ["real-1", "real-2"], await discover_gangs(client))
            submit = f'ID=$(wget -qO- {quantum.url}) && kubectl annotate pod "$HOSTNAME" {TASK}="$ID"'
            source = {"fieldRef": {"fieldPath": f"metadata.annotations['{TASK}']"}}
            env = [{"name": "FLUENCE_QUANTUM_JOB_ID", "valueFrom": source}]
            plain: dict[str, Any] = {
                "nodeSelector": {REAL: "true"},
                "restartPolicy": "Never",
                "automountServiceAccountToken": True,
            }

            def container(image: str, script: str, **more: Any) -> list[Json]:
                requests = {"requests": {"cpu": "100m"}}
                command = ["sh", "-c", script]
                return [{"name": "c", "image": image, "command": command, "resources": requests, **more}]

            async with f.scheduler():
                await f.add(
                    f.pod("leader", containers=container(image, f"{submit} && sleep 1000"), **plain),
                    f.pod(
                        "worker",
                        containers=container("busybox", "echo has $FLUENCE_QUANTUM_JOB_ID", env=env),
                        **plain,
                        **waits(producer="leader"),
                    ),
                )
                said = await asyncio.to_thread(kubectl.until_ended, "worker")
                assert said == f"has {quantum.tasks[0]}\n"
