"""Read a workload from a file, by the name of its kind or by what the file looks like."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Literal, cast, get_args

from fluence.errors import InvalidInput
from fluence.sim.intake import Intake, IntakeTerms
from fluence.sim.submission import Dependency, TraceWorkload

__all__ = ["KINDS", "Dependency", "IntakeTerms", "Kind", "TraceWorkload", "guess", "parse", "read"]

Kind = Literal["swf", "openb", "yaml", "jsonl"]

KINDS: tuple[str, ...] = get_args(Kind)

_BY_SUFFIX: dict[str, Kind] = {
    ".swf": "swf", ".csv": "openb", ".yaml": "yaml", ".yml": "yaml", ".json": "yaml",
    ".jsonl": "jsonl", ".ndjson": "jsonl",
}  # fmt: skip
_GZIP = b"\x1f\x8b"
_LARGEST = 2**30  # bytes of a log, unpacked: a small file must not fill the memory
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
) -> TraceWorkload:
    """The workload in a file; without a *kind*, of the kind that it looks like.

    ``jobs`` keeps the first so many valid records, ``arrival_scale`` multiplies the offsets of arrivals, and
    ``strict`` refuses a bad record instead of counting it. ``unit`` is the type that sizes are counted in,
    ``node_size`` how many of them a whole node has, and ``processors`` how many there are: what asks for more
    is left out. ``seed`` decides what a recipe generates.
    """
    source = str(path)
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=source) from None
    terms = IntakeTerms(
        jobs=jobs, arrival_scale=arrival_scale, strict=strict, seed=seed, unit=unit, node_size=node_size,
        processors=processors,
    )  # fmt: skip
    return parse(text, kind=kind, source=source, terms=terms)


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
            from fluence.sim import swf

            swf.read(text, intake)
        case "openb":
            from fluence.sim import openb

            openb.read(text, intake)
        case "yaml":
            from fluence.sim import listing

            listing.read(text, intake)
        case "jsonl":
            from fluence.sim import listing

            listing.read_lines(text, intake)
    return intake.workload()


def guess(text: bytes, *, source: str = "workload") -> Kind:
    """The kind that a text looks like; where it does not tell, what the file's name says."""
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
        unpacked = unpacker.decompress(text, _LARGEST)
    except zlib.error:
        raise InvalidInput("is not a whole gzip file: fetch it again", where=source) from None
    if unpacker.unconsumed_tail:
        raise InvalidInput(f"is over {_LARGEST // 2**20} MiB unpacked: cut it", where=source)
    if not unpacker.eof:
        raise InvalidInput("ends before its gzip data do: fetch it again", where=source)
    return unpacked
