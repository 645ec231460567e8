"""Admit: applies the rules of a scope to an object, and returns the JSON patch and the changed object."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fluence.admission.patch import Incoming, Operation, apply
from fluence.admission.scopes import AdmissionScope
from fluence.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Admitted:
    """The object as it is stored, the patch, the rules that made it, and the warnings for its user."""

    object: Any
    patch: tuple[Operation, ...] = ()
    rules: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def admit(
    scope: AdmissionScope,
    manifest: Any,
    *,
    kind: str,
    namespace: str,
    variables: Mapping[str, str],
    user: str = "",
    old: Any = None,
    lists_gangs: bool = False,
) -> Admitted:
    """Apply the rules to an object that ``user`` creates, or updates from ``old``. ``variables``: by name,
    the annotation whose value each carries. ``lists_gangs``: whether pods get the PodGroup of their gang."""
    incoming = Incoming(manifest, kind, namespace, variables, user, old, lists_gangs)
    patch: list[Operation] = []
    applied = []
    with _odd_fields(kind):
        for rule in scope.rules:
            if kind in rule.kinds and rule.applies(incoming):
                operations = rule.edit.operations(incoming)
                if operations:
                    incoming = replace(incoming, object=apply(incoming.object, operations))
                    patch += operations
                    applied.append(rule.name)
        warnings = [
            warning.message
            for warning in scope.warnings
            if kind in warning.kinds and warning.when.holds(incoming)
        ]
    return Admitted(incoming.object, tuple(patch), tuple(applied), tuple(warnings))


def concerns(
    scope: AdmissionScope, manifest: Any, *, kind: str, namespace: str, by_a_glance: bool = False
) -> bool:
    """Whether a rule that reads the containers would change this object. ``by_a_glance``: whether it would
    look at it at all, which depends only on its metadata and the plain fields of its spec."""
    incoming = Incoming(manifest, kind, namespace, {})
    with _odd_fields(kind):
        return any(
            rule.concerns.holds(incoming) if by_a_glance else rule.applies(incoming)
            for rule in scope.rules
            if kind in rule.kinds and rule.reads_containers
        )


@contextlib.contextmanager
def _odd_fields(kind: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"a field is not of the type that a {kind} has there ({error})") from None


def as_read(manifest: Any) -> Any:
    """A manifest as rules see it on the server, which gives a Job without labels those of its template."""
    if not isinstance(manifest, dict) or manifest.get("kind") != "Job":
        return manifest
    meta, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    if meta.get("labels") or not template.get("labels"):
        return manifest
    return {**manifest, "metadata": {**meta, "labels": dict(template["labels"])}}
