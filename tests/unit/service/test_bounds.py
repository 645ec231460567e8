"""Hostile and clumsy clients: bad messages, huge ones, very many, ones that hang; TLS.

FLUENCE_SERVICE_CLIENTS=1000 is the long form.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from fluence.errors import InvalidInput
from fluence.match.request import Operation
from fluence.service import match_v1_pb2 as v1
from fluence.service import rpc
from fluence.service.api import SERVICE
from fluence.service.engine import Match, Refusal
from fluence.service.graphs import Graphs
from fluence.service.journal import Journal
from fluence.service.matcher_engine import MatcherEngine
from fluence.service.server import MatchServer
from fluence.service.settings import ServiceSettings
from tests.unit.service import wire
from tests.unit.service.graphs import flat_jgf, jobspec, slots_only
from tests.unit.service.running import Client, Service, channel_to, reason, serving

CLIENTS = int(os.environ.get("FLUENCE_SERVICE_CLIENTS", "100"))
METHODS = [
    *(f"/{SERVICE}/{name}" for name in v1.DESCRIPTOR.services_by_name["MatchService"].methods_by_name),
    *(f"/fluxion.FluxionService/{name}" for name in ("Init", "Match", "Cancel", "Grow", "Shrink")),
    *(f"/fluxcli.FluxcliService/{name}" for name in ("Match", "Cancel")),
    *(f"/service.ExternalPluginService/{name}" for name in ("GetResources", "ListGroups", "GetGroup")),
]
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
}


def send(
    channel: grpc.Channel, method: str, data: bytes, timeout: float = 20.0
) -> tuple[grpc.StatusCode, str]:
    """The code and the words that some bytes get as an answer."""
    stream = method.endswith("WatchPlan")
    call: Any = (channel.unary_stream if stream else channel.unary_unary)(method)
    try:
        if stream:
            events = call(data, timeout=timeout)
            next(events)
            events.cancel()
        else:
            call(data, timeout=timeout)
        return grpc.StatusCode.OK, ""
    except grpc.RpcError as error:
        return error.code(), error.details()  # type: ignore[return-value]


def test_bad_messages_get_a_code_and_change_nothing(service: Service) -> None:
    """Random bytes, cut and mangled messages, text that is not UTF-8: for every method."""
    seed = random.Random(5)
    with channel_to(service.address) as channel:
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(3), replace=True)
        held = client.Match(jobspec=jobspec(1, 2), format="jgf").allocation
        good = v1.MatchRequest(jobspec=jobspec(9, 9), graph="absent", now=3).SerializeToString()
        bad = [
            b"",
            b"\xff",
            b"\x0a\xff\xff\xff\xff\x0f",
            b"\x0a\x05ab",
            b"\x1a\x02\xff\xfe",
            b"\x00" * 50,
            good[:-3],
        ]
        bad += [seed.randbytes(seed.randint(1, 60)) for _ in range(25)]
        bad += [bytes(byte ^ (seed.random() < 0.03) for byte in good) for _ in range(5)]
        codes: Counter[grpc.StatusCode] = Counter()
        for method in METHODS:
            for data in bad:
                code, words = send(channel, method, data)
                codes[code] += 1
                assert code in EXPECTED, (method, data, code, words)
                assert code is grpc.StatusCode.OK or words
        assert codes[grpc.StatusCode.INVALID_ARGUMENT] > len(METHODS) * 5
        assert [client.Info(job=job.job, format="jgf").allocation for job in client.ListJobs().jobs] == [held]
        assert send(channel, f"/{SERVICE}/NoSuchMethod", b"")[0] == grpc.StatusCode.UNIMPLEMENTED
    assert service.process.poll() is None
    assert "Traceback" not in service.log


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        (
            "a: &a [x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\n"
            "d: &d [*c, *c, *c, *c, *c, *c, *c, *c]\nresources: [*d, *d, *d, *d, *d, *d]"
        ),
        json.dumps(
            {"version": 1, "resources": [{"type": "core", "count": 10**30}], "tasks": [], "attributes": {}}
        ),
        "{" * 3000 + "}" * 3000,
        "resources: " + "x" * 900_000,
    ],
    ids=["nested", "laughs", "count", "braces", "long"],
)
def test_jobspecs_that_are_made_to_hurt(service: Service, text: str) -> None:
    with channel_to(service.address) as channel:
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(3), replace=True)
        for call in (
            lambda: client.Match(jobspec=text),
            lambda: wire.fluxion(channel).Match(jobspec=text),
            lambda: client.Explain(jobspec=text),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT, error.value.details()
            assert len(error.value.details()) < 4000  # type: ignore[arg-type]
        assert client.Match(jobspec=jobspec()).job


def test_graphs_that_would_grow_too_large(service: Service) -> None:
    recipe = (Path(__file__).parents[3] / "examples" / "cluster.graphml").read_text()
    scaled = recipe.replace('"count">2<', '"count">4000<').replace('"count">8<', '"count">4000<')
    assert scaled != recipe
    entry = {"rank": "0-3999999", "children": {"core": "0-3999999"}}
    r = json.dumps(
        {
            "version": 1,
            "execution": {"R_lite": [entry], "nodelist": ["n[0-3999999]"], "starttime": 0, "expiration": 0},
        }
    )
    with channel_to(service.address) as channel:
        client = Client(channel)
        for format_, text in (("grug", scaled), ("rv1exec", r)):
            with pytest.raises(grpc.RpcError) as error:
                client.LoadGraph(graph="large", text=text, format=format_, replace=True, timeout=120)
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT, error.value.details()
    assert service.memory_mb < 1000, "they have 16 million vertices and more"


def test_a_graph_of_200_mb_is_refused_within_bounded_memory() -> None:
    with serving() as (service, channel):
        old = wire.fluxion(channel)
        old.Init(jgf=flat_jgf(2))
        before = service.memory_mb
        text = " " * 200_000_000
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as error:
                old.Init(jgf=text, timeout=60)
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "larger than max" in error.value.details()
            assert reason(error.value) == ""  # which tells it from busy
        with pytest.raises(grpc.RpcError) as error:
            Client(channel).Match(jobspec=" " * (2 << 20))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert service.memory_mb - before < 100
        assert old.Match(jobspec=jobspec(2, 4)).jobid == 1


def test_large_messages_are_received_a_few_at_a_time() -> None:
    """Twelve clients send 20 MB each, and wait for their turn before their bytes are taken in."""

    async def many(address: str) -> list[grpc.StatusCode]:
        text = "[" + " " * 20_000_000
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]

        async def one() -> grpc.StatusCode:
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                request = v1.LoadGraphRequest(text=text, format="jgf").SerializeToString()
                try:
                    await channel.unary_unary(f"/{SERVICE}/LoadGraph")(request, timeout=120)  # type: ignore[arg-type]
                    return grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    return error.code()

        return await asyncio.gather(*(one() for _ in range(12)))

    with serving() as (service, channel):
        Client(channel).ListGraphs()
        before = service.memory_mb
        assert set(asyncio.run(many(service.address))) == {grpc.StatusCode.INVALID_ARGUMENT}
        assert service.memory_mb - before < 600  # twelve at once would be above 1000


def test_very_many_clients_at_once() -> None:
    """Every one is answered, nothing is given twice, and nothing is lost."""
    nodes = 40

    async def many(address: str) -> list[Any]:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        ready = asyncio.Event()

        async def one(number: int) -> Any:
            async with grpc.aio.insecure_channel(address, options=options) as channel:
                match = channel.unary_unary(
                    f"/{SERVICE}/Match",
                    request_serializer=v1.MatchRequest.SerializeToString,
                    response_deserializer=v1.MatchResponse.FromString,
                )
                await asyncio.wait_for(channel.channel_ready(), 120)
                await ready.wait()
                try:
                    return await match(
                        v1.MatchRequest(jobspec=slots_only(1, 1), name=f"c{number}", format="simple"),
                        timeout=120,
                    )
                except grpc.aio.AioRpcError as error:
                    return error.code()

        calls = [asyncio.ensure_future(one(number)) for number in range(CLIENTS)]
        await asyncio.sleep(0.5)
        ready.set()
        return await asyncio.gather(*calls)

    with serving() as (service, channel):
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(nodes))
        answers = asyncio.run(many(service.address))
        found = [answer for answer in answers if isinstance(answer, v1.MatchResponse)]
        assert len(found) == min(CLIENTS, 4 * nodes)
        assert {answer for answer in answers if answer not in found} <= {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len({answer.job for answer in found}) == len(found)
        assert client.ListJobs().total == len(found)
        assert service.memory_mb < 400


def test_large_replies_are_made_when_others_have_been_read() -> None:
    """300 clients ask for a graph of 1.1 MB, and some never read it: what is on the way has a bound, others
    are answered meanwhile, and who does not read is disconnected."""

    async def many(address: str, count: int) -> list[int]:
        async def one(channel: grpc.aio.Channel) -> int:
            get = channel.unary_unary(
                f"/{SERVICE}/GetGraph",
                request_serializer=v1.GetGraphRequest.SerializeToString,
                response_deserializer=lambda data: len(data),
            )
            return await get(v1.GetGraphRequest(), timeout=120)

        async with contextlib.AsyncExitStack() as stack:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
            channels = [
                await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
                for _ in range(20)
            ]
            return await asyncio.gather(*(one(channels[number % 20]) for number in range(count)))

    with serving("--send-timeout", "1", "--max-replies", str(8 << 20)) as (service, channel):
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(1500))
        size = len(client.GetGraph().text)
        assert size > 1_000_000
        before = service.memory_mb
        silent = [never_reads(service.address, f"/{SERVICE}/GetGraph") for _ in range(9)]
        try:
            began = time.perf_counter()
            while time.perf_counter() - began < 1:  # they fill what there is room for
                client.Cancel(job=99, missing_ok=True, timeout=1)
            assert set(asyncio.run(many(service.address, 300))) == {size + 4}
            assert all(is_closed(each) for each in silent)
        finally:
            for each in silent:
                each.close()
        assert service.memory_mb - before < 100, "300 of them at once have more than 330 MB"
        assert client.Match(jobspec=jobspec()).job


def never_reads(address: str, method: str) -> socket.socket:
    """A client that sends an empty request and then nothing, with a window of 64 KiB for its answer."""

    def frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
        return len(data).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + data

    def header(name: str, value: str) -> bytes:
        return b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()

    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    host, _, port = address.rpartition(":")
    found = socket.create_connection((host, int(port)))
    found.sendall(
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(4, 0, 0, b"")
        + frame(1, 4, 1, b"".join(header(name, value) for name, value in headers.items()))
        + frame(0, 1, 1, b"\0\0\0\0\0")
    )
    return found


def is_closed(client: socket.socket) -> bool:
    """Whether all that was sent has an end."""
    client.settimeout(10)
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_calls_above_the_limit_are_told_to_come_again() -> None:
    with serving("--max-calls", "4", "--max-streams", "2") as (_, channel):
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(2))
        watching = [client.WatchPlan() for _ in range(2)]
        for stream in watching:
            next(stream)
        with pytest.raises(grpc.RpcError) as error:
            next(client.WatchPlan())
        assert (error.value.code(), reason(error.value)) == (grpc.StatusCode.UNAVAILABLE, "overloaded")
        for stream in watching:
            stream.cancel()
        time.sleep(0.2)
        assert next(client.WatchPlan())


def test_graphs_above_the_limit_are_refused() -> None:
    with serving("--max-graphs", "2", "--max-vertices", "20") as (_, channel):
        client = Client(channel)
        client.LoadGraph(graph="a", text=flat_jgf(2))
        client.LoadGraph(graph="b", text=flat_jgf(1))
        with pytest.raises(grpc.RpcError) as error:
            client.LoadGraph(graph="c", text=flat_jgf(1))
        assert (error.value.code(), reason(error.value)) == (grpc.StatusCode.OUT_OF_RANGE, "limit")
        client.UnloadGraph(graph="b")
        for call in (
            lambda: client.LoadGraph(graph="b", text=flat_jgf(3)),
            lambda: client.Grow(graph="a", jgf=flat_jgf(3, first=2)),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert "vertices" in error.value.details()


@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "journal"])
def test_a_graph_that_grows_and_shrinks_for_ever_does_not_leak(tmp_path: Path, kept: bool) -> None:
    """Nodes come and go again and again: vertices that are gone are forgotten, jobs stay where they are."""
    graphs = Graphs(journal=Journal(tmp_path) if kept else None)
    graphs.restore()
    graphs.load("", flat_jgf(2), policy="low")
    held = graphs.match("", Operation.ALLOCATE, jobspec(1, 4), now=0, format_="jgf")
    assert isinstance(held, Match)
    most = 0
    for _ in range(10):
        engine = graphs.get().engine
        assert isinstance(engine, MatcherEngine)
        engine.grow(flat_jgf(400, first=2))
        graphs.commit()
        graphs.get().engine.shrink([f"/cluster0/node{number}" for number in range(2, 402)])
        graphs.commit()
        found = graphs.get().engine
        assert isinstance(found, MatcherEngine)
        most = max(most, found.rows)
        assert found.vertices == 11
        assert kept or found.change_count == 0
    assert most < 10_000, "10 times 2,000 vertices came and went"
    assert graphs.get().engine.job(1, "jgf")[1] == held.allocation
    assert isinstance(graphs.match("", Operation.ALLOCATE, jobspec(1, 4), now=0), Match)
    assert isinstance(graphs.match("", Operation.ALLOCATE, jobspec(1, 4), now=0), Refusal)
    graphs.close()
    if kept:
        again = Graphs(journal=Journal(tmp_path))
        again.restore()
        assert again.get().engine.job(1, "jgf")[1] == held.allocation
        again.close()


def test_vertices_that_are_gone_and_other_graphs_count() -> None:
    graphs = Graphs(max_vertices=40)
    graphs.load("a", flat_jgf(2))
    graphs.load("b", flat_jgf(2))
    engine = graphs.get("a").engine
    for first in (2, 3):
        engine.grow(flat_jgf(1, first=first))
        engine.shrink([f"/cluster0/node{first}"])
        graphs.commit()
    with pytest.raises(InvalidInput, match="with those that were removed"):
        engine.grow(flat_jgf(2, first=4))
    with pytest.raises(InvalidInput, match="vertices"):
        graphs.get("b").engine.grow(flat_jgf(2, first=4))
    with pytest.raises(InvalidInput, match="vertices"):
        graphs.load("c", flat_jgf(2))


def test_jobs_and_reservations_above_the_limit_are_refused() -> None:
    with serving("--max-jobs", "5") as (_, channel):
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(1))
        for _ in range(5):
            client.Match(jobspec=jobspec(1, 4), operation=v1.ALLOCATE_ORELSE_RESERVE)
        for call in (
            lambda: client.Match(jobspec=jobspec(1, 4), operation=v1.ALLOCATE_ORELSE_RESERVE),
            lambda: client.Update(job=9, text="{}", duration=1),
        ):
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert (error.value.code(), reason(error.value)) == (grpc.StatusCode.OUT_OF_RANGE, "limit")
        assert client.Match(jobspec=jobspec(1, 4), operation=v1.SATISFIABILITY).job == -1
        client.Cancel(job=5)
        assert client.Match(jobspec=jobspec(1, 4), operation=v1.ALLOCATE_ORELSE_RESERVE).job == 6


def test_clients_that_hang_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some open a call and send no request, one watches and never reads, one connects and says nothing. The
    service waits ten minutes for them: 150 calls of another client are answered before any of them ends."""
    monkeypatch.setattr(rpc, "_SMALL_S", 600.0)
    settings = ServiceSettings(service_address="127.0.0.1:0", receive_timeout=600)

    async def use() -> None:
        graphs = Graphs()
        graphs.load("", flat_jgf(50))
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        async with (
            MatchServer(settings, graphs) as server,
            grpc.aio.insecure_channel(server.address, options=options) as channel,
        ):
            methods = [f"/{SERVICE}/Match"] * 40 + [f"/{SERVICE}/LoadGraph"] * 3
            hanging: list[Any] = [channel.stream_unary(method)(timeout=600) for method in methods]
            hanging.append(channel.unary_stream(f"/{SERVICE}/WatchPlan")(b"", timeout=600))  # type: ignore[arg-type]
            for call in hanging:
                await call.wait_for_connection()
            host, _, port = server.address.rpartition(":")
            with socket.create_connection((host, int(port))):
                for job in range(1, 76):
                    asked = v1.MatchRequest(jobspec=slots_only(2, 2)).SerializeToString()
                    answer: Any = await channel.unary_unary(f"/{SERVICE}/Match")(asked, timeout=120)  # type: ignore[arg-type]
                    assert v1.MatchResponse.FromString(answer).job == job
                    asked = v1.CancelRequest(job=job).SerializeToString()
                    await channel.unary_unary(f"/{SERVICE}/Cancel")(asked, timeout=120)  # type: ignore[arg-type]
            assert not any(call.done() for call in hanging)
            for call in hanging:
                call.cancel()
        graphs.close()

    asyncio.run(use())


