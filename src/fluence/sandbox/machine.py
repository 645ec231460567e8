"""Machine: whether this machine can have real nodes and, if not, what is missing and how to get it.

Everything is tried in temporary namespaces: nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir
from fluence.sandbox.realnode import hidden_by

PACKAGES = {
    "runc": "runc",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}
_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # a user's PATH may lack sbin
_NAMESPACES = ["unshare", "--fork", "--pid", "--mount", "--net", "--uts", "--ipc", "--mount-proc"]
_DEVICES = "ip link add b0 type bridge && ip link add v0 type veth peer name v1"


class Machine(msgspec.Struct, frozen=True):
    """What this machine offers to real nodes."""

    runc: str
    cgroups: int  # 1 or 2
    snapshotter: str  # of containerd


def look(folder: Path) -> Machine:
    """What this machine offers to a sandbox in this directory. Raises an error that names everything
    missing."""
    missing = lacking(folder)
    if missing:
        raise FluenceError("this machine cannot have real nodes: " + "; ".join(missing))
    runc = shutil.which("runc", path=_PATH)
    assert runc is not None
    return Machine(runc, cgroup_version(), "overlayfs" if _has_overlay(folder) else "native")


def lacking(folder: Path) -> list[str]:
    """Everything that is missing, each with its cure; empty if real nodes can run."""
    if not sys.platform.startswith("linux"):
        return [f"they need Linux, this is {sys.platform}"]
    problems = []
    if os.geteuid() != 0:
        problems.append("only root can make them (sudo, or `--nodes` alone for simulated ones)")
    packages = missing_packages()
    if packages:
        problems.append(f"{', '.join(packages)} missing (Debian: apt-get install {' '.join(packages)})")
    lost = [controller for controller in _CONTROLLERS if controller not in _controllers()]
    if lost:
        problems.append(
            f"no cgroup controller for {', '.join(lost)} (mount /sys/fs/cgroup; in a container, move "
            "its processes out of the cgroup at the top)"
        )
    for what in (folder, cache_dir()):
        path = hidden_by(what)
        if path is not None:
            problems.append(
                f"{what} is below {path}, of which a node has its own (set XDG_STATE_HOME, XDG_CACHE_HOME)"
            )
    if os.geteuid() == 0 and not packages:
        problems += _tried()
    return problems


def missing_packages() -> list[str]:
    """Debian packages whose programs are missing."""
    return sorted({PACKAGES[program] for program in PACKAGES if shutil.which(program, path=_PATH) is None})


def cgroup_version() -> int:
    return 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1


def _controllers() -> set[str]:
    top = Path("/sys/fs/cgroup")
    if cgroup_version() == 2:
        # In a cgroup that is not the machine's root and has processes in it, no controller can be enabled:
        # the rule of "no internal processes" (kernel, admin-guide/cgroup-v2).
        is_root = not (top / "cgroup.type").exists()
        may = is_root or not (top / "cgroup.procs").read_text()
        return set((top / f"cgroup.{'controllers' if may else 'subtree_control'}").read_text().split())
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {name for mount in mounts if mount[2] == "cgroup" for name in mount[3].split(",")}


def _tried() -> list[str]:
    if (why := _fails([*_NAMESPACES, "true"])) is not None:
        return [f"no new namespaces ({why}): in a container, it must be privileged"]
    if (why := _fails([*_NAMESPACES, "sh", "-c", _DEVICES])) is not None:
        return [f"no bridge or veth devices ({why}): load the kernel modules bridge and veth"]
    return []


def _has_overlay(folder: Path) -> bool:
    """Whether overlayfs works on the file system of this directory; it does not on another overlayfs."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    with tempfile.TemporaryDirectory(dir=there) as temporary:
        for name in ("lower", "upper", "work", "merged"):
            Path(temporary, name).mkdir()
        options = ",".join(f"{name}dir={temporary}/{name}" for name in ("lower", "upper", "work"))
        mount = [
            "unshare",
            "--mount",
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            options,
            f"{temporary}/merged",
        ]
        return _fails(mount) is None


def _fails(command: list[str]) -> str | None:
    """Why a command fails; None if it succeeds."""
    env = {**os.environ, "PATH": _PATH}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return (
        None if done.returncode == 0 else (" ".join(done.stderr.split())[-200:] or f"exit {done.returncode}")
    )
