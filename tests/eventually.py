"""Waiting for what a test asserts: by condition, with a bound, and an account of what there was instead."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from fluence.kube.errors import ServerFault, TooManyRequests, Unreachable

T = TypeVar("T")
SOON_S = 120.0  # on a machine that is starved; a test that is green does not wait for it


@overload
async def eventually(
    look: Callable[[], Awaitable[T]],
    wanted: Callable[[T], Any] | T = ...,
    *,
    what: str = ...,
    timeout_s: float = ...,
    pause_s: float = ...,
) -> T: ...


@overload
async def eventually(
    look: Callable[[], T],
    wanted: Callable[[T], Any] | T = ...,
    *,
    what: str = ...,
    timeout_s: float = ...,
    pause_s: float = ...,
) -> T: ...


async def eventually(
    look: Callable[[], T | Awaitable[T]],
    wanted: Callable[[T], Any] | T = bool,
    *,
    what: str = "",
    timeout_s: float = SOON_S,
    pause_s: float = 0.05,
) -> T:
    """Look again and again until what is seen is ``wanted``: equal to it or, if it is a function, what it
    says yes to. Returns what was seen. If time is up, the failure says what was seen last.

    A server that fails has not answered: with a mutating policy, for example, it answers 503 until it has
    read the schema of a new custom resource, and on a starved machine a call may have no answer in time."""
    wait = _Wait(wanted, what, timeout_s)
    while True:
        try:
            found = look()
            seen: Any = await found if inspect.isawaitable(found) else found
        except (ServerFault, TooManyRequests, Unreachable) as fault:
            wait.fails(fault)
        else:
            if wait.is_over(seen):
                return seen  # type: ignore[no-any-return]
        await asyncio.sleep(pause_s)


def wait_until(
    look: Callable[[], T],
    wanted: Callable[[T], Any] | T = bool,
    *,
    what: str = "",
    timeout_s: float = SOON_S,
    pause_s: float = 0.2,
) -> T:
    """The same where there is no event loop."""
    wait = _Wait(wanted, what, timeout_s)
    while not wait.is_over(seen := look()):
        time.sleep(pause_s)
    return seen


class _Wait:
    def __init__(self, wanted: Any, what: str, timeout_s: float) -> None:
        self._wanted, self._what, self._timeout_s = wanted, what, timeout_s
        self._end = time.monotonic() + timeout_s

    def is_over(self, seen: Any) -> bool:
        """Whether what is seen is what is wanted; fails when time is up."""
        if self._wanted(seen) if callable(self._wanted) else seen == self._wanted:
            return True
        self.fails(seen)
        return False

    def fails(self, seen: Any) -> None:
        """Raise when time is up."""
        if time.monotonic() >= self._end:
            what = self._what or ("it is so" if callable(self._wanted) else repr(self._wanted))
            raise AssertionError(f"not within {self._timeout_s:g} s: {what}; there is {seen!r}")
