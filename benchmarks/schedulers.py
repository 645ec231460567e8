"""Pods bound per second on a simulated cluster, by Fluence and by kube-scheduler, on one real control plane.

    python benchmarks/schedulers.py [--nodes 1000] [--pods 3000] [--cases 1,3,100] [--repeat 1] [--kwok]
    python benchmarks/schedulers.py --held --nodes 5000 --pods 10000
    python benchmarks/schedulers.py --devices --no-ceiling

For each case all pods are there before the scheduler starts: as single pods, in native gangs of 3, in native
gangs of 100. The clock starts with the process; binds are counted from a watch. Both schedulers have the same
client limits (1,000 calls a second, bursts of 2,000). The simulated kubelets rest meanwhile (--kwok: they do
not), since they would take their share of the cores. The raw ceiling is a bare loop of binds that decides
nothing (benchmarks/kube.py).

With --held the pods are bound first, and held: then the scheduler starts anew and gangs of 3 come one at a
time. Told are the time from its start to its first bind, from the creation of a gang's last pod to its last
bind, the length of its cycles (Fluence's, from its log), CPU and memory.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.gangs import PodGroups136, PodGroups137, discover_gangs
from fluence.kube.reflector import Reflector
from fluence.kube.releases import release
from fluence.kube.resource import NAMESPACES, NODES, PODS
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.names import DEVICE_PREFIX
from fluence.sandbox import plane
from fluence.sandbox.nodes import NodeKind, create_nodes, wait_ready
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from kube import PARALLEL, bind_bare, each

QPS = 1000
CPU_PER_NODE, PODS_PER_NODE = 32, 110
TICK = os.sysconf("SC_CLK_TCK")


WITH_DEVICE = "with a device"


@dataclass
class Run:
    """What one scheduler did with one case."""

    pods: int
    began: float = 0.0
    bound: dict[str, float] = field(default_factory=dict)  # by pod
    done: asyncio.Event = field(default_factory=asyncio.Event)
    cpu: float = 0.0
    peak: float = 0.0
    partial: int = 0
    overfull: int = 0

    def see(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name and new.metadata.name not in self.bound:
            self.bound[new.metadata.name] = time.perf_counter() - self.began
            if len(self.bound) == self.pods:
                self.done.set()

    @property
    def first(self) -> float:
        return min(self.bound.values(), default=float("nan"))

    @property
    def last(self) -> float:
        return max(self.bound.values(), default=float("nan"))

    @property
    def rate(self) -> float:
        """From the first bind to the last."""
        return (len(self.bound) - 1) / max(self.last - self.first, 1e-9)

    @property
    def overall(self) -> float:
        """From the start of the process to the last bind."""
        return len(self.bound) / self.last


def pod(name: str, scheduler: str, link: dict[str, object], *, device: bool = False) -> dict[str, object]:
    more = {f"{DEVICE_PREFIX}licence": "1"} if device else {}
    container = {
        "name": "main",
        "image": "registry.example.org/team/app:1",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi", **more}, "limits": more},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench"}},
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            **link,
        },
    }


async def make_namespace(client: Client, namespace: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await client.create(NAMESPACES, body)
    for _ in range(100):
        with contextlib.suppress(Exception):
            await client.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
            break
        await asyncio.sleep(0.1)


async def fill(
    access: Access, namespace: str, scheduler: str, pods: int, size: int, *, device: bool = False
) -> None:
    """All pods and their groups."""
    async with Client(access, connections=PARALLEL) as client:
        gangs = await discover_gangs(client)
        await make_namespace(client, namespace)
        if size > 1:
            assert isinstance(gangs, PodGroups136 | PodGroups137), "no native gangs here"
            resource = gangs.resource.raw()

            async def group(index: int) -> None:
                made = Group(namespace=namespace, name=f"g{index}", min_count=size)
                await client.create(resource, gangs.manifest(made), namespace=namespace)

            await each(pods // size, group)

        async def one(index: int) -> None:
            link = gangs.pod_link(f"g{index // size}") if size > 1 else {}
            body = pod(f"p-{index}", scheduler, link, device=device)
            await client.create(PODS, body, namespace=namespace)

        await each(pods, one)


async def clear(access: Access, namespace: str) -> None:
    async with Client(access) as client:
        path = PODS.path(namespace=namespace)
        await client.request("DELETE", path, body=b'{"gracePeriodSeconds": 0}', timeout_s=300)
        await client.delete(NAMESPACES, namespace)
        with contextlib.suppress(Missing):
            while True:  # its events too: what is left to delete would slow the next one down
                await client.get(NAMESPACES, namespace)
                await asyncio.sleep(0.2)


async def measure(
    access: Access, namespace: str, command: list[str], log: Path, pods: int, size: int, timeout_s: float
) -> Run:
    run = Run(pods)
    async with Client(access) as client:
        reflector = Reflector(client, PODS, namespace=namespace)
        reflector.store.on_change(run.see)
        watch = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        await asyncio.sleep(2)  # what creating them left to do is done
        with log.open("wb") as out:
            run.began = time.perf_counter()
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await run.done.wait()
            run.cpu, run.peak = usage(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            watch.cancel()
            await asyncio.wait({watch})
        found = (await client.list(PODS, namespace=namespace)).items or []
    judge(run, found, size)
    return run


def environment() -> dict[str, str]:
    """As where a package is installed: modules are compiled once, not at each start."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "fluence-bench-compiled")}


