"""The Standard Workload Format: one line of 18 numbers per job, comments after a semicolon.

The rules are those of the reference results: a record without runtime or processors is not a job, and the
limit is the larger of the requested time and the runtime, since what ran longer must have been let.
https://www.cs.huji.ac.il/labs/parallel/workload/swf.html
"""

from __future__ import annotations

import math
import re
from functools import partial

from fluence.model.jobspec import MAX_COUNT
from fluence.sim import requests
from fluence.sim.intake import BadRecord, Intake, IntakeJob

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors", "average CPU time",
    "used memory", "requested processors", "requested time", "requested memory", "status", "user", "group",
    "application", "queue", "partition", "preceding job", "think time",
)  # fmt: skip

_SIZE = re.compile(r";\s*(MaxProcs|MaxNodes)\s*:\s*([0-9]{1,10})\b", re.IGNORECASE)
_FAILED = 0
_UNKNOWN = "-1"


def read(text: bytes, intake: Intake) -> None:
    """Hand every record of a log to the intake."""
    sizes: dict[str, int] = {}
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), 1):
        if line.lstrip().startswith(";"):
            found = _SIZE.match(line.lstrip())
            if found is not None:
                sizes.setdefault(found[1].lower(), int(found[2]))
            continue
        fields = line.split()
        if not fields:
            continue
        if intake.is_full:
            break
        intake.take(partial(_record, fields, intake), f"line {number}")
    intake.processors = sizes.get("maxprocs") or sizes.get("maxnodes") or None


def _record(fields: list[str], intake: Intake) -> IntakeJob:
    # NB some logs have more fields, such as the names of nodes; those have no meaning here.
    if len(fields) < len(FIELDS):
        raise BadRecord(
            "missing fields",
            f"has {len(fields)} of {len(FIELDS)} fields: fill the unknown ones with -1",
            field=FIELDS[len(fields)],
        )
    number = _whole(fields, 0)
    if number < 0:
        raise BadRecord("no job number", f"must be 0 or more, not {number}", field=FIELDS[0])
    runtime = _number(fields, 3)
    if runtime <= 0:
        raise BadRecord(
            "no runtime", f"must be more than 0, not {fields[3]}: leave the record out", field=FIELDS[3]
        )
    size = _whole(fields, 4)
    if size <= 0:
        size = _whole(fields, 7)
    if size <= 0:
        raise BadRecord(
            "no processors", f"must be more than 0, not {size}: leave the record out", field=FIELDS[4]
        )
    if size > MAX_COUNT:
        raise BadRecord("impossible size", f"must be at most {MAX_COUNT}, not {size}", field=FIELDS[4])
    unit = intake.terms.unit
    return IntakeJob(
        name=str(number),
        at=_number(fields, 1),
        runtime=runtime,
        jobspec=intake.same(size, partial(requests.processors, size, unit)),
        size=size * (requests.CPU_PER_CORE if unit == "cpu" else 1),
        limit=max(_number(fields, 8), runtime),
        user=_name(fields[11]),
        queue=_name(fields[14]),
        succeeds=_number(fields, 10) != _FAILED,
    )


def _number(fields: list[str], at: int) -> float:
    try:
        number = float(fields[at])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRecord(
            "not a number", f"must be a number, not {fields[at][:40]!r}: correct it", field=FIELDS[at]
        )
    return number


def _whole(fields: list[str], at: int) -> int:
    number = _number(fields, at)
    if number != int(number):
        raise BadRecord("not a number", f"must be a whole number, not {fields[at][:40]}", field=FIELDS[at])
    return int(number)


def _name(field: str) -> str:
    return "" if field == _UNKNOWN else field
