"""Admission: the chart's template of policies and webhooks, written from the table of src/fluence/admission.

The rules are CEL that helm cannot make, so each stands in the template as it is rendered, and values decide
which of them are in. Their order is that of the defaults; `fluence admission render` has any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fluence import names
from fluence.admission.cel import variables_in
from fluence.admission.manifests import (
    mutation,
    policies,
    priority_class,
    reads_parameters,
    refusing_policies,
    to_yaml,
    webhook_configuration,
)
from fluence.admission.rule import FLUXION, POD_GROUPS, QUANTUM, AdmissionRule
from fluence.admission.scopes import VARIABLES, AdmissionOptions, AdmissionScope, DoorMode, scopes
from fluence.admission.users import NAME as USERS
from fluence.admission.users import QUEUE_ACCESS
from fluence.kube.resource import HAND_OFFS

_SCHEDULER = "SCHEDULER-NAME-HERE"
_ALIASES = "SCHEDULER-ALIASES-HERE"
_OPTIONS = AdmissionOptions(
    doors=DoorMode.NAMESPACES,
    scheduler=_SCHEDULER,
    aliases=(_ALIASES,),
)
_CONTROLLERS = "CONTROLLERS-HERE"
_USERS = AdmissionOptions(handlers=(), users=True, controllers=(_CONTROLLERS,), queue_access=True)
_HEAD = """{{- /* Written by `make manifests` from src/fluence/admission; do not edit. */}}
{{- $mode := include "fluence.admission" . }}
{{- $handlers := .Values.admission.handlers }}
{{- $operators := .Values.admission.operators }}
{{- $held := ne .Values.admission.doors "off" }}
{{- $settings := include "fluence.settings" . | fromYaml }}
{{- $scheduler := index $settings "scheduler-name" }}
{{- $aliases := index $settings "scheduler-aliases" }}
{{- if kindIs "string" $aliases }}{{ $aliases = splitList "," $aliases | compact }}{{ end }}
{{- $space := index $settings "lease-namespace" }}
{{- $controllers := list }}
{{- range .Values.admission.controllers }}{{ $controllers = append $controllers (squote .) }}{{ end }}
{{- $controllers = join ", " $controllers }}
"""


def admission_template() -> str:
    """templates/admission.yaml."""
    parts = [_HEAD, '{{- if ne $mode "off" }}\n', _rights(), _class()]
    found = scopes(_OPTIONS)
    parts += ['{{- if eq $mode "policy" }}\n', *(_policy(each) for each in found), _users(), "{{- end }}\n"]
    parts += ['{{- if eq $mode "webhook" }}\n', _webhooks(found), "{{- end }}\n"]
    parts += [_refusals(), "{{- end }}\n"]
    text = "".join(parts)
    text = text.replace(f"['{_CONTROLLERS}']", "[{{ $controllers }}]")
    assert _CONTROLLERS not in text
    text = text.replace(f", '{_ALIASES}'", "{{ range $aliases }}, '{{ . }}'{{ end }}")
    assert _ALIASES not in text
    return text.replace(_SCHEDULER, "{{ $scheduler }}")


def _rights() -> str:
    """The right of the scheduler to keep the HandOff. `create` cannot be limited to a name."""
    name = '{{ include "fluence.fullname" . }}-hand-off'
    labels = '{{- include "fluence.labels" . | nindent 4 }}'
    account = '{{ include "fluence.account" . }}'
    wanted = f'(or (has "{FLUXION}" $handlers) (has "{POD_GROUPS}" $handlers))'
    return f"""{{{{- if and {wanted} .Values.rbac.create }}}}
---
# Which variable of a container carries which annotation of its pod follows the devices that there are.
# Whether gangs get PodGroups follows the API server.
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
    verbs: [get, list, watch, patch]
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
    readers = [each.handler for each in scope.rules if reads_parameters(each)]
    if readers:
        kind = f"  paramKind: {{apiVersion: {HAND_OFFS.api_version}, kind: {HAND_OFFS.kind}}}\n"
        text += _if(readers, kind)
    text += _indented(to_yaml([spec])) + _constraints(scope) + "  variables:\n"
    text += _variables(scope)
    text += "  mutations:\n"
    for each in scope.rules:
        entry = [{"patchType": "JSONPatch", "jsonPatch": {"expression": mutation(scope, each)}}]
        text += _if([each.handler], f"    # {each.name}\n" + _indented(to_yaml([entry]), 4))
    text += f"---\n{_object(documents['MutatingAdmissionPolicyBinding'], name)}spec:\n  policyName: {name}\n"
    if readers:
        reference = f"name: {names.ADMISSION_PARAMETERS}, namespace: {{{{ $space }}}}"
        text += _if(readers, f"  paramRef: {{{reference}, parameterNotFoundAction: Allow}}\n")
    if scope.has_pods:
        bounds = _validating(scope, _documents(scope, "-bounds"), f"{name}-bounds")
        handlers = [each.handler for each in scope.rules if each.reads_containers]
        text += bounds if scope.name.endswith("-held") else _if(handlers, bounds)
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


