"""Scopes: which rules hold for which objects in which namespaces; one policy, and one webhook, for each.

Scopes never overlap: the server may apply two policies in any order, and the rules of a handler that a site
put first must come first. So where work is held back, one scope has those rules and all others.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fluence import names
from fluence.admission.rule import DEFAULT_HANDLERS, DOORS, HANDLERS, PODS, AdmissionRule, Site, Warn
from fluence.admission.rules import table, warnings

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
KUBE_SYSTEM: Final = "kube-system"
_PLURALS: Final = {
    "Pod": ("", "v1", "pods"),
    "Job": ("batch", "v1", "jobs"),
    "Deployment": ("apps", "v1", "deployments"),
    "ReplicaSet": ("apps", "v1", "replicasets"),
    "StatefulSet": ("apps", "v1", "statefulsets"),
}
KINDS: Final = tuple(_PLURALS)


class DoorMode(enum.StrEnum):
    """Where new work is held back."""

    OFF = "off"
    NAMESPACES = "namespaces"  # that are labelled
    CLUSTER = "cluster"  # everywhere but where a namespace is labelled `disabled`


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """What a site says about admission."""

    handlers: tuple[str, ...] = DEFAULT_HANDLERS
    doors: DoorMode = DoorMode.OFF
    scheduler: str = names.SCHEDULER
    delegate: bool = False
    excluded: tuple[str, ...] = (KUBE_SYSTEM,)
    """Namespaces in which nothing is ever changed."""
    selector: tuple[dict[str, Any], ...] = ()
    """More conditions on the labels of namespaces."""

    @property
    def order(self) -> tuple[str, ...]:
        """Handlers in order. Who holds work back also makes it ours, so without a word that goes first."""
        if self.doors is DoorMode.OFF:
            return tuple(each for each in self.handlers if each != DOORS)
        return self.handlers if DOORS in self.handlers else (DOORS, *self.handlers)


@dataclass(frozen=True, slots=True)
class AdmissionScope:
    """Rules in order, for objects of these kinds in these namespaces."""

    name: str
    kinds: tuple[str, ...]
    namespaces: tuple[dict[str, Any], ...]  # expressions of a label selector
    rules: tuple[AdmissionRule, ...]
    warnings: tuple[Warn, ...] = field(default=())

    def resource_rules(self) -> list[dict[str, Any]]:
        """What the server shall look at: new objects only, so that an update never queues again."""
        found: dict[tuple[str, str], list[str]] = {}
        for kind in self.kinds:
            group, version, plural = _PLURALS[kind]
            found.setdefault((group, version), []).append(plural)
        return [
            {
                "apiGroups": [group],
                "apiVersions": [version],
                "operations": ["CREATE"],
                "resources": plurals,
            }
            for (group, version), plurals in found.items()
        ]


def chosen_handlers(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The handlers of a list with commas, each once in its order; and the names that are none."""
    given = dict.fromkeys(each.strip() for each in text.split(",") if each.strip())
    known = tuple(each for each in given if each in HANDLERS)
    return known, tuple(each for each in given if each not in HANDLERS)


def scopes(options: AdmissionOptions) -> tuple[AdmissionScope, ...]:
    """All that there are to be, without those that would change nothing."""
    excluded = {"key": NAMESPACE_NAME, "operator": "NotIn", "values": list(options.excluded)}
    everywhere = (excluded, *options.selector)
    if options.doors is DoorMode.OFF:
        return _scopes(options, "", everywhere, held=False)
    enabled = {"key": names.NAMESPACE_OPT_IN, "operator": "In", "values": [names.DOORS_ENABLED]}
    disabled = {"key": names.NAMESPACE_OPT_IN, "operator": "In", "values": ["disabled"]}
    inside, outside = (enabled, {**enabled, "operator": "NotIn"})
    if options.doors is DoorMode.CLUSTER:
        inside, outside = ({**disabled, "operator": "NotIn"}, disabled)
    return (
        *_scopes(options, "", (*everywhere, outside), held=False),
        *_scopes(options, "-held", (*everywhere, inside), held=True),
    )


def _scopes(
    options: AdmissionOptions, suffix: str, namespaces: tuple[dict[str, Any], ...], *, held: bool
) -> tuple[AdmissionScope, ...]:
    site = Site(options.scheduler, held=held, delegate=options.delegate)
    rules = sorted(
        (each for each in table(site) if each.handler in options.order),
        key=lambda each: options.order.index(each.handler),
    )
    told = tuple(each for each in warnings(site) if each.handler in options.order)
    found = []
    for name, kinds in (("pods", PODS), ("workloads", KINDS[1:])):
        ours = tuple(
            replace(each, kinds=tuple(kind for kind in each.kinds if kind in kinds))
            for each in rules
            if set(each.kinds) & set(kinds)
        )
        if ours:
            used = tuple(kind for kind in kinds if any(kind in each.kinds for each in ours))
            heard = tuple(each for each in told if set(each.kinds) <= set(kinds))
            found.append(AdmissionScope(f"{name}{suffix}", used, namespaces, ours, heard))
    return tuple(found)
