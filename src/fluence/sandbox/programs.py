"""Programs: finds what a sandbox and its real nodes run: given, installed, cached, or else built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fluence.sandbox.gobuild import Report, build, cached
from fluence.sandbox.releases import CONTROL_PLANE, NODE, Release

ETCD_NEEDED = (3, 5, 13)  # older ones have no progress requests, and streaming lists fail
KWOK_NEEDED = (0, 7, 0)


def find_programs(
    release: Release,
    *,
    names: tuple[str, ...] = (*CONTROL_PLANE, "kwok"),
    report: Report,
    env: Mapping[str, str] | None = None,
) -> dict[str, Path]:
    """A path for each name. Those in KUBEBUILDER_ASSETS or on PATH are taken if their versions fit."""
    found = {name: path for name in names if (path := existing(name, release, env=env)) is not None}
    missing = [name for name in names if name not in found]
    if missing:
        build(release, missing, report)
        found.update({name: cached(name, release) for name in missing})
    return found


def missing_programs(release: Release, names: tuple[str, ...]) -> list[str]:
    """Those that this machine does not have."""
    return [name for name in names if existing(name, release) is None]


def existing(name: str, release: Release, *, env: Mapping[str, str] | None = None) -> Path | None:
    """The program if this machine has one that fits."""
    env = os.environ if env is None else env
    built = cached(name, release)
    if name in NODE:  # these belong together, and their folder is told to each other
        return built if built.exists() else None
    assets = env.get("KUBEBUILDER_ASSETS")
    candidates = [Path(assets) / name] if assets else []
    if not built.exists() and (on_path := shutil.which(name, path=env.get("PATH"))):
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
    wanted = tuple(int(each) for each in release.minor.split("."))
    return version[:2] == wanted


def version_of(path: Path, name: str) -> tuple[int, ...] | None:
    """(1, 36, 4), or None if the program does not say."""
    arguments = ["version", "--client"] if name == "kubectl" else ["--version"]
    try:
        done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"v?(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(each) for each in found.groups()) if found else None
