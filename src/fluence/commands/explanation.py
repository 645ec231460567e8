"""Explanation: everything known about a pod, a group or a workload such as a Job, as a value for programs.

What the scheduler wrote comes from conditions of pods and groups, and from the FluxJob of held work. What
keeps it from starting now, and what would help, comes from an `Inquiry` in a copy of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fluence import messages, names
from fluence.act.conditions import GROUP_CONDITIONS, POD_SCHEDULED, WaitReport, wait_report
from fluence.controller.flux_job import FluxJob
from fluence.errors import InvalidInput, NotFound
from fluence.kube.gangs import lists_gangs
from fluence.kube.listing import ClusterListing
from fluence.model.external_resources import asked_by
from fluence.model.grant import is_cancelled, is_held, is_held_by_admission, is_ours
from fluence.model.job_state import JobState
from fluence.model.meta import Condition
from fluence.model.operators import LISTED_KINDS, CustomOwner
from fluence.model.owner import OWNERS, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.size import (
    SYSTEMS,
    YUNIKORN,
    declared_size,
    group_field,
    group_label,
    other_group,
)
from fluence.schedule.inquiry import Inquiry, NextCycle
from fluence.schedule.queueing.placeholder import is_placeholder, wanted_pods
from fluence.schedule.restart import Promise, promise_of
from fluence.schedule.settings import SchedulerSettings
from fluence.units import parse_rfc3339, rfc3339

_FOR_SEATS = ("nodes", "pods of other namespaces", "other pods")
_FOR_VOLUMES = ("volume claims", "persistentvolumes", "storageclasses", "csinodes")
_OWNERS = ("jobs", "deployments", "replicasets", "statefulsets")
_FOR_GANGS = (*_OWNERS, "PodGroups")
_EXACT_PLACES = 10  # places that a FluxJob shows exactly
_NO_SCHEDULER = "nothing, but no scheduler runs"
_SYSTEMS = (*(system for system, _ in SYSTEMS), YUNIKORN)
_DNS_LABEL = re.compile("[a-z0-9]([-a-z0-9]{0,52}[a-z0-9])?")
_COUNTS = ("waiting", "placed", "gated", "ended")


@dataclass(frozen=True, slots=True)
class Seen:
    """The objects of the server that the user may read."""

    namespace: str
    listing: ClusterListing
    inquiry: Inquiry
    now: int  # ms
    guesses: list[str] = field(default_factory=list)  # what is unknown about the scheduler's settings
    flux_jobs: list[FluxJob] = field(default_factory=list)  # of the namespace
    absent: str = ""  # why no scheduler runs
    unleased: str = ""  # why none may run, unless it has reported on the object
    pod_groups: str = SchedulerSettings().pod_groups  # the setting of the scheduler

    @property
    def unseen(self) -> list[str]:
        return self.listing.unseen

    def lacks(self, some: tuple[str, ...]) -> list[str]:
        return [what for what in self.unseen if what in some]

    def knows_group_of(self, pod: Pod) -> bool:
        """Whether everything was read that decides which pods this one starts with."""
        controller = pod.metadata.controller_reference
        owned = controller is not None and (controller.api_version, controller.kind) in OWNERS
        named = any(find(pod) is not None for find in (group_field, group_label, other_group))
        if owned and self.lacks(_OWNERS) and not is_placeholder(pod):
            return False
        return not ((owned or named) and self.lacks(("PodGroups", "other pods")))

    def can_try(self, gang: Gang) -> bool:
        """Whether everything was read that could keep a gang from starting."""
        if self.lacks(_FOR_SEATS):
            return False
        mounts = any(
            volume.persistent_volume_claim or volume.ephemeral
            for pod in gang.members
            for volume in pod.spec.volumes or ()
        )
        asks = any(asked_by(pod) for pod in gang.members)
        return not (mounts and self.lacks(_FOR_VOLUMES)) and not (asks and self.lacks(("devices",)))

    def absence(self, told: Told) -> str:
        """Why no scheduler will start this work, or ""."""
        return self.absent or ("" if told.condition.status else self.unleased)

    def flux_job_of(self, identity: str) -> FluxJob | None:
        """The FluxJob of a workload."""
        return next((each for each in self.flux_jobs if each.workload == identity), None)


# -- objects -------------------------------------------------------------------------------------------------


def explain(kind: str, name: str, seen: Seen) -> dict[str, Any]:
    """Explain an object. ``kind``: `pod`, `group`, the kind of a workload, or "" for any of them."""
    if kind == "fluxjob":
        kind, name = _stands_for(name, seen)
    if not kind:
        return _any(name, seen)
    if kind == "pod":
        return _pod(name, seen)
    if kind == "group":
        return _group(name, seen)
    owners = _owners(name, seen, kind)
    if owners:
        return _workload(owners[0], seen)
    hidden = [what for what in seen.unseen if what.removesuffix("s") == kind]
    why = f"with these rights {hidden[0]} cannot be seen" if hidden else "name its namespace with -n"
    raise NotFound(f"{kind} {seen.namespace}/{name}: there is no {kind} of this name; {why}")


def _stands_for(name: str, seen: Seen) -> tuple[str, str]:
    """Kind and name of the workload of a FluxJob."""
    flux_job = next((each for each in seen.flux_jobs if each.metadata.name == name), None)
    owner = None if flux_job is None else flux_job.owner
    if owner is None:
        raise NotFound(
            f"FluxJob {seen.namespace}/{name}: there is no FluxJob of this name; see `kubectl get fj`"
        )
    return owner.kind.lower(), owner.name


def _owners(name: str, seen: Seen, kind: str = "") -> list[Owner]:
    key = f"{seen.namespace}/{name}"
    return [owner for owner in seen.listing.owners if owner.key == key and kind in ("", owner.kind.lower())]


def _any(name: str, seen: Seen) -> dict[str, Any]:
    """Explain a bare name: a pod, a workload or a group, if it means only one of them."""
    groups, key = seen.inquiry.groups, f"{seen.namespace}/{name}"
    meanings: dict[str, Callable[[], dict[str, Any]]] = {}
    if any(pod.key == key for pod in seen.listing.pods):
        meanings[f"pod/{name}"] = lambda: _pod(name, seen)
    gang = groups.named(seen.namespace, name)
    for owner in _owners(name, seen):
        meanings[f"{owner.kind.lower()}/{name}"] = lambda owner=owner: _workload(owner, seen)  # type: ignore[misc]
        if gang is not None and gang in groups.owned_by(owner.identity):
            gang = None  # the gang of the workload itself
    if gang is not None or (not meanings and any(group.key == key for group in seen.listing.groups)):
        meanings[f"group/{name}"] = lambda: _group(name, seen)
    if len(meanings) > 1:
        raise InvalidInput(f"{key}: this is the name of {_and(list(meanings))}: say which you mean")
    if not meanings:
        raise NotFound(
            f"{key}: no pod, group, Job or other workload has this name; name its namespace with -n"
        )
    return next(iter(meanings.values()))()


def _pod(name: str, seen: Seen) -> dict[str, Any]:
    groups, namespace = seen.inquiry.groups, seen.namespace
    pod = next((pod for pod in seen.listing.pods if pod.key == f"{namespace}/{name}"), None)
    if pod is None:
        raise NotFound(no_pod(namespace, name))
    value: dict[str, Any] = {"kind": "pod", "namespace": namespace, "name": name}
    # The condition of a pod behind our gate only says that it is gated: its FluxJob says why it waits.
    told = _told_workload(pod, seen) if is_held(pod) else _told_pod(pod)
    if not is_ours(pod, groups.scheduler):
        reason = f"it names the scheduler {pod.spec.scheduler_name!r}: set schedulerName: {groups.scheduler}"
        return {**value, **_state_of(pod, told, NextCycle(), seen.now), "reason": reason}
    gang = groups.gang(groups.of(pod)) if seen.knows_group_of(pod) else None
    finding, tried = NextCycle(), False
    if gang is not None and _waits(pod) and not told.prepares:
        tried = seen.can_try(gang)
        finding = seen.inquiry.about(gang, with_cluster=tried)
    return {
        **value,
        **_state_of(pod, told, finding, seen.now),
        **_reason_and_start(told, [pod], finding),
        **(_place(told, finding, seen) if _waits(pod) else {}),
        **_gang(gang, finding, seen, absent=seen.absence(told)),
        **_notes(seen, _waits(pod), gang, told, tried=tried),
    }


def no_pod(namespace: str, name: str) -> str:
    return f"pod {namespace}/{name}: no such pod; name its namespace with -n"


def _group(name: str, seen: Seen) -> dict[str, Any]:
    value: dict[str, Any] = {"kind": "group", "namespace": seen.namespace, "name": name}
    gang = seen.inquiry.groups.named(seen.namespace, name)
    if gang is None:
        return {**value, "state": JobState.PENDING.phase, "reason": _no_gang(name, seen)}
    return {**value, **_of_gang(gang, _told_group(gang, seen), seen)}


def _workload(owner: Owner, seen: Seen) -> dict[str, Any]:
    """A Job, a Deployment or the like. If its pods start one by one, the first waiting one is explained."""
    kind, name = owner.kind.lower(), owner.metadata.name
    value: dict[str, Any] = {"kind": kind, "namespace": seen.namespace, "name": name}
    gangs = seen.inquiry.groups.owned_by(owner.identity)
    if not gangs:
        return {**value, **_without_pods(owner, seen)}
    waiting = [gang for gang in gangs if gang.members or gang.gated]
    gang = (waiting or [gang for gang in gangs if not gang.is_over] or gangs)[0]
    value |= _of_gang(gang, _told_group(gang, seen), seen)
    if len(gangs) > 1:
        value["pods"] = {
            count: sum(len(pods) for gang in gangs if (pods := _counted(gang)[count])) for count in _COUNTS
        }
    return value


def _of_gang(gang: Gang, told: Told, seen: Seen) -> dict[str, Any]:
    waits = bool(gang.members or gang.gated)
    finding, tried = NextCycle(), False
    known = all(map(seen.knows_group_of, gang.members))
    if waits and known and not told.prepares:
        tried = seen.can_try(gang)
        finding = seen.inquiry.about(gang, with_cluster=tried)
    return {
        "state": _state(gang, told, finding, seen.now),
        **_reason_and_start(told, gang.members, finding),
        **(_place(told, finding, seen) if waits else {}),
        **_gang(gang if known else None, finding, seen, absent=seen.absence(told)),
        **_notes(seen, waits, gang if known else None, told, tried=tried),
    }


def _without_pods(owner: Owner, seen: Seen) -> dict[str, Any]:
    """State and reason of a workload without visible pods of ours."""
    scheduler, template = seen.inquiry.groups.scheduler, owner.spec.template
    pending, named = JobState.PENDING.phase, template.spec.scheduler_name if template is not None else None
    if owner.is_finished:
        ended = {condition.type for condition in owner.status.conditions or () if condition.status == "True"}
        return {"state": (JobState.FAILED if "Failed" in ended else JobState.COMPLETED).phase}
    if is_cancelled(owner):
        reason = f"its FluxJob was deleted: remove the annotation {names.CANCELLED} to queue it again"
        return {"state": "Cancelled", "reason": reason}
    if template is not None and named != scheduler and not is_held_by_admission(owner):
        given = f"{named or names.KUBE_SCHEDULER!r}"
        reason = f"its pods name the scheduler {given}: set schedulerName: {scheduler} in its template"
        return {"state": pending, "reason": reason}
    if owner.spec.suspend:
        reason = (
            "spec.suspend is true, and admission did not set it: who suspended it must set suspend: false"
        )
        return {"state": "Suspended", "reason": reason}
    asks_for_none = not isinstance(owner, CustomOwner) and not wanted_pods(owner)
    if asks_for_none or owner.spec.replicas == 0:
        return {"state": pending, "reason": "it asks for no pods"}
    kind, name = owner.kind.lower(), owner.metadata.name
    see = f"`kubectl describe {kind} {name} -n {seen.namespace}`"
    return {"state": pending, "reason": f"its controller has created no pods: see {see}"}


def _no_gang(name: str, seen: Seen) -> str:
    """Why no gang has this name."""
    scheduler, namespace = seen.inquiry.groups.scheduler, seen.namespace
    group = next((group for group in seen.listing.groups if group.key == f"{namespace}/{name}"), None)
    if group is not None and not group.is_gang:
        return "it is a basic PodGroup: its pods start one by one; ask for a pod"
    if group is not None:
        return f"no pod with schedulerName: {scheduler} names it"
    hidden = seen.lacks(_FOR_GANGS)
    if hidden:
        raise NotFound(
            f"group {namespace}/{name}: no pod with schedulerName: {scheduler} names it, and with these "
            f"rights {_and(hidden)} cannot be seen"
        )
    raise NotFound(
        f"group {namespace}/{name}: no PodGroup has this name and no pod with schedulerName: "
        f"{scheduler} names it; see `kubectl get podgroups -n {namespace}`"
    )


def _notes(seen: Seen, waits: bool, gang: Gang | None, told: Told, *, tried: bool) -> dict[str, Any]:
    """Notes about what could not be read, if that leaves something out, and about the scheduler's
    settings."""
    lost = []
    if gang is None:
        lost.append("which pods it starts together with")
    if waits and not tried and (gang is None or gang.is_ready):
        lost += ["what is in its way now", "what would help it"]
    hidden = seen.lacks((*_FOR_SEATS, *_FOR_GANGS)) or seen.unseen
    absent = [seen.absence(told)] if waits and seen.absence(told) else []
    if lost and hidden:
        owners = [what for what in hidden if what in _OWNERS]
        if len(owners) == len(_OWNERS):
            hidden = [*(what for what in hidden if what not in _OWNERS), "owners of pods"]
        note = f"with these rights {_and(hidden)} cannot be seen, so it is not said {_and(lost)}"
        return {"notes": [*absent, note]}
    notes = [*absent, *(seen.guesses if waits and tried else ())]
    if waits and tried and seen.listing.elsewhere:
        note = (
            f"with these rights {_and(seen.listing.elsewhere)} of other namespaces cannot be seen: work of "
        )
        notes.append(note + "theirs that is ahead of it is not counted")
    return {"notes": notes} if notes else {}


def _and(words: list[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


# -- reports of the scheduler --------------------------------------------------------------------------------


_NO_CONDITION = Condition()


@dataclass(frozen=True, slots=True)
class Told:
    """What the scheduler wrote: a sentence for people, and the report for programs beside it. A version
    without reports only left the sentence, which is shown unchanged."""

    condition: Condition = _NO_CONDITION
    report: WaitReport | None = None
    phase: str = ""  # of a FluxJob
    position: int | None = None  # of a FluxJob

    @property
    def prepares(self) -> bool:
        return self.condition.reason == "WaitingForVolumes"

    @property
    def never(self) -> bool:
        """Whether the cluster cannot hold it as it is."""
        reasons = self.report.reasons if self.report is not None else ()
        return any(reason.code is Code.CLUSTER_CANNOT_HOLD for reason in reasons)

    @property
    def reason(self) -> str:
        text = self.report.text if self.report is not None else ""
        return text.removesuffix(".") or self.condition.message


def _told_pod(pod: Pod) -> Told:
    condition = pod.condition(POD_SCHEDULED)
    if condition is None or condition.status != "False":
        return Told()
    return Told(condition, wait_report(pod.status.conditions))


def _told_group(gang: Gang, seen: Seen) -> Told:
    """The report of the scheduler on a group, on the FluxJob of its workload, or on one of its pods."""
    for condition in gang.group.conditions if gang.group is not None else ():
        if condition.type in GROUP_CONDITIONS.values() and condition.status == "False":
            return Told(condition, wait_report(gang.group.conditions if gang.group is not None else ()))
    held = next((pod for pod in gang.members if is_held_by_admission(pod)), None)
    if held is not None and (told := _told_workload(held, seen)).condition.status:
        return told
    return next((told for told in map(_told_pod, gang.members) if told.condition.status), Told())


def _told_workload(pod: Pod, seen: Seen) -> Told:
    """Why a held pod waits, from its FluxJob or that of its workload."""
    owners, _ = seen.inquiry.groups.owners(pod)
    identity = f"{pod.metadata.namespace}/Pod/{pod.metadata.name}/{pod.metadata.uid}"
    flux_job = seen.flux_job_of(owners[-1].identity if owners else identity)
    if flux_job is None or not flux_job.status.phase:
        return Told()
    status = flux_job.status
    report = wait_report(status.conditions)
    if report is None and (status.no_later_than or status.expected):
        report = WaitReport("", "", firm=False)
    if report is not None:
        latest, expected = _stamped(status.no_later_than), _stamped(status.expected)
        report = replace(report, no_later_than=latest, expected=expected)
    condition = Condition(type="Scheduled", status="False", reason=status.reason, message=status.message)
    return Told(condition, report, status.phase, status.position)


# -- states --------------------------------------------------------------------------------------------------


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None)


def _state_of(pod: Pod, told: Told, finding: NextCycle, now: int) -> dict[str, Any]:
    node = {"node": pod.spec.node_name} if pod.spec.node_name else {}
    if pod.is_terminal:
        return {"state": pod.status.phase, **node}
    if pod.metadata.deletion_timestamp is not None:
        return {"state": "Terminating", **node}
    if pod.spec.node_name:
        return {
            "state": JobState.RUNNING.phase if pod.status.phase == "Running" else JobState.STARTING.phase,
            **node,
        }
    return {"state": _waiting(told, finding, now)}


def _waiting(told: Told, finding: NextCycle, now: int) -> str:
    if told.prepares:
        return JobState.STARTING.phase
    nothing_found = not (finding.blocks or finding.starts)
    if finding.never or (nothing_found and told.never):
        return JobState.UNSCHEDULABLE.phase
    if nothing_found and told.phase:
        return told.phase
    latest = told.report.no_later_than if told.report is not None else None
    return JobState.RESERVED.phase if latest is not None and latest >= now else JobState.PENDING.phase


def _state(gang: Gang, told: Told, finding: NextCycle, now: int) -> str:
    if gang.is_over:
        failed = any(pod.status.phase != "Succeeded" for pod in gang.ended)
        return JobState.FAILED.phase if failed else JobState.COMPLETED.phase
    if gang.placed and (not gang.needed or not gang.members):
        runs = any(pod.status.phase == "Running" for pod in gang.placed)
        return JobState.RUNNING.phase if runs else JobState.STARTING.phase
    return _waiting(told, finding, now)


# -- the parts of the value ----------------------------------------------------------------------------------


def _reason_and_start(told: Told, pods: Iterable[Pod], finding: NextCycle) -> dict[str, Any]:
    """What the scheduler wrote or, before it has written anything, what was found here."""
    value: dict[str, Any] = {}
    if told.reason or finding.blocks:
        value["reason"] = told.reason or messages.texts(finding.blocks)
    times: Promise | WaitReport | None = (
        promise_of(pods) if told.reason else None
    )  # exact; the report is rounded as in the sentence
    if times is None:
        times = told.report
    if times is not None and times.no_later_than is not None:
        value["noLaterThan"] = _stamp(times.no_later_than)
        value["restsOn"] = "limits" if times.firm else "durations"
    if times is not None and times.expected is not None:
        value["expected"] = _stamp(times.expected)
    return value


def _place(told: Told, finding: NextCycle, seen: Seen) -> dict[str, Any]:
    """How many jobs are ahead: counted here if everything was read, otherwise as its FluxJob says."""
    if finding.starts or finding.never:
        return {}
    if finding.ahead is not None and (not seen.listing.elsewhere or told.position is None):
        return {"ahead": finding.ahead}
    if told.position is None:
        return {}
    return {"ahead" if told.position <= _EXACT_PLACES else "aheadAtMost": told.position - 1}


def _counted(gang: Gang) -> dict[str, tuple[Pod, ...]]:
    pods = (gang.members, gang.placed, gang.gated, gang.ended)
    return dict(zip(_COUNTS, map(tuple, pods), strict=True))


def _pod_group(gang: Gang, seen: Seen) -> dict[str, str]:
    """The PodGroup of Kubernetes that a gang has, or why it has none."""
    group = gang.shown_as
    if gang.is_single:
        return {}
    if group is not None:
        return {"podGroup": group.name}
    name = gang.key.partition("/")[2].partition("@")[0]
    kind, _, rest = name.rpartition(":")
    pods = [pod for some in _counted(gang).values() for pod in some]
    if seen.lacks(("PodGroups",)):
        why = "with these rights PodGroups cannot be seen"
    elif not seen.listing.gang_api:
        why = "the server has no PodGroups of scheduling.k8s.io"
    elif seen.listing.gang_api == "v1alpha1":
        why = "Kubernetes 1.35 has no PodGroups"
    elif gang.listed_as is not None:
        why = f"the scheduler has not created {gang.listed_as} yet"
    elif (kind and kind not in (*LISTED_KINDS, *_SYSTEMS, "job")) or (
        "/" in rest and kind not in ("leaderworkerset", "sparkapplication")
    ):
        why = "its pods cannot name their gang when they are created"
    elif kind in ("", *_SYSTEMS) and not _DNS_LABEL.fullmatch(rest):
        why = "the name of the group must be a DNS label of at most 54 characters"
    elif not lists_gangs(seen.listing.gang_api, seen.pod_groups):
        why = _off(seen)
    elif pods and all(map(is_placeholder, pods)):
        why = "its pods do not exist yet"
    elif kind in ("", "job") and not any(map(_names_gang, pods)):
        why = (
            "its size or its label is only on the owner of its pods, and admission notes that in the "
            "template of a new Job only"
        )
    else:
        why = (
            "admission named none when its pods were created: its handler podgroups was not in force; "
            "fluence doctor says whether it is now"
        )
    return {"noPodGroup": why}


def _off(seen: Seen) -> str:
    """Why no gang has a PodGroup."""
    if seen.pod_groups == "never":
        return "the scheduler's setting is pod-groups: never"
    return (
        f"the server has PodGroups only as {seen.listing.gang_api}, which must be deleted before an upgrade; "
        "the setting pod-groups: always switches them on"
    )


def _names_gang(pod: Pod) -> bool:
    """Whether a pod knows its gang by itself, so that admission can name the PodGroup."""
    found = declared_size(pod) or group_label(pod) or other_group(pod)
    return found is not None or names.LISTED_AS in pod.annotations


def _gang(gang: Gang | None, finding: NextCycle, seen: Seen, *, absent: str) -> dict[str, Any]:
    if gang is None:
        return {}
    counts = _counted(gang)
    value: dict[str, Any] = {
        "gang": {
            "key": gang.key,
            "from": gang.source,
            "minimum": gang.minimum,
            "size": gang.size,
            "priority": gang.priority,
            "user": gang.user,
            "queue": gang.queue,
            "limitSeconds": None if gang.limit is None else gang.limit / 1000,
            **_pod_group(gang, seen),
            **{word: len(pods) for word, pods in counts.items()},
            "members": [
                {"pod": pod.metadata.name, "state": _member(pod), "node": pod.spec.node_name}
                for pods in counts.values()
                for pod in pods
                if not is_placeholder(pod)
            ],
        }
    }
    if finding.starts:
        value["blocks"] = [_NO_SCHEDULER if absent else "nothing: the next cycle of the scheduler starts it"]
    elif finding.blocks:
        value["blocks"] = _texts(finding.blocks)
    if finding.sooner:
        value["sooner"] = _texts(finding.sooner)
    if gang.warnings:
        value["warnings"] = _texts(gang.warnings)
    return value


def _member(pod: Pod) -> str:
    state: str = _state_of(pod, Told(), NextCycle(), 0)["state"]
    return state


def _texts(reasons: tuple[Reason, ...]) -> list[str]:
    return list(map(messages.text, reasons))


def _stamp(ms: int) -> str:
    return rfc3339(ms * 1000)


def _stamped(stamp: str | None) -> int | None:
    at = parse_rfc3339(stamp or "")
    return None if at is None else at // 1000
