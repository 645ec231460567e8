"""Expressions: the conditions and edits of a rule as plain data, for the server (CEL) and for us (Python).

Every rule is written once, with these. `cel` prints an expression for a policy of the API server, `evaluate`
computes the same value here; that both agree is tested with random objects on a real server. Absent is
absent: a field that is not there has the default that its reader names, and nothing raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Function = Literal["sort", "reverse", "flatten", "size", "lowerAscii", "split", "indexOf", "sum", "substring"]


class Expr:
    """A value that depends on the object."""

    __slots__ = ()


Step = str | int | Expr
"""One step into a value: the name of a field, the place in a list, or a key that is computed."""


@dataclass(frozen=True, slots=True)
class Value(Expr):
    """A text, a number or a truth that is known."""

    value: str | int | bool


@dataclass(frozen=True, slots=True)
class Name(Expr):
    """``object``, ``request``, ``params``, or what a comprehension calls its item."""

    name: str


@dataclass(frozen=True, slots=True)
class Named(Expr):
    """An expression under a name of its own, so that a policy says it once. It may read no item."""

    name: str
    of: Expr


@dataclass(frozen=True, slots=True)
class Field(Expr):
    """What is found by these steps, or the default: "", 0, False, [] or {}."""

    of: Expr
    steps: tuple[Step, ...]
    default: Any = ""


@dataclass(frozen=True, slots=True)
class Present(Expr):
    """Whether something is found by these steps."""

    of: Expr
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Equal(Expr):
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Less(Expr):
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, init=False)
class Every(Expr):
    """All of these hold."""

    terms: tuple[Expr, ...]

    def __init__(self, *terms: Expr) -> None:
        object.__setattr__(self, "terms", terms)


@dataclass(frozen=True, slots=True, init=False)
class Either(Expr):
    """One of these holds."""

    terms: tuple[Expr, ...]

    def __init__(self, *terms: Expr) -> None:
        object.__setattr__(self, "terms", terms)


@dataclass(frozen=True, slots=True)
class Not(Expr):
    term: Expr


@dataclass(frozen=True, slots=True)
class Among(Expr):
    """Whether an item is in a list, or a key in a map."""

    item: Expr
    items: Expr


@dataclass(frozen=True, slots=True)
class Matches(Expr):
    """Whether a pattern matches a whole text; only what RE2 and Python read alike may be in it."""

    text: Expr
    pattern: str


@dataclass(frozen=True, slots=True)
class Begins(Expr):
    text: Expr
    prefix: str


@dataclass(frozen=True, slots=True, init=False)
class Plus(Expr):
    """The sum of numbers, or one text or list after another."""

    terms: tuple[Expr, ...]

    def __init__(self, *terms: Expr) -> None:
        object.__setattr__(self, "terms", terms)


@dataclass(frozen=True, slots=True)
class Times(Expr):
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Remainder(Expr):
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class If(Expr):
    test: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function of CEL's lists and strings."""

    function: Function
    of: Expr
    arguments: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class Convert(Expr):
    """Text to number, number to text, or a key to how a JSON pointer spells it."""

    to: Literal["int", "string", "jsonpatch.escapeKey"]
    of: Expr


@dataclass(frozen=True, slots=True)
class Each(Expr):
    """The body for each item of a list, or for each key of a map, that is wanted."""

    items: Expr
    name: str
    body: Expr
    where: Expr = Value(True)


@dataclass(frozen=True, slots=True)
class EachAt(Expr):
    """The same for a list with the place of each item."""

    items: Expr
    index: str
    name: str
    body: Expr
    where: Expr = Value(True)


@dataclass(frozen=True, slots=True)
class Exists(Expr):
    """Whether the test holds for one of the items, or of a map's keys."""

    items: Expr
    name: str
    test: Expr


@dataclass(frozen=True, slots=True, init=False)
class ListOf(Expr):
    items: tuple[Expr, ...]

    def __init__(self, *items: Expr) -> None:
        object.__setattr__(self, "items", items)


@dataclass(frozen=True, slots=True)
class MapOf(Expr):
    """A JSON object; its values may be of different types."""

    entries: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True, slots=True)
class Patch(Expr):
    """One operation of a JSON patch (RFC 6902)."""

    op: Literal["add", "remove"]
    path: Expr
    value: Expr | None = field(default=None)
