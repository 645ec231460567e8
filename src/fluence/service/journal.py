"""Journal: records of what calls did to graphs and jobs, in an append-only file, replayed after a crash.

FOLDER/lock             held by the process that writes
    FOLDER/journal-000007   a snapshot, then the changes since; the highest number counts

    file     magic, then records
    record   length (4 bytes), CRC-32 of the payload (4 bytes), payload

A process that dies during a write leaves a part of a record at the end. Its call was not answered, so the
part is cut off. Damage anywhere else is an error. When a file has grown to several times its snapshot, a new
file with a snapshot of the current state is written beside it and replaces it by a rename.

A change records the result of a call and not the request: the vertices that a job got, not its jobspec. So a
later version of the matcher that chooses differently restores the same jobs. Rows are the numbers of vertices
in the graph, which follow from its text and from its earlier changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

import msgspec
import numpy as np

from fluence.errors import FluenceError
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


MAGIC: Final = b"fluence-journal-1\n"
_HEAD: Final = struct.Struct("<II")
_NAME: Final = re.compile(r"journal-(\d{6,12})")
_LEAST_BYTES: Final = 4 << 20  # a smaller file is never compacted
_GROWTH: Final = 3  # compact when a file is this many times larger than its snapshot
_BUFFER: Final = 1 << 20


class JournalError(FluenceError):
    """The journal cannot be read or written. The message names the file and the cure."""


class Journal:
    """``journal.records()`` once, then ``append`` and ``commit``; ``compact`` when ``is_due``."""

    def __init__(self, folder: Path, *, least_bytes: int = _LEAST_BYTES) -> None:
        self._folder = folder
        self._least_bytes = least_bytes
        self.cut_off = 0  # bytes of an unfinished record that were dropped
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise JournalError(f"{folder}: {error.strerror}: name a folder that can be written") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise JournalError(
                f"{folder}: another service writes here: give each a folder of its own"
            ) from None
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        numbers = sorted(int(found[1]) for path in folder.iterdir() if (found := _NAME.fullmatch(path.name)))
        self._number = numbers[-1] if numbers else 0
        for number in numbers[:-1]:  # a crash happened between the rename and the removal
            self._path(number).unlink(missing_ok=True)
        self._file: io.FileIO | None = None
        self._pending: list[bytes] = []
        self.size = self._snapshot_size = 0

    # -- reading ---------------------------------------------------------------------------------------------

    def records(self) -> Iterator[bytes]:
        """Every record, oldest first. After that, the journal can be written."""
        path = self._path(self._number)
        if self._number == 0:
            self._number = 1
            self._start(self._number, ())
            return
        end = len(MAGIC)
        with path.open("rb", _BUFFER) as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(MAGIC)) != MAGIC:
                raise JournalError(f"{path}: is not a journal of this version: move it away to start anew")
            while end < size:
                record = self._read(file, path, end, size)
                if record is None:
                    break
                yield record
                end += _HEAD.size + len(record)
        self.cut_off = size - end
        self._open(self._number)
        if self.cut_off:
            self._writable.truncate(end)
            os.fsync(self._writable.fileno())
        self.size = self._snapshot_size = end

    def _read(self, file: BinaryIO, path: Path, at: int, size: int) -> bytes | None:
        """The record at an offset; None if the file ends in the middle of one."""
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack(head)
        if at + _HEAD.size + length > size:
            return None
        record = file.read(length)
        if zlib.crc32(record) == checksum and length:
            return record
        rest = record + file.read()
        # After a power failure the file may end in a record of zeros, or in one whose pages were not written.
        if at + _HEAD.size + length == size or not any(head + rest):
            return None
        raise JournalError(
            f"{path}: damaged at byte {at}, with {size - at} bytes behind it. Restore the file from a "
            f"backup, or cut it there (truncate -s {at}) and lose what was done since"
        )

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        """Add a record. It counts after `commit`."""
        self._pending.append(_HEAD.pack(len(record), zlib.crc32(record)) + record)

    def commit(self) -> None:
        """Write the appended records and wait until they are on disk."""
        if not self._pending:
            return
        data = b"".join(self._pending)
        self._pending.clear()
        try:
            _write(self._writable, data)
            os.fdatasync(self._writable.fileno())
        except OSError as error:
            raise JournalError(f"{self._path(self._number)}: cannot be written: {error.strerror}") from None
        self.size += len(data)

    @property
    def is_due(self) -> bool:
        """Whether the file has grown enough to be compacted."""
        return self.size > max(self._least_bytes, _GROWTH * self._snapshot_size)

    def compact(self, snapshot: Iterable[bytes]) -> None:
        """Continue in a new file that begins with these records."""
        old = self._number
        self.commit()
        try:
            self._start(old + 1, snapshot)
        except OSError as error:
            raise JournalError(f"{self._folder}: cannot be written: {error.strerror}") from None
        self._number = old + 1
        with contextlib.suppress(OSError):
            self._path(old).unlink()

    def close(self) -> None:
        """Release the directory for another process."""
        if self._file is not None:
            self._file.close()
            self._file = None
        os.close(self._lock)

    # -- internals -------------------------------------------------------------------------------------------

    @property
    def _writable(self) -> io.FileIO:
        if self._file is None:
            raise RuntimeError("records() comes first")
        return self._file

    def _path(self, number: int) -> Path:
        return self._folder / f"journal-{number:06}"

    def _open(self, number: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = io.FileIO(self._path(number), "r+")
        self._file.seek(0, os.SEEK_END)

    def _start(self, number: int, records: Iterable[bytes]) -> None:
        path = self._path(number)
        draft = path.with_suffix(".tmp")
        with draft.open("wb", _BUFFER) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(MAGIC)
            for record in records:
                file.write(_HEAD.pack(len(record), zlib.crc32(record)))
                file.write(record)
            file.flush()
            os.fsync(file.fileno())
            self.size = self._snapshot_size = file.tell()
        draft.rename(path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._open(number)


def _write(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
