"""Workloads that people write: a list of jobs in YAML or JSON, one job per line in JSON, or a recipe for
many.

A job has its arrival (`at`), its run time and its request: nodes, cores and gpus, or a jobspec, inline or in
a file next to the list. `docs/simulate.md` has every field. A recipe has the number of jobs, their arrivals,
sizes and run times. Each recipe has its own random generator, which starts with the seed and the place of the
recipe: the same seed gives the same workload everywhere, and adding a recipe does not change the others.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn, cast, get_args

import yaml

from fluence.errors import InvalidInput, InvalidJobspec
from fluence.model import constraint as constraints
from fluence.model.constraint import Constraint
from fluence.model.document import integer, real, scalar, show
from fluence.model.document import read as read_document
from fluence.model.jobspec import Jobspec, JobspecResource
from fluence.sim.intake import (
    MAX_SECONDS,
    BadRecord,
    Dependency,
    Intake,
    IntakeJob,
    nodes_jobspec,
    processors_jobspec,
)
from fluence.yaml_loader import compose

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9.eE+-]+?)\s*(ms|[smhd])")
_MAX_NUMBER = 2**40


def mapping(value: object, field: str, keys: Sequence[str]) -> dict[str, object]:
    """A mapping that has no other keys than these."""
    if not isinstance(value, dict):
        _fail("invalid field", f"must be a mapping, not {show(value)}", field)
    for key in value:
        if key not in keys:
            _fail(
                "unknown field", f"is not a field here: use {', '.join(keys)}", f"{field} {show(key)}".strip()
            )
    return value


def seconds(given: Mapping[str, object], field: str, *, least: float = 0) -> float | None:
    """A time: a number of seconds, or Flux's way to write one, such as 30m, 2h or 1.5d (RFC 23)."""
    value = given.get(field)
    if value is None:
        return None
    text = scalar(value)
    match = None if text is None else _DURATION.fullmatch(text.strip())
    number = real(text if match is None else match[1]) if text is not None else None
    if number is None or not math.isfinite(number):
        _fail("not a number", f"must be seconds, or a time such as 30m or 2h, not {show(value)}", field)
    number *= 1 if match is None else _UNITS[match[2]]
    if number < 0:
        _fail("negative time", f"must be 0 or more seconds, not {show(value)}", field)
    if not least <= number <= MAX_SECONDS:
        _fail("impossible time", f"must be {least:g} to {MAX_SECONDS} seconds, not {show(value)}", field)
    return number


def whole(given: Mapping[str, object], field: str, *, least: int = 0, most: int = _MAX_NUMBER) -> int | None:
    """A whole number."""
    return None if given.get(field) is None else as_whole(given[field], field, least=least, most=most)


def as_whole(value: object, field: str, *, least: int = 0, most: int = _MAX_NUMBER) -> int:
    text = scalar(value)
    number = None if text is None else integer(text)
    if number is None:
        _fail("not a number", f"must be a whole number, not {show(value)}", field)
    if not least <= number <= most:
        _fail("impossible size", f"must be {least} to {most}, not {show(value)}", field)
    return number


def number(given: Mapping[str, object], field: str, *, least: float, most: float) -> float | None:
    """A number that may have a fraction."""
    value = given.get(field)
    if value is None:
        return None
    text = scalar(value)
    amount = None if text is None else real(text)
    if amount is None:
        _fail("not a number", f"must be a number, not {show(value)}", field)
    if not least <= amount <= most:
        _fail("invalid field", f"must be {least:g} to {most:g}, not {show(value)}", field)
    return amount


def name(given: Mapping[str, object], field: str) -> str:
    """Text, or nothing."""
    return "" if given.get(field) is None else as_name(given[field], field)


def as_name(value: object, field: str) -> str:
    text = scalar(value)
    if text is None or len(text) > 256 or not text.isprintable():
        _fail("invalid field", f"must be a short text on one line, not {show(value)}", field)
    return str(text)


def truth(given: Mapping[str, object], field: str, *, default: bool) -> bool:
    """true or false."""
    value = given.get(field)
    if value is None:
        return default
    text = scalar(value)
    if text not in ("true", "false"):
        _fail("invalid field", f"must be true or false, not {show(value)}", field)
    return text == "true"


def _fail(cause: str, message: str, field: str) -> NoReturn:
    raise BadRecord(cause, message, field=field)


_RECIPE_KEYS = (
    "name", "count", "start", "arrival", "nodes", "cores", "gpus", "runtime", "overestimate", "users",
    "queue", "priority",
)  # fmt: skip
_MAX_JOBS = 1_000_000
_MAX_COUNT = 2**31
_MAX_USERS = 100_000

_Draw = Callable[[random.Random], float]


@dataclass(frozen=True, slots=True)
class GeneratedJob:
    """A job that a recipe made."""

    name: str
    at: float
    runtime: float
    limit: float | None
    nodes: int
    cores: int
    gpus: int
    user: str
    queue: str
    priority: int


