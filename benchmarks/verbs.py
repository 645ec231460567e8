"""The commands of `kubectl fluence` that look at a cluster, beside `kubectl get` on the same server.

    python benchmarks/verbs.py [--nodes 5000] [--pending 5000] [--repeats 7]

A real control plane with simulated nodes and Fluence's scheduler: a pod runs on each node, and pods wait, a
tenth of them as the tasks of one array. Each command is a process of its own, as a user starts it. Times are
those of the clock, the best and the median, then the processor time of the command itself. Look at the ratio
to `kubectl get pods -A` where other work runs on the machine. While nothing changes the scheduler has its
answers at hand, so some commands are measured once more while the annotation of a pod changes five times a
second.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fluence import names
from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.releases import DEFAULT, release
from fluence.kube.resource import JOBS, PODS
from fluence.sandbox import plane
from fluence.sandbox.nodes import NodeKind, create_nodes, wait_ready
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox

PARALLEL = 32
PATIENCE_S = 900.0
PROGRAM = str(Path(sys.executable).with_name("kubectl-fluence"))
COMMANDS = (
    ["version"],
    ["queue"],
    ["jobs"],
    ["groups"],
    ["nodes"],
    ["plan"],
    ["graph"],
    ["why", "waits-1"],
    ["hold", "waits-2", "--dry-run"],
    ["jobs", "-t", "running"],
    ["queue", "--expand"],
    ["queue", "-n", "default", "-l", "batch.kubernetes.io/job-name=sweep"],
    ["queue", "-o", "json"],
    ["why", "sweep"],
    ["hold", "sweep", "--dry-run"],
    ["history"],
    ["history", "--sum", "user"],
)
CHANGING = 9  # of them are measured again


def spec(minutes: int) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {names.DURATION: f"{minutes}m"}},
        "spec": {
            "schedulerName": "fluence",
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "2"}}}],
        },
    }


def pod(name: str, minutes: int) -> dict[str, Any]:
    body = spec(minutes)
    return {"apiVersion": "v1", "kind": "Pod", **body, "metadata": {**body["metadata"], "name": name}}


def array(name: str, size: int) -> dict[str, Any]:
    tasks = {"completions": size, "parallelism": size, "completionMode": "Indexed", "template": spec(60)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": tasks}


async def fill(client: Client, nodes: int, pending: int) -> None:
    """Nodes of two cores, and pods that take both."""
    await create_nodes(client, [NodeKind(count=nodes, cpu="2", memory="8Gi")])
    await wait_ready(client, nodes, patience_s=120)
    turns = asyncio.Semaphore(PARALLEL)

    async def create(name: str, minutes: int) -> None:
        async with turns:
            await client.create(PODS.raw(), pod(name, minutes), namespace="default")

    async def counts() -> tuple[int, int]:
        items = (await client.list(PODS, namespace="default")).items or []
        return sum(item.spec.node_name is not None for item in items), len(items)

    async def until(bound: int, total: int) -> None:
        began = time.monotonic()
        while await counts() != (bound, total):
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"{await counts()} pods run and exist, not {(bound, total)}")
            await asyncio.sleep(2)

    await asyncio.gather(*(create(f"runs-{number}", 600) for number in range(nodes)))
    await until(nodes, nodes)
    tasks = max(2, pending // 10)
    await asyncio.gather(*(create(f"waits-{n}", 10 + n % 60) for n in range(pending - tasks)))
    await client.create(JOBS.raw(), array("sweep", tasks), namespace="default")
    await until(nodes, nodes + pending)


def milliseconds(command: list[str], environment: dict[str, str], repeats: int) -> tuple[float, float, float]:
    """The best and the median, after one run that fills caches; and the least processor time."""
    samples, used = [], []
    for _ in range(repeats + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, env=environment)
        samples.append(1000 * (time.perf_counter() - began))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return min(samples[1:]), statistics.median(samples[1:]), min(used)


@contextmanager
def changing(access: Access) -> Iterator[None]:
    """A pod that waits gets another annotation, five times a second."""
    ended = threading.Event()

    async def change() -> None:
        async with Client(access) as client:
            number = 0
            while not ended.is_set():
                number += 1
                body = {"metadata": {"annotations": {"example.com/number": str(number)}}}
                await client.patch(PODS.raw(), "waits-3", body, namespace="default")
                await asyncio.sleep(0.2)

    thread = threading.Thread(target=lambda: asyncio.run(change()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _patient(command: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """The scheduler's command with a lease that it keeps while ten thousand pods are made."""
    lengths = {"4s": "120s", "2s": "90s"}
    return lambda *given: [lengths.get(word, word) for word in command(*given)]


def scheduler_memory(sandbox: str) -> float:
    """The resident memory of the sandbox's scheduler, in MiB."""
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            status = (folder / "status").read_text()
        except (OSError, ValueError):
            continue
        if b"scheduler" in words and any(f"/{sandbox}/".encode() in word for word in words):
            return int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return float("nan")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=5000)
    options.add_argument("--pending", type=int, default=5000)
    options.add_argument("--repeats", type=int, default=7)
    given = options.parse_args()
    wanted = release(DEFAULT)
    programs = find_programs(wanted, report=lambda progress: None)
    kubectl = str(find_programs(wanted, names=("kubectl",), report=lambda progress: None)["kubectl"])
    plane.fluence = _patient(plane.fluence)
    box = Sandbox(f"bench-verbs-{os.getpid()}")
    box.up(programs, wanted, audit=False, fluence=True, owned=True)
    try:

        async def prepare() -> None:
            async with Client(box.access()) as client:
                await fill(client, given.nodes, given.pending)

        asyncio.run(prepare())
        environment = {**os.environ, "KUBECONFIG": str(box.at.kubeconfig())}
        beside = milliseconds([kubectl, "get", "pods", "-A"], environment, given.repeats)

        def show(program: str, title: str, *words: str) -> None:
            best, median, used = milliseconds([program, *words], environment, given.repeats)
            line = f"{title + ' '.join(words):<60} {best:7.0f} {median:7.0f} {used:7.0f} ms"
            print(f"{line}  {best / beside[0]:.2f}", flush=True)

        print(f"{given.nodes} nodes with a pod on each, {given.pending} wait; load {os.getloadavg()[0]:.1f}")
        print(f"{'kubectl get pods -A':<60} {beside[0]:7.0f} {beside[1]:7.0f} {beside[2]:7.0f} ms  1.00")
        show(kubectl, "kubectl ", "get", "nodes")
        show(kubectl, "kubectl ", "get", "pod", "waits-1")
        for words in COMMANDS:
            show(PROGRAM, "", *words)
        with changing(box.access()):
            for words in COMMANDS[:CHANGING]:
                show(PROGRAM, "while a pod changes: ", *words)
        print(f"the scheduler takes {scheduler_memory(box.name):.0f} MiB, its view included")
        print(f"load {os.getloadavg()[0]:.1f}")
    finally:
        box.down()


if __name__ == "__main__":
    main()
