"""Group labels: the group and the size that a pod or its owner declares in fields, labels and annotations.

Called by `membership` (which gang does a pod belong to) and `gang_size` (how many start together). A field
beats a label, and a label beats an annotation; for the size, annotations go first. The first key that has a
value decides. A value that is not valid is answered with a `Reason`: to take it for absent would make single
pods out of a gang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fluence import names
from fluence.model.grant import MAX_SIZE
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason

_NAMES = frozenset(names.GROUP_NAMES)
_SIZES = frozenset(names.GROUP_SIZES)
_SHOWN = 40  # characters of a value that a reason shows

# What the API server allows as the value of a label; an annotation could say anything.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


class GroupLabel(NamedTuple):
    """A group that a pod belongs to, and where that stands."""

    name: str  # of the group
    instance: str  # of the gang: a group of Kubernetes 1.35 has replicas, each a gang
    source: str  # for people
    key: str | None = None  # the label or annotation; None: a field of the spec

    @property
    def is_field(self) -> bool:
        return self.key is None


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
    """The group that a label or an annotation names, under any of the keys that count."""
    for kind, values in _labels_and_annotations(of):
        if _NAMES.isdisjoint(values):
            continue
        for key in names.GROUP_NAMES:
            value = values.get(key, "").strip()
            if not value:
                continue
            if _NAME.fullmatch(value):
                return GroupLabel(value, value, f"{kind} {key}", key)
            return Reason.of(Code.INVALID_GROUP_NAME, kind=kind, key=key, value=value[:_SHOWN])
    return None


def declared_size(of: Pod | Owner) -> int | Reason | None:
    """The gang's size where it is declared. Annotations first: that is where all systems document it."""
    for kind, values in reversed(list(_labels_and_annotations(of))):
        if _SIZES.isdisjoint(values):
            continue
        for key in names.GROUP_SIZES:
            value = values.get(key, "").strip()
            if not value:
                continue
            if _NUMBER.fullmatch(value) and 1 <= int(value) <= MAX_SIZE:
                return int(value)
            return Reason.of(Code.INVALID_SIZE, kind=kind, key=key, value=value[:_SHOWN], maximum=MAX_SIZE)
    return None


def pod_index(pod: Pod) -> int | None:
    """The pod's index in its Job or StatefulSet."""
    for key in (names.COMPLETION_INDEX, names.POD_INDEX):
        value = pod.annotations.get(key) or pod.labels.get(key) or ""
        if _NUMBER.fullmatch(value):
            return int(value)
    return None


def _labels_and_annotations(of: Pod | Owner) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "label", of.metadata.labels or {}
    yield "annotation", of.metadata.annotations or {}
