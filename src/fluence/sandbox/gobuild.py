"""Gobuild: builds the sandbox's programs once, from the Go module proxy, into the cache.

Each release, KWOK and the container runtime is a small Go module in ``gomod`` whose go.mod and go.sum are
committed: nothing is resolved or looked up at build time, and what is downloaded is what was checked. A
program appears in the cache by a rename, so an interrupted build leaves only whole ones, and Go's own cache
makes the next try go on where this one stopped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir, locked
from fluence.sandbox.golang import find_go
from fluence.sandbox.releases import CONTROL_PLANE, KWOK_VERSION, RUNTIME_VERSION, Release

GOMOD = Path(__file__).parent / "gomod"
WORK = "work"
_VERSION = "k8s.io/component-base/version"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CNI = "github.com/containernetworking/plugins/plugins"
_KUBERNETES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in (*CONTROL_PLANE, "kubelet") if name != "etcd"},
}
_KWOK = {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}
_PAUSE = {"pause": "fluence.invalid/pause"}
_RUNTIME = {
    "containerd": f"{_CONTAINERD}/containerd",
    "containerd-shim-runc-v2": f"{_CONTAINERD}/containerd-shim-runc-v2",
    "ctr": f"{_CONTAINERD}/ctr",
    "bridge": f"{_CNI}/main/bridge",
    "loopback": f"{_CNI}/main/loopback",
    "host-local": f"{_CNI}/ipam/host-local",
}
# Snapshotters that need C libraries, or devices that a sandbox has not.
_RUNTIME_TAGS = "no_btrfs,no_devmapper,no_zfs"
# Seconds on two cores with nothing cached, in this order: later programs find most packages compiled.
_EXPECTED = {
    "download": 30,
    "etcd": 60,
    "kube-apiserver": 300,
    "kube-controller-manager": 100,
    "kube-scheduler": 10,
    "kubectl": 30,
    "kubelet": 60,
    "kwok": 110,
    "pause": 5,
    "containerd": 90,
    "containerd-shim-runc-v2": 10,
    "ctr": 10,
    "bridge": 5,
    "loopback": 2,
    "host-local": 2,
}
_BUSY = re.compile(
    r"\b(429|50[0234])\b|Too Many Requests|connection (reset|refused)|i/o timeout|unexpected EOF|TLS hand"
)
_DISK = 7 << 30  # what a first build takes, Go's own cache included
_DISK_AGAIN = 1 << 30  # what the programs themselves take
_PAUSES_S = (5, 15, 30, 60, 120, 120)


class Progress(msgspec.Struct, frozen=True):
    """One step of a build; ``elapsed_s`` and ``expected_s`` are of the whole build."""

    step: str
    elapsed_s: float
    expected_s: float


Report = Callable[[Progress], None]
Tell = Callable[[str], None]


class GoModule(msgspec.Struct, frozen=True):
    """A folder of ``gomod``, the programs that it builds, and where they go."""

    name: str
    packages: dict[str, str]
    target: Path
    stamp: str = ""
    tags: str = ""


def modules(release: Release) -> list[GoModule]:
    """All that a sandbox of this release may need."""
    runtime = cache_dir() / f"containerd-{RUNTIME_VERSION}" / "bin"
    return [
        GoModule(release.module, _KUBERNETES, cache_dir() / release.version / "bin", _stamp(release)),
        GoModule("kwok", _KWOK, cache_dir() / f"kwok-{KWOK_VERSION}" / "bin"),
        GoModule("pause", _PAUSE, runtime),
        GoModule("runtime", _RUNTIME, runtime, tags=_RUNTIME_TAGS),
    ]


def cached(name: str, release: Release) -> Path:
    """Where a program is, or will be once it is built."""
    return next(each.target / name for each in modules(release) if name in each.packages)


def expected_s(names: Sequence[str]) -> float:
    """How long a first build of these takes on two cores."""
    return _expected(names)


def obstacle() -> str | None:
    """Why nothing can be built on this machine, as far as can be told without trying."""
    if not sys.platform.startswith("linux"):
        return f"the sandbox needs Linux, this is {sys.platform}"
    there = next(each for each in (cache_dir(), *cache_dir().parents) if each.exists())
    if not os.access(there, os.W_OK):
        return f"{there} is not writable: set XDG_CACHE_HOME"
    begun = Path(os.environ.get("GOCACHE") or cache_dir().parents[1] / "go-build").exists()
    free, needed = shutil.disk_usage(there).free, _DISK_AGAIN if begun else _DISK
    if free < needed:
        return f"a build needs {needed >> 30} GB of disk in {there}, and {free / (1 << 30):.1f} GB are free"
    return None


def build(release: Release, names: Sequence[str], report: Report) -> None:
    """Build these programs, those that are missing: the release's, KWOK, then the container runtime."""
    steps = [(module, [name for name in names if name in module.packages]) for module in modules(release)]
    began = time.monotonic()
    expected = sum(_expected(_missing(module.target, wanted)) for module, wanted in steps)

    def tell(step: str) -> None:
        report(Progress(step, time.monotonic() - began, expected))

    for module, wanted in steps:
        if wanted:
            _build(module, wanted, tell)


