"""Binder: binds pods in parallel, a bounded number at once, and says what became of each.

The rule for gangs: before the first bind of a job is sent, all of its places are looked at again; if one has
gone stale, none is sent. Once one was sent the rest are driven to their end: each bind is reported by itself,
and the scheduler seats those anew that lost their place. Nothing is sent without the lease.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

from fluence.kube.client import Client
from fluence.kube.errors import (
    ApiConflict,
    ApiError,
    Forbidden,
    Gone,
    KubeError,
    Missing,
    ServerFault,
    TooManyRequests,
    Unauthorized,
)
from fluence.kube.resource import PODS
from fluence.kube.retry import ONCE, RetryPolicy
from fluence.schedule.actions import Bind, BindOutcome, BindResult

logger = logging.getLogger(__name__)

IN_FLIGHT = 32
_RETRY = RetryPolicy()  # of one bind, at once; then the scheduler tries again after longer pauses


class Binder:
    """``submit`` from the loop; ``report`` is called with each result."""

    def __init__(
        self,
        client: Client,
        report: Callable[[BindResult], None],
        *,
        check: Callable[[Bind], BindResult | None],
        held: Callable[[], bool],
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self.sent = 0
        self._client = client
        self._report = report
        self._check = check
        self._held = held
        self._waiting: deque[Bind] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._busy = 0
        self._in_flight = in_flight
        self._idle = asyncio.Event()
        self._rng = random.Random()

    @property
    def backlog(self) -> int:
        """Binds that are not answered yet."""
        return len(self._waiting) + self._busy

    def submit(self, binds: Sequence[Bind]) -> None:
        """The binds of one job."""
        stale = [result for bind in binds if (result := self._check(bind)) is not None]
        if stale:
            faulty = {result.bind.uid: result for result in stale}
            for bind in binds:
                reason = f"pod {stale[0].bind.pod.key}: {stale[0].reason}"
                self._report(faulty.get(bind.uid) or BindResult(bind, BindOutcome.STALE, reason))
            return
        self._waiting.extend(binds)
        self._wake.set()

    async def run(self) -> None:
        """Bind until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._work())

    async def drain(self, timeout_s: float = 10.0) -> None:
        """Send nothing more; wait for the answers to what was sent."""
        self._closed = True
        self._waiting.clear()
        try:
            async with asyncio.timeout(timeout_s):
                while self._busy:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            logger.warning("%d binds were not answered within %.0f s", self._busy, timeout_s)

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            if self._closed:
                return
            bind = self._waiting.popleft()
            self._busy += 1
            try:
                result = await self._one(bind)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
            self._report(result)

    async def _one(self, bind: Bind) -> BindResult:
        """Send one bind until it is answered; it is checked again each time that it goes out."""
        attempt = 0
        while True:
            if not self._held():
                return BindResult(bind, BindOutcome.AGAIN, "this replica does not lead")
            stale = self._check(bind)
            if stale is not None:
                return stale
            self.sent += 1
            attempt += 1
            try:
                await self._client.bind(bind.pod, bind.node, annotations=bind.annotations, retry=ONCE)
            except KubeError as error:
                pause = _RETRY.pause(error, attempt=attempt, repeatable=True, rng=self._rng)
                if pause is None:
                    return await self._failed(bind, error)
                await asyncio.sleep(pause)
            else:
                return BindResult(bind, BindOutcome.BOUND)

    async def _failed(self, bind: Bind, error: KubeError) -> BindResult:
        match error:
            case Missing():
                return BindResult(bind, BindOutcome.GONE, "the pod is gone")
            case ApiConflict() | TooManyRequests() | ServerFault() | Unauthorized() | Gone():
                return await self._look(bind, str(error))
            case ApiError():
                # NB "cannot" is RBAC's word: it says something about us, not about the node. Nor does a
                # namespace that ends, and whose pods are still to go.
                ours = isinstance(error, Forbidden) and ("cannot" in error.status.message or error.is_ending)
                outcome = BindOutcome.AGAIN if ours else BindOutcome.IMPOSSIBLE
                return BindResult(bind, outcome, str(error))
            case _:  # no answer: it may have been carried out all the same
                return await self._look(bind, str(error))

    async def _look(self, bind: Bind, reason: str) -> BindResult:
        """The pod itself says what a refusal or a lost answer means."""
        meta = bind.pod.metadata
        try:
            found = await self._client.get(PODS, meta.name, namespace=meta.namespace)
        except Missing:
            return BindResult(bind, BindOutcome.GONE, "the pod is gone")
        except KubeError as error:
            return BindResult(bind, BindOutcome.AGAIN, f"{reason}; and {error}")
        if found.metadata.uid != meta.uid or found.metadata.deletion_timestamp is not None:
            return BindResult(bind, BindOutcome.GONE, reason)
        if found.spec.node_name == bind.node:
            return BindResult(bind, BindOutcome.BOUND)
        if found.spec.node_name:
            return BindResult(bind, BindOutcome.ELSEWHERE, f"already on node {found.spec.node_name}")
        return BindResult(bind, BindOutcome.AGAIN, reason)
