"""A scheduler whose world changes, fails and restarts books no node twice and starts no gang in part."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from fluence import messages, names
from fluence.cluster.graph import job_number
from fluence.cluster.pods import is_usage
from fluence.model.grant import with_condition
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.model.reason import Code
from fluence.queue.promises import LATE
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Bind, BindOutcome, BindResult
from fluence.schedule.queueing.placeholder import is_placeholder_uid
from fluence.schedule.status.reports import Waiting
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

T0 = datetime(2026, 9, 1, tzinfo=UTC)
HUGE = ["1e17", "5e15", "1e30"]  # cores
YEAR = 366 * 86_400_000
POLICIES = ["easy", "conservative", "fcfs", "first-fit", "hybrid"]
NAMESPACES = st.sampled_from(["default", "other"])
_LOSSES = (Code.NODE_GONE, Code.NODE_CHANGED, Code.RESOURCES_LOST)


def node(name: str, cpu: int, *, closed: bool = False) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}),
        spec=NodeSpec(unschedulable=closed),
        status=NodeStatus(
            allocatable={"cpu": str(cpu), "memory": "1Gi", "pods": "10"},
            conditions=[Condition(type="Ready", status="True")],
        ),
    )


class Machine(RuleBasedStateMachine):
    """What the API server has is the truth; the scheduler is told all of it, in order."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        each=st.booleans(),
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        looks=st.none() | st.integers(1, 40),
    )
    def begin(self, policy: str, each: bool, sizes: list[int], looks: int | None) -> None:
        """``looks``: after how many looks at the clock a cycle's time for planning is over."""
        self.policy, self.each, self.looks = policy, each, looks
        self.now = int(T0.timestamp() * 1000)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[str, Group] = {}
        self.flight: dict[str, Bind] = {}
        self.told: dict[str, str] = {}  # by uid: why it waits
        self.excuses: set[Code] = set()  # what has happened that may break a promise
        self.made = 0
        self.scheduler = self.fresh()
        for cpu in sizes:
            self.add_node(cpu)

    def fresh(self) -> Driver:
        more: dict[str, Any] = {}
        if self.looks is not None:
            ticks = itertools.count()
            more = {"timer": lambda: next(ticks) / 1e6, "cycle_budget": self.looks / 1e6}
        return Driver(
            native=True, release_each=self.each, queue_policy=self.policy, backoff=(100, 1000), **more
        )

    def pick(self, data: st.DataObject, some: Sequence[str]) -> str:
        return data.draw(st.sampled_from(some))

    # -- the world -------------------------------------------------------------------------------------------

    def time(self) -> datetime:
        """As an API server stamps: whole seconds."""
        return (T0 + timedelta(milliseconds=self.now - int(T0.timestamp() * 1000))).replace(microsecond=0)

    def put(self, pod: Pod) -> None:
        self.pods[pod.metadata.name] = pod
        self.scheduler.set_pod(pod)

    def new_pod(self, name: str, **more: Any) -> Pod:
        self.made += 1
        made = kit.pod(name, uid=f"uid-{self.made}", **more)
        return replace(made, metadata=replace(made.metadata, creation_timestamp=self.time()))

    @rule(cpu=st.integers(1, 4))
    def add_node(self, cpu: int) -> None:
        if len(self.nodes) < 6:
            self.made += 1
            found = node(f"n{self.made}", cpu)
            self.nodes[found.name] = found
            self.scheduler.set_node(found)

    @rule(data=st.data())
    def remove_node(self, data: st.DataObject) -> None:
        """Its pods go as the garbage collector takes them: after the node."""
        if len(self.nodes) > 1:
            name = self.pick(data, sorted(self.nodes))
            self.excuses.add(Code.NODE_GONE)
            del self.nodes[name]
            self.scheduler.remove_node(name)
            for pod in [pod for pod in self.pods.values() if pod.spec.node_name == name]:
                del self.pods[pod.metadata.name]
                self.scheduler.remove_pod(pod)

    @rule(data=st.data(), closed=st.booleans())
    def cordon(self, data: st.DataObject, closed: bool) -> None:
        name = self.pick(data, sorted(self.nodes))
        cpu = int((self.nodes[name].status.allocatable or {})["cpu"])
        self.nodes[name] = node(name, cpu, closed=closed)
        self.excuses.add(Code.NODE_CHANGED)
        self.scheduler.set_node(self.nodes[name])

    @rule(
        size=st.integers(1, 4),
        minimum=st.integers(1, 4),
        cpu=st.integers(1, 3),
        mixed=st.booleans(),
        limit=st.none() | st.integers(1, 30),
        priority=st.sampled_from([0, 0, 5]),
        namespace=NAMESPACES,
    )
    def submit(
        self, size: int, minimum: int, cpu: int, mixed: bool, limit: int | None, priority: int, namespace: str
    ) -> None:
        self.made += 1
        if priority:
            self.excuses.add(Code.OVERTAKEN)
        notes = {} if limit is None else {names.DURATION: f"{limit}s"}
        group = None
        if size > 1:
            group = kit.group(
                f"g{self.made}",
                min(minimum, size),
                uid=f"uid-g{self.made}",
                created=self.time(),
                namespace=namespace,
            )
            self.groups[group.name] = group
            self.scheduler.set_group(group)
        for index in range(size):
            need = str(cpu if not mixed or index else 1)
            self.put(
                self.new_pod(
                    f"{'s' if group is None else group.name}-{self.made}-{index}",
                    field=None if group is None else group.name,
                    cpu=need,
                    annotations=notes,
                    priority=priority,
                    namespace=namespace,
                )
            )

    @rule(data=st.data(), cpu=st.integers(1, 2), namespace=NAMESPACES)
    def foreign(self, data: st.DataObject, cpu: int, namespace: str) -> None:
        """Another scheduler's pod, wherever it likes."""
        self.made += 1
        where = self.pick(data, sorted(self.nodes))
        self.excuses.add(Code.RESOURCES_LOST)
        name = f"x{self.made}"
        self.put(self.new_pod(name, scheduler="other", node=where, cpu=str(cpu), namespace=namespace))

    @rule(data=st.data(), cpu=st.sampled_from(HUGE), placed=st.booleans(), size=st.integers(1, 3))
    def poison(self, data: st.DataObject, cpu: str, placed: bool, size: int) -> None:
        """Pods that ask for what cannot be counted; on a node, where somebody put them so."""
        self.made += 1
        where = self.pick(data, sorted(self.nodes)) if placed else None
        group = None
        if size > 1:
            group = kit.group(f"g{self.made}", size, uid=f"uid-g{self.made}", created=self.time())
            self.groups[group.name] = group
            self.scheduler.set_group(group)
        if placed:
            self.excuses.add(Code.RESOURCES_LOST)
        for index in range(size):
            field = None if group is None else group.name
            self.put(self.new_pod(f"evil-{self.made}-{index}", node=where, cpu=cpu, field=field))

    @rule(data=st.data())
    def forge(self, data: st.DataObject) -> None:
        """A pod that was put on a node says that it belongs to somebody else's job."""
        self.made += 1
        where = self.pick(data, sorted(self.nodes))
        uids = sorted(pod.metadata.uid for pod in self.pods.values())
        number = job_number(self.pick(data, uids)) if uids else 7
        self.excuses.add(Code.RESOURCES_LOST)
        notes = {names.JOBID: str(number), names.ALLOCATION: f'{{"start":{self.now}}}'}
        self.put(self.new_pod(f"evil-{self.made}", node=where, annotations=notes))

    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def end(self, data: st.DataObject, phase: str) -> None:
        runs = sorted(name for name, pod in self.pods.items() if pod.spec.node_name and not pod.is_terminal)
        if runs:
            pod = self.pods[self.pick(data, runs)]
            self.put(replace(pod, status=replace(pod.status, phase=phase)))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if self.pods:
            pod = self.pods.pop(self.pick(data, sorted(self.pods)))
            self.scheduler.remove_pod(pod)

    @rule(ms=st.integers(1, 20_000))
    def wait(self, ms: int) -> None:
        self.now += ms

    # -- the scheduler ---------------------------------------------------------------------------------------

    @rule()
    def cycle(self) -> None:
        for _ in range(50 + 2 * len(self.pods)):  # with one look at the clock, a cycle may try one job
            decisions = self.scheduler.cycle(self.now)
            self.judge(decisions)
            self.judge_times()
            for waiting in decisions.waiting:
                self.told.update((pod.metadata.uid, messages.texts(waiting.reasons)) for pod in waiting.pods)
                overruns = [each for each in waiting.reasons if each.code is Code.WAITS_FOR_OVERRUN]
                since = self.scheduler.queue.overruns.since.values()
                assert all(each["since"] in since for each in overruns), "who is named overruns"
                self.judge_names(waiting)
            for binds in decisions.binds:
                self.take(binds)
            if not self.scheduler.has_more:
                return
        raise AssertionError("cycles without end")

    def take(self, binds: list[Bind]) -> None:
        """As the binder does: one stale place, and none is sent."""
        stale = [bind for bind in binds if self.is_stale(bind)]
        if stale:
            for bind in binds:
                gone = self.pods.get(bind.pod.metadata.name) is None
                self.scheduler.told(
                    BindResult(bind, BindOutcome.GONE if gone else BindOutcome.STALE), self.now
                )
            return
        for bind in binds:
            assert bind.uid not in self.flight, "bound twice"
            self.flight[bind.uid] = bind

    def is_stale(self, bind: Bind) -> bool:
        pod, home = self.pods.get(bind.pod.metadata.name), self.nodes.get(bind.node)
        return pod is None or home is None or bool(home.spec.unschedulable)

    @precondition(lambda self: self.flight)
    @rule(
        data=st.data(), fate=st.sampled_from(["ok", "ok", "ok", "told later", "again", "lost", "impossible"])
    )
    def answer(self, data: st.DataObject, fate: str) -> None:
        bind = self.flight.pop(self.pick(data, sorted(self.flight)))
        pod = self.pods.get(bind.pod.metadata.name)
        if pod is None:
            outcome = BindOutcome.GONE
        elif self.is_stale(bind):
            outcome = BindOutcome.STALE
        elif fate == "again":
            self.excuses.add(Code.RESOURCES_LOST)
            outcome = BindOutcome.AGAIN
        elif fate == "impossible":
            self.excuses.add(Code.RESOURCES_LOST)
            outcome = BindOutcome.IMPOSSIBLE
        else:
            assert not pod.spec.node_name, "bound twice"
            bound = self.bound(pod, bind)
            self.pods[pod.metadata.name] = bound
            if fate == "lost":  # carried out, and nothing heard of it but the watch
                self.scheduler.set_pod(bound)
                return
            outcome = BindOutcome.BOUND
            if fate == "told later":
                self.scheduler.told(BindResult(bind, outcome), self.now)
                self.scheduler.set_pod(bound)
                return
            self.scheduler.set_pod(bound)
        self.scheduler.told(BindResult(bind, outcome), self.now)

    def bound(self, pod: Pod, bind: Bind) -> Pod:
        """As the server leaves a pod after its binding."""
        stamp = self.time().isoformat()
        scheduled = Condition(type="PodScheduled", status="True", last_transition_time=stamp)
        found = bind.carried_out(pod)
        conditions = with_condition(found.status.conditions, scheduled)
        return replace(found, status=replace(found.status, conditions=conditions))

    @rule()
    def crash(self) -> None:
        """What was sent and not answered may have been carried out, or not: those that were are in `pods`."""
        self.flight.clear()
        self.scheduler = self.fresh()
        for found in self.nodes.values():
            self.scheduler.set_node(found)
        for group in self.groups.values():
            self.scheduler.set_group(group)
        for pod in self.pods.values():
            self.scheduler.set_pod(pod)

    # -- what must hold --------------------------------------------------------------------------------------

    def judge(self, decisions: Decisions) -> None:
        took: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.spec.node_name and not pod.is_terminal:
                took[pod.spec.node_name] = took.get(pod.spec.node_name, 0) + _cpu(pod)
        for bind in self.flight.values():
            if not self.is_stale(bind):
                took[bind.node] = took.get(bind.node, 0) + _cpu(bind.pod)
        for binds in decisions.binds:
            for bind in binds:
                known = self.pods.get(bind.pod.metadata.name)
                assert known is not None and known.metadata.uid == bind.uid and not known.spec.node_name
                assert bind.node in self.nodes, f"{bind.node} is gone"
                assert not self.nodes[bind.node].spec.unschedulable, f"{bind.node} is cordoned"
                took[bind.node] = took.get(bind.node, 0) + _cpu(bind.pod)
                has = int((self.nodes[bind.node].status.allocatable or {})["cpu"])
                assert took[bind.node] <= has, f"{bind.node} has {has} and would give {took[bind.node]}"
        begun: dict[str, list[Bind]] = {}
        for binds in decisions.binds:
            for bind in binds:
                link = bind.pod.spec.scheduling_group
                if link is not None:
                    begun.setdefault(link.pod_group_name or "", []).append(bind)
        for name, binds in begun.items():
            self.judge_gang(self.groups[name], binds)

    def judge_names(self, waiting: Waiting) -> None:
        """Who waits is told names of its own namespace, and only of those that it waits for."""
        namespace = waiting.gang.namespace
        text = messages.texts(waiting.reasons)
        foreign = {pod.metadata.name for pod in self.pods.values() if pod.metadata.namespace != namespace}
        foreign |= {group.name for group in self.groups.values() if group.namespace != namespace}
        assert foreign.isdisjoint(re.findall(r"[\w-]+", text)), f"told a name of another namespace: {text}"
        assert not re.search(rf"\b(?!{namespace}\b)(?:default|other)/", text), f"told a namespace: {text}"
        named_codes = (Code.WAITS_FOR_OVERRUN, Code.WAITS_FOR_UNLIMITED)
        others = [each for each in waiting.reasons if each.code not in named_codes]
        named = set(re.findall(r"(?:default|other)/[\w-]+", messages.texts(others)))
        own = {waiting.gang.key, *(pod.key for pod in waiting.pods)}
        owners = (ref for pod in waiting.pods for ref in pod.metadata.owner_references or ())
        own |= {f"{namespace}/{ref.name}" for ref in owners}
        assert named <= own, "a reason names somebody else's pod"

    def judge_times(self) -> None:
        """Promises and expectations lie ahead, in an order, and at times that somebody may live to see; one
        that was broken names a cause, and that has happened."""
        if self.scheduler.queue.overruns.since:
            self.excuses.add(Code.RUNS_PAST_LIMIT)
        for found in self.scheduler.pod_sets.by_key.values():
            for each in found.broken:
                lost = self.excuses - {Code.OVERTAKEN, Code.RUNS_PAST_LIMIT}
                kind = lost if each.cause.code in _LOSSES else self.excuses & {each.cause.code}
                overtaken = each.cause.code is Code.OVERTAKEN and self.policy != "conservative"
                assert kind or overtaken, f"{found.key}: {each.cause} is not what happened"
            if found.state.has_nodes or found.state.leaves_queue:
                continue
            told, expected = found.no_later_than, found.expected
            assert told is None or self.now - LATE <= told < self.now + YEAR, f"{found.key}: {told}"
            assert expected is None or self.now <= expected < self.now + YEAR, f"{found.key}: {expected}"
            assert told is None or expected is None or expected <= told, f"{found.key}: expected later"

    @invariant()
    def the_book_is_the_cluster(self) -> None:
        """The ledger holds what pods on nodes and pods that are about to be bound take, and nothing else; who
        has a handle to it reads the same times."""
        if not hasattr(self, "scheduler"):
            return
        fit, planner = self.scheduler.cluster.fit, self.scheduler.planner
        alive = {pod.metadata.uid: pod for pod in self.pods.values() if not pod.is_terminal}
        on_nodes = {uid: pod.spec.node_name for uid, pod in alive.items() if pod.spec.node_name}
        taken: Counter[str] = Counter()
        for uid, name in on_nodes.items():
            taken[name] += 1000 * _cpu(alive[uid])
        counted: set[str] = set()
        for job in fit.jobs.values():
            if is_usage(job.id) or (job.reserved and not job.start <= fit.availability.now < job.end):
                continue
            for pod, name, needs, _ in job.placements.values():
                uid = str(pod)
                counted.add(uid)
                to_come = is_placeholder_uid(uid)  # of a Job that is released, or about to be
                assert to_come or uid in alive or uid in job.ended, (
                    f"{uid} is gone, and its job holds {name} for it"
                )
                assert on_nodes.get(uid, name) == name or job.reserved
                if uid not in on_nodes or job.reserved:
                    taken[name] += needs["cpu"]
        # After a fault, pods whose binds are under way count as bound.
        for uid, assumed in self.scheduler.scheduler._assumed.items():
            if uid in alive and uid not in on_nodes and uid not in counted:
                taken[assumed.spec.node_name or ""] += 1000 * _cpu(assumed)
        held = dict(zip(fit.names, (fit.size("cpu") - fit.free("cpu")).tolist(), strict=True))
        left_out = {subject.key for subject in self.scheduler.scheduler.quarantine.subjects()}
        for name in self.nodes:
            if name in left_out and name not in held:
                continue  # it caused a fault, and is tried again later
            assert held[name] == taken[name] or taken[name] > 10**9, (
                f"{name}: {held[name]}, not {taken[name]}"
            )
        for allocation in (*planner.allocations.running.values(), *planner.allocations.reserved.values()):
            record = fit.jobs.get(allocation.number)
            if record is not None:
                times = (record.start, record.end, record.reserved)
                assert (allocation.start, allocation.end, allocation.reserved) == times

    def judge_gang(self, group: Group, binds: list[Bind]) -> None:
        """With these the gang is as large as it must be."""
        placed = [pod for pod in self.of(group) if pod.spec.node_name]
        if placed and all(self.scheduler.retries.was_tried(bind.uid) for bind in binds):
            return  # what has begun is driven to its end, though members be deleted meanwhile
        # Members that ended count, for the same reason.
        there = len(placed) + len(self.mine(group))
        told = f"{group.name}: {[bind.uid for bind in binds]} and {there} of {group.min_count}"
        assert there + len(binds) >= (group.min_count or 1), told

    def of(self, group: Group) -> list[Pod]:
        return [
            pod
            for pod in self.pods.values()
            if pod.spec.scheduling_group is not None
            and pod.spec.scheduling_group.pod_group_name == group.name
        ]

    def mine(self, group: Group) -> list[Bind]:
        return [bind for bind in self.flight.values() if bind.pod in self.of(group)]

    def teardown(self) -> None:
        """When everything calms down, everything that can run runs, ends, and leaves nothing behind."""
        if not hasattr(self, "scheduler") or sys.exc_info()[0] is not None:
            return
        for name in list(self.nodes):
            cpu = int((self.nodes[name].status.allocatable or {})["cpu"])
            self.nodes[name] = node(name, cpu)
            self.scheduler.set_node(self.nodes[name])
        for turn in range(10 + 2 * self.work()):
            self.live(70_000)
            while self.flight:
                self.settle(sorted(self.flight)[0])
            runs = [pod for pod in self.pods.values() if pod.spec.node_name and not pod.is_terminal]
            for pod in runs:
                self.put(replace(pod, status=replace(pod.status, phase="Succeeded")))
            planned = any(each.reservation for each in self.scheduler.pod_sets.by_key.values())
            if not runs and not planned and turn > 1:
                break
        else:
            raise AssertionError("it never comes to rest")
        cluster = self.scheduler.cluster
        assert cluster.jobs == {}
        seats = cluster.fit
        rows = [seats.position[name] for name in self.nodes]
        assert (seats.free("cpu")[rows] == seats.size("cpu")[rows]).all()
        most = max(int((each.status.allocatable or {})["cpu"]) for each in self.nodes.values())
        for pod in self.pods.values():
            if pod.spec.node_name or pod.is_terminal:
                continue
            gang = self.scheduler.groups.gang(self.scheduler.groups.of(pod))
            assert gang is not None
            part = next(
                (each for each in self.scheduler.pod_sets.by_key.values() if pod in each.request.pods), None
            )
            said = self.scheduler.reports.said.get(gang.key if part is None else part.key)
            assert said is not None, f"{pod.key} waits, and nothing says why"
            reason = messages.texts(said.reasons)
            assert reason == self.told.get(pod.metadata.uid), f"{pod.key} was told something else"
            excluded = self.scheduler.exclusions.of(gang.key)
            whole = not excluded and not gang.missing and max(map(_cpu, gang.members)) <= most
            room = sum(int((each.status.allocatable or {})["cpu"]) for each in self.nodes.values())
            slots = sum(
                int((each.status.allocatable or {})["cpu"]) // max(map(_cpu, gang.members))
                for each in self.nodes.values()
            )
            assert not (whole and gang.needed <= slots), (
                f"{pod.key} waits in an empty cluster of {room} cores"
            )

    def work(self) -> int:
        """How many pods there may be to run, one after the other."""
        return len(self.pods)

    def live(self, ms: int) -> None:
        """As the live loop does: a cycle whenever one is due."""
        end = self.now + ms
        for _ in range(200 + 10 * len(self.pods)):
            due = self.scheduler.next_due()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.cycle()
        else:
            raise AssertionError("a cycle is always due")
        self.now = end
        self.cycle()

    def settle(self, uid: str) -> None:
        bind = self.flight.pop(uid)
        pod = self.pods.get(bind.pod.metadata.name)
        if pod is None or self.is_stale(bind):
            self.scheduler.told(
                BindResult(bind, BindOutcome.GONE if pod is None else BindOutcome.STALE), self.now
            )
            return
        self.put(self.bound(pod, bind))
        self.scheduler.told(BindResult(bind, BindOutcome.BOUND), self.now)


def _cpu(pod: Pod) -> int:
    assert pod.spec.containers and pod.spec.containers[0].resources
    return int(float((pod.spec.containers[0].resources.requests or {})["cpu"]))


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(
    max_examples=int(os.environ.get("FLUENCE_WORLDS", "150")), stateful_step_count=40, deadline=None
)
