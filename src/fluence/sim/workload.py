"""Workloads: read from a file of a given or a guessed kind; and recorded traces (SWF, and the openb trace of
GPUs).

The Standard Workload Format has one line of 18 numbers per job, and comments after a semicolon. The rules are
those of the reference results: a record without runtime or processors is not a job, and the limit is the
larger of the requested time and the runtime, since a job that ran longer must have been allowed to.
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html

The openb trace is a CSV of nodes, and one of the pods that ran on them. A node has pools of cpu (thousandths
of a core), memory (MiB) and gpu (thousandths of a GPU), and a pod takes parts of them; the GPU model is a
property. The GPUs of a node are one pool, so a share of a GPU may combine the rests of two GPUs: slightly
more is placed than on real devices. https://github.com/alibaba/clusterdata (cluster-trace-gpu-v2023)
"""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph.graph import CONTAINMENT, Batch
from fluence.match.request import Extensions
from fluence.model.jobspec import MAX_COUNT
from fluence.sim.intake import (
    CPU_PER_CORE,
    BadRecord,
    Dependency,
    Intake,
    IntakeJob,
    IntakeTerms,
    TraceWorkload,
    pod_jobspec,
    processors_jobspec,
)

__all__ = ["KINDS", "Dependency", "IntakeTerms", "Kind", "TraceWorkload", "guess", "parse", "read"]


FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time",
    "used memory", "requested processors", "requested time", "requested memory", "status", "user", "group",
    "application", "queue", "partition", "preceding job", "think time",
)  # fmt: skip

QUEUE_FIELDS = {name: FIELDS.index(name) for name in ("queue", "partition", "group", "user")}
_SIZE = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*([0-9]{1,10})\b", re.IGNORECASE)
_FAILED = 0
_UNKNOWN = "-1"


def read_swf(text: bytes, intake: Intake) -> None:
    """Hand every record of a log to the intake."""
    sizes: dict[str, int] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        if line.lstrip().startswith(";"):
            match = _SIZE.match(line.lstrip())
            if match is not None:
                sizes.setdefault(match[1].lower(), int(match[2]))
            continue
        fields = line.split()
        if not fields:
            continue
        if intake.is_full:
            break
        intake.take(partial(_swf_record, fields, intake), f"line {number}")
    intake.processors = sizes.get("maxprocs") or sizes.get("maxnodes") or None


def _swf_record(fields: list[str], intake: Intake) -> IntakeJob:
    # NB some logs have more fields, such as the names of nodes; those have no meaning here.
    if len(fields) < len(FIELDS):
        raise BadRecord(
            "missing fields",
            f"has {len(fields)} of {len(FIELDS)} fields: fill the unknown ones with -1",
            field=FIELDS[len(fields)],
        )
    number = _swf_whole(fields, 0)
    if number < 0:
        raise BadRecord("no job number", f"must be 0 or more, not {number}", field=FIELDS[0])
    runtime = _swf_number(fields, 3)
    if runtime <= 0:
        raise BadRecord(
            "no runtime", f"must be more than 0, not {fields[3]}: leave the record out", field=FIELDS[3]
        )
    size = _swf_whole(fields, 4)
    if size <= 0:
        size = _swf_whole(fields, 7)
    if size <= 0:
        raise BadRecord(
            "no processors", f"must be more than 0, not {size}: leave the record out", field=FIELDS[4]
        )
    if size > MAX_COUNT:
        raise BadRecord("impossible size", f"must be at most {MAX_COUNT}, not {size}", field=FIELDS[4])
    unit = intake.terms.unit
    return IntakeJob(
        name=str(number),
        at=_swf_number(fields, 1),
        runtime=runtime,
        jobspec=intake.same(size, partial(processors_jobspec, size, unit)),
        size=size * (CPU_PER_CORE if unit == "cpu" else 1),
        limit=max(_swf_number(fields, 8), runtime),
        user=_swf_name(fields[11]),
        queue=_swf_name(fields[QUEUE_FIELDS[intake.terms.queue_field]]),
        succeeds=_swf_number(fields, 10) != _FAILED,
    )


def _swf_number(fields: list[str], at: int) -> float:
    try:
        number = float(fields[at])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRecord(
            "not a number", f"must be a number, not {fields[at][:40]!r}: correct it", field=FIELDS[at]
        )
    return number


def _swf_whole(fields: list[str], at: int) -> int:
    number = _swf_number(fields, at)
    if number != int(number):
        raise BadRecord("not a number", f"must be a whole number, not {fields[at][:40]}", field=FIELDS[at])
    return int(number)


def _swf_name(field: str) -> str:
    return "" if field == _UNKNOWN else field


OPENB_EXTENSIONS = Extensions(quantities=frozenset(("cpu", "memory", "gpu")))

_NODE = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase",
    "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
_WHOLE_GPU = 1000
_MAX_NUMBER = 2**40
_Row: TypeAlias = dict[str, str | None]
_ILLEGAL = frozenset("!&'\"^`|()")  # in a property's name, RFC 31


def read_openb(text: bytes, intake: Intake) -> None:
    """Hand every pod to the intake."""
    for line, row in _rows(text, _POD, intake.source):
        if intake.is_full:
            break
        intake.take(partial(_pod, row, intake), f"line {line}")


