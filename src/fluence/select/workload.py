"""Workloads: the objects of a document, whether they ask for a choice, and what they ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from fluence.errors import InvalidInput
from fluence.names import (
    BACKEND,
    GROUP_LABEL,
    REQUIRE_BACKEND,
    SCHEDULER,
    SELECT_CANDIDATES,
    SELECT_CONSTRAINTS,
    SELECT_POLICY,
    SELECT_SHOTS,
)
from fluence.select.backend import DEFAULT_SHOTS
from fluence.select.policies import split_commas

Path = tuple[str | int, ...]
"""The keys and indexes that lead from the root of a document to a place in it."""

Fields = Mapping[str, object]

Wanted = Mapping[str, "str | Wanted"]
"""Fields to be set, nested as in the object."""


class PodWorkload(msgspec.Struct, frozen=True):
    """One object of a document, with the pod templates in it."""

    path: Path
    fields: Fields
    templates: dict[Path, Fields]

    @property
    def label(self) -> str:
        """``Job/train``, as messages name it."""
        metadata = _mapping(self.fields.get("metadata"))
        name = metadata.get("name") or metadata.get("generateName")
        kind = str(self.fields.get("kind") or "object")
        return f"{kind}/{name}" if name else kind

    @property
    def annotations(self) -> dict[str, str]:
        return _texts(self.fields, "annotations")

    @property
    def targets_fluence(self) -> bool:
        """Its pods opt in by scheduler name or by the group label; the original looked at fewer templates."""
        return any(
            _mapping(place.get("spec")).get("schedulerName") == SCHEDULER
            or GROUP_LABEL in _texts(place, "labels")
            for place in (self.fields, *self.templates.values())
        )

    @property
    def wants_selection(self) -> bool:
        return bool(self.annotations.get(SELECT_POLICY)) and self.targets_fluence

    @property
    def has_misplaced_policy(self) -> bool:
        """The policy stands on a pod template only, where it does nothing."""
        return (
            self.targets_fluence
            and not self.annotations.get(SELECT_POLICY)
            and any(SELECT_POLICY in _texts(template, "annotations") for template in self.templates.values())
        )

    @property
    def pin(self) -> str | None:
        """The backend that somebody has chosen already."""
        for place in (self.fields, *self.templates.values()):
            annotations = _texts(place, "annotations")
            if pin := annotations.get(REQUIRE_BACKEND) or annotations.get(BACKEND):
                return pin
        return None


class BackendWish(msgspec.Struct, frozen=True):
    """What a workload asks of the choice."""

    policy: str
    candidates: list[str]
    constraints: str
    shots: int


class Edit(msgspec.Struct, frozen=True):
    """Annotations for the object, or pod template, at *path* of a document."""

    path: Path
    annotations: dict[str, str]

    @property
    def wanted(self) -> Wanted:
        return {"metadata": {"annotations": self.annotations}}


def may_select(text: str) -> bool:
    """False only if no object in *text* can carry a policy, so that most streams need no parser.

    The name of the annotation can hide behind an escape, but not behind anything else.
    """
    return SELECT_POLICY.partition("/")[2] in text or "\\" in text


def find_workloads(document: object) -> list[PodWorkload]:
    """The objects of one document; lists, such as ``kind: List``, are opened."""
    return list(_find(document, ()))


def _find(value: object, path: Path) -> Iterator[PodWorkload]:
    if not isinstance(value, dict):
        return
    items = value.get("items")
    if str(value.get("kind", "")).endswith("List") and isinstance(items, list):
        for i, item in enumerate(items):
            yield from _find(item, (*path, "items", i))
        return
    # The object itself can be a pod; what is inside it can be templates.
    templates = {
        where: template
        for key, inner in value.items()
        if key != "metadata"
        for where, template in _templates(inner, (*path, key), set())
    }
    yield PodWorkload(path, value, templates)


def _templates(value: object, path: Path, barren: set[int]) -> Iterator[tuple[Path, Fields]]:
    """Whatever has ``spec.containers`` is a pod template, so CronJobs, JobSets and kinds to come work."""
    if isinstance(_mapping(_mapping(value).get("spec")).get("containers"), list):
        yield path, _mapping(value)
        return
    # Aliases can lead back to where we are, or again and again to the same place without templates.
    if id(value) in barren:
        return
    barren.add(id(value))
    inside: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        inside = list(value.items())
    elif isinstance(value, list):
        inside = list(enumerate(value))
    for step, inner in inside:
        for found in _templates(inner, (*path, step), barren):
            barren.discard(id(value))
            yield found


def read_wish(workload: PodWorkload) -> BackendWish:
    """What the annotations ask; shots come from ``select-shots``, else the variable N_SHOTS, else 1000."""
    annotations = workload.annotations
    return BackendWish(
        policy=annotations[SELECT_POLICY],
        candidates=split_commas(annotations.get(SELECT_CANDIDATES, "")),
        constraints=annotations.get(SELECT_CONSTRAINTS, ""),
        shots=_shots(workload, annotations.get(SELECT_SHOTS)),
    )


def _shots(workload: PodWorkload, annotation: str | None) -> int:
    if annotation is not None:
        shots = _count(annotation)
        if shots is None:
            raise InvalidInput(
                f'bad number "{annotation}" (want a whole number, 0 or more, such as "1000")',
                where=f"{workload.label}: annotation {SELECT_SHOTS}",
            )
        return shots
    for place in (workload.fields, *workload.templates.values()):
        containers = _mapping(place.get("spec")).get("containers")
        for container in containers if isinstance(containers, list) else []:
            variables = _mapping(container).get("env")
            for variable in variables if isinstance(variables, list) else []:
                fields = _mapping(variable)
                # The variable is the program's own: what is not a count there is not for us.
                if fields.get("name") == "N_SHOTS" and (count := _count(fields.get("value"))):
                    return count
    return DEFAULT_SHOTS


def _count(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _texts(place: Fields, field: str) -> dict[str, str]:
    entries = _mapping(_mapping(place.get("metadata")).get(field))
    return {key: value for key, value in entries.items() if isinstance(value, str)}


def _mapping(value: object) -> Fields:
    return value if isinstance(value, dict) else {}
