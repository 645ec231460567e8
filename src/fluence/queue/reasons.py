"""Why a job waits, for whom, and the smallest change that would start it now or sooner."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum

from fluence.errors import NotFound
from fluence.queue.job import FOREVER, SECOND, JobRecord, Phase
from fluence.queue.planner import Outlook
from fluence.queue.queue import Queue

_AHEAD = 5  # jobs ahead that are named


class Kind(Enum):
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

    def words(self, now: int) -> str:
        how = {
            "size": f"ask for {self.value} instead",
            "limit": f"lower its limit to {span(self.value or 0)}",
            "constraint": "drop its constraint",
        }[self.what]
        return f"{how}: it would start {'now' if self.start <= now else 'in ' + span(self.start - now)}"


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why a job waits; ``text`` is for its user."""

    kind: Kind
    text: str
    waits_for: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def why(queue: Queue, key: str) -> WaitReason:
    """Why a job is not running, as of the queue's last event."""
    entry = queue.entries.get(key)
    if entry is None:
        raise NotFound(f"no job {key}")
    if entry.state is Phase.NEVER:
        return WaitReason(Kind.NEVER, entry.story[-1].reason)
    if entry.state.is_over or not entry.waiting:
        return WaitReason(Kind.NOTHING, f"it is {entry.state.value}: {entry.story[-1].reason}")
    if key in queue.held:
        others = queue.dependencies(entry)
        return WaitReason(Kind.DEPENDENCY, f"it waits for {_names(others)} to end", others)
    if not queue.is_admitted(entry):
        most = queue.rules[entry.job.queue].max_running_per_user
        who, where = entry.job.user or "its user", entry.job.queue
        return WaitReason(
            Kind.LIMIT, f"{who} runs, or is promised, {most} jobs in queue {where!r}: no more are allowed"
        )
    return _short_of(queue, entry)


def _short_of(queue: Queue, entry: JobRecord) -> WaitReason:
    """What the space has too little of; the job's own place in the plan does not stand in its way."""
    now, space, request = queue.now, queue.space, entry.job.request
    clear = entry.limit if entry.bounded else FOREVER
    place = queue.pending.place(entry)
    ahead = tuple(other.key for other in queue.pending.entries[:place])
    mark = space.mark()
    if entry.reserved_at is not None:
        space.drop(entry.reserved_as)
    try:
        room = space.room(request, now, clear)
        if queue.depth is not None and place >= queue.depth:
            text = f"only the first {queue.depth} jobs are looked at, and {len(ahead)} are ahead of it"
            return WaitReason(Kind.AHEAD, text, ahead)
        if ahead and queue.policy.promise == "order":  # nobody overtakes, however small
            fits = "" if room.cause else "it would fit, but "
            return WaitReason(Kind.AHEAD, f"{fits}{_names(ahead)} must start first", ahead)
        blockers = _jobs(queue, room.blockers)
        changes = _changes(queue, entry, room, clear)
        relaxed = space.relaxed(request) if room.cause else None
        if relaxed is not None and not (free := space.room(relaxed, now, clear)).cause:
            changes = (Change("constraint", None, free.start or now), *changes)
            text = f"its constraint leaves too little: {room.cause}"
            return WaitReason(Kind.CONSTRAINT, text, blockers, changes)
    finally:
        space.undo(mark)
    if room.cause:
        return WaitReason(Kind.RESOURCE, room.cause, blockers, changes)
    if not ahead:
        return WaitReason(Kind.NOTHING, "it fits and is first: the next cycle starts it")
    return WaitReason(Kind.AHEAD, f"it would fit, but {_names(ahead)} must start first", ahead)


def _changes(queue: Queue, entry: JobRecord, room: Outlook, clear: int) -> tuple[Change, ...]:
    """Fewer units, or a shorter limit, that start now; else a limit that starts sooner."""
    now, found = queue.now, []
    if room.shorter is not None and (shorter := _whole(queue, room.shorter)):
        found.append(Change("limit", shorter, now))
    if room.fewer is not None:
        found.append(Change("size", room.fewer, now))
    if not found and room.start is not None:
        found.extend(_sooner(queue, entry.job.request, clear, room.start))
    return tuple(found)


def _sooner(queue: Queue, request: Hashable, clear: int, start: int) -> list[Change]:
    limit = clear // 2
    while limit >= 60 * SECOND and (shorter := _whole(queue, limit)):
        earlier = queue.space.room(request, queue.now, shorter).start
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
    return tuple(dict.fromkeys(task if task in queue.entries else task.rpartition("[")[0] for task in tasks))


def _names(keys: tuple[str, ...]) -> str:
    shown = ", ".join(keys[:_AHEAD])
    more = len(keys) - _AHEAD
    return f"{shown} and {more} more" if more > 0 else shown


def span(milliseconds: int) -> str:
    """A length of time for people: its two largest units."""
    seconds = -(-milliseconds // SECOND)
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
