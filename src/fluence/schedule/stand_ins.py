"""Stand-ins: members of a gang in place of pods that their owner has not made yet.

A suspended Job has no pods, and a StatefulSet makes its second when the first is ready. So that the plan can
hold places for all of them, a held owner gets one stand-in for each pod still to come, made from its
template. When a pod comes it takes the seat of its stand-in: the one of its index, or any where pods have
none. The status of a released Job says which seats it has (`model.grant`), so a fresh process finds them
again; if one of them is lost before the first pod is bound, the note no longer counts, and the pods are
placed together like any other gang.

A stand-in costs as much as a pod, and a user writes only a number. So an owner is judged by arithmetic first:
one that is too wide for the cluster or for the bounds below gets a single stand-in, and a reason
(`withheld`).

`StandIns` follows held owners and their pods; the cycle calls `settle` and takes its answer in like events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from fluence.model.grant import ReleaseNote, granted_at, release_note
from fluence.model.held import is_cancelled, is_seen, places_us
from fluence.model.owner import Job, Owner, StatefulSet
from fluence.model.pod import Pod
from fluence.model.priority import PriorityClass
from fluence.model.reason import Code, Reason
from fluence.schedule.group_labels import pod_index
from fluence.schedule.stand_in import (
    index_of,
    indexes_of,
    is_indexed,
    is_stand_in,
    owner_of,
    stand_in,
    stand_in_uid,
    wanted_indexes,
    wanted_pods,
)

PATIENCE = 120_000  # milliseconds: how long seats are held for the pods of a released Job
IMPATIENCE = 10_000  # the same in a namespace whose last such seats nobody came for
BETWEEN_PODS = (
    600_000  # how long seats are held for the next pod of a StatefulSet that makes one after the other
)

MOST_PODS = 5_000  # of one held owner: the nodes of the largest cluster that Kubernetes supports
MOST_OF_NAMESPACE = 10_000  # stand-ins at a time
PER_CYCLE = 2_000  # stand-ins made in one cycle, or as many as one owner has
_NARROW = 500  # pods of an owner that is not judged before its stand-ins are made
_REST = 0.5  # milliseconds that a namespace waits for each stand-in of a wider owner before the next one


@dataclass(frozen=True, slots=True)
class Came:
    """A stand-in is to count from now on, as it is."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Went:
    """Stand-ins of one owner count no longer."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What `settle` must know of the cluster."""

    has_seat: Container[str]  # by the uid of a pod
    has_node: Callable[[str], bool]
    most: Callable[[Pod], int | None]  # how many such pods it could hold if it were empty; None: unknown


@dataclass(slots=True)
class _Held:
    """A held owner, and what is known of it."""

    owner: Owner
    made: dict[str, Pod] = field(default_factory=dict)  # the stand-ins that count now, by uid
    met: set[int] = field(default_factory=set)  # whose pods have come since it was released
    note: ReleaseNote | None = None  # with what we released it
    given_up: bool = False  # its note does not count any more
    expired: bool = False  # its seats were given up because its pods did not come
    back: bool = False  # it was released and is suspended again
    gone: bool = False  # it is not held any more: its stand-ins are still to go

    @property
    def namespace(self) -> str:
        return self.owner.metadata.namespace


