"""What the pruning filters say: how much of each counted type is in use below each vertex, and by whom.

`find` shows it (`agfilter=true`, `jobid-span=…`), and a partial cancel goes by it. The columns of the ledger
are the only state; nothing here is kept.
"""

from __future__ import annotations

import numpy as np

from fluence.graph.columns import Ints, Rows
from fluence.graph.filters import Filters
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.graph.tree import Tree


def usage_at(
    graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, *, now: int | None
) -> dict[int, dict[str, tuple[int, int]]]:
    """Per vertex and counted type: how much is in use at a time, and the total."""
    running = [job.spans for job in ledger.jobs.values() if now is not None and job.start <= now < job.end]
    held = np.concatenate(running) if running else np.empty(0, np.int32)
    inside = tree.order
    inner = inside[tree.end[inside] - tree.pre[inside] > 1]
    return _usage(graph, tree, ledger, filters, held, inner.tolist())


def usage_of(
    graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, *, job: int
) -> dict[int, dict[str, tuple[int, int]]]:
    """The same of one job, for the vertices whose filter counts it."""
    record = ledger.jobs.get(job)
    if record is None:
        return {}
    vertices = counting(graph, tree, filters, ledger.vertex[record.spans])
    return _usage(graph, tree, ledger, filters, record.spans, vertices)


def counting(graph: ResourceGraph, tree: Tree, filters: Filters, touched: Rows) -> list[int]:
    """Of the vertices that a job touches, those whose filter counts the job: they count some type, and below
    them the job touches a type that is counted, there or elsewhere."""
    is_counted = np.array([filters.counts(code) for code in range(len(graph.types))], np.bool_)
    places = np.sort(tree.pre[touched[is_counted[graph.type[touched]]]])
    below = np.searchsorted(places, tree.end[touched]) - np.searchsorted(places, tree.pre[touched] + 1)
    return [row for row in touched[below > 0].tolist() if filters.types(int(graph.type[row]))]


def _usage(
    graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, held: Rows, vertices: list[int]
) -> dict[int, dict[str, tuple[int, int]]]:
    rows, needs, size = ledger.vertex[held], ledger.needs[held], graph.size[ledger.vertex[held]]
    taken = np.where(ledger.exclusive[held], np.where(needs > 0, size, 0), size - needs)
    sums: dict[int, tuple[Ints, Ints]] = {}  # per type, before each place in preorder: in use, and total
    usage: dict[int, dict[str, tuple[int, int]]] = {}
    for vertex in vertices:
        types = filters.types(int(graph.type[vertex]))
        if not types:
            continue
        low, high = int(tree.pre[vertex]) + 1, int(tree.end[vertex])
        of = usage[vertex] = {}
        for code in types:
            if code not in sums:
                used = np.zeros(graph.rows, np.int64)
                np.add.at(used, rows, np.where(graph.type[rows] == code, taken, 0))
                total = np.where(graph.type == code, graph.size, 0)
                sums[code] = (_before(used[tree.order]), _before(total[tree.order]))
            in_use, there = sums[code]
            of[graph.types.words[code]] = (int(in_use[high] - in_use[low]), int(there[high] - there[low]))
    return usage


def _before(column: Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(column)))
