"""RPC: the common part of every method, from bounds to status codes, and the thread that does the work in
order.

RESOURCE_EXHAUSTED    busy         not now: others hold what is needed, or it is down
    FAILED_PRECONDITION   impossible   this graph cannot hold the request, however empty
    INVALID_ARGUMENT      invalid      the request itself is wrong, and where
    NOT_FOUND             not-found    no such graph, job or vertex
    ALREADY_EXISTS        conflict     the id, the name or the vertices are taken
    PERMISSION_DENIED     read-only    the graph cannot be changed by calls
    OUT_OF_RANGE          limit        more than the configured limits of the service
    UNAVAILABLE           overloaded   too many calls at once, or the service is ending: try again
    DEADLINE_EXCEEDED     slow         the request did not arrive in time

The second column is in the trailing metadata `fluence-reason`. A message above the largest size is refused by
gRPC itself (RESOURCE_EXHAUSTED, without a reason) before it is read.

Every method reads its only request itself, so that memory is bounded: a limited number of requests is
received at a time, and very few that carry a graph. A method whose reply may be large waits until the client
has read it. The connection of a client that does not read is closed, because gRPC would keep the reply.

Calls that arrive while the thread is busy are carried out together; their changes are written and synced
once, and then all of them are answered. So the disk limits the latency of a call but not the number of calls
per second.

Replies may be large, and clients may read them slowly. A call with a possibly large reply waits while the
unsent replies are at their limit; other calls overtake it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from fluence.errors import Conflict, FluenceError, InvalidInput, NotFound
from fluence.service.engine import Found, Match, PartReleased, ReadOnly, Refusal
from fluence.service.graphs import Graphs, LimitReached
from fluence.service.journal import JournalError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_BATCH: Final = 256
_BATCH_BYTES: Final = 4 << 20  # a batch ends when its results exceed this

Work = Callable[[], Any]
Result = tuple[bool, Any]  # whether it succeeded, and what it returned or raised


class Replies:
    """The size of replies that are made but not sent yet."""

    def __init__(self, limit: int = 32 << 20) -> None:
        self._limit = limit
        self.bytes = 0
        self.wake: Callable[[], None] = lambda: None

    @property
    def has_room(self) -> bool:
        return self.bytes < self._limit


class Charge:
    """The size of the reply of one call, from when it is made until it is sent."""

    __slots__ = ("_bytes", "_replies")

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        return self._replies.has_room

    def add(self, count: int) -> None:
        self._bytes += count
        self._replies.bytes += count

    def release(self) -> None:
        if self._bytes:
            self._replies.bytes -= self._bytes
            self._bytes = 0
            self._replies.wake()


REPLY: ContextVar[Charge | None] = ContextVar("REPLY", default=None)  # of the call that is being answered


class _Item(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    charge: Charge | None


class Worker:
    """``await worker.do(work)`` while ``worker.run()`` runs."""

    def __init__(self, graphs: Graphs, *, changed: Callable[[set[str]], None]) -> None:
        self._graphs = graphs
        self._changed = changed  # called on the event loop with the names of graphs that changed
        self._waiting: list[_Item] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "fluence-service")
        self._fault: BaseException | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """Run the work on the thread. Returns or raises its result once its changes are on disk."""
        if self._fault is not None:
            raise self._fault
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Item(work, future, REPLY.get()))
        self._wake.set()
        try:
            return await future
        finally:
            del work, future  # an exception refers to this frame and would keep the request alive

    async def run(self) -> None:
        """Carry out calls until cancelled. Raises `JournalError` when changes cannot be stored any more."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next_batch():
                try:
                    results = await asyncio.shield(
                        loop.run_in_executor(self._thread, self._carry_out, [item.work for item in batch])
                    )
                except JournalError as fault:
                    self._fail(batch, fault)
                    raise
                self._waiting[:0] = batch[len(results) :]  # the batch was cut
                for item, (succeeded, value) in zip(batch, results, strict=False):
                    if item.future.done():
                        continue
                    if succeeded:
                        if item.charge is not None:
                            item.charge.add(_weight(value))
                        item.future.set_result(value)
                    else:
                        item.future.set_exception(value)
                del batch, results
                touched = self._graphs.touched()
                if touched:
                    self._changed(touched)

    def wake(self) -> None:
        """A reply was sent, so other calls may continue."""
        self._wake.set()

    def close(self) -> None:
        """Wait for the current work, and do nothing more."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _next_batch(self) -> list[_Item]:
        """The oldest calls, without those whose clients are gone, and those that must wait for replies to be
        sent."""
        batch: list[_Item] = []
        rest: list[_Item] = []
        for item in self._waiting:
            if item.future.done():
                continue
            fits = len(batch) < _BATCH and (item.charge is None or item.charge.has_room)
            (batch if fits else rest).append(item)
        self._waiting = rest
        return batch

    def _carry_out(self, batch: list[Work]) -> list[Result]:
        """The result of each call; fewer if the results have become large."""
        results: list[Result] = []
        size = 0
        for work in batch:
            if size > _BATCH_BYTES:
                break
            try:
                value = work()
                results.append((True, value))
                size += _weight(value)
            except FluenceError as error:
                error.__context__ = None
                results.append((False, error.with_traceback(None)))
            except Exception as error:  # a bug must not end the service
                logger.exception("a call failed")
                results.append((False, error))
        self._graphs.commit()
        return results

    def _fail(self, batch: list[_Item], fault: JournalError) -> None:
        """Fail all calls: their changes are not on disk, so no call may report success."""
        self._fault = fault
        for item in (*batch, *self._waiting):
            if not item.future.done():
                item.future.set_exception(fault)
        self._waiting.clear()


def _weight(value: object) -> int:
    """The approximate size of a result in bytes; 0 if it is small."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Match):
        return len(value.allocation) + 64 * len(value.shares)
    if isinstance(value, Found):
        return len(value.text) + sum(map(len, value.paths))
    if isinstance(value, PartReleased):
        return sum(map(len, value.paths))
    if isinstance(value, (tuple, list)):
        return 64 * len(value) + sum(_weight(each) for each in value)
    return 0


