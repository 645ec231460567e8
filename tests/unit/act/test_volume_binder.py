"""A choice that could not be written is tried again, unless another was made meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fluence.act import orders as chooser
from fluence.act.orders import VolumeBinder
from fluence.kube.client import Client
from fluence.model.claims import SELECTED_NODE
from fluence.schedule.events import ClaimUpdate
from tests.unit.kube.serving import serving, until

CLAIM: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
    "spec": {},
}


async def test_an_old_choice_does_not_come_back_after_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chooser, "PAUSES_S", (0.1,))
    written: list[str] = []
    refused = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(CLAIM)
        node = msgspec.json.decode(await request.read())["metadata"]["annotations"][SELECTED_NODE]
        if node == "old":
            refused.set()
            return web.json_response({"kind": "Status", "reason": "Conflict", "code": 409}, status=409)
        written.append(node)
        return web.json_response(CLAIM)

    async with serving(handler) as access, Client(access) as client:
        choosing = VolumeBinder(client, held=lambda: True)
        task = asyncio.create_task(choosing.run())
        try:
            choosing.update(ClaimUpdate(("ns", "data"), "u", "old"))
            await refused.wait()
            refused.clear()
            await refused.wait()  # it is tried again …
            choosing.update(ClaimUpdate(("ns", "data"), "u", "new"))
            await until(lambda: written == ["new"])
            refused.clear()
            await asyncio.sleep(0.3)
            assert not refused.is_set() and not choosing.backlog, "… but not once there is another"
        finally:
            task.cancel()
            await asyncio.wait({task})
