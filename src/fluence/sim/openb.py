"""The openb trace of a GPU cluster: a CSV of its nodes, and one of the pods that ran on them.

A node has pools of cpu (thousandths of a core), of memory (MiB) and of gpu (thousandths of a GPU), of which
a pod takes parts; its model of GPU is a property. A node's GPUs are one pool, so a share of a GPU may be made
of what is left on two of them: what is placed here is slightly more than what devices would allow.
https://github.com/alibaba/clusterdata (cluster-trace-gpu-v2023)
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias, cast

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph.graph import CONTAINMENT, Batch
from fluence.match.extensions import Extensions
from fluence.sim import requests
from fluence.sim.intake import BadRecord, Intake, IntakeJob

EXTENSIONS = Extensions(quantities=frozenset(("cpu", "memory", "gpu")))

_NODE = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD = (
    "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase",
    "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
_WHOLE_GPU = 1000
_LARGEST = 2**40
_Row: TypeAlias = dict[str, str | None]
_ILLEGAL = frozenset("!&'\"^`|()")  # in a property's name, RFC 31


def read(text: bytes, intake: Intake) -> None:
    """Hand every pod to the intake."""
    for line, row in _rows(text, _POD, intake.source):
        if intake.is_full:
            break
        intake.take(partial(_pod, row, intake), f"line {line}")


def is_nodes(text: bytes) -> bool:
    """Whether a text is the CSV of the nodes."""
    return text[:200].lstrip(b"\xef\xbb\xbf").startswith(b"sn,cpu_milli")


def nodes(text: bytes, *, source: str) -> Batch:
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
        jobspec=intake.same((amounts, models), partial(requests.pod, amounts, models)),
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
    if len(text) > 12 or int(text) > _LARGEST:
        raise BadRecord("impossible size", f"must be at most {_LARGEST}", field=column)
    return int(text)


def _time(row: dict[str, str], column: str) -> int:
    if row[column].strip().startswith("-"):
        raise BadRecord("negative time", f"must be 0 or more, not {row[column][:40]}", field=column)
    return _whole(row, column)
