"""Edits: what a rule changes, each as an expression that makes the operations of a JSON patch.

All edits of a rule see the object as it was before that rule. So a rule names a map or a list in one edit
only: two that each make it where it is missing would undo each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fluence.admission.expressions import (
    Among,
    Begins,
    Call,
    Convert,
    Each,
    EachAt,
    Either,
    Equal,
    Every,
    Exists,
    Expr,
    Field,
    If,
    ListOf,
    MapOf,
    Name,
    Not,
    Patch,
    Plus,
    Present,
    Step,
    Value,
)

OBJECT: Final = Name("object")
NOTHING: Final = ListOf()
ALWAYS: Final = Value(True)
EMPTY: Final = MapOf()
_LISTS: Final = ("containers", "initContainers")
_CONTAINER: Final = Name("c")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod's metadata and spec are: in the object itself, or in its template."""

    steps: tuple[str, ...] = ()

    def field(self, *steps: Step, default: object = "") -> Field:
        return Field(OBJECT, (*self.steps, *steps), default)

    def has(self, *steps: Step) -> Present:
        return Present(OBJECT, (*self.steps, *steps))

    def pointer(self, *steps: str) -> str:
        return "".join(f"/{_escaped(each)}" for each in (*self.steps, *steps))


POD: Final = Place()
TEMPLATE: Final = Place(("spec", "template"))


def set_entries(at: Place, into: tuple[str, ...], entries: Mapping[str, Expr]) -> Expr:
    """Labels or annotations, or other entries of a map of texts."""
    made = [
        Patch("add", Value(at.pointer(*into, key)), value if isinstance(value, Expr) else Value(value))
        for key, value in entries.items()
    ]
    return Plus(*_parents(at, into), ListOf(*made))


def set_field(at: Place, steps: tuple[str, ...], value: Expr) -> Expr:
    """A field of what is there for certain."""
    return ListOf(Patch("add", Value(at.pointer(*steps)), value))


def drop_field(at: Place, *steps: str) -> Expr:
    return If(at.has(*steps), ListOf(Patch("remove", Value(at.pointer(*steps)))), NOTHING)


def add_gate(at: Place, name: str) -> Expr:
    """A scheduling gate, beside those that are there."""
    gates = ("spec", "schedulingGates")
    known = Exists(at.field(*gates, default=[]), "g", Equal(Field(Name("g"), ("name",)), Value(name)))
    added = Patch("add", Value(at.pointer(*gates) + "/-"), MapOf((("name", Value(name)),)))
    return If(known, NOTHING, Plus(*_parents(at, gates, empty=ListOf()), ListOf(added)))


def add_variables(names: Expr, entry: Callable[[Expr], Expr], *, where: Expr = ALWAYS) -> Expr:
    """Variables for containers that do not set them, in front of their own, which may then refer to them."""
    own = Field(_CONTAINER, ("env",), [])
    missing = Not(Exists(own, "e", Equal(Field(Name("e"), ("name",)), Name("n"))))

    def edits(pointer: Expr) -> Expr:
        whole = ListOf(Patch("add", Plus(pointer, Value("/env")), Each(names, "n", entry(Name("n")))))
        added = Patch("add", Plus(pointer, Value("/env/0")), entry(Name("n")))
        # The last goes in first, so that they stand in their order.
        one_by_one = Each(Call("reverse", names), "n", added, missing)
        return If(Present(_CONTAINER, ("env",)), one_by_one, whole)

    return _in_containers(edits, where=Every(where, Exists(names, "n", missing)))


def copy_resources(prefix: str) -> Expr:
    """Requests where there are only limits, and limits where there are only requests."""

    def edits(pointer: Expr) -> Expr:
        return Plus(*(_copy(pointer, one, other, prefix) for one, other in _SIDES))

    return _in_containers(edits, where=container_asks_like(prefix))


def drop_resources(keys: tuple[str, ...]) -> Expr:
    """No requests and no limits of these."""
    sides = [("resources", side) for side, _ in _SIDES]

    def edits(pointer: Expr) -> Expr:
        return Plus(
            *(
                If(
                    Present(_CONTAINER, (*side, key)),
                    ListOf(Patch("remove", Plus(pointer, Value(f"/{'/'.join(side)}/{_escaped(key)}")))),
                    NOTHING,
                )
                for side in sides
                for key in keys
            )
        )

    return _in_containers(edits, where=container_asks(keys))


def container_asks(keys: tuple[str, ...]) -> Expr:
    """Whether a container asks for one of these, in requests or in limits."""
    return Either(
        *(Present(_CONTAINER, ("resources", side, key)) for side, _ in _SIDES for key in keys),
    )


def container_asks_like(prefix: str) -> Expr:
    """Whether a container asks for a resource with this prefix."""
    begins = Begins(Name("r"), prefix)
    return Either(
        *(Exists(Field(_CONTAINER, ("resources", side), {}), "r", begins) for side, _ in _SIDES),
    )


def exists_container(test: Expr) -> Expr:
    """Whether the test holds for a container or an init container of the pod."""
    return Either(*(Exists(POD.field("spec", each, default=[]), "c", test) for each in _LISTS))


_SIDES: Final = (("limits", "requests"), ("requests", "limits"))


def _copy(pointer: Expr, one: str, other: str, prefix: str) -> Expr:
    given, there = (Field(_CONTAINER, ("resources", each), {}) for each in (one, other))
    base = Plus(pointer, Value(f"/resources/{other}"))
    key = Plus(base, Value("/"), Convert("jsonpatch.escapeKey", Name("r")))
    lacks = Every(Begins(Name("r"), prefix), Not(Among(Name("r"), there)))
    first = If(Present(_CONTAINER, ("resources", other)), NOTHING, ListOf(Patch("add", base, MapOf())))
    copies = Each(given, "r", Patch("add", key, Field(given, (Name("r"),))), lacks)
    return If(Exists(given, "r", lacks), Plus(first, copies), NOTHING)


def _in_containers(edits: Callable[[Expr], Expr], *, where: Expr) -> Expr:
    """These edits of every container and init container of the pod for which the test holds."""
    parts = []
    for each in _LISTS:
        pointer = Plus(Value(f"/spec/{each}/"), Convert("string", Name("i")))
        made = EachAt(POD.field("spec", each, default=[]), "i", "c", edits(pointer), where)
        parts.append(Call("flatten", made))
    return Plus(*parts)


def _parents(at: Place, into: tuple[str, ...], *, empty: Expr = EMPTY) -> list[Expr]:
    """The map or list itself, and what it is in, where they are missing. A spec is always there."""
    found: list[Expr] = []
    for length in range(1, len(into) + 1):
        if into[:length] == ("spec",) or (into[:length] == ("metadata",) and at == POD):
            continue
        value = empty if length == len(into) else MapOf()
        made = ListOf(Patch("add", Value(at.pointer(*into[:length])), value))
        found.append(If(at.has(*into[:length]), NOTHING, made))
    return found


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
