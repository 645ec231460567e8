"""Why a job waits, for whom, and the smallest change that would start it now or sooner.

What-if and the simulator ask it; text is made from its answer at the edge.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from fluence.errors import NotFound
from fluence.model.reason import Code, Reason
from fluence.queue.job import FOREVER, SECOND, JobRecord, Phase
from fluence.queue.planner import Outlook
from fluence.queue.queue import Queue


class BlockedBy(Enum):
    """What blocks a job."""

    NOTHING = "nothing"  # the next cycle will start it
    RESOURCE = "resource"
    CONSTRAINT = "constraint"
    AHEAD = "jobs ahead"
    DEPENDENCY = "dependency"
    LIMIT = "limit"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the request that would start the job earlier."""

    what: str  # "size", "limit" or "constraint"
    value: int | None  # units, or ms; None: drop it
    start: int  # when the job would start then


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a job waits, and what would help."""

    kind: BlockedBy
    reasons: tuple[Reason, ...]
    waits_for: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def why(queue: Queue, key: str) -> WaitReason:
    """Why a job is not running, as of the queue's last event."""
    record = queue.records.get(key)
    if record is None:
        raise NotFound(f"no job {key}")
    last = record.story[-1].reason
    if record.phase is Phase.NEVER:
        return WaitReason(BlockedBy.NEVER, (last,))
    if record.phase.is_over or not record.waiting:
        reason = Reason.of(Code.IN_PHASE, phase=record.phase.value, last=last)
        return WaitReason(BlockedBy.NOTHING, (reason,))
    if key in queue.held:
        others = queue.dependencies.of(record)
        return WaitReason(BlockedBy.DEPENDENCY, (Reason.of(Code.DEPENDENCY, jobs=others),), others)
    limit = limit_reason(queue, record)
    if limit is not None:
        return WaitReason(BlockedBy.LIMIT, (limit,))
    return _short_of(queue, record)


def limit_reason(queue: Queue, record: JobRecord) -> Reason | None:
    """The limit of its queue that keeps a job from starting."""
    passed = queue.limit_of(record)
    if passed is None:
        return None
    job, (charge, most) = record.job, passed
    if not charge.device:
        return Reason.of(
            Code.USER_LIMIT, user=job.user, account=job.account, most=most, queue=record.job.queue
        )
    user, account = ("", "") if charge.account is None else (job.user, job.account)
    return Reason.of(
        Code.DEVICE_LIMIT, user=user, account=account, type=charge.device, most=most, queue=charge.queue
    )


def _short_of(queue: Queue, record: JobRecord) -> WaitReason:
    """What the planner has too little of; the job's own place in the plan does not stand in its way."""
    now, planner, request = queue.now, queue.planner, record.job.request
    clear = record.limit if record.bounded else FOREVER
    place = queue.pending.place(record)
    ahead = tuple(other.key for other in queue.pending.records[:place])
    mark = planner.mark()
    if record.reservation is not None:
        planner.drop(record.reservation)
    try:
        outlook = planner.outlook(request, now, clear)
        if queue.depth is not None and place >= queue.depth:
            reason = Reason.of(Code.BEYOND_DEPTH, depth=queue.depth, ahead=len(ahead))
            return WaitReason(BlockedBy.AHEAD, (reason,), ahead)
        if ahead and queue.policy.promise == "order":  # nobody overtakes, however small
            return _behind(ahead, fits=not outlook.causes)
        blockers = _jobs(queue, outlook.blockers)
        changes = _changes(queue, record, outlook, clear)
        relaxed = planner.relaxed(request) if outlook.causes else None
        if relaxed is not None and not (free := planner.outlook(relaxed, now, clear)).causes:
            changes = (Change("constraint", None, free.start or now), *changes)
            reason = Reason.of(Code.CONSTRAINT_TOO_NARROW, causes=outlook.causes)
            return WaitReason(BlockedBy.CONSTRAINT, (reason,), blockers, changes)
    finally:
        planner.undo(mark)
    if outlook.causes:
        return WaitReason(BlockedBy.RESOURCE, outlook.causes, blockers, changes)
    if not ahead:
        return WaitReason(BlockedBy.NOTHING, (Reason.of(Code.FIRST_IN_QUEUE),))
    return _behind(ahead, fits=True)


def _behind(ahead: tuple[str, ...], *, fits: bool) -> WaitReason:
    return WaitReason(BlockedBy.AHEAD, (Reason.of(Code.MUST_START_FIRST, fits=fits, jobs=ahead),), ahead)


def _changes(queue: Queue, record: JobRecord, outlook: Outlook, clear: int) -> tuple[Change, ...]:
    """Fewer units, or a shorter limit, that start now; else a limit that starts sooner."""
    now, found = queue.now, []
    if outlook.shorter is not None and (shorter := _whole(queue, outlook.shorter)):
        found.append(Change("limit", shorter, now))
    if outlook.fewer is not None:
        found.append(Change("size", outlook.fewer, now))
    if not found and outlook.start is not None:
        found.extend(_sooner(queue, record.job.request, clear, outlook.start))
    return tuple(found)


def _sooner(queue: Queue, request: Hashable, clear: int, start: int) -> list[Change]:
    limit = clear // 2
    while limit >= 60 * SECOND and (shorter := _whole(queue, limit)):
        earlier = queue.planner.outlook(request, queue.now, shorter).start
        if earlier is not None and earlier < start:
            return [Change("limit", shorter, earlier)]
        limit //= 2
    return []


def _whole(queue: Queue, limit: int) -> int:
    """A limit that stays what it is when the queue rounds it up."""
    step = max(SECOND, queue.resolution)
    return limit // step * step


def _jobs(queue: Queue, tasks: tuple[str, ...]) -> tuple[str, ...]:
    """The jobs of some tasks, each once."""
    return tuple(dict.fromkeys(task if task in queue.records else task.rpartition("[")[0] for task in tasks))
