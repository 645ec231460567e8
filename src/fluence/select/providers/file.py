"""The `file` provider: attributes from the user's own file, YAML or JSON.

version: 1
backends:
  - name: gpu-l4
    region: us-east-1
    attributes: {cost_usd: 0.80, memory_gb: 24}
    strings: {family: ada}
  - name: rigetti_cepheus
    device_arn: arn:aws:braket:us-west-1::device/qpu/rigetti/Cepheus-1-108Q
    cost_per_task: 0.30
    cost_per_shot: 0.00090
    qubits: 108
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import yaml

from fluence.errors import InvalidInput
from fluence.select.policies import Backend, priced
from fluence.select.providers import BackendAnswer, BackendQuery
from fluence.yaml_loader import load

_COMPONENTS = ("cost_per_task", "cost_per_shot", "cost_per_minute", "qubits")


class FileEntry(msgspec.Struct, frozen=True):
    """One backend as the file has it."""

    name: str
    device_arn: str | None = None
    region: str | None = None
    provider: str | None = None
    cost_per_task: float | None = None
    cost_per_shot: float | None = None
    cost_per_minute: float | None = None
    qubits: float | None = None
    attributes: dict[str, float] | None = None
    strings: dict[str, str] | None = None

    def backend(self, *, shots: int) -> Backend:
        numbers = dict(self.attributes or {})
        for key in _COMPONENTS:
            if (value := getattr(self, key)) is not None:
                numbers[key] = value
        return Backend(
            name=self.name,
            device_arn=self.device_arn,
            region=self.region,
            provider=self.provider,
            attributes=priced(numbers, shots=shots),
            strings=dict(self.strings or {}),
        )


class FileAttributes(msgspec.Struct, frozen=True):
    """The file."""

    backends: list[FileEntry] = []
    version: int = 1
    warnings: list[str] = []
    """What in it means nothing."""


class FileProvider:
    """Reads the file once; each question is priced for its own number of shots."""

    name = "file"
    supplies: frozenset[str] | None = None

    def __init__(self, path: str) -> None:
        self._attributes = read_attributes(path)

    def fetch(self, ask: BackendQuery) -> BackendAnswer:
        backends = [entry.backend(shots=ask.request.shots) for entry in self._attributes.backends]
        return BackendAnswer(backends, warnings=self._attributes.warnings)


def read_attributes(path: str) -> FileAttributes:
    """The file, checked: a wrong entry is named by its place and its backend."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(error.strerror or str(error), where=f"read attribute file {path}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput("not UTF-8 text", where=f"parse attribute file {path}") from error
    return parse_attributes(text, where=f"attribute file {path}")


def parse_attributes(text: str, *, where: str) -> FileAttributes:
    try:
        value = load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise InvalidInput(f"{line}{problem}", where=f"parse {where}") from error
    if value is None:
        raise InvalidInput(f"{where} has no backends")
    try:
        content = msgspec.convert(value, FileAttributes)
    except msgspec.ValidationError as error:
        raise InvalidInput(_located(error, value), where=f"parse {where}") from error
    if content.version != 1:
        raise InvalidInput(f"version {content.version} is not known (want 1)", where=f"parse {where}")
    if not content.backends:
        raise InvalidInput(f"{where} has no backends")
    _check(content.backends, where)
    return msgspec.structs.replace(content, warnings=_unknown_fields(value["backends"], where))


def _unknown_fields(entries: list[dict[str, object]], where: str) -> list[str]:
    """Warned of, not refused: files for other readers of this format may have more in them."""
    known = set(FileEntry.__struct_fields__)
    return [
        f"{where}: backends[{i}] ({entry['name']}): field {key} means nothing; numbers go under attributes:, "
        "texts under strings:"
        for i, entry in enumerate(entries)
        for key in entry
        if key not in known
    ]


def _check(entries: list[FileEntry], where: str) -> None:
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        place = f"parse {where}: backends[{i}]"
        if not entry.name.strip():
            raise InvalidInput("name is empty", where=place)
        if entry.name in seen:
            raise InvalidInput(f'"{entry.name}" is described twice; keep one of them', where=place)
        seen.add(entry.name)
        numbers = {**(entry.attributes or {}), **{key: getattr(entry, key) for key in _COMPONENTS}}
        for key, value in numbers.items():
            if value is not None and not math.isfinite(value):
                raise InvalidInput(f"{key} of {entry.name} is {value}, not a finite number", where=place)
        for key in ("cost_per_task", "cost_per_shot", "cost_per_minute"):
            if (numbers.get(key) or 0) < 0:
                raise InvalidInput(f"{key} of {entry.name} is less than 0", where=place)


def _wrong_key(entry: dict[str, object], path: str) -> str:
    """msgspec says that a value of a mapping is wrong, not which."""
    field = path.removesuffix("[...]").rpartition(".")[2]
    values = entry.get(field)
    right = str if field == "strings" else (int, float)
    wrong = [k for k, v in values.items() if not isinstance(v, right)] if isinstance(values, dict) else []
    return f".{wrong[0]}" if wrong else ""


def _located(error: msgspec.ValidationError, value: object) -> str:
    """msgspec's message with the field first and the backend's name in it."""
    problem, _, path = str(error).partition(" - at `")
    path = path.rstrip("`").removeprefix("$").removeprefix(".")
    index = path.removeprefix("backends[").partition("]")[0]
    name = None
    if isinstance(value, dict) and index.isdigit():
        entry = value["backends"][int(index)]
        if isinstance(entry, dict):
            name = entry.get("name")
            path = path.replace("[...]", _wrong_key(entry, path))
    place = f"{path} ({name})" if name else path
    return f"{place}: {problem}" if place else problem
