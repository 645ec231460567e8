"""Gobuild: builds the control plane's programs once, from the Go module proxy, into the cache.

Each release is a small Go module in ``gomod`` whose go.mod and go.sum are committed: nothing is resolved or
looked up at build time, and what is downloaded is what was checked. A program appears in the cache by a
rename, so an interrupted build leaves only whole ones, and Go's own cache makes the next try go on where
this one stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.golang import find_go
from fluence.sandbox.releases import CONTROL_PLANE, KWOK_VERSION, Release

GOMOD = Path(__file__).parent / "gomod"
_VERSION = "k8s.io/component-base/version"
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kwok": "sigs.k8s.io/kwok/cmd/kwok",
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in CONTROL_PLANE if name != "etcd"},
}
# Seconds on two cores with nothing cached; later programs find most packages compiled.
_EXPECTED = {
    "download": 60,
    "kube-apiserver": 330,
    "kube-controller-manager": 80,
    "kube-scheduler": 15,
    "kubectl": 45,
    "etcd": 15,
    "kwok": 100,
}
_BUSY = re.compile(
    r"\b(429|50[0234])\b|Too Many Requests|connection (reset|refused)|i/o timeout|unexpected EOF|TLS hand"
)
_PAUSES_S = (5, 15, 30, 60, 120, 120)


class Progress(msgspec.Struct, frozen=True):
    """One step of a build; ``elapsed_s`` and ``expected_s`` are of the whole build."""

    step: str
    elapsed_s: float
    expected_s: float


Report = Callable[[Progress], None]


def bin_dir(release: Release) -> Path:
    return cache_dir() / release.version / "bin"


def kwok_dir() -> Path:
    return cache_dir() / f"kwok-{KWOK_VERSION}" / "bin"


def build_release(release: Release, names: tuple[str, ...], report: Report) -> None:
    """Build these programs of one release, those that are missing."""
    numbers = release.version.lstrip("v").split(".")
    stamp = {
        "gitVersion": release.version,
        "gitMajor": numbers[0],
        "gitMinor": numbers[1],
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    flags = " ".join(f"-X {_VERSION}.{key}={value}" for key, value in stamp.items())
    _build(GOMOD / release.module, bin_dir(release), names, flags, report)


def build_kwok(report: Report) -> None:
    _build(GOMOD / "kwok", kwok_dir(), ("kwok",), "", report)


def _build(module: Path, folder: Path, names: tuple[str, ...], flags: str, report: Report) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with locked(folder):  # two at once: the second waits, then finds the work done
        missing = [name for name in names if not (folder / name).exists()]
        if not missing:
            return
        expected = _EXPECTED["download"] + sum(_EXPECTED[name] for name in missing)

        def tell(step: str) -> None:
            report(Progress(step, time.monotonic() - began, expected))

        go = find_go(tell)
        # A copy, so that nothing is ever written into an installed package.
        with tempfile.TemporaryDirectory(prefix="fluence-gomod-") as copy:
            for name in ("go.mod", "go.sum", "tools.go"):
                shutil.copy(module / name, copy)
            packages = [_PACKAGES[name] for name in missing]
            # Loading the packages downloads exactly the modules that they need.
            _go(go, Path(copy), ["list", "-deps", *packages], "downloading Go modules", tell)
            for name in missing:
                part = folder / f".{name}.part"
                command = [
                    "build",
                    "-trimpath",
                    "-ldflags",
                    f"-s -w {flags}",
                    "-o",
                    str(part),
                    _PACKAGES[name],
                ]
                _go(go, Path(copy), command, f"building {name}", tell)
                part.replace(folder / name)


def _go(go: Path, folder: Path, arguments: list[str], step: str, tell: Callable[[str], None]) -> None:
    """Run go, tell every second that it still runs, and try again when the proxy is busy."""
    env = dict(os.environ)
    env.update(
        CGO_ENABLED="0",
        GOTOOLCHAIN="local",  # never download another Go
        GOFLAGS="-mod=readonly",
        GOSUMDB="off",  # go.sum is committed: there is nothing to look up
        GOWORK="off",
    )
    for pause in (*_PAUSES_S, None):
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [go, *arguments],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,  # so that Ctrl-C can end go and its compilers, in that order
            )
            try:
                while True:
                    tell(step)
                    try:
                        process.wait(timeout=1.0)
                        break
                    except subprocess.TimeoutExpired:
                        continue
            except BaseException:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                raise
            if process.returncode == 0:
                return
            output.seek(0)
            lines = output.read().decode("utf-8", "replace").splitlines()
        said = [line for line in lines if not line.startswith("go: downloading")]
        if pause is None or not _BUSY.search("\n".join(said)):
            why = " ".join(" ".join(said[-6:]).split())[:600] or "no message"
            raise FluenceError(f"{step} failed: {why}")
        for left in range(pause, 0, -1):
            tell(f"{step}: the module proxy is busy, again in {left} s")
            time.sleep(1)
