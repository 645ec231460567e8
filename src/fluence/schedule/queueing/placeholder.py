"""Placeholder: the pod that a held owner would create, and how many it would run. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fluence import names
from fluence.errors import InvalidInput
from fluence.model import idset
from fluence.model.grant import (
    MAX_SIZE,
    PLACEHOLDER,
    ReleaseNote,
    is_for_this_scheduler,
    is_held_by_admission,
)
from fluence.model.meta import ObjectMeta, OwnerReference
from fluence.model.operators import CustomOwner, Role
from fluence.model.owner import OWNERS, Owner, PodTemplate, StatefulSet, controller_of
from fluence.model.pod import Pod, PodStatus
from fluence.schedule.gangs.size import pod_index

GATE = names.GATE_FLUXQUEUE
_VERSIONS = {kind: version for version, kind in OWNERS}


def is_placeholder(pod: Pod) -> bool:
    return PLACEHOLDER in pod.metadata.uid


def is_placeholder_uid(uid: str) -> bool:
    return PLACEHOLDER in uid


def placeholder_uid(owner: str, index: int) -> str:
    """The uid of the placeholder of an owner, by the owner's identity."""
    return f"{owner}{PLACEHOLDER}{index}"


def owner_of_uid(uid: str) -> str:
    """The identity of the owner in the uid of a placeholder."""
    return uid.partition(PLACEHOLDER)[0]


def owner_of(pod: Pod) -> str:
    """The identity of the controller that a pod names, or ""."""
    return controller_of(pod.metadata)


def seat_of(pod: Pod, owners: Sequence[Owner]) -> tuple[str, object]:
    """What decides which placeholder a pod may replace: the identity of the held owner, and the pod's index
    or its role in the object of an operator. ``owners``: the pod's owner first, then the owners above it."""
    held = held_operator(owners)
    if held is None:
        return owner_of(pod), pod_index(pod)
    share = held.share_of(pod)
    return held.identity, None if share is None else share.role.name


def held_operator(owners: Sequence[Owner]) -> CustomOwner | None:
    """The held object of an operator among the owners of a pod."""
    return next((each for each in owners if isinstance(each, CustomOwner) and is_held_operator(each)), None)


def is_held_operator(owner: CustomOwner) -> bool:
    """Whether admission held an object. An object that another one controls is never held, even if its labels
    say so."""
    return owner.operator.holds and is_held_by_admission(owner) and not controller_of(owner.metadata)


def is_planned(owner: Owner, scheduler: str) -> bool:
    """Whether a held owner has placeholders for pods that ``scheduler`` places."""
    if isinstance(owner, CustomOwner):
        return is_held_operator(owner) and bool(owner.planned(scheduler))
    return is_for_this_scheduler(owner, scheduler)


def role_at(owner: CustomOwner, index: int, scheduler: str | None = None) -> Role:
    """The role of a placeholder of an operator's object. Indexes count through the roles in order."""
    roles = owner.planned(scheduler)
    for role in roles:
        if index < role.pods:
            return role
        index -= role.pods
    return roles[-1]  # only while a wide object has one placeholder for all of its pods


def is_indexed(owner: Owner) -> bool:
    return owner.spec.completion_mode == "Indexed" or isinstance(owner, StatefulSet)


def wanted_pods(owner: Owner, scheduler: str | None = None) -> int:
    """How many pods a held owner would run now if it were released; an upper bound if a Job counts
    indexes."""
    spec = owner.spec
    if isinstance(owner, CustomOwner):
        return sum(role.pods for role in owner.planned(scheduler))
    if isinstance(owner, StatefulSet):
        return spec.replicas if spec.replicas is not None else 1
    at_once = spec.parallelism if spec.parallelism is not None else (spec.completions or 1)
    return at_once if owner.remaining is None else min(at_once, owner.remaining)


def wanted_indexes(owner: Owner, scheduler: str | None = None) -> list[int]:
    """The indexes of the pods that a held owner would run now if it were released."""
    spec = owner.spec
    if isinstance(owner, StatefulSet | CustomOwner):
        return list(range(min(wanted_pods(owner, scheduler), MAX_SIZE)))
    count = min(wanted_pods(owner), MAX_SIZE)
    if spec.completions is None or not is_indexed(owner):
        return list(range(count))
    done = {*indexes_of(owner.status.completed_indexes), *indexes_of(owner.status.failed_indexes)}
    left = (index for index in range(min(spec.completions, MAX_SIZE)) if index not in done)
    return [index for index, _ in zip(left, range(count), strict=False)]


def placeholder(
    owner: Owner,
    index: int,
    *,
    note: ReleaseNote | None = None,
    node: str | None = None,
    scheduler: str | None = None,
) -> Pod:
    """The pod that an owner would create with this index. ``scheduler``: the one that admission writes into
    the pods of an operator, whose templates it does not change."""
    template, labels, named = _template(owner, index, scheduler)
    meta, made, own = owner.metadata, template.metadata, template.spec
    annotations = dict(made.annotations or {})
    if note is not None:
        annotations |= {names.JOBID: note.number, names.ALLOCATION: note.allocation}
    labels = {**(made.labels or {}), **labels, names.SEEN: names.SEEN_YES}
    return Pod(
        metadata=ObjectMeta(
            name=f"{meta.name}{PLACEHOLDER}{index}",
            namespace=meta.namespace,
            uid=placeholder_uid(owner.identity, index),
            creation_timestamp=meta.creation_timestamp,
            labels=labels,
            annotations=annotations or None,
            owner_references=[reference(owner)],
        ),
        # Without our own gate: a placeholder waits only for its placement.
        spec=replace(
            own,
            scheduling_gates=[each for each in own.scheduling_gates or () if each.name != GATE] or None,
            scheduler_name=named or names.KUBE_SCHEDULER,
            node_name=node,
        ),
        status=PodStatus(phase="Pending"),
    )


def reference(owner: Owner) -> OwnerReference:
    """The reference of a child to its controller."""
    version = owner.api_version if isinstance(owner, CustomOwner) else _VERSIONS[owner.kind]
    meta = owner.metadata
    return OwnerReference(api_version=version, kind=owner.kind, name=meta.name, uid=meta.uid, controller=True)


def _template(
    owner: Owner, index: int, scheduler: str | None
) -> tuple[PodTemplate, dict[str, str], str | None]:
    """The template of a pod, the labels that its controller adds, and the scheduler that places it."""
    if isinstance(owner, CustomOwner):
        role = role_at(owner, index, scheduler)
        assert role.template is not None
        spec, notes = role.template.spec, role.template.metadata.annotations or {}
        delegated = notes.get(names.BIND) == names.BIND_KUBE_SCHEDULER or spec.resource_claims
        named = spec.scheduler_name if delegated else scheduler or spec.scheduler_name
        mark = owner.operator.mark
        value = role.name.lower() if mark == names.KUBEFLOW_REPLICA_TYPE else role.name
        return role.template, {mark: value}, named
    template = owner.spec.template
    assert template is not None
    key = names.POD_INDEX if isinstance(owner, StatefulSet) else names.COMPLETION_INDEX
    labels = {key: str(index)} if is_indexed(owner) else {}
    return template, labels, template.spec.scheduler_name


def index_of(pod: Pod) -> int:
    """The index of a placeholder."""
    return int(pod.metadata.uid.rpartition(PLACEHOLDER)[2])


def indexes_of(text: str | None) -> list[int]:
    """The indexes in the format of the Job controller, such as `0-3,7`."""
    try:
        return idset.decode(text, limit=MAX_SIZE) if text else []
    except InvalidInput:
        return []
