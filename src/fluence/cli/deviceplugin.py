"""`fluence deviceplugin`: offers external resources to the kubelet of this node."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import click

from fluence.cli.choice import load_settings, settings_options
from fluence.commands.running import run_until_stopped
from fluence.deviceplugin.advertising import follow_config_map, follow_file
from fluence.deviceplugin.plugins import DevicePlugins
from fluence.deviceplugin.settings import DevicePluginSettings, read_capacity
from fluence.errors import InvalidInput
from fluence.kube.access import find_access
from fluence.kube.client import Client

_BY_API = "configmap"


@click.group()
def deviceplugin() -> None:
    """Offer resources that belong to no node to a kubelet, for pods that kube-scheduler places.

    \b
    Example:
      fluence deviceplugin run
    """


@deviceplugin.command()
@settings_options(DevicePluginSettings)
def run(config_file: str | None, **flags: object) -> None:
    """Register every type of the document with the kubelet of this node, and keep it so.

    Types come and go with the document, and everything is registered again when the kubelet restarts. Nothing
    is ever given to a container: which device a pod gets, the scheduler writes on it. Needed only where
    kube-scheduler binds pods that ask for such resources; Fluence's own binding does without.

    \b
    Examples:
      fluence deviceplugin run                             a DaemonSet with the ConfigMap mounted
      fluence deviceplugin run --resources configmap       by the API
      fluence deviceplugin run --resources r.yaml --device-plugins /var/snap/kubelet/device-plugins

    \b
    Exit codes: 0 told to stop; 1 a fault; 2 a wrong command line.
    """
    settings = load_settings(DevicePluginSettings, config_file, flags).settings
    folder = Path(settings.device_plugins)

    async def work() -> None:
        if not folder.is_dir():
            raise InvalidInput(
                f"{folder} is no folder: name the kubelet's (its --root-dir, then device-plugins)",
                where="device-plugins",
            )
        async with AsyncExitStack() as stack:
            trees = follow_file(Path(settings.resources))
            if settings.resources == _BY_API:
                access = find_access(kubeconfig=settings.kubeconfig)
                trees = follow_config_map(await stack.enter_async_context(Client(access)))
            plugins = DevicePlugins(folder, capacity=read_capacity(settings.resource_capacity))
            await plugins.run(trees)

    run_until_stopped(work, log_level=settings.log_level)
