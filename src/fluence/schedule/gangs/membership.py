"""Membership: which gang a pod belongs to, as a pure function of the pod, its owners and the PodGroups.

`Groups` calls it when a pod, an owner or a PodGroup changes. The first rule that applies decides:

- the native group that the pod's spec names;
- the group that a label or an annotation names, on the pod, then on its owners;
- the group of another system that the pod names;
- the custom object of an operator that knows how many of its pods start together (`model.operators`);
- the top owner, if only a size is declared, or if the pods are held until they start together;
- otherwise the pod is on its own.

With the gate WorkloadWithJob, Kubernetes' Job controller creates a PodGroup for each Job and names it in the
pods. No user asked for it, so it comes last: two Jobs with the same label stay one gang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from fluence import names
from fluence.model.grant import is_held_by_admission
from fluence.model.meta import OwnerReference
from fluence.model.operators import BY_KEY, NAMED, CustomOwner, listing_names
from fluence.model.owner import OWNERS, Group, Job, Owner, StatefulSet, controller_of, identity
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.gangs.size import GroupLabel, declared_size, group_field, group_label, other_group
from fluence.schedule.queueing.placeholder import held_operator

STRICT = "scheduling.k8s.io/v1beta1"
"""From this API version on, pods must have the priority of their group, and every Job has a group."""

_LONGEST_CHAIN = 4  # Job, JobSet, TrainJob; the bound is for owners that refer to each other in a loop


@dataclass(frozen=True, slots=True)
class Membership:
    """The gang that a pod belongs to, and why."""

    key: str  # of the gang
    name: str  # of the gang, as users know it
    label: GroupLabel | None  # the label that names the group
    groups: tuple[str, ...]  # keys of the PodGroups that decide this
    owners: tuple[Owner, ...]  # the pod's owner first, then the owners above it
    unseen: OwnerReference | None  # an owner that should be known and is not yet
    faults: tuple[Reason, ...] = ()  # labels and annotations that are not valid names
    operated: CustomOwner | None = None  # the custom object that declares the size
    size: int = 0  # the size that it declares
    unread: OwnerReference | None = None  # an operator's object that cannot be read

    @property
    def identities(self) -> Iterator[str]:
        """The identities of the owners, including the unknown one."""
        yield from (owner.identity for owner in self.owners)
        namespace = self.key.partition("/")[0]
        for ref in (self.unseen, self.unread):
            if ref is not None:
                yield identity_of(ref, namespace)

    @property
    def is_single(self) -> bool:
        return "/pod:" in self.key


def single_key(namespace: str, pod: str) -> str:
    """The key of the gang of a single pod."""
    # No name contains a colon, so a pod and a group with the same name have different keys.
    return f"{namespace}/pod:{pod}"


def membership(
    pod: Pod,
    owners: tuple[Owner, ...],
    unseen: OwnerReference | None,
    *,
    find_group: Callable[[str, str], Group | None],
) -> Membership:
    """The membership of a pod with these owners. ``find_group`` looks up by namespace and name."""
    namespace = pod.metadata.namespace
    field = None if _is_listed(pod, owners) else _field(pod, owners)
    native = find_group(namespace, field.pod_group) if field is not None else None
    made_up = native if native is not None and _is_made_up(native, pod) else None
    faults: tuple[Reason, ...] = ()
    label, group = field, native
    if field is None or made_up is not None:
        label, faults = _first_label(pod, owners)
        group = find_group(namespace, label.pod_group) if label is not None else None
    followed = tuple(
        dict.fromkeys(f"{namespace}/{each.pod_group}" for each in (field, label) if each is not None)
    )
    if label is None and (operated := _operated(pod, owners, unseen)) is not None:
        return replace(operated, groups=followed)
    is_owners = label is None and unseen is None and _is_gang_of_owner(pod, owners)
    if made_up is not None and label is None and unseen is None and not is_owners:
        label, group = field, made_up
    if label is not None and (group is None or group.is_gang):
        key, name = f"{namespace}/{label.gang}", label.instance
    elif is_owners:
        top = owners[-1]
        key, name = f"{namespace}/{top.kind.lower()}:{top.metadata.name}", top.metadata.name
    else:
        key, name = single_key(namespace, pod.metadata.name), pod.metadata.name
    return Membership(key, name, label, followed, owners, unseen, faults)


def owner_chain(
    pod: Pod, known: Mapping[str, Owner], follows: frozenset[str]
) -> tuple[tuple[Owner, ...], OwnerReference | None]:
    """The known owners of a pod, from the nearest up, and the first one that is not known although its kind
    counts. ``known`` is by identity. ``follows``: the kinds that become known sooner or later; kinds of
    operators need not be among them."""
    found: list[Owner] = []
    ref, namespace = pod.metadata.controller_reference, pod.metadata.namespace
    while len(found) < _LONGEST_CHAIN:
        if ref is not None and ref.kind == "Pod":
            ref = _owner_by_name(pod)  # a pod that was created by another pod, or by that pod's StatefulSet
        if ref is None or not (is_operators(ref) or _is_followed(ref, follows)):
            break
        owner = known.get(identity_of(ref, namespace))
        if owner is None:
            return tuple(found), ref
        found.append(owner)
        ref = owner.metadata.controller_reference
    return tuple(found), None


def identity_of(ref: OwnerReference, namespace: str) -> str:
    """The identity of the owner that a reference names."""
    return identity(namespace, ref.kind, ref.name, ref.uid)


def is_operators(ref: OwnerReference) -> bool:
    """Whether a reference names an object of an operator."""
    return (ref.api_version.rpartition("/")[0], ref.kind) in BY_KEY


def _is_followed(ref: OwnerReference, follows: frozenset[str]) -> bool:
    return (ref.api_version, ref.kind) in OWNERS and ref.kind in follows


def _owner_by_name(pod: Pod) -> OwnerReference | None:
    """The custom object that a pod names by a label. The reference has no uid: any object with that name will
    do, as with the name of a group."""
    for operator in NAMED:
        name = pod.labels.get(operator.named)
        if name:
            return OwnerReference(api_version=f"{operator.group}/", kind=operator.kind, name=name)
    return None


def named_by_template(owner: Owner, scheduler: str) -> str | None:
    """The key of the gang that the pods of a Job or a StatefulSet will belong to, by a label; None if that is
    not known before they exist."""
    template = owner.spec.template
    if template is None or not isinstance(owner, Job | StatefulSet):
        return None
    if template.spec.scheduler_name != scheduler or template.spec.scheduling_group is not None:
        return None
    pod = Pod(metadata=template.metadata, spec=template.spec)
    found = group_label(pod) or group_label(owner) or other_group(pod)
    return f"{owner.metadata.namespace}/{found.gang}" if isinstance(found, GroupLabel) else None


def makes_pods(owner: Owner) -> bool:
    """Whether an owner still has pods to create, and may do so."""
    spec = owner.spec
    idle = owner.is_finished or spec.suspend or owner.metadata.deletion_timestamp is not None
    return not idle and owner.remaining != 0 and 0 not in (spec.parallelism, spec.replicas)


def _field(pod: Pod, owners: tuple[Owner, ...]) -> GroupLabel | None:
    """The native group of a pod. A group that the Job controller created for a held Job does not count: the
    Job was planned as a whole before it."""
    template = owners[0].spec.template if owners else None
    if template is not None and is_held_by_admission(pod):
        named = template.spec.scheduling_group or template.spec.workload_ref
        return group_field(pod) if named is not None else None
    return group_field(pod)


def _is_made_up(group: Group, pod: Pod) -> bool:
    """Whether the controller of a pod also created its PodGroup, as a Job does."""
    return bool(group.controller) and group.controller == controller_of(pod.metadata)


def _is_listed(pod: Pod, owners: tuple[Owner, ...]) -> bool:
    """Whether admission wrote the native group of a pod, derived from the labels or the owner that name its
    gang. These decide, and the PodGroup only lists the gang."""
    field = group_field(pod)
    if field is None or not field.name.endswith(names.POD_GROUP_SUFFIX):
        return False
    return field.name.removesuffix(names.POD_GROUP_SUFFIX) in _listing_names(pod, owners)


def _listing_names(pod: Pod, owners: tuple[Owner, ...]) -> Iterator[str]:
    """The names that admission may have given the gang of a pod: see `fluence.admission.pod_groups`."""
    label, _ = _first_label(pod, owners)
    for each in (label, other_group(pod)):
        if isinstance(each, GroupLabel):
            yield each.listing
    yield pod.annotations.get(names.LISTED_AS, "")  # the label that its Job had when it was created
    yield from map(".".join, listing_names(pod.labels))
    ref = pod.metadata.controller_reference
    if ref is not None and ref.kind == "Job":
        yield f"job.{ref.name}"


def listed_as(pod: Pod, gang: str) -> str | None:
    """The name of the PodGroup that lists a gang, by one of its pods. Pods of a held object only know the
    object that it created."""
    field = group_field(pod)
    if field is None:
        return None
    name = gang.partition("/")[2].partition("@")[0].replace(":", ".", 1).replace("/", ".")
    kind, _, rest = name.partition(".")
    if kind == "trainjob":
        name = f"jobset.{rest}"
    elif kind == "rayjob":
        name = f"raycluster.{pod.labels.get(names.RAY_CLUSTER, '')}"
    return field.name if field.name == f"{name}{names.POD_GROUP_SUFFIX}" else None


def workload_of(pod: Pod, owners: tuple[Owner, ...]) -> OwnerReference:
    """The workload of a pod: its topmost known owner, or the pod itself."""
    meta = pod.metadata
    refs = [
        ref for each in (meta, *(owner.metadata for owner in owners)) for ref in each.owner_references or ()
    ]
    if not owners:
        own = OwnerReference(api_version="v1", kind="Pod", name=meta.name, uid=meta.uid)
        return meta.controller_reference or own
    top = owners[-1]
    named = next((each for each in refs if each.uid == top.metadata.uid), None)
    if named is not None:
        return named
    # A pod of a LeaderWorkerSet or of Spark names its owner by a label.
    operator = top.operator if isinstance(top, CustomOwner) else None
    version = f"{operator.group}/{operator.versions[0]}" if operator is not None else "v1"
    return OwnerReference(api_version=version, kind=top.kind, name=top.metadata.name, uid=top.metadata.uid)


def _first_label(pod: Pod, owners: tuple[Owner, ...]) -> tuple[GroupLabel | None, tuple[Reason, ...]]:
    """The group that is named first, and faults for invalid names before it."""
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


def _operated(pod: Pod, owners: tuple[Owner, ...], unseen: OwnerReference | None) -> Membership | None:
    """The gang of a pod by the custom object that declares how many pods start together. A declared size of 1
    means that they need not."""
    held = held_operator(owners)
    owner = next((each for each in owners if isinstance(each, CustomOwner) and each.sizes is not None), None)
    if held is not None and held.sizes is not None:
        owner = held  # it was planned before it created the object below it
    share = owner.share_of(pod) if owner is not None else None
    if owner is None or share is None or unseen is not None:
        return None
    role, size = share
    carriers: tuple[Pod | Owner, ...] = (pod, *owners)
    declared = next((found for each in carriers if (found := declared_size(each)) is not None), None)
    if declared is None and held is None:
        declared = size  # a held object was planned as a gang before it had pods, however few they are
    if isinstance(declared, int) and declared <= 1:
        return None
    operator, meta = owner.operator, owner.metadata
    parts = [part for part in (pod.labels.get(operator.run) if operator.run else None, role.stage) if part]
    name = "/".join((meta.name, *parts))
    key = f"{meta.namespace}/{owner.kind.lower()}:{name}"
    attempt = pod.labels.get(operator.attempt, "") if operator.attempt else ""
    if attempt not in ("", "0"):
        key += f"@{attempt}"  # after a restart, the new pods are a gang of their own
    return Membership(key, name, None, (), owners, unseen, operated=owner, size=size)


def _is_gang_of_owner(pod: Pod, owners: tuple[Owner, ...]) -> bool:
    """Whether the pods of an owner start together: they are held until then, or a size above 1 is declared.
    If the size cannot be read, the pods wait as the gang that they were meant to be."""
    if not owners:
        return False
    held = held_operator(owners)
    if held is not None and held.sizes is not None and held.share_of(pod) is None:
        return False  # it was not part of the plan, such as the pod that submits to a Ray cluster
    if is_held_by_admission(pod):
        return True
    carriers: tuple[Pod | Owner, ...] = (pod, *owners)
    sizes = [declared_size(each) for each in carriers]
    return any(isinstance(size, Reason) or (size or 1) > 1 for size in sizes)
