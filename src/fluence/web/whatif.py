"""What-if: manifests that are not submitted, put to the live plan for a user.

The answer needs a cycle or more, which the scheduler has no time for. So the process is copied between two
cycles (``fork``), and the copy decides: it has the live plan as it is, and what it does has no effect
outside. It has no connections, a low priority, and a bound on its time and its memory. One copy runs at a
time.

A user asks about objects of one namespace whose pods they may list. Work of namespaces whose pods they may
not list has no name in the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import signal
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from fluence import names
from fluence.clock import ManualClock
from fluence.errors import FluenceError, InvalidInput
from fluence.messages.whatif import ANOTHER_NAMESPACE
from fluence.model.owner import OWNERS
from fluence.model.reason import Reason, Value
from fluence.queue.reasons import WhatIfAnswer
from fluence.schedule.events import Event
from fluence.schedule.scheduler import Scheduler
from fluence.sim.cluster import EmbeddedCluster, Json
from fluence.sim.live_cycle import ManifestAnswer, NotOurs, ask_what_if, check_manifests
from fluence.units import rfc3339
from fluence.web.access import Reader, Refused
from fluence.web.resources import Asked, ListMeta, Question, WhatIf

MAX_BODY: Final = 256 << 10
MAX_PODS: Final = 5000  # of one question
MAX_WAITING: Final = 32  # questions under way, of all users
MAX_PER_NAMESPACE: Final = 2  # NB a tenant can make any number of service accounts, and few namespaces
BODY_SECONDS: Final = 5.0  # for the body to arrive
CPU_SECONDS: Final = 20
ANSWER_SECONDS: Final = 40.0
_MAX_ANSWER: Final = 8 << 20
_MAX_MEMORY: Final = 1 << 30  # bytes that a copy may have beside those of the scheduler
_SHOWN: Final = 10  # jobs that are named in the short text
_NICE: Final = 10
_REST: Final = 2  # times the duration of an answer: a copy shares the CPU limit of the scheduler's pod
_CHUNK: Final = 1 << 16
_HEADER: Final = 4  # an answer begins with its HTTP status and a space

Forked = tuple[int, int]
"""The id of a process, and the end of a pipe from which its answer is read."""


# -- in the thread of the view -------------------------------------------------------------------------------


class Questions:
    """Bounds how much users ask."""

    def __init__(self) -> None:
        self._namespaces: Counter[str] = Counter()
        self._turn = asyncio.Lock()
        self._rests_until = 0.0

    @contextlib.asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        """One of the places that all users have together, and those of a namespace."""
        if self._namespaces[namespace] >= MAX_PER_NAMESPACE:
            raise Refused(
                429, f"{MAX_PER_NAMESPACE} questions about namespace {namespace} are under way: ask later"
            )
        if self._namespaces.total() >= MAX_WAITING:
            raise Refused(429, f"{MAX_WAITING} questions are under way: ask later")
        self._namespaces[namespace] += 1
        try:
            yield
        finally:
            self._namespaces[namespace] -= 1
            if not self._namespaces[namespace]:
                del self._namespaces[namespace]

    async def answer(self, begin: Callable[[], Awaitable[Forked]]) -> bytes:
        """``begin`` makes the copy, when it is the turn of this question. `Refused` says what is wrong."""
        async with self._turn:
            now = asyncio.get_running_loop().time
            await asyncio.sleep(max(0.0, self._rests_until - now()))
            began = now()
            try:
                process, pipe = await begin()
                return await _collect(process, pipe)
            finally:
                self._rests_until = now() + _REST * (now() - began)


async def _collect(process: int, pipe: int) -> bytes:
    """The answer of a process, which has ended afterwards."""
    loop, received = asyncio.get_running_loop(), bytearray()
    ended: asyncio.Future[None] = loop.create_future()

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            part = os.read(pipe, _CHUNK)
            received.extend(part)
            if (not part or len(received) > _MAX_ANSWER) and not ended.done():
                ended.set_result(None)

    os.set_blocking(pipe, False)
    loop.add_reader(pipe, read)
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await ended
    except TimeoutError:
        received.clear()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        await asyncio.shield(asyncio.to_thread(os.waitpid, process, 0))
    status, body = bytes(received[:_HEADER]), bytes(received[_HEADER:])
    if status == b"200 ":
        return body
    if status in (b"400 ", b"422 "):
        raise Refused(int(status), body.decode(errors="replace"))
    raise Refused(503, "this takes too long to work out, or too much memory: ask about fewer pods")


# -- between two cycles --------------------------------------------------------------------------------------


def abandon(process: int, pipe: int) -> None:
    """End a copy whose answer is not needed any more."""
    os.close(pipe)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def fork(work: Callable[[], bytes]) -> Forked:
    """Have a copy of this process do some work, whose result it writes to a pipe. It must not log or
    wait for another thread: the copy has only one."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # NB of threads, which the copy does not need
        process = os.fork()
    if process == 0:
        _work(work, sender)
    os.close(sender)
    return process, receiver


def _work(work: Callable[[], bytes], sender: int) -> NoReturn:
    """In the copy. It always ends here."""
    try:
        signal.set_wakeup_fd(-1)  # it is the scheduler's: a signal to the copy would reach that, too
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        gc.disable()
        _bound(sender)
        try:
            answer = b"200 " + work()
        except NotOurs as error:
            answer = b"422 " + str(error).encode()
        except (FluenceError, msgspec.MsgspecError) as error:
            answer = b"400 " + str(error).encode(errors="replace")[:2000]
        except RecursionError:
            answer = b"400 too deeply nested"
        view = memoryview(answer)
        while view:
            view = view[os.write(sender, view) :]
    finally:
        os._exit(0)


