"""Live: the scheduler on a real cluster: watches feed it, a binder carries out what it decides.

    reflectors ──► Scheduler ──► Binder ──► API server
         ▲                                      │
         └──────────────── watch ───────────────┘

Changes within a few milliseconds are one cycle. A replica that does not lead follows the cluster all the
same, so that it knows everything when it is its turn. A leader that loses its lease ends: what it had assumed
is no longer sure, and a fresh process finds the truth in the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
from typing import Any

import structlog

from fluence import messages
from fluence.act import conditions
from fluence.act.binder import Binder
from fluence.act.status_writer import StatusWriter
from fluence.act.volume_binder import VolumeBinder
from fluence.cluster.claims import Change, Claims
from fluence.errors import FluenceError
from fluence.kube.client import Client
from fluence.kube.events import Recorder, Ref
from fluence.kube.gangs import (
    AnyGangs,
    Coscheduling,
    NoGangs,
    PodGroup,
    SigPodGroup,
    Workload,
    discover_coscheduling,
    discover_gangs,
)
from fluence.kube.lease import Elector, LeaseTerms
from fluence.kube.reflector import Reflector
from fluence.kube.resource import (
    CLAIMS,
    CSI_NODES,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.live.metrics import Metrics
from fluence.model.meta import KubeObject
from fluence.model.node import Node, closed_to
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.schedule import recovery
from fluence.schedule.actions import Bind, BindOutcome, BindResult
from fluence.schedule.cycle import Decisions, Scheduler, cluster_for
from fluence.schedule.gang import Gang
from fluence.schedule.groups import Groups
from fluence.schedule.settings import SchedulerSettings
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.status_reports import Waiting

log = structlog.get_logger("fluence.scheduler")

OWNERS: tuple[Resource[Any], ...] = (JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)
_SCHEDULED = StatusReport(SchedulingStatus.SCHEDULED)
_STUCK_S = 60.0  # a cycle that takes longer is a fault that a restart may cure


class LeaseLost(FluenceError):
    """Another replica may lead now."""


class LiveScheduler:
    """``await Live(client, settings).run(stop)`` runs until ``stop`` is set."""

    def __init__(
        self, client: Client, settings: SchedulerSettings | None = None, *, identity: str | None = None
    ) -> None:
        self.settings = settings = settings or SchedulerSettings()
        self.client = client
        self.gangs: AnyGangs = NoGangs("not asked yet")
        self.coscheduling: Coscheduling | None = None
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}"
        self.groups = Groups(scheduler=settings.scheduler_name)
        self.scheduler = Scheduler(
            self.groups,
            cluster_for(settings.layout(), policy=settings.match_policy, release_each=settings.release_each),
            policy=settings.queue_policy,
            rules=settings.rules(),
            depth=settings.queue_depth,
            window=None if settings.queue_window is None else settings.queue_window * 1000,
            resolution=settings.queue_resolution,
            replan=settings.queue_replan,
            backoff=(int(settings.backoff * 1000), int(settings.backoff_max * 1000)),
            volume_timeout=int(settings.volume_timeout * 1000),
        )
        self.metrics = Metrics(self.scheduler, profile=settings.scheduler_name)
        self.elector: Elector | None = None
        if settings.lease:
            self.elector = Elector(
                client,
                name=settings.lease_name,
                namespace=settings.lease_namespace,
                identity=identity,
                terms=LeaseTerms(
                    duration_s=settings.lease_duration,
                    renew_s=settings.lease_renew,
                    retry_s=settings.lease_retry,
                ),
            )
            self.identity = self.elector.identity
        self.binder = Binder(
            client, self._answered, check=self._check, held=self._held, in_flight=settings.in_flight
        )
        self.teller = StatusWriter(client, held=self._held)
        self.chooser = VolumeBinder(client, held=self._held)
        self.recorder = Recorder(
            client,
            controller=settings.scheduler_name,
            instance=self.identity,
            is_busy=lambda: self.binder.backlog > settings.in_flight,  # binds come first
        )
        self.synced = asyncio.Event()
        self.leads = False
        self._nodes: Reflector[Node] = Reflector(client, NODES)
        self._pods: Reflector[Pod] = Reflector(client, PODS)
        self._claims = Claims()
        self._others: list[Reflector[Any]] = []
        self._wake = asyncio.Event()
        self._began = self._monotonic_ms() - int(client.clock.now() * 1000)
        self._cycle_began: float | None = None
        self._submitted: dict[str, float] = {}
        self._written = conditions.WrittenMessages()

    # -- running ---------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until told to stop: what was sent is waited for, then the lease is given back."""
        self.gangs = await discover_gangs(self.client)
        self.coscheduling = await discover_coscheduling(self.client)
        self.groups.native = not isinstance(self.gangs, NoGangs) or self.coscheduling is not None
        if isinstance(self.gangs, NoGangs):
            log.info("no native gangs", reason=self.gangs.reason)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each.run()) for each in self._reflectors()]
            running.append(tasks.create_task(self.recorder.run()))
            try:
                await self._sync()
                lead = asyncio.create_task(self._stand(stop))
                stopped = asyncio.create_task(stop.wait())
                await asyncio.wait({lead, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not lead.done():
                    lead.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await lead
                stopped.cancel()
                await self.recorder.flush(2.0)
            finally:
                for task in running:
                    task.cancel()

    async def _stand(self, stop: asyncio.Event) -> None:
        if self.elector is None:
            await self._lead(stop)
            return
        led = False

        async def lead() -> None:
            nonlocal led
            if led:
                raise LeaseLost("the lease was lost: start again, and find the truth in the API")
            led = True
            await self._lead(stop)

        # NB if the lease is lost, `lead` is cancelled and called again once it is regained: too late for us.
        await self.elector.run(lead)

    async def _lead(self, stop: asyncio.Event) -> None:
        self.leads = True
        self.metrics.leader.labels(self.settings.lease_name).set(1)
        log.info("leads", identity=self.identity, **self._counts())
        binder = asyncio.create_task(self.binder.run())
        teller = asyncio.create_task(self.teller.run())
        chooser = asyncio.create_task(self.chooser.run())
        try:
            self._wake.set()
            cycles = asyncio.create_task(self._cycles())
            stopping = asyncio.create_task(stop.wait())
            working = (cycles, binder, teller, chooser)
            await asyncio.wait({*working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            for task in working:
                if task.done():
                    task.result()
            await _cancel(cycles)
            await self.binder.drain()
        finally:
            self.leads = False
            self.metrics.leader.labels(self.settings.lease_name).set(0)
            for task in (binder, teller, chooser):
                await _cancel(task)

    async def _cycles(self) -> None:
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._wake.wait()
            if not self.scheduler.has_more:
                await asyncio.sleep(self.settings.gather / 1000)  # a burst is one cycle
            self._wake.clear()
            if timer is not None:
                timer.cancel()
            self._claimed(self._claims.settle())
            now = self._now()
            self._cycle_began = loop.time()
            decisions = self.scheduler.cycle(now)
            took = loop.time() - self._cycle_began
            self._cycle_began = None
            self.metrics.cycle.observe(took)
            self._carry_out(decisions, now, took)
            if self.scheduler.has_more:
                self._wake.set()
                await asyncio.sleep(0)
                continue
            due = self.scheduler.next_due()
            if due is not None:
                pause = min(max((due - now) / 1000, 0.05), 3600.0)
                timer = loop.call_later(pause, self._wake.set)

    def _carry_out(self, decisions: Decisions, now: int, took: float) -> None:
        at = self.client.clock.monotonic()
        for binds in decisions.binds:
            for bind in binds:
                self._submitted[bind.uid] = at
            self.binder.submit(binds)
            log.debug("binds", job=binds[0].job, pods=len(binds))
        for choice in decisions.choices:
            self.chooser.choose(choice)
            log.info("volume", claim=choice.claim[1], node=choice.node, volume=choice.volume)
        for waiting in decisions.waiting:
            self.metrics.started(waits=True)
            self._tell(waiting, now)
        for gang in decisions.begun:
            self.metrics.started(waits=False)
            self._tell_group(gang, _SCHEDULED, now)
        if decisions.binds or decisions.waiting:
            log.info(
                "cycle",
                ms=round(took * 1000, 1),
                started=len(decisions.binds),
                binds=sum(map(len, decisions.binds)),
                told=len(decisions.waiting),
                **self._counts(),
            )

    def _tell(self, waiting: Waiting, now: int) -> None:
        gang, report = waiting.gang, waiting.report
        log.info("waits", group=gang.key, pods=len(waiting.pods), reason=messages.texts(report.reasons))
        said = conditions.note(report)
        notes = recovery.excluded_note(self.scheduler.excluded.get(gang.key, ()))
        for each in waiting.pods:
            meta = each.metadata
            pod = self._pods.store.get(meta.name, meta.namespace)
            if pod is None or pod.metadata.uid != meta.uid:
                continue
            patch = conditions.pod_condition(pod, report, now=now, notes=notes, memory=self._written)
            if patch is not None:
                self.metrics.attempts["unschedulable"].inc()
                self.teller.tell(PODS, meta.namespace, meta.name, patch)
                self._record(pod, said)
        self._tell_group(gang, report, now)

    def _tell_group(self, gang: Gang, report: StatusReport, now: int) -> None:
        group = gang.group
        if group is None or self.gangs.resource is None:
            return
        patch = conditions.group_condition(group, report, now=now, memory=self._written)
        if patch is not None:
            self.teller.tell(self.gangs.resource, group.namespace, group.name, patch)

    # -- answers ---------------------------------------------------------------------------------------------

    def _answered(self, result: BindResult) -> None:
        bind, now = result.bind, self._now()
        clock = self.client.clock
        began = self._submitted.pop(bind.uid, None)
        if result.outcome is BindOutcome.BOUND:
            self.metrics.attempts["scheduled"].inc()
            if began is not None:
                self.metrics.bind.observe(clock.monotonic() - began)
            created = bind.pod.metadata.creation_timestamp
            if created is not None:
                self.metrics.sli.observe(max(0.0, clock.now() - created.timestamp()))
            self.teller.forget(PODS, bind.pod.metadata.namespace, bind.pod.metadata.name)
            self._record(bind.pod, conditions.note(_SCHEDULED, pod=bind.pod, node=bind.node))
        else:
            self.metrics.attempts["error"].inc()
            log.warning(
                "not bound",
                pod=bind.pod.key,
                node=bind.node,
                job=bind.job,
                outcome=result.outcome.value,
                reason=result.reason,
            )
        self.scheduler.told(result, now)
        if result.outcome is not BindOutcome.BOUND:
            self._wake.set()

    def _record(self, pod: Pod, note: conditions.EventNote) -> None:
        meta = pod.metadata
        regarding = Ref("Pod", meta.name, meta.namespace, meta.uid)
        self.recorder.record(
            regarding, reason=note.reason, action=note.action, note=note.text, kind=note.kind
        )

    def _check(self, bind: Bind) -> BindResult | None:
        """Whether a bind still makes sense, by what was seen last."""
        meta = bind.pod.metadata
        pod = self._pods.store.get(meta.name, meta.namespace)
        if pod is None or pod.metadata.uid != meta.uid:
            return BindResult(bind, BindOutcome.GONE, "the pod is gone")
        if pod.metadata.deletion_timestamp is not None or pod.is_terminal:
            return BindResult(bind, BindOutcome.GONE, "the pod is being deleted")
        if pod.spec.node_name:
            return BindResult(bind, BindOutcome.ELSEWHERE, f"already on node {pod.spec.node_name}")
        node = self._nodes.store.get(bind.node)
        if node is None:
            return BindResult(bind, BindOutcome.STALE, f"node {bind.node} is gone")
        closed = closed_to(node, pod)
        if closed is not None:
            return BindResult(bind, BindOutcome.STALE, f"node {bind.node}: {closed}")
        return None

    def _held(self) -> bool:
        return self.elector is None or self.elector.held

    # -- watching --------------------------------------------------------------------------------------------

    def _reflectors(self) -> list[Reflector[Any]]:
        """Nodes and groups are told before pods where that matters not: any order gives the same state."""
        self._nodes.store.on_change(self._on_node)
        self._pods.store.on_change(self._on_pod)
        found: list[Reflector[Any]] = [self._nodes, self._pods]
        for owners in OWNERS:
            reflector: Reflector[Any] = Reflector(self.client, owners)
            reflector.store.on_change(self._on_owner)
            found.append(reflector)
        claims: Reflector[VolumeClaim] = Reflector(self.client, CLAIMS)
        claims.store.on_change(self._on_claim)
        volumes: Reflector[PersistentVolume] = Reflector(self.client, VOLUMES)
        volumes.store.on_change(self._on_volume)
        classes: Reflector[StorageClass] = Reflector(self.client, STORAGE_CLASSES)
        classes.store.on_change(self._on_class)
        drivers: Reflector[CsiNode] = Reflector(self.client, CSI_NODES)
        drivers.store.on_change(self._on_drivers)
        found += [claims, volumes, classes, drivers]
        namespaces: Reflector[KubeObject] = Reflector(self.client, NAMESPACES)
        namespaces.store.on_change(self._on_namespace)
        found.append(namespaces)
        if self.gangs.resource is not None:
            resource: Resource[Any] = self.gangs.resource
            groups: Reflector[Any] = Reflector(self.client, resource, optional=True)
            groups.store.on_change(self._on_group)
            found.append(groups)
        if self.coscheduling is not None:
            older = Reflector(self.client, self.coscheduling.resource, optional=True)
            older.store.on_change(self._on_older_group)
            found.append(older)
        self._others = found
        return found

    async def _sync(self) -> None:
        for reflector in self._others:
            await reflector.synced.wait()
        gc.freeze()  # nothing of this is garbage soon: do not look through it again and again
        self.synced.set()
        log.info("follows the cluster", **self._counts())

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self.scheduler.set_node(new)
        elif old is not None:
            self.scheduler.remove_node(old.name)
        self._wake.set()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self.scheduler.set_pod(new)
        elif old is not None:
            self.scheduler.remove_pod(old)
        self._wake.set()

    def _on_owner(self, old: Owner | None, new: Owner | None) -> None:
        if new is not None:
            self.scheduler.touch(self.groups.set_owner(new))
        elif old is not None:
            self.scheduler.touch(self.groups.remove_owner(old))
        self._wake.set()

    def _on_group(self, old: PodGroup | Workload | None, new: PodGroup | Workload | None) -> None:
        kept = set()
        for group in self.gangs.groups(new) if new is not None else ():
            kept.add(group.name)
            self.scheduler.set_group(group)
        for group in self.gangs.groups(old) if old is not None else ():
            if group.name not in kept:
                self.scheduler.remove_group(group)
        self._wake.set()

    def _on_older_group(self, old: SigPodGroup | None, new: SigPodGroup | None) -> None:
        assert self.coscheduling is not None
        if new is not None:
            self.scheduler.set_group(self.coscheduling.group(new))
        elif old is not None:
            self.scheduler.remove_group(self.coscheduling.group(old))
        self._wake.set()

    def _on_namespace(self, old: KubeObject | None, new: KubeObject | None) -> None:
        if new is not None:
            self.scheduler.set_namespace(new.metadata.name, new.metadata.labels or {})

    def _on_claim(self, old: VolumeClaim | None, new: VolumeClaim | None) -> None:
        if new is not None:
            self._claimed(self._claims.set_claim(new))
        elif old is not None:
            self._claimed(self._claims.remove_claim(old))
        self._wake.set()

    def _on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None:
            self._claimed(self._claims.set_volume(new))
        elif old is not None:
            self._claimed(self._claims.remove_volume(old))
        self._wake.set()

    def _on_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        if new is not None:
            self._claims.set_class(new)
        elif old is not None:
            self._claims.remove_class(old)
        self._wake.set()

    def _on_drivers(self, old: CsiNode | None, new: CsiNode | None) -> None:
        found = new or old
        if found is not None:
            self.scheduler.set_attach_limits(found.metadata.name, found.limits if new is not None else {})
        self._wake.set()

    def _claimed(self, changed: list[Change]) -> None:
        for namespace, name, claim in changed:
            self.scheduler.set_claim(namespace, name, claim)

    # -- how it is -------------------------------------------------------------------------------------------

    def unhealthy(self) -> str:
        """What a restart might cure."""
        began = self._cycle_began
        if began is not None and asyncio.get_running_loop().time() - began > _STUCK_S:
            return f"a cycle takes longer than {_STUCK_S:.0f} s"
        return ""

    def unready(self) -> str:
        """What is missing before it could lead, or why it does not follow."""
        return "" if self.synced.is_set() else "the first lists are not complete"

    def _counts(self) -> dict[str, int]:
        return {"nodes": len(self._nodes.store), "pods": len(self._pods.store), "gangs": len(self.groups)}

    def _monotonic_ms(self) -> int:
        return int(self.client.clock.monotonic() * 1000)

    def _now(self) -> int:
        """Wall-clock milliseconds that never jump: the wall clock's word at the start, then a clock that only
        grows."""
        return self._monotonic_ms() - self._began


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
