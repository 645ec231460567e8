"""nodeSelector and node affinity (NodeAffinity): the nodes that labels and names select, and the preferred
ones.

An expression such as `zone in (a, b)` is a comparison of one column of labels, for any number of nodes.
`node_rules` uses it for the rules of pods, and `volumes` for the nodes that can reach a volume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.graph.graph import Ints, Mask
from fluence.model.meta import Requirement, requirement_holds
from fluence.model.pod import NodeSelector, NodeSelectorTerm, PreferredSchedulingTerm

_WEIGHT = 2  # in kube-scheduler's default profile


def with_labels(columns: NodeColumns, labels: Mapping[str, str]) -> Mask:
    """The nodes that a nodeSelector matches."""
    mask = np.ones(len(columns), np.bool_)
    for key, value in labels.items():
        mask &= columns.label(key).equals(value)
    return mask


def selected(columns: NodeColumns, selector: NodeSelector | None) -> Mask:
    """The nodes that any term of a selector matches; without a selector, all nodes."""
    if selector is None:
        return np.ones(len(columns), np.bool_)
    mask = np.zeros(len(columns), np.bool_)
    for each in selector.node_selector_terms or ():
        mask |= _term(columns, each)
    return mask


def score(columns: NodeColumns, preferred: Iterable[PreferredSchedulingTerm]) -> Ints | None:
    """A higher score for nodes that match terms with more weight; None: all are equal."""
    weights = np.zeros(len(columns), np.int64)
    for each in preferred:
        weights += each.weight * _term(columns, each.preference)
    most = int(weights.max(initial=0))
    return _WEIGHT * (100 * weights // most) if most else None


def _term(columns: NodeColumns, term: NodeSelectorTerm) -> Mask:
    """The nodes that a term matches. An empty term matches no node; matchFields supports only
    metadata.name."""
    if not term.match_expressions and not term.match_fields:
        return np.zeros(len(columns), np.bool_)
    mask = np.ones(len(columns), np.bool_)
    for each in term.match_expressions or ():
        mask &= _expression(columns, each)
    for each in term.match_fields or ():
        mask &= _field(columns, each)
    return mask


def _expression(columns: NodeColumns, requirement: Requirement) -> Mask:
    column = columns.label(requirement.key)
    match requirement.operator:
        case "In":
            return column.of_values(requirement.values or ())
        case "NotIn":
            return ~column.of_values(requirement.values or ())
        case "Exists":
            return column.present
        case "DoesNotExist":
            return ~column.present
        case _:
            key = requirement.key
            return column.where(lambda value: requirement_holds(requirement, {key: value}))


def _field(columns: NodeColumns, requirement: Requirement) -> Mask:
    mask = np.zeros(len(columns), np.bool_)
    if requirement.key != "metadata.name" or requirement.operator not in ("In", "NotIn"):
        return mask
    mask[[columns.position[name] for name in requirement.values or () if name in columns.position]] = True
    return mask if requirement.operator == "In" else ~mask
