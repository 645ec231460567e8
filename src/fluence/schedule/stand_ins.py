"""Stand-ins: members of a gang in place of pods that their owner has not made yet.

A suspended Job has no pods, and a StatefulSet makes its second when the first is ready. So that the plan can
hold places for all of them, a held owner gets one stand-in for each pod still to come, made from its
template. When a pod comes it takes the seat of its stand-in: the one of its index, or any where pods have
none. A Job that was let go says in annotations which seats it has (`ReleaseNote`), so a fresh process finds
them again; if one of them is lost before the first pod is bound, the note no longer counts, and the pods are
placed together like any other gang.

`StandIns` follows held owners and their pods; the cycle calls `settle` and takes its answer in like events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from fluence import names
from fluence.errors import InvalidInput
from fluence.model import hostlist, idset
from fluence.model.held import STAND_IN, is_cancelled, is_seen, places_us
from fluence.model.meta import ObjectMeta, OwnerReference
from fluence.model.owner import OWNERS, Job, Owner, StatefulSet
from fluence.model.pod import Pod, PodStatus
from fluence.model.priority import PriorityClass
from fluence.schedule.group_labels import MAX_SIZE, pod_index

GATE = names.GATE_FLUXQUEUE
PATIENCE = 600_000  # milliseconds: how long seats are held for the pods of a Job that was let go
_VERSIONS = {kind: version for version, kind in OWNERS}


def is_stand_in(pod: Pod) -> bool:
    return STAND_IN in pod.metadata.uid


def is_stand_in_uid(uid: str) -> bool:
    return STAND_IN in uid


def stand_in_uid(owner: str, index: int) -> str:
    return f"{owner}{STAND_IN}{index}"


def owner_uid(uid: str) -> str:
    """The uid of the owner that a stand-in's uid names."""
    return uid.partition(STAND_IN)[0]


def owner_of(pod: Pod) -> str:
    """The uid of the owner that makes a pod; nothing if none does."""
    return next((each.uid for each in pod.metadata.owner_references or () if each.controller), "")


@dataclass(frozen=True, slots=True)
class ReleaseNote:
    """Which pod of a Job has which node, from when it was let go."""

    number: str  # of its job
    allocation: str
    nodes: tuple[tuple[int, str], ...]  # by index

    def labels(self) -> dict[str, str]:
        return {names.FLUXQUEUE_JOBID: self.number}

    def annotations(self) -> dict[str, str]:
        found = {
            names.JOBID: self.number,
            names.ALLOCATION: self.allocation,
            names.FLUXQUEUE_NODES: hostlist.encode(node for _, node in self.nodes),
        }
        indexes = [index for index, _ in self.nodes]
        if indexes != list(range(len(indexes))):
            found[names.FLUXQUEUE_INDEXES] = idset.encode(indexes)
        return found


def release_note(owner: Owner) -> ReleaseNote | None:
    """What an owner says of its seats. Anybody may write annotations: what cannot be read is not there."""
    notes = owner.annotations
    number, allocation = notes.get(names.JOBID, ""), notes.get(names.ALLOCATION, "")
    if not number or not allocation or names.FLUXQUEUE_NODES not in notes:
        return None
    try:
        nodes = hostlist.decode(notes[names.FLUXQUEUE_NODES], limit=MAX_SIZE)
        given = notes.get(names.FLUXQUEUE_INDEXES)
        indexes = list(range(len(nodes))) if given is None else idset.decode(given, limit=MAX_SIZE)
    except InvalidInput:
        return None
    if not nodes or len(nodes) != len(indexes):
        return None
    return ReleaseNote(number, allocation, tuple(zip(indexes, nodes, strict=True)))


def is_indexed(owner: Owner) -> bool:
    return owner.spec.completion_mode == "Indexed" or isinstance(owner, StatefulSet)


