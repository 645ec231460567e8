"""How many of a resource: a number, or a range that grows from `min` by an operator (RFC 14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_COUNT = 2**32 - 1

Operator = Literal["+", "*", "^"]


@dataclass(frozen=True, slots=True)
class Count:
    """The counts `min`, then each the last one *operator* *operand*, up to `max`.

    A plain number n is ``Count(n, n)``; ``Count(n)`` is n or more.
    """

    min: int
    max: int = MAX_COUNT
    operator: Operator = "+"
    operand: int = 1

    def effective(self, available: int) -> int:
        """The largest count not over *available*; 0 when even `min` is over it."""
        limit = min(available, self.max)
        if self.min > limit:
            return 0
        if self.operator == "+":
            return limit - (limit - self.min) % self.operand
        best = self.min
        if self.operand < 2 or best < 1 or (self.operator == "^" and best < 2):
            return best  # no growth; the reader refuses these
        while True:
            if self.operator == "*":
                following = best * self.operand
            elif self.operand * (best.bit_length() - 1) >= limit.bit_length():
                return best  # over the limit for certain, and too large to compute
            else:
                following = best**self.operand
            if following > limit:
                return best
            best = following

    @property
    def maximum(self) -> int:
        """The largest count of all."""
        return self.effective(self.max)

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max

    def to_value(self) -> int | dict[str, int | str]:
        """As a jobspec says it, in the shortest form."""
        if (self.operator, self.operand) == ("+", 1):
            if self.min == self.max:
                return self.min
            if self.max == MAX_COUNT:
                return {"min": self.min}
        return {"min": self.min, "max": self.max, "operator": self.operator, "operand": self.operand}
