"""Random small graphs, requests and constraints; each is a document first, so that it can be loaded twice."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from fluence.match import policy
from fluence.model.jobspec import Jobspec
from tests.builders import Json, Sample, jobspec, resource

CUSTOM_POLICIES = (
    "policy=low",
    "policy=high node_centric=true",
    "policy=low node_centric=true stop_on_1_matches=true",
    "policy=high node_exclusive=true",
    "policy=low node_centric=true node_exclusive=true stop_on_1_matches=true",
)
POLICIES = (*policy.names(), *CUSTOM_POLICIES)
PROPERTIES = ("fast", "big", "arm")
DURATIONS = st.sampled_from([0, 1, 2, 3, 5, 8, 10, 2.5])
BOOLEANS = st.booleans()
EXCLUSIVE = st.sampled_from([None, None, None, True])


@cache
def _below(limit: int) -> st.SearchStrategy[int]:
    return st.integers(0, limit - 1)


def _rarely(draw: st.DrawFn, *, one_in: int) -> bool:
    return draw(_below(one_in)) == one_in - 1


@st.composite
def graphs(draw: st.DrawFn, *, flat: bool = False, down: bool = True, renumber: bool = True) -> Sample:
    """cluster > [rack] > node > [socket] > core, gpu, memory; beside them qpu > qubit and licences.

    ``flat``: as R version 1 describes a cluster: node > core, gpu, all of them with the node's rank.
    """
    sample = Sample()
    cluster = sample.add("cluster", None, id=0, **({} if flat else draw(_odd_names("cluster"))))
    racks = 0 if flat else draw(st.sampled_from([0, 0, 1, 2]))
    sockets = 0 if flat else draw(st.sampled_from([0, 0, 1, 2]))
    ranked = "all" if flat else draw(st.sampled_from(["all", "all", "nodes", "none"]))
    global_ids = not flat and draw(BOOLEANS)
    cores, gpus = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    memory = [] if flat else draw(st.lists(st.sampled_from([1, 4, 16]), max_size=2))
    per_parent = [draw(st.integers(1, 3)) for _ in range(max(racks, 1))]
    count = sum(per_parent)
    ranks = draw(st.permutations(range(count))) if ranked != "none" else [-1] * count
    ids = draw(st.permutations(range(count))) if draw(BOOLEANS) else range(count)
    uneven = draw(BOOLEANS)
    number = 0
    seen: dict[str, int] = {}

    def leaf(type_: str, above: Json, index: int, rank: int, **more: Any) -> None:
        ordinal = seen.setdefault(type_, 0) if global_ids else index
        seen[type_] = seen.get(type_, 0) + 1
        off = {"status": 1} if down and _rarely(draw, one_in=25) else {}
        sample.add(type_, above, id=ordinal, rank=rank, **more, **off)

    for at, below in enumerate(per_parent):
        above = sample.add("rack", cluster, id=at) if racks else cluster
        for _ in range(below):
            rank = ranks[number]
            extra: Json = {}
            properties = {
                **{name: "" for name in PROPERTIES if draw(_below(3)) == 0},
                **({"perf_class": str(draw(st.integers(0, 3)))} if draw(BOOLEANS) else {}),
            }
            if properties:
                extra["properties"] = properties
            if down and _rarely(draw, one_in=10):
                extra["status"] = 1
            node = sample.add("node", above, id=ids[number], rank=rank, **extra)
            sample.hosts.append(node["metadata"]["paths"]["containment"].rsplit("/", 1)[1])
            if rank >= 0:
                sample.ranks.append(rank)
            inner = rank if ranked == "all" else -1
            homes = [sample.add("socket", node, id=i, rank=inner) for i in range(sockets)] or [node]
            for home in homes:
                for i in range(max(1, cores - (1 if uneven and draw(BOOLEANS) else 0))):
                    leaf("core", home, i, inner)
                for i in range(gpus):
                    leaf("gpu", home, i, inner)
                for i, size in enumerate(memory):
                    leaf("memory", home, i, inner, size=size)
            number += 1
    if not flat:
        for i in range(draw(st.sampled_from([0, 0, 1, 2]))):
            qpu = sample.add("qpu", cluster, id=i)
            for j in range(draw(st.integers(1, 3))):
                sample.add("qubit", qpu, id=j)
        if _rarely(draw, one_in=3):
            sample.add("licence", cluster, id=-1, size=draw(st.sampled_from([1, 5])))
    if renumber and draw(BOOLEANS):
        _renumber(sample, draw(st.permutations(range(len(sample.nodes)))))
    return sample


def _odd_names(type_: str) -> st.SearchStrategy[Json]:
    return st.sampled_from([{}, {"basename": "tiny"}, {"name": f"the-{type_}"}])


def _renumber(sample: Sample, numbers: list[int]) -> None:
    """Other unique ids, so that the order in which vertices were numbered is not that of the file."""
    new = {node["id"]: str(number) for node, number in zip(sample.nodes, numbers, strict=True)}
    for node in sample.nodes:
        node["id"] = new[node["id"]]
    for edge in sample.edges:
        edge["source"], edge["target"] = new[edge["source"]], new[edge["target"]]


# -- requests ------------------------------------------------------------------------------------------------


@cache
def counts(most: int = 4, *, ranges: bool = True) -> st.SearchStrategy[Any]:
    plain = st.integers(1, most)
    if not ranges:
        return plain
    spans = st.builds(
        lambda low, more, operator, operand: {
            "min": max(low, 2) if operator == "^" else low,
            "max": max(low, 2) + more,
            "operator": operator,
            "operand": operand if operator == "+" else max(operand, 2),
        },
        st.integers(1, most),
        st.integers(0, 4),
        st.sampled_from("+*^"),
        st.integers(1, 3),
    )
    return st.one_of(plain, plain, plain, spans, st.builds(lambda low: {"min": low}, st.integers(1, most)))


@st.composite
def constraints(draw: st.DrawFn, sample: Sample, *, depth: int = 2) -> Json:
    kinds = ["properties", "hostlist", "ranks", "any"]
    if depth:
        kinds += ["and", "or", "not"]
    kind = draw(st.sampled_from(kinds))
    if kind == "any":
        return {}
    if kind == "properties":
        names = st.sampled_from([*PROPERTIES, *(f"^{name}" for name in PROPERTIES)])
        return {"properties": draw(st.lists(names, max_size=2))}
    if kind == "hostlist":
        return {"hostlist": draw(st.lists(st.sampled_from(sample.hosts), max_size=3))}
    if kind == "ranks":
        return {"ranks": [draw(st.sampled_from(["0", "1", "0-1", "0-2,4", "3-9"]))]}
    inner = constraints(sample, depth=depth - 1)
    return {kind: draw(st.lists(inner, max_size=2))}


@st.composite
def jobspecs(draw: st.DrawFn, sample: Sample, *, plain: bool = False) -> Jobspec:
    """Requests that could fit this graph; ``plain``: nodes with slots in them, as R can describe them."""
    socketed, racked = "socket" in sample.types, "rack" in sample.types
    leaves = [type_ for type_ in ("core", "gpu", "memory") if type_ in sample.types]
    ranges = not plain

    def content() -> list[Json]:
        chosen = draw(st.lists(st.sampled_from(leaves), min_size=1, max_size=3, unique=True))
        most = {"core": 3, "gpu": 2, "memory": 20}
        return [resource(type_, draw(counts(most[type_], ranges=ranges))) for type_ in chosen]

    def slot() -> Json:
        return resource("slot", draw(counts(3, ranges=ranges)), *content())

    def inside() -> Json:
        """What stands below a node."""
        if not socketed:
            return slot()
        if draw(BOOLEANS):
            return resource("slot", draw(counts(2)), resource("socket", 1, *content()))
        return resource("socket", draw(counts(2)), slot(), exclusive=draw(EXCLUSIVE))

    def node() -> Json:
        return resource("node", draw(counts(3, ranges=ranges)), inside(), exclusive=draw(EXCLUSIVE))

    forms = ["node", "node", "headless", "whole node", "slot of nodes", "prefix"]
    forms += ["rack"] * racked + ["beside", "beside"] * ("qpu" in sample.types)
    forms += ["licence"] * ("licence" in sample.types) + ["leaf"]
    form = "node" if plain else draw(st.sampled_from(forms))
    match form:
        case "node":
            wanted = [node()]
        case "headless":
            wanted = [slot()]
        case "whole node":
            wanted = [resource("node", draw(counts(3)), exclusive=True)]
        case "slot of nodes":
            below = [inside()["with"][0]] if not socketed else [resource("socket", 1, resource("core", 1))]
            wanted = [resource("slot", draw(counts(2)), resource("node", draw(counts(2)), *below))]
        case "prefix":
            inner = resource("rack", 1, node()) if racked else node()
            wanted = [resource("cluster", 1, inner)]
        case "rack":
            wanted = [resource("rack", draw(counts(2)), node(), exclusive=draw(EXCLUSIVE))]
        case "beside":
            other = draw(
                st.sampled_from(
                    [
                        resource("qpu", 1, resource("slot", 1, resource("qubit", 1))),
                        resource("qpu", 1, exclusive=True),
                        resource("qpu", 2, resource("slot", 1, resource("qubit", 2))),
                        resource("qpu", 1),
                    ]
                )
            )
            wanted = [node(), other]
        case "licence":
            wanted = [resource("slot", 1, resource("node", 1, resource("core", 1)), resource("licence", 1))]
            if socketed:
                wanted = [resource("licence", draw(st.integers(1, 5)), exclusive=True)]
        case _:
            wanted = [resource(draw(st.sampled_from(leaves)), draw(counts(4)), exclusive=True)]
    return jobspec(
        *wanted,
        duration=draw(DURATIONS),
        constraints=draw(constraints(sample)) if _rarely(draw, one_in=4) else None,
    )
