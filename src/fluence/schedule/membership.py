"""Membership: which gang a pod belongs to, as a pure function of the pod, its owners and the PodGroups.

Called by `Groups` whenever a pod, an owner or a PodGroup changes. The first of these that holds: the native
group that the pod's spec names; the group that a label or an annotation names, on the pod, then on its
owners; the group of another system that the pod names; the top owner, where only a size is declared, or where
the pods are held until they start together; the pod by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fluence.model.group import Group
from fluence.model.held import is_seen
from fluence.model.meta import OwnerReference
from fluence.model.owner import OWNERS, Job, Owner, StatefulSet, identity
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.group_labels import GroupLabel, declared_size, group_field, group_label, other_group

STRICT = "scheduling.k8s.io/v1beta1"
"""From this API on the pods' priority must be their group's, and every Job has a group."""

_LONGEST_CHAIN = 4  # Deployment, ReplicaSet; the bound is for a loop that someone wrote by hand


@dataclass(frozen=True, slots=True)
class Membership:
    """Where a pod belongs."""

    key: str  # of the gang
    name: str  # of the gang, as users know it
    label: GroupLabel | None  # what names the group
    groups: tuple[str, ...]  # keys of the PodGroups that decide this
    owners: tuple[Owner, ...]  # the pod's own first, then that one's
    unseen: OwnerReference | None  # an owner that should be known and is not
    faults: tuple[Reason, ...] = ()  # labels and annotations that are not valid names

    @property
    def identities(self) -> Iterator[str]:
        """Of the owners, the one that is not known included."""
        yield from (owner.identity for owner in self.owners)
        if self.unseen is not None:
            namespace = self.key.partition("/")[0]
            yield identity(namespace, self.unseen.kind, self.unseen.name, self.unseen.uid)

    @property
    def is_single(self) -> bool:
        return "/pod:" in self.key


def single_key(namespace: str, pod: str) -> str:
    """The key of the gang of one pod by itself."""
    # A colon is in no name, so a pod and a group of one name never meet.
    return f"{namespace}/pod:{pod}"


def membership(
    pod: Pod,
    owners: tuple[Owner, ...],
    unseen: OwnerReference | None,
    *,
    find_group: Callable[[str, str], Group | None],
) -> Membership:
    """Where a pod with these owners belongs; ``find_group`` answers by namespace and name."""
    namespace = pod.metadata.namespace
    field = label = _field(pod, owners)
    faults: tuple[Reason, ...] = ()
    single = False
    if field is not None:
        group = find_group(namespace, field.name)
        single = group is not None and not group.is_gang
        if single and group is not None and group.workload is not None and group.source == STRICT:
            # 1.37 makes such a group for every Job; it says nothing of what the user wants.
            found, faults = _first_label(pod, owners)
            label, single = (found, False) if found is not None else (label, True)
    else:
        label, faults = _first_label(pod, owners)
    if label is not None and not label.is_field:
        group = find_group(namespace, label.pod_group)
        single = group is not None and not group.is_gang
    if label is not None and not single:
        key, name = f"{namespace}/{label.gang}", label.instance
    elif label is None and unseen is None and owners and (is_seen(pod) or _declares_gang(pod, owners)):
        top = owners[-1]
        key, name = f"{namespace}/{top.kind.lower()}:{top.metadata.name}", top.metadata.name
    else:
        key, name = single_key(namespace, pod.metadata.name), pod.metadata.name
    groups = dict.fromkeys(f"{namespace}/{each.pod_group}" for each in (field, label) if each is not None)
    return Membership(key, name, label, tuple(groups), owners, unseen, faults)


def owner_chain(
    pod: Pod, known: Mapping[str, Owner], follows: frozenset[str]
) -> tuple[tuple[Owner, ...], OwnerReference | None]:
    """The pod's owner and that one's owner, as far as they are known, and the first that should be.
    ``known`` by identity; ``follows``: the kinds that will be known sooner or later."""
    found: list[Owner] = []
    refs, namespace = pod.metadata.owner_references, pod.metadata.namespace
    while len(found) < _LONGEST_CHAIN:
        ref = next((each for each in refs or () if each.controller), None)
        if ref is None or (ref.api_version, ref.kind) not in OWNERS or ref.kind not in follows:
            break
        owner = known.get(identity(namespace, ref.kind, ref.name, ref.uid))
        if owner is None:
            return tuple(found), ref
        found.append(owner)
        refs = owner.metadata.owner_references
    return tuple(found), None


def named_by_template(owner: Owner, scheduler: str) -> str | None:
    """The key of the gang that the pods of a Job or a StatefulSet will belong to, by a label; None: that
    cannot be said before they are there."""
    template = owner.spec.template
    if template is None or not isinstance(owner, Job | StatefulSet):
        return None
    if template.spec.scheduler_name != scheduler or template.spec.scheduling_group is not None:
        return None
    pod = Pod(metadata=template.metadata, spec=template.spec)
    found = group_label(pod) or group_label(owner) or other_group(pod)
    return f"{owner.metadata.namespace}/{found.gang}" if isinstance(found, GroupLabel) else None


def makes_pods(owner: Owner) -> bool:
    """Whether an owner has pods to make, and may."""
    spec = owner.spec
    idle = owner.is_finished or spec.suspend or owner.metadata.deletion_timestamp is not None
    return not idle and owner.remaining != 0 and 0 not in (spec.parallelism, spec.replicas)


def _field(pod: Pod, owners: tuple[Owner, ...]) -> GroupLabel | None:
    """The native group of a pod. One that the Job controller made up for a held Job does not count: the Job
    was planned before it, as a whole."""
    template = owners[0].spec.template if owners else None
    if template is not None and is_seen(pod):
        named = template.spec.scheduling_group or template.spec.workload_ref
        return group_field(pod) if named is not None else None
    return group_field(pod)


def _first_label(pod: Pod, owners: tuple[Owner, ...]) -> tuple[GroupLabel | None, tuple[Reason, ...]]:
    """The group that is named first, and the names before it that are not valid."""
    faults: list[Reason] = []
    carriers: tuple[Pod | Owner, ...] = (pod, *owners)
    for each in carriers:
        found = group_label(each)
        if isinstance(found, GroupLabel):
            return found, tuple(faults)
        if found is not None:
            faults.append(found)
    other = other_group(pod)
    if isinstance(other, Reason):
        return None, (*faults, other)
    return other, tuple(faults)


def _declares_gang(pod: Pod, owners: tuple[Owner, ...]) -> bool:
    """A size above 1. One that cannot be read is held as the gang that it was meant to be."""
    carriers: tuple[Pod | Owner, ...] = (pod, *owners)
    sizes = [declared_size(each) for each in carriers]
    return any(isinstance(size, Reason) or (size or 1) > 1 for size in sizes)
