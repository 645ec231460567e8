"""A PodGroup is created once for a gang, follows its size where the API allows it, and is never another's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fluence import names
from fluence.act.own_objects import GroupMaker
from fluence.act.writers import StatusWriter
from fluence.kube.client import Client
from fluence.kube.gangs import NoGangs, PodGroups136, PodGroups137
from fluence.model.job_state import JobState
from fluence.model.owner import Group
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.status.status import StatusReport
from tests.unit.kube.serving import serving, status, until
from tests.unit.schedule.kit import GROUP, SIZE, V136, V137, pod

RUNS = StatusReport(JobState.RUNNING)
NAME = "g.fluence"


class Server:
    """Has PodGroups; remembers what was written."""

    def __init__(self) -> None:
        self.has: dict[str, Any] = {}
        self.written: list[tuple[str, Any]] = []
        self.refuses_sizes = False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        name = request.path.split("podgroups")[-1].strip("/").partition("/")[0]
        if request.method == "GET":
            return web.json_response(self.has[name])
        body = await request.json()
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.has:
                return status(409, "AlreadyExists")
            self.has[name] = body
        self.written.append((f"{request.method} {request.path.rpartition('/')[2]}", body))
        if self.refuses_sizes and "spec" in body and request.method == "PATCH":
            return status(403, "Forbidden")
        return web.json_response(self.has[name], status=201 if request.method == "POST" else 200)


@asynccontextmanager
async def making(server: Server, gangs: Any) -> AsyncIterator[GroupMaker]:
    async with serving(server) as access, Client(access) as client:
        writer = StatusWriter(client, held=lambda: True)
        maker = GroupMaker(client, writer, held=lambda: True)
        maker.gangs = gangs
        tasks = [asyncio.create_task(each.run()) for each in (maker, writer)]
        try:
            yield maker
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def gang(size: int = 4, *, listing: Group | None = None) -> Gang:
    groups = Groups(native=True)
    if listing is not None:
        groups.set_group(listing)
    for index in range(size):
        marks: dict[str, Any] = {"labels": {GROUP: "g"}, "annotations": {SIZE: str(size)}}
        groups.set_pod(pod(f"p{index}", field=NAME, **marks))
    found = groups.gang("default/g")
    assert found is not None
    return found


def listed(size: int, source: str) -> Group:
    notes = {names.MADE_FOR: "default/g"}
    return Group(namespace="default", name=NAME, uid="u", min_count=size, annotations=notes, source=source)


@pytest.mark.parametrize(
    ("gangs", "mode"), [(PodGroups136(), "PodGroup"), (PodGroups137(), {"all": {}})], ids=["1.36", "1.37"]
)
async def test_one_create_and_one_status_however_many_pods(gangs: Any, mode: object) -> None:
    server = Server()
    async with making(server, gangs) as maker:
        of = gang(50)
        first = maker.before_bind(of)
        assert first is not None and maker.before_bind(of) is first
        await first
        maker.make(of, RUNS, 0)
        await until(lambda: len(server.written) == 2)
        await asyncio.sleep(0.05)
        (create, body), (patched, _) = server.written
        assert (create, patched) == ("POST podgroups", "PATCH status")
        assert body["spec"]["disruptionMode"] == mode
        assert body["spec"]["schedulingPolicy"] == {"gang": {"minCount": 50}}
        assert maker.made == 1


async def test_nothing_is_waited_for_where_there_is_nothing_to_make() -> None:
    async with making(Server(), PodGroups136()) as maker:
        assert maker.before_bind(None) is None
        assert maker.before_bind(gang(listing=listed(4, V136))) is None
        maker.gangs = NoGangs("off")
        assert maker.before_bind(gang()) is None


async def test_a_pod_group_of_that_name_that_is_not_ours_is_left_as_it_is() -> None:
    server = Server()
    server.has[NAME] = {"metadata": {"name": NAME, "namespace": "default"}, "spec": {}}
    async with making(server, PodGroups136()) as maker:
        first = maker.before_bind(gang())
        assert first is not None and await first is None
        maker.make(gang(), RUNS, 0)
        await asyncio.sleep(0.1)
        assert not server.written


async def test_the_size_follows_the_gang_where_it_may_be_changed() -> None:
    server = Server()
    server.has[NAME] = {}
    async with making(server, PodGroups137()) as maker:
        maker.make(gang(4, listing=listed(4, V137)), None, 0)
        maker.make(gang(5, listing=listed(4, V137)), None, 0)
        await until(lambda: server.written)
        await asyncio.sleep(0.05)
        assert server.written == [
            (f"PATCH {NAME}", {"spec": {"schedulingPolicy": {"gang": {"minCount": 5}}}})
        ]


async def test_a_size_that_may_not_be_changed_is_tried_once() -> None:
    """An installation may leave the right out, and nothing depends on the size."""
    server = Server()
    server.has[NAME] = {}
    server.refuses_sizes = True
    async with making(server, PodGroups137()) as maker:
        maker.make(gang(5, listing=listed(4, V137)), None, 0)
        await until(lambda: server.written)
        await asyncio.sleep(0.05)
        maker.make(gang(5, listing=listed(4, V137)), None, 0)
        await asyncio.sleep(0.1)
        assert len(server.written) == 1
        first = maker.before_bind(gang(4))
        assert first is not None, "others are created as before"


async def test_the_size_stays_where_the_server_would_refuse_another() -> None:
    server = Server()
    async with making(server, PodGroups136()) as maker:
        maker.make(gang(5, listing=listed(4, V136)), None, 0)
        await asyncio.sleep(0.1)
        assert not server.written