def _missing(folder: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not (folder / name).exists()]


def _expected(names: Sequence[str]) -> float:
    return sum(_EXPECTED[name] for name in ("download", *names)) if names else 0.0


def _stamp(release: Release) -> str:
    numbers = release.version.lstrip("v").split(".")
    stamp = {
        "gitVersion": release.version,
        "gitMajor": numbers[0],
        "gitMinor": numbers[1],
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return " ".join(f"-X {_VERSION}.{key}={value}" for key, value in stamp.items())


def _build(module: GoModule, names: Sequence[str], tell: Tell) -> None:
    folder = module.target
    # Two at once: the second waits, then finds the work done.
    with locked(folder, waiting=lambda: tell("waiting for another build to finish")):
        missing = _missing(folder, names)
        if not missing:
            return
        go = find_go(tell)
        # A copy, so that nothing is ever written into an installed package.
        with tempfile.TemporaryDirectory(prefix="fluence-gomod-", ignore_cleanup_errors=True) as copy:
            shutil.copytree(GOMOD / module.name, copy, dirs_exist_ok=True)
            (Path(copy) / WORK).mkdir()
            packages = [module.packages[name] for name in missing]
            options = ["-tags", module.tags] if module.tags else []
            # Loading the packages downloads exactly the modules that they need.
            _go(go, Path(copy), ["list", *options, "-deps", *packages], "downloading Go modules", tell)
            # All at once: while one is linked, on one core, the next is compiled.
            options += ["-trimpath", "-ldflags", f"-s -w {module.stamp}", "-o", f"{copy}/{WORK}/"]
            what = missing[0] if len(missing) == 1 else f"{len(missing)} programs ({missing[0]}, …)"
            _go(go, Path(copy), ["build", *options, *packages], f"building {what}", tell)
            for name in missing:
                part = folder / f".{name}.part"
                shutil.move(Path(copy, WORK, _output(module.packages[name])), part)
                part.replace(folder / name)


def _output(package: str) -> str:
    """What go calls the program of a package: its last word that is no version."""
    *rest, last = package.split("/")
    return rest[-1] if re.fullmatch(r"v\d+", last) else last


def _go(go: Path, folder: Path, arguments: list[str], step: str, tell: Tell) -> None:
    """Run go, tell every second that it still runs, and try again when the proxy is busy."""
    env = dict(os.environ)
    env.update(
        CGO_ENABLED="0",
        GOTOOLCHAIN="local",  # never download another Go
        GOFLAGS="-mod=readonly",
        GOSUMDB="off",  # go.sum is committed: there is nothing to look up
        GOWORK="off",
        GOTMPDIR=str(folder / WORK),  # a go that is interrupted leaves hundreds of megabytes there
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
                start_new_session=True,  # so that Ctrl-C ends go and its compilers once, by us
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