def _bound(sender: int) -> None:
    """Leave nothing open but the pipe, and bound time and memory."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.closerange(3, sender)
    os.closerange(sender + 1, min(most, 1 << 20))
    os.nice(_NICE)
    with contextlib.suppress(OSError, ValueError):  # it may have a smaller one
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    with contextlib.suppress(OSError, ValueError, IndexError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # if memory is short, this is what ends
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + _MAX_MEMORY, own + _MAX_MEMORY))


# -- in the copy ---------------------------------------------------------------------------------------------


def work_out(
    scheduler: Scheduler, events: Iterable[Event], now: int, *, reader: Reader, namespace: str, body: bytes
) -> bytes:
    """The answer to a question as JSON. The scheduler is used up by it."""
    documents, notes = read_question(body, namespace)
    if scheduler.config.guard is not None:  # who asks is who would submit
        for document in documents:
            given = document["metadata"].get("annotations") or {}
            document["metadata"]["annotations"] = {**given, names.SUBMITTED_BY: reader.user.name}
    cluster = EmbeddedCluster((), clock=ManualClock(now / 1000), scheduler=scheduler)
    cluster.adopt(events)
    answer = ask_what_if(cluster, documents)
    if not reader.everything:
        answer = hide(answer, reader.sees, cluster.namespaces())
    meta = ListMeta(
        resource_version="0", taken=rfc3339(now * 1000), scheduler=scheduler.config.scheduler_name
    )
    return msgspec.json.encode(
        WhatIf(
            metadata=meta,
            starts_now=answer.starts_now,
            never=answer.never,
            answer=msgspec.convert(answer.to_value(), Asked, strict=False),
            lines=answer.lines(_SHOWN),
            wide=answer.lines(),
            notes=[*notes, *answer.notes],
        )
    )


def read_question(body: bytes, namespace: str) -> tuple[list[Json], list[str]]:
    """The objects that are asked about, and notes on those that make no pods. All are in one namespace, and
    their pods are not too many. What a user could not create either counts for nothing: a PriorityClass, a
    declaration of devices, a number as the priority of a pod."""
    documents: list[Json] = []
    notes: list[str] = []
    for file in msgspec.json.decode(body, type=Question).files:
        source = file.source[:200]
        objects, left_out = check_manifests(file.documents, source=source)
        notes += left_out
        for document in objects:
            if document["kind"] in ("PriorityClass", "ConfigMap"):
                notes.append(f"{source}: {document['kind']} is left out: create it first")
            else:
                documents.append(document)
    pods = 0
    for document in documents:
        meta = document["metadata"]
        if meta.setdefault("namespace", namespace) != namespace:
            raise InvalidInput(
                f"metadata.namespace: ask about objects of one namespace at a time, here {namespace}",
                where=f"{document['kind']} {meta['name']}",
            )
        for spec in (document["spec"], (document["spec"].get("template") or {}).get("spec") or {}):
            if spec.pop("priority", 0):
                notes.append(f"{document['kind']} {meta['name']}: its priority is that of priorityClassName")
        shape = OWNERS.get((document["apiVersion"], document["kind"]))
        pods += 1 if shape is None else max(0, msgspec.convert(document, shape).pods)
        if pods > MAX_PODS:
            raise InvalidInput(f"these are over {MAX_PODS} pods: ask about fewer", where="manifest")
    if not documents:
        raise InvalidInput("has no Pod, Job, Deployment or PodGroup", where="manifest")
    return documents, notes


def hide(answer: ManifestAnswer, sees: Callable[[str], bool], namespaces: Container[str]) -> ManifestAnswer:
    """The same without the names of work in namespaces that the reader does not see, and without its size.
    ``namespaces`` are all that there are."""

    def job(key: str) -> str:
        return key if sees(key.partition("/")[0]) else ANOTHER_NAMESPACE

    def word(text: str) -> str:
        """A parameter of a reason may be the key of work, or a label, which has a slash, too."""
        return job(text) if "/" in text and text.partition("/")[0] in namespaces else text

    return replace(
        answer,
        jobs=tuple((key, _hide_others(about, job, word)) for key, about in answer.jobs),
        delays=tuple(replace(delay, job=job(delay.job)) for delay in answer.delays),
    )


def _hide_others(answer: WhatIfAnswer, job: Callable[[str], str], word: Callable[[str], str]) -> WhatIfAnswer:
    why = answer.reason
    ends = []
    for end in answer.ends:
        hidden = job(end.job) != end.job
        ends.append(replace(end, job=ANOTHER_NAMESPACE, pods=0, lost=0, cost=0.0) if hidden else end)
    return replace(
        answer,
        reason=replace(
            why,
            reasons=tuple(_hide_words(reason, word) for reason in why.reasons),
            waits_for=tuple(dict.fromkeys(map(job, why.waits_for))),
        ),
        ends=tuple(ends),
        preemption=tuple(_hide_words(reason, word) for reason in answer.preemption),
    )


def _hide_words(reason: Reason, word: Callable[[str], str]) -> Reason:
    def hidden(value: Value) -> Value:
        if isinstance(value, Reason):
            return _hide_words(value, word)
        if isinstance(value, tuple):
            return tuple(map(hidden, value))
        return word(value) if isinstance(value, str) else value

    return Reason(reason.code, tuple((key, hidden(value)) for key, value in reason.params))
