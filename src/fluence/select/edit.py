"""Writes annotations into the text of a manifest: a few characters are inserted, all others stay.

Each method is tried in turn, and its result is parsed again. A result is accepted only if it is the old
document plus the annotations, and nothing else.

    splice        insert at the places that the YAML parser reports; keeps every existing byte
    round trip    ruamel.yaml: keeps comments and order; for aliases and merge keys, whose places are wrong
    rewrite       JSON with a shape that YAML parsers refuse, such as indentation by tabs
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import msgspec
import yaml

from fluence import yaml_loader
from fluence.errors import InvalidInput
from fluence.select.workload import BOM, Edit, Path, Wanted, is_json
from fluence.yaml_loader import BoundedLoader


class Unparsable(ValueError):
    """A document is neither YAML nor JSON."""


class _TextLoader(BoundedLoader):
    """YAML where every plain scalar but null is text: versions agree, and no number or date is rewritten."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own class attribute)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rsplit(":", 1)[-1] in ("null", "merge")]
        for first, resolvers in BoundedLoader.yaml_implicit_resolvers.items()
    }


def load(document: str) -> object:
    """The document as mappings, lists and texts, merge keys resolved."""
    body = document.removeprefix(BOM)
    try:
        if is_json(body):
            return json.loads(body, parse_int=str, parse_float=str, parse_constant=str)
        return yaml_loader.load(body, loader=_TextLoader)
    except yaml.YAMLError as error:
        raise Unparsable(_one_line(error)) from error
    except (ValueError, RecursionError) as error:
        raise Unparsable(str(error)) from error


