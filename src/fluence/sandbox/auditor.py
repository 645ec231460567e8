"""Auditor: feeds the ledger from a live API server. It runs as a part of the sandbox and answers on a socket.

Before it reports, it makes sure that it has seen everything up to now: it creates a pod that no scheduler
serves, waits until its own watch shows it, and deletes it. A watch keeps the server's order, so everything
before that pod was seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from fluence import event_loop
from fluence.errors import FluenceError
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.gangs import (
    AnyGangs,
    Coscheduling,
    CustomGroups,
    Kai,
    NoGangs,
    PodGroup,
    SigPodGroup,
    Volcano,
    Workload,
    discover_gangs,
    discover_operators,
)
from fluence.kube.reflector import Reflector
from fluence.kube.resource import NODES, OWNERS, PODS, Resource
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger, AuditReport
from fluence.sandbox.audited_operators import OperatorObject, WrittenObject
from fluence.sandbox.plane import PlaneDirectories

FENCE_NAMESPACE = "kube-system"
FENCE = "audit-fence-"
FENCE_S = 120.0  # on a machine that is starved
LOOK_S = 5.0  # between two checks for operators that are installed later


class Auditor:
    """``async with Auditor(client) as auditor: …; report = await auditor.report()``."""

    def __init__(self, client: Client, *, ledger: AuditLedger | None = None) -> None:
        self.ledger = ledger or AuditLedger()
        self._client = client
        self._nodes = Reflector(client, NODES)
        self._pods = Reflector(client, PODS)
        self._gangs: AnyGangs = NoGangs("not asked yet")
        self._before_pods: list[Reflector[Any]] = [self._nodes]  # a pod is checked against what is known
        self._kinds: set[str] = set()  # kinds of operators' objects that are watched
        self._fences: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._gangs = await discover_gangs(self._client, probe_namespace=None)
        self._nodes.store.on_change(self._on_node)
        if self._gangs.resource is not None:
            self._follow(self._gangs.resource, self._on_group)
        for kind in OWNERS:
            self._follow(kind, self._on_owner)
        # The custom resource may be installed later: it is retried until it exists.
        for groups in (Coscheduling(), Volcano(), Kai()):
            self._follow(groups.resource, self._on_custom_group(groups), optional=True)
        await self._look_for_operators()
        for reflector in self._before_pods:
            self._start(reflector)
        async with asyncio.timeout(180):
            for reflector in self._before_pods:
                await reflector.synced.wait()
            self._pods.store.on_change(self._on_pod)
            self._start(self._pods)
            await self._pods.synced.wait()
        self._tasks.append(asyncio.create_task(self._tick()))
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def report(self) -> AuditReport:
        """All findings up to now."""
        await self._fence()
        self.ledger.tick(time.time())
        relists = sum(reflector.stats.lists - 1 for reflector in (self._pods, self._nodes))
        return self.ledger.report(gaps=relists)

    async def _fence(self) -> None:
        name = f"{FENCE}{uuid.uuid4().hex[:12]}"
        seen = self._fences[name] = asyncio.Event()
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": FENCE_NAMESPACE},
            "spec": {
                "schedulerName": "audit-fence",
                "automountServiceAccountToken": False,
                "containers": [{"name": "fence", "image": "none"}],
            },
        }
        try:
            await self._client.create(PODS, pod, namespace=FENCE_NAMESPACE)
            async with asyncio.timeout(FENCE_S):
                await seen.wait()
        except TimeoutError:
            why = self._pods.stats.last_error or "no event came"
            raise FluenceError(f"the audit has not caught up within {FENCE_S:.0f} s: {why}") from None
        finally:
            del self._fences[name]
            with contextlib.suppress(KubeError):
                await self._client.delete(PODS, name, namespace=FENCE_NAMESPACE, grace_s=0)

    def _follow(
        self, resource: Resource[Any], changed: Callable[[Any, Any], None], *, optional: bool = False
    ) -> None:
        reflector: Reflector[Any] = Reflector(self._client, resource, optional=optional)
        reflector.store.on_change(changed)
        self._before_pods.append(reflector)

    def _start(self, reflector: Reflector[Any]) -> None:
        self._tasks.append(asyncio.create_task(reflector.run()))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        self.ledger.node(old, new, now=time.time())

    def _on_group(self, old: PodGroup | Workload | None, new: PodGroup | Workload | None) -> None:
        for item, is_new in ((old, False), (new, True)):
            for group in self._gangs.groups(item) if item is not None else ():
                self.ledger.group(None if is_new else group, group if is_new else None, now=time.time())

    def _on_custom_group(self, adapter: CustomGroups) -> Callable[[Any, Any], None]:
        def changed(old: SigPodGroup | None, new: SigPodGroup | None) -> None:
            before, after = (None if item is None else adapter.group(item) for item in (old, new))
            self.ledger.group(before, after, now=time.time())

        return changed

    async def _look_for_operators(self) -> list[Reflector[Any]]:
        """Watches for the objects of operators that are new since the last check."""
        first = len(self._before_pods)
        for resource in await discover_operators(self._client):
            if resource.kind not in self._kinds:
                self._kinds.add(resource.kind)
                self._follow(resource.of(WrittenObject), self._on_object(resource.kind), optional=True)
        return self._before_pods[first:]

    def _on_owner(self, old: Owner | None, new: Owner | None) -> None:
        self.ledger.owner(old, new, now=time.time())

    def _on_object(self, kind: str) -> Callable[[Any, Any], None]:
        def changed(old: WrittenObject | None, new: WrittenObject | None) -> None:
            before, after = (None if item is None else OperatorObject.read(kind, item) for item in (old, new))
            self.ledger.owner(before, after, now=time.time())

        return changed

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        shown = new if new is not None else old
        if shown is None or shown.metadata.name.startswith(FENCE):
            if shown is not None and (fence := self._fences.get(shown.metadata.name)) is not None:
                fence.set()
            return
        group = self._gangs.instance_of(new) if new is not None else None
        self.ledger.pod(old, new, group=group, now=time.time())

    async def _tick(self) -> None:
        looked = time.time()
        while True:
            await asyncio.sleep(1.0)
            now = time.time()
            self.ledger.tick(now)
            if now < looked + LOOK_S:
                continue
            looked = now
            with contextlib.suppress(KubeError):
                for reflector in await self._look_for_operators():
                    self._start(reflector)


async def serve(folder: Path) -> None:
    """Watch until the sandbox ends, and answer each connection on the socket with the report as JSON."""
    at = PlaneDirectories(folder)
    async with Client(find_access(kubeconfig=at.kubeconfig())) as client, Auditor(client) as auditor:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                body = msgspec.json.encode(await auditor.report())
            except FluenceError as error:
                body = msgspec.json.encode({"error": str(error)})
            writer.write(body)
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()

        with contextlib.suppress(FileNotFoundError):
            at.audit_socket.unlink()
        server = await asyncio.start_unix_server(answer, _short(at.audit_socket))
        async with server:
            await server.serve_forever()


async def ask(folder: Path) -> AuditReport:
    """The report of the auditor in a running sandbox."""
    at = PlaneDirectories(folder)
    try:
        reader, writer = await asyncio.open_unix_connection(_short(at.audit_socket))
    except OSError:
        raise FluenceError(
            "this sandbox has no auditor running; start one with `fluence sandbox up` (without --no-audit)"
        ) from None
    body = await reader.read()
    writer.close()
    try:
        return msgspec.json.decode(body, type=AuditReport)
    except msgspec.DecodeError:
        answer = msgspec.json.decode(body or b"{}", type=dict[str, str])
        raise FluenceError(f"the audit failed: {answer.get('error', 'no answer')}") from None


def _short(path: Path) -> str:
    """The path of a Unix socket may have 107 bytes; a relative one through /proc/self/fd is always short."""
    if len(os.fsencode(path)) < 100:
        return str(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}/{path.name}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    event_loop.run(lambda: serve(Path(sys.argv[1])))
