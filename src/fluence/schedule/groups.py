"""Groups: which gangs there are, from pods, PodGroups and owners in whatever order they come.

    groups = Groups()
    groups.set_owner(job); groups.set_pod(pod)      # each answers with the keys of the gangs that changed
    gang = groups.gang(groups.of(pod))
    if gang is not None and gang.is_ready: …        # try to place gang.needed of gang.members, or more

A pod belongs to the native group that its spec names; else to the one that a label or an annotation names, on
the pod or on its owner; else, where only a size is said, to its owner; else it is a gang of one. Nothing here
remembers: the gangs follow from the objects that are there, so a restart finds the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime

from msgspec.structs import replace

from fluence import names
from fluence.model.constraint import Constraint
from fluence.model.group import Group
from fluence.model.jobspec import Jobspec
from fluence.model.meta import OwnerReference
from fluence.model.owner import OWNERS, Owner
from fluence.model.pod import Pod
from fluence.schedule import jobspecs
from fluence.schedule.annotations import terms_of
from fluence.schedule.gang_size import GangSize, declared, needed
from fluence.schedule.group_labels import GroupLabel, field_of, index_of, label_of, size_of

_NATIVE = "scheduling.k8s.io/"
_STRICT = f"{_NATIVE}v1beta1"  # from here on the pods' priority must be their group's, and Jobs have groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that start together, as they are now."""

    key: str  # namespace/group, namespace/job:owner or namespace/pod:name
    uid: str  # allocation ids come from it
    namespace: str
    name: str  # as users know it
    members: tuple[Pod, ...] = ()  # wait and may be placed now, in order of index or name
    placed: tuple[Pod, ...] = ()  # are bound, those that are being deleted included while they hold
    gated: tuple[Pod, ...] = ()  # are alive and may not be placed yet
    ended: tuple[Pod, ...] = ()  # succeeded or failed
    minimum: int = 1  # how many must run together, counting `placed`
    needed: int = 1  # how many of `members` must be placed together; 0: each as it fits
    size: int = 1  # how many pods there will be, as far as is known
    priority: int = 0
    submit: int = 0  # ms
    user: str = ""
    limit: int | None = None  # ms
    bounded: bool = False  # Kubernetes ends it at its limit
    soft_limit: int | None = None  # ms
    policy: str | None = None
    queue: str = ""
    constraint: Constraint | None = None
    jobspec: Jobspec | None = None
    source: str = ""  # what made these pods a gang
    group: Group | None = None
    missing: str = ""  # why it cannot be tried yet
    fault: str = ""  # why it is refused, and the cure
    warnings: tuple[str, ...] = ()  # what was said and is not used

    @property
    def is_ready(self) -> bool:
        """There is something to place, and nothing to wait for."""
        return bool(self.members) and not self.missing and not self.fault

    @property
    def is_over(self) -> bool:
        """Every member has ended: what it holds can be released. Gated members are alive."""
        return not (self.members or self.placed or self.gated)

    @property
    def is_single(self) -> bool:
        return self.key == single_key(self.namespace, self.name)

    def __len__(self) -> int:
        return len(self.members) + len(self.placed) + len(self.gated)


@dataclass(frozen=True, slots=True)
class _Membership:
    """Where a pod belongs."""

    key: str
    name: str
    marked: GroupLabel | None
    groups: tuple[str, ...]  # keys of the PodGroups that decide this
    owners: tuple[Owner, ...]  # the pod's own first, then that one's
    unseen: OwnerReference | None
    warnings: tuple[str, ...]

    @property
    def is_single(self) -> bool:
        return "/pod:" in self.key


def single_key(namespace: str, pod: str) -> str:
    # A colon is in no name, so a pod and a group of one name never meet.
    return f"{namespace}/pod:{pod}"


