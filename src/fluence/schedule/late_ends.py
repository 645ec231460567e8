"""Late ends: jobs that ended while nobody led, read from their pods as long as these are there.

A pod that has ended still says which job it was part of and when that started. Said with the roll call, after
a restart; where the history has seen the end already, that stands.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from fluence.cluster.ids import job_number
from fluence.model.device import DeviceGrant
from fluence.model.job_entry import JobEntry, JobState
from fluence.model.owner import identity
from fluence.model.pod import Pod
from fluence.model.resources import add_into, pod_requests
from fluence.names import JOBID
from fluence.schedule import recovery
from fluence.schedule.gang import Gang
from fluence.schedule.groups import Groups
from fluence.units import parse_rfc3339


def late_ends(groups: Groups, there: Container[int], now: int) -> Iterator[JobEntry]:
    """An entry for each job all of whose pods have ended; ``there``: the numbers of jobs that have not."""
    for gang in groups.gangs():
        said = [pod for pod in gang.ended if JOBID in pod.annotations]
        for found in recovery.running(said, -1, now=now, limit=gang.limit):
            if found.number not in there and _is_own(gang, found):
                yield _entry(gang, found, groups, now)


def _is_own(gang: Gang, found: recovery.Running) -> bool:
    """Anybody may write annotations: only a number that follows from a uid of this group is believed."""
    uids = (gang.uid, *(pod.metadata.uid for pod in found.pods))
    return found.number in map(job_number, uids)


def _entry(gang: Gang, found: recovery.Running, groups: Groups, now: int) -> JobEntry:
    requests: dict[str, int] = {}
    for pod in found.pods:
        add_into(requests, pod_requests(pod))
    requests.pop("pods", None)
    ended = max(found.start, *(_ended_at(pod) or now for pod in found.pods))
    limit = None if found.end is None else found.end - found.start
    kind, name = workload(found.pods[0], groups)
    return JobEntry(
        job=found.number,
        at=now,
        state=outcome(found.pods, ended - found.start, limit),
        key=gang.key,
        namespace=gang.namespace,
        name=name,
        kind=kind,
        user=gang.user,
        queue=gang.queue,
        priority=gang.priority,
        pods=len(found.pods),
        minimum=gang.minimum,
        requests=requests,
        limit=limit,
        submitted=min(gang.submit, found.start),
        started=found.start,
        ended=ended,
        nodes=tuple(sorted({pod.spec.node_name for pod in found.pods if pod.spec.node_name})),
        devices=device_names(found.grants),
    )


def device_names(grants: Iterable[DeviceGrant]) -> tuple[str, ...]:
    """Devices that belong to no node, by their paths: `backend/qpu0`."""
    return tuple(dict.fromkeys("/".join(map(str, grant.device)) for grant in grants))


def outcome(pods: tuple[Pod, ...], lasted: int, limit: int | None) -> JobState:
    """How a job ended, by its pods."""
    failed = [pod for pod in pods if pod.status.phase != "Succeeded"]
    crashed = any(pod.metadata.deletion_timestamp is None for pod in failed)
    return state_of(failed=bool(failed), crashed=crashed, late=limit is not None and lasted >= limit)


def state_of(*, failed: bool, crashed: bool, late: bool) -> JobState:
    """``crashed``: a pod failed that was not being deleted; ``late``: it had run for as long as it may."""
    if not failed:
        return JobState.COMPLETED
    if late:
        return JobState.TIMEOUT
    return JobState.FAILED if crashed else JobState.CANCELLED


def workload(pod: Pod, groups: Groups) -> tuple[str, str]:
    """The kind and the name of what a pod was made by: the uppermost owner that is known."""
    kind, name = "Pod", pod.metadata.name
    above = pod.metadata.owner_references
    for _ in range(4):  # a bound, for a loop that somebody wrote by hand
        controller = next((each for each in above or () if each.controller), None)
        if controller is None:
            break
        kind, name = controller.kind, controller.name
        owner = groups.owner(identity(pod.metadata.namespace, kind, name, controller.uid))
        above = None if owner is None else owner.metadata.owner_references
    return kind, name


def _ended_at(pod: Pod) -> int | None:
    """When a pod that has ended was ready for the last time."""
    ready = pod.condition("Ready")
    if ready is None or ready.status == "True" or not ready.last_transition_time:
        return None
    at = parse_rfc3339(ready.last_transition_time)
    return None if at is None else at // 1000
