"""Backoff: the pause between two tries, which doubles from the first up to the longest. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Generic, TypeVar

N = TypeVar("N", int, float)
_MAX_DOUBLINGS = 30  # more would overflow, and every longest pause is reached before


@dataclass(frozen=True, slots=True)
class Backoff(Generic[N]):
    """The unit is that of its caller: seconds or milliseconds."""

    first: N
    longest: N

    def after(self, failures: int) -> N:
        """The pause after this many failures in a row; 0 after no failure."""
        if failures < 1:
            return self.first * 0
        doublings: int = 2 ** min(failures - 1, _MAX_DOUBLINGS)
        return min(self.first * doublings, self.longest)

    def jittered(self, failures: int, rng: random.Random) -> float:
        """A random part of that pause, so that many clients do not try again at the same time."""
        return rng.uniform(0, self.after(failures))

    def longer(self, pause: N) -> N:
        """The pause after this one."""
        return min(2 * pause, self.longest)
