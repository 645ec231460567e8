"""Placeholders: members of a gang in place of pods that their owner has not created yet.

A suspended Job has no pods, and a StatefulSet creates its second pod when the first is ready. So that the
plan can reserve resources for all of them, a held owner gets a placeholder for each missing pod, made from
its template. When a pod arrives, it takes over the placement of its placeholder: the one with its index, or
any if the pods have none. The status of a released Job names its placements (`model.grant`), so a new process
finds them again. If a placement is lost before the first pod is bound, that note is void, and the pods are
placed together like any other gang.

A suspended object of an operator is held like a Job. Its pods are those of its roles, and Jobs may be in
between: `pods_of` says which pods belong to it. An object that does not describe its first pods cannot be
planned. It is released without placements (`unplanned`), and its pods are planned when they arrive. The pods
of a TrainJob follow from the JobSet that Kubeflow Trainer creates while it is suspended, so a TrainJob waits
for that JobSet first.

A placeholder costs as much as a pod, but a user only writes a number. So an owner is checked by arithmetic
first. If it is too wide for the cluster or for the bounds below, it gets a single placeholder and a reason
(`withheld`).

`Placeholders` follows held owners and their pods. The cycle calls `settle`, and handles the result like
events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from fluence.model.grant import (
    ReleaseNote,
    granted_at,
    is_cancelled,
    is_for_this_scheduler,
    is_held_by_admission,
    release_note,
)
from fluence.model.meta import PriorityClass
from fluence.model.operators import CustomOwner
from fluence.model.owner import Job, Owner, StatefulSet, controller_of
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.gangs.size import pod_index
from fluence.schedule.queueing.placeholder import (
    index_of,
    indexes_of,
    is_held_operator,
    is_indexed,
    is_placeholder,
    owner_of,
    placeholder,
    placeholder_uid,
    role_at,
    wanted_indexes,
    wanted_pods,
)
from fluence.schedule.step import Step

PATIENCE = 120_000  # ms that placements are held for the pods of a released Job
IMPATIENCE = 10_000  # the same in a namespace whose last released Job created no pods in time
BETWEEN_PODS = 600_000  # ms that placements are held for the next pod of an ordered StatefulSet

MADE_WITHIN = 30_000  # ms that a held object waits for the object that describes its pods

MOST_PODS = 5_000  # of one held owner: the nodes of the largest cluster that Kubernetes supports
MOST_OF_NAMESPACE = 10_000  # placeholders of a namespace at a time
PER_CYCLE = 2_000  # placeholders created in one cycle, or as many as one owner has
_NARROW = 500  # an owner with at most this many pods gets its placeholders without a check
_REST = 0.5  # ms that a namespace pauses for each placeholder of a wide owner, before the next wide one


@dataclass(frozen=True, slots=True)
class Added:
    """Count a placeholder from now on."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class Removed:
    """Stop counting these placeholders of one owner."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class Room:
    """What `settle` needs to know of the cluster."""

    has_seat: Container[str]  # by the uid of a pod
    has_node: Callable[[str], bool]
    most: Callable[[Pod], int | None]  # how many such pods the empty cluster could hold; None: unknown


@dataclass(slots=True)
class _Held:
    """A held owner and its state."""

    owner: Owner
    made: dict[str, Pod] = field(default_factory=dict)  # the placeholders that count now, by uid
    met: set[int] = field(default_factory=set)  # indexes whose pods have arrived since the release
    note: ReleaseNote | None = None  # the note of our release
    given_up: bool = False  # its note is void
    expired: bool = False  # its placements were given up because its pods did not arrive
    back: bool = False  # it was released and is suspended again
    gone: bool = False  # it is not held any more, but still has placeholders
    unknown_since: int | None = None  # since when its sizes are awaited

    @property
    def namespace(self) -> str:
        return self.owner.metadata.namespace


class Placeholders(Step):
    """The placeholders of all held owners of one scheduler. Owners are known by identity."""

    def __init__(self, scheduler: str) -> None:
        # Owners that have one placeholder for all of their pods, and why.
        self.withheld: dict[str, Reason] = {}
        self.unplanned: dict[str, Owner] = {}  # held objects to release without placements
        self.operators: set[str] = set()  # identities of held objects of operators
        self.pods_of: Callable[[Owner], list[Pod]] = lambda owner: []  # of an operator's object
        self._scheduler = scheduler
        self._held: dict[str, _Held] = {}
        self._pods: dict[str, dict[str, Pod]] = {}  # by owner: the pods it created
        self._owner_of: dict[str, str] = {}  # by uid of a pod; the pod may get another owner later
        self._classes: dict[str, PriorityClass] = {}
        self._expires: dict[str, int] = {}  # by owner: when its placements are given up unless pods arrive
        self._let_down: set[str] = set()  # namespaces whose last released Job created no pods in time
        self._changed: dict[str, None] = {}
        self._counts: Counter[str] = Counter()  # placeholders that count now, by namespace
        self._full: set[str] = set()  # namespaces in which owners wait until there are fewer placeholders
        self._rests: dict[str, int] = {}  # namespaces that pause after a wide owner, and until when
        self._later: dict[str, int] = {}  # owners that wait for the end of such a pause

    # -- events ----------------------------------------------------------------------------------------------

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item, gone = event.object, event.new is None
        if isinstance(item, Owner):
            (self.remove_owner if gone else self.set_owner)(item)
        elif isinstance(item, PriorityClass):
            self.set_class(item, gone=gone)

    def set_owner(self, owner: Owner) -> None:
        key = owner.identity
        held = self._held.get(key)
        self._touch(controller_of(owner.metadata))  # its operator's object may have these pods
        if self._is_ours(owner):
            if held is None:
                held = self._held[key] = _Held(owner)
                if isinstance(owner, CustomOwner):
                    self.operators.add(key)
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

    def _is_ours(self, owner: Owner) -> bool:
        if isinstance(owner, CustomOwner):
            is_managed = owner.spec.managed_by in (None, owner.operator.controller)
            return is_held_operator(owner) and is_managed
        return isinstance(owner, Job | StatefulSet) and is_for_this_scheduler(owner, self._scheduler)

    def remove_owner(self, owner: Owner) -> None:
        self._touch(controller_of(owner.metadata))
        held = self._held.get(owner.identity)
        if held is not None:
            held.gone = True
            self._changed[owner.identity] = None

    def set_class(self, found: PriorityClass, *, gone: bool) -> None:
        """Observe a PriorityClass; a template only has its name."""
        if gone:
            self._classes.pop(found.metadata.name, None)
        else:
            self._classes[found.metadata.name] = found
        self._changed.update(dict.fromkeys(self._held))

    def cluster_changed(self) -> None:
        """Check withheld owners again: the empty cluster could hold more now, or less."""
        self._changed.update(dict.fromkeys(self.withheld))

    def set_pod(self, pod: Pod, held_by: str = "") -> None:
        """``held_by``: the identity of the held operator's object that the pod belongs to."""
        if is_placeholder(pod):
            return
        owner, uid = held_by or owner_of(pod), pod.metadata.uid
        if self._owner_of.get(uid, owner) != owner or not is_held_by_admission(pod):
            self.remove_pod(pod)  # its controller released it, or it never had that one
        if owner and is_held_by_admission(pod):
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

    def met(self, owner: str, placeholder: Pod) -> None:
        """Record that a pod has taken over from a placeholder."""
        held = self._held.get(owner)
        if held is None:
            return
        self._drop(held, placeholder.metadata.uid)
        held.met.add(index_of(placeholder))
        self._let_down.discard(held.namespace)
        if isinstance(held.owner, StatefulSet):
            self._expires.pop(owner, None)  # the next pod gets the full time
        self._touch(owner)

    def give_up(self, owner: str) -> None:
        """A placement of an owner is lost: its note is void until its next release."""
        held = self._held.get(owner)
        if held is not None:
            held.given_up = True
            self._touch(owner)

    def let_go(self, owner: str, note: ReleaseNote) -> None:
        """Record that an owner has placements and will be released."""
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

    # -- updates ---------------------------------------------------------------------------------------------

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def next_due(self) -> int | None:
        """When placements without pods are given up, or a pause after a wide owner ends."""
        return min((*self._expires.values(), *self._later.values()), default=None)

    def settle(self, room: Room, now: int, *, everything: bool = False) -> Iterator[Added | Removed]:
        """The changes of placeholders: for each owner, removed before added. If many owners changed, only the
        first ones are handled, unless ``everything`` must be known before the first plan."""
        self._wake(now)
        left = PER_CYCLE if not everything else 1 << 60
        for key in self._in_turn():
            if left <= 0:
                return
            del self._changed[key]
            held = self._held[key]
            came = 0
            for each in self._settle(key, held, room, now, everything):
                came += isinstance(each, Added)
                yield each
            left -= 1 + came
            if held.gone:
                self._forget(key)

    def _wake(self, now: int) -> None:
        """Give up the placements of released owners whose pods do not arrive, for example because of a quota,
        and wake owners whose pause has ended."""
        for key in [key for key, at in self._expires.items() if at <= now]:
            del self._expires[key]
            held = self._held[key]
            held.expired = True
            if not isinstance(held.owner, StatefulSet):
                self._let_down.add(held.namespace)
            self.give_up(key)
        for key in [key for key, at in self._later.items() if at <= now]:
            del self._later[key]
            self._touch(key)
        for namespace in [each for each, at in self._rests.items() if at <= now]:
            del self._rests[namespace]

    def _in_turn(self) -> list[str]:
        """The owners that changed: one of each namespace in turn, narrow ones first."""
        by_namespace: dict[str, list[str]] = {}
        for key in self._changed:
            by_namespace.setdefault(key.partition("/")[0], []).append(key)
        turns = {key: turn for keys in by_namespace.values() for turn, key in enumerate(keys)}
        return sorted(turns, key=lambda key: (turns[key], self._count(self._held[key].owner)))

    def _count(self, owner: Owner) -> int:
        """How many pods of this scheduler an owner would run now."""
        return wanted_pods(owner, self._scheduler)

    def _placeholder(self, owner: Owner, index: int, note: ReleaseNote | None = None, node: str = "") -> Pod:
        return placeholder(owner, index, note=note, node=node or None, scheduler=self._scheduler)

    def _forget(self, key: str) -> None:
        held = self._held.pop(key)
        for uid in list(held.made):
            self._drop(held, uid)
        self.withheld.pop(key, None)
        self.unplanned.pop(key, None)
        self.operators.discard(key)
        self._expires.pop(key, None)
        self._later.pop(key, None)

    def _settle(
        self, key: str, held: _Held, room: Room, now: int, everything: bool
    ) -> Iterator[Added | Removed]:
        owner, made = held.owner, held.made
        had, reason = self.withheld.get(key), self._judged(key, held, room)
        if reason is not None:
            self.withheld[key] = reason
            listed = [self._placeholder(owner, 0)]
        elif self._rests_now(key, held, now, everything):
            return  # its last report stays until then
        else:
            self.withheld.pop(key, None)
            listed = list(self._wanted(key, held, room, now))
        self._note_unplanned(key, held, now)
        wanted = {each.metadata.uid: self._ranked(each) for each in listed}
        stale = [
            each
            for each in made.values()
            if (new := wanted.get(each.metadata.uid)) is None or not _asks_the_same(each, new)
        ]
        anew = held.back or bool(stale) or len(made) < len(wanted)
        held.back = False
        if owner.spec.suspend and anew:
            stale = list(made.values())  # a Job that has changed is planned again as a whole
        for each in stale:
            self._drop(held, each.metadata.uid)
        if stale:
            yield Removed(tuple(stale))
        for each in wanted.values():
            there = made.get(each.metadata.uid)
            differs = there != each and each.metadata.uid not in room.has_seat
            if there is None or differs or had != reason:
                self._counts[held.namespace] += there is None
                made[each.metadata.uid] = each
                yield Added(each)
        self._expire_later(key, held, room, now)

    def _note_unplanned(self, key: str, held: _Held, now: int) -> None:
        """Release an operator's object whose first pods cannot be planned, unless another object may still
        describe them."""
        owner = held.owner
        waits = isinstance(owner, CustomOwner) and owner.spec.suspend and not self._count(owner)
        if waits and not self._is_over(held) and not self._awaits_sizes(key, held, now):
            self.unplanned[key] = owner
        else:
            self.unplanned.pop(key, None)

    def _awaits_sizes(self, key: str, held: _Held, now: int) -> bool:
        owner = held.owner
        if not isinstance(owner, CustomOwner) or not owner.operator.made or owner.sizes is not None:
            held.unknown_since = None
            return False
        held.unknown_since = now if held.unknown_since is None else held.unknown_since
        until = held.unknown_since + MADE_WITHIN
        if until > now:
            self._later[key] = until
        return until > now

    # -- bounds ----------------------------------------------------------------------------------------------

    def _judged(self, key: str, held: _Held, room: Room) -> Reason | None:
        """Why an owner gets one placeholder for all of its pods, by arithmetic."""
        owner = held.owner
        waits = owner.spec.suspend or (isinstance(owner, StatefulSet) and owner.is_ordered)
        if not waits or self._is_over(held) or (owner.spec.suspend and self._runs(key)):
            return None
        pods = self._count(owner)
        if pods > _NARROW:
            for index, alike in self._sorts(owner):
                most = room.most(self._placeholder(owner, index))
                if most is not None and alike > most:
                    return Reason.of(Code.CLUSTER_HOLDS_FEWER, pods=alike, most=most)
        if pods > MOST_PODS:
            return Reason.of(Code.TOO_MANY_HELD_PODS, pods=pods, most=MOST_PODS)
        others = self._counts[held.namespace] - len(held.made)
        if pods > 1 and others + pods > MOST_OF_NAMESPACE:
            self._full.add(held.namespace)
            return Reason.of(Code.NAMESPACE_HOLDS_TOO_MANY, pods=pods, others=others, most=MOST_OF_NAMESPACE)
        return None

    def _sorts(self, owner: Owner) -> Iterator[tuple[int, int]]:
        """The first index of each kind of pods that an owner creates, and how many there are."""
        if not isinstance(owner, CustomOwner):
            yield 0, self._count(owner)
            return
        index = 0
        for role in owner.planned(self._scheduler):
            if role.pods > _NARROW:
                yield index, role.pods
            index += role.pods

    def _rests_now(self, key: str, held: _Held, now: int, everything: bool) -> bool:
        """Whether a wide owner waits for the next turn of its namespace: each change by its user costs as
        much as all of its placeholders."""
        pods = self._count(held.owner)
        if not held.owner.spec.suspend or pods <= _NARROW or self._is_over(held):
            return False
        until = self._rests.get(held.namespace, 0)
        if until > now and not everything:
            self._later[key] = until
            return True
        self._rests[held.namespace] = now + int(pods * _REST)
        return False

    def _retry_withheld(self, namespace: str) -> None:
        """Check withheld owners of the namespace again, since there are fewer placeholders now."""
        self._full.discard(namespace)
        for key, why in self.withheld.items():
            if why.code is Code.NAMESPACE_HOLDS_TOO_MANY and self._held[key].namespace == namespace:
                self._changed[key] = None

    def _expire_later(self, key: str, held: _Held, room: Room, now: int) -> None:
        owner = held.owner
        if not isinstance(owner, StatefulSet) and held.made and not owner.spec.suspend:
            self._expires.setdefault(key, self._expiry(held, now))
        elif isinstance(owner, StatefulSet) and any(uid in room.has_seat for uid in held.made):
            self._expires.setdefault(key, now + BETWEEN_PODS)
        else:
            self._expires.pop(key, None)

    def _expiry(self, held: _Held, now: int) -> int:
        """When the placements of a released Job are given up, counted from its grant, so that a restart does
        not delay it."""
        patience = IMPATIENCE if held.namespace in self._let_down else PATIENCE
        return min(now, granted_at(held.owner) or now) + patience

    def _ranked(self, pod: Pod) -> Pod:
        """A placeholder with the priority that its pod will have."""
        spec = pod.spec
        if spec.priority is not None or not self._classes:
            return pod
        default = next((each for each in self._classes.values() if each.global_default), None)
        found = self._classes.get(spec.priority_class_name or "", default)
        return pod if found is None else replace(pod, spec=replace(spec, priority=found.value))

    # -- wanted placeholders ---------------------------------------------------------------------------------

    def _is_over(self, held: _Held) -> bool:
        """Whether an owner creates no more pods."""
        owner = held.owner
        leaves = owner.metadata.deletion_timestamp is not None
        return held.gone or owner.is_finished or is_cancelled(owner) or leaves

    def _runs(self, key: str) -> bool:
        return any(not pod.is_terminal for pod in self._children(key))

    def _children(self, key: str) -> list[Pod]:
        """The pods that an owner created: they name it, and it claims them."""
        owner = self._held[key].owner
        if isinstance(owner, CustomOwner):
            return [pod for pod in self.pods_of(owner) if is_held_by_admission(pod)]
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
            return ()  # it was suspended while it ran: its pods must end first
        return (self._placeholder(owner, index) for index in wanted_indexes(owner, self._scheduler))

    def _ordered(self, key: str, held: _Held, room: Room) -> Iterator[Pod]:
        """The missing pods of a StatefulSet that creates one pod after the other."""
        owner, pods = held.owner, self._children(key)
        held.expired = held.expired and bool(pods)
        if not owner.is_ordered or held.expired:
            return
        there = {pod_index(pod): pod for pod in pods}
        for index in wanted_indexes(owner):
            pod, new = there.get(index), placeholder(owner, index)
            uid = new.metadata.uid
            waits = pod is not None and pod.spec.node_name is None and pod.metadata.uid not in room.has_seat
            if pod is None or (waits and uid in held.made and uid in room.has_seat):
                yield new

    def _released(self, key: str, held: _Held, room: Room, now: int) -> Iterator[Pod]:
        """The pods of a released Job that have not arrived, or have arrived and have no placement yet."""
        owner, note = held.owner, held.note or release_note(held.owner)
        if note is None or not note.holds_for(owner) or held.given_up or len(note.nodes) > owner.pods:
            return
        if isinstance(owner, CustomOwner):
            if any(index >= self._count(owner) for index, _ in note.nodes):
                return  # the note does not match the roles
            left = _left_of_roles(note, owner, self._children(key), held.met, room.has_seat, self._scheduler)
        else:
            left = _left(note, owner, self._children(key), held.met, room.has_seat)
        seated = [each for each in left if placeholder_uid(key, each[0]) in room.has_seat]
        if len(seated) < len(left):  # in a new process
            late = self._expiry(held, now) <= now
            if late or _has_claims(owner) or not all(room.has_node(node) for _, node in left):
                held.given_up = True
                return
        for index, node in left:
            yield self._placeholder(owner, index, note, node)


