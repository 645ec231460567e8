"""Gang size: the group and the size that pods and owners declare, and how many pods must start together.

Called by `gang.build`. The order (interfaces of all five predecessors): the PodGroup's minCount or minMember;
a size declared on a pod or its owner; the size that pods declare in the words of the system which names the
gang; what the custom object of an operator knows; what the owners run at a time, and the pods that no owner
made. A declared size may be smaller than the
owner's and still wins. A group that only a name holds together is *open*: its size is what is there now, and
it grows with each owner and each pod without one. `settling` keeps it from starting while it grows.

A gang that runs need not start together again: members that run or have succeeded count, so the replacement
of a failed rank starts alone. Members that are being deleted do not count: they may belong to a Job that was
deleted and created again under its name. If no member runs, the gang starts together, with all pods that its
Jobs still have to complete. But members that were bound together with pods that still wait, and ended before
these were bound, count: the gang has started, and the rest of it follows.

`membership` calls it for the gang of a pod, and `gang_size` for the number of pods that start together. A
field takes precedence over a label, and a label over an annotation; for the size, annotations come first. The
first key with a value decides. For an invalid value the result is a `Reason`: ignoring it would turn a gang
into single pods.

Pods may also name a gang of Kueue, Volcano, KAI or YuniKorn. These names are read on pods only, after all
names of our own. Each system has its own namespace of names: `volcano:train` and `train` are two gangs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec

from fluence import names
from fluence.model.grant import MAX_SIZE, pinned_node
from fluence.model.meta import OwnerReference
from fluence.model.operators import BY_KEY, CustomOwner
from fluence.model.owner import KAI, VOLCANO, Group, Owner, controller_of, system_of
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason

_NAMES = frozenset(names.GROUP_NAMES)
_SIZES = frozenset(names.GROUP_SIZES)
_SHOWN = 40  # characters of a value that a reason shows

MAX_TASK_GROUPS_BYTES = 16 * 1024

_KUEUE, YUNIKORN = "kueue", "yunikorn"
SYSTEMS = ((_KUEUE, (names.KUEUE_GROUP,)), (VOLCANO, names.VOLCANO_GROUPS), (KAI, (names.KAI_GROUP,)))
"""Systems that name a gang in one label or annotation. The first one on a pod counts."""

# The API server allows only this as the value of a label; an annotation may contain anything.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class GroupLabel(NamedTuple):
    """A group that a pod names, and where it names it."""

    name: str  # of the group
    instance: str  # of the gang: a group of Kubernetes 1.35 has replicas, each of them a gang
    source: str  # for people
    key: str | None = None  # the label or annotation; None: a field of the spec
    system: str = ""  # another system that the key belongs to

    @property
    def is_field(self) -> bool:
        return self.key is None

    @property
    def pod_group(self) -> str:
        """The name under which its PodGroup is found, see `pod_group_name`."""
        return _within(self.system, self.name)

    @property
    def gang(self) -> str:
        """The last part of the gang's key."""
        return _within(self.system, self.instance)

    @property
    def listing(self) -> str:
        """What admission calls it: see `fluence.admission.pod_groups`."""
        return f"{self.system}.{self.name}" if self.system else self.name


def pod_group_name(group: Group) -> str:
    """The name under which labels find a PodGroup. For other systems, it starts with the system."""
    return _within(system_of(group.source), group.name)


def group_field(pod: Pod) -> GroupLabel | None:
    """The native group that the pod's spec names (KEP-4671)."""
    link, ref = pod.spec.scheduling_group, pod.spec.workload_ref
    if link is not None and link.pod_group_name:
        name = link.pod_group_name
        return GroupLabel(name, name, "spec.schedulingGroup")
    if ref is not None and ref.name:
        name = f"{ref.name}/{ref.pod_group}"
        key = ref.pod_group_replica_key
        return GroupLabel(name, f"{name}/{key}" if key else name, "spec.workloadRef")
    return None


