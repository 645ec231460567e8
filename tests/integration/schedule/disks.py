"""Disks: claims, classes and volumes for tests, and the provisioner that a local control plane lacks.

kube-controller-manager binds claims and volumes for real; the provisioner makes a volume where a claim's
selected-node says.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.resource import CLAIMS, STORAGE_CLASSES, VOLUMES, Json
from fluence.model.claims import SELECTED_NODE, VolumeClaim
from tests.eventually import eventually
from tests.integration.schedule.field import Field

HOST = "kubernetes.io/hostname"
PROVISIONER = "disks.example"


class Disks:
    """Claims, classes and volumes of one test, and the provisioner that makes volumes for it."""

    def __init__(self, f: Field) -> None:
        self.f = f
        self.kind = f"disks-{f.namespace}"
        self.made: list[str] = []
        self.chosen: list[tuple[str, str]] = []  # (claim, node), as the provisioner saw it
        self.refuses: Callable[[str, str], bool] = lambda claim, node: False
        self.paused = False
        self.task: asyncio.Task[None] | None = None  # the provisioner

    @property
    def state(self) -> str:
        """What has become of the provisioner."""
        task = self.task
        if task is None or not task.done():
            return f"works; it has made {len(self.made)} volumes"
        return f"failed: {task.exception()!r}" if not task.cancelled() else "cancelled"

    async def add_class(self, *, provisioner: str = PROVISIONER, **more: Any) -> None:
        body = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": self.kind},
            "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer",
            **more,
        }
        await self.f.client.create(STORAGE_CLASSES.raw(), body)

    def claim(self, name: str, *, size: str = "1Gi", modes: tuple[str, ...] = ("ReadWriteOnce",)) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": self.claim_spec(size=size, modes=modes),
        }

    def claim_spec(self, *, size: str = "1Gi", modes: tuple[str, ...] = ("ReadWriteOnce",)) -> Json:
        return {
            "accessModes": list(modes),
            "storageClassName": self.kind,
            "resources": {"requests": {"storage": size}},
        }

    async def add(self, *names: str, **more: Any) -> None:
        for name in names:
            await self.f.client.create(CLAIMS, self.claim(name, **more), namespace=self.f.namespace)

    async def claims(self) -> dict[str, VolumeClaim]:
        page = await self.f.client.list(CLAIMS, namespace=self.f.namespace)
        return {claim.metadata.name: claim for claim in page.items or ()}

    async def add_volume(self, name: str, node: str, *, size: str = "1Gi", **spec: Any) -> None:
        term = {"key": HOST, "operator": "In", "values": [node]}
        body = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.kind,
                "capacity": {"storage": size},
                **({} if "csi" in spec else {"local": {"path": "/none"}}),
                "persistentVolumeReclaimPolicy": "Retain",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [term]}]}},
                **spec,
            },
        }
        self.made.append(name)
        await self.f.client.create(VOLUMES.raw(), body)

    async def provision(self) -> None:
        """The external provisioner: looks for claims with a node, and makes or refuses."""
        done: set[str] = set()
        while True:
            for name, claim in () if self.paused else (await self.claims()).items():
                node, uid = claim.selected_node, claim.metadata.uid
                if node is None or claim.spec.volume_name or uid in done:
                    continue
                self.chosen.append((name, node))
                if self.refuses(name, node):
                    gone = {"metadata": {"annotations": {SELECTED_NODE: None}}}
                    await self.f.client.patch(CLAIMS.raw(), name, gone, namespace=self.f.namespace)
                    continue
                done.add(uid)
                ref = {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": self.f.namespace,
                    "name": name,
                    "uid": uid,
                }
                modes = claim.spec.access_modes
                source = {"driver": PROVISIONER, "volumeHandle": uid}
                await self.add_volume(f"pvc-{uid}", node, claimRef=ref, accessModes=modes, csi=source)
            await asyncio.sleep(0.05)

    async def until_chosen(self, count: int = 1) -> None:
        await eventually(
            self.claims,
            lambda claims: sum(claim.selected_node is not None for claim in claims.values()) >= count,
            what=f"{count} claims have a node",
        )

    async def clean(self, client: Client) -> None:
        for name in self.made:
            with contextlib.suppress(KubeError):
                await client.delete(VOLUMES, name)
        with contextlib.suppress(KubeError):
            await client.delete(STORAGE_CLASSES, self.kind)


@contextlib.asynccontextmanager
async def disks(f: Field, **kind: Any) -> AsyncIterator[Disks]:
    found = Disks(f)
    await found.add_class(**kind)
    task = found.task = asyncio.create_task(found.provision())
    try:
        yield found
        if task.done():
            task.result()
    finally:
        if task.done() and task.exception() is not None:
            print("the provisioner failed:", task.exception())
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, KubeError):
            await task
        await found.clean(f.client)


def mounts(*names: str) -> list[Json]:
    return [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
