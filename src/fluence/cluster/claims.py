"""Claims: the state of PersistentVolumeClaims, from claims, volumes and classes in any order.

A claim that waits for its first consumer can get an existing volume, or one that its class provisions. The
rule for existing volumes is that of kube-scheduler: the same class, volume mode and access modes, large
enough, matched by the selector of the claim, and unclaimed; the smallest first. The caller passes events of
claims, volumes and classes to `Claims`, and the results to `ClusterGraph.set_claim`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec
from cachetools import LRUCache

from fluence.model.claims import Key, PersistentVolume, StorageClass, VolumeClaim
from fluence.model.meta import selector_matches
from fluence.model.pod import NodeSelector
from fluence.model.reason import Code, Reason

_encode = msgspec.json.Encoder(order="deterministic").encode
_MAX_CHOICES = 1024  # distinct claims whose choices are cached
_UNBOUND = Reason.of(Code.CLAIM_UNBOUND)
_Item = TypeVar("_Item", Key, str)


@dataclass(frozen=True, slots=True)
class Choice:
    """An existing volume that a claim can use."""

    volume: str
    nodes: NodeSelector | None = None  # the nodes that can reach it; None: all


@dataclass(frozen=True, slots=True)
class Claim:
    """The state of a PersistentVolumeClaim.

    bound: its volume can be reached from ``nodes`` (None: from all). waits: it is bound when its first pod
    has a node (WaitForFirstConsumer); its class can provision a volume on ``nodes``, if it provisions at all,
    and ``choices`` are existing volumes. pending: neither.
    """

    state: Literal["bound", "waits", "pending"]
    nodes: NodeSelector | None = None
    one_pod: bool = False  # ReadWriteOncePod
    one_node: bool = False  # ReadWriteOnce, of a WaitForFirstConsumer class
    provisions: bool = True
    choices: tuple[Choice, ...] = ()
    class_name: str = ""
    selected: str | None = None  # the chosen node, as in the API server
    owner: str | None = None  # the uid of the pod for which it was created
    uid: str = ""
    driver: str = ""  # the CSI driver of its current or future volume
    reason: Reason | None = None  # why it is pending

    @property
    def is_terminating(self) -> bool:
        return self.reason is not None and self.reason.code is Code.CLAIM_TERMINATING

    @property
    def reach(self) -> NodeSelector | None:
        """The nodes on which it can have a volume; None: all."""
        if self.state != "waits" or (self.provisions and self.nodes is None):
            return self.nodes
        terms = [*((self.nodes.node_selector_terms or ()) if self.provisions and self.nodes else ())]
        for choice in self.choices:
            if choice.nodes is None:
                return None
            terms += choice.nodes.node_selector_terms or ()
        return NodeSelector(node_selector_terms=terms)

    @property
    def may_need_choice(self) -> bool:
        """Whether there are nodes on which it needs one of its choices."""
        return self.state == "waits" and bool(self.choices) and not (self.provisions and self.nodes is None)


Change = tuple[str, str, Claim | None]  # namespace, name, state


class Claims:
    """Each change returns the state of its claim. `settle` returns the effect on other waiting claims, so
    that a thousand volumes in a row are processed once."""

    def __init__(self) -> None:
        self._claims: dict[Key, VolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._bound: dict[str, Key] = {}  # volume -> its claim
        self._unbound: dict[str, set[Key]] = {}  # claims without a volume, by class
        self._of_class: dict[str, set[str]] = {}  # volumes by class
        self._stale: set[str] = set()  # classes
        self._found: LRUCache[tuple[str, bytes], tuple[Choice, ...]] = LRUCache(_MAX_CHOICES)

    def set_claim(self, claim: VolumeClaim) -> list[Change]:
        key = claim.key
        self._forget(key)
        self._claims[key] = claim
        if claim.spec.volume_name:
            self._bound[claim.spec.volume_name] = key
        else:
            self._unbound.setdefault(claim.spec.storage_class_name or "", set()).add(key)
        return [self._change(key)]

    def remove_claim(self, claim: VolumeClaim) -> list[Change]:
        self._forget(claim.key)
        return [(*claim.key, None)]

    def set_volume(self, volume: PersistentVolume) -> list[Change]:
        name = volume.metadata.name
        self._volumes[name] = volume
        self._forget_choices(volume)
        self._of_class.setdefault(volume.spec.storage_class_name or "", set()).add(name)
        return self._of(name)

    def remove_volume(self, volume: PersistentVolume) -> list[Change]:
        name = volume.metadata.name
        self._volumes.pop(name, None)
        self._forget_choices(volume)
        _discard(self._of_class, volume.spec.storage_class_name or "", name)
        return self._of(name)

    def set_class(self, kind: StorageClass) -> None:
        self._classes[kind.metadata.name] = kind
        self._stale.add(kind.metadata.name)

    def remove_class(self, kind: StorageClass) -> None:
        self._classes.pop(kind.metadata.name, None)
        self._stale.add(kind.metadata.name)

    def settle(self) -> list[Change]:
        """The claims without a volume whose class, or its volumes, have changed."""
        stale, self._stale = self._stale, set()
        return [self._change(key) for name in sorted(stale) for key in sorted(self._unbound.get(name, ()))]

    def everything(self) -> Iterable[Change]:
        """The state of all claims."""
        self._stale.clear()
        return [self._change(key) for key in self._claims]

    # -- inside ----------------------------------------------------------------------------------------------

    def _forget(self, key: Key) -> None:
        claim = self._claims.pop(key, None)
        if claim is None:
            return
        volume = claim.spec.volume_name or ""
        if self._bound.get(volume) == key:
            del self._bound[volume]
        _discard(self._unbound, claim.spec.storage_class_name or "", key)

    def _forget_choices(self, volume: PersistentVolume) -> None:
        name = volume.spec.storage_class_name or ""
        self._stale.add(name)
        for key in [key for key in self._found if key[0] == name]:
            del self._found[key]

    def _of(self, volume: str) -> list[Change]:
        key = self._bound.get(volume)
        return [self._change(key)] if key is not None and key in self._claims else []

    def _change(self, key: Key) -> Change:
        return (*key, self._known(self._claims[key]))

    def _known(self, claim: VolumeClaim) -> Claim:
        modes = frozenset(claim.spec.access_modes or ())
        name = claim.spec.storage_class_name or ""
        kind = self._classes.get(name)
        follows = kind is not None and kind.waits
        known = Claim(
            "pending",
            one_pod="ReadWriteOncePod" in modes,
            one_node=follows and modes == {"ReadWriteOnce"},
            class_name=name,
            selected=claim.selected_node,
            owner=claim.owner,
            uid=claim.metadata.uid,
        )
        pending = self._pending(claim, kind)
        if pending is not None:
            return replace(known, reason=pending)
        if claim.spec.volume_name:
            volume = self._volumes[claim.spec.volume_name]
            driver = volume.spec.csi.driver if volume.spec.csi is not None else ""
            return replace(known, state="bound", nodes=volume.nodes, driver=driver)
        assert kind is not None
        choices, given = self._choices(claim)
        provisions = kind.provisions and not given
        driver = kind.provisioner if provisions else ""
        return replace(
            known, state="waits", nodes=kind.nodes, provisions=provisions, choices=choices, driver=driver
        )

    def _pending(self, claim: VolumeClaim, kind: StorageClass | None) -> Reason | None:
        """Why pods cannot use a claim yet."""
        if claim.metadata.deletion_timestamp is not None:
            return Reason.of(Code.CLAIM_TERMINATING)
        name = claim.spec.storage_class_name
        if claim.spec.volume_name:
            if claim.status.phase == "Bound" and claim.spec.volume_name in self._volumes:
                return None
            return Reason.of(Code.CLAIM_LOST) if claim.status.phase == "Lost" else _UNBOUND
        if name and kind is None:
            return Reason.of(Code.STORAGE_CLASS_MISSING, storage_class=name)
        return None if kind is not None and kind.waits else _UNBOUND

    def _choices(self, claim: VolumeClaim) -> tuple[tuple[Choice, ...], bool]:
        """The existing volumes that a claim can use, and whether one was already given to it; then it is the
        only choice."""
        name = claim.spec.storage_class_name or ""
        volumes = [self._volumes[each] for each in self._of_class.get(name, ())]
        given = [each for each in volumes if each.is_meant_for(claim) and _satisfies(each, claim)]
        if given:
            return tuple(Choice(each.metadata.name, each.nodes) for each in given[:1]), True
        spec = claim.spec
        asked = (name, _encode((spec.resources, spec.access_modes, spec.volume_mode, spec.selector)))
        found = self._found.get(asked)
        if found is None:
            free = [
                each
                for each in volumes
                if each.spec.claim_ref is None
                and each.status.phase == "Available"
                and _satisfies(each, claim)
                and (spec.selector is None or selector_matches(spec.selector, each.metadata.labels or {}))
            ]
            free.sort(key=lambda each: (each.size, each.metadata.name))
            found = tuple(Choice(each.metadata.name, each.nodes) for each in free)
            self._found[asked] = found
        return found, False


def _satisfies(volume: PersistentVolume, claim: VolumeClaim) -> bool:
    modes = set(claim.spec.access_modes or ())
    return (
        volume.metadata.deletion_timestamp is None
        and modes.issubset(volume.spec.access_modes or ())
        and (volume.spec.volume_mode or "Filesystem") == (claim.spec.volume_mode or "Filesystem")
        and volume.size >= claim.size
    )


def _discard(sets: dict[str, set[_Item]], name: str, item: _Item) -> None:
    """Remove an item from a set by name; empty sets are removed too."""
    found = sets.get(name)
    if found is not None:
        found.discard(item)
        if not found:
            del sets[name]
