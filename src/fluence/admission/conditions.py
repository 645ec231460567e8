"""Conditions: what several rules ask of an object."""

from __future__ import annotations

from typing import Final

from fluence import names
from fluence.admission.edits import POD, Place
from fluence.admission.expressions import (
    Among,
    Each,
    Either,
    Equal,
    Every,
    Expr,
    Field,
    ListOf,
    Name,
    Not,
    Value,
)
from fluence.admission.rule import Site

ANNOTATIONS: Final = ("metadata", "annotations")
LABELS: Final = ("metadata", "labels")


def is_ours(site: Site, at: Place = POD) -> Expr:
    """Whether our scheduler shall have it: by its name, or because it is held back."""
    named = Equal(at.field("spec", "schedulerName"), Value(site.scheduler))
    if not site.held:
        return named
    return Either(named, Equal(at.field(*LABELS, names.SEEN), Value(names.SEEN_YES)))


def owners() -> Expr:
    return POD.field("metadata", "ownerReferences", default=[])


def is_controller(*kinds: str) -> Expr:
    """Whether an owner reference, `o`, is that of the controller, of one of these kinds."""
    controls = Field(Name("o"), ("controller",), False)
    return Every(controls, Among(Field(Name("o"), ("kind",)), texts(*kinds))) if kinds else controls


def first(*values: Expr) -> Expr:
    """The first text that is not empty."""
    return Field(Each(ListOf(*values), "x", Name("x"), Not(Equal(Name("x"), Value("")))), (0,))


def texts(*values: str) -> Expr:
    return ListOf(*map(Value, values))
