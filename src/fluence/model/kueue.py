"""Kueue's objects as queues: the quota, cohorts and priorities that a site has written for Kueue.

    Cohort, or a cohort's name        an inner queue
    ClusterQueue                      a queue below it, with the quota
    LocalQueue of a namespace         a leaf below its ClusterQueue, ``namespace/name``, for that namespace
    WorkloadPriorityClass             the priority of work with its label

A flavour with labels of nodes is a class of nodes, and its quota limits what is placed there. The quotas of
all flavours of a resource are added up as well. Nothing is written to these objects. The notes list features
that are not supported. The versions v1beta1 and v1beta2 are read. If Kueue would start nothing (a flavour or
a check is missing), nothing starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from fluence.errors import InvalidInput
from fluence.model.document import show
from fluence.model.meta import KubeObject, LabelSelector, Requirement
from fluence.model.queues import (
    MAX_AMOUNT,
    Preemption,
    Queue,
    Reclaim,
    Resource,
    Stop,
    Within,
)
from fluence.units import amount, parse_quantity, parse_rfc3339

GROUP: Final = "kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")  # the first that a server has is read
LEASE: Final = ("kueue-system", f"c1f6bfd2.{GROUP}")
"""Namespace and name of the Lease of Kueue's manager."""
LEASE_SLACK: Final = 30.0  # seconds by which two clocks may differ

_NAMESPACE: Final = "kubernetes.io/metadata.name"  # a label that the server writes
_NOBODY: Final = LabelSelector(match_expressions=[Requirement(key=_NAMESPACE, operator="In", values=[""])])
_DEFAULT: Final = "default"
_MAX_DEPTH: Final = 64
_MAX_WEIGHT: Final = 1_000_000
_MAX_PRIORITY: Final = (1 << 31) - 1
_STOPS: Final = {"None": Stop.NONE, "Hold": Stop.HOLD, "HoldAndDrain": Stop.DRAIN}
_WITHIN: Final = {
    "Never": Within.NEVER,
    "LowerPriority": Within.LOWER,
    "LowerOrNewerEqualPriority": Within.LOWER_OR_NEWER,
}
_RECLAIM: Final = {"Never": Reclaim.NEVER, "LowerPriority": Reclaim.LOWER, "Any": Reclaim.ANY}
_OF_CLUSTER_QUEUE: Final = frozenset(
    (
        "resourceGroups", "cohort", "cohortName", "namespaceSelector", "stopPolicy", "fairSharing",
        "preemption", "queueingStrategy", "admissionChecks", "admissionChecksStrategy",
    )
)  # fmt: skip
_OF_COHORT: Final = frozenset(("parent", "parentName", "resourceGroups", "fairSharing"))
_OF_LOCAL_QUEUE: Final = frozenset(("clusterQueue", "stopPolicy", "fairSharing"))


