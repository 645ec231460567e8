"""Unheld: new work in a labelled namespace that admission did not hold, since the label alone holds nothing.

A namespace must be labelled, and an administrator must turn admission on. Without the second, work starts at
once, unqueued, and nothing else reports it. The scheduler may not read policies and webhooks, so it checks
the work itself. Each labelled namespace is reported once.

For the object of an operator, its pods are checked: sites choose which kinds are suspended, but the pods of
all of them are held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluence import names
from fluence.model.grant import JOB_CONTROLLER
from fluence.model.meta import KubeObject, ObjectMeta
from fluence.model.operators import CustomOwner
from fluence.model.owner import Deployment, Job, Owner, PodTemplate, ReplicaSet, StatefulSet
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.step import Step

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.gangs.groups import Groups

_SKEW_MS = 5_000  # by which clocks may differ: work from before the label does not count
_CRITICAL = ("system-cluster-critical", "system-node-critical")
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True)
class UnheldNamespace:
    """A labelled namespace in which admission holds nothing."""

    namespace: ObjectMeta
    reason: Reason


class UnheldWork(Step):
    """Labelled namespaces, and the first work in each that should have been held."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._labelled: dict[str, tuple[ObjectMeta, int]] = {}  # by name: since when the label is known
        self._reported: set[str] = set()
        self._new: list[UnheldNamespace] = []

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item = event.object
        if type(item) is KubeObject:
            self._namespace(item.metadata, gone=event.new is None, now=now)
        elif self._labelled and event.old is None and isinstance(item, Pod | Owner):
            self._work(item)

    def run(self, now: int, decisions: Decisions) -> None:
        decisions.unheld += self._new
        self._new = []

    def _namespace(self, meta: ObjectMeta, *, gone: bool, now: int) -> None:
        if not gone and (meta.labels or {}).get(names.NAMESPACE_OPT_IN) == names.DOORS_ENABLED:
            self._labelled.setdefault(meta.name, (meta, now))
        else:
            self._labelled.pop(meta.name, None)
            self._reported.discard(meta.name)

    def _work(self, item: Pod | Owner) -> None:
        name = item.metadata.namespace
        namespace, since = self._labelled.get(name, (item.metadata, 0))
        if not since or name in self._reported or not _is_newer(item, since):
            return
        scheduler = self._groups.scheduler
        if isinstance(item, Pod) and (operated := self._operated(item)) is not None:
            if not _is_newer(operated, since) or not _may_be_held(item, (item, operated), scheduler):
                return
            item = operated
        elif not is_to_be_held(item, scheduler):
            return
        meta = item.metadata
        self._reported.add(meta.namespace)
        kind = "pod" if isinstance(item, Pod) else item.kind
        label = f"{names.NAMESPACE_OPT_IN}={names.DOORS_ENABLED}"
        reason = Reason.of(Code.WORK_NOT_HELD, label=label, kind=kind, name=meta.name)
        self._new.append(UnheldNamespace(namespace, reason))

    def _operated(self, pod: Pod) -> CustomOwner | None:
        """The object of an operator that a pod belongs to, if all owners of the pod are known."""
        if not pod.metadata.owner_references:
            return None
        owners, unseen = self._groups.owners(pod)
        top = owners[-1] if owners and unseen is None else None
        return top if isinstance(top, CustomOwner) else None


def _is_newer(item: Pod | Owner, since: int) -> bool:
    created = item.metadata.creation_timestamp
    return created is not None and created.timestamp() * 1000 >= since + _SKEW_MS


def _may_be_held(
    template: Pod | PodTemplate, marked: tuple[Pod | Owner | PodTemplate, ...], scheduler: str
) -> bool:
    """Whether nothing keeps the pods of a template from being held, and nothing says that they are."""
    marks = [(each.metadata.labels or {}, each.metadata.annotations or {}) for each in marked]
    if any(names.SEEN in labels for labels, _ in marks):
        return False
    if any(mark.get(names.QUEUE) == names.QUEUE_OFF for pair in marks for mark in pair):
        return False
    spec = template.spec
    if (spec.scheduler_name or names.KUBE_SCHEDULER) not in (names.KUBE_SCHEDULER, scheduler):
        return False
    is_placed = isinstance(template, Pod) and (spec.node_name or _MIRROR in template.annotations)
    return not is_placed and spec.priority_class_name not in _CRITICAL


def is_to_be_held(item: Pod | Owner, scheduler: str) -> bool:
    """Whether admission would hold this work if it is on; the same rule as in `admission.queueing`."""
    template = item if isinstance(item, Pod) else item.spec.template
    if template is None or not isinstance(item, Pod | Job | Deployment | ReplicaSet | StatefulSet):
        return False
    if not _may_be_held(template, (item, template), scheduler):
        return False
    controller = item.metadata.controller_reference
    if isinstance(item, Pod):
        return controller is None
    if isinstance(item, Job):
        is_ours = item.spec.managed_by in (None, JOB_CONTROLLER)
        return is_ours and not item.spec.suspend and (controller is None or controller.kind == "CronJob")
    return controller is None
