"""Events for users, as in ``kubectl describe``, aggregated and bounded (events.k8s.io/v1).

A repeated event about the same object becomes a series on one Event: the second occurrence is written at
once, later ones at most every ``series_s``. One object may have ``per_object`` new events in a row, and the
process may make ``rate`` writes per second. More events are counted and dropped; the queue is bounded.
Recording never waits and never fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Literal

import msgspec

from fluence.clock import Clock
from fluence.kube.client import Client, TokenBucket
from fluence.kube.errors import Forbidden, KubeError, Missing, NotHeld
from fluence.kube.resource import EVENTS, Json
from fluence.units import rfc3339

logger = logging.getLogger(__name__)

NOTE_BYTES = 1024  # the server's limit
MAX_SERIES = 4096  # series kept in memory
REPEAT_SECONDS = 30.0  # between two writes of one series
SERIES_SECONDS = 600.0  # after a longer pause, a new series starts
LOW_PRIORITY_PAUSE_S = 0.25  # between two events while more urgent writes wait


class Ref(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The object that an event is about. `kubectl events --for` compares the API version, also of a Pod.
    ``resource_version`` is the version of the object that was read; it does not affect aggregation."""

    kind: str
    name: str
    namespace: str
    uid: str
    api_version: str
    resource_version: str = ""


class _Series(msgspec.Struct, eq=False):
    """One Event on the server and how often it has been seen since."""

    name: str
    namespace: str
    body: Json
    is_created: bool = False
    is_queued: bool = False
    count: int = 1
    told: int = 1
    seen_at: float = 0.0
    told_at: float = 0.0


class Recorder:
    """``record`` can be called anywhere in the loop; ``run`` writes until it is cancelled, ``flush`` writes
    the rest."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        rate: float = 20.0,
        burst: float = 200.0,
        per_object: int = 25,
        queue: int = 1000,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Clock | None = None,
    ) -> None:
        self.dropped = 0
        self.written = 0
        self.failed = 0
        self._client = client
        self._clock = clock or client.clock
        self._controller = controller
        self._instance = instance[:128]
        self._limit = TokenBucket(rate, burst, clock=self._clock)
        self._per_object = per_object
        self._queue_limit = queue
        self._is_busy = is_busy
        self._queue: deque[_Series] = deque()
        self._known: OrderedDict[tuple[object, ...], _Series] = OrderedDict()
        self._objects: OrderedDict[Ref, TokenBucket] = OrderedDict()
        self._wake = asyncio.Event()
        self._last_stamp = 0

    def record(
        self,
        regarding: Ref,
        *,
        reason: str,
        action: str,
        note: str,
        kind: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Record an event about an object. Reason and action are CamelCase words, the note is a sentence."""
        now = self._clock.monotonic()
        about = msgspec.structs.replace(regarding, resource_version="")
        key = (about, kind, reason, action, note)
        known = self._known.get(key)
        if known is not None and now - known.seen_at < SERIES_SECONDS:
            known.count += 1
            known.seen_at = now
            self._known.move_to_end(key)
            if known.count == 2 or now - known.told_at >= REPEAT_SECONDS:
                self._enqueue(known)
            return
        if len(self._queue) >= self._queue_limit or not self._bucket(about).take():
            self.dropped += 1
            return
        series = self._new(regarding, kind=kind, reason=reason, action=action, note=note)
        series.seen_at = series.told_at = now
        if self._enqueue(series):
            self._known[key] = series
            while len(self._known) > MAX_SERIES:
                self._known.popitem(last=False)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                if wait := max(self._limit.reserve(), LOW_PRIORITY_PAUSE_S if self._is_busy() else 0.0):
                    await asyncio.sleep(wait)
                await self._write(self._queue.popleft())

    async def flush(self, timeout_s: float = 5.0) -> None:
        """Write the queued events and the new counts of series, for at most ``timeout_s``."""
        for series in self._known.values():
            if series.count > series.told and not series.is_queued:
                self._queue.append(series)
        try:
            async with asyncio.timeout(timeout_s):
                while self._queue:
                    await self._write(self._queue.popleft())
        except TimeoutError:
            self.dropped += len(self._queue)
            self._queue.clear()

    def _enqueue(self, series: _Series) -> bool:
        if series.is_queued:
            return True
        if len(self._queue) >= self._queue_limit:
            self.dropped += 1
            return False
        self._queue.append(series)
        series.is_queued = True
        self._wake.set()
        return True

    def _bucket(self, regarding: Ref) -> TokenBucket:
        bucket = self._objects.get(regarding)
        if bucket is None:
            bucket = self._objects[regarding] = TokenBucket(1 / 300, self._per_object, clock=self._clock)
            while len(self._objects) > MAX_SERIES:
                self._objects.popitem(last=False)
        self._objects.move_to_end(regarding)
        return bucket

    def _new(self, regarding: Ref, *, kind: str, reason: str, action: str, note: str) -> _Series:
        # Names are unique by time, as client-go makes them; two within one tick get two ticks.
        self._last_stamp = max(self._last_stamp + 1, int(self._clock.now() * 1e9))
        name = f"{regarding.name[:230].rstrip('-.')}.{self._last_stamp:x}"
        namespace = regarding.namespace or "default"
        body: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": self._stamp(),
            "type": kind,
            "reason": reason[:128],
            "action": action[:128],
            "note": clip(note, NOTE_BYTES),
            "regarding": regarding,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        return _Series(name, namespace, body)

    async def _write(self, series: _Series) -> None:
        count, series.is_queued = series.count, False
        try:
            await self._send(series, count)
            self.written += 1
            series.told, series.told_at = count, self._clock.monotonic()
        except NotHeld:
            self.dropped += 1  # another replica leads and writes its own events
        except Forbidden as error:
            self.failed += 1
            if not error.is_ending:
                logger.error("events cannot be written: %s", error)
        except KubeError as error:
            self.failed += 1
            logger.warning("event %s/%s is lost: %s", series.namespace, series.name, error)

    async def _send(self, series: _Series, count: int) -> None:
        since = {"count": count, "lastObservedTime": self._stamp()} if count > 1 else None
        if series.is_created:
            try:
                patch = {"series": since}
                await self._client.patch(EVENTS, series.name, patch, namespace=series.namespace)
                return
            except Missing:
                pass  # events expire after an hour: start a new one
        body = {**series.body, "series": since} if since is not None else series.body
        await self._client.create(EVENTS, body, namespace=series.namespace)
        series.is_created = True

    def _stamp(self) -> str:
        return rfc3339(int(self._clock.now() * 1e6), "microseconds")


def clip(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, cut between characters, with an ellipsis where it was cut."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - 3].decode(errors="ignore") + "…"
