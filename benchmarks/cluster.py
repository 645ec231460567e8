"""The cluster that is measured: 41 vertices a node, written as JGF the way Fluxion's verbose writer does.

A node has 32 cores, 4 gpus and 4 memory vertices of 64 units, so 10,000 nodes are one cluster and 410,000
vertices below it, in a file of about 130 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

SHAPE = (("core", 32, 1), ("gpu", 4, 1), ("memory", 4, 64))  # type, how many on a node, size of each
PER_NODE = 1 + sum(count for _, count, _ in SHAPE)
_EDITION = 1  # part of the file name: a changed shape or dialect must not meet an old file


def vertices(nodes: int) -> int:
    return 1 + nodes * PER_NODE


def graph_file(nodes: int, folder: Path) -> Path:
    """The JGF of so many nodes, made on first use and kept."""
    path = folder / f"cluster-{nodes}-v{_EDITION}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        with unfinished.open("w") as out:
            _write(nodes, out)
        unfinished.rename(path)
    return path


def _write(nodes: int, out: TextIO) -> None:
    out.write('{"graph": {"nodes": [')
    out.write(_vertex(0, "cluster", 0, -1, 1, "/cluster0"))
    for node in range(nodes):
        out.write(", ")
        out.write(", ".join(_node(node)))
    out.write('], "edges": [')
    for node in range(nodes):
        own = 1 + node * PER_NODE
        if node:
            out.write(", ")
        out.write(_edge(0, own))
        for child in range(own + 1, own + PER_NODE):
            out.write(", ")
            out.write(_edge(own, child))
    out.write("]}}\n")


def _node(node: int) -> Iterator[str]:
    uniq = 1 + node * PER_NODE
    path = f"/cluster0/node{node}"
    yield _vertex(uniq, "node", node, node, 1, path)
    for type_, count, size in SHAPE:
        for i in range(count):
            uniq += 1
            yield _vertex(uniq, type_, i, node, size, f"{path}/{type_}{i}")


def _vertex(uniq: int, type_: str, id_: int, rank: int, size: int, path: str) -> str:
    return (
        f'{{"id": "{uniq}", "metadata": {{"type": "{type_}", "basename": "{type_}", "name": "{type_}{id_}", '
        f'"id": {id_}, "uniq_id": {uniq}, "rank": {rank}, "exclusive": false, "unit": "", "size": {size}, '
        f'"paths": {{"containment": "{path}"}}}}}}'
    )


def _edge(source: int, target: int) -> str:
    return f'{{"source": "{source}", "target": "{target}", "metadata": {{"subsystem": "containment"}}}}'
