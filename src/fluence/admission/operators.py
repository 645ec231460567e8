"""Operators: suspends new objects of operators as a whole until their turn.

An object is suspended and marked, and nothing else of it is changed: its pods get the gate when they are
created, and take over the placements that the object was released with. An object is held if the pods of all
its templates would be held. Any other object keeps running, and its pods wait one by one. A TrainJob has no
template: the scheduler sees from its JobSet whether its pods are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.patch import Incoming, Operation, Steps
from fluence.admission.rule import (
    ANNOTATIONS,
    CRITICAL,
    DOORS,
    LABELS,
    AdmissionRule,
    Condition,
    Edit,
    Site,
)
from fluence.model.operators import OPERATORS, Operator


@dataclass(frozen=True, slots=True)
class Templates:
    """Where an object has pod templates: in one field, or in each entry of a list or a map."""

    at: Steps
    inside: Steps = ()
    by: str = ""  # list, map; "": the field itself

    def every(self, test: str) -> str:
        """Whether a test of a template `t` holds for all templates, as CEL."""
        if not self.by:
            return f"[{cel.entries(*self.at)}].all(t, {test})"
        each = f"[{cel.entries(*self.inside, of='e')}].all(t, {test})"
        if self.by == "list":
            return f"{cel.items(*self.at)}.all(e, {each})"
        return f"{cel.entries(*self.at)}.all(k, e, {each})"

    def of(self, incoming: Incoming) -> Iterator[Any]:
        """The templates."""
        found = incoming.field(*self.at)
        if not self.by:
            yield {} if found is None else found
            return
        entries = [] if found is None else found.values() if self.by == "map" else found
        for each in entries:
            inner = patch.field(each, *self.inside)
            yield {} if inner is None else inner


_RAY: Final = (
    Templates(("spec", "headGroupSpec", "template")),
    Templates(("spec", "workerGroupSpecs"), ("template",), "list"),
)
_TEMPLATES: Final[dict[str, tuple[Templates, ...]]] = {
    "JobSet": (Templates(("spec", "replicatedJobs"), ("template", "spec", "template"), "list"),),
    "TrainJob": (),  # its runtime has them
    "RayCluster": _RAY,
    "RayJob": tuple(replace(each, at=("spec", "rayClusterSpec", *each.at[1:])) for each in _RAY),
    **{
        kind: (Templates(("spec", field), ("template",), "map"),)
        for kind, field in (
            ("MPIJob", "mpiReplicaSpecs"),
            ("PyTorchJob", "pytorchReplicaSpecs"),
            ("TFJob", "tfReplicaSpecs"),
            ("JAXJob", "jaxReplicaSpecs"),
            ("PaddleJob", "paddleReplicaSpecs"),
            ("XGBoostJob", "xgbReplicaSpecs"),
        )
    },
}
HELD: Final[dict[str, Operator]] = {each.kind: each for each in OPERATORS if each.holds}
"""The kinds of operators that can be held, by name."""
_SHUTS_DOWN: Final = ("spec", "shutdownAfterJobFinishes")
_CLUSTER, _SELECTOR = ("spec", "rayClusterSpec"), ("spec", "clusterSelector")
# KubeRay refuses other RayJobs that are suspended.
_ALSO: Final = {
    "RayJob": Condition(
        cel.every(f"{cel.field(*_SHUTS_DOWN)}.orValue(false)", cel.has(*_CLUSTER), f"!{cel.has(*_SELECTOR)}"),
        lambda found: bool(found.field(*_SHUTS_DOWN)) and found.has(*_CLUSTER) and not found.has(*_SELECTOR),
    )
}
_MARKED: Final = (*LABELS, names.SEEN)


def operator_rules(site: Site) -> tuple[AdmissionRule, ...]:
    """One rule for each kind."""
    return tuple(
        AdmissionRule(
            f"suspend-{kind.lower()}",
            DOORS,
            (kind,),
            _is_new(site, operator),
            _is_held(operator),
            _suspend(operator),
        )
        for kind, operator in HELD.items()
    )


def _is_off_cel(of: str) -> str:
    off = cel.quoted(names.QUEUE_OFF)
    return cel.either(*(f"{cel.text(*at, names.QUEUE, of=of)} == {off}" for at in (LABELS, ANNOTATIONS)))


def _is_off(value: Any) -> bool:
    return any(patch.text(value, *at, names.QUEUE) == names.QUEUE_OFF for at in (LABELS, ANNOTATIONS))


def _is_new(site: Site, operator: Operator) -> Condition:
    """Whether an object is not held yet, and all of its pods would be held."""
    ours = ("", names.KUBE_SCHEDULER, site.scheduler, *site.aliases)
    templates = _TEMPLATES[operator.kind]
    scheduler, priority = ("spec", "schedulerName"), ("spec", "priorityClassName")
    test = cel.every(
        f"{cel.text(*scheduler, of='t')} in {cel.listed(ours)}",
        f"!({cel.text(*priority, of='t')} in {cel.listed(CRITICAL)})",
        f"!{_is_off_cel('t')}",
    )

    def holds(found: Incoming) -> bool:
        return not found.has(*_MARKED) and all(
            patch.text(each, *scheduler) in ours
            and patch.text(each, *priority) not in CRITICAL
            and not _is_off(each)
            for place in templates
            for each in place.of(found)
        )

    return Condition(
        cel.every(f"!{cel.has(*_MARKED)}", *(place.every(test) for place in templates)),
        holds,
    )


def _is_held(operator: Operator) -> Condition:
    """Whether neither its user nor another controller decides when an object starts."""
    managers = ("", operator.controller)
    suspend, managed_by = ("spec", *operator.suspend), ("spec", *operator.managed_by)

    more = _ALSO.get(operator.kind, Condition("true", lambda found: True))

    def holds(found: Incoming) -> bool:
        if (
            not more.holds(found)
            or _is_off(found.object)
            or found.field(*suspend)
            or found.text(*managed_by) not in managers
        ):
            return False
        return not any(
            patch.field(owner, "controller") for owner in found.items("metadata", "ownerReferences")
        )

    return Condition(
        cel.every(
            f"!{_is_off_cel('object')}",
            f"!{cel.field(*suspend)}.orValue(false)",  # suspended by its user: its pods wait later
            f"{cel.text(*managed_by)} in {cel.listed(managers)}",
            "variables.hasNoController",  # its owner is held, or reverts changes
            *((more.cel,) if operator.kind in _ALSO else ()),
        ),
        holds,
    )


def _suspend(operator: Operator) -> Edit:
    into, field = ("spec", *operator.suspend[:-1]), operator.suspend[-1]

    def operations(found: Incoming) -> list[Operation]:
        return [
            *patch.set_entries(found, LABELS, {names.SEEN: names.SEEN_YES}),
            *patch.set_entries(found, into, {field: True}),
        ]

    return Edit(
        cel.plus(
            cel.set_entries(LABELS, {names.SEEN: cel.quoted(names.SEEN_YES)}),
            cel.set_entries(into, {field: "true"}),
        ),
        operations,
    )
