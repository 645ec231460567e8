"""LiveScheduler: the scheduler on a real cluster: watches feed it, a binder carries out what it decides.

    reflectors ──► events ──► Scheduler.handle ──► Binder, StatusWriter, VolumeBinder ──► API server
         ▲                                                                                    │
         └─────────────────────────────────────── watch ──────────────────────────────────────┘

Events are put into a list and taken in together: changes within a few milliseconds are one cycle. A replica
that does not lead follows the cluster all the same, so that it knows everything when it is its turn. A leader
that loses its lease ends: what it had assumed is no longer sure, and a fresh process finds the truth in the
API.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket

import structlog

from fluence.act.binder import Binder
from fluence.act.status_writer import StatusWriter
from fluence.act.volume_binder import VolumeBinder
from fluence.errors import FluenceError
from fluence.kube.client import Client
from fluence.kube.events import Recorder
from fluence.kube.gangs import AnyGangs, NoGangs, discover_coscheduling, discover_gangs
from fluence.kube.lease import Elector, LeaseTerms
from fluence.live.metrics import Metrics
from fluence.live.reporter import Reporter
from fluence.live.watches import Watches
from fluence.model.node import closed_to
from fluence.model.pod import Pod
from fluence.schedule.actions import Bind, BindOutcome, BindResult
from fluence.schedule.build import scheduler_for
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import BindFinished, Event
from fluence.schedule.settings import SchedulerSettings

log = structlog.get_logger("fluence.scheduler")

_STUCK_S = 60.0  # a cycle that takes longer is a fault that a restart may cure


class LeaseLost(FluenceError):
    """Another replica may lead now."""


class LiveScheduler:
    """``await LiveScheduler(client, settings).run(stop)`` runs until ``stop`` is set."""

    def __init__(
        self, client: Client, settings: SchedulerSettings | None = None, *, identity: str | None = None
    ) -> None:
        self.settings = settings = settings or SchedulerSettings()
        self.client = client
        self.gangs: AnyGangs = NoGangs("not asked yet")
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}"
        self.scheduler = scheduler_for(settings, timer=client.clock.monotonic)
        self.metrics = Metrics(self.scheduler, profile=settings.scheduler_name)
        self.elector = self._elector(identity) if settings.lease else None
        if self.elector is not None:
            self.identity = self.elector.identity
        self.binder = Binder(
            client, self._bind_finished, check=self._check, held=self._held, in_flight=settings.in_flight
        )
        self.status_writer = StatusWriter(client, held=self._held)
        self.volume_binder = VolumeBinder(client, held=self._held)
        self.recorder = Recorder(
            client,
            controller=settings.scheduler_name,
            instance=self.identity,
            is_busy=lambda: self.binder.backlog > settings.in_flight,  # binds come first
        )
        self.watches = Watches(client, self._put)
        self.reporter = Reporter(
            self.status_writer, self.recorder, self.metrics, find=self._seen, refused=self._refused
        )
        self.synced = asyncio.Event()
        self.leads = False
        self._events: list[Event] = []  # that the scheduler has not been told yet
        self._wake = asyncio.Event()
        self._began = self._monotonic_ms() - int(client.clock.now() * 1000)
        self._cycle_began: float | None = None
        self._submitted: dict[str, float] = {}

    def _elector(self, identity: str | None) -> Elector:
        settings = self.settings
        return Elector(
            self.client,
            name=settings.lease_name,
            namespace=settings.lease_namespace,
            identity=identity,
            terms=LeaseTerms(
                duration_s=settings.lease_duration,
                renew_s=settings.lease_renew,
                retry_s=settings.lease_retry,
            ),
        )

    # -- running ---------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until told to stop: what was sent is waited for, then the lease is given back."""
        self.gangs = await discover_gangs(self.client)
        coscheduling = await discover_coscheduling(self.client)
        self.scheduler.set_native(not isinstance(self.gangs, NoGangs) or coscheduling is not None)
        self.reporter.group_resource = self.gangs.resource
        if isinstance(self.gangs, NoGangs):
            log.info("no native gangs", reason=self.gangs.reason)
        async with asyncio.TaskGroup() as tasks:
            reflectors = self.watches.follow(self.gangs, coscheduling)
            running = [tasks.create_task(each.run()) for each in reflectors]
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
        writer = asyncio.create_task(self.status_writer.run())
        volumes = asyncio.create_task(self.volume_binder.run())
        try:
            self._wake.set()
            cycles = asyncio.create_task(self._cycles())
            stopping = asyncio.create_task(stop.wait())
            working = (cycles, binder, writer, volumes)
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
            for task in (binder, writer, volumes):
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
            now = self._now()
            self._cycle_began = loop.time()
            decisions = self.scheduler.handle(self._take_events(), now)
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

    # -- events in -------------------------------------------------------------------------------------------

    def _put(self, event: Event, *, wake: bool = True) -> None:
        """Something happened. A leader's next cycle takes it in; a replica that does not lead follows at the
        next turn of the loop."""
        if not self._events and not self.leads:
            asyncio.get_running_loop().call_soon(self._follow)
        self._events.append(event)
        if wake:
            self._wake.set()

    def _follow(self) -> None:
        """Take in what happened without deciding anything."""
        if self._events:
            now = self._now()
            self.reporter.report(self.scheduler.handle(self._take_events(), now, decide=False), now)

    def _take_events(self) -> list[Event]:
        found, self._events = self._events, []
        return found

    def _bind_finished(self, result: BindResult) -> None:
        bind, clock = result.bind, self.client.clock
        began = self._submitted.pop(bind.uid, None)
        created = bind.pod.metadata.creation_timestamp
        self.reporter.bind_finished(
            result,
            took=None if began is None else clock.monotonic() - began,
            age=None if created is None else max(0.0, clock.now() - created.timestamp()),
        )
        self._put(BindFinished(result), wake=result.outcome is not BindOutcome.BOUND)

    # -- decisions out ---------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Decisions, now: int, took: float) -> None:
        at = self.client.clock.monotonic()
        for binds in decisions.binds:
            for bind in binds:
                self._submitted[bind.uid] = at
            self.binder.submit(binds)
            log.debug("binds", job=binds[0].job, pods=len(binds))
        for update in decisions.claim_updates:
            self.volume_binder.update(update)
            log.info("volume", claim=update.claim[1], node=update.node, volume=update.volume)
        self.reporter.report(decisions, now)
        if decisions.binds or decisions.waiting:
            log.info(
                "cycle",
                ms=round(took * 1000, 1),
                started=len(decisions.binds),
                binds=sum(map(len, decisions.binds)),
                told=len(decisions.waiting),
                **self._counts(),
            )

    def _check(self, bind: Bind) -> BindResult | None:
        """Whether a bind still makes sense, by what was seen last; every bind passes here first."""
        self._follow()
        pod = self._seen(bind.pod)
        if pod is None:
            return BindResult(bind, BindOutcome.GONE, "the pod is gone")
        if pod.metadata.deletion_timestamp is not None or pod.is_terminal:
            return BindResult(bind, BindOutcome.GONE, "the pod is being deleted")
        if pod.spec.node_name:
            return BindResult(bind, BindOutcome.ELSEWHERE, f"already on node {pod.spec.node_name}")
        node = self.watches.nodes.store.get(bind.node)
        if node is None:
            return BindResult(bind, BindOutcome.STALE, f"node {bind.node} is gone")
        closed = closed_to(node, pod)
        if closed is not None:
            return BindResult(bind, BindOutcome.STALE, f"node {bind.node}: {closed}")
        if self.scheduler.refuses(bind):
            return BindResult(bind, BindOutcome.STALE, f"node {bind.node}: its room was taken meanwhile")
        return None

    def _seen(self, pod: Pod) -> Pod | None:
        """A pod as it was seen last; None if it is gone, or was made anew under its name."""
        found = self.watches.pods.store.get(pod.metadata.name, pod.metadata.namespace)
        return found if found is not None and found.metadata.uid == pod.metadata.uid else None

    def _refused(self, group: str) -> frozenset[str]:
        return frozenset(self.scheduler.state.exclusions.refused(group))

    def _held(self) -> bool:
        return self.elector is None or self.elector.held

    async def _sync(self) -> None:
        await self.watches.synced()
        self._follow()
        gc.freeze()  # nothing of this is garbage soon: do not look through it again and again
        self.synced.set()
        log.info("follows the cluster", **self._counts())

    # -- how it is -------------------------------------------------------------------------------------------

    def unhealthy(self) -> str:
        """What a restart might cure."""
        began = self._cycle_began
        if began is not None and asyncio.get_running_loop().time() - began > _STUCK_S:
            return f"a cycle takes longer than {_STUCK_S:.0f} s"
        return ""

    def unready(self) -> str:
        """What is missing before it could lead, or why it does not follow."""
        if not self.synced.is_set():
            return "the first lists are not complete"
        return self.scheduler.broken

    def _counts(self) -> dict[str, int]:
        return {
            "nodes": len(self.watches.nodes.store),
            "pods": len(self.watches.pods.store),
            "gangs": len(self.scheduler.state.groups),
        }

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
