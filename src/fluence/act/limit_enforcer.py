"""LimitEnforcer: ends pods that run past their limit: a Job by its own deadline, others by eviction.

`LiveScheduler` calls it with what a cycle decided. Each order is carried out once: as long as the pods live,
the scheduler gives it again after a while, so that nothing is to be remembered here, and a refusal by a
PodDisruptionBudget (429) is respected until the budget allows it. A deadline is only ever shortened. Nothing
is sent without the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from fluence.act.coalescing_writer import CoalescingWriter
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing, NotHeld, TooManyRequests
from fluence.kube.resource import JOBS, Json
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.enforcement import EndOverrun

IN_FLIGHT = 2  # binds come first

EndOutcome = Literal["ended", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class EndResult:
    """What became of a Job, or of one pod."""

    order: EndOverrun
    target: Owner | Pod
    outcome: EndOutcome
    error: str = ""


class LimitEnforcer:
    """``end`` from the loop; ``run`` carries out until cancelled; ``report`` is called with each result."""

    def __init__(
        self,
        client: Client,
        report: Callable[[EndResult], None],
        *,
        held: Callable[[], bool],
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._client = client
        self._report = report
        self._held = held
        self._writer: CoalescingWriter[str, EndOverrun] = CoalescingWriter(self._end, in_flight=in_flight)

    @property
    def backlog(self) -> int:
        return len(self._writer)

    def end(self, order: EndOverrun) -> None:
        self._writer[order.job] = order

    async def run(self) -> None:
        await self._writer.run()

    async def _end(self, _: str, order: EndOverrun) -> None:
        if order.owner is not None:
            await self._try(order, order.owner)
            return
        for pod in order.pods:
            await self._try(order, pod)

    async def _try(self, order: EndOverrun, target: Owner | Pod) -> None:
        if not self._held():
            return
        try:
            done = await (self._evict(target) if isinstance(target, Pod) else self._shorten(target))
        except (Missing, ApiConflict, NotHeld):
            return  # it is gone, was made anew, or changed just now: then the order comes again
        except TooManyRequests as error:
            self._report(EndResult(order, target, "refused", str(error)))
        except KubeError as error:
            self._report(EndResult(order, target, "failed", str(error)))
        else:
            if done:
                self._report(EndResult(order, target, "ended"))

    async def _evict(self, pod: Pod) -> bool:
        await self._client.evict(pod)
        return True

    async def _shorten(self, owner: Owner) -> bool:
        """Give a Job a deadline that has passed: its controller ends the pods and says why. Answers whether
        anything was to be done."""
        meta = owner.metadata
        job: Any = await self._client.get(JOBS.raw(), meta.name, namespace=meta.namespace)
        if job["metadata"]["uid"] != meta.uid:
            return False
        started = job.get("status", {}).get("startTime")
        if started is None:
            return False  # suspended: it runs nothing
        elapsed = int(self._client.clock.now() - datetime.fromisoformat(started).timestamp())
        seconds, there = max(0, elapsed), job["spec"].get("activeDeadlineSeconds")
        if there is not None and there <= seconds:
            return False
        patch: Json = {
            "metadata": {"uid": meta.uid, "resourceVersion": job["metadata"]["resourceVersion"]},
            "spec": {"activeDeadlineSeconds": seconds},
        }
        await self._client.patch(JOBS.raw(), meta.name, patch, namespace=meta.namespace)
        return True
