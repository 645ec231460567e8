"""Scheduler: the one entrance. Events in, decisions out; no clock, no network.

    scheduler = Scheduler(SchedulerConfig())
    decisions = scheduler.handle(events, now)       bind these, tell those why they wait
    scheduler.handle(events, now, decide=False)     a replica that does not lead only follows

What decides is `cycle.SchedulingCycle`. Here it is guarded: whatever fails is laid to the account of the
object that was worked on, that object is quarantined, and the state is built anew from the objects that were
seen (`_rebuild`), as after a restart. Binds that are under way are not forgotten by that: their pods count as
bound until the answer says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.model.group import Group
from fluence.model.held import is_seen, places_us
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.queue import Queue, QueuePolicy
from fluence.queue.budget import CycleBudget
from fluence.queue.plan import JobFault
from fluence.queue.rules import QueueRules
from fluence.schedule import seat_check
from fluence.schedule.actions import Bind, BindOutcome, Release
from fluence.schedule.cycle import Decisions, SchedulingCycle
from fluence.schedule.device_config import DeviceConfig
from fluence.schedule.enforcement import Enforcement, LimitMode
from fluence.schedule.events import BindFinished, Changed, Event, NotBound, Object, ReleaseFinished
from fluence.schedule.groups import Groups
from fluence.schedule.planner import HORIZON, ClusterPlanner
from fluence.schedule.producer_gates import ProducerGates
from fluence.schedule.quarantine import Fault, Quarantine, Subject
from fluence.schedule.recovery import Promise
from fluence.schedule.stand_in import stand_in
from fluence.schedule.state import SchedulerState
from fluence.schedule.takeover import Takeover, Told

_PROMISES = 256  # waiting jobs that are told when they start; others when they come so far ahead
_BUDGET_S = 2.0  # for the faults of one call
_UNKNOWN = 2  # faults of nobody in one call, after which the scheduler says that it is broken


@dataclass(slots=True)
class SchedulerConfig:
    """All that a scheduler can be told, in its own units; `schedule.build` makes one from settings."""

    scheduler_name: str = names.SCHEDULER
    native: bool = False  # the server has PodGroups
    systems: frozenset[str] = frozenset()  # other systems of which it has PodGroups
    layout: GraphLayout = DEFAULT
    match_policy: str = "first"
    release_each: bool = False
    queue_policy: str | QueuePolicy = "easy"
    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    depth: int | None = None
    window: int | None = None
    resolution: int = 1
    replan: bool = False
    backoff: tuple[int, int] = (1_000, 10_000)  # the first and the longest pause between tries of one bind
    volume_timeout: int = 600_000
    settle: int = 3_000  # without anything new, before a group that names no size starts
    enforce: Mapping[str, LimitMode] = field(default_factory=dict)  # by queue
    enforce_grace: int = 60_000
    open_gates: bool = True  # of pods that wait for a producer
    announce_timeout: int = 300_000  # for a producer to announce its task, from when it runs
    history: bool = False  # entries for the history are wanted
    cycle_budget: float = 0.025  # seconds that a cycle may plan for, by the timer
    timer: Callable[[], float] | None = None  # seconds; bounds what cycles, plug-ins and faults take


def cluster_for(
    layout: GraphLayout = DEFAULT, *, policy: str = "first", release_each: bool = False
) -> ClusterGraph:
    """A cluster graph whose times are milliseconds."""
    return ClusterGraph(layout, policy=policy, release_each=release_each, horizon=HORIZON)


class Scheduler:
    """One cluster's groups, seats and plan."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self.quarantine = Quarantine()
        self.broken = ""  # why it cannot decide at all
        self._objects: dict[Subject, Object] = {}  # as they were seen last
        self._in_flight: dict[str, Bind] = {}  # by uid: sent, and not seen bound yet
        self._assumed: dict[str, Pod] = {}  # pods that count as bound since the state was built anew
        self._releasing: dict[str, Release] = {}  # by owner: sent, and the Job was not seen released yet
        self._assumed_owners: dict[str, Owner] = {}  # Jobs that count as released since then
        self._uncounted: dict[Subject, str] = {}  # pods that are left out altogether, and run: their nodes
        self._faults: list[Fault] = []
        self.devices = DeviceConfig()
        self._cycle = SchedulingCycle(self._fresh_state())

    # -- the entrance ----------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Event], now: int, *, decide: bool = True) -> Decisions:
        """Take in what happened, and decide what to do about it."""
        for event in events:
            self._observe(event, now)
        for event in self._let_out(now):  # as they are after all that
            self._observe(event, now)
        decisions = self._decide(now) if decide else Decisions()
        decisions.faults, self._faults = self._faults, []
        for bind in chain.from_iterable(decisions.binds):
            self._in_flight[bind.uid] = bind
        for release in decisions.releases:
            self._releasing[release.key] = release
        return decisions

    def next_due(self) -> int | None:
        """When to be called even if nothing happens."""
        times = (self.state.next_due(), self.quarantine.next_due())
        return min((at for at in times if at is not None), default=None)

    @property
    def has_more(self) -> bool:
        """Whether there are groups or jobs that this cycle left for the next."""
        state = self.state
        return state.has_touched or state.queue.has_more or state.stand_ins.has_changed

    @property
    def state(self) -> SchedulerState:
        """What it knows, to be asked and not changed."""
        return self._cycle.state

    def set_native(self, native: bool, systems: frozenset[str] = frozenset()) -> None:
        """Whether the server has PodGroups, and those of which other systems, once that is known, and when it
        changes."""
        if (native, systems) != (self.config.native, self.config.systems):
            self.config.native, self.config.systems = native, systems
            self.state.touch(self.state.groups.set_native(native, systems))

    def start_over(self, objects: Iterable[Object], now: int) -> None:
        """Forget what was seen, and begin with these objects, as after a restart. Binds that are under way
        are not forgotten."""
        self._objects = {subject_of(each): each for each in objects}
        self._rebuild(now)

    def remember(self, told: Mapping[str, Told]) -> None:
        """What workloads that are held were told before, by their uids; before the first cycle."""
        self.state.takeover.remember(told)

    def refuses(self, bind: Bind) -> Reason | None:
        """Why a bind must not be sent any more, by what has happened since it was decided."""
        return seat_check.lost(self.state, bind.uid, bind.node, bind.pod)

    # -- events ----------------------------------------------------------------------------------------------

    def _observe(self, event: Event, now: int) -> None:
        if isinstance(event, BindFinished):
            self._note_bind(event, now)
            subject = Subject("Pod", event.result.bind.pod.key)
        elif isinstance(event, ReleaseFinished):
            self._note_release(event, now)
            subject = subject_of(event.result.release.owner)
        else:
            subject = subject_of(event.object)
            if self.quarantine:
                self._note_change(event, subject, now)
            before = self._uncounted.get(subject)
            event = self._presented(event, subject)
            self._guard(subject, event, now)
            after = self._uncounted.get(subject)
            for node in {before, after} - {None} if before != after else ():
                self._show_node(Subject("Node", str(node)), now)
            return
        self._guard(subject, event, now)

    def _guard(self, subject: Subject, event: Event | NotBound, now: int) -> None:
        try:
            self._cycle.observe(event, now)
        except Exception as error:
            self._fail(subject, error, now)

    def _presented(self, event: Changed, subject: Subject) -> Changed:
        """An event as the state may see it: the objects are kept, for it may be built anew from them."""
        if event.new is None:
            self._objects.pop(subject, None)
        else:
            self._objects[subject] = event.new
        old, new = event.old, event.new
        if isinstance(event.object, Pod):
            uid = event.object.metadata.uid
            if new is None or (isinstance(new, Pod) and (new.spec.node_name or new.is_terminal)):
                self._in_flight.pop(uid, None)
                self._assumed.pop(uid, None)
            elif uid in self._assumed and isinstance(new, Pod):
                new = self._assumed[uid] = self._in_flight[uid].carried_out(new)
        if isinstance(new, Owner):
            key = new.identity
            under_way = self._releasing.get(key)
            if not new.spec.suspend or (under_way is not None and under_way.note.is_carried_out(new)):
                self._releasing.pop(key, None)
                self._assumed_owners.pop(key, None)
            elif key in self._assumed_owners:
                new = self._assumed_owners[key] = self._releasing[key].carried_out(new)
        elif new is None and isinstance(old, Owner):
            self._releasing.pop(old.identity, None)
            self._assumed_owners.pop(old.identity, None)
        shown = None if new is None else self._as_shown(new, subject)
        if new is None:
            self._uncounted.pop(subject, None)
        elif shown is None:
            return Changed(new, None)  # it may have been there before
        return Changed(old, shown)

    def _as_shown(self, found: Object, subject: Subject) -> Object | None:
        """An object as the state may see it. A node is closed while a pod on it cannot be counted."""
        shown = self.quarantine.presented(found, subject, self._group_of)
        if isinstance(found, Pod):
            self._uncounted.pop(subject, None)
            if shown is None and found.spec.node_name and not found.is_terminal:
                self._uncounted[subject] = found.spec.node_name
        elif isinstance(shown, Node) and shown.name in self._uncounted.values():
            return replace(shown, spec=replace(shown.spec, unschedulable=True))
        elif isinstance(shown, Owner) and self.quarantine and places_us(shown, self.config.scheduler_name):
            group = Subject("group", self._group_of(stand_in(shown, 0)))
            if group in self.quarantine:  # nothing stands for the pods of a group that is left out
                labels = {**shown.labels, names.SEEN: ""}
                return replace(shown, metadata=replace(shown.metadata, labels=labels))
        return shown

    def _show_node(self, subject: Subject, now: int) -> None:
        """A node is closed, or open again."""
        found = self._objects.get(subject)
        shown = None if found is None else self._as_shown(found, subject)
        if shown is not None:
            self._guard(subject, Changed(None, shown), now)

    def _note_change(self, event: Changed, subject: Subject, now: int) -> None:
        before = self._objects.get(subject)
        if before is not None and event.new is not None and _spec(before) != _spec(event.new):
            self.quarantine.changed(subject, now)
            if isinstance(event.new, Pod):
                self.quarantine.changed(Subject("group", self._group_of(event.new)), now)

    def _note_bind(self, event: BindFinished, now: int) -> None:
        """Where a pod was counted as bound and the answer says that it is not, it waits again."""
        bind, outcome = event.result.bind, event.result.outcome
        if outcome is BindOutcome.BOUND:
            return  # until it is seen
        self._in_flight.pop(bind.uid, None)
        assumed = self._assumed.pop(bind.uid, None)
        if assumed is not None:
            subject = subject_of(assumed)
            self._guard(subject, NotBound(assumed), now)
            found = self._objects.get(subject)
            if found is not None:
                self._guard(subject, self._presented(Changed(None, found), subject), now)

    def _note_release(self, event: ReleaseFinished, now: int) -> None:
        """Where a Job was counted as let go and the answer says that it is not, its stand-ins wait again."""
        release, outcome = event.result.release, event.result.outcome
        under_way = self._releasing.get(release.key)
        if outcome is BindOutcome.BOUND or under_way is None or under_way.note != release.note:
            return  # until it is seen
        del self._releasing[release.key]
        assumed = self._assumed_owners.pop(release.key, None)
        if assumed is not None:
            self._rebuild(now)

    # -- deciding --------------------------------------------------------------------------------------------

    def _decide(self, now: int) -> Decisions:
        """Run a cycle. Each fault leaves somebody out, or more of it, so that this comes to an end. Many of
        them are dealt with over several calls: each costs a rebuild, and the edge has a lease to renew."""
        unknown, timer = 0, self.config.timer
        end = 0.0 if timer is None else timer() + _BUDGET_S
        while unknown < _UNKNOWN and (timer is None or timer() < end):
            try:
                decisions = self._cycle.run(now)
            except Exception as error:
                cause, subject = self._blame(error)
                unknown += subject is None or self.quarantine.is_left_out(subject)
                self.broken = f"no cycle can be run: {type(cause).__name__}: {cause}"
                self._fail(subject, cause, now)
            else:
                self.broken = ""
                return decisions
        return Decisions()

    def _blame(self, error: Exception) -> tuple[Exception, Subject | None]:
        """What went wrong in a cycle, and with whom."""
        group = self.state.subject or self.state.reports.subject
        if isinstance(error, JobFault):
            pod_set = self.state.pod_sets.by_key.get(error.job)
            group = "" if pod_set is None else pod_set.group
            if isinstance(error.__cause__, Exception):
                error = error.__cause__
        return error, Subject("group", group) if group else None

    # -- faults ----------------------------------------------------------------------------------------------

    def _fail(self, subject: Subject | None, error: Exception, now: int) -> None:
        """Leave out what failed, and begin again with the rest."""
        first = subject is None or self.quarantine.add(subject, now)
        pods = () if subject is None else self._waiting_pods(subject)
        self._faults.append(Fault(subject, error, pods, first))
        self._rebuild(now)

    def _waiting_pods(self, subject: Subject) -> tuple[Pod, ...]:
        """The pods that are to be told."""
        if subject.kind == "group":
            pods = [each for each in self._objects.values() if isinstance(each, Pod)]
            waiting = [pod for pod in pods if pod.spec.node_name is None]
            found = [pod for pod in waiting if self._group_of(pod) == subject.key]
        else:
            pod = self._objects.get(subject)
            found = [pod] if isinstance(pod, Pod) and pod.spec.node_name is None else []
        ours = self.config.scheduler_name
        return tuple(pod for pod in found if pod.spec.scheduler_name == ours and not pod.is_terminal)

    def _rebuild(self, now: int) -> None:
        """Build the state anew from the objects that were seen, without those in quarantine. An object that
        fails here is left out and the rest goes on."""
        promises = self.state.queue.promises
        self._cycle = SchedulingCycle(self._fresh_state(self._told()))
        self.state.queue.promises.predictor = promises.predictor
        self.state.queue.promises.calibration = promises.calibration
        self.state.queue.promises.tally = promises.tally
        self._uncounted.clear()
        # Owners and groups before pods: then no pod is settled twice.
        for subject, found in sorted(self._objects.items(), key=lambda item: isinstance(item[1], Pod)):
            if isinstance(found, Pod) and found.metadata.uid in self._in_flight and not found.spec.node_name:
                found = self._in_flight[found.metadata.uid].carried_out(found)
                self._assumed[found.metadata.uid] = found
            elif isinstance(found, Owner) and found.identity in self._releasing and found.spec.suspend:
                found = self._releasing[found.identity].carried_out(found)
                self._assumed_owners[found.identity] = found
            self._observe_or_leave_out(found, subject, now)
        for node in set(self._uncounted.values()):
            if (found_node := self._objects.get(Subject("Node", node))) is not None:
                self._observe_or_leave_out(found_node, Subject("Node", node), now)

    def _observe_or_leave_out(self, found: Object, subject: Subject, now: int) -> None:
        shown = self._as_shown(found, subject)
        while shown is not None:
            try:
                self._cycle.observe(Changed(None, shown), now)
            except Exception as error:
                first = self.quarantine.add(subject, now)
                self._faults.append(Fault(subject, error, self._waiting_pods(subject), first))
                shown = self._as_shown(found, subject)
            else:
                return

    def _let_out(self, now: int) -> list[Event]:
        """What the state must see of those whose time in quarantine is over."""
        if not self.quarantine:
            return []
        found: list[Event] = []
        for subject in self.quarantine.take_due(now):
            if subject.kind == "group":
                pods = (each for each in self._objects.values() if isinstance(each, Pod))
                # Where it cannot be said whose a pod is, seeing it once more does no harm.
                found += [Changed(None, pod) for pod in pods if self._group_of(pod) in (subject.key, "")]
                owners = (each for each in self._objects.values() if isinstance(each, Owner))
                found += [Changed(None, each) for each in owners if is_seen(each)]
            elif subject in self._objects:
                found.append(Changed(None, self._objects[subject]))
        return found

    def _group_of(self, pod: Pod) -> str:
        """The key of a pod's group; nothing where just that fails."""
        try:
            return self.state.groups.of(pod)
        except Exception:
            return ""

    def _pods_in(self, namespace: str) -> Iterator[Pod]:
        for each in self._objects.values():
            if isinstance(each, Pod) and each.metadata.namespace == namespace:
                yield each

    def _told(self) -> dict[str, Told]:
        """What those that wait were told."""
        found = dict(self.state.takeover.said)
        for record in self.state.queue.waiting():
            at = record.no_later_than
            promise = None if at is None else Promise(at, record.expected, record.firm, record.job.limit)
            found[record.key] = Told(promise, record.job.queued)
        return found

    def _fresh_state(self, told: Mapping[str, Told] | None = None) -> SchedulerState:
        config = self.config
        groups = Groups(scheduler=config.scheduler_name, native=config.native, systems=config.systems)
        cluster = cluster_for(config.layout, policy=config.match_policy, release_each=config.release_each)
        planner = ClusterPlanner(cluster)
        queue = Queue(
            planner,
            config.queue_policy,
            rules=config.rules,
            depth=config.depth,
            window=config.window,
            resolution=config.resolution,
            replan=config.replan,
            renews=True,
            promises=_PROMISES,
            cycle_budget=config.cycle_budget,
            timer=config.timer,
        )
        return SchedulerState(
            groups,
            cluster,
            planner,
            queue,
            backoff=config.backoff,
            volume_timeout=config.volume_timeout,
            settle=config.settle,
            enforcement=Enforcement(config.enforce, config.enforce_grace),
            producer_gates=ProducerGates(
                scheduler=config.scheduler_name if config.open_gates else None,
                timeout=config.announce_timeout,
                pods_in=self._pods_in,
                owner=groups.owner,
            ),
            report_budget=CycleBudget(config.cycle_budget / 4, config.timer),
            devices=self.devices,
            takeover=Takeover(told),
            history=config.history,
        )


def subject_of(found: Object) -> Subject:
    """How an object is known."""
    if isinstance(found, Group):
        return Subject("PodGroup", f"{found.key}@{found.source}")
    meta = found.metadata
    kind = getattr(found, "kind", "") or type(found).__name__
    return Subject(kind, f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name)


def _spec(found: Object) -> object:
    """What of an object its owner changes."""
    meta = getattr(found, "metadata", None)
    if meta is None:
        return found
    return meta.labels, meta.annotations, getattr(found, "spec", None)
