"""PodGroups that are installed while the scheduler runs are found, followed, and missed when they go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fluence.kube.client import Client
from fluence.live.watches import ServerApis, Watches
from fluence.model.owner import Group
from fluence.schedule.events import Changed, Event
from tests.unit.kube.serving import bookmark, event, serving, status, stream

NATIVE, SIG = "scheduling.k8s.io", "scheduling.x-k8s.io"
OTHERS = [("scheduling.volcano.sh", "v1beta1", "volcano"), ("scheduling.run.ai", "v2alpha2", "kai")]


class Server:
    """Serves PodGroups in the versions of ``has``; each has one, of the name of its version."""

    def __init__(self) -> None:
        self.has: dict[str, list[str]] = {}
        self.down = False
        self.denied = False  # PodGroups may not be read
        self.probes = 0
        self.looks = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        if self.down:
            return status(503, "ServiceUnavailable")
        if request.method == "POST":
            self.probes += 1
            return web.json_response(await request.json(), status=201)
        if parts == ["apis"]:
            self.looks += 1
            groups = [
                {"name": name, "versions": [{"version": each} for each in versions]}
                for name, versions in self.has.items()
            ]
            return web.json_response({"groups": groups})
        if parts[0] != "apis" or (versions := self.has.get(parts[1])) is None:
            return status(404, "NotFound")
        if len(parts) == 2:
            return web.json_response({"name": parts[1], "versions": [{"version": each} for each in versions]})
        if parts[2] not in versions:
            return status(404, "NotFound")
        if len(parts) == 3:
            kinds = [{"name": "podgroups", "kind": "PodGroup"}, {"name": "rayclusters", "kind": "RayCluster"}]
            return web.json_response({"resources": kinds})
        if self.denied:
            return status(403, "Forbidden")
        if "limit" in request.query and "watch" not in request.query and parts[3] == "rayclusters":
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})
        meta = {"name": parts[2], "namespace": "ns", "uid": parts[2], "resourceVersion": "1"}
        spec: dict[str, Any] = {"minMember": 3, "schedulingPolicy": {"gang": {"minCount": 3}}}
        group = event("ADDED", {"metadata": meta, "spec": spec})
        return await stream(request, group, bookmark("2", ends_list=True))


class World:
    def __init__(self, server: Server, client: Client, **pauses: Any) -> None:
        self.server = server
        self.given_up: list[str] = []
        self.groups: list[str] = []
        self.native: list[bool] = []
        self.watches = Watches(client, self.put)
        pauses = {"pauses": (0.02, 0.1), **pauses}
        self.apis = ServerApis(
            client, self.watches, self.native.append, given_up=self.given_up.extend, **pauses
        )

    def put(self, found: Event) -> None:
        if isinstance(found, Changed) and isinstance(found.new, Group):
            self.groups.append(f"{found.new.source}:{found.new.min_count}")

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not done():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(pauses: dict[str, Any] | None = None, **has: list[str]) -> AsyncIterator[World]:
    server = Server()
    server.has = {NATIVE if name == "native" else SIG: versions for name, versions in has.items()}
    async with serving(server) as access, Client(access) as client:
        made = World(server, client, **pauses or {})
        await made.apis.discover()
        started = [asyncio.create_task(each.run()) for each in made.watches.all]
        tasks = [*started, asyncio.create_task(made.apis.run())]
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_custom_resource_that_is_installed_later_is_followed_without_a_restart() -> None:
    async with world() as w:
        assert w.native == [False] and not w.watches.all
        w.server.has[SIG] = ["v1alpha1"]
        await w.until(lambda: w.groups == [f"{SIG}/v1alpha1:3"])
        assert w.native[-1] is True
        seen = len(w.native)
        await w.until(lambda: len(w.native) > seen + 3)
        assert len(w.watches.all) == 1, "once"
        del w.server.has[SIG]
        await w.until(lambda: w.native[-1] is False)


@pytest.mark.parametrize(("api", "version", "system"), OTHERS)
async def test_pod_groups_of_other_systems_are_followed_and_are_none_of_our_own(
    api: str, version: str, system: str
) -> None:
    async with world() as w:
        assert w.apis.systems == frozenset()
        w.server.has[api] = [version]
        await w.until(lambda: w.groups == [f"{api}/{version}:3"])
        await w.until(lambda: w.apis.systems == {system})
        assert w.native[-1] is False, "labels that name a native PodGroup do not wait for one"
        del w.server.has[api]
        await w.until(lambda: w.apis.systems == frozenset())


async def test_pod_groups_of_other_systems_that_may_not_be_read_do_not_keep_the_scheduler_from_starting() -> (
    None
):
    server = Server()
    server.has, server.denied = {"scheduling.volcano.sh": ["v1beta1"]}, True
    async with serving(server) as access, Client(access) as client:
        made = World(server, client)
        await made.apis.discover()
        tasks = [asyncio.create_task(each.run()) for each in made.watches.all]
        assert len(tasks) == 1
        async with asyncio.timeout(120):
            await made.watches.synced()
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not made.groups


async def test_a_native_api_that_comes_with_an_upgrade_is_followed_without_a_restart() -> None:
    async with world(native=["v1"]) as w:
        assert w.native == [False] and w.server.probes == 0
        w.server.has[NATIVE] = ["v1", "v1alpha2"]
        await w.until(lambda: w.groups == [f"{NATIVE}/v1alpha2:3"])
        assert w.apis.gangs.version == "v1alpha2"
        w.server.has[NATIVE] = ["v1", "v1beta1"]
        await w.until(lambda: w.groups[-1] == f"{NATIVE}/v1beta1:3")
        assert w.apis.gangs.version == "v1beta1"
        probes, seen = w.server.probes, len(w.native)
        await w.until(lambda: len(w.native) > seen + 3)
        assert w.server.probes == probes, "what is known is not probed again"


async def test_a_server_that_is_away_changes_nothing() -> None:
    async with world(native=["v1alpha2"]) as w:
        await w.until(lambda: len(w.groups) == 1)
        w.server.down = True
        seen = len(w.native)
        await asyncio.sleep(0.3)
        assert w.native[-1] is True and len(w.native) <= seen + 1
        w.server.down = False
        await w.until(lambda: len(w.native) > seen + 2)
        assert w.apis.gangs.version == "v1alpha2" and len(w.watches.all) == 1


# -- kinds of operators that pods wait for -------------------------------------------------------------------

RAY = {"ns/RayCluster/x/u": "RayCluster"}
SELDOM = {"pauses": (600.0, 600.0), "wanted_pause": 0.1, "longest_wait": 0.5}


async def test_a_kind_that_pods_wait_for_is_looked_for_at_once() -> None:
    async with world(SELDOM) as w:
        w.server.has["ray.io"] = ["v1"]
        w.apis.want(RAY)
        await w.until(lambda: "RayCluster" in w.apis.kinds)
        w.apis.want({})
        assert not w.given_up


async def test_a_kind_that_may_not_be_read_is_given_up_at_once() -> None:
    async with world({**SELDOM, "longest_wait": 600.0}) as w:
        w.server.has["ray.io"], w.server.denied = ["v1"], True
        w.apis.want(RAY)
        await w.until(lambda: w.given_up == list(RAY))


async def test_a_kind_that_is_not_there_is_given_up_when_its_time_is_over() -> None:
    async with world(SELDOM) as w:
        began = asyncio.get_running_loop().time()
        w.apis.want(RAY)
        await w.until(lambda: w.given_up == list(RAY))
        assert asyncio.get_running_loop().time() - began >= 0.5
        looks = w.server.looks
        w.apis.want({})
        await asyncio.sleep(0.4)
        assert w.server.looks == looks, "nobody waits"


async def test_pods_that_name_ever_new_objects_do_not_make_it_ask_without_a_pause() -> None:
    async with world({**SELDOM, "wanted_pause": 0.2}) as w:
        looks = w.server.looks
        for number in range(100):
            w.apis.want({f"ns/RayCluster/x{each}/u": "RayCluster" for each in range(number)})
            await asyncio.sleep(0.01)
        assert w.server.looks - looks <= 2 + 100 * 0.05 / 0.2, "100 of them, in a second or some more"


async def test_a_server_that_is_away_gives_nothing_up() -> None:
    async with world(SELDOM) as w:
        w.server.down = True
        w.apis.want(RAY)
        await asyncio.sleep(0.8)
        assert not w.given_up
        w.server.down, w.server.has["ray.io"] = False, ["v1"]
        await w.until(lambda: "RayCluster" in w.apis.kinds)
