"""Quota: how much of its limits a queue has left, now and over time.

`QuotaBook` counts over time: running tasks until their ends, and reservations during their windows. So the
plan finds the first start that every limit allows, and the reason names the limit that a job waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from fluence.model.queues import NOTHING, Amounts, QueueTree, Resource
from fluence.model.reason import Code, Reason
from fluence.queue.allocations import Allocation
from fluence.queue.timeline import NO_TIME, Timeline
from fluence.units import format_amount

JOBS: Final = Resource("jobs")
"""What ``perUser.running`` counts."""


_FAR: Final = 12 * 3_600_000  # ms: a time further away is shown with its date
_STOPPED: Final = "a queue that is stopped"


ClassAmounts = tuple[Amounts, Amounts]
"""What a request takes of resources on classes of nodes: surely, and at most."""


class Line(NamedTuple):
    """What one limit counts over time: a resource used by all jobs of a queue, or by the jobs of one user."""

    queue: str
    user: str | None  # None: all users
    resource: Resource


@dataclass(frozen=True, slots=True)
class Claim:
    """The limits that each running or planned task of a job counts against."""

    leaf: str
    user: str
    amounts: Mapping[Resource, int]
    lines: Mapping[Line, int]
    limits: Mapping[Line, int]
    stopped_by: str | None = None
    possible: Mapping[Line, int] = field(default_factory=dict)
    """What it takes at most of limits of classes of nodes, if it may also be placed elsewhere."""
    before: Claim | None = None  # that of its job, if this one has the classes of the nodes that it uses

    @property
    def demand(self) -> Mapping[Any, int]:
        """The amounts that a sketch places in addition to resources. A stopped queue demands something that
        does not exist, so that none of its jobs fits."""
        if self.stopped_by is not None:
            return {_STOPPED: 1}
        if not self.possible:
            return self.lines
        some = {line: amount for line, amount in self.possible.items() if amount <= self.limits[line]}
        return {**self.lines, **some}  # where its nodes are not known, promises count the most that it takes


class QuotaBook:
    """The use of every limit over time, by running and reserved tasks.

    The `Allocations` of a planner report to it every task that is added, dropped, ended, extended or undone,
    so it always agrees with the plan.
    """

    def __init__(self, tree: QueueTree, now: int = 0) -> None:
        self.tree = tree
        self.now = now
        self.claims: dict[str, Claim] = {}  # by job
        self.jobs: dict[Hashable, str] = {}
        """The job of each request, if classes of nodes are counted."""
        self._requests: dict[str, Hashable] = {}
        self._lines: dict[Line, Timeline] = {}
        self._counted: dict[Allocation, tuple[Claim, int, int]] = {}  # with the counted times
        self._limits = {leaf: _limits(tree, leaf) for leaf in tree.leaves}
        self.holds: dict[str, tuple[Claim, int, int]] = {}
        """Jobs for which resources are being freed, with the times for which their quota is held."""
        self.in_classes: Callable[[Allocation], Mapping[Resource, int]] = lambda held: {}
        """Returns what an allocation takes on the nodes of each class."""
        self._aside: set[str] = set()  # those whose hold is lifted: they have what they waited for

    # -- jobs ------------------------------------------------------------------------------------------------

    def enrol(
        self,
        job: str,
        leaf: str,
        user: str,
        amounts: Mapping[str, int],
        jobs: int = 1,
        classes: ClassAmounts = (NOTHING, NOTHING),
        request: Hashable = None,
    ) -> None:
        """Set the amounts that each task of a job requests. ``jobs``: how many jobs it counts as, for limits
        on jobs. ``classes``: what its ``request`` takes of classes of nodes, surely and at most. Tasks that
        are counted already stay where they are."""
        asked = {Resource(name): amount for name, amount in amounts.items() if amount > 0}
        asked.update(classes[0])
        lines: dict[Line, int] = {}
        limits: dict[Line, int] = {}
        possible: dict[Line, int] = {}
        for line, is_of_user, limit in self._limits.get(leaf, ()):
            amount = jobs if is_of_user and line.resource is JOBS else asked.get(line.resource, 0)
            most = classes[1].get(line.resource, 0)
            mine = line._replace(user=user) if is_of_user and (amount or most) else line
            if amount:
                lines[mine], limits[mine] = amount, limit
            if most > amount:
                possible[mine], limits[mine] = most, limit
        stopped = self.tree.stopped_by(leaf) if leaf in self._limits else leaf  # else: the queue is gone
        self.claims[job] = Claim(leaf, user, asked, lines, limits, stopped, possible)
        if self.tree.in_classes:
            self.jobs.pop(self._requests.get(job), None)
            self._requests[job], self.jobs[request] = request, job

    def forget(self, job: str) -> None:
        self.claims.pop(job, None)
        self.jobs.pop(self._requests.pop(job, None), None)

    def of(self, task: str) -> Claim | None:
        """The claim of the job of a task."""
        claim = self.claims.get(task)
        return self.claims.get(task.rpartition("[")[0]) if claim is None else claim

    # -- asking ----------------------------------------------------------------------------------------------

    def never(self, job: str) -> Reason | None:
        """Why no quota would ever allow a job."""
        claim = self.claims[job]
        for line, amount in claim.lines.items():
            if amount > claim.limits[line]:
                name = line.resource.name
                return Reason.of(
                    Code.QUOTA_TOO_SMALL,
                    queue=line.queue,
                    resource=str(line.resource),
                    limit=format_amount(name, claim.limits[line]),
                    wanted=format_amount(name, amount),
                )
        return None

    def is_stopped(self, job: str) -> bool:
        """Whether the queue of a job, or one above it, is stopped."""
        return self.claims[job].stopped_by is not None

    def fits(self, job: str, start: int, duration: int) -> bool:
        """Whether all limits allow one more task of a job from a time on."""
        claim = self.claims[job]
        if job in self.holds and job not in self._aside:
            with self.without((job,)):
                return self.fits(job, start, duration)
        return claim.stopped_by is None and all(
            self._free(claim, line, start, duration) >= amount for line, amount in claim.lines.items()
        )

    def earliest(self, job: str, start: int, duration: int) -> int | None:
        """The first time from ``start`` at which all limits allow one more task; None if unknown."""
        claim = self.claims[job]
        if claim.stopped_by is not None:
            return None
        if job in self.holds and job not in self._aside:
            with self.without((job,)):
                return self.earliest(job, start, duration)
        begin, moved = start, True
        while moved:
            moved = False
            for line, amount in claim.lines.items():
                timeline = self._lines.get(line)
                if timeline is None:
                    at = begin if amount <= claim.limits[line] else None
                else:
                    at = timeline.earliest(amount, duration, begin)
                if at is None or at >= start + NO_TIME:
                    return None
                begin, moved = at, (moved or at != begin) and len(claim.lines) > 1
        return begin

    def allows(self, held: Allocation, duration: int) -> bool:
        """Whether all limits allow a reservation that is already counted."""
        claim = self.of(held.task)
        if claim is None:
            return True
        self.removed(held)
        fits = self.fits(held.task if held.task in self.claims else _job(held.task), held.start, duration)
        self.added(held)
        return fits

    def waits_for(self, job: str, places: Iterable[Allocation], start: int, duration: int) -> Reason | None:
        """Like `why`, without counting some reservations."""
        counted = [each for place in places if (each := self._counted.get(place)) is not None]
        for each in counted:
            self._take(*each, -1)
        try:
            return self.why(job, start, duration)
        finally:
            for each in counted:
                self._take(*each, 1)

    def why(self, job: str, start: int, duration: int) -> Reason | None:
        """The first limit, from its leaf up, or the stop that keeps a job from starting at a time."""
        claim = self.claims[job]
        if claim.stopped_by is not None:
            return Reason.of(Code.QUEUE_STOPPED, queue=claim.stopped_by)
        if job in self.holds and job not in self._aside:
            with self.without((job,)):
                return self.why(job, start, duration)
        never = self.never(job)  # the limit of a started array was lowered
        if never is not None:
            return never
        for line, amount in (*claim.lines.items(), *claim.possible.items()):
            limit, free = claim.limits[line], self._free(claim, line, start, duration)
            if free < amount:
                name = line.resource.name
                user = {} if line.user is None else {"user": line.user or "its user"}
                until = self._until(line, amount, start, duration)
                return Reason.of(
                    Code.QUOTA_IN_USE if line.user is None else Code.QUOTA_OF_USER,
                    queue=line.queue,
                    resource=str(line.resource),
                    used=format_amount(name, limit - free),
                    limit=format_amount(name, limit),
                    wanted=format_amount(name, amount),
                    until=until,
                    far=until is not None and until - start >= _FAR,
                    **user,
                )
        return None

    def may_go_elsewhere(self, job: str, reason: Reason) -> bool:
        """Whether a reason is a limit of a class of nodes, and the job may be placed on other nodes."""
        claim = self.claims.get(job)
        named = dict(reason.params).get("resource")
        return claim is not None and any(str(line.resource) == named for line in claim.possible)

    # -- classes of nodes ------------------------------------------------------------------------------------

    def closed(self, job: str, start: int, duration: int) -> frozenset[str]:
        """The classes of nodes on which a job must not be placed from a time on: a limit has no room for
        everything that could be placed there."""
        claim = self.claims.get(job)
        if claim is None or not claim.possible:
            return frozenset()
        if job in self.holds and job not in self._aside:
            with self.without((job,)):
                return self.closed(job, start, duration)
        return frozenset(
            line.resource.node_class
            for line, amount in claim.possible.items()
            if self._free(claim, line, start, duration) < amount
        )

    def opens(self, job: str, classes: Collection[str], start: int, duration: int) -> int | None:
        """When the first of some closed classes has room for a job; None if unknown."""
        claim, times = self.claims[job], []
        for name in classes:
            at: int | None = start
            for line, amount in claim.possible.items():
                if line.resource.node_class == name and at is not None:
                    line_at = self._until(line, amount, at, duration)
                    has_room = line not in self._lines and amount <= claim.limits[line]
                    at = at if has_room else line_at
            if at is not None:
                times.append(at)
        return min((at for at in times if at > start), default=None)

    def allows_on(self, job: str, amounts: Amounts, start: int, duration: int) -> bool:
        """Whether the limits of classes allow a job these amounts from a time on."""
        claim = self.claims.get(job)
        if claim is None:
            return True
        if job in self.holds and job not in self._aside:
            with self.without((job,)):
                return self.allows_on(job, amounts, start, duration)
        found = self._with_classes(claim, amounts)
        return all(
            self._free(found, line, start, duration) >= amount
            for line, amount in found.lines.items()
            if line.resource.node_class
        )

    def count_anew(self) -> None:
        """The classes of some nodes have changed."""
        for held in list(self._counted):
            self.removed(held)
            self.added(held)

    def _with_classes(self, claim: Claim, amounts: Amounts) -> Claim:
        """A claim with the amounts of the classes of nodes that it uses."""
        lines = {line: amount for line, amount in claim.lines.items() if not line.resource.node_class}
        limits = dict(claim.limits)
        for line, is_of_user, limit in self._limits.get(claim.leaf, ()):
            if line.resource.node_class and (amount := amounts.get(line.resource, 0)):
                mine = line._replace(user=claim.user) if is_of_user else line
                lines[mine], limits[mine] = amount, limit
        asked = {resource: amount for resource, amount in claim.amounts.items() if not resource.node_class}
        asked.update(amounts)
        return replace(claim, amounts=asked, lines=lines, limits=limits, possible={}, before=claim)

    def _until(self, line: Line, amount: int, start: int, duration: int) -> int | None:
        """When a limit allows an amount for this duration; None if unknown."""
        timeline = self._lines.get(line)
        at = None if timeline is None else timeline.earliest(amount, duration, start)
        return None if at is None or at >= start + NO_TIME else at

    def _free(self, claim: Claim, line: Line, start: int, duration: int) -> int:
        """How much of a limit is free during the whole window."""
        timeline = self._lines.get(line)
        return claim.limits[line] if timeline is None else timeline.least(start, start + duration)

    def used(self, time: int) -> dict[Line, int]:
        """How much of each limit is in use at a time, for limits that some task or hold counts against."""
        claims = (*(claim for claim, _, _ in self._counted.values()), *self.held().values())
        limits = {line: limit for claim in claims for line, limit in claim.limits.items()}
        return {line: limits[line] - self._lines[line].at(time) for line in limits}

    def usage(self) -> dict[str, dict[Resource, int]]:
        """The usage of running tasks, by leaf."""
        usage: dict[str, dict[Resource, int]] = {}
        for held, (claim, _, _) in self._counted.items():
            if not held.reserved:
                add_amounts(usage.setdefault(claim.leaf, {}), claim.amounts)
        return usage

    def lines(self, task: str) -> Mapping[Any, int]:
        """The amounts of a task, by limit."""
        claim = self.of(task)
        return {} if claim is None else claim.lines

    # -- earmarks --------------------------------------------------------------------------------------------

    def held(self) -> dict[str, Claim]:
        """The claims of jobs whose quota is held for them."""
        return {job: claim for job, (claim, _, _) in self.holds.items() if job not in self._aside}

    def hold(self, job: str, start: int, end: int) -> None:
        """Count a job as if it already had the resources that are being freed for it. The job itself ignores
        this."""
        self.release(job)
        claim = self.claims[job]
        if claim.possible:
            claim = replace(claim, lines={**claim.lines, **claim.possible})
        self.holds[job] = held = (claim, start, end)
        self._take(*held, 1)

    def prolong(self, job: str, end: int) -> None:
        """The job starts later than expected: hold its quota until ``end``."""
        claim, start, before = self.holds[job]
        if before < end:
            if job not in self._aside:
                self._take(claim, max(start, before), end, 1)
            self.holds[job] = (claim, start, end)

    def release(self, job: str) -> None:
        """Stop holding quota for a job."""
        held = self.holds.pop(job, None)
        if held is not None and job not in self._aside:
            self._take(*held, -1)
        self._aside.discard(job)

    @contextmanager
    def without(self, jobs: Iterable[str]) -> Iterator[None]:
        """As if nothing were held for some jobs."""
        lifted = [job for job in jobs if job in self.holds and job not in self._aside]
        for job in lifted:
            self._lift(job)
        try:
            yield
        finally:
            for job in lifted:
                self._put_back(job)

    @contextmanager
    def supposing(
        self, job: str, start: int, end: int, ends: Mapping[Allocation, int], but: Iterable[str]
    ) -> Iterator[None]:
        """As if a job had its quota for some time, running tasks ended at ``ends``, and nothing were held for
        the jobs ``but``."""
        counted = {held: self._counted[held] for held in ends if held in self._counted}
        changed = [(one, begin, until, ends[held]) for held, (one, begin, until) in counted.items()]
        claim = self.claims.get(job)
        with self.without((job, *but)):
            for each, begin, until, other in changed:
                self._take(each, begin, until, -1)
                self._take(each, begin, other, 1)
            if claim is not None:
                self._take(claim, start, end, 1)
            try:
                yield
            finally:
                if claim is not None:
                    self._take(claim, start, end, -1)
                for each, begin, until, other in changed:
                    self._take(each, begin, other, -1)
                    self._take(each, begin, until, 1)

    def _lift(self, job: str) -> None:
        self._aside.add(job)
        self._take(*self.holds[job], -1)

    def _put_back(self, job: str) -> None:
        self._aside.remove(job)
        self._take(*self.holds[job], 1)

    # -- reports of the allocations --------------------------------------------------------------------------

    def added(self, held: Allocation) -> None:
        """A running task or a reservation was added."""
        claim = self.of(held.task)
        if claim is not None:
            self._count(held, claim)
            if held.task in self.holds and held.task not in self._aside:
                self._lift(held.task)

    def removed(self, held: Allocation) -> None:
        """A task has ended, or a reservation was dropped."""
        counted = self._counted.pop(held, None)
        if counted is not None:
            self._take(*counted, -1)
            if counted[0].before is not None and self.claims.get(held.task) is counted[0]:
                self.claims[held.task] = counted[0].before
            if held.task in self._aside:
                self._put_back(held.task)

    def moved(self, held: Allocation) -> None:
        """The end of a task has changed."""
        counted = self._counted.get(held)
        if counted is not None and counted[2] != held.end:
            self._take(*counted, -1)
            self._count(held, counted[0])

    def _count(self, held: Allocation, claim: Claim) -> None:
        if self.tree.in_classes and claim.before is None:
            claim = self._with_classes(claim, self.in_classes(held))
            if not held.reserved and held.task in self.claims:
                self.claims[held.task] = claim
        self._counted[held] = counted = (claim, held.start, held.end)
        self._take(*counted, 1)

    def _take(self, claim: Claim, start: int, end: int, sign: int) -> None:
        for line, amount in claim.lines.items():
            timeline = self._lines.get(line)
            if timeline is None:
                timeline = self._lines[line] = Timeline(min(start, self.now), claim.limits[line])
            else:
                timeline.forget_before(self.now)
            begin = max(start, timeline.times[0])
            if begin < end:
                timeline.take(begin, end, sign * amount)
            if sign < 0 and len(timeline.times) == 1 and timeline.free[0] == claim.limits[line]:
                del self._lines[line]


def _limits(tree: QueueTree, leaf: str) -> list[tuple[Line, bool, int]]:
    """All limits that a job of a leaf counts against: whether each is per user, and the limit."""
    found: list[tuple[Line, bool, int]] = []
    for name in tree.paths[leaf]:
        queue = tree.queues[name]
        if queue.per_user.running is not None:
            found.append((Line(name, None, JOBS), True, queue.per_user.running))
        amounts = queue.per_user.amounts.items()
        found += [(Line(name, None, resource), True, limit) for resource, limit in amounts]
        found += [(Line(name, None, resource), False, limit) for resource, limit in queue.limit.items()]
    return found


def _job(task: str) -> str:
    return task.rpartition("[")[0]


def add_amounts(into: dict[Resource, int], amounts: Mapping[Resource, int]) -> None:
    """Add some amounts to others, in place."""
    for resource, amount in amounts.items():
        into[resource] = into.get(resource, 0) + amount
