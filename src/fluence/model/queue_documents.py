"""Documents of kind Queue, from files and from objects of the API server, parsed strictly.

An unknown field, a duplicate key, or a negative or huge number is an error that names the queue, the field
and what to change. A file has one or more documents; a List is accepted too.

    apiVersion: fluence.flux-framework.org/v1alpha1
    kind: Queue
    metadata: {name: physics}
    spec:
      parent: science
      guaranteed: {cpu: 400, nvidia.com/gpu@a100: 32}
      limit: {nvidia.com/gpu@a100: 64}
      weight: 2

`fluence.model.queue_documents` parses the spec as strictly as a file. Only the scheduler and other accounts
with the right to write ``queues/status`` can change the status; its numbers are checked nevertheless.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

import yaml

from fluence import names
from fluence.errors import InvalidInput
from fluence.model.document import JsonValue, show
from fluence.model.meta import KubeObject, LabelSelector, ObjectMeta, Requirement
from fluence.model.queues import (
    MAX_AMOUNT,
    MAX_QUEUES,
    NO_CLASSES,
    NOTHING,
    Amounts,
    PerUser,
    Preemption,
    Queue,
    QueueTime,
    QueueTree,
    Reclaim,
    Resource,
    Stop,
    Within,
    nearest,
    problems,
)
from fluence.units import (
    amount,
    format_amount,
    format_duration,
    parse_duration,
    parse_quantity,
    parse_rfc3339,
    rfc3339,
)
from fluence.yaml_loader import BoundedLoader, problem

API_VERSION: Final = f"{names.PREFIX}/v1alpha1"
KIND: Final = "Queue"
MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_RESOURCES: Final = 64  # of one field
_MAX_TERMS: Final = 64  # of one selector
_MAX_CLASSES: Final = 64  # of nodes, in one queue
_MAX_COUNT: Final = 1_000_000
_MAX_WEIGHT: Final = 1_000_000
_MAX_TIME: Final = 10 * 365 * 86_400_000  # ms, ten years

_TOP: Final = ("apiVersion", "kind", "metadata", "spec", "status")
_SPEC: Final = (
    "parent", "namespaces", "nodeClasses", "guaranteed", "limit", "perUser", "weight", "time", "preemption",
    "stop",
)  # fmt: skip
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")
_RESOURCE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?")
_LABEL = re.compile(r"([-a-z0-9.]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
_Choice = TypeVar("_Choice", bound=StrEnum)


class InvalidQueue(InvalidInput):
    """A document of a queue, or the tree of several, is wrong."""


def parse(text: str | bytes, *, source: str = "queues.yaml") -> list[Queue]:
    """The queues of a file. `fluence.model.queues.problems` checks whether they form a tree."""
    if len(text) > MAX_BYTES:
        raise InvalidQueue(f"is larger than {MAX_BYTES >> 20} MiB: remove what is not needed", where=source)
    queues: list[Queue] = []
    try:
        loader: Any = _StrictLoader(text)
        while loader.check_node():
            node = loader.get_node()
            place = f"{source}: line {node.start_mark.line + 1}"
            for document in _documents(loader.construct_document(node), place):
                queues.append(read(document, source=place))
                if len(queues) > MAX_QUEUES:
                    raise InvalidQueue(f"has more than {MAX_QUEUES} queues", where=source)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidQueue(f"is not YAML: {problem(error)[:200]}", where=source) from None
    except (RecursionError, ValueError) as error:
        raise InvalidQueue(f"cannot be read: {' '.join(str(error).split())[:200]}", where=source) from None
    return queues


def parse_tree(text: str | bytes, *, source: str = "queues.yaml") -> QueueTree:
    """The tree of a file, if it is valid."""
    return tree_of(parse(text, source=source), source=source)


def tree_of(queues: list[Queue], *, source: str) -> QueueTree:
    """The tree of some queues, if it is valid."""
    wrong = problems(queues)
    if wrong:
        name, messages = min(wrong.items())
        more = sum(map(len, wrong.values())) - 1
        rest = f"; {more} more: see fluence queues check" if more else ""
        raise InvalidQueue(f"queue {name}: {messages[0]}{rest}", where=source)
    return QueueTree(queues)


class _StrictLoader(BoundedLoader):
    """Refuses a duplicate key; YAML readers keep the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    message = f"the key {key.value[:60]!r} is there twice: keep one of them"
                    raise yaml.MarkedYAMLError(problem=message, problem_mark=key.start_mark)
                seen.add(key.value)
        made: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return made


