"""ClusterPlanner: the queue's planner over a live cluster, where a request is the pods of a gang.

The scheduler's queue calls it. Times are whole milliseconds, as everywhere in the queue. A job without a
limit holds its seats for ever, so that nothing is planned on its end; what can start at no time that is known
holds nobody up.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace

from cachetools import LRUCache

from fluence.cluster.graph import ClusterGraph, Refused, TopologyDomain
from fluence.errors import Conflict
from fluence.graph.graph import Ints
from fluence.match.placement import Never, Wait
from fluence.match.policy import MatchPolicy
from fluence.match.policy import find as find_policy
from fluence.model.constraint import Constraint
from fluence.model.device import DeviceRequest
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang import GangRequest, Seated, Seating
from fluence.placer.seat_forecast import SeatForecast
from fluence.queue.allocations import Allocation, Allocations
from fluence.queue.job import FOREVER
from fluence.queue.planner import Outlook, Planner, PlanRequest
from fluence.queue.totals import expected
from fluence.schedule.planned_totals import Asked, PlannedTotals

HORIZON = 1 << 50  # milliseconds since 1970: the year 37,000
_SHAPES = 10_000  # distinct shapes of which something is remembered; users can make up any number


@dataclass(frozen=True, slots=True, eq=False)
class PodSetRequest:
    """The pods of a gang that are to start together; equal only to itself."""

    number: int  # of the job that gets the seats: it follows from a uid
    pods: tuple[Pod, ...]
    minimum: int
    policy: str | MatchPolicy | None = None
    exclude: frozenset[str] = frozenset()  # nodes that turned out impossible for this group
    constraint: Constraint | None = None
    topology: TopologyDomain | None = None  # all in one domain of a label
    devices: DeviceRequest | None = None  # that belong to no node


class ClusterPlanner:
    """What a cluster's seats look like to the queue."""

    is_exact = False

    def __init__(self, cluster: ClusterGraph) -> None:
        self.cluster = cluster
        self.freed = self.opened = self.lost = 0
        self.allocations = Allocations()
        self._shapes: MutableMapping[Hashable, int] = LRUCache(_SHAPES)
        self._next_shape = 0
        self._of: dict[PodSetRequest, tuple[int, bool]] = {}  # shape; of several kinds of pods
        self._totals = PlannedTotals(cluster, self.allocations)
        self._feasible: MutableMapping[int, tuple[tuple[int, int, int], Reason | None]] = LRUCache(_SHAPES)
        # Shapes that were told "at no time": it stays so while the plan only fills up.
        self._hopeless: dict[int, int] = {}

    # -- what happens outside --------------------------------------------------------------------------------

    def note_freed(self) -> None:
        """Something came free that nobody planned on: a foreign pod left, a node came."""
        self.freed += 1
        self.opened += 1
        self._hopeless.clear()

    def note_taken(self) -> None:
        """Something was taken, or is gone."""
        self.lost += 1

    def adopt(self, task: str, request: PodSetRequest, start: int, end: int | None) -> Allocation:
        """A task that already has its seats, after a restart."""
        until = HORIZON if end is None else end
        held = Allocation(task, request, start, until, number=request.number)
        self.allocations.add(held)
        return held

    def forget(self, request: PodSetRequest) -> None:
        """A request that is not asked for again."""
        self._of.pop(request, None)

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return isinstance(request, PodSetRequest)

    def widened(self) -> Planner:
        return self

    def shape(self, request: Hashable) -> int:
        return self._kind(_pods(request))[0]

    def shares_reasons(self, request: PodSetRequest) -> bool:
        """Whether all requests of its shape can be told the same: reasons about several kinds of pods name
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
        """Why the cluster as it is could not hold a request, if it were empty; judged once per shape."""
        graph = self.cluster.graph
        # Taints are in the columns alone.
        at = (graph.shape_generation, graph.state_generation, self.cluster.columns.generation)
        request = _pods(request)
        shape, mixed = self._kind(request)
        known = self._feasible.get(shape)
        if known is not None and known[0] == at and (known[1] is None or not mixed):
            return known[1]
        gang = self.gang(request)
        reason: Reason | None = None
        if isinstance(gang, Refused):
            return gang.reason  # not remembered: a claim may come while all nodes stay as they are
        if self.cluster.is_impossible(gang):
            causes = self.cluster.why(
                request.pods,
                now=self.cluster.seats.availability.now,
                policy=request.policy,
                exclude=self._excluded(request),
                topology=request.topology,
                devices=request.devices,
                empty=True,
            )
            reason = Reason.of(Code.CLUSTER_CANNOT_HOLD, causes=tuple(causes))
        if not self.cluster.mounts_claims(request.pods):  # volumes come while all nodes stay as they are
            self._feasible[shape] = (at, reason)
        return reason

    def most_if_empty(self, pod: Pod) -> int | None:
        """How many such pods the cluster could hold if it were empty, by arithmetic; None: nobody can say."""
        gang = self.cluster.gang((pod,))
        return None if isinstance(gang, Refused) else self.cluster.most_if_empty(gang)

    def gang(self, request: PodSetRequest) -> GangRequest | Refused:
        """The pods of a request as the placer takes them, for the nodes as they are now."""
        return self.cluster.gang(
            request.pods,
            minimum=request.minimum if request.minimum < len(request.pods) else None,
            policy=request.policy,
            exclude=self._excluded(request),
            topology=request.topology,
            devices=request.devices,
        )

    def relaxed(self, request: Hashable) -> Hashable | None:
        return None

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        self.cluster.advance(now)
        self._hopeless.clear()

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> Allocation | None:
        return self._place(task, request, now, limit, clear, later=False)

    def start_or_reserve(
        self, task: str, request: Hashable, now: int, limit: int, clear: int
    ) -> Allocation | None:
        return self._place(task, request, now, limit, clear, later=True)

    def may_move(self, allocation: Allocation, now: int) -> bool:
        return True  # only a match can tell

    def may_start(self, allocation: Allocation, now: int, clear: int) -> bool:
        gang = self.gang(_pods(allocation.request))
        if isinstance(gang, Refused):
            return False
        return self.cluster.seats.may_start(gang, job=allocation.number, now=now, duration=_duration(clear))

    def displaced(self) -> Collection[Allocation]:
        numbers = self.cluster.seats.displaced()
        seated = self.cluster.seats.jobs
        return [
            each
            for each in self.allocations.reserved.values()
            if each.number in numbers or each.number not in seated
        ]

    def drop(self, allocation: Allocation) -> None:
        seating = self._lift(allocation)
        self.allocations.drop(allocation, lambda: self._put_back(seating))
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
            end = HORIZON  # nobody knows
        self.allocations.extend(allocation, end)
        if allocation.number in self.cluster.seats.jobs:
            self.cluster.prolong(allocation.number, end)
        self.lost += 1

    def mark(self) -> object:
        return self.allocations.mark()

    def undo(self, mark: object) -> None:
        assert isinstance(mark, int)
        self.allocations.undo(mark)
        self._hopeless.clear()

    def settle(self, now: int) -> list[Allocation]:
        self.allocations.settle()
        return []

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        # Where labels keep pods away, equal needs are not equal chances.
        if not self.cluster.has_anti_affinity:
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
        sums = self._totals.sketch(now, asked, [ask.limit for ask in waiting], wanted)
        return sums.starts(now, in_order=in_order)

    def expect(
        self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        some = waiting[: max(wanted, default=-1) + 1]
        asked = [self._asked(_pods(ask.request)) for ask in some]
        sums = self._totals.sketch(now, asked, [ask.duration for ask in some], wanted, ends)
        by_sums = expected(sums.starts(now), wanted)
        if not by_sums:
            return {}
        self.cluster.advance(now)
        running = self.allocations.running
        by_job = {running[task].number: end for task, end in ends.items() if task in running}
        forecast = SeatForecast(self.cluster.seats, by_job, now)
        found = {}
        for place, start in by_sums.items():
            request = _pods(waiting[place].request)
            gang = self.gang(request)
            # Sums overlook how room lies on nodes, and rules: no start is before there are seats.
            at = None if isinstance(gang, Refused) else forecast.start(gang, self.shape(request), start)
            if at is not None:
                found[place] = at
        return found

    def supported(self, request: Hashable, now: int, limit: int) -> int | None:
        gang = self.gang(_pods(request))
        if isinstance(gang, Refused):
            return None
        found = self.cluster.earliest(gang, now=now, duration=_duration(limit))
        return found.at if isinstance(found, Seated) else None

    def outlook(self, request: Hashable, now: int, limit: int) -> Outlook:
        request = _pods(request)
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return Outlook((gang.reason,))
        duration = _duration(limit)
        found = self.cluster.earliest(gang, now=now, duration=duration)
        start = found.at if isinstance(found, Seated) else None
        causes = () if start == now else tuple(self.why(request, now, limit))
        return Outlook(causes, start=start, fewer=self._most(gang, now, duration))

    def why(self, request: PodSetRequest, now: int, limit: int) -> list[Reason]:
        """What stands in the way of a request now; its own place in the plan does not."""
        planned = self._lift_own(request)
        told = self.cluster.why(
            request.pods,
            now=now,
            duration=_duration(limit),
            policy=request.policy,
            exclude=self._excluded(request),
            topology=request.topology,
            devices=request.devices,
        )
        self._put_back(planned)
        return told

    def seats_now(self, request: PodSetRequest, now: int, limit: int) -> int | None:
        """How many of its pods would have a seat now, if enough of them do; its own place in the plan is no
        obstacle."""
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return None
        planned = self._lift_own(request)
        found = self.cluster.try_now(gang, now=now, duration=_duration(limit))
        self._put_back(planned)
        return len(found.seats) if isinstance(found, Seated) else None

    def held_up_by(self, request: PodSetRequest, now: int, limit: int, tasks: Collection[str]) -> list[str]:
        """Of some tasks that run, those whose nodes a request would have as soon as all of them end."""
        seated = self.cluster.seats.jobs
        running = (self.allocations.running.get(task) for task in tasks)
        held = [each for each in running if each is not None and each.number in seated]
        gang = self.gang(request)
        if not held or isinstance(gang, Refused):
            return []
        planned, soon = self._lift_own(request), now + 1
        try:
            for each in held:
                self.cluster.prolong(each.number, soon)
            found = self.cluster.earliest(gang, now=now, duration=_duration(limit), latest=soon)
        finally:
            for each in held:
                self.cluster.prolong(each.number, each.end)
            self._put_back(planned)
        if not isinstance(found, Seated) or found.at != soon:
            return []
        nodes = {seat.node for seat in found.seats}
        devices = {grant.backend for grant in found.grants}
        return [
            each.task
            for each in held
            if not nodes.isdisjoint(seat.node for seat in seated[each.number].seats.values())
            or not devices.isdisjoint(grant.backend for grant in seated[each.number].grants)
        ]

    # -- inside ----------------------------------------------------------------------------------------------

    def _excluded(self, request: PodSetRequest) -> frozenset[str]:
        """The nodes that a request must not have: by refusal, or by its constraint on names and labels."""
        if request.constraint is None:
            return request.exclude
        ruled_out = self.cluster.ruled_out(request.constraint)
        return request.exclude | ruled_out if request.exclude else ruled_out

    def _place(
        self, task: str, request: Hashable, now: int, limit: int, clear: int, *, later: bool
    ) -> Allocation | None:
        request = _pods(request)
        if task in self.allocations:
            raise Conflict(f"{task} already has seats")
        shape = self.shape(request)
        if clear >= self._hopeless.get(shape, FOREVER + 1):
            return None
        gang = self.gang(request)
        if isinstance(gang, Refused):
            return None
        number = request.number
        place = self.cluster.reserve if later else self.cluster.seat
        seated: Seated | Wait | Never = place(gang, job=number, now=now, duration=_duration(clear))
        if not isinstance(seated, Seated):
            if (later or isinstance(seated, Never)) and not self.cluster.has_anti_affinity:
                self._hopeless[shape] = min(clear, self._hopeless.get(shape, clear))
            return None
        end = seated.end
        if limit < clear:
            end = min(seated.at + limit, HORIZON)
            self.cluster.prolong(number, end)
        held = Allocation(task, request, seated.at, end, reserved=seated.reserved, number=number)
        undo = self._lift if seated.reserved else self._give_up
        self.allocations.add(held, lambda: undo(held))
        return held

    def _lift_own(self, request: PodSetRequest) -> Seating | None:
        """Take a request's own place out of the plan, for a question."""
        reserved = self.allocations.reserved.values()
        own = next((each for each in reserved if each.number == request.number), None)
        return None if own is None else self._lift(own)

    def _lift(self, allocation: Allocation) -> Seating | None:
        """Take a plan's seats out and say what they were; nodes may have gone, and seats with them."""
        seating = self.cluster.seats.jobs.get(allocation.number)
        if seating is None:
            return None
        kept = replace(seating, seats=dict(seating.seats))
        self.cluster.seats.release(allocation.number)
        return kept

    def _put_back(self, seating: Seating | None) -> None:
        if seating is None:
            return
        self.cluster.seats.hold(
            seating.job,
            seating.seats.values(),
            start=seating.start,
            end=seating.end,
            reserved=True,
            whole=seating.whole,
            grants=seating.grants,
        )

    def _give_up(self, allocation: Allocation) -> None:
        # The cluster gives a job back by itself when its last pod has ended.
        if allocation.number in self.cluster.seats.jobs:
            self.cluster.release(allocation.number)

    def _asked(self, request: PodSetRequest) -> Asked:
        shape = self.shape(request)
        found = self._totals.known(shape)
        if found is None:
            gang = self.gang(request)
            # What is refused is not remembered: a claim may come.
            found = Asked() if isinstance(gang, Refused) else self._totals.learn(shape, gang)
        return found

    def _most(self, gang: GangRequest, now: int, duration: int | None) -> int | None:
        """How many of its pods would find a seat now."""
        some = replace(gang, minimum=1)
        found = self.cluster.try_now(some, now=now, duration=duration)
        return len(found.seats) if isinstance(found, Seated) else None


def _pods(request: Hashable) -> PodSetRequest:
    if not isinstance(request, PodSetRequest):
        raise TypeError(f"the pods of a gang are needed, not {type(request).__name__}")
    return request


def _duration(limit: int) -> int | None:
    return None if limit >= FOREVER else limit


def is_whole(policy: str | MatchPolicy) -> bool:
    """Whether a policy gives out whole nodes."""
    return (find_policy(policy) if isinstance(policy, str) else policy).node_exclusive
