"""FluxJobController: keeps a FluxJob for each held workload, and cancels the workload of one that is deleted.

It joins a `LiveScheduler`: events and decisions say which gangs changed, and a round every so often writes
what a user can see of that. FluxJobs are applied under our own field manager, so nobody else's fields are
touched. Nothing is remembered that the API does not hold: a fresh process compares and writes what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

import structlog

from fluence.act.coalescing_writer import CoalescingWriter
from fluence.controller.cancellation import Cancellations, stands_for
from fluence.controller.flux_job import (
    FLUX_JOBS,
    GROUP,
    MANAGER,
    VERSION,
    FluxJob,
    FluxJobSpec,
    FluxJobStatus,
    applied,
    applied_status,
)
from fluence.controller.refusals import Refusals
from fluence.controller.standing import Standing, is_unschedulable, rounded, status, told
from fluence.controller.unschedulable import Unschedulable
from fluence.controller.workloads import Workload, flux_job_name, spec_of, workload_of
from fluence.kube.client import PatchType
from fluence.kube.discovery import resources_of
from fluence.kube.errors import Forbidden, Invalid, KubeError, Missing
from fluence.kube.reflector import Reflector
from fluence.live.scheduler import LiveScheduler
from fluence.model.held import is_seen
from fluence.model.owner import Owner, claimed_by
from fluence.model.pod import Pod
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Event
from fluence.schedule.state import SchedulerState

log = structlog.get_logger("fluence.controller")

IN_FLIGHT = 8
_ROUND_S = 0.2  # between two rounds
_SLICE = 256  # workloads that are compared before others have their turn
_AGAIN_S = 2.0  # until something that failed is tried again; it doubles,
_LONGEST_S = 60.0  # up to this
_LOOK_S = 15.0  # between two looks for FluxJobs on a server that has none

_Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class _Update:
    """What is to be written of one FluxJob."""

    workload: Workload
    spec: FluxJobSpec | None  # None: it is there as it should be
    status: FluxJobStatus


class FluxJobController:
    """``FluxJobController(live)`` joins the scheduler; it works while that one leads."""

    def __init__(self, live: LiveScheduler) -> None:
        self.written = 0  # for metrics and tests
        self._live = live
        self._client = live.client.only_while(live.holds_lease)
        self._workloads: dict[str, Workload] = {}  # by uid
        self._gang_of: dict[str, str] = {}  # by uid of the workload
        self._of_gang: dict[str, set[str]] = {}
        self._names: dict[_Key, str] = {}  # FluxJob -> uid of the workload
        self._noted: dict[str, None] = {}  # workloads that changed; the next cycle takes that in
        self._noted_gangs: dict[str, None] = {}
        self._dirty: dict[str, None] = {}  # workloads
        self._dirty_gangs: dict[str, None] = {}
        self._untold: dict[str, None] = {}  # workloads that changed, and are still to be told why they wait
        self._positions: dict[str, int] = {}  # by gang, as they were told
        self._now_at: dict[str, int] | None = None  # the same as they are since the last cycle
        self._sent: dict[_Key, tuple[FluxJobSpec, FluxJobStatus]] = {}
        self._refused: dict[str, Workload] = {}  # those of which the server takes no FluxJob, as they were
        self._failures: dict[str, int] = {}  # by workload: tries that failed in a row
        self._unowned: dict[str, Pod] = {}  # held pods whose owner is to be looked at
        self._wake = asyncio.Event()
        self._has_decided = False
        self.ready = asyncio.Event()  # what waiting workloads were told before is known, or there is nothing
        self.flux_jobs: Reflector[FluxJob] = Reflector(live.client, FLUX_JOBS, optional=True)
        self._writer: CoalescingWriter[_Key, _Update] = CoalescingWriter(
            self._write, in_flight=IN_FLIGHT, namespace=lambda key, _: key[0]
        )
        self._cancellations = Cancellations(self._client, self._workloads.get, self._runs)
        self._unschedulable = Unschedulable(self._client, live.recorder)
        self._refusals = Refusals(self._client)
        live.join(self)

    # -- what happens ----------------------------------------------------------------------------------------

    def changed(self, event: Event) -> None:
        """An object changed; called for each event."""
        if not isinstance(event, Changed):
            return
        found = event.object
        if not isinstance(found, Pod | Owner):
            return
        if isinstance(found, Pod) and is_seen(found):
            self._noted_gangs[self._state.groups.of(found)] = None
            (self._refusals.forget if event.new is None else self._refusals.look)(found)
            self._unowned[found.metadata.uid] = found
        uid = found.metadata.uid
        workload = None if event.new is None else workload_of(found, self._live.settings.scheduler_name)
        if workload is None and event.new is not None and isinstance(found, Owner) and uid in self._workloads:
            workload = Workload(found)  # that of pods which are held although it was not
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
        """A cycle has ended: only now the state has what was noted."""
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
        """Write what changed until cancelled."""
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
        """Compare what is with what is written, for some of those that changed; whether there are more."""
        state = self._state
        if not self._has_decided or state.has_touched or state.stand_ins.has_changed:
            return False  # not all that there is was taken in: places and reasons are not known yet
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
                self._compare(workload, positions)
        return bool(self._dirty)

    def _find_owners(self) -> None:
        """Pods that are held although their owner was not, such as those of a Job that its user suspended, or
        that another controller made: the owner is their workload all the same."""
        pods, self._unowned = self._unowned, {}
        for uid, pod in pods.items():
            owners, unseen = self._state.groups.owners(pod)
            if unseen and not pod.is_terminal and pod.metadata.deletion_timestamp is None:
                self._unowned[uid] = pod  # it will be
            elif owners and not is_seen(owners[-1]) and tuple(claimed_by(pod.metadata, owners)) == owners:
                top = owners[-1]
                workload = self._workloads[top.metadata.uid] = Workload(top)
                self._names[workload.namespace, workload.flux_job] = workload.uid
                self._dirty[workload.uid] = None

    def _remember(self) -> None:
        """What workloads were told by the leader before this one. Of pods that wait it stands on the pods;
        those of a Job that is held are not there yet, and gated ones have the server's own condition."""
        said = {
            found.workload: what
            for found in self.flux_jobs.store
            if (owner := found.owner) is not None
            and found.metadata.name == flux_job_name(owner.kind, owner.name)  # its user may write both
            and (what := told(found.spec, found.status, owner.uid)) is not None
        }
        self._live.scheduler.remember(said)

    async def _served(self) -> None:
        """Until the server has FluxJobs."""
        said, pause = False, _AGAIN_S
        while True:
            try:
                if FLUX_JOBS.plural in await resources_of(self._client, GROUP, VERSION):
                    return
            except Missing:
                pass
            except KubeError as error:
                log.warning("cannot find out whether FluxJobs are served", reason=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LOOK_S)
                continue
            self.ready.set()
            if not said:
                log.info("no FluxJobs: the server does not have fluxjobs.jobs.converged-computing.org")
                said = True
            await asyncio.sleep(_LOOK_S)

    def _places(self) -> dict[str, int]:
        """The place of each gang among those that wait."""
        found: dict[str, int] = {}
        by_key = self._state.pod_sets.by_key
        for record in self._state.queue.waiting():
            pod_set = by_key.get(record.key)
            if pod_set is not None:
                found.setdefault(pod_set.group, len(found) + 1)
        return found

    def _moved(self, positions: dict[str, int]) -> Iterable[str]:
        """Gangs that are told of another place."""
        told = {gang: place for gang, at in positions.items() if (place := rounded(at)) is not None}
        before, self._positions = self._positions, told
        return [gang for gang, place in told.items() if before.get(gang) != place]

    def _compare(self, workload: Workload, positions: dict[str, int]) -> None:
        key = (workload.namespace, workload.flux_job)
        found = self.flux_jobs.store.get(key[1], key[0])
        if workload.is_leaving or workload.is_cancelled or workload.uid in self._cancellations.told:
            return
        if found is not None and (not stands_for(found, workload) or found.is_leaving):
            return  # of a workload that had its name, or it was deleted: it goes first
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
            self._untold[workload.uid] = None  # its reason is worked out in one of the next cycles
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
        """What the server refuses for its content is not tried again until the workload changes; the rest
        after ever longer pauses."""
        if workload.uid not in self._workloads:
            return
        if isinstance(error, Invalid) or (isinstance(error, Forbidden) and error.is_ending):
            self._refused[workload.uid] = workload
            return
        failures = self._failures[workload.uid] = self._failures.get(workload.uid, 0) + 1
        pause = min(_AGAIN_S * 2 ** min(failures - 1, 8), _LONGEST_S)
        asyncio.get_running_loop().call_later(pause, self._again, workload.uid)

    def _again(self, uid: str) -> None:
        self._dirty[uid] = None
        self._wake.set()

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _state(self) -> SchedulerState:
        return self._live.scheduler.state

    def _in_turn(self, uids: Iterable[str]) -> Iterator[str]:
        """Workloads of all namespaces in turn, those of one in their order."""
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
        """The gang of a workload as things are."""
        key, uid = self._state.groups.of(workload.member()), workload.uid
        if self._gang_of.get(uid) != key:
            self._leave_gang(uid)
            self._gang_of[uid] = key
            self._of_gang.setdefault(key, set()).add(uid)
        return key

    def _leave_gang(self, uid: str) -> None:
        key = self._gang_of.pop(uid, None)
        members = self._of_gang.get(key, set()) if key is not None else set()
        members.discard(uid)
        if key is not None and not members:
            self._of_gang.pop(key, None)