class Groups:
    """The gangs of one scheduler. ``follows``: the kinds of owners that will be told; a pod of such a kind
    waits for it. ``native``: the server has PodGroups, so that a label which names one may be ahead of it."""

    def __init__(
        self,
        *,
        scheduler: str = names.SCHEDULER,
        follows: Collection[str] = ("Job", "Deployment", "ReplicaSet", "StatefulSet"),
        native: bool = False,
    ) -> None:
        self.scheduler = scheduler
        self.native = native
        self._follows = frozenset(follows)
        self._pods: dict[str, Pod] = {}
        self._places: dict[str, _Membership] = {}
        self._gangs: dict[str, set[str]] = {}  # key -> our pods
        self._foreign: dict[str, set[str]] = {}  # key -> pods of other schedulers that say they belong
        self._named: dict[str, set[str]] = {}  # group -> pods that name it
        self._owned: dict[str, set[str]] = {}  # uid -> pods, through owners of owners too
        self._groups: dict[str, dict[str, Group]] = {}  # key -> source -> group
        self._owners: dict[str, Owner] = {}
        self._cache: dict[str, Gang] = {}

    # -- what happens ----------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> Collection[str]:
        """A pod as it is now, any scheduler's: others' pods matter where they name a group of ours."""
        key = pod.key
        if pod.spec.scheduler_name != self.scheduler and field_of(pod) is None and label_of(pod, []) is None:
            return self._drop(key)
        old = self._pods.get(key)
        self._pods[key] = pod
        if old is not None and _same(old, pod):
            self._cache.pop(self._places[key].key, None)
            return ()
        return self._settle(key)

    def remove_pod(self, pod: Pod) -> Collection[str]:
        held = self._pods.get(pod.key)
        if held is None or held.metadata.uid != pod.metadata.uid:
            return ()  # it was made anew under its name
        return self._drop(pod.key)

    def set_group(self, group: Group) -> Collection[str]:
        """A PodGroup as it is now, from an adapter of ``kube.gangs``."""
        held = self._groups.setdefault(group.key, {})
        old, held[group.source] = held.get(group.source), group
        pods = self._named.get(group.key, ())
        if old is not None and _same_group(old, group):
            for each in pods:
                self._cache.pop(self._places[each].key, None)
            return ()
        return self._resettle(pods)

    def remove_group(self, group: Group) -> Collection[str]:
        held = self._groups.get(group.key, {})
        if group.source not in held or held[group.source].uid != group.uid:
            return ()
        del held[group.source]
        if not held:
            del self._groups[group.key]
        return self._resettle(self._named.get(group.key, ()))

    def set_owner(self, owner: Owner) -> Collection[str]:
        uid = owner.metadata.uid
        old, self._owners[uid] = self._owners.get(uid), owner
        pods = self._owned.get(uid, ())
        if old is not None and _same_owner(old, owner):
            if old.succeeded == owner.succeeded:
                return ()
            # A Job counts its completions one by one: what its pods belong to is not worked out anew.
            changed = {self._places[each].key for each in pods}
            for key in changed:
                self._cache.pop(key, None)
            return changed
        return self._resettle(pods)

    def remove_owner(self, owner: Owner) -> Collection[str]:
        uid = owner.metadata.uid
        if self._owners.pop(uid, None) is None:
            return ()
        return self._resettle(self._owned.get(uid, ()))

    # -- what there is ---------------------------------------------------------------------------------------

    def of(self, pod: Pod) -> str:
        """The key of the gang that a pod belongs to."""
        place = self._places.get(pod.key)
        return (place or self._place(pod)).key

    def gang(self, key: str) -> Gang | None:
        """The gang of this key; None if no pod of ours belongs to it."""
        pods = self._gangs.get(key)
        if not pods:
            return None
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._build(key, pods)
        return found

    def gangs(self) -> Iterator[Gang]:
        for key in list(self._gangs):
            gang = self.gang(key)
            if gang is not None:
                yield gang

    def __len__(self) -> int:
        return len(self._gangs)

    # -- where a pod belongs ---------------------------------------------------------------------------------

    def _settle(self, key: str) -> set[str]:
        changed = self._leave(key)
        pod = self._pods[key]
        place = self._place(pod)
        self._places[key] = place
        ours = pod.spec.scheduler_name == self.scheduler
        (self._gangs if ours else self._foreign).setdefault(place.key, set()).add(key)
        for group in place.groups:
            self._named.setdefault(group, set()).add(key)
        for uid in _uids(place):
            self._owned.setdefault(uid, set()).add(key)
        self._cache.pop(place.key, None)
        changed.add(place.key)
        return changed

    def _resettle(self, pods: Collection[str]) -> set[str]:
        changed: set[str] = set()
        for key in list(pods):
            changed |= self._settle(key)
        return changed

    def _leave(self, key: str) -> set[str]:
        place = self._places.pop(key, None)
        if place is None:
            return set()
        _discard(self._gangs, place.key, key)
        _discard(self._foreign, place.key, key)
        for group in place.groups:
            _discard(self._named, group, key)
        for uid in _uids(place):
            _discard(self._owned, uid, key)
        self._cache.pop(place.key, None)
        return {place.key}

    def _drop(self, key: str) -> set[str]:
        self._pods.pop(key, None)
        return self._leave(key)

    def _place(self, pod: Pod) -> _Membership:
        namespace, warnings = pod.metadata.namespace, list[str]()
        owners, unseen = self._chain(pod)
        field = marked = field_of(pod)
        single = False
        if marked is not None:
            group = self._group(namespace, marked.name)
            single = group is not None and not group.is_gang
            if single and group is not None and group.workload is not None and group.source == _STRICT:
                # 1.37 makes such a group for every Job; it says nothing of what the user wants.
                label = self._label(pod, owners, warnings)
                marked, single = (label, False) if label is not None else (marked, True)
        else:
            marked = self._label(pod, owners, warnings)
        if marked is not None and not marked.is_field:
            group = self._group(namespace, marked.name)
            single = group is not None and not group.is_gang
        if marked is not None and not single:
            key, name = f"{namespace}/{marked.instance}", marked.instance
        elif marked is None and unseen is None and owners and _sized(pod, owners):
            top = owners[-1]
            key, name = f"{namespace}/{top.kind.lower()}:{top.metadata.name}", top.metadata.name
        else:
            key, name = single_key(namespace, pod.metadata.name), pod.metadata.name
        groups = dict.fromkeys(f"{namespace}/{each.name}" for each in (field, marked) if each is not None)
        return _Membership(key, name, marked, tuple(groups), owners, unseen, tuple(warnings))

    def _label(self, pod: Pod, owners: tuple[Owner, ...], warnings: list[str]) -> GroupLabel | None:
        sayers: list[Pod | Owner] = [pod, *owners]
        return next(filter(None, (label_of(each, warnings) for each in sayers)), None)

    def _chain(self, pod: Pod) -> tuple[tuple[Owner, ...], OwnerReference | None]:
        """The pod's owner and that one's owner, as far as they are known, and the first that should be."""
        found: list[Owner] = []
        refs = pod.metadata.owner_references
        while len(found) < 4:  # Deployment, ReplicaSet; the bound is for a loop that someone wrote by hand
            ref = next((each for each in refs or () if each.controller), None)
            if ref is None or (ref.api_version, ref.kind) not in OWNERS or ref.kind not in self._follows:
                break
            owner = self._owners.get(ref.uid)
            if owner is None:
                return tuple(found), ref
            found.append(owner)
            refs = owner.metadata.owner_references
        return tuple(found), None

    def _group(self, namespace: str, name: str) -> Group | None:
        """The PodGroup of this name; where there are two, Kubernetes' own."""
        held = self._groups.get(f"{namespace}/{name}")
        if not held:
            return None
        return max(held.values(), key=lambda each: (each.source.startswith(_NATIVE), each.source))

    # -- what a gang is --------------------------------------------------------------------------------------

    def _build(self, key: str, keys: set[str]) -> Gang:
        pods = sorted((self._pods[each] for each in keys), key=_order)
        places = [self._places[each.key] for each in pods]
        oldest = min(pods, key=lambda pod: (_ms(pod.metadata.creation_timestamp), pod.metadata.name))
        first = self._places[oldest.key]
        namespace = oldest.metadata.namespace
        marked = first.marked
        group = self._group(namespace, marked.name) if marked is not None else None
        warnings = list(dict.fromkeys(text for place in places for text in place.warnings))

        placed = tuple(pod for pod in pods if pod.spec.node_name and not pod.is_terminal)
        ended = tuple(pod for pod in pods if pod.is_terminal)
        waiting = [
            pod
            for pod in pods
            if not pod.is_terminal and not pod.spec.node_name and pod.metadata.deletion_timestamp is None
        ]
        members = tuple(pod for pod in waiting if not pod.is_gated)
        gated = tuple(pod for pod in waiting if pod.is_gated)
        alive = [*waiting, *placed]
        living = sum(pod.metadata.deletion_timestamp is None for pod in placed)

        # A gang's size follows the owners of its pods that live; with none alive, of all.
        of = [self._places[pod.key] for pod in alive] or places
        direct = dict.fromkeys(place.owners[0].metadata.uid for place in of if place.owners)
        every = dict.fromkeys(each.metadata.uid for place in of for each in place.owners)
        owners = [self._owners[uid] for uid in direct]
        above = [self._owners[uid] for uid in every]
        unseen = [place.unseen for place in of if place.unseen is not None]
        size = self._size(first, alive or pods, owners, above, unseen=unseen, group=group, warnings=warnings)
        must = (
            int(bool(waiting))
            if first.is_single
            else needed(size.minimum, living=living, pods=alive, ended=ended, owners=owners)
        )
        terms = terms_of(alive or pods, above, group, warnings=warnings)
        fault = (
            self._disagreement(key, group, alive)
            or terms.fault
            or jobspecs.fault(terms.jobspec, alive, minimum=size.minimum)
        )
        missing = "" if fault else self._missing(first, size, must, members, gated, living, group, above)
        return Gang(
            key=key,
            uid=_uid(oldest, first, group),
            namespace=namespace,
            name=first.name,
            members=members,
            placed=placed,
            gated=gated,
            ended=ended,
            minimum=size.minimum,
            needed=must,
            size=max(size.pods, len(alive)),
            priority=_priority(group, alive or pods),
            submit=_ms(
                group.created if group is not None and group.created else oldest.metadata.creation_timestamp
            ),
            user=terms.user,
            limit=terms.limit,
            bounded=terms.bounded,
            soft_limit=terms.soft_limit,
            policy=terms.policy,
            queue=terms.queue,
            constraint=terms.constraint,
            jobspec=terms.jobspec,
            source=_source(first, group),
            group=group,
            missing=missing,
            fault=fault,
            warnings=tuple(dict.fromkeys(warnings)),
        )

    def _size(
        self,
        first: _Membership,
        pods: list[Pod],
        owners: list[Owner],
        above: list[Owner],
        *,
        unseen: list[OwnerReference],
        group: Group | None,
        warnings: list[str],
    ) -> GangSize:
        if first.is_single:
            waits = f"waits for its {unseen[0].kind} {unseen[0].name} to be seen" if unseen else ""
            return GangSize(1, 1, "", waits)
        marked = first.marked
        may_come = ""
        if marked is not None and group is None:
            name = f"PodGroup {pods[0].metadata.namespace}/{marked.name}"
            if marked.is_field:
                return GangSize(1, max(1, len(pods)), "", waits=f"waits for its {name}")
            if self.native and any(each in marked.source for each in names.POD_GROUP_NAMES):
                may_come = name
        return declared(
            pods,
            owners,
            group=group,
            above=[each for each in above if each not in owners],
            unseen=unseen,
            group_may_come=may_come,
            warnings=warnings,
        )

    def _missing(
        self,
        first: _Membership,
        size: GangSize,
        must: int,
        members: tuple[Pod, ...],
        gated: tuple[Pod, ...],
        living: int,
        group: Group | None,
        owners: list[Owner],
    ) -> str:
        if size.waits:
            return size.waits
        suspended = next((owner for owner in owners if owner.spec.suspend), None)
        if suspended is not None:
            return f"{suspended.kind} {suspended.key} is suspended"
        if len(members) >= must or not (members or gated):
            return ""
        there = living + len(members) + len(gated)
        if len(members) + len(gated) >= must or first.is_single:
            return (
                f"{len(gated)} of {there} pods {'is' if len(gated) == 1 else 'are'} held by scheduling gates"
            )
        told = f"{there} of {size.minimum} pods {'is' if there == 1 else 'are'} there"
        runs = sum(owner.pods for owner in owners if owner.kind != "Deployment")
        if size.source and owners and runs < size.minimum and group is None:
            told += (
                f", and {owners[0].kind} {owners[0].key} runs {runs} at a time: raise that or lower the size"
            )
        return told

    def _disagreement(self, key: str, group: Group | None, alive: list[Pod]) -> str:
        strangers = [self._pods[each] for each in self._foreign.get(key, ())]
        others = sorted({pod.spec.scheduler_name for pod in strangers if not pod.is_terminal})
        if others:
            return (
                f"some of its pods name another scheduler ({', '.join(others)}): "
                f"set schedulerName: {self.scheduler} on all of them"
            )
        if group is not None and group.topology_key and not group.is_gang:
            return (
                f"PodGroup {group.key}: spec.schedulingConstraints.topology ({group.topology_key}) needs a "
                "gang, since the pods of a basic group start one by one: set schedulingPolicy.gang"
            )
        if group is not None and group.claims and group.is_gang:
            return (
                f"PodGroup {group.key} shares resource claims ({', '.join(group.claims)}), which only "
                "kube-scheduler allocates: leave schedulerName out, or delegate the binding"
            )
        priorities = sorted({pod.spec.priority or 0 for pod in alive})
        if len(priorities) > 1:
            told = " and ".join(map(str, priorities))
            return f"its pods have different priorities ({told}): set one priorityClassName on all of them"
        wanted = group.priority if group is not None and group.source == _STRICT and group.is_gang else None
        if wanted is not None and priorities and priorities[0] != wanted:
            assert group is not None
            return (
                f"PodGroup {group.key} has priority {wanted} and its pods {priorities[0]}: "
                "set one priorityClassName on both"
            )
        preempts = sorted({pod.spec.preemption_policy or "PreemptLowerPriority" for pod in alive})
        if len(preempts) > 1:
            return f"its pods have different preemption policies ({' and '.join(preempts)}): set one on all"
        return ""


