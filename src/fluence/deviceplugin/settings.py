"""Settings of the device plugin: where the document is, and where the kubelet."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from fluence.deviceplugin.capacity import DEFAULT, MOST


class DevicePluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    resources: Annotated[
        str,
        Meta(
            description="The document of resources: a file, or `configmap` to follow "
            "`kube-system/fluence-resources` by the API. A file that is not there declares nothing."
        ),
    ] = "/etc/fluence/resources.yaml"
    resource_capacity: Annotated[
        str,
        Meta(
            description="How many of each type a node offers, from 1 to "
            f"{MOST}. What is no such number is ignored with a warning."
        ),
    ] = str(DEFAULT)
    device_plugins: Annotated[
        str, Meta(description="The kubelet's folder for device plugins, where its socket is.")
    ] = "/var/lib/kubelet/device-plugins"
    kubeconfig: Annotated[
        str | None,
        Meta(description="For `resources: configmap`; default: as the scheduler's."),
    ] = None
    log_level: Annotated[
        str,
        Meta(
            description="What is logged, and all that is graver.",
            extra={"choices": ("debug", "info", "warning", "error")},
        ),
    ] = "info"
