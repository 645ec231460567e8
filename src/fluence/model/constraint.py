"""Which vertices a job may use: properties, hosts, ranks and combinations of them (RFC 31).

Evaluated as Fluxion does it, which departs from the RFC in one place: `{"or": []}` matches nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from fluence.errors import InvalidInput, InvalidJobspec
from fluence.model import hostlist, idset
from fluence.model.document import MAX_DEPTH, JsonValue, Plain, child, scalar, show
from fluence.model.hostlist import Hostlist

Operator = Literal["any", "properties", "hostlist", "ranks", "and", "or", "not"]

_NESTED = ("and", "or", "not")
_OPERATORS = ("properties", "hostlist", "ranks", *_NESTED)
_ILLEGAL = frozenset("!&'\"^`|()")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Constraint:
    """One operator with its values (`properties`, `hostlist`, `ranks`) or its children (`and`, `or`, `not`).

    ``Constraint()``, the operator `any`, matches everything. Equal constraints have equal hashes, so one can
    be the key of a cache. The tree is open: read `operator`, `values` and `children`, or use `fold`.
    """

    operator: Operator = "any"
    values: tuple[str, ...] = ()
    children: tuple[Constraint, ...] = ()
    hosts: Hostlist | None = field(default=None, init=False, compare=False, repr=False)
    """The parsed `values` of `hostlist`."""
    ranks: tuple[tuple[int, int], ...] = field(default=(), init=False, compare=False, repr=False)
    """The parsed `values` of `ranks`: ascending ranges, including both ends."""

    def __post_init__(self) -> None:
        if self.operator == "hostlist":
            patterns = tuple(p for text in self.values for p in hostlist.parse(text).patterns)
            object.__setattr__(self, "hosts", Hostlist(patterns))
        elif self.operator == "ranks":
            ranges = [r for text in self.values for r in idset.decode_ranges(text)]
            object.__setattr__(self, "ranks", _merge(ranges))

    @property
    def terms(self) -> tuple[tuple[str, bool], ...]:
        """The values of `properties` as (name, wanted): `^gpu` is ("gpu", False)."""
        return tuple((v[1:], False) if v.startswith("^") else (v, True) for v in self.values)

    def matches(self, name: str, rank: int, properties: Container[str]) -> bool:
        """Whether a vertex with this name, rank and property names may be used."""
        match self.operator:
            case "properties":
                return all(
                    (v[1:] not in properties) if v.startswith("^") else (v in properties) for v in self.values
                )
            case "hostlist":
                return self.hosts is not None and name in self.hosts
            case "ranks":
                return self.has_rank(rank)
            case "and":
                return all(c.matches(name, rank, properties) for c in self.children)
            case "or":
                return any(c.matches(name, rank, properties) for c in self.children)
            case "not":
                return not all(c.matches(name, rank, properties) for c in self.children)
            case "any":
                return True

    def has_rank(self, rank: int) -> bool:
        at = bisect_right(self.ranks, (rank, idset.MAX_ID)) - 1
        return at >= 0 and self.ranks[at][0] <= rank <= self.ranks[at][1]

    def fold(
        self, leaf: Callable[[Constraint], T], *, every: Callable[[list[T]], T], some: Callable[[list[T]], T],
        negate: Callable[[T], T],
    ) -> T:  # fmt: skip
        """Evaluate the tree in another domain, such as sets of nodes as bits.

        *leaf* gives the value of `any`, `properties`, `hostlist` and `ranks`; *every* of an empty list must
        be everything, *some* of an empty list nothing.
        """
        if self.operator not in _NESTED:
            return leaf(self)
        values = [c.fold(leaf, every=every, some=some, negate=negate) for c in self.children]
        if self.operator == "or":
            return some(values)
        return every(values) if self.operator == "and" else negate(every(values))

    def describe(self) -> str:
        """In words, for people."""
        match self.operator:
            case "properties":
                words = [f"property {n}" if wanted else f"no property {n}" for n, wanted in self.terms]
                return " and ".join(words) or "anything"
            case "hostlist":
                return f"host in {','.join(v for v in self.values if v)}" if any(self.values) else "nothing"
            case "ranks":
                return f"rank in {','.join(self.values)}" if self.ranks else "nothing"
            case "and":
                return _join(" and ", self.children) or "anything"
            case "or":
                return _join(" or ", self.children) or "nothing"
            case "not":
                return f"not ({_join(' and ', self.children) or 'anything'})"
            case "any":
                return "anything"

    def to_value(self) -> dict[str, JsonValue]:
        if self.operator == "any":
            return {}
        if self.operator in _NESTED:
            return {self.operator: [c.to_value() for c in self.children]}
        return {self.operator: list(self.values)}


def parse(value: object, where: str = "constraints") -> Constraint:
    """Read a constraint from a decoded document; *where* is its place there, for errors."""
    return _parse(value, where, 0)


def _parse(value: object, where: str, depth: int) -> Constraint:
    if depth > MAX_DEPTH:
        raise InvalidJobspec(f"is nested over {MAX_DEPTH} levels deep; make it flatter", where=where[:120])
    if not isinstance(value, dict):
        raise InvalidJobspec(f"must be a mapping such as {{not: […]}}, not {show(value)}", where=where)
    if not value:
        return Constraint()
    if len(value) > 1:
        names = " and ".join(show(k) for k in list(value)[:2])
        raise InvalidJobspec(f'has {names}; join several operators with "and" or "or"', where=where)
    ((operator, operands),) = value.items()
    if operator not in _OPERATORS:
        raise InvalidJobspec(
            f"{show(operator)} is no operator; use one of {', '.join(_OPERATORS)}", where=where
        )
    where = child(where, operator)
    if not isinstance(operands, list | tuple):
        raise InvalidJobspec(f"must be a list, not {show(operands)}; put it in [ ]", where=where)
    checked = cast(Operator, operator)
    if operator in _NESTED:
        children = (_parse(item, child(where, i), depth + 1) for i, item in enumerate(operands))
        return Constraint(checked, children=tuple(children))
    return Constraint(
        checked, tuple(_value(operator, item, child(where, i)) for i, item in enumerate(operands))
    )


def _value(operator: str, item: object, where: str) -> str:
    if operator == "properties":
        if not isinstance(item, str) or isinstance(item, Plain):
            raise InvalidJobspec(f"must be text in quotes, not {show(item)}", where=where)
        illegal = next((c for c in item.removeprefix("^") if c in _ILLEGAL), None)
        if illegal is not None:
            raise InvalidJobspec(
                f"property {show(item)} has {illegal} in it; only one leading ^, for 'not', is allowed",
                where=where,
            )
        return str(item)
    text = "null" if item is None else scalar(item)
    if text is None:
        raise InvalidJobspec(f"must be text, not {show(item)}", where=where)
    try:
        if operator == "hostlist":
            hostlist.parse(text)
        else:
            idset.decode_ranges(text)
    except InvalidInput as e:
        raise InvalidJobspec(str(e), where=where) from None
    return str(text)


def _merge(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return tuple(merged)


def _join(word: str, children: tuple[Constraint, ...]) -> str:
    texts = [f"({c.describe()})" if c.children and len(children) > 1 else c.describe() for c in children]
    return word.join(texts)
