"""Kept rows: a row of the view is made once, and used by all snapshots until what it shows has changed.

A row is kept with the values that it was made from, and with its text in JSON for the columns that were asked
for last. With the next snapshot, the values are compared and the row is used again if they are the same. What
a reader may see is not part of a row: rows are chosen for each reader, and a row that shows less is a row of
its own. Only the thread of the view uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from fluence.cluster.planner import PodSetRequest
from fluence.model.job_state import JobState
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.placer.placer import GangHolding
from fluence.queue.allocations import Allocation
from fluence.queue.job import Submission
from fluence.schedule.pod_set import PodSet

_TEXTS: Final = 4  # selections of columns for which a row keeps its text
_SPARE: Final = 1024  # kept rows of objects that are gone, before they are dropped
_HOLE: Final = b"\x00"  # stands for a value that is filled in; no text in JSON has this character

Span: TypeAlias = tuple[int, int, int, tuple[Any, ...]]
"""Of an allocation: its start and its end, how many pods have a placement, and its devices."""


class Row:
    """A row and its texts, made when they are needed. ``hole``: the field that is filled in, because it
    changes alone and often, such as the place in the queue."""

    __slots__ = ("_bare", "_filled", "_hole", "_made", "_make")

    def __init__(self, make: Callable[[], msgspec.Struct], hole: str = "") -> None:
        self._make = make
        self._hole = hole
        self._made: msgspec.Struct | None = None
        self._bare: dict[tuple[str, ...], bytes] = {}
        self._filled: dict[tuple[str, ...], tuple[bytes, bytes | None]] = {}

    def struct(self, filling: int | None = None) -> Any:
        """The row as data."""
        made = self._made
        if made is None:
            made = self._made = self._make()
        return made if filling is None else msgspec.structs.replace(made, **{self._hole: filling})

    def text(self, columns: tuple[str, ...], filling: int | None = None) -> bytes:
        """The row in JSON: an object or, with ``columns``, a list of these fields."""
        if filling is None:
            text = self._bare.get(columns)
            if text is None:
                _limit(self._bare)
                text = self._bare[columns] = _write(self.struct(), columns)
            return text
        halves = self._filled.get(columns)
        if halves is None:
            _limit(self._filled)
            marked = msgspec.structs.replace(self.struct(), **{self._hole: msgspec.Raw(_HOLE)})
            before, hole, after = _write(marked, columns).partition(_HOLE)
            halves = self._filled[columns] = (before, after if hole else None)
        before, rest = halves
        return before if rest is None else b"%b%d%b" % (before, filling, rest)


Rows: TypeAlias = list[tuple[Row, int | None]]
"""The rows of a list in their order, each with what is filled in."""


def _limit(texts: dict[tuple[str, ...], Any]) -> None:
    if len(texts) >= _TEXTS:
        del texts[next(iter(texts))]


def _write(row: msgspec.Struct, columns: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(_picker(type(row), columns)(row) if columns else row)


@lru_cache(maxsize=256)
def _picker(
    row_type: type[msgspec.Struct], columns: tuple[str, ...]
) -> Callable[[msgspec.Struct], tuple[Any, ...]]:
    """A function that returns some fields of a row, named as in JSON. Missing ones are empty."""
    attributes = dict(zip(row_type.__struct_encode_fields__, row_type.__struct_fields__, strict=True))
    pick = attrgetter(*(attributes[column] for column in columns))
    return pick if len(columns) > 1 else lambda row: (pick(row),)


# -- gangs ---------------------------------------------------------------------------------------------------


class Shown:
    """A gang as a snapshot shows it. The attributes do not change: another state of the gang is another
    object, so that two of them are equal only if they are the same. Rows are added when they are needed."""

    __slots__ = (
        "array",
        "bound",
        "entry",
        "expected",
        "firm",
        "group",
        "held",
        "job",
        "namespace",
        "parts",
        "pod_set",
        "reasons",
        "row",
        "span",
        "started",
        "state",
        "taken",
    )

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.pod_set: PodSet
        self.job: Submission
        self.state: JobState
        self.started: int | None
        self.held: Allocation | None
        self.span: Span | None
        self.reasons: tuple[Reason, ...]
        self.bound: int | None
        self.firm: bool
        self.expected: int | None
        self.pod_set, self.job, self.state, self.started, self.held, self.span = parts[:6]
        self.reasons, self.bound, self.firm, self.expected = parts[6:]
        self.group = self.pod_set.group
        self.namespace = self.group.partition("/")[0]
        self.array = array_key(self.namespace, self.job.array)
        # Rows: as a job, in the plan, and in the plan for readers who may not see it.
        self.row: Row | None = None
        self.entry: Row | None = None
        self.taken: Row | None = None

    @property
    def request(self) -> PodSetRequest:
        assert isinstance(self.job.request, PodSetRequest)
        return self.job.request

    @property
    def pods(self) -> tuple[Pod, ...]:
        return self.request.pods

    @property
    def start(self) -> int:
        """When it got its nodes, or is planned to get them."""
        assert self.span is not None
        return self.span[0]

    @property
    def is_placed(self) -> bool:
        return self.state.has_nodes


Parts: TypeAlias = tuple[
    PodSet,
    Submission,
    JobState,
    int | None,
    Allocation | None,
    Span | None,
    tuple[Reason, ...],
    int | None,
    bool,
    int | None,
]
"""What a gang shows: itself, its submission, its state, its start, its allocation with its span, the reasons
why it waits, the latest promised start and whether it is firm, and the expected start."""


def span_of(held: Allocation | None) -> Span | None:
    """What an allocation shows. Its times and its placements change in place."""
    if held is None:
        return None
    job = held.job
    if isinstance(job, GangHolding):
        return job.start, job.end, len(job.placements), job.grants
    return job.start, job.end, 0, ()


def array_key(namespace: str, array: str) -> str:
    """The key of the Job or PodGroup whose pods start one by one, from `job.array`; empty: no array."""
    kind, slash, name = array.partition("/")
    return f"{namespace}/{'job:' if kind == 'job' else ''}{name}" if slash else ""


# -- all of them ---------------------------------------------------------------------------------------------


class KeptRows:
    """What the snapshots of one scheduler share."""

    def __init__(self) -> None:
        self._shown: dict[PodSet, Shown] = {}
        self._rows: dict[str, dict[Hashable, tuple[Sequence[object], Any]]] = {}

    def shown(self, parts: Iterable[Parts]) -> list[Shown]:
        """Gangs as they are now: the object of an earlier snapshot if nothing of a gang has changed."""
        known = self._shown
        found: list[Shown] = []
        for each in parts:
            shown = known.get(each[0])
            if shown is None or shown.parts != each:
                shown = known[each[0]] = Shown(each)
            found.append(shown)
        return found

    def get(self, kind: str, key: Hashable, parts: Sequence[object], make: Callable[[], Any]) -> Any:
        """What was made for a key from these parts, or what ``make`` returns now."""
        kept = self._rows.setdefault(kind, {})
        found = kept.get(key)
        if found is None or found[0] != parts:
            found = kept[key] = (parts, make())
        return found[1]

    def limit(self, gangs: int, nodes: int) -> None:
        """Drop what is kept if there is much more of it than there are gangs and nodes."""
        if len(self._shown) > 2 * gangs + _SPARE:
            self._shown.clear()
        for kept in self._rows.values():
            if len(kept) > 2 * (gangs + nodes) + _SPARE:
                kept.clear()
