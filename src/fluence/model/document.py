"""Reads YAML or JSON into plain values as Fluxion's reader does: every scalar stays text.

Fluxion uses yaml-cpp, in which `count: 4` and `count: "4"` are the same, and only one rule requires quotes.
So a scalar stays the text that was written: `str` if it was quoted, `Plain` if not, `None` for an unquoted
null. JSON is read by the fast standard reader, with the same result.

Malicious documents are refused before anything is built from them: repeated keys, aliases that refer to
themselves or multiply, and deep nesting.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import yaml

from fluence.errors import InvalidJobspec

MAX_DEPTH = 100
MAX_VALUES = 1_000_000  # scalars, lists and mappings; an alias counts with its whole content

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_STREAM_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|(0|[1-9][0-9]*))")


class Plain(str):
    """An unquoted scalar."""

    __slots__ = ()


class _RepeatedKey(Exception):
    """A JSON mapping has a key twice; the YAML reader then finds out where."""


def place(source: str, path: str) -> str:
    return f"{source}: {path}" if path else source


def child(path: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    name = key if key.isascii() and key.isidentifier() and len(key) <= 60 else show(key)
    return f"{path}.{name}" if path else name


def show(value: object) -> str:
    """*value* for a message: one line, and short."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number of over 64 bits"
    text = ascii(str(value)) if isinstance(value, str) else ascii(value)
    if isinstance(value, Plain):
        text = text[1:-1]
    return text if len(text) <= 60 else f"{text[:56]}..."


def read(text: str | bytes, source: str) -> object:
    """The first document in *text*."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise InvalidJobspec(f"byte {e.start} is not UTF-8; save it as UTF-8", where=source) from None
    if text.lstrip()[:1] == "{":
        try:
            value = json.loads(
                text, object_pairs_hook=_mapping, parse_int=Plain, parse_float=Plain, parse_constant=Plain
            )
        except (ValueError, RecursionError, _RepeatedKey):
            pass  # not JSON, or invalid JSON: the reader below reports the error and its place
        else:
            check(value, source)
            return value
    return _read_yaml(text, source)


def check(value: object, source: str) -> None:
    """Refuse values that no document can hold, that are nested too deep, or that are too many."""
    if not _is_sound(value):
        _blame(value, source)


def _is_sound(root: object) -> bool:
    left = MAX_VALUES
    level = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[object] = []
        left -= len(level)
        if left < 0:
            return False
        for value in level:
            if isinstance(value, str):
                if not (value.isascii() or _is_unicode(value)):
                    return False
            elif isinstance(value, dict):
                for key in value:
                    if not (isinstance(key, str) and (key.isascii() or _is_unicode(key))):
                        return False
                below.extend(value.values())
            elif isinstance(value, list | tuple):
                below.extend(value)
            elif isinstance(value, float):
                if not math.isfinite(value):
                    return False
            elif not (value is None or isinstance(value, int)):
                return False
        if not below:
            return True
        level = below
    return False


def _blame(root: object, source: str) -> NoReturn:
    """Raise the error for a document that is not sound; this walk keeps the path, which takes time."""
    left = MAX_VALUES
    waiting: list[tuple[object, str, int]] = [(root, "", 0)]
    while waiting and left > 0:
        value, path, depth = waiting.pop()
        left -= 1
        where = place(source, _shorten(path))
        if depth > MAX_DEPTH:
            raise InvalidJobspec(_TOO_DEEP, where=where)
        if isinstance(value, str):
            if not _is_unicode(value):
                raise InvalidJobspec("has half a surrogate pair; remove it", where=where)
        elif isinstance(value, dict):
            for key, item in value.items():
                if not (isinstance(key, str) and _is_unicode(key)):
                    raise InvalidJobspec(f"has the key {show(key)}, which is not text", where=where)
                waiting.append((item, child(path, key), depth + 1))
        elif isinstance(value, list | tuple):
            waiting.extend((item, child(path, i), depth + 1) for i, item in enumerate(value))
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidJobspec(f"must be a finite number, not {value}", where=where)
        elif not (value is None or isinstance(value, int | float)):
            kind = type(value).__name__
            raise InvalidJobspec(
                f"is a Python {kind}; use None, bool, int, float, str, list or dict", where=where
            )
    raise InvalidJobspec(f"holds over {MAX_VALUES} values; make the document smaller", where=source)


def scalar(value: object) -> str | None:
    """The text of a scalar; ``None`` for a null, a list, a mapping or an absurd number."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else None
    if isinstance(value, float):
        return repr(value)
    return None


