"""Traces of a real scheduler, as a collector receives them: OTLP over HTTP, decoded by OpenTelemetry's own
protocol."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from fluence.kube.resource import PODS
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S, Replica, free_port
from tests.integration.schedule.field import Field, field

PHASES = ["gather", "queue", "plan", "bind", "watch"]


class Collector:
    """Keeps the spans that it is sent, by trace."""

    def __init__(self) -> None:
        self.port = free_port()
        self.traces: dict[str, list[Any]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application()
        app.router.add_post("/v1/traces", self._receive)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        try:
            yield
        finally:
            await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            assert names["service.name"] == "fluence"
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.traces.setdefault(span.trace_id.hex(), []).append(span)
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )

    def of(self, job: str) -> dict[str, list[Any]]:
        """The traces whose job this is, by id."""
        return {
            number: spans
            for number, spans in self.traces.items()
            if any(attributes(span).get("fluence.job") == job for span in spans)
        }

    async def trace(self, job: str) -> tuple[str, list[Any]]:
        """The one trace of a job, once all of it has come: a batch may end in the middle of it."""
        found = await eventually(
            lambda: self.of(job),
            lambda found: bool(found) and all(map(is_whole, found.values())),
            what=f"a trace of {job}",
            timeout_s=SOON_S,
        )
        ((number, spans),) = found.items()
        return number, spans


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def is_whole(spans: list[Any]) -> bool:
    """Whether its phases last as long as its root."""
    roots = [span for span in spans if not span.parent_span_id]
    lasted = [each.end_time_unix_nano - each.start_time_unix_nano for each in spans if each.parent_span_id]
    whole = [each.end_time_unix_nano - each.start_time_unix_nano for each in roots]
    return len(roots) == 1 and whole == [sum(lasted)]


def phases(spans: list[Any]) -> list[Any]:
    """All but the root, in the order of their time; they must follow each other without a gap."""
    (root,) = [span for span in spans if not span.parent_span_id]
    found = sorted((each for each in spans if each is not root), key=lambda each: PHASES.index(each.name))
    assert all(each.parent_span_id == root.span_id for each in found)
    at = root.start_time_unix_nano
    for span in found:
        assert span.start_time_unix_nano == at <= span.end_time_unix_nano, span
        at = span.end_time_unix_nano
    assert at == root.end_time_unix_nano
    return found


@contextlib.asynccontextmanager
async def scheduler(f: Field, folder: Path, collector: str) -> AsyncIterator[Replica]:
    flags = ("--traces", collector, "--no-history", "--log-format", "json")
    replica = Replica(f, folder, f.proxy.access, *flags, lease=None)
    try:
        await replica.start()
        await replica.leads()
        yield replica
    finally:
        await replica.end()


def lines(replica: Replica, event: str, **fields: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in replica.said.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event and fields.items() <= line.items()]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # ms, of the SDK


async def test_every_gang_has_one_trace_and_the_log_names_it(kube: Kube, tmp_path: Path) -> None:
    collector = Collector()
    async with collector.serving(), field(kube, 2) as f, f.proxy:
        gang, late, gone = (f"{f.namespace}/{name}" for name in ("gang", "late", "gone"))
        async with scheduler(f, tmp_path / "a", collector.address) as first:
            await f.add_group("gang", 2)
            await f.add(*(f.pod(f"g-{i}", group="gang", cpu="4", runs=600) for i in range(2)))
            number, spans = await collector.trace(gang)
            assert [each.name for each in phases(spans)] == PHASES
            (root,) = [span for span in spans if span.name == "job"]
            known = attributes(root)
            assert (known["fluence.pods"], known["fluence.job.state"]) == (2, "running")
            assert known["k8s.namespace.name"] == f.namespace and root.status.code == 0
            (line,) = lines(first, "starts", job=gang)  # one for the whole gang
            assert line["trace_id"] == number
            homes = await f.homes()
            assert sorted(line["pods"].split("; ")) == sorted(
                f"{node}: {name}" for name, node in homes.items()
            )

            # Jobs that wait: one ends in the queue, the other waits for longer than this scheduler lives.
            for name in ("gone", "late"):
                await f.add_group(name, 2)
                await f.add(*(f.pod(f"{name}-{i}", group=name, cpu="4", runs=600) for i in range(2)))
            await asyncio.gather(f.until_told("gone-0"), f.until_told("late-0"))
            for i in range(2):
                await f.client.delete(PODS, f"gone-{i}", namespace=f.namespace)
            _, spans = await collector.trace(gone)
            (root,) = [span for span in spans if span.name == "job"]
            assert (root.status.code, root.status.message) == (2, "cancelled")
            assert [each.name for each in phases(spans)] in (PHASES[:2], PHASES[:3])
            (told, *_) = lines(first, "waits", group=late)
            assert not collector.of(late)
            first.signal(signal.SIGKILL)
            await first.process.wait()
        async with scheduler(f, tmp_path / "b", collector.address) as second:
            await f.end("g-0", "g-1")
            number, spans = await collector.trace(late)
            assert number == told["trace_id"]
            assert [line["trace_id"] for line in lines(second, "starts", job=late)] == [number]
            gather, *_, plan, _, _ = phases(spans)
            waited = plan.end_time_unix_nano - gather.end_time_unix_nano
            assert gather.end_time_unix_nano - gather.start_time_unix_nano < waited  # also for the first one
            second.signal(signal.SIGTERM)
            assert await second.process.wait() == 0


async def test_a_collector_that_does_not_answer_delays_nothing(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts connections and says nothing; then there is none at all, and then one that works."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector = Collector()
    silent = socket.create_server(("127.0.0.1", collector.port))  # the kernel accepts connections for it
    async with field(kube, 2) as f, f.proxy, scheduler(f, tmp_path / "a", collector.address) as replica:
        await f.add(*(f.pod(f"p-{i}", cpu="100m", runs=600) for i in range(12)))
        await f.until_bound(12)
        await replica.says("traces are not sent")
        silent.close()
        await f.add(*(f.pod(f"q-{i}", cpu="100m", runs=600) for i in range(12)))
        await f.until_bound(24)
        async with collector.serving():
            await f.add(f.pod("last", cpu="100m", runs=600))
            await replica.says("traces are sent again")
            await collector.trace(f"{f.namespace}/pod:last")
        assert replica.said.count("traces are not sent") == 1
        assert "opentelemetry" not in replica.said  # the SDK would say it for each try
        replica.signal(signal.SIGTERM)  # the collector is gone again
        assert await asyncio.wait_for(replica.process.wait(), SOON_S) == 0
