"""Checks of what users made: pods that nobody schedules, groups that wait, gates and annotations left."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import datetime

from fluence import messages, names
from fluence.act.conditions import GROUP_CONDITIONS, POD_SCHEDULED
from fluence.doctor.facts import ClusterFacts
from fluence.doctor.finding import Check, DoctorFinding, Health
from fluence.model.group import Group
from fluence.model.pod import Pod
from fluence.model.reason import Code
from fluence.schedule.gang import Gang
from fluence.schedule.gate_dependency import GateDependency, aliases, dependency_of
from fluence.schedule.groups import Groups
from fluence.units import format_duration

_SHOWN = 5
_OURS = f"{names.PREFIX}/"
# Of the predecessors, and understood or passed over in silence.
_OLDER = frozenset(
    _OURS + each
    for each in (
        "coordination",
        "observe",
        "created-by",
        "renew-seconds",
    )
)
_OLDER_BEGIN = tuple(_OURS + each for each in ("require-", "attr-"))
KNOWN = _OLDER | {each for each in vars(names).values() if isinstance(each, str) and each.startswith(_OURS)}


def check_pods(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Everything about pods and groups, as far as they may be listed."""
    yield from _without_scheduler(facts)
    yield from _waiting(facts)
    yield from _gates(facts)
    yield from _annotations(facts)


def _or_unseen(check: Check, unseen: str, ok: str) -> DoctorFinding:
    return DoctorFinding(check, Health.UNSEEN, unseen) if unseen else DoctorFinding(check, Health.OK, ok)


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None)


