"""Rule: one row of the table of admission: which objects, when, and what is changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fluence import names
from fluence.admission.expressions import Every, Expr

FLUXION, QUANTUM, GANG, DOORS = "fluxion", "quantum", "gang", "doors"
HANDLERS: Final = (FLUXION, QUANTUM, GANG, DOORS)
DEFAULT_HANDLERS: Final = (FLUXION, QUANTUM, GANG)

PODS: Final = ("Pod",)
JOBS: Final = ("Job",)
REPLICATED: Final = ("Deployment", "ReplicaSet", "StatefulSet")


@dataclass(frozen=True, slots=True)
class Site:
    """What the rules must know of an installation."""

    scheduler: str = names.SCHEDULER
    held: bool = False
    """Whether work is held back here (doors): what is held is ours, whoever binds it."""
    delegate: bool = False
    """Whether kube-scheduler binds all that is held back."""


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """Edits of objects of these kinds, of those that are ours by a glance, where a condition holds."""

    name: str
    handler: str
    kinds: tuple[str, ...]
    ours: Expr
    """Cheap to ask: nothing else is even looked at."""
    when: Expr
    edits: tuple[Expr, ...]

    @property
    def holds(self) -> Expr:
        return Every(self.ours, self.when)


@dataclass(frozen=True, slots=True)
class Warn:
    """What is told to whoever made an object that was left as it is."""

    name: str
    handler: str
    kinds: tuple[str, ...]
    when: Expr
    message: str
