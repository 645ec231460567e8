"""`fluence resources advertise`: the types of the document on nodes' status, without a DaemonSet."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import click

from fluence import event_loop, names
from fluence.cli.following import run_until_stopped
from fluence.deviceplugin.advertising import Advertiser, advertise_once
from fluence.deviceplugin.capacity import DEFAULT, VARIABLE, offered, read_capacity
from fluence.deviceplugin.following import follow_config_map, follow_file
from fluence.errors import NotFound
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.resource import CONFIG_MAPS
from fluence.model.device import DeviceTree
from fluence.model.resource_document import parse


@click.command()
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="The cluster; default: as kubectl's.")
@click.option("--context", metavar="NAME", help="The context in the kubeconfig.")
@click.option("--file", "file", metavar="FILE", type=click.Path(), help="Follow a file, not the ConfigMap.")
@click.option("--once", is_flag=True, help="Write what is missing, and end.")
@click.option("--remove", is_flag=True, help="Take all of it off the nodes, and end.")
def advertise(
    kubeconfig: str | None, context: str | None, file: str | None, once: bool, remove: bool
) -> None:
    """Keep the types of the document on every node's status, so that kube-scheduler can place their pods.

    Nodes get `fluxion.flux-framework.org/TYPE: 1000` (FLUENCE_RESOURCE_CAPACITY) for every type at every
    level; what is gone from the document goes from them. It follows the ConfigMap kube-system/
    fluence-resources and the nodes until it is stopped. Fluence's own scheduler needs none of it.

    \b
    It needs: nodes get, list, watch; nodes/status patch; configmaps get, list, watch of fluence-resources in
    kube-system (docs/devices.md has the roles).

    \b
    Examples:
      fluence resources advertise
      fluence resources advertise --once --file resources.yaml
      fluence resources advertise --remove          when it is no longer wanted

    \b
    Exit codes: 0 done, or told to stop; 1 a fault; 2 a wrong command line.
    """
    if once and remove:
        raise click.UsageError("--once and --remove: give one of them")
    capacity = read_capacity(os.environ.get(VARIABLE) or str(DEFAULT))
    access = find_access(kubeconfig=kubeconfig, context=context)

    def trees(client: Client) -> AsyncIterator[DeviceTree]:
        return follow_config_map(client) if file is None else follow_file(Path(file))

    async def write_once() -> int:
        async with Client(access) as client:
            if remove:
                return await advertise_once(client, {})
            return await advertise_once(client, offered(await _document(client, file), capacity))

    async def follow() -> None:
        async with Client(access) as client:
            await Advertiser(client, capacity=capacity).run(trees(client))

    if once or remove:
        changed = event_loop.run(write_once)
        click.echo(f"{changed} node{'' if changed == 1 else 's'} changed")
    else:
        run_until_stopped(follow)


async def _document(client: Client, file: str | None) -> DeviceTree:
    """The document as it is; one that cannot be read is a fault, since nothing else is there to keep."""
    if file is not None:
        return parse(Path(file).read_bytes().decode(), source=file)
    space, name = names.RESOURCES_NAMESPACE, names.RESOURCES_CONFIGMAP
    try:
        found = await client.get(CONFIG_MAPS, name, namespace=space)
    except Missing:
        raise NotFound(f"ConfigMap {space}/{name}: there is none; create it, or name a --file") from None
    return parse((found.data or {}).get(names.RESOURCES_KEY, ""), source=f"ConfigMap {space}/{name}")
