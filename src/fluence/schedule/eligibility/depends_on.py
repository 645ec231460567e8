"""Depends-on: parses the annotation `depends-on` and decides whether it holds. Pure functions.

    afterok:a,afterany:b      both must hold
    afterok:a?afterok:b       one of them is enough
    afterok:a:b               the same kind for several names
    singleton                 no earlier work of the same series is left

The words are Slurm's. A name is that of a Job, a group or a pod in the same namespace; `job/a`, `group/a` and
`pod/a` say which. `producers` reads the progress of a producer from its status.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Final

from fluence import names
from fluence.model.reason import Code, Reason

MAX_TERMS: Final = 64
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SHOWN: Final = 60  # characters of a text that a reason shows


class DependencyKind(StrEnum):
    """What must have happened to a producer."""

    AFTER = "after"  # it has started or ended
    AFTERANY = "afterany"  # it has ended
    AFTEROK = "afterok"  # it succeeded
    AFTERNOTOK = "afternotok"  # it failed
    SINGLETON = "singleton"  # all earlier work of the series has ended


class ProducerKind(StrEnum):
    """What a name may refer to. For a name without a kind, the first of these that exists."""

    JOB = "job"
    GROUP = "group"
    POD = "pod"


class Progress(Enum):
    """The progress of a producer."""

    UNKNOWN = "unknown"  # no object has or had this name since the scheduler looked
    WAITING = "waiting"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GONE = "gone"  # it was deleted before its outcome was known


class Verdict(Enum):
    """Whether a dependency holds."""

    HOLDS = "holds"
    WAITS = "waits"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Producer:
    """Another job, as its consumer names it."""

    name: str
    kind: ProducerKind | None = None

    def __str__(self) -> str:
        return self.name if self.kind is None else f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class Dependency:
    """One term. The producer of a singleton is its series; None: the series of its own name."""

    kind: DependencyKind
    producer: Producer | None

    def __str__(self) -> str:
        return self.kind.value if self.producer is None else f"{self.kind}:{self.producer}"


@dataclass(frozen=True, slots=True)
class DependsOn:
    """All terms of one annotation. ``any``: one of them is enough."""

    terms: tuple[Dependency, ...]
    any: bool = False

    def __str__(self) -> str:
        return ("?" if self.any else ",").join(map(str, self.terms))

    @property
    def digest(self) -> str:
        """Identifies the dependencies, in the same way in every process."""
        return hashlib.blake2s(str(self).encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=4096)
def read_depends_on(text: str) -> DependsOn | Reason:
    """The parsed annotation, or why it cannot be read."""
    is_any = "?" in text
    if is_any and "," in text:
        return _fault(text, "mixed")
    terms: dict[Dependency, None] = {}
    for part in text.split("?" if is_any else ","):
        word, *targets = (piece.strip() for piece in part.split(":"))
        if word not in tuple(DependencyKind):
            return _fault(text, "type", word)
        kind = DependencyKind(word)
        is_singleton = kind is DependencyKind.SINGLETON
        if not targets and not is_singleton:
            return _fault(text, "no-name", word)
        for producer in map(_producer, targets) if targets else (None,):
            if targets and (producer is None or (is_singleton and producer.kind is not None)):
                return _fault(text, "name", part.strip())
            terms[Dependency(kind, producer)] = None
    if len(terms) > MAX_TERMS:
        return _fault(text, "many", str(MAX_TERMS))
    return DependsOn(tuple(terms), is_any)


def _producer(text: str) -> Producer | None:
    kind, slash, name = text.rpartition("/")
    if (slash and kind not in tuple(ProducerKind)) or not _NAME.fullmatch(name):
        return None
    return Producer(name, ProducerKind(kind) if slash else None)


def _fault(text: str, fault: str, part: str = "") -> Reason:
    return Reason.of(
        Code.INVALID_DEPENDENCY, key=names.DEPENDS_ON, value=text[:_SHOWN], fault=fault, part=part[:_SHOWN]
    )


# -- verdicts ------------------------------------------------------------------------------------------------

_OVER = (Progress.SUCCEEDED, Progress.FAILED, Progress.GONE)
_HOLDS: Final[dict[DependencyKind, tuple[Progress, ...]]] = {
    DependencyKind.AFTER: (Progress.STARTED, *_OVER),
    DependencyKind.AFTERANY: _OVER,
    DependencyKind.AFTEROK: (Progress.SUCCEEDED,),
    DependencyKind.AFTERNOTOK: (Progress.FAILED,),
    DependencyKind.SINGLETON: _OVER,
}


def verdict(kind: DependencyKind, progress: Progress) -> Verdict:
    """Whether one term holds. An outcome is final, so a term that does not hold after it never will."""
    if progress in _HOLDS[kind]:
        return Verdict.HOLDS
    return Verdict.NEVER if progress in _OVER else Verdict.WAITS


def judge(
    wanted: DependsOn, progress: Mapping[Dependency, Progress]
) -> tuple[Verdict, tuple[Dependency, ...]]:
    """Whether the dependencies hold, and the terms that keep them from holding."""
    by: dict[Verdict, list[Dependency]] = {each: [] for each in Verdict}
    for term in wanted.terms:
        by[verdict(term.kind, progress[term])].append(term)
    if by[Verdict.HOLDS] if wanted.any else len(by[Verdict.HOLDS]) == len(wanted.terms):
        return Verdict.HOLDS, ()
    if not by[Verdict.WAITS] if wanted.any else by[Verdict.NEVER]:
        return Verdict.NEVER, tuple(by[Verdict.NEVER])
    return Verdict.WAITS, tuple(by[Verdict.WAITS])


def reason_of(wanted: DependsOn, progress: Mapping[Dependency, Progress], namespace: str) -> Reason | None:
    """Why work with these dependencies must wait; None if it may start."""
    found, terms = judge(wanted, progress)
    if found is Verdict.HOLDS:
        return None
    causes = tuple(_cause(term, progress[term], found, namespace) for term in terms)
    if len(causes) == 1:
        return causes[0]
    return Reason.of(Code.WAITS_FOR_DEPENDENCIES, causes=causes, any=wanted.any)


def _cause(term: Dependency, progress: Progress, found: Verdict, namespace: str) -> Reason:
    kind, job = term.kind.value, "" if term.producer is None else str(term.producer)
    if found is Verdict.NEVER:
        return Reason.of(
            Code.DEPENDENCY_NEVER_SATISFIED, kind=kind, job=job, outcome=progress.value, key=names.DEPENDS_ON
        )
    if progress is Progress.UNKNOWN:
        return Reason.of(Code.DEPENDENCY_UNKNOWN, kind=kind, job=job, namespace=namespace)
    return Reason.of(Code.WAITS_FOR_DEPENDENCY, kind=kind, job=job)
