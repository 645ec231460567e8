"""Reasons: why work waits or is refused, as a closed set of codes with parameters.

Whatever decides (groups, filters, planners, the cycle) answers with a `Reason`. Text is made from it at the
edge, by `fluence.messages`, and nowhere else: no decision reads English.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Code(StrEnum):
    """Every reason there is. Each has one text in `fluence.messages`."""

    QUEUED_BEHIND_OTHERS = "QueuedBehindOthers"


Value: TypeAlias = "str | int | bool | tuple[Value, ...] | Reason | None"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its parameters, in the order in which they were given. Equal reasons compare equal."""

    code: Code
    params: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, code: Code, **params: Value) -> Reason:
        return cls(code, tuple(params.items()))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.params:
            if key == name:
                return value
        raise KeyError(name)
