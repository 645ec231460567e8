import asyncio
import random

import msgspec
import pytest
from aiohttp import web

from fluence.clock import ManualClock
from fluence.errors import InvalidInput
from fluence.kube.access import Access
from fluence.kube.client import Client, PatchType, TokenBucket
from fluence.kube.errors import (
    AlreadyExists,
    ApiConflict,
    Forbidden,
    Misconfigured,
    Missing,
    RetryPolicy,
    ServerFault,
    Status,
    TimedOut,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from fluence.kube.resource import PODS
from fluence.kube.transport import is_loopback, proxy_for
from fluence.model.pod import Pod
from tests.unit.kube.serving import pod, serving, status

QUICK = RetryPolicy(tries=4, base_s=0.001, cap_s=0.01)


class Script:
    """Answers with one response after the other, the last for ever; keeps what it was asked."""

    def __init__(self, *answers: web.Response | str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, bytes]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs, await request.read()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


async def bound(script: Script) -> None:
    async with serving(script) as access, Client(access, retry=QUICK) as client:
        await client.bind(msgspec.convert(pod("a"), Pod), "n1", annotations={"why": "fits"})


async def test_a_binding_carries_uid_annotations_and_node() -> None:
    script = Script(web.json_response({}, status=201))
    await bound(script)
    method, path, body = script.asked[0]
    assert (method, path) == ("POST", "/api/v1/namespaces/ns/pods/a/binding")
    sent = msgspec.json.decode(body)
    assert sent["metadata"] == {
        "name": "a",
        "namespace": "ns",
        "uid": "uid-a",
        "annotations": {"why": "fits"},
    }
    assert sent["target"]["name"] == "n1"


async def test_a_binding_whose_answer_was_lost_is_checked_against_the_pod() -> None:
    mine = {**pod("a"), "spec": {"nodeName": "n1"}}
    script = Script("lost", status(409, "Conflict", "already assigned"), web.json_response(mine))
    await bound(script)
    assert [method for method, _, _ in script.asked] == ["POST", "POST", "GET"]


async def test_a_binding_that_somebody_else_made_is_a_conflict() -> None:
    other = {**pod("a"), "spec": {"nodeName": "n2"}}
    with pytest.raises(ApiConflict, match="already assigned"):
        await bound(Script("lost", status(409, "Conflict", "already assigned"), web.json_response(other)))


async def test_a_plain_conflict_is_not_asked_about() -> None:
    script = Script(status(409, "Conflict", "already assigned"))
    with pytest.raises(ApiConflict):
        await bound(script)
    assert len(script.asked) == 1


async def test_429_waits_as_long_as_the_server_says() -> None:
    script = Script(status(429, "TooManyRequests", Retry_After="0.3"), web.json_response(pod("a")))
    async with serving(script) as access, Client(access, retry=QUICK) as client:
        began = asyncio.get_running_loop().time()
        found = await client.get(PODS, "a", namespace="ns")
        assert asyncio.get_running_loop().time() - began >= 0.3
        assert found.metadata.name == "a"
        assert client.retries == 1


@pytest.mark.parametrize("code", [500, 502, 503, 504])
async def test_5xx_is_tried_again_and_then_given_up(code: int) -> None:
    script = Script(status(code))
    async with serving(script) as access, Client(access, retry=QUICK) as client:
        with pytest.raises(ServerFault):
            await client.get(PODS, "a", namespace="ns")
    assert len(script.asked) == QUICK.tries


async def test_a_create_with_generate_name_is_never_sent_twice() -> None:
    script = Script(status(500))
    async with serving(script) as access, Client(access, retry=QUICK) as client:
        with pytest.raises(ServerFault):
            await client.create(PODS, {"metadata": {"generateName": "a-"}}, namespace="ns")
        assert len(script.asked) == 1
        with pytest.raises(ServerFault):
            await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns")
        assert len(script.asked) == 1 + QUICK.tries


async def test_exists_already_after_a_lost_answer_says_that_it_may_be_ours() -> None:
    script = Script("lost", status(409, "AlreadyExists"))
    async with serving(script) as access, Client(access, retry=QUICK) as client:
        with pytest.raises(AlreadyExists) as caught:
            await client.create(PODS, {"metadata": {"name": "a"}}, namespace="ns")
    assert caught.value.ambiguous


async def test_a_patch_that_pins_no_version_is_sent_again_after_a_conflict() -> None:
    script = Script(status(409, "Conflict"), web.json_response(pod("a")))
    async with serving(script) as access, Client(access, retry=QUICK) as client:
        await client.patch(
            PODS, "a", {"metadata": {"labels": {"x": "y"}}}, namespace="ns", kind=PatchType.STRATEGIC
        )
        assert len(script.asked) == 2
        script.answers = [status(409, "Conflict")]
        with pytest.raises(ApiConflict):
            await client.patch(PODS, "a", {"metadata": {"resourceVersion": "7"}}, namespace="ns")
        assert len(script.asked) == 3


async def test_a_hanging_server_costs_no_more_than_the_deadline() -> None:
    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with serving(hang) as access, Client(access, retry=QUICK) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimedOut, match="no answer"):
            await client.request("GET", "/api/v1/pods", timeout_s=0.3)
        assert asyncio.get_running_loop().time() - began < 30, "the server hangs for a minute"


