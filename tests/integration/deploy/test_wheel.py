"""The wheel of this tree, installed in an empty folder: it serves the page without the repository."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import aiohttp
import pytest
from deploy.image.debian import CannotBuild
from deploy.image.python import ROOT, wheel

from fluence.web import page
from fluence.web.in_process import SnapshotView
from tests.browser import browser, reader
from tests.needs import lacks
from tests.unit.web.field import ALL, Field, gang

STATIC = ROOT / "src/fluence/web/static"
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return wheel(tmp_path_factory.mktemp("wheel"), EPOCH)
    except CannotBuild as error:
        if "to install build dependencies" in str(error):
            lacks("a package index")
        raise


async def test_an_installed_wheel_serves_the_page(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        packed = {
            name.removeprefix("fluence/web/static/"): archive.read(name)
            for name in archive.namelist()
            if name.startswith("fluence/web/static/")
        }
    assert packed == {file.name: file.read_bytes() for file in STATIC.iterdir()}

    installed = tmp_path / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*command, "--target", installed, built], check=True, capture_output=True)
    field = Field(nodes=1)
    for name in ("first", "second"):
        field.submit(gang(name, 1))
    saved = tmp_path / "saved.json"
    saved.write_bytes(await page.save(SnapshotView(field.snapshot, ALL)))

    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    env["PYTHONPATH"] = str(installed)  # before the packages of the environment, which has the repository
    where = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import fluence.web; print(fluence.web.__file__)"),
        stdout=asyncio.subprocess.PIPE,
        env=env,
        cwd=tmp_path,
    )
    assert Path((await where.communicate())[0].decode().strip()).is_relative_to(installed)
    served = await asyncio.create_subprocess_exec(
        *(installed / "bin" / "fluence", "web", "--no-open", "--snapshot", saved),
        stdout=asyncio.subprocess.PIPE,
        env=env,
        cwd=tmp_path,
    )
    try:
        assert served.stdout is not None
        line = await asyncio.wait_for(served.stdout.readline(), 60)
        address = line.decode().split()[0]
        async with aiohttp.ClientSession() as session:
            for name, content in packed.items():
                async with session.get(f"{address}{name}") as answer:
                    assert (answer.status, await answer.read()) == (200, content), name
        async with browser() as started, reader(started) as shown:
            await shown.open(address, "queue")
            assert [row[1] for row in await shown.rows("Jobs")] == ["physics/second"]
            assert shown.faults == []
        served.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(served.wait(), 60) in (0, 130)
    finally:
        if served.returncode is None:
            served.kill()
            await served.wait()
