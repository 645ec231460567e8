"""Hooks: the rules as a MutatingWebhookConfiguration, for Kubernetes 1.35 and for sites without policies.

The server calls the webhook only for objects that a policy would look at, never for kube-system, and goes on
without it where it does not answer.
"""

from __future__ import annotations

from typing import Any, Final

from fluence.admission.cel import to_cel
from fluence.admission.policy import API, condition
from fluence.admission.scopes import AdmissionOptions, scopes

NAME: Final = "fluence-webhook"
TIMEOUT_S: Final = 5
PATH: Final = "/mutate"


def webhook_configuration(
    options: AdmissionOptions, *, client: dict[str, Any], name: str = NAME, prefix: str = "fluence"
) -> dict[str, Any]:
    """One webhook for each scope. ``client`` says where it is: a service, or a url."""
    return {
        "apiVersion": API,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{scope.name}.{prefix}.flux-framework.org",
                "admissionReviewVersions": ["v1"],
                "clientConfig": _at(client, f"{PATH}/{scope.name}"),
                "rules": [{**each, "scope": "Namespaced"} for each in scope.resource_rules()],
                "namespaceSelector": {"matchExpressions": [*scope.namespaces]},
                "matchConditions": [
                    {"name": "concerns-us", "expression": to_cel(condition(scope), inline=True)}
                ],
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "reinvocationPolicy": "IfNeeded",
                "timeoutSeconds": TIMEOUT_S,
            }
            for scope in scopes(options)
        ],
    }


def service(name: str, namespace: str) -> dict[str, Any]:
    """Where the webhook is when it runs in the cluster."""
    return {"service": {"name": name, "namespace": namespace, "port": 443}}


def _at(client: dict[str, Any], path: str) -> dict[str, Any]:
    if "service" in client:
        return {"service": {**client["service"], "path": path}}
    return {"url": f"{client['url']}{path}"}
