"""A cluster of several tenants, in which each decision is judged: order, quota, share, plan and preemption.

Its queues form a tree with limits, guarantees, weights and rules of preemption. Work comes, ends by its limit
or earlier, and is made again by controllers after it was ended. What the scheduler decides is carried out
write by write, so that a crash or a fault of the server can be put between any two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from msgspec.structs import replace

from fluence import names
from fluence.act.conditions import pod_condition
from fluence.cluster.graph import Refused
from fluence.model.grant import with_condition
from fluence.model.job_state import JobState
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.owner import Owner
from fluence.model.pod import Pod, pod_requests
from fluence.model.queue_documents import QueueObject
from fluence.model.queues import QueueTree, Reclaim, Resource, Within
from fluence.placer.placer import GangPlacement
from fluence.queue.fair_share import Account
from fluence.queue.job import FOREVER
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Object, Preempt
from fluence.schedule.pod_set import PodSet
from fluence.schedule.preemption.preemption import BY_SCHEDULER, DISRUPTION_TARGET
from fluence.schedule.preemption.victims import together
from fluence.schedule.scheduler import Scheduler, SchedulerConfig
from fluence.units import rfc3339
from tests.unit.schedule.preempting import PreemptionWorld

CPU = Resource("cpu")
SECOND = 1000
MAY_BREAK = {"RunsPastLimit", "Restarted", "Overtaken"}  # a promise
LOST_IN_A_CRASH = 75 * SECOND  # usage is written once a minute

Write = Callable[[], None]


class TenancyWorld(PreemptionWorld):
    """``cut``: how many writes of the next decisions arrive before the scheduler crashes; ``fails``: at which
    of them the server fails, after which the gang that it was for gets no other."""

    def __init__(self, nodes: int, cpu: int, **config: Any) -> None:
        super().__init__(nodes, cpu, **config)
        self.owners: list[Owner] = []
        self.minimum: dict[str, int] = {}  # by gang
        self.started: dict[str, int] = {}  # pods, by uid
        self.lasts: dict[str, int] = {}  # how long pods run, by uid
        self.changed = -1  # when queues, budgets or the process last did
        self.judged: set[tuple[str, str]] = set()  # the last orders: who is to end, and for which pod
        self.edited = False  # queues were changed: promises may fall
        self.happened = 0  # what came from outside
        self.killed: dict[str, str] = {}  # uids, with the uid of the preemptor
        # Lineages of victim and preemptor: what had happened, and whose guarantee was reclaimed.
        self.ended_for: dict[tuple[str, str], tuple[int, str]] = {}
        self.leaf_of: dict[str, str] = {}  # of pods that run, by uid
        self.preemptors: dict[str, str] = {}  # uids, with names, since the last look
        self.ended_pods: list[Pod] = []
        self.reduced: set[str] = set()  # gangs of which pods ended otherwise
        self.cut: int | None = None
        self.fails: int | None = None
        self.writes = 0
        self.crashes = 0
        self.faults_of_server = 0
        self._given_up: set[str] = set()  # gangs of which the server failed a write in this cycle
        self._watch()

    # -- what happens ----------------------------------------------------------------------------------------

    def restart(self) -> None:
        before = self.usage()
        self.scheduler = self._fresh()
        self._watch()
        self.changed, self.crashes = self.now, self.crashes + 1
        self.happened += 1
        self._usage_survives(before)

    def _fresh(self) -> Scheduler:
        """Another process, which knows the objects alone."""
        made = Scheduler(SchedulerConfig(**self.config_of_scheduler))
        items: list[Object] = [*self.nodes, *self.owners, *self.queues.values(), *self.budgets]
        made.handle([Changed(None, item) for item in (*items, *self.pods.values())], self.now, decide=False)
        return made

    def write_queue(self, name: str, spec: dict[str, Any] | None) -> None:
        """Write a Queue object, or delete it."""
        old = self.queues.pop(name, None)
        if spec is None:
            if old is not None:
                self.handle(Changed(old, None))
        else:
            meta, status = ObjectMeta(name=name, uid=f"queue-{name}"), old.status if old else None
            self.queues[name] = QueueObject(metadata=meta, spec=spec, status=status)
            self.handle(Changed(old, self.queues[name]))

    def over(self, name: str) -> None:
        """A pod has ended by itself, and is removed."""
        pod = self.pods[name]
        self.add(replace(pod, status=replace(pod.status, phase="Succeeded")))
        self.recreated.discard(name)
        self.remove(name)

    def remove(self, name: str) -> None:
        if self.pods[name].metadata.uid not in self.killed:
            self.reduced.add(self.gang_of(self.pods[name]))
        self.ends.pop(name, None)
        super().remove(name)

    def recreate(self, pod: Pod) -> None:
        super().recreate(pod)
        made = max(self.pods.values(), key=lambda each: (each.metadata.creation_timestamp, each.metadata.uid))
        if pod.metadata.uid in self.lasts:
            self.lasts[made.metadata.uid] = self.lasts[pod.metadata.uid]

    def end_due(self) -> None:
        for name in [name for name, at in self.ends.items() if at <= self.now]:
            if self.pods[name].metadata.deletion_timestamp is None:
                self.over(name)
            else:
                del self.ends[name]
        super().end_due()

    # -- carrying out ----------------------------------------------------------------------------------------

    def step(self) -> Decisions:
        before = dict(self.pods)
        decisions = self.cycle(self.now)
        self._judge(before, decisions)
        for gang, write in self._writes(decisions):
            if gang and gang in self._given_up:
                continue
            if self.cut is not None:
                self.cut -= 1
                if self.cut < 0:
                    self.cut = None
                    self.restart()
                    break
            if self.fails is not None and gang:
                self.fails -= 1
                if self.fails < 0:
                    self.fails = None
                    self.faults_of_server += 1
                    self._given_up.add(gang)
                    continue
            self.writes += 1
            write()
        self._given_up.clear()
        self._invariants()
        return decisions

    def _writes(self, decisions: Decisions) -> Iterator[tuple[str, Write]]:
        """Each write, with the victims' gang that it is for, in an order in which the edge may send them."""
        for bind in (each for binds in decisions.binds for each in binds):
            yield "", partial(self._bind, bind)
        for waiting in decisions.waiting:
            for told in waiting.pods:
                yield "", partial(self._tell, told.metadata.name, waiting.report)
        for order in decisions.preemptions:
            for pod in order.pods:
                yield order.group, partial(self._mark, pod)
            for pod in order.pods:
                yield order.group, partial(self._end, pod, order)
        for plan in decisions.planned_ends:
            yield "", partial(self._announce, plan.pod, plan.at)
        for nomination in decisions.nominations:
            yield "", partial(self._nominate, nomination.pod, nomination.node)
        for status in decisions.queue_statuses:
            yield "", partial(self._write_status, status.name, status.document)

    def _there(self, pod: Pod) -> Pod | None:
        found = self.pods.get(pod.metadata.name)
        return found if found is not None and found.metadata.uid == pod.metadata.uid else None

    def _bind(self, bind: Any) -> None:
        pod = self._there(bind.pod)
        if pod is not None and pod.metadata.deletion_timestamp is None:
            uid = pod.metadata.uid
            self.started[uid] = self.now
            if uid in self.lasts:
                self.ends[pod.metadata.name] = self.now + self.lasts[uid]
            self.add(bind.carried_out(pod))

    def _tell(self, name: str, report: Any) -> None:
        pod = self.pods.get(name)
        patch = None if pod is None else pod_condition(pod, report, now=self.now)
        if pod is not None and patch is not None:
            self._patch_status(pod, patch)

    def _mark(self, victim: Pod) -> None:
        pod = self._there(victim)
        if pod is not None:
            target = Condition(type=DISRUPTION_TARGET, status="True", reason=BY_SCHEDULER)
            conditions = with_condition(pod.status.conditions, target)
            self.add(replace(pod, status=replace(pod.status, conditions=conditions)))

    def _end(self, victim: Pod, order: Preempt) -> None:
        pod = self._there(victim)
        if pod is None:
            return
        assert pod.metadata.deletion_timestamp is None, "nobody is ended twice"
        self.deleted.append(pod.metadata.name)
        self.ended_pods.append(pod)
        by = order.preemptor
        self.killed[pod.metadata.uid] = "" if by is None else by.metadata.uid
        if by is not None:
            self.preemptors[by.metadata.uid] = by.metadata.name
            self.ended_for[lineage(pod), lineage(by)] = self.happened, order.queue
        self.delete(pod.metadata.name)

    def _announce(self, pod: Pod, at: int | None) -> None:
        found = self._there(pod)
        if found is not None:
            notes = {key: value for key, value in found.annotations.items() if key != names.ENDS_AT}
            notes |= {} if at is None else {names.ENDS_AT: rfc3339(at * 1000)}
            self.add(replace(found, metadata=replace(found.metadata, annotations=notes)))

    def _nominate(self, pod: Pod, node: str | None) -> None:
        found = self._there(pod)
        if found is not None and not found.spec.node_name:
            self.add(replace(found, status=replace(found.status, nominated_node_name=node)))

    # -- what is known ---------------------------------------------------------------------------------------

    @property
    def tree(self) -> QueueTree | None:
        quotas = self.scheduler.state.queue.quotas
        return None if quotas is None else quotas.tree

    def usage(self) -> dict[Account, float]:
        turns = self.scheduler.state.queue.turns
        return {} if turns is None else dict(turns.shares.usage(self.now))

    def path(self, leaf: str) -> tuple[str, ...]:
        return () if self.tree is None else self.tree.paths.get(leaf, ())

    def on_nodes(self, *, ending: bool = True) -> list[Pod]:
        return [
            pod
            for pod in self.pods.values()
            if pod.spec.node_name
            and not pod.is_terminal
            and (ending or pod.metadata.deletion_timestamp is None)
        ]

    def gang_of(self, pod: Pod) -> str:
        return pod.labels.get(names.GROUP_LABEL, "")

    # -- judging decisions -----------------------------------------------------------------------------------

    def _judge(self, before: dict[str, Pod], decisions: Decisions) -> None:
        ended = {pod.metadata.uid for order in decisions.preemptions for pod in order.pods}
        spent: dict[str, int] = {}
        for order in decisions.preemptions:
            for victim in order.pods:
                pod = before.get(victim.metadata.name)
                assert pod is not None and pod.metadata.uid == victim.metadata.uid, "a victim exists"
                assert pod.spec.node_name and not pod.is_terminal, "a victim runs"
                assert pod.metadata.deletion_timestamp is None, "nobody is ended twice"
                if "app" in pod.labels and pod.metadata.namespace == "default":
                    spent[pod.labels["app"]] = spent.get(pod.labels["app"], 0) + 1
                if order.preemptor is None:
                    self._is_drained_or_cut(order, pod, before)
                    continue
                self._may_end(order, pod, before)
                self._has_run_long_enough(order, pod)
                self._is_no_loop(order, pod)
            self._no_gang_is_cut(order, before, ended)
        for each in self.budgets:
            assert spent.get(each.metadata.name, 0) <= each.allowed, "budgets are counted together"
        by = {order.preemptor.metadata.uid for order in decisions.preemptions if order.preemptor}
        begun = {each.pod.metadata.uid for binds in decisions.binds for each in binds}
        if len(by) == 1 and all(order.preemptor for order in decisions.preemptions) and not by & begun:
            self._is_reserved_and_late(decisions.preemptions, next(iter(by)))
            repeated = self.judged
            self.judged = {(order.group, next(iter(by))) for order in decisions.preemptions}
            if not self.judged & repeated:  # an order that had no effect: others may have started meanwhile
                self._keeps_guarantees(decisions.preemptions, before, ended)

    def _is_drained_or_cut(self, order: Preempt, pod: Pod, before: dict[str, Pod]) -> None:
        """Q5: queues end nothing unless they are drained. What a crash has left of a gang ends too."""
        if not order.queue:
            left = [other for other in before.values() if self.gang_of(other) == self.gang_of(pod)]
            left = [other for other in left if _stays(other)]
            assert self.crashes or self.faults_of_server
            assert 0 < len(left) < self.minimum[self.gang_of(pod)], (
                "what is left of a gang would have sufficed"
            )
            return
        tree = self.tree
        assert tree is not None and self.leaf_of[pod.metadata.uid] in tree.drained, "Q5"

    def _may_end(self, order: Preempt, victim: Pod, before: dict[str, Pod]) -> None:
        """P5: by priority, or by what queues say."""
        by = order.preemptor
        assert by is not None
        lower = (victim.spec.priority or 0) < order.priority
        tree = self.tree
        mine, other = self.leaf(by), self.leaf_of.get(victim.metadata.uid, "")
        if tree is None or not self.path(mine) or not self.path(other):
            assert lower, "P5"
            return
        rules = tree.preemption(mine)
        if mine == other:
            equal = (victim.spec.priority or 0) == order.priority
            assert rules.within is not Within.NEVER, "P5"
            assert lower or (equal and rules.within is Within.LOWER_OR_NEWER), "P5"
        else:
            assert rules.reclaim is not Reclaim.NEVER, "P5"
            assert lower or rules.reclaim is Reclaim.ANY, "P5"

    def leaf(self, pod: Pod) -> str:
        """The queue of a pod that waits."""
        pod_set = self._pod_set_of(pod)
        return "" if pod_set is None else pod_set.job.queue

    def _pod_set_of(self, pod: Pod) -> PodSet | None:
        sets, uid = self.scheduler.state.pod_sets, pod.metadata.uid
        waiting = (each for each in sets.by_key.values() if not each.state.has_nodes)
        found = (each for each in waiting if any(uid == one.metadata.uid for one in each.pods))
        return sets.by_pod.get(uid) or next(found, None)

    def _keeps_guarantees(self, orders: list[Preempt], before: dict[str, Pod], ended: set[str]) -> None:
        """P5: a guarantee is reclaimed by work that is within it in the end, from queues that keep theirs, by
        what runs and what has an earmark."""
        tree = self.tree
        if tree is None:
            return
        for order in orders:
            assert order.preemptor is not None
            mine, other = self.leaf(order.preemptor), self.leaf_of.get(order.pods[0].metadata.uid, "")
            if mine == other or not self.path(mine) or not self.path(other):
                continue
            if tree.preemption(mine).reclaim is None:
                continue
            both = set(self.path(mine)) & set(self.path(other))
            left = self._used_of(
                pod for pod in before.values() if pod.metadata.uid not in ended and _stays(pod)
            )
            ours = [name for name in self.path(mine) if name not in both and tree.entitled[name].get(CPU)]
            wanted = sum(_cpu(pod) for pod in self._pods_of(order.preemptor))
            assert any(left.get(name, 0) + wanted <= tree.entitled[name][CPU] for name in ours), "P5"
            for earmark in self.scheduler.state.preemption._earmarks.values():
                for name in self.path(earmark.pod_set.job.queue):
                    left[name] = left.get(name, 0) + sum(map(_cpu, earmark.pod_set.pods))
            for name in self.path(other):
                if name not in both:
                    assert left.get(name, 0) >= tree.entitled[name].get(CPU, 0), "P5: below its guarantee"

    def _pods_of(self, pod: Pod) -> tuple[Pod, ...]:
        pod_set = self._pod_set_of(pod)
        return () if pod_set is None else pod_set.pods

    def _used_of(self, pods: Iterator[Pod]) -> dict[str, int]:
        used: dict[str, int] = {}
        for pod in pods:
            for name in self.path(self.leaf_of.get(pod.metadata.uid, "")):
                used[name] = used.get(name, 0) + _cpu(pod)
        return used

    def _has_run_long_enough(self, order: Preempt, victim: Pod) -> None:
        """P3: work that has just started is not ended."""
        tree, began = self.tree, self.started.get(victim.metadata.uid, 0)
        leaf = self.leaf_of.get(victim.metadata.uid, "")
        if tree is not None and leaf in tree.paths and self.changed <= began:
            assert self.now - began >= (tree.preemption(leaf).min_runtime or 0), "P3"

    def _is_no_loop(self, order: Preempt, victim: Pod) -> None:
        """P3: what was ended for other work does not end that, unless something else has happened. Work that
        reclaimed a guarantee can lose it to other work of its queues, which goes before it and starts later.
        """
        assert order.preemptor is not None
        before, reclaimed = self.ended_for.get((lineage(order.preemptor), lineage(victim)), (-1, ""))
        is_beyond = bool(reclaimed) and self._is_beyond(victim, self.leaf(order.preemptor))
        assert before < self.happened or is_beyond, "P3: they end each other"

    def _is_beyond(self, pod: Pod, other: str) -> bool:
        """Whether the queues of a pod that runs have their guarantees without it."""
        tree, used = self.tree, self._used_of(iter(self.on_nodes(ending=False)))
        path = self.path(self.leaf_of.get(pod.metadata.uid, ""))
        apart = [name for name in path if name not in self.path(other)]
        assert tree is not None
        return all(used[name] - _cpu(pod) >= tree.entitled[name].get(CPU, 0) for name in apart)

    def _is_reserved_and_late(self, orders: list[Preempt], uid: str) -> None:
        """P1: the seats are held when victims are ended. P8: none is ended before the start less its grace,
        where a queue has patience."""
        preemption, tree = self.scheduler.state.preemption, self.tree
        earmark = next(each for each in preemption._earmarks.values() if uid in each.seats)
        holding = self.scheduler.state.planner.earmarks.seats(earmark.pod_set.number)
        assert holding == earmark.seats, "P1"
        leaf = earmark.pod_set.job.queue
        if tree is not None and leaf in tree.paths and tree.preemption(leaf).patience is not None:
            for order in orders:
                grace = 1000 * max(pod.spec.termination_grace_period_seconds or 0 for pod in order.pods)
                assert self.now >= earmark.start - grace, "P8"

    def _watch(self) -> None:
        """Have each preemption judged when it is decided: what it rests on changes in the same cycle."""
        preemption = self.scheduler.state.preemption
        begin = preemption._begin

        def watched(
            pod_set: PodSet, gang: Any, plan: Any, behind: list[Any], now: int, decisions: Any
        ) -> None:
            self._is_minimal(pod_set, gang, plan, behind)
            begin(pod_set, gang, plan, behind, now, decisions)

        preemption._begin = watched  # type: ignore[method-assign]

    def _is_minimal(self, pod_set: PodSet, gang: Any, plan: Any, behind: list[Any]) -> None:
        """P2: putting one back breaks the fit."""
        preemption, planner, now = self.scheduler.state.preemption, self.scheduler.state.planner, self.now
        compiled = planner.gang(pod_set.request)
        assert not isinstance(compiled, Refused)
        weaker = plan.weaker  # without those whose promises would be broken
        but = (*(each.pod_set for each in weaker), *behind)
        places = [each.reservation.number for each in (pod_set, *behind) if each.reservation is not None]
        duration = None if pod_set.limit >= FOREVER else pod_set.limit
        anyway = preemption._leaving(now, unsent=preemption._unsent(weaker))
        anyway = together(anyway, preemption._by_job(plan.awaited))
        for victim in plan.found.victims:
            gone = together(anyway, [other for other in plan.found.victims if other is not victim])
            with planner.earmarks.supposing(
                gone, without=places, lifted=[each.pod_set.number for each in weaker]
            ):
                found = self.scheduler.state.cluster.try_now(compiled, now=now, duration=duration)
            fits = isinstance(found, GangPlacement) and preemption._has_quota(pod_set, but, gone)
            assert not fits, f"P2: {victim.group} could be spared"

    def _no_gang_is_cut(self, order: Preempt, before: dict[str, Pod], ended: set[str]) -> None:
        gang = self.gang_of(order.pods[0])
        if gang in self.minimum:
            pods = [pod for pod in before.values() if self.gang_of(pod) == gang and _stays(pod)]
            left = [pod for pod in pods if pod.metadata.uid not in ended]
            assert not left or len(left) >= self.minimum[gang], "P4"

    # -- what always holds -----------------------------------------------------------------------------------

    def _invariants(self) -> None:
        state = self.scheduler.state
        for pod in self.on_nodes():
            pod_set = state.pod_sets.by_pod.get(pod.metadata.uid)
            if pod_set is None or state.queue.quotas is None or not pod_set.state.has_nodes:
                continue
            known = self.leaf_of.setdefault(pod.metadata.uid, pod_set.job.queue)
            assert known == pod_set.job.queue, "Q6"
        for node in self.nodes:
            size = 1000 * int((node.status.allocatable or {})["cpu"])
            used = sum(_cpu(pod) for pod in self.on_nodes() if pod.spec.node_name == node.name)
            assert used <= size, "a node is overcommitted"
        for value in self.usage().values():
            assert value >= 0 and math.isfinite(value), "F5"
        for record in state.queue.records.values():
            for each in record.broken:
                may_break = self.edited or self.faults_of_server or each.cause.code.value in MAY_BREAK
                assert may_break, f"P7, F1: {each.cause}"
        if state.queue.quotas is not None:
            self._no_limit_is_passed()

    def _no_limit_is_passed(self) -> None:
        """Q1, Q3: at no time from now on, by what runs and is planned, and by what runs and is held. When the
        victims take longer than was thought, what is planned behind who they end for moves."""
        state, tree = self.scheduler.state, self.tree
        quotas = state.queue.quotas
        assert tree is not None and quotas is not None
        held: list[tuple[str, str, int, int, int, bool, str]] = []  # leaf, user, cpu, start, end, runs, gang
        for task, each in (
            *state.planner.allocations.running.items(),
            *state.planner.allocations.reserved.items(),
        ):
            pod_set = state.pod_sets.by_key.get(task)
            if pod_set is None:
                continue
            counted = self._counted(pod_set, is_reserved=each.reserved)
            end = each.end if each.reserved else max(each.end, self.now + 1)
            ordered = state.preemption._ordered()
            if not each.reserved and not any(_stays(p) and p.metadata.uid not in ordered for p in counted):
                end = self.now + 1  # it is ending
            leaf, user, runs = pod_set.job.queue, pod_set.job.charged, not each.reserved
            cpu = sum(_cpu(pod) for pod in counted)
            held.append(
                (leaf, user, cpu, each.start, end, runs, "" if pod_set.job.is_part else pod_set.group)
            )
        planned = len(held)
        for key, claim in quotas.held().items():
            _, _, end = quotas.holds[key]
            mark = state.preemption._earmarks.get(key)
            start = max(self.now + 1, 0 if mark is None else mark.start)  # when its victims are gone
            pod_set = state.pod_sets.by_key[key]
            if key not in state.planner.allocations.reserved:
                cpu, gang = sum(map(_cpu, pod_set.pods)), "" if pod_set.job.is_part else pod_set.group
                held.append((claim.leaf, claim.user, cpu, start, end, False, gang))
        for some_held in (held[:planned], [each for each in held[:planned] if each[5]] + held[planned:]):
            self._no_limit_is_passed_by(tree, some_held)

    def _no_limit_is_passed_by(
        self, tree: QueueTree, held: list[tuple[str, str, int, int, int, bool, str]]
    ) -> None:
        times = {self.now, *(max(self.now, start) for *_, start, _, _, _ in held)}
        for name, queue in tree.queues.items():
            below = [each for each in held if name in tree.paths.get(each[0], ())]
            users: list[str | None] = [None, *sorted({each[1] for each in below})]
            for whose in users:
                limits = queue.limit if whose is None else queue.per_user.amounts
                most = limits.get(CPU)
                jobs = None if whose is None else queue.per_user.running
                for at in times if most is not None or jobs is not None else ():
                    some = [e for e in below if e[3] <= at < e[4] and whose in (None, e[1])]
                    if most is not None and not self._is_older(some):
                        assert sum(each[2] for each in some) <= most, f"Q1: {name} {whose or ''}"
                    some = [each for each in some if each[6]]  # a part of a gang is no job of its own
                    if jobs is not None and not self._is_older(some):
                        assert len({each[6] for each in some}) <= jobs, f"Q1: {name} {whose}: jobs"

    def _is_older(self, held: list[tuple[str, str, int, int, int, bool, str]]) -> bool:
        """Whether all of them run since before a change: that ends nothing."""
        return bool(held) and all(each[5] and each[3] <= self.changed for each in held)

    def _counted(self, pod_set: PodSet, *, is_reserved: bool) -> list[Pod]:
        if is_reserved:
            return list(pod_set.pods)
        there = {pod.metadata.uid: pod for pod in self.on_nodes()}
        return [there[uid] for uid in pod_set.alive if uid in there]

    def _usage_survives(self, before: dict[Account, float]) -> None:
        """F4: a crash loses at most what was used since usage was written."""
        self.step()
        after = self.usage()
        kept = {account: value for account, value in before.items() if account[0] in self.queues}
        for account, value in kept.items() if self.tree is not None and after else ():
            lost = value - after.get(account, 0.0)
            assert lost <= LOST_IN_A_CRASH / SECOND + 1e-6, f"F4: {account} lost {lost}"
            assert lost >= -1e-6 * (1 + value), f"F4: {account} is counted twice: {-lost}"

    # -- what holds at rest ----------------------------------------------------------------------------------

    def at_rest(self) -> None:
        self._no_gang_is_below_its_minimum()
        self._a_new_process_counts_the_same()
        self._nobody_waits_within_its_guarantee()

    def _no_gang_is_below_its_minimum(self) -> None:
        """P4: what was ended was ended as a whole, also if a crash came between."""
        cut = {self.gang_of(pod) for pod in self.ended_pods if self.gang_of(pod)} - self.reduced
        for gang in cut:
            left = [pod for pod in self.on_nodes(ending=False) if self.gang_of(pod) == gang]
            assert not left or len(left) >= self.minimum[gang], f"P4: {len(left)} of {gang} are left"

    def _a_new_process_counts_the_same(self) -> None:
        """Q2: what is counted step by step is what follows from the objects."""
        if self.tree is None or self.reduced - {""}:
            return  # NB a new process does not know the seats of members that ended, which their gang holds
        before = {leaf: amounts.get(CPU, 0) for leaf, amounts in self.quotas.usage().items()}
        self.scheduler = self._fresh()
        if self.cycle(self.now).binds:
            return  # shares have changed since something last happened, and with them whose turn it is
        after = {leaf: amounts.get(CPU, 0) for leaf, amounts in self.quotas.usage().items()}
        assert before == after, f"Q2: {before} {after}"
        for name in self.tree.queues:
            on_nodes = [pod for pod in self.on_nodes() if name in self.path(self.leaf_of[pod.metadata.uid])]
            counted = sum(used for leaf, used in after.items() if name in self.path(leaf))
            assert counted >= sum(_cpu(pod) for pod in on_nodes), "Q2"

    @property
    def quotas(self) -> Any:
        return self.scheduler.state.queue.quotas

    def _nobody_waits_within_its_guarantee(self) -> None:
        """Q4: no single pod that a guarantee covers waits for borrowers that it may end, on any one node."""
        state, tree = self.scheduler.state, self.tree
        waiting = [each for each in state.pod_sets.by_key.values() if not each.state.has_nodes]
        if tree is None or self.config_of_scheduler["queue_policy"] == "fcfs":
            return
        if any(each.no_later_than is not None or each.reservation is not None for each in waiting):
            return  # nobody loses a start
        for pod_set in waiting:
            if pod_set.state is JobState.UNSCHEDULABLE:
                continue  # a limit is too small for it
            leaf, pods = pod_set.job.queue, pod_set.pods
            if len(pods) != 1 or self.gang_of(pods[0]) or leaf not in tree.leaves or not pod_set.waiting:
                continue
            used, mine = self._used_of(iter(self.on_nodes(ending=False))), tree.entitled[leaf].get(CPU, 0)
            if tree.preemption(leaf).reclaim is not Reclaim.ANY or used.get(leaf, 0) + _cpu(pods[0]) > mine:
                continue
            if state.queue.quota_reason(pod_set, but=(), gone=[]) is not None:
                continue
            for node in self.nodes:
                there = [pod for pod in self.on_nodes() if pod.spec.node_name == node.name]
                size = 1000 * int((node.status.allocatable or {})["cpu"])
                free, left = size - sum(_cpu(pod) for pod in there), dict(used)
                for pod in there:
                    if self._is_borrowed(pod, leaf, left):
                        free += _cpu(pod)
                        for name in self.path(self.leaf_of[pod.metadata.uid]):
                            left[name] -= _cpu(pod)
                assert free < _cpu(pods[0]), f"Q4: {pods[0].metadata.name} waits for borrowers on {node.name}"

    def _is_borrowed(self, pod: Pod, leaf: str, left: dict[str, int]) -> bool:
        tree, other = self.tree, self.leaf_of[pod.metadata.uid]
        assert tree is not None
        if (
            other == leaf
            or self.gang_of(pod)
            or "app" in pod.labels
            or not self.path(other)
            or not _stays(pod)
        ):
            return False
        if tree.preemption(other).min_runtime:
            return False
        apart = [name for name in self.path(other) if name not in self.path(leaf)]
        return all(left[name] - _cpu(pod) >= tree.entitled[name].get(CPU, 0) for name in apart)


def lineage(pod: Pod) -> str:
    """What controllers make again has one."""
    return pod.metadata.name.partition("--")[0]


def _stays(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and not pod.is_terminal and pod.metadata.deletion_timestamp is None


def _cpu(pod: Pod) -> int:
    return pod_requests(pod)["cpu"]
