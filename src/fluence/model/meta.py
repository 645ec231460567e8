"""The metadata of every Kubernetes object, and the smallest objects: ConfigMap, PriorityClass, Service."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True, omit_defaults=True):
    """A struct that decodes from the API's JSON; unknown fields are skipped, absent ones are None or
    empty."""


class OwnerReference(Wire, frozen=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Wire, frozen=True):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    # NB opaque text: it is echoed and compared for equality, never for order.
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None
    finalizers: list[str] | None = None
    generation: int | None = None

    @property
    def controller_reference(self) -> OwnerReference | None:
        """The owner that created this object and deletes it; the API allows at most one."""
        for reference in self.owner_references or ():
            if reference.controller:
                return reference
        return None


class Condition(Wire, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    # Text, not datetime: a user who may patch a status can write a year that Python's datetime does not
    # support.
    last_transition_time: str | None = None
    observed_generation: int | None = None


class Requirement(Wire, frozen=True):
    """One expression of a label or node selector."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None


class KubeObject(Wire, frozen=True):
    """Any object whose metadata is all that matters."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


def requirement_holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Does one expression of a selector hold? Gt and Lt are for nodes only, and compare integers."""
    value = labels.get(requirement.key)
    values = requirement.values or []
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            try:
                have, want = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > want if requirement.operator == "Gt" else have < want
        case _:
            return False


def selector_matches(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    """Kubernetes' rule: no selector matches nothing, an empty one matches everything."""
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in (selector.match_labels or {}).items()) and all(
        requirement_holds(requirement, labels) for requirement in selector.match_expressions or ()
    )


class ConfigMap(KubeObject, frozen=True):
    """Texts by key."""

    data: dict[str, str] | None = None


class ServiceSpec(Wire, frozen=True):
    selector: dict[str, str] | None = None


class Service(Wire, frozen=True):
    """A Service, with the selector of its pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceSpec = ServiceSpec()


class PriorityClass(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False
