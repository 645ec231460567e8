"""Streams of manifests: split into documents and joined again without changing a byte."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Final

BOM: Final = "\ufeff"

# In YAML this is a document marker wherever it stands, even inside a quoted scalar, where it is an error.
_MARKER = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_SPACE = re.compile(r"[ \t\r\n]*")


def decode(data: bytes) -> str:
    """Text that `encode` turns into the same bytes again, whatever they are."""
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
    """One stream of several; a single one stays as it is."""
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
    """Where the values of a stream of JSON objects begin (no markers stand between them), or None."""
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
