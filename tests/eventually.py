"""Waiting for what a test asserts: by condition, with a bound, and an account of what there was instead."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")
SOON_S = 45.0  # on a machine that is busy


async def eventually(
    look: Callable[[], T | Awaitable[T]],
    wanted: Callable[[T], Any] | T = bool,
    *,
    what: str = "",
    timeout_s: float = SOON_S,
    pause_s: float = 0.05,
) -> T:
    """Look again and again until what is seen is ``wanted``: equal to it or, if it is a function, what it
    says yes to. Returns what was seen. If time is up, the failure says what was seen last."""
    end = time.monotonic() + timeout_s
    while True:
        found = look()
        seen: Any = await found if inspect.isawaitable(found) else found
        if wanted(seen) if callable(wanted) else seen == wanted:
            return seen  # type: ignore[no-any-return]
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout_s:g} s: {_said(what, wanted)}; there is {seen!r}")
        await asyncio.sleep(pause_s)


def _said(what: str, wanted: Any) -> str:
    return what or ("it is so" if callable(wanted) else repr(wanted))