def _users() -> str:
    """The policy that writes who created an object."""
    text = "".join(
        _whole(each, f"-{USERS}") for each in policies(_USERS, namespace="") if each["kind"].startswith("Mut")
    )
    return f"{{{{- if .Values.admission.users }}}}\n{text}{{{{- end }}}}\n"


def _refusals() -> str:
    """The policies that refuse, beside policies and webhooks alike."""
    values = {USERS: "users", QUEUE_ACCESS: "queueAccess"}
    text = ""
    for each in refusing_policies(_USERS):
        called = each["metadata"]["name"].removeprefix("fluence-")
        text += (
            f"{{{{- if .Values.admission.{values[called]} }}}}\n{_whole(each, f'-{called}')}{{{{- end }}}}\n"
        )
    return text


def _whole(document: dict[str, Any], suffix: str) -> str:
    """An object under the name of this release, for all namespaces in which rules hold."""
    name = f'{{{{ include "fluence.fullname" . }}}}{suffix}'
    spec = dict(document["spec"])
    constraints = spec.pop("matchConstraints", None)
    if "policyName" in spec:
        spec["policyName"] = "NAME"
    text = f"---\n{_object(document, name)}spec:\n" + _indented(to_yaml([spec])).replace(
        "policyName: NAME", f"policyName: {name}"
    )
    if constraints is None:
        return text
    rules = _indented(to_yaml([constraints["resourceRules"]]), 6)
    text += f"  matchConstraints:\n    resourceRules:\n{rules}    namespaceSelector:"
    return text + ' {{- include "fluence.admission.all" . | nindent 6 }}\n'


def _webhooks(found: Iterable[AdmissionScope]) -> str:
    place = {"service": {"name": "SERVICE", "namespace": "NAMESPACE", "port": 443}}
    whole = webhook_configuration(_OPTIONS, client=place)
    text = f"---\n{_object(whole, _HOOK)}webhooks:\n"
    for scope, hook in zip(found, whole["webhooks"], strict=True):
        entry = {key: each for key, each in hook.items() if key not in ("namespaceSelector", "rules")}
        each = (
            _indented(to_yaml([[entry]])) + "    rules:\n" + _resource_rules(scope, {"scope": "Namespaced"})
        )
        each += f"    namespaceSelector:{_selector(scope, 6)}\n"
        text += _guarded(scope, each)
    (hook,) = webhook_configuration(_USERS, client=place)["webhooks"]
    entry = {key: each for key, each in hook.items() if key != "namespaceSelector"}
    selector = '    namespaceSelector: {{- include "fluence.admission.all" . | nindent 6 }}\n'
    text += (
        f"{{{{- if .Values.admission.users }}}}\n{_indented(to_yaml([[entry]]))}{selector}{{{{- end }}}}\n"
    )
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
    rules = _resource_rules(scope)
    return f"  matchConstraints:\n    resourceRules:\n{rules}    namespaceSelector:{_selector(scope, 6)}\n"


def _resource_rules(scope: AdmissionScope, more: dict[str, str] | None = None) -> str:
    """The objects of a scope; those of operators each where its kind is wanted."""
    if scope.has_pods:
        return _indented(to_yaml([[{**each, **(more or {})} for each in scope.resource_rules()]]), 6)
    text = ""
    for kind in scope.kinds:
        rules = [{**each, **(more or {})} for each in replace(scope, kinds=(kind,)).resource_rules()]
        text += f'{{{{- if has "{kind}" $operators }}}}\n{_indented(to_yaml([rules]), 6)}{{{{- end }}}}\n'
    return text


def _selector(scope: AdmissionScope, indent: int) -> str:
    which = "held" if scope.name.endswith("-held") else "open"
    return f' {{{{- include "fluence.admission.{which}" . | nindent {indent} }}}}'


def _variables(scope: AdmissionScope) -> str:
    """Each variable of the policy, where a handler is wanted that reads it."""
    readers: dict[str, list[AdmissionRule]] = {}
    for rule in scope.rules:
        for name in variables_in([mutation(scope, rule)], VARIABLES):
            readers.setdefault(name, []).append(rule)
    return "".join(
        _if(
            [rule.handler for rule in readers[name]],
            _indented(to_yaml([[{"name": name, "expression": expression}]]), 4),
        )
        for name, expression in VARIABLES.items()
        if name in readers
    )


def _if(handlers: Iterable[str], text: str) -> str:
    """A part that is there where one of these handlers is wanted."""
    wanted = " ".join(f'(has "{each}" $handlers)' for each in dict.fromkeys(handlers) if each != "doors")
    return f"{{{{- if or {wanted} }}}}\n{text}{{{{- end }}}}\n" if wanted else text


def _guarded(scope: AdmissionScope, text: str) -> str:
    if scope.name.endswith("-held"):
        wanted = "$held" if scope.has_pods else "and $held $operators"
        return f"{{{{- if {wanted} }}}}\n{text}{{{{- end }}}}\n"
    return _if([each.handler for each in scope.rules], text)


def _indented(text: str, by: int = 2) -> str:
    return "".join(f"{' ' * by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))
