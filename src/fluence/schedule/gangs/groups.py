"""Groups: the registry of gangs, built from pods, PodGroups and owners in any order, and the nodes they must
not use.

groups = Groups()
    groups.set_owner(job); groups.set_pod(pod)      # each returns the keys of the gangs that changed
    gang = groups.gang(groups.of(pod))
    if gang is not None and gang.is_ready: …        # try to place gang.needed of gang.members, or more

The scheduler feeds it from watches, and `fluence explain` from one listing. It only keeps indexes:
`membership` decides where a pod belongs and `gang.build` what a gang is, and both are pure. Gangs follow only
from the objects that exist, so a restart finds the same ones.

If the API server refused a pod of the group on a node, the node is excluded as long as the group exists, and
written on its pods, so that a restart knows it (`Gang.excluded`). If no volume could be provisioned on a
node, it is tried again after a while.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from fluence import names
from fluence.model.grant import is_ours
from fluence.model.meta import OwnerReference
from fluence.model.operators import CustomOwner
from fluence.model.owner import Group, Owner, claimed_by, identity
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang, build
from fluence.schedule.gangs.membership import (
    Membership,
    identity_of,
    listed_as,
    makes_pods,
    membership,
    named_by_template,
    owner_chain,
    workload_of,
)
from fluence.schedule.gangs.size import GroupLabel, group_field, group_label, other_group, pod_group_name
from fluence.schedule.gangs.submitters import NameGuard, payer_of, submitter
from fluence.schedule.queueing.placeholder import held_operator, is_placeholder, seat_of

_PAUSE = 60_000  # ms until a node without a volume is tried again: storage may be free by then


class Exclusions:
    """Excluded nodes by group."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}
        self._without_volumes: dict[str, dict[str, int]] = {}  # node -> until when

    def of(self, group: str) -> frozenset[str]:
        """The nodes that a group must not use now."""
        return frozenset((*self._refused.get(group, ()), *self._without_volumes.get(group, ())))

    def refused(self, group: str) -> Collection[str]:
        """The nodes that the server refused."""
        return self._refused.get(group, ())

    def refuse(self, group: str, nodes: Iterable[str]) -> None:
        self._refused.setdefault(group, set()).update(nodes)

    def exclude(self, group: str, nodes: Iterable[str], now: int) -> None:
        """Exclude nodes for a while, because no volume could be provisioned there."""
        self._without_volumes.setdefault(group, {}).update(dict.fromkeys(nodes, now + _PAUSE))

    def clear(self, group: str) -> None:
        """The group has its volumes: nodes without one count again."""
        self._without_volumes.pop(group, None)

    def forget(self, group: str) -> None:
        """Drop the exclusions of a group that is gone."""
        self._refused.pop(group, None)

    def expire(self, now: int) -> list[str]:
        """The groups that may use excluded nodes again."""
        found = []
        for group, nodes in list(self._without_volumes.items()):
            kept = {node: until for node, until in nodes.items() if until > now}
            if len(kept) < len(nodes):
                found.append(group)
                self._without_volumes[group] = kept
            if not kept:
                del self._without_volumes[group]
        return found

    def next_due(self) -> int | None:
        """When the next exclusion ends."""
        return min(
            (until for nodes in self._without_volumes.values() for until in nodes.values()), default=None
        )


_NATIVE = "scheduling.k8s.io/"


