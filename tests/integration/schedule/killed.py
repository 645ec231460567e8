"""A scheduler in a process of its own that is killed and started again, and an account of what there is.

No wait here is without an end: what does not come is told with everything that could say why.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import yaml

from fluence.kube.errors import KubeError
from fluence.kube.reflector import Reflector
from fluence.kube.resource import CLAIMS, JOBS, NODES, PODS, VOLUMES, Resource
from fluence.model.pod import Pod
from fluence.sandbox.proxy import Proxy, Rule
from tests.eventually import eventually
from tests.integration.rights import chart_account
from tests.integration.schedule.field import Field

AHEAD = 8  # pods that wait at a time
LONGEST_S = 120.0  # that anything may take
QUIET_S = 8.0  # that a scheduler which leads may bind nothing, before it is killed all the same
_TAIL = 120  # lines of the log


class Run:
    """A scheduler in a process of its own, and what is bound meanwhile."""

    def __init__(self, f: Field, kubeconfig: Path, log: Path) -> None:
        self.f = f
        self.made = self.bound = 0
        self.last = False  # it is not killed any more: no more work is needed
        self.notes: dict[str, Callable[[], object]] = {}  # what else an account says,
        self.kinds: list[Resource[Any]] = []  # and of what else
        self.log = log
        self._command = [
            *(sys.executable, "-m", "fluence.cli", "scheduler", "run", "--no-lease", "--health-address", ""),
            *("--kubeconfig", str(kubeconfig), "--scheduler-name", f.name, "--log-format", "text"),
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._led = 0  # how often one had led when the last one was started
        self._more = asyncio.Event()

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.node_name and (old is None or not old.spec.node_name):
            self.bound += 1
            self._more.set()

    # -- the process -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._led = self._count()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdout=log, stderr=log)

    @property
    def leads(self) -> bool:
        return self._count() > self._led

    async def led(self) -> None:
        """Start one, and wait until it has come so far that it hears a signal."""
        await self.start()
        await self.until(lambda: self.leads, "it leads")

    async def kill(self, count: int, rng: random.Random, *, bound: tuple[int, int], pause_s: float) -> None:
        """So many are started and killed, each when it has bound a few pods; then one that stays."""
        for _ in range(count):
            enough = self.bound + rng.randint(*bound)
            await self.start()
            await self.until_bound(enough)
            await asyncio.sleep(rng.uniform(0, pause_s))
            await self.stop(signal.SIGKILL)
        self.last = True
        await self.led()

    async def stop(self, number: int) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        try:
            async with asyncio.timeout(LONGEST_S):
                return await self._process.wait()
        except TimeoutError:
            late = f"not within {LONGEST_S:g} s: it ends by signal {number}"
            raise AssertionError(await self.account(late)) from None

    def _count(self) -> int:
        return self.log.read_bytes().count(b"leads") if self.log.exists() else 0

    # -- waiting ---------------------------------------------------------------------------------------------

    async def until(self, done: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(LONGEST_S):
                while not done():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(await self.account(f"not within {LONGEST_S:g} s: {what}")) from None

    async def until_room(self) -> None:
        """Wait until few pods wait, while somebody binds them."""
        await self.until(lambda: self.made - self.bound <= AHEAD, f"at most {AHEAD} pods wait")

    async def until_bound(self, count: int) -> None:
        """Wait until so many are bound; or until one that leads binds none, for there may be no room. How
        long a start takes is the machine's affair, and says nothing about that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                while self.bound < count:
                    self._more.clear()
                    led = self.leads
                    try:
                        async with asyncio.timeout(QUIET_S):
                            await self._more.wait()
                    except TimeoutError:
                        if led:
                            return

    @contextlib.asynccontextmanager
    async def explained(self) -> AsyncIterator[None]:
        """What fails in it is told with an account."""
        try:
            yield
        except AssertionError as failed:
            raise AssertionError(await self.account(str(failed))) from None

    # -- what there is ---------------------------------------------------------------------------------------

    async def account(self, what: str) -> str:
        """What went wrong, and all that could say why."""
        process = self._process
        runs = "no" if process is None or process.returncode is not None else f"yes, process {process.pid}"
        lines = [
            what,
            f"{self.made} pods made, {self.bound} bound; a scheduler runs: {runs}; leads: {self.leads}",
            *(f"{name}: {say()}" for name, say in self.notes.items()),
        ]
        group = self.f.gangs.resource
        kinds: list[Resource[Any]] = [NODES, PODS, JOBS, CLAIMS, VOLUMES, *self.kinds]
        for resource in kinds if group is None else [group, *kinds]:
            lines += await self._some(resource)
        log = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([*lines, f"-- the end of {self.log}", *log[-_TAIL:]])

    async def _some(self, resource: Resource[Any]) -> list[str]:
        """What the server has of a kind; of what is in no namespace, only ours."""
        namespace = self.f.namespace if resource.namespaced else None
        try:
            items: list[Any] = list(
                (await self.f.client.list(resource.raw(), namespace=namespace)).items or ()
            )
        except KubeError as error:
            return [f"-- {resource.plural}: {error}"]
        mine = [each for each in items if namespace is not None or self.f.namespace[2:] in str(each)]
        say = _SAID.get(resource.plural, _rest)
        return [f"-- {resource.plural}", *(f"{each['metadata']['name']}: {say(each)}" for each in mine)]


