"""The reflector against a server that does what a real one cannot be made to do; the rest is in
integration."""

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from fluence.kube.client import Client
from fluence.kube.reflector import Reflector, Timing
from fluence.kube.resource import PODS
from fluence.model.pod import Pod
from tests.unit.kube.serving import Handler, bookmark, event, pod, serving, status, stream, until

QUICK = Timing(
    base_s=0.02,
    cap_s=0.1,
    slow_s=0.4,
    watch_min_s=5,
    watch_max_s=6,
    idle_extra_s=0.0,
    list_timeout_s=5,
)


@contextlib.asynccontextmanager
async def reflecting(
    handler: Handler, *, timing: Timing = QUICK, streaming: bool = True, optional: bool = False
) -> AsyncIterator[Reflector[Pod]]:
    async with serving(handler) as access, Client(access) as client:
        reflector = Reflector(
            client,
            PODS,
            timing=timing,
            rng=random.Random(1),
            streaming_list=streaming,
            page_size=2,
            optional=optional,
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector
        finally:
            task.cancel()
            await asyncio.wait({task})


def names(reflector: Reflector[Pod]) -> list[str]:
    return sorted(each.metadata.name for each in reflector.store)


def page(version: str, items: list[dict[str, object]], more: str = "") -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": version, "continue": more}, "items": items})


async def test_a_streaming_list_fills_the_store_at_the_bookmark_and_not_before() -> None:
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        assert request.query["sendInitialEvents"] == "true"
        assert request.query["resourceVersionMatch"] == "NotOlderThan"
        assert request.query["allowWatchBookmarks"] == "true"
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(event("ADDED", pod("a")) + event("ADDED", pod("b")))
        await go_on.wait()
        await response.write(bookmark("5", ends_list=True) + event("DELETED", pod("a", "6")))
        await asyncio.sleep(60)
        return response

    async with reflecting(handler) as reflector:
        await asyncio.sleep(0.2)
        assert len(reflector.store) == 0
        assert not reflector.synced.is_set()
        go_on.set()
        await until(lambda: names(reflector) == ["b"])
        assert reflector.synced.is_set()


async def test_odd_characters_and_huge_objects_are_one_event_each() -> None:
    text = "before\u0085after\u2028end\u000b\u001c"
    big = "x" * 3_000_000

    async def handler(request: web.Request) -> web.StreamResponse:
        sent = (
            event("ADDED", pod("odd", note=text))
            + event("ADDED", pod("big", note=big))
            + bookmark("5", ends_list=True)
        )
        chunks = [sent[at : at + 70_001] for at in range(0, len(sent), 70_001)]
        return await stream(request, *chunks)

    async with reflecting(handler) as reflector:
        await until(lambda: reflector.synced.is_set())
        found = reflector.store.get("odd", "ns")
        assert found is not None
        assert found.annotations["note"] == text
        assert len(reflector.store) == 2


async def test_an_object_that_does_not_fit_hides_no_other() -> None:
    wrong = {**pod("wrong"), "spec": {"priority": "high"}}

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await stream(request, event("MODIFIED", wrong), event("ADDED", pod("c", "9")))
        return page("5", [pod("a"), wrong])

    async with reflecting(handler, streaming=False) as reflector:
        await until(lambda: names(reflector) == ["a", "c"])
        assert reflector.stats.undecodable == 2


async def test_an_object_that_is_nested_as_deeply_as_the_server_takes_it_hides_no_other() -> None:
    deep = b'{"a":' * 9000 + b"1" + b"}" * 9000
    item = b'{"metadata":{"name":"deep","namespace":"ns","resourceVersion":"7"},"junk":' + deep + b"}"

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            added = b'{"type":"MODIFIED","object":' + item + b"}\n"
            return await stream(request, added, event("ADDED", pod("c", "9")))
        items = json.dumps(pod("a")).encode() + b"," + item
        body = b'{"metadata":{"resourceVersion":"5"},"items":[' + items + b"]}"
        return web.Response(body=body, content_type="application/json")

    async with reflecting(handler, streaming=False) as reflector:
        await until(lambda: names(reflector) == ["a", "c", "deep"])
    assert sys.getrecursionlimit() < 9000


async def test_a_server_without_streaming_lists_is_listed_in_pages_for_good() -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.query_string)
        if request.query.get("sendInitialEvents"):
            return status(422, "Invalid", "sendInitialEvents is forbidden")
        if request.query.get("watch"):
            assert request.query["resourceVersion"] == "5"
            return await stream(request, event("ADDED", pod("d", "6")))
        if request.query.get("continue"):
            return page("7", [pod("c")])
        return page("5", [pod("a"), pod("b")], "more")

    async with reflecting(handler) as reflector:
        await until(lambda: names(reflector) == ["a", "b", "c", "d"])
    assert sum("sendInitialEvents" in each for each in asked) == 1
    assert "limit=2" in asked[1]


async def test_a_list_that_expires_half_way_starts_over_and_at_last_comes_in_one_piece() -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.query_string)
        if request.query.get("watch"):
            return await stream(request)
        if request.query.get("continue"):
            return status(410, "Expired")
        more = "more" if request.query.get("limit") else ""
        return page("5", [pod("a"), pod("b")] + ([] if more else [pod("c")]), more)

    async with reflecting(handler, streaming=False) as reflector:
        await until(lambda: reflector.synced.is_set())
        assert names(reflector) == ["a", "b", "c"]
    assert len([each for each in asked if "watch" not in each]) == 5