def generate_jobs(recipe: object, *, number: int, seed: int) -> Iterator[GeneratedJob]:
    """The jobs of a recipe, by time of arrival."""
    given = mapping(recipe, "", _RECIPE_KEYS)
    count = whole(given, "count", least=1, most=_MAX_JOBS)
    if count is None:
        raise BadRecord("missing fields", "is missing: say how many jobs to make", field="count")
    sizes = {key: _sizes(given[key], key) for key in ("nodes", "cores", "gpus") if given.get(key) is not None}
    if not sizes:
        raise BadRecord("missing request", "is missing: give nodes, cores or gpus", field="nodes")
    priority = whole(given, "priority", most=31)
    return _make(
        count,
        random.Random(f"{seed}/{number}"),
        name=name(given, "name") or f"made{number + 1}",
        arrivals=_arrivals(given, count),
        sizes=sizes,
        runtime=_runtime(given),
        factor=_factor(given),
        users=_users(given),
        queue=name(given, "queue"),
        priority=16 if priority is None else priority,
    )


def _make(
    count: int, chance: random.Random, *, name: str, arrivals: Callable[[random.Random], list[float]],
    sizes: Mapping[str, _Draw], runtime: _Draw, factor: _Draw | None, users: list[str], queue: str,
    priority: int,
) -> Iterator[GeneratedJob]:  # fmt: skip
    for i, at in enumerate(arrivals(chance)):
        takes = runtime(chance)
        drawn = {key: int(draw(chance)) for key, draw in sizes.items()}
        yield GeneratedJob(
            name=f"{name}-{i + 1}",
            at=at,
            runtime=takes,
            limit=None if factor is None else float(math.ceil(takes * factor(chance))),
            nodes=drawn.get("nodes", 0),
            cores=drawn.get("cores", 0),
            gpus=drawn.get("gpus", 0),
            user=chance.choice(users),
            queue=queue,
            priority=priority,
        )


def _arrivals(given: Mapping[str, object], count: int) -> Callable[[random.Random], list[float]]:
    """`every`: at equal distances; `poisson`: with that mean distance; `within`: anywhere in that time."""
    start = seconds(given, "start") or 0.0
    how = mapping(given.get("arrival") or {}, "arrival", ("every", "poisson", "within"))
    if len(how) > 1:
        raise BadRecord("invalid field", "must be one of every, poisson and within", field="arrival")
    kind = next(iter(how), "every")
    span = seconds(how, kind) or 0.0
    if start + span * (count if kind != "within" else 1) > MAX_SECONDS / 10:
        raise BadRecord("impossible time", "spreads the jobs over decades: make it shorter", field="arrival")

    def every(_: random.Random) -> list[float]:
        return [start + i * span for i in range(count)]

    def poisson(chance: random.Random) -> list[float]:
        at, times = start, []
        for _ in range(count):
            at += _tidy(chance.expovariate(1 / span)) if span else 0
            times.append(_tidy(at))
        return times

    def within(chance: random.Random) -> list[float]:
        return sorted(_tidy(start + chance.random() * span) for _ in range(count))

    return {"every": every, "poisson": poisson, "within": within}[kind]


def _sizes(value: object, field: str) -> _Draw:
    """A number, a list of them, {min, max}, or numbers with their weights."""
    if isinstance(value, dict) and {"min", "max"} == value.keys():
        least = as_whole(value["min"], f"{field}.min", least=1, most=_MAX_COUNT)
        most = as_whole(value["max"], f"{field}.max", least=least, most=_MAX_COUNT)
        return lambda chance: chance.randint(least, most)
    if isinstance(value, dict):
        weights = [number(value, key, least=0, most=1e9) or 0.0 for key in value]
        if not sum(weights) > 0:
            raise BadRecord("invalid field", "must have a weight above 0", field=field)
        numbers = [as_whole(key, field, least=1, most=_MAX_COUNT) for key in value]
        return lambda chance: chance.choices(numbers, weights)[0]
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise BadRecord("invalid field", "must not be empty", field=field)
    choices = [as_whole(item, field, least=1, most=_MAX_COUNT) for item in listed]
    return lambda chance: chance.choice(choices)


def _runtime(given: Mapping[str, object]) -> _Draw:
    """A time, or a log-normal distribution: {median, sigma, max}."""
    value = given.get("runtime")
    if value is None:
        raise BadRecord("no runtime", "is missing: give a time, or median and sigma", field="runtime")
    if not isinstance(value, dict):
        fixed = seconds(given, "runtime", least=0.001) or 0.001
        return lambda _: fixed
    how = mapping(value, "runtime", ("median", "sigma", "max"))
    median = seconds(how, "median", least=0.001)
    if median is None:
        raise BadRecord("no runtime", "is missing: half of the jobs take less", field="runtime.median")
    sigma = number(how, "sigma", least=0, most=10)
    sigma = 1.0 if sigma is None else sigma
    longest = seconds(how, "max", least=0.001) or MAX_SECONDS / 100
    return lambda chance: min(longest, max(0.001, _tidy(chance.lognormvariate(math.log(median), sigma))))


