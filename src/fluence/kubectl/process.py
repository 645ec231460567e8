"""Running kubectl: the one place from which anything reaches a cluster."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence

from fluence.errors import NotFound


def find_kubectl() -> str:
    program = shutil.which("kubectl")
    if program is None:
        raise NotFound(
            "kubectl is not on PATH; install it (https://kubernetes.io/docs/tasks/tools) or add it to PATH"
        )
    return program


def submit(verb: str, manifest: bytes, flags: Sequence[str], *, quiet_stdout: bool = False) -> int:
    """``kubectl <verb> -f -`` with *manifest*; its exit code is ours.

    *quiet_stdout* sends what it says to stderr, where our own stdout is the manifest.
    """
    stdout = sys.stderr.fileno() if quiet_stdout else None
    command = [find_kubectl(), verb, "-f", "-", *flags]
    return subprocess.run(command, input=manifest, stdout=stdout, check=False).returncode


def kustomize(directory: str) -> bytes:
    """The manifests that ``kubectl kustomize`` makes of *directory*."""
    done = subprocess.run(
        [find_kubectl(), "kustomize", directory], capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}"
        raise NotFound(f"kustomize {directory}: {reason}")
    return done.stdout