class Groups:
    """The gangs of one scheduler.

    ``follows``: the kinds of owners that are watched; a pod with such an owner waits until the owner is
    known. ``looks``: other kinds are looked up, so a pod of an operator's object waits until the result is
    known, see `unfollowed`. ``native``: the server has PodGroups, so a label may name one that is not known
    yet. ``systems``: other systems whose PodGroups the server has. ``withheld``: held owners whose pods are
    not all planned, by identity, and why.
    """

    def __init__(
        self,
        *,
        scheduler: str = names.SCHEDULER,
        follows: Collection[str] = ("Job", "Deployment", "ReplicaSet", "StatefulSet"),
        looks: bool = False,
        native: bool = False,
        systems: Collection[str] = (),
        withheld: Mapping[str, Reason] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.native = native
        self.systems = frozenset(systems)
        self.withheld = {} if withheld is None else withheld
        self.guard: NameGuard | None = None  # None: users can forge the submitter of a pod
        self.labels_of: Callable[[str], Mapping[str, str]] = lambda namespace: {}
        self.follows = frozenset(follows)
        self._looks = looks
        self._unfollowed: dict[str, str] = {}  # owners of kinds that are not watched -> kind
        self.unread: set[str] = set()  # identities of owners that cannot be read
        self._pods: dict[str, Pod] = {}
        self._memberships: dict[str, Membership] = {}
        self._gangs: dict[str, set[str]] = {}  # key -> our pods
        self._foreign: dict[str, set[str]] = {}  # key -> pods of other schedulers that name it
        self._named: dict[str, set[str]] = {}  # group -> pods that name it
        self._owned: dict[str, set[str]] = {}  # identity of an owner -> pods, also through owners of owners
        self._groups: dict[str, dict[str, Group]] = {}  # by `_found_as` -> source -> group
        self._owners: dict[str, Owner] = {}  # by identity
        self._naming: dict[str, set[str]] = {}  # key -> owners whose pods will belong to it
        self._listings: dict[str, Group] = {}  # PodGroups that list a gang, by key
        self._cache: dict[str, Gang] = {}
        self._kueue: Mapping[str, int] | None = None

    # -- events ----------------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> Collection[str]:
        """Add or update a pod of any scheduler. Pods of other schedulers matter if they name a group of
        ours."""
        key = pod.key
        if not is_ours(pod, self.scheduler) and not _names_group(pod):
            return self._drop(key)
        old = self._pods.get(key)
        self._pods[key] = pod
        if old is not None and _same(old, pod):
            self._cache.pop(self._memberships[key].key, None)
            return ()
        return self._settle(key)

    def remove_pod(self, pod: Pod) -> Collection[str]:
        held = self._pods.get(pod.key)
        if held is None or held.metadata.uid != pod.metadata.uid:
            return ()  # the pod was created again under its name
        return self._drop(pod.key)

    def set_group(self, group: Group) -> Collection[str]:
        """Add or update a PodGroup, as an adapter of ``kube.gangs`` read it."""
        key = _found_as(group)
        if group.is_listing:
            self._listings[key] = group
            self._cache.pop((group.annotations or {})[names.MADE_FOR], None)
            return ()
        held = self._groups.setdefault(key, {})
        old, held[group.source] = held.get(group.source), group
        pods = self._named.get(key, ())
        if old is not None and _same_group(old, group):
            for each in pods:
                self._cache.pop(self._memberships[each].key, None)
            return ()
        return self._resettle(pods)

    def remove_group(self, group: Group) -> Collection[str]:
        key = _found_as(group)
        if group.is_listing:
            self._cache.pop((group.annotations or {})[names.MADE_FOR], None)
            if key in self._listings and self._listings[key].uid == group.uid:
                del self._listings[key]
            return ()
        held = self._groups.get(key, {})
        if group.source not in held or held[group.source].uid != group.uid:
            return ()
        del held[group.source]
        if not held:
            del self._groups[key]
        return self._resettle(self._named.get(key, ()))

    def set_owner(self, owner: Owner) -> Collection[str]:
        key = owner.identity
        old, self._owners[key] = self._owners.get(key), owner
        pods = self._owned.get(key, ())
        if (by_name := _by_name(owner)) is not None:
            self._owners[by_name] = owner
            pods = {*pods, *self._owned.get(by_name, ())}
        if old is not None and _same_owner(old, owner):
            if old.succeeded == owner.succeeded and old.is_finished == owner.is_finished:
                return ()
            # A Job counts its completions one by one; the memberships of its pods do not change.
            changed = {self._memberships[each].key for each in pods} | self._named_by(owner)
            for key in changed:
                self._cache.pop(key, None)
            return changed
        named = self._forget_naming(old) | self._note_naming(owner)
        return self._resettle(pods) | named

    def remove_owner(self, owner: Owner) -> Collection[str]:
        old = self._owners.pop(owner.identity, None)
        if old is None:
            return ()
        by_name = _by_name(owner)
        if by_name is not None and self._owners[by_name].metadata.uid == owner.metadata.uid:
            del self._owners[by_name]
        named = self._forget_naming(old)
        return self._resettle(self._owned.get(owner.identity, ())) | named

    def follow(self, kinds: Collection[str]) -> Collection[str]:
        """Watch these kinds of owners too: their pods wait until the owner is known."""
        if self.follows.issuperset(kinds):
            return ()
        self.follows |= frozenset(kinds)
        return self._resettle(list(self._pods))

    def give_up(self, owners: Collection[str]) -> Collection[str]:
        """Stop waiting for these owners, given by identity: they cannot be read."""
        new = set(owners) - self.unread
        self.unread |= new
        return self._resettle({pod for owner in new for pod in self._owned.get(owner, ())})

    def set_native(self, native: bool, systems: Collection[str] = ()) -> Collection[str]:
        """Set whether the server has PodGroups. If so, labels may name one that is not known yet."""
        self.native, self.systems = native, frozenset(systems)
        self._cache.clear()
        return list(self._gangs)

    def use_kueue(self, priorities: Mapping[str, int] | None) -> Collection[str]:
        """Read the queue and the priority of a gang from Kueue's labels, with these priorities by class; None
        ignores the labels."""
        if self._kueue == priorities:
            return ()
        self._kueue = priorities
        self._cache.clear()
        return list(self._gangs)

    def set_guard(self, guard: NameGuard | None) -> Collection[str]:
        """Set whether, and since when, pods record who submitted them."""
        self.guard = guard
        self._cache.clear()
        return list(self._gangs)

    def relabelled(self, namespace: str) -> Collection[str]:
        """Update the gangs of a namespace whose labels changed: the submitters of its pods may count now, or
        no longer."""
        keys = [key for key in self._gangs if key.startswith(f"{namespace}/")]
        for key in keys:
            self._cache.pop(key, None)
        return keys

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def unfollowed(self) -> dict[str, str]:
        """Owners that pods wait for and whose kinds are not watched yet, as identity and kind."""
        if self._unfollowed:
            self._unfollowed = {
                owner: kind
                for owner, kind in self._unfollowed.items()
                if kind not in self.follows and owner in self._owned and owner not in self.unread
            }
        return self._unfollowed

    def of(self, pod: Pod) -> str:
        """The key of the gang that a pod belongs to."""
        member = self._memberships.get(pod.key)
        return (member or self._membership(pod)).key

    def gang(self, key: str) -> Gang | None:
        """The gang with this key; None if no pod of ours belongs to it."""
        pods = self._gangs.get(key)
        if not pods:
            return None
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._build(key, pods)
        return found

    def owners(self, pod: Pod) -> tuple[tuple[Owner, ...], OwnerReference | None]:
        """The known owners of a pod, from the nearest up, and the first one that is still awaited."""
        owners, unseen = owner_chain(pod, self._owners, self.follows)
        return owners, unseen if unseen is not None and self._awaits(unseen, pod) else None

    def seat_of(self, pod: Pod) -> tuple[str, object]:
        """The identity of the held owner of a pod, and which of its seats the pod may take."""
        return seat_of(pod, self.owners(pod)[0])

    def held_by(self, pod: Pod) -> str:
        """The identity of the held custom object of an operator that a pod belongs to, or ""."""
        held = held_operator(self.owners(pod)[0])
        return "" if held is None else held.identity

    def pods_of(self, owner: Owner) -> list[Pod]:
        """The pods that an owner created, also through owners of owners. Each pod names its owner, and the
        owner claims it."""
        found = []
        for key in self._owned.get(owner.identity, ()):
            pod = self._pods[key]
            owners = self._memberships[key].owners
            is_made = not is_placeholder(pod) and tuple(claimed_by(pod.metadata, owners)) == owners
            if is_made and any(each.identity == owner.identity for each in owners):
                found.append(pod)
        return found

    def all_owners(self) -> dict[str, Owner]:
        """By identity."""
        return dict(self._owners)

    def owner(self, identity: str) -> Owner | None:
        return self._owners.get(identity)

    def made_by(self, owner: Owner) -> set[str]:
        """The keys of the gangs that an owner's pods belong to."""
        return {self._memberships[pod].key for pod in self._owned.get(owner.identity, ())}

    def gangs(self) -> Iterator[Gang]:
        for key in list(self._gangs):
            gang = self.gang(key)
            if gang is not None:
                yield gang

    def named(self, namespace: str, name: str) -> Gang | None:
        """The gang of more than one pod with this name. If several have it, the one with this key: `train`,
        `volcano:train`, `job:train`."""
        key = f"{namespace}/{name}"
        of = [each for each in self.gangs() if each.namespace == namespace and not each.is_single]
        found = [each for each in of if each.key == key] or [each for each in of if each.name == name]
        return found[0] if found else None

    def owned_by(self, owner: str) -> list[Gang]:
        """The gangs that the pods of an owner belong to, given by identity, including owners below it."""
        keys = sorted({self._memberships[pod].key for pod in self._owned.get(owner, ())})
        return [gang for key in keys if (gang := self.gang(key)) is not None]

    def __len__(self) -> int:
        return len(self._gangs)

    # -- memberships -----------------------------------------------------------------------------------------

    def _settle(self, key: str) -> set[str]:
        changed = self._leave(key)
        pod = self._pods[key]
        member = self._membership(pod)
        self._memberships[key] = member
        ours = is_ours(pod, self.scheduler)
        (self._gangs if ours else self._foreign).setdefault(member.key, set()).add(key)
        for group in member.groups:
            self._named.setdefault(group, set()).add(key)
        for owner in member.identities:
            self._owned.setdefault(owner, set()).add(key)
        self._cache.pop(member.key, None)
        changed.add(member.key)
        return changed

    def _resettle(self, pods: Collection[str]) -> set[str]:
        changed: set[str] = set()
        for key in list(pods):
            changed |= self._settle(key)
        return changed

    def _leave(self, key: str) -> set[str]:
        member = self._memberships.pop(key, None)
        if member is None:
            return set()
        _discard(self._gangs, member.key, key)
        _discard(self._foreign, member.key, key)
        for group in member.groups:
            _discard(self._named, group, key)
        for owner in member.identities:
            _discard(self._owned, owner, key)
        self._cache.pop(member.key, None)
        return {member.key}

    def _drop(self, key: str) -> set[str]:
        self._pods.pop(key, None)
        member = self._memberships.get(key)
        changed = self._leave(key)
        if self.unread and member is not None:
            self.unread -= {each for each in member.identities if each not in self._owned}
        return changed

    def _membership(self, pod: Pod) -> Membership:
        owners, unseen = owner_chain(pod, self._owners, self.follows)
        if unseen is None or self._awaits(unseen, pod):
            return membership(pod, owners, unseen, find_group=self._group)
        found = membership(pod, owners, None, find_group=self._group)
        return dataclasses.replace(found, unread=unseen) if self._looks else found

    def _awaits(self, ref: OwnerReference, pod: Pod) -> bool:
        """Whether an unknown owner is expected to become known."""
        if ref.kind in self.follows:
            return True
        owner = identity_of(ref, pod.metadata.namespace)
        if not self._looks or owner in self.unread:
            return False
        self._unfollowed[owner] = ref.kind
        return True

    def _group(self, namespace: str, name: str) -> Group | None:
        """The PodGroup with this name. If there are two, the native one of Kubernetes."""
        held = self._groups.get(f"{namespace}/{name}")
        if not held:
            return None
        return max(held.values(), key=lambda each: (each.source.startswith(_NATIVE), each.source))

    # -- owners that name a group before they have pods ------------------------------------------------------

    def _note_naming(self, owner: Owner) -> set[str]:
        key = named_by_template(owner, self.scheduler)
        if key is None:
            return set()
        self._naming.setdefault(key, set()).add(owner.identity)
        return self._named_by(owner)

    def _forget_naming(self, owner: Owner | None) -> set[str]:
        key = None if owner is None else named_by_template(owner, self.scheduler)
        if owner is None or key is None:
            return set()
        found = self._named_by(owner)
        _discard(self._naming, key, owner.identity)
        return found

    def _named_by(self, owner: Owner) -> set[str]:
        """The existing gang that an owner names."""
        key = named_by_template(owner, self.scheduler)
        if key is None or key not in self._gangs:
            return set()
        self._cache.pop(key, None)
        return {key}

    def _expected(self, key: str) -> list[Owner]:
        """The owners that will create pods for a gang and have created none for another one."""
        found = []
        for each in sorted(self._naming.get(key, ())):
            owner, pods = self._owners[each], self._owned.get(each, ())
            if makes_pods(owner) and all(self._memberships[pod].key == key for pod in pods):
                found.append(owner)
        return found

    def _build(self, key: str, keys: Collection[str]) -> Gang:
        gang = self._decided(key, keys)
        if self.guard is not None:
            gang = self._submitted(gang, self.guard)
        if gang.group is not None and gang.group.is_native:
            return gang
        # Admission may have been switched on between two of the pods.
        found = (listed_as(self._pods[each], key) for each in keys)
        name = next((each for each in found if each is not None), None)
        if name is None:
            return gang
        listing = self._listings.get(f"{gang.namespace}/{name}")
        tops = {
            top.uid: top
            for each in sorted(keys)
            for top in (workload_of(self._pods[each], self._memberships[each].owners),)
        }
        return dataclasses.replace(gang, listed_as=name, listing=listing, workloads=tuple(tops.values()))

    def _submitted(self, gang: Gang, guard: NameGuard) -> Gang:
        """A gang with the user who submitted it. Pods of two users cannot be a gang: one user would use the
        share of the other."""
        if not guard.covers(gang.namespace, self.labels_of(gang.namespace)):
            return gang
        alive = (*gang.members, *gang.placed, *gang.gated) or gang.ended
        found = {submitter(pod, self._memberships[pod.key].owners, guard): None for pod in alive}
        users = [each for each in found if each]
        if not users:
            return gang
        payers = {payer_of(each) for each in users}
        gang = dataclasses.replace(gang, user=users[0], payer=payer_of(users[0]))
        if len(payers) == 1 or gang.fault is not None:
            return gang
        fault = Reason.of(Code.DIFFERENT_SUBMITTERS, users=tuple(sorted(users)))
        return dataclasses.replace(gang, fault=fault, missing=None)

    def _decided(self, key: str, keys: Collection[str]) -> Gang:
        return build(
            key,
            [self._pods[each] for each in keys],
            self._memberships,
            owners=self._owners,
            find_group=self._group,
            strangers=[self._pods[each] for each in self._foreign.get(key, ())],
            expected=self._expected(key) if self._naming else (),
            scheduler=self.scheduler,
            native=self.native,
            systems=self.systems,
            withheld=self.withheld,
            kueue=self._kueue,
        )


def _names_group(pod: Pod) -> bool:
    return group_field(pod) is not None or isinstance(group_label(pod) or other_group(pod), GroupLabel)


def _found_as(group: Group) -> str:
    return f"{group.namespace}/{pod_group_name(group)}"


def _discard(index: dict[str, set[str]], key: str, item: str) -> None:
    held = index.get(key)
    if held is not None:
        held.discard(item)
        if not held:
            del index[key]


def _by_name(owner: Owner) -> str | None:
    """The identity by which pods name an owner in a label."""
    if not isinstance(owner, CustomOwner) or not owner.operator.named:
        return None
    return identity(owner.metadata.namespace, owner.kind, owner.metadata.name, "")


def _same(old: Pod, new: Pod) -> bool:
    """Whether nothing changed that a gang depends on; most of the status does not matter here."""
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
    """Whether only the status changed, for example by our own write."""
    return replace(old, conditions=(), is_scheduled=None) == replace(new, conditions=(), is_scheduled=None)


def _same_owner(old: Owner, new: Owner) -> bool:
    sizes = (each.sizes if isinstance(each, CustomOwner) else None for each in (old, new))
    return (
        old.spec == new.spec
        and next(sizes) == next(sizes)
        and old.metadata.labels == new.metadata.labels
        and old.metadata.annotations == new.metadata.annotations
        and old.metadata.owner_references == new.metadata.owner_references
        and (old.metadata.deletion_timestamp is None) == (new.metadata.deletion_timestamp is None)
    )
