"""SeatSpace: the queue's space over a live cluster, where a request is the pods of a gang.

Times are whole milliseconds, as everywhere in the queue. A job without a limit holds its seats for ever, so
that nothing is planned on its end; what can start at no time that is known holds nobody up.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fluence import messages
from fluence.cluster.graph import ClusterGraph, Refused, TopologyDomain
from fluence.errors import Conflict
from fluence.graph.graph import Ints
from fluence.match.placement import Never, Wait
from fluence.match.policy import MatchPolicy
from fluence.match.policy import find as find_policy
from fluence.model.constraint import Constraint
from fluence.model.pod import Pod
from fluence.placer.gang import GangRequest, Seated, Seating
from fluence.queue.job import FOREVER
from fluence.queue.journal import Journal
from fluence.queue.planner import Outlook, Planner, PlanRequest
from fluence.queue.totals import Amounts, Totals, expected
from fluence.schedule.groups import Gang as Group

HORIZON = 1 << 50  # milliseconds since 1970: the year 37,000


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


@dataclass(slots=True)
class _Task:
    number: int
    end: int


class ClusterPlanner:
    """What a cluster's seats look like to the queue."""

    def __init__(self, cluster: ClusterGraph) -> None:
        self.cluster = cluster
        self.freed = self.opened = self.lost = 0
        self.tasks: dict[str, _Task] = {}
        self.reservations: dict[str, int] = {}  # task -> number
        self._names: dict[int, str] = {}  # number -> task, to name who is in the way
        self._shapes: dict[Hashable, int] = {}
        self._next_shape = 0
        self._mixed: set[int] = set()  # of several kinds of pods, whose reasons name some of them
        self._of: dict[PodSetRequest, int] = {}
        self._asked: dict[int, dict[Hashable, int]] = {}  # per shape
        self._judged: dict[int, tuple[tuple[int, int, int], str | None]] = {}
        self._journal = Journal()
        # Shapes that were told "at no time": it stays so while the plan only fills up.
        self._hopeless: dict[int, int] = {}

    # -- what happens outside --------------------------------------------------------------------------------

    def more(self) -> None:
        """Something came free that nobody planned on: a foreign pod left, a node came."""
        self.freed += 1
        self.opened += 1
        self._hopeless.clear()

    def less(self) -> None:
        """Something was taken, or is gone."""
        self.lost += 1

    def adopt(self, task: str, number: int, end: int) -> None:
        """A task that already has its seats, after a restart."""
        self.tasks[task] = _Task(number, end)
        self._names[number] = task

    def forget(self, request: Hashable) -> None:
        """A request that is not asked for again."""
        if isinstance(request, PodSetRequest):
            self._of.pop(request, None)

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return isinstance(request, PodSetRequest)

    def widened(self) -> Planner:
        return self

    def shape(self, request: Hashable) -> int:
        request = _pods(request)
        found = self._of.get(request)
        if found is None:
            alike = self.cluster.equivalence_key(request.pods)
            if alike is None:
                found = self._next_shape
            else:
                key = (
                    alike,
                    request.minimum,
                    request.policy,
                    request.exclude,
                    request.constraint,
                    request.topology,
                )
                found = self._shapes.setdefault(key, self._next_shape)
                if len(alike) > 1:
                    self._mixed.add(found)
            self._next_shape = max(self._next_shape, found + 1)
            self._of[request] = found
        return found

    def shares_reasons(self, shape: int) -> bool:
        """Whether all requests of a shape can be told the same."""
        return shape not in self._mixed

    def judge(self, request: Hashable) -> str | None:
        """Why the cluster as it is could not hold a request, if it were empty; judged once per shape."""
        graph = self.cluster.graph
        # Taints are in the columns alone.
        at = (graph.shape_generation, graph.state_generation, self.cluster.columns.generation)
        request = _pods(request)
        shape = self.shape(request)
        known = self._judged.get(shape)
        if known is not None and known[0] == at and (known[1] is None or self.shares_reasons(shape)):
            return known[1]
        gang = self._gang(request)
        told: str | None = None
        if isinstance(gang, Refused):
            # Not remembered: a claim may come while all nodes stay as they are.
            return messages.text(gang.reason)
        if self.cluster.is_impossible(gang):
            causes = self.why(request, self.cluster.seats.room.now, FOREVER)
            told = "; ".join(causes) or "the cluster has no nodes for it"
        if not self.cluster.mounts_claims(request.pods):  # volumes come while all nodes stay as they are
            self._judged[shape] = (at, told)
        return told

    def refusal(self, request: Hashable) -> str | None:
        """Why a request is not tried at all, whatever the cluster has."""
        gang = self._gang(_pods(request))
        return messages.text(gang.reason) if isinstance(gang, Refused) else None

    def relaxed(self, request: Hashable) -> Hashable | None:
        return None

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        self.cluster.advance(now)
        self._hopeless.clear()

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> bool:
        found = self._place(task, request, now, limit, clear, later=False)
        return found is not None

    def start_or_reserve(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> int | None:
        return self._place(task, request, now, limit, clear, later=True)

    def may_move(self, task: str, now: int) -> bool:
        return True  # only a match can tell

    def drop(self, task: str) -> None:
        number = self.reservations.pop(task)
        seating = self._lift(number)
        self._journal.note(lambda: self._put_back(task, seating))
        self._hopeless.clear()

    def drop_all(self) -> None:
        for task in list(self.reservations):
            self.drop(task)

    def end(self, task: str, now: int) -> None:
        held = self._give_up(task)
        self.freed += 1
        self._hopeless.clear()
        if now < held.end:
            self.opened += 1

    def stretch(self, task: str, end: int) -> None:
        held = self.tasks[task]
        held.end = end
        if held.number in self.cluster.seats.jobs:
            self.cluster.prolong(held.number, end)
        self.lost += 1

    def mark(self) -> object:
        return self._journal.mark()

    def undo(self, mark: object) -> None:
        self._journal.undo(mark)
        self._hopeless.clear()

    def settle(self, now: int) -> list[str]:
        self._journal.settle()
        return []

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        # Where labels keep pods away, equal needs are not equal chances.
        if not self.cluster.has_anti_affinity:
            blocked[shape] = min(int(blocked[shape]), limit)

    # -- thinking ahead --------------------------------------------------------------------------------------

    def sketch(self, now: int, asks: Sequence[PlanRequest], *, in_order: bool) -> list[int | None]:
        wanted = ((self._amounts(_pods(ask.request)), ask.limit) for ask in asks)
        return self._totals(now, {}).place_all(wanted, now, in_order=in_order)

    def expect(
        self, now: int, ends: Mapping[str, int], asks: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        some = asks[: max(wanted, default=-1) + 1]
        lasting = ((self._amounts(_pods(ask.request)), ask.duration) for ask in some)
        return expected(self._totals(now, ends).place_all(lasting, now), wanted)

    def room(self, request: Hashable, now: int, limit: int) -> Outlook:
        request = _pods(request)
        gang = self._gang(request)
        if isinstance(gang, Refused):
            return Outlook(messages.text(gang.reason))
        duration = _duration(limit)
        found = self.cluster.earliest(gang, now=now, duration=duration)
        if isinstance(found, Seated):
            start: int | None = found.at
        else:
            start = None
        causes = [] if start == now else self.why(request, now, limit)
        return Outlook("; ".join(causes), start=start, fewer=self._most(gang, now, duration))

    def why(self, request: Hashable, now: int, limit: int) -> list[str]:
        """What stands in the way of a request now, in words; its own place in the plan does not."""
        request = _pods(request)
        task = self._names.get(request.number, "")
        planned = self._lift(request.number) if task in self.reservations else None
        told = self.cluster.why(
            request.pods,
            now=now,
            duration=_duration(limit),
            policy=request.policy,
            exclude=self._excluded(request),
            topology=request.topology,
        )
        self._put_back(task, planned)
        return [messages.text(each) for each in told]

    # -- inside ----------------------------------------------------------------------------------------------

    def _gang(self, request: PodSetRequest) -> GangRequest | Refused:
        return self.cluster.gang(
            request.pods,
            minimum=request.minimum if request.minimum < len(request.pods) else None,
            policy=request.policy,
            exclude=self._excluded(request),
            topology=request.topology,
        )

    def _excluded(self, request: PodSetRequest) -> frozenset[str]:
        """The nodes that a request must not have: by refusal, or by its constraint on names and labels."""
        if request.constraint is None:
            return request.exclude
        ruled_out = self.cluster.ruled_out(request.constraint)
        return request.exclude | ruled_out if request.exclude else ruled_out

    def _place(
        self,
        task: str,
        request: Hashable,
        now: int,
        limit: int,
        clear: int,
        *,
        later: bool,
    ) -> int | None:
        request = _pods(request)
        if task in self.tasks or task in self.reservations:
            raise Conflict(f"{task} already has seats")
        shape = self.shape(request)
        if clear >= self._hopeless.get(shape, FOREVER + 1):
            return None
        gang = self._gang(request)
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
            end = seated.at + limit
            self.cluster.prolong(number, min(end, HORIZON))
        self._names[number] = task
        if seated.reserved:
            self.reservations[task] = number
            self._journal.note(lambda: self._unreserve(task))
        else:
            self.tasks[task] = _Task(number, end)
            self._journal.note(lambda: self._give_up(task))
        return seated.at

    def _unreserve(self, task: str) -> None:
        self._lift(self.reservations.pop(task))

    def _lift(self, number: int) -> Seating | None:
        """Take a plan's seats out and say what they were; nodes may have gone, and seats with them."""
        self._names.pop(number, None)
        seating = self.cluster.seats.jobs.get(number)
        if seating is None:
            return None
        kept = Seating(
            number, seating.start, seating.end, seating.reserved, seating.whole, seats=dict(seating.seats)
        )
        self.cluster.seats.release(number)
        return kept

    def _put_back(self, task: str, seating: Seating | None) -> None:
        if seating is None:
            return
        self.reservations[task] = seating.job
        self._names[seating.job] = task
        self.cluster.seats.hold(
            seating.job,
            seating.seats.values(),
            start=seating.start,
            end=seating.end,
            reserved=True,
            whole=seating.whole,
        )

    def _give_up(self, task: str) -> _Task:
        held = self.tasks.pop(task)
        self._names.pop(held.number, None)
        # The cluster gives a job back by itself when its last pod has ended.
        if held.number in self.cluster.seats.jobs:
            self.cluster.release(held.number)
        return held

    def _totals(self, now: int, ends: Mapping[str, int]) -> Totals:
        """What is free now, summed over the nodes, and what tasks give back when they end."""
        seats = self.cluster.seats
        capacity: dict[Hashable, int] = {
            kind: int(np.maximum(seats.free(kind), 0).sum()) for kind in seats.types
        }
        running = []
        for name, task in self.tasks.items():
            seating = seats.jobs.get(task.number)
            if seating is None or task.end <= now:
                continue
            held: dict[Hashable, int] = {}
            for seat in seating.seats.values():
                for kind, amount in seat.needs.items():
                    held[kind] = held.get(kind, 0) + amount
            for type_, amount in held.items():
                capacity[type_] = capacity.get(type_, 0) + amount
            running.append((ends.get(name, task.end), held))
        return Totals(now, capacity, running)

    def _amounts(self, request: PodSetRequest) -> Amounts:
        shape = self.shape(request)
        found = self._asked.get(shape)
        if found is None:
            gang, found = self._gang(request), {}
            if isinstance(gang, Refused):
                return found  # not remembered: a claim may come
            for members in gang.members:
                for kind, amount in members.needs.items():
                    found[kind] = found.get(kind, 0) + amount * len(members.pods)
            self._asked[shape] = found
        return found

    def _most(self, gang: GangRequest, now: int, duration: int | None) -> int | None:
        """How many of its pods would find a seat now."""
        some = replace(gang, minimum=1)
        found = self.cluster.try_now(some, now=now, duration=duration)
        return len(found.seats) if isinstance(found, Seated) else None


def topology_of(gang: Group) -> TopologyDomain | None:
    """The label of which all nodes of a group must have one value, and the nodes that it has."""
    key = gang.group.topology_key if gang.group is not None else None
    if key is None:
        return None
    return TopologyDomain(key, frozenset(pod.spec.node_name for pod in gang.placed if pod.spec.node_name))


def _pods(request: Hashable) -> PodSetRequest:
    if not isinstance(request, PodSetRequest):
        raise TypeError(f"the pods of a gang are needed, not {type(request).__name__}")
    return request


def _duration(limit: int) -> int | None:
    return None if limit >= FOREVER else limit


def is_whole(policy: str | MatchPolicy) -> bool:
    """Whether a policy gives out whole nodes."""
    return (find_policy(policy) if isinstance(policy, str) else policy).node_exclusive