class KueueObject(KubeObject, frozen=True):
    """An object of Kueue. The spec is unparsed, as the server sent it."""

    plural: ClassVar[str] = ""
    namespaced: ClassVar[bool] = False
    spec: Any = None

    @property
    def key(self) -> str:
        meta = self.metadata
        return f"{meta.namespace}/{meta.name}" if self.namespaced else meta.name

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of its spec, without those that are null."""
        spec = self.spec if isinstance(self.spec, Mapping) else {}
        return {str(key): value for key, value in spec.items() if value is not None}


class ClusterQueue(KueueObject, frozen=True):
    plural: ClassVar[str] = "clusterqueues"
    kind: str = "ClusterQueue"


class Cohort(KueueObject, frozen=True):
    plural: ClassVar[str] = "cohorts"
    kind: str = "Cohort"


class LocalQueue(KueueObject, frozen=True):
    plural: ClassVar[str] = "localqueues"
    namespaced: ClassVar[bool] = True
    kind: str = "LocalQueue"


class ResourceFlavor(KueueObject, frozen=True):
    plural: ClassVar[str] = "resourceflavors"
    kind: str = "ResourceFlavor"


class WorkloadPriorityClass(KueueObject, frozen=True):
    plural: ClassVar[str] = "workloadpriorityclasses"
    kind: str = "WorkloadPriorityClass"
    value: Any = None


KINDS: Final = (ClusterQueue, Cohort, LocalQueue, ResourceFlavor, WorkloadPriorityClass)
_BY_KIND: Final = {shape.__name__: shape for shape in KINDS}


def from_document(document: object) -> KueueObject | None:
    """The object of a document, as a file has it; None: it is of another kind."""
    if not isinstance(document, Mapping):
        return None
    group, _, version = str(document.get("apiVersion", "")).partition("/")
    shape = _BY_KIND.get(str(document.get("kind", "")))
    if group != GROUP or shape is None:
        return None
    if version not in VERSIONS and not (shape is Cohort and version == "v1alpha1"):
        raise InvalidInput(f"{shape.__name__}: {version} is not read: use {' or '.join(VERSIONS)}")
    try:
        found: KueueObject = msgspec.convert(document, shape)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{shape.__name__}: {error}") from None
    return found


@dataclass(frozen=True, slots=True)
class Note:
    """A feature of an object that is not supported, and what happens instead."""

    of: str  # kind and name
    text: str

    def __str__(self) -> str:
        return f"{self.of}: {self.text}"


@dataclass(slots=True)
class KueueQueues:
    """The meaning of some objects of Kueue for Fluence."""

    queues: list[Queue] = field(default_factory=list)
    priorities: dict[str, int] = field(default_factory=dict)  # by WorkloadPriorityClass
    notes: list[Note] = field(default_factory=list)


def is_running(lease: object, now: float) -> bool:
    """Whether the Lease of Kueue's manager is held, at a time in seconds."""
    spec = lease.get("spec") if isinstance(lease, Mapping) else None
    if not isinstance(spec, Mapping) or not spec.get("holderIdentity"):
        return False
    renewed = parse_rfc3339(str(spec.get("renewTime") or spec.get("acquireTime") or "")[:40])
    if renewed is None:
        return True  # it has a holder, and no time of renewal
    lasts = spec.get("leaseDurationSeconds")
    duration = lasts if isinstance(lasts, int) and 0 < lasts <= 3600 else 15
    return now - renewed / 1e6 < duration + LEASE_SLACK


def read(objects: Iterable[KueueObject], taken: Collection[str] = ()) -> KueueQueues:
    """The queues of all objects. ``taken``: the names of Fluence's own queues."""
    return _Reader(objects, taken).read()


@dataclass(slots=True)
class _Quota:
    """The quota of a ClusterQueue or a Cohort for one resource."""

    nominal: int = 0
    borrows: int | None = 0  # None: no limit


