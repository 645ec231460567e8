"""One simulated run: what became of each job, the figures, and how the run was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from fluence.sim.measure import Measures, Record, busy, last_event, measure

MATCHER = "matcher (Fluxion's answers on a graph)"
LIVE_CYCLE = "live cycle (gang placer, Kubernetes' rules)"


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
    engine: str = MATCHER
    """What decided: `MATCHER` or `LIVE_CYCLE`."""
    stopped_at: int | None = None
    """ms at which the run was cut short, by Ctrl-C or --until; None: it came to its end."""
    not_arrived: int = field(default=0, init=False)
    """Jobs that the run was cut short before; they are in no figure."""

    def __post_init__(self) -> None:
        if self.stopped_at is not None:
            arrived = [record for record in self.records if record.submit <= self.stopped_at]
            object.__setattr__(self, "not_arrived", len(self.records) - len(arrived))
            object.__setattr__(self, "records", arrived)

    @cached_property
    def measures(self) -> Measures:
        return measure(self.records, capacity=self.capacity, until=self.stopped_at)

    @cached_property
    def last(self) -> int:
        """ms at which the run ended."""
        return last_event(self.records) if self.stopped_at is None else self.stopped_at

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """How many units were held from when on, in ms."""
        return busy(self.records, until=self.last)
