"""Spellings: what pods and their owners say in fields, labels and annotations, read in one place.

A field beats a label, a label beats an annotation, and a pod's own word beats its owner's. Text that cannot
be read yields a warning and counts as not said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fluence import names
from fluence.model.owner import Owner
from fluence.model.pod import Pod

_NAMES = frozenset(names.GROUP_NAMES)
_SIZES = frozenset(names.GROUP_SIZES)

# What the API server allows as the value of a label; an annotation could say anything.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)
_SIZE = re.compile(r"[0-9]{1,9}", re.ASCII)


class GroupLabel(NamedTuple):
    """A group that a pod belongs to, and where that stands."""

    name: str  # of the group
    instance: str  # of the gang: a group of Kubernetes 1.35 has replicas, each a gang
    source: str
    is_field: bool


def field_of(pod: Pod) -> GroupLabel | None:
    """The native group that the pod's spec names (KEP-4671)."""
    link, ref = pod.spec.scheduling_group, pod.spec.workload_ref
    if link is not None and link.pod_group_name:
        name = link.pod_group_name
        return GroupLabel(name, name, "spec.schedulingGroup", True)
    if ref is not None and ref.name:
        name = f"{ref.name}/{ref.pod_group}"
        key = ref.pod_group_replica_key
        return GroupLabel(name, f"{name}/{key}" if key else name, "spec.workloadRef", True)
    return None


def label_of(metadata: Pod | Owner, warnings: list[str]) -> GroupLabel | None:
    """The group that labels or annotations name, in any spelling."""
    for what, values in _said(metadata):
        if _NAMES.isdisjoint(values):
            continue
        for spelling in names.GROUP_NAMES:
            value = values.get(spelling, "").strip()
            if not value:
                continue
            if _NAME.fullmatch(value):
                return GroupLabel(value, value, f"{what} {spelling}", False)
            warnings.append(
                f"{what} {spelling}={value[:40]!r} is not the name of a group and is ignored: "
                "use letters, digits, '-', '_' and '.'"
            )
    return None


def size_of(metadata: Pod | Owner, warnings: list[str]) -> int | None:
    """The gang's size where it is said outright. Annotations first: that is where all systems document it."""
    for what, values in reversed(list(_said(metadata))):
        if _SIZES.isdisjoint(values):
            continue
        for spelling in names.GROUP_SIZES:
            value = values.get(spelling, "").strip()
            if not value:
                continue
            if _SIZE.fullmatch(value) and int(value) > 0:
                return int(value)
            warnings.append(
                f"{what} {spelling}={value[:40]!r} is no size and is ignored: write a whole number above 0"
            )
    return None


def index_of(pod: Pod) -> int | None:
    """The pod's index in its Job or StatefulSet."""
    for key in (names.COMPLETION_INDEX, names.POD_INDEX):
        value = pod.annotations.get(key) or pod.labels.get(key) or ""
        if _SIZE.fullmatch(value):
            return int(value)
    return None


def _said(metadata: Pod | Owner) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield "label", metadata.metadata.labels or {}
    yield "annotation", metadata.metadata.annotations or {}