def _documents(document: object, source: str) -> Iterator[object]:
    if document is None:
        return  # between two separators
    if isinstance(document, dict) and document.get("kind") in ("List", f"{KIND}List"):
        items = document.get("items")
        if not isinstance(items, list):
            raise InvalidQueue(f"items must be a list, not {show(items)}", where=source)
        yield from items
    else:
        yield document


def read(document: object, *, source: str = "") -> Queue:
    """The queue of one document."""
    top = _Field(document, source, "")
    fields = top.mapping(_TOP)
    version, kind = fields.get("apiVersion"), fields.get("kind")
    if kind is None or kind.value != KIND:
        top.fail(f"kind must be {KIND}, not {show(None if kind is None else kind.value)}")
    if version is None or version.value != API_VERSION:
        top.fail(f"apiVersion must be {API_VERSION}, not {show(None if version is None else version.value)}")
    metadata = fields["metadata"].mapping(None) if "metadata" in fields else {}
    if "name" not in metadata:
        top.fail("metadata.name is missing: give the queue a name")
    name = metadata["name"].name()
    spec_field = fields.get("spec", _Field(None, source, "spec")).of(f"{source}: queue {name}")
    spec = spec_field.mapping(_SPEC) if spec_field.value is not None else {}
    parent = spec["parent"].name() if "parent" in spec else None
    if parent == name:
        spec["parent"].fail("a queue cannot be its own parent: remove the field")
    return Queue(
        name=name,
        parent=parent,
        namespaces=spec["namespaces"].selector() if "namespaces" in spec else None,
        classes=spec["nodeClasses"].classes() if "nodeClasses" in spec else NO_CLASSES,
        guaranteed=spec["guaranteed"].amounts() if "guaranteed" in spec else NOTHING,
        limit=spec["limit"].amounts() if "limit" in spec else NOTHING,
        per_user=_per_user(spec.get("perUser")),
        weight=spec["weight"].weight() if "weight" in spec else 1.0,
        time=_time(spec.get("time")),
        preemption=_preemption(spec.get("preemption")),
        stop=spec["stop"].choice(Stop) if "stop" in spec else Stop.NONE,
    )


def _per_user(field: _Field | None) -> PerUser:
    if field is None:
        return PerUser()
    fields = field.mapping(None)
    if "pending" in fields:
        fields["pending"].fail("waiting jobs have no limit yet: remove the field")
    running = fields.pop("running").count() if "running" in fields else None
    return PerUser(running, MappingProxyType(dict(part.amount(key) for key, part in fields.items())))


def _time(field: _Field | None) -> QueueTime:
    if field is None:
        return QueueTime()
    fields = field.mapping(("default", "max", "enforce", "grace"))
    lengths = {key: fields[key].length() for key in ("default", "max", "grace") if key in fields}
    default, most = lengths.get("default"), lengths.get("max")
    if default == 0 or most == 0:
        field.fail("default and max must be more than 0: remove the field for no limit")
    if default is not None and most is not None and default > most:
        fields["default"].fail(f"is longer than max, {format_duration(most // 1000)}: lower it")
    enforce = None
    if "enforce" in fields:
        value = fields["enforce"].value
        if value not in ("end", "none"):
            fields["enforce"].fail(f"must be end or none, not {show(value)}")
        enforce = value == "end"
    return QueueTime(default, most, enforce, lengths.get("grace"))