REASON: Final = "fluence-reason"
_MAX_WORDS: Final = 3000  # clients refuse headers of more than 8 KiB
_RECEIVING: Final = 64  # requests that are being received
_LARGE_AT_ONCE: Final = 4
_SMALL_S: Final = 5.0  # for a request without a graph to arrive, so that slow clients block little
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
R = TypeVar("R")
Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]


class Overloaded(FluenceError):
    """Too many calls are in progress."""


class RequestSlow(FluenceError):
    """A request did not arrive in time."""


class Refused(FluenceError):
    """A request does not fit."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.verdict}: {refusal.words}")
        self.verdict = refusal.verdict


def fitting(result: Match | Refusal) -> Match:
    """A match. For a call, a request that does not fit is an error."""
    if isinstance(result, Refusal):
        raise Refused(result)
    return result


_CODES: tuple[tuple[type[Exception], grpc.StatusCode, str], ...] = (
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (NotFound, grpc.StatusCode.NOT_FOUND, "not-found"),
    (Conflict, grpc.StatusCode.ALREADY_EXISTS, "conflict"),
    (ReadOnly, grpc.StatusCode.PERMISSION_DENIED, "read-only"),
    (LimitReached, grpc.StatusCode.OUT_OF_RANGE, "limit"),
    (Overloaded, grpc.StatusCode.UNAVAILABLE, "overloaded"),
    (RequestSlow, grpc.StatusCode.DEADLINE_EXCEEDED, "slow"),
    (FluenceError, grpc.StatusCode.UNAVAILABLE, "unavailable"),  # a journal, or the API server of a cluster
    (RecursionError, grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
    (MemoryError, grpc.StatusCode.OUT_OF_RANGE, "limit"),
)
_FAULTS = {
    RecursionError: "the request is nested too deeply to work with",
    MemoryError: "the request is too large for the memory of the service",
}


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of calls in progress."""

    calls: int = 1024
    request_bytes: int = 1 << 20  # of requests that carry no graph
    large_bytes: int = 64 << 20
    receive_s: float = 30.0
    send_s: float = 30.0
    streams: int = 64


