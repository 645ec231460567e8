"""LiveScheduler: the scheduler on a real cluster. Watches feed it, and a binder carries out its decisions.

    reflectors ──► events ──► Scheduler.handle ──► Binder and the other writers ────────► API server
         ▲                                                                                    │
         └─────────────────────────────────────── watch ──────────────────────────────────────┘

Events are collected in a list and processed together, so changes within a few milliseconds are one cycle. A
replica that does not lead also follows the cluster, so that it knows everything when it becomes the leader. A
leader that loses its lease exits: its assumptions may be wrong, and a new process reads the state from the
API. Threads that a long cycle does not delay keep the lease and serve health.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import socket
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from fluence import messages, names
from fluence.act.binder import Binder, Releaser
from fluence.act.orders import (
    EndResult,
    GateOpener,
    LimitEnforcer,
    Nominator,
    Preemptor,
    QueueStatusWriter,
    VolumeBinder,
)
from fluence.act.own_objects import FIRST_S, GroupMaker, HandOffWriter
from fluence.act.writers import StatusWriter
from fluence.kube.client import Client
from fluence.kube.events import Recorder
from fluence.kube.gangs import lists_gangs
from fluence.kube.lease import Elector, LeaseTerms
from fluence.live.history_writer import HistoryWriter
from fluence.live.metrics import Metrics
from fluence.live.reporter import Reporter
from fluence.live.threads import Heartbeat, Leadership
from fluence.live.watches import DeviceFile, KueueImport, ServerApis, Watches
from fluence.model.job_state import PastRun
from fluence.model.pod import Pod
from fluence.schedule.build import publish, scheduler_for
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import (
    Bind,
    BindFinished,
    BindOutcome,
    BindResult,
    Event,
    ReleaseFinished,
    ReleaseResult,
)
from fluence.schedule.gangs.submitters import NameGuard
from fluence.schedule.history import seed
from fluence.schedule.overruns import EndOverrun
from fluence.schedule.settings import SchedulerSettings


class Companion(Protocol):
    """Something that works beside a leading scheduler and reads its state."""

    ready: asyncio.Event  # the scheduler need not wait for it any longer

    def changed(self, event: Event) -> None:
        """An object changed, or the result of a write arrived."""

    def decided(self, decisions: Decisions) -> None:
        """A cycle has ended."""

    async def run(self) -> None:
        """Work until cancelled."""


log = structlog.get_logger("fluence.scheduler")

_T = TypeVar("_T")

_LIST_S = 30.0  # seconds to wait for lists before the known objects are used
_READY_S = 10.0  # seconds to wait for companions before the first cycle
_MAX_RESTART_SECONDS = 600.0  # seconds between two rebuilds from the API server, at most
_MAX_LOGGED = 2000  # characters of the pods and nodes in one log line
_SCRAPE_S = 0.5  # seconds that a scrape waits for a busy main loop


class _Part(Protocol):
    async def run(self) -> None:
        """Work until cancelled."""


class LiveScheduler:
    """``await LiveScheduler(client, settings).run(stop)`` runs until ``stop`` is set or the lease is lost.

    ``end`` ends the process: it is called if the lease is lost and the main loop does not stop by itself.
    ``journal``: decisions include changed jobs even if no history is kept. ``view_address``: the address of
    this replica's view API for other replicas, published on the lease.
    """

    def __init__(
        self,
        client: Client,
        settings: SchedulerSettings | None = None,
        *,
        identity: str | None = None,
        end: Callable[[], None] | None = None,
        history: HistoryWriter | None = None,
        journal: bool = False,
        view_address: str = "",
    ) -> None:
        self.settings = settings = settings or SchedulerSettings()
        self.view_address = view_address
        self.client = client
        self.identity = identity or f"{socket.gethostname()}_{os.getpid()}"
        self.scheduler = scheduler_for(
            settings, looks=True, history=journal or history is not None, timer=client.clock.monotonic
        )
        self.metrics = Metrics(self.scheduler, profile=settings.scheduler_name)
        self.metrics.leader.labels(settings.lease_name).set(
            0
        )  # a standby reports 0, because an alert compares it with 1
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
        self.group_maker = GroupMaker(writes, self.status_writer, held=self._held)
        self.releaser = Releaser(writes, self._released, held=self._held)
        self.limit_enforcer = LimitEnforcer(writes, self._ended, held=self._held)
        self.preemptor = Preemptor(
            writes,
            lambda result: self.reporter.preempted(result),
            name=settings.scheduler_name,
            held=self._held,
        )
        self.nominator = Nominator(writes, held=self._held)
        self.queue_status_writer = QueueStatusWriter(writes, held=self._held)
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
        self.watches = Watches(
            client,
            self._put,
            devices=settings.device_config_map(),
            scheduler=settings.scheduler_name,
            aliases=settings.scheduler_aliases,
        )
        self.server_apis = ServerApis(client, self.watches, self._has_groups, given_up=self._give_up)
        self.kueue = KueueImport(client, self.watches) if settings.kueue_queues else None
        self.device_file = DeviceFile(settings.resources, self._put) if settings.resources else None
        self.reporter = Reporter(
            self.status_writer, self.recorder, self.metrics, find=self._seen, refused=self._refused
        )
        self.reporter.make_group = self.group_maker.make
        self.history = history
        if history is not None:
            history.learn, history.call_roll = self._learn, self._call_roll
            history.held, history.metrics = lambda: self.leads and self._held(), self.metrics
        self.synced = asyncio.Event()
        self.leads = False
        self._companions: list[Companion] = []
        self._events: list[Event] = []  # events that the scheduler has not observed yet
        self._wake = asyncio.Event()
        self._began = self._monotonic_ms() - int(client.clock.now() * 1000)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refreshed = concurrent.futures.Future[None]()  # the refresh that the last scrape asked for
        self._refreshed.set_result(None)
        self._submitted: dict[str, float] = {}
        self._queue_remarks: dict[str, str] = {}  # by queue: the last logged remark
        self._over_s = 0.0  # seconds to wait after the next rebuild
        self._following: set[asyncio.Task[None]] = set()  # binds that wait for a PodGroup

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
                **({names.VIEW_ADDRESS: self.view_address} if self.view_address else {}),
            },
            terms=LeaseTerms(
                duration_s=settings.lease_duration,
                renew_s=settings.lease_renew,
                retry_s=settings.lease_retry,
            ),
        )

    def join(self, companion: Companion) -> None:
        """Run a companion while this replica leads. Call it before ``run``."""
        self._companions.append(companion)

    # -- running ---------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Schedule until ``stop`` is set. Then wait for what was sent, and release the lease."""
        self._loop = asyncio.get_running_loop()
        work = asyncio.create_task(self._work(stop))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not self.leads:  # a leader sees `stop` itself and finishes what it started
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
            if self.history is not None:  # not part of leading: the lease is not kept for its last write
                beside.append(tasks.create_task(self.history.run()))
            try:
                await self.server_apis.discover()
                if self.kueue is not None:
                    await self.kueue.look()
                self.watches.follow(devices=self.server_apis.has_devices, budgets=self.settings.preemption)
                if self.settings.users_policy:
                    self.watches.follow_users_policy(self.settings.users_policy, self._has_guard)
                beside += [tasks.create_task(watch.run()) for watch in self.watches.all]
                beside.append(tasks.create_task(self.server_apis.run()))
                if self.kueue is not None:
                    beside.append(tasks.create_task(self.kueue.run()))
                if self.device_file is not None:
                    self.device_file.look()
                    beside.append(tasks.create_task(self.device_file.run()))
                await self._sync()
                if self.settings.users_policy and self.scheduler.config.guard is None:
                    log.warning(
                        "counts namespaces as users",
                        reason="no ValidatingAdmissionPolicy and binding of this name deny everywhere, or "
                        "this account may not read them",
                        policy=self.settings.users_policy,
                        cure="set admission.users in the chart, or apply fluence admission render --users",
                    )
                if self.leadership is None:
                    await self._lead(stop)
                else:
                    await self.leadership.lead(lambda: self._take_over(stop))
            finally:
                for task in beside:
                    task.cancel()

    def _has_groups(self, native: bool) -> None:
        """Set whether the server has PodGroups, and which of them get a status."""
        self.scheduler.set_native(native, self.server_apis.systems)
        self.scheduler.follow(self.server_apis.kinds)
        self.reporter.group_resource = self.server_apis.gangs.resource
        self.group_maker.gangs = self.server_apis.gangs
        self._wake.set()

    def _has_guard(self, guard: NameGuard | None) -> None:
        """Set what keeps users from forging the submitter of a pod."""
        if guard != self.scheduler.config.guard:
            log.info("counts users" if guard is not None else "counts namespaces as users")
            self.scheduler.set_guard(guard)
            self._wake.set()

    def _give_up(self, owners: Collection[str]) -> None:
        """Schedule pods without their operators' objects, which cannot be read."""
        self.scheduler.give_up(owners)
        self._wake.set()

    async def _take_over(self, stop: asyncio.Event) -> None:
        """Lead, after a refresh of all watches: binds of the last leader may not have been seen yet, and
        their resources would look free. From now on no other replica binds our pods."""
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
            self.preemptor,
            self.nominator,
            self.queue_status_writer,
            self.hand_off,
            self.gate_opener,
            self.releaser,
            self.group_maker,
        )
        parts: tuple[_Part, ...] = (self.binder, *others, *self._companions)
        working = (cycles, *(asyncio.create_task(task.run()) for task in parts))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({*working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in working:
                if task.done():
                    task.result()
            await _cancel(cycles)
            if self._following:
                await asyncio.wait(set(self._following))
            await self.binder.drain()
            await self.recorder.flush(2.0)
        finally:
            self.leads = False
            self.metrics.leader.labels(self.settings.lease_name).set(0)
            for part in (*working, stopping):
                await _cancel(part)

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
            self.server_apis.want(self.scheduler.unfollowed)
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
        """No cycle can be run with the known objects: list everything again, as after a restart. Returns the
        seconds until the next try, which grow. Meanwhile `/readyz` reports it."""
        log.error("starts over from the API server", reason=self.scheduler.broken)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.watches.refresh(), _LIST_S)
        objects = self.watches.objects()
        if self.device_file is not None and self.device_file.seen is not None:
            objects.append(self.device_file.seen)
        self.scheduler.start_over(objects, self._now())
        pause, self._over_s = self._over_s, min(max(1.0, 2 * self._over_s), _MAX_RESTART_SECONDS)
        return pause

    # -- events in -------------------------------------------------------------------------------------------

    def _put(self, event: Event, *, wake: bool = True) -> None:
        """Take in an event. A leader processes it in its next cycle, and other replicas at the next turn of
        the event loop."""
        if not self._events and not self.leads:
            asyncio.get_running_loop().call_soon(self._follow)
        self._events.append(event)
        for companion in self._companions:
            companion.changed(event)
        if wake:
            self._wake.set()

    def _follow(self) -> None:
        """Observe events without deciding anything."""
        if self._events:
            now = self._now()
            self.reporter.report(self.scheduler.handle(self._take_events(), now, decide=False), now)

    @property
    def untold(self) -> Sequence[Event]:
        """Events that the scheduler was not told of yet."""
        return self._events

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

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
            self._submit(binds)
            log.info("starts", **_placed(binds))
        for release in decisions.releases:
            self.releaser.release(release)
            nodes = release.note.annotations()[names.FLUXQUEUE_NODES]
            log.info("releases", job=release.job, owner=release.owner.key, nodes=nodes[:_MAX_LOGGED])
        for update in decisions.claim_updates:
            self.volume_binder.update(update)
            log.info("volume", claim=update.claim[1], node=update.node, volume=update.volume)
        for order in decisions.overruns:
            if isinstance(order, EndOverrun):
                self.limit_enforcer.end(order)
        for preemption in decisions.preemptions:
            self.preemptor.end(preemption)
            by = preemption.queue if preemption.preemptor is None else preemption.preemptor.key
            log.info("preempts", group=preemption.group, pods=len(preemption.pods), by=by)
        for nomination in decisions.nominations:
            self.nominator.nominate(nomination)
        for gate in decisions.gates:
            self.gate_opener.put(gate)
        for status in decisions.queue_statuses:
            self.queue_status_writer.put(status)
            if self._queue_remarks.get(status.name, "") != status.remark:
                self._queue_remarks[status.name] = status.remark
                log.warning("queue", name=status.name, remark=status.remark or "no more")
        self.reporter.report(decisions, now)
        for companion in self._companions:
            companion.decided(decisions)
        self.reporter.tell_devices(self.scheduler.devices)
        version = self.server_apis.gangs.version
        lists = lists_gangs(version, self.settings.pod_groups)
        self.hand_off.keep(self.scheduler.devices.tree, lists_gangs=lists)
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

    def _submit(self, binds: Sequence[Bind]) -> None:
        """Hand binds to the binder. If the gang gets a PodGroup, wait until it is created, but at most two
        seconds."""
        made = None
        # Most pods name no PodGroup, so their gangs need no lookup.
        if any(bind.pod.spec.scheduling_group is not None for bind in binds):
            groups = self.scheduler.state.groups
            made = self.group_maker.before_bind(groups.gang(groups.of(binds[0].pod)))
        if made is None:
            self.binder.submit(binds)
            return

        async def follow() -> None:
            await asyncio.wait({made}, timeout=FIRST_S)
            self.binder.submit(binds)

        task = asyncio.create_task(follow())
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    def _learn(self, runs: Sequence[PastRun]) -> None:
        """Learn from the runs in the history."""
        log.info("learned from the history", runs=seed(self.scheduler.state.queue, runs))

    def _call_roll(self) -> None:
        """Start a resync, because the history may lack entries."""
        self.scheduler.state.journal.call_roll()
        self._wake.set()

    def _check(self, bind: Bind) -> BindResult | None:
        """Why a bind must not be sent any more, by the newest objects. Every bind is checked here first."""
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
        """The newest version of a pod; None if it is gone, or was created again under its name."""
        current = self.watches.pods.store.get(pod.metadata.name, pod.metadata.namespace)
        return current if current is not None and current.metadata.uid == pod.metadata.uid else None

    def _refused(self, group: str) -> frozenset[str]:
        return frozenset(self.scheduler.state.exclusions.refused(group))

    def holds_lease(self) -> bool:
        """Whether this replica leads, so that it may write."""
        return self._held()

    def _held(self) -> bool:
        return self.leadership is None or self.leadership.held

    async def _sync(self) -> None:
        await self.watches.synced()
        self._follow()
        gc.freeze()  # these objects stay for long, so the garbage collector need not scan them again
        self.synced.set()
        log.info("follows the cluster", **self._counts())

    # -- state for probes ------------------------------------------------------------------------------------

    # Called from another thread and visible to anyone, so no object of a user is named here.

    def unhealthy(self) -> str:
        """Faults that a restart may cure."""
        if self.leadership is not None and self.leadership.lost:
            return "the lease is lost, and the process has not ended yet"
        return self.heartbeat.hung()

    def unready(self) -> str:
        """What is missing before this replica could lead, or why it does not follow the cluster."""
        if not self.synced.is_set():
            return "the first lists are not complete"
        return "no cycle can be run: see the log" if self.scheduler.broken else ""

    def remark(self) -> str:
        """Faults that an administrator must fix, while scheduling continues."""
        fault = self.scheduler.devices.fault
        return f"devices stay as they were: {fault}" if fault else ""

    async def scrape(self) -> bytes:
        """The metrics, from any event loop. Figures of the scheduler are taken by the main loop; while it is
        busy, those of the last scrape are used."""
        if self._refreshed.done():
            self._refreshed = self.between_cycles(self.metrics.refresh)
        await asyncio.wait({asyncio.wrap_future(self._refreshed)}, timeout=_SCRAPE_S)
        return self.metrics.text()

    def between_cycles(self, work: Callable[[], _T]) -> concurrent.futures.Future[_T]:
        """Run something on the main loop when no cycle runs, from any thread. The future carries its
        error."""
        done: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def do() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        loop = self._loop
        if loop is None or not loop.is_running():
            done.set_exception(RuntimeError("the scheduler does not run"))
        else:
            loop.call_soon_threadsafe(do)
        return done

    def _counts(self) -> dict[str, int]:
        return {
            "nodes": len(self.watches.nodes.store),
            "pods": len(self.watches.pods.store),
            "gangs": len(self.scheduler.state.groups),
        }

    def _monotonic_ms(self) -> int:
        return int(self.client.clock.monotonic() * 1000)

    def now(self) -> int:
        """The scheduler's time in milliseconds."""
        return self._now()

    def _now(self) -> int:
        """Wall-clock milliseconds that never jump: the wall clock at the start, plus a monotonic clock."""
        return self._monotonic_ms() - self._began


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # retrieved here: the caller that waits for the first error raises it


def _placed(binds: Sequence[Bind]) -> dict[str, str]:
    """The nodes and devices of the pods of a gang, for one line of the log."""
    by_node: dict[str, list[str]] = {}
    for bind in binds:
        by_node.setdefault(bind.node, []).append(bind.pod.metadata.name)
    placed = "; ".join(f"{node}: {', '.join(pods)}" for node, pods in by_node.items())
    devices = ", ".join(dict.fromkeys(bind.annotations.get(names.BACKEND, "") for bind in binds))
    line = {"job": binds[0].job, "pods": placed[:_MAX_LOGGED]}
    return line | {"devices": devices} if devices else line
