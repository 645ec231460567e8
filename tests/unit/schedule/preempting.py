"""A cluster in which binds, preemptions and nominations are carried out, and pods end after their grace."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from fluence import names
from fluence.act.conditions import pod_condition
from fluence.model.grant import with_condition
from fluence.model.meta import Condition, LabelSelector, ObjectMeta
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queue_documents import QueueObject
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Object
from fluence.schedule.preemption.preemption import BY_SCHEDULER, DISRUPTION_TARGET
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_promised_starts import NOW, SECOND, node


def prioritised(name: str, priority: int, cpu: str = "1", grace: int = 30, **more: Any) -> Pod:
    return kit.pod(name, cpu=cpu, priority=priority, termination_grace_period_seconds=grace, **more)


def gang(name: str, size: int, priority: int, *, minimum: int | None = None, **more: Any) -> list[Pod]:
    labels = {kit.GROUP: name, kit.SIZE: str(size if minimum is None else minimum)}
    return [prioritised(f"{name}-{i}", priority, labels=labels, **more) for i in range(size)]


def budget(name: str, allowed: int, namespace: str = "default", **labels: str) -> PodDisruptionBudget:
    status = type(PodDisruptionBudget().status)(disruptions_allowed=allowed)
    spec = type(PodDisruptionBudget().spec)(selector=LabelSelector(match_labels=labels))
    return PodDisruptionBudget(metadata=ObjectMeta(name=name, namespace=namespace), spec=spec, status=status)


class PreemptionWorld(Driver):
    """``nodes`` of ``cpu`` each."""

    def __init__(self, nodes: int = 1, cpu: int = 2, **config: Any) -> None:
        super().__init__(**config)
        self.config_of_scheduler = config
        self.now = NOW
        self.pods: dict[str, Pod] = {}
        self.nodes = [node(f"n{number}", cpu) for number in range(nodes)]
        self.budgets: list[PodDisruptionBudget] = []
        self.queues: dict[str, QueueObject] = {}
        self.deleted: list[str] = []  # names of pods whose end was ordered, in order
        self.carries_out = True
        self.ends: dict[str, int] = {}  # by name: when pods end by themselves
        self.recreated: set[str] = set()  # names of pods for which a controller makes others
        for each in self.nodes:
            self.set_node(each)

    def add(self, *pods: Pod) -> None:
        for pod in pods:
            self.pods[pod.metadata.name] = pod
            self.set_pod(pod)

    def protect(self, *budgets: PodDisruptionBudget) -> None:
        for each in budgets:
            self.budgets.append(each)
            self.handle(Changed(None, each))

    def use(self, **specs: dict[str, Any]) -> None:
        """Have these Queue objects, by name, and wait until they are in force."""
        for name, spec in specs.items():
            self.queues[name] = QueueObject(metadata=ObjectMeta(name=name, uid=f"queue-{name}"), spec=spec)
            self.handle(Changed(None, self.queues[name]))
        self.settle(2)

    def remove(self, name: str) -> None:
        self.remove_pod(self.pods.pop(name))

    def restart(self) -> None:
        """Another process, which knows what the server has."""
        self.scheduler = Scheduler(SchedulerConfig(**self.config_of_scheduler))
        items: list[Object] = [*self.nodes, *self.queues.values(), *self.budgets, *self.pods.values()]
        for item in items:
            self.handle(Changed(None, item))

    def delete(self, name: str) -> None:
        pod = self.pods[name]
        if pod.metadata.deletion_timestamp is None:
            grace = pod.spec.termination_grace_period_seconds or 0
            at = datetime.fromtimestamp(self.now / 1000 + grace, UTC)
            self.add(replace(pod, metadata=replace(pod.metadata, deletion_timestamp=at)))

    def end_due(self) -> None:
        """Pods whose grace period is over are gone."""
        for name, pod in list(self.pods.items()):
            at = pod.metadata.deletion_timestamp
            if at is not None and at.timestamp() * 1000 <= self.now and not pod.metadata.finalizers:
                self.remove(name)
                if name in self.recreated:
                    self.recreate(pod)

    def recreate(self, pod: Pod) -> None:
        """A controller makes another pod of the same template."""
        base, _, number = pod.metadata.name.partition("--")
        name = f"{base}--{int(number or 0) + 1}"
        created = datetime.fromtimestamp(self.now / 1000, UTC)
        meta = replace(
            pod.metadata, name=name, uid=f"uid-{name}", creation_timestamp=created, deletion_timestamp=None
        )
        self.recreated.add(name)
        self.add(Pod(metadata=meta, spec=replace(pod.spec, node_name=None)))

    def step(self) -> Decisions:
        decisions = self.cycle(self.now)
        for bind in (each for binds in decisions.binds for each in binds):
            pod = self.pods.get(bind.pod.metadata.name)
            if pod is not None:
                self.add(bind.carried_out(pod))
        for waiting in decisions.waiting:
            for told in waiting.pods:
                pod = self.pods.get(told.metadata.name)
                patch = None if pod is None else pod_condition(pod, waiting.report, now=self.now)
                if pod is not None and patch is not None:
                    self._patch_status(pod, patch)
        if self.carries_out:
            self._preempt(decisions)
        for status in decisions.queue_statuses:
            self._write_status(status.name, status.document)
        return decisions

    def _write_status(self, name: str, document: Any) -> None:
        old = self.queues.get(name)
        if old is not None:
            self.queues[name] = replace(old, status=document)
            self.handle(Changed(old, self.queues[name]))

    def _patch_status(self, pod: Pod, patch: Any) -> None:
        status = pod.status
        for each in patch["status"]["conditions"]:
            made = Condition(
                **{key: each[key] for key in ("type", "status", "reason", "message") if key in each}
            )
            status = replace(status, conditions=with_condition(status.conditions, made))
        self.add(replace(pod, status=status))

    def _preempt(self, decisions: Decisions) -> None:
        target = Condition(type=DISRUPTION_TARGET, status="True", reason=BY_SCHEDULER)
        for order in decisions.preemptions:
            for victim in order.pods:
                pod = self.pods.get(victim.metadata.name)
                if pod is None or pod.metadata.uid != victim.metadata.uid:
                    continue
                self.deleted.append(pod.metadata.name)
                conditions = with_condition(pod.status.conditions, target)
                self.add(replace(pod, status=replace(pod.status, conditions=conditions)))
                self.delete(pod.metadata.name)
        for plan in decisions.planned_ends:
            pod = self.pods.get(plan.pod.metadata.name)
            if pod is not None:
                self.add(plan.carried_out(pod))
        for nomination in decisions.nominations:
            pod = self.pods.get(nomination.pod.metadata.name)
            if pod is not None and not pod.spec.node_name:
                self.add(replace(pod, status=replace(pod.status, nominated_node_name=nomination.node)))

    def settle(self, seconds: float = 0) -> None:
        """Go on to a time, with all cycles until nothing happens."""
        end = self.now + round(seconds * SECOND)
        while True:
            for _ in range(30):
                self.end_due()
                decisions = self.step()
                acted = bool(decisions.binds or decisions.preemptions or decisions.nominations)
                acted = acted or bool(decisions.planned_ends)
                due = self.next_due()
                if not acted and not self.has_more and (due is None or due > self.now):
                    break
            else:
                raise AssertionError("it never comes to rest")
            times = [self.next_due() or end, *self.ends.values()]
            times += [
                int(at.timestamp() * 1000)
                for pod in self.pods.values()
                if (at := pod.metadata.deletion_timestamp) is not None
            ]
            later = [at for at in times if self.now < at <= end]
            if not later:
                self.now = end
                return
            self.now = min(later)

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def running(self) -> set[str]:
        """On nodes, and not being deleted."""
        return {
            name
            for name, pod in self.pods.items()
            if pod.spec.node_name and pod.metadata.deletion_timestamp is None
        }

    def nominated(self, name: str) -> str | None:
        return self.pods[name].status.nominated_node_name

    def reasons(self, name: str) -> list[str]:
        condition = self.pods[name].condition(names.WAIT_REPORTED)
        return [] if condition is None else [condition.reason]