async def test_pages_are_followed_and_belong_to_the_first_version() -> None:
    def page(version: str, names: list[str], more: str = "") -> web.Response:
        return web.json_response(
            {
                "metadata": {"resourceVersion": version, "continue": more},
                "items": [pod(name) for name in names],
            }
        )

    script = Script(page("7", ["a", "b"], "next"), page("9", ["c"]))
    async with serving(script) as access, Client(access) as client:
        found = await client.list(PODS, limit=2)
    assert [each.metadata.name for each in found.items or ()] == ["a", "b", "c"]
    assert found.metadata.resource_version == "7"
    assert "continue=next" in script.asked[1][1]


async def test_an_empty_name_never_becomes_a_call_to_the_collection() -> None:
    async with Client(Access(server="http://127.0.0.1:9")) as client:
        with pytest.raises(InvalidInput, match="name is empty"):
            await client.delete(PODS, "", namespace="ns")
        with pytest.raises(InvalidInput, match="namespace is needed"):
            await client.get(PODS, "a")


async def test_faults_say_what_happened_and_what_to_do() -> None:
    async with Client(
        Access(server="http://127.0.0.1:9", source="/home/me/.kube/config"), retry=QUICK
    ) as client:
        with pytest.raises(Unreachable, match=r"nothing listens at http://127.0.0.1:9; is the cluster up"):
            await client.request("GET", "/version")
    cases = [
        (status(401, "Unauthorized", "Unauthorized"), Unauthorized, "log in again"),
        (status(403, "Forbidden", 'User "me" cannot list resource "pods"'), Forbidden, "bind a Role"),
        (status(404, "NotFound", 'pods "a" not found'), Missing, 'pods "a" not found'),
        (web.Response(text="<html>bad gateway</html>", status=502), ServerFault, "bad gateway"),
    ]
    for answer, kind, words in cases:
        async with serving(Script(answer)) as access, Client(access, retry=RetryPolicy(tries=1)) as client:
            with pytest.raises(kind, match=words) as caught:
                await client.get(PODS, "a", namespace="ns")
            assert "\n" not in str(caught.value)


def test_the_policy_gives_up_on_what_another_try_cannot_cure() -> None:
    rng = random.Random(1)
    busy = TooManyRequests("x", Status(code=429), retry_after=7.0)
    assert QUICK.pause(busy, attempt=1, repeatable=False, rng=rng) == 7.0
    assert QUICK.pause(busy, attempt=QUICK.tries, repeatable=True, rng=rng) is None
    assert QUICK.pause(Unreachable("x", sent=False), attempt=1, repeatable=False, rng=rng) is not None
    assert QUICK.pause(Unreachable("x", sent=True), attempt=1, repeatable=False, rng=rng) is None
    assert QUICK.pause(Forbidden("x", Status(code=403)), attempt=1, repeatable=True, rng=rng) is None


def test_the_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    clock = ManualClock()
    bucket = TokenBucket(10, 3, clock=clock)
    assert [bucket.reserve() for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.reserve() == pytest.approx(0.1)
    assert bucket.reserve() == pytest.approx(0.2)
    clock.advance(1.0)
    assert bucket.take()


@pytest.mark.parametrize(
    ("server", "env", "expected"),
    [
        ("https://k8s.example.org", {"HTTPS_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://k8s.example.org", {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("https://k8s.example.org", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".example.org"}, None),
        (
            "https://k8s.example.org",
            {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "other.org, example.org"},
            None,
        ),
        ("https://10.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, None),
        ("https://11.1.2.3:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, None),
        ("https://k8s.example.org", {"HTTP_PROXY": "http://p:1"}, None),
    ],
)
def test_the_proxy_of_the_environment(server: str, env: dict[str, str], expected: str | None) -> None:
    assert proxy_for(Access(server=server), env) == expected


def test_the_proxy_of_the_kubeconfig_wins_and_must_be_one_we_can_use() -> None:
    access = Access(server="https://k8s.example.org", proxy_url="http://kube:1")
    assert proxy_for(access, {"HTTPS_PROXY": "http://env:1"}) == "http://kube:1"
    with pytest.raises(Misconfigured, match="socks5://s is not supported"):
        proxy_for(Access(server="https://x", proxy_url="socks5://u:secret@s:1"), {})


async def test_calls_go_through_an_http_proxy() -> None:
    script = Script(web.json_response(pod("a")))
    async with serving(script) as proxy:
        access = Access(server="http://k8s.invalid:8080", proxy_url=proxy.server)
        async with Client(access, qps=0) as client:
            assert (await client.get(PODS, "a", namespace="ns")).metadata.name == "a"


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://127.0.0.1:1", True),
        ("https://[::1]:1", True),
        ("https://localhost", True),
        ("https://10.0.0.1", False),
    ],
)
def test_loopback(server: str, expected: bool) -> None:
    assert is_loopback(server) is expected


def test_a_user_reads_which_right_is_missing_and_the_role_that_has_it() -> None:
    cannot = 'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "a"'
    error = Forbidden("GET /api/v1/namespaces/a/pods", Status(code=403, message=cannot))
    told = "train: you may not list pods in namespace a; you need the role `view` there"
    assert error.for_user("train", "a", role="view") == told
    policy = Forbidden("PATCH /x", Status(code=403, message="denied by policy quiet-hours"))
    assert policy.for_user("train", "a", role="edit") == f"train: {policy}"
