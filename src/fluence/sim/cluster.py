"""EmbeddedCluster: Kubernetes objects in memory, for the cycle of the live scheduler with a simulated clock.

    cluster = EmbeddedCluster(nodes)
    cluster.apply(manifest)         PodGroup or Workload, Pod, Job, Deployment: its pods exist at once
    cluster.settle()                cycles until nothing more happens at this instant
    cluster.step()                  advance to the next time at which something happens
    cluster.jobs()                  the jobs of the queue: waits, promises, starts, ends

The controllers create pods as the real ones do, nodes run a pod for its `sleep N`, and every bind succeeds. A
preempted pod still runs for its whole grace period; its controller creates another one at once, which begins
from the start. `fluence.schedule.scheduler.Scheduler` decides, with the settings of the live scheduler.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from fluence import names
from fluence.act import conditions
from fluence.clock import ManualClock
from fluence.cluster.layout import DEFAULT
from fluence.cluster.planner import PodSetRequest
from fluence.errors import InvalidInput
from fluence.kube.gangs import ADAPTERS, Native, PodGroup, Workload
from fluence.kube.listing import ClusterListing
from fluence.messages import text, texts
from fluence.model.grant import with_condition
from fluence.model.job_state import JobState
from fluence.model.meta import Condition, ConfigMap, KubeObject, ObjectMeta, OwnerReference, PriorityClass
from fluence.model.node import Node
from fluence.model.owner import OWNERS, Group, Owner, ReplicaSet
from fluence.model.pod import Pod, SchedulingGate, add_into, pod_requests
from fluence.model.queue_documents import QueueObject
from fluence.model.queues import QueueTree
from fluence.model.reason import Reason
from fluence.queue.fair_share import dominant_share
from fluence.queue.job import JobRecord
from fluence.queue.reasons import EndsFor, WaitReason, why
from fluence.schedule.build import scheduler_for
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import (
    Bind,
    BindFinished,
    BindOutcome,
    BindResult,
    Changed,
    Event,
    Object,
    Preempt,
    Release,
    ReleaseFinished,
    ReleaseResult,
)
from fluence.schedule.external_resources.producer_gates import carried_out
from fluence.schedule.external_resources.requests import DeviceConfig
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.submitters import NameGuard
from fluence.schedule.preemption.preemption import BY_SCHEDULER, DISRUPTION_TARGET
from fluence.schedule.queueing.placeholder import GATE, is_indexed, placeholder
from fluence.schedule.scheduler import Scheduler
from fluence.schedule.settings import SchedulerSettings
from fluence.schedule.status.reports import Waiting
from fluence.schedule.status.status import StatusReport
from fluence.units import parse_duration, parse_rfc3339

NAMESPACE = "default"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of generated names: no vowels, so no words
_SLEEP = re.compile(r"(?:^|[\s/;&|])sleep +(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_CRITICAL = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_RUN_SECONDS = "sandbox.fluence.flux-framework.org/run-seconds"
_GROUPS: dict[tuple[str, str], Native] = {
    (each.resource.api_version, each.resource.kind): each for each in ADAPTERS
}
_MADE = (("batch/v1", "Job"), ("apps/v1", "Deployment"))  # whose controllers are simulated
_PRIORITY_CLASS = ("scheduling.k8s.io/v1", "PriorityClass")
_OTHERS = (("v1", "ConfigMap"), ("v1", "Namespace"), _PRIORITY_CLASS)  # that make no pods
KINDS = frozenset((("v1", "Pod"), *_OTHERS, *_MADE, *_GROUPS))
"""API version and kind of the supported objects."""

Json = dict[str, Any]
OnPod = Callable[[Pod | None, Pod | None], None]


@dataclass(frozen=True, slots=True)
class EmbeddedJob:
    """A job of the scheduler's queue and its pods; times are milliseconds since 1970."""

    key: str
    pods: tuple[Pod, ...]
    user: str = ""
    queue: str = ""
    limit: int | None = None
    promised: int | None = None
    """The first promised start; None if it started as it arrived."""
    expected: int | None = None
    started: int | None = None
    ended: int | None = None
    backfilled: bool = False
    state: JobState = JobState.PENDING
    reason: str = ""
    """Why it has not started, as in the conditions of its pods."""
    broken: str = ""
    priority: int = 0
    preempted: bool = False
    """Whether it was ended for other work; its pods are in the queue again as another job."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A preempted pod and its end; times in milliseconds since 1970."""

    pod: Pod
    start: int
    saved: int
    """Its last checkpoint; without one, its start."""
    end: int


