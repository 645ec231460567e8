"""A jobspec: which resources a job needs, how many, for how long and under which constraints (RFC 14).

It accepts and rejects the same documents as Fluxion, with the same meaning. An error names the place in the
document and what to change. `tasks` is checked and kept, but not used for matching.

    Jobspec
    ├── resources   a forest of Resource: type, Count, and the resources below each one (`with_`)
    ├── tasks       Task
    └── attributes  duration, queue, constraints, …
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, cast

from fluence.errors import InvalidInput, InvalidJobspec
from fluence.model import constraint, idset
from fluence.model.constraint import Constraint
from fluence.model.document import (
    JsonValue,
    Quoted,
    check,
    child,
    integer,
    place,
    read,
    real,
    resolve,
    scalar,
    show,
    write_yaml,
)

__all__ = ["MAX_COUNT", "Count", "Jobspec", "JobspecAttributes", "JobspecResource", "Task"]


MAX_COUNT = 2**32 - 1

Operator = Literal["+", "*", "^"]


@dataclass(frozen=True, slots=True)
class Count:
    """The counts `min`, then each the last one *operator* *operand*, up to `max`.

    A plain number n is ``Count(n, n)``; ``Count(n)`` is n or more.
    """

    min: int
    max: int = MAX_COUNT
    operator: Operator = "+"
    operand: int = 1

    def effective(self, available: int) -> int:
        """The largest count not over *available*; 0 when even `min` is over it."""
        limit = min(available, self.max)
        if self.min > limit:
            return 0
        if self.operator == "+":
            return limit - (limit - self.min) % self.operand
        best = self.min
        if self.operand < 2 or best < 1 or (self.operator == "^" and best < 2):
            return best  # no growth; the reader refuses these
        while True:
            if self.operator == "*":
                following = best * self.operand
            elif self.operand * (best.bit_length() - 1) >= limit.bit_length():
                return best  # over the limit for certain, and too large to compute
            else:
                following = best**self.operand
            if following > limit:
                return best
            best = following

    @property
    def maximum(self) -> int:
        """The largest count of all."""
        return self.effective(self.max)

    @property
    def is_fixed(self) -> bool:
        return self.min == self.max

    def to_value(self) -> int | dict[str, int | str]:
        """As a jobspec says it, in the shortest form."""
        if (self.operator, self.operand) == ("+", 1):
            if self.min == self.max:
                return self.min
            if self.max == MAX_COUNT:
                return {"min": self.min}
        return {"min": self.min, "max": self.max, "operator": self.operator, "operand": self.operand}


MAX_VERSION = 9999
_MAX_SERIES = 4096

_TOP_KEYS = ("version", "resources", "tasks", "attributes")
_RESOURCE_KEYS = ("type", "count", "unit", "exclusive", "with", "label", "id")
_TASK_KEYS = ("command", "slot", "count", "distribution", "attributes")
_SYSTEM_KEYS = ("duration", "queue", "cwd", "environment", "constraints")
_RANGE_TEXT = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})|\+)(?::([0-9]{1,10})(?::([+*^]))?)?")


@dataclass(frozen=True, slots=True)
class JobspecResource:
    """A request for *count* vertices of one type, or for *count* slots."""

    type: str
    count: Count
    unit: str | None = None
    exclusive: bool | None = None
    label: str | None = None
    id: str | None = None
    with_: tuple[JobspecResource, ...] = ()

    @property
    def is_slot(self) -> bool:
        return self.type == "slot"

    def to_value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {"type": self.type, "count": cast(JsonValue, self.count.to_value())}
        for key in ("unit", "exclusive", "label", "id"):
            if (given := getattr(self, key)) is not None:
                value[key] = given
        if self.with_:
            value["with"] = [r.to_value() for r in self.with_]
        return value


@dataclass(frozen=True, slots=True)
class Task:
    """What runs in a slot; `count` is one pair such as ("per_slot", "1")."""

    command: tuple[str, ...]
    slot: str
    count: tuple[str, str] | None = None
    distribution: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    other: Mapping[str, JsonValue] = field(default_factory=dict, hash=False)
    """Unknown keys; Fluxion ignores them."""

    def to_value(self) -> dict[str, JsonValue]:
        value: dict[str, JsonValue] = {"command": list(self.command), "slot": self.slot}
        if self.count is not None:
            key, number = self.count
            value["count"] = {key: int(number) if re.fullmatch(r"0|[1-9][0-9]{0,17}", number) else number}
        if self.distribution is not None:
            value["distribution"] = self.distribution
        if self.attributes:
            value["attributes"] = dict(self.attributes)
        return value | _thaw(self.other)


@dataclass(frozen=True, slots=True)
class JobspecAttributes:
    """The other attributes of a job; `other` has the system keys that are not listed here."""

    duration: float | None = None
    """Seconds; None and 0 both mean: as long as the graph lasts."""
    queue: str | None = None
    cwd: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    constraints: Constraint | None = None
    other: Mapping[str, JsonValue] = field(default_factory=dict, hash=False)
    user: JsonValue = field(default=None, hash=False)

    def to_value(self) -> dict[str, JsonValue]:
        system: dict[str, JsonValue] = {}
        if self.duration is not None:
            system["duration"] = self.duration
        if self.queue is not None:
            system["queue"] = self.queue
        if self.cwd is not None:
            system["cwd"] = self.cwd
        if self.environment:
            system["environment"] = dict(self.environment)
        if self.constraints is not None:
            system["constraints"] = self.constraints.to_value()
        system |= _thaw(self.other)
        value: dict[str, JsonValue] = {"system": system} if system else {}
        if self.user is not None:
            value["user"] = _copy(self.user)
        return value


@dataclass(frozen=True, slots=True)
class Jobspec:
    """A whole jobspec."""

    resources: tuple[JobspecResource, ...]
    tasks: tuple[Task, ...] = ()
    attributes: JobspecAttributes = JobspecAttributes()
    version: int = 1

    @classmethod
    def parse(cls, text: str | bytes, *, source: str = "jobspec", extensions: bool = False) -> Jobspec:
        """Read YAML or JSON; *source* is what errors call the document.

        *extensions* allows what RFC 14 has and Fluxion lacks: counts written as text (`2-8`, `2+`,
        `2-64:2:*`, `2,4,8`) and `max` without an operator.
        """
        return _jobspec(read(text, source), source, extensions)

    @classmethod
    def from_value(cls, value: object, *, source: str = "jobspec", extensions: bool = False) -> Jobspec:
        """Read data that is already decoded: dicts, lists, text, numbers, booleans and None."""
        check(value, source)
        return _jobspec(value, source, extensions)

    def duration_s(self, graph_duration: int) -> int:
        """How long the job runs, in whole seconds, on a graph that lasts *graph_duration* seconds."""
        duration = self.attributes.duration
        if duration is None or duration == 0:
            return graph_duration
        where = "attributes.system.duration"
        if not duration > 0:
            raise InvalidJobspec(f"must be 0 or more seconds, not {duration:g}", where=where)
        if duration > graph_duration:
            raise InvalidJobspec(
                f"{duration:g} s is longer than the graph lasts; ask for {graph_duration} s or less",
                where=where,
            )
        return math.ceil(duration)

    def to_value(self) -> dict[str, JsonValue]:
        return {
            "version": self.version,
            "resources": [r.to_value() for r in self.resources],
            "tasks": [t.to_value() for t in self.tasks],
            "attributes": self.attributes.to_value(),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_value())

    def to_yaml(self) -> str:
        value = self.to_value()
        if self.attributes.constraints is not None:  # Fluxion wants its properties in quotes
            system = cast(dict[str, JsonValue], cast(dict[str, JsonValue], value["attributes"])["system"])
            system["constraints"] = _quote(system["constraints"])
        return write_yaml(value)


# Reading. Each function takes a value and its place in the document.


def _jobspec(value: object, source: str, extensions: bool) -> Jobspec:
    if not isinstance(value, dict):
        _fail(source, f"must be a mapping with {', '.join(_TOP_KEYS)}, not {show(value)}")
    for key in _TOP_KEYS:
        if key not in value:
            _fail(source, f"lacks {key!r}; a jobspec has {', '.join(_TOP_KEYS)}")
    _refuse_unknown(value, _TOP_KEYS, source)
    version = _whole(value["version"], place(source, "version"), highest=2**32 - 1)
    if not 1 <= version <= MAX_VERSION:
        _fail(place(source, "version"), f"must be 1 to {MAX_VERSION}, not {version}")
    return Jobspec(
        version=version,
        attributes=_attributes(value["attributes"], place(source, "attributes")),
        resources=_resources(value["resources"], place(source, "resources"), extensions),
        tasks=_tasks(value["tasks"], place(source, "tasks")),
    )


def _resources(value: object, where: str, extensions: bool) -> tuple[JobspecResource, ...]:
    if not isinstance(value, list | tuple):
        _fail(where, f"must be a list of resources, not {show(value)}; start each with '-'")
    return tuple(_resource(item, child(where, i), extensions) for i, item in enumerate(value))


def _resource(value: object, where: str, extensions: bool) -> JobspecResource:
    if not isinstance(value, dict):
        _fail(where, f"must be a mapping with type and count, not {show(value)}")
    for key in ("type", "count"):
        if key not in value:
            _fail(where, f"lacks {key!r}; add it")
    _refuse_unknown(value, _RESOURCE_KEYS, where)
    kind = _text(value["type"], child(where, "type"))
    if not kind:
        _fail(child(where, "type"), "must not be empty; name a resource type such as node or core")
    if kind == "slot" and "label" not in value:
        _fail(where, "is a slot without 'label'; add one, such as label: default")
    exclusive: bool | None = None
    if "exclusive" in value:
        given = scalar(value["exclusive"])
        if given not in ("true", "false"):
            _fail(child(where, "exclusive"), f"must be true or false, not {show(value['exclusive'])}")
        exclusive = given == "true"
    return JobspecResource(
        type=kind,
        count=_count(value["count"], child(where, "count"), extensions),
        unit=_optional_text(value, "unit", where),
        exclusive=exclusive,
        label=_optional_text(value, "label", where),
        id=_optional_text(value, "id", where),
        with_=_resources(value["with"], child(where, "with"), extensions) if "with" in value else (),
    )


def _count(value: object, where: str, extensions: bool) -> Count:
    text = scalar(value)
    if text is not None:
        if extensions and integer(text) is None:
            return _count_from_text(text, where)
        number = _whole(value, where, highest=MAX_COUNT)
        return Count(number, number)
    if not isinstance(value, dict):
        _fail(where, f"must be a whole number or a mapping with min, not {show(value)}")
    if "min" not in value:
        _fail(where, "lacks 'min'; add it")
    # NB Fluxion lets other keys pass here, so they are not refused
    least = _whole(value["min"], child(where, "min"), highest=MAX_COUNT)
    most, operator, operand = MAX_COUNT, "+", 1
    given = [key for key in ("max", "operator", "operand") if key in value]
    if given == ["max"] and extensions:
        most = _whole(value["max"], child(where, "max"), highest=MAX_COUNT)
    elif given:
        for key in ("max", "operator", "operand"):
            if key not in value:
                _fail(
                    where,
                    f"has {given[0]!r} but lacks {key!r}; give max, operator, operand or none of them",
                )
        most = _whole(value["max"], child(where, "max"), highest=MAX_COUNT)
        operator = _text(value["operator"], child(where, "operator"))
        operand = _whole(value["operand"], child(where, "operand"), highest=2**31 - 1)
    return _checked_count(least, most, operator, operand, where)


def _checked_count(least: int, most: int, operator: str, operand: int, where: str) -> Count:
    if least < 1:
        _fail(child(where, "min"), "must be at least 1")
    if most < least:
        _fail(child(where, "max"), f"must be at least min, which is {least}, not {most}")
    if operator not in ("+", "*", "^"):
        _fail(child(where, "operator"), f"must be '+', '*' or '^', not {show(operator)}")
    lowest = 1 if operator == "+" else 2
    if operand < lowest:
        _fail(child(where, "operand"), f"must be at least {lowest} for {operator!r}, not {operand}")
    if operator == "^" and least < 2:
        _fail(child(where, "min"), f"must be at least 2 for '^', not {least}")
    return Count(least, most, cast(Operator, operator), operand)


def _count_from_text(text: str, where: str) -> Count:
    """RFC 14's count as text: a range with an optional step, or an idset that a range can express."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    match = _RANGE_TEXT.fullmatch(bare)
    if match is not None:
        first, last, operand, operator = match.groups()
        most = MAX_COUNT if last is None else int(last)
        if most > MAX_COUNT:
            _fail(where, f"must be at most {MAX_COUNT}")
        return _checked_count(int(first), most, operator or "+", int(operand or 1), where)
    try:
        ids = idset.decode(bare, limit=_MAX_SERIES)
    except InvalidInput as e:
        raise InvalidJobspec(f"must be a whole number or a range such as 2-8: {e}", where=where) from None
    if not ids or ids[0] < 1:
        _fail(where, f"must hold counts of at least 1, not {show(text)}")
    for candidate in _candidates(ids):
        if _series(candidate, len(ids) + 1) == ids:
            return candidate
    raise InvalidJobspec(
        f"{show(text)} is no regular series of counts; write min, max, operator and operand", where=where
    )


