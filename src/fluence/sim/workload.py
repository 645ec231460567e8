"""Read a workload from a file, of a given kind or of the kind that the content suggests."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Literal, cast, get_args

from fluence.errors import InvalidInput
from fluence.sim.intake import Dependency, Intake, IntakeTerms, TraceWorkload

__all__ = ["KINDS", "Dependency", "IntakeTerms", "Kind", "TraceWorkload", "guess", "parse", "read"]

Kind = Literal["swf", "openb", "yaml", "jsonl"]

KINDS: tuple[str, ...] = get_args(Kind)

_BY_SUFFIX: dict[str, Kind] = {
    ".swf": "swf", ".csv": "openb", ".yaml": "yaml", ".yml": "yaml", ".json": "yaml",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
_GZIP = b"\x1f\x8b"
_MAX_BYTES = 2**30  # bytes of a log, unpacked: a small file must not fill the memory
_SWF_RECORD = re.compile(rb"[ \t]*-?[0-9]+(?:[ \t]+\S+){4,}")


def read(
    path: str | Path,
    *,
    kind: str | None = None,
    jobs: int | None = None,
    arrival_scale: float = 1.0,
    strict: bool = False,
    seed: int = 0,
    unit: str = "core",
    node_size: int = 1,
    processors: int | None = None,
    queue_field: str = "queue",
) -> TraceWorkload:
    """The workload in a file; without a *kind*, the kind is guessed.

    ``jobs`` keeps the first valid records, ``arrival_scale`` multiplies the offsets of arrivals, and
    ``strict`` refuses a bad record instead of counting it. ``unit`` is the type in which sizes are counted,
    ``node_size`` the number of units of a whole node, and ``processors`` the number of units of the cluster:
    larger jobs are left out. ``seed`` decides what a recipe generates. ``queue_field`` is the field of an SWF
    record that
    names the queue: queue, partition, group or user.
    """
    terms = IntakeTerms(
        jobs=jobs, arrival_scale=arrival_scale, strict=strict, seed=seed, unit=unit, node_size=node_size,
        processors=processors, queue_field=queue_field,
    )  # fmt: skip
    return parse(read_bytes(path), kind=kind, source=str(path), terms=terms)


def read_bytes(path: str | Path) -> bytes:
    """What a file holds."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(path)) from None


def parse(
    text: bytes, *, kind: str | None = None, source: str = "workload", terms: IntakeTerms | None = None
) -> TraceWorkload:
    """The workload in a text, as `read` reads it from a file; *source* is what errors call it."""
    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"{kind!r} is not a kind of workload: choose one of {', '.join(KINDS)}")
    text = _unpacked(text, source)
    intake = Intake(source, terms or IntakeTerms())
    match cast(Kind, kind) if kind is not None else guess(text, source=source):
        case "swf":
            from fluence.sim import traces

            traces.read_swf(text, intake)
        case "openb":
            from fluence.sim import traces

            traces.read_openb(text, intake)
        case "yaml":
            from fluence.sim import listing

            listing.read(text, intake)
        case "jsonl":
            from fluence.sim import listing

            listing.read_lines(text, intake)
    return intake.workload()


def guess(text: bytes, *, source: str = "workload") -> Kind:
    """The kind of a text, from its content, else from the name of the file."""
    start = text[:65536].lstrip()
    first = start.split(b"\n", 1)[0]
    if first.startswith(b";") or _SWF_RECORD.match(first):
        return "swf"
    if b"cpu_milli" in first and b"," in first:
        return "openb"
    suffix = Path(source.removesuffix(".gz")).suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    if first.startswith(b"{") and first.rstrip().endswith(b"}"):
        return "jsonl"
    if re.search(rb"(?m)^[\"{ ]*(?:jobs|generate)\"?:", start):
        return "yaml"
    raise InvalidInput(
        f"does not look like a workload: name its kind, one of {', '.join(KINDS)}", where=source
    )


def _unpacked(text: bytes, source: str) -> bytes:
    if not text.startswith(_GZIP):
        return text
    unpacker = zlib.decompressobj(wbits=31)
    try:
        unpacked = unpacker.decompress(text, _MAX_BYTES)
    except zlib.error:
        raise InvalidInput("is not a whole gzip file: fetch it again", where=source) from None
    if unpacker.unconsumed_tail:
        raise InvalidInput(f"is over {_MAX_BYTES // 2**20} MiB unpacked: cut it", where=source)
    if not unpacker.eof:
        raise InvalidInput("ends before its gzip data do: fetch it again", where=source)
    return unpacked
