"""Workloads made by a recipe: how many jobs, how they arrive, how large and how long they are.

Drawn from a generator of its own for each recipe, started with the seed and the recipe's place: the same seed
gives the same workload everywhere, and a recipe that is added changes no other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fluence.model.document import show
from fluence.sim import fields
from fluence.sim.intake import LONGEST, BadRecord

_KEYS = (
    "name", "count", "start", "arrival", "nodes", "cores", "gpus", "runtime", "overestimate", "users",
    "queue", "priority",
)  # fmt: skip
_MOST_JOBS = 1_000_000
_MOST_COUNT = 2**31
_MOST_USERS = 100_000

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


def jobs(recipe: object, *, number: int, seed: int) -> Iterator[GeneratedJob]:
    """The jobs of a recipe, by time of arrival."""
    given = fields.mapping(recipe, "", _KEYS)
    count = fields.whole(given, "count", least=1, most=_MOST_JOBS)
    if count is None:
        raise BadRecord("missing fields", "is missing: say how many jobs to make", field="count")
    sizes = {key: _sizes(given[key], key) for key in ("nodes", "cores", "gpus") if given.get(key) is not None}
    if not sizes:
        raise BadRecord("missing request", "is missing: give nodes, cores or gpus", field="nodes")
    priority = fields.whole(given, "priority", most=31)
    return _make(
        count,
        random.Random(f"{seed}/{number}"),
        name=fields.name(given, "name") or f"made{number + 1}",
        arrivals=_arrivals(given, count),
        sizes=sizes,
        runtime=_runtime(given),
        factor=_factor(given),
        users=_users(given),
        queue=fields.name(given, "queue"),
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
    start = fields.seconds(given, "start") or 0.0
    how = fields.mapping(given.get("arrival") or {}, "arrival", ("every", "poisson", "within"))
    if len(how) > 1:
        raise BadRecord("invalid field", "must be one of every, poisson and within", field="arrival")
    kind = next(iter(how), "every")
    span = fields.seconds(how, kind) or 0.0
    if start + span * (count if kind != "within" else 1) > LONGEST / 10:
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
        least = fields.as_whole(value["min"], f"{field}.min", least=1, most=_MOST_COUNT)
        most = fields.as_whole(value["max"], f"{field}.max", least=least, most=_MOST_COUNT)
        return lambda chance: chance.randint(least, most)
    if isinstance(value, dict):
        weights = [fields.number(value, key, least=0, most=1e9) or 0.0 for key in value]
        if not sum(weights) > 0:
            raise BadRecord("invalid field", "must have a weight above 0", field=field)
        numbers = [fields.as_whole(key, field, least=1, most=_MOST_COUNT) for key in value]
        return lambda chance: chance.choices(numbers, weights)[0]
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise BadRecord("invalid field", "must not be empty", field=field)
    choices = [fields.as_whole(item, field, least=1, most=_MOST_COUNT) for item in listed]
    return lambda chance: chance.choice(choices)


def _runtime(given: Mapping[str, object]) -> _Draw:
    """A time, or a log-normal distribution: {median, sigma, max}."""
    value = given.get("runtime")
    if value is None:
        raise BadRecord("no runtime", "is missing: give a time, or median and sigma", field="runtime")
    if not isinstance(value, dict):
        fixed = fields.seconds(given, "runtime", least=0.001) or 0.001
        return lambda _: fixed
    how = fields.mapping(value, "runtime", ("median", "sigma", "max"))
    median = fields.seconds(how, "median", least=0.001)
    if median is None:
        raise BadRecord("no runtime", "is missing: half of the jobs take less", field="runtime.median")
    sigma = fields.number(how, "sigma", least=0, most=10)
    sigma = 1.0 if sigma is None else sigma
    longest = fields.seconds(how, "max", least=0.001) or LONGEST / 100
    return lambda chance: min(longest, max(0.001, _tidy(chance.lognormvariate(math.log(median), sigma))))


def _factor(given: Mapping[str, object]) -> _Draw | None:
    """How many times their runtime jobs ask for: a number, or {min, max}; None if they state no limit."""
    value = given.get("overestimate")
    if value is None:
        return None
    if not isinstance(value, dict):
        fixed = fields.number(given, "overestimate", least=1, most=1000) or 1.0
        return lambda _: fixed
    how = fields.mapping(value, "overestimate", ("min", "max"))
    least = fields.number(how, "min", least=1, most=1000) or 1.0
    most = fields.number(how, "max", least=least, most=1000)
    if most is None:
        raise BadRecord("invalid field", "is missing: give the largest factor", field="overestimate.max")
    return lambda chance: chance.uniform(least, most)


def _users(given: Mapping[str, object]) -> list[str]:
    """How many, or their names."""
    value = given.get("users")
    if value is None:
        return [""]
    if isinstance(value, list) and value:
        return [fields.as_name(item, "users") for item in value]
    if isinstance(value, list | dict):
        raise BadRecord(
            "invalid field", f"must be a number or a list of names, not {show(value)}", field="users"
        )
    return [f"user{i + 1}" for i in range(fields.as_whole(value, "users", least=1, most=_MOST_USERS))]


def _tidy(seconds: float) -> float:
    return round(seconds, 3)  # what is written down can be read again
