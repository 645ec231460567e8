"""A client that is closed has no socket left, whatever the server does not do."""

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest

from fluence.kube.access import Access
from fluence.kube.client import Client
from fluence.kube.errors import ONCE, TimedOut
from fluence.kube.resource import PODS
from fluence.sandbox.certs import Authority
from fluence.sandbox.proxy import Proxy

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 90000000\r\n\r\n{"


@contextlib.contextmanager
def deaf(folder: Path, *, answer: bytes) -> Iterator[Access]:
    """A TLS server that reads one request, says ``answer`` and then never listens again: to a farewell
    neither, as a hung server, or a busy one for a while."""
    authority = Authority("deaf")
    certificate, key = authority.server("kube-apiserver")
    (folder / "pem").write_bytes(certificate + key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pem")
    taken: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                secure = context.wrap_socket(plain, server_side=True)
                taken.append(secure)
                secure.recv(65536)
                secure.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Access(server=f"https://127.0.0.1:{listener.getsockname()[1]}", ca=authority.pem, source="test")
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
        for each in taken:
            each.close()


def left_open(work: Coroutine[object, object, None]) -> list[str]:
    """What Python says about transports and sockets that outlive the loop."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asyncio.run(work)
        gc.collect()
    return [str(each.message) for each in said]


async def given_up(access: Access) -> None:
    async with Client(access, retry=ONCE) as client:
        with pytest.raises(TimedOut):
            await client.request("GET", "/api", timeout_s=0.3)


async def cancelled(access: Access) -> None:
    async with Client(access, retry=ONCE) as client:
        task = asyncio.create_task(client.request("GET", "/api"))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait({task})


async def watched(access: Access) -> None:
    async with Client(access, retry=ONCE) as client, client.watch(PODS, params={}, idle_s=5):
        pass


async def forwarded(access: Access) -> None:
    """The proxy between them: the client goes first, and the server never says a word."""
    async with Proxy(access) as proxy:
        for way in (given_up, cancelled):
            await way(proxy.access)


ANSWERS = {"silent": b"", "slow": HEAD, "long": HEAD + b" " * 3_000_000}
WAYS = [
    (way, answer)
    for way in (given_up, cancelled, watched, forwarded)
    for answer in ANSWERS
    if (way, answer) != (watched, "silent")  # a watch begins with an answer
]


@pytest.mark.parametrize(("way", "answer"), WAYS)
def test_a_closed_client_has_no_socket_left(
    tmp_path: Path, way: Callable[[Access], Coroutine[object, object, None]], answer: str
) -> None:
    with deaf(tmp_path, answer=ANSWERS[answer]) as access:
        assert left_open(way(access)) == []