def test_a_request_that_does_not_arrive_is_given_up() -> None:
    """More of them than are received at a time, so that a call waits until they are given up."""
    with serving("--receive-timeout", "1") as (_, channel):
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(2))
        release = threading.Event()

        def never() -> Any:
            release.wait()
            yield from ()

        hanging: list[Any] = [
            channel.stream_unary(f"/{SERVICE}/Match").future(never(), timeout=120) for _ in range(80)
        ]
        try:
            assert client.Match(jobspec=jobspec(), timeout=120).job
            for call in hanging:
                assert (call.code(), reason(call)) == (grpc.StatusCode.DEADLINE_EXCEEDED, "slow")
        finally:
            release.set()


def test_a_stop_answers_what_is_under_way(tmp_path: Path) -> None:
    service = Service()
    with channel_to(service.address) as channel:
        client = Client(channel)
        client.LoadGraph(text=flat_jgf(2000))
        call = channel.unary_unary(
            f"/{SERVICE}/LoadGraph",
            request_serializer=v1.LoadGraphRequest.SerializeToString,
            response_deserializer=v1.GraphInfo.FromString,
        ).future(v1.LoadGraphRequest(graph="late", text=flat_jgf(3000)), timeout=30)
        time.sleep(0.15)
        assert service.stop() == 0
        assert call.code() in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)


