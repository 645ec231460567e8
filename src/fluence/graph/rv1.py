"""R version 1 (RFC 20): execution targets, their hosts, and the cores and GPUs of each.

The graph is flat, ``cluster0 > node > core, gpu``: R lists the cores of a host, but not its inner structure.
The ranks of all entries, sorted, pair up with the hosts of ``nodelist``::

    R_lite    [{"rank": "0,2", "children": {"core": "0-3"}}, {"rank": "1", "children": {"core": "0"}}]
    nodelist  ["a[7-9]"]                                           rank 0 is a7, 1 is a8, 2 is a9
    vertices  cluster0  a7 core0-3  a9 core0-3  a8 core0           in the order of R_lite
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph.columns import CONTAINMENT
from fluence.graph.graph import Batch
from fluence.model import hostlist, idset
from fluence.model.hostlist import split

MAX_VERTICES = 10_000_000  # also a bound on ranks and hosts


@dataclass(frozen=True, slots=True)
class RLiteEntry:
    """Ranks that have the same children: ids by resource type."""

    ranks: tuple[int, ...]
    children: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class R:
    """The contents of R, expanded; times are seconds since the epoch, 0 if R sets no limit."""

    entries: tuple[RLiteEntry, ...]
    hosts: Mapping[int, str]  # by rank
    properties: Mapping[int, tuple[str, ...]]  # names, by rank
    starttime: float
    expiration: float
    scheduling: object | None  # data of the scheduler; JGF for Fluxion


def read(text: str | bytes, *, force: bool = False, source: str = "R", limit: int = MAX_VERTICES) -> Batch:
    """A cluster with the hosts of R.

    ``force`` (the format ``rv1exec_force``) forbids the use of the ``scheduling`` key. This reader never uses
    it, as in Fluxion. A program that prefers the JGF in that key to ``execution`` reads it with
    :func:`decode`, and must not do so if ``force`` is set.
    """
    del force
    r = decode(text, source=source, limit=limit)
    batch = Batch()
    cluster = batch.vertex("cluster", id=0, uniq_id=0)
    batch.roots[CONTAINMENT] = cluster
    for entry in r.entries:
        _add_entry(batch, entry, r, f"{source}: execution.nodelist")
    count = len(batch.type)
    batch.uniq_id = list(range(count))
    batch.size = [1] * count
    batch.unit = [""] * count
    batch.up = [True] * count
    return batch


def _add_entry(batch: Batch, entry: RLiteEntry, r: R, where: str) -> None:
    types = [type_ for type_, ids in entry.children.items() for _ in ids]
    ids = [i for some in entry.children.values() for i in some]
    names = [f"{type_}{i}" for type_, i in zip(types, ids, strict=True)]
    sources, targets = batch.edges.setdefault(CONTAINMENT, ([], []))
    for rank in entry.ranks:
        host = r.hosts[rank]
        base, number = split(host, where=where)
        node = len(batch.type)
        batch.type += ["node", *types]
        batch.basename += [base, *types]
        batch.name += [host, *names]
        batch.id += [number, *ids]
        batch.rank += [rank] * (1 + len(ids))
        if rank in r.properties:
            batch.properties[node] = dict.fromkeys(r.properties[rank], "")
        sources += [0] + [node] * len(ids)
        targets += range(node, node + 1 + len(ids))


def decode(text: str | bytes, *, source: str = "R", limit: int = MAX_VERTICES) -> R:
    """R as data, checked; it may describe at most ``limit`` vertices."""
    document = _RDocument(_load(text, source), source)
    execution = document.execution()
    budget = _Budget(limit)
    entries: list[RLiteEntry] = []
    vertices = 1
    for place, item in document.entries(execution):
        ranks = budget.ids(document.text(item, "rank", place), f"{place}.rank")
        children = {
            type_: budget.ids(_string(ids, f"{place}.children.{type_}"), f"{place}.children.{type_}")
            for type_, ids in document.mapping(item, "children", place).items()
        }
        if "" in children:
            raise InvalidGraph("a resource type is empty; name it, like core", where=f"{place}.children")
        vertices += len(ranks) * (1 + sum(map(len, children.values())))
        if vertices > limit:
            raise InvalidGraph(f"R has more than {limit:,} vertices", where=place)
        entries.append(RLiteEntry(ranks, children))
    return R(
        entries=tuple(entries),
        hosts=_hosts(entries, execution, document, budget),
        properties=_properties(execution, document, budget),
        starttime=document.seconds(execution, "starttime"),
        expiration=document.seconds(execution, "expiration"),
        scheduling=document.root.get("scheduling"),
    )


def decode_ranks(text: str | bytes) -> list[int]:
    """The ranks of R, ascending: all that a partial cancel needs, so hosts and children may be missing."""
    document = _RDocument(_load(text, "R"), "R")
    budget = _Budget(MAX_VERTICES)
    ranks: set[int] = set()
    for place, item in document.entries(document.execution()):
        ranks.update(budget.ids(document.text(item, "rank", place), f"{place}.rank"))
    return sorted(ranks)


def _hosts(
    entries: list[RLiteEntry], execution: dict[str, object], document: _RDocument, budget: _Budget
) -> dict[int, str]:
    """Hosts by rank: the n-th name of the node list belongs to the n-th smallest rank."""
    place = f"{document.source}: execution.nodelist"
    nodelist = execution.get("nodelist")
    if not isinstance(nodelist, list):
        raise InvalidGraph('the list of hosts is missing; add one, like ["node[0-3]"]', where=place)
    hosts: list[str] = []
    for index, item in enumerate(nodelist):
        hosts += budget.hosts(_string(item, f"{place}[{index}]"), f"{place}[{index}]")
    ranks = [rank for entry in entries for rank in entry.ranks]
    ordered = sorted(ranks)
    for one, other in pairwise(ordered):
        if one == other:
            raise InvalidGraph(
                f"rank {one} is in R_lite twice; name each rank once",
                where=f"{document.source}: execution.R_lite",
            )
    if len(hosts) < len(ordered):
        raise InvalidGraph(
            f"R_lite has {len(ordered)} ranks but only {len(hosts)} hosts are named", where=place
        )
    return dict(zip(ordered, hosts, strict=False))


def _properties(
    execution: dict[str, object], document: _RDocument, budget: _Budget
) -> dict[int, tuple[str, ...]]:
    """Property names by rank; the name is the whole key, also in the form ``name@type``."""
    if execution.get("properties") is None:
        return {}
    place = f"{document.source}: execution.properties"
    names: dict[int, list[str]] = {}
    for name, ranks in document.mapping(execution, "properties", f"{document.source}: execution").items():
        for rank in budget.ids(_string(ranks, f"{place}.{name}"), f"{place}.{name}"):
            names.setdefault(rank, []).append(name)
    return {rank: tuple(sorted(found)) for rank, found in names.items()}


class _Budget:
    """The number of ids that may still be expanded: a short text such as ``0-4000000`` means many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = 4 * limit

    def ids(self, text: str, where: str) -> tuple[int, ...]:
        try:
            ranges = idset.decode_ranges(text)
        except InvalidInput as error:
            raise InvalidGraph(str(error), where=where) from None
        self._spend(sum(last - first + 1 for first, last in ranges), where)
        return tuple(i for first, last in ranges for i in range(first, last + 1))

    def hosts(self, text: str, where: str) -> list[str]:
        try:
            names = hostlist.parse(text)
        except InvalidInput as error:
            raise InvalidGraph(str(error), where=where) from None
        self._spend(names.size, where)
        return list(names)

    def _spend(self, count: int, where: str) -> None:
        self._left -= count
        if count > self._limit or self._left < 0:
            raise InvalidGraph(f"R names more than {self._limit:,} things; split it", where=where)


