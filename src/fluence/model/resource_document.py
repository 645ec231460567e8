"""Reading `resources.yaml`, the document that declares devices; what is wrong is said with its line.

The tree schema, in which children inherit attributes, an attribute set to "" is cleared, and sets of
attributes can be kept under a name:

    resources:
      - {type: qpu, name: sv1, attributes: braket, with: [{type: qubit, count: 34}]}
      - {type: licence, name: solver, count: 4, parent: rack-2}
    attributes:
      braket: {vendor: aws, region: us-east-1}

The older schema is a list: ``backends: [{name: sv1, num_qubits: 34, vendor: aws, qrmi_type: braket}]``, each
a `qpu` with qubits. A blank document declares nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NoReturn

import yaml

from fluence.errors import InvalidInput
from fluence.model.device import CLUSTER, Device, DeviceTree, variable
from fluence.yaml_loader import compose

MOST_DEVICES: Final = 10_000
MOST_UNITS: Final = 10**9
_DEPTH: Final = 8
_MOST_VALUES: Final = 200_000

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.:@]*[A-Za-z0-9])?")
_TAKEN = frozenset(
    ("cluster", "node", "slot", "core", "memory", "pods", "storage")
)  # types of the graph itself
_ENTRY = ("type", "name", "count", "parent", "attributes", "with", "status")
_TOP = ("resources", "attributes", "backends", "version")


class InvalidResources(InvalidInput):
    """A document of devices cannot be read."""


def parse(text: str, *, source: str = "resources.yaml") -> DeviceTree:
    """The devices that a document declares."""
    reader = _Reader(source)
    try:
        root = compose(text)
    except yaml.MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark is not None else 1
        raise InvalidResources(f"{e.problem or 'is not YAML'}", where=f"{source}: line {line}") from None
    except yaml.YAMLError as e:
        raise InvalidResources(f"is not YAML: {_one_line(e)}", where=source) from None
    except (RecursionError, ValueError) as e:
        raise InvalidResources(f"cannot be read: {_one_line(e)}", where=source) from None
    if root is None or (isinstance(root, yaml.ScalarNode) and reader.is_null(root)):
        return DeviceTree()
    return reader.read(root)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:200]


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of a mapping, and where its key stands."""

    key: yaml.Node
    value: yaml.Node