async def test_a_gap_yields_the_deletes_that_were_missed() -> None:
    lists = [[pod("a"), pod("b"), pod("c", uid="one")], [pod("a"), pod("c", "2", uid="two")]]
    changes: list[tuple[str | None, str | None]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            if not lists:
                return await stream(request)
            return await stream(request, event("ERROR", {"code": 410, "reason": "Expired"}), hold=False)
        return page("5", lists.pop(0))

    async with reflecting(handler, streaming=False) as reflector:
        reflector.store.on_change(
            lambda old, new: changes.append((old and old.metadata.uid, new and new.metadata.uid))  # type: ignore[arg-type]
        )
        await until(lambda: not lists and names(reflector) == ["a", "c"])
    assert changes[3:] == [("uid-b", None), ("one", None), (None, "two")]


@pytest.mark.parametrize("code", [403, 404])
async def test_a_refusal_is_slow_and_loud_and_never_a_hot_loop(code: int) -> None:
    asked = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return status(code, "Forbidden", "you cannot")

    async with reflecting(handler) as reflector:
        await asyncio.sleep(1.0)
        assert 2 <= asked <= 6  # every 0.2 to 0.4 s
        assert reflector.stats.denied == asked
        assert "you cannot" in reflector.stats.last_error


async def test_a_kind_that_comes_and_goes_is_empty_while_it_is_away() -> None:
    there = False

    async def handler(request: web.Request) -> web.StreamResponse:
        if not there:
            return status(404, "NotFound")
        if request.query.get("watch"):
            return await stream(request, hold=False)
        return page("5", [pod("a")])

    async with reflecting(handler, streaming=False, optional=True) as reflector:
        await until(reflector.synced.is_set)
        assert names(reflector) == []
        there = True
        await until(lambda: names(reflector) == ["a"])
        there = False
        await until(lambda: names(reflector) == [])
    async with reflecting(handler, streaming=False) as reflector:
        await asyncio.sleep(0.3)
        assert not reflector.synced.is_set(), "of any other kind nothing is known"


async def test_a_watch_that_ends_at_once_is_no_hot_loop_either() -> None:
    watches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if request.query.get("watch"):
            watches += 1
            return await stream(request, hold=False)
        return page("5", [])

    timing = Timing(base_s=0.2, cap_s=0.5, watch_min_s=5, watch_max_s=6)
    async with reflecting(handler, streaming=False, timing=timing):
        await asyncio.sleep(1.0)
    assert 2 <= watches <= 12


async def test_429_is_obeyed() -> None:
    times: list[float] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            return status(429, "TooManyRequests", Retry_After="1")
        return await stream(request, bookmark("5", ends_list=True))

    async with reflecting(handler) as reflector:
        await until(reflector.synced.is_set)
    assert times[1] - times[0] >= 1.0


async def test_a_half_open_watch_is_left_after_its_time() -> None:
    watches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        watches += 1
        if "sendInitialEvents" in request.query_string:
            return await stream(request, event("ADDED", pod("a")), bookmark("5", ends_list=True))
        return await stream(request, event("ADDED", pod("b", "6")))

    timing = Timing(base_s=0.02, cap_s=0.1, watch_min_s=0.5, watch_max_s=0.6, idle_extra_s=0.2)
    async with reflecting(handler, timing=timing) as reflector:
        await until(lambda: names(reflector) == ["a", "b"])
        assert watches >= 2
        assert reflector.stats.lists == 1


async def test_a_handler_that_fails_is_counted_and_the_stream_goes_on() -> None:
    seen: list[str] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        return await stream(
            request, event("ADDED", pod("a")), event("ADDED", pod("b")), bookmark("5", ends_list=True)
        )

    def fail(old: Pod | None, new: Pod | None) -> None:
        raise RuntimeError("boom")

    async with reflecting(handler) as reflector:
        reflector.store.on_change(fail)
        reflector.store.on_change(lambda old, new: seen.append(new.metadata.name if new else ""))
        await until(lambda: seen == ["a", "b"])
        assert reflector.store.handler_errors == 2


async def test_an_event_cut_in_the_middle_is_noticed() -> None:
    cut = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal cut
        if "sendInitialEvents" in request.query_string:
            return await stream(request, bookmark("5", ends_list=True), hold=False)
        cut += 1
        whole = event("ADDED", pod("a", "6"))
        if cut == 1:
            return await stream(request, whole[:40], hold=False)
        return await stream(request, whole)

    async with reflecting(handler) as reflector:
        await until(lambda: names(reflector) == ["a"])
        assert "cut in the middle" in reflector.stats.last_error


async def test_a_refresh_lists_at_once_whatever_is_under_way() -> None:
    """A watch that hangs, and one that waits for its next try: the store shows what is there afterwards."""
    there, down = [pod("a")], False

    async def handler(request: web.Request) -> web.StreamResponse:
        if down:
            return status(500)
        if request.query.get("sendInitialEvents"):
            return await stream(
                request, *(event("ADDED", each) for each in there), bookmark("5", ends_list=True)
            )
        return await stream(request)

    slow = Timing(base_s=600, cap_s=600)
    async with reflecting(handler, timing=slow) as reflector:
        await reflector.synced.wait()
        there.append(pod("b"))  # the watch says nothing
        both = [asyncio.create_task(reflector.refresh()) for _ in range(2)]
        await asyncio.wait_for(asyncio.gather(*both), 120)
        assert names(reflector) == ["a", "b"]
        down = True
        waiting = asyncio.create_task(reflector.refresh())
        await until(lambda: reflector.stats.failures > 0)
        down = False
        del there[0]
        await asyncio.wait_for(reflector.refresh(), 120)  # not the ten minutes until the next try
        await asyncio.wait_for(waiting, 120)
        assert names(reflector) == ["b"]
