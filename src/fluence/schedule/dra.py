"""Dynamic resources: the devices of ResourceSlices as amounts on nodes, and ResourceClaims as requests of
pods.

kube-scheduler allocates the devices. The plan only counts them, so that it does not send more pods to a node
than the node has devices for. A request can be counted if its class and its own selectors say no more than
`device.driver == …` and `device.attributes[…].… == …`, and if its devices belong to nodes. The rest of the
scheduler sees nodes and pods with one more resource, `dra/<class>`, as if it were an extended resource.
Requests that cannot be counted are left to kube-scheduler and never guessed: such pods are placed by their
other requests.

Two kinds of request may want the same device. Each then also takes from the other, so that no device is
planned twice; a few devices may stay unused for a while.

Users can create any number of templates. So only templates of existing pods count, a namespace has at most
`MAX_KINDS` kinds, and a change only costs what it affects: a new kind is compared with each device once, and
only nodes and pods that changed are updated. Pods beyond the bound wait for the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from fluence.model.claims import (
    MAX_KINDS,
    RESOURCE_PREFIX,
    TOO_MANY_KINDS,
    DeviceClass,
    DeviceSelector,
    ResourceClaimTemplate,
    ResourceSlice,
    SliceDevice,
)
from fluence.model.grant import pinned_node
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.step import Step
from fluence.units import MAX_AMOUNT

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
    """The conditions that selectors put on a device; None if they cannot be counted."""
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
    """Whether a device meets all conditions."""
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
    """What a request asks for: a class, and the conditions on a device."""

    class_name: str
    conditions: frozenset[Condition]
    narrowed: bool  # the request has selectors of its own


class _Device(NamedTuple):
    node: str | None
    driver: str
    device: SliceDevice


@dataclass(slots=True)
class _Kind:
    """The devices that a request may use."""

    resource: str
    number: int  # part of its name; 0: only the class is
    devices: int = 0  # one bit per device
    offered: dict[str, int] = field(default_factory=dict)  # by node
    anywhere: bool = False  # some devices belong to no single node: the kind is not counted
    shared: set[_Wanted] = field(default_factory=set)  # other kinds that want some of these devices


@dataclass(frozen=True, slots=True)
class Presented:
    """The nodes and pods that changed."""

    nodes: list[Node]
    pods: list[Pod]
    other_devices: bool  # devices came or went; if not, only the kinds changed


class DynamicResources(Step):
    """Counts the devices that drivers offer and ResourceClaims request, where they can be counted."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}  # as they are
        self._pods: dict[str, Pod] = {}  # with ResourceClaims, as they are
        self._slices: dict[str, ResourceSlice] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._templates: dict[Key, ResourceClaimTemplate] = {}
        self._users: dict[Key, dict[str, None]] = {}  # by template: uids, in order of arrival
        self._of_namespace: dict[str, dict[Key, None]] = {}  # the templates in use
        self._asked: dict[Key, dict[_Wanted, int] | None] = {}  # by template in use; None: not counted
        self._over: set[Key] = set()  # templates in use that are beyond the bound
        self._admitted: dict[str, dict[_Wanted, None]] = {}  # by namespace
        self._kinds: dict[_Wanted, _Kind] = {}
        self._numbers: dict[str, set[int]] = {}  # by class: the numbers in the names of its kinds
        self._devices: list[_Device] = []
        self._shown: dict[str, dict[str, int]] = {}  # by pod: the amounts it was shown with
        self._offers_shown: dict[str, dict[str, int]] = {}  # by node: the amounts it was shown with
        self._stale: set[Key] = set()
        self._slices_changed = False

    # -- events ----------------------------------------------------------------------------------------------

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, Changed) and isinstance(
            event.object, ResourceSlice | DeviceClass | ResourceClaimTemplate
        ):
            self.change(event.object, gone=event.new is None)

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
        """The pod with its devices added to its requests."""
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
        """The node with its devices added to its allocatable resources."""
        self._nodes[node.name] = node
        devices = self._offers_shown[node.name] = self._offers(node.name)
        if not devices:
            return node
        allocatable = {**(node.status.allocatable or {}), **{key: str(n) for key, n in devices.items()}}
        return replace(node, status=replace(node.status, allocatable=allocatable))

    def remove_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._offers_shown.pop(name, None)

    # -- updates ---------------------------------------------------------------------------------------------

    def settle(self) -> Presented:
        """Process the changes since the last call. Returns the nodes and pods that changed."""
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
        """How many devices of each kind a pod requests. ResourceClaims shared with other pods, and those that
        cannot be counted, are left out."""
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

    def by_class(self, pod: Pod) -> dict[str, int]:
        """How many devices of each class a pod requests, whether the plan can count them or not.
        ResourceClaims shared with other pods, and alternatives, are left out."""
        found: dict[str, int] = {}
        for key in _templates(pod):
            template = self._templates.get(key)
            requests = None if template is None else template.spec.spec.devices.requests
            for exact in (each.exactly for each in requests or ()):
                if exact is not None and exact.allocation_mode == "ExactCount" and not exact.admin_access:
                    name = f"{RESOURCE_PREFIX}{exact.device_class_name}"
                    found[name] = min(found.get(name, 0) + max(exact.count, 0), MAX_AMOUNT)
        return found

    def _offers(self, node: str) -> dict[str, int]:
        offers = ((each.resource, each.offered.get(node, 0)) for each in self._kinds.values())
        return {resource: amount for resource, amount in offers if amount}

    def _needs(self, pod: Pod) -> dict[str, int]:
        """The counted requests of a pod. A pod beyond the bound requests a resource that no node has."""
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
        """Choose the kinds that the pods of a namespace may use: kinds of pods with a node first, then by
        age."""
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
        """Update the kinds. Returns the nodes whose offer changed, and the kinds that changed."""
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
        """Compare a kind with each device. Names of old kinds are reused, because the cluster graph keeps a
        column for every name it has counted."""
        taken = self._numbers.setdefault(wanted.class_name, set())
        number = next(n for n in count(1) if n not in taken) if wanted.narrowed else 0
        if before is not None and before.number not in taken:
            number = before.number
        taken.add(number)
        name = f"{RESOURCE_PREFIX}{wanted.class_name}"
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
        """The requests of a template; None if they cannot be counted."""
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
    """The templates of a pod's own ResourceClaims. A ResourceClaim shared with other pods has none."""
    namespace = pod.metadata.namespace
    names = (each.resource_claim_template_name for each in pod.spec.resource_claims or ())
    return [(namespace, name) for name in names if name is not None]


def _holds(pod: Pod) -> bool:
    """Whether a pod has its devices or is about to get them."""
    return pod.spec.node_name is not None or pinned_node(pod) is not None