def is_openb_nodes(text: bytes) -> bool:
    """Whether a text is the CSV of the nodes."""
    return text[:200].lstrip(b"\xef\xbb\xbf").startswith(b"sn,cpu_milli")


def openb_nodes(text: bytes, *, source: str) -> Batch:
    """The cluster that the CSV of the nodes describes."""
    batch = Batch()
    root = batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=0)
    names: set[str] = set()
    for line, given in _rows(text, _NODE, source):
        rank = len(names)
        try:
            row = _complete(given)
            name = row["sn"]
            if not name or name in names:
                raise BadRecord("repeated name", "must be a name of its own: rename the node", field="sn")
            names.add(name)
            pools = [("cpu", _whole(row, "cpu_milli")), ("memory", _whole(row, "memory_mib"))]
            pools.append(("gpu", _whole(row, "gpu") * _WHOLE_GPU))
            properties = dict.fromkeys(_models(row, "model"), "")
        except BadRecord as bad:
            raise InvalidGraph(str(bad), where=f"{source}: line {line}") from None
        node = batch.vertex(
            "node", id=rank, uniq_id=len(batch.type), name=name, rank=rank, properties=properties
        )
        batch.edge(root, node)
        for type_, size in pools:
            if size:
                pool = batch.vertex(type_, id=0, uniq_id=len(batch.type), rank=rank, size=size)
                batch.edge(node, pool)
    if not names:
        raise InvalidGraph("has no nodes: add a line for each", where=source)
    return batch


def _pod(given: _Row, intake: Intake) -> IntakeJob:
    row = _complete(given)
    gpus = _whole(row, "num_gpu")
    share = _whole(row, "gpu_milli") if gpus else 0
    if share > _WHOLE_GPU or (gpus and not share):
        raise BadRecord("impossible size", f"must be 1 to 1000, not {share}", field="gpu_milli")
    if gpus > 1 and share != _WHOLE_GPU:
        raise BadRecord("impossible size", "must be 1000 for several GPUs", field="gpu_milli")
    amounts = (
        ("cpu", _whole(row, "cpu_milli")),
        ("memory", _whole(row, "memory_mib")),
        ("gpu", gpus * share),
    )
    if not any(amount for _, amount in amounts):
        raise BadRecord("impossible size", "asks for nothing: give it some cpu", field="cpu_milli")
    if not row["scheduled_time"]:
        raise BadRecord("never ran", "is empty: leave the pod out", field="scheduled_time")
    started, ended = _time(row, "scheduled_time"), _time(row, "deletion_time")
    if ended <= started:
        raise BadRecord("no runtime", "must be after scheduled_time: leave it out", field="deletion_time")
    models = _models(row, "gpu_spec")
    unit = intake.terms.unit
    return IntakeJob(
        name=row["name"],
        at=_time(row, "creation_time"),
        runtime=ended - started,
        jobspec=intake.same((amounts, models), partial(pod_jobspec, amounts, models)),
        size=dict(amounts).get("cpu" if unit == "core" else unit, 1),
        queue=row["qos"],
        succeeds=row["pod_phase"] != "Failed",
    )


def _rows(text: bytes, columns: tuple[str, ...], source: str) -> Iterator[tuple[int, _Row]]:
    """Each row with its line; the header must name all the columns."""
    lines = text.decode("utf-8-sig", "replace").replace("\0", "").splitlines()
    reader = csv.DictReader(lines, strict=False)
    given = reader.fieldnames or ()
    for column in columns:
        if column not in given:
            raise InvalidInput(f"lacks the column {column!r}: name it in the first line", where=source)
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InvalidInput(f"line {reader.line_num}: is not valid CSV ({error})", where=source) from None
        yield reader.line_num, {column: row[column] for column in columns}


def _complete(row: _Row) -> dict[str, str]:
    for column, text in row.items():
        if text is None:
            raise BadRecord("missing fields", f"is missing: write all {len(row)} columns", field=column)
    return cast("dict[str, str]", row)


def _models(row: dict[str, str], column: str) -> tuple[str, ...]:
    models = tuple(dict.fromkeys(model for model in row[column].split("|") if model))
    if any(_ILLEGAL & set(model) for model in models):
        raise BadRecord("invalid field", "must be names joined by '|'", field=column)
    return models


def _whole(row: dict[str, str], column: str) -> int:
    text = row[column].strip()
    if not (text.isascii() and text.isdigit()):
        cause = "negative number" if text.startswith("-") else "not a number"
        raise BadRecord(cause, f"must be a whole number, 0 or more, not {text[:40]!r}", field=column)
    if len(text) > 12 or int(text) > _MAX_NUMBER:
        raise BadRecord("impossible size", f"must be at most {_MAX_NUMBER}", field=column)
    return int(text)


def _time(row: dict[str, str], column: str) -> int:
    if row[column].strip().startswith("-"):
        raise BadRecord("negative time", f"must be 0 or more, not {row[column][:40]}", field=column)
    return _whole(row, column)


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
            read_swf(text, intake)
        case "openb":
            read_openb(text, intake)
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
