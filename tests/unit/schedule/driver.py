"""A scheduler driven by hand: one call per event, and short ways to what it knows."""

from __future__ import annotations

from typing import Any

from fluence.cluster.claims import Claim
from fluence.model.meta import ObjectMeta
from fluence.model.node import Node
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import BindFinished, BindResult, Changed, Event
from fluence.schedule.scheduler import Scheduler, SchedulerConfig


class Driver:
    """``strict``: a fault inside the scheduler fails the test instead of being quarantined."""

    def __init__(self, *, strict: bool = True, **config: Any) -> None:
        self.scheduler = Scheduler(SchedulerConfig(**config))
        self.strict = strict
        self.now = 0
        self.faults: list[Any] = []

    def handle(self, *events: Event, decide: bool = False, now: int | None = None) -> Decisions:
        self.now = self.now if now is None else now
        decisions = self.scheduler.handle(events, self.now, decide=decide)
        self.faults += decisions.faults
        if self.strict and decisions.faults:
            raise decisions.faults[0].error
        return decisions

    # -- events ----------------------------------------------------------------------------------------------

    def set_node(self, node: Node) -> None:
        self.handle(Changed(None, node))

    def remove_node(self, name: str) -> None:
        self.handle(Changed(Node(metadata=ObjectMeta(name=name)), None))

    def set_pod(self, pod: Pod) -> None:
        self.handle(Changed(None, pod))

    def remove_pod(self, pod: Pod) -> None:
        self.handle(Changed(pod, None))

    def set_group(self, group: Group) -> None:
        self.handle(Changed(None, group))

    def remove_group(self, group: Group) -> None:
        self.handle(Changed(group, None))

    def set_owner(self, owner: Owner) -> None:
        self.handle(Changed(None, owner))

    def set_claim(self, namespace: str, name: str, claim: Claim | None) -> None:
        """What is known of a claim, past the objects that it would follow from."""
        self.scheduler.state.claim_changes.claims_changed([(namespace, name, claim)])

    def told(self, result: BindResult, now: int) -> None:
        self.handle(BindFinished(result), now=now)

    def cycle(self, now: int) -> Decisions:
        return self.handle(decide=True, now=now)

    def next_due(self) -> int | None:
        return self.scheduler.next_due()

    # -- what it knows ---------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        scheduler = self.__dict__["scheduler"]
        for part in (scheduler.state, scheduler.state.changes):
            if hasattr(part, name):
                return getattr(part, name)
        return getattr(scheduler, name)
