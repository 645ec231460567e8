import asyncio

import msgspec
from aiohttp import web

from fluence.clock import ManualClock
from fluence.kube.client import Client
from fluence.kube.errors import ONCE
from fluence.kube.events import Recorder, Ref, clip
from tests.unit.kube.serving import serving, status

POD = Ref("Pod", "a", "ns", "u", "v1")


class Sink:
    """Keeps events as the API server does: created once, then patched."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, object]] = {}
        self.writes = 0
        self.refuse = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.writes += 1
        if self.refuse:
            return status(self.refuse, "Forbidden", "cannot create")
        body = msgspec.json.decode(await request.read())
        if request.method == "POST":
            assert "/namespaces/ns/" in request.path
            self.events[body["metadata"]["name"]] = body
            return web.json_response(body, status=201)
        name = request.path.rsplit("/", 1)[1]
        if name not in self.events:
            return status(404, "NotFound")
        self.events[name].update(body)
        return web.json_response(self.events[name])


def say(recorder: Recorder, note: str = "3 of 40 nodes fit") -> None:
    recorder.record(POD, kind="Warning", reason="FailedScheduling", action="Scheduling", note=note)


async def test_the_same_thing_said_often_is_one_event_with_a_series() -> None:
    sink, clock = Sink(), ManualClock()
    async with serving(sink) as access, Client(access) as client:
        recorder = Recorder(client, controller="fluence", instance="f-1", clock=clock)
        for _ in range(100):
            say(recorder)
        await recorder.flush()
        (event,) = sink.events.values()
        assert event["regarding"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "a",
            "namespace": "ns",
            "uid": "u",
        }
        assert (event["type"], event["reportingController"]) == ("Warning", "fluence")
        assert event["series"]["count"] == 100
        assert sink.writes == 1
        say(recorder)
        await recorder.flush()
        assert event["series"]["count"] == 101
        sink.events.clear()  # the server forgets events after an hour
        say(recorder)
        await recorder.flush()
        assert [each["series"]["count"] for each in sink.events.values()] == [102]


async def test_versions_of_one_object_are_one_series_about_the_first() -> None:
    sink, clock = Sink(), ManualClock()
    async with serving(sink) as access, Client(access) as client:
        recorder = Recorder(client, controller="fluence", instance="f-1", clock=clock)
        for version in ("7", "8"):
            about = msgspec.structs.replace(POD, resource_version=version)
            recorder.record(
                about, kind="Warning", reason="FailedScheduling", action="Scheduling", note="busy"
            )
        await recorder.flush()
        (event,) = sink.events.values()
        assert (event["regarding"]["resourceVersion"], event["series"]["count"]) == ("7", 2)


async def test_one_object_cannot_flood_and_the_queue_is_bounded() -> None:
    sink, clock = Sink(), ManualClock()
    async with serving(sink) as access, Client(access) as client:
        recorder = Recorder(client, controller="fluence", instance="f-1", clock=clock, per_object=5, queue=7)
        for index in range(50):
            say(recorder, f"note {index}")
        for index in range(50):
            other = Ref("Pod", f"p{index}", "ns", "", "v1")
            recorder.record(other, reason="Scheduled", action="Binding", note="on n1")
        await recorder.flush()
    assert sink.writes == 7
    assert recorder.dropped == 45 + 48


async def test_writes_keep_to_the_rate() -> None:
    sink = Sink()
    async with serving(sink) as access, Client(access) as client:
        recorder = Recorder(client, controller="fluence", instance="f-1", rate=20, burst=2)
        task = asyncio.create_task(recorder.run())
        for index in range(40):
            other = Ref("Pod", f"p{index}", "ns", "", "v1")
            recorder.record(other, reason="Scheduled", action="Binding", note="on n1")
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait({task})
    assert 5 <= sink.writes <= 13


async def test_a_refusal_is_counted_and_never_raised() -> None:
    sink = Sink()
    sink.refuse = 403
    async with serving(sink) as access, Client(access, retry=ONCE) as client:
        recorder = Recorder(client, controller="fluence", instance="f-1")
        say(recorder)
        await recorder.flush()
    assert recorder.failed == 1


def test_notes_are_cut_between_characters() -> None:
    assert clip("short", 1024) == "short"
    cut = clip("ü" * 1000, 1024)
    assert len(cut.encode()) <= 1024
    assert cut.endswith("…")
