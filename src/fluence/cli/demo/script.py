"""Script: the example manifests in the order of their numbers, and how many pods each makes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fluence.model.pod import Pod

_PACKAGED, _REPOSITORY = Path(__file__).parent / "files", Path(__file__).parents[4] / "examples"
FILES = _PACKAGED if _PACKAGED.exists() else _REPOSITORY  # a wheel has a copy; see pyproject.toml
MANIFESTS = FILES / "cluster"
REAL = FILES / "real"
NODES = FILES / "nodes.yaml"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """One file: pods that are one gang, marked by the label `app`."""

    name: str
    path: Path
    purpose: str  # its first sentence
    documents: tuple[Json, ...]

    @property
    def pods(self) -> int:
        return sum(_pods(each) for each in self.documents)


def read_script(version: str) -> list[Work]:
    """The examples for one release, in order of their numbers."""
    paths = [*MANIFESTS.glob("*.yaml"), *(MANIFESTS / version).glob("*.yaml")]
    return [_read(path) for path in sorted(paths, key=lambda path: path.name)]


def read_real() -> list[Work]:
    """The examples whose containers run and print."""
    return [_read(path) for path in sorted(REAL.glob("*.yaml"))]


def where() -> str:
    """The example files as seen from here."""
    return "examples" if Path("examples/nodes.yaml").exists() else str(FILES)


def work_of(pod: Pod) -> str:
    """The name of the workload that a pod belongs to."""
    return pod.labels.get("app", "")


def purpose(text: str) -> str:
    """The first sentence of the comment that a file starts with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    comment = " ".join(lines)
    end = comment.find(". ")
    return comment if end < 0 else comment[: end + 1]


def _read(path: Path) -> Work:
    text = path.read_text()
    documents = tuple(each for each in yaml.safe_load_all(text) if each)
    return Work(path.stem.partition("-")[2], path, purpose(text), documents)


def _pods(document: Json) -> int:
    match document["kind"]:
        case "Pod":
            return 1
        case "Job":
            return int(document["spec"].get("parallelism", 1))
        case "Deployment":
            return int(document["spec"].get("replicas", 1))
        case _:
            return 0
