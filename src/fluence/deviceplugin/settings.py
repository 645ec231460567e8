"""Settings of the device plugin, and how many units of each type a node offers.

The number limits nothing: the scheduler knows how many devices exist and assigns them. It is only large
enough that no node is ever the bottleneck.
"""

from __future__ import annotations

import logging
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from fluence import names
from fluence.model.external_resources import DeviceTree

logger = logging.getLogger(__name__)

VARIABLE: Final = "FLUENCE_RESOURCE_CAPACITY"
DEFAULT_CAPACITY: Final = 1000
MAX_CAPACITY: Final = 32_768  # ids in one message: the kubelet accepts 4 MiB


def read_capacity(text: str) -> int:
    """The number per node and type. Other text is ignored with a warning, as in fluxqueue."""
    text = text.strip()
    if len(text) <= 12 and text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_CAPACITY:
        return int(text)
    logger.warning(
        "%s=%.40r is ignored: write a whole number from 1 to %d; it is %d",
        VARIABLE,
        text,
        MAX_CAPACITY,
        DEFAULT_CAPACITY,
    )
    return DEFAULT_CAPACITY


def offered(tree: DeviceTree, capacity: int) -> dict[str, int]:
    """The number of units that a node offers, by resource name as pods request it: every type at every
    level."""
    return {names.DEVICE_PREFIX + type_: capacity for type_ in tree.types}


class DevicePluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    resources: Annotated[
        str,
        Meta(
            description="The document of resources: a file, or `configmap` to follow "
            "`kube-system/fluence-resources` by the API. A missing file declares nothing."
        ),
    ] = "/etc/fluence/resources.yaml"
    resource_capacity: Annotated[
        str,
        Meta(
            description="How many of each type a node offers, from 1 to "
            f"{MAX_CAPACITY}. Other values are ignored with a warning."
        ),
    ] = str(DEFAULT_CAPACITY)
    device_plugins: Annotated[
        str, Meta(description="The kubelet's folder for device plugins, where its socket is.")
    ] = "/var/lib/kubelet/device-plugins"
    kubeconfig: Annotated[
        str | None,
        Meta(description="The kubeconfig file, for `resources: configmap`. Default: as for the scheduler."),
    ] = None
    log_level: Annotated[
        str,
        Meta(
            description="The lowest level that is logged.",
            extra={"choices": ("debug", "info", "warning", "error")},
        ),
    ] = "info"
