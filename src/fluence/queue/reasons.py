"""Why a job waits, which change would start it sooner, and when a job would start if it were submitted.

The simulator and `fluence whatif` use it. `fluence.messages` makes text of the reasons.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fluence.errors import NotFound
from fluence.model.job_state import JobState
from fluence.model.jobspec import Jobspec
from fluence.model.reason import Code, Reason, Value
from fluence.queue.fair_share import HALF_LIFE
from fluence.queue.job import FOREVER, SECOND, JobRecord, Submission
from fluence.queue.planner import Outlook
from fluence.queue.queue import Queue

_RANKED: Final = 3  # leading numbers of an order, before those of its age
_LOOKED_AT: Final = 64  # jobs ahead that are compared


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
    """Why a job waits, and changes that would help."""

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
    if record.state is JobState.UNSCHEDULABLE:
        return WaitReason(BlockedBy.NEVER, (last,))
    if record.state.leaves_queue or not record.waiting:
        reason = Reason.of(Code.IN_PHASE, phase=record.state.value, last=last)
        return WaitReason(BlockedBy.NOTHING, (reason,))
    if key in queue.held:
        others = queue.dependencies.of(record)
        return WaitReason(BlockedBy.DEPENDENCY, (Reason.of(Code.DEPENDENCY, jobs=others),), others)
    limit = limit_reason(queue, record)
    if limit is not None:
        return WaitReason(BlockedBy.LIMIT, (limit,))
    quota = quota_reason(queue, record)
    if quota is not None:
        return WaitReason(BlockedBy.LIMIT, (quota,))
    wait = _short_of(queue, record)
    share = share_reason(queue, record)
    return wait if share is None else replace(wait, reasons=(*wait.reasons, share))


def share_reason(queue: Queue, record: JobRecord) -> Reason | None:
    """The shares that put later jobs in front of a waiting job; None: none do."""
    if queue.turns is None or record not in queue.pending:
        return None
    order, pending = record.order, queue.pending
    first, end = pending.before(order[:2]), pending.before(order[:_RANKED])
    later = (
        each for each in pending.records[first:end][:_LOOKED_AT] if each.order[_RANKED:] > order[_RANKED:]
    )
    other = next(later, None)
    if other is None:
        return None
    shares = queue.turns.shares
    own_path, path = (
        shares.path((each.job.queue, each.job.account or each.job.user)) for each in (record, other)
    )
    part = next((n for n, names in enumerate(zip(own_path, path, strict=False)) if names[0] != names[1]), 0)
    ratio, other_ratio = (shares.ratios.get(each[: part + 1], 0.0) for each in (own_path, path))
    if ratio <= other_ratio:
        return None  # the order comes from an earlier ranking
    digits = 1 if f"{ratio:.1f}" != f"{other_ratio:.1f}" else 2
    ratios: dict[str, Value] = {
        "ratio": f"{ratio:.{digits}f}" if math.isfinite(ratio) else "",
        "other_ratio": f"{other_ratio:.{digits}f}",
        "week": shares.half_life == HALF_LIFE,
    }
    if part == len(own_path) - 1:  # two users of one queue: the other user is not named
        return Reason.of(Code.SHARE_OF_USER_USED, queue=record.job.queue, **ratios)
    return Reason.of(Code.SHARE_USED, queue=own_path[part], other=path[part], **ratios)


def quota_reason(queue: Queue, record: JobRecord) -> Reason | None:
    """The quota that a job waits for; None: its quota is free, or its resources come free later than its
    quota. Its own reservation does not count."""
    quotas, planner = queue.quotas, queue.planner
    if quotas is None:
        return None
    clear = record.limit if record.bounded else FOREVER
    mark = planner.mark()
    if record.reservation is not None:
        planner.drop(record.reservation)
    try:
        reason = quotas.why(record.key, queue.now, clear)
        if reason is None:
            return None
        by_quota = quotas.earliest(record.key, queue.now, clear)
        by_nodes = planner.outlook(record.job.request, queue.now, clear).start
    finally:
        planner.undo(mark)
    return reason if by_quota is None or (by_nodes is not None and by_nodes <= by_quota) else None


def limit_reason(queue: Queue, record: JobRecord) -> Reason | None:
    """The limit of its queue that keeps a job from starting."""
    passed = queue.limit_of(record)
    if passed is None:
        return None
    job, (charge, most) = record.job, passed
    if charge.array:
        return Reason.of(Code.ARRAY_LIMIT, array=charge.array, most=most)
    if not charge.device:
        user, account = _whose(job)
        return Reason.of(Code.USER_LIMIT, user=user, account=account, most=most, queue=record.job.queue)
    user, account = ("", "") if charge.account is None else _whose(job)
    return Reason.of(
        Code.DEVICE_LIMIT, user=user, account=account, type=charge.device, most=most, queue=charge.queue
    )


def _whose(job: Submission) -> tuple[str, str]:
    """The user and the account whose limit it is."""
    return (job.payer, "") if job.payer else (job.user, job.account)


def _short_of(queue: Queue, record: JobRecord) -> WaitReason:
    """The resources that the job lacks. Its own reservation does not count."""
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
        if ahead and queue.policy.promise == "order":  # no job overtakes another, even if it is small
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
    """Fewer units or a shorter limit to start now; else a limit to start sooner."""
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
    """A limit that is a multiple of the queue's resolution, so that rounding does not change it."""
    step = max(SECOND, queue.resolution)
    return limit // step * step


