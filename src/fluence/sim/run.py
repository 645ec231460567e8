"""One simulated run: what became of each job, the figures, and how the run was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fluence.sim.measure import Measures, Record, busy, measure


@dataclass(frozen=True)
class Run:
    """A run of a workload on a cluster under one policy."""

    policy: str
    """What the run is called beside others."""
    records: Sequence[Record]
    capacity: int
    unit: str = "core"
    settings: Mapping[str, object] = field(default_factory=dict)
    """How it was made, for people: trace, cluster, scale of arrivals, and what else was chosen."""
    decisions_per_s: float = 0
    wall_s: float = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Records of the workload that were left out: cause -> how many."""
    interrupted: bool = False

    @cached_property
    def measures(self) -> Measures:
        return measure(self.records, capacity=self.capacity)

    @cached_property
    def last(self) -> int:
        """ms at which the last thing happened."""
        return max((record.end or record.start or record.submit for record in self.records), default=0)

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """How many units were held from when on, in ms."""
        return busy(self.records, until=self.last)