def _was_released(held: _Held, before: Owner) -> bool:
    """Whether a suspended Job was released after it got its placements. If this process did not see it
    running, the note in its status tells."""
    if not before.spec.suspend:
        return True
    note, owner = held.note, held.owner
    if note is None or not note.is_carried_out(owner):
        return False
    has_no_note = isinstance(owner, CustomOwner) and not owner.operator.grants
    return has_no_note or release_note(owner) == note


def _left(
    note: ReleaseNote, owner: Owner, pods: Iterable[Pod], met: set[int], has_seat: Container[str]
) -> list[tuple[int, str]]:
    """The placements of a released Job that no pod has taken."""
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


def _left_of_roles(
    note: ReleaseNote,
    owner: CustomOwner,
    pods: Iterable[Pod],
    met: set[int],
    has_seat: Container[str],
    scheduler: str,
) -> list[tuple[int, str]]:
    """The placements of a released operator's object that no pod has taken, role by role."""
    settled: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.spec.node_name or pod.is_terminal or pod.metadata.uid in has_seat:
            share = owner.share_of(pod)
            settled.setdefault("" if share is None else share.role.name, []).append(pod)
    seats: dict[str, list[tuple[int, str]]] = {}
    for index, node in note.nodes:
        seats.setdefault(role_at(owner, index, scheduler).name, []).append((index, node))
    found = []
    for role, granted in seats.items():
        there = settled.get(role, [])
        taken = [(index, node) for index, node in granted if index in met]
        nodes = Counter(pod.spec.node_name for pod in there if pod.spec.node_name)
        nodes -= Counter(node for _, node in taken)
        left = [each for each in granted if each[0] not in met]
        found += _without(left, nodes, max(0, len(there) - len(taken)))
    return sorted(found)


def _has_claims(owner: Owner) -> bool:
    templates = [owner.spec.template]
    if isinstance(owner, CustomOwner):
        templates = [role.template for role in owner.planned()]
    volumes = [each for found in templates if found is not None for each in found.spec.volumes or ()]
    return any(each.persistent_volume_claim or each.ephemeral for each in volumes)


def _without(seats: list[tuple[int, str]], nodes: Counter[str], count: int) -> list[tuple[int, str]]:
    """Remove ``count`` placements that pods without an index have taken, first on the nodes where these pods
    run."""
    left, taken = Counter(nodes), set[tuple[int, str]]()
    for each in seats:
        if len(taken) < count and left[each[1]] > 0:
            left[each[1]] -= 1
            taken.add(each)
    others = (each for each in seats if each not in taken)
    taken.update(list(islice(others, count - len(taken))))
    return [each for each in seats if each not in taken]


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether two placeholders with one name have the same requests; a chosen node does not matter."""
    same = one.metadata.labels == other.metadata.labels
    return same and replace(one.spec, node_name=None) == replace(other.spec, node_name=None)
