"""One document of a stream: what it says, and where in its text each part of it stands."""

from __future__ import annotations

import json

import yaml

from fluence import yaml_loader
from fluence.select.stream import BOM, is_json
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
    """The document as nodes that know where in *document* they stand."""
    try:
        return yaml_loader.compose(document, loader=_TextLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Unparsable(str(error)) from error


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)
