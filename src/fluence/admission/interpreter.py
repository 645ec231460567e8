"""Interpreter: what the rules of a scope make of an object, as a JSON patch and as the object after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluence.admission.evaluate import evaluate
from fluence.admission.expressions import Plus
from fluence.admission.json_patch import Operation, apply
from fluence.admission.scopes import AdmissionScope
from fluence.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Admitted:
    """The object as it will be, how it came about, and what its maker is told."""

    object: Any
    patch: tuple[Operation, ...] = ()
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def admit(
    scope: AdmissionScope, found: Any, *, kind: str, namespace: str, variables: Mapping[str, str]
) -> Admitted:
    """What becomes of a new object of this kind. ``variables``: by name, the annotation that each carries."""
    known = {
        "request": {"kind": {"kind": kind}, "namespace": namespace},
        "params": {"spec": {"variables": variables}},
    }
    patch: list[Operation] = []
    applied = []
    try:
        for rule in scope.rules:
            names = {**known, "object": found}
            if kind in rule.kinds and evaluate(rule.holds, names):
                made = evaluate(Plus(*rule.edits), names)
                found = apply(found, made)
                patch += made
                if made:
                    applied.append(rule.name)
        names = {**known, "object": found}
        told = [each.message for each in scope.warnings if kind in each.kinds and evaluate(each.when, names)]
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"a field is not of the type that a {kind} has there ({error})") from None
    return Admitted(found, tuple(patch), tuple(applied), tuple(told))


def as_read(manifest: Any) -> Any:
    """A manifest as rules see it on the server, which gives a Job without labels those of its template."""
    if not isinstance(manifest, dict) or manifest.get("kind") != "Job":
        return manifest
    meta, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    if meta.get("labels") or not template.get("labels"):
        return manifest
    return {**manifest, "metadata": {**meta, "labels": dict(template["labels"])}}
