"""HandOff: which variable of a container carries which annotation of its pod, as the cluster keeps it."""

from __future__ import annotations

from typing import Final

from fluence import names
from fluence.model.device import DeviceTree, variable
from fluence.model.meta import KubeObject, Wire

BASE: Final = {
    "FLUXION_BACKEND": names.BACKEND,
    "QRMI_BACKEND": names.BACKEND,
    # What QRMI reads whatever the scheduler: names and types as lists of one length.
    "QRMI_JOB_QPU_RESOURCES": names.BACKEND,
    "QRMI_JOB_QPU_TYPES": f"{names.ATTRIBUTE}qrmi_type",
}
"""Variables that every container gets which asks for a device, whatever attributes there are."""
PART_OF: Final = {"app.kubernetes.io/name": "fluence"}
"""The label of what belongs to admission."""


class _Spec(Wire, frozen=True):
    variables: dict[str, str] | None = None


class HandOff(KubeObject, frozen=True):
    """The parameters of admission."""

    spec: _Spec = _Spec()

    @property
    def variables(self) -> dict[str, str]:
        return self.spec.variables or {}


def hand_off_variables(tree: DeviceTree) -> dict[str, str]:
    """By name, the annotation that each carries: the data of the HandOff."""
    return BASE | {variable(key): f"{names.ATTRIBUTE}{key}" for key in tree.attribute_keys}
