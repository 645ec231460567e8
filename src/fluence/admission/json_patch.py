"""JSON patch: apply the operations that rules make (RFC 6902: add and remove), leaving the original alone.

Only what lies on the path of an operation is copied, once; everything else is shared with the original.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fluence.errors import InvalidInput

Operation = dict[str, Any]


def apply(document: Any, operations: Iterable[Operation]) -> Any:
    """The document after these operations; one that cannot be carried out names its path."""
    holder = {"": document}
    own: dict[int, Any] = {id(holder): holder}  # what is copied already; held, so that no id is given twice
    for operation in operations:
        _apply(holder, operation, own)
    return holder[""]


def _apply(holder: dict[str, Any], operation: Operation, own: dict[int, Any]) -> None:
    path = operation["path"]
    steps = [each.replace("~1", "/").replace("~0", "~") for each in path.split("/")]
    parent: Any = holder
    try:
        for step in steps[:-1]:
            key = int(step) if isinstance(parent, list) else step
            found = parent[key]
            if id(found) not in own:
                found = parent[key] = _copied(found)
                own[id(found)] = found
            parent = found
        last = steps[-1]
        if operation["op"] == "remove":
            del parent[int(last) if isinstance(parent, list) else last]
        elif isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else int(last), operation["value"])
        else:
            parent[last] = operation["value"]
    except (KeyError, IndexError, ValueError, TypeError):
        raise InvalidInput("there is nothing to change here", where=path) from None


def _copied(found: Any) -> Any:
    if isinstance(found, dict | list):
        return found.copy()
    raise TypeError
