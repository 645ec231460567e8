"""Claims: what is known of PersistentVolumeClaims, from claims, volumes and classes in any order.

A claim that waits for its first consumer can have a volume that is there, or one that its class makes. Which
volumes would do is kube-scheduler's rule: same class, mode and access, large enough, matched by the claim's
selector, given to nobody; the smallest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from fluence.model.meta import selector_matches
from fluence.model.pod import NodeSelector
from fluence.model.volume import Key, PersistentVolume, StorageClass, VolumeClaim

_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Choice:
    """A volume that is there already and would do."""

    volume: str
    nodes: NodeSelector | None = None  # from where it can be reached; None: from everywhere


@dataclass(frozen=True, slots=True)
class Claim:
    """What is known of a PersistentVolumeClaim.

    bound: its volume can be reached from ``nodes`` (None: from all). waits: it is bound when its first pod
    has a node (WaitForFirstConsumer); a volume can be made on ``nodes`` if the class makes any, and there are
    ``choices``. pending: neither.
    """

    state: Literal["bound", "waits", "pending"]
    nodes: NodeSelector | None = None
    one_pod: bool = False  # ReadWriteOncePod
    one_node: bool = False  # ReadWriteOnce, of a class whose volumes follow their pods
    provisions: bool = True
    choices: tuple[Choice, ...] = ()
    class_name: str = ""
    selected: str | None = None  # the node that was chosen, as the server has it
    owner: str | None = None  # the uid of the pod that it was made for
    uid: str = ""
    driver: str = ""  # the CSI driver of its volume, now or when it is made
    reason: str = ""  # why it is pending

    @property
    def reach(self) -> NodeSelector | None:
        """The nodes on which there can be a volume for it at all; None: all."""
        if self.state != "waits" or (self.provisions and self.nodes is None):
            return self.nodes
        terms = [*((self.nodes.node_selector_terms or ()) if self.provisions and self.nodes else ())]
        for choice in self.choices:
            if choice.nodes is None:
                return None
            terms += choice.nodes.node_selector_terms or ()
        return NodeSelector(node_selector_terms=terms)

    @property
    def picks(self) -> bool:
        """Whether there are nodes on which it must have one of its choices."""
        return self.state == "waits" and bool(self.choices) and not (self.provisions and self.nodes is None)


Change = tuple[str, str, Claim | None]  # namespace, name, what is known


class Claims:
    """Each change answers with the claim that it is about. What it means to other claims that wait, `settle`
    tells: a thousand volumes in a row are looked through once."""

    def __init__(self) -> None:
        self._claims: dict[Key, VolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._bound: dict[str, Key] = {}  # volume -> its claim
        self._of_class: dict[str, set[Key]] = {}  # claims without a volume
        self._stock: dict[str, set[str]] = {}  # volumes by class
        self._stale: set[str] = set()  # classes
        self._found: dict[tuple[str, bytes], tuple[Choice, ...]] = {}

    def set_claim(self, claim: VolumeClaim) -> list[Change]:
        key, name = claim.key, claim.spec.storage_class_name or ""
        self._claims[key] = claim
        if claim.spec.volume_name:
            self._bound[claim.spec.volume_name] = key
            self._of_class.get(name, set()).discard(key)
        else:
            self._of_class.setdefault(name, set()).add(key)
        return [self._say(key)]

    def remove_claim(self, claim: VolumeClaim) -> list[Change]:
        key = claim.key
        self._claims.pop(key, None)
        self._of_class.get(claim.spec.storage_class_name or "", set()).discard(key)
        return [(*key, None)]

    def set_volume(self, volume: PersistentVolume) -> list[Change]:
        name = volume.metadata.name
        self._volumes[name] = volume
        self._restock(volume)
        self._stock.setdefault(volume.spec.storage_class_name or "", set()).add(name)
        return self._of(name)

    def remove_volume(self, volume: PersistentVolume) -> list[Change]:
        name = volume.metadata.name
        self._volumes.pop(name, None)
        self._restock(volume)
        self._stock.get(volume.spec.storage_class_name or "", set()).discard(name)
        return self._of(name)

    def set_class(self, kind: StorageClass) -> None:
        self._classes[kind.metadata.name] = kind
        self._stale.add(kind.metadata.name)

    def remove_class(self, kind: StorageClass) -> None:
        self._classes.pop(kind.metadata.name, None)
        self._stale.add(kind.metadata.name)

    def settle(self) -> list[Change]:
        """The claims without a volume whose class, or the volumes of whose class, changed."""
        stale, self._stale = self._stale, set()
        return [self._say(key) for name in sorted(stale) for key in sorted(self._of_class.get(name, ()))]

    def everything(self) -> Iterable[Change]:
        """All that is known."""
        self._stale.clear()
        return [self._say(key) for key in self._claims]

    # -- inside ----------------------------------------------------------------------------------------------

    def _restock(self, volume: PersistentVolume) -> None:
        name = volume.spec.storage_class_name or ""
        self._stale.add(name)
        self._found = {key: found for key, found in self._found.items() if key[0] != name}

    def _of(self, volume: str) -> list[Change]:
        key = self._bound.get(volume)
        return [self._say(key)] if key is not None and key in self._claims else []

    def _say(self, key: Key) -> Change:
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

    def _pending(self, claim: VolumeClaim, kind: StorageClass | None) -> str | None:
        """Why a claim can have no pod yet."""
        if claim.metadata.deletion_timestamp is not None:
            return "is being deleted"
        name = claim.spec.storage_class_name
        if claim.spec.volume_name:
            if claim.status.phase == "Bound" and claim.spec.volume_name in self._volumes:
                return None
            lost = " (its volume is lost)" if claim.status.phase == "Lost" else ""
            return f"has no volume yet: it must be bound first{lost}"
        if name and kind is None:
            return f"names the storage class {name!r}, which is not there"
        return None if kind is not None and kind.waits else "has no volume yet: it must be bound first"

    def _choices(self, claim: VolumeClaim) -> tuple[tuple[Choice, ...], bool]:
        """The volumes that would do, and whether one was given to this claim: then it is the only one."""
        name = claim.spec.storage_class_name or ""
        stock = [self._volumes[each] for each in self._stock.get(name, ())]
        given = [each for each in stock if each.is_meant_for(claim) and _suits(each, claim)]
        if given:
            return tuple(Choice(each.metadata.name, each.nodes) for each in given[:1]), True
        spec = claim.spec
        asked = (name, _encode((spec.resources, spec.access_modes, spec.volume_mode, spec.selector)))
        found = self._found.get(asked)
        if found is None:
            free = [
                each
                for each in stock
                if each.spec.claim_ref is None
                and each.status.phase == "Available"
                and _suits(each, claim)
                and (spec.selector is None or selector_matches(spec.selector, each.metadata.labels or {}))
            ]
            free.sort(key=lambda each: (each.size, each.metadata.name))
            found = tuple(Choice(each.metadata.name, each.nodes) for each in free)
            self._found[asked] = found
        return found, False


def _suits(volume: PersistentVolume, claim: VolumeClaim) -> bool:
    modes = set(claim.spec.access_modes or ())
    return (
        volume.metadata.deletion_timestamp is None
        and modes.issubset(volume.spec.access_modes or ())
        and (volume.spec.volume_mode or "Filesystem") == (claim.spec.volume_mode or "Filesystem")
        and volume.size >= claim.size
    )
