"""The view over HTTP: users and their rights, bounds on requests and streams, and what headers say.

An API server of a few lines answers reviews; `tests/integration/web` has a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fluence.kube.access import Access as KubeAccess
from fluence.kube.client import Client
from fluence.live.http_server import serve
from fluence.web import server as view_server
from fluence.web.access import Access
from fluence.web.past_jobs import PastJobs
from fluence.web.server import BASE, ViewServer
from fluence.web.serving import _LIMITS as serving_limits
from fluence.web.view import Snapshot
from tests.unit.web.field import Field, gang

TOKENS = {"for-admin": "admin", "for-ann": "ann", "for-none": "nobody"}
PODS = {"ann": {"physics"}, "admin": {"", "physics", "biology"}}  # whose pods they may list


@dataclass
class Reviews:
    """An API server that knows users by token, and whose pods they may list."""

    asked: list[dict[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if body["kind"] == "TokenReview":
            name = TOKENS.get(body["spec"]["token"])
            status: dict[str, Any] = {"authenticated": name is not None}
            if name is not None:
                status["user"] = {"username": name, "groups": ["system:authenticated"]}
        else:
            what, name = body["spec"]["resourceAttributes"], body["spec"]["user"]
            allowed = name != "nobody" or what["resource"] == "pods"
            if what["resource"] == "pods":
                allowed = what.get("namespace", "") in PODS.get(name, ())
            status = {"allowed": allowed}
        return web.json_response({**body, "status": status})


class Given:
    """A view of a field, which leads or not."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.leads = True
        self.scheduler = "fluence"
        self.number = 0

    async def snapshot(self) -> Snapshot | None:
        self.number += 1
        return replace(self.field.snapshot(), number=self.number) if self.leads else None


@dataclass
class Served:
    url: str
    session: aiohttp.ClientSession
    view: Given
    reviews: Reviews

    async def get(self, path: str, token: str = "for-admin", **more: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= more.pop("headers", {})
        async with self.session.request(
            more.pop("method", "GET"), self.url + path, headers=headers, **more
        ) as answer:
            self.headers = answer.headers
            text = await answer.text()
            return answer.status, json.loads(text) if text else None


@pytest.fixture
def field_() -> Field:
    made = Field(nodes=2)
    made.submit(gang("running", 2, limit="2h"))
    made.submit(gang("mine", 2, limit="1h"))
    made.submit(gang("theirs", 2, namespace="biology", limit="1h"))
    return made


@contextlib.asynccontextmanager
async def serving(
    made: Field, history: PastJobs | None = None, view: Given | None = None
) -> AsyncIterator[Served]:
    reviews, shown = Reviews(), view or Given(made)
    routes = [web.post("/{path:.*}", reviews.handle)]
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve(("127.0.0.1", 0), routes))
        client = await stack.enter_async_context(Client(KubeAccess(server=f"http://127.0.0.1:{port}")))
        here = ViewServer(shown, Access(client), history)  # type: ignore[arg-type]
        at = await stack.enter_async_context(serve(("127.0.0.1", 0), here.routes, limits=serving_limits))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Served(f"http://127.0.0.1:{at}", session, shown, reviews)


def run(made: Field, work: Any) -> None:
    async def inside() -> None:
        async with serving(made) as served:
            await work(served)

    asyncio.run(inside())


