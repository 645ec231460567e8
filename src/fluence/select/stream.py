"""Streams of manifests: split into documents and joined again without changing a byte."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

BOM: Final = "\ufeff"

# In YAML this is a document marker wherever it stands, even inside a quoted scalar, where it is an error.
_MARKER = re.compile(r"^---(?=[ \t\r\n]|\Z)", re.MULTILINE)
_SPACE = re.compile(r"[ \t\r\n]*")


class Unparsable(ValueError):
    """A document is neither YAML nor JSON."""


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


# CSafeLoader is what PyYAML calls libyaml; the pure loader is thirty times slower and gives the same.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextLoader(_Loader):  # type: ignore[misc]
    """YAML where every plain scalar but null is text: versions agree, and no number or date is rewritten."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own class attribute)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rsplit(":", 1)[-1] in ("null", "merge")]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


def is_json(document: str) -> bool:
    return document.lstrip(f"{BOM} \t\r\n").startswith("{") and _json_starts(document) == []


def load(document: str) -> object:
    """The document as mappings, lists and texts, merge keys resolved."""
    body = document.removeprefix(BOM)
    try:
        if is_json(body):
            return json.loads(body, parse_int=str, parse_float=str, parse_constant=str)
        return yaml.load(body, Loader=_TextLoader)
    except yaml.YAMLError as error:
        raise Unparsable(_one_line(error)) from error
    except (ValueError, RecursionError) as error:
        raise Unparsable(str(error)) from error


def compose(document: str) -> yaml.Node | None:
    """The document as nodes that know where in *document* they stand."""
    try:
        node: yaml.Node | None = yaml.compose(document, Loader=_TextLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unparsable(str(error)) from error
    return node


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)