def _uids(place: _Membership) -> Iterator[str]:
    yield from (owner.metadata.uid for owner in place.owners)
    if place.unseen is not None:
        yield place.unseen.uid


def _discard(index: dict[str, set[str]], key: str, item: str) -> None:
    held = index.get(key)
    if held is not None:
        held.discard(item)
        if not held:
            del index[key]


def _sized(pod: Pod, owners: tuple[Owner, ...]) -> bool:
    return (size_of(pod, []) or 1) > 1 or any((size_of(each, []) or 1) > 1 for each in owners)


def _same(old: Pod, new: Pod) -> bool:
    """Nothing changed that a gang follows from; the rest of a status does not matter here."""
    return (
        old.metadata.uid == new.metadata.uid
        and old.spec == new.spec
        and old.is_terminal == new.is_terminal
        and old.status.phase == new.status.phase
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
        and old.metadata.owner_references == new.metadata.owner_references
        and (old.metadata.deletion_timestamp is None) == (new.metadata.deletion_timestamp is None)
    )


def _same_group(old: Group, new: Group) -> bool:
    """Only its status changed, such as by our own write."""
    return replace(old, conditions=(), is_scheduled=None) == replace(new, conditions=(), is_scheduled=None)


def _same_owner(old: Owner, new: Owner) -> bool:
    return (
        old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
        and old.metadata.owner_references == new.metadata.owner_references
    )