def test_users_see_the_namespaces_whose_pods_they_may_list(field_: Field) -> None:
    async def work(served: Served) -> None:
        def names(body: Any) -> list[Any]:
            return [row.get("name") for row in body["items"]]

        status, body = await served.get(f"{BASE}/queue")
        assert (status, body["kind"], names(body)) == (200, "QueueList", ["mine", "theirs"])
        status, body = await served.get(f"{BASE}/queue", "for-ann")
        assert (status, names(body)) == (200, ["mine", None])
        asked = len(served.reviews.asked)
        await served.get(f"{BASE}/queue", "for-ann")
        assert len(served.reviews.asked) == asked, "answers are remembered"
        status, body = await served.get(f"{BASE}/namespaces/biology/queue", "for-ann")
        assert (status, names(body)) == (200, [])
        assert (await served.get(f"{BASE}/namespaces/biology/jobs/theirs", "for-ann"))[0] == 404
        missing = (await served.get(f"{BASE}/namespaces/biology/jobs/nobody", "for-ann"))[1]["message"]
        hidden = (await served.get(f"{BASE}/namespaces/biology/jobs/theirs", "for-ann"))[1]["message"]
        assert missing.replace("nobody", "theirs") == hidden, "a name cannot be guessed"
        status, body = await served.get(f"{BASE}/namespaces/physics/jobs/mine", "for-ann")
        assert (status, body["items"][0]["job"]["name"]) == (200, "mine")

    run(field_, work)


def test_others_are_refused(field_: Field) -> None:
    async def work(served: Served) -> None:
        assert (await served.get(f"{BASE}/queue", ""))[0] == 401
        assert (await served.get(f"{BASE}/queue", "forged"))[0] == 401
        assert (await served.get(f"{BASE}/queue", "x" * 8000))[0] in (400, 401)
        status, body = await served.get(f"{BASE}/queue", "for-none")
        assert (status, body["kind"], body["reason"]) == (403, "Status", "Forbidden")
        named = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
        assert (await served.get(f"{BASE}/queue", "", headers=named))[0] == 401, "no certificate"
        assert (await served.get(f"{BASE}/queue", headers={"Sec-Fetch-Site": "cross-site"}))[0] == 403
        assert "Access-Control-Allow-Origin" not in served.headers
        assert (await served.get(f"{BASE}/queue", method="DELETE"))[0] == 405

    run(field_, work)


def test_answers_are_for_programs_only(field_: Field) -> None:
    async def work(served: Served) -> None:
        await served.get(f"{BASE}/queue")
        assert served.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert served.headers["Cache-Control"] == "no-store"
        assert served.headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in served.headers

    run(field_, work)


async def send_large(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
) -> tuple[int, int]:
    """A request that has ten megabytes: the status of the answer, which must come before they are sent, and
    how many of them the server took."""
    size = 10_000_000
    head = (
        f"GET {BASE}/queue HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n"
    )
    writer.write(head.encode() + b"\r\n")
    async with asyncio.timeout(120):
        status = int((await reader.readline()).split()[1])
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < size and not reader.at_eof():
                writer.write(b"x" * 65_536)
                await writer.drain()
                sent += 65_536
                await asyncio.sleep(0)
            while await reader.read(65_536):
                pass
    writer.close()
    with contextlib.suppress(ConnectionError, OSError):
        await writer.wait_closed()
    return status, sent


def test_a_request_of_ten_megabytes_is_not_read(field_: Field) -> None:
    async def work(served: Served) -> None:
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        status, _ = await send_large(*await asyncio.open_connection(host, int(port)), "for-admin")
        assert status == 413
        assert (await served.get(f"{BASE}/queue?name={'x' * 5000}"))[0] == 413
        assert (await served.get(f"{BASE}/queue"))[0] == 200

    run(field_, work)


def test_a_script_of_another_origin_gets_nothing(field_: Field) -> None:
    """A browser says of which site a script is, and asks before it sends a header such as Authorization."""

    async def work(served: Served) -> None:
        for site in ("cross-site", "same-site"):
            told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "cors", "Origin": "https://evil.example"}
            status, body = await served.get(f"{BASE}/queue", headers=told)
            assert status == 403 and "items" not in body
            assert not [name for name in served.headers if name.lower().startswith("access-control-")]
        asks = {"Origin": "https://evil.example", "Access-Control-Request-Headers": "authorization"}
        assert (await served.get(f"{BASE}/queue", "", method="OPTIONS", headers=asks))[0] == 405
        assert not [name for name in served.headers if name.lower().startswith("access-control-")]
        assert (await served.get(f"{BASE}/queue", headers={"Sec-Fetch-Site": "same-origin"}))[0] == 200

    run(field_, work)


