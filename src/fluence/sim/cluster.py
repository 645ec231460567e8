"""EmbeddedCluster: Kubernetes objects in memory, for the live scheduler's cycle and a clock that jumps.

    cluster = EmbeddedCluster(nodes)
    cluster.apply(manifest)         PodGroup or Workload, Pod, Job, Deployment: its pods are there at once
    cluster.settle()                cycles until nothing more happens at this instant
    cluster.step()                  on to the next time at which something does
    cluster.jobs()                  what the queue made of it: waits, promises, starts, ends

The controllers make pods as the real ones do, nodes run a pod for its `sleep N`, and every bind succeeds.
What decides is `fluence.schedule.scheduler.Scheduler`, with the live scheduler's settings.
"""

from __future__ import annotations

import random
import re
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
from fluence.errors import InvalidInput
from fluence.kube.gangs import ADAPTERS, Native, PodGroup, Workload
from fluence.kube.listing import ClusterListing
from fluence.messages import text, texts
from fluence.model.config_map import ConfigMap
from fluence.model.group import Group
from fluence.model.meta import Condition, ObjectMeta, OwnerReference
from fluence.model.node import Node
from fluence.model.owner import OWNERS, Owner, ReplicaSet
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.queue.job import JobRecord, Phase
from fluence.queue.reasons import WaitReason, why
from fluence.schedule.actions import Bind, BindOutcome, BindResult
from fluence.schedule.build import scheduler_for
from fluence.schedule.cycle import Decisions
from fluence.schedule.device_config import DeviceConfig
from fluence.schedule.events import BindFinished, Changed, Event, Object
from fluence.schedule.gang import Gang
from fluence.schedule.planner import PodSetRequest
from fluence.schedule.producer_gates import carried_out
from fluence.schedule.settings import SchedulerSettings
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.status_reports import Waiting
from fluence.units import parse_duration

