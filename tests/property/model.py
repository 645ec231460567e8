"""What must hold of a matcher at any moment, recomputed from its spans without its own shortcuts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fluence.graph import ResourceGraph
from fluence.graph.ledger import Ledger, LedgerJob
from fluence.match.matcher import Matcher
from fluence.match.request import Need, Placed, Request


def graph_state(graph: ResourceGraph) -> dict[str, Any]:
    """Every column of a graph, as plain data."""
    columns = ("type", "basename", "unit", "id", "uniq_id", "rank", "size", "up", "alive")
    return {
        **{column: getattr(graph, column).tolist() for column in columns},
        "name": list(graph.name),
        "properties": {v: dict(p) for v, p in graph.properties.items() if p},
        "nodes_up": graph.nodes_up,
        "paths": [graph.paths(v) for v in range(graph.rows) if graph.alive[v]],
        "trees": {
            name: (tree.root, tree.parent.tolist(), tree.sequence.tolist(), tree.links)
            for name, tree in graph.trees.items()
        },
    }


def spans_at(ledger: Ledger, vertex: int) -> Iterator[int]:
    """The spans on a vertex, newest first."""
    span = ledger.heads[vertex]
    while span >= 0:
        yield span
        span = ledger.nexts[span]


def ledger_state(ledger: Ledger) -> dict[str, Any]:
    """What can be seen of a ledger: per vertex its spans in order, per job its time and vertices."""
    spans = {
        vertex: [
            (
                ledger.job_at[ledger.owner[span]].id,
                int(ledger.needs[span]),
                bool(ledger.exclusive[span]),
            )
            for span in spans_at(ledger, vertex)
        ]
        for vertex in range(len(ledger.head))
        if ledger.head[vertex] >= 0
    }
    jobs = {
        job.id: (job.start, job.end, job.reserved, sorted(ledger.vertex[job.spans].tolist()))
        for job in ledger.jobs.values()
    }
    return {"spans": spans, "jobs": jobs, "times": list(ledger.times())}


def state(matcher: Matcher) -> dict[str, Any]:
    """All that an operation may change."""
    return {
        "graph": graph_state(matcher.graph),
        "ledger": ledger_state(matcher.ledger),
        "load": dict(matcher.visit_order._weights),
        "used": {
            job: (share.start, share.end, share.vertices.tolist(), share.amounts.tolist())
            for job, share in matcher.visit_order._shares.items()
        },
        "spans": matcher.visit_order._spans.tolist(),
    }


def check_links(ledger: Ledger) -> None:
    """Every span is reached from the head of its vertex, once, and both directions agree."""
    reached: set[int] = set()
    for vertex, head in enumerate(ledger.head.tolist()):
        previous, span = -1, head
        while span >= 0:
            assert span not in reached
            reached.add(span)
            assert ledger.vertex[span] == vertex
            assert ledger.previous[span] == previous
            previous, span = span, int(ledger.next[span])
    owned: set[int] = set()
    for job in ledger.jobs.values():
        spans = job.spans.tolist()
        assert len(set(ledger.vertex[job.spans].tolist())) == len(spans)
        assert (ledger.owner[job.spans] == job.slot).all()
        assert ledger.job_at[job.slot] is job
        assert (ledger.start[job.slot], ledger.end[job.slot]) == (job.start, job.end)
        assert ledger.allocated[job.slot] is not job.reserved
        owned.update(spans)
    assert owned == reached


def check_nothing_given_twice(ledger: Ledger) -> None:
    """No vertex beyond its size at any time, and an exclusive one for one job at a time."""
    held: dict[int, list[tuple[int, int, int, bool]]] = {}
    for job in ledger.jobs.values():
        for span in job.spans.tolist():
            held.setdefault(int(ledger.vertex[span]), []).append(
                (job.start, job.end, int(ledger.needs[span]), bool(ledger.exclusive[span]))
            )
    for vertex, spans in held.items():
        for start, _, _, _ in spans:
            now = [span for span in spans if span[0] <= start < span[1]]
            assert sum(needs for _, _, needs, alone in now if alone) <= ledger.size[vertex], vertex
            assert len(now) == 1 or not any(alone for *_, alone in now), vertex


def check_placement(matcher: Matcher, request: Request, placed: Placed) -> None:
    """The placement is what was asked for: vertices that are up and allowed, as many as the counts say."""
    graph, tree, chosen = matcher.graph, matcher.tree, placed.selection
    rows = chosen.vertices.tolist()
    alone = dict(zip(rows, chosen.exclusive.tolist(), strict=True))
    whole = matcher.search.whole_types(request)
    shadowed = {v for v in rows if any(int(graph.type[a]) in whole for a in tree.ancestors(v))}
    assert len(set(rows)) == len(rows)
    assert rows == sorted(rows, key=lambda v: int(tree.post[v]))
    assert tree.root in rows
    nothing: dict[str, str] = {}
    for v, needs, parent in zip(rows, chosen.needs.tolist(), chosen.parents.tolist(), strict=True):
        assert graph.alive[v]
        assert parent == tree.parent[v]
        assert parent == -1 or parent in alone
        if alone[v]:
            assert needs == graph.size[v] or v == tree.root
        if v in shadowed:
            assert alone[v]
            continue
        assert graph.up[v]
        if request.constraint is not None and graph.type_name(v) in ("node", "storage_node"):
            assert request.constraint.matches(
                graph.name[v], int(graph.rank[v]), graph.properties.get(v, nothing)
            )
    for v in rows:
        if int(graph.type[v]) in whole:
            assert set(tree.subtree(v).tolist()) <= set(rows)
    _check_needs(matcher, request.needs, tree.root, rows, alone, shadowed, inside=False)


def _check_needs(
    matcher: Matcher,
    needs: tuple[Need, ...],
    above: int,
    rows: list[int],
    alone: dict[int, bool],
    shadowed: set[int],
    *,
    inside: bool,
    slots: tuple[int, bool] = (1, True),
) -> None:
    """Below one vertex; ``slots``: how many at least, and whether that is exact."""
    graph, tree = matcher.graph, matcher.tree
    for need in needs:
        if need.is_slot:
            least = slots[0] * need.count.min
            exact = slots[1] and need.count.is_fixed
            _check_needs(matcher, need.below, above, rows, alone, shadowed, inside=True, slots=(least, exact))
            continue
        if not inside and not _holds(need):
            continue  # matched, and then dropped, as Fluxion does
        mine = [v for v in rows if graph.type[v] == need.type and (v == above or above in tree.ancestors(v))]
        units = int(graph.size[mine].sum())
        assert units >= slots[0] * need.count.min, need.name
        if inside or need.exclusive:
            assert all(alone[v] for v in mine), need.name
        if not any(v in shadowed for v in mine) and (graph.size[mine] == 1).all():
            if slots[1] and need.count.is_fixed:
                assert units == slots[0] * need.count.min, need.name
            elif not inside:
                assert need.count.effective(units) == units, need.name
        for v in mine:
            if v not in shadowed:
                _check_needs(matcher, need.below, v, rows, alone, shadowed, inside=inside)


def _holds(need: Need) -> bool:
    return need.is_slot or bool(need.exclusive) or any(_holds(below) for below in need.below)


def is_monotone(request: Request) -> bool:
    """Whether what fits now fits an emptier graph too.

    A range inside a slot is filled from all that is free, and only then are slots counted (fluxion.md, 3 and
    5): with three nodes free, two slots of one or three nodes do not fit; with two nodes free they do.
    """

    def fixed(need: Need) -> bool:
        return need.count.is_fixed and all(fixed(below) for below in need.below)

    def check(need: Need) -> bool:
        return all(fixed(below) if need.is_slot else check(below) for below in need.below)

    return all(check(need) for need in request.needs)


def jobs_at(ledger: Ledger, vertex: int) -> list[LedgerJob]:
    """The jobs that touch a vertex, the newest first."""
    jobs = (ledger.job_at[int(ledger.owner[span])] for span in spans_at(ledger, vertex))
    return [job for job in jobs if job is not None]
