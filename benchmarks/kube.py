"""Speed and memory of the Kubernetes room on this machine, against a real API server.

    python benchmarks/kube.py [--nodes 5000] [--pods 20000] [--binds 3000]

1. A list of all nodes and pods into the reflector's cache: time and memory, beside the official Python client
   (`pip install kubernetes`) on the same server. Each in a process of its own.
2. Bindings per second: this room's client beside a bare aiohttp loop that knows the URLs and checks nothing.
"""

import argparse
import asyncio
import importlib.util
import json
import resource
import subprocess
import sys
import time

import aiohttp
import msgspec

from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.kube.reflector import Reflector
from fluence.kube.releases import DEFAULT, release
from fluence.kube.resource import NAMESPACES, NODES, PODS
from fluence.kube.transport import tls_context
from fluence.model.pod import Pod
from fluence.sandbox.nodes import NodeKind, create_nodes
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox

PARALLEL = 32


def pod(name: str) -> dict[str, object]:
    """About as large as a Job's pod: 3 KB as the server writes it."""
    variables = [{"name": f"VARIABLE_{index}", "value": "x" * 20} for index in range(12)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"job": name.split("-")[0], "app": "bench"}},
        "spec": {
            "schedulerName": "nobody",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example.org/team/app:1",
                    "env": variables,
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                }
            ],
        },
    }


async def each(count: int, work, parallel: int = PARALLEL) -> float:  # type: ignore[no-untyped-def]
    """Run ``work(index)`` for all, some at once; the seconds it took."""
    numbers = iter(range(count))

    async def worker() -> None:
        for index in numbers:
            await work(index)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(parallel)))
    return time.perf_counter() - began


async def fill(access: Access, pods: int, namespace: str) -> None:
    async with Client(access, connections=PARALLEL) as client:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        await client.create(NAMESPACES, body)
        for _ in range(100):
            try:
                await client.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                break
            except Exception:
                await asyncio.sleep(0.1)
        took = await each(pods, lambda index: client.create(PODS, pod(f"p-{index}"), namespace=namespace))
        print(f"  {pods} pods created in {took:.0f} s ({pods / took:.0f}/s)", flush=True)


# 1. Lists, each in a process of its own


async def list_ours(kubeconfig: str, streaming: bool) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with Client(find_access(kubeconfig=kubeconfig)) as client:
        began, cpu = time.perf_counter(), time.process_time()
        reflectors = [
            Reflector(client, NODES, streaming_list=streaming),
            Reflector(client, PODS, streaming_list=streaming),
        ]
        tasks = [asyncio.create_task(each.run()) for each in reflectors]
        for each_ in reflectors:
            await each_.synced.wait()
        took = time.perf_counter() - began
        used = time.process_time() - cpu
        held = [len(each.store) for each in reflectors]
        read = sum(each.stats.bytes_read for each in reflectors)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"s": took, "cpu": used, "mb": (after - before) / 1024, "n": sum(held), "read": read / 1e6}


def list_official(kubeconfig: str) -> dict[str, float]:
    from kubernetes import client, config

    config.load_kube_config(kubeconfig)
    api = client.CoreV1Api()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.perf_counter(), time.process_time()
    items = []
    for call in (api.list_node, api.list_pod_for_all_namespaces):
        more = None
        while True:
            page = call(limit=500, _continue=more)
            items += page.items
            more = page.metadata._continue
            if not more:
                break
    took, used = time.perf_counter() - began, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"s": took, "cpu": used, "mb": (after - before) / 1024, "n": len(items), "read": 0.0}


