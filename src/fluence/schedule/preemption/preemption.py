"""Preemption: a gang that cannot start may end running work of lower priority, and its seats are held for it.

The rules are those of Kubernetes: a gang whose pods have a higher priority than running pods, and whose
`preemptionPolicy` is not `Never`. Added to them are time and gangs:

- Victims are whole gangs, or pods above a gang's minimum; PodDisruptionBudgets are kept unless a setting says
  otherwise (`victims`, `rules`).
- Capacity of pods that are ending is used before other pods are ended. No work is ended if the gang can start
  before the victims could be gone.
- The seats are earmarked at once (`fluence.cluster.earmarks`). Work of lower or equal priority cannot take
  them; work of higher priority can, and then the pods that are ending serve that.
- The decision is written on the preemptor's pods as `nominatedNodeName`. After a restart, the scheduler finds
  the pods that are ending and uses their capacity first, so it ends no work twice.

The step runs before the plan. `fluence.act.orders` carries out the orders. An order without an effect is
repeated after a pause that doubles.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from cachetools import LRUCache

from fluence import names
from fluence.cluster.graph import ClusterGraph, Refused
from fluence.cluster.planner import HORIZON, ClusterPlanner
from fluence.model.grant import is_ours
from fluence.model.job_state import JobState
from fluence.model.owner import Owner, controller_of
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queues import Within
from fluence.model.reason import Code, Reason
from fluence.placer.placer import GangPlacement
from fluence.queue import Queue
from fluence.queue.allocations import Allocation
from fluence.queue.fair_share import dominant_share
from fluence.queue.job import FOREVER, JobRecord
from fluence.queue.promises import LATE
from fluence.queue.rules import by_urgency
from fluence.queue.scheduling_pass import CycleBudget
from fluence.schedule.events import Changed, Event, Nominate, NotBound, PlanEnd, Preempt
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.pod_set import Changes, PodSet, PodSets
from fluence.schedule.preemption.drain import Drain, Remainder
from fluence.schedule.preemption.owed import Owed, Taking, is_owed, late
from fluence.schedule.preemption.rules import (
    PAUSES,
    BudgetMode,
    Budgets,
    Cost,
    EndedCounts,
    PreemptionRules,
    Rights,
    Standing,
)
from fluence.schedule.preemption.victims import (
    Found,
    Gone,
    RunningWork,
    Victim,
    VictimSearch,
    held_jobs,
    together,
)
from fluence.schedule.queueing.placeholder import is_placeholder_uid
from fluence.schedule.restart import Takeover
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Step, working_on
from fluence.units import parse_rfc3339

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions

DISRUPTION_TARGET = "DisruptionTarget"
BY_SCHEDULER = "PreemptionByScheduler"

_RENOMINATE = 5_000  # between orders for one nomination
_READY = 1_000  # how long seats that are free are held for a gang that the plan does not start
_PATIENCE = 120_000  # how long after its time a pod that is ending is counted on
_LEAST = 1_000  # how long work is planned to end that has no grace period
_EXTENSION = 10_000  # how much longer one is planned with that outlasts its time
_MAX_STARTS = 3  # at which running work ends, that are compared where a gang has patience
_ASKED = 1_000  # how long the plan counts as asked about a gang, though more has happened since
_MAX_DOUBLINGS = 6  # of the least run time of work that was ended before
_MAX_WAITING = 1_000  # gangs that are looked at in one cycle
_MAX_SHAPES = 10_000  # whose refusal is remembered

_State = tuple[object, ...]  # of all that could make room


@dataclass(slots=True, eq=False)
class _Earmark:
    """Seats that are held for a gang, and those who are to end for it."""

    pod_set: PodSet
    priority: int  # of its gang
    seats: dict[str, str]  # pod to node
    reason: Reason
    orders: list[Preempt] = field(default_factory=list)  # whose pods are not seen to end
    pause: int = PAUSES.first
    again: int = 0  # when to give the orders again
    checked: _State | None = None  # when it was last seen that the gang fits in the end
    start: int = 0  # when those that end are gone
    awaited: frozenset[str] = frozenset()  # pods that end by themselves by then
    ready: int | None = None  # since when it fits without ending more pods
    given: set[str] = field(default_factory=set)  # groups whose end was ordered,
    sent: set[str] = field(default_factory=set)  # and those for whom that was in an earlier cycle
    rules: object = None  # what its queue said of preemption then

    @property
    def nodes(self) -> set[str]:
        return set(self.seats.values())


class Preemption(Step):
    """``budget``: for the searches of one cycle; each cycle makes one at least."""

    def __init__(
        self,
        rules: PreemptionRules,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        pod_sets: PodSets,
        takeover: Takeover,
        lifecycle: Lifecycle,
        reports: StatusReports,
        changes: Changes,
        budget: CycleBudget,
        ended: EndedCounts,
    ) -> None:
        self._rules = rules
        self._groups = groups
        self._cluster = cluster
        self._planner = planner
        self._queue = queue
        self._pod_sets = pod_sets
        self._takeover = takeover
        self._lifecycle = lifecycle
        self._reports = reports
        self._changes = changes
        self._budget = budget
        self._budgets = Budgets()
        self._earmarks: dict[str, _Earmark] = {}  # by the preemptor's key
        self._priority_of: dict[str, int] = {}  # of pods on nodes that could be victims
        self._running: Counter[int] = Counter()  # the same pods, by priority
        self._ending: dict[str, int] = {}  # pods on nodes that are being deleted: when they should be gone
        self._preempted: dict[str, int] = {}  # those of them that end for others: their priorities
        self._nominated: dict[str, Pod] = {}  # pods that wait and that we have nominated, as they were seen
        self._renominate: dict[str, tuple[str | None, int]] = {}  # what was ordered, and when to do it again
        self._announced: dict[str, Pod] = {}  # pods that run and say when they are to end, as they were seen
        self._announce_again: dict[
            str, tuple[int | None, int]
        ] = {}  # what was ordered, and when to do it again
        self._seen = 0  # changes of these
        self._looked: _State | None = None  # the state in which all that wait were looked at
        self._refused: LRUCache[tuple[int, Standing], tuple[_State, Reason, int | None]] = LRUCache(
            _MAX_SHAPES
        )
        self._work = RunningWork(
            groups=groups, cluster=cluster, queue=queue, pod_sets=pod_sets, on_nodes=self._priority_of
        )
        self._drain = Drain(self._work, self._budgets, groups=groups, queue=queue)
        self._remainder = Remainder(groups, pod_sets, self._priority_of)
        self._known_rights: tuple[_State, Rights] | None = None
        # Gangs that the plan did not start though their seats were free: when they may preempt again, and the
        # pause after that.
        self._passed_over: LRUCache[str, tuple[int, int]] = LRUCache(_MAX_WAITING)
        self._ended = ended
        self._due: int | None = None  # when a refusal ends by itself
        self._asked: LRUCache[str, int] = LRUCache(_MAX_WAITING)  # when the plan was asked about a gang first
        self.has_more = False  # gangs were left for the next cycle
        self._is_checked = False  # an earmark was looked at in this cycle

    # -- what happens ----------------------------------------------------------------------------------------

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item, gone = event.object, event.new is None
        if isinstance(item, Pod):
            self._pod(item, gone=gone)
        elif isinstance(item, PodDisruptionBudget):
            self._budgets.set(item, gone=gone)
            self._seen += 1
        elif gone and isinstance(item, Owner):
            self._ended.forget(item.identity)

    def _pod(self, pod: Pod, *, gone: bool) -> None:
        uid = pod.metadata.uid
        if not is_ours(pod, self._groups.scheduler):
            return
        on_node = pod.spec.node_name is not None and not gone and not pod.is_terminal
        deleted = pod.metadata.deletion_timestamp
        priority = (pod.spec.priority or 0) if on_node and deleted is None else None
        before = self._priority_of.pop(uid, None)
        if priority is not None:
            self._priority_of[uid] = priority
        if before != priority:
            self._count(before, -1)
            self._count(priority, 1)
            self._seen += 1
        if on_node and deleted is not None:
            if uid not in self._ending:
                self._seen += 1
                if _is_preempted(pod) and (owner := controller_of(pod.metadata)):
                    pod_set = self._pod_sets.by_pod.get(uid)
                    self._ended.note(owner, "" if pod_set is None else pod_set.job.queue)
            self._ending[uid] = int(deleted.timestamp() * 1000)
            if _is_preempted(pod):
                self._preempted[uid] = pod.spec.priority or 0
        elif self._ending.pop(uid, None) is not None:
            self._preempted.pop(uid, None)
            self._seen += 1
        self._remainder.note(uid, is_marked=priority is not None and _is_preempted(pod))
        if priority is not None and names.ENDS_AT in pod.annotations:
            self._announced[uid] = pod
        else:
            self._announced.pop(uid, None)
        waits = not pod.spec.node_name and not gone and not pod.is_terminal
        if waits and pod.status.nominated_node_name and (uid in self._renominate or _is_nominated(pod)):
            self._nominated[uid] = pod
        else:
            self._nominated.pop(uid, None)
        if not on_node and _is_preempted(pod):
            self._free_seat(uid)
        if gone or pod.is_terminal:
            self._lose_preemptor(uid)

    def _count(self, priority: int | None, change: int) -> None:
        if priority is not None:
            self._running[priority] += change
            if not self._running[priority]:
                del self._running[priority]

    def _lose_preemptor(self, uid: str) -> None:
        """Hold nothing for a pod that is gone, and search again for the rest of its gang."""
        for earmark in [each for each in self._earmarks.values() if uid in each.seats]:
            self._release(earmark)

    def _free_seat(self, uid: str) -> None:
        """The seat of a pod that was preempted is free at once, though others of its gang are still ending;
        it is not for a new pod of that gang."""
        pod_set = self._pod_sets.by_pod.get(uid)
        if pod_set is not None and uid in pod_set.finished and pod_set.alive:
            self._lifecycle.free_seats(pod_set, (uid,))

    # -- the cycle -------------------------------------------------------------------------------------------

    def run(self, now: int, decisions: Decisions) -> None:
        if not self._rules.enabled or self._takeover.holds_back:
            return
        self._budget.begin()
        self._is_checked = False
        if self._ending:
            self._plan_late_ends(now)
        if self._earmarks or self._changes.queue_changed or self._changes.plan_is_due(now):
            self._queue.advance(now)
        for earmark in list(self._earmarks.values()):
            if self._earmarks.get(earmark.pod_set.key) is not earmark:
                continue  # another one has taken its quota
            earmark.sent |= earmark.given
            with working_on(earmark.pod_set.group):
                self._keep(earmark, now, decisions)
        decisions.preemptions += self._drain.orders(
            (self._state(), frozenset()), now, ordered=self._ordered(), spent=self._spent()
        )
        self._end_remainders(now, decisions)
        self._look(now, decisions)
        self._withdraw(decisions)
        self._nominate(now, decisions)
        self._announce(now, decisions)

    def _end_remainders(self, now: int, decisions: Decisions) -> None:
        before = self._remainder.ordered
        decisions.preemptions += self._remainder.orders(now, {**self._ordered(), **self._drain.ordered})
        if self._remainder.ordered != before:
            self._seen += 1

    def _withdraw(self, decisions: Decisions) -> None:
        """Orders of this cycle are not given if work that came later in it has taken the seats."""
        if decisions.preemptions:
            stand = {id(order) for each in self._earmarks.values() for order in each.orders}
            decisions.preemptions = [
                order for order in decisions.preemptions if order.preemptor is None or id(order) in stand
            ]

    def next_due(self) -> int | None:
        times = [earmark.again for earmark in self._earmarks.values() if earmark.orders]
        times += [earmark.ready + _READY for earmark in self._earmarks.values() if earmark.ready is not None]
        wanted = self._wanted_nodes() if self._renominate else {}
        times += [
            at for uid, (_, at) in self._renominate.items() if self._nominated_for(uid) != wanted.get(uid)
        ]
        times += [each.start + _EXTENSION for each in self._earmarks.values() if each.awaited]
        others = self._due, self._drain.next_due(), self._remainder.next_due()
        times += [at for at in others if at is not None]
        if self._earmarks:
            times += self._ending_allocations()
        return min(times, default=None)

    def reasons(self, pod_set: PodSet) -> tuple[Reason, ...]:
        """What is being done for a gang that waits."""
        earmark = self._earmarks.get(pod_set.key)
        return () if earmark is None else (earmark.reason,)

    def orders(self, pod_set: PodSet) -> tuple[Preempt, ...]:
        """Who is to end for a gang that waits, and is not seen to end."""
        earmark = self._earmarks.get(pod_set.key)
        return () if earmark is None else tuple(earmark.orders)

    def verdict(self, pod_set: PodSet) -> tuple[Reason, ...]:
        """What is done for a gang that waits, or why nothing is."""
        gang = self._groups.gang(pod_set.group)
        if pod_set.key in self._earmarks or gang is None or pod_set.state is JobState.UNSCHEDULABLE:
            return self.reasons(pod_set)
        floor, standing = self._floor(), self._standing(pod_set, gang.eviction_priority)
        if floor is None or not self._may_look(standing, floor):
            return ()
        if (ruled_out := self._ruled_out(pod_set, gang)) is not None:
            return (ruled_out,)
        refusal = self._refused.get(self._alike(pod_set, standing))
        return () if refusal is None else (refusal[1],)

    # -- who is looked at ------------------------------------------------------------------------------------

    def _state(self) -> _State:
        planner = self._planner
        return planner.freed, planner.opened, planner.lost, self._seen, self._queue.quotas

    def _rights(self) -> Rights:
        """Who may end whom, as queues use what they use now and without what is ending."""
        state = self._state()
        if self._known_rights is None or self._known_rights[0] != state:
            gone = self._work.amounts_of({*self._ending, *self._ordered(), *self._ending_anyway()})
            self._known_rights = state, Rights(self._queue.quotas, gone)
        return self._known_rights[1]

    def _standing(self, pod_set: PodSet, priority: int) -> Standing:
        """Of a gang that waits."""
        rank, job, quotas = -pod_set.order[0], pod_set.job, self._queue.quotas
        if quotas is None or pod_set.key not in quotas.claims:
            return Standing(priority, rank)
        return Standing(priority, rank, job.queue, job.submit, quotas.claims[pod_set.key].amounts)

    def _alike(self, pod_set: PodSet, standing: Standing) -> tuple[int, Standing]:
        """What gangs have in common for which the same victims are found."""
        if self._rights().rules(standing.queue).within is not Within.LOWER_OR_NEWER:
            standing = dataclasses.replace(standing, since=0)
        return pod_set.shape, standing

    def _may_look(self, standing: Standing, floor: int) -> bool:
        """Whether there may be work that a gang may end."""
        return standing.priority > floor or self._rights().may_look_below(standing.queue)

    def _weaker(self, standing: Standing, job: str) -> list[_Earmark]:
        """The earmarks that a gang may take."""
        rights = self._rights()
        return [
            each
            for each in self._earmarks.values()
            if each.pod_set.key != job
            and rights.may_end(standing, self._standing(each.pod_set, each.priority), job=job)
        ]

    def _floor(self) -> int | None:
        """The lowest priority that runs, that ends for others, or for which something is earmarked."""
        marked = (earmark.priority for earmark in self._earmarks.values())
        return min((*self._running, *marked, *self._preempted.values()), default=None)

    def _look(self, now: int, decisions: Decisions) -> None:
        """Find those that wait and may preempt, in the queue's order."""
        floor, state = self._floor(), self._state()
        self.has_more = False
        if self._due is not None and self._due <= now:
            self._due = self._looked = None
        if floor is None or (self._looked == state and not self._changes.queue_changed):
            return
        lowest, searches = self._lowest_rank(floor), 0
        for record in self._in_turn():
            if lowest is not None and -record.order[0] <= lowest:
                break
            gang = self._candidate(record, floor)
            if gang is None:
                continue
            again = self._passed_over.get(record.key, (now, 0))[0]
            if now < again:
                self._due = again if self._due is None else min(self._due, again)
                continue
            assert isinstance(record, PodSet)
            shape = self._alike(record, self._standing(record, gang.eviction_priority))
            refusal = self._refused.get(shape)
            if (
                refusal is not None
                and refusal[0] == self._state()
                and (refusal[2] is None or now < refusal[2])
            ):
                continue
            if searches and self._budget.is_spent:
                self._due = now  # the rest have their turn in the next cycle
                self.has_more = True
                return
            searches += 1
            with working_on(record.group):
                refused = self._search(record, gang, now, decisions)
            if refused is not None:
                self._refused[shape] = (self._state(), *refused)
                if refused[1] is not None:
                    self._due = refused[1] if self._due is None else min(self._due, refused[1])
        self._looked = None if self.has_more else self._state()

    def _is_news(self, record: JobRecord, now: int) -> bool:
        """Whether the plan has not been asked since a gang came or room came free: it can move those behind
        it to other nodes, and keep what it promised them. Where something happens all the time, it is asked
        once."""
        if now < self._asked.get(record.key, now - _ASKED) + _ASKED:
            return False
        return self._changes.queue_changed or self._changes.plan_is_due(now)

    def _lowest_rank(self, floor: int) -> int | None:
        """The lowest rank that running work could wait with, given its lowest priority; None: a priority of
        the site decides that, or queues give rights to work of any rank."""
        rules, quotas = self._queue.rules, self._queue.quotas
        if rules.priority is not by_urgency or (quotas is not None and quotas.tree.sets_preemption):
            return None
        return floor + min((0, *(each.priority for each in rules.rules.values())))

    def _in_turn(self) -> Sequence[JobRecord]:
        """Those that wait and would start if there were room, in the queue's order. In a strict order that
        is the first alone: no job passes it."""
        queue = self._queue
        if not self._is_strict:
            return queue.pending.records[:_MAX_WAITING]
        quotas = queue.quotas
        waiting = (each for each in queue.pending if quotas is None or not quotas.is_stopped(each.key))
        return tuple(islice(waiting, 1))

    def _staying(self, gang: Gang) -> int:
        """How many pods of a gang run that are not to end."""
        ordered = self._ordered()
        running = (pod.metadata.uid for pod in gang.placed if pod.metadata.uid in self._priority_of)
        return sum(uid not in self._ending and uid not in ordered for uid in running)

    @property
    def _is_strict(self) -> bool:
        """Whether no job starts before the first of the queue."""
        return self._queue.policy.promise == "order"

    def _candidate(self, record: JobRecord, floor: int) -> Gang | None:
        """The gang of a record, if it may preempt."""
        if not isinstance(record, PodSet) or not record.waiting or record.key in self._earmarks:
            return None
        gang = self._groups.gang(record.group)
        if gang is None or self._ruled_out(record, gang) is not None:
            return None
        if not self._may_look(self._standing(record, gang.eviction_priority), floor):
            return None
        quotas = self._queue.quotas
        is_stopped = quotas is not None and record.key in quotas.claims and quotas.is_stopped(record.key)
        if is_stopped or self._queue.limit_of(record) is not None:
            return None  # the end of others would not let it start
        if record.job.is_part and not self._staying(gang):
            return None  # it starts beside the rest of its gang, or with it
        rules = self._rights().rules(record.job.queue)
        if rules.within is None and rules.reclaim is None:
            weaker = self._weaker(self._standing(record, gang.eviction_priority), record.key)
            but = (*(each.pod_set for each in weaker), *self._untold_behind(record))
            return gang if self._has_quota(record, but) else None
        return gang

    def _has_quota(
        self, pod_set: PodSet, but: Sequence[JobRecord], gone: dict[int, frozenset[str]] | None = None
    ) -> bool:
        """Whether quotas allow a gang now, without what is held or planned for some others, and without some
        pods."""
        if self._queue.quotas is None:
            return True
        return self._queue.quota_reason(pod_set, but=but, gone=list(self._ended_by(gone or {}))) is None

    def _ended_by(self, gone: dict[int, frozenset[str]]) -> Iterator[Allocation]:
        """The allocations that are empty without some pods."""
        for number, uids in gone.items():
            pod_set = self._pod_sets.by_number.get(number)
            if pod_set is not None and pod_set.alive <= uids:
                yield from pod_set.running.values()

    def _ruled_out(self, pod_set: PodSet, gang: Gang) -> Reason | None:
        if not self._rules.allow(gang.queue):
            return Reason.of(Code.PREEMPTION_IS_OFF, queue=gang.queue if self._rules.enabled else "")
        policy = gang.group.preemption_policy if gang.group is not None else None
        policies = {policy or pod.spec.preemption_policy for pod in pod_set.pods}
        return Reason.of(Code.PREEMPTION_NEVER) if "Never" in policies else None

    # -- deciding --------------------------------------------------------------------------------------------

    def _search(
        self, pod_set: PodSet, gang: Gang, now: int, decisions: Decisions, kept: frozenset[str] = frozenset()
    ) -> tuple[Reason, int | None] | None:
        """Have a gang start by the end of others; else why not, and until when that holds. ``kept``: the keys
        of gangs whose earmarks it may not take."""
        cluster, request = self._cluster, pod_set.request
        compiled = self._planner.gang(request)
        if isinstance(compiled, Refused):
            return compiled.reason, None
        duration = None if pod_set.limit >= FOREVER else pod_set.limit
        standing = self._standing(pod_set, gang.eviction_priority)
        weaker = [each for each in self._weaker(standing, pod_set.key) if each.pod_set.key not in kept]
        behind = self._untold_behind(pod_set)
        but = (*(each.pod_set for each in weaker), *behind)
        marks = self._planner.earmarks
        cluster.advance(now)

        def place(gone: dict[int, frozenset[str]]) -> GangPlacement | None:
            with marks.supposing(gone):
                found = cluster.try_now(compiled, now=now, duration=duration)
            return found if isinstance(found, GangPlacement) else None

        reserved = [each.reservation.number for each in (pod_set, *behind) if each.reservation is not None]
        patience = self._rights().rules(standing.queue).patience
        start, awaited = now, frozenset[str]()
        with marks.supposing({}, without=reserved, lifted=[each.pod_set.number for each in weaker]):
            free = place({}) if self._has_quota(pod_set, but) else None
            if free is None:
                unsent = self._unsent(weaker)
                candidates, later = self._candidates(pod_set.group, standing, now, unsent)

                def search(leaving: Gone, at: int) -> tuple[Found | None, VictimSearch]:
                    made = VictimSearch(
                        marks,
                        self._budgets,
                        place=place,
                        nodes_in=lambda view: cluster.fit.nodes_for(compiled.without_rules(), view, now),
                        has_quota=lambda gone: self._has_quota(pod_set, but, gone),
                        for_quota=lambda victim: self._rights().may_end_for_quota(standing, victim.standing),
                        violates=lambda some: self._rights().violated_by(standing, some),
                        leaving=leaving,
                        spent=spent,
                        now=at,
                    )
                    found = made.find(candidates)
                    if found is None and self._rules.budgets is BudgetMode.SOFT:
                        found = made.find(candidates, respect_budgets=False)
                    return found, made

                leaving, spent = self._leaving(now, unsent=unsent), self._spent(unsent=unsent)
                found, made = search(leaving, now)
                if found is None:
                    return self._no_victims(made, standing), later
                start = self._gone_at(found, now)
                if found.victims and self._is_news(pod_set, now):
                    with marks.supposing({}, without=self._told_behind(pod_set)):
                        moved = cluster.try_now(compiled, now=now, duration=duration)
                    if isinstance(moved, GangPlacement):
                        self._asked[pod_set.key] = now
                        self.has_more = True
                        return None
                if found.victims:
                    latest = now + max(patience or 0, *(victim.grace for victim in found.victims))
                    anyway = cluster.earliest(compiled, now=now, duration=duration, latest=latest)
                    at = self._with_quota(pod_set, anyway.at) if isinstance(anyway, GangPlacement) else None
                    # NB victims that were to end for weaker work are planned with that end, and would not.
                    if at is not None and at <= latest and unsent.isdisjoint(_uids(found.victims)):
                        return self._not_needed(at, start, found), at + 1000
                    for end in self._ends_until(start, now + patience) if patience is not None else ():
                        ending = frozenset(self._over_by(end))
                        other, _ = search(together(leaving, self._by_job(ending)), now)
                        if other is None or not other.victims:
                            continue
                        share = dominant_share(self._planner.amounts(request), self._planner.capacities())
                        if _price(other, end, now, share) < _price(found, start, now, share):
                            found, start, awaited = other, end, ending
        placement = free if free is not None else found.placement if found is not None else None
        assert placement is not None
        victims = () if free is not None or found is None else found.victims
        if wrong := self._wrongly_taken(pod_set, standing, placement, victims, weaker, now):
            return self._search(pod_set, gang, now, decisions, kept | wrong)
        if broken := self._broken_by(pod_set, placement, victims, weaker, reserved, start, now):
            refused = self._search(pod_set, gang, now, decisions, kept | {each.key for each in broken})
            passes = min(each.no_later_than or now for each in broken) + LATE + 1
            return refused and (refused[0], passes if refused[1] is None else min(passes, refused[1]))
        given = [(each, order) for each in weaker for order in each.orders if order.group in each.sent]
        self._yield_to(placement, weaker)
        gone = together(self._leaving(now, unsent=self._unsent(weaker)), victims)
        self._take_quota(pod_set, weaker, behind, gone, now)
        if free is not None:
            return None  # the plan starts it now
        assert found is not None
        plan = _Plan(found, start, awaited, weaker, is_late=patience is not None)
        given = [(each, order) for each, order in given if self._earmarks.get(each.pod_set.key) is not each]
        if given:
            plan = self._with_orders(plan, [order for _, order in given], pod_set, gang, behind, now)
        self._begin(pod_set, gang, plan, behind, now, decisions)
        for earmark in weaker:
            if self._earmarks.get(earmark.pod_set.key) is earmark and self._exceeds_budgets(earmark):
                self._release(earmark)  # what it was to end is not ended yet, and may not be any more
        return None

    def _wrongly_taken(
        self,
        pod_set: PodSet,
        standing: Standing,
        placement: GangPlacement,
        victims: Sequence[Victim],
        weaker: list[_Earmark],
        now: int,
    ) -> frozenset[str]:
        """The gangs whose earmarks a gang may take only while those are to end who then continue."""
        gone = together(self._leaving(now, unsent=self._unsent(weaker)), victims)
        nodes = {seat.node for seat in placement.placements}
        if not placement.grants and self._has_quota(pod_set, (), gone):
            weaker = [each for each in weaker if not nodes.isdisjoint(each.nodes)]
        unsent = self._unsent(weaker)
        if not unsent:
            return frozenset()
        keys = [each.pod_set.key for each in weaker]
        book = self._queue.quotas
        with nullcontext() if book is None else book.without(keys):
            uids = {*self._ending, *self._ordered(), *self._ending_anyway()} - unsent
            rights = Rights(book, self._work.amounts_of(uids))
        others = (self._standing(each.pod_set, each.priority) for each in weaker)
        if rights.violated_by(standing, [victim.standing for victim in victims]) or not all(
            rights.may_end(standing, other, job=pod_set.key) for other in others
        ):
            return frozenset(keys)
        return frozenset()

    def _broken_by(
        self,
        pod_set: PodSet,
        placement: GangPlacement,
        victims: Sequence[Victim],
        weaker: list[_Earmark],
        without: list[int],
        start: int,
        now: int,
    ) -> list[PodSet]:
        """The gangs whose promises would be broken if a gang took seats or quota that are held for them."""
        owed = [
            Owed(each.pod_set, max(each.pod_set.no_later_than or 0, each.start))
            for each in weaker
            if is_owed(each.pod_set, pod_set, now)
        ]
        if not owed:
            return []
        gone, ends = together(victims), dict[Allocation, int]()
        spared = (pod.metadata.uid for each in weaker for order in each.orders for pod in order.pods)
        for number in {*gone, *self._by_job(spared)}:
            other = self._pod_sets.by_number.get(number)
            for held in () if other is None else other.running.values():
                is_over = other is not None and other.alive <= gone.get(number, frozenset())
                until = start if is_over or other is None else held.start + other.limit
                ends[held] = min(HORIZON, max(until, now + _LEAST))
        taking = Taking(pod_set, placement, start, [each.pod_set for each in weaker], without, ends)
        keys = late(
            taking, owed, cluster=self._cluster, planner=self._planner, quotas=self._queue.quotas, now=now
        )
        return [each.pod_set for each in owed if each.pod_set.key in keys]

    def _with_orders(
        self,
        plan: _Plan,
        given: list[Preempt],
        pod_set: PodSet,
        gang: Gang,
        behind: list[JobRecord],
        now: int,
    ) -> _Plan:
        """With orders that were given for gangs that lose their earmarks, and had no effect yet: if a gang
        counts on them, and may end that work itself, they are repeated for it."""
        found, standing = plan.found, self._standing(pod_set, gang.eviction_priority)
        gone = together(self._leaving(now), found.victims)
        nodes = {seat.node for seat in found.placement.placements}
        has_quota = self._has_quota(pod_set, (*(each.pod_set for each in plan.weaker), *behind), gone)
        candidates, _ = self._candidates(pod_set.group, standing, now, frozenset())
        victims = {victim.group: victim for victim in candidates}
        orders = tuple(
            dataclasses.replace(
                order,
                preemptor=pod_set.pods[0],
                priority=gang.eviction_priority,
                nodes=tuple(sorted(nodes)),
                queue=self._reclaims(victims[order.group], pod_set, gang),
            )
            for order in given
            if order.group in victims
            and (not has_quota or any(pod.spec.node_name in nodes for pod in order.pods))
        )
        ends = (now + victims[order.group].grace for order in orders)
        return dataclasses.replace(plan, given=orders, start=max((plan.start, *ends)))

    def _not_needed(self, at: int, start: int, found: Found) -> Reason:
        """Why no work ends for a gang that starts without preemption, with its start in both cases."""
        if at <= start:
            return Reason.of(Code.PREEMPTION_NOT_NEEDED, at=at)
        told: dict[str, int] = {"earlier": start, "victims": len({each.group for each in found.victims})}
        limited = {pod_set.number: end for end, pod_set in self._limited()}
        ends = [limited.get(number) for victim in found.victims for number in victim.jobs]
        if all(end is not None for end in ends):
            told["end"] = max(end for end in ends if end is not None)
        return Reason.of(Code.PREEMPTION_NOT_NEEDED, at=at, **told)

    def _gone_at(self, found: Found, now: int) -> int:
        """When all that is on the nodes of a placement and ends, is gone."""
        nodes, entries = {seat.node for seat in found.placement.placements}, self._cluster.pods.entries
        ending = (at for uid, at in self._ending.items() if uid in entries and entries[uid].node in nodes)
        return max((now, *(now + victim.grace for victim in found.victims), *ending))

    def _ends_until(self, first: int, last: int) -> list[int]:
        """Some times at which running work ends by its limit."""
        ends = sorted({end for end, _ in self._limited() if first < end <= last})
        return ends[: _MAX_STARTS - 1] + ends[-1:] if len(ends) > _MAX_STARTS else ends

    def _over_by(self, end: int) -> Iterator[str]:
        """The pods that are over by a time, by their limits."""
        for at, pod_set in self._limited():
            if at <= end:
                yield from pod_set.alive

    def _limited(self) -> Iterator[tuple[int, PodSet]]:
        """The running work that has a limit, and did not pass it, with its end."""
        for held in self._planner.allocations.running.values():
            pod_set = self._pod_sets.by_key.get(held.task)
            if pod_set is not None and pod_set.bounded and not pod_set.overdue:
                yield held.end, pod_set

    def _candidates(
        self, group: str, standing: Standing, now: int, unsent: frozenset[str]
    ) -> tuple[list[Victim], int | None]:
        """Whom a gang may end now, and when others follow that have not run long enough yet. Its own members
        that run are not among them."""
        rights, anyway = self._rights(), self._ending_anyway()
        found, later = list[Victim](), list[int]()
        ordered = {uid: group for uid, group in self._ordered().items() if uid not in unsent}
        victims = self._work.victims((self._state(), unsent), ordered=ordered, now=now)
        for victim in victims:
            if victim.group == group:
                continue
            if self._is_strict and victim.standing.rank > standing.rank:
                continue  # it would wait ahead of the gang again, and keep it from starting
            if anyway and any(pod.metadata.uid in anyway for pod in victim.pods):
                continue
            if rights.may_end(standing, victim.standing):
                least = rights.rules(victim.standing.queue).min_runtime
                until = victim.start + (least << self._times_ended(victim, victims) if least else 0)
                if until <= now:
                    found.append(victim)
                else:
                    later.append(until)
        return found, min(later, default=None)

    def _times_ended(self, victim: Victim, running: list[Victim]) -> int:
        """How often work of the same controller was ended, on average over the pods that it runs."""
        owner = controller_of(victim.pods[0].metadata)
        ended = self._ended.of(owner) if owner else 0
        if not ended:
            return 0
        pods = sum(
            controller_of(pod.metadata) == owner for each in running if each.whole for pod in each.pods
        )
        return min(_MAX_DOUBLINGS, ended // max(1, pods))

    @staticmethod
    def _no_victims(search: VictimSearch, standing: Standing) -> Reason:
        if search.is_held_by_quota:
            return Reason.of(Code.QUOTA_NOT_FREED, queue=standing.queue)
        code = Code.VICTIMS_PROTECTED if search.is_held_by_budgets else Code.NO_VICTIMS
        return Reason.of(code, priority=standing.priority)

    def _with_quota(self, pod_set: PodSet, at: int) -> int | None:
        """When quotas allow a gang, from a time on."""
        quotas = self._queue.quotas
        if quotas is None or pod_set.key not in quotas.claims:
            return at
        return quotas.earliest(pod_set.key, at, pod_set.limit if pod_set.bounded else FOREVER)

    def _untold_behind(self, pod_set: PodSet) -> list[JobRecord]:
        """Those behind a gang that have a place in the plan and were promised no start."""
        return [
            each
            for each in self._queue.plan.reserved
            if each.order > pod_set.order and each.no_later_than is None and each.reservation is not None
        ]

    def _told_behind(self, pod_set: PodSet) -> list[int]:
        """The reservations of those behind a gang that were promised a start, by number."""
        return [
            each.reservation.number
            for each in self._queue.plan.reserved
            if each.order > pod_set.order and each.no_later_than is not None and each.reservation is not None
        ]

    def _leaving(
        self, now: int, *, but: _Earmark | None = None, unsent: frozenset[str] = frozenset()
    ) -> dict[int, frozenset[str]]:
        """The pods that are ending and may be counted on, by the number of their job. Those whose end was
        ordered and is not seen yet are among them, ``but`` those of one earmark and those ``unsent``."""
        ending = [uid for uid, at in self._ending.items() if now < at + _PATIENCE]
        ordered = (uid for uid in self._ordered(but) if uid not in unsent)
        return self._by_job((*ending, *ordered, *self._ending_anyway()))

    def _ending_anyway(self) -> set[str]:
        """The pods that were ordered to end for no preemptor, and still run."""
        return {*self._drain.ordered, *self._remainder.ordered}

    @staticmethod
    def _unsent(earmarks: Iterable[_Earmark]) -> frozenset[str]:
        """The pods whose end was decided for some earmarks and can still be taken back. Work that takes the
        seats cannot count on these: it must have the right to end them itself."""
        orders = (order for each in earmarks for order in each.orders if order.group not in each.sent)
        return frozenset(pod.metadata.uid for order in orders for pod in order.pods)

    def _ordered(self, but: _Earmark | None = None) -> dict[str, str]:
        """The pods whose end was ordered and is not seen yet, with their groups."""
        orders = [each for mark in self._earmarks.values() if mark is not but for each in mark.orders]
        return {pod.metadata.uid: order.group for order in orders for pod in order.pods}

    def _spent(self, but: _Earmark | None = None, unsent: frozenset[str] = frozenset()) -> Cost:
        """What budgets pay for pods whose end was ordered and is not seen yet, ``but`` those of one earmark
        and those ``unsent``."""
        if not self._budgets:
            return Counter()
        entries = self._cluster.pods.entries
        ordered = (uid for uid in (*self._ordered(but), *self._ending_anyway()) if uid not in unsent)
        return self._budgets.cost(entries[uid].pod for uid in ordered if uid in entries)

    def _exceeds_budgets(self, earmark: _Earmark) -> bool:
        """Whether budgets, as they are now, do not allow the orders of an earmark beside all others."""
        if not self._budgets or self._rules.budgets is BudgetMode.SOFT:
            return False
        return bool(self._budgets.violated_by([order.pods for order in earmark.orders], self._spent(earmark)))

    def _by_job(self, uids: Iterable[str]) -> dict[int, frozenset[str]]:
        found: dict[int, set[str]] = {}
        for uid in uids:
            pod_set = self._pod_sets.by_pod.get(uid)
            if pod_set is not None:
                found.setdefault(pod_set.number, set()).add(uid)
        return {number: frozenset(some) for number, some in found.items()}

    # -- earmarks --------------------------------------------------------------------------------------------

    def _begin(
        self,
        pod_set: PodSet,
        gang: Gang,
        plan: _Plan,
        behind: list[JobRecord],
        now: int,
        decisions: Decisions,
    ) -> None:
        """Hold the seats, and end the victims: at once, or as late as the start allows."""
        found, ends = plan.found, plan.start
        nodes = {seat.node for seat in found.placement.placements}
        self._queue.unplan(pod_set.key, now)
        for record in behind:
            if isinstance(record, PodSet) and not nodes.isdisjoint(self._planned_nodes(record)):
                record.deadline = None
                self._queue.unplan(record.key, now)
        until = HORIZON if pod_set.limit >= FOREVER else min(HORIZON, ends + pod_set.limit)
        self._planner.earmarks.hold(pod_set.request, found.placement, now=now, end=until)
        self._hold_quota(pod_set, now, until)
        seats = self._planner.earmarks.seats(pod_set.number)
        orders = _merged(
            dataclasses.replace(
                self._order(victim, pod_set, gang, nodes),
                at=max(now, ends - victim.grace) if plan.is_late else now,
                lost=victim.unsaved(now),
            )
            for victim in found.victims
        )
        whole = {victim.group for victim in found.victims if victim.whole}
        orders = [self._with_surplus(order, now) if order.group in whole else order for order in orders]
        count, on = len({pod.metadata.uid for order in orders for pod in order.pods}), tuple(sorted(nodes))
        told: dict[str, int] = {"at": ends} if any(order.at > now for order in orders) else {}
        if any(order.queue for order in orders):
            told["reclaims"] = True
        reason = (
            Reason.of(Code.PREEMPTING, pods=count, on=on, **told)
            if count
            else Reason.of(Code.WAITS_FOR_ENDING, on=on)
        )
        self._take_over({pod.metadata.uid for order in orders for pod in order.pods})
        earmark = _Earmark(
            pod_set, gang.eviction_priority, seats, reason, orders, start=ends, awaited=plan.awaited
        )
        earmark.rules = self._rights().rules(pod_set.job.queue)
        self._earmarks[pod_set.key] = earmark
        self._give(earmark, now, decisions)
        if plan.given:
            earmark.again = min(earmark.again, now + earmark.pause) if orders else now + earmark.pause
            earmark.orders = _merged([*orders, *plan.given])
            groups = {order.group for order in plan.given}
            earmark.given, earmark.sent = earmark.given | groups, earmark.sent | groups
        # NB work whose end is now would count as overdue until its pods are gone.
        given = self._by_job(pod.metadata.uid for order in plan.given for pod in order.pods)
        self._shorten(together(found.victims, given), max(ends, now + _LEAST))
        self._changes.queue_changed = True
        self._reports.want(pod_set.key)
        self._seen += 1

    def _with_surplus(self, order: Preempt, now: int) -> Preempt:
        """The end of a whole gang, with those of its pods that were to end for others, and are not ending
        before it: if those are spared, they must not be all that is left of the gang."""
        orders = [each for earmark in self._earmarks.values() for each in earmark.orders]
        others = [each for each in orders if each.group == order.group and order.at <= max(now, each.at)]
        pods = {pod.metadata.uid: pod for each in (order, *others) for pod in each.pods}
        return order.with_pods(tuple(pods.values())) if others else order

    def _take_over(self, uids: set[str]) -> None:
        """Pods that end for one gang are not ordered to end for another."""
        for other in self._earmarks.values():
            if any(pod.metadata.uid in uids for order in other.orders for pod in order.pods):
                parts = (
                    order.with_pods(tuple(pod for pod in order.pods if pod.metadata.uid not in uids))
                    for order in other.orders
                )
                other.orders = [order for order in parts if order.pods]

    def _hold_quota(self, pod_set: PodSet, now: int, until: int) -> None:
        quotas = self._queue.quotas
        if quotas is not None and pod_set.key in quotas.claims:
            quotas.hold(pod_set.key, now, until)

    def _take_quota(
        self,
        pod_set: PodSet,
        weaker: list[_Earmark],
        behind: list[JobRecord],
        gone: dict[int, frozenset[str]],
        now: int,
    ) -> None:
        """Give a gang the quota that is held for those whose seats it may take, or planned for those behind
        it, as far as it needs that without some pods."""
        if self._has_quota(pod_set, (), gone):
            return
        ended = list(self._ended_by(gone))

        def is_in_the_way(other: JobRecord) -> bool:
            waits = self._queue.quota_reason
            return waits(pod_set, gone=ended) != waits(pod_set, but=(other,), gone=ended)

        for record in reversed(behind):
            if record.reservation is not None and is_in_the_way(record):
                record.deadline = None
                self._queue.unplan(record.key, now)
        for earmark in sorted(weaker, key=lambda each: each.pod_set.order, reverse=True):
            if earmark.pod_set.key in self._earmarks and is_in_the_way(earmark.pod_set):
                self._release(earmark)

    def _order(self, victim: Victim, pod_set: PodSet, gang: Gang, nodes: set[str]) -> Preempt:
        owners = held_jobs(victim, self._groups)
        return Preempt(
            victim.group,
            victim.pods,
            owners,
            pod_set.pods[0],
            gang.eviction_priority,
            victim.priority,
            tuple(sorted(nodes)),
            self._reclaims(victim, pod_set, gang),
        )

    def _reclaims(self, victim: Victim, pod_set: PodSet, gang: Gang) -> str:
        """The queue whose guarantee gives a gang the right to end a victim, if not the order does."""
        mine = self._standing(pod_set, gang.eviction_priority)
        by_order = mine.queue == victim.standing.queue or mine.precedes(victim.standing)
        return "" if by_order else mine.queue

    def _planned_nodes(self, record: PodSet) -> set[str]:
        holding = self._cluster.fit.jobs.get(record.number)
        return set() if holding is None else {seat.node for seat in holding.placements.values()}

    def _give(self, earmark: _Earmark, now: int, decisions: Decisions) -> None:
        """Order the ends of those that are not seen to end, and whose time has come."""
        due = [order for order in earmark.orders if order.at <= now]
        times = [order.at for order in earmark.orders if order.at > now]
        if due:
            earmark.given.update(order.group for order in due)
            decisions.preemptions += due
            times.append(now + earmark.pause)
            earmark.pause = PAUSES.longer(earmark.pause)
        earmark.again = min(times, default=now)

    def _keep(self, earmark: _Earmark, now: int, decisions: Decisions) -> None:
        """An earmark stands as long as the gang waits for it and will fit; orders are given until they have
        an effect, or are not needed any more."""
        pod_set = earmark.pod_set
        waits = self._pod_sets.by_key.get(pod_set.key) is pod_set and not pod_set.state.has_nodes
        waits = waits and pod_set.state is not JobState.UNSCHEDULABLE
        if not waits or self._planner.earmarks.seats(pod_set.number) != earmark.seats:
            self._release(earmark)
            return
        start = max(now, earmark.start)
        until = HORIZON if pod_set.limit >= FOREVER else min(HORIZON, start + pod_set.limit)
        if not self._keep_quota(earmark, now, until):
            self._release(earmark)  # a limit was lowered, or its queue was stopped
            return
        earmark.orders = [left for order in earmark.orders if (left := self._left_of(order)) is not None]
        if earmark.orders and self._rights().rules(pod_set.job.queue) != earmark.rules:
            self._release(earmark)  # its queue says something else now
            return
        if earmark.awaited and earmark.start + _EXTENSION <= now:
            earmark.awaited, earmark.checked = frozenset(), None  # they did not end when they should
        state = self._state()
        is_new = earmark.checked != state and not (self._is_checked and self._budget.is_spent)
        is_due = is_new or earmark.again <= now
        if is_due and (self._exceeds_budgets(earmark) or any(map(self._cuts_gang, earmark.orders))):
            self._release(earmark)  # others may end for it
            return
        if is_new:
            earmark.checked, self._is_checked = state, True
            self._earmarks[pod_set.key] = self._earmarks.pop(pod_set.key)  # others first next time
            awaited = self._awaited(earmark)
            if earmark.orders and self._fits(
                pod_set, together(self._leaving(now, but=earmark), awaited), now
            ):
                self._spare(earmark)
            elif not self._fits(pod_set, together(self._leaving(now), awaited), now):
                self._release(earmark)  # the next search starts over
                return
            is_ready = not earmark.orders and self._fits_without(pod_set, {}, now)
            earmark.ready = None if not is_ready else now if earmark.ready is None else earmark.ready
        if earmark.ready is not None and earmark.ready + _READY <= now:
            # Others are ahead of it in the queue: they must not wait for seats that only it may have.
            # A policy that does not start it would not do so the next time either.
            self._release(earmark)
            pause = self._passed_over.get(pod_set.key, (0, PAUSES.first))[1]
            self._passed_over[pod_set.key] = now + pause, PAUSES.longer(pause)
            return
        if earmark.orders and earmark.again <= now:
            self._give(earmark, now, decisions)
        self._planner.earmarks.prolong(pod_set.number, until)

    def _awaited(self, earmark: _Earmark) -> Gone:
        """The pods that end by themselves before the start of an earmark, as long as that can be."""
        return self._by_job(earmark.awaited)

    def _keep_quota(self, earmark: _Earmark, now: int, until: int) -> bool:
        """Whether quotas will still allow the gang of an earmark, and hold its part."""
        quotas, pod_set = self._queue.quotas, earmark.pod_set
        if quotas is None:
            return True
        gone = together(self._leaving(now), self._awaited(earmark))
        if not self._has_quota(pod_set, (), gone):
            weaker = self._weaker(self._standing(pod_set, earmark.priority), pod_set.key)
            behind = self._untold_behind(pod_set)
            if not self._has_quota(pod_set, (*(each.pod_set for each in weaker), *behind), gone):
                return False
            self._take_quota(pod_set, weaker, behind, gone, now)
        if pod_set.key in quotas.holds:
            quotas.prolong(pod_set.key, until)
        else:  # other queues are in force
            self._hold_quota(pod_set, now, until)
        return True

    def _cuts_gang(self, order: Preempt) -> bool:
        """Whether an order would leave less of a gang than it needs: it has lost other pods since."""
        gang = self._groups.gang(order.group)
        return gang is not None and 0 < self._staying(gang) < gang.minimum

    def _left_of(self, order: Preempt) -> Preempt | None:
        """Those of an order that are not seen to end."""
        pods = tuple(pod for pod in order.pods if pod.metadata.uid in self._priority_of)
        if not pods:
            return None
        return order if len(pods) == len(order.pods) else order.with_pods(pods)

    def _fits(self, pod_set: PodSet, gone: dict[int, frozenset[str]], now: int) -> bool:
        """Whether a gang with an earmark fits with some pods gone. Those on its nodes are looked at first."""
        nodes = self._earmarks[pod_set.key].nodes
        entries = self._cluster.pods.entries
        near = {
            number: frozenset(uid for uid in uids if uid in entries and entries[uid].node in nodes)
            for number, uids in gone.items()
        }
        near = {number: uids for number, uids in near.items() if uids}
        return self._fits_without(pod_set, near, now) or (
            near != gone and self._fits_without(pod_set, gone, now)
        )

    def _fits_without(self, pod_set: PodSet, gone: dict[int, frozenset[str]], now: int) -> bool:
        compiled = self._planner.gang(pod_set.request)
        if isinstance(compiled, Refused):
            return False
        duration = None if pod_set.limit >= FOREVER else pod_set.limit
        mine = self._standing(pod_set, self._earmarks[pod_set.key].priority)
        weaker = [each.pod_set for each in self._weaker(mine, pod_set.key)]
        if not self._has_quota(pod_set, (*weaker, *self._untold_behind(pod_set)), gone):
            return False
        lifted = [pod_set.number, *(each.number for each in weaker)]
        with self._planner.earmarks.supposing(gone, lifted=lifted):
            return isinstance(self._cluster.try_now(compiled, now=now, duration=duration), GangPlacement)

    def _spare(self, earmark: _Earmark) -> None:
        """Those whose end was ordered and has not begun are not needed any more."""
        for order in filter(None, map(self._left_of, earmark.orders)):
            for uid in (pod.metadata.uid for pod in order.pods):
                pod_set = self._pod_sets.by_pod.get(uid)
                for held in pod_set.running.values() if pod_set is not None else ():
                    self._planner.extend(
                        held, held.start + (pod_set.limit if pod_set is not None else FOREVER)
                    )
        earmark.orders = []

    def _release(self, earmark: _Earmark) -> None:
        """Nothing is held for a gang any more; those that do not end yet are spared."""
        self._spare(earmark)
        self._planner.earmarks.release(earmark.pod_set.number)
        if self._queue.quotas is not None:
            self._queue.quotas.release(earmark.pod_set.key)
        del self._earmarks[earmark.pod_set.key]
        self._planner.opened += 1
        self._changes.queue_changed = True
        self._reports.want(earmark.pod_set.key)
        self._seen += 1

    def _yield_to(self, placement: GangPlacement, lower: list[_Earmark]) -> None:
        """Seats go to a gang of higher priority: those for whom they were held look for others."""
        nodes = {seat.node for seat in placement.placements}
        for earmark in lower:
            if not nodes.isdisjoint(earmark.nodes) or placement.grants:
                self._release(earmark)

    # -- ends ------------------------------------------------------------------------------------------------

    def _shorten(self, gone: dict[int, frozenset[str]], ends: int) -> None:
        """Plan with the ends of jobs all of whose pods are ended."""
        for number, uids in gone.items():
            pod_set = self._pod_sets.by_number.get(number)
            if pod_set is not None and pod_set.alive <= uids:
                for held in pod_set.running.values():
                    if ends < held.end:
                        self._planner.shorten(held, ends)

    def _ending_allocations(self) -> Iterator[int]:
        for uid in self._ending:
            pod_set = self._pod_sets.by_pod.get(uid)
            for held in pod_set.running.values() if pod_set is not None else ():
                if (
                    held.end < HORIZON
                    and pod_set is not None
                    and all(each in self._ending for each in pod_set.alive)
                ):
                    yield held.end

    def _plan_late_ends(self, now: int) -> None:
        """Move the planned end of work that takes longer to end than it should: it has not exceeded a time
        limit. After a while its end is unknown, and nothing is planned behind it."""
        for uid, at in self._ending.items():
            is_given_up = at + _PATIENCE <= now
            pod_set = self._pod_sets.by_pod.get(uid) if is_given_up or self._earmarks else None
            if pod_set is None or any(each not in self._ending for each in pod_set.alive):
                continue
            for held in pod_set.running.values():
                if is_given_up and held.end < HORIZON:
                    self._planner.extend(held, HORIZON)
                elif held.end <= now:
                    self._planner.shorten(held, now + _EXTENSION)

    # -- nominations -----------------------------------------------------------------------------------------

    def _wanted_nodes(self) -> dict[str, str]:
        return {uid: node for earmark in self._earmarks.values() for uid, node in earmark.seats.items()}

    def _nominated_for(self, uid: str) -> str | None:
        seen = self._nominated.get(uid)
        return None if seen is None else seen.status.nominated_node_name

    def _nominate(self, now: int, decisions: Decisions) -> None:
        """Have the pods of earmarks say their nodes, and others that we nominated say nothing."""
        if not (self._earmarks or self._nominated or self._renominate):
            return
        wanted = self._wanted_nodes()
        pods = {pod.metadata.uid: pod for each in self._earmarks.values() for pod in each.pod_set.pods}
        pods |= self._nominated
        for uid in [uid for uid in self._renominate if uid not in pods]:
            del self._renominate[uid]
        for uid, pod in pods.items():
            node = wanted.get(uid)
            if self._nominated_for(uid) == node or is_placeholder_uid(uid):
                continue
            ordered, again = self._renominate.get(uid, (None, now))
            if ordered != node or again <= now:
                self._renominate[uid] = node, now + _RENOMINATE
                decisions.nominations.append(Nominate(pod, node))

    def _announce(self, now: int, decisions: Decisions) -> None:
        """Have pods that are to end later say when, and others that say so say nothing."""
        if not (
            self._announced or self._announce_again or any(each.orders for each in self._earmarks.values())
        ):
            return
        orders = [order for each in self._earmarks.values() for order in each.orders]
        wanted = {pod.metadata.uid: order.at for order in orders for pod in order.pods if order.at > now}
        due = {pod.metadata.uid for order in orders for pod in order.pods if order.at <= now}
        pods = {pod.metadata.uid: pod for order in orders for pod in order.pods} | self._announced
        for uid in [uid for uid in self._announce_again if uid not in pods]:
            del self._announce_again[uid]
        for uid, pod in pods.items():
            at = wanted.get(uid)
            if uid in due or _announced_end(self._announced.get(uid)) == (None if at is None else at // 1000):
                continue
            ordered, again = self._announce_again.get(uid, (None, now))
            if ordered != at or again <= now:
                self._announce_again[uid] = at, now + _RENOMINATE
                decisions.planned_ends.append(PlanEnd(pod, at))


@dataclass(frozen=True, slots=True)
class _Plan:
    """Who is to end, when the gang starts then, and which pods end by themselves before that."""

    found: Found
    start: int
    awaited: frozenset[str]
    weaker: list[_Earmark]  # that the gang may take
    is_late: bool  # victims end as late as the start allows
    given: tuple[Preempt, ...] = ()  # orders that were given for those, and are repeated for the gang


def _price(found: Found, start: int, now: int, share: float) -> float:
    """What a start costs, in cluster-seconds: the work that is lost, and the wait of the gang."""
    return sum(victim.lost(max(now, start - victim.grace)) for victim in found.victims) + share * (
        (start - now) / 1000
    )


def _uids(victims: Iterable[Victim]) -> Iterator[str]:
    return (pod.metadata.uid for victim in victims for pod in victim.pods)


def _announced_end(pod: Pod | None) -> int | None:
    """When a pod says that it is to end, in seconds; -1: at no time that can be read."""
    if pod is None:
        return None
    at = parse_rfc3339(pod.annotations.get(names.ENDS_AT, ""))
    return -1 if at is None else at // 1_000_000


def _is_nominated(pod: Pod) -> bool:
    """Whether it was us who nominated a pod, by what we wrote in its status: others may nominate pods too."""
    condition = pod.condition(names.WAIT_REPORTED)
    codes = (Code.PREEMPTING.value, Code.WAITS_FOR_ENDING.value)
    return condition is not None and condition.reason in codes


def _is_preempted(pod: Pod) -> bool:
    condition = pod.condition(DISRUPTION_TARGET)
    return condition is not None and condition.status == "True" and condition.reason == BY_SCHEDULER


def _merged(orders: Iterable[Preempt]) -> list[Preempt]:
    """One order per group: a whole gang contains its surplus."""
    found: dict[str, Preempt] = {}
    for order in orders:
        before = found.get(order.group)
        if before is not None:
            pods = {pod.metadata.uid: pod for pod in (*before.pods, *order.pods)}
            owners = before.owners or order.owners
            at = min(before.at, order.at)
            order = dataclasses.replace(order, pods=tuple(pods.values()), owners=owners, at=at)
        found[order.group] = order
    return list(found.values())