def _order(pod: Pod) -> tuple[str, int, int, str]:
    """By owner, index, then name; numbers at the end of a name count as numbers."""
    name = pod.metadata.name
    index = index_of(pod)
    owner = next((each.name for each in pod.metadata.owner_references or () if each.controller), "")
    if index is not None:
        return owner, index, 0, name
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :][:18]
    return owner or stem, 1 << 40, int(digits) if digits else -1, name


def _uid(oldest: Pod, first: _Membership, group: Group | None) -> str:
    if first.is_single:
        return oldest.metadata.uid
    marked = first.marked
    if group is not None and group.uid and marked is not None:
        # A Workload of 1.35 holds many gangs under one uid.
        return (
            group.uid
            if group.name == marked.instance and "/" not in group.name
            else f"{group.uid}/{first.name}"
        )
    uid = first.owners[-1].metadata.uid if first.owners else oldest.metadata.uid
    # Two groups may share an owner: a producer and its consumers do.
    return f"{uid}/{first.name}" if marked is not None else uid


def _priority(group: Group | None, pods: list[Pod]) -> int:
    if group is not None and group.is_gang and group.priority is not None:
        return group.priority
    return max((pod.spec.priority or 0 for pod in pods), default=0)


def _source(first: _Membership, group: Group | None) -> str:
    if first.is_single:
        return "pod"
    if first.marked is None:
        return f"owner {first.owners[-1].kind}"
    if group is not None and first.marked.is_field:
        return group.source
    return first.marked.source


def _ms(when: datetime | None) -> int:
    return int(when.timestamp() * 1000) if when is not None else 0
