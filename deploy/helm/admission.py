"""Admission: the chart's template of policies and webhooks, written from the table of src/fluence/admission.

The rules are CEL that helm cannot make, so each stands in the template as it is rendered, and values decide
which of them are in. Their order is that of the defaults; `fluence admission render` has any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fluence import names
from fluence.admission.cel import to_cel, variables_of
from fluence.admission.hooks import webhook_configuration
from fluence.admission.manifests import priority_class, to_yaml
from fluence.admission.policy import mutation, policies
from fluence.admission.rule import FLUXION, QUANTUM
from fluence.admission.scopes import AdmissionOptions, AdmissionScope, DoorMode, scopes
from fluence.kube.resource import HAND_OFFS

_SCHEDULER = "SCHEDULER-NAME-HERE"
_OPTIONS = AdmissionOptions(doors=DoorMode.NAMESPACES, scheduler=_SCHEDULER)
_HEAD = """{{- /* Written by `make manifests` from src/fluence/admission; do not edit. */}}
{{- $mode := include "fluence.admission" . }}
{{- $handlers := .Values.admission.handlers }}
{{- $held := ne .Values.admission.doors "off" }}
{{- $settings := include "fluence.settings" . | fromYaml }}
{{- $scheduler := index $settings "scheduler-name" }}
{{- $space := index $settings "lease-namespace" }}
"""


def admission_template() -> str:
    """templates/admission.yaml."""
    parts = [_HEAD, '{{- if ne $mode "off" }}\n', _rights(), _class()]
    found = scopes(_OPTIONS)
    parts += ['{{- if eq $mode "policy" }}\n', *(_policy(each) for each in found), "{{- end }}\n"]
    parts += ['{{- if eq $mode "webhook" }}\n', _webhooks(found), "{{- end }}\n", "{{- end }}\n"]
    text = "".join(parts)
    return text.replace(_SCHEDULER, "{{ $scheduler }}")


def _rights() -> str:
    """The right of the scheduler to keep the table of variables. `create` cannot be limited to a name."""
    name = '{{ include "fluence.fullname" . }}-hand-off'
    labels = '{{- include "fluence.labels" . | nindent 4 }}'
    account = '{{ include "fluence.account" . }}'
    return f"""{{{{- if and (has "{FLUXION}" $handlers) .Values.rbac.create }}}}
---
# Which variable of a container carries which annotation of its pod follows the devices that there are.
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {name}
  namespace: {{{{ $space }}}}
  labels:
    {labels}