class _Reader:
    """One document: what it has said so far, so that names are given once."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen = 0
        self._devices = 0
        self._names: dict[str, tuple[int, int]] = {}  # of backends: on which line, and where in the text
        self._given: dict[str, int] = {}  # per type: how many had no name
        self._variables: dict[str, str] = {}  # of attributes: which key is in it
        self._sets: dict[str, Mapping[str, str]] = {}

    def read(self, root: yaml.Node) -> DeviceTree:
        top = self._mapping(root, _TOP, what="the document")
        if "resources" in top and "backends" in top:
            self._fail(top["backends"].key, "has both `resources` and the older `backends`; keep one of them")
        if "attributes" in top:
            for name, entry in self._mapping(top["attributes"].value, None, what="attributes").items():
                self._sets[name] = self._attributes(entry.value, {})
        if "backends" in top:
            return DeviceTree(
                tuple(self._old(each) for each in self._list(top["backends"].value, "backends"))
            )
        if "resources" not in top:
            self._fail(root, "has no `resources`; see `fluence resources check --help` for an example")
        entries = self._list(top["resources"].value, "resources")
        return DeviceTree(tuple(backend for each in entries for backend in self._entry(each)))

    # -- entries ---------------------------------------------------------------------------------------------

    def _entry(self, node: yaml.Node) -> Iterator[Device]:
        fields = self._mapping(node, _ENTRY, what="a resource")
        parent = self._text(fields["parent"].value, "parent") if "parent" in fields else CLUSTER
        for device in self._devices_of(node, fields, {}, top=True, online=True, depth=0):
            yield replace(device, parent=parent)

    def _devices_of(
        self,
        node: yaml.Node,
        fields: Mapping[str, _Field],
        inherited: Mapping[str, str],
        *,
        top: bool,
        online: bool,
        depth: int,
    ) -> list[Device]:
        """An entry: one device, or as many as it counts if something is below each."""
        if depth > _DEPTH:
            self._fail(node, f"is nested over {_DEPTH} levels deep; make the tree flatter")
        if "type" not in fields:
            self._fail(node, "has no `type`; say what it is, such as `type: qpu`")
        type_ = self._type(fields["type"].value)
        count = self._count(fields["count"].value) if "count" in fields else 1
        online = online and ("status" not in fields or self._status(fields["status"].value))
        attributes = inherited
        if "attributes" in fields:
            attributes = self._attributes(fields["attributes"].value, inherited)
        if "parent" in fields and not top:
            self._fail(fields["parent"].key, "only a resource at the top has a `parent`; move it there")
        name = self._text(fields["name"].value, "name", like=_DEVICE_NAME) if "name" in fields else None
        below = self._list(fields["with"].value, "with") if "with" in fields else []
        copies = count if below else 1
        self._bound(node, copies)
        found = []
        for number in range(copies):
            children: list[Device] = []
            for each in below:
                parts = self._mapping(each, _ENTRY, what="a resource")
                children += self._devices_of(
                    each, parts, attributes, top=False, online=online, depth=depth + 1
                )
            own = self._named(node, type_, name, number if copies > 1 else None, top=top)
            plain = MappingProxyType({key: value for key, value in attributes.items() if value})
            found.append(Device(type_, own, 1 if below else count, plain, _apart(children), online))
        return found

    def _old(self, node: yaml.Node) -> Device:
        """An entry of `backends`: a qpu with that many qubits; all else that it says is an attribute."""
        fields = self._mapping(node, None, what="a backend")
        if "name" not in fields:
            self._fail(node, "has no `name`; each of `backends` needs one")
        name = self._text(fields["name"].value, "name", like=_DEVICE_NAME)
        said = {key: value for key, value in fields.items() if key not in ("name", "num_qubits", "status")}
        attributes: dict[str, str] = {}
        for key, entry in said.items():
            self._attribute(attributes, key, entry)
        qubits: tuple[Device, ...] = ()
        online = "status" not in fields or self._status(fields["status"].value)
        plain = MappingProxyType({key: value for key, value in attributes.items() if value})
        if "num_qubits" in fields:
            count = self._count(fields["num_qubits"].value, "num_qubits")
            qubits = (Device("qubit", "qubit0", count, plain, (), online),)
        self._bound(node, 2)
        own = self._named(node, "qpu", name, None, top=True)
        return Device("qpu", own, 1, plain, qubits, online)

    def _named(self, node: yaml.Node, type_: str, name: str | None, number: int | None, *, top: bool) -> str:
        if name is None:
            if not top:
                return f"{type_}{0 if number is None else number}"
            at = self._given.get(type_, 0)
            self._given[type_] = at + 1
            name = f"{type_}{at}"
        elif number is not None:
            name = f"{name}-{number}"
        if top:
            line = node.start_mark.line + 1
            known = self._names.setdefault(name, (line, node.start_mark.index))[0]
            if self._names[name] != (line, node.start_mark.index):
                self._fail(
                    node, f"{name!r} is also on line {known}; every resource at the top needs its own name"
                )
        return name

    def _bound(self, node: yaml.Node, more: int) -> None:
        self._devices += more
        if self._devices > MOST_DEVICES:
            self._fail(node, f"makes it over {MOST_DEVICES} devices; use a `count` without `with` for a pool")

    # -- values ----------------------------------------------------------------------------------------------

    def _attributes(self, node: yaml.Node, inherited: Mapping[str, str]) -> dict[str, str]:
        """A mapping, or the name of one; over what is inherited. What is set to "" is cleared."""
        found = dict(inherited)
        if isinstance(node, yaml.ScalarNode):
            if self.is_null(node):
                return found
            known = self._sets.get(node.value)
            if known is None:
                self._fail(
                    node, f"no set of attributes is called {node.value!r}{_nearest(node.value, self._sets)}"
                )
            return {**found, **known}
        for key, entry in self._mapping(node, None, what="attributes").items():
            self._attribute(found, key, entry)
        return found

    def _attribute(self, into: dict[str, str], key: str, entry: _Field) -> None:
        if key == "backend":
            self._fail(entry.key, "`backend` is the name of the device itself; choose another key")
        if len(key) > 50 or not _NAME.fullmatch(key):
            self._fail(
                entry.key,
                f"{_show(key)} is no key of an attribute: at most 50 letters, digits, '-', '_' and '.'",
            )
        taken = self._variables.setdefault(variable(key), key)
        if taken != key:
            self._fail(
                entry.key, f"{key!r} and {taken!r} would be the same variable, {variable(key)}; rename one"
            )
        if not isinstance(entry.value, yaml.ScalarNode):
            self._fail(entry.value, f"attribute {key!r} must be text or a number")
        value = "" if self.is_null(entry.value) else entry.value.value
        if len(value) > 1024 or not value.isprintable():
            self._fail(entry.value, f"attribute {key!r} must be one line of at most 1024 characters")
        into[key] = value

    def _type(self, node: yaml.Node) -> str:
        text = self._text(node, "type", like=_NAME)
        if len(text) > 63:
            self._fail(node, f"type {_show(text)} is longer than 63 characters")
        if text in _TAKEN:
            self._fail(node, f"type {text!r} is what nodes have; choose another name for the device")
        return text

    def _count(self, node: yaml.Node, name: str = "count") -> int:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if not re.fullmatch(r"[0-9]{1,12}", text) or not 1 <= int(text) <= MOST_UNITS:
            self._fail(node, f"`{name}` must be a whole number from 1 to {MOST_UNITS}, not {_show(text)}")
        return int(text)

    def _status(self, node: yaml.Node) -> bool:
        text = node.value if isinstance(node, yaml.ScalarNode) else ""
        if text not in ("online", "offline"):
            self._fail(node, f"`status` must be `online` or `offline`, not {_show(text)}")
        return text == "online"

    def _text(self, node: yaml.Node, name: str, *, like: re.Pattern[str] | None = None) -> str:
        if not isinstance(node, yaml.ScalarNode) or self.is_null(node):
            self._fail(node, f"`{name}` must be text")
        text: str = node.value
        if len(text) > 253 or not (like or _DEVICE_NAME).fullmatch(text):
            self._fail(
                node, f"`{name}` {_show(text)} must be letters, digits, '-', '_' and '.', at most 253 of them"
            )
        return text

    # -- structure -------------------------------------------------------------------------------------------

    def _mapping(self, node: yaml.Node, known: Sequence[str] | None, *, what: str) -> dict[str, _Field]:
        self._look(node)
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{what} must be a mapping")
        found: dict[str, _Field] = {}
        for key, value in node.value:
            self._look(value)
            if not isinstance(key, yaml.ScalarNode):
                self._fail(key, f"a key of {what} must be text")
            if key.value in found:
                self._fail(key, f"{_show(key.value)} stands twice in {what}")
            if known is not None and key.value not in known:
                self._fail(key, f"{what} has no field {_show(key.value)}{_nearest(key.value, known)}")
            found[key.value] = _Field(key, value)
        return found

    def _list(self, node: yaml.Node, name: str) -> list[yaml.Node]:
        self._look(node)
        if isinstance(node, yaml.ScalarNode) and self.is_null(node):
            return []
        if not isinstance(node, yaml.SequenceNode):
            self._fail(node, f"`{name}` must be a list")
        return list(node.value)

    def _look(self, node: yaml.Node) -> None:
        """Aliases may stand for more than was written; somewhere it must end."""
        self._seen += 1
        if self._seen > _MOST_VALUES:
            self._fail(node, f"holds over {_MOST_VALUES} values; make the document smaller")

    def is_null(self, node: yaml.ScalarNode) -> bool:
        return bool(node.tag == "tag:yaml.org,2002:null")

    def _fail(self, node: yaml.Node, message: str) -> NoReturn:
        raise InvalidResources(message, where=f"{self._source}: line {node.start_mark.line + 1}")


def _apart(children: list[Device]) -> tuple[Device, ...]:
    """Children of one parent with names of their own: those that were given none count on."""
    numbers: dict[str, int] = {}
    taken: set[str] = set()
    found = []
    for child in children:
        name = child.name
        while name in taken:
            numbers[child.type] = numbers.get(child.type, 0) + 1
            name = f"{child.type}{numbers[child.type]}"
        taken.add(name)
        found.append(child if name == child.name else replace(child, name=name))
    return tuple(found)


def _nearest(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean `{near[0]}`?" if near else ""


def _show(text: str) -> str:
    return ascii(text) if len(text) <= 60 else f"{text[:56]!a}..."
