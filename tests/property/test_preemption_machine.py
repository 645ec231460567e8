"""Random clusters in which pods and gangs of several priorities come, end and are preempted.

The oracles are those of any preemption: who was ended had a lower priority than one that was to start there
(P5); the set was minimal when it was chosen (P2); the seats are the preemptor's, and it starts when its
victims are gone, unless work of higher priority came or it went (P1, P3); no gang runs below its minimum
because of it (P4); and nobody else's promise is broken (P7). Budgets are never exceeded.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fluence import names
from fluence.model.pod import Pod, pod_requests
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Preempt
from tests.unit.schedule.preempting import PreemptionWorld, budget, gang, prioritised

PRIORITIES = st.sampled_from((0, 10, 20, 30))
QUEUES = st.builds(
    lambda limit, guaranteed, within, reclaim, patience: {
        **({"limit": {"cpu": limit}} if limit else {}),
        **({"guaranteed": {"cpu": min(guaranteed, limit or guaranteed)}} if guaranteed else {}),
        "preemption": {
            **({"within": within} if within else {}),
            **({"reclaim": reclaim} if reclaim else {}),
            **({"patience": patience} if patience else {}),
        },
    },
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from(("", "", "never", "lower", "lower-or-newer")),
    st.sampled_from(("", "", "never", "lower", "any")),
    st.sampled_from(("", "", "10s", "60s")),
)
MACHINE = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class CheckedWorld(PreemptionWorld):
    """Looks at each preemption when it is decided."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.minimum: dict[str, int] = {}  # by group
        self.preemptors: dict[str, str] = {}  # uids, with their names, since the last look
        self.killed: set[str] = set()  # uids

    def group_of(self, name: str) -> str:
        return name.rsplit("-", 1)[0]

    def step(self) -> Decisions:
        before = dict(self.pods)
        decisions = super().step()
        ended: dict[str, int] = {}
        for order in decisions.preemptions:
            for victim in order.pods:
                name = victim.metadata.name
                pod = before[name]
                assert order.preemptor is not None
                if (pod.spec.priority or 0) >= order.priority:
                    self._may_end_equals(before, decisions, order, pod)
                assert pod.spec.node_name, "a victim runs"
                assert victim.metadata.uid not in self.killed, "nobody is ended twice"
                assert pod.spec.scheduler_name == "fluence"
                self.killed.add(victim.metadata.uid)
                self.preemptors[order.preemptor.metadata.uid] = order.preemptor.metadata.name
                for label in (pod.labels.get("app"),):
                    if label is not None:
                        ended[label] = ended.get(label, 0) + 1
        for each in self.budgets:
            app = each.metadata.name
            assert ended.get(app, 0) <= each.allowed, "budgets are counted together"
        if decisions.preemptions:
            self._is_minimal(decisions)
            self._no_gang_is_cut(decisions)
        return decisions

    def _may_end_equals(
        self, before: dict[str, Pod], decisions: Decisions, order: Preempt, victim: Pod
    ) -> None:
        """P5: work that is not of lower priority ends for newer work of its queue, or for a guarantee; then
        its queue keeps its own guarantee without all that end now, or is ending already."""
        assert order.preemptor is not None
        mine, other = (each.annotations.get(names.QUEUE, "") for each in (order.preemptor, victim))
        rules = self.queues[mine].spec.get("preemption", {}) if mine in self.queues else {}
        if mine == other:
            assert rules.get("within") == "lower-or-newer" and (victim.spec.priority or 0) == order.priority
            return
        assert rules.get("reclaim") == "any", "P5"
        ended = {pod.metadata.uid for each in decisions.preemptions for pod in each.pods}
        for queue, is_mine in ((mine, True), (other, False)):
            left = sum(
                pod_requests(pod)["cpu"] // 1000
                for pod in before.values()
                if pod.annotations.get(names.QUEUE, "") == queue
                and pod.spec.node_name
                and pod.metadata.deletion_timestamp is None
                and not pod.is_terminal
                and pod.metadata.uid not in ended
            )
            spec = self.queues[queue].spec if queue in self.queues else {}
            guaranteed = spec.get("guaranteed", {}).get("cpu", 0)
            assert left <= guaranteed if is_mine else left >= guaranteed, "P5"

    def _is_minimal(self, decisions: Decisions) -> None:
        """Putting one back breaks the fit, if no other earmark has changed in this cycle."""
        preemptors = {order.preemptor.metadata.uid for order in decisions.preemptions if order.preemptor}
        if len(preemptors) != 1:
            return
        preemption = self.scheduler.state.preemption
        (uid,) = preemptors
        earmark = next(
            each
            for each in preemption._earmarks.values()
            if any(pod.metadata.uid == uid for pod in each.pod_set.pods)
        )
        victims = {pod.metadata.uid: order for order in decisions.preemptions for pod in order.pods}
        by_pod = self.scheduler.state.pod_sets.by_pod
        for group in {order.group for order in victims.values()}:
            gone: dict[int, frozenset[str]] = {}
            for other, order in victims.items():
                if order.group != group and other in by_pod:
                    number = by_pod[other].number
                    gone[number] = gone.get(number, frozenset()) | {other}
            for number, uids in preemption._leaving(self.now).items():
                left = frozenset(uids - victims.keys())
                if left:
                    gone[number] = gone.get(number, frozenset()) | left
            assert not preemption._fits(earmark.pod_set, gone, self.now), f"P2: {group} could be spared"

    def _no_gang_is_cut(self, decisions: Decisions) -> None:
        for order in decisions.preemptions:
            name = self.group_of(order.pods[0].metadata.name)
            if name in self.minimum:
                left = [
                    pod
                    for other, pod in self.pods.items()
                    if self.group_of(other) == name
                    and pod.spec.node_name
                    and pod.metadata.deletion_timestamp is None
                ]
                assert not left or len(left) >= self.minimum[name], "P4"


