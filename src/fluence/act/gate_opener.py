"""GateOpener: opens the gates of pods whose producer has done its part, and notes on them that it runs.

`LiveScheduler` calls it with what a cycle decided. A gate goes by its name, in one patch with the task and
the reason, so that no other gate can be meant and nobody sees the one without the other; the uid goes along,
so that a pod made anew under its name is left alone. Each order is carried out once: as long as it has no
effect the scheduler gives it again. Nothing is sent without the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fluence.act.coalescing_writer import CoalescingWriter
from fluence.kube.client import Client, PatchType
from fluence.kube.errors import ApiConflict, KubeError, Missing, NotHeld
from fluence.kube.resource import PODS, Json
from fluence.schedule.producer_gates import GateOrder, NoteProducer, OpenGate

IN_FLIGHT = 4  # binds come first


@dataclass(frozen=True, slots=True)
class GateResult:
    """What became of an order; ``error`` is "" if it was carried out."""

    order: GateOrder
    error: str = ""


class GateOpener:
    """``put`` from the loop; ``run`` carries out until cancelled; ``report`` is called with each result."""

    def __init__(
        self,
        client: Client,
        report: Callable[[GateResult], None],
        *,
        held: Callable[[], bool],
        in_flight: int = IN_FLIGHT,
    ) -> None:
        self._client = client
        self._report = report
        self._held = held
        self._writer: CoalescingWriter[str, GateOrder] = CoalescingWriter(self._write, in_flight=in_flight)

    @property
    def backlog(self) -> int:
        return len(self._writer)

    def put(self, order: GateOrder) -> None:
        self._writer[order.pod.metadata.uid] = order

    async def run(self) -> None:
        await self._writer.run()

    async def _write(self, _: str, order: GateOrder) -> None:
        if not self._held():
            return
        meta = order.pod.metadata
        # A note needs no more than what the scheduler writes anyway; only a gate is part of the spec.
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
            return  # it is gone, was made anew, or another leads
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