def group_label(of: Pod | Owner) -> GroupLabel | Reason | None:
    """The group that a label or an annotation names, under any of the known keys."""
    for kind, values in _labels_and_annotations(of):
        if not _NAMES.isdisjoint(values) and (found := _named(kind, values, names.GROUP_NAMES)) is not None:
            return found
    return None


def other_group(pod: Pod) -> GroupLabel | Reason | None:
    """The gang of another system that a pod names."""
    for system, keys in SYSTEMS:
        for kind, values in _labels_and_annotations(pod):
            found = _named(kind, values, keys, system)
            if found is not None:
                return found
    if not pod.annotations.get(names.YUNIKORN_TASK_GROUP, "").strip():
        return None
    for key in names.YUNIKORN_APPLICATIONS:
        for kind, values in _labels_and_annotations(pod):
            found = _named(kind, values, (key,), YUNIKORN)
            if found is not None:
                return found
    label = names.YUNIKORN_APPLICATIONS[-1]
    return Reason.of(Code.NO_APPLICATION, key=names.YUNIKORN_TASK_GROUP, label=label)


def declared_size(of: Pod | Owner) -> int | Reason | None:
    """The declared size of a gang. Annotations come first, because all systems document them."""
    for kind, values in reversed(list(_labels_and_annotations(of))):
        if _SIZES.isdisjoint(values):
            continue
        for key in names.GROUP_SIZES:
            found = _size(kind, key, values)
            if found is not None:
                return found
    return None


def other_size(pod: Pod, system: str) -> int | Reason | None:
    """The size that a pod declares in the format of the system that names its gang."""
    if system == _KUEUE:
        return _size("annotation", names.KUEUE_SIZE, pod.annotations)
    text = pod.annotations.get(names.YUNIKORN_TASK_GROUPS, "") if system == YUNIKORN else ""
    if not text.strip():
        return None
    size = len(text.encode())
    if size > MAX_TASK_GROUPS_BYTES:
        most = MAX_TASK_GROUPS_BYTES
        return Reason.of(Code.ANNOTATION_TOO_LONG, key=names.YUNIKORN_TASK_GROUPS, size=size, most=most)
    return _task_groups(text)


def pod_index(pod: Pod) -> int | None:
    """The pod's index in its Job or StatefulSet."""
    for key in (names.COMPLETION_INDEX, names.POD_INDEX):
        value = pod.annotations.get(key) or pod.labels.get(key) or ""
        if _NUMBER.fullmatch(value):
            return int(value)
    return None


