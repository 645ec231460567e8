"""A field of nodes that belongs to one test, on the run's real control plane, and a scheduler for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

from fluence.kube.client import Client
from fluence.kube.gangs import AnyGangs, discover_gangs
from fluence.kube.resource import NODES, PODS, Json
from fluence.live.scheduler import LiveScheduler
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.sandbox.nodes import NodeKind, create_nodes
from fluence.sandbox.proxy import Proxy, Rule
from fluence.sandbox.testing import Kube
from fluence.schedule.settings import SchedulerSettings
from tests.eventually import SOON_S, eventually

RUN = "sandbox.fluence.flux-framework.org/run-seconds"
LABEL = "field.example/of"
_NOT_TRIED = ("SchedulingGated", "WaitingForGroup")


class Field:
    """Nodes that only this test's pods select and tolerate; its scheduler has a name of its own."""

    def __init__(self, kube: Kube, client: Client, nodes: list[str], gangs: AnyGangs) -> None:
        self.kube = kube
        self.client = client
        self.nodes = nodes
        self.gangs = gangs
        self.name = f"fluence-{kube.namespace}"
        self.live: LiveScheduler | None = None
        self.proxy = Proxy(kube.access())  # the one that `through` goes through

    @property
    def namespace(self) -> str:
        return self.kube.namespace

    # -- what there is to schedule ---------------------------------------------------------------------------

    def spec(self, *, cpu: str = "1", group: str | None = None, **more: Any) -> Json:
        spec: Json = {
            "schedulerName": self.name,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {LABEL: self.namespace},
            "tolerations": [{"key": LABEL, "operator": "Exists"}],
            "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
        }
        if group is not None:
            spec.update(self.gangs.pod_link(group))
        spec.update(more)
        return spec

    def pod(
        self,
        name: str,
        *,
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
        runs: float | None = None,
        **spec: Any,
    ) -> Json:
        notes = dict(annotations or {})
        if runs is not None:
            notes[RUN] = str(runs)
            spec.setdefault("restartPolicy", "Never")
        meta = {"name": name, "labels": labels or {}, "annotations": notes}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": self.spec(**spec)}

    async def add(self, *bodies: Json) -> list[Pod]:
        return [await self.client.create(PODS, body, namespace=self.namespace) for body in bodies]

    async def add_group(self, name: str, minimum: int | None, **more: Any) -> None:
        group = Group(namespace=self.namespace, name=name, min_count=minimum, **more)
        assert self.gangs.resource is not None
        await self.client.create(
            self.gangs.resource.raw(), self.gangs.manifest(group), namespace=self.namespace
        )

    # -- what became of it -----------------------------------------------------------------------------------

    async def pods(self) -> dict[str, Pod]:
        page = await self.client.list(PODS, namespace=self.namespace)
        return {pod.metadata.name: pod for pod in page.items or ()}

    async def homes(self) -> dict[str, str | None]:
        return {name: pod.spec.node_name for name, pod in (await self.pods()).items()}

    async def until(
        self, done: Callable[[dict[str, Pod]], bool], what: str, *, timeout_s: float = SOON_S
    ) -> dict[str, Pod]:
        """Wait until the pods are so; if time is up, the failure says where each is."""
        pods: dict[str, Pod] = {}

        async def look() -> dict[str, tuple[str | None, str]]:
            nonlocal pods
            pods = await self.pods()
            return {name: (pod.spec.node_name, pod.status.phase) for name, pod in pods.items()}

        await eventually(look, lambda _: done(pods), what=what, timeout_s=timeout_s, pause_s=0.1)
        return pods

    async def until_bound(self, names: Iterable[str] | int, *, timeout_s: float = SOON_S) -> dict[str, Pod]:
        """Wait until these pods, or so many, have a node."""

        def done(pods: dict[str, Pod]) -> bool:
            bound = {name for name, pod in pods.items() if pod.spec.node_name}
            return len(bound) >= names if isinstance(names, int) else bound.issuperset(names)

        wanted = names if isinstance(names, int) else list(names)
        if not isinstance(wanted, int):
            names = wanted
        return await self.until(done, f"bound: {wanted}", timeout_s=timeout_s)

    async def until_told(self, name: str, text: str = "", *, reason: str = "") -> str:
        """Wait until a pod is told why it waits: then the scheduler has tried it, and it has no node. Without
        a reason, any but those of gates and of groups that are not complete."""

        def said(pods: dict[str, Pod]) -> str | None:
            found = pods[name].condition("PodScheduled") if name in pods else None
            is_meant = found is not None and (
                found.reason == reason if reason else found.reason not in _NOT_TRIED
            )
            told = found is not None and found.status == "False" and is_meant
            return found.message if told and found is not None and text in found.message else None

        pods = await self.until(lambda pods: said(pods) is not None, f"{name} is told {reason} {text!r}")
        return said(pods) or ""

    async def group_condition(self, name: str) -> tuple[str, str, str] | None:
        """Status, reason and message of what a PodGroup was told; None if nothing."""
        assert self.gangs.resource is not None
        item: Any = await self.client.get(self.gangs.resource.raw(), name, namespace=self.namespace)
        found = item.get("status", {}).get("conditions", [])
        said = [each for each in found if each["type"] == self.gangs.condition]
        return (said[0]["status"], said[0]["reason"], said[0]["message"]) if said else None

    async def until_group(self, name: str, status: str, reason: str, *, timeout_s: float = SOON_S) -> str:
        said = await eventually(
            lambda: self.group_condition(name),
            lambda said: said is not None and said[:2] == (status, reason),
            what=f"group {name} is told {status} {reason}",
            timeout_s=timeout_s,
        )
        assert said is not None
        return said[2]

    async def end(self, *names: str) -> None:
        """These pods go at once."""
        for name in names:
            await self.client.delete(PODS, name, namespace=self.namespace, grace_s=0)

    async def settled(self, *, quiet_s: float = 1.0) -> dict[str, str | None]:
        """What is where once the scheduler has had time for whatever it would do."""
        await asyncio.sleep(quiet_s)
        return await self.homes()

    # -- the scheduler ---------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def scheduler(self, client: Client | None = None, **options: Any) -> AsyncIterator[LiveScheduler]:
        """The scheduler in this process, without a lease unless one is asked for. ``may_fail``: objects that
        cannot be handled are part of the test; ``joined`` is called with it before it runs."""
        identity, may_fail = options.pop("identity", None), options.pop("may_fail", False)
        joined = options.pop("joined", None)
        chosen = {"lease": False, "backoff": 0.25, "scheduler_name": self.name, **options}
        live = self.live = LiveScheduler(
            client or self.client, SchedulerSettings(**chosen), identity=identity
        )
        if joined is not None:
            joined(live)
        stop = asyncio.Event()
        task = asyncio.create_task(live.run(stop))
        ready = asyncio.create_task(live.synced.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        try:
            if task.done():
                task.result()
            yield live
        finally:
            ready.cancel()
            stop.set()
            await task
            faults = [each.store.handler_errors for each in live.watches.all]
            assert not any(faults), "a handler failed: see the log"
            assert may_fail or not live.metrics.fault_count, "something was quarantined: see the log"

    @contextlib.asynccontextmanager
    async def through(self, *rules: Rule, **options: Any) -> AsyncIterator[LiveScheduler]:
        """The scheduler behind a proxy that makes things go wrong."""
        async with (
            Proxy(self.kube.access(), list(rules)) as proxy,
            Client(proxy.access) as client,
            self.scheduler(client, **options) as live,
        ):
            self.proxy = proxy
            yield live

    async def patch_node(self, name: str, body: Json) -> None:
        await self.client.patch(NODES.raw(), name, body)


@contextlib.asynccontextmanager
async def field(kube: Kube, count: int = 4, **kind: Any) -> AsyncIterator[Field]:
    """``async with field(kube, 4, cpu=4) as f``: four nodes of four cores."""
    async with kube.client() as client:
        made = NodeKind(
            name=f"n-{kube.namespace[2:]}",
            count=count,
            labels={LABEL: kube.namespace, **kind.pop("labels", {})},
            taints=[f"{LABEL}:NoSchedule", *kind.pop("taints", [])],
            **{"cpu": 4, **kind},
        )
        await create_nodes(client, [made])
        names = [f"{made.name}-{index:03d}" for index in range(count)]
        found = Field(kube, client, names, await discover_gangs(client))
        try:
            await _ready(client, names)
            yield found
        finally:
            for name in names:
                await client.delete(NODES, name)


async def _ready(client: Client, names: list[str]) -> None:
    async def closed(name: str) -> list[str]:
        node = await client.get(NODES, name)
        born = [each.key for each in node.spec.taints or () if each.key.startswith("node.kubernetes.io/")]
        return born if node.is_ready else [*born, "it is not ready"]

    for name in names:
        await eventually(partial(closed, name), [], what=f"{name} is ready and open")
