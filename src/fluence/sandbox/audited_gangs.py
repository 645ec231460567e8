"""Audited gangs: who belongs together, how many must run together, and who ran in part for too long; pure.

The auditor does not ask the scheduler, and shares no code with it: what is said here follows from pods, their
owners and PodGroups alone. These are gangs, the first that holds:

    a native group, or a coscheduling PodGroup    its minCount or minMember
    a label or annotation that names a group      its declared size; else the sum over its owners and pods
    a declared size on a Job or another owner     that size
    an owner that was held back (FluxJobs)        what it runs at a time

A gang is in part while some of its members have nodes and too few. Once it was whole, what becomes of its
members is no matter of the scheduler's start: pods fail, nodes go, owners are scaled. When nothing of it runs
any more it starts anew. A group that names no size grows with each owner and pod that comes; it counts as
whole when nothing new has come for ``OPEN_S``, so that a first member that starts alone is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from fluence import names
from fluence.model.group import Group
from fluence.model.held import is_seen
from fluence.model.owner import Job, Owner, StatefulSet
from fluence.model.pod import Pod

Found: TypeAlias = "list[tuple[str, str]]"  # keys of gangs, and what was wrong

OPEN_S = 2.0  # less than a scheduler's settling time: who comes later may be late
_LONGEST = 4  # chain of owners


class _Place(NamedTuple):
    """The gang that a pod belongs to, and what the pod says of its size."""

    key: str
    is_native: bool
    is_named: bool  # by a group, and not by its owner
    owner: str | None  # that made the pod
    size: int  # that the pod declares; 0: none
    above: int  # that its owners declare


@dataclass(slots=True)
class _Gang:
    """The members of a gang, by uid."""

    key: str
    is_native: bool
    is_named: bool
    members: dict[str, _Place] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)  # have a node, and stay
    ended: dict[str, Pod] = field(default_factory=dict)  # had a node while others of it ran
    past: set[str] = field(default_factory=set)  # had one in an earlier run
    owners: Counter[str] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    above: Counter[int] = field(default_factory=Counter)
    free: int = 0  # members without an owner
    newest: float = 0.0  # when the last owner, or pod without one, came
    part_since: float | None = None
    whole: bool = False
    told: bool = False

    @property
    def had_nodes(self) -> int:
        return len(self.running) + len(self.ended)

    def join(self, uid: str, place: _Place, now: float) -> None:
        if self.members.get(uid) == place:
            return
        self.leave(uid)
        self.members[uid] = place
        if place.owner is None or place.owner not in self.owners:
            self.newest = now
        self._count(place, 1)

    def leave(self, uid: str) -> None:
        place = self.members.pop(uid, None)
        if place is not None:
            self._count(place, -1)

    def _count(self, place: _Place, by: int) -> None:
        for held, what in ((self.owners, place.owner), (self.sizes, place.size), (self.above, place.above)):
            if what:
                held[what] += by  # type: ignore[index]
                if not held[what]:  # type: ignore[index]
                    del held[what]
        self.free += by * (place.owner is None)


class AuditedGangs:
    """Feed it changes; it answers with what it found."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._groups: dict[str, dict[str, Group]] = {}  # by key, by source
        self._owners: dict[str, Owner] = {}
        self._pods: dict[str, tuple[Pod, str | None]] = {}  # by uid: and its native group
        self._owned: dict[str, set[str]] = {}  # owner -> pods
        self._natives: dict[str, set[str]] = {}  # native group -> pods
        self._gangs: dict[str, _Gang] = {}
        self._gang_of: dict[str, str] = {}  # pod -> gang
        self._began: set[str] = set()

    @property
    def seen(self) -> int:
        """How many gangs had members on nodes."""
        return len(self._began)

    # -- what happens ----------------------------------------------------------------------------------------

    def group(self, old: Group | None, new: Group | None, *, now: float) -> Found:
        shown = new if new is not None else old
        if shown is None:
            return []
        if new is not None:
            self._groups.setdefault(new.key, {})[new.source] = new
        else:
            self._groups.get(shown.key, {}).pop(shown.source, None)
        return self._again(self._natives.get(shown.key, ()), now)

    def owner(self, old: Owner | None, new: Owner | None, *, now: float) -> Found:
        shown = new if new is not None else old
        if shown is None:
            return []
        if new is not None:
            self._owners[new.metadata.uid] = new
        else:
            self._owners.pop(shown.metadata.uid, None)
        if old is not None and new is not None and _same(old, new):
            return []
        return self._again(self._owned.get(shown.metadata.uid, ()), now)

    def pod(self, old: Pod | None, new: Pod | None, group: str | None, *, now: float) -> Found:
        """``group``: the native group that the pod's spec names."""
        if new is not None:
            return self._put(new, group, now)
        if old is None or old.metadata.uid not in self._pods:
            return []
        uid = old.metadata.uid
        pod, native = self._pods.pop(uid)
        for ref in pod.metadata.owner_references or ():
            self._owned.get(ref.uid, set()).discard(uid)
        self._natives.get(_group_key(pod, native), set()).discard(uid)
        return self._leave(uid, now)

    def tick(self, now: float) -> Found:
        """Time passed."""
        return [each for gang in self._gangs.values() for each in self._judge(gang, now)]

    # -- members ---------------------------------------------------------------------------------------------

    def _again(self, pods: Iterable[str], now: float) -> Found:
        return [each for uid in sorted(pods) for each in self._put(*self._pods[uid], now)]

    def _put(self, pod: Pod, native: str | None, now: float) -> Found:
        uid = pod.metadata.uid
        if uid not in self._pods:
            for ref in pod.metadata.owner_references or ():
                self._owned.setdefault(ref.uid, set()).add(uid)
            if native is not None:
                self._natives.setdefault(_group_key(pod, native), set()).add(uid)
        self._pods[uid] = (pod, native)
        place, found = self._place(pod, native), []
        if uid in self._gang_of and (place is None or place.key != self._gang_of[uid]):
            found += self._leave(uid, now)
        if place is None:
            return found
        gang = self._gangs.setdefault(place.key, _Gang(place.key, place.is_native, place.is_named))
        found += self._judge(gang, now)
        self._gang_of[uid] = gang.key
        gang.running.discard(uid)
        if pod.is_terminal:
            if pod.spec.node_name and uid not in gang.past:
                gang.join(uid, place, now)
                gang.ended[uid] = pod
            else:
                gang.leave(uid)
        elif pod.metadata.deletion_timestamp is not None:
            gang.leave(uid)
        else:
            gang.join(uid, place, now)
            if pod.spec.node_name:
                gang.running.add(uid)
                self._began.add(gang.key)
        return found + self._judge(gang, now)

    def _leave(self, uid: str, now: float) -> Found:
        gang = self._gangs.get(self._gang_of.pop(uid, ""))
        if gang is None:
            return []
        found = self._judge(gang, now)
        gang.leave(uid)
        gang.running.discard(uid)
        gang.ended.pop(uid, None)
        gang.past.discard(uid)
        if not (gang.members or gang.past):
            del self._gangs[gang.key]
            return found
        return found + self._judge(gang, now)

    # -- where a pod belongs ---------------------------------------------------------------------------------

    def _place(self, pod: Pod, native: str | None) -> _Place | None:
        namespace, owners = pod.metadata.namespace, self._chain(pod)
        direct = next((each.uid for each in pod.metadata.owner_references or () if each.controller), None)
        direct = direct if direct in self._owners else None
        carriers: tuple[Pod | Owner, ...] = (pod, *owners)
        said = (direct, _size(pod), max(map(_size, owners), default=0))
        groups = self._groups.get(_group_key(pod, native)) if native is not None else None
        is_basic = bool(groups) and all(each.min_count is None for each in (groups or {}).values())
        if native is not None and not is_basic:
            return _Place(f"{namespace}/{native}", True, True, *said)
        if pod.spec.scheduler_name == names.KUBE_SCHEDULER and not is_seen(pod):
            return None  # it starts pods one by one
        label = next((name for each in carriers if (name := _value(each, names.GROUP_NAMES))), None)
        if label is not None:
            return _Place(f"{namespace}/{label}", False, True, *said)
        if owners and (is_seen(pod) or any(_size(each) > 1 for each in carriers)):
            top = owners[-1]
            return _Place(f"{namespace}/{top.kind.lower()}:{top.metadata.name}", False, False, *said)
        return None

    def _chain(self, pod: Pod) -> list[Owner]:
        found: list[Owner] = []
        refs = pod.metadata.owner_references
        while len(found) < _LONGEST:
            ref = next((each for each in refs or () if each.controller), None)
            owner = None if ref is None else self._owners.get(ref.uid)
            if owner is None:
                break
            found.append(owner)
            refs = owner.metadata.owner_references
        return found

    # -- judgements ------------------------------------------------------------------------------------------

    def _minimum(self, gang: _Gang) -> tuple[int, bool]:
        """How many must run together, and whether something says so."""
        groups = self._groups.get(gang.key) or self._groups.get(_whole_group(gang.key))
        if groups:
            group = max(groups.values(), key=lambda each: each.source.startswith("scheduling.k8s.io/"))
            return (0 if group.is_deleting else group.min_count or 0), True
        if gang.is_native:
            return 0, True  # nobody knows its size
        size = max(gang.sizes, default=0) or max(gang.above, default=0)
        if size:
            return size, True
        owners = [self._owners[uid] for uid in gang.owners if uid in self._owners]
        return sum(map(_runs, owners)) + gang.free, not gang.is_named

    def _judge(self, gang: _Gang, now: float) -> Found:
        if not gang.running:
            # Nothing runs: it starts anew, and only what a Job has counted is not run again.
            gang.whole, gang.told, gang.part_since = False, False, None
            for uid in [uid for uid, pod in gang.ended.items() if not self._goes_on(pod)]:
                del gang.ended[uid]
                gang.past.add(uid)
                gang.leave(uid)
            return []
        if gang.whole:
            return []
        minimum, said = self._minimum(gang)
        if gang.had_nodes >= minimum:
            gang.part_since = None
            gang.whole = said or now - gang.newest >= OPEN_S
            return []
        if gang.part_since is None:
            gang.part_since = now
        lasted = now - gang.part_since
        if gang.told or lasted <= self._grace_s:
            return []
        gang.told = True
        has = f"{gang.had_nodes} of at least {minimum} members were given a node"
        return [(gang.key, f"{has} for {lasted:.0f} s")]

    def _goes_on(self, pod: Pod) -> bool:
        """Whether a rank that has succeeded counts for those that its Job has still to run."""
        owner = next(iter(self._chain(pod)), None)
        return pod.status.phase == "Succeeded" and isinstance(owner, Job) and not owner.is_finished


def _group_key(pod: Pod, native: str | None) -> str:
    """The native group of a pod. In 1.35 a gang is a replica of one: `workload/group/replica`."""
    return _whole_group(f"{pod.metadata.namespace}/{native or ''}")


def _whole_group(key: str) -> str:
    return "/".join(key.split("/")[:3])


def _same(old: Owner, new: Owner) -> bool:
    one, other = old.metadata, new.metadata
    return (one.labels, one.annotations, one.owner_references) == (
        other.labels,
        other.annotations,
        other.owner_references,
    )


def _runs(owner: Owner) -> int:
    """How many pods of an owner can be there at once."""
    return 1 if isinstance(owner, StatefulSet) and owner.is_ordered else owner.pods


def _value(of: Pod | Owner, keys: tuple[str, ...]) -> str | None:
    for values in (of.metadata.labels or {}, of.metadata.annotations or {}):
        found = next((values[key].strip() for key in keys if values.get(key, "").strip()), None)
        if found:
            return found
    return None


def _size(of: Pod | Owner) -> int:
    for values in (of.metadata.annotations or {}, of.metadata.labels or {}):
        for key in names.GROUP_SIZES:
            text = values.get(key, "").strip()
            if text:
                return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    return 0
