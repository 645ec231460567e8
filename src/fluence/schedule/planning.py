"""Planning: asks the plan which jobs start, and assumes their placements at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluence.cluster.graph import ClusterGraph
from fluence.queue import Queue
from fluence.queue.policy import PluginFault
from fluence.schedule.changes import Changes
from fluence.schedule.history import Journal
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.restart import Takeover
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Step, working_on
from fluence.schedule.volumes import VolumeChecks

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


class Planning(Step):
    """Starts jobs by the plan of the queue."""

    def __init__(
        self,
        *,
        queue: Queue,
        cluster: ClusterGraph,
        pod_sets: PodSets,
        takeover: Takeover,
        volumes: VolumeChecks,
        reports: StatusReports,
        journal: Journal,
        lifecycle: Lifecycle,
        changes: Changes,
    ) -> None:
        self._queue = queue
        self._cluster = cluster
        self._pod_sets = pod_sets
        self._takeover = takeover
        self._volumes = volumes
        self._reports = reports
        self._journal = journal
        self._lifecycle = lifecycle
        self._changes = changes

    def next_due(self) -> int | None:
        return self._queue.next_due()

    def run(self, now: int, decisions: Decisions) -> None:
        self._plan(now, decisions)
        decisions.plugin_faults = self._queue.take_faults() + [
            PluginFault(f"match policy {name}", error)
            for name, error in self._cluster.fit.table.take_policy_faults()
        ]

    def _plan(self, now: int, decisions: Decisions) -> None:
        changes = self._changes
        if not (changes.queue_changed or changes.plan_is_due(now)) or self._takeover.holds_back:
            return
        changes.queue_changed = False
        for start in self._queue.cycle(now):
            pod_set = self._pod_sets.by_key[start.record.key]
            with working_on(pod_set.group):
                binds = self._lifecycle.start(start, now)
                if binds and not self._volumes.prepare(pod_set, binds, now, decisions):
                    decisions.binds.append(binds)
        for record in self._queue.promises.take_changed():
            self._reports.want(record.key)
            if isinstance(record, PodSet):
                self._journal.note(record)
        changes.plan_was_asked()