class EmbeddedCluster:
    """Nodes, objects and a scheduler; `pods` is what `kubectl get pods` would list."""

    def __init__(
        self,
        nodes: Iterable[Json],
        *,
        settings: SchedulerSettings | None = None,
        clock: ManualClock | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        """``scheduler``: one that knows a cluster already, to `adopt`, instead of a new one."""
        self.clock = clock or ManualClock()
        self.scheduler = scheduler or scheduler_for(
            settings or SchedulerSettings(), native=True, queue_statuses=False
        )
        self.is_asked = False
        """Whether preempted pods keep running, so that an answer can name them."""
        self._is_copy = False  # of a running cluster
        self.plugin_faults: Counter[str] = Counter()  # faults of plug-ins, and their numbers
        self._events: list[Event] = []  # not yet passed to the scheduler
        self.pods: dict[str, Pod] = {}
        self.nodes = [_ready(node) for node in nodes]
        self._owners: dict[str, Owner] = {}
        self._classes: dict[str, PriorityClass] = {}
        self._groups: set[str] = set()  # PodGroups, by `_group_key`
        self._made: dict[str, tuple[Json, int]] = {}  # by owner: its spec, and the number of created pods
        self._seen: dict[JobRecord, None] = {}  # every job that the queue has had
        self._ends: dict[str, int] = {}  # by pod: when it ends
        self._began: dict[str, int] = {}  # by pod: when it began
        self._gone: dict[str, int] = {}  # by pod that is being deleted: when it will be gone
        self.ended: list[Ended] = []
        self._ended: set[str] = set()  # uids of these
        self._handlers: list[OnPod] = []
        self._random = random.Random(0)  # the same names every time
        self._uids = 0
        for node in self.nodes:
            self._events.append(Changed(None, node))

    def load(self, listing: ClusterListing, *, guard: NameGuard | None = None) -> None:
        """Load the objects of a running cluster, as events of its watches. ``guard``: the protection of the
        annotation that records who submitted a pod."""
        self._is_copy = True
        self.scheduler.set_guard(guard)
        self.scheduler.set_native(listing.native, listing.systems)
        self.scheduler.follow(listing.kinds)
        self._uids += 1 << 32  # NB the listing may come from another embedded cluster
        self.nodes += listing.nodes
        # Objects that pods refer to come first, so that no pod is processed twice.
        objects: list[Object] = [*listing.devices, *listing.queues, *listing.kueue, *listing.nodes]
        objects += [*listing.namespaces, *listing.csi_nodes]
        objects += [*listing.classes, *listing.volumes, *listing.claims, *listing.groups, *listing.budgets]
        self._events += [Changed(None, item) for item in objects]
        for each in listing.priorities:
            self._set_class(each)
        self._groups.update(map(_group_key, listing.groups))
        for owner in listing.owners:
            self._set_owner(owner)
        for pod in listing.pods:
            self._set(pod)

    def adopt(self, events: Iterable[Event]) -> None:
        """Take over what its scheduler knows, with its plan, and events that it was not told yet."""
        self._is_copy = True
        self._uids += 1 << 32
        for item in self.scheduler.objects:
            if isinstance(item, Pod):
                self.pods[item.key] = item
            elif isinstance(item, Owner):
                self._owners[item.metadata.uid] = item
            elif isinstance(item, Group):
                self._groups.add(_group_key(item))
            elif isinstance(item, PriorityClass):
                self._classes[item.metadata.name] = item
            elif isinstance(item, Node):
                self.nodes.append(item)
        self._events += events

    def use_queues(self, tree: QueueTree) -> None:
        """Put queues in force, before anything else happens. The resources that they count must exist."""
        events = [Changed(None, QueueObject.of(tree.queues[name])) for name in tree.order]
        self._events[:0] = events

    def on_pod(self, handler: OnPod) -> None:
        """Call the handler with the old and the new state of each pod."""
        self._handlers.append(handler)

    # -- objects and their controllers -----------------------------------------------------------------------

    def apply(self, document: Json) -> None:
        """Create one object, and the objects that its controller creates."""
        version, kind = document.get("apiVersion", ""), document.get("kind", "")
        if kind == "Pod":
            key = _key(document)
            if key in self.pods:
                raise InvalidInput(f"pod {key} is already there: give the new one another name")
            self._create(document["metadata"], document["spec"], None)
        elif kind == "ConfigMap":
            config_map = msgspec.convert(document, ConfigMap)
            self._events.append(Changed(None, replace(config_map, metadata=self._meta(document["metadata"]))))
        elif kind == "Namespace":
            self._events.append(Changed(None, msgspec.convert(document, KubeObject)))
        elif (version, kind) == _PRIORITY_CLASS:
            self._set_class(msgspec.convert(document, PriorityClass))
        elif (adapter := _GROUPS.get((version, kind))) is not None:
            self._create_group(adapter, document)
        elif (version, kind) in _MADE:
            self._create_owner(OWNERS[version, kind], document)
        else:
            raise InvalidInput(
                f"{version} {kind}: the embedded cluster has Pod, PodGroup, Workload, Job and Deployment"
            )

    def has(self, document: Json) -> bool:
        """Whether an object of this kind and name exists: the API server would not create another."""
        version, kind = document.get("apiVersion", ""), document.get("kind", "")
        if (adapter := _GROUPS.get((version, kind))) is not None:
            return any(_group_key(group) in self._groups for group in self._groups_of(adapter, document))
        return (kind == "Pod" and _key(document) in self.pods) or self._owner(document) is not None

    def jobs_of(self, document: Json) -> list[EmbeddedJob]:
        """The jobs with pods of an existing object, or with placeholders for them."""
        owner = self._owner(document)
        uids = set() if owner is None else {owner.metadata.uid}
        for other in self._owners.values():  # the ReplicaSets of a Deployment
            if uids & {reference.uid for reference in other.metadata.owner_references or ()}:
                uids.add(other.metadata.uid)
        is_pod = document.get("kind") == "Pod"

        def belongs(pod: Pod) -> bool:
            if is_pod:
                return pod.key == _key(document)
            return any(reference.uid in uids for reference in pod.metadata.owner_references or ())

        return [job for job in self.jobs() if any(map(belongs, job.pods))]

    def _owner(self, document: Json) -> Owner | None:
        key, shape = _key(document), OWNERS.get((document.get("apiVersion", ""), document.get("kind", "")))
        owners = (owner for owner in self._owners.values() if type(owner) is shape)
        return next((owner for owner in owners if _object_key(owner.metadata) == key), None)

    def _create_group(self, adapter: Native, document: Json) -> None:
        for group in self._groups_of(adapter, document):
            self._groups.add(_group_key(group))
            self._events.append(Changed(None, group))

    def _groups_of(self, adapter: Native, document: Json) -> Iterable[Group]:
        item: PodGroup | Workload = msgspec.convert(document, adapter.resource.type)
        return adapter.groups(replace(item, metadata=self._meta(document["metadata"])))

    def _create_owner(self, shape: type[Owner], document: Json) -> None:
        owner = replace(msgspec.convert(document, shape), metadata=self._meta(document["metadata"]))
        self._set_owner(owner)
        if owner.kind == "Deployment":
            given = {"name": f"{owner.metadata.name}-{self._word(9)}", "namespace": owner.metadata.namespace}
            owner = ReplicaSet(metadata=self._meta(given, owner), spec=owner.spec)
            self._set_owner(owner)
        self._made[owner.metadata.uid] = (document["spec"], 0)
        for _ in range(0 if owner.spec.suspend else owner.pods):
            self._create_next(owner)

    def _create_next(self, owner: Owner, again: int | None = None) -> None:
        """Create the next pod of a Job or a ReplicaSet, or again the pod of an index."""
        spec, index = self._made[owner.metadata.uid]
        if again is None:
            self._made[owner.metadata.uid] = (spec, index + 1)
        else:
            index = again
        template = spec["template"]
        meta = {**(template.get("metadata") or {}), "namespace": owner.metadata.namespace}
        indexed = spec.get("completionMode") == "Indexed"
        middle = f"{index}-" if indexed else ""
        meta["name"] = f"{owner.metadata.name}-{middle}{self._word(5)}"
        if indexed:
            mark = {names.COMPLETION_INDEX: str(index)}
            meta["annotations"] = {**(meta.get("annotations") or {}), **mark}
            meta["labels"] = {**(meta.get("labels") or {}), **mark}
        self._create(meta, template["spec"], owner)

    def _release(self, release: Release) -> None:
        """Unsuspend a Job as the scheduler would; its controller creates the planned pods."""
        self._events.append(ReleaseFinished(ReleaseResult(release, BindOutcome.BOUND)))
        owner = release.carried_out(self._owners[release.owner.metadata.uid])
        self._set_owner(owner)
        uid, nodes = owner.metadata.uid, release.note.nodes
        if uid in self._made:
            self._made[uid] = (self._made[uid][0], len(nodes))
        for index, _ in nodes:
            pod = placeholder(owner, index)
            middle = f"{index}-" if is_indexed(owner) else ""
            given: Json = {
                "name": f"{owner.metadata.name}-{middle}{self._word(5)}",
                "namespace": owner.metadata.namespace,
                "labels": pod.labels,
                "annotations": pod.annotations,
            }
            if (
                pod.spec.scheduler_name != self.scheduler_name
            ):  # kube-scheduler binds it after its gate is removed
                gates = [*(pod.spec.scheduling_gates or ()), SchedulingGate(name=GATE)]
                pod = replace(pod, spec=replace(pod.spec, scheduling_gates=gates))
            if pod.spec.priority is None:
                priority = self._priority(pod.spec.priority_class_name)
                pod = replace(pod, spec=replace(pod.spec, priority=priority))
            self._set(replace(pod, metadata=self._meta(given, owner)))

    def _create(self, meta: Json, spec: Json, owner: Owner | None) -> None:
        spec = {"priority": self._priority(spec.get("priorityClassName")), **spec}
        pod = msgspec.convert({"spec": spec, "status": {"phase": "Pending"}}, Pod)
        self._set(replace(pod, metadata=self._meta(meta, owner)))

    def _priority(self, name: str | None) -> int:
        """The value of a PriorityClass; without a name, the default of all pods."""
        if not name:
            defaults = [each.value for each in self._classes.values() if each.global_default]
            return min(defaults, default=0)
        found = self._classes.get(name)
        if found is not None or name in _CRITICAL:
            return _CRITICAL[name] if found is None else found.value
        if self._classes or not self._is_copy:  # else PriorityClasses could not be read
            raise InvalidInput(f"there is no PriorityClass {name}: create it before its pods")
        return 0

    def _set_class(self, found: PriorityClass) -> None:
        self._classes[found.metadata.name] = found
        self._events.append(Changed(None, found))

    def _meta(self, given: Json, owner: Owner | None = None) -> ObjectMeta:
        """The metadata of a new object, with the fields that the API server adds."""
        self._uids += 1
        made = msgspec.convert(given, ObjectMeta)
        refs = None
        if owner is not None:
            version = next(key[0] for key, shape in OWNERS.items() if shape is type(owner))
            of = owner.metadata
            refs = [
                OwnerReference(
                    api_version=version, kind=owner.kind, name=of.name, uid=of.uid, controller=True
                )
            ]
        return replace(
            made,
            namespace=made.namespace or NAMESPACE,
            uid=f"00000000-0000-4000-8000-{self._uids:012x}",
            creation_timestamp=datetime.fromtimestamp(int(self.clock.now()), UTC),
            owner_references=refs,
        )

    def _set_owner(self, owner: Owner) -> None:
        self._owners[owner.metadata.uid] = owner
        self._events.append(Changed(None, owner))

    def _set(self, pod: Pod) -> None:
        old, self.pods[pod.key] = self.pods.get(pod.key), pod
        self._events.append(Changed(old, pod))
        for handler in self._handlers:
            handler(old, pod)

    def _remove(self, pod: Pod) -> None:
        old = self.pods.pop(pod.key)
        self._events.append(Changed(old, None))
        for handler in self._handlers:
            handler(old, None)

    def _word(self, length: int) -> str:
        return "".join(self._random.choices(_ALPHABET, k=length))

    # -- time ------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        return round(self.clock.now() * 1000)

    def settle(self) -> None:
        """Cycle until there is nothing more to do at this instant."""
        while True:
            events, self._events = self._events, []
            decisions = self.scheduler.handle(events, self.now)
            self._seen.update(dict.fromkeys(self.scheduler.state.queue.records.values()))
            self.plugin_faults.update(fault.summary for fault in decisions.plugin_faults)
            self._carry_out(decisions)
            if not (
                decisions.binds
                or decisions.releases
                or decisions.waiting
                or decisions.begun
                or self.scheduler.has_more
                or self._events
            ):
                return

    def next_time(self) -> int | None:
        """When the next pod ends or the next report is due, in ms; None if nothing is."""
        state, now = self.scheduler.state, self.now
        dues = (state.reports.next_due(), state.producer_gates.next_due())
        if self._ends or self._gone:
            dues = (self.scheduler.next_due(), None)
        times = [
            *self._ends.values(),
            *self._gone.values(),
            *(due for due in dues if due is not None and due > now),
        ]
        return min(times, default=None)

    def advance(self, to: int) -> None:
        """Advance the clock to a time before which nothing is due, and end the pods that have finished."""
        self.clock.advance(max(0.0, to / 1000 - self.clock.now()))
        now = self.now
        for key in [key for key, end in self._ends.items() if end <= now]:
            del self._ends[key]
            self._gone.pop(key, None)
            self._end(self.pods[key])
        for key in [key for key, end in self._gone.items() if end <= now]:
            del self._gone[key]
            self._ends.pop(key, None)
            self._kill(self.pods[key])

    def step(self) -> bool:
        """Advance to the next time at which something happens, and settle; False if nothing will happen."""
        at = self.next_time()
        if at is None:
            return False
        self.advance(at)
        self.settle()
        return True

    def _end(self, pod: Pod) -> None:
        self._set(replace(pod, status=replace(pod.status, phase="Succeeded")))
        for ref in pod.metadata.owner_references or ():
            owner = self._owners[ref.uid]
            done = replace(owner.status, succeeded=owner.succeeded + 1)
            if done.succeeded == (owner.spec.completions or owner.pods):
                done = replace(done, conditions=[Condition(type="Complete", status="True")])
            owner = replace(owner, status=done)
            self._set_owner(owner)
            if owner.kind == "Job" and self._made[ref.uid][1] < (owner.spec.completions or 0):
                self._create_next(owner)

    def _kill(self, pod: Pod) -> None:
        """The grace period of a pod that was preempted is over."""
        start = self._began[pod.key]
        saved = [at // 1000 for at in (parse_rfc3339(pod.annotations.get(names.CHECKPOINT, "")),) if at]
        saved = [at for at in saved if start <= at <= self.now]
        self.ended.append(Ended(pod, start, max(saved, default=start), self.now))
        self._remove(pod)

    # -- results of the jobs ---------------------------------------------------------------------------------

    @property
    def scheduler_name(self) -> str:
        return self.scheduler.config.scheduler_name

    @property
    def placements_tried(self) -> int:
        return self.scheduler.state.queue.tries

    def jobs(self) -> list[EmbeddedJob]:
        """All jobs that the queue has had, in order of submission, then the pods that never became a job."""
        records = [record for record in self._seen if not _is_withdrawn(record)]
        jobs = [self._job(record) for record in sorted(records, key=lambda record: record.order[1:])]
        known = {pod.key for record in records for pod in _request(record).pods}
        groups = self.scheduler.state.groups
        left: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if pod.key not in known and pod.spec.scheduler_name == groups.scheduler:
                left.setdefault(groups.of(pod), []).append(pod)
        for key, pods in left.items():
            gang = groups.gang(key)
            reason = None if gang is None else gang.fault or gang.missing
            reason = reason or self.scheduler.state.eligibility.reason(key)
            message = "" if reason is None else text(reason)
            jobs.append(EmbeddedJob(key, tuple(pods), state=JobState.GATHERING, reason=message))
        return jobs

    def namespaces(self) -> set[str]:
        """Those of pods and of what makes them."""
        spaces = {pod.metadata.namespace for pod in self.pods.values()}
        return spaces | {owner.metadata.namespace for owner in self._owners.values()}

    def plan(self) -> dict[str, int]:
        """When each waiting job would start by a plan in order, in ms."""
        queue = self.scheduler.state.queue
        waiting = list(queue.pending)
        requests = [queue.promises.request(record) for record in waiting]
        starts = queue.planner.sketch(queue.now, requests, in_order=False)
        return {record.key: at for record, at in zip(waiting, starts, strict=True) if at is not None}

    def why(self, key: str) -> WaitReason:
        """Why a job of the queue waits, and changes that would start it sooner."""
        return why(self.scheduler.state.queue, key)

    def preempts(self, job: EmbeddedJob) -> tuple[tuple[EndsFor, ...], tuple[Reason, ...]]:
        """The work that would be ended for a waiting job, and what preemption does for it, or why it does
        nothing."""
        state = self.scheduler.state
        pod_set = state.pod_sets.by_key.get(job.key)
        if pod_set is None or pod_set.state.has_nodes:
            return (), ()
        capacities, found = state.queue.planner.capacities(), list[EndsFor]()
        for order in state.preemption.orders(pod_set):
            needs: dict[str, int] = {}
            for pod in order.pods:
                add_into(needs, pod_requests(pod))
            at, lost = max(order.at, self.now), order.lost + max(0, order.at - self.now)
            cost = dominant_share(needs, capacities) * lost / 1000
            found.append(EndsFor(order.group, len(order.pods), at, lost, cost))
        return tuple(found), state.preemption.verdict(pod_set)

    def warnings(self, job: EmbeddedJob) -> tuple[Reason, ...]:
        """Fields that the objects of a job declare and Fluence does not use."""
        groups = self.scheduler.state.groups
        gang = groups.gang(groups.of(job.pods[0]))
        return gang.warnings if gang is not None else ()

    def _job(self, record: JobRecord) -> EmbeddedJob:
        job = record.job
        # Placeholders of a held Job are not objects of the API server.
        pods = tuple(self.pods.get(pod.key, pod) for pod in _request(record).pods)
        if record.started is not None:  # a gang with a smaller minimum started without the others
            pods = tuple(pod for pod in pods if pod.spec.node_name) or pods  # NB or none is bound yet
        report = self.scheduler.state.reports.said.get(record.key)
        return EmbeddedJob(
            record.key,
            pods,
            user=job.user,
            queue=job.queue,
            limit=job.limit,
            promised=record.promised,
            expected=record.first_expected,
            started=record.started,
            ended=record.ended,
            backfilled=record.backfilled,
            state=record.state,
            reason="" if report is None else texts(report.report.reasons),
            broken=text(record.broken[0].cause) if record.broken else "",
            priority=pods[0].spec.priority or 0,
            preempted=record.ended is not None and any(pod.metadata.uid in self._ended for pod in pods),
        )

    # -- what the scheduler decided --------------------------------------------------------------------------

    def _carry_out(self, decisions: Decisions) -> None:
        for binds in decisions.binds:
            for bind in binds:
                self._bind(bind)
        for release in decisions.releases:
            self._release(release)
        for order in decisions.gates:
            self._set(carried_out(self.pods[order.pod.key], order))
        for waiting in decisions.waiting:
            self._tell(waiting)
        for gang in decisions.begun:
            self._tell_group(gang, StatusReport(JobState.RUNNING))
        for nomination in decisions.nominations:
            nominated = self.pods.get(nomination.pod.key)
            if nominated is not None and not nominated.spec.node_name:
                status = replace(nominated.status, nominated_node_name=nomination.node)
                self._set(replace(nominated, status=status))
        for plan in decisions.planned_ends:
            if not self.is_asked and (told := self.pods.get(plan.pod.key)) is not None:
                self._set(plan.carried_out(told))
        for preemption in decisions.preemptions:
            if not self.is_asked:
                self._preempt(preemption)

    def _preempt(self, order: Preempt) -> None:
        """Preempt pods: delete them, or suspend their Jobs again, whose controller then deletes them."""
        pods = [pod for each in order.pods if (pod := self.pods.get(each.key)) is not None]
        for owner in order.owners:
            held = self._owners[owner.metadata.uid]
            meta = replace(held.metadata, generation=(held.metadata.generation or 0) + 1)
            self._set_owner(replace(held, metadata=meta, spec=replace(held.spec, suspend=True)))
        for pod in pods:
            if pod.is_terminal or pod.metadata.deletion_timestamp is not None:
                continue
            given = pod.spec.termination_grace_period_seconds
            gone = self.now + 1000 * (30 if given is None else max(0, given))
            target = Condition(type=DISRUPTION_TARGET, status="True", reason=BY_SCHEDULER)
            deleted = datetime.fromtimestamp(gone / 1000, UTC)
            pod = replace(
                pod,
                metadata=replace(pod.metadata, deletion_timestamp=deleted),
                status=replace(pod.status, conditions=with_condition(pod.status.conditions, target)),
            )
            self._gone[pod.key] = gone
            self._ended.add(pod.metadata.uid)
            self._set(pod)
            if not order.owners:
                self._replace(pod)

    def _replace(self, pod: Pod) -> None:
        """The controller of a pod that is being deleted creates another one."""
        for reference in pod.metadata.owner_references or ():
            owner = self._owners[reference.uid]
            if reference.uid in self._made:
                index = pod.annotations.get(names.COMPLETION_INDEX)
                self._create_next(owner, 0 if index is None else int(index))

    def _bind(self, bind: Bind) -> None:
        self._events.append(BindFinished(BindResult(bind, BindOutcome.BOUND)))
        pod = bind.carried_out(self.pods[bind.pod.key])
        gates = [gate for gate in pod.spec.scheduling_gates or () if gate.name != GATE]
        pod = replace(pod, spec=replace(pod.spec, scheduling_gates=gates or None))
        condition = Condition(type=conditions.POD_SCHEDULED, status="True")
        granted = [condition] if bind.grant is None else [condition, bind.grant.condition()]
        pod = replace(pod, status=replace(pod.status, phase="Running", conditions=granted))
        runs = run_seconds(pod)
        if runs is not None:
            self._ends[pod.key] = self.now + round(runs * 1000)
        self._began[pod.key] = self.now
        self._set(pod)

    def _tell(self, waiting: Waiting) -> None:
        for member in waiting.pods:
            pod = self.pods.get(member.key)
            if pod is None:
                continue  # a placeholder: its FluxJob says why it waits
            patch = conditions.pod_condition(pod, waiting.report, now=self.now)
            if patch is not None:
                self._set(replace(pod, status=replace(pod.status, conditions=_conditions(patch))))
        self._tell_group(waiting.gang, waiting.report)

    def _tell_group(self, gang: Gang, report: StatusReport) -> None:
        if gang.group is None:
            return
        patch = conditions.group_condition(gang.group, report, now=self.now)
        if patch is not None:
            written = _conditions(patch)
            group: Group = replace(
                gang.group, conditions=tuple(written), is_scheduled=written[0].status == "True"
            )
            self._events.append(Changed(gang.group, group))


def check_manifest(document: Json, *, where: str) -> None:
    """Refuse an object that could not be created; the error names the invalid field."""
    kind = (document["apiVersion"], document["kind"])
    if kind[1] == "ConfigMap":
        _check_devices(document, where)
        return
    if kind[1] in ("Namespace", "PriorityClass"):
        _check_plain(document, where)
        return
    spec = document.get("spec")
    shape: Any = Pod if kind[1] == "Pod" else OWNERS[kind] if kind in _MADE else _GROUPS[kind].resource.type
    try:
        meta = msgspec.convert(document.get("metadata"), ObjectMeta)
        if not isinstance(spec, dict):
            raise InvalidInput("must be an object", where=f"{where}: spec")
        msgspec.convert(document, shape)
        if kind in _MADE:
            template = spec.get("template")
            if not isinstance(template, dict) or not isinstance(template.get("spec"), dict):
                raise InvalidInput("must have the spec of its pods", where=f"{where}: spec.template")
            msgspec.convert(template, Pod)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=where) from None
    if not meta.name:
        raise InvalidInput("is missing: name the object", where=f"{where}: metadata.name")


def _check_plain(document: Json, where: str) -> None:
    try:
        shape: type[KubeObject | PriorityClass] = KubeObject
        if document["kind"] == "PriorityClass":
            shape = PriorityClass
        found = msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=where) from None
    if not found.metadata.name:
        raise InvalidInput("is missing: name the object", where=f"{where}: metadata.name")


