"""Packages: has Debian install packages, or unpack one without installing it.

Of several processes that want some at once, on a new machine all workers of a test run, one asks Debian and
the others wait: apt itself would refuse the second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fluence.errors import FluenceError
from fluence.sandbox.folders import locked

_APT = Path("/var/lib/apt")  # locked by us; what apt itself locks is below it
_PATIENCE = "DPkg::Lock::Timeout=300"  # with others: unattended upgrades, an administrator


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str]) -> None:
    """For the set-up of tests, by root."""
    with locked(_APT):
        _update()
        _run(["apt-get", "install", "--yes", "--no-install-recommends", *packages])


def unpack(package: str, folder: Path) -> None:
    """The files of a package, below ``folder``. Nothing is installed, and no root is needed as long as the
    machine's lists of packages are not too old."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise FluenceError(f"no apt-get and dpkg-deb here to get {package} by")
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        try:
            _run(["apt-get", "download", package], cwd=here)
        except FluenceError:
            if not can_install():
                raise
            with locked(_APT):
                _update()
            _run(["apt-get", "download", package], cwd=here)
        (file,) = here.glob("*.deb")
        _run(["dpkg-deb", "--extract", str(file), str(folder)])


def _update() -> None:
    """A mirror that does not answer is no reason to stop: the package may be known, or cached."""
    subprocess.run(["apt-get", "update"], capture_output=True, check=False)


def _run(command: list[str], cwd: Path | None = None) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-o", _PATIENCE] if command[0] == "apt-get" else []
    done = subprocess.run(
        [command[0], *options, *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FluenceError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())[-300:]}")
