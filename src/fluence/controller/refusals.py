"""Refusals: pods that kube-scheduler was told to bind and does not, and the rule by which they come back.

The room on a node may be taken between the plan and kube-scheduler's turn. A gate cannot be put back, so a
pod that is refused waits where it is pinned, its gang keeps its seats, and its FluxJob says what
kube-scheduler says. Only where an owner makes the pod anew, and the user allowed it by the annotation
`fluence.flux-framework.org/take-back: delete` on the pod, it is evicted after a while, and queued again.
"""

from __future__ import annotations

import asyncio

import structlog

from fluence import names
from fluence.act.coalescing_writer import CoalescingWriter
from fluence.kube.client import Client
from fluence.kube.errors import KubeError, Missing
from fluence.model.held import pinned_node
from fluence.model.pod import Pod

log = structlog.get_logger("fluence.controller")

AFTER_S = 30.0
IN_FLIGHT = 2


def refusal(pod: Pod) -> str | None:
    """What kube-scheduler says of a pod that it was told to bind; None: it has not refused it."""
    if pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None:
        return None
    said = pod.condition("PodScheduled")
    if pinned_node(pod) is None or said is None or said.status != "False" or said.reason != "Unschedulable":
        return None
    return said.message


def may_take_back(pod: Pod) -> bool:
    """Whether a pod may be deleted: somebody makes it anew, and its user allowed it."""
    owned = any(each.controller for each in pod.metadata.owner_references or ())
    return owned and pod.annotations.get(names.TAKE_BACK) == "delete"


class Refusals:
    """``look`` at each pod that changed; ``run`` takes back what may be, until cancelled."""

    def __init__(self, client: Client, *, after_s: float = AFTER_S) -> None:
        self._client = client
        self._after_s = after_s
        self._refused: dict[str, Pod] = {}
        self._writer: CoalescingWriter[str, Pod] = CoalescingWriter(
            self._evict, in_flight=IN_FLIGHT, namespace=lambda _, pod: pod.metadata.namespace
        )

    def look(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if refusal(pod) is None or not may_take_back(pod):
            self._refused.pop(uid, None)
            return
        if uid not in self._refused:
            asyncio.get_running_loop().call_later(self._after_s, self._due, uid)
        self._refused[uid] = pod

    def forget(self, pod: Pod) -> None:
        self._refused.pop(pod.metadata.uid, None)

    async def run(self) -> None:
        await self._writer.run()

    def _due(self, uid: str) -> None:
        pod = self._refused.pop(uid, None)
        if pod is not None:
            self._writer[uid] = pod

    async def _evict(self, _: str, pod: Pod) -> None:
        try:
            await self._client.evict(pod)
            log.info("taken back from kube-scheduler", pod=pod.key, reason=refusal(pod))
        except Missing:
            return
        except KubeError as error:  # a budget may forbid it: it is looked at again
            log.warning("not taken back", pod=pod.key, reason=str(error))
            self.look(pod)