class StandIns:
    """The stand-ins of all held owners of one scheduler; owners are known by their identities."""

    def __init__(self, scheduler: str) -> None:
        self.withheld: dict[str, Reason] = {}  # owners that have one stand-in for all of their pods, and why
        self._scheduler = scheduler
        self._held: dict[str, _Held] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # by owner: those that it has made
        self._owner_of: dict[str, str] = {}  # by the uid of such a pod: it may name another one by and by
        self._classes: dict[str, PriorityClass] = {}
        self._expires: dict[str, int] = {}  # by owner: when the seats of pods that do not come are given up
        self._let_down: set[str] = set()  # namespaces whose last released Job made no pod in time
        self._changed: dict[str, None] = {}
        self._counts: Counter[str] = Counter()  # stand-ins that count now, by namespace
        self._full: set[str] = set()  # namespaces in which owners wait for fewer stand-ins
        self._rests: dict[str, int] = {}  # namespaces that had a wide owner: until when
        self._later: dict[str, int] = {}  # owners that wait for that

    # -- what happens ----------------------------------------------------------------------------------------

    def set_owner(self, owner: Owner) -> None:
        key = owner.identity
        held = self._held.get(key)
        if isinstance(owner, Job | StatefulSet) and places_us(owner, self._scheduler):
            if held is None:
                held = self._held[key] = _Held(owner)
            before, held.owner, held.gone = held.owner, owner, False
            if owner.spec.suspend:
                held.met.clear()
                if _was_released(held, before):
                    held.note, held.back = None, True
        elif held is None:
            return
        else:
            held.gone = True
        self._changed[key] = None

    def remove_owner(self, owner: Owner) -> None:
        held = self._held.get(owner.identity)
        if held is not None:
            held.gone = True
            self._changed[owner.identity] = None

    def set_class(self, found: PriorityClass, *, gone: bool) -> None:
        """What a priority's name means; a template has only the name."""
        if gone:
            self._classes.pop(found.metadata.name, None)
        else:
            self._classes[found.metadata.name] = found
        self._changed.update(dict.fromkeys(self._held))

    def cluster_changed(self) -> None:
        """The cluster could hold more if it were empty, or less."""
        self._changed.update(dict.fromkeys(self.withheld))

    def set_pod(self, pod: Pod) -> None:
        if is_stand_in(pod):
            return
        owner, uid = owner_of(pod), pod.metadata.uid
        if self._owner_of.get(uid, owner) != owner or not is_seen(pod):
            self.remove_pod(pod)  # its controller gave it up, or it never had that one
        if owner and is_seen(pod):
            self._owner_of[uid] = owner
            self._pods.setdefault(owner, {})[uid] = pod
            self._touch(owner)

    def remove_pod(self, pod: Pod) -> None:
        owner = self._owner_of.pop(pod.metadata.uid, None)
        if owner is not None:
            pods = self._pods[owner]
            del pods[pod.metadata.uid]
            if not pods:
                del self._pods[owner]
            self._touch(owner)

    def met(self, owner: str, stand_in: Pod) -> None:
        """A pod has taken the seat of a stand-in."""
        held = self._held.get(owner)
        if held is None:
            return
        self._drop(held, stand_in.metadata.uid)
        held.met.add(index_of(stand_in))
        self._let_down.discard(held.namespace)
        if isinstance(held.owner, StatefulSet):
            self._expires.pop(owner, None)  # the next pod has as long
        self._touch(owner)

    def give_up(self, owner: str) -> None:
        """A seat of an owner is lost: its note does not count until it is released anew."""
        held = self._held.get(owner)
        if held is not None:
            held.given_up = True
            self._touch(owner)

    def let_go(self, owner: str, note: ReleaseNote) -> None:
        """An owner has seats, and is to be released."""
        held = self._held[owner]
        held.given_up, held.note = False, note

    def _touch(self, owner: str) -> None:
        if owner in self._held:
            self._changed[owner] = None

    def _drop(self, held: _Held, uid: str) -> None:
        if held.made.pop(uid, None) is not None:
            self._counts[held.namespace] -= 1
            if not self._counts[held.namespace]:
                del self._counts[held.namespace]
            if held.namespace in self._full:
                self._retry_withheld(held.namespace)

    # -- what follows ----------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def next_due(self) -> int | None:
        """When seats are given up whose pods have not come, or a wide owner has its turn."""
        return min((*self._expires.values(), *self._later.values()), default=None)

    def settle(self, room: Room, now: int, *, everything: bool = False) -> Iterator[Came | Went]:
        """What changed: of each owner those that went before those that came. It is done for the first of the
        owners if they are many, unless ``everything`` is to be known before the first plan is made."""
        self._wake(now)
        left = PER_CYCLE if not everything else 1 << 60
        for key in self._in_turn():
            if left <= 0:
                return
            del self._changed[key]
            held = self._held[key]
            came = 0
            for each in self._settle(key, held, room, now, everything):
                came += isinstance(each, Came)
                yield each
            left -= 1 + came
            if held.gone:
                self._forget(key)

    def _wake(self, now: int) -> None:
        """Who was released and whose pods do not come (a quota, say) holds its seats so long and no
        longer."""
        for key in [key for key, at in self._expires.items() if at <= now]:
            del self._expires[key]
            held = self._held[key]
            held.expired = True
            if isinstance(held.owner, Job):
                self._let_down.add(held.namespace)
            self.give_up(key)
        for key in [key for key, at in self._later.items() if at <= now]:
            del self._later[key]
            self._touch(key)
        for namespace in [each for each, at in self._rests.items() if at <= now]:
            del self._rests[namespace]

    def _in_turn(self) -> list[str]:
        """The owners that changed, one of each namespace in turn, the narrower first."""
        by_namespace: dict[str, list[str]] = {}
        for key in self._changed:
            by_namespace.setdefault(key.partition("/")[0], []).append(key)
        turns = {key: turn for keys in by_namespace.values() for turn, key in enumerate(keys)}
        return sorted(turns, key=lambda key: (turns[key], wanted_pods(self._held[key].owner)))

    def _forget(self, key: str) -> None:
        held = self._held.pop(key)
        for uid in list(held.made):
            self._drop(held, uid)
        self.withheld.pop(key, None)
        self._expires.pop(key, None)
        self._later.pop(key, None)

    def _settle(self, key: str, held: _Held, room: Room, now: int, everything: bool) -> Iterator[Came | Went]:
        owner, made = held.owner, held.made
        had, reason = self.withheld.get(key), self._judged(key, held, room)
        if reason is not None:
            self.withheld[key] = reason
            listed = [stand_in(owner, 0)]
        elif self._rests_now(key, held, now, everything):
            return  # what it was told stands until then
        else:
            self.withheld.pop(key, None)
            listed = list(self._wanted(key, held, room, now))
        wanted = {each.metadata.uid: self._ranked(each) for each in listed}
        stale = [
            each
            for each in made.values()
            if (new := wanted.get(each.metadata.uid)) is None or not _asks_the_same(each, new)
        ]
        anew = held.back or bool(stale) or len(made) < len(wanted)
        held.back = False
        if owner.spec.suspend and anew:
            stale = list(made.values())  # a Job that has changed is matched anew, all of it
        for each in stale:
            self._drop(held, each.metadata.uid)
        if stale:
            yield Went(tuple(stale))
        for each in wanted.values():
            there = made.get(each.metadata.uid)
            differs = there != each and each.metadata.uid not in room.has_seat
            if there is None or differs or had != reason:
                self._counts[held.namespace] += there is None
                made[each.metadata.uid] = each
                yield Came(each)
        self._expire_later(key, held, room, now)

    # -- bounds ----------------------------------------------------------------------------------------------

    def _judged(self, key: str, held: _Held, room: Room) -> Reason | None:
        """Why an owner gets one stand-in for all of its pods, by arithmetic."""
        owner = held.owner
        waits = owner.spec.suspend or (isinstance(owner, StatefulSet) and owner.is_ordered)
        if not waits or self._is_over(held) or (owner.spec.suspend and self._runs(key)):
            return None
        pods = wanted_pods(owner)
        if pods > _NARROW:
            most = room.most(stand_in(owner, 0))
            if most is not None and pods > most:
                return Reason.of(Code.CLUSTER_HOLDS_FEWER, pods=pods, most=most)
        if pods > MOST_PODS:
            return Reason.of(Code.TOO_MANY_HELD_PODS, pods=pods, most=MOST_PODS)
        others = self._counts[held.namespace] - len(held.made)
        if pods > 1 and others + pods > MOST_OF_NAMESPACE:
            self._full.add(held.namespace)
            return Reason.of(Code.NAMESPACE_HOLDS_TOO_MANY, pods=pods, others=others, most=MOST_OF_NAMESPACE)
        return None

    def _rests_now(self, key: str, held: _Held, now: int, everything: bool) -> bool:
        """Whether a wide owner waits for the next turn of its namespace: each is as much work as all of its
        stand-ins, whenever its user changes it."""
        pods = wanted_pods(held.owner)
        if not held.owner.spec.suspend or pods <= _NARROW or self._is_over(held):
            return False
        until = self._rests.get(held.namespace, 0)
        if until > now and not everything:
            self._later[key] = until
            return True
        self._rests[held.namespace] = now + int(pods * _REST)
        return False

    def _retry_withheld(self, namespace: str) -> None:
        """Stand-ins went: others of the namespace may have had to wait for that."""
        self._full.discard(namespace)
        for key, why in self.withheld.items():
            if why.code is Code.NAMESPACE_HOLDS_TOO_MANY and self._held[key].namespace == namespace:
                self._changed[key] = None

    def _expire_later(self, key: str, held: _Held, room: Room, now: int) -> None:
        owner = held.owner
        if isinstance(owner, Job) and held.made and not owner.spec.suspend:
            self._expires.setdefault(key, self._expiry(held, now))
        elif isinstance(owner, StatefulSet) and any(uid in room.has_seat for uid in held.made):
            self._expires.setdefault(key, now + BETWEEN_PODS)
        else:
            self._expires.pop(key, None)

    def _expiry(self, held: _Held, now: int) -> int:
        """When the seats of a released Job are given up: by the time of its grant, which a restart does not
        move."""
        patience = IMPATIENCE if held.namespace in self._let_down else PATIENCE
        return min(now, granted_at(held.owner) or now) + patience

    def _ranked(self, pod: Pod) -> Pod:
        """A stand-in with the priority that its pod will have."""
        spec = pod.spec
        if spec.priority is not None or not self._classes:
            return pod
        default = next((each for each in self._classes.values() if each.global_default), None)
        found = self._classes.get(spec.priority_class_name or "", default)
        return pod if found is None else replace(pod, spec=replace(spec, priority=found.value))

    # -- who is wanted ---------------------------------------------------------------------------------------

    def _is_over(self, held: _Held) -> bool:
        """Whether an owner makes no more pods."""
        owner = held.owner
        leaves = owner.metadata.deletion_timestamp is not None
        return held.gone or owner.is_finished or is_cancelled(owner) or leaves

    def _runs(self, key: str) -> bool:
        return any(not pod.is_terminal for pod in self._children(key))

    def _children(self, key: str) -> list[Pod]:
        """The pods that an owner has made: they name it, and it claims them."""
        owner = self._held[key].owner
        return [pod for pod in self._pods.get(key, {}).values() if owner.claims(pod.metadata)]

    def _wanted(self, key: str, held: _Held, room: Room, now: int) -> Iterable[Pod]:
        owner = held.owner
        if self._is_over(held):
            return ()
        if isinstance(owner, StatefulSet):
            return self._ordered(key, held, room)
        if not owner.spec.suspend:
            return self._released(key, held, room, now)
        if self._runs(key):
            return ()  # it was suspended while it ran: its pods go first
        return (stand_in(owner, index) for index in wanted_indexes(owner))

    def _ordered(self, key: str, held: _Held, room: Room) -> Iterator[Pod]:
        """Of a StatefulSet that makes one pod after the other: those that are still to come."""
        owner, pods = held.owner, self._children(key)
        held.expired = held.expired and bool(pods)
        if not owner.is_ordered or held.expired:
            return
        there = {pod_index(pod): pod for pod in pods}
        for index in wanted_indexes(owner):
            pod, new = there.get(index), stand_in(owner, index)
            uid = new.metadata.uid
            waits = pod is not None and pod.spec.node_name is None and pod.metadata.uid not in room.has_seat
            if pod is None or (waits and uid in held.made and uid in room.has_seat):
                yield new

    def _released(self, key: str, held: _Held, room: Room, now: int) -> Iterator[Pod]:
        """Of a Job that was released: those whose pod has not come, or has come and has no seat yet."""
        owner, note = held.owner, held.note or release_note(held.owner)
        if note is None or not note.holds_for(owner) or held.given_up or len(note.nodes) > owner.pods:
            return
        left = _left(note, owner, self._children(key), held.met, room.has_seat)
        seated = [each for each in left if stand_in_uid(key, each[0]) in room.has_seat]
        if len(seated) < len(left):  # found by a fresh process
            late = self._expiry(held, now) <= now
            if late or _has_claims(owner) or not all(room.has_node(node) for _, node in left):
                held.given_up = True
                return
        for index, node in left:
            yield stand_in(owner, index, note=note, node=node)


