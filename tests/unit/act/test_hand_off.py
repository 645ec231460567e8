"""The HandOff says whether pods get the PodGroup of their gang, and follows what the server has."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from fluence import names
from fluence.act.own_objects import HandOffWriter
from fluence.kube.client import Client
from fluence.model.external_resources import DeviceTree, HandOff
from tests.unit.kube.serving import serving, status, until


async def test_it_is_written_again_when_the_server_has_other_pod_groups() -> None:
    """After an upgrade, and after a downgrade. The devices are the same."""
    written: list[Any] = []

    async def server(request: web.Request) -> web.StreamResponse:
        if request.method != "PATCH":
            return status(404, "NotFound")
        written.append(await request.json())
        return web.json_response(written[-1])

    def said() -> bool | None:
        return msgspec.convert(written[-1], HandOff).lists_gangs if written else None

    tree = DeviceTree()
    async with serving(server) as access, Client(access) as client:
        writer = HandOffWriter(client, "ns")
        running = asyncio.create_task(writer.run())
        try:
            for lists in (False, True, False):
                writer.keep(tree, lists_gangs=lists)
                await until(lambda lists=lists: said() is lists)  # type: ignore[misc]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert all(names.LISTS_GANGS in each["metadata"]["annotations"] for each in written)
    assert not HandOff().lists_gangs, "that of a leader of an older release"
