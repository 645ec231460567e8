"""Takeover: what those that wait were told by the scheduler before this one, until all of them are taken in.

A start that was told stands on the pods (`recovery.promise_of`) or on a FluxJob; where the state is built
anew within a process, its last queue knows it. The cycle asks for it as it takes in the groups that were
there at its beginning, and plans when it has them all: a plan made for the first of them would give away
what the others were told. Changes that come later are another matter: who asks for something else is told
anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from fluence.model.owner import Owner, claimed_by, identity
from fluence.model.pod import Pod
from fluence.schedule.recovery import Promise, promise_of

_LONGEST = 10_000  # that a plan waits for groups to be taken in


@dataclass(frozen=True, slots=True)
class Told:
    """What one that waits was told of its start, and when it came."""

    promise: Promise | None = None
    queued: int | None = None  # microseconds
    generation: int | None = None  # of the workload that the promise was made for; None: unknown


class Takeover:
    """``said`` by the key of a pod set, or by the identity of a workload that is held."""

    def __init__(self, said: Mapping[str, Told] | None = None) -> None:
        self.said = dict(said or {})
        self._backlog: set[str] | None = None  # groups that were there, and are not taken in
        self._ends = 0
        self._has_told = False

    def remember(self, said: Mapping[str, Told]) -> None:
        """What others know of what was told. After the first cycle it is too late for it."""
        if self._backlog is None:
            self.said.update(said)

    def begin(self, groups: Iterable[str], now: int) -> None:
        """A cycle runs; the first one finds these groups."""
        if self._backlog is None:
            self._backlog, self._ends = set(groups), now + _LONGEST
            if not self._backlog:
                self.said.clear()  # nobody is there any more
            self._has_told = bool(self.said)

    def took(self, group: str, now: int) -> None:
        """A group was taken in."""
        if self._backlog:
            self._backlog.discard(group)
            if not self._backlog or now > self._ends:
                self._backlog.clear()
                self.said.clear()

    def found(self, group: str) -> bool:
        """Whether a group was there at the beginning, and is being taken in."""
        return self._backlog is not None and group in self._backlog

    @property
    def holds_back(self) -> bool:
        """Whether the plan waits for others that were told of a start."""
        return self._has_told and bool(self._backlog)

    @property
    def has_begun(self) -> bool:
        """Whether a cycle has run."""
        return self._backlog is not None

    def told(
        self, group: str, key: str, pods: Iterable[Pod], owners: Callable[[Pod], Iterable[Owner]]
    ) -> Told | None:
        """What the pods of a group were told, under the key of their pod set, or with one of their owners."""
        if self._backlog is not None and group not in self._backlog:
            return None
        pods = tuple(pods)
        found = self.said.get(key) or (self._of_workloads(pods, owners) if self.said else None)
        if found is None and (promise := promise_of(pods)) is not None:
            found = Told(promise)
        self._has_told = self._has_told or (found is not None and found.promise is not None)
        return found

    def _of_workloads(self, pods: tuple[Pod, ...], owners: Callable[[Pod], Iterable[Owner]]) -> Told | None:
        """What the workloads of some pods were told. A promise holds for workloads that are as they were, and
        for nobody else: who asks for more while no scheduler looks is told anew."""
        found: dict[str, Told] = {}
        holds = True
        for pod in pods:
            known = [
                (self.said[each], now, each) for each, now in _workloads(pod, owners) if each in self.said
            ]
            found.update((each, said) for said, _, each in known)
            holds = holds and any(said.generation in (None, now) for said, now, _ in known)
        first = next(iter(found.values()), None)
        return first if first is None or holds else replace(first, promise=None)


def _workloads(pod: Pod, owners: Callable[[Pod], Iterable[Owner]]) -> Iterator[tuple[str, int]]:
    """The identity and the generation of a pod, and of the owners that claim it."""
    meta = pod.metadata
    yield identity(meta.namespace, "Pod", meta.name, meta.uid), meta.generation or 0
    for owner in claimed_by(meta, owners(pod)):
        yield owner.identity, owner.metadata.generation or 0