class Calls:
    """Makes handlers from methods."""

    def __init__(self, limits: CallLimits, replies: Replies) -> None:
        self._limits = limits
        self._replies = replies
        self.active = 0
        self._streams = 0
        self._receiving = asyncio.Semaphore(_RECEIVING)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    def unary(
        self, decode: Callable[[bytes], R], method: Callable[[R], Awaitable[Message]], *, large: bool = False
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A method with one request and one answer. ``large``: the request may carry a graph."""

        async def handle(_: Any, context: _Context) -> Message:
            return await self._guarded(context, lambda: self._answer(context, decode, method, large=large))

        # For a client this does not differ from a unary method.
        return grpc.stream_unary_rpc_method_handler(
            handle, request_deserializer=None, response_serializer=_serialized
        )

    def bulky(
        self, decode: Callable[[bytes], R], method: Callable[[R], Awaitable[Message]], *, large: bool = False
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Like `unary`, for a reply that may be large: it is made when others have been sent."""

        async def handle(_: Any, context: _Context) -> None:
            charge = Charge(self._replies)
            context.add_done_callback(lambda _: charge.release())  # type: ignore[arg-type]

            async def answer() -> None:
                REPLY.set(charge)
                reply = _serialized(await self._answer(context, decode, method, large=large))
                await self._send(context, reply)
                charge.release()

            await self._guarded(context, answer)

        # On the wire, a stream of one message is the reply of a unary method.
        return grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=None, response_serializer=None
        )

    async def _send(self, context: _Context, reply: bytes) -> None:
        """Send a reply. Returns when the client has read most of it."""
        write = asyncio.ensure_future(context.write(reply))
        write.add_done_callback(lambda done: done.cancelled() or done.exception())  # the client may be gone
        done, _ = await asyncio.wait({write}, timeout=self._limits.send_s)
        if not done:
            logger.warning(
                "%s did not read its reply of %d bytes within %g s: its connection is closed",
                context.peer(),
                len(reply),
                self._limits.send_s,
            )
            _disconnect(context.peer())
        await write  # gRPC keeps a message even if its write is cancelled

    def stream(
        self, decode: Callable[[bytes], R], method: Callable[[R], AsyncGenerator[Message, None]]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A method with one request and any number of answers."""

        async def handle(_: Any, context: _Context) -> None:
            async def answers() -> None:
                request = _decoded(decode, await self._receive_small(context))
                if self._streams >= self._limits.streams:
                    raise Overloaded(f"{self._streams} streams are open, which is the limit (--max-streams)")
                self._streams += 1
                try:
                    async with contextlib.aclosing(method(request)) as found:
                        async for answer in found:
                            await context.write(answer)
                finally:
                    self._streams -= 1

            await self._guarded(context, answers)

        return grpc.stream_stream_rpc_method_handler(
            handle, request_deserializer=None, response_serializer=_serialized
        )

    async def _guarded(self, context: _Context, work: Callable[[], Awaitable[R]]) -> R:
        try:
            if self.active >= self._limits.calls:
                raise Overloaded(f"{self.active} calls are under way, which is the limit (--max-calls)")
            self.active += 1
            try:
                return await work()
            finally:
                self.active -= 1
        except (grpc.aio.AbortError, grpc.RpcError):
            raise
        except Exception as error:
            status = _status(error)
        # Outside of the handler: an exception in progress keeps the request alive, which may carry a graph.
        await context.abort(*status)
        raise AssertionError("abort raises")

    async def _answer(
        self,
        context: _Context,
        decode: Callable[[bytes], R],
        method: Callable[[R], Awaitable[Message]],
        *,
        large: bool,
    ) -> Message:
        if not large:
            return await method(_decoded(decode, await self._receive_small(context)))
        limits = self._limits
        async with self._large:  # until it is answered: graphs use much more memory than their text
            data = await self._receive(context, limits.large_bytes, limits.receive_s)
            return await method(_decoded(decode, data))

    async def _receive_small(self, context: _Context) -> bytes:
        limits = self._limits
        async with self._receiving:
            return await self._receive(context, limits.request_bytes, min(_SMALL_S, limits.receive_s))

    async def _receive(self, context: _Context, most: int, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                data = await context.read()
        except TimeoutError:
            raise RequestSlow(f"the request did not arrive within {seconds:g} s") from None
        if data is grpc.aio.EOF:
            raise InvalidInput("the call carries no request: send one message")
        assert isinstance(data, bytes)
        if len(data) > most:
            raise InvalidInput(f"the request has {len(data):,} bytes: {most:,} are the most for this method")
        return data


def _disconnect(peer: str) -> None:
    """Close the connection of a client. gRPC cannot withdraw a reply that is not read."""
    kind, _, where = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return
    files = Path("/proc/self/fd")  # on other systems than Linux, keepalive detects it
    for file in files.iterdir() if files.is_dir() else ():
        try:
            found = socket.socket(fileno=os.dup(int(file.name)))
        except OSError:  # not a socket, or already closed
            continue
        with found, contextlib.suppress(OSError):
            if found.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            host, port = found.getpeername()[:2]
            host = host.removeprefix("::ffff:")  # gRPC uses its IPv4 address
            if unquote(where) in (f"{host}:{port}", f"[{host}]:{port}"):
                found.shutdown(socket.SHUT_RDWR)


def _decoded(decode: Callable[[bytes], R], data: bytes) -> R:
    try:
        return decode(data)
    except (DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"the request is not a message of this method ({error}): compare the client's .proto with ours"
        ) from None


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _status(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """The status code, the message and the reason of an error."""
    if isinstance(error, Refused):
        busy = error.verdict == "busy"
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if busy else grpc.StatusCode.FAILED_PRECONDITION
        return code, _words(str(error)), ((REASON, error.verdict),)
    for type_, code, reason in _CODES:
        if isinstance(error, type_):
            return code, _words(_FAULTS.get(type(error)) or str(error)), ((REASON, reason),)
    logger.error("a call failed", exc_info=error)
    words = "a fault of the service's own: its log has more"
    return grpc.StatusCode.INTERNAL, words, ((REASON, "internal"),)


def _words(text: str) -> str:
    """One line without control characters."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line if len(line) <= _MAX_WORDS else f"{line[: _MAX_WORDS - 1]}…"
