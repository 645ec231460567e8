"""Scopes: which rules apply to which objects in which namespaces. Each scope is one policy and one webhook.

A rule belongs to a handler, which a site selects and orders: `fluxion` hands the backend over, `quantum`
splits a group into its producer and its consumers, `podgroups` names the PodGroup of a gang, and `doors`
holds new work. `gang` is accepted and has no rules: the scheduler itself reads a label as a group, so no
PodGroup is needed.

Scopes never overlap: the server may apply two policies in any order, and the rules of the first handler must
come first. So where work is held, one scope has those rules and all others.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fluence import names
from fluence.admission import coordination, hand_off, pod_groups, queueing, users
from fluence.admission import queueing as operators
from fluence.admission.rule import (
    DEFAULT_HANDLERS,
    DOORS,
    HANDLERS,
    PODS,
    AdmissionRule,
    AdmissionWarning,
    Site,
)

NAMESPACE_NAME: Final = names.NAMESPACE_NAME
KUBE_SYSTEM: Final = "kube-system"
_BUILT_IN: Final = {
    "Pod": ("", ("v1",), "pods"),
    "Job": ("batch", ("v1",), "jobs"),
    "Deployment": ("apps", ("v1",), "deployments"),
    "ReplicaSet": ("apps", ("v1",), "replicasets"),
    "StatefulSet": ("apps", ("v1",), "statefulsets"),
}
_PLURALS: Final = _BUILT_IN | {
    kind: (each.group, each.versions, each.plural) for kind, each in operators.HELD.items()
}
KINDS: Final = tuple(_PLURALS)
OPERATOR_KINDS: Final = tuple(operators.HELD)
OPERATORS: Final = "operators"
"""The scope of the objects of operators. It exists only where work is held."""
_EVERY_VERSION: Final = {
    kind: (group, (version,), plural) for kind, (group, version, plural) in users.PLURALS.items()
}
VARIABLES: Final = hand_off.VARIABLES | coordination.VARIABLES | queueing.VARIABLES | pod_groups.VARIABLES
"""Expressions that rules read as `variables.<name>`, in order of their dependencies."""


class DoorMode(enum.StrEnum):
    """Where new work is held."""

    OFF = "off"
    NAMESPACES = "namespaces"  # in labelled namespaces
    CLUSTER = "cluster"  # everywhere except in namespaces labelled `disabled`


@dataclass(frozen=True, slots=True)
class AdmissionOptions:
    """How a site configures admission."""

    handlers: tuple[str, ...] = DEFAULT_HANDLERS
    doors: DoorMode = DoorMode.OFF
    scheduler: str = names.SCHEDULER
    aliases: tuple[str, ...] = ()
    delegate: bool = False
    excluded: tuple[str, ...] = (KUBE_SYSTEM,)
    """Namespaces in which nothing is ever changed."""
    selector: tuple[dict[str, Any], ...] = ()
    """More conditions on the labels of namespaces."""
    users: bool = False
    """Whether objects record who submitted them."""
    controllers: tuple[str, ...] = ()
    """Accounts of operators: the objects that they create belong to the user of the object that they
    follow."""
    queue_access: bool = False
    """Whether users need the right to `use` a queue that they name."""
    operators: tuple[str, ...] = OPERATOR_KINDS
    """The kinds of operators' objects that are held as a whole; they need not be installed."""

    @property
    def order(self) -> tuple[str, ...]:
        """Handlers in order. Holding work also makes it ours, so it comes first unless a site orders it
        otherwise."""
        if self.doors is DoorMode.OFF:
            return tuple(name for name in self.handlers if name != DOORS)
        return self.handlers if DOORS in self.handlers else (DOORS, *self.handlers)


@dataclass(frozen=True, slots=True)
class AdmissionScope:
    """Rules in order, for objects of these kinds in these namespaces."""

    name: str
    kinds: tuple[str, ...]
    namespaces: tuple[dict[str, Any], ...]  # expressions of a label selector
    rules: tuple[AdmissionRule, ...]
    warnings: tuple[AdmissionWarning, ...] = field(default=())
    operations: tuple[str, ...] = ("CREATE",)
    """New objects only, so that an update never queues again."""
    is_bounded: bool = True
    """Whether objects with too many containers are refused, because the rules look at each container."""
    failure_policy: str = "Ignore"
    """Of the policy. The webhook always has `Ignore`."""

    def resource_rules(self) -> list[dict[str, Any]]:
        if self.has_pods:
            return resource_rules(self.kinds, self.operations)
        # One rule for each kind, because a site may leave some of them out in the chart.
        return [rule for kind in self.kinds for rule in resource_rules((kind,), self.operations)]

    @property
    def has_pods(self) -> bool:
        """Whether its objects are pods or have one template, whose containers the rules look at."""
        return not set(self.kinds) <= set(OPERATOR_KINDS)


