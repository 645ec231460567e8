"""Waiting in tests: until it is so, or with an account of what there was."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from fluence.kube.errors import KubeError, ServerFault, Status, TimedOut, TooManyRequests
from tests.eventually import eventually, wait_until


async def test_it_looks_until_it_sees_what_is_wanted() -> None:
    numbers = itertools.count()

    async def later() -> int:
        return next(numbers)

    assert await eventually(lambda: next(numbers), 3, pause_s=0) == 3
    assert await eventually(later, lambda n: n > 7, pause_s=0) == 8
    assert await eventually(lambda: "said", pause_s=0) == "said"


async def test_when_time_is_up_it_says_what_there_was() -> None:
    with pytest.raises(AssertionError, match=r"not within 0.01 s: two nodes; there is \['n1'\]"):
        await eventually(lambda: ["n1"], lambda nodes: len(nodes) == 2, what="two nodes", timeout_s=0.01)
    with pytest.raises(AssertionError, match="not within 0 s: 'b'; there is 'a'"):
        await eventually(lambda: "a", "b", timeout_s=0)


async def test_a_server_that_fails_is_asked_again() -> None:
    fault = ServerFault("GET /x", Status(code=503, message="not yet"))
    busy = TooManyRequests("GET /x", Status(code=429, message="later"))
    answers: Iterator[KubeError | str] = iter([TimedOut("GET /x: no answer"), busy, fault, "there"])

    async def ask() -> str:
        answer = next(answers, fault)
        if isinstance(answer, KubeError):
            raise answer
        return answer

    assert await eventually(ask, "there", pause_s=0) == "there"
    with pytest.raises(AssertionError, match=r"not within 0 s: it answers; there is .*503 not yet"):
        await eventually(ask, what="it answers", timeout_s=0)


def test_without_an_event_loop_it_is_the_same() -> None:
    numbers = itertools.count()
    assert wait_until(lambda: next(numbers), 3, pause_s=0) == 3
    with pytest.raises(AssertionError, match="not within 0 s: it ends; there is 'it runs'"):
        wait_until(lambda: "it runs", "ended", what="it ends", timeout_s=0)
