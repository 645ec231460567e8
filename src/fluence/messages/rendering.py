"""From a reason to its text: one template per code, and what templates are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from fluence.model.reason import Code, Reason, Value

# The text of a code: a pattern that names its parameters, or a function where that will not do.
Template: TypeAlias = str | Callable[[Reason], str]
Templates: TypeAlias = dict[Code, Template]

TEMPLATES: Templates = {}  # of all codes, once `fluence.messages` is imported

_NAMED = 5  # jobs that a text names


def text(reason: Reason) -> str:
    """What a user is told."""
    template = TEMPLATES[reason.code]
    if callable(template):
        return template(reason)
    return template.format_map({key: shown(value) for key, value in reason.params})


def texts(reasons: Iterable[Reason]) -> str:
    """Several reasons in one line."""
    return "; ".join(map(text, reasons))


# -- what templates are made of ------------------------------------------------------------------------------


def shown(value: Value) -> str | int | None:
    """A parameter as it is written; several with commas."""
    if isinstance(value, Reason):
        return text(value)
    return ", ".join(str(shown(each)) for each in value) if isinstance(value, tuple) else value


def values(reason: Reason) -> dict[str, Any]:
    """The parameters of a reason whose code says of what type they are."""
    return dict(reason.params)


def reasons(value: Value) -> list[Reason]:
    """A parameter that is several reasons."""
    return [each for each in value if isinstance(each, Reason)] if isinstance(value, tuple) else []


def names(value: Value) -> str:
    """Some names, and how many more there are."""
    assert isinstance(value, tuple)
    some = ", ".join(map(str, value[:_NAMED]))
    more = len(value) - _NAMED
    return f"{some} and {more} more" if more > 0 else some


def all_of(value: Value) -> str:
    """`1 and 2`."""
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def be(number: Value) -> str:
    return "is" if number == 1 else "are"


def count(number: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
