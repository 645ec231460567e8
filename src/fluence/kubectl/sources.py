"""Sources: where manifests come from, as kubectl reads them, and how kubectl is run to submit them."""

from __future__ import annotations

import csv
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

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


SUFFIXES: Final = (".json", ".yaml", ".yml")
"""What kubectl reads in a directory; a file that is named may be called anything."""

DOWNLOAD_TIMEOUT_S: Final = 30


class Source(msgspec.Struct, frozen=True):
    """One stream of manifests and the name it goes by in messages."""

    name: str
    data: bytes


def read_sources(filenames: Sequence[str], kustomization: str | None, *, recursive: bool) -> list[Source]:
    """All streams, in the order given; a directory's files in the order of their names."""
    sources = [
        source
        for filename in filenames
        for name in _commas(filename)
        for source in _read(name, recursive=recursive)
    ]
    if kustomization is not None:
        sources.append(Source(kustomization, kustomize(kustomization)))
    return sources


def _commas(filename: str) -> list[str]:
    # kubectl takes "a.yaml,b.yaml" apart; a file that is really called so is not lost.
    if "," not in filename or Path(filename).exists():
        return [filename]
    return [name for name in next(csv.reader([filename])) if name]


def _read(name: str, *, recursive: bool) -> Iterator[Source]:
    if name == "-":
        yield Source("stdin", sys.stdin.buffer.read())
    elif name.startswith(("http://", "https://")):
        yield Source(name, _download(name))
    elif Path(name).is_dir():
        yield from _read_directory(name, recursive=recursive)
    elif Path(name).exists() or not glob.has_magic(name):
        yield _read_file(name)
    else:
        matches = sorted(glob.glob(name))  # noqa: PTH207 (the pattern may be absolute)
        if not matches:
            raise NotFound(f'no file matches the pattern "{name}"')
        for match in matches:
            yield from _read(match, recursive=recursive)


def _read_directory(name: str, *, recursive: bool) -> Iterator[Source]:
    found: list[str] = []
    for root, directories, files in os.walk(name):
        found += [str(Path(root, file)) for file in files if file.endswith(SUFFIXES)]
        if not recursive:
            directories.clear()
    if not found:
        hint = "" if recursive else "; -R looks in the directories below it"
        raise NotFound(f"{name}: no .json, .yaml or .yml file in this directory{hint}")
    for path in sorted(found):
        yield _read_file(path)


def _read_file(name: str) -> Source:
    try:
        return Source(name, Path(name).read_bytes())
    except OSError as error:
        raise NotFound(f"{name}: {error.strerror}") from error


def _download(url: str) -> bytes:
    # Half of a second's tenth to load; few manifests come from the web.
    from urllib.error import URLError
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as response:
            data: bytes = response.read()
            return data
    except (URLError, OSError, ValueError) as error:
        raise NotFound(f"{url}: {getattr(error, 'reason', None) or error}") from error
