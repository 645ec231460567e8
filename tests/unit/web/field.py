"""A scheduler with work of two namespaces, and snapshots of it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from fluence import names
from fluence.model.pod import Pod
from fluence.schedule.events import BindOutcome, BindResult
from fluence.web.view import DecisionLog, Snapshot, take
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver
from tests.unit.schedule.test_promised_starts import node

NOW = int(kit.T0.timestamp() * 1000)


class Sees:
    """A reader of some namespaces."""

    def __init__(self, *namespaces: str) -> None:
        self._namespaces = namespaces

    def sees(self, namespace: str) -> bool:
        return namespace in self._namespaces


ALL = Sees("physics", "biology", "default")


def gang(
    name: str,
    size: int,
    *,
    namespace: str = "physics",
    cpu: str = "32",
    limit: str = "1h",
    user: str = "",
    there: int | None = None,
) -> list[Pod]:
    """The pods of a gang, or so many of them as are ``there``."""
    annotations = {names.DURATION: limit, **({names.USER: user} if user else {})}
    labels = {kit.GROUP: name, kit.SIZE: str(size)}
    return [
        kit.pod(f"{name}-{i}", namespace=namespace, labels=labels, annotations=annotations, cpu=cpu)
        for i in range(size if there is None else there)
    ]


class Field:
    """Nodes of 32 cores; gangs come in the order of ``submit``."""

    def __init__(self, nodes: int = 4, policy: str = "conservative") -> None:
        self.driver = Driver(queue_policy=policy)
        self.log = DecisionLog()
        self.now = NOW
        for number in range(nodes):
            self.driver.set_node(node(f"n{number}"))

    def submit(self, pods: Iterable[Pod]) -> None:
        for pod in pods:
            self.driver.set_pod(pod)
        self.settle()

    def settle(self) -> None:
        """Cycles until nothing starts; every bind is carried out."""
        for _ in range(20):
            decisions = self.driver.cycle(self.now)
            self.log.note(decisions, self.now)
            for bind in (bind for binds in decisions.binds for bind in binds):
                meta = bind.pod.metadata
                bound = replace(
                    bind.pod,
                    metadata=replace(meta, annotations={**bind.pod.annotations, **bind.annotations}),
                    spec=replace(bind.pod.spec, node_name=bind.node),
                )
                self.driver.set_pod(bound)
                self.driver.told(BindResult(bind, BindOutcome.BOUND), self.now)
            if not decisions.binds and not self.driver.has_more:
                break

    def snapshot(self) -> Snapshot:
        return take(self.driver.scheduler, self.now, number=1, decisions=self.log.entries)
