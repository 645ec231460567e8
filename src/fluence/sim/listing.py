"""Workloads that people write: a list of jobs in YAML or JSON, or a job per line in JSON.

A job says when it arrives (`at`), how long it runs and what it asks for: simply, as nodes, cores and gpus, or
as a jobspec, inline or in a file beside the list. `docs/simulate.md` has every field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast, get_args

import yaml

from fluence.errors import InvalidInput, InvalidJobspec
from fluence.model import constraint as constraints
from fluence.model.constraint import Constraint
from fluence.model.document import read as read_document
from fluence.model.document import show
from fluence.model.jobspec import Jobspec, JobspecResource
from fluence.sim import fields, generate, requests
from fluence.sim.intake import BadRecord, Intake, IntakeJob
from fluence.sim.submission import Dependency
from fluence.yaml_loader import compose

_KEYS = (
    "name", "at", "runtime", "limit", "soft_limit", "jobspec", "nodes", "cores", "gpus", "constraint", "user",
    "queue", "priority", "after", "array", "succeeds",
)  # fmt: skip
_MOST_COUNT = 2**31
_URGENCY = 31  # the highest in Flux


def read(text: bytes, intake: Intake) -> None:
    """Hand every job of a list, and all that its recipes make, to the intake."""
    source = intake.source
    document = _decoded(text, source)
    if isinstance(document, list):
        document = {"jobs": document}
    if not isinstance(document, dict) or not {"jobs", "generate"} & document.keys():
        raise InvalidInput("must have a list 'jobs' or 'generate'; docs/simulate.md shows one", where=source)
    for key in document:
        if key not in ("jobs", "generate"):
            raise InvalidInput(f"has the unknown key {show(key)}: use jobs and generate", where=source)
    jobs, recipes = document.get("jobs") or [], document.get("generate") or []
    if isinstance(recipes, dict):
        recipes = [recipes]
    for key, items in (("jobs", jobs), ("generate", recipes)):
        if not isinstance(items, list):
            raise InvalidInput(f"{key}: must be a list, not {show(items)}", where=source)
    intake.keeps_order = False
    for i, item in enumerate(jobs):
        intake.take(partial(_job, item, i, intake), partial(_place, text, i))
    for i, item in enumerate(recipes):
        # NB a recipe is not a record: one that is wrong is refused, strict or not.
        try:
            made = generate.jobs(item, number=i, seed=intake.terms.seed)
        except BadRecord as bad:
            raise InvalidInput(f"generate[{i}]: {bad}", where=source) from None
        for given in made:
            intake.take(partial(_generated, given, intake), f"generate[{i}]")


def read_lines(text: bytes, intake: Intake) -> None:
    """Hand the job of every line to the intake."""
    intake.keeps_order = False
    for i, line in enumerate(text.splitlines()):
        if line.strip():
            intake.take(partial(_line, line, i, intake), f"line {i + 1}")


def _decoded(text: bytes, source: str) -> object:
    try:
        return read_document(text, source)
    except InvalidJobspec as error:  # the reader is that of jobspecs, and so is its fault
        raise InvalidInput(str(error)) from None


def _line(line: bytes, number: int, intake: Intake) -> IntakeJob:
    try:
        item = read_document(line, "job")
    except InvalidJobspec as error:
        raise BadRecord("not JSON", str(error).removeprefix("job: ")) from None
    return _job(item, number, intake)


def _job(item: object, number: int, intake: Intake) -> IntakeJob:
    given = fields.mapping(item, "", _KEYS)
    jobspec, size, limit, queue = _request(given, intake)
    stated = fields.seconds(given, "limit")
    limit = limit if stated is None else stated
    runtime = fields.seconds(given, "runtime")
    if runtime is None:
        runtime = limit
    if runtime is None:
        raise BadRecord("no runtime", "is missing: say how many seconds the job runs", field="runtime")
    priority = fields.whole(given, "priority", most=_URGENCY)
    return IntakeJob(
        name=fields.name(given, "name") or f"job{number + 1}",
        at=fields.seconds(given, "at") or 0.0,
        runtime=runtime,
        jobspec=jobspec,
        size=size,
        limit=limit,
        soft_limit=fields.seconds(given, "soft_limit"),
        user=fields.name(given, "user"),
        queue=fields.name(given, "queue") or queue,
        priority=16 if priority is None else priority,
        after=_after(given.get("after")),
        tasks=fields.whole(given, "array", least=1, most=_MOST_COUNT) or 1,
        succeeds=fields.truth(given, "succeeds", default=True),
    )


def _generated(made: generate.GeneratedJob, intake: Intake) -> IntakeJob:
    jobspec, size = _simple(made.nodes, made.cores, made.gpus, None, intake)
    return IntakeJob(
        name=made.name,
        at=made.at,
        runtime=made.runtime,
        jobspec=jobspec,
        size=size,
        limit=made.limit,
        user=made.user,
        queue=made.queue,
        priority=made.priority,
    )


# What a job asks for.


def _request(given: dict[str, object], intake: Intake) -> tuple[Jobspec, int, float | None, str]:
    """The request of a job, its size, and the limit and queue that a jobspec names."""
    nodes, cores, gpus = (
        fields.whole(given, key, least=1, most=_MOST_COUNT) or 0 for key in ("nodes", "cores", "gpus")
    )
    if given.get("jobspec") is None:
        constraint = _constraint(given["constraint"]) if given.get("constraint") is not None else None
        jobspec, size = _simple(nodes, cores, gpus, constraint, intake)
        return jobspec, size, None, ""
    if nodes or cores or gpus or given.get("constraint") is not None:
        raise BadRecord("invalid field", "is given beside nodes, cores, gpus or constraint", field="jobspec")
    found = _jobspec(given["jobspec"], intake)
    attributes = found.attributes
    bare = replace(found, attributes=replace(attributes, duration=None))
    size = sum(_units(resource, intake) for resource in bare.resources)
    limit = attributes.duration or None  # NB 0 means: as long as the graph lasts
    return intake.same(bare.to_json(), lambda: bare), size, limit, attributes.queue or ""


def _simple(
    nodes: int, cores: int, gpus: int, constraint: Constraint | None, intake: Intake
) -> tuple[Jobspec, int]:
    if not (nodes or cores or gpus):
        raise BadRecord("missing request", "is missing: give nodes, cores, gpus or a jobspec", field="nodes")
    make: Callable[[], Jobspec]
    if not nodes and not (cores and gpus) and constraint is None:
        count, unit = (cores, "core") if cores else (gpus, "gpu")
        make = partial(requests.processors, count, unit)
    else:
        make = partial(requests.nodes, nodes or 1, cores=cores, gpus=gpus, constraint=constraint)
    jobspec = intake.same((nodes, cores, gpus, constraint), make)
    return jobspec, sum(_units(resource, intake) for resource in jobspec.resources)


def _jobspec(value: object, intake: Intake) -> Jobspec:
    try:
        if isinstance(value, dict):
            return Jobspec.from_value(value)
        name = fields.as_name(value, "jobspec")
        path = Path(intake.source).parent / name
        try:
            text = path.read_bytes()
        except OSError as error:
            raise BadRecord(
                "invalid jobspec", f"{name} cannot be read: {error.strerror}", field="jobspec"
            ) from None
        return Jobspec.parse(text, source=name)
    except InvalidJobspec as error:
        raise BadRecord("invalid jobspec", str(error)) from None


def _units(resource: JobspecResource, intake: Intake) -> int:
    """How many units a resource holds at least, a whole node counted with all that is in it."""
    count, unit = resource.count.min, intake.terms.unit
    if resource.type == unit:
        return count
    below = sum(_units(child, intake) for child in resource.with_)
    if resource.type == "node" and (resource.exclusive or not resource.with_):
        return count * max(below, intake.terms.node_size)
    return count * below


def _constraint(value: object) -> Constraint:
    try:
        return constraints.parse(value)
    except InvalidJobspec as error:
        raise BadRecord("invalid field", str(error)) from None


def _after(value: object) -> tuple[tuple[Dependency, str], ...]:
    """`afterok:NAME`, `afterany:NAME`, `singleton`, or a list of them."""
    if value is None:
        return ()
    found: list[tuple[Dependency, str]] = []
    for item in value if isinstance(value, list) else [value]:
        kind, _, name = fields.as_name(item, "after").partition(":")
        if kind not in get_args(Dependency) or (kind == "singleton") == bool(name):
            raise BadRecord(
                "invalid field",
                f"must be afterok:NAME, afterany:NAME or singleton, not {show(item)}",
                field="after",
            )
        found.append((cast(Dependency, kind), name))
    return tuple(found)


def _place(text: bytes, index: int) -> str:
    """Where a job stands in the document; only looked up when it is asked for, by reading it again."""
    try:
        root = compose(text.decode("utf-8-sig"))
    except yaml.YAMLError:  # JSON that is not valid YAML: tabs in it
        return f"jobs[{index}]"
    if isinstance(root, yaml.MappingNode):
        root = next((value for key, value in root.value if key.value == "jobs"), None)
    if not isinstance(root, yaml.SequenceNode):
        return f"jobs[{index}]"
    return f"line {root.value[index].start_mark.line + 1}: jobs[{index}]"
