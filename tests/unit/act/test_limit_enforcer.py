"""What is sent to end pods: a deadline that has passed, or evictions; once per order, with the lease only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from aiohttp import web

from fluence.act.orders import EndResult, LimitEnforcer
from fluence.kube.client import Client
from fluence.model.owner import Owner
from fluence.schedule.overruns import EndOverrun
from tests.unit.kube.serving import serving, until
from tests.unit.schedule import kit

JOB = kit.owner("train", parallelism=1, completions=1)
PODS = tuple(kit.ranks(3))


def job(*, started: float | None = 100.0, uid: str = JOB.metadata.uid, **spec: Any) -> dict[str, Any]:
    """A Job that was started so many seconds ago."""
    status = {}
    if started is not None:
        at = datetime.now(UTC) - timedelta(seconds=started)
        status["startTime"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    meta = {"name": "train", "namespace": "default", "uid": uid, "resourceVersion": "7"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec, "status": status}


class Server:
    """Answers with this Job, and with this code to whatever is written."""

    def __init__(self, body: dict[str, Any] | None = None, code: int = 201) -> None:
        self.body, self.code = body, code
        self.sent: list[tuple[str, str, Any]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(self.body)
        self.sent.append((request.method, request.path, msgspec.json.decode(await request.read())))
        told = {"kind": "Status", "message": "not now", "code": self.code}
        return web.json_response(self.body or told if self.code < 300 else told, status=self.code)


async def carry_out(
    server: Server, owner: Owner | None, *, held: Callable[[], bool] = lambda: True
) -> list[EndResult]:
    results: list[EndResult] = []
    async with serving(server.handle) as access, Client(access) as client:
        enforcer = LimitEnforcer(client, results.append, held=held)
        task = asyncio.create_task(enforcer.run())
        try:
            enforcer.end(EndOverrun("default/job:train", PODS, owner, 1000, 5000))
            await until(lambda: not enforcer.backlog)
        finally:
            task.cancel()
            await asyncio.wait({task})
    return results


async def test_a_job_gets_a_deadline_that_has_passed() -> None:
    server = Server(job(), 200)
    (result,) = await carry_out(server, JOB)
    assert (result.outcome, result.target) == ("ended", JOB)
    ((method, path, patch),) = server.sent
    assert (method, path) == ("PATCH", "/apis/batch/v1/namespaces/default/jobs/train")
    assert patch["metadata"] == {"uid": JOB.metadata.uid, "resourceVersion": "7"}
    assert patch["spec"] == {"activeDeadlineSeconds": pytest.approx(100, abs=60)}


@pytest.mark.parametrize(
    "there",
    [
        job(activeDeadlineSeconds=100),
        job(activeDeadlineSeconds=0),
        job(started=None),
        job(uid="made-anew"),
    ],
    ids=["it has passed", "at once", "it is suspended", "another Job"],
)
async def test_nothing_is_sent_where_a_deadline_would_be_longer_or_of_no_use(
    there: dict[str, Any],
) -> None:
    server = Server(there)
    assert await carry_out(server, JOB) == [] and server.sent == []


async def test_a_deadline_that_is_further_away_is_brought_forward() -> None:
    server = Server(job(activeDeadlineSeconds=1000), 200)
    (result,) = await carry_out(server, JOB)
    assert result.outcome == "ended" and server.sent[0][2]["spec"]["activeDeadlineSeconds"] < 200


async def test_other_pods_are_evicted_each_by_its_uid() -> None:
    server = Server()
    results = await carry_out(server, None)
    assert [each.outcome for each in results] == ["ended"] * 3
    assert [path for _, path, _ in server.sent] == [
        f"/api/v1/namespaces/default/pods/rank-{number}/eviction" for number in range(3)
    ]
    (_, _, first), *_ = server.sent
    assert first["deleteOptions"] == {"preconditions": {"uid": PODS[0].metadata.uid}}
    assert first["kind"] == "Eviction" and first["apiVersion"] == "policy/v1"


@pytest.mark.parametrize(
    ("code", "outcomes"),
    [(429, ["refused"] * 3), (500, ["failed"] * 3), (403, ["failed"] * 3), (404, []), (409, [])],
)
async def test_what_is_not_carried_out_is_told_and_not_repeated(code: int, outcomes: list[str]) -> None:
    server = Server(code=code)
    results = await carry_out(server, None)
    assert [each.outcome for each in results] == outcomes
    assert all("not now" in each.error for each in results)
    assert len(server.sent) == 3, "the scheduler gives the order again, after a while"


async def test_nothing_is_sent_without_the_lease() -> None:
    server = Server(job())
    assert await carry_out(server, JOB, held=lambda: False) == []
    assert await carry_out(server, None, held=lambda: False) == []
    left = iter([True, False, False])
    await carry_out(server, None, held=lambda: next(left))
    assert len(server.sent) == 1
