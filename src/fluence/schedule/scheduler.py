"""Scheduler: the single entry point. Events in, decisions out; no clock, no network.

    scheduler = Scheduler(SchedulerConfig())
    decisions = scheduler.handle(events, now)       binds, reports and other orders
    scheduler.handle(events, now, decide=False)     a replica that does not lead only observes

`cycle.SchedulingCycle` makes the decisions, and this module protects it. If work on an object fails, the
object is quarantined and the state is rebuilt from the known objects (`_rebuild`), as after a restart. A
rebuild keeps binds in flight: their pods count as bound until the result says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from msgspec.structs import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.cluster.planner import HORIZON, ClusterPlanner
from fluence.model.grant import is_held_by_admission
from fluence.model.node import Node
from fluence.model.operators import CustomOwner, borrower_of, with_sizes
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.model.queues import QueuesInForce
from fluence.model.reason import Reason
from fluence.queue import Queue, QueuePolicy
from fluence.queue.fair_share import Account
from fluence.queue.history import Predictor
from fluence.queue.plan import JobFault
from fluence.queue.rules import Priority, QueueRules, by_urgency
from fluence.schedule.cycle import Decisions, Rooms, SchedulingCycle, steps
from fluence.schedule.events import (
    Bind,
    BindFinished,
    BindOutcome,
    Changed,
    Event,
    NotBound,
    Object,
    Release,
    ReleaseFinished,
)
from fluence.schedule.external_resources.requests import DeviceConfig
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.gangs.submitters import NameGuard
from fluence.schedule.overruns import LimitMode
from fluence.schedule.preemption.rules import PreemptionRules
from fluence.schedule.queueing.placeholder import is_planned, placeholder
from fluence.schedule.restart import PriorPromise, Promise, Takeover
from fluence.schedule.step import Fault, GroupFault, Quarantine, Step, Subject

_PROMISES = 256  # waiting jobs that get a promised start; jobs further back get none yet
_BUDGET_S = 2.0  # seconds that one call may spend on faults
_UNKNOWN = 2  # faults without a known subject in one call; then the scheduler is reported as broken


@dataclass(slots=True)
class SchedulerConfig:
    """Everything that configures a scheduler, in its own units. `schedule.build` makes one from settings."""

    scheduler_name: str = names.SCHEDULER
    native: bool = False  # the server has PodGroups
    systems: frozenset[str] = frozenset()  # other systems whose PodGroups the server has
    kinds: frozenset[str] = frozenset()  # kinds of custom objects that are watched
    guard: NameGuard | None = None  # keeps users from forging the submitter of a pod
    looks: bool = False  # unknown kinds are looked up, see `Scheduler.unfollowed`
    unread: frozenset[str] = frozenset()  # identities of owners that cannot be read
    layout: GraphLayout = DEFAULT
    match_policy: str = "first"
    spread_services: bool = True
    release_each: bool = False
    queue_policy: str | QueuePolicy = "easy"
    priority: Priority = by_urgency
    predictor: Predictor | None = (
        None  # a plug-in, which survives rebuilds; None: each rebuild starts a new history
    )
    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    queues: frozenset[str] | None = None  # the queues that exist; None: any name is allowed
    depth: int | None = None
    window: int | None = None
    resolution: int = 1
    replan: bool = False
    backoff: tuple[int, int] = (1_000, 10_000)  # the first and the longest pause between tries of one bind
    volume_timeout: int = 600_000
    settle: int = 3_000  # a group without a size starts after this time without a new member
    enforce: Mapping[str, LimitMode] = field(default_factory=dict)  # by queue
    enforce_grace: int = 60_000
    preemption: PreemptionRules = field(default_factory=PreemptionRules)
    open_gates: bool = True  # remove the gates of pods that wait for a producer
    announce_timeout: int = 300_000  # how long a running producer may take to announce its task
    scale_up_after: int | None = None  # a later promise does not keep autoscalers from adding nodes
    history: bool = False  # whether to make history entries
    queue_statuses: bool = True  # whether to make statuses of Queues
    cycle_budget: float = 0.025  # seconds of planning per cycle, measured by the timer
    timer: Callable[[], float] | None = None  # in seconds; limits cycles, plug-ins and faults
    steps: Sequence[Callable[[Rooms], Step]] = ()  # a site's own steps, made again with each rebuild


def cluster_for(
    layout: GraphLayout = DEFAULT,
    *,
    policy: str = "first",
    release_each: bool = False,
    spread_services: bool = True,
) -> ClusterGraph:
    """A cluster graph whose times are milliseconds."""
    return ClusterGraph(
        layout, policy=policy, release_each=release_each, spread_services=spread_services, horizon=HORIZON
    )


class Scheduler:
    """The groups, the placements and the plan of one cluster."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.config = config or SchedulerConfig()
        self.quarantine = Quarantine()
        self.broken = ""  # why it cannot decide at all; empty if it can
        self._objects: dict[Subject, Object] = {}  # the last known version of each object
        self._in_flight: dict[str, Bind] = {}  # by uid: sent, and not seen bound yet
        self._assumed: dict[str, Pod] = {}  # pods that count as bound since the last rebuild
        self._releasing: dict[str, Release] = {}  # by owner: sent, and the Job is not seen released yet
        self._assumed_owners: dict[str, Owner] = {}  # Jobs that count as released since the last rebuild
        self._uncounted: dict[Subject, str] = {}  # running pods that are left out, with their nodes
        self._faults: list[Fault] = []
        self.devices = DeviceConfig()
        self._queues_in_force = QueuesInForce()
        self._build()

    # -- entry point -----------------------------------------------------------------------------------------

    def handle(self, events: Iterable[Event], now: int, *, decide: bool = True) -> Decisions:
        """Observe events, run a cycle, and return its decisions."""
        for event in events:
            self._observe(event, now)
        for event in self._let_out(now):  # objects whose quarantine has ended, in their newest version
            self._observe(event, now)
        decisions = self._decide(now) if decide else Decisions()
        decisions.faults, self._faults = self._faults, []
        for bind in chain.from_iterable(decisions.binds):
            self._in_flight[bind.uid] = bind
        for release in decisions.releases:
            self._releasing[release.key] = release
        return decisions

    def next_due(self) -> int | None:
        """The time of the next call even if no event arrives."""
        times = (self._cycle.next_due(), self.quarantine.next_due())
        return min((at for at in times if at is not None), default=None)

    @property
    def has_more(self) -> bool:
        """Whether this cycle left groups or jobs for the next one."""
        state = self.state
        left = state.changes.has_touched or state.queue.has_more or state.placeholders.has_changed
        return left or state.preemption.has_more

    @property
    def state(self) -> Rooms:
        """The current rooms. Callers read them and change nothing."""
        return self._rooms

    @property
    def objects(self) -> Collection[Object]:
        """All objects that it observes, in their latest version."""
        return self._objects.values()

    def set_native(self, native: bool, systems: frozenset[str] = frozenset()) -> None:
        """Set whether the server has PodGroups, and which other systems' PodGroups it has."""
        if (native, systems) != (self.config.native, self.config.systems):
            self.config.native, self.config.systems = native, systems
            self.state.changes.touch(self.state.groups.set_native(native, systems))

    def set_guard(self, guard: NameGuard | None) -> None:
        """Set what keeps users from forging the submitter of a pod, and since when."""
        if guard != self.config.guard:
            self.config.guard = guard
            self.state.changes.touch(self.state.groups.set_guard(guard))

    def follow(self, kinds: frozenset[str]) -> None:
        """Watch these kinds of custom objects: pods of such an object wait until it is known."""
        self.config.kinds = kinds
        self.state.changes.touch(self.state.groups.follow(kinds))

    @property
    def unfollowed(self) -> Mapping[str, str]:
        """Owners that pods wait for and whose kinds are not watched yet, as identity and kind."""
        return self.state.groups.unfollowed

    def give_up(self, owners: Collection[str]) -> None:
        """Stop waiting for owners that cannot be read: their pods are scheduled without them, with a
        warning."""
        groups = self.state.groups
        self.state.changes.touch(groups.give_up(owners))
        self.config.unread = frozenset(groups.unread)

    def settle_placeholders(self, now: int) -> None:
        """Create the placeholders of held Jobs without deciding anything, for readers such as `Inquiry`."""
        try:
            self.state.intake.settle_placeholders(now)
        except Exception as error:
            cause, subject = self._blame(error)
            self._fail(subject, cause, now)

    def start_over(self, objects: Iterable[Object], now: int) -> None:
        """Replace all known objects with these and rebuild, as after a restart. Binds in flight are kept."""
        self._objects = {subject_of(each): each for each in objects}
        self._rebuild(now)

    def remember(self, told: Mapping[str, PriorPromise]) -> None:
        """Restore earlier promises to held workloads, by uid. Call it before the first cycle."""
        self.state.takeover.remember(told)

    def refuses(self, bind: Bind) -> Reason | None:
        """Why a bind must not be sent any more, because of changes since it was decided."""
        return self.state.check.lost(bind.uid, bind.node, bind.pod)

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
                self._show(Subject("Node", str(node)), now)
            if isinstance(made := event.object, CustomOwner) and (ref := borrower_of(made)) is not None:
                self._show(Subject(ref.kind, f"{made.metadata.namespace}/{ref.name}"), now)
            return
        self._guard(subject, event, now)

    def _guard(self, subject: Subject, event: Event | NotBound, now: int) -> None:
        try:
            self._cycle.observe(event, now)
        except Exception as error:
            self._fail(subject, error, now)

    def _presented(self, event: Changed, subject: Subject) -> Changed:
        """An event as the rooms see it. Also keep the newest version of the object for a rebuild."""
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
            return Changed(new, None)  # the rooms may know an earlier version
        return Changed(old, shown)

    def _as_shown(self, found: Object, subject: Subject) -> Object | None:
        """An object as the rooms see it. A node is unschedulable while a pod on it cannot be counted. A held
        object may take its sizes from another object."""
        if isinstance(found, CustomOwner) and found.operator.made and is_held_by_admission(found):
            found = with_sizes(found, self._objects.get(Subject(found.operator.made, subject.key)))
        shown = self.quarantine.presented(found, subject, self._group_of)
        if isinstance(found, Pod):
            self._uncounted.pop(subject, None)
            if shown is None and found.spec.node_name and not found.is_terminal:
                self._uncounted[subject] = found.spec.node_name
        elif isinstance(shown, Node) and shown.name in self._uncounted.values():
            return replace(shown, spec=replace(shown.spec, unschedulable=True))
        elif isinstance(shown, Owner) and self.quarantine and is_planned(shown, self.config.scheduler_name):
            group = Subject("group", self._group_of(placeholder(shown, 0)))
            if group in self.quarantine:  # a quarantined group has no placeholders
                labels = {**shown.labels, names.SEEN: ""}
                return replace(shown, metadata=replace(shown.metadata, labels=labels))
        return shown

    def _show(self, subject: Subject, now: int) -> None:
        """Show an object again because another object changed how it looks, such as a node that closes or
        opens."""
        found = self._objects.get(subject)
        if isinstance(found, Owner):
            found = self._assumed_owners.get(found.identity, found)
        shown = None if found is None else self._as_shown(found, subject)
        if shown is not None:
            self._guard(subject, Changed(found if isinstance(found, Owner) else None, shown), now)

    def _note_change(self, event: Changed, subject: Subject, now: int) -> None:
        before = self._objects.get(subject)
        if before is not None and event.new is not None and _spec(before) != _spec(event.new):
            self.quarantine.changed(subject, now)
            if isinstance(event.new, Pod):
                self.quarantine.changed(Subject("group", self._group_of(event.new)), now)

    def _note_bind(self, event: BindFinished, now: int) -> None:
        """If a pod counted as bound and its bind failed, the pod waits again."""
        bind, outcome = event.result.bind, event.result.outcome
        if outcome is BindOutcome.BOUND:
            return  # the watch shows the pod as bound later
        self._in_flight.pop(bind.uid, None)
        assumed = self._assumed.pop(bind.uid, None)
        if assumed is not None:
            subject = subject_of(assumed)
            self._guard(subject, NotBound(assumed), now)
            found = self._objects.get(subject)
            if found is not None:
                self._guard(subject, self._presented(Changed(None, found), subject), now)

    def _note_release(self, event: ReleaseFinished, now: int) -> None:
        """If a Job counted as released and its release failed, its placeholders wait again."""
        release, outcome = event.result.release, event.result.outcome
        under_way = self._releasing.get(release.key)
        if outcome is BindOutcome.BOUND or under_way is None or under_way.note != release.note:
            return  # the watch shows the Job as released later
        del self._releasing[release.key]
        assumed = self._assumed_owners.pop(release.key, None)
        if assumed is not None:
            self._rebuild(now)

    # -- deciding --------------------------------------------------------------------------------------------

    def _decide(self, now: int) -> Decisions:
        """Run a cycle. Each fault quarantines one more object, or more of the same one, so the loop ends.
        After many faults the rest is left to the next call: each fault costs a rebuild, and the caller has a
        lease to renew."""
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
        """The error behind a failed cycle, and the group it belongs to if that is known."""
        group = ""
        if isinstance(error, GroupFault):
            group = error.group
        elif isinstance(error, JobFault):
            pod_set = self.state.pod_sets.by_key.get(error.job)
            group = "" if pod_set is None else pod_set.group
        if isinstance(error, GroupFault | JobFault) and isinstance(error.__cause__, Exception):
            error = error.__cause__
        return error, Subject("group", group) if group else None

    # -- faults ----------------------------------------------------------------------------------------------

    def _fail(self, subject: Subject | None, error: Exception, now: int) -> None:
        """Quarantine the subject of a fault, and rebuild the state without it."""
        first = subject is None or self.quarantine.add(subject, now)
        pods = () if subject is None else self._waiting_pods(subject)
        self._faults.append(Fault(subject, error, pods, first))
        self._rebuild(now)

    def _waiting_pods(self, subject: Subject) -> tuple[Pod, ...]:
        """The waiting pods that get a report of the fault."""
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
        """Rebuild the state from the known objects, without those in quarantine. An object that fails here is
        quarantined too, and the rebuild continues."""
        promises = self.state.queue.promises
        self._build(self._told(), self.state.cluster_queues.usage(now))
        self.state.queue.promises.predictor = promises.predictor
        self.state.queue.promises.calibration = promises.calibration
        self.state.queue.promises.tally = promises.tally
        self._uncounted.clear()
        # Owners and groups before pods, so that each pod is processed once.
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
        """Events that show the objects whose quarantine has ended."""
        if not self.quarantine:
            return []
        found: list[Event] = []
        for subject in self.quarantine.take_due(now):
            if subject.kind == "group":
                pods = (each for each in self._objects.values() if isinstance(each, Pod))
                # If the group of a pod is unknown, showing the pod again does no harm.
                found += [Changed(None, pod) for pod in pods if self._group_of(pod) in (subject.key, "")]
                owners = (each for each in self._objects.values() if isinstance(each, Owner))
                found += [Changed(None, each) for each in owners if is_held_by_admission(each)]
            elif subject in self._objects:
                found.append(Changed(None, self._objects[subject]))
        return found

    def _group_of(self, pod: Pod) -> str:
        """The key of a pod's group, or "" if even that fails."""
        try:
            return self.state.groups.of(pod)
        except Exception:
            return ""

    def _pods_in(self, namespace: str) -> Iterator[Pod]:
        for each in self._objects.values():
            if isinstance(each, Pod) and each.metadata.namespace == namespace:
                yield each

    def _told(self) -> dict[str, PriorPromise]:
        """The promises of all waiting jobs, by key."""
        found = dict(self.state.takeover.said)
        for record in self.state.queue.waiting():
            at = record.no_later_than
            promise = None if at is None else Promise(at, record.expected, record.firm, record.job.limit)
            found[record.key] = PriorPromise(promise, record.job.queued)
        return found

    def _build(
        self,
        told: Mapping[str, PriorPromise] | None = None,
        usage: Mapping[Account, tuple[float, int]] | None = None,
    ) -> None:
        """Create all rooms, empty."""
        config = self.config
        groups = Groups(
            scheduler=config.scheduler_name,
            native=config.native,
            systems=config.systems,
            looks=config.looks,
        )
        groups.follow(config.kinds)
        groups.guard = config.guard
        groups.give_up(config.unread)
        cluster = cluster_for(
            config.layout,
            policy=config.match_policy,
            release_each=config.release_each,
            spread_services=config.spread_services,
        )
        groups.labels_of = cluster.namespace_labels
        planner = ClusterPlanner(cluster)
        queue = Queue(
            planner,
            config.queue_policy,
            rules=config.rules,
            names=config.queues,
            priority=config.priority,
            predictor=config.predictor,
            depth=config.depth,
            window=config.window,
            resolution=config.resolution,
            replan=config.replan,
            renews=True,
            promises=_PROMISES,
            cycle_budget=config.cycle_budget,
            timer=config.timer,
        )
        self._rooms = Rooms(
            config,
            groups=groups,
            cluster=cluster,
            planner=planner,
            queue=queue,
            devices=self.devices,
            queues_in_force=self._queues_in_force,
            usage=usage or {},
            takeover=Takeover(told),
            pods_in=self._pods_in,
            find=lambda kind, namespace, name: self._objects.get(Subject(kind, f"{namespace}/{name}")),
            forget=lambda group: self._cycle.forget(group),
        )
        more = [make(self._rooms) for make in config.steps]
        self._cycle = SchedulingCycle(steps(self._rooms, more))


def subject_of(found: Object) -> Subject:
    """The kind and the key of an object."""
    if isinstance(found, Group):
        return Subject("PodGroup", f"{found.key}@{found.source}")
    meta = found.metadata
    kind = getattr(found, "kind", "") or type(found).__name__
    return Subject(kind, f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name)


def _spec(found: Object) -> object:
    """The part of an object that users change."""
    meta = getattr(found, "metadata", None)
    if meta is None:
        return found
    return meta.labels, meta.annotations, getattr(found, "spec", None)
