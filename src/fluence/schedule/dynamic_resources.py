"""Dynamic resources: devices of ResourceSlices as amounts that nodes have, and claims as what pods ask for.

kube-scheduler allocates the devices; the plan only counts them, so that it sends no more pods to a node than
there are devices for. A request can be counted if its class and its own selectors say no more than
`device.driver == …` and `device.attributes[…].… == …`, and its devices belong to nodes. Nodes and pods are
presented to the rest of the scheduler with one more resource, `dra/<class>`, as if it were an extended one.
What cannot be counted is left to kube-scheduler and never guessed: such pods go where they fit otherwise.

Two kinds of request may want the same device: then each also takes of the other, so that a device is never
planned twice; a few may stay unused for a while.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from fluence.model.dra import DeviceClass, DeviceSelector, ResourceClaimTemplate, ResourceSlice, SliceDevice
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


@dataclass(frozen=True, slots=True)
class _Kind:
    """Devices that a request can have."""

    resource: str
    wanted: frozenset[Condition]


class DynamicResources:
    """What drivers offer and claims ask for, as far as it can be counted."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}  # as they are
        self.pods: dict[str, Pod] = {}  # with claims, as they are
        self._slices: dict[str, ResourceSlice] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._templates: dict[Key, ResourceClaimTemplate] = {}
        self._changed = False
        self._asked: dict[Key, dict[_Kind, int] | None] = {}  # by template; None: it cannot be counted
        self._offered: dict[str, dict[str, int]] = {}  # by node
        self._shared: dict[str, set[str]] = {}  # kinds that want devices of this one too

    # -- what happens ----------------------------------------------------------------------------------------

    def change(self, found: ResourceSlice | DeviceClass | ResourceClaimTemplate, *, gone: bool) -> None:
        meta = found.metadata
        if isinstance(found, ResourceSlice):
            _keep(self._slices, meta.name, None if gone else found)
        elif isinstance(found, DeviceClass):
            _keep(self._classes, meta.name, None if gone else found)
        else:
            _keep(self._templates, (meta.namespace, meta.name), None if gone else found)
        self._changed = True

    def take_changed(self) -> bool:
        """Whether nodes and pods are to be presented anew, since the last call."""
        changed, self._changed = self._changed, False
        if changed:
            self._count()
        return changed

    # -- what follows ----------------------------------------------------------------------------------------

    def node(self, node: Node) -> Node:
        """A node with its devices among what it has."""
        self.nodes[node.name] = node
        devices = self._offered.get(node.name)
        if not devices:
            return node
        allocatable = {**(node.status.allocatable or {}), **{key: str(n) for key, n in devices.items()}}
        return replace(node, status=replace(node.status, allocatable=allocatable))

    def pod(self, pod: Pod) -> Pod:
        """A pod with its devices among what it asks for."""
        if not pod.spec.resource_claims:
            return pod
        asked = self.needs(pod)
        if not asked:
            return pod
        overhead = {**(pod.spec.overhead or {}), **{key: str(n) for key, n in asked.items()}}
        return replace(pod, spec=replace(pod.spec, overhead=overhead))

    def needs(self, pod: Pod) -> dict[str, int]:
        """How many devices of each kind a pod asks for; claims that it shares with others, and those that
        cannot be counted, are not in it."""
        found: dict[str, int] = {}
        for claim in pod.spec.resource_claims or ():
            if claim.resource_claim_template_name is None:
                continue
            asked = self._asked.get((pod.metadata.namespace, claim.resource_claim_template_name))
            for kind, count in (asked or {}).items():
                for resource in (kind.resource, *self._shared.get(kind.resource, ())):
                    found[resource] = found.get(resource, 0) + count
        return found

    # -- counting --------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Work out anew which kinds are asked for, and how many of each there are where."""
        self._asked = {key: self._of_template(each) for key, each in self._templates.items()}
        kinds = list(dict.fromkeys(kind for asked in self._asked.values() for kind in asked or ()))
        offered: dict[str, dict[str, int]] = {}
        shared: dict[str, set[str]] = {}
        anywhere: set[str] = set()  # kinds of which devices belong to no single node: those are not counted
        for node, driver, device in self._devices():
            fits = [kind.resource for kind in kinds if satisfies(device, driver, kind.wanted)]
            if node is None or device.allow_multiple_allocations or device.consumes_counters:
                anywhere.update(fits)
                continue
            for resource in fits:
                here = offered.setdefault(node, {})
                here[resource] = here.get(resource, 0) + 1
                shared.setdefault(resource, set()).update(each for each in fits if each != resource)
        self._shared = {key: others - anywhere for key, others in shared.items()}
        self._offered = {
            node: {key: n for key, n in here.items() if key not in anywhere} for node, here in offered.items()
        }
        self._asked = {
            key: None if asked is None or any(kind.resource in anywhere for kind in asked) else asked
            for key, asked in self._asked.items()
        }

    def _devices(self) -> Iterator[tuple[str | None, str, SliceDevice]]:
        """The devices of the newest generation of each pool: node, driver, device."""
        newest: dict[tuple[str, str], int] = {}
        for each in self._slices.values():
            pool = (each.spec.driver, each.spec.pool.name)
            newest[pool] = max(newest.get(pool, 0), each.spec.pool.generation)
        for each in self._slices.values():
            spec = each.spec
            if spec.pool.generation == newest[spec.driver, spec.pool.name]:
                for device in spec.devices or ():
                    if not device.taints:
                        yield spec.node_name or device.node_name, spec.driver, device

    def _of_template(self, template: ResourceClaimTemplate) -> dict[_Kind, int] | None:
        """What a claim of a template asks for; None: it cannot be counted."""
        claim = template.spec.spec.devices
        found: dict[_Kind, int] = {}
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
            kind = _kind(exact.device_class_name, wanted | own, bool(own))
            found[kind] = found.get(kind, 0) + exact.count
        return found


def _keep(held: dict[K, V], key: K, found: V | None) -> None:
    if found is None:
        held.pop(key, None)
    else:
        held[key] = found


def _kind(name: str, wanted: frozenset[Condition], narrowed: bool) -> _Kind:
    if not narrowed:
        return _Kind(f"{PREFIX}{name}", wanted)
    mark = hashlib.sha256(repr(sorted(map(repr, wanted))).encode()).hexdigest()[:6]
    return _Kind(f"{PREFIX}{name}-{mark}", wanted)
