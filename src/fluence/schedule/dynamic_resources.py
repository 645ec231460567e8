"""Dynamic resources: devices of ResourceSlices as amounts that nodes have, and claims as what pods ask for.

kube-scheduler allocates the devices; the plan only counts them, so that it sends no more pods to a node than
there are devices for. A request can be counted if its class and its own selectors say no more than
`device.driver == …` and `device.attributes[…].… == …`, and its devices belong to nodes. Nodes and pods are
presented to the rest of the scheduler with one more resource, `dra/<class>`, as if it were an extended one.
What cannot be counted is left to kube-scheduler and never guessed: such pods go where they fit otherwise.

Two kinds of request may want the same device: then each also takes of the other, so that a device is never
planned twice; a few may stay unused for a while.

Users can write any number of templates. So only templates of pods that are there count, a namespace has at
most `MAX_KINDS` kinds, and a change costs what it touches: a new kind is held against each device once, and
only nodes and pods that look different are presented again. Pods beyond the bound wait for the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from fluence.model.dra import (
    MAX_KINDS,
    TOO_MANY_KINDS,
    DeviceClass,
    DeviceSelector,
    ResourceClaimTemplate,
    ResourceSlice,
    SliceDevice,
)
from fluence.model.held import pinned_node
from fluence.model.node import Node
from fluence.model.pod import Pod

PREFIX = "dra/"
K = TypeVar("K")
V = TypeVar("V")

_DRIVER = re.compile(r"""device\.driver\s*==\s*(?P<q>["'])(?P<value>[^"']+)(?P=q)""")
_ATTRIBUTE = re.compile(
    r"""device\.attributes\[(?P<q>["'])(?P<domain>[^"']+)(?P=q)\]\.(?P<name>\w+)"""
    r"""\s*==\s*(?:(?P<r>["'])(?P<text>[^"']*)(?P=r)|(?P<number>-?\d+)|(?P<flag>true|false))"""
)

Condition: TypeAlias = tuple[str, str, object]  # domain and name of an attribute, or "" and "driver"; value
Key: TypeAlias = tuple[str, str]  # namespace, name


def conditions(selectors: Iterable[DeviceSelector]) -> frozenset[Condition] | None:
    """What selectors ask of a device; None: more than can be counted."""
    found: set[Condition] = set()
    for selector in selectors:
        if selector.cel is None:
            return None
        for part in selector.cel.expression.split("&&"):
            text = part.strip()
            while text.startswith("(") and text.endswith(")"):
                text = text[1:-1].strip()
            driver, attribute = _DRIVER.fullmatch(text), _ATTRIBUTE.fullmatch(text)
            if driver is not None:
                found.add(("", "driver", driver["value"]))
            elif attribute is not None:
                value: object = attribute["text"]
                if attribute["number"] is not None:
                    value = int(attribute["number"])
                elif attribute["flag"] is not None:
                    value = attribute["flag"] == "true"
                found.add((attribute["domain"], attribute["name"], value))
            else:
                return None
    return frozenset(found)


def satisfies(device: SliceDevice, driver: str, wanted: frozenset[Condition]) -> bool:
    """Whether a device is one of those that are asked for."""
    attributes = device.attributes or {}
    for domain, name, value in wanted:
        if not domain:
            has: object = driver
        else:
            given = attributes.get(f"{domain}/{name}")
            if given is None and domain == driver:
                given = attributes.get(name)
            has = None if given is None else given.value
        if has != value or isinstance(has, bool) != isinstance(value, bool):
            return False
    return True


class _Wanted(NamedTuple):
    """What a request asks for: a class, and what a device must be."""

    class_name: str
    conditions: frozenset[Condition]
    narrowed: bool  # by selectors of the request's own


class _Device(NamedTuple):
    node: str | None
    driver: str
    device: SliceDevice


@dataclass(slots=True)
class _Kind:
    """Devices that a request can have."""

    resource: str
    number: int  # in its name; 0: it is named by its class alone
    devices: int = 0  # a bit for each
    offered: dict[str, int] = field(default_factory=dict)  # by node
    anywhere: bool = False  # some belong to no single node: they are not counted
    shared: set[_Wanted] = field(default_factory=set)  # other kinds that want some of them


@dataclass(frozen=True, slots=True)
class Presented:
    """Nodes and pods that look different from now on."""

    nodes: list[Node]
    pods: list[Pod]
    other_devices: bool  # devices have come or gone; else there are only other kinds of the same ones


class DynamicResources:
    """What drivers offer and claims ask for, as far as it can be counted."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}  # as they are
        self._pods: dict[str, Pod] = {}  # with claims, alive, as they are
        self._slices: dict[str, ResourceSlice] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._templates: dict[Key, ResourceClaimTemplate] = {}
        self._users: dict[Key, dict[str, None]] = {}  # by template: uids, in the order in which they came
        self._of_namespace: dict[str, dict[Key, None]] = {}  # the templates in use
        self._asked: dict[Key, dict[_Wanted, int] | None] = {}  # by template in use; None: it is not counted
        self._over: set[Key] = set()  # templates in use that are beyond the bound
        self._admitted: dict[str, dict[_Wanted, None]] = {}  # by namespace
        self._kinds: dict[_Wanted, _Kind] = {}
        self._numbers: dict[str, set[int]] = {}  # by class: those in the names of kinds
        self._devices: list[_Device] = []
        self._shown: dict[str, dict[str, int]] = {}  # by pod: what it was presented with
        self._offers_shown: dict[str, dict[str, int]] = {}  # by node
        self._stale: set[Key] = set()
        self._slices_changed = False

    # -- what happens ----------------------------------------------------------------------------------------

    def change(self, found: ResourceSlice | DeviceClass | ResourceClaimTemplate, *, gone: bool) -> None:
        meta = found.metadata
        if isinstance(found, ResourceSlice):
            _keep(self._slices, meta.name, None if gone else found)
            self._slices_changed = True
        elif isinstance(found, DeviceClass):
            _keep(self._classes, meta.name, None if gone else found)
            self._stale.update(self._users)
        else:
            key = (meta.namespace, meta.name)
            _keep(self._templates, key, None if gone else found)
            if key in self._users:
                self._stale.add(key)

    def set_pod(self, pod: Pod) -> Pod:
        """A pod with its devices among what it asks for."""
        if not pod.spec.resource_claims:
            return pod
        uid = pod.metadata.uid
        if pod.is_terminal:
            self.remove_pod(uid)
            return pod
        before, self._pods[uid] = self._pods.get(uid), pod
        for key in _templates(pod):
            self._of_namespace.setdefault(key[0], {})[key] = None
            users = self._users.setdefault(key, {})
            if uid not in users or _holds(pod) != (before is not None and _holds(before)):
                self._stale.add(key)
            users[uid] = None
        return self._present(pod)

    def remove_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        self._shown.pop(uid, None)
        for key in () if pod is None else _templates(pod):
            users = self._users.get(key, {})
            users.pop(uid, None)
            if not users and key in self._users:
                del self._users[key], self._of_namespace[key[0]][key]
                self._stale.add(key)

    def set_node(self, node: Node) -> Node:
        """A node with its devices among what it has."""
        self._nodes[node.name] = node
        devices = self._offers_shown[node.name] = self._offers(node.name)
        if not devices:
            return node
        allocatable = {**(node.status.allocatable or {}), **{key: str(n) for key, n in devices.items()}}
        return replace(node, status=replace(node.status, allocatable=allocatable))

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._offers_shown.pop(name, None)

    # -- what follows ----------------------------------------------------------------------------------------

    def settle(self) -> Presented:
        """Work out what the changes since the last call mean; says which nodes and pods look different."""
        if not self._stale and not self._slices_changed:
            return Presented([], [], other_devices=False)
        other_devices = self._slices_changed
        stale, self._stale = self._stale, set()
        for namespace in sorted({key[0] for key in stale}):
            self._admit(namespace, {key for key in stale if key[0] == namespace})
        nodes, touched = self._count()
        pods: dict[str, None] = {}
        for key, users in self._users.items():
            if key in stale or key in self._over or not touched.isdisjoint(self._asked.get(key) or ()):
                pods.update(users)
        return Presented(
            [
                self._nodes[name]
                for name in sorted(nodes & self._nodes.keys())
                if self._offers(name) != self._offers_shown[name]
            ],
            [pod for uid in pods if self._needs(pod := self._pods[uid]) != self._shown.get(uid, {})],
            other_devices,
        )

    def needs(self, pod: Pod) -> dict[str, int]:
        """How many devices of each kind a pod asks for; claims that it shares with others, and those that
        cannot be counted, are not in it."""
        found: dict[str, int] = {}
        for key in _templates(pod):
            asked = {} if key in self._over else self._asked.get(key) or {}
            kinds = {wanted: self._kinds[wanted] for wanted in asked if wanted in self._kinds}
            if any(kind.anywhere for kind in kinds.values()):
                continue
            for wanted, kind in kinds.items():
                for each in (kind, *(self._kinds[other] for other in kind.shared)):
                    found[each.resource] = found.get(each.resource, 0) + asked[wanted]
        return found

    def _offers(self, node: str) -> dict[str, int]:
        offers = ((each.resource, each.offered.get(node, 0)) for each in self._kinds.values())
        return {resource: amount for resource, amount in offers if amount}

    def _needs(self, pod: Pod) -> dict[str, int]:
        """The same; a pod that is beyond the bound asks for what no node has."""
        if not _holds(pod) and not self._over.isdisjoint(_templates(pod)):
            return {TOO_MANY_KINDS: 1}
        return self.needs(pod)

    def _present(self, pod: Pod) -> Pod:
        asked = self._needs(pod)
        self._shown[pod.metadata.uid] = asked
        if not asked:
            return pod
        overhead = {**(pod.spec.overhead or {}), **{key: str(n) for key, n in asked.items()}}
        return replace(pod, spec=replace(pod.spec, overhead=overhead))

    # -- counting --------------------------------------------------------------------------------------------

    def _admit(self, namespace: str, stale: set[Key]) -> None:
        """Which kinds the pods of a namespace may ask for: those of pods that have a node, then by age."""
        for key in stale:
            template = self._templates.get(key)
            if key in self._users and template is not None:
                self._asked[key] = self._of_template(template)
            else:
                self._asked.pop(key, None)
        in_use = self._of_namespace.get(namespace, {})
        held = {key for key in in_use if any(_holds(self._pods[uid]) for uid in self._users[key])}
        admitted: dict[_Wanted, None] = {}
        self._over -= {key for key in self._over if key[0] == namespace}
        for key in sorted(in_use, key=lambda key: key not in held):
            asked = self._asked.get(key) or {}
            if len(admitted.keys() | asked.keys()) > MAX_KINDS:
                self._over.add(key)
            else:
                admitted.update(dict.fromkeys(asked))
        _keep(self._admitted, namespace, admitted or None)
        if not in_use:
            self._of_namespace.pop(namespace, None)

    def _count(self) -> tuple[set[str], set[_Wanted]]:
        """Bring the kinds up to date; says which nodes offer something else, and which kinds have changed."""
        wanted = dict.fromkeys(each for some in self._admitted.values() for each in some)
        if self._slices_changed:
            self._slices_changed = False
            self._devices = list(self._newest_devices())
            gone, new = list(self._kinds), list(wanted)
        else:
            gone = [each for each in self._kinds if each not in wanted]
            new = [each for each in wanted if each not in self._kinds]
        nodes: set[str] = set()
        touched = {*gone, *new}
        before: dict[_Wanted, _Kind] = {}
        for each in gone:
            before[each] = kind = self._kinds.pop(each)
            for other in kind.shared:
                if other in self._kinds:
                    self._kinds[other].shared.discard(each)
            touched |= kind.shared
            nodes.update(kind.offered)
            self._numbers[each.class_name].discard(kind.number)
        for each in new:
            self._kinds[each] = kind = self._match(each, before.get(each))
            nodes.update(kind.offered)
            touched |= kind.shared
        return nodes, touched

    def _match(self, wanted: _Wanted, before: _Kind | None) -> _Kind:
        """Hold a kind against each device. Names of kinds that are gone are used again: what a cluster once
        counted, it keeps a place for."""
        taken = self._numbers.setdefault(wanted.class_name, set())
        number = next(n for n in count(1) if n not in taken) if wanted.narrowed else 0
        if before is not None and before.number not in taken:
            number = before.number
        taken.add(number)
        name = f"{PREFIX}{wanted.class_name}"
        kind = _Kind(f"{name}-{number}" if number else name, number)
        found: Counter[str] = Counter()
        for at, (node, driver, device) in enumerate(self._devices):
            if satisfies(device, driver, wanted.conditions):
                if node is None or device.allow_multiple_allocations or device.consumes_counters:
                    kind.anywhere = True
                    return kind
                kind.devices |= 1 << at
                found[node] += 1
        kind.offered = dict(found)
        for key, other in self._kinds.items():
            if kind.devices & other.devices:
                kind.shared.add(key)
                other.shared.add(wanted)
        return kind

    def _newest_devices(self) -> Iterator[_Device]:
        """The devices of the newest generation of each pool."""
        newest: dict[tuple[str, str], int] = {}
        for each in self._slices.values():
            pool = (each.spec.driver, each.spec.pool.name)
            newest[pool] = max(newest.get(pool, 0), each.spec.pool.generation)
        for each in self._slices.values():
            spec = each.spec
            if spec.pool.generation == newest[spec.driver, spec.pool.name]:
                for device in spec.devices or ():
                    if not device.taints:
                        yield _Device(spec.node_name or device.node_name, spec.driver, device)

    def _of_template(self, template: ResourceClaimTemplate) -> dict[_Wanted, int] | None:
        """What a claim of a template asks for; None: it cannot be counted."""
        claim = template.spec.spec.devices
        found: dict[_Wanted, int] = {}
        if claim.constraints:
            return None
        for request in claim.requests or ():
            exact = request.exactly
            if exact is None or exact.allocation_mode != "ExactCount" or exact.admin_access or exact.capacity:
                return None
            of_class = self._classes.get(exact.device_class_name)
            wanted = None if of_class is None else conditions(of_class.spec.selectors or ())
            own = conditions(exact.selectors or ())
            if wanted is None or own is None:
                return None
            kind = _Wanted(exact.device_class_name, wanted | own, bool(own))
            found[kind] = found.get(kind, 0) + exact.count
        return found


def _keep(held: dict[K, V], key: K, found: V | None) -> None:
    if found is None:
        held.pop(key, None)
    else:
        held[key] = found


def _templates(pod: Pod) -> list[Key]:
    """The templates of a pod's own claims; a claim that it shares with others is not one of them."""
    namespace = pod.metadata.namespace
    names = (each.resource_claim_template_name for each in pod.spec.resource_claims or ())
    return [(namespace, name) for name in names if name is not None]


def _holds(pod: Pod) -> bool:
    """Whether a pod has its devices, or is about to get them."""
    return pod.spec.node_name is not None or pinned_node(pod) is not None
