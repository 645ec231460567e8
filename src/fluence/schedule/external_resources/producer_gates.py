"""Producer gates: removes the gates of pods whose producer is ready, or never will be.

    a producer runs ──► its uid and the time are noted on the pods that wait for it
    it announces its task ──► their gate is removed, with the task
    it ends, vanishes, or stays silent for too long ──► the gate is removed without a task, and that is
    reported

A gate that is never removed would be worse than a consumer without a task. All state is on the pods, so a new
process decides the same: `decide` is pure, and `ProducerGates` only keeps indexes. The cycle asks for the
orders that are due, and `fluence.act.orders` carries them out. An order without effect is given again after a
pause that doubles. Namespaces without such pods cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fluence import names
from fluence.backoff import Backoff
from fluence.model.owner import Job, Owner, controller_of
from fluence.model.pod import Pod
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.external_resources.gate_dependency import (
    DependencyKind,
    GateDependency,
    ProducerNote,
    aliases,
    dependency_of,
    producer_note,
    task_of,
)
from fluence.schedule.step import Step

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions

_BACKOFF = Backoff(5_000, 60_000)  # ms between repeated orders


class GateOutcome(StrEnum):
    """Why a gate is removed. It is written on the pod."""

    ANNOUNCED = "announced"
    STARTED = "started"
    FINISHED = "finished"
    TIMED_OUT = "timed-out"
    PRODUCER_ENDED = "producer-ended"
    PRODUCER_GONE = "producer-gone"


@dataclass(frozen=True, slots=True)
class OpenGate:
    """Remove one gate of a pod, and write why."""

    pod: Pod
    gate: str
    producer: str
    outcome: GateOutcome
    task: str | None = None
    timeout: int = 0  # ms

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations that are written with it."""
        task = {} if self.task is None else {names.QUANTUM_JOB_ID: self.task}
        return {names.GATE_OPENED: self.outcome.value, **task}


@dataclass(frozen=True, slots=True)
class NoteProducer:
    """Write on a pod that its producer is running."""

    pod: Pod
    note: ProducerNote

    @property
    def annotations(self) -> dict[str, str]:
        return self.note.annotation()


@dataclass(frozen=True, slots=True)
class KeepShut:
    """Keep the gate. Look again at ``until`` (ms) even if nothing happens."""

    until: int | None = None


GateOrder = OpenGate | NoteProducer


def carried_out(pod: Pod, order: GateOrder) -> Pod:
    """The pod as the server shows it after an order, for clusters in memory."""
    gates = pod.spec.scheduling_gates or []
    if isinstance(order, OpenGate):
        gates = [each for each in gates if each.name != order.gate]
    return replace(
        pod,
        metadata=replace(pod.metadata, annotations={**pod.annotations, **order.annotations}),
        spec=replace(pod.spec, scheduling_gates=gates or None),
    )


def decide(
    pod: Pod,
    wanted: GateDependency,
    producers: Sequence[Pod],
    *,
    now: int,
    timeout: int,
    has_more: Callable[[Pod], bool],
) -> GateOrder | KeepShut:
    """What to do with the gate of ``pod``. ``producers`` are the pods that it waits for, in their current
    state. ``has_more``: whether the owner of such a pod will create another one in its place."""
    living = [each for each in producers if not each.is_terminal]
    running = sorted((each for each in living if each.status.phase == "Running"), key=_age)
    note = producer_note(pod, now)

    def opened(outcome: GateOutcome, task: str | None = None) -> OpenGate:
        return OpenGate(pod, wanted.gate, wanted.producer, outcome, task, timeout)

    if wanted.kind is DependencyKind.QUANTUM_SUBMIT:
        announced = [each for each in producers if task_of(each) is not None]
        # Use the task of a failed producer only if no producer is alive: a retry may be on its way.
        valid = [each for each in announced if each.status.phase != "Failed"] or (
            announced if not living else []
        )
        if valid:
            return opened(GateOutcome.ANNOUNCED, task_of(max(valid, key=_age)))
    elif wanted.kind is DependencyKind.STARTED and producers and len(running) == len(living):
        return opened(GateOutcome.STARTED)
    if living:
        if not running:
            return KeepShut()
        if note is None or note.uid not in {each.metadata.uid for each in running}:
            return NoteProducer(pod, ProducerNote(running[0].metadata.uid, now))
        if wanted.kind is not DependencyKind.QUANTUM_SUBMIT:
            return KeepShut()
        due = note.at + timeout
        return opened(GateOutcome.TIMED_OUT) if due <= now else KeepShut(due)
    if not producers:
        return opened(GateOutcome.PRODUCER_GONE) if note is not None else KeepShut()
    if wanted.kind is DependencyKind.FINISHED:
        return KeepShut() if any(map(has_more, producers)) else opened(GateOutcome.FINISHED)
    if all(each.status.phase == "Failed" and has_more(each) for each in producers):
        return KeepShut()
    return opened(GateOutcome.PRODUCER_ENDED)


