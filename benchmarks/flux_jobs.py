"""Ten thousand held Jobs in the queue: memory, time of a cycle and of a round of writes, writes per FluxJob.

    python benchmarks/flux_jobs.py [JOBS]
    python benchmarks/flux_jobs.py [JOBS] --live [--kueue] [--kueue-told]

In one process, without a server: what is measured is the scheduler and the controller. With --live it is a
real control plane with a full cluster of simulated nodes, from which the figures are read as an administrator
would (benchmarks/full_cluster.py); with --kueue the same Jobs wait in Kueue afterwards, on a fresh server
(benchmarks/kueue.py; it is built on first use).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit.controller.queue_of_jobs import QueueOfJobs

import full_cluster
import kueue
from fluence import names
from fluence.admission.manifests import manifests
from fluence.admission.scopes import AdmissionOptions, DoorMode
from fluence.controller.flux_job import FLUX_JOBS, FluxJob
from fluence.controller.standing import rounded
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.releases import DEFAULT, release
from fluence.kube.resource import JOBS, Json, Resource
from fluence.sandbox.nodes import NodeKind, create_nodes, wait_ready
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from full_cluster import CPU, NAMESPACE, Figures, Holder, make_namespace
from schedulers import QPS

STARTS = 20
CRD = Path(__file__).parents[1] / "deploy" / "crds" / "fluxjobs.yaml"
_PLURALS = {
    "CustomResourceDefinition": ("apiextensions.k8s.io", "customresourcedefinitions"),
    "PriorityClass": ("scheduling.k8s.io", "priorityclasses"),
    "MutatingAdmissionPolicy": ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    "MutatingAdmissionPolicyBinding": ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    "ValidatingAdmissionPolicy": ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
}


async def in_process(jobs: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue = QueueOfJobs(nodes=4)
    queue.submit(jobs)
    began = time.process_time()
    decisions = queue.settle()
    took = time.process_time() - began
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{jobs} Jobs taken in, planned and told: {took:.1f} s of CPU, {held / 1024:.0f} MB more")
    submitted = sum(queue.writes.values())
    print(f"  writes per FluxJob until then: {submitted / jobs:.2f}")
    times = []
    for _ in range(STARTS):
        began = time.process_time()
        decisions = queue.run_through(decisions)
        times.append(time.process_time() - began)
    started = 4 * STARTS
    more = sum(queue.writes.values()) - submitted
    print(f"  {started} started and ended: {1000 * sum(times) / started:.1f} ms each, {more} writes in all")
    began = time.process_time()
    queue.cycle()
    print(f"  a cycle and a round in which nothing happens: {1000 * (time.process_time() - began):.1f} ms")


@contextlib.contextmanager
def sandbox(name: str, nodes: int, *, scheduler: bool) -> Iterator[Sandbox]:
    """A control plane of its own, with nodes that are ready."""

    async def up() -> None:
        async with Client(box.access()) as client:
            await create_nodes(client, [NodeKind(count=nodes, cpu=CPU)])
            assert await wait_ready(client, nodes, patience_s=60) == nodes

    box, wanted = Sandbox(name), release(DEFAULT)
    programs = find_programs(wanted, report=lambda progress: None)
    box.down()
    box.up(programs, wanted, audit=False, owned=True, scheduler=scheduler)
    try:
        asyncio.run(up())
        yield box
    finally:
        box.down()


def measure(holder: Holder, box: Sandbox, options: argparse.Namespace) -> Figures:
    parts = box.require().parts
    server = [parts[name].pid for name in ("kube-apiserver", "etcd")]
    found = asyncio.run(
        full_cluster.run(
            *(holder, box.access(), server, options.logs),
            jobs=options.jobs,
            nodes=options.nodes,
            starts=min(STARTS, options.nodes - 1),
        )
    )
    full_cluster.show(found)
    sys.stdout.flush()
    return found


def ours(options: argparse.Namespace) -> Figures:
    with sandbox("bench-fluxjobs", options.nodes, scheduler=False) as box:
        asyncio.run(_open_doors(box))
        command = [sys.executable, "-m", "fluence.cli", "scheduler", "run", "--no-lease"]
        if options.profile:
            command[1:1] = ["-m", "cProfile", "-o", options.profile]
        command += ["--health-address", "", "--kubeconfig", str(box.at.kubeconfig()), "--qps", str(QPS)]
        command += ["--log-format", "json", "--database-url", str(box.at.folder / "history.db")]
        holder = Holder(
            label="fluence",
            command=command,
            more={},
            told=FLUX_JOBS,
            is_told=_says_that_it_waits,
            place=lambda flux_job: flux_job.status.position,
            places=lambda count: Counter(rounded(index + 1) for index in range(count)),
            manifest=lambda body: body,
        )
        return measure(holder, box, options)


def _says_that_it_waits(flux_job: FluxJob) -> bool:
    status = flux_job.status
    return status.phase in ("Pending", "Reserved") and bool(status.message)


async def _open_doors(box: Sandbox) -> None:
    """FluxJobs and the policies, as they are installed, once the server suspends new Jobs."""
    async with Client(box.access()) as client:
        await _apply(client, yaml.safe_load(CRD.read_text()))
        for each in manifests(AdmissionOptions(doors=DoorMode.NAMESPACES), namespace="kube-system"):
            await _apply(client, each)
        await make_namespace(client, {names.NAMESPACE_OPT_IN: names.DOORS_ENABLED})
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(KubeError):
                    made: Any = await client.create(
                        JOBS.raw(), full_cluster.job("probe"), namespace=NAMESPACE, dry_run=True
                    )
                    if made["spec"].get("suspend"):
                        return
                await asyncio.sleep(0.2)


def theirs(options: argparse.Namespace, *, says_why: bool) -> Figures:
    program, definitions = kueue.build()
    with sandbox("bench-kueue", options.nodes, scheduler=True) as box, socket.socket() as free:
        asyncio.run(_install(box, definitions, options.nodes))
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        folder = box.at.folder / "kueue"
        holder = Holder(
            label="kueue, each told" if says_why else "kueue",
            command=kueue.command(program, folder, port=port, qps=QPS, says_why=says_why),
            more=kueue.environment(box.at.kubeconfig(), folder),
            told=kueue.WORKLOADS,
            is_told=lambda workload: workload.says_why if says_why else workload.is_there,
            place=lambda workload: None,
            places=lambda count: Counter({None: count}),
            manifest=_for_kueue,
        )
        return measure(holder, box, options)


def _for_kueue(body: Json) -> Json:
    made: Any = body
    meta = {**made["metadata"], "labels": {kueue.QUEUE_LABEL: "door"}}
    return {**made, "metadata": meta, "spec": {**made["spec"], "suspend": True}}


async def _install(box: Sandbox, definitions: Path, nodes: int) -> None:
    async with Client(box.access()) as client:
        for each in kueue.definitions(definitions):
            await _apply(client, each)
        await make_namespace(client, {})
        await make_namespace(client, {}, kueue.NAMESPACE)
        for found, body in kueue.queues(NAMESPACE, {"cpu": f"{nodes * CPU}", "memory": f"{nodes * 128}Gi"}):
            namespace = NAMESPACE if found.namespaced else None
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(KubeError):
                        await client.create(found, body, namespace=namespace)
                        break
                    await asyncio.sleep(0.2)


async def _apply(client: Client, body: Any) -> None:
    group, plural = _PLURALS[body["kind"]]
    found: Resource[Json] = Resource(group, "v1", plural, body["kind"], dict[str, object], namespaced=False)
    await client.apply(found, body, manager="bench")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="?", type=int, default=10_000)
    parser.add_argument("--live", action="store_true", help="on a real control plane")
    parser.add_argument("--kueue", action="store_true", help="beside Kueue as it is shipped; with --live")
    parser.add_argument("--kueue-told", action="store_true", help="beside one that tells each why it waits")
    parser.add_argument("--no-fluence", action="store_true", help="only those")
    parser.add_argument("--nodes", type=int, default=50, help="each has room for one Job")
    parser.add_argument("--profile", metavar="FILE", help="profile Fluence into FILE; with --live")
    parser.add_argument("--logs", type=Path, default=Path("build/bench"), help="where logs go")
    options = parser.parse_args()
    if not options.live:
        asyncio.run(in_process(options.jobs))
        return
    options.logs.mkdir(parents=True, exist_ok=True)
    print(f"{options.nodes} nodes, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    found = [] if options.no_fluence else [ours(options)]
    for wanted, says_why in ((options.kueue, False), (options.kueue_told, True)):
        if wanted:
            found.append(theirs(options, says_why=says_why))
    for other in found[1:]:
        full_cluster.compare(found[0], other)


if __name__ == "__main__":
    main()
