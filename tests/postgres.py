"""A real PostgreSQL for tests: Debian's package, in a directory of its own, never as root.

It is installed where it is missing and we may; else the tests that need it are skipped by name, and CI
refuses such a skip.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.sandbox import free_ports
from tests.needs import lacks

_NAMES = count(1)


def _programs() -> Path | None:
    """The folder with initdb and the server."""
    on_path = shutil.which("initdb")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path is not None else None


def _require() -> Path:
    if _programs() is None and os.getuid() == 0 and shutil.which("apt-get") is not None:
        with locked(cache_dir().parent / "apt"):
            if _programs() is None:
                subprocess.run(["apt-get", "update", "--quiet"], check=False, capture_output=True)
                command = ["apt-get", "install", "--yes", "--no-install-recommends", "postgresql"]
                subprocess.run(command, check=False, capture_output=True)
    found = _programs()
    if found is None:
        lacks("PostgreSQL")
    return found


@dataclass
class PostgresServer:
    """A server on a port of its own; tests may kill it, and start it again."""

    programs: Path
    folder: Path
    port: int
    user: str | None = None  # whom it runs as, if we are root
    _env: dict[str, str] = field(default_factory=lambda: {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"})

    @classmethod
    def make(cls, folder: Path) -> PostgresServer:
        programs = _require()
        user = None
        if os.getuid() == 0:
            user = "postgres" if any(each.pw_name == "postgres" for each in pwd.getpwall()) else "nobody"
            shutil.chown(folder, user)
        (port,) = free_ports(1)
        server = cls(programs, folder, port, user)
        server._call("initdb", "-D", str(folder / "data"), "-A", "trust", "-U", "fluence", "--no-sync")
        return server

    def start(self) -> None:
        options = f"-k {self.folder} -p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._call("pg_ctl", *self._data, "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def kill(self) -> None:
        """At once, as a crash would."""
        self._call("pg_ctl", *self._data, "-m", "immediate", "-w", "stop", check=False)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://fluence@127.0.0.1:{self.port}/{database}"

    def database(self) -> str:
        """The URL of a new database."""
        name = f"history_{next(_NAMES)}"
        asyncio.run(self.execute(f"CREATE DATABASE {name}"))
        return self.url(name)

    async def execute(self, statement: str) -> None:
        import asyncpg

        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    @property
    def _data(self) -> tuple[str, str]:
        return "-D", str(self.folder / "data")

    def _call(self, program: str, *arguments: str, check: bool = True) -> None:
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            user=self.user,
            cwd=self.folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=120,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{program}: {done.stdout}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="fluence-postgres-"))
    try:
        server = PostgresServer.make(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
