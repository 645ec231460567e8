"""Resolving streams of manifests: find the workloads that ask, choose for each, and write the pins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import msgspec

from fluence.errors import FluenceError, InvalidInput
from fluence.kubectl.sources import Source
from fluence.names import BACKEND, REQUIRE_BACKEND, SELECT_POLICY, SELECT_RESULT
from fluence.select.backend import BackendRequest
from fluence.select.engine import (
    OFFERS_UNKNOWN,
    BackendSelection,
    NoBackend,
    audit,
    choose,
    find_policy,
    load_providers,
)
from fluence.select.policies import parse_pipeline
from fluence.select.providers import Provider, ProviderSettings, gather
from fluence.select.workload import Edit, PodWorkload, decode, find_workloads, may_select, read_wish, split


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
