"""Graphs and jobspecs for the tests of the service."""

from __future__ import annotations

import json
from typing import Any


def kubernetes_jgf(nodes: int, *, cores: int = 4, gpus: int = 0, memory: int = 2) -> str:
    """A graph as flux-k8s makes it: cluster > subnet > node > core, gpu, memory; the node's name is
    its basename, and `name` has a number behind it."""
    vertices: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []

    def add(
        type_: str, basename: str, number: int, above: str, parent: str | None, size: int = 1
    ) -> tuple[str, str]:
        id_, path = str(len(vertices)), f"{above}/{basename}{number}"
        metadata = {
            "type": type_,
            "basename": basename,
            "name": f"{basename}{number}",
            "id": number,
            "uniq_id": len(vertices),
            "rank": -1,
            "exclusive": False,
            "unit": "MB" if type_ == "memory" else "",
            "size": size,
            "paths": {"containment": path},
        }
        vertices.append({"id": id_, "metadata": metadata})
        if parent is not None:
            edges.append({"source": parent, "target": id_, "metadata": {"name": {"containment": "contains"}}})
        return id_, path

    root, top = add("cluster", "k8scluster", 0, "", None)
    subnet, path = add("subnet", "east", 0, top, root)
    for number in range(nodes):
        node, at = add("node", f"kind-worker-{chr(97 + number % 26)}{number}-", number, path, subnet)
        for core in range(cores):
            add("core", "core", core, at, node)
        for gpu in range(gpus):
            add("gpu", "nvidiagpu", gpu, at, node)
        for part in range(memory):
            add("memory", "memory", part, at, node, 1024)
    return json.dumps({"graph": {"nodes": vertices, "edges": edges}})


def flat_jgf(nodes: int, *, cores: int = 4, first: int = 0) -> str:
    """cluster > node > core, with ranks: what R can be written of."""
    vertices: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []

    def add(type_: str, number: int, rank: int, path: str, parent: str | None) -> str:
        id_ = str({"cluster": 0, "node": 1000 * (rank + 1)}.get(type_, 1000 * (rank + 1) + 1 + number))
        metadata = {"type": type_, "id": number, "rank": rank, "paths": {"containment": path}}
        vertices.append({"id": id_, "metadata": metadata})
        if parent is not None:
            edges.append({"source": parent, "target": id_})
        return id_

    root = add("cluster", 0, -1, "/cluster0", None)
    for number in range(first, first + nodes):
        node = add("node", number, number, f"/cluster0/node{number}", root)
        for core in range(cores):
            add("core", core, number, f"/cluster0/node{number}/core{core}", node)
    return json.dumps({"graph": {"nodes": vertices, "edges": edges}})


def jobspec(
    nodes: int = 1, cores: int = 1, *, seconds: int = 3600, slots: int = 1, whole: bool = False
) -> str:
    """node > slot > core."""
    slot = {"type": "slot", "count": slots, "label": "default", "with": [{"type": "core", "count": cores}]}
    node: dict[str, Any] = {"type": "node", "count": nodes, "with": [slot]}
    if whole:
        node["exclusive"] = True
    return document([node], seconds)


def slots_only(count: int, cores: int, *, seconds: int = 3600) -> str:
    """slot > core, wherever they lie."""
    slot = {"type": "slot", "count": count, "label": "default", "with": [{"type": "core", "count": cores}]}
    return document([slot], seconds)


def document(resources: list[dict[str, Any]], seconds: int) -> str:
    task = {"command": ["app"], "slot": "default", "count": {"per_slot": 1}}
    return json.dumps(
        {
            "version": 9999,
            "resources": resources,
            "tasks": [task],
            "attributes": {"system": {"duration": seconds}},
        }
    )
