"""The releaser: one write per Job, and what its answer means."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fluence import names
from fluence.act.releaser import Releaser
from fluence.kube.client import Client
from fluence.kube.errors import Invalid, KubeError, Missing, ServerFault, Status, Unreachable
from fluence.model.owner import Owner
from fluence.schedule.actions import BindOutcome, Release, ReleaseResult
from fluence.schedule.stand_ins import ReleaseNote
from tests.unit.schedule.test_held import held

NOTE = ReleaseNote("7", '{"start":1}', ((0, "n0"),))
JOB = held("j", 1)
ORDER = Release(JOB, "default/job:j", NOTE)


class Server:
    def __init__(self, error: KubeError | None = None, found: Owner | KubeError = JOB) -> None:
        self.error, self.found = error, found
        self.patches: list[Any] = []

    async def patch(self, resource: Any, name: str, body: Any, **more: Any) -> None:
        self.patches.append((resource.name, name, more["namespace"]))
        if self.error is not None:
            raise self.error

    async def get(self, resource: Any, name: str, *, namespace: str) -> Owner:
        if isinstance(self.found, KubeError):
            raise self.found
        return self.found


async def outcome(server: Server, *, leads: bool = True) -> BindOutcome:
    results: list[ReleaseResult] = []
    releaser = Releaser(cast(Client, server), results.append, held=lambda: leads)
    task = asyncio.create_task(releaser.run())
    releaser.release(ORDER)
    async with asyncio.timeout(5):
        while not results:
            await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    return results[0].outcome


def api(kind: type[Any], code: int) -> KubeError:
    return cast(KubeError, kind("PATCH", Status(code=code, message="no")))


def released(**notes: str) -> Owner:
    return replace(
        JOB, metadata=replace(JOB.metadata, annotations=notes), spec=replace(JOB.spec, suspend=False)
    )


async def test_a_job_is_let_go_by_one_patch() -> None:
    server = Server()
    assert await outcome(server) is BindOutcome.BOUND
    assert server.patches == [("jobs.batch", "j", "default")]


async def test_nothing_is_sent_without_the_lease() -> None:
    server = Server()
    assert await outcome(server, leads=False) is BindOutcome.AGAIN
    assert server.patches == []


@pytest.mark.parametrize(
    ("error", "found", "expected"),
    [
        (api(Missing, 404), JOB, BindOutcome.GONE),
        (api(Invalid, 422), JOB, BindOutcome.AGAIN),
        (api(Invalid, 422), released(), BindOutcome.STALE),
        (api(Invalid, 422), released(**{names.JOBID: "7"}), BindOutcome.BOUND),
        (api(ServerFault, 500), JOB, BindOutcome.AGAIN),
        (Unreachable("cut", sent=True), released(**{names.JOBID: "7"}), BindOutcome.BOUND),
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
