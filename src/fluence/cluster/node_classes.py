"""Classes of nodes: nodes with certain labels. Queues limit the resources that are used on them.

What a gang takes of a class is known when it is placed. Before that two bounds are known from the nodes that
its pods may use: what it surely takes, by pods that may use nodes of the class only, and what it takes at
most. A gang that may also use other nodes is kept away from classes whose limits have no room for the most
that it could take there (`open_gang`), so the limits hold wherever it is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.requests import PodGang
from fluence.graph.graph import Mask
from fluence.model.meta import LabelSelector
from fluence.model.pod import Pod
from fluence.model.queues import NO_CLASSES, Amounts, Resource
from fluence.placer.placer import Members
from fluence.queue.quota import ClassAmounts


class NodeClasses:
    """The classes of nodes of one cluster. ``amounts_of``: what a pod requests."""

    def __init__(self, amounts_of: Callable[[Pod], Mapping[str, int]]) -> None:
        self._amounts_of = amounts_of
        self._classes: Mapping[str, LabelSelector] = NO_CLASSES
        self._counted: dict[str, list[Resource]] = {}  # by class
        self._masks: dict[str, Mask] = {}
        self._at = -1  # the state of the nodes to which the masks belong

    def __bool__(self) -> bool:
        return bool(self._counted)

    def use(self, classes: Mapping[str, LabelSelector], counted: Iterable[Resource]) -> None:
        """Set the classes, and the resources that are counted on them."""
        self._classes, self._counted, self._at = classes, {}, -1
        for resource in sorted(counted):
            self._counted.setdefault(resource.node_class, []).append(resource)

    def bounds(self, gang: PodGang, columns: NodeColumns) -> ClassAmounts:
        """What a gang takes of each class: surely, and at most."""
        surely: dict[Resource, int] = {}
        at_most: dict[Resource, int] = {}
        for name, mask in self._nodes(columns).items():
            for members, kind in zip(gang.members, gang.kinds, strict=True):
                inside, outside = _sides(members, mask)
                if not inside:
                    continue
                for each in kind:
                    self._add(at_most, name, each.pod)
                    if not outside:
                        self._add(surely, name, each.pod)
        return surely, at_most

    def of_pods(self, placed: Iterable[tuple[Pod, str]], columns: NodeColumns) -> Amounts:
        """What pods take of each class on their nodes."""
        found: dict[Resource, int] = {}
        seats = [(pod, columns.position.get(node)) for pod, node in placed]
        for name, mask in self._nodes(columns).items():
            for pod, node in seats:
                if node is not None and mask[node]:
                    self._add(found, name, pod)
        return found

    def capacities(self, columns: NodeColumns) -> Amounts:
        """What the nodes of each class have."""
        found: dict[Resource, int] = {}
        for name, mask in self._nodes(columns).items():
            for node, inside in zip(columns.nodes, mask.tolist(), strict=True):
                if inside:
                    there = node.allocatable()
                    for resource in self._counted[name]:
                        found[resource] = found.get(resource, 0) + there.get(resource.name, 0)
        return found

    def open_gang(self, gang: PodGang, closed: Collection[str], columns: NodeColumns) -> PodGang:
        """The same gang without the nodes of some classes, for pods that may use others too. For those that
        may use only one class, the limit is known before."""
        nodes = self._nodes(columns)
        members = []
        for each in gang.members:
            usable = np.ones(len(columns), np.bool_) if each.allowed is None else each.allowed
            allowed = usable
            for name in closed:
                if _sides(each, nodes[name])[1]:
                    allowed = allowed & ~nodes[name]
            members.append(each if allowed is usable else replace(each, allowed=allowed))
        return replace(gang, members=tuple(members))

    def _nodes(self, columns: NodeColumns) -> Mapping[str, Mask]:
        """The nodes of each class on which something is counted."""
        if self._at != columns.generation:
            self._at = columns.generation
            self._masks = {name: _mask(self._classes[name], columns) for name in self._counted}
        return self._masks

    def _add(self, into: dict[Resource, int], node_class: str, pod: Pod) -> None:
        amounts = self._amounts_of(pod)
        for resource in self._counted[node_class]:
            if amount := amounts.get(resource.name, 0):
                into[resource] = into.get(resource, 0) + amount


def _sides(members: Members, mask: Mask) -> tuple[bool, bool]:
    """Whether pods may use nodes of a class, and others."""
    if members.allowed is None:
        return bool(mask.any()), not mask.all()
    return bool((members.allowed & mask).any()), bool((members.allowed & ~mask).any())


def _mask(selector: LabelSelector, columns: NodeColumns) -> Mask:
    """The nodes that a selector selects."""
    found = np.ones(len(columns), np.bool_)
    for key, value in (selector.match_labels or {}).items():
        found &= columns.label(key).equals(value)
    for term in selector.match_expressions or ():
        column, values = columns.label(term.key), term.values or ()
        match term.operator:
            case "In":
                found &= column.of_values(values)
            case "NotIn":
                found &= ~column.of_values(values)
            case "Exists":
                found &= column.present
            case _:
                found &= ~column.present
    return found
