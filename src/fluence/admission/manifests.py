"""Manifests: the rules as policies and webhooks, and all other objects that admission needs, also as readable
YAML.

Policies (Kubernetes 1.36 and later) need no webhook, no certificate and no pod: the API server evaluates them
itself. It calls the webhook only for objects that a policy would look at. Neither applies to kube-system, and
a fault of ours does not refuse any object (`failurePolicy: Ignore`). Only a pod with too many containers is
refused, if a rule would change it: the server would take seconds for it and then store it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from fluence import names
from fluence.admission import cel, users
from fluence.admission.patch import CONTAINER_LISTS
from fluence.admission.rule import (
    FLUXION,
    MAX_CONTAINERS,
    POD,
    POD_GROUPS,
    PODS,
    QUANTUM,
    TEMPLATE,
    AdmissionRule,
    AdmissionWarning,
)
from fluence.admission.scopes import (
    VARIABLES,
    AdmissionOptions,
    AdmissionScope,
    resource_rules,
    scopes,
    selected_namespaces,
)
from fluence.kube.resource import HAND_OFFS
from fluence.model.external_resources import PART_OF

Manifest = dict[str, Any]

API: Final = "admissionregistration.k8s.io/v1"
RULES: Final = f"{names.PREFIX}/rules"
"""The annotation of a policy with the names of its rules."""
SERVICE: Final = "fluence-webhook"
WEBHOOK: Final = "fluence-webhook"
WEBHOOK_PATH: Final = "/mutate"
WEBHOOK_TIMEOUT_S: Final = 5


def manifests(
    options: AdmissionOptions,
    *,
    namespace: str,
    by_webhook: bool = False,
    service_name: str = SERVICE,
) -> list[Manifest]:
    """The objects to apply, in an order in which they can be created."""
    documents: list[Manifest] = []
    if FLUXION in options.order or POD_GROUPS in options.order:
        documents.append(hand_off_definition())
    if QUANTUM in options.order:
        documents.append(priority_class())
    if by_webhook:
        client = service(service_name, namespace)
        documents.append(_labelled(webhook_configuration(options, client=client)))
        refusals = refusing_policies(options)
        return documents + [_labelled(document) for document in refusals]
    return documents + [_labelled(document) for document in policies(options, namespace=namespace)]


def policies(options: AdmissionOptions, *, namespace: str, prefix: str = "fluence") -> list[Manifest]:
    """Policies and their bindings. The HandOff is in this namespace."""
    documents: list[Manifest] = []
    for scope in scopes(options):
        documents += _mutating(scope, f"{prefix}-{scope.name}", namespace)
        if scope.is_bounded:
            documents += _bounding(scope, f"{prefix}-{scope.name}-bounds")
        if scope.warnings:
            documents += _warning(scope, f"{prefix}-{scope.name}-warnings")
    return documents + refusing_policies(options, prefix=prefix)


def refusing_policies(options: AdmissionOptions, *, prefix: str = "fluence") -> list[Manifest]:
    """The policies that protect the names of users, and that check who may use a queue. They are the same
    beside the webhook: every supported release has validating policies, and these need no running pod."""
    selector = {"matchExpressions": [*selected_namespaces(options)]}
    documents: list[Manifest] = []
    operations = ("CREATE", "UPDATE")
    found = resource_rules(users.KINDS, operations)
    if options.users:
        spec = users.guard(options.controllers)
        spec["matchConstraints"] = {"resourceRules": found, "namespaceSelector": selector}
        documents += _validating(f"{prefix}-{users.NAME}", spec, "Deny")
    if options.queue_access:
        groups = [
            {
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": [*operations],
                "resources": resources,
            }
            for group, resources in users.GROUP_RESOURCES.items()
        ]
        spec = users.queue_access()
        spec["matchConstraints"] = {"resourceRules": [*found, *groups], "namespaceSelector": selector}
        documents += _validating(f"{prefix}-{users.QUEUE_ACCESS}", spec, "Deny")
    return documents


def mutation(scope: AdmissionScope, rule: AdmissionRule) -> str:
    """The operations of a rule as CEL; an empty list if it does not apply."""
    return f"{_for_kinds(scope, rule, rule.condition)}\n? {rule.edit.cel}\n: []"


def reads_parameters(rule: AdmissionRule) -> bool:
    """Whether a rule reads the HandOff. Without that object, the server applies no rule of its policy."""
    texts = (rule.condition, rule.edit.cel)
    return any("params." in text for text in (*texts, *cel.variables_in(texts, VARIABLES).values()))


def policy_variables(expressions: Iterable[str]) -> list[Manifest]:
    """The variables that these expressions read."""
    used = cel.variables_in(expressions, VARIABLES)
    return [{"name": name, "expression": expression} for name, expression in used.items()]


def webhook_configuration(
    options: AdmissionOptions, *, client: Manifest, name: str = WEBHOOK, prefix: str = "fluence"
) -> Manifest:
    """One webhook for each scope. ``client`` is a service or a url."""
    return {
        "apiVersion": API,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{scope.name}.{prefix}.flux-framework.org",
                "admissionReviewVersions": ["v1"],
                "clientConfig": _client_at(client, f"{WEBHOOK_PATH}/{scope.name}"),
                "rules": [{**rule, "scope": "Namespaced"} for rule in scope.resource_rules()],
                "namespaceSelector": {"matchExpressions": [*scope.namespaces]},
                "matchConditions": [{"name": "concerns-us", "expression": _concerns(scope)}],
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": WEBHOOK_TIMEOUT_S,
            }
            for scope in scopes(options)
        ],
    }


def service(name: str, namespace: str) -> Manifest:
    """The client configuration of a webhook that runs in the cluster."""
    return {"service": {"name": name, "namespace": namespace, "port": 443}}


def _client_at(client: Manifest, path: str) -> Manifest:
    if "service" in client:
        return {"service": {**client["service"], "path": path}}
    return {"url": f"{client['url']}{path}"}


def _concerns(scope: AdmissionScope) -> str:
    """Whether an object is looked at. An object that becomes ours by the edit of one rule already concerned
    that rule."""
    terms = dict.fromkeys(_for_kinds(scope, rule, rule.concerns.cel) for rule in scope.rules)
    return "\n|| ".join(f"({term})" for term in terms) if len(terms) > 1 else next(iter(terms))


def _mutating(scope: AdmissionScope, name: str, namespace: str) -> list[Manifest]:
    has_parameters = any(map(reads_parameters, scope.rules))
    kind = {"paramKind": {"apiVersion": HAND_OFFS.api_version, "kind": HAND_OFFS.kind}}
    mutations = [mutation(scope, rule) for rule in scope.rules]
    few = f"{_containers(scope)} <= {MAX_CONTAINERS}"
    spec = {
        **(kind if has_parameters else {}),
        "failurePolicy": scope.failure_policy,
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": _constraints(scope),
        "matchConditions": [
            {"name": "concerns-us", "expression": _concerns(scope)},
            *([{"name": "has-few-containers", "expression": few}] if scope.is_bounded else ()),
        ],
        "variables": policy_variables(mutations),
        "mutations": [
            {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}} for expression in mutations
        ],
    }
    reference = {
        "name": names.ADMISSION_PARAMETERS,
        "namespace": namespace,
        "parameterNotFoundAction": "Allow",
    }
    binding = {"policyName": name, **({"paramRef": reference} if has_parameters else {})}
    # The annotation has the order of the mutations, for people who read them.
    annotations = {RULES: ", ".join(rule.name for rule in scope.rules)}
    return [
        {
            "apiVersion": API,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": name, "annotations": annotations},
            "spec": spec,
        },
        {
            "apiVersion": API,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": binding,
        },
    ]


def _containers(scope: AdmissionScope) -> str:
    """The number of containers and init containers."""
    place = POD if scope.kinds == PODS else TEMPLATE
    return " + ".join(f"{cel.items(*place, 'spec', kind)}.size()" for kind in CONTAINER_LISTS)


def _bounding(scope: AdmissionScope, name: str) -> list[Manifest]:
    """Refuse an object that is too large for the mutating policy and that a rule would change. An object is
    also refused if evaluating this costs the server too much."""
    rules = [rule for rule in scope.rules if rule.reads_containers]
    terms = "\n|| ".join(f"({_for_kinds(scope, rule, rule.condition)})" for rule in rules)
    is_unchanged = f"!({terms})"
    message = (
        f"there are over {MAX_CONTAINERS} containers and init containers, which is more than Fluence takes "
        "in a pod; use several pods"
    )
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": _constraints(scope),
        "matchConditions": [
            {"name": "concerns-us", "expression": _concerns(scope)},
            {"name": "has-many-containers", "expression": f"{_containers(scope)} > {MAX_CONTAINERS}"},
        ],
        "variables": policy_variables([is_unchanged]),
        "validations": [{"expression": is_unchanged, "message": message}],
    }
    return _validating(name, spec, "Deny")


def _warning(scope: AdmissionScope, name: str) -> list[Manifest]:
    """A mutating policy cannot warn the user who creates an object; a validating policy can, and allows
    it."""
    tests = [f"!({_for_kinds(scope, warning, warning.when.cel)})" for warning in scope.warnings]
    spec = {
        "failurePolicy": "Ignore",
        "matchConstraints": _constraints(scope),
        "variables": policy_variables(tests),
        "validations": [
            {"expression": test, "message": warning.message}
            for test, warning in zip(tests, scope.warnings, strict=True)
        ],
    }
    return _validating(name, spec, "Warn")


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


def _constraints(scope: AdmissionScope) -> Manifest:
    return {
        "resourceRules": scope.resource_rules(),
        "namespaceSelector": {"matchExpressions": [*scope.namespaces]},
    }


def _for_kinds(scope: AdmissionScope, rule: AdmissionRule | AdmissionWarning, condition: str) -> str:
    """A condition that holds only for the kinds of a rule, in a scope that has more."""
    if set(scope.kinds) <= set(rule.kinds):
        return condition
    return f"{cel.text('kind', 'kind', of='request')} in {cel.listed(rule.kinds)}\n&& ({condition})"


def hand_off_definition() -> Manifest:
    """The kind of the table of variables. The scheduler creates the only object; a site may add to it."""
    variables = {
        "type": "object",
        "maxProperties": 256,
        "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 317},
        "x-kubernetes-validations": [
            {
                "rule": "self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]*$'))",
                "message": "a variable is letters, digits and _",
            }
        ],
        "description": "By name of the variable, the annotation that it carries.",
    }
    spec = {"type": "object", "properties": {"variables": variables}}
    top = {"type": "string"}, {"type": "object"}
    schema = {
        "type": "object",
        "description": "Which variable of a container carries which annotation of its pod.",
        "properties": {"apiVersion": top[0], "kind": top[0], "metadata": top[1], "spec": spec},
    }
    version = {
        "name": HAND_OFFS.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    kinds = {"kind": HAND_OFFS.kind, "listKind": "HandOffList", "plural": HAND_OFFS.plural}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": HAND_OFFS.name},
        "spec": {
            "group": HAND_OFFS.group,
            "scope": "Namespaced",
            "names": {**kinds, "singular": "handoff", "categories": ["fluence"]},
            "versions": [version],
        },
    }


def priority_class() -> Manifest:
    """The class of consumers: they must not wait again when the producer's task is ready."""
    return _labelled(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": names.QUANTUM_CLASS},
            "value": 1_000_000,
            "preemptionPolicy": "PreemptLowerPriority",
            "description": "Pods that waited for a quantum task, which is ready now.",
        }
    )


def to_yaml(documents: Iterable[Manifest]) -> str:
    """Documents with readable long texts: CEL as it is written, the rest folded at spaces."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def _labelled(document: Manifest) -> Manifest:
    meta = document["metadata"]
    return {**document, "metadata": {**meta, "labels": {**meta.get("labels", {}), **PART_OF}}}


class _Dumper(yaml.SafeDumper):
    """Writes every object in full, and long texts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text:
        style = "|"
    elif len(text) > 80 and "  " not in text:
        style = ">"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
