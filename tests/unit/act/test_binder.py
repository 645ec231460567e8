"""The binder against an API server that answers as a test tells it to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fluence.act.binder import Binder
from fluence.kube.client import Client
from fluence.kube.errors import (
    ONCE,
    AlreadyExists,
    ApiConflict,
    ApiError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Misconfigured,
    Missing,
    RetryPolicy,
    ServerFault,
    Status,
    StatusCause,
    StatusDetails,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from fluence.model.pod import Pod
from fluence.schedule.events import Bind, BindOutcome, BindResult
from tests.unit.cluster.build import bound
from tests.unit.kube.serving import until
from tests.unit.schedule import kit

A, B, C = (Bind(kit.pod(name), "n1", "default/g", {"note": name}) for name in "abc")


class Server:
    """What a client of the API server can be asked for. ``fails``: what a bind of a pod gets instead."""

    def __init__(self) -> None:
        self.fails: dict[str, KubeError] = {}
        self.pods: dict[str, Pod | KubeError] = {}
        self.asked: list[str] = []
        self.bound: list[tuple[str, str, Mapping[str, str] | None]] = []
        self.at_once = self.most_at_once = 0
        self.open = asyncio.Event()
        self.open.set()

    async def bind(
        self,
        pod: Pod,
        node: str,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        assert retry is ONCE, "a bind is checked each time that it goes out"
        self.asked.append(pod.metadata.name)
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
        if pod.metadata.name in self.fails:
            raise self.fails[pod.metadata.name]
        self.bound.append((pod.metadata.name, node, annotations))

    async def get(self, resource: Any, name: str, *, namespace: str | None = None) -> Pod:
        assert (resource.name, namespace) == ("pods", "default")
        found = self.pods[name]
        if isinstance(found, KubeError):
            raise found
        return found


class World:
    """A binder that runs, what it says, and what it sees."""

    def __init__(self, *, in_flight: int = 32, retry: RetryPolicy = ONCE) -> None:
        self.server = Server()
        self.results: list[BindResult] = []
        self.stale: dict[str, BindResult] = {}
        self.leads = True
        self.binder = Binder(
            cast(Client, self.server),
            self.results.append,
            check=lambda bind: self.stale.get(bind.uid),
            held=lambda: self.leads,
            in_flight=in_flight,
            retry=retry,
        )

    @property
    def outcomes(self) -> dict[str, BindOutcome]:
        return {each.bind.pod.metadata.name: each.outcome for each in self.results}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.binder.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})


async def answer(*binds: Bind, world: World) -> dict[str, BindOutcome]:
    async with world.running():
        world.binder.submit(binds)
        await until(lambda: len(world.results) == len(binds))
    return world.outcomes


def refusal(kind: type[ApiError], code: int, message: str = "no", cause: str = "") -> ApiError:
    details = StatusDetails(causes=[StatusCause(reason=cause)]) if cause else None
    return kind("POST", Status(code=code, message=message, details=details))


# -- what is sent --------------------------------------------------------------------------------------------


async def test_every_bind_is_sent_with_its_node_and_annotations() -> None:
    world = World()
    assert set((await answer(A, B, world=world)).values()) == {BindOutcome.BOUND}
    assert sorted(world.server.bound) == [("a", "n1", {"note": "a"}), ("b", "n1", {"note": "b"})]
    assert world.binder.sent == 2 and world.binder.backlog == 0


async def test_if_one_place_is_stale_before_the_first_is_sent_none_is() -> None:
    world = World()
    world.stale[B.uid] = BindResult(B, BindOutcome.GONE, "the pod is gone")
    async with world.running():
        world.binder.submit([A, B, C])
        await asyncio.sleep(0.02)
    assert world.outcomes == {"a": BindOutcome.STALE, "b": BindOutcome.GONE, "c": BindOutcome.STALE}
    assert "default/b" in world.results[0].reason and world.server.asked == [] and world.binder.backlog == 0


async def test_another_job_is_bound_though_one_is_stale() -> None:
    world = World()
    world.stale[B.uid] = BindResult(B, BindOutcome.STALE)
    async with world.running():
        world.binder.submit([B])
        world.binder.submit([A])
        await until(lambda: len(world.results) == 2)
    assert world.outcomes == {"a": BindOutcome.BOUND, "b": BindOutcome.STALE}


async def test_a_place_that_goes_stale_after_the_first_was_sent_is_reported_by_itself() -> None:
    world = World(in_flight=1)
    world.server.open.clear()
    async with world.running():
        world.binder.submit([A, B, C])
        await until(lambda: world.server.asked == ["a"])
        world.stale[B.uid] = BindResult(B, BindOutcome.STALE)
        world.server.open.set()
        await until(lambda: len(world.results) == 3)
    assert world.outcomes == {"a": BindOutcome.BOUND, "b": BindOutcome.STALE, "c": BindOutcome.BOUND}
    assert world.server.asked == ["a", "c"]


async def test_no_more_are_under_way_than_may_be() -> None:
    world = World(in_flight=3)
    binds = [Bind(kit.pod(f"p{i}"), "n1", "default/g", {}) for i in range(10)]
    world.server.open.clear()
    async with world.running():
        world.binder.submit(binds)
        await until(lambda: world.server.at_once == 3)
        await asyncio.sleep(0.02)
        assert world.server.at_once == 3 and world.binder.backlog == 10
        world.server.open.set()
        await until(lambda: len(world.results) == 10)
    assert world.server.most_at_once == 3


async def test_nothing_is_sent_without_the_lease() -> None:
    world = World()
    world.leads = False
    assert await answer(A, B, world=world) == {"a": BindOutcome.AGAIN, "b": BindOutcome.AGAIN}
    assert world.server.asked == [] and world.binder.sent == 0


async def test_a_lease_that_is_lost_between_two_binds_stops_the_second() -> None:
    world = World(in_flight=1)
    world.server.open.clear()
    async with world.running():
        world.binder.submit([A, B])
        await until(lambda: world.server.asked == ["a"])
        world.leads = False
        world.server.open.set()
        await until(lambda: len(world.results) == 2)
    assert world.outcomes == {"a": BindOutcome.BOUND, "b": BindOutcome.AGAIN} and world.binder.sent == 1


# -- what answers mean ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (refusal(Missing, 404), BindOutcome.GONE),
        (refusal(Invalid, 422), BindOutcome.IMPOSSIBLE),
        (refusal(ApiError, 418), BindOutcome.IMPOSSIBLE),
        (refusal(Forbidden, 403, "the quota is used up"), BindOutcome.IMPOSSIBLE),
        (refusal(Forbidden, 403, 'user "x" cannot create pods/binding'), BindOutcome.AGAIN),
        (refusal(Forbidden, 403, "it ends", cause="NamespaceTerminating"), BindOutcome.AGAIN),
    ],
    ids=["missing", "invalid", "another", "forbidden", "not allowed", "its namespace ends"],
)
async def test_an_answer_that_says_everything_is_believed(error: KubeError, outcome: BindOutcome) -> None:
    world = World()
    world.server.fails["a"] = error
    assert await answer(A, world=world) == {"a": outcome}


UNSURE = [
    refusal(ApiConflict, 409),
    refusal(AlreadyExists, 409),
    refusal(TooManyRequests, 429),
    refusal(ServerFault, 500),
    refusal(Unauthorized, 401),
    refusal(Gone, 410),
    Unreachable("reset"),
    TimedOut("no answer"),
    Misconfigured("no token"),
]


def _deleting(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp=kit.T0))


@pytest.mark.parametrize("error", UNSURE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (A.pod, BindOutcome.AGAIN),
        (bound(A.pod, "n1"), BindOutcome.BOUND),
        (bound(A.pod, "n2"), BindOutcome.ELSEWHERE),
        (_deleting(A.pod), BindOutcome.GONE),
        (kit.pod("a", uid="another", node="n1"), BindOutcome.GONE),
        (refusal(Missing, 404), BindOutcome.GONE),
        (Unreachable("reset again"), BindOutcome.AGAIN),
    ],
    ids=["waits", "bound", "elsewhere", "deleting", "anew", "gone", "unknown"],
)
async def test_where_an_answer_says_little_the_pod_itself_is_asked(
    error: KubeError, found: Pod | KubeError, outcome: BindOutcome
) -> None:
    world = World()
    world.server.fails["a"] = error
    world.server.pods["a"] = found
    assert await answer(A, world=world) == {"a": outcome}


async def test_one_failure_does_not_stop_the_others() -> None:
    world = World()
    world.server.fails["b"] = refusal(Invalid, 422)
    assert await answer(A, B, C, world=world) == {
        "a": BindOutcome.BOUND,
        "b": BindOutcome.IMPOSSIBLE,
        "c": BindOutcome.BOUND,
    }


# -- stopping ------------------------------------------------------------------------------------------------


async def test_draining_waits_for_what_was_sent_and_sends_nothing_more() -> None:
    world = World(in_flight=1)
    world.server.open.clear()
    async with world.running():
        world.binder.submit([A, B])
        await until(lambda: world.server.asked == ["a"])
        draining = asyncio.create_task(world.binder.drain())
        await asyncio.sleep(0.02)
        assert not draining.done()
        world.server.open.set()
        await draining
        assert world.binder.backlog == 0
        world.binder.submit([C])
        await asyncio.sleep(0.02)
    assert world.server.asked == ["a"] and world.outcomes == {"a": BindOutcome.BOUND}


async def test_draining_has_an_end_though_no_answer_comes() -> None:
    world = World()
    world.server.open.clear()
    async with world.running():
        world.binder.submit([A])
        await until(lambda: world.server.asked == ["a"])
        await asyncio.wait_for(world.binder.drain(0.02), 60)
    assert world.results == []


async def test_draining_an_idle_binder_returns_at_once() -> None:
    world = World()
    async with world.running():
        await asyncio.wait_for(world.binder.drain(), 60)


async def test_a_bind_is_looked_at_again_each_time_that_it_goes_out() -> None:
    """The server fails for a moment, and meanwhile somebody takes the room."""
    world = World(retry=RetryPolicy(tries=6, base_s=0.01, cap_s=0.01))
    world.server.fails["a"] = refusal(ServerFault, 500)
    async with world.running():
        world.binder.submit([A])
        await until(lambda: len(world.server.asked) >= 2)
        world.stale[A.uid] = BindResult(A, BindOutcome.STALE, "its room was taken meanwhile")
        world.server.fails.clear()
        await until(lambda: bool(world.results))
    assert world.outcomes in ({"a": BindOutcome.STALE}, {"a": BindOutcome.AGAIN})
    assert world.server.bound == []


async def test_a_bind_that_fails_unexpectedly_stops_no_other() -> None:
    world = World()
    world.server.fails["a"] = cast(KubeError, ZeroDivisionError("made by the test"))
    assert await answer(A, B, world=world) == {"a": BindOutcome.AGAIN, "b": BindOutcome.BOUND}
