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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.model.group import Group
from fluence.model.pod import Pod
from fluence.queue import Queue, QueuePolicy
from fluence.queue.plan import JobFault
from fluence.queue.rules import QueueRules
from fluence.schedule.actions import Bind, BindOutcome
from fluence.schedule.cycle import Decisions, SchedulingCycle
from fluence.schedule.events import BindFinished, Changed, Event, NotBound, Object
from fluence.schedule.groups import Groups
from fluence.schedule.planner import HORIZON, ClusterPlanner
from fluence.schedule.quarantine import Fault, Quarantine, Subject
from fluence.schedule.state import SchedulerState

_PROMISES = 256  # waiting jobs that are told when they start; others when they come so far ahead
_BUDGET_S = 2.0  # for the faults of one call
_UNKNOWN = 2  # faults of nobody in one call, after which the scheduler says that it is broken


@dataclass(slots=True)
class SchedulerConfig:
    """All that a scheduler can be told, in its own units; `schedule.build` makes one from settings."""

    scheduler_name: str = names.SCHEDULER
    native: bool = False  # the server has PodGroups
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
    timer: Callable[[], float] | None = None  # seconds; bounds what plug-ins and faults take


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
        self._faults: list[Fault] = []
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
        return decisions

    def next_due(self) -> int | None:
        """When to be called even if nothing happens."""
        times = (self.state.next_due(), self.quarantine.next_due())
        return min((at for at in times if at is not None), default=None)

    @property
    def has_more(self) -> bool:
        """Whether there are groups that this cycle left for the next."""
        return self.state.has_touched

    @property
    def state(self) -> SchedulerState:
        """What it knows, to be asked and not changed."""
        return self._cycle.state

    def set_native(self, native: bool) -> None:
        """Whether the server has PodGroups, once that is known."""
        self.config.native = self.state.groups.native = native

    def refuses(self, bind: Bind) -> bool:
        """Whether the room for a bind was taken by somebody else since it was decided."""
        pod_set = self.state.pod_sets.by_pod.get(bind.uid)
        if pod_set is None:
            return False
        return self.state.planner.is_overcommitted(bind.node, bind.uid, pod_set.number)

    # -- events ----------------------------------------------------------------------------------------------

    def _observe(self, event: Event, now: int) -> None:
        if isinstance(event, BindFinished):
            self._note_bind(event, now)
            subject = Subject("Pod", event.result.bind.pod.key)
        else:
            subject = subject_of(event.object)
            if self.quarantine:
                self._note_change(event, subject, now)
            event = self._presented(event, subject)
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
                new = self._assumed[uid] = _as_bound(new, self._in_flight[uid])
        shown = None if new is None else self.quarantine.presented(new, subject, self._group_of)
        if shown is None and new is not None:
            return Changed(new, None)  # it may have been there before
        return Changed(old, shown)

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
        self._cycle = SchedulingCycle(self._fresh_state())
        self.state.queue.promises.predictor = promises.predictor
        self.state.queue.promises.calibration = promises.calibration
        # Owners and groups before pods: then no pod is settled twice.
        for subject, found in sorted(self._objects.items(), key=lambda item: isinstance(item[1], Pod)):
            if isinstance(found, Pod) and found.metadata.uid in self._in_flight and not found.spec.node_name:
                found = _as_bound(found, self._in_flight[found.metadata.uid])
                self._assumed[found.metadata.uid] = found
            shown = self.quarantine.presented(found, subject, self._group_of)
            while shown is not None:
                try:
                    self._cycle.observe(Changed(None, shown), now)
                except Exception as error:
                    first = self.quarantine.add(subject, now)
                    self._faults.append(Fault(subject, error, self._waiting_pods(subject), first))
                    shown = self.quarantine.presented(found, subject, self._group_of)
                else:
                    break

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
            elif subject in self._objects:
                found.append(Changed(None, self._objects[subject]))
        return found

    def _group_of(self, pod: Pod) -> str:
        """The key of a pod's group; nothing where just that fails."""
        try:
            return self.state.groups.of(pod)
        except Exception:
            return ""

    def _fresh_state(self) -> SchedulerState:
        config = self.config
        groups = Groups(scheduler=config.scheduler_name, native=config.native)
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
            promises=_PROMISES,
            timer=config.timer,
        )
        return SchedulerState(
            groups,
            cluster,
            planner,
            queue,
            backoff=config.backoff,
            volume_timeout=config.volume_timeout,
        )


def subject_of(found: Object) -> Subject:
    """How an object is known."""
    if isinstance(found, Group):
        return Subject("PodGroup", f"{found.key}@{found.source}")
    meta = found.metadata
    kind = getattr(found, "kind", "") or type(found).__name__
    return Subject(kind, f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name)


def _as_bound(pod: Pod, bind: Bind) -> Pod:
    """A pod as the server will show it once its binding is carried out."""
    notes = {**pod.annotations, **bind.annotations}
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations=notes),
        spec=replace(pod.spec, node_name=bind.node),
    )


def _spec(found: Object) -> object:
    """What of an object its owner changes."""
    meta = getattr(found, "metadata", None)
    if meta is None:
        return found
    return meta.labels, meta.annotations, getattr(found, "spec", None)
