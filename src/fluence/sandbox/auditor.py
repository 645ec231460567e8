"""Auditor: feeds the ledger from a live API server; runs as a part of the sandbox and answers on a socket.

Asked for its report it first makes sure that it has seen everything up to now: it creates a pod that no
scheduler serves, waits until its own watch brings it, and deletes it. A watch keeps the server's order, so
all before it was seen.
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
    NoGangs,
    PodGroup,
    SigPodGroup,
    Workload,
    discover_gangs,
)
from fluence.kube.reflector import Reflector
from fluence.kube.resource import NODES, OWNERS, PODS, Resource
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.sandbox.audit import AuditLedger, AuditReport
from fluence.sandbox.plane import PlaneDirectories

FENCE_NAMESPACE = "kube-system"
FENCE = "audit-fence-"
FENCE_S = 20.0


class Auditor:
    """``async with Auditor(client) as auditor: …; report = await auditor.report()``."""

    def __init__(self, client: Client, *, ledger: AuditLedger | None = None) -> None:
        self.ledger = ledger or AuditLedger()
        self._client = client
        self._nodes = Reflector(client, NODES)
        self._pods = Reflector(client, PODS)
        self._gangs: AnyGangs = NoGangs("not asked yet")
        self._before_pods: list[Reflector[Any]] = [self._nodes]  # a pod is judged by what is known
        self._fences: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._gangs = await discover_gangs(self._client, probe_namespace=None)
        self._nodes.store.on_change(self._on_node)
        if self._gangs.resource is not None:
            self._follow(self._gangs.resource, self._on_group)
        for kind in OWNERS:
            self._follow(kind, self._on_owner)
        # Its custom resource may be installed later: it is looked for as long as it is not there.
        self._follow(Coscheduling.resource, self._on_sig_group, optional=True)
        for each in self._before_pods:
            self._start(each)
        async with asyncio.timeout(60):
            for each in self._before_pods:
                await each.synced.wait()
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
        """Everything found up to now."""
        await self._fence()
        self.ledger.tick(time.time())
        relists = sum(each.stats.lists - 1 for each in (self._pods, self._nodes))
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
        found: Reflector[Any] = Reflector(self._client, resource, optional=optional)
        found.store.on_change(changed)
        self._before_pods.append(found)

    def _start(self, reflector: Reflector[Any]) -> None:
        self._tasks.append(asyncio.create_task(reflector.run()))

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        self.ledger.node(old, new, now=time.time())

    def _on_group(self, old: PodGroup | Workload | None, new: PodGroup | Workload | None) -> None:
        for item, is_new in ((old, False), (new, True)):
            for group in self._gangs.groups(item) if item is not None else ():
                self.ledger.group(None if is_new else group, group if is_new else None, now=time.time())

    def _on_sig_group(self, old: SigPodGroup | None, new: SigPodGroup | None) -> None:
        adapter = Coscheduling()
        before, after = (None if each is None else adapter.group(each) for each in (old, new))
        self.ledger.group(before, after, now=time.time())

    def _on_owner(self, old: Owner | None, new: Owner | None) -> None:
        self.ledger.owner(old, new, now=time.time())

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        shown = new if new is not None else old
        if shown is None or shown.metadata.name.startswith(FENCE):
            if shown is not None and (fence := self._fences.get(shown.metadata.name)) is not None:
                fence.set()
            return
        group = self._gangs.instance_of(new) if new is not None else None
        self.ledger.pod(old, new, group=group, now=time.time())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.ledger.tick(time.time())


async def serve(folder: Path) -> None:
    """Watch until the sandbox goes, answering each connection on the socket with the report as JSON."""
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
    """The report of the auditor that runs as a part of the sandbox."""
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
        said = msgspec.json.decode(body or b"{}", type=dict[str, str])
        raise FluenceError(f"the audit failed: {said.get('error', 'no answer')}") from None


def _short(path: Path) -> str:
    """A Unix socket's path may have 107 bytes; a relative one through /proc/self/fd is always short."""
    if len(os.fsencode(path)) < 100:
        return str(path)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    return f"/proc/self/fd/{descriptor}/{path.name}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    event_loop.run(lambda: serve(Path(sys.argv[1])))
