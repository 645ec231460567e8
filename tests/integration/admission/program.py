"""The webhook as a process of its own, as the chart starts it, which the server calls at a port."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from fluence.admission.certificates import WEBHOOK_CONFIGURATIONS
from fluence.admission.manifests import webhook_configuration
from fluence.kube.client import Client
from fluence.sandbox.sandbox import Sandbox
from tests.eventually import eventually
from tests.integration.admission.field import Field, gone, is_effective
from tests.integration.live.replica import SOON_S, free_port


def _unverified() -> ssl.SSLContext:
    """As a kubelet asks."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


UNVERIFIED = _unverified()


@dataclass(frozen=True)
class Program:
    """`fluence webhook run`, which the server calls at a port of this machine."""

    process: asyncio.subprocess.Process
    port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def get(self, path: str) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}{path}", ssl=UNVERIFIED) as answer,
        ):
            return answer.status, await answer.text()

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}{path}", data=io.BytesIO(body), ssl=UNVERIFIED) as answer,
        ):
            return answer.status, await answer.read()

    def peak_mib(self) -> int:
        """The most memory that it had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(each.split()[1]) for each in lines if each.startswith("VmHWM")) >> 10

    async def ended(self) -> int:
        async with asyncio.timeout(SOON_S):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def program(
    sandbox: Sandbox, client: Client, at: Field, delay: str, *, log: Path | None = None
) -> AsyncIterator[Program]:
    """It answers, and is called; what it says goes to a file."""
    port = free_port()
    places = ("--address", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--parameters-namespace", at.plain)
    with contextlib.nullcontext() if log is None else log.open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "fluence.cli",
                "webhook",
                "run",
                "--kubeconfig",
                str(sandbox.at.kubeconfig()),
            ),
            *("--configuration", at.run, *places, "--doors", "namespaces", "--shutdown-delay", delay),
            stderr=None if said is None else said.fileno(),
        )
    found = Program(process, port)
    body = webhook_configuration(at.options, client={"url": found.url}, name=at.run)
    await client.create(WEBHOOK_CONFIGURATIONS, body)
    try:
        await eventually(lambda: is_effective(client, at), timeout_s=SOON_S, what="the webhook is called")
        yield found
    finally:
        await client.delete(WEBHOOK_CONFIGURATIONS, at.run)
        await gone(client, at)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