rules:
  - apiGroups: [{HAND_OFFS.group}]
    resources: [{HAND_OFFS.plural}]
    verbs: [create]
  - apiGroups: [{HAND_OFFS.group}]
    resources: [{HAND_OFFS.plural}]
    resourceNames: [{names.ADMISSION_PARAMETERS}]
    verbs: [patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {name}
  namespace: {{{{ $space }}}}
  labels:
    {labels}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {name}
subjects:
  - kind: ServiceAccount
    name: {account}
    namespace: {{{{ .Release.Namespace }}}}
{{{{- end }}}}
"""


def _class() -> str:
    found = priority_class()
    return (
        f'{{{{- if and (has "{QUANTUM}" $handlers) .Values.admission.priorityClass }}}}\n---\n'
        + _object(found, found["metadata"]["name"], {key: found[key] for key in found if key not in _META})
        + "{{- end }}\n"
    )


_META = ("apiVersion", "kind", "metadata")


def _policy(scope: AdmissionScope) -> str:
    """A policy, its binding and the warnings of a scope, if any of its handlers is wanted."""
    documents = _documents(scope, "")
    policy = documents["MutatingAdmissionPolicy"]
    spec = dict(policy["spec"])
    for key in ("paramKind", "matchConstraints", "variables", "mutations"):
        spec.pop(key, None)
    name = f'{{{{ include "fluence.fullname" . }}}}-{scope.name}'
    text = f"---\n{_object(policy, name)}spec:\n"
    if any(each.handler == FLUXION for each in scope.rules):
        text += _if(
            [FLUXION], f"  paramKind: {{apiVersion: {HAND_OFFS.api_version}, kind: {HAND_OFFS.kind}}}\n"
        )
    text += _indented(to_yaml([spec])) + _constraints(scope) + "  variables:\n"
    text += _variables(scope.rules, {each.name: mutation(scope, each) for each in scope.rules})
    text += "  mutations:\n"
    for each in scope.rules:
        entry = [{"patchType": "JSONPatch", "jsonPatch": {"expression": to_cel(mutation(scope, each))}}]
        text += f"    # {each.name}\n" + _if([each.handler], _indented(to_yaml([entry]), 4))
    text += f"---\n{_object(documents['MutatingAdmissionPolicyBinding'], name)}spec:\n  policyName: {name}\n"
    if any(each.handler == FLUXION for each in scope.rules):
        reference = f"name: {names.ADMISSION_PARAMETERS}, namespace: {{{{ $space }}}}"
        text += _if([FLUXION], f"  paramRef: {{{reference}, parameterNotFoundAction: Allow}}\n")
    text += _validating(scope, _documents(scope, "-bounds"), f"{name}-bounds")
    if scope.warnings:
        text += _if([QUANTUM], _validating(scope, _documents(scope, "-warnings"), f"{name}-warnings"))
    return _guarded(scope, text)


def _documents(scope: AdmissionScope, suffix: str) -> dict[str, Any]:
    """The policy of a scope and its binding, by kind."""
    called = f"fluence-{scope.name}{suffix}"
    found = policies(_OPTIONS, namespace="")
    return {each["kind"]: each for each in found if each["metadata"]["name"] == called}


def _validating(scope: AdmissionScope, documents: dict[str, Any], name: str) -> str:
    policy, binding = (
        documents[each] for each in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    )
    (action,) = binding["spec"]["validationActions"]
    spec = {key: each for key, each in policy["spec"].items() if key != "matchConstraints"}
    return (
        f"---\n{_object(policy, name)}spec:\n{_indented(to_yaml([spec]))}{_constraints(scope)}"
        f"---\n{_object(binding, name)}"
        f"spec: {{policyName: {name}, validationActions: [{action}]}}\n"
    )


def _webhooks(found: Iterable[AdmissionScope]) -> str:
    place = {"service": {"name": "SERVICE", "namespace": "NAMESPACE", "port": 443}}
    whole = webhook_configuration(_OPTIONS, client=place)
    text = f"---\n{_object(whole, _HOOK)}webhooks:\n"
    for scope, hook in zip(found, whole["webhooks"], strict=True):
        entry = {key: each for key, each in hook.items() if key != "namespaceSelector"}
        each = _indented(to_yaml([[entry]])) + f"    namespaceSelector:{_selector(scope, 6)}\n"
        text += _guarded(scope, each)
    text = text.replace("name: SERVICE", f"name: {_HOOK}")
    return text.replace("namespace: NAMESPACE", "namespace: {{ .Release.Namespace }}")


_HOOK = '{{ include "fluence.fullname" . }}-webhook'


def _object(document: dict[str, Any], name: str, more: dict[str, Any] | None = None) -> str:
    """What every object begins with, and fields beside a spec."""
    notes = document["metadata"].get("annotations")
    told = f"  annotations:\n{_indented(to_yaml([notes]), 4)}" if notes else ""
    return (
        f"apiVersion: {document['apiVersion']}\nkind: {document['kind']}\nmetadata:\n  name: {name}\n"
        f'  labels:\n    {{{{- include "fluence.labels" . | nindent 4 }}}}\n{told}'
        + (to_yaml([more]) if more else "")
    )


def _constraints(scope: AdmissionScope) -> str:
    rules = _indented(to_yaml([scope.resource_rules()]), 6)
    return f"  matchConstraints:\n    resourceRules:\n{rules}    namespaceSelector:{_selector(scope, 6)}\n"


def _selector(scope: AdmissionScope, indent: int) -> str:
    which = "held" if scope.name.endswith("-held") else "open"
    return f' {{{{- include "fluence.admission.{which}" . | nindent {indent} }}}}'


def _variables(rules: Iterable[Any], mutations: dict[str, Any]) -> str:
    """Each named expression, where a handler is wanted that reads it."""
    readers: dict[str, list[str]] = {}
    found: dict[str, Any] = {}
    for rule in rules:
        for name, each in variables_of([mutations[rule.name]]).items():
            found[name] = each
            readers.setdefault(name, []).append(rule.handler)
    return "".join(
        _if(readers[name], _indented(to_yaml([[{"name": name, "expression": to_cel(each)}]]), 4))
        for name, each in found.items()
    )


def _if(handlers: Iterable[str], text: str) -> str:
    """A part that is there where one of these handlers is wanted."""
    wanted = " ".join(f'(has "{each}" $handlers)' for each in dict.fromkeys(handlers) if each != "doors")
    return f"{{{{- if or {wanted} }}}}\n{text}{{{{- end }}}}\n" if wanted else text


def _guarded(scope: AdmissionScope, text: str) -> str:
    if scope.name.endswith("-held"):
        return f"{{{{- if $held }}}}\n{text}{{{{- end }}}}\n"
    return _if([each.handler for each in scope.rules], text)


def _indented(text: str, by: int = 2) -> str:
    return "".join(f"{' ' * by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))