def measure(kubeconfig: str, what: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--list", what, "--kubeconfig", kubeconfig]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def show_lists(kubeconfig: str) -> None:
    kinds = {"streaming": "fluence, streaming list", "paged": "fluence, pages of 500"}
    if importlib.util.find_spec("kubernetes"):
        kinds["official"] = "kubernetes, pages of 500"
    else:
        print("  the official client is not installed here (pip install kubernetes): left out")
    print(f"  {'':<28}{'seconds':>9}{'cpu s':>9}{'MB more':>9}{'objects':>9}")
    for what, label in kinds.items():
        found = measure(kubeconfig, what)
        row = f"{found['s']:>9.2f}{found['cpu']:>9.2f}{found['mb']:>9.0f}{found['n']:>9.0f}"
        print(f"  {label:<28}{row}", flush=True)


# 2. Bindings


async def bind_bare(access: Access, pods: list[Pod], nodes: int) -> float:
    """As little as can be done in Python with this HTTP client."""
    tls = tls_context(access, access.client_cert, access.client_key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=PARALLEL, ssl=tls)) as session:

        async def bind(index: int) -> None:
            meta = pods[index].metadata
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
                "target": {"apiVersion": "v1", "kind": "Node", "name": f"node-{index % nodes:03d}"},
            }
            url = f"{access.server}/api/v1/namespaces/{meta.namespace}/pods/{meta.name}/binding"
            headers = {"Content-Type": "application/json"}
            async with session.post(url, data=msgspec.json.encode(body), headers=headers) as answer:
                await answer.read()
                assert answer.status == 201, answer.status

        return await each(len(pods), bind)


async def bind_ours(access: Access, pods: list[Pod], nodes: int) -> float:
    async with Client(access, connections=PARALLEL) as client:
        return await each(len(pods), lambda index: client.bind(pods[index], f"node-{index % nodes:03d}"))


async def show_binds(access: Access, count: int, nodes: int) -> None:
    rates: dict[str, list[float]] = {"bare aiohttp": [], "fluence": []}
    spent: dict[str, float] = dict.fromkeys(rates, 0.0)
    bare, ours = ("bare aiohttp", bind_bare), ("fluence", bind_ours)
    count //= 2  # in many short turns, for a machine that others use too
    for turn, (label, bind) in enumerate((bare, ours, ours, bare) * 2):
        namespace = f"binds-{turn}"
        await fill(access, count, namespace)
        async with Client(access) as client:
            pods = (await client.list(PODS, namespace=namespace)).items or []
        cpu = time.process_time()
        rates[label].append(count / await bind(access, pods, nodes))
        spent[label] += (time.process_time() - cpu) / (4 * count)
    mean = {label: sum(found) / len(found) for label, found in rates.items()}
    for label, found in rates.items():
        turns = ", ".join(f"{rate:.0f}" for rate in found)
        cost = f"{spent[label] * 1e6:.0f} µs of our own cpu each"
        print(f"  {label:<28}{mean[label]:>7.0f} binds/s ({turns}), {cost}")
    print(f"  the client's share of the bare loop: {mean['fluence'] / mean['bare aiohttp']:.0%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20000)
    parser.add_argument("--binds", type=int, default=3000)
    parser.add_argument("--list", help=argparse.SUPPRESS)
    parser.add_argument("--kubeconfig", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        if options.list == "official":
            found = list_official(options.kubeconfig)
        else:
            found = asyncio.run(list_ours(options.kubeconfig, options.list == "streaming"))
        print(json.dumps(found))
        return
    box, wanted = Sandbox("bench"), release(DEFAULT)
    programs = find_programs(wanted, report=lambda progress: None)
    box.down()
    box.up(programs, wanted, audit=False, owned=True)
    try:
        access = box.access()
        # The rates are those of client and server: the simulator would take its share of the cores.
        box.require().parts["kwok"].stop()
        print(f"binding {options.binds} pods to 1,000 nodes on Kubernetes {wanted.version}", flush=True)
        asyncio.run(nodes(access, NodeKind(count=1000, pods=1000)))
        asyncio.run(show_binds(access, options.binds, 1000))
        asyncio.run(clear(access))
        print(f"listing {options.nodes} nodes and {options.pods} pods", flush=True)
        asyncio.run(nodes(access, NodeKind(name="more", count=options.nodes - 1000)))
        asyncio.run(fill(access, options.pods, "lists"))
        show_lists(str(box.at.kubeconfig()))
    finally:
        box.down()


async def nodes(access: Access, kind: NodeKind) -> None:
    async with Client(access) as client:
        await create_nodes(client, [kind])


async def clear(access: Access) -> None:
    """Remove the bound pods, so that the lists hold what their title says."""
    async with Client(access) as client:
        for turn in range(8):
            path = PODS.path(namespace=f"binds-{turn}")
            await client.request("DELETE", path, body=b'{"gracePeriodSeconds": 0}', timeout_s=300)


if __name__ == "__main__":
    main()
