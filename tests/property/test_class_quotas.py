"""Limits of classes of nodes: whatever pods come, end and go, and whatever happens to nodes, limits and the
process, what starts passes no limit of a class, and what is counted is what is there (Q1, Q2)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fluence import names
from fluence.model.pod import Pod, pod_requests
from fluence.model.queues import Resource
from tests.unit.cluster.build import node
from tests.unit.schedule.test_cluster_queues import DEFAULT, MINUTE, SETTLED, World, _over, member, queue

LEAVES, MODELS, NODES = ("a", "b"), ("x", "y"), ("n0", "n1", "n2", "n3")
PARENT = {"a": "top", "b": "top"}
CLASSES = {model: {"matchLabels": {"model": model}} for model in MODELS}
LEFT = "z"  # nodes of no class


class ClassQuotas(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.limits = {(name, model): 3 for name in ("top", *LEAVES) for model in MODELS}
        self.models = dict(zip(NODES, ("x", "x", "y", LEFT), strict=True))
        self.allowed: dict[tuple[str, str], int] = {}  # what ran beyond a limit when that changed
        self.world = World(DEFAULT, *(self.object(name) for name in ("top", *LEAVES)))
        self.world.put(*(self.machine(name) for name in NODES))
        self.world.wait(SETTLED)
        self.serial = 0

    def object(self, name: str) -> Any:
        above = {"parent": PARENT[name]} if name in PARENT else {"nodeClasses": CLASSES}
        limit = {f"cpu@{model}": self.limits[name, model] for model in MODELS}
        return queue(name, limit=limit, **above)

    def machine(self, name: str) -> Any:
        return node(name, labels={"model": self.models[name]})

    # -- what happens ----------------------------------------------------------------------------------------

    @rule(
        leaf=st.sampled_from(LEAVES),
        size=st.integers(1, 3),
        cpu=st.integers(1, 2),
        model=st.sampled_from([None, None, *MODELS]),
        limited=st.booleans(),
        priority=st.sampled_from([0, 0, 5]),
    )
    def submit(self, leaf: str, size: int, cpu: int, model: str | None, limited: bool, priority: int) -> None:
        self.serial += 1
        notes = {names.GROUP_SIZE: str(size), **({names.DURATION: "10m"} if limited else {})}
        labels = {names.GROUP_LABEL: f"g{self.serial}", "leaf": leaf}
        where: dict[str, Any] = {"node_selector": {"model": model}} if model else {}
        made = [
            member(
                f"g{self.serial}-{n}",
                leaf,
                cpu=str(cpu),
                labels=labels,
                annotations=notes,
                priority=priority,
                **where,
            )
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
        self.world.remove(data.draw(st.sampled_from(sorted(self.pods(), key=lambda pod: pod.key))))

    @rule(name=st.sampled_from(["top", *LEAVES]), model=st.sampled_from(MODELS), limit=st.integers(0, 6))
    def change(self, name: str, model: str, limit: int) -> None:
        self.limits[name, model] = limit
        self.world.put(self.object(name))
        self.world.wait(SETTLED)
        self.allow()

    @rule(name=st.sampled_from(NODES), model=st.sampled_from([*MODELS, LEFT]))
    def relabel(self, name: str, model: str) -> None:
        """What runs there counts in the other class from now on."""
        self.models[name] = model
        ran = self.world.bound
        self.world.put(self.machine(name))
        self.allow(ran)

    @rule()
    def restart(self) -> None:
        self.world = self.world.restarted()

    @rule(length=st.sampled_from([1_000, 20_000, 11 * MINUTE]))
    def wait(self, length: int) -> None:
        self.world.wait(length)

    # -- what must hold --------------------------------------------------------------------------------------

    def pods(self) -> list[Pod]:
        return [item for (kind, _), item in self.world.objects.items() if kind == "Pod"]

    def used(self, name: str, model: str, only: set[str] | None = None) -> int:
        """Cores that pods hold on nodes of a class, in a queue and below it."""
        cores = 0
        for pod in self.pods():
            leaf = (pod.metadata.labels or {})["leaf"]
            is_there = pod.spec.node_name and not pod.is_terminal and name in (leaf, PARENT[leaf])
            is_there = is_there and (only is None or pod.metadata.name in only)
            if is_there and self.models[pod.spec.node_name or ""] == model:
                cores += pod_requests(pod)["cpu"] // 1000
        return cores

    def allow(self, only: set[str] | None = None) -> None:
        self.allowed = {each: self.used(*each, only) for each in self.limits}

    @invariant()
    def no_limit_is_passed(self) -> None:
        for each, limit in self.limits.items():
            used = self.used(*each)
            self.allowed[each] = min(self.allowed.get(each, 0), used)
            assert used <= max(limit, self.allowed[each]), (each, used, limit)

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        quotas = self.world.scheduler.state.queue.quotas
        assert quotas is not None
        counted = quotas.usage()
        for leaf in LEAVES:
            for model in MODELS:
                cores = counted.get(leaf, {}).get(Resource("cpu", model), 0)
                assert cores >= 1000 * self.used(leaf, model), (leaf, model, cores)

    @invariant()
    def nothing_leaks(self) -> None:
        quotas = self.world.scheduler.state.queue.quotas
        if quotas is not None and not self.pods():
            assert not quotas.usage()
            assert not quotas.used(self.world.now)


TestClassQuotas = ClassQuotas.TestCase
TestClassQuotas.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
