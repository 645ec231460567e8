"""Nodes: the simulated machines of a sandbox, from a few options or from a file with several kinds.

nodes:
  - name: cpu          # names are cpu-000, cpu-001, …
    count: 96
    cpu: 32
    memory: 128Gi
    racks: 4           # label topology.kubernetes.io/rack, dealt out in blocks
  - name: gpu
    count: 4
    cpu: 64
    memory: 512Gi
    gpu: 8             # nvidia.com/gpu
    labels: {site.example/partition: gpu}
    taints: ["dedicated=gpu:NoSchedule"]
    resources: {example.com/nic: 2}
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import yaml

from fluence import names
from fluence.errors import InvalidInput
from fluence.kube.errors import AlreadyExists
from fluence.kube.resource import NODES, Json
from fluence.model.node import Node
from fluence.units import parse_quantity
from fluence.yaml_loader import load

if TYPE_CHECKING:
    from fluence.kube.client import Client

RACK = "topology.kubernetes.io/rack"
ZONE = "topology.kubernetes.io/zone"
GPU = "nvidia.com/gpu"
_MAX_NODES = 1_000_000  # of a kind, about 2 GB
_MAX_CALLS = 32  # to the API server at once
SIMULATED = names.SIMULATED


class NodeKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = "node"
    count: int = 1
    cpu: str | int = 32
    memory: str | int = "128Gi"
    pods: int = 110
    gpu: int = 0
    racks: int = 0
    zones: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: list[str] = msgspec.field(default_factory=list)
    resources: dict[str, str | int] = msgspec.field(default_factory=dict)


class _NodeFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: list[NodeKind]


def read_nodes(path: Path) -> list[NodeKind]:
    """The kinds of nodes in a file. An error names the file and the field."""
    try:
        kinds = msgspec.convert(load(path.read_text()), _NodeFile, strict=False).nodes
    except OSError as error:
        raise InvalidInput(f"{error.strerror}", where=str(path)) from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"not YAML: {' '.join(str(error).split())}", where=str(path)) from None
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{error}; expected a list `nodes` of name, count, cpu, memory, …", where=str(path)
        ) from None
    for index, kind in enumerate(kinds):
        check(kind, where=f"{path}: nodes[{index}]")
    names = [kind.name for kind in kinds]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(
                f"two kinds of node are named {name!r}; each needs its own name", where=str(path)
            )
    return kinds


def check(kind: NodeKind, *, where: str) -> None:
    if kind.count < 0 or kind.gpu < 0 or kind.racks < 0 or kind.pods < 1:
        raise InvalidInput("count, gpu, racks must not be negative, and pods at least 1", where=where)
    if kind.count > _MAX_NODES:
        raise InvalidInput(f"count must be {_MAX_NODES} at most", where=where)
    for field, text in {"cpu": kind.cpu, "memory": kind.memory, **kind.resources}.items():
        try:
            if parse_quantity(str(text)) < 0:
                raise InvalidInput("it is negative")
        except InvalidInput as error:
            raise InvalidInput(str(error), where=f"{where}.{field}") from None
    for taint in kind.taints:
        _taint(taint, where=where)


def manifests(kind: NodeKind) -> list[Json]:
    """The Node objects of one kind. Their capacity is in the initial status; KWOK does the rest."""
    width = max(3, len(str(max(0, kind.count - 1))))
    capacity: dict[str, str] = {
        "cpu": str(kind.cpu),
        "memory": str(kind.memory),
        "pods": str(kind.pods),
        "ephemeral-storage": "1Ti",
        **({GPU: str(kind.gpu)} if kind.gpu else {}),
        **{name: str(value) for name, value in kind.resources.items()},
    }
    made: list[Json] = []
    for index in range(kind.count):
        name = f"{kind.name}-{index:0{width}d}"
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            SIMULATED: "true",
        }
        # Blocks, not round robin: neighbours by name are neighbours in the rack, as in a machine room.
        if kind.racks:
            labels[RACK] = f"rack-{index * kind.racks // kind.count}"
        if kind.zones:
            labels[ZONE] = f"zone-{index * kind.zones // kind.count}"
        taints = [_taint(taint, where=kind.name) for taint in kind.taints]
        made.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {**labels, **kind.labels}},
                "spec": {"taints": taints} if taints else {},
                "status": {
                    "capacity": capacity,
                    "allocatable": capacity,
                    "nodeInfo": {
                        "architecture": "amd64",
                        "operatingSystem": "linux",
                        "kernelVersion": "simulated",
                        "osImage": "simulated",
                        "containerRuntimeVersion": "kwok",
                        "kubeletVersion": "fluence-sandbox",
                        "kubeProxyVersion": "",
                        "machineID": "",
                        "systemUUID": "",
                        "bootID": "",
                    },
                },
            }
        )
    return made


async def create_nodes(client: Client, kinds: list[NodeKind]) -> int:
    """Create the nodes. Existing ones are not changed. Returns how many there should be."""
    bodies = [body for kind in kinds for body in manifests(kind)]
    gate = asyncio.Semaphore(_MAX_CALLS)

    async def create(body: Json) -> None:
        async with gate:
            try:
                await client.create(NODES.raw(), body)
            except AlreadyExists:
                return

    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(create(body))
    return len(bodies)


async def wait_ready(
    client: Client, count: int, *, patience_s: float, report: Callable[[int], None] = lambda ready: None
) -> int:
    """Wait until ``count`` nodes are Ready and have lost their initial taints. Returns how many are. It gives
    up when none has become Ready for ``patience_s``: thousands of nodes take minutes on a busy machine."""
    from fluence.kube.reflector import Reflector  # loads the client, which reading a file does not need

    reflector = Reflector(client, NODES)
    ready: set[str] = set()
    grown = asyncio.Event()

    def note(old: Node | None, new: Node | None) -> None:
        before = len(ready)
        if old is not None:
            ready.discard(old.name)
        if new is not None and _is_usable(new):
            ready.add(new.name)
        if len(ready) > before:
            grown.set()

    reflector.store.on_change(note)
    task = asyncio.create_task(reflector.run())
    try:
        while len(ready) < count:
            async with asyncio.timeout(patience_s):
                await grown.wait()
            grown.clear()
            report(len(ready))
    except TimeoutError:
        pass
    finally:
        task.cancel()
        await asyncio.wait({task})
    return len(ready)


def _is_usable(node: Node) -> bool:
    taints = node.spec.taints or ()
    return node.is_ready and not any(taint.key.startswith("node.kubernetes.io/") for taint in taints)


def _taint(text: str, *, where: str) -> dict[str, str]:
    pair, _, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise InvalidInput(
            f"taint {text!r}: write KEY[=VALUE]:EFFECT, such as dedicated=gpu:NoSchedule", where=where
        )
    return {"key": key, "value": value, "effect": effect}
