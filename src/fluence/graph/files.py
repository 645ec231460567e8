"""Read and write graph files, in a given format or in the format that the content suggests.

The programs use it for `-L` and for graph arguments, and `ResourceGraph.load` for user programs.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph import export, jgf
from fluence.graph.graph import Batch, ResourceGraph

FORMATS = ("grug", "jgf", "hwloc", "rv1exec", "rv1exec_force", "jgf_shorthand")

_BY_SUFFIX = {".graphml": "grug", ".xml": "hwloc", ".json": "jgf", ".jgf": "jgf"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _FileKeys(msgspec.Struct):
    """The keys that distinguish the JSON formats; their values are skipped, not decoded."""

    graph: msgspec.Raw = msgspec.Raw()
    execution: msgspec.Raw = msgspec.Raw()


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
        raise InvalidInput(f"{format_!r} is not a valid graph format: choose one of {', '.join(FORMATS)}")
    if format_ in ("jgf", "jgf_shorthand"):
        return jgf.read(text, source=source)
    from fluence.graph import grug, hwloc, rv1

    if format_ == "grug":
        return grug.read(text, source=source, links=True)
    if format_ == "hwloc":
        return hwloc.read(text, allow=allow, source=source)
    return rv1.read(text, force=format_ == "rv1exec_force", source=source)


def graph_of(
    text: bytes, format_: str | None, *, source: str, allow: Collection[str] | None = None
) -> ResourceGraph:
    """The graph that a text describes; without a format, the format is guessed."""
    text = _readable(text, source)
    if format_ is None:
        format_ = guess(text, source=source)
    batch = parse(text, format_, source=source, allow=allow)
    graph = ResourceGraph()
    try:
        graph.extend(batch)
    except InvalidGraph as error:
        if error.where:
            raise
        raise InvalidGraph(str(error), where=source) from None
    if not len(graph):
        raise InvalidGraph("describes no vertices: a graph needs at least a root", where=source)
    return graph


def _readable(text: bytes, source: str) -> bytes:
    """The text without a byte order mark. Some Windows editors write UTF-16, but JSON must be UTF-8."""
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidGraph("is UTF-16 text: save it as UTF-8", where=source)
    if text[:4096].lstrip().startswith(b"{") and not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidGraph(
                f"is not UTF-8 at byte {error.start}: save it as UTF-8", where=source
            ) from None
    return text


def guess(text: bytes, *, source: str = "graph") -> str:
    """The format of a text, from its content, else from the name of the file."""
    start = text[:4096].lstrip()
    if start.startswith(b"<"):
        if b"<graphml" in start:
            return "grug"
        if b"<topology" in start or b"hwloc" in start:
            return "hwloc"
    elif start.startswith(b"{"):
        try:
            keys = msgspec.json.decode(text, type=_FileKeys)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Invalid JSON: either reader reports the place of the error.
            return "rv1exec" if b'"R_lite"' in start else "jgf"
        return "rv1exec" if bytes(keys.execution) and not bytes(keys.graph) else "jgf"
    suffix = Path(source).suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    raise InvalidGraph(
        "does not look like a graph: name its format, one of grug, jgf, hwloc, rv1exec", where=source
    )


def dump(graph: ResourceGraph, path: str | Path, format_: str) -> None:
    """Write the whole graph into a file."""
    Path(path).write_text(export.render(graph, format_))