def _was_released(held: _Held, before: Owner) -> bool:
    """Whether a Job that is suspended was released since it got its seats. Who did not see it run sees that
    by the note in its status."""
    if not before.spec.suspend:
        return True
    note = held.note
    return note is not None and note.is_carried_out(held.owner) and release_note(held.owner) == note


def _left(
    note: ReleaseNote, owner: Owner, pods: Iterable[Pod], met: set[int], has_seat: Container[str]
) -> list[tuple[int, str]]:
    """The seats of a released Job that no pod has taken."""
    settled = [pod for pod in pods if pod.spec.node_name or pod.is_terminal or pod.metadata.uid in has_seat]
    left = [(index, node) for index, node in note.nodes if index not in met]
    if is_indexed(owner):
        there = {pod_index(pod) for pod in settled}
        over = {*there, *indexes_of(owner.status.completed_indexes), *indexes_of(owner.status.failed_indexes)}
        return [(index, node) for index, node in left if index not in over]
    ended = (owner.status.succeeded or 0) + (owner.status.failed or 0)
    come = max(len(settled), ended, len(met)) - len(met)
    nodes = Counter(pod.spec.node_name for pod in settled if pod.spec.node_name)
    nodes -= Counter(node for index, node in note.nodes if index in met)
    return _without(left, nodes, come)


def _has_claims(owner: Owner) -> bool:
    template = owner.spec.template
    volumes = (template.spec.volumes if template is not None else None) or ()
    return any(each.persistent_volume_claim or each.ephemeral for each in volumes)


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


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether two stand-ins of a name ask for the same; that one has its node by now does not matter."""
    same = one.metadata.labels == other.metadata.labels
    return same and replace(one.spec, node_name=None) == replace(other.spec, node_name=None)
