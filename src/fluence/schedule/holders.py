"""Holders: who has what others wait for, and what of that each of them is told.

A user is told the names of objects of their own namespace. Of other namespaces they are told which kinds of
workloads there are, and how many. `StatusReports` asks `told_to` for all that is written on objects; whoever
reads the objects with rights of their own (`fluence explain`) is told names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason, Value

# The server takes any text in a reference, and this one is told to others.
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}", re.ASCII)
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)
NAMED: Final = 2  # holders that a text names, for each reason
_KINDS: Final = frozenset(("Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"))
_OTHER_KIND: Final = "workload"  # an owner may be of any kind, and its name is its user's
_OF_OTHERS: Final = {
    Code.WAITS_FOR_OVERRUN: Code.WAITS_FOR_OVERRUN_OF_OTHERS,
    Code.WAITS_FOR_UNLIMITED: Code.WAITS_FOR_UNLIMITED_OF_OTHERS,
}


def holder(pods: tuple[Pod, ...]) -> dict[str, Value]:
    """Pods of a group as users know them: by their owner. The parameters of a reason."""
    pod = pods[0]
    namespace = pod.metadata.namespace
    owner = next((each for each in pod.metadata.owner_references or () if each.controller), None)
    if owner is None or not (_KIND.fullmatch(owner.kind) and _NAME.fullmatch(owner.name)):
        return {"kind": "Pod", "namespace": namespace, "name": pod.metadata.name, "more": len(pods) - 1}
    kind, name = owner.kind, owner.name
    # The Deployment controller names a ReplicaSet so, and labels its pods.
    made = f"-{pod.metadata.labels.get('pod-template-hash', '')}" if pod.metadata.labels else "-"
    if kind == "ReplicaSet" and len(made) > 1 and name.endswith(made):
        kind, name = "Deployment", name.removesuffix(made)
    return {"kind": kind, "namespace": namespace, "name": name, "more": 0}


def named(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Reasons for who may read all objects: the first few holders, by name."""
    seen: Counter[Code] = Counter()
    found = []
    for reason in dict.fromkeys(reasons):
        seen[reason.code] += 1
        if reason.code not in _OF_OTHERS or seen[reason.code] <= NAMED:
            found.append(reason)
    return tuple(found)


def told_to(namespace: str, reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Reasons for the users of a namespace: holders of other namespaces are only counted."""
    own: list[Reason] = []
    others: dict[Code, Counter[str]] = {}
    for reason in dict.fromkeys(reasons):
        code = _OF_OTHERS.get(reason.code)
        if code is None or reason["namespace"] == namespace:
            own.append(reason)
        else:
            kind = str(reason["kind"])
            others.setdefault(code, Counter())[kind if kind in _KINDS else _OTHER_KIND] += 1
    counted = (Reason.of(code, holders=tuple(kinds.most_common())) for code, kinds in others.items())
    return (*named(own), *counted)