def _some(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(items[:_SHOWN]) + more


# -- pods that nobody schedules ------------------------------------------------------------------------------


def _without_scheduler(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, name = Check.PODS_WITHOUT_SCHEDULER, facts.scheduler_name
    waiting = sorted(
        pod.key
        for pod in facts.pods.items
        if pod.spec.scheduler_name == name and _waits(pod) and not pod.is_gated
    )
    runs = facts.runs()
    if not waiting or runs:
        yield _or_unseen(check, facts.pods.unseen, f"no pod names {name} in vain")
        return
    pods = f"{len(waiting)} pod{'s' if len(waiting) > 1 else ''} that name {name} wait: {_some(waiting)}"
    if runs is None:
        unseen = facts.leases.unseen or facts.installations.unseen or facts.reports.unseen
        why = "no lease says so, and yet somebody reported events in its name within the last minute"
        if unseen or not facts.reported_just_now:
            why = unseen or "the one that is seen does not say its name"
        verdict = Health.UNSEEN if unseen else Health.WARN
        message = f"{pods}; whether a scheduler of that name runs is not known: {why}"
        yield DoctorFinding(check, verdict, message, name)
        return
    idle = next((each for each in facts.own), None)
    if idle is None:
        cure = "helm install fluence deploy/helm/fluence -n fluence-system --create-namespace"
        if name != names.SCHEDULER:
            cure += f" --set settings.scheduler-name={name}"
    elif idle.wanted == 0:
        cure = f"kubectl -n {idle.namespace} scale deployment/{idle.name} --replicas=2"
    else:
        cure = f"kubectl -n {idle.namespace} logs deployment/{idle.name} --tail=20"
    yield DoctorFinding(check, Health.WRONG, f"{pods}; no scheduler of that name runs", name, cure)


# -- groups that wait ----------------------------------------------------------------------------------------


def _waiting(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, limit = Check.WAITING_GROUPS, format_duration(int(facts.waits_s))
    groups = Groups(
        scheduler=facts.scheduler_name,
        follows=facts.follows,
        native=facts.has_groups,
        systems=facts.systems,
    )
    for owner in facts.owners.items:
        groups.set_owner(owner)
    for group in facts.groups.items:
        groups.set_group(group)
    for pod in facts.pods.items:
        groups.set_pod(pod)
    found = []
    for gang in groups.gangs():
        since = _since(gang)
        if since is not None and (facts.now - since).total_seconds() > facts.waits_s:
            found.append((since, gang))
    found.sort(key=lambda each: (each[0], each[1].key))
    for since, gang in found:
        yield _waits_long(gang, since, facts)
    if not found or facts.pods.unseen:
        yield _or_unseen(check, facts.pods.unseen, f"no group waits for more than {limit}")


def _since(gang: Gang) -> datetime | None:
    """When the first of those that still wait was made; None: nobody waits."""
    waiting = [pod.metadata.creation_timestamp for pod in (*gang.members, *gang.gated)]
    return min((each for each in waiting if each is not None), default=None)


def _waits_long(gang: Gang, since: datetime, facts: ClusterFacts) -> DoctorFinding:
    kind, name = ("pod", gang.name) if gang.is_single else ("group", gang.name)
    for_ = format_duration(int((facts.now - since).total_seconds()))
    counts = f"{len(gang.members) + len(gang.gated)} of {max(gang.size, len(gang))} pods"
    about = f"{kind} {gang.namespace}/{name}"
    named = "" if facts.scheduler_name == names.SCHEDULER else f" --scheduler-name {facts.scheduler_name}"
    cure = f"fluence explain {kind} {name} -n {gang.namespace}{named}"
    verdict, reason = _why(gang, is_whole=not (facts.groups.unseen or facts.owners.unseen))
    return DoctorFinding(Check.WAITING_GROUPS, verdict, f"{counts} wait for {for_}: {reason}", about, cure)


def _why(gang: Gang, *, is_whole: bool) -> tuple[Health, str]:
    """Why a gang waits. Unless it was read as a whole, only what the scheduler wrote counts."""
    if is_whole and gang.fault is not None:
        return Health.WRONG, messages.text(gang.fault)
    if not gang.members and gang.missing is not None and gang.missing.code is Code.WAITS_FOR_PRODUCER:
        return Health.WARN, messages.text(gang.missing)
    if not gang.members:
        gates = sorted({gate.name for pod in gang.gated for gate in pod.spec.scheduling_gates or ()})
        return Health.WARN, f"gated by {', '.join(gates)}"
    if written := _written(gang):
        return Health.WARN, written
    if is_whole and gang.missing is not None:
        return Health.WARN, messages.text(gang.missing)
    if not is_whole:
        return Health.UNSEEN, "its PodGroup or its owner cannot be read, and its pods were not told"
    return Health.WRONG, "no scheduler has said why"


def _written(gang: Gang) -> str:
    """What the scheduler wrote into the group's condition, else into a pod's."""
    for condition in gang.group.conditions if gang.group is not None else ():
        if condition.type in GROUP_CONDITIONS.values() and condition.status == "False" and condition.message:
            return condition.message
    for pod in gang.members:
        told = pod.condition(POD_SCHEDULED)
        if told is not None and told.status == "False" and told.message:
            return told.message
    return ""


# -- gates ---------------------------------------------------------------------------------------------------


def _gates(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check = Check.ORPHANED_GATES
    alive: dict[str, set[str]] = {}  # namespace -> pods that can still do something, and their groups
    for pod in facts.pods.items:
        if not pod.is_terminal:
            waits, goes_by = dependency_of(pod), aliases(pod)
            if isinstance(waits, GateDependency):
                goes_by.discard(waits.producer)  # nobody is let go by those who wait with them
            alive.setdefault(pod.metadata.namespace, set()).update(goes_by)
    found: dict[tuple[str, str, str], list[Pod]] = {}
    for pod in facts.pods.items:
        space = pod.metadata.namespace
        for gate in (pod.spec.scheduling_gates or ()) if _waits(pod) else ():
            is_ours = gate.name in names.GATES or gate.name.startswith(_OURS)
            if is_ours and (why := _orphaned(pod, alive.get(space, set()))):
                found.setdefault((space, gate.name, why), []).append(pod)
    for (space, gate_name, why), pods in sorted(found.items()):
        cure = f"kubectl -n {space} delete {' '.join(sorted({_maker(pod) for pod in pods}))}"
        message = f"{gate_name} is never opened: {why}"
        yield DoctorFinding(check, Health.WRONG, message, _called("pod", space, pods), cure)
    if not found or facts.pods.unseen:
        yield _or_unseen(check, facts.pods.unseen, "every gate of ours has somebody who opens it")


def _orphaned(pod: Pod, alive: set[str]) -> str:
    """Why nobody opens the gates of a pod; "" if somebody does, or nothing says who would."""
    producer = pod.annotations.get(names.DEPENDS_ON_PRODUCER, "").rpartition("/")[2]
    if producer:
        return "" if producer in alive else f"its producer {producer} is gone"
    producers = [f"{group}-producer" for group in _groups_of(pod)]
    if not producers or alive.intersection(producers):
        return ""
    return f"no pod of the group {producers[0]} is left"


def _groups_of(pod: Pod) -> list[str]:
    link = pod.spec.scheduling_group
    found = [link.pod_group_name] if link is not None and link.pod_group_name else []
    return found + [pod.labels[key] for key in names.GROUP_NAMES if pod.labels.get(key)]


def _maker(pod: Pod) -> str:
    """What to delete so that a pod goes and is not made again."""
    owner = next((each for each in pod.metadata.owner_references or () if each.controller), None)
    return f"{owner.kind.lower()}/{owner.name}" if owner is not None else f"pod/{pod.metadata.name}"


def _called(kind: str, namespace: str, items: Sequence[Pod | Group]) -> str:
    return f"{kind} " + _some(sorted(f"{namespace}/{_name(each)}" for each in items))


def _name(item: Pod | Group) -> str:
    return item.name if isinstance(item, Group) else item.metadata.name


# -- annotations ---------------------------------------------------------------------------------------------


def _annotations(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    found = [*_unknown(facts), *_left_over(facts)]
    yield from found
    unseen = facts.pods.unseen or facts.groups.unseen
    if not found or unseen:
        yield _or_unseen(Check.ANNOTATIONS, unseen, "none is unknown or left over")


def _unknown(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Annotations under our prefix that mean nothing: a misspelt one is silently not used."""
    where: dict[tuple[str, str, str], list[Pod | Group]] = {}
    for pod in facts.pods.items:
        for key in pod.annotations:
            if not pod.is_terminal and _is_unknown(key):
                where.setdefault((key, "pod", pod.metadata.namespace), []).append(pod)
    for group in facts.groups.items:
        for key in filter(_is_unknown, group.annotations or {}):
            where.setdefault((key, "podgroup", group.namespace), []).append(group)
    for (key, kind, space), items in sorted(where.items(), key=lambda each: each[0]):
        near = difflib.get_close_matches(key, sorted(KNOWN), n=1, cutoff=0.9)
        hint = f": did you mean {near[0]}?" if near else ""
        yield DoctorFinding(
            Check.ANNOTATIONS,
            Health.WARN,
            f"{key} is nothing that Fluence knows{hint}",
            _called(kind, space, items),
            _unannotate(kind, space, items, [key]),
        )


def _left_over(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Annotations of ours on pods of others: what the user asks for there is not done."""
    ours = {each.scheduler_name for each in facts.installations.items}
    ours |= {each.scheduler_name for each in facts.leases.items}
    if None in ours:
        return  # there is a Fluence whose name cannot be seen: they may be its
    ours.add(facts.scheduler_name)
    where: dict[tuple[str, str, str], list[Pod]] = {}
    for pod in facts.pods.items:
        scheduler = pod.spec.scheduler_name
        keys = [key for key in pod.annotations if key.startswith(_OURS) and not _is_unknown(key)]
        if keys and scheduler not in ours and not pod.is_terminal:
            where.setdefault((scheduler, pod.metadata.namespace, " ".join(sorted(keys))), []).append(pod)
    for (scheduler, space, keys_), items in sorted(where.items(), key=lambda each: each[0]):
        listed = keys_.split()
        yield DoctorFinding(
            Check.ANNOTATIONS,
            Health.WARN,
            f"{', '.join(listed)}: nobody reads it there; the scheduler is {scheduler}, which is no Fluence "
            "that can be seen here",
            _called("pod", space, items),
            _unannotate("pod", space, items, listed),
        )


def _is_unknown(key: str) -> bool:
    return key.startswith(_OURS) and key not in KNOWN and not key.startswith(_OLDER_BEGIN)


def _unannotate(kind: str, space: str, items: Sequence[Pod | Group], keys: Sequence[str]) -> str:
    which = " ".join(_name(each) for each in items[:_SHOWN])
    return f"kubectl -n {space} annotate {kind} {which} {' '.join(f'{key}-' for key in keys)}"
