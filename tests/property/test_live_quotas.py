"""Quotas of the live scheduler: whatever happens to pods, queues and the process, no limit is passed by what
starts, and what is counted is what is there (Q1, Q2, Q5).

A scheduler with real gangs is driven by events. Pods come, end and go; limits change, queues are deleted, the
process is started anew. After each step the pods on nodes are counted by hand.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluence import names
from fluence.model.pod import Pod, pod_requests
from tests.unit.schedule.test_cluster_queues import DEFAULT, MINUTE, SETTLED, World, _over, member, queue

LEAVES = ("a", "b")
PARENT = {"a": "top", "b": "top"}


class LiveQuotas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits: dict[str, int] = {"top": 6, "a": 4, "b": 4}
        self.allowed: dict[str, int] = {}  # what ran beyond a limit when that was lowered
        self.world = World(DEFAULT, *(self.object(name) for name in self.limits))
        self.serial = 0
        self.ended: set[str] = set()

    def object(self, name: str) -> Any:
        above = {"parent": PARENT[name]} if name in PARENT else {}
        return queue(name, limit={"cpu": self.limits[name]}, **above)

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(leaf=st.sampled_from(LEAVES), size=st.integers(1, 3), cpu=st.integers(1, 2), limited=st.booleans())
    def submit(self, leaf: str, size: int, cpu: int, limited: bool) -> None:
        self.serial += 1
        notes = {names.GROUP_SIZE: str(size), **({names.DURATION: "10m"} if limited else {})}
        labels = {names.GROUP_LABEL: f"g{self.serial}", "leaf": leaf}
        made = [
            member(f"g{self.serial}-{n}", leaf, cpu=str(cpu), labels=labels, annotations=notes)
            for n in range(size)
        ]
        self.world.put(*made)

    @precondition(lambda self: self.world.bound)
    @rule(data=st.data(), phase=st.sampled_from(["Succeeded", "Failed"]))
    def end(self, data: st.DataObject, phase: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.bound)))
        self.world.put(_over(self.world.objects["Pod", f"default/{name}"], phase))

    @precondition(lambda self: self.pods())
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        pod = data.draw(st.sampled_from(sorted(self.pods(), key=lambda pod: pod.key)))
        self.world.remove(pod)

    @rule(name=st.sampled_from(["top", *LEAVES]), limit=st.integers(0, 8))
    def change(self, name: str, limit: int) -> None:
        self.limits[name] = limit
        self.world.put(self.object(name))
        self.world.wait(SETTLED)
        self.allowed = {each: self.used(each) for each in self.limits}

    @rule()
    def break_the_tree(self) -> None:
        """A cycle changes nothing, however long it stands."""
        self.world.put(queue("top", parent="a", limit={"cpu": 100}))
        self.world.wait(SETTLED)
        self.world.wait(MINUTE)
        self.check()
        self.world.put(self.object("top"))
        self.world.wait(SETTLED)

    @rule()
    def restart(self) -> None:
        self.world = self.world.restarted()

    @rule(length=st.sampled_from([1_000, 20_000, 11 * MINUTE]))
    def wait(self, length: int) -> None:
        self.world.wait(length)

    # -- what must hold --------------------------------------------------------------------------------------

    def pods(self) -> list[Pod]:
        return [item for (kind, _), item in self.world.objects.items() if kind == "Pod"]

    def used(self, name: str) -> int:
        """Cores that pods on nodes hold in a queue and below it. A seat of a pod that has ended is held until
        its gang is over, and counts: this is the least that must be counted."""
        cores = 0
        for pod in self.pods():
            leaf = (pod.metadata.labels or {})["leaf"]
            if pod.spec.node_name and not pod.is_terminal and name in (leaf, PARENT[leaf]):
                cores += pod_requests(pod)["cpu"] // 1000
        return cores

    @invariant()
    def check(self) -> None:
        for name, limit in self.limits.items():
            used = self.used(name)
            self.allowed[name] = min(self.allowed.get(name, 0), used)
            assert used <= max(limit, self.allowed[name]), (name, used, limit)

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        quotas = self.world.scheduler.state.queue.quotas
        assert quotas is not None
        counted = quotas.usage()
        for leaf in LEAVES:
            cores = sum(
                amount for resource, amount in counted.get(leaf, {}).items() if resource.name == "cpu"
            )
            assert cores >= 1000 * self.used(leaf), (leaf, cores, self.used(leaf))


TestLiveQuotas = LiveQuotas.TestCase
TestLiveQuotas.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_nothing_is_counted_when_nothing_runs() -> None:
    """Whatever was counted is taken back: else quota leaks."""
    machine = LiveQuotas()
    for size in (1, 2, 3, 2, 1):
        machine.submit("a", size, 1, False)
    machine.restart()
    while machine.world.bound:
        name = min(machine.world.bound)
        machine.world.put(_over(machine.world.objects["Pod", f"default/{name}"], "Succeeded"))
    quotas = machine.world.scheduler.state.queue.quotas
    assert quotas is not None and not quotas.usage() and not quotas.used(machine.world.now)
