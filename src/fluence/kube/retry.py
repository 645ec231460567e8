"""Retry: which failures of a plain call are worth another try, and how long to wait first; pure."""

from __future__ import annotations

import random

import msgspec

from fluence.kube.errors import ApiConflict, KubeError, ServerFault, TooManyRequests, Unreachable


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """``tries`` in all; pauses grow from ``base_s`` to ``cap_s`` with full jitter, unless the server names
    one."""

    tries: int = 6
    base_s: float = 0.1
    cap_s: float = 5.0

    def pause(
        self,
        error: KubeError,
        *,
        attempt: int,
        repeatable: bool,
        retry_conflict: bool = False,
        rng: random.Random,
    ) -> float | None:
        """Seconds to wait before try ``attempt + 1`` (the first is 1); None if this failure is final.

        ``repeatable``: the call may be sent again although the first one may have been carried out.
        """
        if attempt >= self.tries:
            return None
        backoff = rng.uniform(0, min(self.cap_s, self.base_s * 2.0**attempt))
        match error:
            case TooManyRequests():  # refused before it was carried out: always safe
                return max(error.retry_after or 0.0, backoff)
            case ServerFault():
                if not repeatable or error.code == 501:
                    return None
                return max(error.retry_after or 0.0, backoff)
            case Unreachable():
                return backoff if repeatable or not error.sent else None
            case ApiConflict() if retry_conflict:
                return backoff
            case _:
                return None


ONCE = RetryPolicy(tries=1)


def backoff(failures: int, *, base_s: float, cap_s: float, rng: random.Random) -> float:
    """Exponential with full jitter: the pause after this many failures in a row."""
    return rng.uniform(0, min(cap_s, base_s * 2.0 ** min(failures - 1, 30))) if failures > 0 else 0.0
