"""Checks of users' work: pods without a scheduler, waiting groups, orphaned gates and annotations, and
namespaces whose work is queued."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from datetime import datetime

from fluence import messages, names
from fluence.act.conditions import GROUP_CONDITIONS, POD_SCHEDULED
from fluence.controller.flux_job import FLUX_JOBS
from fluence.doctor.admission_checks import flux_jobs_on, install, logs, put_admission_in
from fluence.doctor.facts import HELD, Check, ClusterFacts, DoctorFinding, Health, Hook, Policy, Space
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.model.reason import Code
from fluence.schedule.external_resources.gate_dependency import GateDependency, aliases, dependency_of
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.units import format_duration

_SHOWN = 5
_OURS = f"{names.PREFIX}/"
# Names of the predecessors, which are understood or silently ignored.
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
    """All checks of pods and groups that may be listed."""
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


# -- pods without a scheduler --------------------------------------------------------------------------------


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
        cure = install(facts)
    elif idle.wanted == 0:
        cure = f"kubectl -n {idle.namespace} scale deployment/{idle.name} --replicas=2"
    else:
        cure = f"kubectl -n {idle.namespace} logs deployment/{idle.name} --tail=20"
    yield DoctorFinding(check, Health.WRONG, f"{pods}; no scheduler of that name runs", name, cure)


# -- waiting groups ------------------------------------------------------------------------------------------


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
    """When the oldest waiting pod was created; None if no pod waits."""
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
    """Why a gang waits. Unless all of its objects could be read, only what the scheduler wrote counts."""
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
    """The message of the scheduler in the group's condition, otherwise in a pod's."""
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
    alive: dict[str, set[str]] = {}  # namespace -> names of pods that have not ended, and of their groups
    for pod in facts.pods.items:
        if not pod.is_terminal:
            waits, goes_by = dependency_of(pod), aliases(pod)
            if isinstance(waits, GateDependency):
                goes_by.discard(waits.producer)  # it waits itself
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
    """Why no program opens the gates of a pod; "" if one does, or if no producer is named."""
    producer = pod.annotations.get(names.DEPENDS_ON_PRODUCER, "").rpartition("/")[2]
    if producer:
        return "" if producer in alive else f"its producer {producer} is gone"
    producers = [f"{group}-producer" for group in _groups_of(pod)]
    if not producers or alive.intersection(producers):
        return ""
    return f"no pod of the group {producers[0]} is left"


def _groups_of(pod: Pod) -> list[str]:
    link = pod.spec.scheduling_group
    name = link.pod_group_name if link is not None else ""
    found = [name] if name and not name.endswith(names.POD_GROUP_SUFFIX) else []
    return found + [pod.labels[key] for key in names.GROUP_NAMES if pod.labels.get(key)]


def _maker(pod: Pod) -> str:
    """The object to delete so that a pod goes and is not created again."""
    owner = pod.metadata.controller_reference
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
    """Annotations with our prefix that mean nothing: a misspelt one has silently no effect."""
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
    """Our annotations on pods of other schedulers, where they have no effect."""
    ours = {each.scheduler_name for each in facts.installations.items}
    ours |= {each.scheduler_name for each in facts.leases.items}
    if None in ours:
        return  # a Fluence whose scheduler name cannot be read may own them
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


_LABEL = names.NAMESPACE_OPT_IN
_DISABLED = "disabled"
_CLOSED = "kube-system"
_APPLY = "kubectl apply -f deploy/crds/fluxjobs.yaml"


def check_doors(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    """Whether work that should be queued is held, and whether held work is released."""
    yield from _doors(facts)
    yield _flux_jobs(facts)


def _doors(facts: ClusterFacts) -> Iterator[DoctorFinding]:
    check, spaces = Check.DOORS, facts.admission.spaces
    labelled = [each for each in spaces.items if _LABEL in each.labels]
    for each in labelled:
        yield from _space(facts, each)
    if spaces.unseen:
        yield DoctorFinding(check, Health.UNSEEN, spaces.unseen)
    elif not labelled:
        yield DoctorFinding(check, Health.OK, f"no namespace is labelled {_LABEL}={names.DOORS_ENABLED}")


def _space(facts: ClusterFacts, space: Space) -> Iterator[DoctorFinding]:
    check, seen, about = Check.DOORS, facts.admission, f"namespace {space.name}"
    value = space.labels[_LABEL]
    if value == _DISABLED:
        yield DoctorFinding(check, Health.OK, "its work is never held back, as its label says", about)
        return
    if value != names.DOORS_ENABLED:
        message = f"{_LABEL}={value} means nothing: it is {names.DOORS_ENABLED} or {_DISABLED}"
        cure = f"kubectl label namespace {space.name} --overwrite {_LABEL}={names.DOORS_ENABLED}"
        yield DoctorFinding(check, Health.WARN, message, about, cure)
        return
    everybody: list[Policy | Hook] = [*seen.policies.items, *seen.hooks.items]
    holders = [each for each in everybody if each.scope.endswith(HELD) and seen.applies(each, space)]
    if not holders:
        yield _unserved(facts, space)
        return
    yield from _let_go(facts, space, holders)


def _unserved(facts: ClusterFacts, space: Space) -> DoctorFinding:
    check, seen, about = Check.DOORS, facts.admission, f"namespace {space.name}"
    if seen.unseen:
        message = f"whether somebody holds its work back is not known: {seen.unseen}"
        return DoctorFinding(check, Health.UNSEEN, message, about)
    off = f"kubectl label namespace {space.name} {_LABEL}-"
    if space.name == _CLOSED:
        message = "it is labelled, and nothing is ever held back there"
        return DoctorFinding(check, Health.WRONG, message, about, off)
    message = "it is labelled, and no policy or webhook holds its work back: it starts at once, unqueued"
    by = "webhook" if seen.hooks_for(facts.scheduler_name) else ""
    return DoctorFinding(check, Health.WRONG, message, about, put_admission_in(facts, by, doors=True))


def _let_go(facts: ClusterFacts, space: Space, holders: list[Policy | Hook]) -> Iterator[DoctorFinding]:
    """Held work waits forever unless a scheduler with FluxJobs runs."""
    check, about = Check.DOORS, f"namespace {space.name}"
    schedulers = sorted({name for each in holders for name in each.schedulers})
    if len(schedulers) > 1:
        message = f"admission for several schedulers holds its work back: {', '.join(schedulers)}"
        yield DoctorFinding(check, Health.WARN, message, about, "leave one of them without doors")
    unseen = facts.installations.unseen or facts.leases.unseen or facts.reports.unseen
    is_ours = facts.scheduler_name in schedulers
    if is_ours and unseen:
        message = f"its work is held back; whether it is let go is not known: {unseen}"
        yield DoctorFinding(check, Health.UNSEEN, message, about)
    elif is_ours and facts.own and all(each.flux_jobs is False for each in facts.own):
        message = f"its work is held back, and {facts.scheduler_name} does not let it go: flux-jobs is off"
        yield DoctorFinding(check, Health.WRONG, message, about, flux_jobs_on(facts))
    elif is_ours and facts.runs() is False:
        message = f"its work is held back, and no scheduler named {facts.scheduler_name} runs to let it go"
        yield DoctorFinding(check, Health.WRONG, message, about, logs(facts))
    elif len(schedulers) < 2:
        message = f"its work is held back until {''.join(schedulers) or 'a scheduler'} starts it"
        unseen = facts.admission.unseen
        if unseen:
            message += f"; whether something else holds it too is not known: {unseen}"
        yield DoctorFinding(check, Health.UNSEEN if unseen else Health.OK, message, about)


def _flux_jobs(facts: ClusterFacts) -> DoctorFinding:
    check, kind = Check.FLUX_JOBS, FLUX_JOBS.name
    there = facts.admission.has_flux_jobs
    dropped = ", ".join(f"status.{each}" for each in facts.admission.dropped)
    if there and dropped and any(each.flux_jobs for each in facts.own):
        message = f"{kind} is of another version, and the server drops what it does not know: {dropped}"
        return DoctorFinding(check, Health.WARN, message, cure=_APPLY)
    if there:
        return DoctorFinding(check, Health.OK, f"{kind} is installed")
    if there is None:
        return DoctorFinding(check, Health.UNSEEN, f"whether {kind} is installed cannot be seen")
    if facts.installations.unseen or any(each.flux_jobs is None for each in facts.own):
        why = facts.installations.unseen or "its settings cannot be read"
        message = f"{kind} is not installed; whether a scheduler keeps FluxJobs is not known: {why}"
        return DoctorFinding(check, Health.UNSEEN, message)
    if not any(each.flux_jobs for each in facts.own):
        why = "flux-jobs is off" if facts.own else "no Deployment of ours wants it"
        return DoctorFinding(check, Health.OK, f"{kind} is not installed, and {why}")
    message = (
        f"{kind} is not installed, and flux-jobs is on: nobody sees where held work stands, or can cancel it"
    )
    return DoctorFinding(check, Health.WARN, message, cure=_APPLY)
