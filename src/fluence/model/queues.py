"""Queues: guarantees, limits, and the tree of queues.

A `Queue` is the content of one document. A `QueueTree` has all queues, and is valid as a whole or not at all:
`problems` names every queue that is involved in an error, and `QueuesInForce` keeps the last valid tree while
the documents are invalid. Only leaves accept jobs. An absent amount means no limit.
`fluence.model.queue_documents` parses documents.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from fluence.model.claims import RESOURCE_PREFIX
from fluence.model.meta import LabelSelector, selector_matches
from fluence.model.reason import Code, Reason

MAX_QUEUES: Final = 10_000
MAX_DEPTH: Final = 8
MAX_AMOUNT: Final = 1 << 53
"""The largest amount of one resource in a queue: float64 and int64 both represent it exactly."""
_SHOWN: Final = 8  # names in a message
_ALWAYS: Final = ("cpu", "memory", "pods", "ephemeral-storage")  # resources that every pod may request
_CLASSES: Final = ("deviceclass", "deviceclasses", "deviceclass.resource.kubernetes.io")  # as others write it
_MAX_OPEN: Final = 256  # namespaces with different labels whose open queues are kept
_MAX_NAME: Final = 63  # characters of an unknown name that are reported


class Resource(NamedTuple):
    """A resource, or the part of it on the nodes of a class: ``nvidia.com/gpu@a100``."""

    name: str
    node_class: str = ""  # empty: all nodes

    def __str__(self) -> str:
        return f"{self.name}@{self.node_class}" if self.node_class else self.name


Amounts: TypeAlias = Mapping[Resource, int]
NOTHING: Final[Amounts] = MappingProxyType({})
NO_CLASSES: Final[Mapping[str, LabelSelector]] = MappingProxyType({})


class Stop(StrEnum):
    """Whether a queue starts work."""

    NONE = "none"
    HOLD = "hold"  # nothing starts; running jobs continue
    DRAIN = "drain"  # nothing starts, and running jobs are ended


class Within(StrEnum):
    """Which work of its own queue a job may preempt."""

    NEVER = "never"
    LOWER = "lower"
    LOWER_OR_NEWER = "lower-or-newer"


class Reclaim(StrEnum):
    """Which work of queues above their guarantee a job within its guarantee may preempt."""

    NEVER = "never"
    LOWER = "lower"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class PerUser:
    """The limits of each user of a queue. Absent: no limit."""

    running: int | None = None  # jobs at one time
    amounts: Amounts = field(default_factory=lambda: NOTHING, hash=False)


@dataclass(frozen=True, slots=True)
class QueueTime:
    """Time limits in milliseconds. Absent: inherited, or no limit."""

    default: int | None = None
    max: int | None = None
    enforce: bool | None = None  # the scheduler ends jobs at their limit
    grace: int | None = None  # and this much later


@dataclass(frozen=True, slots=True)
class Preemption:
    """Absent: inherited."""

    within: Within | None = None
    reclaim: Reclaim | None = None
    min_runtime: int | None = None  # milliseconds
    patience: int | None = None


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue, as in its document."""

    name: str
    parent: str | None = None
    namespaces: LabelSelector | None = field(default=None, hash=False)  # None: those of its parent, or all
    classes: Mapping[str, LabelSelector] = field(default_factory=lambda: NO_CLASSES, hash=False)
    """The classes of nodes that it defines, for all queues."""
    guaranteed: Amounts = field(default_factory=lambda: NOTHING, hash=False)
    limit: Amounts = field(default_factory=lambda: NOTHING, hash=False)
    per_user: PerUser = PerUser()
    weight: float = 1.0
    time: QueueTime = QueueTime()
    preemption: Preemption = Preemption()
    stop: Stop = Stop.NONE

    @property
    def fields(self) -> dict[str, Amounts]:
        """Its amounts, by the field of the spec."""
        return {"guaranteed": self.guaranteed, "limit": self.limit, "perUser": self.per_user.amounts}


