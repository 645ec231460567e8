"""Releases: held Jobs that have placements, until the watch shows them released.

The lifecycle orders a release when a gang with placeholders starts. `Releasing` hands out releases, and the
binds of pods that took over from placeholders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fluence.backoff import Backoff
from fluence.model.grant import ReleaseNote
from fluence.model.job_state import JobState
from fluence.model.owner import Owner, StatefulSet
from fluence.schedule.actions import BindOutcome, Release, ReleaseResult
from fluence.schedule.events import Changed, Event, NotBound, ReleaseFinished
from fluence.schedule.queueing.placeholder import is_placeholder, owner_of, placeholder_uid
from fluence.schedule.step import Step, working_on

if TYPE_CHECKING:
    from fluence.schedule.binding import Binding
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.gangs.groups import Groups
    from fluence.schedule.pod_set import PodSet, PodSets
    from fluence.schedule.queueing.placeholders import Placeholders
    from fluence.schedule.volumes import VolumeChecks


class Releases:
    """Ordered releases by the identity of the Job. ``first`` and ``most`` are the shortest and the longest
    pause in milliseconds."""

    def __init__(self, first: int, most: int) -> None:
        self._backoff = Backoff(first, most)
        self._ordered: dict[str, Release] = {}  # not seen released yet
        self._due: dict[str, int] = {}  # when to send it
        self._tries: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._ordered

    def order(self, release: Release, now: int) -> None:
        self._ordered[release.key] = release
        self._due[release.key] = now

    def again(self, release: Release, now: int) -> None:
        """Try a failed release again, unless another one was ordered since."""
        key = release.key
        ordered = self._ordered.get(key)
        if ordered is not None and ordered.note == release.note:
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            self._due[key] = now + self._backoff.after(tries)

    def forget(self, key: str) -> None:
        """Drop a release that was carried out or is not wanted any more."""
        self._ordered.pop(key, None)
        self._due.pop(key, None)
        self._tries.pop(key, None)

    def take_due(self, now: int) -> list[Release]:
        """The releases to send now. They stay ordered."""
        keys = [key for key, at in self._due.items() if at <= now]
        for key in keys:
            del self._due[key]
        return [self._ordered[key] for key in keys]

    def next_due(self) -> int | None:
        return min(self._due.values(), default=None)


class Releasing(Step):
    """Releases held Jobs that have placements, and binds the pods that arrive for them together, like any
    gang. Pods are bound one by one if the gang has started or its owner creates one pod after the other."""

    def __init__(
        self,
        *,
        groups: Groups,
        pod_sets: PodSets,
        placeholders: Placeholders,
        releases: Releases,
        volumes: VolumeChecks,
        binding: Binding,
    ) -> None:
        self._groups = groups
        self._pod_sets = pod_sets
        self._placeholders = placeholders
        self._releases = releases
        self._volumes = volumes
        self._binding = binding

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, ReleaseFinished):
            self._release_finished(event.result, now)
        elif isinstance(event, Changed) and isinstance(owner := event.object, Owner):
            self._owner_changed(owner, gone=event.new is None)

    def next_due(self) -> int | None:
        return self._releases.next_due()

    def run(self, now: int, decisions: Decisions) -> None:
        for key, owner in self._placeholders.unplanned.items():
            if key not in self._releases:
                note = ReleaseNote("", "", (), owner.metadata.generation or 0)
                self._releases.order(Release(owner, "", note), now)
        for order in self._releases.take_due(now):
            self._send(order, decisions)
        for pod_set in list(self._pod_sets.expecting.values()):
            with working_on(pod_set.group):
                self._bind_arrived(pod_set, now, decisions)

    def _release_finished(self, result: ReleaseResult, now: int) -> None:
        """A successful release shows on the Job itself. A failed one is tried again: if the Job has changed,
        its own event arrives first and takes the placements from its placeholders."""
        releases = self._releases
        if result.outcome is BindOutcome.GONE:
            releases.forget(result.release.key)
        elif result.outcome is not BindOutcome.BOUND:
            releases.again(result.release, now)

    def _owner_changed(self, owner: Owner, *, gone: bool) -> None:
        if gone or not owner.spec.suspend:
            self._releases.forget(owner.identity)

    def _send(self, order: Release, decisions: Decisions) -> None:
        owner = self._groups.owner(order.key)
        uids = [placeholder_uid(order.key, index) for index, _ in order.note.nodes]
        placed = all(uid in self._pod_sets.by_pod for uid in uids)
        if owner is None or not owner.spec.suspend or not placed:
            self._releases.forget(order.key)
        elif not self._binding.lose_stale(uids):
            decisions.releases.append(replace(order, owner=owner))

    def _bind_arrived(self, pod_set: PodSet, now: int, decisions: Decisions) -> None:
        arrived = list(pod_set.arrived)
        if arrived and self._may_begin(pod_set) and not self._binding.lose_stale(arrived):
            binds = list(pod_set.arrived.values())
            pod_set.arrived.clear()
            starts = pod_set.state is JobState.STARTING
            if not starts or not self._volumes.prepare(pod_set, binds, now, decisions):
                decisions.binds.append(binds)
        if not pod_set.arrived and not pod_set.expects:
            self._pod_sets.expecting.pop(pod_set.key, None)

    def _may_begin(self, pod_set: PodSet) -> bool:
        """Whether the pods that have arrived may be bound now, even if others do not exist yet."""
        gang = self._groups.gang(pod_set.group)
        if gang is None:
            return False
        if any(pod.spec.node_name and not is_placeholder(pod) for pod in gang.placed):
            return True
        awaited = [pod for pod in pod_set.pods if pod.metadata.uid in pod_set.alive and is_placeholder(pod)]
        if any(not isinstance(self._groups.owner(owner_of(pod)), StatefulSet) for pod in awaited):
            return False
        seated = sum(pod.metadata.uid in self._pod_sets.by_pod for pod in gang.members)
        return gang.needed <= seated