def wanted_indexes(owner: Owner) -> list[int]:
    """The indexes of the pods that a held owner would run now, if it were let go."""
    spec = owner.spec
    if isinstance(owner, StatefulSet):
        return list(range(min(spec.replicas if spec.replicas is not None else 1, MAX_SIZE)))
    at_once = spec.parallelism if spec.parallelism is not None else (spec.completions or 1)
    count = min(at_once, MAX_SIZE)
    if spec.completions is None:
        return list(range(count))
    if not is_indexed(owner):
        return list(range(min(count, owner.remaining or 0)))
    done = {*_ids(owner.status.completed_indexes), *_ids(owner.status.failed_indexes)}
    left = (index for index in range(min(spec.completions, MAX_SIZE)) if index not in done)
    return [index for index, _ in zip(left, range(count), strict=False)]


def stand_in(owner: Owner, index: int, *, note: ReleaseNote | None = None, node: str | None = None) -> Pod:
    """The pod that an owner would make under this index."""
    template = owner.spec.template
    assert template is not None
    meta, made, own = owner.metadata, template.metadata, template.spec
    annotations = dict(made.annotations or {})
    if note is not None:
        annotations |= {names.JOBID: note.number, names.ALLOCATION: note.allocation}
    key = names.POD_INDEX if isinstance(owner, StatefulSet) else names.COMPLETION_INDEX
    labels = {**(made.labels or {}), names.SEEN: names.SEEN_YES}
    if is_indexed(owner):
        labels[key] = str(index)
    owned = OwnerReference(
        api_version=_VERSIONS[owner.kind], kind=owner.kind, name=meta.name, uid=meta.uid, controller=True
    )
    return Pod(
        metadata=ObjectMeta(
            name=f"{meta.name}{STAND_IN}{index}",
            namespace=meta.namespace,
            uid=stand_in_uid(meta.uid, index),
            creation_timestamp=meta.creation_timestamp,
            labels=labels,
            annotations=annotations or None,
            owner_references=[owned],
        ),
        # No gate of ours holds it: the seat is what is waited for.
        spec=replace(
            own,
            scheduling_gates=[each for each in own.scheduling_gates or () if each.name != GATE] or None,
            scheduler_name=own.scheduler_name or names.KUBE_SCHEDULER,
            node_name=node,
        ),
        status=PodStatus(phase="Pending"),
    )


def index_of(pod: Pod) -> int:
    """The index of a stand-in."""
    return int(pod.metadata.uid.rpartition(STAND_IN)[2])


