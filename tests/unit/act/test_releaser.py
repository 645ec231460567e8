"""The releaser: one write per Job, and what its answer means."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.act.binder import Releaser
from fluence.clock import ManualClock
from fluence.kube.client import Client
from fluence.kube.errors import Invalid, KubeError, Missing, ServerFault, Status, Unreachable
from fluence.model.grant import ReleaseNote
from fluence.model.owner import Owner
from fluence.schedule.events import BindOutcome, Release, ReleaseResult
from tests.unit.schedule.test_held import held

NOTE = ReleaseNote("7", '{"start":1}', ((0, "n0"),), 1)
JOB = held("j", 1)
ORDER = Release(JOB, "default/job:j", NOTE)


class Server:
    """``at_once``: the first write fails, which says what the Job is given."""

    def __init__(
        self, error: KubeError | None = None, found: Owner | KubeError = JOB, *, at_once: bool = False
    ) -> None:
        self.error, self.found, self.at_once = error, found, at_once
        self.patches: list[Any] = []

    @property
    def clock(self) -> ManualClock:
        return ManualClock(1_000_000.5)

    async def patch(self, resource: Any, name: str, body: Any, **more: Any) -> Owner:
        self.patches.append((resource.name, name, more.get("subresource", ""), body))
        if self.error is not None and (not more.get("subresource") or self.at_once):
            raise self.error
        return JOB

    async def get(self, resource: Any, name: str, *, namespace: str) -> Owner:
        if isinstance(self.found, KubeError):
            raise self.found
        return self.found


async def outcome(server: Server, *, leads: bool = True) -> BindOutcome:
    results: list[ReleaseResult] = []
    releaser = Releaser(cast(Client, server), results.append, held=lambda: leads)
    task = asyncio.create_task(releaser.run())
    releaser.release(ORDER)
    async with asyncio.timeout(120):
        while not results:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    return results[0].outcome


def api(kind: type[Any], code: int) -> KubeError:
    return cast(KubeError, kind("PATCH", Status(code=code, message="no")))


RELEASED = ORDER.carried_out(JOB)
BY_ITS_USER = replace(RELEASED, status=JOB.status)  # its annotations say the same


async def test_a_job_is_released_once_its_status_says_what_it_has() -> None:
    server = Server()
    assert await outcome(server) is BindOutcome.BOUND
    (first, *_, said), (second, *_, patch) = server.patches
    assert first == second == "jobs.batch"
    assert [each[2] for each in server.patches] == ["status", ""]
    (condition,) = said["status"]["conditions"]
    assert condition["type"] == names.GRANTED and condition["lastTransitionTime"] == "1970-01-12T13:46:40Z"
    assert {"op": "replace", "path": "/spec/suspend", "value": False} in patch


async def test_nothing_is_sent_without_the_lease() -> None:
    server = Server()
    assert await outcome(server, leads=False) is BindOutcome.AGAIN
    assert server.patches == []


@pytest.mark.parametrize(
    ("error", "found", "expected"),
    [
        (api(Missing, 404), JOB, BindOutcome.GONE),
        (api(Invalid, 422), JOB, BindOutcome.AGAIN),
        (api(Invalid, 422), BY_ITS_USER, BindOutcome.STALE),
        (api(Invalid, 422), RELEASED, BindOutcome.BOUND),
        (api(ServerFault, 500), JOB, BindOutcome.AGAIN),
        (Unreachable("cut", sent=True), RELEASED, BindOutcome.BOUND),
        (Unreachable("cut", sent=True), api(Missing, 404), BindOutcome.GONE),
        (Unreachable("cut", sent=True), Unreachable("cut", sent=False), BindOutcome.AGAIN),
        (
            api(Invalid, 422),
            replace(JOB, metadata=replace(JOB.metadata, uid="another")),
            BindOutcome.GONE,
        ),
    ],
)
async def test_the_job_itself_says_what_a_refusal_or_a_lost_answer_means(
    error: KubeError, found: Owner | KubeError, expected: BindOutcome
) -> None:
    assert await outcome(Server(error, found)) is expected
