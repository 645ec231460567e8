"""ClusterPlanner: the planner of the queue on a live cluster. A request is the pods of a gang.

Times are whole milliseconds, as everywhere in the queue. A job without a limit keeps its placements forever,
so nothing is planned behind it. A job without a known start delays no other job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from cachetools import LRUCache

from fluence.cluster.earmarks import Earmarks
from fluence.cluster.graph import ClusterGraph, Refused
from fluence.cluster.node_classes import NodeClasses
from fluence.cluster.planned_totals import Asked, PlannedTotals, StartForecast
from fluence.cluster.requests import PodGang, PodSetRequest
from fluence.errors import Conflict
from fluence.graph.graph import Ints
from fluence.match.policy import MatchPolicy
from fluence.match.policy import find as find_policy
from fluence.match.request import Never, Wait
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.queues import NOTHING, Amounts, QueueTree
from fluence.model.reason import Code, Reason
from fluence.placer.placer import GangHolding, GangPlacement, GangRequest
from fluence.queue.allocations import Allocation, Allocations
from fluence.queue.job import FOREVER
from fluence.queue.planner import Outlook, Planner, PlanRequest
from fluence.queue.quota import ClassAmounts
from fluence.queue.timeline import expected

__all__ = ["HORIZON", "ClusterPlanner", "PodSetRequest", "is_whole"]

HORIZON = 1 << 50  # milliseconds since 1970: the year 37,000
_MAX_OPENINGS = 32  # times at which a start is tried, while limits of classes of nodes change
_MAX_SHAPES = 10_000  # distinct shapes in a cache: users can make up any number


class ClusterPlanner:
    """The nodes of a cluster, as the queue sees them."""

    is_exact = False

    def __init__(self, cluster: ClusterGraph) -> None:
        self.cluster = cluster
        self.freed = self.opened = self.lost = 0
        self.allocations = Allocations()
        self._shapes: MutableMapping[Hashable, int] = LRUCache(_MAX_SHAPES)
        self._next_shape = 0
        self._of: dict[PodSetRequest, tuple[int, bool]] = {}  # shape; whether it has several kinds of pods
        self._gangs: dict[PodSetRequest, PodGang] = {}
        self._gangs_at = (-1, -1, -1)
        self._capacities: tuple[tuple[int, int, int], dict[str, int]] | None = None  # of a state of the nodes
        self._totals = PlannedTotals(cluster, self.allocations)
        self._feasible: MutableMapping[int, tuple[tuple[int, int, int], Reason | None]] = LRUCache(
            _MAX_SHAPES
        )
        # Shapes without a known start: that does not change while resources are only taken.
        self._hopeless: dict[int, int] = {}
        self.earmarks = Earmarks(cluster)
        self._classes = NodeClasses(self._pod_amounts)
        self._narrowed: int | None = None  # the shape that was tried last without some classes of nodes
        self._shortened: dict[str, int] = {}  # tasks whose end was moved ahead since the last plan: from when
        self.device_classes: Callable[[Pod], Mapping[str, int]] = lambda pod: {}
        """The ResourceClaims of a pod as resources by class, for quotas. Selectors do not matter."""

    # -- what happens outside --------------------------------------------------------------------------------

    def note_freed(self) -> None:
        """Capacity was freed that the plan did not expect: a pod of another scheduler ended, or a node was
        added."""
        self.freed += 1
        self.opened += 1
        self._hopeless.clear()

    def note_taken(self) -> None:
        """Capacity was taken or removed."""
        self.lost += 1

    def adopt(self, task: str, request: PodSetRequest, start: int, end: int | None) -> Allocation:
        """Take over a task that already has its placements, after a restart."""
        job = self.cluster.fit.jobs.get(request.number)
        if job is None:  # its node is gone again
            job = GangHolding(request.number, start, HORIZON if end is None else end, False)
        held = Allocation(task, request, job)
        self.allocations.add(held)
        return held

    def forget(self, request: PodSetRequest) -> None:
        """Forget a request that is not used any more."""
        self._of.pop(request, None)
        self._gangs.pop(request, None)

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return isinstance(request, PodSetRequest)

    def widened(self) -> Planner:
        return self

    def shape(self, request: Hashable) -> int:
        return self._kind(_pods(request))[0]

    def shares_reasons(self, request: PodSetRequest) -> bool:
        """Whether all requests of its shape have the same reasons. Reasons about several kinds of pods name
        some of them."""
        return not self._kind(request)[1]

    def _kind(self, request: PodSetRequest) -> tuple[int, bool]:
        found = self._of.get(request)
        if found is None:
            alike = self.cluster.equivalence_key(request.pods)
            if alike is None:
                shape = self._next_shape
            else:
                key = (
                    alike,
                    request.minimum,
                    request.policy,
                    request.exclude,
                    request.constraint,
                    request.topology,
                    request.devices,
                )
                shape = self._shapes.setdefault(key, self._next_shape)
            self._next_shape = max(self._next_shape, shape + 1)
            found = self._of[request] = (shape, alike is None or len(alike) > 1)
        return found

    def feasibility(self, request: Hashable) -> Reason | None:
        """Why a request would not fit on the empty cluster; computed once per shape."""
        at = self._nodes_at()
        request = _pods(request)
        shape, mixed = self._kind(request)
        known = self._feasible.get(shape)
        if known is not None and known[0] == at and (known[1] is None or not mixed):
            return known[1]
        gang = self.gang(request)
        reason: Reason | None = None
        if isinstance(gang, Refused):
            return gang.reason  # not cached: a claim may appear without a change of nodes
        if not self.cluster.fit.could_hold(gang):
            causes = self.cluster.why(gang, now=self.cluster.fit.availability.now, empty=True)
            reason = Reason.of(Code.CLUSTER_CANNOT_HOLD, causes=tuple(causes))
        if not self.cluster.mounts_claims(request.pods):  # volumes may appear without a change of nodes
            self._feasible[shape] = (at, reason)
        return reason

    def most_if_empty(self, pod: Pod) -> int | None:
        """The largest number of such pods on the empty cluster, by arithmetic; None if unknown."""
        gang = self.cluster.gang(PodSetRequest((pod,)))
        return None if isinstance(gang, Refused) else self.cluster.fit.most_if_empty(gang.members[0])

    def gang(self, request: PodSetRequest) -> PodGang | Refused:
        """A request compiled for the current nodes, once per state of the nodes."""
        at = self._nodes_at()
        if at != self._gangs_at or len(self._gangs) >= _MAX_SHAPES:
            self._gangs_at = at
            self._gangs.clear()
        known = self._gangs.get(request)
        if known is not None and not self.cluster.has_anti_affinity:
            return known
        gang = self.cluster.gang(request)
        if request.devices is None and isinstance(gang, PodGang) and gang.is_reusable:
            self._gangs[request] = gang
        return gang

    def _nodes_at(self) -> tuple[int, int, int]:
        """The state of the nodes. Only the columns have the taints."""
        graph = self.cluster.graph
        return graph.shape_generation, graph.state_generation, self.cluster.columns.generation

    def relaxed(self, request: Hashable) -> Hashable | None:
        return None

    def amounts(self, request: Hashable) -> Mapping[str, int]:
        request, total = _pods(request), dict[str, int]()
        for pod in request.pods:
            add_into(total, self._pod_amounts(pod))
        if request.devices is not None:
            times = len(request.pods) if request.devices.per_pod else 1
            add_into(total, {type_: count * times for type_, count in request.devices.needs})
        return total

    def capacities(self) -> Mapping[str, int]:
        at = self._nodes_at()
        if self._capacities is None or self._capacities[0] != at:
            total: dict[str, int] = {}
            for node in self.cluster.nodes.values():
                add_into(total, node.allocatable())
            for device in self.cluster.fit.backends.entries:
                add_into(total, {device.type: device.size})
            self._capacities = (at, total)
        return self._capacities[1]

    def _pod_amounts(self, pod: Pod) -> Mapping[str, int]:
        requests = pod_requests(pod)
        if pod.spec.resource_claims:
            requests.update(self.device_classes(pod))
        return requests

    # -- classes of nodes ------------------------------------------------------------------------------------

    def use_classes(self, tree: QueueTree) -> None:
        self._classes.use(tree.classes, tree.in_classes)

    def nodes_in_classes(self) -> Hashable:
        return self.cluster.columns.generation

    def class_amounts(self, request: Hashable) -> ClassAmounts:
        gang = self.gang(_pods(request)) if self._classes else None
        if not isinstance(gang, PodGang):
            return NOTHING, NOTHING
        return self._classes.bounds(gang, self.cluster.columns)

    def in_classes(self, allocation: Allocation) -> Amounts:
        holding = self.cluster.fit.jobs.get(allocation.number, allocation.job)
        if not self._classes or not isinstance(holding, GangHolding):
            return NOTHING
        asked, entries = _pods(allocation.request).pods, self.cluster.pods.entries
        pods: dict[Hashable, Pod] = {pod.metadata.uid: pod for pod in asked}
        for uid in holding.placements.keys() - pods.keys():  # pods that took the place of others
            entry = entries.get(str(uid))
            pods[uid] = asked[0] if entry is None else entry.pod
        placed = ((pods[uid], seat.node) for uid, seat in holding.placements.items())
        return self._classes.of_pods(placed, self.cluster.columns)

    def class_capacities(self) -> Amounts:
        """What the nodes of each class have."""
        if not self._classes:
            return NOTHING
        return self._classes.capacities(self.cluster.columns)

    def _open(self, job: str | None, gang: PodGang, start: int, clear: int) -> tuple[PodGang, frozenset[str]]:
        """A gang without the nodes of classes whose limits have no room for it, and these classes."""
        quotas = self.allocations.quotas
        if not self._classes or quotas is None or job is None:
            return gang, frozenset()
        closed = quotas.closed(job, start, clear)
        return (self._classes.open_gang(gang, closed, self.cluster.columns) if closed else gang), closed

    def _may_close(self, job: str) -> bool:
        """Whether limits of classes may keep a gang away from some nodes."""
        quotas = self.allocations.quotas
        claim = None if not self._classes or quotas is None else quotas.claims.get(job)
        return claim is not None and bool(claim.possible)

    def _has_room(self, job: str | None, gang: PodGang, found: GangPlacement, clear: int) -> bool:
        """Whether the limits of classes allow a placement."""
        quotas = self.allocations.quotas
        if not self._classes or quotas is None or job is None:
            return True
        pods = {each.pod.metadata.uid: each.pod for kind in gang.kinds for each in kind}
        placed = [(pods[str(each.pod)], each.node) for each in found.placements]
        amounts = self._classes.of_pods(placed, self.cluster.columns)
        return quotas.allows_on(job, amounts, found.at, clear)

    def _first_open(
        self, job: str | None, gang: PodGang, now: int, clear: int, begin: int
    ) -> tuple[PodGang, GangPlacement | Wait | Never]:
        """The earliest start of a gang that limits of classes allow, and the gang with the nodes that are
        open to it then. Between the times at which a class opens, more classes can only close."""
        quotas, duration = self.allocations.quotas, _duration(clear)
        found: GangPlacement | Wait | Never = Wait("busy")
        for _ in range(_MAX_OPENINGS):
            open_, closed = self._open(job, gang, begin, clear)
            found = self.cluster.earliest(open_, now=now, duration=duration, begin=begin)
            if quotas is None or job is None or not self._classes:
                return open_, found
            opens = quotas.opens(job, closed, begin, clear) if closed else None
            if isinstance(found, GangPlacement) and (opens is None or found.at <= opens):
                if self._has_room(job, gang, found, clear):
                    return open_, found
                if found.at <= begin:
                    break
                begin = found.at
            elif opens is None:
                return open_, found
            else:
                begin = opens
        return gang, Wait("busy")

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        self.cluster.advance(now)
        self._hopeless.clear()

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> Allocation | None:
        return self._place(task, request, now, limit, clear)

    def start_or_reserve(
        self, task: str, request: Hashable, now: int, limit: int, clear: int, begin: int = 0
    ) -> Allocation | None:
        return self._place(task, request, now, limit, clear, later=max(now, begin))

    def may_move(self, allocation: Allocation, now: int) -> bool:
        return True  # only a match can tell

    def may_start(self, allocation: Allocation, now: int, clear: int) -> bool:
        gang = self.gang(_pods(allocation.request))
        if isinstance(gang, Refused):
            return False
        return self.cluster.fit.may_start(gang, job=allocation.number, now=now, duration=_duration(clear))

    def displaced(self) -> Collection[Allocation]:
        numbers = self.cluster.fit.displaced()
        seated = self.cluster.fit.jobs
        return [
            each
            for each in self.allocations.reserved.values()
            if each.number in numbers or each.number not in seated
        ]

    def drop(self, allocation: Allocation) -> None:
        self._lift(allocation)
        self.allocations.drop(allocation)
        self._hopeless.clear()

    def drop_all(self) -> None:
        for allocation in list(self.allocations.reserved.values()):
            self.drop(allocation)

    def end(self, allocation: Allocation, now: int) -> None:
        self.allocations.finish(allocation)
        self._give_up(allocation)
        self.freed += 1
        self._hopeless.clear()
        if now < allocation.end:
            self.opened += 1

    def extend(self, allocation: Allocation, end: int) -> None:
        if end - allocation.start >= FOREVER:
            end = HORIZON  # its end is unknown
        job = self.cluster.fit.jobs.get(allocation.number)
        if job is None:  # the cluster has already freed it
            allocation.job.end = end
        else:
            self.cluster.prolong(allocation.number, end)
            allocation.job = job  # NB pods that came back with their node were recorded again
        self.allocations.note_end(allocation)
        if end > self._shortened.get(allocation.task, -1):
            self.lost += 1  # otherwise the last plan knew no earlier end

    def shorten(self, allocation: Allocation, end: int) -> None:
        """A task is being ended: its resources come free by ``end``, earlier than planned."""
        self._shortened.setdefault(allocation.task, allocation.end)
        job = self.cluster.fit.jobs.get(allocation.number)
        if job is None:
            allocation.job.end = end
        else:
            self.cluster.prolong(allocation.number, end)
            allocation.job = job
        self.allocations.note_end(allocation)
        self.opened += 1
        self._hopeless.clear()

    def mark(self) -> object:
        return self.allocations.mark(), self.cluster.mark()

    def undo(self, mark: object) -> None:
        assert isinstance(mark, tuple)
        self.allocations.undo(mark[0])
        self.cluster.undo(mark[1])
        self._hopeless.clear()

    def settle(self, now: int) -> list[Allocation]:
        self._shortened.clear()
        self.allocations.settle()
        self.cluster.matcher.ledger.settle()
        return []

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        if self._narrowed == shape:
            return  # other jobs may use nodes of classes whose limits kept this one away
        # With anti-affinity or earmarks, equal requests do not have equal chances.
        held = self.earmarks.requests.values()
        if not self.cluster.has_anti_affinity and all(self.shape(each) != shape for each in held):
            blocked[shape] = min(int(blocked[shape]), limit)

    # -- thinking ahead --------------------------------------------------------------------------------------

    def sketch(
        self,
        now: int,
        waiting: Sequence[PlanRequest],
        *,
        in_order: bool,
        wanted: Collection[int] | None = None,
    ) -> list[int | None]:
        asked = [self._asked(_pods(ask.request)) for ask in waiting]
        claims = [ask.claim for ask in waiting]
        sums = self._totals.sketch(now, asked, [ask.limit for ask in waiting], wanted, claims=claims)
        return sums.starts(now, in_order=in_order, since=[ask.since for ask in waiting])

    def expect(
        self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        some = waiting[: max(wanted, default=-1) + 1]
        asked = [self._asked(_pods(ask.request)) for ask in some]
        lasting = [ask.duration for ask in some]
        sums = self._totals.sketch(now, asked, lasting, wanted, ends, [ask.claim for ask in some])
        by_sums = expected(sums.starts(now), wanted)
        if not by_sums:
            return {}
        self.cluster.advance(now)
        running = self.allocations.running
        by_job = {running[task].number: end for task, end in ends.items() if task in running}
        forecast = StartForecast(self.cluster.fit, by_job, now)
        found = {}
        for place, start in by_sums.items():
            request = _pods(waiting[place].request)
            gang = self.gang(request)
            # Sums ignore fragmentation and rules, so the start is not before the gang fits by the forecast.
            at = None if isinstance(gang, Refused) else forecast.start(gang, self.shape(request), start)
            if at is not None:
                found[place] = at
        return found

    def supported(self, request: Hashable, now: int, limit: int) -> int | None:
        request = _pods(request)
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return None
        quotas = self.allocations.quotas
        job = None if quotas is None else quotas.jobs.get(request)
        with self._without(request) if request.number in self.earmarks else nullcontext():
            _, found = self._first_open(job, gang, now, limit, now)
        return found.at if isinstance(found, GangPlacement) else None

    def outlook(self, request: Hashable, now: int, limit: int) -> Outlook:
        request = _pods(request)
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return Outlook((gang.reason,))
        duration = _duration(limit)
        found = self.cluster.earliest(gang, now=now, duration=duration)
        start = found.at if isinstance(found, GangPlacement) else None
        causes = () if start == now else tuple(self.why(request, now, limit))
        return Outlook(causes, start=start, fewer=self._most(gang, now, duration))

    def why(self, request: PodSetRequest, now: int, limit: int) -> list[Reason]:
        """Why a request does not fit now. Its own reservation does not count."""
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return [gang.reason]
        with self._without(request):
            return self.cluster.why(gang, now=now, duration=_duration(limit))

    def seats_now(self, request: PodSetRequest, now: int, limit: int) -> int | None:
        """The number of its pods that could start now, if that is enough. Its own reservation does not
        count."""
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return None
        with self._without(request):
            placement = self.cluster.try_now(gang, now=now, duration=_duration(limit))
        return len(placement.placements) if isinstance(placement, GangPlacement) else None

    def held_up_by(self, request: PodSetRequest, now: int, limit: int, tasks: Collection[str]) -> list[str]:
        """The running tasks whose nodes a request would get if all of them ended."""
        jobs = self.cluster.fit.jobs
        running = (self.allocations.running.get(task) for task in tasks)
        holders = [holder for holder in running if holder is not None and holder.number in jobs]
        gang = self.gang(request)
        if not holders or isinstance(gang, Refused):
            return []
        soon = now + 1
        with self._without(request):
            for holder in holders:
                self.cluster.prolong(holder.number, soon)
            placement = self.cluster.earliest(gang, now=now, duration=_duration(limit), latest=soon)
        if not isinstance(placement, GangPlacement) or placement.at != soon:
            return []
        wanted: dict[str, dict[str, int]] = {}
        for pod in placement.placements:
            add_into(wanted.setdefault(pod.node, {}), pod.needs)
        lacking = self.cluster.fit.lacking(wanted, now=now)
        devices = {grant.backend for grant in placement.grants}
        return [
            holder.task
            for holder in holders
            if jobs[holder.number].holds(lacking)
            or not devices.isdisjoint(grant.backend for grant in jobs[holder.number].grants)
        ]

    # -- inside ----------------------------------------------------------------------------------------------

    def _place(
        self, task: str, request: Hashable, now: int, limit: int, clear: int, *, later: int | None = None
    ) -> Allocation | None:
        """Place or reserve a request. ``later``: the earliest start of a reservation; None: only a start
        now."""
        request = _pods(request)
        if task in self.allocations:
            raise Conflict(f"{task} already has seats")
        shape, number = self.shape(request), request.number
        is_earmarked = number in self.earmarks
        if clear >= self._hopeless.get(shape, FOREVER + 1) and not is_earmarked:
            return None
        if is_earmarked and later is not None and later > now:
            return None  # quotas allow only a later start: it keeps its earmark
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return None
        mark = self.cluster.mark() if is_earmarked else 0
        if is_earmarked:  # it starts on its earmarked nodes, or keeps waiting for them
            self.earmarks.lift(number)
            later = None
        duration = _duration(clear)
        placement: GangPlacement | Wait | Never
        whole, (gang, closed) = gang, self._open(task, gang, now if later is None else later, clear)
        self._narrowed = shape if closed else None
        if later is None:
            before = self.cluster.mark()
            placement = self.cluster.allocate(gang, job=number, now=now, duration=duration)
            if isinstance(placement, GangPlacement) and not self._has_room(task, whole, placement, clear):
                self.cluster.undo(before)
                placement, self._narrowed = Wait("busy"), shape
        elif not closed and not self._may_close(task):
            placement = self.cluster.reserve(gang, job=number, now=now, duration=duration, begin=later)
        else:
            self._narrowed = shape
            gang, placement = self._first_open(task, whole, now, clear, later)
            if isinstance(placement, GangPlacement):
                at = placement.at
                placement = self.cluster.reserve(gang, job=number, now=now, duration=duration, begin=at)
        if not isinstance(placement, GangPlacement) and is_earmarked:
            self.cluster.undo(mark)
            return None
        if not isinstance(placement, GangPlacement):
            is_sure = later == now or isinstance(placement, Never)
            if is_sure and self._narrowed is None and not self.cluster.has_anti_affinity:
                self._hopeless[shape] = min(clear, self._hopeless.get(shape, clear))
            return None
        if limit < clear:
            self.cluster.prolong(number, min(placement.at + limit, HORIZON))
        held = Allocation(task, request, self.cluster.fit.jobs[number])
        self.allocations.add(held)
        return held

    @contextmanager
    def _without(self, request: PodSetRequest) -> Iterator[None]:
        """Remove the reservation of a request during a query, and restore the ledger afterwards."""
        mark = self.cluster.mark()
        reserved = self.allocations.reserved.values()
        own = next((each for each in reserved if each.number == request.number), None)
        if own is not None:
            self._lift(own)
        self.earmarks.lift(request.number)
        try:
            yield
        finally:
            self.cluster.undo(mark)

    def _lift(self, allocation: Allocation) -> None:
        """Remove a reservation from the ledger, unless it was removed with its nodes."""
        if allocation.number in self.cluster.fit.jobs:
            self.cluster.fit.release(allocation.number)

    def _give_up(self, allocation: Allocation) -> None:
        # The cluster frees a job by itself when its last pod has ended.
        if allocation.number in self.cluster.fit.jobs:
            self.cluster.release(allocation.number)

    def _asked(self, request: PodSetRequest) -> Asked:
        shape = self.shape(request)
        found = self._totals.known(shape)
        if found is None:
            gang = self.gang(request)
            # A refusal is not cached: a claim may appear.
            found = Asked() if isinstance(gang, Refused) else self._totals.learn(shape, gang)
        return found

    def _most(self, gang: GangRequest, now: int, duration: int | None) -> int | None:
        """The number of its pods that would fit now."""
        some = replace(gang, minimum=1)
        found = self.cluster.try_now(some, now=now, duration=duration)
        return len(found.placements) if isinstance(found, GangPlacement) else None


def _pods(request: Hashable) -> PodSetRequest:
    if not isinstance(request, PodSetRequest):
        raise TypeError(f"the pods of a gang are needed, not {type(request).__name__}")
    return request


def _duration(limit: int) -> int | None:
    return None if limit >= FOREVER else limit


def is_whole(policy: str | MatchPolicy) -> bool:
    """Whether a policy allocates whole nodes."""
    return (find_policy(policy) if isinstance(policy, str) else policy).node_exclusive