class _TaskGroup(msgspec.Struct, rename="camel", frozen=True):
    """The fields of a YuniKorn task group that count."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    min_member: Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]


@lru_cache(maxsize=256)
def _task_groups(text: str) -> int | Reason:
    """The sum of all task groups: YuniKorn starts an application when each of them has its pods."""
    try:
        groups = msgspec.json.decode(text, type=list[_TaskGroup])
    except (msgspec.MsgspecError, RecursionError):
        groups = []
    total = sum(each.min_member for each in groups)
    if len({each.name for each in groups}) == len(groups) and 1 <= total <= MAX_SIZE:
        return total
    return Reason.of(Code.INVALID_TASK_GROUPS, key=names.YUNIKORN_TASK_GROUPS, maximum=MAX_SIZE)


def _named(
    kind: str, values: Mapping[str, str], keys: Sequence[str], system: str = ""
) -> GroupLabel | Reason | None:
    for key in keys:
        value = values.get(key, "").strip()
        if not value:
            continue
        if _NAME.fullmatch(value):
            return GroupLabel(value, value, f"{kind} {key}", key, system)
        return Reason.of(Code.INVALID_GROUP_NAME, kind=kind, key=key, value=value[:_SHOWN])
    return None


def _size(kind: str, key: str, values: Mapping[str, str]) -> int | Reason | None:
    value = values.get(key, "").strip()
    if not value:
        return None
    if _NUMBER.fullmatch(value) and 1 <= int(value) <= MAX_SIZE:
        return int(value)
    return Reason.of(Code.INVALID_SIZE, kind=kind, key=key, value=value[:_SHOWN], maximum=MAX_SIZE)


def _within(system: str, name: str) -> str:
    return f"{system}:{name}" if system else name  # no name contains a colon


def _labels_and_annotations(of: Pod | Owner) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "label", of.metadata.labels or {}
    yield "annotation", of.metadata.annotations or {}


@dataclass(frozen=True, slots=True)
class GangSize:
    """How many start together, or what is to be known first."""

    minimum: int = 1
    pods: int = 1  # that there will be at a time, as far as owners and sizes say
    waits: Reason | None = None  # what must be known first
    fault: Reason | None = None  # a declared size that is not valid
    warnings: tuple[Reason, ...] = ()
    # What the size was summed over, where nothing says it: uids of owners and of pods without one.
    parts: frozenset[str] = frozenset()
    newest: int = 0  # ms: when the youngest of them was made


@dataclass(frozen=True, slots=True)
class _Declared:
    """What labels and annotations say."""

    size: int | None = None
    fault: Reason | None = None
    warnings: tuple[Reason, ...] = ()


def gang_size(
    pods: Sequence[Pod],
    owners: Sequence[Owner],
    *,
    group: Group | None,
    above: Sequence[Owner] = (),
    unseen: Sequence[OwnerReference] = (),
    awaited_group: str | None = None,
    named: bool = True,
    system: str = "",
    begun: bool = False,
    operated: CustomOwner | None = None,
    known: int = 0,
) -> GangSize:
    """The size of a gang with these pods. A Deployment stands ``above`` an owner: a size that it declares
    counts, its replicas do not. ``awaited_group`` is a PodGroup that is named and does not exist yet;
    ``named``: a name holds the gang together, so that others may join; ``system``: another
    system that it is a name of; ``begun``: members of it run; ``operated``: the custom object that knows its
    size, which is ``known``."""
    declared = _declared(pods, (*owners, *above), system)
    made = sum(owner.pods for owner in owners)
    if group is not None and group.min_count is not None:
        return _from_group(group, group.min_count, made, declared)
    fault, warnings = declared.fault, declared.warnings
    if declared.size is not None:
        return GangSize(declared.size, max(declared.size, made), fault=fault, warnings=warnings)
    if unseen:
        return GangSize(waits=owner_not_seen(unseen[0]), fault=fault, warnings=warnings)
    if operated is not None:
        return _from_operator(operated, known, declared)
    if not named:
        return GangSize(made, made, fault=fault, warnings=warnings)
    if not owners and awaited_group is not None:
        waits = Reason.of(Code.POD_GROUP_OR_SIZE_MISSING, group=awaited_group)
        return GangSize(waits=waits, fault=fault, warnings=warnings)
    owned, free = _by_owners(pods, owners)
    # Pods without an owner that join a group which runs start one by one. But none of them stands in for a
    # pod that an owner has yet to make, beside those of it that wait.
    one_by_one = begun and not _waits_for_more(owned, made)
    counted = [pod for pod in free if _runs(pod)] if one_by_one else free
    minimum = max(1, made + len(counted))
    if not begun:
        warnings = (*warnings, Reason.of(Code.NO_SIZE, size=minimum, key=names.GROUP_SIZE))
    carriers: tuple[Owner | Pod, ...] = (*owners, *free)
    times = [at.timestamp() for each in carriers if (at := each.metadata.creation_timestamp) is not None]
    return GangSize(
        minimum,
        max(1, made + len(free)),
        fault=fault,
        warnings=warnings,
        parts=frozenset(each.metadata.uid for each in carriers),
        newest=int(max(times, default=0.0) * 1000),
    )


def single_size(
    pod: Pod,
    owners: Sequence[Owner],
    *,
    group: Group | None,
    unseen: Sequence[OwnerReference],
    unread: OwnerReference | None = None,
) -> GangSize:
    """The size of a single pod: always 1. A declared size that cannot be read is a fault."""
    waits = owner_not_seen(unseen[0]) if unseen else None
    if group is not None:
        return GangSize(waits=waits)  # a basic PodGroup declares that its pods are not a gang
    declared = _declared([pod], owners)
    warnings: tuple[Reason, ...] = ()
    silent = next((each for each in owners if isinstance(each, CustomOwner) and each.is_silent), None)
    if silent is not None and declared.size is None and waits is None:
        keys = {"label": names.GROUP_LABEL, "key": names.GROUP_SIZE}
        warnings = (Reason.of(Code.OWNER_SIZE_UNKNOWN, kind=silent.kind, owner=silent.key, **keys),)
    if unread is not None and declared.size is None:
        warnings = (owner_not_read(unread, pod.metadata.namespace),)
    if declared.size is not None and declared.size > 1 and waits is None:
        warnings = (Reason.of(Code.SIZE_WITHOUT_GROUP, size=declared.size, key=names.GROUP_LABEL),)
    return GangSize(waits=waits, fault=declared.fault, warnings=warnings)


def owner_not_seen(ref: OwnerReference) -> Reason:
    return Reason.of(Code.OWNER_NOT_SEEN, kind=ref.kind, name=ref.name)


def owner_not_read(ref: OwnerReference, namespace: str) -> Reason:
    group = ref.api_version.rpartition("/")[0]
    resource = f"{BY_KEY[group, ref.kind].plural}.{group}"
    keys = {"label": names.GROUP_LABEL, "key": names.GROUP_SIZE}
    owner = f"{namespace}/{ref.name}"
    return Reason.of(Code.OWNER_NOT_READ, kind=ref.kind, owner=owner, resource=resource, **keys)


def needed(
    minimum: int,
    *,
    living: int,
    pods: Sequence[Pod],
    ended: Sequence[Pod],
    owners: Sequence[Owner],
    past: Sequence[Owner] = (),
) -> int:
    """How many of the waiting members must be placed together; 0: each as it fits. ``pods`` are alive,
    ``owners`` are theirs; ``past``: those whose pods have all ended."""
    begun = _begun(pods, ended)
    if living:
        failed = sum(pod.status.phase != "Succeeded" for pod in begun)
        return max(0, minimum - living - _succeeded(ended, owners) - failed)
    # Ranks that succeeded are not run again: do not wait for them. Owners that were not seen yet count in
    # full: of a gang of two Jobs, the first must not start by itself.
    known = (*owners, *_of_this_run(past, owners, ended))
    left = sum(_left(owner) for owner in known)
    done = sum(owner.pods for owner in known) - left
    minimum = min(minimum, max(minimum - done, left))
    return max(0, minimum - len(begun)) if begun else max(1, minimum)


def _by_owners(pods: Sequence[Pod], owners: Sequence[Owner]) -> tuple[list[Pod], list[Pod]]:
    """The pods that one of these owners made, and the others."""
    known = {owner.identity for owner in owners}
    owned: list[Pod] = []
    free: list[Pod] = []
    for pod in pods:
        (owned if controller_of(pod.metadata) in known else free).append(pod)
    return owned, free


def _waits_for_more(owned: Sequence[Pod], made: int) -> bool:
    """Whether pods of owners wait while there are fewer than the ``made`` that the owners make."""
    stay = sum(pod.metadata.deletion_timestamp is None for pod in owned)
    return stay < made and any(not pod.spec.node_name for pod in owned)


def _runs(pod: Pod) -> bool:
    return bool(pod.spec.node_name or pinned_node(pod)) and pod.metadata.deletion_timestamp is None


def _left(owner: Owner) -> int:
    """How many pods an owner still makes at a time."""
    return owner.pods if owner.remaining is None else min(owner.pods, owner.remaining)


def _of_this_run(past: Sequence[Owner], owners: Sequence[Owner], ended: Sequence[Pod]) -> list[Owner]:
    """The owners that have finished beside those that go on: a pod of theirs got its node when these were
    there already. What an earlier run under the same name did does not count."""
    made = [at for owner in owners if (at := owner.metadata.creation_timestamp) is not None]
    if not past or len(made) < len(owners) or not made:
        return []
    last = max(made)
    beside = [pod for pod in ended if (at := pod.bound_at) is not None and at >= last]
    return [owner for owner in past if _by_owners(beside, (owner,))[0]]


def _from_group(group: Group, minimum: int, made: int, declared: _Declared) -> GangSize:
    """The size of a PodGroup, which overrides all declared sizes."""
    warnings = list(declared.warnings)
    if declared.fault is not None:
        warnings.append(declared.fault)
    elif declared.size is not None and declared.size != minimum:
        warnings.append(Reason.of(Code.SIZE_NOT_USED, size=declared.size, group=group.key, minimum=minimum))
    fault = None
    if minimum > MAX_SIZE:
        fault = Reason.of(Code.GROUP_TOO_LARGE, group=group.key, minimum=minimum, maximum=MAX_SIZE)
    return GangSize(minimum, max(minimum, made), fault=fault, warnings=tuple(warnings))


def _from_operator(owner: CustomOwner, size: int, declared: _Declared) -> GangSize:
    fault = declared.fault
    if size > MAX_SIZE:
        about = {"kind": owner.kind, "owner": owner.key}
        fault = fault or Reason.of(Code.OWNER_TOO_LARGE, **about, minimum=size, maximum=MAX_SIZE)
    return GangSize(size, size, fault=fault, warnings=declared.warnings)


def _declared(pods: Sequence[Pod], owners: Sequence[Owner], system: str = "") -> _Declared:
    """The size that pods declare, else the one that their owners do, else what pods say in the words of
    another system; the largest of several."""
    for level, found in (
        ("pods", {declared_size(pod) for pod in pods}),
        ("owners", {declared_size(owner) for owner in owners}),
        ("pods", {other_size(pod, system) for pod in pods} if system else set()),
    ):
        found.discard(None)
        if not found:
            continue
        sizes = sorted(size for size in found if isinstance(size, int))
        faults = sorted(
            (size for size in found if isinstance(size, Reason)), key=lambda each: str(each.params)
        )
        warnings: tuple[Reason, ...] = ()
        if len(sizes) > 1:
            warnings = (Reason.of(Code.DIFFERENT_SIZES, level=level, sizes=tuple(sizes)),)
        if sizes or faults:
            return _Declared(sizes[-1] if sizes else None, faults[0] if faults else None, warnings)
    return _Declared()


def _begun(pods: Sequence[Pod], ended: Sequence[Pod]) -> list[Pod]:
    """Members that got a node when all that wait were there already, and have ended: a half-bound gang is
    driven to its end, however short its members run. What waits in place of one that ended is younger."""
    made = [pod.metadata.creation_timestamp for pod in pods if pod.spec.node_name is None]
    if not made or None in made:
        return []
    last = max(each for each in made if each is not None)
    return [pod for pod in ended if (at := pod.bound_at) is not None and at >= last]


def _succeeded(ended: Sequence[Pod], owners: Sequence[Owner]) -> int:
    """Members that succeeded, those whose pod is deleted already included where a Job counts them."""
    seen = dict.fromkeys((owner.identity for owner in owners), 0)
    free = 0
    for pod in ended:
        if pod.status.phase != "Succeeded":
            continue
        owner = controller_of(pod.metadata)
        if owner in seen:
            seen[owner] += 1
        else:
            free += 1
    return free + sum(max(seen[owner.identity], owner.succeeded) for owner in owners)
