"""Rule: one row of the admission table: which objects, when, and what changes.

A rule is written twice: as CEL for the policies of the API server, and as Python functions for the webhook
and for `fluence admission try`. A test sends random objects through both on a real server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fluence import names
from fluence.admission import cel
from fluence.admission.patch import Incoming, Operation, Steps

FLUXION, QUANTUM, GANG, DOORS, POD_GROUPS = "fluxion", "quantum", "gang", "doors", "podgroups"
USERS: Final = "users"
"""The rules that record who submitted what. A site enables them by an option of their own."""
HANDLERS: Final = (FLUXION, QUANTUM, GANG, DOORS, POD_GROUPS)
DEFAULT_HANDLERS: Final = (FLUXION, QUANTUM, GANG, POD_GROUPS)

PODS: Final = ("Pod",)
JOBS: Final = ("Job",)
REPLICATED: Final = ("Deployment", "ReplicaSet", "StatefulSet")

CRITICAL: Final = ("system-cluster-critical", "system-node-critical")
"""The priority classes of the cluster's own components."""

MAX_CONTAINERS: Final = 256
"""The most containers of a pod that rules look at, including init containers."""

POD: Final[Steps] = ()
TEMPLATE: Final[Steps] = ("spec", "template")
ANNOTATIONS: Final = ("metadata", "annotations")
LABELS: Final = ("metadata", "labels")


@dataclass(frozen=True, slots=True)
class Site:
    """What the rules need to know of an installation."""

    scheduler: str = names.SCHEDULER
    aliases: tuple[str, ...] = ()
    """Other scheduler names that choose this scheduler."""
    queueing: bool = False
    """Whether new work is held here (``--doors``). Held work is ours, whichever scheduler binds it."""
    delegate: bool = False
    """Whether kube-scheduler binds work that was held."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about an object, as CEL and as a Python function."""

    cel: str
    holds: Callable[[Incoming], bool]


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of an object: a list of JSON patch operations, as CEL and as a Python function."""

    cel: str
    operations: Callable[[Incoming], list[Operation]]


@dataclass(frozen=True, slots=True)
class AdmissionRule:
    """An edit of objects of these kinds. ``concerns`` is cheap and is evaluated first; it reads no variables,
    only the metadata and the plain fields of the spec."""

    name: str
    handler: str
    kinds: tuple[str, ...]
    concerns: Condition
    when: Condition
    edit: Edit

    @property
    def condition(self) -> str:
        """When the rule applies, as CEL."""
        return f"({self.concerns.cel})\n&& ({self.when.cel})"

    @property
    def reads_containers(self) -> bool:
        """Whether its cost grows with the containers, so that these are bounded."""
        return self.handler != POD_GROUPS

    def applies(self, incoming: Incoming) -> bool:
        return self.concerns.holds(incoming) and self.when.holds(incoming)


@dataclass(frozen=True, slots=True)
class AdmissionWarning:
    """A message to the user who created an object that a rule could not change."""

    name: str
    handler: str
    kinds: tuple[str, ...]
    when: Condition
    message: str


def concerns_us(site: Site, at: Steps = POD) -> Condition:
    """Whether our scheduler gets the pods: by its name, or because they were held."""
    scheduler, seen = (*at, "spec", "schedulerName"), (*at, *LABELS, names.SEEN)
    ours = (site.scheduler, *site.aliases)
    is_named = f"{cel.text(*scheduler)} in {cel.listed(ours)}"
    if not site.queueing:
        return Condition(is_named, lambda incoming: incoming.text(*scheduler) in ours)
    is_held_by_admission = f"{cel.text(*seen)} == {cel.quoted(names.SEEN_YES)}"
    return Condition(
        cel.either(is_named, is_held_by_admission),
        lambda incoming: incoming.text(*scheduler) in ours or incoming.text(*seen) == names.SEEN_YES,
    )
