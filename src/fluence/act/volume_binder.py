"""VolumeBinder: writes which node or volume a claim that waits is to have, until the claim shows it.

A volume that is made: the annotation selected-node on the claim, which its provisioner watches. A volume that
is there: its claimRef, as kube-scheduler writes it, and the volume controller binds the two. What was decided
is compared with what is there before each write, so what came true by itself costs nothing, and what somebody
else wrote is not taken back. `LiveScheduler` calls it with what a cycle decided. Nothing is sent without the
lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fluence.act.coalescing_writer import CoalescingWriter
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing
from fluence.kube.resource import CLAIMS, VOLUMES, Json
from fluence.model.volume import BOUND_BY_CONTROLLER, SELECTED_NODE, Key, VolumeClaim
from fluence.schedule.actions import ClaimUpdate

logger = logging.getLogger(__name__)

IN_FLIGHT = 4
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # between tries; the last one again and again


class VolumeBinder:
    """``update`` from the loop; ``run`` writes until cancelled."""

    def __init__(self, client: Client, *, held: Callable[[], bool], in_flight: int = IN_FLIGHT) -> None:
        self.written = 0
        self._client = client
        self._held = held
        self._last: dict[Key, ClaimUpdate] = {}  # what is to be true of a claim, until it is
        self._writer: CoalescingWriter[Key, tuple[ClaimUpdate, int]] = CoalescingWriter(
            self._try, in_flight=in_flight, namespace=lambda claim, _: claim[0]
        )

    @property
    def backlog(self) -> int:
        return len(self._writer)

    def update(self, choice: ClaimUpdate) -> None:
        self._last[choice.claim] = choice
        self._writer[choice.claim] = (choice, 0)

    async def run(self) -> None:
        await self._writer.run()

    async def _try(self, key: Key, update: tuple[ClaimUpdate, int]) -> None:
        choice, tries = update
        if await self._write(choice):
            if self._last.get(key) is choice:
                del self._last[key]
        else:
            pause = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
            asyncio.get_running_loop().call_later(pause, self._again, choice, tries + 1)

    def _again(self, choice: ClaimUpdate, tries: int) -> None:
        if self._last.get(choice.claim) is choice:  # nothing newer was said meanwhile
            self._writer[choice.claim] = (choice, tries)

    async def _write(self, choice: ClaimUpdate) -> bool:
        """Whether nothing is left to do."""
        if not self._held():
            return False
        namespace, name = choice.claim
        try:
            claim = await self._client.get(CLAIMS, name, namespace=namespace)
            if claim.metadata.uid != choice.uid or claim.spec.volume_name:
                return True  # made anew under its name, or bound: too late for choices
            if choice.volume is not None:
                return await self._give(choice.volume, claim)
            return await self._mark(choice, claim)
        except Missing:
            return True
        except ApiConflict:
            return False  # it changed meanwhile: look again
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
            return True  # given to this claim, or to another: then the scheduler sees it and chooses anew
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