def test_a_replica_that_does_not_lead_says_so_and_can_be_discovered(field_: Field) -> None:
    async def work(served: Served) -> None:
        served.view.leads = False
        status, body = await served.get(f"{BASE}/queue")
        assert (status, body["reason"]) == (503, "ServiceUnavailable")
        assert (await served.get(BASE, ""))[1]["resources"] == []
        assert (await served.get("/apis", ""))[0] == 200
        assert (await served.get(f"/openapi/v3{BASE}", ""))[1]["openapi"].startswith("3.")

    run(field_, work)


def test_pages_are_of_one_snapshot_and_expire(field_: Field) -> None:
    async def work(served: Served) -> None:
        _, first = await served.get(f"{BASE}/jobs?limit=1")
        token = first["metadata"]["continue"]
        field_.submit(gang("later", 2))
        _, second = await served.get(f"{BASE}/jobs?limit=1&continue={token}")
        assert [row["name"] for row in (*first["items"], *second["items"])] == ["running", "mine"]
        assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert (await served.get(f"{BASE}/jobs?continue=99.1"))[0] == 410
        assert (await served.get(f"{BASE}/jobs?continue=x"))[0] == 400

    run(field_, work)


def test_a_stream_sends_the_page_when_it_has_changed(field_: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_server, "_TICK_SECONDS", 0.05)

    async def work(served: Served) -> None:
        async def next_page(content: aiohttp.StreamReader) -> list[str]:
            async with asyncio.timeout(120):
                while not (line := await content.readline()).startswith(b"data: "):
                    assert line, "the stream has ended"
            return [row["name"] for row in json.loads(line[6:])["items"]]

        url = f"{served.url}{BASE}/queue?watch=true"
        async with served.session.get(url, headers={"Authorization": "Bearer for-admin"}) as answer:
            assert answer.content_type == "text/event-stream"
            assert await next_page(answer.content) == ["mine", "theirs"]
            field_.submit(gang("later", 2))
            assert await next_page(answer.content) == ["mine", "theirs", "later"]

    run(field_, work)


def test_each_user_has_a_number_of_streams(field_: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_server, "MAX_STREAMS", 10)
    monkeypatch.setattr(view_server, "_ALIVE_SECONDS", 3600.0)

    async def work(served: Served) -> None:
        url = f"{served.url}{BASE}/queue?watch=true"
        async with contextlib.AsyncExitStack() as stack:

            async def open_stream(token: str) -> int:
                headers = {"Authorization": f"Bearer {token}"}
                return (await stack.enter_async_context(served.session.get(url, headers=headers))).status

            mine = [await open_stream("for-ann") for _ in range(9)]
            assert mine == [200] * 8 + [429]
            assert [await open_stream("for-admin") for _ in range(3)] == [200, 200, 429], "all together"
            assert (await served.get(f"{BASE}/queue", "for-ann"))[0] == 200, "lists are still answered"
        status = 429
        async with asyncio.timeout(120):  # their places are free again, before anything is written to them
            while status == 429:
                async with served.session.get(url, headers={"Authorization": "Bearer for-ann"}) as answer:
                    status = answer.status
                await asyncio.sleep(0.1)
        assert status == 200

    run(field_, work)


