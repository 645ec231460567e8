"""CEL: building blocks for the rules of the API server.

Each function here returns an expression, or a list of JSON patch operations, as CEL. `patch` has the same
edits as Python functions, with the same names. Optional steps (``object.?spec.?env``), comprehensions with an
index and the functions of lists exist in every release since 1.34; a policy needs 1.36 anyway.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fluence.admission.patch import CONTAINER_LISTS, Steps, pointer

NOTHING: Final = "[]"
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE: Final = re.compile(r"(?<![.?])\bvariables\.([A-Za-z]+)")


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def listed(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(quoted, texts))}]"


def field(*steps: str, of: str = "object") -> str:
    """An optional value: ``object.?metadata.?labels[?'a/b']``."""
    return of + "".join(
        f".?{step}" if _IDENTIFIER.fullmatch(step) else f"[?{quoted(step)}]" for step in steps
    )


def text(*steps: str, of: str = "object") -> str:
    return f"{field(*steps, of=of)}.orValue('')"


def has(*steps: str, of: str = "object") -> str:
    return f"{field(*steps, of=of)}.hasValue()"


def items(*steps: str, of: str = "object") -> str:
    return f"{field(*steps, of=of)}.orValue([])"


def entries(*steps: str, of: str = "object") -> str:
    return f"{field(*steps, of=of)}.orValue({{}})"


def first(texts: Iterable[str]) -> str:
    """The first text that is not empty."""
    return f"[{', '.join(texts)}].filter(x, x != '')[?0].orValue('')"


def every(*terms: str) -> str:
    return "\n&& ".join(terms)


def either(*terms: str) -> str:
    return f"({' || '.join(terms)})" if len(terms) > 1 else terms[0]


def if_else(test: str, then: str, otherwise: str = NOTHING) -> str:
    return f"({test} ? {then} : {otherwise})"


def plus(*terms: str) -> str:
    """Concatenate lists."""
    return "(" + "\n+ ".join(terms) + ")" if len(terms) > 1 else terms[0]


def add(path: str, value: str) -> str:
    """A list with one operation. Path and value are expressions."""
    return f"[{_add(path, value)}]"


def _add(path: str, value: str) -> str:
    return f"JSONPatch{{op: 'add', path: {path}, value: {value}}}"


def remove(path: str) -> str:
    return f"[JSONPatch{{op: 'remove', path: {path}}}]"


def set_field(steps: Steps, value: str) -> str:
    """Set a field whose parent is always present."""
    return add(quoted(pointer(*steps)), value)


def drop_field(*steps: str) -> str:
    return if_else(has(*steps), remove(quoted(pointer(*steps))))


def set_entries(into: Steps, values: Mapping[str, str]) -> str:
    """Set labels, annotations or other entries of a map; the values are expressions."""
    return plus(
        *_parents(into, "{}"), *(add(quoted(pointer(*into, key)), value) for key, value in values.items())
    )


def add_gate(spec: Steps, name: str) -> str:
    """Add a scheduling gate to the existing ones."""
    gates = (*spec, "schedulingGates")
    is_known = f"{items(*gates)}.exists(g, {text('name', of='g')} == {quoted(name)})"
    gate = add(quoted(pointer(*gates, "-")), f"{{'name': {quoted(name)}}}")
    return if_else(is_known, NOTHING, plus(*_parents(gates, "[]"), gate))


def exists_container(test: str) -> str:
    """Whether the test holds for a container `c` or an init container of the pod."""
    return either(*(f"{items('spec', kind)}.exists(c, {test})" for kind in CONTAINER_LISTS))


def in_containers(edits: Callable[[str], str], *, where: str) -> str:
    """Edits of each container `c` for which the test holds. ``edits`` gets the container's JSON pointer."""
    return plus(
        *(
            f"{items('spec', kind)}.transformList(i, c, {where},\n"
            + edits(f"'/spec/{kind}/' + string(i)")
            + ").flatten()"
            for kind in CONTAINER_LISTS
        )
    )


def add_variables(names: str, entry: str, *, where: str = "true") -> str:
    """Add variables to containers that do not set them, before their own variables, which may refer to them.

    ``names`` is a list, and ``entry`` is the variable for a name `n` of it.
    """
    is_missing = f"!{items('env', of='c')}.exists(e, {text('name', of='e')} == n)"

    def edits(at: str) -> str:
        # The last one is added first, so that they keep their order.
        one = _add(f"{at} + '/env/0'", entry)
        one_by_one = f"{names}.reverse().map(n, {is_missing}, {one})"
        return if_else(has("env", of="c"), one_by_one, add(f"{at} + '/env'", f"{names}.map(n, {entry})"))

    return in_containers(edits, where=f"{where} && {names}.exists(n, {is_missing})")


def variable(name: str, value: str) -> str:
    """A variable of a container. All values of a map literal have one type, unless each is dynamic."""
    return f"{{'name': dyn({name}), 'value': dyn({value})}}"


def variable_from_annotation(name: str, annotation: str) -> str:
    before, after = quoted("metadata.annotations['"), quoted("']")
    path = f"{before} + {annotation} + {after}"
    return f"{{'name': dyn({name}), 'valueFrom': dyn({{'fieldRef': {{'fieldPath': {path}}}}})}}"


def variables_in(texts: Iterable[str], table: Mapping[str, str]) -> dict[str, str]:
    """The policy variables that these expressions read, directly or through others, in the order of the
    table."""
    found: set[str] = set()
    unread = list(texts)
    while unread:
        for name in _VARIABLE.findall(unread.pop()):
            if name not in found:
                found.add(name)
                unread.append(table[name])
    return {name: expression for name, expression in table.items() if name in found}


def _parents(into: Steps, empty: str) -> list[str]:
    """Create the map or list itself, and its parents, if they are missing."""
    parts = []
    for length in range(1, len(into) + 1):
        steps = into[:length]
        if steps in _ALWAYS_PRESENT:
            continue
        value = empty if length == len(into) else "{}"
        parts.append(if_else(has(*steps), NOTHING, add(quoted(pointer(*steps)), value)))
    return parts


_ALWAYS_PRESENT: Final = (("metadata",), ("spec",), ("spec", "template"), ("spec", "template", "spec"))
