"""LiveScheduler: the scheduler on a real cluster: watches feed it, a binder carries out what it decides.

    reflectors ──► events ──► Scheduler.handle ──► Binder and the other writers ────────► API server
         ▲                                                                                    │
         └─────────────────────────────────────── watch ──────────────────────────────────────┘

Events are put into a list and taken in together: changes within a few milliseconds are one cycle. A replica
that does not lead follows the cluster all the same, so that it knows everything when it is its turn. A leader
that loses its lease ends: what it had assumed is no longer sure, and a fresh process finds the truth in the
API. The lease is kept, and health is told, by threads that a long cycle does not delay.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from fluence import messages, names
from fluence.act.binder import Binder
from fluence.act.gate_opener import GateOpener
from fluence.act.hand_off import HandOffWriter
from fluence.act.limit_enforcer import EndResult, LimitEnforcer
from fluence.act.releaser import Releaser
from fluence.act.status_writer import StatusWriter
from fluence.act.volume_binder import VolumeBinder
from fluence.kube.client import Client
from fluence.kube.events import Recorder
from fluence.kube.lease import Elector, LeaseTerms
from fluence.live.companion import Companion
from fluence.live.device_file import DeviceFile
from fluence.live.heartbeat import Heartbeat
from fluence.live.history_writer import HistoryWriter
from fluence.live.leadership import Leadership
from fluence.live.metrics import Metrics
from fluence.live.reporter import Reporter
from fluence.live.server_apis import ServerApis
from fluence.live.watches import Watches
from fluence.model.job_entry import PastRun
from fluence.model.pod import Pod
from fluence.schedule.actions import Bind, BindOutcome, BindResult, ReleaseResult
from fluence.schedule.build import scheduler_for
from fluence.schedule.cycle import Decisions
from fluence.schedule.enforcement import EndOverrun
from fluence.schedule.events import BindFinished, Event, ReleaseFinished
from fluence.schedule.published_settings import publish
from fluence.schedule.seeding import seed
from fluence.schedule.settings import SchedulerSettings

log = structlog.get_logger("fluence.scheduler")

_LIST_S = 30.0  # how long lists are waited for before what is known is used
_READY_S = 10.0  # how long companions are waited for before the first cycle
_MOST_S = 600.0  # between two starts from nothing
_SCRAPE_S = 0.5  # how long a scrape waits for a core that is busy


class _Part(Protocol):
    async def run(self) -> None:
        """Work until cancelled."""


class LiveScheduler:
    """``await LiveScheduler(client, settings).run(stop)`` runs until ``stop`` is set, or the lease is lost.

    ``end`` ends the process: it is called if the lease is lost and the core does not end by itself."""

    def __init__(
        self,
        client: Client,
        settings: SchedulerSettings | None = None,
        *,
        identity: str | None = None,
        end: Callable[[], None] | None = None,
        history: HistoryWriter | None = None,
    ) -> None:
        self.settings = settings = settings or SchedulerSettings()
        self.client = client
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}"
        self.scheduler = scheduler_for(settings, history=history is not None, timer=client.clock.monotonic)
        self.metrics = Metrics(self.scheduler, profile=settings.scheduler_name)
        self.heartbeat = Heartbeat(client.clock, limit_s=settings.stuck_after)
        self.leadership: Leadership | None = None
        if settings.lease:
            elector = self._elector(identity)
            self.leadership = Leadership(elector, self.heartbeat, end=end)
            self.identity = elector.identity
        writes = client.only_while(self._held)
        self.binder = Binder(
            writes, self._bind_finished, check=self._check, held=self._held, in_flight=settings.in_flight
        )
        self.status_writer = StatusWriter(writes, held=self._held)
        self.volume_binder = VolumeBinder(writes, held=self._held)
        self.releaser = Releaser(writes, self._released, held=self._held)
        self.limit_enforcer = LimitEnforcer(writes, self._ended, held=self._held)
        self.hand_off = HandOffWriter(writes, settings.lease_namespace)
        self.gate_opener = GateOpener(
            writes, lambda result: self.reporter.gate_written(result), held=self._held
        )
        self.recorder = Recorder(
            writes,
            controller=settings.scheduler_name,
            instance=self.identity,
            is_busy=lambda: self.binder.backlog > settings.in_flight,  # binds come first
        )
        self.watches = Watches(client, self._put, devices=settings.device_config_map())
        self.server_apis = ServerApis(client, self.watches, self._has_groups)
        self.device_file = DeviceFile(settings.resources, self._put) if settings.resources else None
        self.reporter = Reporter(
            self.status_writer, self.recorder, self.metrics, find=self._seen, refused=self._refused
        )
        self.history = history
        if history is not None:
            history.learn, history.call_roll = self._learn, self._call_roll
            history.held, history.metrics = lambda: self.leads and self._held(), self.metrics
        self.synced = asyncio.Event()
        self.leads = False
        self._companions: list[Companion] = []
        self._events: list[Event] = []  # that the scheduler has not been told yet
        self._wake = asyncio.Event()
        self._began = self._monotonic_ms() - int(client.clock.now() * 1000)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refreshed = concurrent.futures.Future[None]()  # the figures that the last scrape has asked for
        self._refreshed.set_result(None)
        self._submitted: dict[str, float] = {}
        self._over_s = 0.0  # how long to wait after starting over

    def _elector(self, identity: str | None) -> Elector:
        settings = self.settings
        return Elector(
            Client(self.client.access, qps=0, clock=self.client.clock, connections=2),
            name=settings.lease_name,
            namespace=settings.lease_namespace,
            identity=identity,
            annotations={
                names.SCHEDULER_NAME: settings.scheduler_name,
                names.SETTINGS: publish(settings),
            },
            terms=LeaseTerms(
                duration_s=settings.lease_duration,
                renew_s=settings.lease_renew,
                retry_s=settings.lease_retry,
            ),
        )

    def join(self, companion: Companion) -> None:
        """Have something work beside it while it leads; before it runs."""
        self._companions.append(companion)

    # -- running ---------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until told to stop: what was sent is waited for, then the lease is given back."""
        self._loop = asyncio.get_running_loop()
        work = asyncio.create_task(self._work(stop))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not self.leads:  # a leader hears of it by itself, and ends what it has begun
                work.cancel()
            await asyncio.wait({work})
        finally:
            for task in (work, stopped):
                task.cancel()
            await asyncio.wait({work, stopped})
        if not work.cancelled():
            work.result()

    async def _work(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(self.heartbeat.run()), tasks.create_task(self.recorder.run())]
            if self.history is not None:  # NB not a part of leading: the lease is not kept for its last write
                beside.append(tasks.create_task(self.history.run()))
            try:
                await self.server_apis.discover()
                self.watches.follow(devices=self.server_apis.has_devices)
                beside += [tasks.create_task(each.run()) for each in self.watches.all]
                beside.append(tasks.create_task(self.server_apis.run()))
                if self.device_file is not None:
                    self.device_file.look()
                    beside.append(tasks.create_task(self.device_file.run()))
                await self._sync()
                if self.leadership is None:
                    await self._lead(stop)
                else:
                    await self.leadership.lead(lambda: self._take_over(stop))
            finally:
                for task in beside:
                    task.cancel()

    def _has_groups(self, native: bool) -> None:
        """Whether the server has PodGroups, and which are told what becomes of them."""
        self.scheduler.set_native(native, self.server_apis.systems)
        self.reporter.group_resource = self.server_apis.gangs.resource
        self._wake.set()

    async def _take_over(self, stop: asyncio.Event) -> None:
        """Lead, by what is there now: what the last leader bound may not have been seen yet, and its room
        would look free. From now on nobody else binds our pods."""
        await self.watches.refresh()
        await self._lead(stop)

    async def _lead(self, stop: asyncio.Event) -> None:
        if self.history is not None:
            self.history.cluster = self.watches.cluster
        self.leads = True
        self.metrics.leader.labels(self.settings.lease_name).set(1)
        log.info("leads", identity=self.identity, **self._counts())
        self._wake.set()
        cycles = asyncio.create_task(self._cycles())
        others = (
            self.status_writer,
            self.volume_binder,
            self.limit_enforcer,
            self.hand_off,
            self.gate_opener,
            self.releaser,
        )
        parts: tuple[_Part, ...] = (self.binder, *others, *self._companions)
        working = (cycles, *(asyncio.create_task(each.run()) for each in parts))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({*working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in working:
                if task.done():
                    task.result()
            await _cancel(cycles)
            await self.binder.drain()
            await self.recorder.flush(2.0)
        finally:
            self.leads = False
            self.metrics.leader.labels(self.settings.lease_name).set(0)
            for each in (*working, stopping):
                await _cancel(each)

    async def _cycles(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                for companion in self._companions:
                    await companion.ready.wait()
        timer: asyncio.TimerHandle | None = None
        while True:
            await self._wake.wait()
            if not self.scheduler.has_more:
                await asyncio.sleep(self.settings.gather / 1000)  # a burst is one cycle
            self._wake.clear()
            if timer is not None:
                timer.cancel()
            now = self._now()
            began = loop.time()
            decisions = self.scheduler.handle(self._take_events(), now)
            took = loop.time() - began
            self.metrics.cycle.observe(took)
            self._carry_out(decisions, now, took)
            if self.scheduler.broken:
                pause = await self._start_over()
                timer = loop.call_later(pause, self._wake.set)
                continue
            self._over_s = 0.0
            if self.scheduler.has_more:
                self._wake.set()
                await asyncio.sleep(0)
                continue
            due = self.scheduler.next_due()
            if due is not None:
                pause = min(max((due - now) / 1000, 0.05), 3600.0)
                timer = loop.call_later(pause, self._wake.set)

    async def _start_over(self) -> float:
        """No cycle can be run by what was seen: list everything anew, as a restart would. Says after how many
        seconds to try, the longer the more often; `/readyz` says so meanwhile."""
        log.error("starts over from the API server", reason=self.scheduler.broken)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.watches.refresh(), _LIST_S)
        objects = self.watches.objects()
        if self.device_file is not None and self.device_file.seen is not None:
            objects.append(self.device_file.seen)
        self.scheduler.start_over(objects, self._now())
        pause, self._over_s = self._over_s, min(max(1.0, 2 * self._over_s), _MOST_S)
        return pause

    # -- events in -------------------------------------------------------------------------------------------

    def _put(self, event: Event, *, wake: bool = True) -> None:
        """Something happened. A leader's next cycle takes it in; a replica that does not lead follows at the
        next turn of the loop."""
        if not self._events and not self.leads:
            asyncio.get_running_loop().call_soon(self._follow)
        self._events.append(event)
        for companion in self._companions:
            companion.changed(event)
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

    def _released(self, result: ReleaseResult) -> None:
        self.reporter.released(result)
        self._put(ReleaseFinished(result), wake=result.outcome is not BindOutcome.BOUND)

    def _ended(self, result: EndResult) -> None:
        self.reporter.ended(result)

    # -- decisions out ---------------------------------------------------------------------------------------

    def _carry_out(self, decisions: Decisions, now: int, took: float) -> None:
        at = self.client.clock.monotonic()
        for binds in decisions.binds:
            for bind in binds:
                self._submitted[bind.uid] = at
            self.binder.submit(binds)
            log.debug("binds", job=binds[0].job, pods=len(binds))
        for release in decisions.releases:
            self.releaser.release(release)
            log.debug("lets go", job=release.job, owner=release.owner.key, pods=len(release.note.nodes))
        for update in decisions.claim_updates:
            self.volume_binder.update(update)
            log.info("volume", claim=update.claim[1], node=update.node, volume=update.volume)
        for order in decisions.overruns:
            if isinstance(order, EndOverrun):
                self.limit_enforcer.end(order)
        for each in decisions.gates:
            self.gate_opener.put(each)
        self.reporter.report(decisions, now)
        for companion in self._companions:
            companion.decided(decisions)
        self.reporter.tell_devices(self.scheduler.devices)
        self.hand_off.keep(self.scheduler.devices.tree)
        if self.history is not None:
            self.history.put(decisions.jobs, decisions.roll, now)
        if decisions.binds or decisions.releases or decisions.waiting:
            log.info(
                "cycle",
                ms=round(took * 1000, 1),
                started=len(decisions.binds),
                binds=sum(map(len, decisions.binds)),
                released=len(decisions.releases),
                told=len(decisions.waiting),
                **self._counts(),
            )

    def _learn(self, runs: Sequence[PastRun]) -> None:
        """The history was read."""
        log.info("learned from the history", runs=seed(self.scheduler.state.queue, runs))

    def _call_roll(self) -> None:
        """The history may lack something."""
        self.scheduler.state.journal.call_roll()
        self._wake.set()

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
        lost = self.scheduler.refuses(bind)
        return None if lost is None else BindResult(bind, BindOutcome.STALE, messages.text(lost))

    def _seen(self, pod: Pod) -> Pod | None:
        """A pod as it was seen last; None if it is gone, or was made anew under its name."""
        found = self.watches.pods.store.get(pod.metadata.name, pod.metadata.namespace)
        return found if found is not None and found.metadata.uid == pod.metadata.uid else None

    def _refused(self, group: str) -> frozenset[str]:
        return frozenset(self.scheduler.state.exclusions.refused(group))

    def holds_lease(self) -> bool:
        """Whether what is written now is the leader's."""
        return self._held()

    def _held(self) -> bool:
        return self.leadership is None or self.leadership.held

    async def _sync(self) -> None:
        await self.watches.synced()
        self._follow()
        gc.freeze()  # nothing of this is garbage soon: do not look through it again and again
        self.synced.set()
        log.info("follows the cluster", **self._counts())

    # -- how it is -------------------------------------------------------------------------------------------

    # NB asked from another thread, and read by anybody: no object of a user is named here.

    def unhealthy(self) -> str:
        """What a restart might cure."""
        if self.leadership is not None and self.leadership.lost:
            return "the lease is lost, and the process has not ended yet"
        return self.heartbeat.hung()

    def unready(self) -> str:
        """What is missing before it could lead, or why it does not follow."""
        if not self.synced.is_set():
            return "the first lists are not complete"
        return "no cycle can be run: see the log" if self.scheduler.broken else ""

    def remark(self) -> str:
        """What an administrator must mend, and what goes on all the same."""
        fault = self.scheduler.devices.fault
        return f"devices stay as they were: {fault}" if fault else ""

    async def scrape(self) -> bytes:
        """The metrics, from any loop. Figures that belong to the core are its own; while it is busy, those of
        the last scrape."""
        loop = self._loop
        if loop is not None and loop.is_running():
            if self._refreshed.done():
                self._refreshed = concurrent.futures.Future()
                loop.call_soon_threadsafe(self._refresh, self._refreshed)
            await asyncio.wait({asyncio.wrap_future(self._refreshed)}, timeout=_SCRAPE_S)
        return self.metrics.text()

    def _refresh(self, done: concurrent.futures.Future[None]) -> None:
        try:
            self.metrics.refresh()
        finally:
            done.set_result(None)

    def _counts(self) -> dict[str, int]:
        return {
            "nodes": len(self.watches.nodes.store),
            "pods": len(self.watches.pods.store),
            "gangs": len(self.scheduler.state.groups),
        }

    def _monotonic_ms(self) -> int:
        return int(self.client.clock.monotonic() * 1000)

    def now(self) -> int:
        """The scheduler's time."""
        return self._now()

    def _now(self) -> int:
        """Wall-clock milliseconds that never jump: the wall clock's word at the start, then a clock that only
        grows."""
        return self._monotonic_ms() - self._began


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # seen: whoever waits for the first fault raises it
