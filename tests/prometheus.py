"""A real Prometheus for tests: Debian's package, unpacked into the cache; nothing is installed."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.images import unpack
from fluence.sandbox.sandbox import free_ports
from tests.eventually import eventually
from tests.needs import lacks


def find(program: str) -> Path:
    """``prometheus`` or ``promtool``."""
    on_path = shutil.which(program)
    if on_path is not None:
        return Path(on_path)
    folder = cache_dir() / "prometheus"
    path = folder / "usr" / "bin" / program
    with locked(folder):
        if not path.exists():
            try:
                unpack("prometheus", folder)
            except FluenceError:
                lacks("Prometheus")
    return path


def check_rules(rules: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(rules, file)
        file.flush()
        command = [find("promtool"), "check", "rules", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # type: ignore[arg-type]
        assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Prometheus:
    """A server that reads metrics every two seconds and judges rules every second."""

    port: int
    session: aiohttp.ClientSession

    @classmethod
    @contextlib.asynccontextmanager
    async def run(
        cls, folder: Path, rules: dict[str, Any], targets: dict[str, str]
    ) -> AsyncIterator[Prometheus]:
        """``targets``: addresses by the name of their job."""
        program = find("prometheus")
        config = {
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": [address]}]}
                for job, address in targets.items()
            ],
        }
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        (port,) = free_ports(1)
        with (folder / "log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                str(program),
                *(f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"),
                f"--web.listen-address=127.0.0.1:{port}",
                stdout=log,
                stderr=log,
            )
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
                server = cls(port, session)
                await eventually(server._ready, True, what="Prometheus is ready")
                yield server
        finally:
            process.kill()
            await process.wait()

    async def _ready(self) -> bool:
        try:
            async with self.session.get(f"http://127.0.0.1:{self.port}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now; an expression that is wrong fails the test."""
        address = f"http://127.0.0.1:{self.port}/api/v1/query"
        async with self.session.get(address, params={"query": expression}) as answer:
            document = await answer.json()
            assert document["status"] == "success", (expression, document)
            result: list[dict[str, Any]] = document["data"]["result"]
            return result

    async def firing(self) -> set[str]:
        series = await self.query('ALERTS{alertstate="firing"}')
        return {each["metric"]["alertname"] for each in series}

    async def fires(self, alert: str, *, timeout_s: float = 300.0) -> None:
        await eventually(self.firing, lambda now: alert in now, what=f"{alert} fires", timeout_s=timeout_s)
