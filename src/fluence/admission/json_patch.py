"""JSON patch: apply the operations that rules make (RFC 6902: add and remove), leaving the original alone."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from fluence.errors import InvalidInput

Operation = dict[str, Any]


def apply(document: Any, operations: Iterable[Operation]) -> Any:
    """The document after these operations; one that cannot be carried out names its path."""
    found = copy.deepcopy(document)
    for operation in operations:
        _apply(found, operation)
    return found


def _apply(document: Any, operation: Operation) -> None:
    path = operation["path"]
    steps = [each.replace("~1", "/").replace("~0", "~") for each in path.split("/")[1:]]
    parent = document
    try:
        for step in steps[:-1]:
            parent = parent[int(step)] if isinstance(parent, list) else parent[step]
        last = steps[-1]
        if operation["op"] == "remove":
            del parent[int(last) if isinstance(parent, list) else last]
        elif isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else int(last), copy.deepcopy(operation["value"]))
        else:
            parent[last] = copy.deepcopy(operation["value"])
    except (KeyError, IndexError, ValueError, TypeError):
        raise InvalidInput("there is nothing to change here", where=path) from None
