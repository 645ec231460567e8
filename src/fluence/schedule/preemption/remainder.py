"""Remainder: what is left of a gang ends too, if the end of the whole gang was cut short.

A crash, or a fault of the server, can come when some pods of a gang are deleted and others are not. All of
them are marked with `DisruptionTarget` before the first is deleted. The roles `edit` and `admin` cannot write
the status of a pod, so a user cannot forge that mark. Any process finds the pods that are left. If they are
fewer than the gang needs, they are ended as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from fluence.model.pod import Pod
from fluence.schedule.actions import Preempt
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSets
from fluence.schedule.preemption.rules import PAUSES


class Remainder:
    """``on_nodes``: the pods that run and are not being deleted, by uid."""

    def __init__(self, groups: Groups, pod_sets: PodSets, on_nodes: Mapping[str, object]) -> None:
        self._groups = groups
        self._pod_sets = pod_sets
        self._on_nodes = on_nodes
        self._marked: set[str] = set()
        self._again: dict[str, tuple[int, int]] = {}  # by gang: when to order its end again, and the pause
        self.ordered: dict[str, str] = {}
        """Pods whose end was ordered and is not seen yet, with their groups."""

    def note(self, uid: str, *, is_marked: bool) -> None:
        """Whether a pod runs on though it is marked."""
        if is_marked:
            self._marked.add(uid)
        else:
            self._marked.discard(uid)

    def orders(self, now: int, ordered: Collection[str]) -> Iterator[Preempt]:
        """Whose end is to be ordered now. ``ordered``: the pods that end by other orders."""
        if not self._marked:
            self._again.clear()
            self.ordered.clear()
            return
        sets = (self._pod_sets.by_pod.get(uid) for uid in self._marked if uid not in ordered)
        cut = {group: pods for group in {each.group for each in sets if each} if (pods := self._cut(group))}
        self.ordered = {pod.metadata.uid: group for group, pods in cut.items() for pod in pods}
        for group in self._again.keys() - cut.keys():
            del self._again[group]
        for group, pods in sorted(cut.items()):
            at, pause = self._again.get(group, (now, PAUSES.first))
            if at <= now:
                self._again[group] = now + pause, PAUSES.longer(pause)
                priority = max(pod.spec.priority or 0 for pod in pods)
                yield Preempt(group, pods, (), None, priority, priority, ())

    def next_due(self) -> int | None:
        return min((at for at, _ in self._again.values()), default=None)

    def _cut(self, group: str) -> tuple[Pod, ...]:
        """The pods that are left of a gang, if they are too few and all of them were to end."""
        gang = self._groups.gang(group)
        pods = () if gang is None else tuple(pod for pod in gang.placed if pod.metadata.uid in self._on_nodes)
        is_cut = gang is not None and len(pods) < gang.minimum
        return pods if is_cut and all(pod.metadata.uid in self._marked for pod in pods) else ()
