"""Stand-in: the pod that a held owner would make, and how many it would run; pure functions of the owner."""

from __future__ import annotations

from msgspec.structs import replace

from fluence import names
from fluence.errors import InvalidInput
from fluence.model import idset
from fluence.model.grant import MAX_SIZE, ReleaseNote
from fluence.model.held import STAND_IN
from fluence.model.meta import ObjectMeta, OwnerReference
from fluence.model.owner import OWNERS, Owner, StatefulSet, controller_of
from fluence.model.pod import Pod, PodStatus

GATE = names.GATE_FLUXQUEUE
_VERSIONS = {kind: version for version, kind in OWNERS}


def is_stand_in(pod: Pod) -> bool:
    return STAND_IN in pod.metadata.uid


def is_stand_in_uid(uid: str) -> bool:
    return STAND_IN in uid


def stand_in_uid(owner: str, index: int) -> str:
    """The uid of the stand-in of an owner, by the owner's identity."""
    return f"{owner}{STAND_IN}{index}"


def owner_of_uid(uid: str) -> str:
    """The identity of the owner that a stand-in's uid names."""
    return uid.partition(STAND_IN)[0]


def owner_of(pod: Pod) -> str:
    """The identity of the owner that makes a pod, as the pod says; nothing if none does."""
    return controller_of(pod.metadata)


def is_indexed(owner: Owner) -> bool:
    return owner.spec.completion_mode == "Indexed" or isinstance(owner, StatefulSet)


def wanted_pods(owner: Owner) -> int:
    """How many pods a held owner would run now, if it were released; a bound where a Job counts indexes."""
    spec = owner.spec
    if isinstance(owner, StatefulSet):
        return spec.replicas if spec.replicas is not None else 1
    at_once = spec.parallelism if spec.parallelism is not None else (spec.completions or 1)
    return at_once if owner.remaining is None else min(at_once, owner.remaining)


def wanted_indexes(owner: Owner) -> list[int]:
    """The indexes of the pods that a held owner would run now, if it were released."""
    spec = owner.spec
    if isinstance(owner, StatefulSet):
        return list(range(min(wanted_pods(owner), MAX_SIZE)))
    count = min(wanted_pods(owner), MAX_SIZE)
    if spec.completions is None or not is_indexed(owner):
        return list(range(count))
    done = {*indexes_of(owner.status.completed_indexes), *indexes_of(owner.status.failed_indexes)}
    left = (index for index in range(min(spec.completions, MAX_SIZE)) if index not in done)
    return [index for index, _ in zip(left, range(count), strict=False)]


def stand_in(owner: Owner, index: int, *, note: ReleaseNote | None = None, node: str | None = None) -> Pod:
    """The pod that an owner would make under this index."""
    template = owner.spec.template
    assert template is not None
    meta, made, own = owner.metadata, template.metadata, template.spec
    annotations = dict(made.annotations or {})
    if note is not None:
        annotations |= {names.JOBID: note.number, names.ALLOCATION: note.allocation}
    key = names.POD_INDEX if isinstance(owner, StatefulSet) else names.COMPLETION_INDEX
    labels = {**(made.labels or {}), names.SEEN: names.SEEN_YES}
    if is_indexed(owner):
        labels[key] = str(index)
    owned = OwnerReference(
        api_version=_VERSIONS[owner.kind], kind=owner.kind, name=meta.name, uid=meta.uid, controller=True
    )
    return Pod(
        metadata=ObjectMeta(
            name=f"{meta.name}{STAND_IN}{index}",
            namespace=meta.namespace,
            uid=stand_in_uid(owner.identity, index),
            creation_timestamp=meta.creation_timestamp,
            labels=labels,
            annotations=annotations or None,
            owner_references=[owned],
        ),
        # No gate of ours holds it: the seat is what is waited for.
        spec=replace(
            own,
            scheduling_gates=[each for each in own.scheduling_gates or () if each.name != GATE] or None,
            scheduler_name=own.scheduler_name or names.KUBE_SCHEDULER,
            node_name=node,
        ),
        status=PodStatus(phase="Pending"),
    )


def index_of(pod: Pod) -> int:
    """The index of a stand-in."""
    return int(pod.metadata.uid.rpartition(STAND_IN)[2])


def indexes_of(text: str | None) -> list[int]:
    """The indexes in a text of the Job controller, such as `0-3,7`."""
    try:
        return idset.decode(text, limit=MAX_SIZE) if text else []
    except InvalidInput:
        return []
