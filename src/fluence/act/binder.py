"""Binder: binds pods in parallel, a bounded number at once, and says what became of each.

A pod that is held by our gate is let through it first. One that names kube-scheduler is handed over instead:
a single patch removes the gate and pins the node, and kube-scheduler binds it. What a restart could not read
from the bind itself is written to the pod's status before, where its owner cannot change it (`model.grant`).

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

from fluence import names
from fluence.act import gates
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import (
    ApiConflict,
    ApiError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Missing,
    ServerFault,
    TooManyRequests,
    Unauthorized,
)
from fluence.kube.resource import PODS
from fluence.kube.retry import ONCE, RetryPolicy
from fluence.model.grant import PodGrant
from fluence.model.held import has_gate, is_delegated, is_held, pinned_node
from fluence.model.pod import Pod
from fluence.schedule.actions import Bind, BindOutcome, BindResult

logger = logging.getLogger(__name__)

IN_FLIGHT = 32
RETRY = RetryPolicy()  # of one bind, at once; then the scheduler tries again after longer pauses


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
        retry: RetryPolicy = RETRY,
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
        self._retry = retry

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
            except Exception as error:
                logger.exception("pod %s: its bind failed unexpectedly", bind.pod.key)
                result = BindResult(bind, BindOutcome.AGAIN, f"{type(error).__name__}: {error}")
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
                if is_delegated(bind.pod):
                    return await self._hand_over(bind)
                await self._bind(bind)
            except KubeError as error:
                pause = self._retry.pause(error, attempt=attempt, repeatable=True, rng=self._rng)
                if pause is None:
                    return await self._failed(bind, error)
                await asyncio.sleep(pause)
            else:
                return BindResult(bind, BindOutcome.BOUND)

    async def _bind(self, bind: Bind) -> None:
        pod = bind.pod
        if bind.grant is not None:
            await self._grant(pod, bind.grant)
        held = is_held(pod)
        if held:
            await self._open(pod)
        labels = _labels(bind) if held else None
        await self._client.bind(pod, bind.node, annotations=bind.annotations, labels=labels, retry=ONCE)

    async def _grant(self, pod: Pod, grant: PodGrant) -> Pod:
        """Write what a pod is given into its status."""
        meta = pod.metadata
        body = gates.granted(meta.uid, grant.condition(), self._client.clock.now())
        return await self._client.patch(
            PODS, meta.name, body, namespace=meta.namespace, kind=PatchType.STRATEGIC, subresource="status"
        )

    async def _open(self, pod: Pod) -> None:
        """Let a pod through our gate. One that is through it already, by a try whose answer was lost, is as
        good."""
        meta = pod.metadata
        try:
            await self._client.patch(
                PODS.raw(), meta.name, gates.ungate(pod), namespace=meta.namespace, kind=PatchType.JSON
            )
        except Invalid:
            found = await self._client.get(PODS, meta.name, namespace=meta.namespace)
            if found.metadata.uid != meta.uid or has_gate(found.spec):
                raise

    async def _hand_over(self, bind: Bind) -> BindResult:
        """Have kube-scheduler bind a pod where the plan says. The pod is read first: the pin depends on what
        is there, and a pin that is there already cannot be changed."""
        meta = bind.pod.metadata
        found = await self._client.get(PODS, meta.name, namespace=meta.namespace)
        if found.metadata.uid != meta.uid or found.metadata.deletion_timestamp is not None:
            return BindResult(bind, BindOutcome.GONE, "the pod is gone")
        if found.spec.node_name == bind.node:
            return BindResult(bind, BindOutcome.BOUND)
        if found.spec.node_name:
            return BindResult(bind, BindOutcome.ELSEWHERE, f"already on node {found.spec.node_name}")
        if not has_gate(found.spec):
            if pinned_node(found) == bind.node:
                return BindResult(bind, BindOutcome.HANDED_OVER)
            return BindResult(bind, BindOutcome.GONE, "somebody else has removed its gate")
        if bind.grant is not None:
            found = await self._grant(found, bind.grant)
        patch = gates.hand_over(found, bind.node, annotations=bind.annotations, labels=_labels(bind))
        await self._client.patch(PODS.raw(), meta.name, patch, namespace=meta.namespace, kind=PatchType.JSON)
        return BindResult(bind, BindOutcome.HANDED_OVER)

    async def _failed(self, bind: Bind, error: KubeError) -> BindResult:
        match error:
            case Missing():
                return BindResult(bind, BindOutcome.GONE, "the pod is gone")
            case Invalid() if has_gate(bind.pod.spec):  # the gate, or the pod, is not what it was
                return await self._look(bind, str(error))
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
        if is_delegated(bind.pod) and pinned_node(found) == bind.node:
            return BindResult(bind, BindOutcome.HANDED_OVER)
        return BindResult(bind, BindOutcome.AGAIN, reason)


def _labels(bind: Bind) -> dict[str, str]:
    return {names.FLUXQUEUE_JOBID: bind.annotations[names.JOBID]}
