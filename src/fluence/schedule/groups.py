"""Groups: the registry of gangs, from pods, PodGroups and owners in whatever order they come.

    groups = Groups()
    groups.set_owner(job); groups.set_pod(pod)      # each answers with the keys of the gangs that changed
    gang = groups.gang(groups.of(pod))
    if gang is not None and gang.is_ready: …        # try to place gang.needed of gang.members, or more

The scheduler feeds it from its watches, `fluence explain` from one listing. It only keeps indexes: where a
pod belongs is decided by `membership`, what a gang is by `gang.build`, and both are pure. Nothing here
remembers: the gangs follow from the objects that are there, so a restart finds the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from fluence import names
from fluence.model.group import Group
from fluence.model.held import is_ours
from fluence.model.meta import OwnerReference
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.gang import Gang, build
from fluence.schedule.group_labels import GroupLabel, group_field, group_label, other_group, pod_group_name
from fluence.schedule.membership import Membership, makes_pods, membership, named_by_template, owner_chain

_NATIVE = "scheduling.k8s.io/"


class Groups:
    """The gangs of one scheduler. ``follows``: the kinds of owners that are watched; a pod of such a kind
    waits for its owner. ``native``: the server has PodGroups, so that a label which names one may be ahead of
    it. ``systems``: the other systems of which the server has PodGroups. ``withheld``: held owners whose pods
    are not all known, by identity, and why."""

    def __init__(
        self,
        *,
        scheduler: str = names.SCHEDULER,
        follows: Collection[str] = ("Job", "Deployment", "ReplicaSet", "StatefulSet"),
        native: bool = False,
        systems: Collection[str] = (),
        withheld: Mapping[str, Reason] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.native = native
        self.systems = frozenset(systems)
        self.withheld = {} if withheld is None else withheld
        self._follows = frozenset(follows)
        self._pods: dict[str, Pod] = {}
        self._memberships: dict[str, Membership] = {}
        self._gangs: dict[str, set[str]] = {}  # key -> our pods
        self._foreign: dict[str, set[str]] = {}  # key -> pods of other schedulers that name it
        self._named: dict[str, set[str]] = {}  # group -> pods that name it
        self._owned: dict[str, set[str]] = {}  # identity of an owner -> pods, through owners of owners too
        self._groups: dict[str, dict[str, Group]] = {}  # by `_found_as` -> source -> group
        self._owners: dict[str, Owner] = {}  # by identity
        self._naming: dict[str, set[str]] = {}  # key -> owners whose pods will belong to it
        self._cache: dict[str, Gang] = {}

    # -- what happens ----------------------------------------------------------------------------------------

    def set_pod(self, pod: Pod) -> Collection[str]:
        """A pod as it is now, any scheduler's: others' pods matter where they name a group of ours."""
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
            return ()  # it was made anew under its name
        return self._drop(pod.key)

    def set_group(self, group: Group) -> Collection[str]:
        """A PodGroup as it is now, from an adapter of ``kube.gangs``."""
        key = _found_as(group)
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
        if old is not None and _same_owner(old, owner):
            if old.succeeded == owner.succeeded and old.is_finished == owner.is_finished:
                return ()
            # A Job counts its completions one by one: what its pods belong to is not worked out anew.
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
        named = self._forget_naming(old)
        return self._resettle(self._owned.get(owner.identity, ())) | named

    def set_native(self, native: bool, systems: Collection[str] = ()) -> Collection[str]:
        """Whether the server has PodGroups: labels that name one may be ahead of it, or mean no more."""
        self.native, self.systems = native, frozenset(systems)
        self._cache.clear()
        return list(self._gangs)

    # -- what there is ---------------------------------------------------------------------------------------

    def of(self, pod: Pod) -> str:
        """The key of the gang that a pod belongs to."""
        member = self._memberships.get(pod.key)
        return (member or self._membership(pod)).key

    def gang(self, key: str) -> Gang | None:
        """The gang of this key; None if no pod of ours belongs to it."""
        pods = self._gangs.get(key)
        if not pods:
            return None
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._build(key, pods)
        return found

    def owners(self, pod: Pod) -> tuple[tuple[Owner, ...], OwnerReference | None]:
        """The pod's owner and that one's, as far as they are known, and the first that will be."""
        return owner_chain(pod, self._owners, self._follows)

    def owner(self, identity: str) -> Owner | None:
        return self._owners.get(identity)

    def gangs(self) -> Iterator[Gang]:
        for key in list(self._gangs):
            gang = self.gang(key)
            if gang is not None:
                yield gang

    def named(self, namespace: str, name: str) -> Gang | None:
        """The gang of more than one pod that users know by this name. Where several have it, the one whose
        key it is: `train`, `volcano:train`, `job:train`."""
        key = f"{namespace}/{name}"
        of = [each for each in self.gangs() if each.namespace == namespace and not each.is_single]
        found = [each for each in of if each.key == key] or [each for each in of if each.name == name]
        return found[0] if found else None

    def __len__(self) -> int:
        return len(self._gangs)

    # -- where a pod belongs ---------------------------------------------------------------------------------

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
        return self._leave(key)

    def _membership(self, pod: Pod) -> Membership:
        owners, unseen = owner_chain(pod, self._owners, self._follows)
        return membership(pod, owners, unseen, find_group=self._group)

    def _group(self, namespace: str, name: str) -> Group | None:
        """The PodGroup of this name; where there are two, Kubernetes' own."""
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
        """The gang that an owner names, if there is one."""
        key = named_by_template(owner, self.scheduler)
        if key is None or key not in self._gangs:
            return set()
        self._cache.pop(key, None)
        return {key}

    def _expected(self, key: str) -> list[Owner]:
        """The owners that will make pods for a gang: of what they have made, nothing is elsewhere."""
        found = []
        for each in sorted(self._naming.get(key, ())):
            owner, pods = self._owners[each], self._owned.get(each, ())
            if makes_pods(owner) and all(self._memberships[pod].key == key for pod in pods):
                found.append(owner)
        return found

    def _build(self, key: str, keys: Collection[str]) -> Gang:
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
        and (old.metadata.deletion_timestamp is None) == (new.metadata.deletion_timestamp is None)
    )
