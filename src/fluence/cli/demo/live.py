"""Live: the examples on a sandbox of their own, bound by `fluence scheduler run`. The sandbox is removed
afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fluence import event_loop
from fluence.cli.demo.show import NODES as NODE_FILE
from fluence.cli.demo.show import Json, Show, Work, where
from fluence.errors import Conflict, FluenceError
from fluence.kube.client import Client
from fluence.kube.reflector import Reflector
from fluence.kube.releases import Release
from fluence.kube.resource import DEPLOYMENTS, JOBS, NODES, PODS, Resource
from fluence.model.pod import Pod
from fluence.sandbox.auditor import ask
from fluence.sandbox.images import find_busybox, write_busybox
from fluence.sandbox.nodes import read_nodes
from fluence.sandbox.sandbox import Sandbox, Say, clear_stale, log_tail

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kwok")
PREFIX = "demo-"
REAL_NODES = 2
_NAMESPACE = "default"
_PATIENCE_S = 180.0  # far more than anything takes, because the machine may be busy
_KINDS = {each.kind: each.raw() for each in (PODS, JOBS, DEPLOYMENTS)}


@contextlib.contextmanager
def sandbox(
    programs: dict[str, Path], release: Release, *, keep: bool, say: Say, real: int = 0
) -> Iterator[Sandbox]:
    """A sandbox with simulated or ``real`` nodes and Fluence's scheduler. It is always removed unless it is
    to be kept."""
    clear_stale(PREFIX)
    box = Sandbox("demo" if keep else f"{PREFIX}{os.getpid()}")
    if box.status() in ("up", "degraded"):  # it was kept by an earlier run and must not be removed
        raise Conflict(
            f"sandbox {box.name!r} is already up; `fluence sandbox down --name {box.name}` it first"
        )
    stays = False
    try:
        box.up(programs, release, fluence=True, owned=not keep, real_nodes=real, say=say)
        if real:
            say("loading busybox")
            _load_busybox(box)
        else:
            say("making the nodes")
            count, ready = box.add_nodes(read_nodes(NODE_FILE))
            if ready < count:
                raise FluenceError(f"only {ready} of {count} simulated nodes became Ready")
        yield box
        stays = keep
    finally:
        if not stays:
            with _undisturbed():
                box.down()


def _load_busybox(box: Sandbox) -> None:
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "busybox.tar")
        write_busybox(find_busybox(), archive)
        box.load_image(archive)


def play(box: Sandbox, script: Sequence[Work], show: Show, *, real: bool = False) -> None:
    """Apply the examples one after the other, and watch until every workload that can start has started. On
    real nodes, wait until all have ended, and show their output."""
    event_loop.run(lambda: _play(box, script, show, real))


async def _play(box: Sandbox, script: Sequence[Work], show: Show, real: bool) -> None:
    async with Client(box.access()) as client:
        watch: Reflector[Pod] = Reflector(client, PODS, namespace=_NAMESPACE)
        changed = asyncio.Event()
        watch.store.on_change(lambda old, new: changed.set())
        task = asyncio.create_task(watch.run())
        began = time.monotonic()

        def at() -> float:
            return time.monotonic() - began

        async def until(check: Callable[[], bool], what: str) -> None:
            deadline = time.monotonic() + _PATIENCE_S
            while True:
                changed.clear()
                show.see(watch.store, at())
                if check():
                    return
                _alive(box)
                if time.monotonic() > deadline:
                    words = log_tail(box.at.log("fluence"))
                    raise FluenceError(f"waited {_PATIENCE_S:.0f} s for {what}; the scheduler said: {words}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.5)

        try:
            await watch.synced.wait()
            nodes = (await client.list(NODES)).items or []
            show.cluster(nodes)
            show.titles(f"{where()}/{'real' if real else 'cluster'}")
            began = time.monotonic()
            for work in script:
                show.opens(work, at())
                for document in work.documents:
                    await client.apply(
                        _resource(document), document, namespace=_NAMESPACE, manager="fluence-demo"
                    )
                await until(lambda work=work: show.knows(work), work.name)  # type: ignore[misc]
            await until(lambda: show.is_over, "those that wait")
            if real:
                await until(lambda: show.has_ended, "all containers to end")
                show.outputs([(pod, await _log(client, pod)) for pod in watch.store])
            show.summary(nodes, watch.store, await ask(box.at.folder))
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _log(client: Client, pod: Pod) -> str:
    path = f"/api/v1/namespaces/{_NAMESPACE}/pods/{pod.metadata.name}/log"
    return (await client.request("GET", path)).decode(errors="replace")


def _resource(document: Json) -> Resource[dict[str, object]]:
    kind = document["kind"]
    if kind in _KINDS:
        return _KINDS[kind]
    group, _, version = document["apiVersion"].partition("/")
    return Resource(group, version, f"{kind.lower()}s", kind, dict[str, object])


def _alive(box: Sandbox) -> None:
    dead = [name for name, part in box.require().parts.items() if not part.is_alive]
    if dead:
        raise FluenceError(f"{dead[0]} died: {log_tail(box.at.log(dead[0]))}")


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not stop the clean-up."""
    before = {
        each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