def _preemption(field: _Field | None) -> Preemption:
    if field is None:
        return Preemption()
    fields = field.mapping(("within", "reclaim", "minRuntime", "patience"))
    return Preemption(
        within=fields["within"].choice(Within) if "within" in fields else None,
        reclaim=fields["reclaim"].choice(Reclaim) if "reclaim" in fields else None,
        min_runtime=fields["minRuntime"].length() if "minRuntime" in fields else None,
        patience=fields["patience"].length() if "patience" in fields else None,
    )


class _Field:
    """A value, its document, and its path in the document."""

    def __init__(self, value: object, source: str, path: str) -> None:
        self.value = value
        self._source = source
        self._path = path

    def of(self, source: str) -> _Field:
        return _Field(self.value, source, self._path)

    def fail(self, message: str) -> NoReturn:
        place = ": ".join(filter(None, (self._source, self._path)))
        raise InvalidQueue(message, where=place)

    def mapping(self, keys: tuple[str, ...] | None) -> dict[str, _Field]:
        """The fields of a mapping without null values. ``keys``: the allowed keys."""
        if not isinstance(self.value, Mapping):
            self.fail(f"must be a mapping, not {show(self.value)}")
        fields: dict[str, _Field] = {}
        for key, value in self.value.items():
            if not isinstance(key, str):
                self.fail(f"{show(key)} is not a name of a field: write text")
            if keys is not None and key not in keys:
                other = nearest(key, keys)
                cure = f"did you mean {other}?" if other else f"use {', '.join(keys)}"
                self.fail(f"there is no field {show(key)}: {cure}")
            if value is not None:
                path = f"{self._path}.{key[:80]}" if self._path else key[:80]
                fields[key] = _Field(value, self._source, path)
        return fields

    def name(self) -> str:
        text = self.value if isinstance(self.value, str) else str(self.value)
        if isinstance(self.value, bool | float | Mapping | list) or not _NAME.fullmatch(text):
            self.fail(
                f"{show(self.value)} is not a name: at most 63 small letters, digits, '-' and '.', with a "
                "letter or digit at both ends"
            )
        return text

    def count(self) -> int:
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_COUNT:
            self.fail(f"must be a whole number from 0 to {_MAX_COUNT}, not {show(value)}")
        return value

    def weight(self) -> float:
        value = self.value
        number = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_AMOUNT:
            number = float(value)
        if not 0 <= number <= _MAX_WEIGHT:  # NB also true for NaN
            self.fail(f"must be a number from 0 to {_MAX_WEIGHT}, not {show(value)}")
        return number

    def choice(self, kinds: type[_Choice]) -> _Choice:
        values = [kind.value for kind in kinds]
        if not isinstance(self.value, str) or self.value not in values:
            self.fail(f"must be one of {', '.join(values)}, not {show(self.value)}")
        return kinds(self.value)

    def length(self) -> int:
        value = self.value
        text = "" if isinstance(value, bool | Mapping | list) or len(str(value)) > 40 else str(value)
        found = parse_duration(text)
        if found is None or found > _MAX_TIME:
            self.fail(f"must be a time such as 90s, 30m or 24h, of at most ten years, not {show(value)}")
        return found

    def amounts(self) -> Amounts:
        fields = self.mapping(None)
        if len(fields) > _MAX_RESOURCES:
            self.fail(f"names {len(fields)} resources: at most {_MAX_RESOURCES} are read")
        return MappingProxyType(dict(field.amount(key) for key, field in fields.items()))

    def amount(self, key: str) -> tuple[Resource, int]:
        """The amount of the resource that is the key of this field."""
        name, at, node_class = key.partition("@")
        if len(key) > 316 or not _RESOURCE.fullmatch(name) or (at and not _LABEL.fullmatch(node_class)):
            self.fail("is not a resource: write a name such as cpu, nvidia.com/gpu or nvidia.com/gpu@a100")
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.fail(f"must be a quantity such as 4, 500m or 1.5Gi, not {show(value)}")
        if isinstance(value, int) and abs(value) > MAX_AMOUNT:
            self.fail("is above 2^53: leave the field out for no limit")
        try:
            nanos = parse_quantity(str(value))
        except InvalidInput as error:
            self.fail(str(error))
        if nanos < 0:
            self.fail(f"{show(value)} is negative: write 0 or more, or leave the field out for no limit")
        count = amount(name, nanos)
        if count > MAX_AMOUNT:
            self.fail("is above 2^53: leave the field out for no limit")
        return Resource(name, node_class), count

    def classes(self) -> Mapping[str, LabelSelector]:
        """Classes of nodes, by name. A class without labels would be every node."""
        fields = self.mapping(None)
        if len(fields) > _MAX_CLASSES:
            self.fail(f"defines {len(fields)} classes: at most {_MAX_CLASSES} are read")
        found: dict[str, LabelSelector] = {}
        for name, field in fields.items():
            if not _VALUE.fullmatch(name) or not name:
                field.fail("is not the name of a class: letters, digits, '-', '_' and '.', such as a100")
            found[name] = field.selector()
            if not found[name].match_labels and not found[name].match_expressions:
                field.fail("selects every node: name the labels that its nodes have")
        return MappingProxyType(found)

    def selector(self) -> LabelSelector:
        fields = self.mapping(("matchLabels", "matchExpressions"))
        labels: dict[str, str] = {}
        if "matchLabels" in fields:
            for key, field in fields["matchLabels"].mapping(None).items():
                labels[field.label(key)] = field.text()
        expressions: list[Requirement] = []
        if "matchExpressions" in fields:
            items = fields["matchExpressions"]
            if not isinstance(items.value, list):
                items.fail(f"must be a list, not {show(items.value)}")
            for number, item in enumerate(items.value):
                expressions.append(_Field(item, items._source, f"{items._path}[{number}]").requirement())
        if len(labels) + len(expressions) > _MAX_TERMS:
            self.fail(f"has {len(labels) + len(expressions)} terms: at most {_MAX_TERMS} are read")
        return LabelSelector(match_labels=labels or None, match_expressions=expressions or None)

    def requirement(self) -> Requirement:
        fields = self.mapping(("key", "operator", "values"))
        for key in ("key", "operator"):
            if key not in fields:
                self.fail(f"{key} is missing: write one")
        operator = fields["operator"].value
        if operator not in _OPERATORS:
            fields["operator"].fail(f"must be one of {', '.join(_OPERATORS)}, not {show(operator)}")
        key = fields["key"].label(str(fields["key"].value))
        values = fields["values"].value if "values" in fields else []
        if not isinstance(values, list) or len(values) > _MAX_TERMS:
            fields["values"].fail(f"must be a list of at most {_MAX_TERMS} values")
        if bool(values) != (operator in ("In", "NotIn")):
            self.fail("In and NotIn need values; Exists and DoesNotExist have none")
        texts = [_Field(value, self._source, f"{self._path}.values").text() for value in values]
        return Requirement(key=key, operator=str(operator), values=texts or None)

    def label(self, key: str) -> str:
        if not _LABEL.fullmatch(key):
            self.fail(f"{show(key)} is not the key of a label: write one such as team or example.com/team")
        return key

    def text(self) -> str:
        if not isinstance(self.value, str) or not _VALUE.fullmatch(self.value):
            self.fail(f"{show(self.value)} is not the value of a label: quote it, at most 63 characters")
        return self.value


