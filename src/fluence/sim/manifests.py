"""Kubernetes manifests as a workload: which objects arrive when.

A file arrives as a whole, so many seconds after the one before it; the annotation
`fluence.flux-framework.org/arrival` on an object names its own time, and that of those behind it in the file.
What makes no pods here (a Service, a ConfigMap, a StatefulSet) is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from fluence import names
from fluence.errors import InvalidInput
from fluence.names import RESOURCES_CONFIGMAP
from fluence.sim.cluster import KINDS, check_manifest
from fluence.sim.intake import left_out
from fluence.units import parse_duration
from fluence.yaml_loader import load_all, problem

_SUFFIXES = (".yaml", ".yml", ".json")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrival:
    """An object, and when it arrives."""

    at: int
    """ms after the workload's beginning."""
    document: Json
    source: str


@dataclass(frozen=True, slots=True)
class ManifestWorkload:
    """The objects of some files, by time of arrival."""

    arrivals: tuple[Arrival, ...]
    source: str
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Objects that were left out: cause -> how many."""

    def scaled(self, factor: float) -> ManifestWorkload:
        """The same with the offsets of arrivals multiplied."""
        found = (Arrival(round(each.at * factor), each.document, each.source) for each in self.arrivals)
        return ManifestWorkload(tuple(found), self.source, self.skipped)


def read(paths: Sequence[str | Path], *, every: int = 0, strict: bool = False) -> ManifestWorkload:
    """The objects of files and directories; file by file, ``every`` so many ms.

    ``strict`` refuses an object that makes no pods here instead of counting it.
    """
    files = [file for path in paths for file in _files(Path(path))]
    arrivals: list[Arrival] = []
    skipped: Counter[str] = Counter()
    for number, file in enumerate(files):
        at = number * every
        for index, document in enumerate(_documents(_read(file), str(file))):
            where = f"{file}: document {index + 1}"
            kind = _kind(document, where)
            if not _is_read(document, kind):
                if strict:
                    raise InvalidInput(f"{' '.join(kind)} makes no pods here: leave it out", where=where)
                skipped[f"{kind[1]} (makes no pods here)"] += 1
                continue
            at = _arrival(document, at, where)
            check_manifest(document, where=where)
            arrivals.append(Arrival(at, document, where))
    source = ", ".join(str(path) for path in paths)
    if not arrivals:
        raise InvalidInput(
            f"nothing to simulate: no Pod, Job, Deployment or PodGroup{left_out(skipped)}", where=source
        )
    return ManifestWorkload(tuple(sorted(arrivals, key=lambda each: each.at)), source, dict(skipped))


def _files(path: Path) -> list[Path]:
    """A file itself; of a directory, its manifests in order of their names, as `kubectl apply -f` has it."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES and each.is_file())
    if not found:
        raise InvalidInput(f"has no manifests: no file ends in {', '.join(_SUFFIXES)}", where=str(path))
    return found


def parse(text: bytes, *, source: str) -> list[Json]:
    """The objects of a text that all make pods or gather them, each of them checked."""
    found = []
    for index, document in enumerate(_documents(text, source)):
        where = f"{source}: document {index + 1}"
        kind = _kind(document, where)
        if not _is_read(document, kind):
            raise InvalidInput(f"{' '.join(kind)} makes no pods here: leave it out", where=where)
        check_manifest(document, where=where)
        found.append(document)
    if not found:
        raise InvalidInput("has no Pod, Job, Deployment or PodGroup", where=source)
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from None


def _documents(text: bytes, source: str) -> Iterator[Json]:
    """The objects of a text; a List is what it holds."""
    try:
        found = list(load_all(text))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"is not valid YAML: {problem(error)}", where=source) from None
    for number, document in enumerate(found):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise InvalidInput("must be an object with apiVersion and kind", where=f"{source}: [{number}]")
        items = document.get("items")
        if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
            yield from (_with_texts(each) for each in items if isinstance(each, dict))
        else:
            yield _with_texts(document)


def _with_texts(value: Any, *, quantities: bool = False) -> Any:
    """The same with quantities that are texts: `cpu: 4` is a number in YAML, and the API server makes it
    one of its quantities, which it writes as texts."""
    if isinstance(value, dict):
        return {
            key: _with_texts(each, quantities=quantities or key in ("requests", "limits"))
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    return str(value) if quantities and type(value) in (int, float) else value


def _is_read(document: Json, kind: tuple[str, str]) -> bool:
    """Whether an object makes pods or gathers them, or declares devices."""
    meta = document.get("metadata")
    name = meta.get("name") if isinstance(meta, dict) else None
    return kind in KINDS and (kind[1] != "ConfigMap" or name == RESOURCES_CONFIGMAP)


def _kind(document: Json, where: str) -> tuple[str, str]:
    version, kind = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(kind, str):
        raise InvalidInput("must be an object with apiVersion and kind", where=where)
    return version, kind


def _arrival(document: Json, at: int, where: str) -> int:
    meta = document.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    said = notes.get(names.ARRIVAL) if isinstance(notes, dict) else None
    if said is None:
        return at
    length = parse_duration(str(said))
    if length is None:
        raise InvalidInput(
            f"{str(said)[:40]!r} is not a valid time: write seconds, or 90s, 15m, 2h30m",
            where=f"{where}: annotation {names.ARRIVAL}",
        )
    return length
