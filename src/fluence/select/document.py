"""One document of a stream: what it says, and where in its text each part of it stands."""

from __future__ import annotations

import json
from typing import Any

import yaml

from fluence.select.stream import BOM, is_json


class Unparsable(ValueError):
    """A document is neither YAML nor JSON."""


# CSafeLoader is what PyYAML calls libyaml; the pure loader is thirty times slower and gives the same.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextLoader(_Loader):  # type: ignore[misc]
    """YAML where every plain scalar but null is text: versions agree, and no number or date is rewritten."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (PyYAML's own class attribute)
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rsplit(":", 1)[-1] in ("null", "merge")]
        for first, resolvers in _Loader.yaml_implicit_resolvers.items()
    }


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
