"""State: the parts of one scheduler, and what happened to them since the last cycle.

Made by `Scheduler`; the observer of events, the lifecycle of pod sets and the cycle work on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from fluence.cluster.claims import Claims
from fluence.cluster.filters.volumes import mounts
from fluence.cluster.graph import ClusterGraph
from fluence.model.pod import Pod
from fluence.queue import Queue
from fluence.queue.budget import CycleBudget
from fluence.schedule.bind_retries import BindRetries
from fluence.schedule.device_config import DeviceConfig
from fluence.schedule.dynamic_resources import DynamicResources
from fluence.schedule.enforcement import Enforcement
from fluence.schedule.exclusions import Exclusions
from fluence.schedule.groups import Groups
from fluence.schedule.journal import Journal
from fluence.schedule.planner import ClusterPlanner
from fluence.schedule.pod_set import PodSets
from fluence.schedule.producer_gates import ProducerGates
from fluence.schedule.releases import Releases
from fluence.schedule.settling import Settling
from fluence.schedule.stand_ins import StandIns
from fluence.schedule.status_reports import StatusReports
from fluence.schedule.takeover import Takeover
from fluence.schedule.volume_binding import VolumeBindings
from fluence.schedule.warnings import Warnings

SLICE = 128  # groups that are taken in per cycle: the first binds need not wait for the last list
_AT_ONCE = (-(1 << 40), 0.0)


class SchedulerState:
    """What a scheduler knows."""

    def __init__(
        self,
        groups: Groups,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        *,
        backoff: tuple[int, int],
        volume_timeout: int,
        settle: int,
        enforcement: Enforcement,
        producer_gates: ProducerGates,
        report_budget: CycleBudget,
        devices: DeviceConfig,
        takeover: Takeover,
        history: bool = False,
    ) -> None:
        self.groups = groups
        self.cluster = cluster
        self.claims = Claims()
        self.planner = planner
        self.queue = queue
        self.pod_sets = PodSets()
        self.exclusions = Exclusions()
        self.settling = Settling(settle)
        self.retries = BindRetries(*backoff)
        self.dynamic = DynamicResources()
        self.stand_ins = StandIns(groups.scheduler)
        groups.withheld = self.stand_ins.withheld
        self.releases = Releases(*backoff)
        self.volumes = VolumeBindings(cluster, timeout=volume_timeout)
        self.reports = StatusReports(groups, queue, planner, report_budget)
        self.journal = Journal(groups, cluster, self.pod_sets, self.reports, kept=history)
        self.warnings = Warnings()
        self.enforcement = enforcement
        self.producer_gates = producer_gates
        self.takeover = takeover
        self._last_queued = 0
        self.devices = devices
        cluster.set_devices(devices.tree)
        self.subject = ""  # the group that is being worked on, to name it if that fails
        self.queue_changed = True  # a job came or went: the plan is to be asked
        self.cluster_changed = False  # what the cluster could hold if it were empty may have changed
        self.judge_again: set[str] = set()  # pod sets whose claims changed
        self._plan_saw = (-1, -1, -1)
        self._touched: dict[str, None] = {}  # groups, in the order in which something happened to them
        self._rank: dict[str, tuple[int, float]] = {}  # of groups with pods that wait

    # -- the plan --------------------------------------------------------------------------------------------

    def plan_is_due(self, now: int) -> bool:
        """Whether the plan is to be asked although no job came or went: room came free or was lost, or its
        next time has come."""
        due = self.queue.next_due()
        waits = self.queue.has_more or self._plan_saw != self._resources()
        return waits or (due is not None and due <= now)

    def plan_was_asked(self) -> None:
        self._plan_saw = self._resources()

    def _resources(self) -> tuple[int, int, int]:
        return self.planner.freed, self.planner.opened, self.planner.lost

    # -- groups that changed ---------------------------------------------------------------------------------

    @property
    def has_touched(self) -> bool:
        return bool(self._touched)

    @property
    def touched(self) -> Iterable[str]:
        return self._touched

    def next_queued(self, now: int) -> int:
        """When something that is new came, in microseconds; no two at once."""
        self._last_queued = max(now * 1000, self._last_queued + 1)
        return self._last_queued

    def touch(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._touched[group] = None

    def rank(self, group: str, pod: Pod) -> None:
        """A pod of a group waits: groups are taken in by priority and age."""
        created = pod.metadata.creation_timestamp
        rank = (-(pod.spec.priority or 0), created.timestamp() if created is not None else 0.0)
        self._rank[group] = min(rank, self._rank.get(group, rank))

    def unrank(self, group: str) -> None:
        self._rank.pop(group, None)

    def take_touched(self) -> list[str]:
        """Some of the groups that changed: all if they are few, else the first in the queue's order, and of
        each namespace as many as of the others as long as they have any."""
        groups = list(self._touched)
        if len(groups) > SLICE:
            groups = self._first(groups)
        for group in groups:
            del self._touched[group]
        return groups

    def _first(self, groups: list[str]) -> list[str]:
        by_namespace: dict[str, list[str]] = {}
        for group in groups:
            by_namespace.setdefault(group.partition("/")[0], []).append(group)
        chosen: list[str] = []
        # Those with few groups first: what they leave of their share is for the others.
        waiting = sorted(by_namespace.values(), key=len)
        for turn, some in enumerate(waiting):
            share = -(-(SLICE - len(chosen)) // (len(waiting) - turn))
            chosen += nsmallest(share, some, key=lambda group: self._rank.get(group, _AT_ONCE))
        return sorted(chosen, key=lambda group: self._rank.get(group, _AT_ONCE))

    # -- claims ----------------------------------------------------------------------------------------------

    def claims_given_up(self, pod: Pod) -> None:
        """A pod lets its claims go: a single other pod may use some of them."""
        if pod.spec.volumes:
            self.judge_again |= self.pod_sets.mounting(mounts(pod))

    # -- time ------------------------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """When to run a cycle even if nothing happens."""
        times = (
            self.queue.next_due(),
            self.volumes.next_due(),
            self.exclusions.next_due(),
            self.settling.next_due(),
            self.retries.next_due(),
            self.releases.next_due(),
            self.stand_ins.next_due(),
            self.enforcement.next_due(),
            self.producer_gates.next_due(),
            self.reports.next_due(),
        )
        return min((at for at in times if at is not None), default=None)