def integer(text: str) -> int | None:
    """The whole number that *text* is, as C++ streams read it: decimal, `0x` hexadecimal, or `0` octal."""
    match = _STREAM_INTEGER.fullmatch(text.rstrip(" \t\r\n")) if len(text) <= 100 else None
    if match is None:
        return None
    sign, hexadecimal, octal, decimal = match.groups()
    if hexadecimal is not None:
        number = int(hexadecimal, 16)
    elif octal is not None:
        number = int(octal, 8)
    else:
        number = int(decimal)
    return -number if sign == "-" else number


def real(text: str) -> float | None:
    """The number that *text* is; NaN and infinity, written `.nan` and `.inf`, are numbers here."""
    text = text.rstrip(" \t\r\n")
    if _NUMBER.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    bare = text.lower().lstrip("+-")
    if bare == ".inf":
        return -math.inf if text[0] == "-" else math.inf
    return math.nan if text.lower() == ".nan" else None


def resolve(value: object, where: str) -> JsonValue:
    """*value* with its unquoted scalars turned into the numbers and booleans they look like."""
    if isinstance(value, Plain):
        if value in _BOOLS:
            return _BOOLS[value]
        if _INTEGER.fullmatch(value):
            return _fit(int(value) if len(value) <= 21 else 2**64, where)
        if not _NUMBER.fullmatch(value):
            return str(value)
        number = float(value)
        if not math.isfinite(number):
            raise InvalidJobspec("must fit in a double; put quotes around it", where=where)
        return number
    if isinstance(value, dict):
        return {str(key): resolve(item, child(where, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, child(where, i)) for i, item in enumerate(value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return _fit(value, where)
    assert value is None or isinstance(value, str | bool | float)  # `check` has seen to it
    return value


def _fit(number: int, where: str) -> int:
    if not -(2**63) <= number < 2**64:
        raise InvalidJobspec("must fit in 64 bits; put quotes around it", where=where)
    return number


class Quoted(str):
    """Text that is always written with quotes."""

    __slots__ = ()


class _Writer(_DUMPER):  # type: ignore[misc]
    """Quotes all text that `resolve` would take for something else."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(writer: Any, data: str) -> yaml.ScalarNode:
    is_odd = isinstance(data, Quoted) or not (data.isascii() and data.isprintable())
    style = '"' if is_odd or data in _NULLS or data in _BOOLS or _NUMBER.fullmatch(data) else None
    node = writer.represent_scalar("tag:yaml.org,2002:str", str(data), style=style)
    assert isinstance(node, yaml.ScalarNode)
    return node


_Writer.add_representer(str, _represent_text)
_Writer.add_representer(Quoted, _represent_text)


def write_yaml(value: JsonValue) -> str:
    text: str = yaml.dump(value, Dumper=_Writer, sort_keys=False, default_flow_style=False, width=110)
    return text


_TOO_DEEP = f"is nested over {MAX_DEPTH} levels deep; make the document flatter"


def _is_unicode(text: str) -> bool:
    """False when half a surrogate pair is in it, which no encoding can write."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shorten(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:117]}..."


def _mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise _RepeatedKey
    return mapping


@dataclass(slots=True)
class _Frame:
    """A list or mapping being read."""

    into: list[object] | dict[str, object]
    path: str
    anchor: str | None
    key: str | None = None
    size: int = 1  # values in it so far, itself included
    height: int = 0  # levels below it
    items: int = 0


@dataclass(slots=True)
class _Anchor:
    value: object
    size: int
    height: int


@dataclass(slots=True)
class _Builder:
    """Builds the value of one YAML document from parser events, without recursion."""

    source: str
    stack: list[_Frame] = field(default_factory=list)
    anchors: dict[str, _Anchor | None] = field(
        default_factory=dict
    )  # None while the anchored value is being read
    root: object = None

    def build(self, events: Iterator[Any]) -> object:
        for event in events:
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event)
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.SequenceStartEvent):
                self._open([], event)
            elif isinstance(event, yaml.MappingStartEvent):
                self._open({}, event)
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                frame = self.stack.pop()
                if frame.anchor is not None:
                    self.anchors[frame.anchor] = _Anchor(frame.into, frame.size, frame.height)
                self._add(frame.into, frame.size, frame.height)
            elif isinstance(event, yaml.DocumentEndEvent):
                break  # NB Fluxion reads the first document of a file, and so do we
        return self.root

    def _fail(self, message: str, event: Any) -> InvalidJobspec:
        path = self._next_path()
        line = event.start_mark.line + 1
        return InvalidJobspec(f"{message} (line {line})", where=place(self.source, _shorten(path)))

    def _next_path(self) -> str:
        if not self.stack:
            return ""
        frame = self.stack[-1]
        if isinstance(frame.into, list):
            return child(frame.path, frame.items)
        return child(frame.path, frame.key) if frame.key is not None else frame.path

    def _scalar(self, event: Any) -> None:
        is_plain = event.tag is None and not event.style
        # yaml-cpp gives quoted text the tag "!", an explicit tag takes its place: `!!str "x"` is not quoted
        is_quoted = event.tag == "!" or (event.tag is None and not is_plain)
        text: str = event.value
        frame = self.stack[-1] if self.stack else None
        if frame is not None and isinstance(frame.into, dict) and frame.key is None:
            if text in frame.into:
                raise self._fail(f"has the key {show(text)} twice; keep one of them", event)
            frame.key = text
            if event.anchor is not None:
                self.anchors[event.anchor] = _Anchor(text, 1, 0)
            return
        value: object
        if is_plain and text in _NULLS:
            value = None
        else:
            value = text if is_quoted else Plain(text)
        if event.anchor is not None:
            self.anchors[event.anchor] = _Anchor(value, 1, 0)
        self._add(value, 1, 0)

    def _open(self, into: list[object] | dict[str, object], event: Any) -> None:
        if self.stack and isinstance(self.stack[-1].into, dict) and self.stack[-1].key is None:
            raise self._fail("has a key that is not text; make it text", event)
        if len(self.stack) > MAX_DEPTH:
            raise self._fail(_TOO_DEEP, event)
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.stack.append(_Frame(into, self._next_path(), event.anchor))

    def _alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            raise self._fail(f"refers to &{event.anchor}, which is not defined above it", event)
        anchor = self.anchors[event.anchor]
        if anchor is None:
            raise self._fail(f"refers to itself through *{event.anchor}; write the value out", event)
        frame = self.stack[-1]  # NB an alias is never the root: its anchor would have to come before it
        if isinstance(frame.into, dict) and frame.key is None:
            if not isinstance(anchor.value, str):
                raise self._fail("has a key that is not text; make it text", event)
            if anchor.value in frame.into:
                raise self._fail(f"has the key {show(anchor.value)} twice; keep one of them", event)
            frame.key = anchor.value
            return
        if len(self.stack) + anchor.height > MAX_DEPTH:
            raise self._fail(_TOO_DEEP, event)
        self._add(anchor.value, anchor.size, anchor.height)
        if frame.size > MAX_VALUES:
            raise self._fail(f"stands for over {MAX_VALUES} values through its aliases; write fewer", event)

    def _add(self, value: object, size: int, height: int) -> None:
        if not self.stack:
            self.root = value
            return
        frame = self.stack[-1]
        frame.size += size
        frame.height = max(frame.height, height + 1)
        if isinstance(frame.into, list):
            frame.into.append(value)
            frame.items += 1
        else:
            assert frame.key is not None
            frame.into[frame.key] = value
            frame.key = None


def _read_yaml(text: str, source: str) -> object:
    try:
        value = _Builder(source).build(yaml.parse(text, Loader=_LOADER))
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        problem = e.problem or e.context or "not YAML"
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise InvalidJobspec(f"is neither YAML nor JSON: {_one_line(problem)}{where}", where=source) from None
    except (yaml.YAMLError, UnicodeError, ValueError) as e:
        raise InvalidJobspec(f"is neither YAML nor JSON: {_one_line(str(e))}", where=source) from None
    check(value, source)
    return value


def _one_line(text: str) -> str:
    return " ".join(ascii(text)[1:-1].replace("\\n", " ").split())[:200]