def _factor(given: Mapping[str, object]) -> _Draw | None:
    """The limit of jobs as a multiple of their runtime: a number, or {min, max}; None if they have no
    limit."""
    value = given.get("overestimate")
    if value is None:
        return None
    if not isinstance(value, dict):
        fixed = number(given, "overestimate", least=1, most=1000) or 1.0
        return lambda _: fixed
    how = mapping(value, "overestimate", ("min", "max"))
    least = number(how, "min", least=1, most=1000) or 1.0
    most = number(how, "max", least=least, most=1000)
    if most is None:
        raise BadRecord("invalid field", "is missing: give the largest factor", field="overestimate.max")
    return lambda chance: chance.uniform(least, most)


def _users(given: Mapping[str, object]) -> list[str]:
    """How many, or their names."""
    value = given.get("users")
    if value is None:
        return [""]
    if isinstance(value, list) and value:
        return [as_name(item, "users") for item in value]
    if isinstance(value, list | dict):
        raise BadRecord(
            "invalid field", f"must be a number or a list of names, not {show(value)}", field="users"
        )
    return [f"user{i + 1}" for i in range(as_whole(value, "users", least=1, most=_MAX_USERS))]


def _tidy(seconds: float) -> float:
    return round(seconds, 3)  # written values can be read again exactly


_KEYS = (
    "name", "at", "runtime", "limit", "soft_limit", "jobspec", "nodes", "cores", "gpus", "constraint", "user",
    "queue", "priority", "after", "array", "succeeds",
)  # fmt: skip
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
            made = generate_jobs(item, number=i, seed=intake.terms.seed)
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
    given = mapping(item, "", _KEYS)
    jobspec, size, limit, queue = _request(given, intake)
    stated = seconds(given, "limit")
    limit = limit if stated is None else stated
    runtime = seconds(given, "runtime")
    if runtime is None:
        runtime = limit
    if runtime is None:
        raise BadRecord("no runtime", "is missing: say how many seconds the job runs", field="runtime")
    priority = whole(given, "priority", most=_URGENCY)
    return IntakeJob(
        name=name(given, "name") or f"job{number + 1}",
        at=seconds(given, "at") or 0.0,
        runtime=runtime,
        jobspec=jobspec,
        size=size,
        limit=limit,
        soft_limit=seconds(given, "soft_limit"),
        user=name(given, "user"),
        queue=name(given, "queue") or queue,
        priority=16 if priority is None else priority,
        after=_after(given.get("after")),
        tasks=whole(given, "array", least=1, most=_MAX_COUNT) or 1,
        succeeds=truth(given, "succeeds", default=True),
    )


def _generated(made: GeneratedJob, intake: Intake) -> IntakeJob:
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


# The request of a job.


def _request(given: dict[str, object], intake: Intake) -> tuple[Jobspec, int, float | None, str]:
    """The request of a job, its size, and the limit and queue that a jobspec names."""
    nodes, cores, gpus = (
        whole(given, key, least=1, most=_MAX_COUNT) or 0 for key in ("nodes", "cores", "gpus")
    )
    if given.get("jobspec") is None:
        constraint = _constraint(given["constraint"]) if given.get("constraint") is not None else None
        jobspec, size = _simple(nodes, cores, gpus, constraint, intake)
        return jobspec, size, None, ""
    if nodes or cores or gpus or given.get("constraint") is not None:
        raise BadRecord("invalid field", "is given beside nodes, cores, gpus or constraint", field="jobspec")
    spec = _jobspec(given["jobspec"], intake)
    attributes = spec.attributes
    bare = replace(spec, attributes=replace(attributes, duration=None))
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
        make = partial(processors_jobspec, count, unit)
    else:
        make = partial(nodes_jobspec, nodes or 1, cores=cores, gpus=gpus, constraint=constraint)
    jobspec = intake.same((nodes, cores, gpus, constraint), make)
    return jobspec, sum(_units(resource, intake) for resource in jobspec.resources)


def _jobspec(value: object, intake: Intake) -> Jobspec:
    try:
        if isinstance(value, dict):
            return Jobspec.from_value(value)
        name = as_name(value, "jobspec")
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
    dependencies: list[tuple[Dependency, str]] = []
    for item in value if isinstance(value, list) else [value]:
        kind, _, name = as_name(item, "after").partition(":")
        if kind not in get_args(Dependency) or (kind == "singleton") == bool(name):
            raise BadRecord(
                "invalid field",
                f"must be afterok:NAME, afterany:NAME or singleton, not {show(item)}",
                field="after",
            )
        dependencies.append((cast(Dependency, kind), name))
    return tuple(dependencies)


def _place(text: bytes, index: int) -> str:
    """The place of a job in the document; only found when it is needed, by reading the document again."""
    try:
        root = compose(text.decode("utf-8-sig"))
    except yaml.YAMLError:  # JSON that is not valid YAML: tabs in it
        return f"jobs[{index}]"
    if isinstance(root, yaml.MappingNode):
        root = next((value for key, value in root.value if key.value == "jobs"), None)
    if not isinstance(root, yaml.SequenceNode):
        return f"jobs[{index}]"
    return f"line {root.value[index].start_mark.line + 1}: jobs[{index}]"
