"""What the tests of the installation need: the image of this tree, and helm."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.testing import Kube, needs_package
from tests.integration.deploy.helm import HelmUser

ROOT = Path(__file__).parents[3]
INPUTS = ("src", "examples", "deploy/image", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")


def build_image(out: Path) -> str:
    """`make image`; returns the digest that it says."""
    command = [sys.executable, "-m", "deploy.image", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def inputs_digest() -> str:
    """Of all files that the image is made from."""
    total = hashlib.sha256()
    for name in INPUTS:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


@pytest.fixture(scope="session")
def image() -> Path:
    """The archive of this tree's image, built once for every state of the tree, whoever runs the tests."""
    needs_package("mmdebstrap")
    folder = cache_dir().parent / "image"
    found = folder / f"{inputs_digest()}.tar"
    with locked(folder):  # one worker builds it, the others wait for it
        if not found.exists():
            build_image(found)
            for old in sorted(folder.glob("*.tar"), key=lambda each: each.stat().st_mtime)[:-3]:
                old.unlink()
                old.with_suffix(".spdx.json").unlink(missing_ok=True)
    return found


@pytest.fixture
def user(kube: Kube, tmp_path: Path) -> HelmUser:
    """An administrator in the namespace of the test, on the run's control plane."""
    return HelmUser(kube.sandbox, kube.namespace, kube.version, tmp_path)
