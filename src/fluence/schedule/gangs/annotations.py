"""Annotations: what users declare for a gang: its duration, queue, policy and nodes; and those without
effect.

`gang.build` calls it. An annotation may be on a pod, on its owner, or on its PodGroup; the first of these
that has it counts. `excluded-nodes` is the exception: all of them count, since the scheduler itself adds
nodes on the pods. An annotation that cannot be read, or is too long, is a fault: the gang waits with the
reason and the cure. An unknown annotation is a warning. Parsed texts are cached, up to a bound.

`annotations` calls it. A misspelt `durration` is not a fault: the gang can be placed, but not as its user
meant. So it is a warning, with the nearest known name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from fluence import names
from fluence.errors import InvalidInput, InvalidJobspec
from fluence.match.policy import find
from fluence.model import constraint as constraints
from fluence.model.constraint import Constraint
from fluence.model.external_resources import DeviceTerm, asked_by, containers_without_backend
from fluence.model.grant import MAX_SIZE
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.eligibility.depends_on import DependsOn, read_depends_on
from fluence.schedule.external_resources.requests import PER_POD, SHARED, device_terms
from fluence.schedule.gangs.jobspecs import (
    MAX_JOBSPEC_BYTES,
    MAX_LIMIT,
    MAX_QUEUE_BYTES,
    JobspecRequest,
    read_jobspec,
)
from fluence.units import parse_duration

MOST = 8  # warnings per gang
_SHOWN = 120  # characters of a name that a reason shows
_PREFIX = f"{names.PREFIX}/"


def _ours(found: Iterable[object]) -> Iterator[str]:
    for each in found:
        if isinstance(each, tuple):
            yield from _ours(each)
        elif isinstance(each, str) and each.startswith(_PREFIX):
            yield each


_OPEN = (names.REQUIRE, names.AT_LEAST, names.AT_MOST, names.ATTRIBUTE)
"""Prefixes of names that end in the name of an attribute."""
KNOWN = frozenset(_ours(vars(names).values())).difference(_OPEN)
"""Every fixed name with our prefix."""
LABELS = frozenset(_ours((names.GROUP_NAMES, names.GROUP_SIZES)))
"""The names that are also read as labels."""
_WRITTEN = frozenset(  # by programs, so they are not suggested to users
    (
        names.JOBID,
        names.ALLOCATION,
        names.WARNED,
        names.QUEUED,
        names.START_PROMISED,
        names.WAIT_REPORTED,
        names.SELECT_RESULT,
        names.BACKEND,
        names.PRODUCER_STARTED,
        names.GATE_OPENED,
        names.SUBMITTED_BY,
    )
)
_SUGGESTED = sorted(key.removeprefix(_PREFIX) for key in KNOWN - _WRITTEN)


def unread(annotations: Iterable[Collection[str]], labels: Iterable[Collection[str]]) -> tuple[Reason, ...]:
    """Warnings about the names of the annotations and labels of some objects."""
    found = {("annotation", key) for keys in annotations for key in keys if _is_unread(key, KNOWN)}
    found |= {("label", key) for keys in labels for key in keys if _is_unread(key, LABELS)}
    return tuple(_warning(kind, key) for kind, key in sorted(found)[:MOST]) if found else ()


def _is_unread(key: str, known: frozenset[str]) -> bool:
    return key.startswith(_PREFIX) and key not in known and not key.startswith(_OPEN)


@lru_cache(maxsize=1024)
def _warning(kind: str, key: str) -> Reason:
    if key in KNOWN:
        return Reason.of(Code.LABEL_NOT_READ, key=key)
    near = get_close_matches(key.removeprefix(_PREFIX)[:_SHOWN].lower(), _SUGGESTED, 1)
    nearest = f"{_PREFIX}{near[0]}" if near else None
    return Reason.of(Code.UNKNOWN_ANNOTATION, kind=kind, key=key[:_SHOWN], nearest=nearest)


MAX_CONSTRAINT_BYTES = 16 * 1024
MAX_TEXT_BYTES = MAX_QUEUE_BYTES
"""For every other annotation: a name or a duration. Some are part of every row of the history."""
MAX_EXCLUDED_NODES = 1000
"""Nodes that one annotation may exclude. The scheduler writes no more either."""

_WARN, _HOLD, _IGNORE = "warn", "hold", "ignore"  # values of `missing-variables`

T = TypeVar("T")

_KEYS = frozenset(
    (
        names.DURATION,
        names.SOFT_DURATION,
        names.QUEUE,
        names.POLICY,
        names.SPREAD,
        names.CONSTRAINTS,
        names.JOBSPEC,
        names.USER,
        names.DEVICES,
        names.MISSING_VARIABLES,
    )
)
_CHANGEABLE = frozenset((names.DEPENDS_ON, names.PRIORITY, names.MAX_RUNNING))
"""Annotations that users change while a gang waits. The template of a Job cannot be changed, so for these the
PodGroup comes first, then the owners, then the pods."""
MAX_DEPENDENCY_BYTES = 4096
MAX_FAVOUR = 1000
_MAX_BYTES = {
    **dict.fromkeys(_KEYS, MAX_TEXT_BYTES),
    names.CONSTRAINTS: MAX_CONSTRAINT_BYTES,
    names.JOBSPEC: MAX_JOBSPEC_BYTES,
    names.DEPENDS_ON: MAX_DEPENDENCY_BYTES,
    names.PRIORITY: MAX_TEXT_BYTES,
    names.MAX_RUNNING: MAX_TEXT_BYTES,
}


@dataclass(frozen=True, slots=True)
class GangAnnotations:
    """The annotations of a gang, including those of its jobspec."""

    limit: int | None = None  # ms
    bounded: bool = False  # the kubelet or the Job controller ends it at its limit
    soft_limit: int | None = None  # ms
    queue: str = ""
    policy: str | None = None
    spread: bool | None = None
    user: str = ""
    constraint: Constraint | None = None
    jobspec: JobspecRequest | None = None
    excluded: frozenset[str] = frozenset()  # names of nodes
    device_terms: tuple[DeviceTerm, ...] = ()
    per_pod_devices: bool = False
    depends_on: DependsOn | None = None
    favour: int = 0
    max_running: int | None = None
    fault: Reason | None = None
    warnings: tuple[Reason, ...] = ()


def gang_annotations(pods: Sequence[Pod], owners: Sequence[Owner], group: Group | None) -> GangAnnotations:
    """Read the annotations of a gang with these pods, in order."""
    levels = _levels(pods, owners, group)
    values, warnings = _first_values(levels, _KEYS)
    changeable, more_warnings = _first_values(levels[::-1], _CHANGEABLE)
    values, warnings = {**values, **changeable}, (*warnings, *more_warnings)
    metas = chain((each.metadata for each in pods), (each.metadata for each in owners))
    labels = (each.labels for each in metas if each.labels)
    warnings += unread((each for _, objects in levels for each in objects), labels)
    unset = _missing_variables(pods, values.get(names.MISSING_VARIABLES, _WARN))
    if isinstance(unset, tuple):
        warnings += unset
    excluded, faults = _excluded(levels)
    if isinstance(unset, Reason):
        faults.append(unset)
    terms, term_faults = device_terms(_requests(pods, levels))
    faults += term_faults
    if terms and not any(term.key == "backend" for term in terms) and not any(map(asked_by, pods)):
        warnings += (Reason.of(Code.REQUIRE_WITHOUT_DEVICE, keys=tuple(str(term) for term in terms[:5])),)
    if not values:
        limit, bounded = _with_deadline(None, _deadline(pods, owners))
        return GangAnnotations(
            limit=limit,
            bounded=bounded,
            user=_account(pods),
            excluded=excluded,
            device_terms=terms,
            fault=faults[0] if faults else None,
            warnings=warnings,
        )
    long = list(_too_long(values))
    values = {key: text for key, text in values.items() if key not in {each["key"] for each in long}}
    given = values.get
    faults += long
    policy = given(names.POLICY)
    if policy:
        faults += _policy_faults(policy)
    constraint = _kept(read_constraint(text), faults) if (text := given(names.CONSTRAINTS)) else None
    jobspec = _kept(read_jobspec(text), faults) if (text := given(names.JOBSPEC)) else None
    devices = given(names.DEVICES, SHARED)
    if devices not in (SHARED, PER_POD):
        faults.append(Reason.of(Code.INVALID_DEVICES, key=names.DEVICES, value=devices[:60]))
    limit = _kept(_duration(names.DURATION, given(names.DURATION)), faults)
    soft_limit = _kept(_duration(names.SOFT_DURATION, given(names.SOFT_DURATION)), faults)
    depends_on = _kept(read_depends_on(text), faults) if (text := given(names.DEPENDS_ON)) else None
    queue = given(names.QUEUE, "")
    queue = "" if queue == names.QUEUE_OFF else queue  # its user opted out of being held
    if jobspec is not None:
        faults += _conflicts(jobspec, limit, queue)
        limit = jobspec.limit if limit is None else limit
        queue = queue or jobspec.queue
        constraint = both(constraint, jobspec.constraint)
    limit, bounded = _with_deadline(limit or None, _deadline(pods, owners))
    return GangAnnotations(
        limit=limit,
        bounded=bounded,
        soft_limit=soft_limit or None,
        queue=queue,
        policy=policy or None,
        spread=_kept(_spread(given(names.SPREAD)), faults),
        user=given(names.USER) or _account(pods),
        constraint=constraint,
        jobspec=jobspec,
        excluded=excluded,
        device_terms=terms,
        per_pod_devices=devices == PER_POD,
        depends_on=depends_on,
        favour=_kept(_favour(given(names.PRIORITY)), faults) or 0,
        max_running=_kept(_max_running(given(names.MAX_RUNNING)), faults),
        fault=faults[0] if faults else None,
        warnings=warnings,
    )


def _missing_variables(pods: Sequence[Pod], then: str) -> Reason | tuple[Reason, ...]:
    """A fault or warnings if containers would start without knowing their backend."""
    if then not in (_WARN, _HOLD, _IGNORE):
        return Reason.of(Code.INVALID_DEVICES, key=names.MISSING_VARIABLES, value=then[:60])
    if then == _IGNORE:
        return ()
    for pod in pods:
        # Objects that no server has stored did not pass admission: pods of a simulation, and placeholders.
        containers = containers_without_backend(pod) if pod.metadata.resource_version else ()
        if containers:
            reason = Reason.of(Code.VARIABLES_MISSING, containers=containers[:5], held=then == _HOLD)
            return reason if then == _HOLD else (reason,)
    return ()


def both(one: Constraint | None, other: Constraint | None) -> Constraint | None:
    """A constraint that holds where both hold."""
    if one is None or other is None:
        return one or other
    return one if one == other else Constraint("and", children=(one, other))


@lru_cache(maxsize=1024)
def read_constraint(text: str) -> Constraint | Reason:
    """Parse an RFC 31 constraint in JSON."""
    try:
        return constraints.parse(_json(text), names.CONSTRAINTS)
    except InvalidInput as error:
        return Reason.of(Code.INVALID_ANNOTATION, error=str(error))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidJobspec(
            'is not valid JSON: write {"properties": ["gpu"]} or another RFC 31 constraint',
            where=names.CONSTRAINTS,
        ) from None


# -- sources -------------------------------------------------------------------------------------------------

_Levels = tuple[tuple[str, list[Mapping[str, str]]], ...]


def _levels(pods: Sequence[Pod], owners: Sequence[Owner], group: Group | None) -> _Levels:
    """Annotations by the kind of object that carries them, in order of precedence."""
    of_group = group.annotations if group is not None else None
    return (
        ("pods", [each.metadata.annotations for each in pods if each.metadata.annotations]),
        ("owners", [each.metadata.annotations for each in owners if each.metadata.annotations]),
        ("PodGroup", [of_group] if of_group else []),
    )


def _requests(pods: Sequence[Pod], levels: _Levels) -> Iterator[Mapping[str, str]]:
    """The annotations that users wrote, without the backend that the scheduler wrote on pods."""
    for pod in pods:
        annotations = pod.metadata.annotations or {}
        if names.BACKEND in annotations and (pod.spec.node_name or names.JOBID in annotations):
            annotations = {key: text for key, text in annotations.items() if key != names.BACKEND}
        if annotations:
            yield annotations
    for level, objects in levels:
        if level != "pods":
            yield from objects


def _first_values(levels: _Levels, keys: frozenset[str]) -> tuple[dict[str, str], tuple[Reason, ...]]:
    """Each annotation from the first level that has it, and warnings where objects of one level disagree."""
    found: dict[str, str] = {}
    warnings: dict[Reason, None] = {}
    for level, objects in levels:
        here: dict[str, str] = {}
        for values in objects:
            for key in sorted(keys.intersection(values)):
                value = values[key].strip()
                if value and here.setdefault(key, value) != value:
                    shown = here[key][:60]
                    warnings[Reason.of(Code.DIFFERENT_ANNOTATIONS, level=level, key=key, value=shown)] = None
        found = {**here, **found}
    return found, tuple(warnings)


def _excluded(levels: _Levels) -> tuple[frozenset[str], list[Reason]]:
    """The nodes that any object excludes."""
    found: set[str] = set()
    texts = (each[names.EXCLUDED] for _, objects in levels for each in objects if names.EXCLUDED in each)
    for text in dict.fromkeys(texts):
        given = text.count(",") + 1
        if given > MAX_EXCLUDED_NODES:
            many = Reason.of(Code.TOO_MANY_EXCLUDED, key=names.EXCLUDED, given=given, most=MAX_EXCLUDED_NODES)
            return frozenset(found), [many]
        found.update(name for each in text.split(",") if (name := each.strip()))
    return frozenset(found), []


def _account(pods: Sequence[Pod]) -> str:
    if not pods:
        return ""
    pod = pods[0]
    return f"{pod.metadata.namespace}/{pod.spec.service_account_name or 'default'}"


# -- single annotations --------------------------------------------------------------------------------------


def _kept(value: T | Reason, faults: list[Reason]) -> T | None:
    if isinstance(value, Reason):
        faults.append(value)
        return None
    return value


def _too_long(values: Mapping[str, str]) -> Iterator[Reason]:
    for key, most in sorted(_MAX_BYTES.items()):
        size = len(values.get(key, "").encode())
        if size > most:
            yield Reason.of(Code.ANNOTATION_TOO_LONG, key=key, size=size, most=most)


def _policy_faults(policy: str) -> list[Reason]:
    try:
        find(policy)
    except InvalidInput as error:
        return [Reason.of(Code.INVALID_ANNOTATION, error=f"{names.POLICY}: {error}")]
    return []


def _spread(text: str | None) -> bool | Reason | None:
    if text in ("true", "false", None):
        return None if text is None else text == "true"
    return Reason.of(Code.INVALID_SPREAD, key=names.SPREAD, value=text[:60])


def _conflicts(jobspec: JobspecRequest, limit: int | None, queue: str) -> Iterator[Reason]:
    """Faults where the annotations contradict the jobspec."""
    if limit is not None and jobspec.limit is not None and limit != jobspec.limit:
        yield Reason.of(
            Code.JOBSPEC_DURATION, key=names.JOBSPEC, other=names.DURATION, limit=jobspec.limit, given=limit
        )
    if queue and jobspec.queue and queue != jobspec.queue:
        yield Reason.of(
            Code.JOBSPEC_QUEUE,
            key=names.JOBSPEC,
            other=names.QUEUE,
            queue=jobspec.queue[:60],
            given=queue[:60],
        )


def _deadline(pods: Sequence[Pod], owners: Sequence[Owner]) -> int | None:
    """When Kubernetes itself ends the last pod, in ms after its start."""
    ends = []
    for pod in pods:
        seconds = pod.spec.active_deadline_seconds
        for owner in owners:
            # The deadline of a Job counts from the Job's start, so this may be late but is never early.
            of_job = owner.spec.active_deadline_seconds
            if of_job is not None and owner.claims(pod.metadata):  # only then its controller ends the pod
                seconds = of_job if seconds is None else min(seconds, of_job)
        if seconds is None:
            return None
        ends.append(seconds * 1000)
    return max(ends, default=None)


def _with_deadline(limit: int | None, deadline: int | None) -> tuple[int | None, bool]:
    if deadline is not None and (limit is None or deadline <= limit):
        return max(1, deadline), True
    return limit, False


def _duration(key: str, text: str | None) -> int | Reason | None:
    """Milliseconds; 0: no limit."""
    if not text:
        return None
    found = parse_duration(text)
    if found is None or found > MAX_LIMIT:
        return Reason.of(Code.INVALID_DURATION, key=key, value=text[:40])
    return found


def _favour(text: str | None) -> int | Reason:
    """The priority that a user gives a job among their own."""
    favour = _whole_number(text) if text else 0
    if favour is None or abs(favour) > MAX_FAVOUR:
        value = (text or "")[:40]
        return Reason.of(Code.INVALID_PRIORITY, key=names.PRIORITY, value=value, most=MAX_FAVOUR)
    return favour


def _max_running(text: str | None) -> int | Reason | None:
    """How many pods of an array may run at a time."""
    if not text:
        return None
    most = _whole_number(text)
    if most is None or not 1 <= most <= MAX_SIZE:
        return Reason.of(Code.INVALID_MAX_RUNNING, key=names.MAX_RUNNING, value=text[:40], most=MAX_SIZE)
    return most


def _whole_number(text: str) -> int | None:
    try:
        return int(text) if len(text) <= 7 else None
    except ValueError:
        return None