class QueueTree:
    """A valid tree of queues; `problems` checks queues first."""

    def __init__(self, queues: Iterable[Queue] = ()) -> None:
        self.queues: dict[str, Queue] = {queue.name: queue for queue in queues}
        self.children: dict[str | None, list[str]] = {}  # by parent; None: those without one
        for queue in self.queues.values():
            self.children.setdefault(queue.parent, []).append(queue.name)
        for names in self.children.values():
            names.sort()
        self.paths: dict[str, tuple[str, ...]] = {}
        """Per queue: itself, its parent, and so on to the top."""
        for name in self._from_the_top():
            parent = self.queues[name].parent
            self.paths[name] = (name, *(self.paths[parent] if parent is not None else ()))
        self.entitled: dict[str, dict[Resource, int]] = {}
        """Per queue: its own guarantee and those of all queues below it."""
        for name in reversed(list(self._from_the_top())):
            total = dict(self.queues[name].guaranteed)
            for child in self.children.get(name, ()):
                for resource, amount in self.entitled[child].items():
                    total[resource] = total.get(resource, 0) + amount
            self.entitled[name] = total
        self.classes: dict[str, LabelSelector] = {
            name: selector for queue in self.queues.values() for name, selector in queue.classes.items()
        }
        """The classes of nodes, by name."""
        self.in_classes: frozenset[Resource] = frozenset(
            resource
            for queue in self.queues.values()
            for amounts in queue.fields.values()
            for resource in amounts
            if resource.node_class in self.classes
        )
        """The resources of classes that some queue limits or guarantees."""
        self._preemption: dict[str, Preemption] = {}  # a cache by queue
        self.leaves = sorted(name for name in self.queues if not self.children.get(name))
        """The queues that accept jobs, by name."""
        self._open: dict[frozenset[tuple[str, str]], list[str]] = {}  # a cache by labels
        self.sets_preemption = any(queue.preemption != Preemption() for queue in self.queues.values())
        """Whether any queue has settings for preemption."""

    def __bool__(self) -> bool:
        return bool(self.queues)

    def _from_the_top(self) -> Iterator[str]:
        waiting = list(reversed(self.children.get(None, ())))
        while waiting:
            name = waiting.pop()
            yield name
            waiting.extend(reversed(self.children.get(name, ())))

    @property
    def order(self) -> list[str]:
        """All queues, parents before children, children by name."""
        return list(self._from_the_top())

    def local(self, name: str, namespace: str) -> str:
        """The queue of a name in a namespace: ``namespace/name`` if it exists, else the queue of this
        name."""
        own = f"{namespace}/{name}"
        return own if own in self.queues else name

    def leaf(self, name: str) -> str | None:
        """The leaf for a job that names this queue: an inner queue passes it to its child ``default``, or
        ``NAME-default``. None: there is no such queue, or it has no such child."""
        if name not in self.queues:
            return None
        while below := self.children.get(name):
            standard = [child for child in ("default", f"{name}-default") if child in below]
            if not standard:
                return None
            name = standard[0]
        return name

    def refusal(self, name: str, labels: Mapping[str, str] | None = None) -> Reason | None:
        """Why a job that names this queue is refused. ``labels``: of its namespace; None: it has no
        namespace, and every queue is open to it."""
        leaf = self.leaf(name)
        if leaf is not None and (labels is None or self.admits(leaf, labels)):
            return None
        open_ = self.open_to(labels)
        if leaf is None and name in self.queues:
            below = [other for other in open_ if name in self.paths[other]]
            return Reason.of(Code.QUEUE_IS_INNER, queue=name, queues=tuple(below[:_SHOWN]))
        return Reason.of(
            Code.UNKNOWN_QUEUE if leaf is None else Code.QUEUE_CLOSED,
            queue=name[:_MAX_NAME],
            nearest=nearest(name, open_),
            known=tuple(open_[:_SHOWN]),
        )

    def open_to(self, labels: Mapping[str, str] | None) -> list[str]:
        """The queues that accept jobs of a namespace with these labels, by name."""
        if labels is None:
            return self.leaves
        # Any user can have many jobs refused, and each reason names open queues.
        key = frozenset(labels.items())
        found = self._open.get(key)
        if found is None:
            if len(self._open) >= _MAX_OPEN:
                self._open.clear()
            found = self._open[key] = [leaf for leaf in self.leaves if self.admits(leaf, labels)]
        return found

    def has_choice(self, labels: Mapping[str, str] | None) -> bool:
        """Whether several queues accept jobs of a namespace with these labels."""
        open_ = (leaf for leaf in self.leaves if labels is None or self.admits(leaf, labels))
        return next(open_, None) is not None and next(open_, None) is not None

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a namespace with these labels may use a queue: the queue and all queues above it must allow
        it."""
        selectors = (self.queues[queue].namespaces for queue in self.paths[name])
        return all(selector is None or selector_matches(selector, labels) for selector in selectors)

    def stopped_by(self, name: str) -> str | None:
        """The queue, this one or one above it, that is stopped."""
        return next((queue for queue in self.paths[name] if self.queues[queue].stop is not Stop.NONE), None)

    def time(self, name: str) -> QueueTime:
        """The time limits of a leaf: each from the nearest queue that has it, and the smallest of all
        maxima."""
        times = [self.queues[queue].time for queue in self.paths[name]]
        return QueueTime(
            default=next((time.default for time in times if time.default is not None), None),
            max=min((time.max for time in times if time.max is not None), default=None),
            enforce=next((time.enforce for time in times if time.enforce is not None), None),
            grace=next((time.grace for time in times if time.grace is not None), None),
        )

    def preemption(self, name: str) -> Preemption:
        """The preemption settings of a queue: each field from the nearest queue that has it."""
        found = self._preemption.get(name)
        if found is None:
            rules = [self.queues[queue].preemption for queue in self.paths[name]]
            found = self._preemption[name] = Preemption(
                within=next((each.within for each in rules if each.within is not None), None),
                reclaim=next((each.reclaim for each in rules if each.reclaim is not None), None),
                min_runtime=next((each.min_runtime for each in rules if each.min_runtime is not None), None),
                patience=next((each.patience for each in rules if each.patience is not None), None),
            )
        return found

    @property
    def drained(self) -> list[str]:
        """The leaves whose running work must end."""
        return [
            leaf
            for leaf in self.leaves
            if any(self.queues[queue].stop is Stop.DRAIN for queue in self.paths[leaf])
        ]


EMPTY: Final = QueueTree()


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(difflib.get_close_matches(name, known[:1000], 1)), None)


def is_counted(name: str, known: Collection[str]) -> bool:
    """Whether pods can request a resource of this name. ``known``: the resources of the cluster."""
    domain, slash, _ = name.partition("/")
    if domain in _CLASSES:
        return False
    return (
        name in _ALWAYS
        or name in known
        or name.startswith((RESOURCE_PREFIX, "hugepages-"))
        or (bool(slash) and "." in domain)  # an extended resource that no node has today
    )


def undefined_classes(queue: Queue, known: Collection[str]) -> list[str]:
    """The amounts of a queue that have no effect because no queue defines the class. ``known``: the classes
    that are defined."""
    found = []
    for field_, amounts in queue.fields.items():
        for resource in amounts:
            if resource.node_class and resource.node_class not in known:
                other = nearest(resource.node_class, sorted(known))
                cure = f"did you mean {other}?" if other else "define it in spec.nodeClasses of a queue"
                message = f"no queue defines the class {resource.node_class}: {cure}"
                found.append(f"spec.{field_}: {resource} limits nothing, because {message}")
    return found


def not_counted(queue: Queue, known: Collection[str]) -> list[str]:
    """The amounts of a queue that have no effect because no pod can request the resource, each with the name
    that was probably meant. ``known``: the resources of the cluster."""
    found = []
    for field_, amounts in queue.fields.items():
        for resource in amounts:
            if not is_counted(resource.name, known):
                meant = _meant(resource.name, known)
                usual = "use a resource that pods request, such as cpu, memory or pods"
                cure = f"did you mean {meant}?" if meant else usual
                found.append(f"spec.{field_}: {resource} is not counted: {cure}")
    return found


def _meant(name: str, known: Collection[str]) -> str | None:
    """The resource that was probably meant, by the last part of its name."""
    domain, slash, last = name.rpartition("/")
    if slash and domain in _CLASSES:
        return RESOURCE_PREFIX + last
    by_last = {each.rpartition("/")[2]: each for each in (*sorted(known), *_ALWAYS)}
    alike = difflib.get_close_matches(last, list(by_last)[:1000], 1, 0.7)
    return by_last[alike[0]] if alike else None


def problems(queues: Sequence[Queue]) -> dict[str, list[str]]:
    """The errors of some queues as a tree, by the name of each queue involved. Empty: they are valid."""
    found: dict[str, list[str]] = {}
    if len(queues) > MAX_QUEUES:
        return {queues[MAX_QUEUES].name: [f"is one of {len(queues)} queues: at most {MAX_QUEUES} are read"]}
    known: dict[str, Queue] = {}
    for queue in queues:
        if queue.name in known:
            found.setdefault(queue.name, []).append("is there twice: rename or remove one of them")
        known[queue.name] = queue
    names = sorted(known)
    depths: dict[str, int] = {}
    for queue in known.values():
        if queue.parent is not None and queue.parent not in known:
            other = nearest(queue.parent, names)
            cure = f"did you mean {other}?" if other else "create it, or remove the field"
            message = f"spec.parent: there is no queue {queue.parent}: {cure}"
            found.setdefault(queue.name, []).append(message)
    _check_classes(known.values(), found)
    for cycle in _cycles(known):
        path = " → ".join((*cycle, cycle[0])) if len(cycle) <= _SHOWN else f"{len(cycle)} queues"
        for name in cycle:
            message = f"spec.parent: is its own ancestor ({path}): remove one of these parents"
            found.setdefault(name, []).append(message)
    if not found:
        for name, depth in _depths(known, depths).items():
            if depth > MAX_DEPTH:
                message = f"is {depth} levels deep: at most {MAX_DEPTH} are read; make the tree flatter"
                found.setdefault(name, []).append(message)
    if not found:
        _check_amounts(QueueTree(known.values()), found)
    return found


def _check_classes(queues: Iterable[Queue], found: dict[str, list[str]]) -> None:
    """Classes of nodes have one meaning for all queues."""
    first: dict[str, Queue] = {}
    for queue in queues:
        for name, selector in queue.classes.items():
            other = first.setdefault(name, queue)
            if other.classes[name] != selector:
                for one, two in ((queue, other), (other, queue)):
                    message = (
                        f"spec.nodeClasses.{name}: queue {two.name} defines it otherwise: keep one of them"
                    )
                    found.setdefault(one.name, []).append(message)


def _cycles(known: Mapping[str, Queue]) -> list[list[str]]:
    """The queues of each cycle, in the order of their parents."""
    cycles: list[list[str]] = []
    done: set[str] = set()
    for first in known:
        path: dict[str, int] = {}
        name: str | None = first
        while name is not None and name in known and name not in done and name not in path:
            path[name] = len(path)
            name = known[name].parent
        if name is not None and name in path:
            cycles.append(list(path)[path[name] :])
        done.update(path)
    return cycles


def _depths(known: Mapping[str, Queue], depths: dict[str, int]) -> dict[str, int]:
    """The depth of each queue; the tree has no cycle."""
    for first in known:
        path: list[str] = []
        name: str | None = first
        while name is not None and name not in depths:
            path.append(name)
            name = known[name].parent
        depth = 0 if name is None else depths[name]
        for below in reversed(path):
            depth += 1
            depths[below] = depth
    return depths


def _check_amounts(tree: QueueTree, found: dict[str, list[str]]) -> None:
    """Guarantees that exceed a limit are errors."""
    for name, queue in tree.queues.items():
        for resource, limit in queue.limit.items():
            entitled = tree.entitled[name].get(resource, 0)
            own = queue.guaranteed.get(resource, 0)
            if entitled <= limit:
                continue
            if own > limit:
                message = f"spec.guaranteed: {resource}: {own} is more than the limit of {limit}: lower it"
            else:
                message = (
                    f"spec.limit: {resource}: {limit} is less than the {entitled} guaranteed to the queues "
                    "below it: raise it, or lower their guarantees"
                )
            found.setdefault(name, []).append(message)
        for resource, amount in tree.entitled[name].items():
            if amount > MAX_AMOUNT:
                message = f"spec.guaranteed: {resource}: the sum with the queues below it is above 2^53"
                found.setdefault(name, []).append(message)


class QueuesInForce:
    """The tree in force: the last valid one."""

    def __init__(self) -> None:
        self.tree = EMPTY
        self.problems: dict[str, list[str]] = {}

    def replace(self, queues: Sequence[Queue]) -> bool:
        """Use other documents. Returns whether their tree is in force; if not, the old one stays, and
        ``problems`` has the reasons."""
        self.problems = problems(queues)
        if self.problems:
            return False
        if {queue.name: queue for queue in queues} != self.tree.queues:  # else nothing has to be judged again
            self.tree = QueueTree(queues)
        return True
