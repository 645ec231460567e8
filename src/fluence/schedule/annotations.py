"""Terms: what users say of a gang in annotations: how long, which queue, which policy, which nodes.

Said on a pod, on its owner, or on its PodGroup; the first of these that says it counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fluence import names
from fluence.errors import InvalidInput, InvalidJobspec
from fluence.match.policy import find
from fluence.model import constraint as constraints
from fluence.model.constraint import Constraint
from fluence.model.group import Group
from fluence.model.jobspec import Jobspec
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.units import parse_duration

_KEYS = frozenset(
    (
        names.DURATION,
        names.SOFT_DURATION,
        names.QUEUE,
        names.POLICY,
        names.CONSTRAINTS,
        names.JOBSPEC,
        names.USER,
        names.REQUIRE_BACKEND,
    )
)


@dataclass(frozen=True, slots=True)
class GangAnnotations:
    limit: int | None = None  # ms
    bounded: bool = False  # the kubelet or the Job controller ends it at its limit
    soft_limit: int | None = None  # ms
    queue: str = ""
    policy: str | None = None
    user: str = ""
    constraint: Constraint | None = None
    jobspec: Jobspec | None = None
    fault: str = ""


def terms_of(
    pods: Sequence[Pod], owners: Sequence[Owner], group: Group | None, *, warnings: list[str]
) -> GangAnnotations:
    """The terms of a gang with these pods, in their order."""
    said = _said(pods, owners, group, warnings).get
    fault = ""
    policy, constraint, jobspec = said(names.POLICY, ""), None, None
    try:
        if policy:
            find(policy)
        constraint = _constraint(said(names.CONSTRAINTS, ""))
        jobspec = _jobspec(said(names.JOBSPEC, ""))
    except InvalidInput as error:
        where = f"{names.POLICY}: " if policy and not isinstance(error, InvalidJobspec) else ""
        fault = f"annotation {where}{error}"
    if backend := said(names.REQUIRE_BACKEND, ""):
        fault = (
            f"annotation {names.REQUIRE_BACKEND}: backend {backend[:60]!r} is asked for, and this scheduler "
            "has none to give: remove the annotation, or name a scheduler that has"
        )
    limit, bounded = _limit(said(names.DURATION, ""), _deadline(pods, owners), warnings)
    return GangAnnotations(
        limit=limit,
        bounded=bounded,
        soft_limit=_duration(names.SOFT_DURATION, said(names.SOFT_DURATION, ""), warnings),
        queue=said(names.QUEUE, ""),
        policy=policy or None,
        user=said(names.USER, "") or _account(pods),
        constraint=constraint,
        jobspec=jobspec,
        fault=fault,
    )


def _said(
    pods: Sequence[Pod], owners: Sequence[Owner], group: Group | None, warnings: list[str]
) -> dict[str, str]:
    """Each term from the first level that says it."""
    found: dict[str, str] = {}
    for where, level in (
        ("pods", [each.metadata.annotations for each in pods]),
        ("owners", [each.metadata.annotations for each in owners]),
        ("PodGroup", [group.annotations if group is not None else None]),
    ):
        here: dict[str, str] = {}
        for marks in level:
            if not marks:
                continue
            for key in sorted(_KEYS.intersection(marks)):
                value = marks[key].strip()
                if value and here.setdefault(key, value) != value:
                    warnings.append(
                        f"its {where} say different things in {key}: {here[key][:60]!r} counts; write one"
                    )
        found = {**here, **found}
    return found


def _account(pods: Sequence[Pod]) -> str:
    if not pods:
        return ""
    pod = pods[0]
    return f"{pod.metadata.namespace}/{pod.spec.service_account_name or 'default'}"


def _deadline(pods: Sequence[Pod], owners: Sequence[Owner]) -> int | None:
    """When Kubernetes itself has ended the last pod, in ms after its start."""
    ends = []
    for pod in pods:
        seconds = pod.spec.active_deadline_seconds
        for owner in owners:
            # NB a Job's deadline counts from the Job's start, so this may be late and is never early.
            of_job = owner.spec.active_deadline_seconds
            if of_job is not None and any(
                each.uid == owner.metadata.uid for each in pod.metadata.owner_references or ()
            ):
                seconds = of_job if seconds is None else min(seconds, of_job)
        if seconds is None:
            return None
        ends.append(seconds * 1000)
    return max(ends, default=None)


def _limit(text: str, deadline: int | None, warnings: list[str]) -> tuple[int | None, bool]:
    limit = _duration(names.DURATION, text, warnings)
    if deadline is not None and (limit is None or deadline <= limit):
        return max(1, deadline), True
    return limit, False


def _duration(key: str, text: str, warnings: list[str]) -> int | None:
    if not text:
        return None
    found = parse_duration(text)
    if found is None:
        warnings.append(f"annotation {key}={text[:40]!r} is ignored: write seconds, or 2h30m")
    return found or None  # 0: no limit


@lru_cache(maxsize=1024)
def _constraint(text: str) -> Constraint | None:
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidJobspec(
            'is no JSON: write {"properties": ["gpu"]} or another RFC 31 constraint', where=names.CONSTRAINTS
        ) from None
    return constraints.parse(value, names.CONSTRAINTS)


@lru_cache(maxsize=1024)
def _jobspec(text: str) -> Jobspec | None:
    return Jobspec.parse(text, source=names.JOBSPEC) if text else None
