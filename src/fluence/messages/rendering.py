"""Rendering: the text of a reason, from one template per code, and the parts that templates share.

A text is a sentence without its full stop, so that it can be used alone, in a list, or before other
sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from fluence.model.reason import Code, Reason, Value

# The text of a code: a pattern that names its parameters, or a function if a pattern is not enough.
Template: TypeAlias = str | Callable[[Reason], str]
Templates: TypeAlias = dict[Code, Template]

TEMPLATES: Templates = {}  # of all codes, once `fluence.messages` is imported

_MAX_NAMES = 5


def text(reason: Reason) -> str:
    """The message of a reason, without a full stop."""
    template = TEMPLATES[reason.code]
    if callable(template):
        return template(reason)
    return template.format_map({key: shown(value) for key, value in reason.params})


def texts(reasons: Iterable[Reason]) -> str:
    """Several reasons, each a sentence; without the last full stop."""
    return " ".join(map(sentence, reasons)).removesuffix(".")


def sentence(reason: Reason) -> str:
    message = text(reason)
    return message if message.endswith((".", "!", "?")) else f"{message}."


# -- parts of templates --------------------------------------------------------------------------------------


def shown(value: Value) -> str | int | None:
    """A parameter as text; several are separated by commas."""
    if isinstance(value, Reason):
        return text(value)
    return ", ".join(str(shown(part)) for part in value) if isinstance(value, tuple) else value


def values(reason: Reason) -> dict[str, Any]:
    """The parameters of a reason, whose types follow from its code."""
    return dict(reason.params)


def reasons(value: Value) -> list[Reason]:
    """The reasons in a parameter that is a list of them."""
    return [reason for reason in value if isinstance(reason, Reason)] if isinstance(value, tuple) else []


def names(value: Value) -> str:
    """The first names, and how many more there are."""
    assert isinstance(value, tuple)
    some = ", ".join(map(str, value[:_MAX_NAMES]))
    more = len(value) - _MAX_NAMES
    return f"{some} and {more} more" if more > 0 else some


def all_of(value: Value) -> str:
    """`1 and 2`."""
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def be(number: Value) -> str:
    return "is" if number == 1 else "are"


def count(number: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- the start in conditions and events ----------------------------------------------------------------------
