"""Objects and what admission makes of them, for tests of single rules."""

from __future__ import annotations

from typing import Any

from fluence import names
from fluence.admission.review import Admitted, admit
from fluence.admission.scopes import AdmissionOptions, DoorMode, scopes
from fluence.model.external_resources import BASE

QPU = f"{names.DEVICE_PREFIX}qpu"
HELD = AdmissionOptions(doors=DoorMode.NAMESPACES)


def pod(*containers: dict[str, Any], scheduler: str = "fluence", **meta: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": list(containers or (container(),))}
    if scheduler:
        spec["schedulerName"] = scheduler
    return {"kind": "Pod", "metadata": {"name": "p", **meta}, "spec": spec}


def container(name: str = "c", *, env: Any = None, **resources: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "image": "busybox"}
    if env is not None:
        found["env"] = env
    if resources:
        found["resources"] = resources
    return found


def admitted(
    found: dict[str, Any],
    *,
    options: AdmissionOptions | None = None,
    held: bool = False,
    variables: dict[str, str] | None = None,
) -> Admitted:
    """What becomes of an object in the namespace `ns`, which holds work back or not."""
    options = options or (HELD if held else AdmissionOptions())
    for scope in scopes(options):
        if found["kind"] in scope.kinds and scope.name.endswith("-held") == held:
            return admit(
                scope,
                found,
                kind=found["kind"],
                namespace="ns",
                variables=BASE if variables is None else variables,
            )
    return Admitted(found)


def variables_of(found: dict[str, Any], number: int = 0, kind: str = "containers") -> dict[str, str]:
    """A container's variables: literal values, or the annotation that they come from."""
    values = {}
    for each in found["spec"][kind][number].get("env", ()):
        if "value" in each:
            values[each["name"]] = each["value"]
        else:
            values[each["name"]] = each["valueFrom"]["fieldRef"]["fieldPath"]
    return values
