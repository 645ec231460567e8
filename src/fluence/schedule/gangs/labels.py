"""Group labels: the group and the size that a pod or its owner declares in fields, labels and annotations.

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
from functools import lru_cache
from typing import Annotated, NamedTuple

import msgspec

from fluence import names
from fluence.model.grant import MAX_SIZE
from fluence.model.owner import KAI, VOLCANO, Group, Owner, system_of
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