def resource_rules(kinds: Iterable[str], operations: Collection[str]) -> list[dict[str, Any]]:
    """The requests that a policy or a webhook sees. Rules for updates apply to every version."""
    plurals = _PLURALS | _EVERY_VERSION if "UPDATE" in operations else _PLURALS
    plurals_by_group: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for kind in kinds:
        group, versions, plural = plurals[kind]
        plurals_by_group.setdefault((group, versions), []).append(plural)
    return [
        {
            "apiGroups": [group],
            "apiVersions": [*versions],
            "operations": [*operations],
            "resources": resources,
        }
        for (group, versions), resources in plurals_by_group.items()
    ]


def chosen_handlers(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The handlers in a comma-separated list, each once and in order, and the unknown names."""
    given = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    known = tuple(name for name in given if name in HANDLERS)
    return known, tuple(name for name in given if name not in HANDLERS)


def rules(site: Site) -> tuple[AdmissionRule, ...]:
    """Every rule, in the order in which those of one handler are applied."""
    return (
        *hand_off.hand_off_rules(site),
        *coordination.coordination_rules(site),
        *((*queueing.queueing_rules(site), *operators.operator_rules(site)) if site.queueing else ()),
        *pod_groups.pod_group_rules(site),
    )


def scopes(options: AdmissionOptions) -> tuple[AdmissionScope, ...]:
    """All scopes that change anything."""
    everywhere = selected_namespaces(options)
    if options.doors is DoorMode.OFF:
        return (*_scopes(options, "", everywhere, queueing=False), *_users(options))
    enabled = {"key": names.NAMESPACE_OPT_IN, "operator": "In", "values": [names.DOORS_ENABLED]}
    disabled = {"key": names.NAMESPACE_OPT_IN, "operator": "In", "values": ["disabled"]}
    inside, outside = (enabled, {**enabled, "operator": "NotIn"})
    if options.doors is DoorMode.CLUSTER:
        inside, outside = ({**disabled, "operator": "NotIn"}, disabled)
    return (
        *_scopes(options, "", (*everywhere, outside), queueing=False),
        *_scopes(options, "-held", (*everywhere, inside), queueing=True),
        *_users(options),
    )


def selected_namespaces(options: AdmissionOptions) -> tuple[dict[str, Any], ...]:
    """The expressions that select the namespaces of all rules."""
    excluded = {"key": NAMESPACE_NAME, "operator": "NotIn", "values": list(options.excluded)}
    return (excluded, *options.selector)


def _users(options: AdmissionOptions) -> tuple[AdmissionScope, ...]:
    """The scope of the rules that record who submitted what. It overlaps with the others, which neither read
    nor write these annotations."""
    if not options.users:
        return ()
    rules = users.user_rules(options.controllers)
    where = selected_namespaces(options)
    operations = ("CREATE", "UPDATE")
    return (
        AdmissionScope(
            users.NAME, users.KINDS, where, rules, (), operations, is_bounded=False, failure_policy="Fail"
        ),
    )


def _scopes(
    options: AdmissionOptions, suffix: str, namespaces: tuple[dict[str, Any], ...], *, queueing: bool
) -> tuple[AdmissionScope, ...]:
    site = Site(options.scheduler, options.aliases, queueing=queueing, delegate=options.delegate)
    wanted = sorted(
        (rule for rule in rules(site) if rule.handler in options.order),
        key=lambda rule: options.order.index(rule.handler),
    )
    warnings = [one for one in coordination.coordination_warnings(site) if one.handler in options.order]
    result = []
    held = tuple(kind for kind in OPERATOR_KINDS if kind in options.operators)
    for name, kinds in (("pods", PODS), ("workloads", tuple(_BUILT_IN)[1:]), (OPERATORS, held)):
        chosen = tuple(
            replace(rule, kinds=tuple(kind for kind in rule.kinds if kind in kinds))
            for rule in wanted
            if set(rule.kinds) & set(kinds)
        )
        if chosen:
            used = tuple(kind for kind in kinds if any(kind in rule.kinds for rule in chosen))
            heard = tuple(one for one in warnings if set(one.kinds) <= set(kinds))
            scope = AdmissionScope(f"{name}{suffix}", used, namespaces, chosen, heard)
            is_bounded = name != OPERATORS and any(rule.reads_containers for rule in chosen)
            result.append(replace(scope, is_bounded=is_bounded))
    return tuple(result)