# -- writing -------------------------------------------------------------------------------------------------


def to_value(queue: Queue) -> dict[str, JsonValue]:
    """The document of a queue; `read` returns the same queue."""
    spec: dict[str, JsonValue] = {}
    if queue.parent is not None:
        spec["parent"] = queue.parent
    if queue.namespaces is not None:
        spec["namespaces"] = _selected(queue.namespaces)
    if queue.classes:
        spec["nodeClasses"] = {name: _selected(selector) for name, selector in queue.classes.items()}
    for key, amounts in (("guaranteed", queue.guaranteed), ("limit", queue.limit)):
        if amounts:
            spec[key] = _written(amounts)
    per_user = _written(queue.per_user.amounts)
    if queue.per_user.running is not None:
        per_user["running"] = queue.per_user.running
    if per_user:
        spec["perUser"] = per_user
    if queue.weight != 1.0:
        spec["weight"] = int(queue.weight) if queue.weight.is_integer() else queue.weight
    time, preemption = queue.time, queue.preemption
    lengths = {"default": time.default, "max": time.max, "grace": time.grace}
    times: dict[str, JsonValue] = {key: _length(value) for key, value in lengths.items() if value is not None}
    if time.enforce is not None:
        times["enforce"] = "end" if time.enforce else "none"
    waits = {"minRuntime": preemption.min_runtime, "patience": preemption.patience}
    rules: dict[str, JsonValue] = {key: _length(value) for key, value in waits.items() if value is not None}
    for key, choice in (("within", preemption.within), ("reclaim", preemption.reclaim)):
        if choice is not None:
            rules[key] = choice.value
    spec |= {key: value for key, value in (("time", times), ("preemption", rules)) if value}
    if queue.stop is not Stop.NONE:
        spec["stop"] = queue.stop.value
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": queue.name}, "spec": spec}


