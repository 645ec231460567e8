"""Hand-off: the backend that a pod got reaches the containers that asked for it, as variables."""

from __future__ import annotations

from fluence import names
from fluence.admission.conditions import is_ours
from fluence.admission.edits import (
    add_variables,
    container_asks_like,
    copy_resources,
    exists_container,
)
from fluence.admission.expressions import Call, Each, Expr, Field, MapOf, Name, Named, Plus, Value
from fluence.admission.rule import FLUXION, PODS, AdmissionRule, Site


def hand_off_rules(site: Site) -> tuple[AdmissionRule, ...]:
    """Extended resources need requests and limits that are equal; the backend reaches those who ask."""
    asks = container_asks_like(names.DEVICE_PREFIX)
    keys = Each(Field(Name("params"), ("spec", "variables"), {}), "k", Name("k"))
    injected = Named("injected", Call("sort", keys))

    def entry(name: Expr) -> Expr:
        return from_annotation(name, Field(Name("params"), ("spec", "variables", name)))

    return (
        AdmissionRule(
            "copy-device-limits",
            FLUXION,
            PODS,
            is_ours(site),
            exists_container(asks),
            (copy_resources(names.DEVICE_PREFIX),),
        ),
        AdmissionRule(
            "hand-over-backend",
            FLUXION,
            PODS,
            is_ours(site),
            exists_container(asks),
            (add_variables(injected, entry, where=asks),),
        ),
    )


def from_annotation(name: Expr, annotation: Expr) -> Expr:
    """A variable whose value the kubelet takes from an annotation of the pod."""
    path = Plus(Value("metadata.annotations['"), annotation, Value("']"))
    source = MapOf((("fieldRef", MapOf((("fieldPath", path),))),))
    return MapOf((("name", name), ("valueFrom", source)))