NAMESPACE = "default"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of the names that controllers make up: no vowels, no words
_SLEEP = re.compile(r"(?:^|[\s/;&|])sleep +(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_RUN_SECONDS = "sandbox.fluence.flux-framework.org/run-seconds"
_GROUPS: dict[tuple[str, str], Native] = {
    (each.resource.api_version, each.resource.kind): each for each in ADAPTERS
}
_MADE = (("batch/v1", "Job"), ("apps/v1", "Deployment"))  # whose controllers are played here
KINDS = frozenset((("v1", "Pod"), ("v1", "ConfigMap"), *_MADE, *_GROUPS))
"""API version and kind of what it understands."""

Json = dict[str, Any]
OnPod = Callable[[Pod | None, Pod | None], None]


@dataclass(frozen=True, slots=True)
class EmbeddedJob:
    """A job of the scheduler's queue, and its pods; times are the queue's milliseconds since 1970."""

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
    state: str = "pending"
    reason: str = ""
    """Why it has not started, as its pods are told."""
    broken: str = ""


class EmbeddedCluster:
    """Nodes, objects and a scheduler; `pods` is what `kubectl get pods` would list."""

    def __init__(
        self,
        nodes: Iterable[Json],
        *,
        settings: SchedulerSettings | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.clock = clock or ManualClock()
        self.scheduler = scheduler_for(settings or SchedulerSettings(), native=True)
        self._events: list[Event] = []  # that the scheduler has not been told yet
        self.pods: dict[str, Pod] = {}
        self.nodes = [_ready(each) for each in nodes]
        self._owners: dict[str, Owner] = {}
        self._made: dict[str, tuple[Json, int]] = {}  # by owner: its spec, and how many pods it has made
        self._seen: dict[JobRecord, None] = {}  # every job that the queue has had
        self._ends: dict[str, int] = {}  # by pod: when it will have run
        self._handlers: list[OnPod] = []
        self._random = random.Random(0)  # the same names every time
        self._uids = 0
        self._written = conditions.WrittenMessages()
        for node in self.nodes:
            self._events.append(Changed(None, node))

    def load(self, listing: ClusterListing) -> None:
        """Take over what a running cluster has, as its watches would tell it."""
        self.scheduler.set_native(listing.native, listing.systems)
        self._uids += 1 << 32  # NB what is listed may come from another cluster of this kind
        self.nodes += listing.nodes
        # What pods refer to comes first: then none is looked at twice.
        objects: list[Object] = [*listing.devices, *listing.nodes, *listing.namespaces, *listing.csi_nodes]
        objects += [*listing.classes, *listing.volumes, *listing.claims, *listing.groups]
        self._events += [Changed(None, each) for each in objects]
        for owner in listing.owners:
            self._set_owner(owner)
        for pod in listing.pods:
            self._set(pod)

    def on_pod(self, handler: OnPod) -> None:
        """Call this with each pod as it was and as it is."""
        self._handlers.append(handler)

    # -- objects and their controllers -----------------------------------------------------------------------

    def apply(self, document: Json) -> None:
        """Create one object, and what a controller makes of it."""
        version, kind = document.get("apiVersion", ""), document.get("kind", "")
        if kind == "Pod":
            key = f"{document['metadata'].get('namespace') or NAMESPACE}/{document['metadata']['name']}"
            if key in self.pods:
                raise InvalidInput(f"pod {key} is already there: give the new one another name")
            self._create(document["metadata"], document["spec"], None)
        elif kind == "ConfigMap":
            found = msgspec.convert(document, ConfigMap)
            self._events.append(Changed(None, replace(found, metadata=self._meta(document["metadata"]))))
        elif (adapter := _GROUPS.get((version, kind))) is not None:
            self._create_group(adapter, document)
        elif (version, kind) in _MADE:
            self._create_owner(OWNERS[version, kind], document)
        else:
            raise InvalidInput(
                f"{version} {kind}: the embedded cluster has Pod, PodGroup, Workload, Job and Deployment"
            )

    def _create_group(self, adapter: Native, document: Json) -> None:
        item: PodGroup | Workload = msgspec.convert(document, adapter.resource.type)
        for group in adapter.groups(replace(item, metadata=self._meta(document["metadata"]))):
            self._events.append(Changed(None, group))

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

    def _create_next(self, owner: Owner) -> None:
        """The next pod of a Job or a ReplicaSet."""
        spec, index = self._made[owner.metadata.uid]
        self._made[owner.metadata.uid] = (spec, index + 1)
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

    def _create(self, meta: Json, spec: Json, owner: Owner | None) -> None:
        pod = msgspec.convert({"spec": {"priority": 0, **spec}, "status": {"phase": "Pending"}}, Pod)
        self._set(replace(pod, metadata=self._meta(meta, owner)))

    def _meta(self, given: Json, owner: Owner | None = None) -> ObjectMeta:
        """What the API server adds to the metadata of a new object."""
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
            self._carry_out(decisions)
            if not (
                decisions.binds
                or decisions.waiting
                or decisions.begun
                or self.scheduler.has_more
                or self._events
            ):
                return

    def next_time(self) -> int | None:
        """When the next pod ends or the next report is due, in ms; None if nothing ever will be."""
        state = self.scheduler.state
        dues = (state.reports.next_due(), state.producer_gates.next_due())
        if self._ends:
            dues = (self.scheduler.next_due(), None)
        times = [*self._ends.values(), *(due for due in dues if due is not None and due > self.now)]
        return min(times, default=None)

    def advance(self, to: int) -> None:
        """Let time pass up to a moment before which nothing is due, and end the pods that have run."""
        self.clock.advance(max(0.0, to / 1000 - self.clock.now()))
        for key in [key for key, end in self._ends.items() if end <= self.now]:
            del self._ends[key]
            self._end(self.pods[key])

    def step(self) -> bool:
        """Go on to the next moment at which something happens, and settle; False if nothing ever will."""
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

    # -- what became of the jobs -----------------------------------------------------------------------------

    @property
    def scheduler_name(self) -> str:
        return self.scheduler.config.scheduler_name

    @property
    def placements_tried(self) -> int:
        return self.scheduler.state.queue.tries

    def jobs(self) -> list[EmbeddedJob]:
        """Every job that the queue has had, in order of submission, then the pods that never became one."""
        records = [each for each in self._seen if not _is_withdrawn(each)]
        found = [self._job(each) for each in sorted(records, key=lambda each: each.order[1:])]
        known = {pod.key for each in records for pod in _request(each).pods}
        groups = self.scheduler.state.groups
        left: dict[str, list[Pod]] = {}
        for pod in self.pods.values():
            if pod.key not in known and pod.spec.scheduler_name == groups.scheduler:
                left.setdefault(groups.of(pod), []).append(pod)
        for key, pods in left.items():
            gang = groups.gang(key)
            reason = None if gang is None else gang.fault or gang.missing
            said = "" if reason is None else text(reason)
            found.append(EmbeddedJob(key, tuple(pods), state="incomplete", reason=said))
        return found

    def plan(self) -> dict[str, int]:
        """When each waiting job would start by a plan in order, in ms."""
        queue = self.scheduler.state.queue
        waiting = list(queue.pending)
        requests = [queue.promises.request(record) for record in waiting]
        starts = queue.planner.sketch(queue.now, requests, in_order=False)
        return {record.key: at for record, at in zip(waiting, starts, strict=True) if at is not None}

    def why(self, key: str) -> WaitReason:
        """Why a job of the queue waits, and what would start it sooner."""
        return why(self.scheduler.state.queue, key)

    def warnings(self, job: EmbeddedJob) -> tuple[Reason, ...]:
        """What the objects of a job declare and nobody uses."""
        groups = self.scheduler.state.groups
        gang = groups.gang(groups.of(job.pods[0]))
        return gang.warnings if gang is not None else ()

    def _job(self, record: JobRecord) -> EmbeddedJob:
        job = record.job
        pods = tuple(self.pods[pod.key] for pod in _request(record).pods)
        if record.started is not None:  # one that needed fewer began without the others
            pods = tuple(pod for pod in pods if pod.spec.node_name) or pods  # NB or none is bound yet
        said = self.scheduler.state.reports.said.get(record.key)
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
            state=record.phase.value,
            reason="" if said is None else texts(said.report.reasons),
            broken=text(record.broken[0].cause) if record.broken else "",
        )

    # -- what the scheduler decided --------------------------------------------------------------------------

    def _carry_out(self, decisions: Decisions) -> None:
        for binds in decisions.binds:
            for bind in binds:
                self._bind(bind)
        for order in decisions.gates:
            self._set(carried_out(self.pods[order.pod.key], order))
        for waiting in decisions.waiting:
            self._tell(waiting)
        for gang in decisions.begun:
            self._tell_group(gang, StatusReport(SchedulingStatus.SCHEDULED))

    def _bind(self, bind: Bind) -> None:
        self._events.append(BindFinished(BindResult(bind, BindOutcome.BOUND)))
        pod = bind.carried_out(self.pods[bind.pod.key])
        condition = Condition(type=conditions.POD_SCHEDULED, status="True")
        said = [condition] if bind.grant is None else [condition, bind.grant.condition()]
        pod = replace(pod, status=replace(pod.status, phase="Running", conditions=said))
        runs = run_seconds(pod)
        if runs is not None:
            self._ends[pod.key] = self.now + round(runs * 1000)
        self._set(pod)

    def _tell(self, waiting: Waiting) -> None:
        for each in waiting.pods:
            pod = self.pods[each.key]
            patch = conditions.pod_condition(pod, waiting.report, now=self.now, memory=self._written)
            if patch is not None:
                self._set(replace(pod, status=replace(pod.status, conditions=_conditions(patch))))
        self._tell_group(waiting.gang, waiting.report)

    def _tell_group(self, gang: Gang, report: StatusReport) -> None:
        if gang.group is None:
            return
        patch = conditions.group_condition(gang.group, report, now=self.now, memory=self._written)
        if patch is not None:
            told = _conditions(patch)
            group: Group = replace(gang.group, conditions=tuple(told), is_scheduled=told[0].status == "True")
            self._events.append(Changed(gang.group, group))


def check_manifest(document: Json, *, where: str) -> None:
    """Refuse an object that could not be created, with the place that is wrong in it."""
    kind = (document["apiVersion"], document["kind"])
    if kind[1] == "ConfigMap":
        _check_devices(document, where)
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


def _check_devices(document: Json, where: str) -> None:
    try:
        config = DeviceConfig()
        config.read(msgspec.convert(document, ConfigMap), DEFAULT.own_types)
    except msgspec.ValidationError as error:
        raise InvalidInput(str(error), where=where) from None
    if config.fault:
        raise InvalidInput(config.fault, where=where)


def _request(record: JobRecord) -> PodSetRequest:
    assert isinstance(record.job.request, PodSetRequest)
    return record.job.request


def _is_withdrawn(record: JobRecord) -> bool:
    """Whether the queue gave this job up before it started: its group changed, and is in it anew."""
    return record.phase is Phase.CANCELLED and record.started is None


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
    said = pod.annotations.get(_RUN_SECONDS)
    if said is not None and (length := parse_duration(said)) is not None:
        return length / 1000
    for container in pod.spec.containers or ():
        found = _SLEEP.search(" ".join((*(container.command or ()), *(container.args or ()))))
        if found is not None:
            return float(found[1]) * _SECONDS[found[2]]
    of_job = any(each.kind == "Job" for each in pod.metadata.owner_references or ())
    return 1.0 if of_job else None