@dataclass(frozen=True, slots=True)
class Came:
    """A stand-in is to count from now on, as it is."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Went:
    """A stand-in counts no longer."""

    pod: Pod


class StandIns:
    """The stand-ins of all held owners of one scheduler."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._owners: dict[str, Owner] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # by owner: those that it has made
        self._made: dict[str, dict[str, Pod]] = {}  # by owner: the stand-ins that count now
        self._met: dict[str, set[int]] = {}  # by owner: whose pods have come since it was let go
        self._classes: dict[str, PriorityClass] = {}
        self._expires: dict[str, int] = {}  # by owner that was let go: when its seats are given up
        self._notes: dict[str, ReleaseNote] = {}  # by owner: with what we let it go
        self._given_up: set[str] = set()  # owners whose note does not count any more
        self._back: set[str] = set()  # owners that were let go and are suspended again
        self._changed: dict[str, None] = {}

    # -- what happens ----------------------------------------------------------------------------------------

    def set_owner(self, owner: Owner) -> None:
        uid = owner.metadata.uid
        if isinstance(owner, Job | StatefulSet) and places_us(owner, self._scheduler):
            before, self._owners[uid] = self._owners.get(uid), owner
            if owner.spec.suspend:
                self._met.pop(uid, None)
                if self._was_let_go(owner, before):
                    self._notes.pop(uid, None)
                    self._back.add(uid)
        elif self._owners.pop(uid, None) is None:
            return
        self._changed[uid] = None

    def remove_owner(self, owner: Owner) -> None:
        uid = owner.metadata.uid
        if self._owners.pop(uid, None) is not None:
            self._changed[uid] = None
            self._met.pop(uid, None)
            self._notes.pop(uid, None)
            self._expires.pop(uid, None)
            self._given_up.discard(uid)
            self._back.discard(uid)

    def _was_let_go(self, owner: Owner, before: Owner | None) -> bool:
        """Whether a Job that is suspended was let go since it got its seats. Who did not see it run sees that
        by the note, which stays."""
        if before is not None and not before.spec.suspend:
            return True
        note = self._notes.get(owner.metadata.uid)
        return note is not None and release_note(owner) == note

    def set_class(self, found: PriorityClass, *, gone: bool) -> None:
        """What a priority's name means; a template has only the name."""
        if gone:
            self._classes.pop(found.metadata.name, None)
        else:
            self._classes[found.metadata.name] = found
        self._changed.update(dict.fromkeys(self._owners))

    def set_pod(self, pod: Pod) -> None:
        uid = owner_of(pod)
        if uid and is_seen(pod) and not is_stand_in(pod):
            self._pods.setdefault(uid, {})[pod.metadata.uid] = pod
            self._touch(uid)

    def remove_pod(self, pod: Pod) -> None:
        uid = owner_of(pod)
        held = self._pods.get(uid)
        if held is not None and held.pop(pod.metadata.uid, None) is not None:
            if not held:
                del self._pods[uid]
            self._touch(uid)

    def met(self, owner: str, stand_in: Pod) -> None:
        """A pod has taken the seat of a stand-in."""
        self._made.get(owner, {}).pop(stand_in.metadata.uid, None)
        self._met.setdefault(owner, set()).add(index_of(stand_in))
        self._touch(owner)

    def give_up(self, owner: str) -> None:
        """A seat of an owner is lost: its note does not count until it is let go anew."""
        self._given_up.add(owner)
        self._touch(owner)

    def let_go(self, owner: str, note: ReleaseNote) -> None:
        """An owner has seats, and is to be let go."""
        self._given_up.discard(owner)
        self._notes[owner] = note

    def _touch(self, owner: str) -> None:
        if owner in self._owners:
            self._changed[owner] = None

    # -- what follows ----------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def settle(
        self, has_seat: Container[str], knows: Callable[[str], bool], now: int
    ) -> Iterator[Came | Went]:
        """What changed: those that went first. ``has_seat``: uids of pods with a seat; ``knows``: nodes that
        are there."""
        self._expire(now)
        changed, self._changed = self._changed, {}
        for uid in changed:
            owner = self._owners.get(uid)
            wanted = {} if owner is None else self._wanted(owner, has_seat, knows)
            wanted = {key: self._ranked(each) for key, each in wanted.items()}
            made = self._made.get(uid, {})
            stale = [
                each
                for each in made.values()
                if (new := wanted.get(each.metadata.uid)) is None or not _asks_the_same(each, new)
            ]
            anew = uid in self._back or bool(stale) or len(made) < len(wanted)
            self._back.discard(uid)
            if owner is not None and owner.spec.suspend and anew:
                stale = list(made.values())  # a Job that has changed is matched anew, all of it
            for each in stale:
                del made[each.metadata.uid]
                yield Went(each)
            for each in wanted.values():
                there = made.get(each.metadata.uid)
                if there is None or (there != each and each.metadata.uid not in has_seat):
                    made[each.metadata.uid] = each
                    yield Came(each)
            if made:
                self._made[uid] = made
                self._expire_later(uid, now)
            else:
                self._made.pop(uid, None)
                self._expires.pop(uid, None)

    def next_due(self) -> int | None:
        """When seats are given up whose pods have not come."""
        return min(self._expires.values(), default=None)

    def _expire(self, now: int) -> None:
        """Who was let go and whose pods do not come (a quota, or a note that somebody made up) holds its
        seats for so long and no longer."""
        for uid in [uid for uid, at in self._expires.items() if at <= now]:
            del self._expires[uid]
            self.give_up(uid)

    def _expire_later(self, uid: str, now: int) -> None:
        owner = self._owners.get(uid)
        if isinstance(owner, Job) and not owner.spec.suspend:
            self._expires.setdefault(uid, now + PATIENCE)
        else:
            self._expires.pop(uid, None)

    def _ranked(self, pod: Pod) -> Pod:
        """A stand-in with the priority that its pod will have."""
        spec = pod.spec
        if spec.priority is not None or not self._classes:
            return pod
        default = next((each for each in self._classes.values() if each.global_default), None)
        found = self._classes.get(spec.priority_class_name or "", default)
        return pod if found is None else replace(pod, spec=replace(spec, priority=found.value))

    def _wanted(
        self, owner: Owner, has_seat: Container[str], knows: Callable[[str], bool]
    ) -> Mapping[str, Pod]:
        if owner.is_finished or is_cancelled(owner) or owner.metadata.deletion_timestamp is not None:
            return {}
        pods = self._pods.get(owner.metadata.uid, {}).values()
        if isinstance(owner, StatefulSet):
            return _by_uid(self._ordered(owner, pods, has_seat))
        if owner.spec.suspend:
            if any(not pod.is_terminal for pod in pods):
                return {}  # it was suspended while it ran: its pods go first
            return _by_uid(stand_in(owner, index) for index in wanted_indexes(owner))
        return _by_uid(self._released(owner, list(pods), has_seat, knows))

    def _ordered(self, owner: Owner, pods: Iterable[Pod], has_seat: Container[str]) -> Iterator[Pod]:
        """Of a StatefulSet that makes one pod after the other: those that are still to come."""
        if not owner.is_ordered:
            return
        there = {pod_index(pod): pod for pod in pods}
        made = self._made.get(owner.metadata.uid, {})
        for index in wanted_indexes(owner):
            pod, new = there.get(index), stand_in(owner, index)
            waits = pod is not None and pod.spec.node_name is None and pod.metadata.uid not in has_seat
            if pod is None or (waits and new.metadata.uid in made and new.metadata.uid in has_seat):
                yield new

    def _released(
        self, owner: Owner, pods: Sequence[Pod], has_seat: Container[str], knows: Callable[[str], bool]
    ) -> Iterator[Pod]:
        """Of a Job that was let go: those whose pod has not come, or has come and has no seat yet."""
        uid = owner.metadata.uid
        note = release_note(owner) or self._notes.get(uid)
        if note is None or uid in self._given_up or len(note.nodes) > owner.pods:
            return
        met = self._met.get(uid, set())
        settled = [
            pod for pod in pods if pod.spec.node_name or pod.is_terminal or pod.metadata.uid in has_seat
        ]
        left = [(index, node) for index, node in note.nodes if index not in met]
        if is_indexed(owner):
            there = {pod_index(pod) for pod in settled}
            over = {*there, *_ids(owner.status.completed_indexes), *_ids(owner.status.failed_indexes)}
            left = [(index, node) for index, node in left if index not in over]
        else:
            ended = (owner.status.succeeded or 0) + (owner.status.failed or 0)
            come = max(len(settled), ended, len(met)) - len(met)
            nodes = Counter(pod.spec.node_name for pod in settled if pod.spec.node_name)
            nodes -= Counter(node for index, node in note.nodes if index in met)
            left = _without(left, nodes, come)
        seated = [each for each in left if stand_in_uid(uid, each[0]) in has_seat]
        if len(seated) < len(left):  # found by a fresh process
            template = owner.spec.template
            has_claims = any(
                each.persistent_volume_claim or each.ephemeral
                for each in (template.spec.volumes if template else None) or ()
            )
            if has_claims or not all(knows(node) for _, node in left):
                self._given_up.add(uid)
                return
        for index, node in left:
            yield stand_in(owner, index, note=note, node=node)


def _without(seats: list[tuple[int, str]], nodes: Counter[str], count: int) -> list[tuple[int, str]]:
    """Seats of which so many are taken, by pods without an index: those on the nodes where they are first."""
    left, taken = Counter(nodes), set[tuple[int, str]]()
    for each in seats:
        if len(taken) < count and left[each[1]] > 0:
            left[each[1]] -= 1
            taken.add(each)
    others = (each for each in seats if each not in taken)
    taken.update(list(islice(others, count - len(taken))))
    return [each for each in seats if each not in taken]


def _by_uid(pods: Iterable[Pod]) -> dict[str, Pod]:
    return {pod.metadata.uid: pod for pod in pods}


def _ids(text: str | None) -> list[int]:
    try:
        return idset.decode(text, limit=MAX_SIZE) if text else []
    except InvalidInput:
        return []


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether two stand-ins of a name ask for the same; that one has its node by now does not matter."""
    same = one.metadata.labels == other.metadata.labels
    return same and replace(one.spec, node_name=None) == replace(other.spec, node_name=None)