class _RDocument:
    """The JSON of R, with access to its parts by name; an error names the path of a missing or invalid
    part."""

    def __init__(self, root: dict[str, object], source: str) -> None:
        self.root = root
        self.source = source

    def execution(self) -> dict[str, object]:
        version = self.root.get("version")
        if type(version) is not int or version != 1:
            raise InvalidGraph(
                f"the version is {_show(version)}; only 1 can be read", where=f"{self.source}: version"
            )
        return self.mapping(self.root, "execution", f"{self.source}: ")

    def entries(self, execution: dict[str, object]) -> list[tuple[str, dict[str, object]]]:
        """The entries of R_lite, each with its place."""
        place = f"{self.source}: execution.R_lite"
        r_lite = execution.get("R_lite")
        if not isinstance(r_lite, list):
            raise InvalidGraph(f"it is {_show(r_lite)}; it must be a list of ranks and children", where=place)
        found: list[tuple[str, dict[str, object]]] = []
        for index, item in enumerate(r_lite):
            if not isinstance(item, dict):
                raise InvalidGraph(
                    f"it is {_show(item)}; it must be an object with rank and children",
                    where=f"{place}[{index}]",
                )
            found.append((f"{place}[{index}]", item))
        return found

    def mapping(self, item: dict[str, object], key: str, place: str) -> dict[str, object]:
        value = item.get(key)
        if not isinstance(value, dict):
            raise InvalidGraph(f"it is {_show(value)}; it must be an object", where=_inside(place, key))
        return value

    def text(self, item: dict[str, object], key: str, place: str) -> str:
        return _string(item.get(key), _inside(place, key))

    def seconds(self, execution: dict[str, object], key: str) -> float:
        value = execution.get(key, 0.0)
        where = f"{self.source}: execution.{key}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidGraph(f"it is {_show(value)}; it must be a number of seconds", where=where)
        if not (0 <= value < 2**63 and math.isfinite(value)):
            raise InvalidGraph(f"it is {_show(value)}; it must be a time since the epoch", where=where)
        return float(value)


def _load(text: str | bytes, source: str) -> dict[str, object]:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidGraph(f"this is not JSON: {error}", where=source) from None
    except RecursionError:
        raise InvalidGraph("the JSON is nested too deeply", where=source) from None
    if not isinstance(document, dict):
        raise InvalidGraph(f"the document is {_show(document)}; R is an object", where=source)
    return document


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidGraph(f'it is {_show(value)}; it must be a string, like "0-3"', where=where)
    return value


def _inside(place: str, key: str) -> str:
    return f"{place}{key}" if place.endswith(": ") else f"{place}.{key}"


def _show(value: object) -> str:
    match value:
        case None:
            return "missing or null"
        case dict():
            return "an object"
        case list():
            return "a list"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
