"""A scheduler in a process of its own, as a kubelet runs it: behind a proxy, with a lease of the test's own,
and with a queue policy that a test can make slow."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
import msgspec
import yaml

from fluence.clock import SystemClock
from fluence.kube.access import Access
from fluence.kube.errors import Missing
from fluence.kube.lease import LeaseObject, LeaseTerms
from fluence.kube.resource import LEASES
from fluence.sandbox.sandbox import free_ports
from tests.eventually import SOON_S, eventually
from tests.integration.schedule.field import Field

LEASE = "leader"
# So short that a test can wait for the end of one. A machine that is starved for two seconds loses it.
TERMS = LeaseTerms(duration_s=4.0, renew_s=2.0, retry_s=0.4)
STEADY = LeaseTerms(duration_s=60.0, renew_s=40.0, retry_s=0.4)

# A site's queue policy (docs/queue.md): it keeps the processor busy for as long as a file says, once, then
# does what `easy` does. It holds Python's lock as any cycle does: a sleep would not.
POLICY = """
import os, pathlib, time
from fluence.queue.policy import BUILT_IN

def slow(jobs):
    asked = pathlib.Path(os.environ["SLOW_FILE"])
    if asked.exists():
        end = time.monotonic() + float(asked.read_text())
        asked.rename(asked.with_suffix(".begun"))
        while time.monotonic() < end:
            pass
        asked.with_suffix(".ended").touch()
    BUILT_IN["easy"].run(jobs)
"""


class Replica:
    """One process. ``start`` may be called again when the last one has ended."""

    def __init__(
        self, f: Field, folder: Path, access: Access, *flags: str, lease: LeaseTerms | None = STEADY
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = folder / "log"
        self.slow = folder / "slow"
        self.health, self.metrics = free_port(), free_port()
        self.process: asyncio.subprocess.Process | None = None
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(access)))
        _install_policy(folder / "site")
        self._command = [
            *(sys.executable, "-m", "fluence.cli", "scheduler", "run", "--log-format", "text"),
            *("--kubeconfig", str(kubeconfig), "--scheduler-name", f.name, "--queue-policy", "slow"),
            *("--health-address", f"127.0.0.1:{self.health}"),
            *("--metrics-address", f"127.0.0.1:{self.metrics}"),
            *(_lease_flags(f.namespace, lease) if lease else ["--no-lease"]),
        ]
        self.flags = list(flags)  # the last one of a kind counts

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    async def start(self) -> None:
        path = os.pathsep.join((str(self.folder / "site"), os.environ.get("PYTHONPATH", "")))
        env = {**os.environ, "PYTHONPATH": path, "SLOW_FILE": str(self.slow)}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, *self.flags, stdout=log, stderr=log, env=env
            )

    async def leads(self, times: int = 1) -> None:
        """Wait until it has led so often."""
        await self.says("leads", times)

    async def says(self, text: str, times: int = 1) -> None:
        """Wait until it has said something so often."""

        def so_often(said: str) -> bool:
            assert self.process is not None and self.process.returncode is None, self.said
            return said.count(text) >= times

        await eventually(lambda: self.said, so_often, what=f"it says {text!r}", timeout_s=SOON_S)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def end(self) -> None:
        """Whatever it does, it ends now."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    def make_slow(self, seconds: float) -> None:
        """The next cycle takes so long."""
        self.slow.write_text(str(seconds))

    async def begun(self) -> None:
        """The slow cycle is under way."""
        begun = self.slow.with_suffix(".begun")
        await eventually(begun.exists, what="the slow cycle has begun", timeout_s=SOON_S)

    @property
    def is_slow(self) -> bool:
        return not self.slow.with_suffix(".ended").exists()

    async def ask(self, path: str) -> tuple[int, str]:
        port = self.metrics if path == "/metrics" else self.health
        timeout = aiohttp.ClientTimeout(total=5)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.text()


async def lease_of(f: Field) -> LeaseObject | None:
    """What the server says of who leads."""
    try:
        path = LEASES.path(LEASE, namespace=f.namespace)
        return msgspec.json.decode(await f.client.request("GET", path), type=LeaseObject)
    except Missing:
        return None


def now() -> float:
    """The clock that all processes of the machine share."""
    return SystemClock().monotonic()


def free_port() -> int:
    (port,) = free_ports(1)
    return port


def _lease_flags(namespace: str, terms: LeaseTerms) -> list[str]:
    return [
        *("--lease-name", LEASE, "--lease-namespace", namespace),
        *("--lease-duration", str(terms.duration_s), "--lease-renew", str(terms.renew_s)),
        *("--lease-retry", str(terms.retry_s)),
    ]


def _install_policy(site: Path) -> None:
    """As pip would: a module, and the entry point that names it."""
    info = site / "slow_policy-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (site / "slow_policy.py").write_text(POLICY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-policy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fluence.queue_policies]\nslow = slow_policy:slow\n")


def _kubeconfig(access: Access) -> dict[str, object]:
    user = {} if access.impersonate is None else {"as": access.impersonate}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": access.server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
