"""Policy: the rules as MutatingAdmissionPolicies (Kubernetes 1.36 and later), and what tells of no effect.

No webhook, no certificate, no pod: the API server evaluates them itself. A fault of ours refuses nobody's
object (`failurePolicy: Ignore`). Only a pod with more containers than rules look at is refused, if one of
them would change it: the server would take seconds for it, and then store it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fluence import names
from fluence.admission.bounds import CONTAINER_LISTS, MOST_CONTAINERS
from fluence.admission.cel import to_cel, variables_of
from fluence.admission.edits import POD, TEMPLATE
from fluence.admission.expressions import (
    Among,
    Call,
    Either,
    Every,
    Expr,
    Field,
    If,
    Less,
    ListOf,
    Name,
    Not,
    Plus,
    Value,
)
from fluence.admission.rule import FLUXION, PODS, AdmissionRule, Warn
from fluence.admission.scopes import AdmissionOptions, AdmissionScope, scopes
from fluence.kube.resource import HAND_OFFS

API: Final = "admissionregistration.k8s.io/v1"
RULES: Final = f"{names.PREFIX}/rules"
Manifest = dict[str, Any]


def policies(options: AdmissionOptions, *, namespace: str, prefix: str = "fluence") -> list[Manifest]:
    """Policies and their bindings; the HandOff is in this namespace."""
    found: list[Manifest] = []
    for scope in scopes(options):
        found += _mutating(scope, f"{prefix}-{scope.name}", namespace)
        found += _bounding(scope, f"{prefix}-{scope.name}-bounds")
        if scope.warnings:
            found += _warning(scope, f"{prefix}-{scope.name}-warnings")
    return found


def condition(scope: AdmissionScope) -> Expr:
    """Whether an object is looked at. What becomes ours by a rule's edits only is that rule's before."""
    terms: list[Expr] = []
    for each in scope.rules:
        term = _guarded(scope, each, each.ours)
        if term not in terms:
            terms.append(term)
    return Either(*terms)


def _mutating(scope: AdmissionScope, name: str, namespace: str) -> list[Manifest]:
    with_parameters = any(each.handler == FLUXION for each in scope.rules)
    parameters = (
        {"paramKind": {"apiVersion": HAND_OFFS.api_version, "kind": HAND_OFFS.kind}}
        if with_parameters
        else {}
    )
    mutations = [mutation(scope, each) for each in scope.rules]
    spec = {
        **parameters,
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": _constraints(scope),
        "matchConditions": [
            {"name": "concerns-us", "expression": to_cel(condition(scope), inline=True)},
            {"name": "has-few-containers", "expression": to_cel(Not(_has_many(scope)))},
        ],
        "variables": _variables(mutations),
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": to_cel(each)}} for each in mutations
        ],
    }
    reference = {
        "name": names.ADMISSION_PARAMETERS,
        "namespace": namespace,
        "parameterNotFoundAction": "Allow",
    }
    binding = {"policyName": name, **({"paramRef": reference} if with_parameters else {})}
    return [
        {
            "apiVersion": API,
            "kind": "MutatingAdmissionPolicy",
            # In the order of the mutations, for whoever reads them.
            "metadata": {"name": name, "annotations": {RULES: ", ".join(each.name for each in scope.rules)}},
            "spec": spec,
        },
        {
            "apiVersion": API,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": binding,
        },
    ]


def _has_many(scope: AdmissionScope) -> Expr:
    """Whether there are more containers than rules look at."""
    at = POD if scope.kinds == PODS else TEMPLATE
    lists = (Call("size", at.field("spec", each, default=[])) for each in CONTAINER_LISTS)
    return Less(Value(MOST_CONTAINERS), Plus(*lists))


def _bounding(scope: AdmissionScope, name: str) -> list[Manifest]:
    """What is too large for the mutating policy is refused where that would change it. Where even this costs
    the server too much, it is refused as well: only objects with many containers come so far."""
    changed = Not(Either(*(_guarded(scope, each, each.holds) for each in scope.rules)))
    message = (
        f"there are over {MOST_CONTAINERS} containers and init containers, which is more than Fluence takes "
        "in a pod; use several pods"
    )
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": _constraints(scope),
        "matchConditions": [
            {"name": "concerns-us", "expression": to_cel(condition(scope), inline=True)},
            {"name": "has-many-containers", "expression": to_cel(_has_many(scope))},
        ],
        "variables": _variables([changed]),
        "validations": [{"expression": to_cel(changed), "message": message}],
    }
    return _validating(name, spec, "Deny")


def _validating(name: str, spec: Manifest, action: str) -> list[Manifest]:
    return [
        {"apiVersion": API, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": [action]},
        },
    ]


def _warning(scope: AdmissionScope, name: str) -> list[Manifest]:
    """A mutating policy says nothing to whoever made the object; a validating one does, without a no."""
    told = [Not(_guarded(scope, each, each.when)) for each in scope.warnings]
    spec = {
        "failurePolicy": "Ignore",
        "matchConstraints": _constraints(scope),
        "variables": _variables(told),
        "validations": [
            {"expression": to_cel(test), "message": each.message}
            for test, each in zip(told, scope.warnings, strict=True)
        ],
    }
    return _validating(name, spec, "Warn")


def _variables(exprs: Sequence[Expr]) -> list[Manifest]:
    return [{"name": name, "expression": to_cel(each)} for name, each in variables_of(exprs).items()]


def _constraints(scope: AdmissionScope) -> Manifest:
    return {
        "resourceRules": scope.resource_rules(),
        "namespaceSelector": {"matchExpressions": [*scope.namespaces]},
    }


def mutation(scope: AdmissionScope, rule: AdmissionRule) -> Expr:
    """What a rule changes, as the operations of a JSON patch; none where it does not hold."""
    return If(_guarded(scope, rule, rule.holds), Plus(*rule.edits), ListOf())


def _guarded(scope: AdmissionScope, of: AdmissionRule | Warn, when: Expr) -> Expr:
    """A condition for some kinds of a scope that has more."""
    if set(scope.kinds) <= set(of.kinds):
        return when
    kinds = ListOf(*map(Value, of.kinds))
    return Every(Among(Field(Name("request"), ("kind", "kind")), kinds), when)