class _Reader:
    def __init__(self, objects: Iterable[KueueObject], taken: Collection[str]) -> None:
        by_kind: dict[type[KueueObject], dict[str, KueueObject]] = {shape: {} for shape in KINDS}
        for item in sorted(objects, key=lambda each: each.key):
            by_kind[type(item)][item.key] = item
        self._of = by_kind
        self._taken = set(taken)
        self._found = KueueQueues()
        self._quotas: dict[tuple[str, str], dict[Resource, _Quota]] = {}  # by kind and name
        self._classes: dict[str, LabelSelector] = {}  # flavours with labels of nodes
        self._parents: dict[str, str | None] = {}  # of cohorts

    def read(self) -> KueueQueues:
        found = self._found
        for item in self._of[WorkloadPriorityClass].values():
            assert isinstance(item, WorkloadPriorityClass)
            if isinstance(item.value, int) and abs(item.value) <= _MAX_PRIORITY:
                found.priorities[item.key] = item.value
            else:
                self._note(
                    item, f"value: must be a whole number, not {show(item.value)}: it counts for nothing"
                )
        for item in self._of[ResourceFlavor].values():
            self._read_flavour(item)
        cluster_queues, cohorts = self._of[ClusterQueue], self._of[Cohort]
        for item in (*cluster_queues.values(), *cohorts.values()):
            self._quotas[item.kind, item.key] = self._read_quota(item)
        self._parents = {name: _cohort_above(cohort) for name, cohort in cohorts.items()}
        for named in (*self._parents.values(), *map(_cohort_of, cluster_queues.values())):
            if named is not None:
                self._parents.setdefault(named, None)  # a cohort may be a name only
        if not (cluster_queues or self._parents):
            return found
        in_cycle = _in_cycle(self._parents)
        names = self._names(cluster_queues, self._parents)
        children: dict[str, list[tuple[str, str]]] = {}
        for name, parent in self._parents.items():
            if parent is not None and name not in in_cycle:
                children.setdefault(parent, []).append(("Cohort", name))
        for name, item in cluster_queues.items():
            if (cohort := _cohort_of(item)) is not None:
                children.setdefault(cohort, []).append(("ClusterQueue", name))
        subtree: dict[tuple[str, str], dict[Resource, int]] = {}
        for name in self._parents:
            self._sum_up(("Cohort", name), children, subtree)
        for name in sorted(self._parents):
            declared = cohorts.get(name)
            above = None if name in in_cycle else self._parents[name]
            if name in in_cycle and declared is not None:
                self._note(declared, "spec.parentName: is its own ancestor: nothing starts below it")
            found.queues.append(
                Queue(
                    names["Cohort", name],
                    None if above is None else names["Cohort", above],
                    classes=self._classes,
                    guaranteed=_amounts(self._nominal("Cohort", name)),
                    limit=_amounts(self._limit_of_cohort(name, above, subtree)),
                    weight=1.0 if declared is None else self._weight(declared),
                    stop=Stop.HOLD if name in in_cycle else Stop.NONE,
                )
            )
            if declared is not None:
                self._note_unread(declared, _OF_COHORT)
        covered = {resource for quotas in self._quotas.values() for resource in quotas}
        covered = {resource for resource in covered if resource.name != "pods"}
        for item in cluster_queues.values():
            found.queues.append(self._cluster_queue(item, names, covered))
        for item in self._of[LocalQueue].values():
            self._read_local_queue(item, names)
        if not self._taken and not any(queue.name == _DEFAULT for queue in found.queues):
            found.queues.append(Queue(_DEFAULT))  # Kueue ignores work without a queue
        return found

    # -- queues ----------------------------------------------------------------------------------------------

    @staticmethod
    def _free_name(name: str, prefix: str, taken: set[str]) -> str:
        # NB no name of a Kubernetes object has a colon.
        while name in taken or name == _DEFAULT:
            name = f"{prefix}:{name}"
        taken.add(name)
        return name

    def _names(self, cluster_queues: Iterable[str], cohorts: Iterable[str]) -> dict[tuple[str, str], str]:
        """The names of queues: those of the objects, if they are unique. Work without a queue is in
        ``default``."""
        taken = set(self._taken)
        found = {("ClusterQueue", name): self._free_name(name, "kueue", taken) for name in cluster_queues}
        return found | {("Cohort", name): self._free_name(name, "cohort", taken) for name in sorted(cohorts)}

    def _cluster_queue(
        self, item: KueueObject, names: Mapping[tuple[str, str], str], covered: Collection[Resource]
    ) -> Queue:
        spec, quotas, cohort = item.fields, self._quotas[item.kind, item.key], _cohort_of(item)
        limit = dict.fromkeys(covered, 0)  # Kueue admits only resources that the queue covers
        for resource, quota in quotas.items():
            limit.pop(resource, None)
            if cohort is None:
                limit[resource] = quota.nominal
            elif quota.borrows is not None:
                limit[resource] = quota.nominal + quota.borrows
        stop = self._stop(item)
        checks = spec.get("admissionChecks") or (
            strategy.get("admissionChecks")
            if isinstance(strategy := spec.get("admissionChecksStrategy"), Mapping)
            else None
        )
        if checks:
            where = "admissionChecks" if "admissionChecks" in spec else "admissionChecksStrategy"
            self._note(
                item,
                f"spec.{where}: Fluence carries out no checks: nothing starts in it until they are removed",
            )
            stop = stop if stop is Stop.DRAIN else Stop.HOLD
        missing = sorted(set(_flavours(item)) - self._of[ResourceFlavor].keys())
        if missing:
            self._note(
                item, f"spec.resourceGroups: there is no ResourceFlavor {missing[0]}: nothing starts in it"
            )
            stop = stop if stop is Stop.DRAIN else Stop.HOLD
        if spec.get("queueingStrategy") == "StrictFIFO":
            self._note(item, "spec.queueingStrategy: the setting queue-policy decides who may overtake")
        self._note_unread(item, _OF_CLUSTER_QUEUE)
        return Queue(
            names["ClusterQueue", item.key],
            None if cohort is None else names["Cohort", cohort],
            namespaces=self._selector(item),
            classes=self._classes,
            guaranteed=_amounts(self._nominal(item.kind, item.key)),
            limit=_amounts(limit),
            weight=self._weight(item),
            preemption=self._preemption(item),
            stop=stop,
        )

    def _read_local_queue(self, item: KueueObject, names: Mapping[tuple[str, str], str]) -> None:
        parent = names.get(("ClusterQueue", str(item.fields.get("clusterQueue", ""))))
        if parent is None:
            named = show(item.fields.get("clusterQueue"))
            self._note(item, f"spec.clusterQueue: there is no ClusterQueue {named}: it takes no work")
            return
        self._note_unread(item, _OF_LOCAL_QUEUE)
        self._found.queues.append(
            Queue(
                item.key,
                parent,
                namespaces=LabelSelector(match_labels={_NAMESPACE: item.metadata.namespace}),
                weight=self._weight(item),
                stop=self._stop(item),
            )
        )

    def _read_flavour(self, item: KueueObject) -> None:
        spec = item.fields
        if spec.get("nodeLabels"):
            try:
                labels = msgspec.convert(spec["nodeLabels"], dict[str, str])
            except msgspec.ValidationError as error:
                self._note(item, f"spec.nodeLabels: {error}: its quota is for all nodes")
            else:
                self._classes[item.key] = LabelSelector(match_labels=labels)
        for key in ("tolerations", "topologyName"):
            if spec.get(key):
                self._note(item, f"spec.{key}: is not put on pods: write it in the pods")

    # -- quota -----------------------------------------------------------------------------------------------

    def _read_quota(self, item: KueueObject) -> dict[Resource, _Quota]:
        found: dict[Resource, _Quota] = {}
        flavours: dict[str, list[str]] = {}
        lends = False
        for flavour, resource in _entries(item):
            name = str(resource.get("name", ""))
            nominal = self._amount(item, name, "nominalQuota", resource.get("nominalQuota", 0))
            limit = resource.get("borrowingLimit")
            borrows = None if limit is None else self._amount(item, name, "borrowingLimit", limit)
            counted = [Resource(name)]
            if flavour in self._classes:
                counted.append(Resource(name, flavour))
            else:
                flavours.setdefault(name, []).append(flavour)
            for each in counted:
                quota = found.setdefault(each, _Quota())
                quota.nominal = min(quota.nominal + nominal, MAX_AMOUNT // 4)
                both = None if quota.borrows is None or borrows is None else quota.borrows + borrows
                quota.borrows = None if both is None else min(both, MAX_AMOUNT // 4)
            lends |= resource.get("lendingLimit") is not None
        for name, several in flavours.items():
            if len(several) > 1:
                self._note(item, f"{name}: the flavours {', '.join(several[:5])} are counted together")
        if lends:
            self._note(item, "lendingLimit: is not kept: others may borrow all that is not in use")
        return found

    def _amount(self, item: KueueObject, name: str, what: str, value: object) -> int:
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str) or not name:
                raise InvalidInput("is no quantity")
            count = amount(name, parse_quantity(str(value)[:64]))
            if count < 0:
                raise InvalidInput("is negative")
        except InvalidInput as error:
            self._note(item, f"{name}: {what} {show(value)}: {error}: it counts as 0")
            return 0
        return min(count, MAX_AMOUNT // 4)

    def _nominal(self, kind: str, name: str) -> dict[Resource, int]:
        return {resource: quota.nominal for resource, quota in self._quotas.get((kind, name), {}).items()}

    def _sum_up(
        self,
        key: tuple[str, str],
        children: Mapping[str, list[tuple[str, str]]],
        found: dict[tuple[str, str], dict[Resource, int]],
        depth: int = 0,
    ) -> dict[Resource, int]:
        """The guarantee of a cohort and of all queues below it."""
        if key in found or depth > _MAX_DEPTH:  # a tree that deep is not taken
            return found.get(key, {})
        total = self._nominal(*key)
        for child in children.get(key[1], ()) if key[0] == "Cohort" else ():
            for resource, count in self._sum_up(child, children, found, depth + 1).items():
                total[resource] = total.get(resource, 0) + count
        found[key] = total
        return total

    def _limit_of_cohort(
        self, name: str, above: str | None, subtree: Mapping[tuple[str, str], Mapping[Resource, int]]
    ) -> dict[Resource, int]:
        """At the top, the total of all queues below it, because there is nothing else to lend."""
        total = subtree["Cohort", name]
        if above is None:
            return dict(total)
        quotas = self._quotas.get(("Cohort", name), {})
        return {
            resource: total.get(resource, 0) + quota.borrows
            for resource, quota in quotas.items()
            if quota.borrows is not None
        }

    # -- fields ----------------------------------------------------------------------------------------------

    def _note(self, item: KueueObject, text: str) -> None:
        self._found.notes.append(Note(f"{item.kind} {item.key}", text))

    def _note_unread(self, item: KueueObject, known: Collection[str]) -> None:
        defaults = {"flavorFungibility"}  # Kueue's server writes it on every ClusterQueue
        for key in sorted(item.fields.keys() - known):
            if key not in defaults or _is_set(item.fields[key]):
                self._note(item, f"spec.{key[:60]}: is not read")

    def _weight(self, item: KueueObject) -> float:
        sharing = item.fields.get("fairSharing")
        given = sharing.get("weight") if isinstance(sharing, Mapping) else None
        if given is None:
            return 1.0
        try:
            weight = parse_quantity(str(given)[:64]) / 1e9
        except InvalidInput:
            weight = -1.0
        if not 0 <= weight <= _MAX_WEIGHT:
            self._note(item, f"spec.fairSharing.weight: {show(given)} is no weight: it counts as 1")
            return 1.0
        return weight

    def _stop(self, item: KueueObject) -> Stop:
        given = item.fields.get("stopPolicy", "None")
        found = _STOPS.get(given) if isinstance(given, str) else None
        if found is None:
            self._note(item, f"spec.stopPolicy: {show(given)} is not known: nothing starts in it")
            return Stop.HOLD
        return found

    def _selector(self, item: KueueObject) -> LabelSelector:
        """Which namespaces may use a ClusterQueue: without a selector, none."""
        given = item.fields.get("namespaceSelector")
        if given is None:
            self._note(
                item, "spec.namespaceSelector: is missing, so no namespace may use it: write {} for all"
            )
            return _NOBODY
        try:
            return msgspec.convert(given, LabelSelector)
        except msgspec.ValidationError as error:
            self._note(item, f"spec.namespaceSelector: {error}: no namespace may use it")
            return _NOBODY

    def _preemption(self, item: KueueObject) -> Preemption:
        given = item.fields.get("preemption")
        rules = given if isinstance(given, Mapping) else {}
        borrowing = rules.get("borrowWithinCohort")
        if isinstance(borrowing, Mapping) and borrowing.get("policy", "Never") != "Never":
            self._note(
                item, "spec.preemption.borrowWithinCohort: work that borrows preempts nothing of others"
            )
        return Preemption(
            within=_WITHIN.get(str(rules.get("withinClusterQueue", "Never")), Within.NEVER),
            reclaim=_RECLAIM.get(str(rules.get("reclaimWithinCohort", "Never")), Reclaim.NEVER),
        )


def _entries(item: KueueObject) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each resource of each flavour, with the flavour's name."""
    for group in _list(item.fields.get("resourceGroups")):
        for flavour in _list(group.get("flavors")):
            for resource in _list(flavour.get("resources")):
                yield str(flavour.get("name", "")), resource


def _flavours(item: KueueObject) -> Iterator[str]:
    for group in _list(item.fields.get("resourceGroups")):
        for flavour in _list(group.get("flavors")):
            yield str(flavour.get("name", ""))


def _list(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _cohort_of(item: KueueObject) -> str | None:
    """The cohort of a ClusterQueue, by the name of the field in either version."""
    name = item.fields.get("cohortName") or item.fields.get("cohort")
    return str(name) if name else None


def _cohort_above(item: KueueObject) -> str | None:
    name = item.fields.get("parentName") or item.fields.get("parent")
    return str(name) if name else None


def _in_cycle(parents: Mapping[str, str | None]) -> set[str]:
    """The cohorts that are their own ancestors."""
    found: set[str] = set()
    done: set[str] = set()
    for first in parents:
        path: dict[str, int] = {}
        name: str | None = first
        while name is not None and name not in done and name not in path:
            path[name] = len(path)
            name = parents.get(name)
        if name is not None and name in path:
            found.update(list(path)[path[name] :])
        done.update(path)
    return found


def _amounts(counts: Mapping[Resource, int]) -> dict[Resource, int]:
    return {each: min(count, MAX_AMOUNT) for each, count in counts.items() if each.name}


def _is_set(value: object) -> bool:
    """Whether a field that Kueue sets by default has another value."""
    usual = {"whenCanBorrow": ("Borrow", "MayStopSearch"), "whenCanPreempt": ("TryNextFlavor",)}
    return not isinstance(value, Mapping) or any(value[key] not in usual.get(str(key), ()) for key in value)