@contextlib.asynccontextmanager
async def killed(f: Field, rules: list[Rule], folder: Path) -> AsyncIterator[Run]:
    """What a test kills: it goes through a proxy that has these rules, with the chart's own rights, and is
    gone at the end."""
    async with (
        Proxy(f.kube.access(), rules) as proxy,
        chart_account(f.client, f"killed-{f.namespace}", f.namespace) as user,
    ):
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(proxy.access.server, user)))
        reflector = Reflector(f.client, PODS, namespace=f.namespace)
        run = Run(f, kubeconfig, folder / "log")
        reflector.store.on_change(run.on_pod)
        watch = asyncio.create_task(reflector.run())
        run.notes["the test's own watch"] = lambda: "over" if watch.done() else "goes on"
        try:
            yield run
        finally:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                await run.stop(signal.SIGKILL)
            watch.cancel()
            await asyncio.wait({watch})


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Work that goes on meanwhile and is over at the end; if it fails, so does what goes on beside it."""
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work)
            yield
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def nothing_is_held(f: Field) -> None:
    """No capacity has leaked: a scheduler that starts now finds all nodes empty."""
    async with f.scheduler() as live:
        await f.settled(quiet_s=0.3)

        def held() -> tuple[dict[int, dict[str, str]], list[int]]:
            seats = live.scheduler.state.cluster.fit
            ours = [seats.position[name] for name in f.nodes]
            taken = seats.size("cpu")[ours] - seats.free("cpu")[ours]
            return live.scheduler.state.cluster.jobs, taken.tolist()

        await eventually(held, ({}, [0] * len(f.nodes)), what="nothing is held")


def _kubeconfig(server: str, user: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"as": user}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def _conditions(item: Any) -> str:
    found = item.get("status", {}).get("conditions", [])
    said = (f"{c['type']}={c['status']} {c.get('reason', '')} {c.get('message', '')}".strip() for c in found)
    return "; ".join(said) or "no conditions"


def _rest(item: Any) -> str:
    spec, status = item.get("spec", {}), item.get("status", {})
    return f"suspend {spec.get('suspend')} phase {status.get('phase')} {_conditions(item)}"


def _node(item: Any) -> str:
    spec, has = item.get("spec", {}), item["status"].get("allocatable")
    return f"{has} unschedulable {spec.get('unschedulable')} {spec.get('taints')}"


def _pod(item: Any) -> str:
    spec, meta = item["spec"], item["metadata"]
    claims = [v.get("persistentVolumeClaim", {}).get("claimName") for v in spec.get("volumes", ())]
    asks = [each["resources"].get("requests") for each in spec["containers"]]
    return (
        f"on {spec.get('nodeName')} {item['status'].get('phase')} asks {asks} claims {claims} "
        f"gates {spec.get('schedulingGates')} deleted {meta.get('deletionTimestamp')} "
        f"{meta.get('annotations')} {_conditions(item)}"
    )


def _claim(item: Any) -> str:
    meta, volume = item["metadata"], item["spec"].get("volumeName")
    return f"{item['status'].get('phase')} volume {volume} {meta.get('annotations')} uid {meta['uid']}"


def _volume(item: Any) -> str:
    spec = item["spec"]
    return f"{item['status'].get('phase')} for {spec.get('claimRef')} at {spec.get('nodeAffinity')}"


_SAID: dict[str, Callable[[Any], str]] = {
    "nodes": _node,
    "pods": _pod,
    "persistentvolumeclaims": _claim,
    "persistentvolumes": _volume,
}