def _selected(selector: LabelSelector) -> dict[str, JsonValue]:
    terms: dict[str, JsonValue] = {}
    if selector.match_labels:
        terms["matchLabels"] = dict(selector.match_labels)
    if selector.match_expressions:
        terms["matchExpressions"] = [
            {"key": term.key, "operator": term.operator}
            | ({"values": list(term.values)} if term.values else {})
            for term in selector.match_expressions
        ]
    return terms


def _written(amounts: Amounts) -> dict[str, JsonValue]:
    """Amounts as people write them; whole numbers as numbers."""
    texts = {str(resource): format_amount(resource.name, count) for resource, count in amounts.items()}
    return {key: int(text) if text.isdecimal() else text for key, text in texts.items()}


def _length(milliseconds: int) -> JsonValue:
    return f"{milliseconds}ms" if milliseconds % 1000 else f"{milliseconds // 1000}s"


MAX_USERS: Final = 500  # of one queue whose usage is kept; the usage of others is kept as a sum
OTHERS: Final = ""  # the name of that sum
MAX_PREEMPTED: Final = 256  # controllers per queue whose preempted pods are counted
_MAX_USAGE: Final = 1e15


class QueueObject(KubeObject, frozen=True):
    """A Queue. Spec and status are unparsed, as the server sent them."""

    kind: str = KIND
    spec: Any = None
    status: Any = None

    @classmethod
    def of(cls, queue: Queue) -> QueueObject:
        """The object of a queue, as on a server."""
        document = to_value(queue)
        meta = ObjectMeta(name=queue.name, uid=f"queue-{queue.name}", generation=1)
        return cls(metadata=meta, spec=document["spec"])

    @property
    def name(self) -> str:
        return self.metadata.name

    def queue(self) -> Queue:
        """The parsed queue; raises `queue_documents.InvalidQueue`."""
        return self._read(self.spec)

    def last_in_force(self) -> Queue | None:
        """The spec that was in force when the scheduler wrote the status: an earlier one, or the current one.
        None: no spec was, or it cannot be parsed."""
        status = self.status if isinstance(self.status, Mapping) else {}
        try:
            return self._read(status.get("inForce", self.spec))
        except InvalidQueue:
            return None

    def _read(self, spec: object) -> Queue:
        return read(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": {"name": self.name},
                "spec": spec,
            }
        )

    def usage(self, now: int) -> tuple[int, dict[str, float]] | None:
        """The usage of its users, and the time at which it was written, in milliseconds; None: there is no
        valid usage. A time in the future counts as now."""
        status = self.status if isinstance(self.status, Mapping) else {}
        written = status.get("usage")
        if not isinstance(written, Mapping) or not isinstance(written.get("users"), Mapping):
            return None
        at = parse_rfc3339(str(written.get("at", ""))[:40])
        if at is None:
            return None
        return min(at // 1000, now), dict(_believed(written["users"]))

    def preempted(self) -> dict[str, int]:
        """The number of preempted pods of each controller, as the scheduler wrote it; invalid entries are
        left out."""
        status = self.status if isinstance(self.status, Mapping) else {}
        written = status.get("preempted")
        pairs = list(written.items())[:MAX_PREEMPTED] if isinstance(written, Mapping) else []
        return {
            str(key)[:64]: count
            for key, count in pairs
            if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= _MAX_COUNT
        }


def _believed(users: Mapping[object, object]) -> Iterator[tuple[str, float]]:
    for number, (user, text) in enumerate(users.items()):
        if number > MAX_USERS:
            return
        try:
            value = float(text) if isinstance(text, str) and len(text) <= 40 else math.nan
        except ValueError:
            continue
        if isinstance(user, str) and len(user) <= 253 and 0 <= value <= _MAX_USAGE:
            yield user, value


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of a queue. Amounts and figures are texts for people."""

    name: str
    uid: str
    generation: int
    is_valid: bool
    reason: str
    message: str
    is_active: bool
    entitled: str = ""
    limit: str = ""
    used: Mapping[str, str] = dataclass_field(default_factory=dict)
    borrowed: str = ""  # usage beyond its guarantee
    running: int = 0
    waiting: int = 0
    share: str = ""  # usage over the share of its weight
    in_force: Queue | None = None  # an earlier spec that still counts
    usage: Mapping[str, float] = dataclass_field(default_factory=dict)  # cluster-seconds by user
    at: int = 0  # ms: when that was
    preempted: Mapping[str, int] = dataclass_field(
        default_factory=dict
    )  # pods that ended for others, by controller

    def document(self, since: Mapping[str, str]) -> dict[str, JsonValue]:
        """The status as it is written. ``since``: the time of the last transition, by condition."""
        conditions: list[JsonValue] = [
            {
                "type": type_,
                "status": "True" if holds else "False",
                "reason": reason,
                "message": message,
                "observedGeneration": self.generation,
                "lastTransitionTime": since[type_],
            }
            for type_, (holds, reason, message) in self.conditions.items()
        ]
        status: dict[str, JsonValue] = {
            "observedGeneration": self.generation,
            "conditions": conditions,
            "entitled": self.entitled,
            "limit": self.limit,
            "used": dict(self.used),
            "inUse": ", ".join(f"{name} {amount}" for name, amount in self.used.items()),
            "borrowed": self.borrowed,
            "running": self.running,
            "waiting": self.waiting,
            "share": self.share,
        }
        if self.in_force is not None:
            status["inForce"] = to_value(self.in_force)["spec"]
        if self.usage:
            users: dict[str, JsonValue] = {user: f"{value:.17g}" for user, value in self.usage.items()}
            status["usage"] = {"at": rfc3339(self.at * 1000, "milliseconds"), "users": users}
        if self.preempted:
            status["preempted"] = dict(self.preempted)
        return status

    @property
    def conditions(self) -> dict[str, tuple[bool, str, str]]:
        active = "it is in force" if self.is_active else "it is not in force: see the condition Valid"
        return {
            "Valid": (self.is_valid, self.reason, self.message),
            "Active": (self.is_active, "InForce" if self.is_active else "NotInForce", active),
        }