def test_five_hundred_streams_and_lists_are_still_answered(
    field_: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many users: so many as all together may have, and others are asked to come again."""
    monkeypatch.setattr(view_server, "_TICK_SECONDS", 600.0)
    users = {f"for-{number}": f"user-{number}" for number in range(100)}
    for token, name in users.items():
        monkeypatch.setitem(TOKENS, token, name)

    async def work(served: Served) -> None:
        url = f"{served.url}{BASE}/queue?watch=true"
        async with contextlib.AsyncExitStack() as stack:
            connector = aiohttp.TCPConnector(limit=0)
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            statuses = []
            for token in [*users] * 5:
                headers = {"Authorization": f"Bearer {token}"}
                answer = await stack.enter_async_context(session.get(url, headers=headers))
                statuses.append(answer.status)
                if answer.status == 429:
                    assert answer.headers["Retry-After"] == "1"
            assert (statuses.count(200), statuses.count(429)) == (view_server.MAX_STREAMS, 244)
            assert statuses[: view_server.MAX_STREAMS] == [200] * view_server.MAX_STREAMS
            status, page = await served.get(f"{BASE}/queue", "for-ann")
            assert (status, [row.get("name") for row in page["items"]]) == (200, ["mine", None])

    run(field_, work)


def test_all_pages_of_a_list_come_at_once_and_the_pause_follows(
    field_: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages leave the processor to the scheduler, but a list of many pages is not slower for that."""
    monkeypatch.setattr(view_server, "_REST", 2000.0)  # a page of a millisecond, and two seconds of pause
    monkeypatch.setattr(view_server, "_AHEAD_SECONDS", 3600.0)

    async def work(served: Served) -> None:
        began = asyncio.get_running_loop().time()
        _, body = await served.get(f"{BASE}/jobs?limit=1&labelSelector=a!%3Db,c+notin+(d,e)")
        found = [row["name"] for row in body["items"]]
        while token := body["metadata"].get("continue"):
            path = f"{BASE}/jobs?limit=1&labelSelector=a!%3Db,c+notin+(d,e)&continue={token}"
            _, body = await served.get(path)
            found += [row["name"] for row in body["items"]]
        assert found == ["running", "mine", "theirs"]
        took = asyncio.get_running_loop().time() - began
        monkeypatch.setattr(view_server, "_REST", 0.0)
        await served.get(f"{BASE}/queue")
        waited = asyncio.get_running_loop().time() - began - took
        assert waited > took, (waited, took)

    run(field_, work)


def test_a_page_is_made_once_for_readers_with_the_same_rights(
    field_: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TOKENS, "for-root", "root")
    monkeypatch.setitem(PODS, "root", PODS["admin"])
    made: list[str] = []
    make_page = view_server.make_page

    def counted(snapshot: Snapshot, reader: Any, *rest: Any) -> Any:
        made.append(reader.user.name)
        return make_page(snapshot, reader, *rest)

    monkeypatch.setattr(view_server, "make_page", counted)

    async def work(served: Served) -> None:
        kept = field_.snapshot()

        async def unchanged() -> Snapshot:
            return kept

        monkeypatch.setattr(served.view, "snapshot", unchanged)
        everything = await served.get(f"{BASE}/jobs")
        assert await served.get(f"{BASE}/jobs", "for-root") == everything
        assert made == ["admin"]
        _, own = await served.get(f"{BASE}/jobs", "for-ann")
        assert [row.get("name") for row in own["items"]] == ["running", "mine", None]
        _, narrow = await served.get(f"{BASE}/jobs?columns=name,pods")
        assert narrow["rows"][0] == ["running", 2] and made == ["admin", "ann", "admin"]
        _, other = await served.get(f"{BASE}/namespaces/physics/jobs")
        assert [row["name"] for row in other["items"]] == ["running", "mine"]

    run(field_, work)


def test_further_pages_have_their_pause_in_the_end(field_: Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for the same page again and again gets no more of the processor than others."""
    monkeypatch.setattr(view_server, "_REST", 200.0)
    monkeypatch.setattr(view_server, "_AHEAD_SECONDS", 0.05)

    async def work(served: Served) -> None:
        _, body = await served.get(f"{BASE}/jobs?limit=1")
        began, spent = asyncio.get_running_loop().time(), 0
        while asyncio.get_running_loop().time() < began + 1.0:
            await served.get(f"{BASE}/jobs?limit=1&continue={body['metadata']['continue']}")
            spent += 1
        assert spent < 60, "each takes a tenth of a millisecond at least, and two hundred times that of pause"

    run(field_, work)
