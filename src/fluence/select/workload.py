"""Workloads: the objects in a stream of manifests, whether they request a choice, and their requests.

Streams are split into documents and joined again without changing a byte.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fluence.errors import InvalidInput
from fluence.names import (
    BACKEND,
    DEVICE_PREFIX,
    GROUP_LABEL,
    REQUIRE_BACKEND,
    SCHEDULER,
    SELECT_CANDIDATES,
    SELECT_CONSTRAINTS,
    SELECT_POLICY,
    SELECT_SHOTS,
)
from fluence.select.policies import DEFAULT_SHOTS, split_commas

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
        """Whether its pods opt in by scheduler name or by the group label; the original checked fewer
        templates."""
        return any(
            _mapping(place.get("spec")).get("schedulerName") == SCHEDULER
            or GROUP_LABEL in _texts(place, "labels")
            for place in (self.fields, *self.templates.values())
        )

    @property
    def wants_selection(self) -> bool:
        return bool(self.annotations.get(SELECT_POLICY, "").strip()) and self.targets_fluence

    @property
    def has_empty_policy(self) -> bool:
        """Whether it opts in with an empty policy."""
        policy = self.annotations.get(SELECT_POLICY)
        return policy is not None and not policy.strip() and self.targets_fluence

    @property
    def device_types(self) -> frozenset[str]:
        """The types of external resources that its containers request."""
        found: set[str] = set()
        for place in (self.fields, *self.templates.values()):
            spec = _mapping(place.get("spec"))
            for field in ("containers", "initContainers"):
                containers = spec.get(field)
                for container in containers if isinstance(containers, list) else []:
                    resources = _mapping(_mapping(container).get("resources"))
                    for side in ("requests", "limits"):
                        found.update(map(str, _mapping(resources.get(side))))
        return frozenset(name.removeprefix(DEVICE_PREFIX) for name in found if name.startswith(DEVICE_PREFIX))

    @property
    def has_misplaced_policy(self) -> bool:
        """Whether the policy is only on a pod template, where it has no effect."""
        return (
            self.targets_fluence
            and not self.annotations.get(SELECT_POLICY)
            and any(SELECT_POLICY in _texts(template, "annotations") for template in self.templates.values())
        )

    @property
    def pin(self) -> str | None:
        """The backend that was already chosen."""
        for place in (self.fields, *self.templates.values()):
            annotations = _texts(place, "annotations")
            if pin := annotations.get(REQUIRE_BACKEND) or annotations.get(BACKEND):
                return pin
        return None


class BackendWish(msgspec.Struct, frozen=True):
    """The request of a workload for a choice."""

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
    # The object itself can be a pod, and parts of it can be templates.
    templates = {
        where: template
        for key, inner in value.items()
        if key != "metadata"
        for where, template in _templates(inner, (*path, key), set())
    }
    yield PodWorkload(path, value, templates)


def _templates(value: object, path: Path, barren: set[int]) -> Iterator[tuple[Path, Fields]]:
    """Every mapping with ``spec.containers`` is a pod template, so CronJobs, JobSets and future kinds
    work."""
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
        for template in _templates(inner, (*path, step), barren):
            barren.discard(id(value))
            yield template


def read_wish(workload: PodWorkload) -> BackendWish:
    """The request in the annotations; shots come from ``select-shots``, else the variable N_SHOTS, else
    1000."""
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
                # The variable belongs to the program: a value that is not a count is ignored.
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


BOM: Final = "\ufeff"

# In YAML this is a document marker everywhere, even inside a quoted scalar, where it is an error.
_MARKER = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_SPACE = re.compile(r"[ \t\r\n]*")


def decode(data: bytes) -> str:
    """Text that `encode` turns into the same bytes again, for any bytes."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def split(text: str) -> list[str]:
    """The documents of a stream, each with the marker that begins it; joined they are *text*."""
    starts = _json_starts(text)
    if starts is None:
        starts = [match.start() for match in _MARKER.finditer(text)]
    cuts = sorted({0, *starts, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(cuts)]


def join(streams: Sequence[Sequence[str]]) -> str:
    """Join several streams; a single one is unchanged."""
    if len(streams) == 1:
        return "".join(streams[0])
    parts: list[str] = []
    for document in (document for stream in streams for document in stream):
        body = document.removeprefix(BOM)
        if not body.strip():
            continue
        # Also before the first: a stream that begins with a brace is read as JSON to its end.
        parts.append(body if _MARKER.match(body) else f"---\n{body}")
        if not body.endswith("\n"):
            parts.append("\n")
    return "".join(parts)


def _json_starts(text: str) -> list[int] | None:
    """The starts of the values in a stream of JSON objects without separators, or None."""
    position = _SPACE.match(text, 1 if text.startswith(BOM) else 0).end()  # type: ignore[union-attr]
    if not text.startswith("{", position):
        return None
    decoder = json.JSONDecoder()
    starts: list[int] = []
    while position < len(text):
        try:
            _, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        starts.append(position)
        position = _SPACE.match(text, end).end()  # type: ignore[union-attr]
    # The space before the first value belongs to it.
    return starts[1:]


def is_json(document: str) -> bool:
    """One JSON object, and nothing else but space."""
    return document.lstrip(f"{BOM} \t\r\n").startswith("{") and _json_starts(document) == []
