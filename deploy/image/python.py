"""Python: two layers of the image: the locked dependencies, and Fluence itself; both with compiled modules.

The root file system is read-only, so modules that are not compiled here would be compiled at every start.
"""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.image.debian import CannotBuild
from deploy.image.layers import File, Layer

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
LAUNCHER = """#!/usr/bin/python3.13 -P
import sys
from {module} import {function}
sys.exit({function}())
"""


def wheel(folder: Path, epoch: int) -> Path:
    """This tree as a wheel; the tools that build it are pinned in constraints.txt."""
    _pip(
        ["wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        # The first is for pip before 25.3, the second for those after.
        {
            "PIP_CONSTRAINT": str(CONSTRAINTS),
            "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS),
            "SOURCE_DATE_EPOCH": str(epoch),
        },
    )
    (found,) = folder.glob("fluence_scheduler-*.whl")
    return found


def chosen(recipe: Mapping[str, Any], arch: str) -> list[str]:
    """pip's flags for wheels of the image's Python, whatever Python runs pip."""
    tags = [flag for tag in recipe["platforms"][arch] for flag in ("--platform", tag)]
    version = recipe["version"]
    abi = f"cp{version.replace('.', '')}"
    return ["--python-version", version, "--implementation", "cp", "--abi", abi, "--only-binary=:all:", *tags]


def dependencies(recipe: Mapping[str, Any], arch: str, lock: Path) -> Layer:
    """What the lock file lists, each checked by its hash."""
    with tempfile.TemporaryDirectory(prefix="fluence-image-") as folder:
        into = Path(folder, "lib")
        command = ["install", "--no-compile", "--no-deps", "--require-hashes", "--target", str(into)]
        _pip([*command, *chosen(recipe, arch), "--requirement", str(lock)])
        return _layer("dependencies", into, recipe)


def program(recipe: Mapping[str, Any], built: Path) -> Layer:
    """The wheel, unpacked, and a launcher for each program."""
    layer = Layer("fluence")
    with zipfile.ZipFile(built) as archive:
        for name in archive.namelist():
            layer.add(f"{recipe['into']}/{name}", archive.read(name))
        points = configparser.ConfigParser()
        points.read_string(
            archive.read(
                next(name for name in archive.namelist() if name.endswith("/entry_points.txt"))
            ).decode()
        )
    layer.drop(f"{recipe['into']}/{pattern}" for pattern in recipe["drop"])
    for name in recipe["programs"]:
        module, _, function = points["console_scripts"][name].partition(":")
        layer.add(f"usr/bin/{name}", LAUNCHER.format(module=module, function=function), 0o755)
    return layer


def _layer(what: str, folder: Path, recipe: Mapping[str, Any]) -> Layer:
    layer = Layer(what)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            # A library may be called by name: those that are executable stay so.
            mode = 0o755 if os.access(path, os.X_OK) else 0o644
            layer.add(f"{recipe['into']}/{path.relative_to(folder)}", path.read_bytes(), mode)
    layer.drop(f"{recipe['into']}/{pattern}" for pattern in recipe["drop"])
    return layer


def compile_modules(layers: Sequence[Layer]) -> None:
    """Add a .pyc to every .py, by the image's own Python, which runs here without a chroot by its own loader.

    The hash-based kind that is never checked (PEP 552): no times of files in it, and nothing to look up.
    """
    with tempfile.TemporaryDirectory(prefix="fluence-image-") as folder:
        root = Path(folder)
        for layer in layers:
            layer.extract(root)
        (loader,) = root.glob("usr/lib/*/ld-linux-*.so.*")
        python = next(root.glob("usr/bin/python3.*"))
        library = root / "usr/lib" / python.name
        command = [str(loader), "--library-path", str(loader.parent), str(python), "-S", "-m", "compileall"]
        command += ["-q", "--invalidation-mode", "unchecked-hash", "-s", str(root), "-p", "/"]
        done = subprocess.run(
            [*command, str(library), str(root / "usr/local/lib" / python.name)],
            # One order of sets, or frozen sets in constants differ from build to build.
            env={"PYTHONHOME": str(root / "usr"), "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise CannotBuild(f"the image's Python cannot compile: {(done.stderr + done.stdout)[-500:]}")
        for layer in layers:
            sources = [path for path in layer.files if path.endswith(".py")]
            for path in sources:
                directory, _, name = path.rpartition("/")
                cached = f"{directory}/__pycache__/{name[:-3]}.{_tag(python)}.pyc"
                if (root / cached).exists():
                    layer.files[cached] = File(0o644, data=(root / cached).read_bytes())


def _tag(python: Path) -> str:
    return f"cpython-{python.name.removeprefix('python').replace('.', '')}"


def _pip(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        arguments[0],
        "--quiet",
        "--disable-pip-version-check",
        *arguments[1:],
    ]
    done = subprocess.run(
        command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[-600:]
        raise CannotBuild(f"pip {arguments[0]} failed: {why}")