def _candidates(ids: list[int]) -> list[Count]:
    """The counts that could produce *ids*, judged by the first two."""
    first, last = ids[0], ids[-1]
    if len(ids) == 1:
        return [Count(first, first)]
    second = ids[1]
    candidates = [Count(first, last, "+", second - first)]
    if second % first == 0:
        candidates.append(Count(first, last, "*", second // first))
    if first > 1:
        power = round(math.log(second, first))
        if power > 1 and first**power == second:
            candidates.append(Count(first, last, "^", power))
    return candidates


def _series(count: Count, longest: int) -> list[int]:
    series: list[int] = []
    below = count.max
    while below >= count.min and len(series) <= longest:
        series.append(count.effective(below))
        below = series[-1] - 1
    return series[::-1]


def _tasks(value: object, where: str) -> tuple[Task, ...]:
    if not isinstance(value, list | tuple):
        _fail(where, f"must be a list of tasks, not {show(value)}; start each with '-'")
    return tuple(_task(item, child(where, i)) for i, item in enumerate(value))


def _task(value: object, where: str) -> Task:
    if not isinstance(value, dict):
        _fail(where, f"must be a mapping with command, slot and count, not {show(value)}")
    for key in ("command", "slot"):
        if key not in value:
            _fail(where, f"lacks {key!r}; add it")
    if len(value) < 3:
        _fail(where, "lacks 'count'; add one, such as count: {per_slot: 1}")
    if len(value) > 5:
        _fail(
            where,
            f"has {len(value)} keys; a task has at most 5: {', '.join(_TASK_KEYS)}",
        )
    command = value["command"]
    if not isinstance(command, list | tuple):
        _fail(child(where, "command"), f"must be a list, not {show(command)}; put it in [ ]")
    count: tuple[str, str] | None = None
    if "count" in value:
        pairs = list(_texts(value["count"], child(where, "count")).items())
        if len(pairs) != 1:
            _fail(child(where, "count"), f"must have one key, such as per_slot or total, not {len(pairs)}")
        count = pairs[0]
    return Task(
        command=tuple(_loose_text(w, child(child(where, "command"), i)) for i, w in enumerate(command)),
        slot=_text(value["slot"], child(where, "slot")),
        count=count,
        distribution=_optional_text(value, "distribution", where),
        attributes=_texts(value["attributes"], child(where, "attributes")) if "attributes" in value else {},
        other={key: resolve(item, child(where, key)) for key, item in value.items() if key not in _TASK_KEYS},
    )


def _attributes(value: object, where: str) -> JobspecAttributes:
    if value is None:
        return JobspecAttributes()
    if not isinstance(value, dict):
        _fail(where, f"must be a mapping with system and user, not {show(value)}")
    _refuse_unknown(value, ("system", "user"), where)
    user = resolve(value.get("user"), child(where, "user"))
    where = child(where, "system")
    system = value.get("system")
    if system is None:
        return JobspecAttributes(user=user)
    if not isinstance(system, dict):
        _fail(where, f"must be a mapping, not {show(system)}")
    environment = system.get("environment")
    return JobspecAttributes(
        duration=_duration(system["duration"], child(where, "duration")) if "duration" in system else None,
        queue=_loose_text(system["queue"], child(where, "queue")) if "queue" in system else None,
        cwd=_loose_text(system["cwd"], child(where, "cwd")) if "cwd" in system else None,
        environment={} if environment is None else _texts(environment, child(where, "environment")),
        constraints=(
            constraint.parse(system["constraints"], child(where, "constraints"))
            if "constraints" in system
            else None
        ),
        other={
            key: resolve(item, child(where, key)) for key, item in system.items() if key not in _SYSTEM_KEYS
        },
        user=user,
    )


def _duration(value: object, where: str) -> float:
    text = scalar(value)
    duration = None if text is None else real(text)
    if duration is None:
        _fail(where, f"must be a number of seconds, not {show(value)}")
    if not 0 <= duration < math.inf:
        _fail(where, f"must be 0 or more seconds, and finite, not {show(value)}")
    return duration


def _whole(value: object, where: str, *, highest: int) -> int:
    text = scalar(value)
    number = None if text is None else integer(text)
    if number is None:
        _fail(where, f"must be a whole number, not {show(value)}")
    if not 0 <= number <= highest:
        _fail(where, f"must be 0 to {highest}, not {show(value)}")
    return number


def _text(value: object, where: str) -> str:
    text = scalar(value)
    if text is None:
        _fail(where, f"must be text, not {show(value)}")
    return str(text)


def _optional_text(mapping: dict[str, object], key: str, where: str) -> str | None:
    return _text(mapping[key], child(where, key)) if key in mapping else None


def _loose_text(value: object, where: str) -> str:
    """Text; Fluxion accepts null here and reads it as the word."""
    return "null" if value is None else _text(value, where)


def _texts(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        _fail(where, f"must be a mapping, not {show(value)}")
    return {str(key): _loose_text(item, child(where, key)) for key, item in value.items()}


def _refuse_unknown(value: dict[str, object], known: tuple[str, ...], where: str) -> None:
    for key in value:
        if key not in known:
            _fail(where, f"has the unknown key {show(key)}; the keys here are {', '.join(known)}")


def _fail(where: str, message: str) -> NoReturn:
    raise InvalidJobspec(message, where=where)


def _thaw(mapping: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {key: _copy(value) for key, value in mapping.items()}


def _copy(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _quote(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _quote(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_quote(item) for item in value]
    return Quoted(value) if isinstance(value, str) else value
