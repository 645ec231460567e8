"""The server of the run knows FluxJobs."""

import asyncio

import pytest

from fluence.kube.client import Client
from fluence.sandbox.sandbox import Sandbox
from tests.integration.controller.doors import serve_flux_jobs


@pytest.fixture(scope="session", autouse=True)
def flux_jobs_are_served(sandbox: Sandbox) -> None:
    async def serve() -> None:
        async with Client(sandbox.access()) as client:
            await serve_flux_jobs(client)

    asyncio.run(serve())
