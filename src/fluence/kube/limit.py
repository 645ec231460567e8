"""Limit: a token bucket that keeps our own calls below a rate; pure but for the clock."""

from __future__ import annotations

from fluence.clock import Clock


class TokenBucket:
    """``rate`` tokens a second, at most ``burst`` saved up."""

    def __init__(self, rate: float, burst: float, *, clock: Clock) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError("rate must be above 0 and burst at least 1")
        self.rate = rate
        self.burst = float(burst)
        self._clock = clock
        self._tokens = float(burst)
        self._at = clock.monotonic()

    def take(self) -> bool:
        """Take a token if there is one."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def reserve(self) -> float:
        """Take a token, if need be a future one; the seconds to wait until it is ours."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self.rate)

    def _fill(self) -> None:
        now = self._clock.monotonic()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
