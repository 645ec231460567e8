"""Orders: removes gates, ends pods at their limit or for other work, binds volumes to claims, writes statuses
of Queues.

`LiveScheduler` passes them the decisions of a cycle. Each order is carried out once; while it has no effect,
the scheduler gives it again. A gate is removed by its name, in one patch with the task and the reason, so
that no other gate can be hit and the pod never shows one without the other. A Job is ended by its own
deadline, which is only ever shortened. Other pods are evicted, and a refusal because of a PodDisruptionBudget
(429) is respected.

`QueueStatusWriter` writes what each Queue uses and whether it is in force. Only the leader writes.

`VolumeBinder` writes which node or volume a waiting claim gets, until the claim shows it. For a volume to be
provisioned, it writes the annotation selected-node of the claim, which its provisioner watches. For an
existing volume, it writes the claimRef, as kube-scheduler does, and the volume controller binds the two.
Before each write the decision is compared with the current state, so nothing is written twice, and writes of
other programs are not reverted.

`LiveScheduler` passes it the decisions of a cycle. First all pods of a gang get the condition
`DisruptionTarget` with the reason `PreemptionByScheduler`, as from kube-scheduler. Then each is deleted, with
its uid as a precondition and its own grace period. So if the process is killed in between, the next one sees
that the whole gang was to end. A held Job or operator's object is suspended again instead, and its controller
deletes the pods. After a failure, nothing more of that gang is sent: the scheduler gives the order again
while it holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from fluence.act.writers import LeaderWriter
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, Forbidden, KubeError, Missing, NotHeld, TooManyRequests
from fluence.kube.gangs import resource_of
from fluence.kube.resource import CLAIMS, JOBS, PODS, QUEUES, VOLUMES, Json
from fluence.model.claims import BOUND_BY_CONTROLLER, SELECTED_NODE, Key, VolumeClaim
from fluence.model.operators import CustomOwner, suspended
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.events import ClaimUpdate, Nominate, Preempt
from fluence.schedule.external_resources.producer_gates import GateOrder, NoteProducer, OpenGate
from fluence.schedule.overruns import EndOverrun
from fluence.schedule.preemption.preemption import BY_SCHEDULER, DISRUPTION_TARGET
from fluence.schedule.queues import QueueStatusUpdate
from fluence.units import rfc3339

logger = logging.getLogger(__name__)


class QueueStatusWriter(LeaderWriter[str, QueueStatusUpdate]):
    """Writes statuses of Queues. A failed write is dropped: the scheduler compares with the server and orders
    it again."""

    IN_FLIGHT = 2

    def __init__(self, client: Client, *, held: Callable[[], bool]) -> None:
        super().__init__(client, held=held)
        self.written = 0
        self.failed = 0

    def put(self, update: QueueStatusUpdate) -> None:
        """Write the status of a queue."""
        self._writer[update.name] = update

    async def _write(self, key: str, update: QueueStatusUpdate) -> None:
        if not self._held():
            return
        patch = [
            # A new queue with this name must not get the status of the old one.
            {"op": "test", "path": "/metadata/uid", "value": update.uid},
            {"op": "add", "path": "/status", "value": update.document},
        ]
        try:
            await self._client.patch(QUEUES.raw(), key, patch, kind=PatchType.JSON, subresource="status")
            self.written += 1
        except (Missing, ApiConflict):
            pass  # it is gone, or another one has its name
        except Forbidden as error:
            self.failed += 1
            logger.error("queue %s: its status cannot be written: %s", key, error)
        except KubeError as error:
            self.failed += 1
            logger.warning("queue %s: its status is not written: %s", key, error)


@dataclass(frozen=True, slots=True)
class GateResult:
    """The result of an order; ``error`` is empty if it was carried out."""

    order: GateOrder
    error: str = ""


class GateOpener(LeaderWriter[str, GateOrder]):
    """Call ``put`` from the event loop. ``report`` is called with each result."""

    def __init__(
        self, client: Client, report: Callable[[GateResult], None], *, held: Callable[[], bool]
    ) -> None:
        super().__init__(client, held=held)
        self._report = report

    def put(self, order: GateOrder) -> None:
        self._writer[order.pod.metadata.uid] = order

    async def _write(self, _: str, order: GateOrder) -> None:
        if not self._held():
            return
        meta = order.pod.metadata
        # A note is an annotation, for which the right to patch the status is enough; only a gate is part of
        # the spec.
        subresource = "status" if isinstance(order, NoteProducer) else ""
        try:
            await self._client.patch(
                PODS.raw(),
                meta.name,
                gate_patch(order),
                namespace=meta.namespace,
                kind=PatchType.STRATEGIC,
                subresource=subresource,
            )
        except (Missing, ApiConflict, NotHeld):
            return  # it is gone, another object has its name, or another replica leads
        except KubeError as error:
            self._report(GateResult(order, str(error)))
        else:
            self._report(GateResult(order))


def gate_patch(order: GateOrder) -> Json:
    """The strategic merge patch for a pod."""
    patch: Json = {"metadata": {"uid": order.pod.metadata.uid, "annotations": order.annotations}}
    if isinstance(order, OpenGate):
        patch["spec"] = {"schedulingGates": [{"$patch": "delete", "name": order.gate}]}
    return patch


EndOutcome = Literal["ended", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class EndResult:
    """The result for a Job, or for one pod."""

    order: EndOverrun
    target: Owner | Pod
    outcome: EndOutcome
    error: str = ""


class LimitEnforcer(LeaderWriter[str, EndOverrun]):
    """Call ``end`` from the event loop. ``report`` is called with each result."""

    IN_FLIGHT = 2

    def __init__(
        self, client: Client, report: Callable[[EndResult], None], *, held: Callable[[], bool]
    ) -> None:
        super().__init__(client, held=held)
        self._report = report

    def end(self, order: EndOverrun) -> None:
        self._writer[order.job] = order

    async def _write(self, _: str, order: EndOverrun) -> None:
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
            return  # it is gone, another object has its name, or it just changed: the order comes again
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
        """Give a Job a deadline that has passed, so that its controller ends the pods and says why. Returns
        whether this was necessary."""
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


PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # between tries; the last one repeats


class VolumeBinder(LeaderWriter[Key, tuple[ClaimUpdate, int]]):
    """Call ``update`` from the event loop. A decision is tried until the claim shows it, or a newer one
    arrives."""

    def __init__(self, client: Client, *, held: Callable[[], bool]) -> None:
        super().__init__(client, held=held)
        self.written = 0
        self._last: dict[Key, ClaimUpdate] = {}  # the wanted state of a claim, until it is reached

    def _namespace(self, key: Key, order: tuple[ClaimUpdate, int]) -> str:
        return key[0]

    def update(self, choice: ClaimUpdate) -> None:
        self._last[choice.claim] = choice
        self._writer[choice.claim] = (choice, 0)

    async def _write(self, key: Key, update: tuple[ClaimUpdate, int]) -> None:
        choice, tries = update
        if await self._carry_out(choice):
            if self._last.get(key) is choice:
                del self._last[key]
        else:
            pause = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            asyncio.get_running_loop().call_later(pause, self._again, choice, tries + 1)

    def _again(self, choice: ClaimUpdate, tries: int) -> None:
        if self._last.get(choice.claim) is choice:  # there is no newer decision
            self._writer[choice.claim] = (choice, tries)

    async def _carry_out(self, choice: ClaimUpdate) -> bool:
        """Carry out a decision. Returns whether nothing is left to do."""
        if not self._held():
            return False
        namespace, name = choice.claim
        try:
            claim = await self._client.get(CLAIMS, name, namespace=namespace)
            if claim.metadata.uid != choice.uid or claim.spec.volume_name:
                return True  # created again under its name, or bound: the decision is too late
            if choice.volume is not None:
                return await self._give(choice.volume, claim)
            return await self._mark(choice, claim)
        except Missing:
            return True
        except ApiConflict:
            return False  # it just changed: look again
        except KubeError as error:
            logger.warning("claim %s/%s: its node is not written: %s", namespace, name, error)
            return False

    async def _mark(self, choice: ClaimUpdate, claim: VolumeClaim) -> bool:
        there = claim.selected_node
        if there == choice.node or (choice.node is None and there != choice.was):
            return True
        meta: Json = {
            "uid": choice.uid,
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {SELECTED_NODE: choice.node},
        }
        namespace, name = choice.claim
        await self._client.patch(CLAIMS.raw(), name, {"metadata": meta}, namespace=namespace)
        self.written += 1
        return True

    async def _give(self, volume: str, claim: VolumeClaim) -> bool:
        found = await self._client.get(VOLUMES, volume)
        if found.spec.claim_ref is not None:
            return True  # the volume belongs to this claim, or to another and the scheduler decides again
        meta = claim.metadata
        reference: Json = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        }
        patch: Json = {
            "metadata": {
                "resourceVersion": found.metadata.resource_version,
                "annotations": {BOUND_BY_CONTROLLER: "yes"},
            },
            "spec": {"claimRef": reference},
        }
        await self._client.patch(VOLUMES.raw(), volume, patch)
        self.written += 1
        return True


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