def _age(pod: Pod) -> tuple[float, str]:
    created = pod.metadata.creation_timestamp
    return (created.timestamp() if created is not None else 0.0), pod.metadata.name


@dataclass(slots=True)
class _Namespace:
    """The pods of a namespace in which some pods wait for producers."""

    pods: dict[str, Pod] = field(default_factory=dict)  # by name
    waiting: dict[str, GateDependency] = field(default_factory=dict)  # by the pod's name
    by_alias: dict[str, set[str]] = field(default_factory=dict)  # alias -> pods
    waited_for: dict[str, set[str]] = field(default_factory=dict)  # producer -> pods that wait for it


@dataclass(slots=True)
class _Sent:
    """An order that was given and has shown no effect yet."""

    order: type[GateOrder]
    again: int
    pause: int


class ProducerGates(Step):
    """``scheduler``: whose pods lose their gates; None: no pods do. ``pods_in`` lists the pods of a
    namespace, and ``owner`` finds an owner by uid. ``timeout`` is in milliseconds."""

    def __init__(
        self,
        *,
        scheduler: str | None,
        timeout: int,
        pods_in: Callable[[str], Iterable[Pod]],
        owner: Callable[[str], Owner | None],
    ) -> None:
        self._scheduler = scheduler
        self._timeout = timeout
        self._pods_in = pods_in
        self._owner = owner
        self._spaces: dict[str, _Namespace] = {}
        self._dirty: dict[tuple[str, str], None] = {}  # namespace and producer
        self._due: dict[tuple[str, str], int] = {}  # namespace and waiting pod: when to look again
        self._sent: dict[str, _Sent] = {}  # by uid

    # -- events ----------------------------------------------------------------------------------------------

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item = event.object
        if isinstance(item, Pod):
            (self.remove_pod if event.new is None else self.set_pod)(item)
        elif isinstance(item, Owner):
            self.owner_changed(item)

    def run(self, now: int, decisions: Decisions) -> None:
        """Remove the gates of pods whose producer is ready."""
        decisions.gates += self.round(now)

    def set_pod(self, pod: Pod) -> None:
        space = self._spaces.get(pod.metadata.namespace)
        if space is None:
            if self._waits(pod) is None:
                return
            space = self._spaces[pod.metadata.namespace] = _Namespace()
            for each in self._pods_in(pod.metadata.namespace):
                self._put(space, each)
        self._put(space, pod)
        if not space.waiting:
            del self._spaces[pod.metadata.namespace]

    def remove_pod(self, pod: Pod) -> None:
        namespace, name = pod.metadata.namespace, pod.metadata.name
        space = self._spaces.get(namespace)
        held = None if space is None else space.pods.get(name)
        if space is None or held is None or held.metadata.uid != pod.metadata.uid:
            return
        self._take(space, held)
        if not space.waiting:
            del self._spaces[namespace]

    def owner_changed(self, owner: Owner) -> None:
        """Look again at waiting pods when a Job has ended or will create more pods."""
        space = self._spaces.get(owner.metadata.namespace)
        for name in () if space is None else space.by_alias.get(owner.metadata.name, ()):
            assert space is not None
            self._touch(space, space.pods[name])

    # -- orders ----------------------------------------------------------------------------------------------

    def round(self, now: int) -> Iterator[GateOrder]:
        """The orders that are due."""
        look: dict[tuple[str, str], None] = {}
        for namespace, producer in self._dirty:
            space = self._spaces.get(namespace)
            names = () if space is None else sorted(space.waited_for.get(producer, ()))
            look.update(dict.fromkeys((namespace, name) for name in names))
        self._dirty.clear()
        look.update(dict.fromkeys(key for key, due in self._due.items() if due <= now))
        for namespace, name in look:
            order = self._order(namespace, name, now)
            if order is not None:
                yield order

    def next_due(self) -> int | None:
        """When to run again even if nothing happens."""
        return 0 if self._dirty else min(self._due.values(), default=None)

    def _order(self, namespace: str, name: str, now: int) -> GateOrder | None:
        self._due.pop((namespace, name), None)
        space = self._spaces.get(namespace)
        wanted = None if space is None else space.waiting.get(name)
        if space is None or wanted is None:
            return None
        pod = space.pods[name]
        answer = decide(
            pod,
            wanted,
            list(self._producers(space, wanted)),
            now=now,
            timeout=self._timeout,
            has_more=self._has_more,
        )
        uid = pod.metadata.uid
        if isinstance(answer, KeepShut):
            self._sent.pop(uid, None)
            if answer.until is not None:
                self._due[namespace, name] = answer.until
            return None
        sent = self._sent.get(uid)
        if sent is not None and sent.order is type(answer) and now < sent.again:
            self._due[namespace, name] = sent.again
            return None
        pause = _BACKOFF.first
        if sent is not None and sent.order is type(answer):
            pause = _BACKOFF.longer(sent.pause)
        self._sent[uid] = _Sent(type(answer), now + pause, pause)
        self._due[namespace, name] = now + pause
        return answer

    def _producers(self, space: _Namespace, wanted: GateDependency) -> Iterator[Pod]:
        """The pods with that name, except those that wait for it themselves."""
        for name in space.by_alias.get(wanted.producer, ()):
            other = space.waiting.get(name)
            if other is None or other.producer != wanted.producer:
                yield space.pods[name]

    def _has_more(self, pod: Pod) -> bool:
        owner = self._owner(controller_of(pod.metadata))
        return isinstance(owner, Job) and not owner.is_finished

    # -- indexes ---------------------------------------------------------------------------------------------

    def _waits(self, pod: Pod) -> GateDependency | None:
        if pod.spec.scheduler_name != self._scheduler or not pod.is_gated or pod.is_terminal:
            return None
        if pod.metadata.deletion_timestamp is not None:
            return None
        found = dependency_of(pod)
        return found if isinstance(found, GateDependency) else None

    def _put(self, space: _Namespace, pod: Pod) -> None:
        name = pod.metadata.name
        old = space.pods.get(name)
        if old is not None:
            self._take(space, old, new=pod)
        space.pods[name] = pod
        for alias in aliases(pod):
            space.by_alias.setdefault(alias, set()).add(name)
        wanted = self._waits(pod)
        if wanted is not None:
            space.waiting[name] = wanted
            space.waited_for.setdefault(wanted.producer, set()).add(name)
            self._due[pod.metadata.namespace, name] = 0
        self._touch(space, pod)

    def _take(self, space: _Namespace, pod: Pod, *, new: Pod | None = None) -> None:
        name = pod.metadata.name
        self._touch(space, pod)
        del space.pods[name]
        for alias in aliases(pod):
            _discard(space.by_alias, alias, name)
        wanted = space.waiting.pop(name, None)
        if wanted is not None:
            _discard(space.waited_for, wanted.producer, name)
        if new is None or self._waits(new) is None or new.metadata.uid != pod.metadata.uid:
            self._due.pop((pod.metadata.namespace, name), None)
            self._sent.pop(pod.metadata.uid, None)

    def _touch(self, space: _Namespace, pod: Pod) -> None:
        """Look again at the pods that wait for this one."""
        for alias in aliases(pod):
            if alias in space.waited_for:
                self._dirty[pod.metadata.namespace, alias] = None


def _discard(index: dict[str, set[str]], key: str, item: str) -> None:
    held = index.get(key)
    if held is not None:
        held.discard(item)
        if not held:
            del index[key]
