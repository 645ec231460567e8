"""Releaser: releases suspended Jobs, a few at once, and says what became of each.

`LiveScheduler` calls it with what a cycle decided. The node of each pod is written to the Job's status first,
where its owner cannot change it (`model.grant`); then the Job is unsuspended, if it is still the one that was
planned. What fails is reported; the scheduler orders it again, as things are then. Nothing is sent without
the lease."""

from __future__ import annotations

from collections.abc import Callable

from fluence.act.coalescing_writer import CoalescingWriter
from fluence.act.gates import granted, let_go
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import KubeError, Missing
from fluence.kube.resource import JOBS
from fluence.model.grant import release_note
from fluence.schedule.actions import BindOutcome, Release, ReleaseResult

IN_FLIGHT = 8


class Releaser:
    """``release`` from the loop; ``run`` carries out until cancelled; ``report`` gets each result."""

    def __init__(
        self,
        client: Client,
        report: Callable[[ReleaseResult], None],
        *,
        held: Callable[[], bool],
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self.sent = 0
        self._client = client
        self._report = report
        self._held = held
        self._writer: CoalescingWriter[str, Release] = CoalescingWriter(
            self._one, in_flight=in_flight, namespace=lambda _, order: order.owner.metadata.namespace
        )

    @property
    def backlog(self) -> int:
        return len(self._writer)

    def release(self, order: Release) -> None:
        self._writer[order.key] = order

    async def run(self) -> None:
        await self._writer.run()

    async def _one(self, _: str, order: Release) -> None:
        try:
            self._report(await self._try(order))
        except Exception as error:
            self._report(ReleaseResult(order, BindOutcome.AGAIN, f"{type(error).__name__}: {error}"))

    async def _try(self, order: Release) -> ReleaseResult:
        if not self._held():
            return ReleaseResult(order, BindOutcome.AGAIN, "this replica does not lead")
        meta = order.owner.metadata
        self.sent += 1
        try:
            body = granted(meta.uid, order.note.condition(), self._client.clock.now())
            found = await self._client.patch(
                JOBS,
                meta.name,
                body,
                namespace=meta.namespace,
                kind=PatchType.STRATEGIC,
                subresource="status",
            )
            await self._client.patch(
                JOBS.raw(),
                meta.name,
                let_go(found, order.note),
                namespace=meta.namespace,
                kind=PatchType.JSON,
            )
        except Missing:
            return ReleaseResult(order, BindOutcome.GONE, "the Job is gone")
        except KubeError as error:  # it may have been carried out all the same
            return await self._look(order, str(error))
        return ReleaseResult(order, BindOutcome.BOUND)

    async def _look(self, order: Release, reason: str) -> ReleaseResult:
        """The Job itself says what a refusal or a lost answer means."""
        meta = order.owner.metadata
        try:
            found = await self._client.get(JOBS, meta.name, namespace=meta.namespace)
        except Missing:
            return ReleaseResult(order, BindOutcome.GONE, "the Job is gone")
        except KubeError as error:
            return ReleaseResult(order, BindOutcome.AGAIN, f"{reason}; and {error}")
        if found.metadata.uid != meta.uid:
            return ReleaseResult(order, BindOutcome.GONE, reason)
        if not found.spec.suspend:
            ours = order.note.holds_for(found) and release_note(found) == order.note
            return ReleaseResult(order, BindOutcome.BOUND if ours else BindOutcome.STALE, reason)
        return ReleaseResult(order, BindOutcome.AGAIN, reason)