def usage(pid: int) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return (int(fields[11]) + int(fields[12])) / TICK, peak / 1024


def judge(run: Run, pods: list[Pod], size: int) -> None:
    """Gangs in part and nodes with too much, by what the server holds."""
    bound = [each for each in pods if each.spec.node_name]
    nodes = Counter(each.spec.node_name for each in bound)
    run.overfull = sum(count > min(CPU_PER_NODE, PODS_PER_NODE) for count in nodes.values())
    groups = Counter(int(each.metadata.name.partition("-")[2]) // size for each in bound)
    run.partial = sum(0 < count < size for count in groups.values())


async def ceiling(access: Access, pods: int, nodes: int) -> float:
    await fill(access, "ceiling", "nobody", pods, 1)
    async with Client(access) as client:
        made = (await client.list(PODS, namespace="ceiling")).items or []
    await asyncio.sleep(2)  # what creating them left to do is done
    took = await bind_bare(access, made, nodes)
    await clear(access, "ceiling")
    return pods / took


@dataclass(frozen=True)
class Bench:
    """The control plane, and what is compared on it."""

    access: Access
    folder: Path  # for logs
    kwok: int  # pid
    schedulers: dict[str, tuple[str, list[str]]]  # label -> schedulerName, command


@dataclass
class Held:
    """What a scheduler did that found a full cluster, with gangs that came one at a time."""

    first: float  # from its start to its first bind
    gangs: list[float]  # from the creation of a gang's last pod to its last bind
    cycles: list[float]  # ms
    cpu: float
    peak: float


async def hold(access: Access, namespace: str, name: str, command: list[str], log: Path, gangs: int) -> Held:
    """Start a scheduler beside what is held already; one gang waits for it, others come one by one."""
    bound: dict[str, float] = {}
    more = asyncio.Event()

    def see(old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name and new.metadata.name not in bound:
            bound[new.metadata.name] = time.perf_counter()
            more.set()

    async def until(names: list[str]) -> float:
        async with asyncio.timeout(180):
            while not all(each in bound for each in names):
                more.clear()
                await more.wait()
        return max(bound[each] for each in names)

    async with Client(access) as client:
        found = await discover_gangs(client)
        assert isinstance(found, PodGroups136 | PodGroups137), "no native gangs here"
        resource = found.resource.raw()

        async def come(index: int) -> list[str]:
            made = Group(namespace=namespace, name=f"late{index}", min_count=3)
            await client.create(resource, found.manifest(made), namespace=namespace)
            names = [f"late-{index}-{rank}" for rank in range(3)]
            for each in names:
                body = pod(each, name, found.pod_link(made.name))
                await client.create(PODS, body, namespace=namespace)
            return names

        await make_namespace(client, namespace)
        reflector = Reflector(client, PODS, namespace=namespace)
        reflector.store.on_change(see)
        watch = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        names = await come(0)
        await asyncio.sleep(2)
        with log.open("wb") as out:
            began = time.perf_counter()
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment())
        try:
            await until(names)
            first = min(bound[each] for each in names) - began
            took = []
            for index in range(1, gangs):
                names = await come(index)
                at = time.perf_counter()
                took.append(await until(names) - at)
                await asyncio.sleep(0.05)
            cpu, peak = usage(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            watch.cancel()
            await asyncio.wait({watch})
    lines = [line for line in log.read_text().splitlines() if '"event": "cycle"' in line]
    return Held(first, sorted(took), sorted(json.loads(line)["ms"] for line in lines[1:]), cpu, peak)


def show_held(label: str, held: Held) -> None:
    def middle(values: list[float]) -> float:
        return values[len(values) // 2] if values else float("nan")

    def worst(values: list[float]) -> float:
        return values[-1] if values else float("nan")

    print(
        f"  {label:<16}{held.first:>8.2f}{middle(held.gangs) * 1000:>10.0f}{worst(held.gangs) * 1000:>9.0f}"
        f"{middle(held.cycles):>10.1f}{worst(held.cycles):>8.1f}{held.cpu:>8.1f}{held.peak:>8.0f}",
        flush=True,
    )


def show(label: str, run: Run) -> None:
    missing = f", {run.pods - len(run.bound)} NOT BOUND" if len(run.bound) < run.pods else ""
    print(
        f"  {label:<16}{run.rate:>8.0f}{run.overall:>10.0f}{run.first:>9.2f}{run.last:>9.1f}"
        f"{run.cpu:>8.1f}{run.peak:>8.0f}{run.partial:>9}{run.overfull:>10}{missing}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=3000)
    parser.add_argument("--cases", default="1,3,100", help="sizes of gangs; 1 means single pods")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--version", default="1.37")
    parser.add_argument("--only", choices=("fluence", "kube-scheduler"))
    parser.add_argument("--kwok", action="store_true", help="let the simulated kubelets run meanwhile")
    parser.add_argument("--no-ceiling", action="store_true")
    parser.add_argument("--held", action="store_true", help="hold the pods, then restart and let gangs come")
    parser.add_argument(
        "--devices", action="store_true", help="Fluence with a device per pod or gang, beside it without"
    )
    parser.add_argument("--profile", metavar="FILE", help="profile Fluence into FILE")
    options = parser.parse_args()
    box, wanted = Sandbox("bench-cluster"), release(options.version)
    programs = find_programs(wanted, report=lambda progress: None)
    box.down()
    box.up(programs, wanted, audit=False, owned=True)
    try:
        access, at = box.access(), box.at
        subprocess.run([sys.executable, "-c", "import fluence.cli.scheduler"], env=environment(), check=True)
        asyncio.run(_nodes(access, options.nodes))
        kwok = box.require().parts["kwok"]
        at.scheduler_config.write_bytes(msgspec.json.encode(plane.scheduler_config(at)))
        ours = [sys.executable, "-m", "fluence.cli", "scheduler", "run", "--no-lease", "--health-address", ""]
        if options.profile:
            ours[1:1] = ["-m", "cProfile", "-o", options.profile]
        ours += ["--kubeconfig", str(at.kubeconfig()), "--qps", str(QPS), "--log-format", "json"]
        theirs = plane.scheduler(programs["kube-scheduler"], at, wanted.gates)
        schedulers = {"kube-scheduler": ("default-scheduler", theirs), "fluence": ("fluence", ours)}
        if options.devices:
            declared = at.folder / "resources.yaml"
            rows = "".join(f"- {{type: licence, name: l{i}, count: 100}}\n" for i in range(100))
            declared.write_text(f"resources:\n{rows}")
            ours = [*ours, "--resources", str(declared)]
            schedulers = {"fluence": ("fluence", ours), WITH_DEVICE: ("fluence", ours)}
        print(
            f"{options.pods} pods on {options.nodes} nodes, Kubernetes {wanted.version}, "
            f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        (_held if options.held else _rates)(Bench(access, at.folder, kwok.pid, schedulers), options)
    finally:
        box.down()


def _rates(bench: Bench, options: argparse.Namespace) -> None:
    if not options.no_ceiling:
        _rest(bench.kwok, options.kwok)
        rate = asyncio.run(ceiling(bench.access, options.pods, options.nodes))
        _wake(bench.kwok)
        print(f"raw ceiling: {rate:.0f} binds/s", flush=True)
    print(
        f"  {'':<16}{'pods/s':>8}{'overall':>10}{'first s':>9}{'last s':>9}"
        f"{'cpu s':>8}{'MB':>8}{'partial':>9}{'overfull':>10}"
    )
    for size in map(int, options.cases.split(",")):
        print("single pods" if size == 1 else f"gangs of {size}", flush=True)
        rates: dict[str, list[float]] = {}
        for turn in range(options.repeat):
            for label, (name, command) in bench.schedulers.items():
                if options.only not in (None, label):
                    continue
                namespace = f"{label.replace(' ', '-')}-{size}-{turn}"
                device = label == WITH_DEVICE
                asyncio.run(fill(bench.access, namespace, name, options.pods, size, device=device))
                _rest(bench.kwok, options.kwok)
                log = bench.folder / f"{namespace}.log"
                run = asyncio.run(measure(bench.access, namespace, command, log, options.pods, size, 180))
                _wake(bench.kwok)
                show(label, run)
                rates.setdefault(label, []).append(run.rate)
                asyncio.run(clear(bench.access, namespace))
                time.sleep(3)
        if len(rates) == 2:
            means = {label: sum(found) / len(found) for label, found in rates.items()}
            if options.devices:
                print(
                    f"  {means[WITH_DEVICE] / means['fluence']:.2f} times Fluence without a device",
                    flush=True,
                )
            else:
                print(f"  {means['fluence'] / means['kube-scheduler']:.2f} times kube-scheduler", flush=True)


def _held(bench: Bench, options: argparse.Namespace) -> None:
    name, command = bench.schedulers["fluence"]
    asyncio.run(fill(bench.access, "held", name, options.pods, 100))
    _rest(bench.kwok, options.kwok)
    run = asyncio.run(
        measure(bench.access, "held", command, bench.folder / "held.log", options.pods, 100, 600)
    )
    print(f"filled by Fluence: {run.rate:.0f} pods/s, {run.cpu:.1f} s of CPU, {run.peak:.0f} MB", flush=True)
    heads = f"{'first s':>8}{'gang ms':>10}{'worst':>9}{'cycle ms':>10}{'worst':>8}{'cpu s':>8}{'MB':>8}"
    print(f"  {'':<16}{heads}")
    for label, (name, command) in bench.schedulers.items():
        if options.only not in (None, label):
            continue
        show_held(
            label, asyncio.run(hold(bench.access, f"late-{label}", name, command, bench.folder / label, 50))
        )
    _wake(bench.kwok)


def _rest(pid: int, leave: bool) -> None:
    if not leave:
        os.kill(pid, signal.SIGSTOP)


def _wake(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


async def _nodes(access: Access, count: int) -> None:
    async with Client(access) as client:
        await create_nodes(client, [NodeKind(count=count, cpu=CPU_PER_NODE, pods=PODS_PER_NODE, racks=10)])
        ready = await wait_ready(client, count, patience_s=60)
        assert ready == count, f"{ready} of {count} nodes are ready"
        assert len((await client.list(NODES)).items or ()) == count


if __name__ == "__main__":
    main()