def _check_devices(document: Json, where: str) -> None:
    try:
        config = DeviceConfig()
        config.read(msgspec.convert(document, ConfigMap), DEFAULT.own_types)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=where) from None
    if config.fault:
        raise InvalidInput(config.fault, where=where)


def _key(document: Json) -> str:
    meta = document["metadata"]
    return f"{meta.get('namespace') or NAMESPACE}/{meta['name']}"


def _object_key(meta: ObjectMeta) -> str:
    return f"{meta.namespace or NAMESPACE}/{meta.name}"


def _group_key(group: Group) -> str:
    return f"{group.key}@{group.source}"


def _request(record: JobRecord) -> PodSetRequest:
    assert isinstance(record.job.request, PodSetRequest)
    return record.job.request


def _is_withdrawn(record: JobRecord) -> bool:
    """Whether the queue dropped this job before it started: its group changed and was submitted again."""
    return record.state is JobState.CANCELLED and record.started is None


def _conditions(patch: conditions.Json) -> list[Condition]:
    status = patch["status"]
    assert isinstance(status, dict)
    return msgspec.convert(status["conditions"], list[Condition])


def _ready(document: Json) -> Node:
    """A node as its kubelet would report it."""
    status = {**document["status"], "conditions": [{"type": "Ready", "status": "True"}]}
    return msgspec.convert({**document, "status": status}, Node)


def run_seconds(pod: Pod) -> float | None:
    """How long a pod runs, as in the sandbox: its annotation or its `sleep N`; without, a second in a Job."""
    if pod.spec.restart_policy not in ("Never", "OnFailure"):
        return None
    annotation = pod.annotations.get(_RUN_SECONDS)
    if annotation is not None and (length := parse_duration(annotation)) is not None:
        return length / 1000
    for container in pod.spec.containers or ():
        match = _SLEEP.search(" ".join((*(container.command or ()), *(container.args or ()))))
        if match is not None:
            return float(match[1]) * _SECONDS[match[2]]
    of_job = any(reference.kind == "Job" for reference in pod.metadata.owner_references or ())
    return 1.0 if of_job else None
