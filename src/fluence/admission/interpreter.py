"""Interpreter: what the rules of a scope make of an object, as a JSON patch and as the object after it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fluence.admission.evaluate import Compute, compiled
from fluence.admission.expressions import Plus
from fluence.admission.json_patch import Operation, apply
from fluence.admission.rule import AdmissionRule, Warn
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
    known = _known(kind, namespace, variables)
    patch: list[Operation] = []
    applied = []
    with _odd(kind):
        for rule in scope.rules:
            if kind not in rule.kinds:
                continue
            names = {**known, "object": found}
            holds, edits = _functions(rule)
            if holds(names) and (made := edits(names)):
                found = apply(found, made)
                patch += made
                applied.append(rule.name)
        names = {**known, "object": found}
        told = [each for each in scope.warnings if kind in each.kinds and _functions(each)[0](names)]
    return Admitted(found, tuple(patch), tuple(applied), tuple(each.message for each in told))


def concerns(
    scope: AdmissionScope, found: Any, *, kind: str, namespace: str, by_a_glance: bool = False
) -> bool:
    """Whether a rule would change this object; ``by_a_glance``: whether a rule would look at it at all, for
    which its metadata and the plain fields of its spec are enough."""
    names = {**_known(kind, namespace, {}), "object": found}
    with _odd(kind):
        return any(
            (compiled(rule.ours) if by_a_glance else _functions(rule)[0])(names)
            for rule in scope.rules
            if kind in rule.kinds
        )


def _known(kind: str, namespace: str, variables: Mapping[str, str]) -> dict[str, Any]:
    return {
        "request": {"kind": {"kind": kind}, "namespace": namespace},
        "params": {"spec": {"variables": dict(variables)}},
    }


@contextlib.contextmanager
def _odd(kind: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"a field is not of the type that a {kind} has there ({error})") from None


_MOST_KEPT = 64  # those of a webhook's scopes; each is thousands of small objects
_kept: dict[int, tuple[AdmissionRule | Warn, Compute, Compute]] = {}  # by the rule's id, which is held


def _functions(of: AdmissionRule | Warn) -> tuple[Compute, Compute]:
    """When a rule holds, and what it changes."""
    known = _kept.get(id(of))
    if known is None:
        if len(_kept) >= _MOST_KEPT:  # a webhook makes its table once; others may make many
            _kept.clear()
        if isinstance(of, Warn):
            known = of, compiled(of.when), compiled(Plus())
        else:
            known = of, compiled(of.holds), compiled(Plus(*of.edits))
        _kept[id(of)] = known
    return known[1], known[2]


def as_read(manifest: Any) -> Any:
    """A manifest as rules see it on the server, which gives a Job without labels those of its template."""
    if not isinstance(manifest, dict) or manifest.get("kind") != "Job":
        return manifest
    meta, spec = manifest.get("metadata") or {}, manifest.get("spec") or {}
    template = (spec.get("template") or {}).get("metadata") or {}
    if meta.get("labels") or not template.get("labels"):
        return manifest
    return {**manifest, "metadata": {**meta, "labels": dict(template["labels"])}}
