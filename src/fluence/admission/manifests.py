"""Manifests: all that an installation needs for admission, as documents and as YAML that people can read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import yaml

from fluence import names
from fluence.admission.hooks import service, webhook_configuration
from fluence.admission.policy import policies
from fluence.admission.rule import FLUXION, QUANTUM
from fluence.admission.scopes import AdmissionOptions
from fluence.kube.resource import HAND_OFFS
from fluence.model.hand_off import PART_OF

Manifest = dict[str, Any]
SERVICE: Final = "fluence-webhook"


def manifests(
    options: AdmissionOptions,
    *,
    namespace: str,
    by_webhook: bool = False,
    service_name: str = SERVICE,
) -> list[Manifest]:
    """What to apply, in an order in which it can be made."""
    found: list[Manifest] = []
    if FLUXION in options.order:
        found.append(hand_off_definition())
    if QUANTUM in options.order:
        found.append(priority_class())
    if by_webhook:
        at = service(service_name, namespace)
        return [*found, _labelled(webhook_configuration(options, client=at))]
    return found + [_labelled(each) for each in policies(options, namespace=namespace)]


def hand_off_definition() -> Manifest:
    """The kind of the table of variables. The scheduler makes the one object; a site may add to it."""
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
    """That of pods which wait for a producer: they must not wait again when its task is ready."""
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
    """Documents with long texts folded at blanks, which changes nothing in them."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


def _labelled(found: Manifest) -> Manifest:
    meta = found["metadata"]
    return {**found, "metadata": {**meta, "labels": {**meta.get("labels", {}), **PART_OF}}}


class _Dumper(yaml.SafeDumper):
    """Every object in full, long texts as folded blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = ">" if len(text) > 80 and "  " not in text and "\n" not in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)
