"""Preemptor: ends pods for work of higher priority, and writes which node is being freed for which pod.

`LiveScheduler` passes it the decisions of a cycle. First all pods of a gang get the condition
`DisruptionTarget` with the reason `PreemptionByScheduler`, as from kube-scheduler. Then each is deleted, with
its uid as a precondition and its own grace period. So if the process is killed in between, the next one sees
that the whole gang was to end. A held Job or operator's object is suspended again instead, and its controller
deletes the pods. After a failure, nothing more of that gang is sent: the scheduler gives the order again
while it holds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fluence.act.writers import LeaderWriter
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, KubeError, Missing, NotHeld
from fluence.kube.operators import resource_of
from fluence.kube.resource import JOBS, PODS, Json
from fluence.model.operators import CustomOwner, suspended
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.actions import Nominate, Preempt
from fluence.schedule.preemption.preemption import BY_SCHEDULER, DISRUPTION_TARGET
from fluence.units import rfc3339


@dataclass(frozen=True, slots=True)
class PreemptResult:
    """The result for one pod. ``error`` is empty if its end was ordered."""

    order: Preempt
    pod: Pod
    error: str = ""


class Preemptor(LeaderWriter[str, Preempt]):
    """Call ``end`` from the event loop. ``report`` is called with each result."""

    def __init__(
        self, client: Client, report: Callable[[PreemptResult], None], *, name: str, held: Callable[[], bool]
    ) -> None:
        super().__init__(client, held=held)
        self._report = report
        self._name = name  # of the scheduler

    def end(self, order: Preempt) -> None:
        self._writer[order.group] = order

    async def _write(self, _: str, order: Preempt) -> None:
        for write in (self._mark,) if order.owners else (self._mark, self._delete):
            for pod in order.pods:
                if not self._held() or not await self._try(order, pod, write):
                    return
        for owner in order.owners:
            if not self._held() or not await self._try_suspend(order, owner):
                return

    async def _try(self, order: Preempt, pod: Pod, write: Callable[[Preempt, Pod], Awaitable[None]]) -> bool:
        """Write one pod. Returns False if the rest of this gang must be skipped."""
        try:
            await write(order, pod)
        except (Missing, ApiConflict):
            return True  # it is gone, or another object has its name
        except NotHeld:
            return False
        except KubeError as error:
            self._report(PreemptResult(order, pod, str(error)))
            return False
        return True

    async def _mark(self, order: Preempt, pod: Pod) -> None:
        meta = pod.metadata
        await self._client.patch(
            PODS.raw(),
            meta.name,
            self._target(order, pod),
            namespace=meta.namespace,
            kind=PatchType.STRATEGIC,
            subresource="status",
        )

    async def _delete(self, order: Preempt, pod: Pod) -> None:
        meta = pod.metadata
        await self._client.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid)
        self._report(PreemptResult(order, pod))

    def _target(self, order: Preempt, pod: Pod) -> Json:
        why = "preempting to accommodate a higher priority pod"
        if order.preemptor is None:
            why = f"queue {order.queue} is drained" if order.queue else "the rest of its gang was preempted"
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": BY_SCHEDULER,
            "message": f"{self._name}: {why}",
            "lastTransitionTime": rfc3339(int(self._client.clock.now() * 1_000_000)),
        }
        return {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}

    async def _try_suspend(self, order: Preempt, owner: Owner) -> bool:
        meta = owner.metadata
        try:
            is_custom = isinstance(owner, CustomOwner)
            resource = (resource_of(owner) if isinstance(owner, CustomOwner) else JOBS).raw()
            found: Any = await self._client.get(resource, meta.name, namespace=meta.namespace)
            if found["metadata"]["uid"] == meta.uid:
                patch: Json = {
                    "metadata": {"uid": meta.uid, "resourceVersion": found["metadata"]["resourceVersion"]},
                    "spec": suspended(owner),
                }
                await self._client.patch(resource, meta.name, patch, namespace=meta.namespace)
        except (Missing, ApiConflict):
            return True  # it is gone, or it just changed: the order comes again
        except NotHeld:
            return False
        except KubeError as error:
            self._report(PreemptResult(order, order.pods[0], str(error)))
            return False
        for pod in order.pods:
            if is_custom or owner.claims(pod.metadata):
                self._report(PreemptResult(order, pod))
        return True


class Nominator(LeaderWriter[str, Nominate]):
    """Writes `status.nominatedNodeName`. A failed write is dropped: the scheduler orders it again."""

    def nominate(self, order: Nominate) -> None:
        self._writer[order.pod.metadata.uid] = order

    def _namespace(self, key: str, order: Nominate) -> str:
        return order.pod.metadata.namespace

    async def _write(self, _: str, order: Nominate) -> None:
        if not self._held():
            return
        meta = order.pod.metadata
        patch: Json = {"metadata": {"uid": meta.uid}, "status": {"nominatedNodeName": order.node}}
        try:
            await self._client.patch(
                PODS.raw(),
                meta.name,
                patch,
                namespace=meta.namespace,
                kind=PatchType.STRATEGIC,
                subresource="status",
            )
        except KubeError:
            return