class PreemptionMachine(RuleBasedStateMachine):
    @initialize(
        nodes=st.integers(1, 3),
        cpu=st.integers(1, 3),
        policy=st.sampled_from(("easy", "conservative", "fcfs", "first-fit")),
        queues=st.none() | st.tuples(QUEUES, QUEUES),
    )
    def begin(
        self, nodes: int, cpu: int, policy: str, queues: tuple[dict[str, Any], dict[str, Any]] | None
    ) -> None:
        self.world = CheckedWorld(nodes, cpu, queue_policy=policy)
        self.serial = 0
        self.queues = queues is not None
        if queues is not None:
            self.world.use(default={}, a=queues[0], b=queues[1])

    def name(self) -> str:
        self.serial += 1
        return f"p{self.serial}"

    @rule(
        priority=PRIORITIES,
        cpu=st.integers(1, 2),
        limit=st.sampled_from((None, 20, 100)),
        app=st.booleans(),
        favour=st.sampled_from((0, 0, -25, -5, 5)),
        queue=st.sampled_from(("", "a", "b")),
        recreated=st.booleans(),
    )
    def pod(
        self,
        priority: int,
        cpu: int,
        limit: int | None,
        app: bool,
        favour: int,
        queue: str,
        recreated: bool,
    ) -> None:
        notes = {names.DURATION: f"{limit}s"} if limit else {}
        notes |= {names.PRIORITY: str(favour)} if favour else {}
        notes |= {names.QUEUE: queue} if queue and self.queues else {}
        labels = {"app": "db"} if app else {}
        pod = prioritised(
            f"{self.name()}-0", priority, cpu=str(cpu), grace=40, annotations=notes, labels=labels
        )
        if recreated:
            self.world.recreated.add(pod.metadata.name)
        self.world.add(pod)
        self.world.settle(1)

    @rule(priority=PRIORITIES, size=st.integers(2, 4), short=st.integers(0, 2))
    def gang(self, priority: int, size: int, short: int) -> None:
        name, minimum = self.name(), max(1, size - short)
        self.world.minimum[name] = minimum
        self.world.add(*gang(name, size, priority, minimum=minimum, grace=40))
        self.world.settle(1)

    @rule(allowed=st.integers(0, 2))
    def budget(self, allowed: int) -> None:
        self.world.budgets.clear()
        self.world.protect(budget("db", allowed, app="db"))

    @rule(seconds=st.sampled_from((1, 5, 15, 60)))
    def wait(self, seconds: int) -> None:
        self.world.settle(seconds)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        names_ = sorted(name for name in self.world.pods)
        if names_:
            self.world.remove(data.draw(st.sampled_from(names_)))
            self.world.settle(1)

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.world.settle(1)

    @invariant()
    def no_node_is_overcommitted(self) -> None:
        if not hasattr(self, "world"):
            return
        for node in self.world.nodes:
            size = int((node.status.allocatable or {})["cpu"])
            used = sum(
                pod_requests(pod)["cpu"] // 1000
                for pod in self.world.pods.values()
                if pod.spec.node_name == node.name and not pod.is_terminal
            )
            assert used <= size

    @invariant()
    def nominations_are_earmarks(self) -> None:
        """No nomination without an earmark, once all is written (k8s #106780)."""
        if not hasattr(self, "world"):
            return
        self.world.settle(0)
        preemption = self.world.scheduler.state.preemption
        wanted = preemption._wanted_nodes()
        for pod in self.world.pods.values():
            if not pod.spec.node_name:
                assert pod.status.nominated_node_name == wanted.get(pod.metadata.uid)

    @rule()
    def an_earmark_comes_to_a_start(self) -> None:
        """P1: some minutes without anything new, and nobody waits for seats that are being freed."""
        self.world.settle(200)
        assert not self.world.scheduler.state.preemption._earmarks

    @rule()
    def nobody_ends_for_nothing_and_not_for_ever(self) -> None:
        """P1, P3, P6: whoever had others ended while nothing else happened runs then, or was ended itself;
        and after some time nobody is ended any more, though controllers make new pods."""
        self.world.settle(200)
        self.world.preemptors.clear()
        self.world.settle(1000)
        for uid, name in self.world.preemptors.items():
            pod = self.world.pods.get(name)
            runs = pod is not None and pod.spec.node_name is not None
            assert runs or uid in self.world.killed, f"others ended for {name}, which does not run"
        before = len(self.world.killed)
        self.world.settle(1000)
        assert len(self.world.killed) == before, "P6"

    @invariant()
    def promises_are_kept(self) -> None:
        """P7: a promise is broken by an overrun, a restart or a loss, never by a preemption."""
        if not hasattr(self, "world"):
            return
        for record in self.world.scheduler.state.queue.records.values():
            for each in record.broken:
                assert each.cause.code.value in (
                    "RunsPastLimit",
                    "Restarted",
                    "Overtaken",
                ), each.cause


PreemptionMachine.TestCase.settings = MACHINE
TestPreemption = PreemptionMachine.TestCase
