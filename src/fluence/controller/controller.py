"""FluxJobController: keeps a FluxJob for each held workload, and cancels the workload if its FluxJob is
deleted.

It joins a `LiveScheduler`: events and decisions say which gangs changed, and a periodic round writes the
changes that users can see. FluxJobs are applied with our own field manager, so fields of other managers are
not changed. All state is in the API: a new process compares and writes what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

import structlog
from msgspec.structs import replace

from fluence.act.writers import CoalescingWriter
from fluence.backoff import Backoff
from fluence.controller.flux_job import (
    FLUX_JOBS,
    GROUP,
    MANAGER,
    VERSION,
    FluxJob,
    FluxJobSpec,
    FluxJobStatus,
    Workload,
    applied,
    applied_status,
    flux_job_name,
    spec_of,
    workload_of,
)
from fluence.controller.standing import Standing, is_unschedulable, rounded, status, told
from fluence.controller.unstarted import Cancellations, Refusals, Unschedulable, stands_for
from fluence.kube.client import PatchType
from fluence.kube.errors import Forbidden, Invalid, KubeError, Missing
from fluence.kube.reflector import Reflector
from fluence.kube.resource import resources_of
from fluence.live.scheduler import LiveScheduler
from fluence.model.grant import is_held_by_admission
from fluence.model.operators import CustomOwner, borrower_of
from fluence.model.owner import Owner, claimed_by
from fluence.model.pod import Pod
from fluence.schedule.cycle import Decisions, Rooms
from fluence.schedule.events import Changed, Event

log = structlog.get_logger("fluence.controller")

IN_FLIGHT = 8
_ROUND_S = 0.2  # seconds between two rounds
_SLICE = 256  # workloads that are compared before other tasks run
_BACKOFF = Backoff(2.0, 60.0)  # seconds until a failed write is tried again
_LOOK_S = 15.0  # seconds between two checks whether the server has FluxJobs

_Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class _Update:
    """The pending write of one FluxJob."""

    workload: Workload
    spec: FluxJobSpec | None  # None: it is already correct
    status: FluxJobStatus


class FluxJobController:
    """``FluxJobController(live)`` joins the scheduler, and works while the scheduler leads."""

    def __init__(self, live: LiveScheduler) -> None:
        self.written = 0  # for metrics and tests
        self._live = live
        self._client = live.client.only_while(live.holds_lease)
        self._workloads: dict[str, Workload] = {}  # by uid
        self._gang_of: dict[str, str] = {}  # by uid of the workload
        self._of_gang: dict[str, set[str]] = {}
        self._names: dict[_Key, str] = {}  # FluxJob -> uid of the workload
        self._noted: dict[str, None] = {}  # workloads that changed; the next cycle processes them
        self._noted_gangs: dict[str, None] = {}
        self._dirty: dict[str, None] = {}  # workloads
        self._dirty_gangs: dict[str, None] = {}
        self._untold: dict[str, None] = {}  # changed workloads whose reason is not known yet
        self._positions: dict[str, int] = {}  # by gang, as last published
        self._now_at: dict[str, int] | None = None  # the same since the last cycle
        self._sent: dict[_Key, tuple[FluxJobSpec, FluxJobStatus]] = {}
        self._refused: dict[str, Workload] = {}  # workloads whose FluxJob the server refused
        self._failures: dict[str, int] = {}  # by workload: failed tries in a row
        self._unowned: dict[str, Pod] = {}  # held pods whose owner must be found
        self._wake = asyncio.Event()
        self._has_decided = False
        self.ready = asyncio.Event()  # earlier promises are loaded, if any
        self.flux_jobs: Reflector[FluxJob] = Reflector(live.client, FLUX_JOBS, optional=True)
        self._writer: CoalescingWriter[_Key, _Update] = CoalescingWriter(
            self._write, in_flight=IN_FLIGHT, namespace=lambda key, _: key[0]
        )
        self._cancellations = Cancellations(self._client, self._workloads.get, self._runs)
        self._unschedulable = Unschedulable(self._client, live.recorder)
        self._refusals = Refusals(self._client)
        live.join(self)

    # -- events ----------------------------------------------------------------------------------------------

    def changed(self, event: Event) -> None:
        """Observe an event. Called for each one."""
        if not isinstance(event, Changed):
            return
        found = event.object
        if not isinstance(found, Pod | Owner):
            return
        if isinstance(found, Pod) and is_held_by_admission(found):
            self._noted_gangs[self._state.groups.of(found)] = None
            (self._refusals.forget if event.new is None else self._refusals.look)(found)
            self._unowned[found.metadata.uid] = found
        uid = found.metadata.uid
        above = borrower_of(found) if isinstance(found, CustomOwner) else None
        if above is not None and above.uid in self._workloads:
            self._noted[above.uid] = None  # it takes its size from this object
        workload = None
        if event.new is not None:
            workload = workload_of(found, self._live.settings.scheduler_name, self._state.groups.follows)
        if workload is None and event.new is not None and isinstance(found, Owner) and uid in self._workloads:
            workload = Workload(found)  # its pods are held although it was not
        if workload is not None:
            self._workloads[uid] = workload
            self._names[workload.namespace, workload.flux_job] = uid
            self._noted[uid] = None
            if workload.is_cancelled:
                self._cancellations.told.discard(uid)
        elif (held := self._workloads.get(uid)) is not None:
            del self._workloads[uid]
            self._names.pop((held.namespace, held.flux_job), None)
            self._leave_gang(uid)
            self._noted.pop(uid, None)
            self._dirty.pop(uid, None)
            self._untold.pop(uid, None)
            self._refused.pop(uid, None)
            self._failures.pop(uid, None)
            self._cancellations.told.discard(uid)

    def decided(self, decisions: Decisions) -> None:
        """A cycle has ended: only now the state includes the noted changes."""
        self._has_decided, self._now_at = True, None
        for noted, dirty in ((self._noted, self._dirty), (self._noted_gangs, self._dirty_gangs)):
            dirty.update(noted)
            noted.clear()
        by_key = self._state.pod_sets.by_key
        jobs = [bind.job for binds in decisions.binds for bind in binds[:1]]
        jobs += [release.job for release in decisions.releases]
        self._dirty_gangs.update(dict.fromkeys(by_key[job].group for job in jobs if job in by_key))
        self._dirty_gangs.update(dict.fromkeys(each.gang.key for each in decisions.waiting))
        self._wake.set()

    def _flux_job_changed(self, old: FluxJob | None, new: FluxJob | None) -> None:
        found = new or old
        assert found is not None
        key = (found.metadata.namespace, found.metadata.name)
        if new is None:
            self._sent.pop(key, None)
        if new is None or (new.is_leaving and not (old is not None and old.is_leaving)):
            self._cancellations.cancel(found)
        uid = self._names.get(key)
        if uid is not None and (new is None or old is None):
            self._dirty[uid] = None
            self._wake.set()

    # -- rounds ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write changes until cancelled."""
        await self._served()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.flux_jobs.run())
            await self.flux_jobs.synced.wait()
            self._remember()
            self.ready.set()
            self.flux_jobs.store.on_change(self._flux_job_changed)
            for part in (self._writer, self._cancellations, self._unschedulable, self._refusals):
                tasks.create_task(part.run())
            self._dirty.update(dict.fromkeys(self._workloads))
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self.round():
                    await asyncio.sleep(0)
                await asyncio.sleep(_ROUND_S)

    def round(self) -> bool:
        """Compare some changed workloads with their FluxJobs. Returns whether there are more."""
        state = self._state
        if not self._has_decided or state.changes.has_touched or state.placeholders.has_changed:
            return False  # not everything is taken in yet, so places and reasons are unknown
        self._find_owners()
        if not state.reports.has_more:
            self._dirty.update(self._untold)
            self._untold.clear()
        positions = self._now_at
        if positions is None:
            positions = self._now_at = self._places()
            self._dirty_gangs.update(dict.fromkeys(self._moved(positions)))
        for gang in self._dirty_gangs:
            self._dirty.update(dict.fromkeys(self._of_gang.get(gang, ())))
        self._dirty_gangs.clear()
        for uid in list(islice(self._in_turn(self._dirty), _SLICE)):
            del self._dirty[uid]
            workload = self._workloads.get(uid)
            if workload is not None:
                self._compare(self._sized(workload), positions)
        return bool(self._dirty)

    def _sized(self, workload: Workload) -> Workload:
        """A workload that takes its size from another object, with the size that the state knows."""
        found = workload.object
        if not isinstance(found, CustomOwner) or not found.operator.made:
            return workload
        known = self._state.groups.owner(found.identity)
        if not isinstance(known, CustomOwner) or known.sizes is None:
            return workload
        return Workload(replace(found, sizes=known.sizes))

    def _find_owners(self) -> None:
        """Find the owners of pods that are held although their owner was not, for example because its user
        suspended it or another controller created it. The owner is their workload all the same."""
        pods, self._unowned = self._unowned, {}
        for uid, pod in pods.items():
            owners, unseen = self._state.groups.owners(pod)
            if unseen and not pod.is_terminal and pod.metadata.deletion_timestamp is None:
                self._unowned[uid] = pod  # its owner is not known yet
            elif (
                owners
                and not is_held_by_admission(owners[-1])
                and tuple(claimed_by(pod.metadata, owners)) == owners
            ):
                top = owners[-1]
                workload = self._workloads[top.metadata.uid] = Workload(top)
                self._names[workload.namespace, workload.flux_job] = workload.uid
                self._dirty[workload.uid] = None

    def _remember(self) -> None:
        """Load the promises that an earlier leader made to workloads. Waiting pods carry them themselves, but
        a held Job has no pods yet, and gated pods have the server's own condition."""
        said = {
            found.workload: what
            for found in self.flux_jobs.store
            if (owner := found.owner) is not None
            and found.metadata.name == flux_job_name(owner.kind, owner.name)  # users may write both
            and (what := told(found.spec, found.status, owner.uid)) is not None
        }
        self._live.scheduler.remember(said)

    async def _served(self) -> None:
        """Wait until the server has FluxJobs."""
        backoff = Backoff(_BACKOFF.first, _LOOK_S)
        said, pause = False, backoff.first
        while True:
            try:
                if FLUX_JOBS.plural in await resources_of(self._client, GROUP, VERSION):
                    return
            except Missing:
                pass
            except KubeError as error:
                log.warning("cannot find out whether FluxJobs are served", reason=str(error))
                await asyncio.sleep(pause)
                pause = backoff.longer(pause)
                continue
            self.ready.set()
            if not said:
                log.info("no FluxJobs: the server does not have fluxjobs.jobs.converged-computing.org")
                said = True
            await asyncio.sleep(_LOOK_S)

    def _places(self) -> dict[str, int]:
        """The place of each waiting gang in the queue."""
        return self._state.pod_sets.places(self._state.queue.waiting())

    def _moved(self, positions: dict[str, int]) -> Iterable[str]:
        """The gangs whose published place changes."""
        told = {gang: place for gang, at in positions.items() if (place := rounded(at)) is not None}
        before, self._positions = self._positions, told
        return [gang for gang, place in told.items() if before.get(gang) != place]

    def _compare(self, workload: Workload, positions: dict[str, int]) -> None:
        key = (workload.namespace, workload.flux_job)
        found = self.flux_jobs.store.get(key[1], key[0])
        if workload.is_leaving or workload.is_cancelled or workload.uid in self._cancellations.told:
            return
        if found is not None and (not stands_for(found, workload) or found.is_leaving):
            return  # it belongs to an earlier workload with this name, or is being deleted: it must go first
        if (refused := self._refused.get(workload.uid)) is not None:
            if not workload.differs(refused):
                return
            del self._refused[workload.uid]
        gang_key = self._join_gang(workload)
        state = self._state
        gang = state.groups.gang(gang_key)
        pod_sets = state.pod_sets.of_group(gang_key)
        said = (state.reports.said.get(each) for each in (gang_key, *pod_sets))
        waiting = next((each for each in said if each is not None), None)
        if waiting is None and any(map(state.reports.will_say, pod_sets)):
            self._untold[workload.uid] = None  # its reason is computed in one of the next cycles
            return
        standing = Standing(
            workload, gang, pod_sets, None if waiting is None else waiting.report, positions.get(gang_key)
        )
        there = self._sent.get(key) or (None if found is None else (found.spec, found.status))
        spec = spec_of(workload, gang)
        before = FluxJobStatus() if there is None else there[1]
        if gang is None and there is not None:
            spec = there[0]  # its limit is not known any more
        generation = 1 if found is None else found.metadata.generation or 1
        made = status(standing, before, generation=generation, now=self._live.now())
        self._unschedulable.set(workload, made, is_unschedulable(made))
        if there is not None and there[0] == spec and made == before:
            return
        self._sent[key] = (spec, made)
        unwritten = self._writer.get(key)
        is_there = there is not None and there[0] == spec and (unwritten is None or unwritten.spec is None)
        self._writer[key] = _Update(workload, None if is_there else spec, made)

    async def _write(self, key: _Key, update: _Update) -> None:
        namespace, name = key
        try:
            if update.spec is not None:
                body = applied(name, namespace, update.spec, update.workload.reference)
                await self._client.apply(FLUX_JOBS.raw(), body, namespace=namespace, manager=MANAGER)
                self.written += 1
            await self._client.patch(
                FLUX_JOBS.raw(),
                name,
                applied_status(name, namespace, update.status),
                namespace=namespace,
                kind=PatchType.APPLY,
                subresource="status",
                field_manager=MANAGER,
                force=True,
            )
            self.written += 1
            self._failures.pop(update.workload.uid, None)
        except KubeError as error:
            log.warning("FluxJob is not written", flux_job=f"{namespace}/{name}", reason=str(error))
            self._sent.pop(key, None)
            self._failed(update.workload, error)

    def _failed(self, workload: Workload, error: KubeError) -> None:
        """Handle a failed write. If the server refuses the content, it is not tried again until the workload
        changes. Otherwise it is tried again after growing pauses."""
        if workload.uid not in self._workloads:
            return
        if isinstance(error, Invalid) or (isinstance(error, Forbidden) and error.is_ending):
            self._refused[workload.uid] = workload
            return
        failures = self._failures[workload.uid] = self._failures.get(workload.uid, 0) + 1
        asyncio.get_running_loop().call_later(_BACKOFF.after(failures), self._again, workload.uid)

    def _again(self, uid: str) -> None:
        self._dirty[uid] = None
        self._wake.set()

    # -- internals -------------------------------------------------------------------------------------------

    @property
    def _state(self) -> Rooms:
        return self._live.scheduler.state

    def _in_turn(self, uids: Iterable[str]) -> Iterator[str]:
        """Workloads of all namespaces in turn, each namespace in order."""
        by_namespace: dict[str, list[str]] = {}
        for uid in uids:
            workload = self._workloads.get(uid)
            by_namespace.setdefault("" if workload is None else workload.namespace, []).append(uid)
        turns = zip_longest(*by_namespace.values())
        return (uid for turn in turns for uid in turn if uid is not None)

    def _runs(self, workload: Workload) -> bool:
        gang = self._state.groups.gang(self._gang_of.get(workload.uid, ""))
        return gang is not None and bool(gang.placed)

    def _join_gang(self, workload: Workload) -> str:
        """The current gang of a workload."""
        key, uid = self._gang_key(workload), workload.uid
        if self._gang_of.get(uid) != key:
            self._leave_gang(uid)
            self._gang_of[uid] = key
            self._of_gang.setdefault(key, set()).add(uid)
        return key

    def _gang_key(self, workload: Workload) -> str:
        """The gang that a FluxJob shows. An operator's object may have several, for its stages and restarts.
        The first one counts; while it has no pods, another one that has nodes or waits."""
        groups, found, member = self._state.groups, workload.object, workload.member()
        key = "" if member is None else groups.of(member)
        if not isinstance(found, CustomOwner) or groups.gang(key) is not None:
            return key
        gangs = groups.owned_by(found.identity)
        chosen = next((gang for gang in gangs if gang.placed), gangs[0] if gangs else None)
        return key if chosen is None else chosen.key

    def _leave_gang(self, uid: str) -> None:
        key = self._gang_of.pop(uid, None)
        members = self._of_gang.get(key, set()) if key is not None else set()
        members.discard(uid)
        if key is not None and not members:
            self._of_gang.pop(key, None)
