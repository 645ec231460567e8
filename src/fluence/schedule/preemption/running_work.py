"""Running work: all that could be ended for others, as victims: whole gangs, and surplus pod by pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.model.grant import is_held_by_admission
from fluence.model.job_state import JobState
from fluence.model.owner import Job, Owner, claimed_by, controller_of
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.model.queues import NOTHING, Amounts, Resource
from fluence.queue import Queue
from fluence.queue.fair_share import dominant_share
from fluence.queue.job import Submission
from fluence.queue.quota import add_amounts
from fluence.queue.rules import by_urgency
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.preemption.rights import Standing
from fluence.schedule.preemption.victims import Victim
from fluence.schedule.queueing.placeholder import held_operator
from fluence.units import parse_rfc3339


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
