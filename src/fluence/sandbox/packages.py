"""Packages: installs Debian packages, or unpacks one without installing it.

If several processes need packages at once, such as the workers of a test run on a new machine, one calls apt
and the others wait: apt itself would refuse the second.
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

_APT = Path("/var/lib/apt")  # locked by us; apt's own locks are below it
_LOCK_TIMEOUT = "DPkg::Lock::Timeout=300"  # for other users of apt: unattended upgrades, an administrator


def can_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(packages: Sequence[str]) -> None:
    """Install packages as root, for the set-up of tests."""
    with locked(_APT):
        _update()
        _run(["apt-get", "install", "--yes", "--no-install-recommends", *packages])


def unpack(package: str, folder: Path) -> None:
    """Unpack the files of a package into ``folder``. Nothing is installed, and root is only needed if the
    machine's package lists are too old."""
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
    """Update the package lists. An unreachable mirror is not an error: the package may be known or cached."""
    subprocess.run(["apt-get", "update"], capture_output=True, check=False)


def _run(command: list[str], cwd: Path | None = None) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-o", _LOCK_TIMEOUT] if command[0] == "apt-get" else []
    done = subprocess.run(
        [command[0], *options, *command[1:]], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise FluenceError(f"{' '.join(command)} failed: {' '.join(done.stderr.split())[-300:]}")