def test_a_port_that_is_taken_is_said() -> None:
    with (
        serving() as (service, _),
        pytest.raises(RuntimeError, match="cannot listen: Address already in use") as refused,
    ):
        Service("--service-address", service.address)
    assert "add_port" not in str(refused.value)  # gRPC's own line, which says less


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nonsense", "must be HOST:PORT"),
        ("127.0.0.1:99999", "must be HOST:PORT"),
        ("192.0.2.1:0", "cannot listen: Cannot assign requested address"),
        ("unix:/no/such/folder/socket", "there is no folder /no/such/folder"),
    ],
)
def test_an_address_where_it_cannot_listen_is_said(address: str, why: str) -> None:
    with pytest.raises(RuntimeError, match=why) as refused:
        Service("--service-address", address)
    assert "add_port" not in str(refused.value)


def test_certificates_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    from tests.unit.service.certificates import Authority

    authority = Authority("ours")
    authority.issue("localhost", tmp_path / "tls.crt", tmp_path / "tls.key")
    authority.issue("localhost", tmp_path / "other.crt", tmp_path / "other.key")
    (tmp_path / "junk").write_text("junk")
    for certificate, key in (("junk", "tls.key"), ("tls.crt", "junk"), ("tls.crt", "other.key")):
        with pytest.raises(RuntimeError, match=r"tls-certificate: .*must be PEM files") as refused:
            Service("--tls-certificate", str(tmp_path / certificate), "--tls-key", str(tmp_path / key))
        assert "add_port" not in str(refused.value)


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    from tests.unit.service.certificates import Authority

    authority, stranger = Authority("ours"), Authority("theirs")
    authority.issue("localhost", tmp_path / "tls.crt", tmp_path / "tls.key")
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    arguments = ["--tls-certificate", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key")]
    service = Service(*arguments, "--tls-client-ca", str(tmp_path / "ca.crt"))
    port = service.address.rpartition(":")[2]

    def call(
        key: bytes | None = None, certificate: bytes | None = None, roots: bytes = authority.certificate
    ) -> str:
        credentials = grpc.ssl_channel_credentials(roots, key, certificate)
        options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
            try:
                Client(channel).ListGraphs(timeout=5)
                return "served"
            except grpc.RpcError as error:
                return error.code().name

    try:
        key, certificate = authority.issue("a client")
        assert call(key, certificate) == "served"
        assert call() != "served"
        assert call(*stranger.issue("another")) != "served"
        assert call(key, certificate, stranger.certificate) != "served"
        with channel_to(f"localhost:{port}") as channel, pytest.raises(grpc.RpcError):
            Client(channel).ListGraphs(timeout=5)
        renewed = Authority("renewed")
        renewed.issue("localhost", tmp_path / "new.crt", tmp_path / "new.key")
        (tmp_path / "new.crt").rename(tmp_path / "tls.crt")
        assert call(key, certificate) == "served", "with the old pair, until the key is there as well"
        (tmp_path / "new.key").rename(tmp_path / "tls.key")
        deadline = time.monotonic() + 10
        while call(key, certificate, renewed.certificate) != "served":
            assert time.monotonic() < deadline, "the new certificate is not used"
    finally:
        service.stop()
    with pytest.raises(RuntimeError, match="go together"):
        Service(*arguments[:2])
