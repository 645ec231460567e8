"""Patch: reads an object in the webhook, and makes the JSON patch operations of a rule.

The functions have the names of those in `cel`, which write the same edits for the API server. They read the
object as it was before the rule, and return operations (RFC 6902: add and remove). A field that is null is
absent, as on the server. Users decide how large an object is, so the time of an edit grows linearly with the
size of the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fluence.errors import InvalidInput

Operation = dict[str, Any]
Steps = tuple[str, ...]

CONTAINER_LISTS: Final = ("containers", "initContainers")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A new object and the request that creates it."""

    object: Any
    kind: str
    namespace: str
    variables: Mapping[str, str]
    """By name of a container's variable, the annotation whose value it gets (HandOff)."""
    user: str = ""
    """Who sent the request."""
    old: Any = None
    """The object before an update."""
    lists_gangs: bool = False
    """Whether pods get the PodGroup of their gang (HandOff)."""

    def field(self, *steps: str) -> Any:
        return field(self.object, *steps)

    def text(self, *steps: str) -> str:
        return text(self.object, *steps)

    def has(self, *steps: str) -> bool:
        return field(self.object, *steps) is not None

    def items(self, *steps: str) -> list[Any]:
        return field(self.object, *steps) or []

    def containers(self) -> Iterator[tuple[Steps, Any]]:
        """Every container and init container of the pod, with the steps that lead to it."""
        for kind in CONTAINER_LISTS:
            for index, container in enumerate(self.items("spec", kind)):
                yield ("spec", kind, str(index)), container


def field(value: Any, *steps: str) -> Any:
    """The value of a field; None if it is absent."""
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return None
    return value


def text(value: Any, *steps: str) -> str:
    found = field(value, *steps)
    return "" if found is None else found


def first(texts: Iterable[str]) -> str:
    """The first text that is not empty."""
    return next((value for value in texts if value != ""), "")


def pointer(*steps: str) -> str:
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in steps)


def add(steps: Steps, value: Any) -> Operation:
    return {"op": "add", "path": pointer(*steps), "value": value}


def remove(steps: Steps) -> Operation:
    return {"op": "remove", "path": pointer(*steps)}


def set_entries(incoming: Incoming, into: Steps, values: Mapping[str, Any]) -> list[Operation]:
    """Set labels, annotations or other entries of a map."""
    return _parents(incoming, into, {}) + [add((*into, key), value) for key, value in values.items()]


def add_gate(incoming: Incoming, spec: Steps, name: str) -> list[Operation]:
    """Add a scheduling gate to the existing ones."""
    gates = (*spec, "schedulingGates")
    if any(text(gate, "name") == name for gate in incoming.items(*gates)):
        return []
    return [*_parents(incoming, gates, []), add((*gates, "-"), {"name": name})]


def add_variables(
    incoming: Incoming, variables: dict[str, Any], *, where: Callable[[Any], bool] = lambda _: True
) -> list[Operation]:
    """Add variables to containers that do not set them, before their own variables, which may refer to
    them."""
    operations = []
    for steps, container in incoming.containers():
        if not where(container):
            continue
        own = field(container, "env")
        if own is None:
            if variables:
                operations.append(add((*steps, "env"), list(variables.values())))
            continue
        known = {text(entry, "name") for entry in own}
        # The last one is added first, so that they keep their order.
        operations += [
            add((*steps, "env", "0"), variables[name]) for name in reversed(variables) if name not in known
        ]
    return operations


def variable(name: str, value: str) -> Any:
    return {"name": name, "value": value}


def variable_from_annotation(name: str, annotation: str) -> Any:
    """A variable whose value the kubelet takes from an annotation of the pod."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def apply(document: Any, operations: Iterable[Operation]) -> Any:
    """The document after these operations. An error names the path of the operation that cannot be applied.

    Only values on the path of an operation are copied, once; everything else is shared with the original.
    """
    holder = {"": document}
    copies: dict[int, Any] = {id(holder): holder}  # kept alive, so that no id is reused
    for operation in operations:
        _apply(holder, operation, copies)
    return holder[""]


def _apply(holder: dict[str, Any], operation: Operation, copies: dict[int, Any]) -> None:
    path = operation["path"]
    steps = [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]
    parent: Any = holder
    try:
        for step in steps[:-1]:
            key = int(step) if isinstance(parent, list) else step
            child = parent[key]
            if id(child) not in copies:
                if not isinstance(child, dict | list):
                    raise TypeError
                child = parent[key] = child.copy()
                copies[id(child)] = child
            parent = child
        last = steps[-1]
        if operation["op"] == "remove":
            del parent[int(last) if isinstance(parent, list) else last]
        elif isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else int(last), operation["value"])
        else:
            parent[last] = operation["value"]
    except (KeyError, IndexError, ValueError, TypeError):
        raise InvalidInput("there is nothing to change here", where=path) from None


def _parents(incoming: Incoming, into: Steps, empty: Any) -> list[Operation]:
    """Create the map or list itself, and its parents, if they are missing."""
    return [
        add(into[:length], empty if length == len(into) else {})
        for length in range(1, len(into) + 1)
        if not incoming.has(*into[:length])
    ]
