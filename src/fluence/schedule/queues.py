"""Queues of the cluster: the Queue objects, the tree of queues in force, and the status of each Queue.

Objects are read together once they have not changed for a moment, since a file with several of them is
applied one by one. The tree must be valid as a whole. While it is not, the last valid tree stays in force,
and every object involved says why. The statuses record that tree for the next process. If one of its queues
was deleted, the next process uses the queues that are valid by themselves. Without any Queue object, the
scheduler's queue has no quotas and this step does nothing.

Usage for fair share is kept in the status, so a new process continues with the last value. The same holds for
the counts of preempted pods, if a queue has a minimum run time.

If a site enables it, Kueue's objects are queues beside these (`fluence.model.kueue`). Nothing is written to
them, and errors in them never keep our own queues from being in force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fluence.cluster.graph import ClusterGraph
from fluence.model import kueue
from fluence.model.document import JsonValue
from fluence.model.kueue import KueueObject
from fluence.model.meta import KubeObject
from fluence.model.queue_documents import MAX_USERS, OTHERS, InvalidQueue, QueueObject, QueueStatus
from fluence.model.queues import (
    EMPTY,
    MAX_QUEUES,
    Amounts,
    Queue,
    QueuesInForce,
    QueueTree,
    Resource,
    not_counted,
    problems,
    undefined_classes,
)
from fluence.queue import Queue as JobQueue
from fluence.queue.fair_share import Account
from fluence.queue.quota import add_amounts
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.history import Journal
from fluence.schedule.pod_set import Changes, PodSets
from fluence.schedule.preemption.rules import EndedCounts
from fluence.schedule.restart import Takeover
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Step
from fluence.units import format_amount, rfc3339

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions

_QUIET: Final = 1_000  # ms without a change before objects are read
_LONGEST: Final = 10_000  # ms since the first change, after which they are read anyway
_PAUSE: Final = 10_000  # ms between two rounds of statuses
_FIRST: Final = 2_000  # ms before the first round
_REPEAT: Final = 60_000  # ms between two writes of usage alone, or of a status that the server did not take
_DRIFT: Final = 1e-6  # by which usage may differ from the written value after decay
_SHOWN: Final = 8  # how many resources and names a message shows

UsageAt = tuple[float, int]  # cluster-seconds, and the time of the value


@dataclass(frozen=True, slots=True)
class QueueStatusUpdate:
    """The status of a Queue, to be written."""

    name: str
    uid: str
    document: Mapping[str, JsonValue]
    remark: str = ""  # a note for administrators, unless the queue is simply valid


class ClusterQueues(Step):
    """Follows Queue objects. ``in_force`` survives rebuilds, and ``usage`` is the usage before a rebuild.
    ``has_statuses``: statuses of Queues are made."""

    def __init__(
        self,
        *,
        in_force: QueuesInForce,
        usage: Mapping[Account, UsageAt],
        has_statuses: bool,
        groups: Groups,
        cluster: ClusterGraph,
        queue: JobQueue,
        pod_sets: PodSets,
        reports: StatusReports,
        journal: Journal,
        takeover: Takeover,
        changes: Changes,
        ended: EndedCounts,
    ) -> None:
        self._in_force = in_force
        self._carried = usage
        self._has_statuses = has_statuses
        self._groups = groups
        self._queue = queue
        self._pod_sets = pod_sets
        self._reports = reports
        self._journal = journal
        self._takeover = takeover
        self._changes = changes
        self._ended = ended
        self._objects: dict[str, QueueObject] = {}
        self._parsed: dict[str, Queue] = {}  # the objects that can be parsed
        self._read: dict[str, tuple[object, Queue | InvalidQueue]] = {}  # with the spec: it is parsed once
        self._kueue: dict[tuple[str, str], KueueObject] = {}  # by kind and key
        self._has_begun = False
        self._changed: tuple[int, int] | None = None  # the times of the first and the last change, if any
        self._relabelled: set[str] = set()  # namespaces
        self._looked_at = 0  # when statuses were last computed
        self._saw: tuple[object, ...] = ()  # and from which state
        self._differ = False  # some of them are not on the server yet
        self._sent: dict[str, tuple[object, int]] = {}  # by queue: the last status that was sent, and when
        # By queue: what its status was last made from, and whether it differed from the server's.
        self._made: dict[str, tuple[_Figures, bool]] = {}
        self._fixed: _Fixed | None = None
        queue.labels_of = cluster.namespace_labels

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item = event.object
        if isinstance(item, QueueObject):
            known = self._objects.pop(item.name, None)
            if event.new is not None:
                self._objects[item.name] = item
                if known is None:
                    self._ended.restore(item.name, item.preempted())
            if event.new is None or known is None or known.spec != item.spec:
                self._changed = (now if self._changed is None else self._changed[0], now)
        elif isinstance(item, KueueObject):
            before_it = self._kueue.pop((item.kind, item.key), None)
            if event.new is not None:
                self._kueue[item.kind, item.key] = item
            if event.new is None or before_it is None or not _says_the_same(before_it, item):
                self._changed = (now if self._changed is None else self._changed[0], now)
        elif (self._objects or self._kueue) and type(item) is KubeObject:  # a namespace
            before = event.old.metadata.labels if isinstance(event.old, KubeObject) else None
            if event.new is None or event.old is None or before != item.metadata.labels:
                self._relabelled.add(item.metadata.name)

    def run(self, now: int, decisions: Decisions) -> None:
        if self._changed is not None:
            first, last = self._changed
            if not self._has_begun or now >= last + _QUIET or now >= first + _LONGEST:
                self._changed = None
                self._take(now)
        if self._relabelled:
            accounts, self._relabelled = self._relabelled, set()
            self._have_judged(lambda: self._queue.accounts_changed(accounts, now))
        if not self._has_begun:
            self._has_begun = True
            self._looked_at = now - _PAUSE + _FIRST
        if self._takeover.holds_back or not self._has_statuses:
            return  # not all running work is known yet, or no statuses are wanted
        if self._objects and now >= self._looked_at + _PAUSE and self._is_stale(now):
            decisions.queue_statuses += self._updates(now)

    def next_due(self) -> int | None:
        times = []
        if self._changed is not None:
            times.append(min(self._changed[1] + _QUIET, self._changed[0] + _LONGEST))
        if self._objects and self._has_statuses:
            if self._differ or self._saw != self._state():
                times.append(self._looked_at + _PAUSE)
            elif self._queue.planner.allocations.running:
                times.append(self._looked_at + _REPEAT)
        return min(times, default=None)

    def usage(self, now: int) -> dict[Account, UsageAt]:
        """The usage of every account."""
        turns = self._queue.turns
        return {} if turns is None else {key: (value, now) for key, value in turns.shares.usage(now).items()}

    # -- the tree --------------------------------------------------------------------------------------------

    def _take(self, now: int) -> None:
        """Put the changed objects into force, if they form a valid tree."""
        faults: dict[str, list[str]] = {}
        self._parsed = {}
        before, self._read = self._read, {}
        for name, item in self._objects.items():
            known = before.get(name)
            if known is None or known[0] != item.spec:
                known = item.spec, _parse(item)
            self._read[name] = known
            if isinstance(known[1], InvalidQueue):
                faults[name] = [str(known[1])]
            else:
                self._parsed[name] = known[1]
        queues = [*self._parsed.values(), *self._take_kueue()]
        force = self._in_force
        if faults or not force.replace(queues):
            wrong = faults or force.problems
            if not force.tree:  # a new process: use the tree recorded in the statuses, or what is valid
                last = [item.last_in_force() for item in self._objects.values()]
                if not force.replace([queue for queue in last if queue is not None]):
                    force.replace(_valid_part(queues))
            force.problems = wrong
        if not queues and not self._objects:
            self._in_force.tree = EMPTY
            self._have_judged(lambda: self._queue.drop_queues(now))
        elif force.tree and (self._queue.quotas is None or self._queue.quotas.tree is not force.tree):
            usage = self._carried or self._written_usage(now)
            self._carried = {}
            self._have_judged(lambda: self._queue.use_queues(force.tree, now, usage))

    def _take_kueue(self) -> list[Queue]:
        """The queues of Kueue's objects that fit beside our own."""
        if not self._kueue:
            self._changes.touch(self._groups.use_kueue(None))
            return []
        own = list(self._parsed.values())
        found = kueue.read(self._kueue.values(), {*self._objects, *self._parsed})
        self._changes.touch(self._groups.use_kueue(found.priorities))
        names = {queue.name for queue in own}
        both = own if problems(own) else _valid_part([*own, *found.queues][:MAX_QUEUES])
        return [queue for queue in both if queue.name not in names]

    def _have_judged(self, judge: Callable[[], None]) -> None:
        """Let the queue check its jobs again, and report to the jobs that may be affected."""
        states = {key: pod_set.state for key, pod_set in self._pod_sets.by_key.items()}
        judge()
        for key, state in states.items():
            pod_set = self._pod_sets.by_key[key]
            if not pod_set.state.has_nodes:
                self._reports.want(key)
            if pod_set.state is not state:
                self._journal.note(pod_set)
        self._changes.queue_changed = True

    def _written_usage(self, now: int) -> dict[Account, UsageAt]:
        """The usage that the last process wrote."""
        found: dict[Account, UsageAt] = {}
        for name, item in self._objects.items():
            written = item.usage(now)
            if written is not None:
                at, users = written
                found.update({(name, user): (value, at) for user, value in users.items()})
        return found

    # -- statuses --------------------------------------------------------------------------------------------

    def _state(self) -> tuple[object, ...]:
        """The state that statuses depend on, apart from time."""
        return self._queue.cycles, self._queue.quotas, len(self._queue.pending), len(self._objects)

    def _is_stale(self, now: int) -> bool:
        is_running = bool(self._queue.planner.allocations.running)
        return self._differ or self._saw != self._state() or (is_running and now >= self._looked_at + _REPEAT)

    def _updates(self, now: int) -> Iterable[QueueStatusUpdate]:
        """The statuses that differ from the server's."""
        self._looked_at, self._saw, self._differ = now, self._state(), False
        usage: dict[str, dict[str, float]] = {}
        for (leaf, user), (value, _) in self.usage(now).items():
            usage.setdefault(leaf, {})[user] = value
        stamp = rfc3339(now * 1000)
        for name, figures in self._figures(now):
            sent, at = self._sent.get(name, (None, 0))
            made = self._made.get(name)
            if made is not None and made[0] == figures and now < at + _REPEAT:
                self._differ |= made[1]
                continue
            item, status = figures.item, self._status(name, figures, usage.get(name, {}), now)
            there = item.status if isinstance(item.status, Mapping) else {}
            written = item.usage(now)
            document = status.document(_since(there, status, stamp))
            wanted = _compared(document)
            differs = wanted != _compared(there)
            self._differ |= differs
            self._made[name] = figures, differs
            is_due = now >= at + _REPEAT and (differs or self._has_drifted(status, written, now))
            if is_due or (differs and wanted != sent):
                self._sent[name] = (wanted, now)
                remark = "" if status.reason == "Valid" else status.message
                yield QueueStatusUpdate(name, item.metadata.uid, document, remark)
        for known in (self._sent, self._made):
            for name in known.keys() - self._objects.keys():
                del known[name]

    def _has_drifted(
        self, status: QueueStatus, written: tuple[int, Mapping[str, float]] | None, now: int
    ) -> bool:
        """Whether the written usage, after decay, differs from the current usage."""
        if self._queue.turns is None:
            return False
        at, users = (now, {}) if written is None else written
        kept = 2.0 ** (-(now - at) / self._queue.turns.shares.half_life)
        if users.keys() != status.usage.keys():
            return True
        return any(
            abs(users[user] * kept - value) > _DRIFT * (1 + value) for user, value in status.usage.items()
        )

    def _figures(self, now: int) -> Iterable[tuple[str, _Figures]]:
        """What the status of each queue is made from, apart from usage and time."""
        tree, quotas, turns = self._in_force.tree, self._queue.quotas, self._queue.turns
        used: dict[str, dict[Resource, int]] = {name: {} for name in tree.queues}
        for leaf, amounts in ({} if quotas is None else quotas.usage()).items():
            for name in tree.paths.get(leaf, ()):
                add_amounts(used[name], amounts)
        running, waiting = dict.fromkeys(tree.queues, 0), dict.fromkeys(tree.queues, 0)
        for counts, some in zip((running, waiting), self._counts(), strict=True):
            for leaf, count in some.items():
                for name in tree.paths.get(leaf, ()):
                    counts[name] += count
        ratios = {} if turns is None else turns.shares.shares_used(now)
        fixed = self._fixed_parts()
        for name, item in self._objects.items():
            if name not in tree.queues:
                yield name, _Figures(item, fixed)
                continue
            path, protects = fixed.queues[name]
            ratio = ratios.get(path)
            preempted = self._ended.of_queue(name) if protects else {}
            share = "" if ratio is None else f"{ratio:.2f}"
            yield (
                name,
                _Figures(item, fixed, used[name], running[name], waiting[name], share, dict(preempted)),
            )

    def _counts(self) -> tuple[Counter[str], Counter[str]]:
        """How many jobs run and wait, by leaf."""
        running, waiting = Counter[str](), Counter[str]()
        for record in self._queue.records.values():
            state = record.state
            if state.has_nodes:
                running[record.job.queue] += 1
            elif not state.leaves_queue:
                waiting[record.job.queue] += 1
        return running, waiting

    def _fixed_parts(self) -> _Fixed:
        """What changes only with the queues, the settings and the nodes."""
        rests = (
            self._in_force.tree,
            self._in_force.problems,
            self._parsed,
            self._queue.overridden,
            self._queue.planner.capacities(),
        )
        known = self._fixed
        if known is None or any(now is not then for now, then in zip(rests, known.rests, strict=True)):
            tree, capacities = rests[0], rests[4]
            above = _above_capacity(tree, capacities, self._queue.planner.class_capacities())
            queues = {
                name: (tuple(reversed(path)), bool(tree.preemption(name).min_runtime))
                for name, path in tree.paths.items()
            }
            known = self._fixed = _Fixed(rests, queues, above, _guaranteed(tree))
        return known

    def _status(self, name: str, figures: _Figures, usage: Mapping[str, float], now: int) -> QueueStatus:
        tree, item, fixed = self._in_force.tree, figures.item, figures.fixed
        verdict = fixed.verdicts.get(name)
        if verdict is None:
            capacities = self._queue.planner.capacities()
            verdict = fixed.verdicts[name] = self._verdict(name, capacities, fixed.above)
        meta = item.metadata
        if name not in tree.queues:
            return QueueStatus(name, meta.uid, meta.generation or 0, *verdict, is_active=False)
        shown = fixed.shown.get(name)
        if shown is None:
            shown = fixed.shown[name] = _shown(tree.entitled[name]), _shown(tree.queues[name].limit)
        in_use = sorted(figures.used.items())
        is_active = tree.queues[name] == self._parsed.get(name)
        return QueueStatus(
            name,
            meta.uid,
            meta.generation or 0,
            *verdict,
            is_active=is_active,
            in_force=None if is_active else tree.queues[name],
            entitled=shown[0],
            limit=shown[1],
            used={str(key): format_amount(key.name, amount) for key, amount in in_use},
            borrowed=_shown(
                {
                    key: amount - tree.entitled[name].get(key, 0)
                    for key, amount in in_use
                    if key in fixed.guaranteed and amount > tree.entitled[name].get(key, 0)
                }
            ),
            running=figures.running,
            waiting=figures.waiting,
            share=figures.share,
            usage=_capped(usage),
            at=now,
            preempted=figures.preempted,
        )

    def _verdict(
        self, name: str, capacities: Mapping[str, int], above: Mapping[Resource, str]
    ) -> tuple[bool, str, str]:
        """Whether a queue is valid, with a reason and a message."""
        wrong = self._in_force.problems
        if name in wrong:
            return False, "Invalid", "; ".join(wrong[name][:_SHOWN])
        if wrong:
            others = sorted(wrong)
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            return (
                True,
                "OthersInvalid",
                f"changes wait until these are valid: {', '.join(others[:_SHOWN])}{more}",
            )
        queue = self._parsed.get(name)
        remarks = [] if queue is None else list(self._remarks(queue, capacities, above))
        if not remarks:
            return True, "Valid", "the queues are valid"
        return True, remarks[0][0], "; ".join(text for _, text in remarks[:_SHOWN])

    def _remarks(
        self, queue: Queue, capacities: Mapping[str, int], above: Mapping[Resource, str]
    ) -> Iterable[tuple[str, str]]:
        """Probable mistakes in a valid queue, for its administrator."""
        for text in not_counted(queue, capacities):
            yield "NotCounted", text
        for text in undefined_classes(queue, self._in_force.tree.classes):
            yield "NotCounted", text
        for resource in queue.guaranteed:
            if resource in above:
                yield "AboveCapacity", f"spec.guaranteed: {above[resource]}"
        pairs = self._queue.overridden.get(queue.name)
        if pairs:
            settings = ", ".join(dict.fromkeys(setting for setting, _ in pairs))
            fields = ", ".join(f"spec.time.{field}" for _, field in pairs)
            yield (
                "Overridden",
                f"the settings {settings} count instead of {fields}: remove one of the two",
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Fixed:
    """What statuses have in common, and the verdict on each queue, while they rest on the same objects."""

    rests: tuple[QueueTree, object, object, object, Mapping[str, int]]
    queues: Mapping[str, tuple[tuple[str, ...], bool]]  # the path from the top; whether it has a minRuntime
    above: Mapping[Resource, str]
    guaranteed: Mapping[Resource, int]
    verdicts: dict[str, tuple[bool, str, str]] = field(default_factory=dict)
    shown: dict[str, tuple[str, str]] = field(default_factory=dict)  # its guarantee and its limit


class _Figures(NamedTuple):
    """What the status of a queue is made from: equal figures make equal statuses, apart from usage."""

    item: QueueObject
    fixed: _Fixed
    used: Mapping[Resource, int] = {}
    running: int = 0
    waiting: int = 0
    share: str = ""
    preempted: Mapping[str, int] = {}


def _parse(item: QueueObject) -> Queue | InvalidQueue:
    try:
        return item.queue()
    except InvalidQueue as error:
        return error


def _guaranteed(tree: QueueTree) -> dict[Resource, int]:
    """The sum of all guarantees."""
    total: dict[Resource, int] = {}
    for name in tree.children.get(None, ()):
        add_amounts(total, tree.entitled[name])
    return total


def _above_capacity(
    tree: QueueTree, capacities: Mapping[str, int], of_classes: Amounts
) -> dict[Resource, str]:
    """Messages for the resources that are guaranteed beyond the capacity of the cluster."""
    found: dict[Resource, str] = {}
    for resource, amount in _guaranteed(tree).items():
        there = of_classes.get(resource, 0) if resource.node_class else capacities.get(resource.name, 0)
        if amount > there and (not resource.node_class or resource in tree.in_classes):
            # Without the sum: else each queue that comes would change the status of all others.
            has = format_amount(resource.name, there)
            found[resource] = f"{resource}: all guarantees together are more than the {has} of the cluster"
    return found


def _says_the_same(one: KueueObject, other: KueueObject) -> bool:
    """Whether two versions of an object differ only in their status."""
    return one.spec == other.spec and getattr(one, "value", None) == getattr(other, "value", None)


def _valid_part(queues: Sequence[Queue]) -> list[Queue]:
    """The queues that are valid by themselves: invalid queues and the queues below them are left out."""
    kept = list(queues)
    while wrong := problems(kept):
        kept = [queue for queue in kept if queue.name not in wrong]
    return kept


def _shown(amounts: Amounts) -> str:
    return ", ".join(f"{each} {format_amount(each.name, amount)}" for each, amount in sorted(amounts.items()))


def _capped(usage: Mapping[str, float]) -> dict[str, float]:
    """The users with the highest usage, and the sum of the others."""
    if len(usage) <= MAX_USERS:
        return dict(sorted(usage.items()))
    most = sorted(usage, key=lambda user: (-usage[user], user))
    others = sum(usage[user] for user in most[MAX_USERS - 1 :])
    return {**{user: usage[user] for user in sorted(most[: MAX_USERS - 1])}, OTHERS: others}


def _conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    listed = status.get("conditions")
    found = listed if isinstance(listed, list) else []
    return {str(each.get("type")): each for each in found if isinstance(each, Mapping)}


def _since(there: Mapping[str, Any], status: QueueStatus, now: str) -> dict[str, str]:
    """The transition time of each condition."""
    before, since = _conditions(there), {}
    for type_, (holds, _, _) in status.conditions.items():
        known = before.get(type_, {})
        same = known.get("status") == ("True" if holds else "False")
        at = known.get("lastTransitionTime")
        since[type_] = at if same and isinstance(at, str) else now
    return since


def _compared(status: Mapping[str, Any]) -> dict[str, object]:
    """The part of a status that is compared: usage, which changes all the time, and times are left out."""
    kept = {key: value for key, value in status.items() if key not in ("usage", "conditions")}
    conditions = {
        type_: {key: value for key, value in condition.items() if key != "lastTransitionTime"}
        for type_, condition in _conditions(status).items()
    }
    return {**kept, "conditions": conditions}
