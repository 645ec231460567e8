"""Victims: all running work that could be ended, and the fewest and least important that must end for a gang.

A victim is a single pod, the surplus of a gang above its minimum (pod by pod), or a whole gang. They are
ordered by priority, as kube-scheduler orders them, and then by the work that is lost with them. The search
has three parts:

1. The shortest beginning of that order with which the gang fits. So the most important victim is as
   unimportant as can be. What would be free at most is found by sums; then it is tried.
2. Only those victims stay that are on the nodes of the placement that was found.
3. Each of these is spared if the gang still fits with it, the most important first.

Where a quota is in the way too, the fewest that free it are chosen before, and count as gone in the search.
Budgets, and the guarantees of the victims' queues, are counted over the result. Where they are violated, it
is tried without those that violate them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fluence import names
from fluence.cluster.earmarks import Earmarks
from fluence.cluster.graph import ClusterGraph
from fluence.graph.graph import Ints, Rows
from fluence.model.grant import is_held_by_admission
from fluence.model.job_state import JobState
from fluence.model.owner import Job, Owner, claimed_by, controller_of
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.queues import NOTHING, Amounts, Resource
from fluence.placer.placer import GangPlacement
from fluence.placer.profile import FreeView
from fluence.queue import Queue
from fluence.queue.fair_share import dominant_share
from fluence.queue.job import Submission
from fluence.queue.quota import add_amounts
from fluence.queue.rules import by_urgency
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.preemption.rules import Budgets, Cost, Standing
from fluence.schedule.queueing.placeholder import held_operator
from fluence.units import parse_rfc3339

Gone = dict[int, frozenset[str]]  # pods, by the number of their job
_MAX_ROUNDS = 8  # of searches without those that violate a budget or a guarantee


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """Pods that end together."""

    group: str
    standing: Standing
    pods: tuple[Pod, ...]
    start: int  # ms: when the newest of them started
    whole: bool  # all of its group
    jobs: dict[int, frozenset[str]] = field(
        default_factory=dict
    )  # its pods (uids), by the number of their job
    share: float = 0.0  # of the cluster, by its dominant resource
    checkpoints: tuple[int, ...] = ()  # that its pods declare, in milliseconds

    @property
    def priority(self) -> int:
        return self.standing.priority

    def importance(self, now: int) -> tuple[int, float, bool, int, str]:
        """Less is ended first."""
        is_gang = self.whole and len(self.pods) > 1
        return self.priority, self.lost(now), is_gang, -self.start, self.group

    def lost(self, now: int) -> float:
        """The work that is lost with it, in cluster-seconds: since its start, or since the last checkpoint
        that it declares."""
        return self.share * self.unsaved(now) / 1000

    def unsaved(self, now: int) -> int:
        """How long it has run since then, in milliseconds."""
        saved = max((at for at in self.checkpoints if self.start <= at <= now), default=self.start)
        return max(0, now - saved)

    @property
    def nodes(self) -> set[str]:
        return {pod.spec.node_name for pod in self.pods if pod.spec.node_name}

    @property
    def grace(self) -> int:
        """How long its pods may take to end, in milliseconds."""
        given = (pod.spec.termination_grace_period_seconds for pod in self.pods)
        return 1000 * max((30 if seconds is None else max(0, seconds) for seconds in given), default=0)


def together(*some: dict[int, frozenset[str]] | Iterable[Victim]) -> dict[int, frozenset[str]]:
    """Pods by their jobs, of several victims."""
    found: dict[int, frozenset[str]] = {}
    for each in some:
        parts = (each,) if isinstance(each, dict) else (victim.jobs for victim in each)
        for part in parts:
            for number, uids in part.items():
                found[number] = found.get(number, frozenset()) | uids
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """Who is to end, and where the gang is to be then."""

    victims: tuple[Victim, ...]
    placement: GangPlacement


class VictimSearch:
    """One search. ``place`` says where the gang would be with some pods gone; ``nodes_in`` on which nodes it
    might be with what is free at most, its rules about other pods aside. ``has_quota``: whether quotas allow
    it with some pods gone, and ``for_quota`` whether a victim may end for that. ``violates`` names those of
    some victims that may not end beside the others. ``leaving``: the pods that end anyway; ``spent``: what
    those of them cost the budgets that are not seen to end yet."""

    def __init__(
        self,
        earmarks: Earmarks,
        budgets: Budgets,
        *,
        place: Callable[[Gone], GangPlacement | None],
        nodes_in: Callable[[FreeView], set[str] | None],
        has_quota: Callable[[Gone], bool],
        for_quota: Callable[[Victim], bool],
        violates: Callable[[Sequence[Standing]], list[int]],
        leaving: Gone,
        spent: Cost,
        now: int,
    ) -> None:
        self._earmarks = earmarks
        self._budgets = budgets
        self._place = place
        self._nodes_in = nodes_in
        self._has_quota = has_quota
        self._for_quota = for_quota
        self._violates = violates
        self._freed: dict[tuple[int, frozenset[str]], tuple[Rows, Ints]] = {}  # by job and pods
        self._leaving = self._ending = leaving
        self._spent = spent
        self._now = now
        self.is_held_by_budgets = False  # without budgets there would be victims
        self.is_held_by_quota = False  # no allowed victim would free the quota

    def find(self, candidates: Iterable[Victim], *, respect_budgets: bool = True) -> Found | None:
        """The victims, or None if no work that may be ended would help."""
        if self._ending and self._has_quota(self._ending):
            ending = self._place(self._ending)
            if ending is not None:
                return Found((), ending)
        order = sorted(candidates, key=self._importance)
        budgets = self._budgets if respect_budgets else Budgets()
        alone = [not budgets or not budgets.violated_by([victim.pods], self._spent) for victim in order]
        allowed = [victim for victim, may_end in zip(order, alone, strict=True) if may_end]
        self.is_held_by_budgets = len(allowed) < len(order)
        for _ in range(_MAX_ROUNDS):
            found = self._both(allowed)
            if found is None:
                return None
            pods = [victim.pods for victim in found.victims]
            violating = budgets.violated_by(pods, self._spent) if budgets else []
            self.is_held_by_budgets |= bool(violating)
            violating += self._violates([victim.standing for victim in found.victims])
            if not violating:
                return found
            out = {id(found.victims[index]) for index in violating}
            allowed = [victim for victim in allowed if id(victim) not in out]
        return None

    def _importance(self, victim: Victim) -> tuple[int, float, bool, int, str]:
        return victim.importance(self._now)

    def _both(self, order: Sequence[Victim]) -> Found | None:
        """Who is to end so that the gang has its quota, and its seats."""
        self._leaving = self._ending
        if self._has_quota(self._ending):
            return self._minimal(order)
        first = self._fewest_for_quota([victim for victim in order if self._for_quota(victim)])
        self.is_held_by_quota = first is None
        if first is None:
            return None
        self._leaving = together(self._ending, first)
        placement = self._place(self._leaving)
        if placement is not None:
            return Found(tuple(first), placement)
        groups = {victim.group for victim in first}
        more = self._minimal([victim for victim in order if victim.group not in groups])
        if more is None:
            return None
        gone, placement = [*first, *more.victims], more.placement
        for victim in reversed(first):  # the others may have enough of the quota
            others = [each for each in gone if each is not victim]
            left = together(self._ending, others)
            spared = self._place(left) if self._has_quota(left) else None
            if spared is not None:
                gone, placement = others, spared
        return Found(tuple(sorted(gone, key=self._importance)), placement)

    def _fewest_for_quota(self, order: Sequence[Victim]) -> list[Victim] | None:
        def fits(some: Sequence[Victim]) -> bool:
            return self._has_quota(together(self._ending, some))

        if not fits(order):
            return None
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if fits(order[:middle]):
                high = middle
            else:
                low = middle + 1
        gone = list(order[:low])
        for victim in reversed(order[:low]):
            others = [each for each in gone if each is not victim]
            if fits(others):
                gone = others
        return gone

    def _minimal(self, order: Sequence[Victim]) -> Found | None:
        """The order is from the least important on."""
        count = self._beginning(order)
        if count is None:
            return None
        found = None
        while found is None:  # rules and plans may ask for more than sums say
            found = self._near(list(order[:count]))
            if found is None and count == len(order):
                return None
            count = min(2 * count, len(order))
        gone, placement = found
        for victim in sorted(gone, key=self._importance, reverse=True):
            others = [each for each in gone if each is not victim]
            spared = self._try(others)
            if spared is not None:
                gone, placement = others, spared
        return Found(tuple(sorted(gone, key=self._importance)), placement)

    def _near(self, gone: list[Victim]) -> tuple[list[Victim], GangPlacement] | None:
        """Where the gang would be, and those of some victims that are there."""
        nodes = self._nodes_in(self._view(gone))
        some = gone if nodes is None else [each for each in gone if not nodes.isdisjoint(each.nodes)]
        placement = self._try(some) if len(some) < len(gone) else None
        if placement is not None:
            return some, placement
        placement = self._try(gone)  # devices, or a rule that counts pods elsewhere
        if placement is None:
            return None
        nodes = {seat.node for seat in placement.placements}
        some = [each for each in gone if not nodes.isdisjoint(each.nodes) or placement.grants]
        here = self._try(some) if len(some) < len(gone) else None
        return (gone, placement) if here is None else (some, here)

    def _try(self, gone: Sequence[Victim]) -> GangPlacement | None:
        if self._nodes_in(self._view(gone)) is None:
            return None  # by sums, which is quick
        return self._place(together(self._leaving, gone))

    def _view(self, gone: Sequence[Victim]) -> FreeView:
        """What would be free at most without some victims."""
        parts = [self._freed_by(number, uids) for number, uids in together(self._leaving, gone).items()]
        return self._with_more(*_columns(parts))

    def _beginning(self, order: Sequence[Victim]) -> int | None:
        """How many of the least important must go at least, by sums; None: all are too few."""
        gone = dict(self._leaving)
        parts = [_columns([self._freed_by(number, uids) for number, uids in gone.items()])]
        for victim in order:
            more: list[tuple[Rows, Ints]] = []
            for number, uids in victim.jobs.items():
                before = gone.get(number)
                gone[number] = uids if before is None else before | uids
                more.append(self._freed_by(number, gone[number]))
                if (
                    before is not None
                ):  # what a job holds for pods that ended comes free with the last of them
                    rows, amounts = self._freed_by(number, before)
                    more.append((rows, -amounts))
            parts.append(_columns(more))
        ends = np.cumsum([len(rows) for rows, _ in parts]).tolist()
        rows, amounts = _columns(parts)

        def fits(count: int) -> bool:
            end = ends[count]
            return self._nodes_in(self._with_more(rows[:end], amounts[:end])) is not None

        if not order or not fits(len(order)):
            return None
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _freed_by(self, number: int, uids: frozenset[str]) -> tuple[Rows, Ints]:
        known = self._freed.get((number, uids))
        if known is None:
            known = self._freed[number, uids] = self._earmarks.freed_by({number: uids})
        return known

    def _with_more(self, rows: Rows, amounts: Ints) -> FreeView:
        return self._earmarks.with_more(rows, amounts, now=self._now)


def _columns(parts: Sequence[tuple[Rows, Ints]]) -> tuple[Rows, Ints]:
    """Rows and amounts, one after the other."""
    if not parts:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    rows, amounts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, amounts


class RunningWork:
    """``on_nodes``: the pods that could be ended, by uid. What is found of a group is kept while it rests on
    the same things."""

    def __init__(
        self,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        queue: Queue,
        pod_sets: PodSets,
        on_nodes: Mapping[str, object],
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._queue = queue
        self._pod_sets = pod_sets
        self._on_nodes = on_nodes
        self._known: tuple[object, list[Victim]] | None = None
        self._of: dict[str, tuple[tuple[object, ...], list[Victim]]] = {}  # by group, and what they rest on

    def victims(self, state: object, *, ordered: Mapping[str, str], now: int) -> list[Victim]:
        """All that runs, as it could be ended. ``state``: changes with everything that is asked here.
        ``ordered``: the pods whose end is ordered, with their groups."""
        if self._known is None or self._known[0] != state:
            before, self._of, in_orders = self._of, {}, set(ordered.values())
            for group, pod_sets in self.by_group().items():
                gang = self._groups.gang(group)
                # A gang is another object whenever one of its pods has changed.
                parts = ((id(each), each.state) for each in pod_sets)
                rests = gang, self._queue.quotas, group in in_orders, *parts
                known = before.get(group)
                if known is None or known[0] != rests or group in in_orders:
                    some = () if gang is None else self._of_group(group, gang, pod_sets, ordered, now)
                    known = rests, list(some)
                self._of[group] = known
            self._known = state, [each for _, some in self._of.values() for each in some]
        return self._known[1]

    def by_group(self) -> dict[str, list[PodSet]]:
        """The pod sets that have nodes."""
        running: dict[str, list[PodSet]] = {}
        for pod_set in self._pod_sets.by_key.values():
            if pod_set.state.has_nodes:
                running.setdefault(pod_set.group, []).append(pod_set)
        return running

    def amounts_of(self, uids: Iterable[str]) -> list[tuple[str, Amounts]]:
        """What some pods count in quotas, by queue."""
        found: list[tuple[str, Amounts]] = []
        if self._queue.quotas is not None:
            some: dict[str, set[str]] = {}
            for uid in uids:
                pod_set = self._pod_sets.by_pod.get(uid)
                if pod_set is not None:
                    some.setdefault(pod_set.key, set()).add(uid)
            found += [
                (pod_set.job.queue, self._amounts(pod_set, gone))
                for key, gone in some.items()
                if (pod_set := self._pod_sets.by_key.get(key)) is not None
            ]
        return found

    def _of_group(
        self, group: str, gang: Gang, running: list[PodSet], ordered: Mapping[str, str], now: int
    ) -> Iterator[Victim]:
        if any(each.state is not JobState.RUNNING for each in running):
            return  # what has just got its seats is looked at when it has begun
        job_of = {uid: each for each in running for uid in each.alive}
        entries = self._cluster.pods.entries
        pods = [
            entries[uid].pod
            for pod in gang.placed
            if (uid := pod.metadata.uid) in job_of and uid in self._on_nodes and uid in entries
            if uid not in ordered
        ]
        if not pods:
            return
        job, capacities = running[0].job, self._queue.planner.capacities()
        since = min((job.submit, *(at for pod in pods if (at := _created(pod)) is not None)))
        standing = Standing(gang.eviction_priority, self._rank(job, gang, now), job.queue, since)

        def victim(some: Iterable[Pod], *, whole: bool) -> Victim:
            chosen = tuple(some)
            jobs: dict[PodSet, set[str]] = {}
            for pod in chosen:
                jobs.setdefault(job_of[pod.metadata.uid], set()).add(pod.metadata.uid)
            starts = [max((held.start for held in each.running.values()), default=0) for each in jobs]
            by_job = {each.number: frozenset(uids) for each, uids in jobs.items()}
            amounts: dict[Resource, int] = {}
            if self._queue.quotas is not None:
                for each, uids in jobs.items():
                    add_amounts(amounts, self._amounts(each, uids))
            needs: dict[str, int] = {}
            for pod in chosen:
                add_into(needs, entries[pod.metadata.uid].needs)
            return Victim(
                group,
                replace(standing, amounts=amounts),
                chosen,
                max(starts),
                whole,
                by_job,
                dominant_share(needs, capacities),
                tuple(_checkpoints(chosen)),
            )

        yield victim(pods, whole=True)
        if gang.group is not None and gang.group.disrupt_together:
            return
        surplus = len(pods) - gang.minimum
        for pod in reversed(pods[-surplus:]) if 0 < surplus < len(pods) else ():
            yield victim((pod,), whole=False)

    def _amounts(self, pod_set: PodSet, uids: set[str]) -> Amounts:
        """What some pods of a pod set count in quotas."""
        quotas = self._queue.quotas
        claim = None if quotas is None else quotas.claims.get(pod_set.key)
        if claim is None:
            return NOTHING
        if pod_set.alive <= uids:
            return claim.amounts
        total: dict[str, int] = {}
        entries = self._cluster.pods.entries
        for uid in uids:
            if uid in entries:
                add_into(total, pod_requests(entries[uid].pod))
        return {Resource(name): amount for name, amount in total.items()}

    def _rank(self, job: Submission, gang: Gang, now: int) -> int:
        """The rank with which a running gang would wait again, at most. What its user wrote on it (favour)
        may not be on the pods that a controller makes, and these are new."""
        rules = self._queue.rules
        again = replace(job, priority=gang.priority, favour=0)
        rank = rules.rank(again, now)
        if rules.priority is by_urgency:
            return rank
        return max(rank, rules.rank(replace(again, submit=now), now))


def _created(pod: Pod) -> int | None:
    """When a pod came. What a restart finds running says since when it runs, and not since when it waited."""
    at = pod.metadata.creation_timestamp
    return None if at is None else int(at.timestamp() * 1000)


def _checkpoints(pods: Iterable[Pod]) -> Iterator[int]:
    for pod in pods:
        at = parse_rfc3339(pod.annotations.get(names.CHECKPOINT, ""))
        if at is not None:
            yield at // 1000


def held_jobs(victim: Victim, groups: Groups) -> tuple[Owner, ...]:
    """The Jobs of a whole gang that admission held back, or the object of an operator that has no other gang:
    they are suspended again. None if one of its pods has another owner."""
    if not victim.whole:
        return ()
    owners: dict[str, Owner] = {}
    for pod in victim.pods:
        above = groups.owners(pod)[0]
        operator = held_operator(above)
        if operator is not None:
            is_made = tuple(claimed_by(pod.metadata, above)) == above
            if not is_made or len(groups.owned_by(operator.identity)) > 1:
                return ()
            owners[operator.identity] = operator
            continue
        owner = groups.owner(controller_of(pod.metadata))
        if not isinstance(owner, Job) or not is_held_by_admission(owner) or not owner.claims(pod.metadata):
            return ()
        owners[owner.identity] = owner
    return tuple(owners.values())