def compose(document: str) -> yaml.Node | None:
    """The document as nodes with their places in *document*."""
    try:
        return yaml_loader.compose(document, loader=_TextLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unparsable(str(error)) from error


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


# What every YAML version reads as this very text. Words such as yes, null and 1e3 are quoted.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "none", "nan", "inf"])
_COMMENT = re.compile(r"[ \t]*#")


class _CannotEdit(Exception):
    """This way of writing does not fit the document."""


def stamp(document: str, edits: Sequence[Edit]) -> str:
    """*document* with the annotations of *edits*, and no other change."""
    expected = load(document)
    for edit in edits:
        expected = _with(expected, edit.path, edit.wanted)
    for write in (_splice, _rewrite_json, _round_trip):
        try:
            result = write(document, edits)
            if load(result) == expected:
                return result
        except (_CannotEdit, Unparsable, RecursionError):
            continue
    raise InvalidInput("the annotations cannot be written into this document without changing something else")


def _with(value: object, path: Path, wanted: Wanted) -> object:
    """A copy of *value* with *wanted* merged in at *path*; what aliases share is copied, not changed."""
    if path:
        if isinstance(value, list):
            return [_with(v, path[1:], wanted) if i == path[0] else v for i, v in enumerate(value)]
        assert isinstance(value, dict)
        return {k: _with(v, path[1:], wanted) if k == path[0] else v for k, v in value.items()}
    fields = dict(value) if isinstance(value, dict) else {}
    for key, inner in wanted.items():
        fields[key] = inner if isinstance(inner, str) else _with(fields.get(key), (), inner)
    return fields


# -- splice ------------------------------------------------------------------------------------------


class _Splice(msgspec.Struct, frozen=True):
    start: int
    end: int
    text: str


def _splice(document: str, edits: Sequence[Edit]) -> str:
    # The parser does not count the byte order mark.
    head, text = (BOM, document[1:]) if document.startswith(BOM) else ("", document)
    root = compose(text)
    splices = [splice for edit in edits for splice in _put(text, _walk(root, edit.path), edit.wanted)]
    for splice in sorted(splices, key=lambda s: s.start, reverse=True):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return head + text


def _walk(node: yaml.Node | None, path: Path) -> yaml.MappingNode:
    for step in path:
        if isinstance(step, int) and isinstance(node, yaml.SequenceNode):
            node = node.value[step]
        elif isinstance(step, str) and isinstance(node, yaml.MappingNode):
            node = _child(node, step)
        else:
            raise _CannotEdit
    if not isinstance(node, yaml.MappingNode):
        raise _CannotEdit
    return node


def _child(mapping: yaml.MappingNode, name: str) -> yaml.Node | None:
    # The last of several equal keys counts.
    return next((value for key, value in reversed(mapping.value) if key.value == name), None)


def _put(text: str, mapping: yaml.MappingNode, wanted: Wanted) -> list[_Splice]:
    splices: list[_Splice] = []
    missing: dict[str, str | Wanted] = {}
    for name, value in wanted.items():
        node = _child(mapping, name)
        if node is None:
            missing[name] = value
        elif isinstance(value, str):
            splices.append(_replace(text, node, value, is_flow=bool(mapping.flow_style)))
        elif isinstance(node, yaml.MappingNode):
            splices.extend(_put(text, node, value))
        elif isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
            space = "" if node.start_mark.index < node.end_mark.index else " "
            splices.append(_Splice(node.start_mark.index, node.end_mark.index, space + json.dumps(value)))
        else:
            raise _CannotEdit
    if missing:
        splices.append(_insert(text, mapping, missing))
    return splices


def _replace(text: str, node: yaml.Node, value: str, *, is_flow: bool) -> _Splice:
    if not isinstance(node, yaml.ScalarNode):
        raise _CannotEdit
    start, end = node.start_mark.index, node.end_mark.index
    space = "" if start < end else " "
    line_end = _newline(text) if node.style in ("|", ">") else ""
    return _Splice(start, end, space + _scalar(value, is_flow=is_flow) + line_end)


def _insert(text: str, mapping: yaml.MappingNode, missing: Wanted) -> _Splice:
    if mapping.flow_style:
        return _insert_flow(text, mapping, missing)
    if not mapping.value:
        raise _CannotEdit
    first = mapping.value[0][0].start_mark
    newline = _newline(text)
    lines = newline.join(_block(missing, first.column))
    last = _last(mapping)
    end = last.end_mark.index
    if end < first.index:
        raise _CannotEdit
    line_end = end - 1 if text[end - 1 : end] == "\n" else text.find("\n", end)
    # A block scalar that ends with the text would get a line break into its value.
    is_open = line_end < 0 and isinstance(last, yaml.ScalarNode) and last.style in ("|", ">")
    if "metadata" in missing or is_open:
        return _insert_in_front(text, first, lines, newline)
    if line_end < 0:
        return _Splice(len(text), len(text), newline + lines)
    return _Splice(line_end + 1, line_end + 1, lines + newline)


def _insert_in_front(text: str, first: yaml.Mark, lines: str, newline: str) -> _Splice:
    """Metadata goes before the spec, as usual, but not between the spec and its comment."""
    line_start = text.rfind("\n", 0, first.index) + 1
    if text[line_start : first.index].strip():
        return _Splice(first.index, first.index, lines.lstrip() + newline + " " * first.column)
    while (above := _line_above(text, line_start)) is not None and _COMMENT.match(text, above):
        line_start = above
    return _Splice(line_start, line_start, lines + newline)


def _insert_flow(text: str, mapping: yaml.MappingNode, missing: Wanted) -> _Splice:
    start = mapping.start_mark.index + 1
    entries = json.dumps(missing)[1:-1]
    if not mapping.value:
        return _Splice(start, start, entries)
    space = text[start : mapping.value[0][0].start_mark.index]
    if space.strip():
        space = ""
    if "\n" in space:
        entries = f",{space}".join(json.dumps({key: value})[1:-1] for key, value in missing.items())
    return _Splice(start, start, f"{space}{entries}," + ("" if space else " "))


def _last(node: yaml.Node) -> yaml.Node:
    """The last leaf of *node*: a block's own end mark is past the comments that follow it."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        entry = node.value[-1]
        key, value = entry if isinstance(entry, tuple) else (entry, entry)
        if value.start_mark.index < key.start_mark.index:
            # An alias: its node is elsewhere.
            raise _CannotEdit
        node = value
    return node


def _block(wanted: Wanted, indent: int) -> list[str]:
    lines: list[str] = []
    for key, value in wanted.items():
        if isinstance(value, str):
            lines.append(f"{' ' * indent}{key}: {_scalar(value, is_flow=False)}")
        else:
            lines += [f"{' ' * indent}{key}:", *_block(value, indent + 2)]
    return lines


def _scalar(value: str, *, is_flow: bool) -> str:
    if is_flow:
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    # Single quotes keep JSON readable; they cannot hold what must be escaped.
    if value.isascii() and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    return json.dumps(value)


def _line_above(text: str, line_start: int) -> int | None:
    return text.rfind("\n", 0, line_start - 1) + 1 if line_start > 0 else None


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


# -- the other two -----------------------------------------------------------------------------------


def _rewrite_json(document: str, edits: Sequence[Edit]) -> str:
    if not is_json(document):
        raise _CannotEdit
    value: object = json.loads(document.removeprefix(BOM))
    for edit in edits:
        value = _with(value, edit.path, edit.wanted)
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _round_trip(document: str, edits: Sequence[Edit]) -> str:
    # Slow to load and to run: only for the rare document that needs it.
    from copy import deepcopy
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.anchor import Anchor
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import YAMLError

    def unshared(mapping: CommentedMap | None) -> CommentedMap:
        copied = CommentedMap() if mapping is None else deepcopy(mapping)
        if hasattr(copied, Anchor.attrib):
            delattr(copied, Anchor.attrib)
        return copied

    editor = YAML()
    editor.preserve_quotes = True
    editor.width = 1 << 20
    editor.explicit_start = document.removeprefix(BOM).startswith("---")
    try:
        root = editor.load(document)
        for edit in edits:
            place = root
            for step in edit.path:
                place = place[step]
            # Copies, because an alias or a merge key may share the old ones with another object.
            place["metadata"] = metadata = unshared(place.get("metadata"))
            metadata["annotations"] = annotations = unshared(metadata.get("annotations"))
            annotations.update(edit.annotations)
        out = StringIO()
        editor.dump(root, out)
    except (YAMLError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _CannotEdit from error
    return out.getvalue()
