"""Changes: records of what calls did to graphs and jobs, which can be stored and replayed.

A change records the result of a call and not the request: the vertices that a job got, not its jobspec. So a
later version of the matcher that chooses differently restores the same jobs. Rows are the numbers of vertices
in the graph, which follow from its text and from its earlier changes.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import TypeAlias

import msgspec
import numpy as np

from fluence.graph.columns import Ints, Mask, Rows


class LoadGraph(msgspec.Struct, frozen=True, tag="load", kw_only=True):
    """A graph was loaded, and replaced the one with the same name."""

    graph: str
    text: bytes  # compressed
    format: str
    policy: str
    source: str
    digest: str  # of the text that was loaded first: a journal may contain a later version
    filters: str
    allow: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()

    @property
    def plain_text(self) -> bytes:
        return zlib.decompress(self.text)


class UnloadGraph(msgspec.Struct, frozen=True, tag="unload"):
    graph: str


class Grow(msgspec.Struct, frozen=True, tag="grow"):
    graph: str
    text: bytes  # compressed


class Shrink(msgspec.Struct, frozen=True, tag="shrink"):
    graph: str
    paths: tuple[str, ...]


class SetStatus(msgspec.Struct, frozen=True, tag="status"):
    graph: str
    path: str
    up: bool


class Hold(msgspec.Struct, frozen=True, tag="hold", kw_only=True):
    """A job got vertices, or a promise of them."""

    graph: str
    job: int
    at: int
    end: int
    reserved: bool
    now: int
    rows: bytes
    needs: bytes
    exclusive: bytes
    name: str = ""
    size: int = 1

    def columns(self) -> tuple[Rows, Ints, Mask]:
        return (
            np.frombuffer(self.rows, "<i4").astype(np.int32),
            np.frombuffer(self.needs, "<i8").astype(np.int64),
            np.frombuffer(self.exclusive, np.bool_).copy(),
        )


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    graph: str
    job: int


class PartialCancel(msgspec.Struct, frozen=True, tag="part"):
    graph: str
    job: int
    text: bytes  # compressed
    reader: str


class NextJob(msgspec.Struct, frozen=True, tag="next"):
    """The id of the next job: no id is used twice."""

    graph: str
    job: int


GraphChange: TypeAlias = Grow | Shrink | SetStatus
Change: TypeAlias = LoadGraph | UnloadGraph | GraphChange | Hold | Cancel | PartialCancel | NextJob

_decoder = msgspec.msgpack.Decoder(Change)
_encoder = msgspec.msgpack.Encoder()


def encode(change: Change) -> bytes:
    return _encoder.encode(change)


def decode(record: bytes) -> Change:
    """Raises msgspec.DecodeError if the record is not a change."""
    change: Change = _decoder.decode(record)
    return change


def packed(text: str | bytes) -> bytes:
    """A text as it is stored in changes."""
    return zlib.compress(text.encode() if isinstance(text, str) else text, 1)


def unpacked(text: bytes) -> bytes:
    return zlib.decompress(text)


def hold_columns(rows: Rows, needs: Ints, exclusive: Mask) -> dict[str, bytes]:
    """The columns of a `Hold`."""
    return {
        "rows": rows.astype("<i4").tobytes(),
        "needs": needs.astype("<i8").tobytes(),
        "exclusive": exclusive.astype(np.bool_).tobytes(),
    }


def digest(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def without_repeats(changes: list[GraphChange]) -> list[GraphChange]:
    """The same graph in fewer changes: if a vertex went down and came up again, only the last change stays.

    If a vertex above or below it also changed, the order counts, and all changes stay. The same holds across
    vertices that were added or removed.
    """
    found: list[GraphChange] = []
    statuses: list[SetStatus] = []  # since vertices were last added or removed
    for change in changes:
        if isinstance(change, SetStatus):
            statuses.append(change)
            continue
        found += [*_last_only(statuses), change]
        statuses = []
    return [*found, *_last_only(statuses)]


def _last_only(changes: list[SetStatus]) -> list[SetStatus]:
    paths = {change.path for change in changes}
    tangled = {above for path in paths for above in _above(path) if above in paths}
    tangled |= {path for path in paths if any(above in paths for above in _above(path))}
    last = {change.path: number for number, change in enumerate(changes)}
    return [
        change
        for number, change in enumerate(changes)
        if change.path in tangled or last[change.path] == number
    ]


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts)) if parts[:end] != [""]]
