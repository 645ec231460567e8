"""Program: finds helm 3: on PATH, in the cache, or else built once from the Go module proxy (3 minutes)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.programs import find_go

MODULE = Path(__file__).parent / "gomod"
PACKAGE = "helm.sh/helm/v3/cmd/helm"
NEEDED = (3, 14)
TRIES = 4  # the proxy may be busy; what was downloaded stays


def helm_version() -> str:
    """The version that go.mod names."""
    found = re.search(r"helm\.sh/helm/v3 (v\S+)", (MODULE / "go.mod").read_text())
    assert found is not None
    return found[1]


def find_helm() -> Path:
    on_path = shutil.which("helm")
    if on_path is not None and _fits(Path(on_path)):
        return Path(on_path)
    folder = cache_dir() / f"helm-{helm_version()}"
    with locked(folder):
        if not (folder / "helm").exists():
            sys.stderr.write(f"building helm {helm_version()} into {folder}: about 3 minutes, once\n")
            _build(folder)
    return folder / "helm"


def _fits(program: Path) -> bool:
    said = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    return found is not None and int(found[1]) == NEEDED[0] and int(found[2]) >= NEEDED[1]


def _build(folder: Path) -> None:
    go = find_go(lambda text: None)
    env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly"}
    env |= {"GOSUMDB": "off", "GOWORK": "off"}  # go.sum is committed: there is nothing to look up
    flags = f"-s -w -X helm.sh/helm/v3/internal/version.version={helm_version()}"
    part = folder / ".helm.part"
    with tempfile.TemporaryDirectory(prefix="fluence-helm-") as copy:
        for name in ("go.mod", "go.sum", "tools.go"):
            shutil.copy(MODULE / name, copy)
        for _ in range(TRIES):
            command = [str(go), "build", "-trimpath", "-ldflags", flags, "-o", str(part), PACKAGE]
            done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                part.replace(folder / "helm")
                return
    raise FluenceError(f"building helm failed: {' '.join(done.stderr.split())[-500:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{find_helm()}\n")
