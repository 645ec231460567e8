"""Part: pods of a group that start together, from the queue to their end.

A group is mostly one part. Members that come when the group has started, and those that found no seat beyond
its minimum, are parts of their own; so is what is left of a gang that a crash, a lost node or a refusal left
half bound, and then it is all or nothing up to the group's minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fluence.queue.job import Submission
from fluence.schedule.planner import PodSetRequest


class Stage(Enum):
    QUEUED = "queued"
    BINDING = "binding"  # its seats are held, and some of its pods are not bound yet
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class PodSet:
    """One job of the queue and the pods that it stands for."""

    gang: str
    job: Submission
    stage: Stage = Stage.QUEUED
    start: int = 0
    end: int | None = None
    unbound: dict[str, str] = field(default_factory=dict)  # uid -> node, once it has seats
    alive: set[str] = field(default_factory=set)  # with seats, and not over
    ended: set[str] = field(default_factory=set)  # over, while their seats are still held
    failed: bool = False  # a pod of it did not succeed

    @property
    def key(self) -> str:
        return self.job.key

    @property
    def request(self) -> PodSetRequest:
        assert isinstance(self.job.request, PodSetRequest)
        return self.job.request

    @property
    def number(self) -> int:
        return self.request.number
