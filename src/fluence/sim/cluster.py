"""EmbeddedCluster: a little Kubernetes in memory, for the live scheduler's cycle and a clock that jumps.

    cluster = EmbeddedCluster(nodes)
    cluster.apply(manifest)         PodGroup or Workload, Pod, Job, Deployment: its pods are there at once
    cluster.settle()                cycles until nothing more happens at this instant
    cluster.step()                  on to the next time at which something does

The controllers make pods as the real ones do, nodes run a pod for its `sleep N`, and every bind succeeds.
What decides is `fluence.schedule.scheduler.Scheduler`, with the live scheduler's settings.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from fluence import names
from fluence.act import conditions
from fluence.clock import ManualClock
from fluence.errors import InvalidInput
from fluence.kube.gangs import ADAPTERS, Native, PodGroup, Workload
from fluence.model.group import Group
from fluence.model.meta import Condition, ObjectMeta, OwnerReference
from fluence.model.node import Node
from fluence.model.owner import OWNERS, Owner, ReplicaSet
from fluence.model.pod import Pod
from fluence.schedule.actions import Bind, BindOutcome, BindResult
from fluence.schedule.build import scheduler_for
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import BindFinished, Changed, Event
from fluence.schedule.gang import Gang
from fluence.schedule.settings import SchedulerSettings
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.status_reports import Waiting

NAMESPACE = "default"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # of the names that controllers make up: no vowels, no words
_SLEEP = re.compile(r"(?:^|[\s/;&|])sleep +(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_GROUPS: dict[tuple[str, str], Native] = {
    (each.resource.api_version, each.resource.kind): each for each in ADAPTERS
}
_MADE = (("batch/v1", "Job"), ("apps/v1", "Deployment"))  # whose controllers are played here

Json = dict[str, Any]
OnPod = Callable[[Pod | None, Pod | None], None]


class EmbeddedCluster:
    """Nodes, objects and a scheduler; `pods` is what `kubectl get pods` would list."""

    def __init__(
        self,
        nodes: Iterable[Json],
        *,
        settings: SchedulerSettings | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        settings = settings or SchedulerSettings()
        self.clock = clock or ManualClock()
        self.scheduler = scheduler_for(settings, native=True)
        self._events: list[Event] = []  # that the scheduler has not been told yet
        self.pods: dict[str, Pod] = {}
        self.nodes = [_ready(each) for each in nodes]
        self._owners: dict[str, Owner] = {}
        self._ends: dict[str, float] = {}  # by pod: when it will have run
        self._handlers: list[OnPod] = []
        self._random = random.Random(0)  # the same names every time
        self._uids = 0
        self._written = conditions.WrittenMessages()
        for node in self.nodes:
            self._events.append(Changed(None, node))

    def on_pod(self, handler: OnPod) -> None:
        """Call this with each pod as it was and as it is."""
        self._handlers.append(handler)

    # -- objects and their controllers -----------------------------------------------------------------------

    def apply(self, document: Json) -> None:
        """Create one object, and what a controller makes of it."""
        version, kind = document.get("apiVersion", ""), document.get("kind", "")
        if kind == "Pod":
            self._create(document["metadata"], document["spec"], None)
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
        template, spec = document["spec"]["template"], document["spec"]
        if owner.kind == "Deployment":
            name = f"{owner.metadata.name}-{self._word(9)}"
            owner = ReplicaSet(metadata=self._meta({"name": name}, owner), spec=owner.spec)
            self._set_owner(owner)
        indexed = spec.get("completionMode") == "Indexed"
        for index in range(owner.pods):
            meta = dict(template.get("metadata") or {})
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
        return int(self.clock.now() * 1000)

    def settle(self) -> None:
        """Cycle until there is nothing more to do at this instant."""
        while True:
            events, self._events = self._events, []
            decisions = self.scheduler.handle(events, self.now)
            self._carry_out(decisions)
            if not (
                decisions.binds
                or decisions.waiting
                or decisions.begun
                or self.scheduler.has_more
                or self._events
            ):
                return

    def step(self) -> bool:
        """Go on to the next pod that ends or word that is due, and settle; False if nothing ever will be."""
        due = self.scheduler.next_due() if self._ends else self.scheduler.state.reports.next_due()
        times = [*self._ends.values(), *((due / 1000,) if due is not None and due > self.now else ())]
        if not times:
            return False
        self.clock.advance(max(0.0, min(times) - self.clock.now()))
        for key in [key for key, end in self._ends.items() if end <= self.clock.now()]:
            del self._ends[key]
            self._end(self.pods[key])
        self.settle()
        return True

    def _end(self, pod: Pod) -> None:
        self._set(replace(pod, status=replace(pod.status, phase="Succeeded")))
        for ref in pod.metadata.owner_references or ():
            owner = self._owners[ref.uid]
            status = replace(owner.status, succeeded=owner.succeeded + 1)
            self._set_owner(replace(owner, status=status))

    # -- what the scheduler decided --------------------------------------------------------------------------

    def _carry_out(self, decisions: Decisions) -> None:
        for binds in decisions.binds:
            for bind in binds:
                self._bind(bind)
        for waiting in decisions.waiting:
            self._tell(waiting)
        for gang in decisions.begun:
            self._tell_group(gang, StatusReport(SchedulingStatus.SCHEDULED))

    def _bind(self, bind: Bind) -> None:
        self._events.append(BindFinished(BindResult(bind, BindOutcome.BOUND)))
        pod = self.pods[bind.pod.key]
        said = {**pod.annotations, **bind.annotations}
        condition = Condition(type=conditions.POD_SCHEDULED, status="True")
        pod = replace(
            pod,
            metadata=replace(pod.metadata, annotations=said),
            spec=replace(pod.spec, node_name=bind.node),
            status=replace(pod.status, phase="Running", conditions=[condition]),
        )
        runs = _runs(pod)
        if runs is not None:
            self._ends[pod.key] = self.clock.now() + runs
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


def _conditions(patch: conditions.Json) -> list[Condition]:
    status = patch["status"]
    assert isinstance(status, dict)
    return msgspec.convert(status["conditions"], list[Condition])


def _ready(document: Json) -> Node:
    """A node as its kubelet would report it."""
    status = {**document["status"], "conditions": [{"type": "Ready", "status": "True"}]}
    return msgspec.convert({**document, "status": status}, Node)


def _runs(pod: Pod) -> float | None:
    """How many seconds a pod runs, as in the sandbox: its `sleep N`; without one, a second in a Job."""
    if pod.spec.restart_policy not in ("Never", "OnFailure"):
        return None
    for container in pod.spec.containers or ():
        found = _SLEEP.search(" ".join((*(container.command or ()), *(container.args or ()))))
        if found is not None:
            return float(found[1]) * _SECONDS[found[2]]
    of_job = any(each.kind == "Job" for each in pod.metadata.owner_references or ())
    return 1.0 if of_job else None