def _jobs(queue: Queue, tasks: tuple[str, ...]) -> tuple[str, ...]:
    """The jobs of some tasks, each once."""
    return tuple(dict.fromkeys(task if task in queue.records else task.rpartition("[")[0] for task in tasks))


_KEY = "(this job)"


@dataclass(frozen=True, slots=True)
class Delay:
    """A waiting job that would start later, by a plan in order, if this one were submitted."""

    job: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class EndsFor:
    """Running work that would be ended for a job."""

    job: str
    pods: int
    at: int  # when it would be ended
    lost: int  # ms of its work that would be lost
    cost: float  # the same in cluster-seconds


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """When a job would start if it were submitted now. All times are milliseconds."""

    now: int
    starts_now: bool
    never: bool
    start: int | None  # no later than this
    expected: int | None
    reason: WaitReason
    delays: tuple[Delay, ...]
    ends: tuple[EndsFor, ...] = ()
    preemption: tuple[Reason, ...] = ()  # what preemption does, or why it does nothing


def ask(
    queue: Queue,
    spec: Jobspec,
    *,
    limit: int | None = None,
    user: str = "",
    priority: int = 16,
    queue_name: str = "",
) -> WhatIfAnswer:
    """Submit the job to this queue and run a cycle. The queue cannot be used afterwards."""
    queue.cycle(queue.now)  # start everything that can start without this job
    before = _plan(queue)
    job = Submission(_KEY, spec, queue.now, limit=limit, user=user, priority=priority, queue=queue_name)
    record = queue.submit(job)
    if record.state is JobState.UNSCHEDULABLE:
        return WhatIfAnswer(queue.now, False, True, None, None, why(queue, _KEY), ())
    started = [start for start in queue.cycle(queue.now) if start.record is record]
    after = _plan(queue)
    delays = [
        Delay(other.key, before[other], later)
        for other, later in after.items()
        if other in before and later > before[other]
    ]
    return WhatIfAnswer(
        now=queue.now,
        starts_now=bool(started),
        never=False,
        start=queue.now if started else record.latest,
        expected=queue.now if started else record.expected,
        reason=why(queue, _KEY),
        delays=tuple(delays),
    )


def _plan(queue: Queue) -> dict[JobRecord, int]:
    """The start of each waiting job in a sketch of the plan."""
    records = list(queue.pending)
    requests = [queue.promises.request(record) for record in records]
    starts = queue.planner.sketch(queue.now, requests, in_order=False)
    return {record: start for record, start in zip(records, starts, strict=True) if start is not None}
