"""Resolving streams of manifests: read them as kubectl does, find the workloads that ask, choose, and write
the pins.
"""

from __future__ import annotations

import csv
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from fluence.errors import FluenceError, InvalidInput, NotFound
from fluence.names import BACKEND, REQUIRE_BACKEND, SELECT_POLICY, SELECT_RESULT
from fluence.select.engine import (
    OFFERS_UNKNOWN,
    BackendSelection,
    NoBackend,
    audit,
    choose,
    find_policy,
    load_providers,
)
from fluence.select.policies import BackendRequest, parse_pipeline
from fluence.select.providers import Provider, ProviderSettings, gather
from fluence.select.workload import Edit, PodWorkload, decode, find_workloads, may_select, read_wish, split


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


class ResolveOptions(msgspec.Struct, frozen=True):
    """What the user has set for the choice."""

    settings: ProviderSettings
    providers: Sequence[str] = ()
    tolerance: float = 0.0
    overrides_pins: bool = False


class Resolved(msgspec.Struct, frozen=True):
    """One workload's choice, or the failure to make one."""

    label: str
    source: str
    shots: int
    selection: BackendSelection
    is_chosen: bool
    resolved_at: str


class Unresolvable(FluenceError):
    """A workload's choice failed; ``resolved`` explains it where there is something to explain."""

    def __init__(self, message: str, resolved: Resolved) -> None:
        super().__init__(message)
        self.resolved = resolved


class Resolver:
    """Chooses for one workload after the other; providers are made when the first one asks, and kept."""

    def __init__(
        self,
        options: ResolveOptions,
        *,
        note: Callable[[str], None],
        now: datetime,
        providers: Sequence[Provider] | None = None,
    ) -> None:
        self._options = options
        self._note = note
        self._now = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._providers = providers
        self._warned: set[str] = set()
        self.resolved: list[Resolved] = []

    def stream(self, source: Source) -> list[str]:
        """The documents of a stream, those that asked with their pins in them."""
        text = decode(source.data)
        documents = split(text)
        if not may_select(text):
            return documents
        return [self._document(document, source, i + 1) for i, document in enumerate(documents)]

    def _document(self, document: str, source: Source, number: int) -> str:
        if not may_select(document):
            return document
        # Loaded here: most streams need no parser, and it takes a quarter of the start.
        from fluence.select.edit import Unparsable, load, stamp

        try:
            workloads = find_workloads(load(document))
        except Unparsable as error:
            # kubectl will say so too, and better; a policy in it must not vanish without a word.
            if SELECT_POLICY in document:
                self._note(f"{source.name}: document {number} is passed on unread: {error}")
            return document
        edits = [edit for workload in workloads for edit in self._workload(workload, source)]
        if not edits:
            return document
        try:
            return stamp(document, edits)
        except InvalidInput as error:
            raise InvalidInput(str(error), where=f"{source.name}: document {number}") from error

    def _workload(self, workload: PodWorkload, source: Source) -> list[Edit]:
        if not workload.wants_selection:
            if workload.has_empty_policy:
                self._note(
                    f"{workload.label}: select-policy is empty, so no backend is chosen; give it steps, such "
                    "as min-cost, or remove it"
                )
            elif workload.has_misplaced_policy:
                self._note(
                    f"{workload.label}: select-policy stands on the pod template, where it does nothing; "
                    "put it on the object's own metadata"
                )
            return []
        if (pin := workload.pin) and not self._options.overrides_pins:
            self._note(
                f'{workload.label} already pinned to "{pin}"; skipping selection '
                "(use --force-select to override)"
            )
            return []
        resolved = self._choose(workload, source)
        self.resolved.append(resolved)
        chosen = resolved.selection.chosen.name
        pins = {REQUIRE_BACKEND: chosen, BACKEND: chosen}
        result = {SELECT_RESULT: audit(resolved.selection, resolved_at=resolved.resolved_at)}
        # The audit has a time in it. On a pod template it would make every apply a new rollout.
        return [Edit(workload.path, {**pins, **result}), *(Edit(path, pins) for path in workload.templates)]

    def _choose(self, workload: PodWorkload, source: Source) -> Resolved:
        wish = read_wish(workload)
        options = self._options
        request = BackendRequest(wish.shots, workload.device_types)
        try:
            pipeline = parse_pipeline(
                wish.policy,
                tolerance=options.tolerance,
                constraints=wish.constraints,
                extra=lambda token: find_policy(token, tolerance=options.tolerance),
            )
        except InvalidInput as error:
            raise InvalidInput(f"selection failed: {error}", where=workload.label) from error
        if self._providers is None:
            self._providers = load_providers(options.settings, only=options.providers)
        needs = frozenset(need for step in pipeline for need in step.needs)
        found = gather(self._providers, request, needs=needs, only=wish.candidates)
        if found.offers is None and not found.warnings:
            self._warn_once(OFFERS_UNKNOWN)
        for warning in found.warnings:
            self._warn_once(warning)
        if not found.backends and options.settings.attributes_file is None:
            raise InvalidInput(
                f"{workload.label} requests selection but no --attributes file was given, "
                "and no other provider describes a backend; name a file with --attributes FILE"
            )
        try:
            selected = choose(
                wish.policy,
                pipeline,
                found.backends,
                offers=found.offers,
                only=wish.candidates,
                types=found.types,
                request=request,
                notes=found.notes,
            )
        except NoBackend as error:
            failed = Resolved(workload.label, source.name, wish.shots, error.trail, False, self._now)
            raise Unresolvable(f"{workload.label}: selection failed: {error}", failed) from error
        return Resolved(workload.label, source.name, wish.shots, selected, True, self._now)

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._note(warning)
